"""Screen "Project": which projects there are, a new one on a model and prompts of choice, and the lab itself."""

import contextlib
import functools
import os
import shutil
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gradio as gr

from rlhf_lab.common.bundled_assets import EMBEDDED_MODEL, PROMPT_SETS, train_eval_split
from rlhf_lab.common.enums import Choice, EngineState, Source
from rlhf_lab.common.records import Project
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs import engine_process, scheduler
from rlhf_lab.jobs.hub_download import ModelDownloader
from rlhf_lab.jobs.memory_estimate import FitVerdict, detect_device, estimate_memory
from rlhf_lab.jobs.model_inspection import ModelFacts, inspect_model
from rlhf_lab.jobs.project_setup import new_project, remove_project
from rlhf_lab.jobs.prompt_files import MAX_BYTES, MIN_PROMPTS, PROMPT_FILE_SUFFIXES, parse_prompts
from rlhf_lab.jobs.run_control import check_name
from rlhf_lab.store.projects import count_pairs, open_project, projects, prompts, rename_project
from rlhf_lab.store.reward_models import reward_models
from rlhf_lab.store.runs import runs
from rlhf_lab.store.votes import vote_counts
from rlhf_lab.ui.components.widgets import SILENT_MULTIPLE_EVENT, widget
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.events import allow_viewers, operator_action, server_function, ttl_cache
from rlhf_lab.ui.screens.train import parse_int

pass


#: Models offered by name and their parameters. None has been tried here yet: a figure in docs/DECISIONS.md would say so.
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
}
CUSTOM_PROMPT_SET = "own"
MAX_SEED = 2**31 - 1


def build(ctx: Context, operator: gr.BrowserState) -> None:
    controller = ProjectController(ctx)
    cached_state = ttl_cache(1.0, controller.get_state)

    def look(_: dict[str, Any]) -> dict[str, Any]:
        return cached_state()

    data = {
        "models": [[EMBEDDED_MODEL, "embedded model: ships with the lab"]]
        + [[name, f"{name}: {size}, untested"] for name, size in SUGGESTED_MODELS],
        "sets": [[name, PROMPT_SET_LABELS[name]] for name in PROMPT_SETS],
        "kinds": list(PROMPT_FILE_SUFFIXES),
        "most_bytes": MAX_BYTES,
        "least": MIN_PROMPTS,
        "guarded": ctx.operator_secret is not None,
    }
    component = widget("project", server_functions=[server_function(look)], data=data, label="Project")

    def act(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        return operator_action(ctx, secret, event, controller.handle_action)

    @allow_viewers
    def enter(event: gr.EventData) -> tuple[str | dict[str, Any], dict[str, Any]]:
        """What the browser is to keep, and the answer; a wrong secret leaves it what it has.

        Whoever may only look is sent through the operator's door: their events end before anybody asks for a secret, and as
        they have no name they become nobody else by that.
        """
        secret = str((event._data or {}).get("secret") or "")
        success_reply = (
            {"done": "You are the operator in this browser now."}
            if ctx.is_operator_with_secret(secret)
            else {"door": True}
        )
        reply = operator_action(ctx, secret, event, lambda _: success_reply)
        return (secret if "done" in reply else gr.skip()), reply

    component.act(act, operator, component, **SILENT_MULTIPLE_EVENT)
    component.secret(enter, None, [operator, component], **SILENT_MULTIPLE_EVENT)


class ProjectController:
    """What the screen does, for all pages of a server."""

    def __init__(self, ctx: Context, downloads: ModelDownloader | None = None) -> None:
        self.ctx = ctx
        self.downloads = downloads or ModelDownloader()
        self._cached_facts = functools.lru_cache(maxsize=8)(_inspect_model_at)
        self._lock = threading.Lock()

    def get_state(self) -> dict[str, Any]:
        """Everything the screen shows by itself."""
        ctx = self.ctx
        progress, engine = self.downloads.progress(), engine_process.engine_state(ctx.db)
        is_stoppable = engine.row is not None and engine.state is not EngineState.ABSENT
        return {
            "current": ctx.project.id,
            "projects": [project_row(ctx, project) for project in reversed(projects(ctx.db))],
            "download": progress and asdict(progress),
            "engine": {"state": engine.state, "stoppable": is_stoppable},
        }

    def handle_action(self, payload: dict[str, Any]) -> dict[str, Any]:
        """One act of the operator: {"do", …}. Raises LabError for what cannot be done or read."""
        actions = {
            "open": self.open, "check": self.check_model, "preview": self.preview, "create": self.create,
            "cancel": self.cancel, "stop-engine": self.stop_engine, "about": self.home_info, "rename": self.rename,
            "delete": self.delete,
        }  # fmt: skip
        action = actions.get(str(payload.get("do")))
        if action is None:
            raise ConfigError(f'The lab cannot "{payload.get("do")}" here. Reload the page and try again.')
        return action(payload)

    def open(self, payload: dict[str, Any]) -> dict[str, Any]:
        open_project(self.ctx.db, parse_int(payload, "project"))
        return {"done": f'"{self.ctx.project.name}" is open, in every browser that looks at this lab.'}

    def rename(self, payload: dict[str, Any]) -> dict[str, Any]:
        name = check_name(str(payload.get("name") or ""))
        rename_project(self.ctx.db, parse_int(payload, "project"), name)
        return {"done": f'The project is called "{name}" now.'}

    def delete(self, payload: dict[str, Any]) -> dict[str, Any]:
        deleted = remove_project(self.ctx.db, self.ctx.home, parse_int(payload, "project"))
        scheduler.clear_pending_judge_labels(deleted.id)
        return {"done": f'The project "{deleted.name}" is deleted.'}

    def check_model(self, payload: dict[str, Any]) -> dict[str, Any]:
        """What the model is, what it needs, and whether it fits."""
        return {"check": self.memory_check(self.model_facts(payload))}

    def memory_check(self, facts: ModelFacts) -> dict[str, Any]:
        memory = estimate_memory(facts, detect_device())
        return {
            "model": model_label(facts.name),
            "architecture": facts.architecture,
            "parameters": facts.parameters,
            "download": facts.download_bytes,
            "parts": [[item.name, item.size, item.formula] for item in memory.terms],
            "need": memory.required_bytes,
            "free": memory.device.free_bytes,
            "where": memory.device.name,
            "verdict": memory.verdict,
            "advice": memory.advice,
        }

    def model_facts(self, payload: dict[str, Any]) -> ModelFacts:
        """Raises ModelError. Asked for again within a minute, the answer is remembered: the Hub may take seconds."""
        return self._cached_facts(str(payload.get("model") or "").strip(), int(time.monotonic() // 60))

    def preview(self, payload: dict[str, Any]) -> dict[str, Any]:
        """The person's own prompts as they were understood."""
        texts = parse_custom_prompts(payload)
        eval_count = sum(split_name == "eval" for _, split_name in train_eval_split(texts))
        return {"preview": {"count": len(texts), "eval": eval_count, "first": texts[:5]}}

    def create(self, payload: dict[str, Any]) -> dict[str, Any]:
        """A new project, at once or when its model has been downloaded. A model that does not fit is doubted once."""
        facts = self.model_facts(payload)
        prompt_set, seed = str(payload.get("set")), -1
        with contextlib.suppress(ValueError):
            seed = int(str(payload.get("seed")))
        if not 0 <= seed <= MAX_SEED:
            raise ConfigError(f"The seed is a whole number from 0 to {MAX_SEED:,}.")
        custom_prompts = parse_custom_prompts(payload) if prompt_set == CUSTOM_PROMPT_SET else []
        if prompt_set != CUSTOM_PROMPT_SET and prompt_set not in PROMPT_SETS:
            raise ConfigError(f'There is no prompt set "{prompt_set}"; choose one of {", ".join(PROMPT_SETS)}.')
        set_title = (
            " ".join(Path(str(payload.get("file") or "own prompts")).name.split())[:60]
            if custom_prompts
            else prompt_set
        )
        name = str(payload.get("name") or "")
        memory = self.memory_check(facts)
        if memory["verdict"] is FitVerdict.TOO_LARGE and payload.get("sure") is not True:
            return {
                "check": memory,
                "doubt": "This model is too large for this machine, as far as can be told beforehand.",
            }

        def create_project(_: Path | None = None) -> str:
            with self._lock:
                project = new_project(
                    self.ctx.db,
                    model=facts.name,
                    prompt_set=set_title,
                    custom_prompts=custom_prompts,
                    seed=seed,
                    name=name,
                )
            return f'Project "{project.name}" is made and open. The engine writes its first pairs.'

        if facts.files_to_download:
            self.downloads.start(facts, create_project)
            return {"done": f"Downloading {facts.name}; the project opens when it is here. Work in this one goes on."}
        return {"done": create_project()}

    def cancel(self, _: dict[str, Any]) -> dict[str, Any]:
        if self.downloads.cancel():
            return {"done": "The download is cancelled. What has arrived is kept for the next time."}
        return {"done": "There is no download to cancel; the last one has arrived."}

    def stop_engine(self, _: dict[str, Any]) -> dict[str, Any]:
        stopped = engine_process.stop_engine(self.ctx.db, self.ctx.home)
        return {"done": "The engine has ended." if stopped else "There was no engine to end."}

    def home_info(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"about": home_summary(self.ctx.home)}


def _inspect_model_at(model: str, minute: int) -> ModelFacts:
    return inspect_model(model)


def parse_custom_prompts(payload: dict[str, Any]) -> list[str]:
    """Raises ConfigError with the lines that cannot be used."""
    return parse_prompts(str(payload.get("text") or ""), str(payload.get("file") or "prompts.txt"))


def project_row(ctx: Context, project: Project) -> dict[str, Any]:
    """A project as a line of the list."""
    db = ctx.db
    counts = vote_counts(db, project.id)
    human, simulated = (sum(counts[source].values()) - counts[source][Choice.SKIP] for source in Source)
    train_count, eval_count = (len(prompts(db, project.id, split_name)) for split_name in ("train", "eval"))
    return {
        "id": project.id,
        "name": project.name,
        "model": model_label(project.model),
        "set": project.prompt_set,
        "train": train_count,
        "eval": eval_count,
        "pairs": count_pairs(db, project.id),
        "human": human,
        "simulated": simulated,
        "models": len(reward_models(db, project.id)),
        "runs": len(runs(db, project.id)),
        "seed": project.seed,
        "created": project.created_at,
    }


def model_label(model: str) -> str:
    """A model's name without the folders around it: those are the operator's business."""
    if model == EMBEDDED_MODEL:
        return "embedded model"
    return Path(model).name if Path(model).is_absolute() else model


TAIL_LINES = 60
TAIL_BYTES = 20_000
#: What of a home is counted together, by its first folder or the beginning of a file's name.
FILE_GROUPS = (
    ("labels and numbers (lab.db)", ("lab.db",)),
    ("runs", ("runs",)),
    ("reward models", ("reward_models",)),
    ("logs", ("engine.",)),
)


def home_summary(home: Path) -> dict[str, Any]:
    """{"path", "used": [[what, bytes]], "free": bytes, "log": the engine's last lines}."""
    sizes = {group_name: 0 for group_name, _ in FILE_GROUPS} | {"other": 0}
    for folder, _, names in os.walk(home):
        for name in names:
            path = Path(folder) / name
            top_level = path.relative_to(home).parts[0]
            group = next(
                (group_name for group_name, prefixes in FILE_GROUPS if top_level.startswith(prefixes)), "other"
            )
            try:
                sizes[group] += path.stat().st_size
            except OSError:  # deleted this very moment
                continue
    return {
        "path": str(home),
        "used": [[group_name, size] for group_name, size in sizes.items() if size],
        "free": shutil.disk_usage(home).free,
        "log": tail(home / "engine.log") or tail(home / "engine.out"),
    }


def tail(path: Path) -> str:
    """The last lines of a log that may be large; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-TAIL_LINES:])
