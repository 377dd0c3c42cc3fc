"""Screen "Project": the list of projects, a new one on any model and prompts, the operator's secret, home and engine."""

import contextlib
import functools
import json
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import gradio as gr
from pydantic import BeforeValidator, Field

from rlhf_lab.common.bundled_assets import EMBEDDED_MODEL, PROMPT_SETS, train_eval_split
from rlhf_lab.common.chat_format import turns_of_prompt
from rlhf_lab.common.enums import EngineState, Source
from rlhf_lab.common.records import DEFAULT_MAX_NEW_TOKENS, ChatSettings, Project
from rlhf_lab.common.seeding import secret_seed
from rlhf_lab.common.storage import storage_note
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import ConfigError, LabError
from rlhf_lab.jobs import engine_process
from rlhf_lab.jobs.answer_length import accept_proposal, length_view
from rlhf_lab.jobs.hub_download import DownloadProgress, DownloadStatus
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
from rlhf_lab.ui.middleware import folder_size
from rlhf_lab.ui.run_views.run_feed import runs_note
from rlhf_lab.ui.shared.api import FieldError, Payload, parse_payload
from rlhf_lab.ui.shared.events import allow_viewers, operator_action, show_errors, ttl_cache
from rlhf_lab.ui.shared.widgets import SILENT_MULTIPLE_EVENT, widget

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
    """An action of the operator, with the fields that it needs.

    prompt_set, temperature: if empty, chosen to suit the model. max_new_tokens: if empty, 64.
    text, file: the person's own prompts, and the name of their file.
    confirmed: create the project although the model is too large. template_arguments: a JSON object, or empty.
    """

    action: Literal[
        "open",
        "check",
        "preview",
        "create",
        "cancel",
        "retry",
        "stop-engine",
        "about",
        "rename",
        "temperature",
        "length",
        "accept-length",
        "delete",
    ]
    project: int = 0
    name: str = ""
    model: str = ""
    prompt_set: str = ""
    temperature: OptionalNumber = Field(default=None, title="temperature", ge=0.05, le=5)
    max_new_tokens: OptionalCount = Field(default=None, title="longest text", ge=1, le=MAX_NEW_TOKENS)
    seed: int = Field(default=0, title="seed", ge=0, le=MAX_SEED)
    text: str = ""
    file: str = ""
    system_prompt: str = Field(default="", title="system prompt", max_length=MAX_SYSTEM_PROMPT_CHARS)
    template_arguments: str = ""
    confirmed: bool = False

    def prompts(self) -> list[str]:
        """The person's own prompts. Raises ConfigError with the invalid lines."""
        return parse_prompts(self.text, self.file or "prompts.txt")


class SecretPayload(Payload):
    secret: str = ""
    request_id: int | None = None


def build(ctx: Context, operator: gr.BrowserState) -> None:
    controller = ProjectController(ctx)
    cached_state = ttl_cache(1.0, controller.get_state)
    data = {
        "models": [[EMBEDDED_MODEL, "embedded model: ships with the lab"]]
        + [[name, f"{name}: {size}, untested"] for name, size in SUGGESTED_MODELS],
        "prompt_sets": [[name, PROMPT_SET_LABELS[name]] for name in PROMPT_SETS],
        "suffixes": list(PROMPT_FILE_SUFFIXES),
        "max_bytes": MAX_BYTES,
        "has_secret": ctx.operator_secret is not None,
    }
    component = widget(
        "project",
        "project/view.js",
        events=("action", "operator_secret"),
        server_functions={"get_state": lambda _: cached_state()},
        data=data,
        label="Project",
    )

    @operator_action(ctx, ProjectPayload)
    def action(payload: ProjectPayload) -> dict[str, Any]:
        return controller.handle_action(payload)

    @allow_viewers
    @show_errors
    def operator_secret(event: gr.EventData) -> tuple[str | dict[str, Any], dict[str, Any]]:
        """The secret that the browser is to store, and the reply; a wrong secret changes nothing.

        A viewer is sent to the operator's link, which gives them a role, because events of viewers are refused before a secret
        is checked.
        """
        payload = parse_payload(SecretPayload, event._data)
        reply: dict[str, Any] = {"request_id": payload.request_id}
        try:
            ctx.require_operator(payload.secret)
        except LabError as error:
            return gr.skip(), reply | {"error": str(error)}
        if not ctx.is_operator_with_secret(payload.secret):
            return gr.skip(), reply | {"redirect_to_login": True}
        return payload.secret, reply | {"message": "You are the operator in this browser now."}

    component.action(action, operator, component, **SILENT_MULTIPLE_EVENT)
    component.operator_secret(operator_secret, None, [operator, component], **SILENT_MULTIPLE_EVENT)


class ProjectController:
    """The actions of the screen; one instance for all pages of a server."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.downloads = ctx.downloads
        self._cached_facts = functools.lru_cache(maxsize=8)(_inspect_model_at)
        self._lock = threading.Lock()

    def get_state(self) -> dict[str, Any]:
        """The state that the screen polls."""
        ctx = self.ctx
        engine = engine_process.engine_state(ctx.db)
        is_stoppable = engine.row is not None and engine.state is not EngineState.ABSENT
        return {
            "current": ctx.project.id,
            "projects": [project_row(ctx, project) for project in reversed(projects(ctx.db))],
            "length": length_view(ctx.db, ctx.project),
            "download": self.download_state(),
            "engine": {"state": engine.state, "stoppable": is_stoppable},
        }

    def download_state(self) -> dict[str, Any] | None:
        """The running download; else the state of the model that a Space's variables name; else the last download."""
        startup, progress = self.ctx.startup.state() if self.ctx.startup else None, self.downloads.progress()
        is_running = progress is not None and progress.status is DownloadStatus.RUNNING
        is_later = progress is not None and startup is not None and progress.model != startup.model
        if startup is None or is_running or (is_later and startup.phase is StartupPhase.READY):
            return download_view(progress)
        return {
            "model": model_label(startup.model) or "The project of the settings", "status": startup.phase,
            "message": startup.message, "can_retry": startup.phase is StartupPhase.FAILED,
        }  # fmt: skip

    def handle_action(self, payload: ProjectPayload) -> dict[str, Any]:
        """Perform an action; returns the reply. Raises LabError if that is not possible."""
        actions = {
            "open": self.open, "check": self.check_model, "preview": self.preview, "create": self.create,
            "cancel": self.cancel, "retry": self.retry, "stop-engine": self.stop_engine, "about": self.home_info,
            "rename": self.rename, "temperature": self.set_temperature, "length": self.set_length,
            "accept-length": self.accept_length,            "delete": self.delete,
        }  # fmt: skip
        return actions[payload.action](payload)

    def open(self, payload: ProjectPayload) -> dict[str, Any]:
        open_project(self.ctx.db, payload.project)
        self._dismiss_startup()
        return {"message": f'"{self.ctx.project.name}" is open, for everybody who uses this lab.{runs_note(self.ctx)}'}

    def rename(self, payload: ProjectPayload) -> dict[str, Any]:
        name = check_name(payload.name)
        rename_project(self.ctx.db, payload.project, name)
        return {"message": f'The project is called "{name}" now.'}

    def set_temperature(self, payload: ProjectPayload) -> dict[str, Any]:
        if payload.temperature is None:
            raise FieldError("temperature", "Give a temperature: a number from 0.05 to 5.")
        return {"message": change_temperature(self.ctx.db, payload.project, payload.temperature)}

    def set_length(self, payload: ProjectPayload) -> dict[str, Any]:
        if payload.max_new_tokens is None:
            raise FieldError("max_new_tokens", f"Give the longest text in tokens: a number from 1 to {MAX_NEW_TOKENS}.")
        return {"message": change_max_new_tokens(self.ctx.db, payload.project, payload.max_new_tokens)}

    def accept_length(self, _: ProjectPayload) -> dict[str, Any]:
        return {"message": accept_proposal(self.ctx.db, self.ctx.project.id)}

    def delete(self, payload: ProjectPayload) -> dict[str, Any]:
        deleted = remove_project(self.ctx.db, self.ctx.home, payload.project)
        self.ctx.scheduler.forget_project(deleted.id)
        return {"message": f'The project "{deleted.name}" is deleted.'}

    def check_model(self, payload: ProjectPayload) -> dict[str, Any]:
        """Describe the model: its size, the memory it needs, whether it fits, and suitable settings."""
        facts = self.model_facts(payload)
        return {"check": self.memory_check(facts, payload), "prompt_set": facts.prompt_set, "temperature": facts.temperature,
                "template_arguments": json.dumps(facts.template_arguments) if facts.template_arguments else ""}  # fmt: skip

    def memory_check(self, facts: ModelFacts, payload: ProjectPayload) -> dict[str, Any]:
        """The memory for texts as long as the new project's."""
        config = PolicyConfig(max_new_tokens=payload.max_new_tokens or DEFAULT_MAX_NEW_TOKENS)
        memory = estimate_memory(facts, detect_device(), config)
        return {
            "model": model_label(facts.name),
            "architecture": facts.architecture,
            "parameters": facts.parameters,
            "download_bytes": facts.download_bytes,
            "tokens": PROMPT_TOKENS + config.max_new_tokens,
            "components": [[item.name, item.size, item.formula] for item in memory.terms],
            "required_bytes": memory.required_bytes,
            "free_bytes": memory.device.free_bytes,
            "device": memory.device.name,
            "verdict": memory.verdict,
            "advice": memory.advice,
        }

    def model_facts(self, payload: ProjectPayload) -> ModelFacts:
        """Cached for a minute, because the Hub may take seconds. Raises ModelError."""
        return self._cached_facts(payload.model.strip(), int(time.monotonic() // 60))

    def preview(self, payload: ProjectPayload) -> dict[str, Any]:
        """The person's own prompts as they were parsed."""
        texts = payload.prompts()
        eval_count = sum(split_name == "eval" for _, split_name in train_eval_split(texts))
        first_prompts = [turns_of_prompt(text) for text in texts[:5]]
        return {"preview": {"count": len(texts), "eval_count": eval_count, "first_prompts": first_prompts}}

    def create(self, payload: ProjectPayload) -> dict[str, Any]:
        """Create a project, immediately or after its model was downloaded. A model that does not fit needs a confirmation."""
        facts = self.model_facts(payload)
        prompt_set = payload.prompt_set or facts.prompt_set
        custom_prompts = payload.prompts() if prompt_set == CUSTOM_PROMPT_SET else []
        if prompt_set != CUSTOM_PROMPT_SET and prompt_set not in PROMPT_SETS:
            raise ConfigError(f'There is no prompt set "{prompt_set}"; choose one of {", ".join(PROMPT_SETS)}.')
        if custom_prompts:
            prompt_set = " ".join(Path(payload.file or "own prompts").name.split())[:60]
        chat = ChatSettings(payload.system_prompt, parse_template_arguments(payload.template_arguments))
        chat = completed_chat_settings(facts, chat)  # before the download
        memory = self.memory_check(facts, payload)
        if memory["verdict"] is FitVerdict.TOO_LARGE and not payload.confirmed:
            warning = "This model is probably too large for this machine."
            return {"check": memory, "warning": warning}

        def create_project(_: Path | None = None) -> str:
            with self._lock:
                seed = payload.seed or (secret_seed() if self.ctx.access.is_multi_user else 0)
                project = new_project(
                    self.ctx.db, model=facts.name, prompt_set=prompt_set, custom_prompts=custom_prompts,
                    temperature=payload.temperature, max_new_tokens=payload.max_new_tokens, seed=seed,
                    name=payload.name, chat=chat,
                )  # fmt: skip
            self._dismiss_startup()
            created = f'Project "{project.name}" was created and opened. The engine is writing its first pairs.'
            return created + runs_note(self.ctx)

        if facts.files_to_download:
            self.downloads.start(facts, create_project)
            return {"message": f"Downloading {facts.name}; the project opens afterwards. Work in this one continues."}
        return {"message": create_project()}

    def cancel(self, _: ProjectPayload) -> dict[str, Any]:
        if self.downloads.cancel():
            return {"message": "The download was cancelled. Completed files are kept for the next time."}
        return {"message": "There is no download to cancel; the last one is complete."}

    def retry(self, _: ProjectPayload) -> dict[str, Any]:
        """Try the model of the Space's variables again."""
        if self.ctx.startup is None or not self.ctx.startup.start():
            raise ConfigError("There is nothing to retry: no model is missing, or it is being downloaded.")
        return {"message": "The lab tries again."}

    def _dismiss_startup(self) -> None:
        if self.ctx.startup is not None:
            self.ctx.startup.dismiss()

    def stop_engine(self, _: ProjectPayload) -> dict[str, Any]:
        stopped = engine_process.stop_engine(self.ctx.db, self.ctx.home)
        return {"message": "The engine has ended." if stopped else "No engine was running."}

    def home_info(self, _: ProjectPayload) -> dict[str, Any]:
        return {"about": home_summary(self.ctx.home, self.ctx.db.wal_problem)}


def _inspect_model_at(model: str, minute: int) -> ModelFacts:
    return inspect_model(model)


def download_view(progress: DownloadProgress | None) -> dict[str, Any] | None:
    if progress is None:
        return None
    return {
        "model": progress.model, "status": progress.status, "downloaded_bytes": progress.downloaded_bytes,
        "total_bytes": progress.total_bytes, "eta_s": progress.eta_s, "message": progress.message,
    }  # fmt: skip


def project_row(ctx: Context, project: Project) -> dict[str, Any]:
    """A project in the list."""
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


def home_summary(home: Path, wal_problem: str = "") -> dict[str, Any]:
    """{"path", "note": why the database has no write-ahead log, "usage": [[group, bytes]], "free": bytes, "log": the engine's
    last lines}."""
    sizes = {group_name: 0 for group_name, _ in FILE_GROUPS} | {"other": 0}
    for path in home.iterdir():
        group = next((group_name for group_name, prefixes in FILE_GROUPS if path.name.startswith(prefixes)), "other")
        with contextlib.suppress(OSError):  # deleted in between
            sizes[group] += folder_size(path) if path.is_dir() else path.stat().st_size
    return {
        "path": f"{home}{storage_note(home)}",
        "note": f"The database has a rollback journal and no write-ahead log, because {wal_problem}."
        if wal_problem
        else "",
        "usage": [[group_name, size] for group_name, size in sizes.items() if size],
        "free": shutil.disk_usage(home).free,
        "log": tail(home / "engine.log") or tail(home / "engine.out"),
    }


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
