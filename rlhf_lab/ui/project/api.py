"""Screen "Project": the list of projects, a new one on any model and prompts, the operator's secret, home and engine."""

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict

from rlhf_lab.common.bundled_assets import EMBEDDED_MODEL, PROMPT_SETS, train_eval_split
from rlhf_lab.common.chat_format import Chat, turns_of_prompt
from rlhf_lab.common.enums import EngineState, JobKind, Source
from rlhf_lab.common.records import DEFAULT_MAX_NEW_TOKENS, ChatSettings, Project, Role
from rlhf_lab.common.seeding import secret_seed
from rlhf_lab.common.storage import storage_note
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.jobs.answer_length import LengthView, accept_proposal, length_view
from rlhf_lab.jobs.hub_download import DownloadStatus
from rlhf_lab.jobs.memory_estimate import PROMPT_TOKENS, FitVerdict, detect_device, estimate_memory
from rlhf_lab.jobs.model_inspection import ModelFacts, inspect_model
from rlhf_lab.jobs.project_setup import (
    change_max_new_tokens,
    change_temperature,
    completed_chat_settings,
    new_project,
    parse_template_arguments,
    remove_project,
)
from rlhf_lab.jobs.prompt_files import MAX_BYTES, PROMPT_FILE_SUFFIXES, parse_prompts
from rlhf_lab.jobs.run_control import check_name
from rlhf_lab.jobs.startup_project import StartupPhase
from rlhf_lab.store.projects import count_pairs, open_project, projects, prompts, rename_project
from rlhf_lab.store.reward_models import count_reward_models
from rlhf_lab.store.runs import runs
from rlhf_lab.store.votes import label_count, vote_counts
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.limits import ENTER
from rlhf_lab.ui.middleware import folder_size
from rlhf_lab.ui.run_views.run_feed import runs_note
from rlhf_lab.ui.shared.api import Api, DecimalNumber, LongText, Message, Payload
from rlhf_lab.ui.shared.widgets import widget

api = Api("project")
#: Suggested models by name, with their number of parameters. None has been measured yet (no figures in docs/DECISIONS.md).
SUGGESTED_MODELS = (
    ("HuggingFaceTB/SmolLM2-135M-Instruct", "135 M"),
    ("openai-community/gpt2", "124 M"),
    ("HuggingFaceTB/SmolLM2-360M-Instruct", "360 M"),
    ("Qwen/Qwen2.5-0.5B-Instruct", "494 M"),
    ("Qwen/Qwen3-0.6B", "596 M"),
)
PROMPT_SET_LABELS = {
    "tales": "tales: the beginning of a story",
    "support": "support: a customer writes",
    "reviews": "reviews: the beginning of a review",
    "everyday": "everyday: explain, rewrite, advise, plan …",
    "arithmetic": "arithmetic: What is 3 + 4?",
}
CUSTOM_PROMPT_SET = "own"
MAX_SEED = 2**31 - 1
MAX_NEW_TOKENS = 4096
MAX_SYSTEM_PROMPT_CHARS = 10_000
MODEL_FACTS_S = 60.0

TAIL_LINES = 60
TAIL_BYTES = 20_000
#: Groups of files of a home whose sizes are added up: a label, and the prefixes of the files' top-level names.
FILE_GROUPS = (
    ("labels and metrics (lab.db)", ("lab.db",)),
    ("runs", ("runs",)),
    ("reward models", ("reward_models",)),
    ("logs", ("engine.",)),
)

#: A number that may be typed with a decimal comma, or left empty.
OptionalNumber = Annotated[
    float | None,
    BeforeValidator(lambda value: (value.replace(",", ".").strip() or None) if isinstance(value, str) else value),
]
OptionalCount = Annotated[
    int | None, BeforeValidator(lambda value: (value.strip() or None) if isinstance(value, str) else value)
]


class ProjectPayload(Payload):
    project: int


class RenamePayload(ProjectPayload):
    name: str


class TemperaturePayload(ProjectPayload):
    temperature: DecimalNumber = Field(title="temperature", ge=0.05, le=5)


class LengthPayload(ProjectPayload):
    max_new_tokens: int = Field(title="longest text", ge=1, le=MAX_NEW_TOKENS)


class ModelPayload(Payload):
    """max_new_tokens: if empty, 64."""

    model: str
    max_new_tokens: OptionalCount = Field(default=None, title="longest text", ge=1, le=MAX_NEW_TOKENS)


class PromptsPayload(Payload):
    """text, file: the person's own prompts, and the name of their file."""

    text: LongText = ""
    file: str = ""

    def prompts(self) -> list[str]:
        """The person's own prompts. Raises ConfigError with the invalid lines."""
        return parse_prompts(self.text, self.file or "prompts.txt")


class NewProjectPayload(ModelPayload, PromptsPayload):
    """prompt_set, temperature: if empty, chosen to suit the model. confirmed: create the project although the model is too large.
    template_arguments: a JSON object, or empty."""

    prompt_set: str = ""
    name: str = ""
    temperature: OptionalNumber = Field(default=None, title="temperature", ge=0.05, le=5)
    seed: int = Field(default=0, title="seed", ge=0, le=MAX_SEED)
    system_prompt: str = Field(default="", max_length=MAX_SYSTEM_PROMPT_CHARS)
    template_arguments: LongText = ""
    confirmed: bool = False


class SecretPayload(Payload):
    secret: str = ""


class ProjectRow(TypedDict):
    """A project in the list. model, template_arguments: as shown; pair_count and the other counts: what it has."""

    id: int
    name: str
    model: str
    prompt_set: str
    temperature: float
    max_new_tokens: int
    system_prompt: str
    template_arguments: str
    train_count: int
    eval_count: int
    pair_count: int
    human_labels: int
    simulated_labels: int
    model_count: int
    run_count: int


class DownloadView(TypedDict):
    """The download of a model. eta_s: None while unknown. can_retry: of the model that the variables of a Space name."""

    model: str
    status: DownloadStatus | StartupPhase
    downloaded_bytes: int
    total_bytes: int
    eta_s: float | None
    message: str
    can_retry: bool


class EngineView(TypedDict):
    state: EngineState
    stoppable: bool


class ProjectState(TypedDict):
    """current: the id of the open project. length: the measured lengths of its texts."""

    current: int
    projects: list[ProjectRow]
    length: LengthView | None
    download: DownloadView | None
    engine: EngineView


class MemoryCheck(TypedDict):
    """A model, and the memory for texts of so many tokens with their prompts. components: name, bytes, formula of each term."""

    model: str
    architecture: str
    parameters: int
    download_bytes: int
    tokens: int
    components: list[tuple[str, int, str]]
    required_bytes: int
    free_bytes: int
    device: str
    verdict: FitVerdict
    advice: str


class ModelCheck(TypedDict):
    """The memory that a model needs, and the settings that suit it."""

    check: MemoryCheck
    prompt_set: str
    temperature: float
    template_arguments: str


class PromptsPreview(TypedDict):
    """The person's own prompts as they were parsed."""

    count: int
    eval_count: int
    first_prompts: list[Chat]


class Creation(Message):
    """message: "" if nothing was created, because the person has to confirm it: see warning and check."""

    warning: str
    check: MemoryCheck | None


class HomeSummary(TypedDict):
    """note: why the database has no write-ahead log; "" if it has one. usage: bytes by group of files. log: the engine's last
    lines."""

    path: str
    note: str
    usage: list[tuple[str, int]]
    free: int
    log: str


class EnteredSecret(Message):
    redirect_to_login: bool


def build(ctx: Context) -> None:
    data = {
        "models": [[EMBEDDED_MODEL, "embedded model: ships with the lab"]]
        + [[name, f"{name}: {size}, untested"] for name, size in SUGGESTED_MODELS],
        "prompt_sets": [[name, PROMPT_SET_LABELS[name]] for name in PROMPT_SETS],
        "suffixes": list(PROMPT_FILE_SUFFIXES),
        "max_bytes": MAX_BYTES,
        "has_secret": ctx.operator_secret is not None,
    }
    widget("project", "project/view.js", data=data, label="Project")


@api.read(Payload, cached_s=1.0)
def state(ctx: Context, _: Payload) -> ProjectState:
    engine = engine_process.engine_state(ctx.db)
    is_stoppable = engine.row is not None and engine.state is not EngineState.ABSENT
    return {
        "current": ctx.project.id,
        "projects": [project_row(ctx, project) for project in reversed(projects(ctx.db))],
        "length": length_view(ctx.db, ctx.project),
        "download": download_view(ctx),
        "engine": {"state": engine.state, "stoppable": is_stoppable},
    }


@api.action(ProjectPayload, role=Role.OPERATOR)
def open_existing(ctx: Context, payload: ProjectPayload) -> Message:
    open_project(ctx.db, payload.project)
    _dismiss_startup(ctx)
    return {"message": f'"{ctx.project.name}" is open, for everybody who uses this lab.{runs_note(ctx)}'}


@api.action(RenamePayload, role=Role.OPERATOR)
def rename(ctx: Context, payload: RenamePayload) -> Message:
    name = check_name(payload.name)
    rename_project(ctx.db, payload.project, name)
    return {"message": f'The project is called "{name}" now.'}


@api.action(TemperaturePayload, role=Role.OPERATOR)
def set_temperature(ctx: Context, payload: TemperaturePayload) -> Message:
    return {"message": change_temperature(ctx.db, payload.project, payload.temperature)}


@api.action(LengthPayload, role=Role.OPERATOR)
def set_length(ctx: Context, payload: LengthPayload) -> Message:
    return {"message": change_max_new_tokens(ctx.db, payload.project, payload.max_new_tokens)}


@api.action(Payload, role=Role.OPERATOR)
def measure_length(ctx: Context, _: Payload) -> Message:
    """After a measurement that failed."""
    queue.submit_once(ctx.db, JobKind.MEASURE_LENGTH, ctx.project.id, {})
    return {"message": "The length of the answers is measured again."}


@api.action(Payload, role=Role.OPERATOR)
def accept_length(ctx: Context, _: Payload) -> Message:
    return {"message": accept_proposal(ctx.db, ctx.project.id)}


@api.action(ProjectPayload, role=Role.OPERATOR)
def delete(ctx: Context, payload: ProjectPayload) -> Message:
    deleted = remove_project(ctx.db, ctx.home, payload.project)
    ctx.scheduler.forget_project(deleted.id)
    return {"message": f'The project "{deleted.name}" is deleted.'}


@api.action(ModelPayload, role=Role.OPERATOR)
def check_model(ctx: Context, payload: ModelPayload) -> ModelCheck:
    """Describe the model: its size, the memory it needs, whether it fits, and suitable settings."""
    facts = model_facts(ctx, payload.model)
    return {
        "check": memory_check(facts, payload.max_new_tokens),
        "prompt_set": facts.prompt_set,
        "temperature": facts.temperature,
        "template_arguments": json.dumps(facts.template_arguments) if facts.template_arguments else "",
    }


@api.action(PromptsPayload, role=Role.OPERATOR)
def preview_prompts(ctx: Context, payload: PromptsPayload) -> PromptsPreview:
    texts = payload.prompts()
    eval_count = sum(split_name == "eval" for _, split_name in train_eval_split(texts))
    return {
        "count": len(texts),
        "eval_count": eval_count,
        "first_prompts": [turns_of_prompt(text) for text in texts[:5]],
    }


@api.action(NewProjectPayload, role=Role.OPERATOR)
def create(ctx: Context, payload: NewProjectPayload) -> Creation:
    """Create a project, immediately or after its model was downloaded. A model that does not fit needs a confirmation."""
    name = check_name(payload.name) if payload.name.strip() else ""
    facts = model_facts(ctx, payload.model)
    prompt_set = payload.prompt_set or facts.prompt_set
    custom_prompts = payload.prompts() if prompt_set == CUSTOM_PROMPT_SET else []
    if prompt_set != CUSTOM_PROMPT_SET and prompt_set not in PROMPT_SETS:
        raise ConfigError(f'There is no prompt set "{prompt_set}"; choose one of {", ".join(PROMPT_SETS)}.')
    if custom_prompts:
        prompt_set = " ".join(Path(payload.file or "own prompts").name.split())[:60]
    chat = ChatSettings(payload.system_prompt, parse_template_arguments(payload.template_arguments))
    chat = completed_chat_settings(facts, chat)  # before the download
    memory = memory_check(facts, payload.max_new_tokens)
    if memory["verdict"] is FitVerdict.TOO_LARGE and not payload.confirmed:
        return {"message": "", "warning": "This model is probably too large for this machine.", "check": memory}

    def create_project(_: Path | None = None) -> str:
        seed = payload.seed or (secret_seed() if ctx.access.is_multi_user else 0)
        project = new_project(
            ctx.db, model=facts.name, prompt_set=prompt_set, custom_prompts=custom_prompts,
            temperature=payload.temperature, max_new_tokens=payload.max_new_tokens, seed=seed,
            name=name, chat=chat,
        )  # fmt: skip
        _dismiss_startup(ctx)
        created = f'Project "{project.name}" was created and opened. The engine is writing its first pairs.'
        return created + runs_note(ctx)

    if facts.files_to_download:
        ctx.downloads.start(facts, create_project)
        message = f"Downloading {facts.name}; the project opens afterwards. Work in this one continues."
    else:
        message = create_project()
    return {"message": message, "warning": "", "check": None}


@api.action(Payload, role=Role.OPERATOR)
def cancel_download(ctx: Context, _: Payload) -> Message:
    if ctx.downloads.cancel():
        return {"message": "The download was cancelled. Completed files are kept for the next time."}
    return {"message": "There is no download to cancel; the last one is complete."}


@api.action(Payload, role=Role.OPERATOR)
def retry_download(ctx: Context, _: Payload) -> Message:
    """Try the model of the Space's variables again."""
    if ctx.startup is None or not ctx.startup.start():
        raise ConfigError("There is nothing to retry: no model is missing, or it is being downloaded.")
    return {"message": "The lab tries again."}


@api.action(Payload, role=Role.OPERATOR)
def stop_engine(ctx: Context, _: Payload) -> Message:
    stopped = engine_process.stop_engine(ctx.db, ctx.home)
    return {"message": "The engine has ended." if stopped else "No engine was running."}


@api.action(Payload, role=Role.OPERATOR)
def home_summary(ctx: Context, _: Payload) -> HomeSummary:
    home, wal_problem = ctx.home, ctx.db.wal_problem
    sizes = {group_name: 0 for group_name, _ in FILE_GROUPS} | {"other": 0}
    for path in home.iterdir():
        group = next((group_name for group_name, prefixes in FILE_GROUPS if path.name.startswith(prefixes)), "other")
        with contextlib.suppress(OSError):  # deleted in between
            sizes[group] += folder_size(path) if path.is_dir() else path.stat().st_size
    return {
        "path": f"{home}{storage_note(home)}",
        "note": f"The database uses a rollback journal instead of a write-ahead log, because {wal_problem}."
        if wal_problem
        else "",
        "usage": [(group_name, size) for group_name, size in sizes.items() if size],
        "free": shutil.disk_usage(home).free,
        "log": tail(home / "engine.log") or tail(home / "engine.out"),
    }


@api.action(SecretPayload, role=Role.VIEWER, limit=ENTER)
def enter_secret(ctx: Context, payload: SecretPayload) -> EnteredSecret:
    """Check a secret that the browser is to store. A viewer is sent to the operator's link, which gives them a role, because the
    secret gives none to a viewer."""
    ctx.check_secret(payload.secret)
    if not ctx.is_labeller():
        return {"message": "", "redirect_to_login": True}
    return {"message": "You are the operator in this browser now.", "redirect_to_login": False}


def model_facts(ctx: Context, model: str) -> ModelFacts:
    """Cached for a minute, because the Hub may take seconds. Raises ModelError."""
    name = model.strip()
    return ctx.cache.get(("model facts", name), MODEL_FACTS_S, lambda: inspect_model(name))


def memory_check(facts: ModelFacts, max_new_tokens: int | None) -> MemoryCheck:
    """The memory for texts as long as the new project's."""
    config = PolicyConfig(max_new_tokens=max_new_tokens or DEFAULT_MAX_NEW_TOKENS)
    memory = estimate_memory(facts, detect_device(), config)
    return {
        "model": model_label(facts.name),
        "architecture": facts.architecture,
        "parameters": facts.parameters,
        "download_bytes": facts.download_bytes,
        "tokens": PROMPT_TOKENS + config.max_new_tokens,
        "components": [(item.name, item.size, item.formula) for item in memory.terms],
        "required_bytes": memory.required_bytes,
        "free_bytes": memory.device.free_bytes,
        "device": memory.device.name,
        "verdict": memory.verdict,
        "advice": memory.advice,
    }


def _dismiss_startup(ctx: Context) -> None:
    if ctx.startup is not None:
        ctx.startup.dismiss()


def download_view(ctx: Context) -> DownloadView | None:
    """The running download; else the state of the model that a Space's variables name; else the last download."""
    startup, progress = ctx.startup.state() if ctx.startup else None, ctx.downloads.progress()
    is_running = progress is not None and progress.status is DownloadStatus.RUNNING
    is_later = progress is not None and startup is not None and progress.model != startup.model
    if startup is None or is_running or (is_later and startup.phase is StartupPhase.READY):
        return None if progress is None else {
            "model": progress.model, "status": progress.status, "downloaded_bytes": progress.downloaded_bytes,
            "total_bytes": progress.total_bytes, "eta_s": progress.eta_s, "message": progress.message, "can_retry": False,
        }  # fmt: skip
    return {
        "model": model_label(startup.model) or "The project of the settings", "status": startup.phase,
        "downloaded_bytes": 0, "total_bytes": 0, "eta_s": None, "message": startup.message,
        "can_retry": startup.phase is StartupPhase.FAILED,
    }  # fmt: skip


def project_row(ctx: Context, project: Project) -> ProjectRow:
    db = ctx.db
    counts = vote_counts(db, project.id)
    human, simulated = (label_count(counts[source]) for source in Source)
    return {
        "id": project.id,
        "name": project.name,
        "model": model_label(project.model),
        "prompt_set": project.prompt_set,
        "temperature": project.temperature,
        "max_new_tokens": project.max_new_tokens,
        "system_prompt": project.system_prompt,
        "template_arguments": json.dumps(project.template_arguments) if project.template_arguments else "",
        "train_count": len(prompts(db, project.id, "train")),
        "eval_count": len(prompts(db, project.id, "eval")),
        "pair_count": count_pairs(db, project.id),
        "human_labels": human,
        "simulated_labels": simulated,
        "model_count": count_reward_models(db, project.id),
        "run_count": len(runs(db, project.id)),
    }


def model_label(model: str) -> str:
    """A model's name without its parent folders, which only the operator may see."""
    if model == EMBEDDED_MODEL:
        return "embedded model"
    return Path(model).name if Path(model).is_absolute() else model


def tail(path: Path) -> str:
    """The last lines of a log that may be large; "" if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-TAIL_LINES:])
