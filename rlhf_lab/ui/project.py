"""Screen "Project": which projects there are, a new one on a model and prompts of choice, and the lab itself."""

import contextlib
import functools
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gradio as gr

from rlhf_lab.assets import EMBEDDED, PROMPT_SETS, split
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs import steward, supervisor
from rlhf_lab.jobs.control import check_name
from rlhf_lab.jobs.download import Downloads
from rlhf_lab.jobs.estimate import Verdict, estimate, machine
from rlhf_lab.jobs.examine import ModelFacts, examine
from rlhf_lab.jobs.promptfile import KINDS, LEAST, MAX_BYTES, parse_prompts
from rlhf_lab.jobs.setup import new_project, remove_project
from rlhf_lab.kinds import Choice, EngineState, Source
from rlhf_lab.records import Project
from rlhf_lab.store.comparisons import vote_counts
from rlhf_lab.store.projects import count_pairs, open_project, projects, prompts, rename_project
from rlhf_lab.store.runs import reward_models, runs
from rlhf_lab.ui.context import Context, for_viewers, operated, read, shared_for
from rlhf_lab.ui.lab_files import about_home
from rlhf_lab.ui.train import whole
from rlhf_lab.ui.widgets import QUIET, widget

#: Models offered by name and their parameters. None has been tried here yet: a figure in docs/DECISIONS.md would say so.
OFFERED = (
    ("HuggingFaceTB/SmolLM2-135M-Instruct", "135 M"),
    ("openai-community/gpt2", "124 M"),
    ("HuggingFaceTB/SmolLM2-360M-Instruct", "360 M"),
    ("Qwen/Qwen2.5-0.5B-Instruct", "494 M"),
    ("Qwen/Qwen3-0.6B", "596 M"),
)
SETS = {
    "tales": "tales: the beginning of a story",
    "support": "support: a customer writes",
    "reviews": "reviews: the beginning of a review",
}
OWN = "own"
MAX_SEED = 2**31 - 1


def build(ctx: Context, operator: gr.BrowserState) -> None:
    desk = Desk(ctx)
    shared = shared_for(1.0, desk.look)

    def look(_: dict[str, Any]) -> dict[str, Any]:
        return shared()

    data = {
        "models": [[EMBEDDED, "embedded model: ships with the lab"]]
        + [[name, f"{name}: {size}, untested"] for name, size in OFFERED],
        "sets": [[name, SETS[name]] for name in PROMPT_SETS],
        "kinds": list(KINDS), "most_bytes": MAX_BYTES, "least": LEAST, "guarded": ctx.operator_secret is not None,
    }  # fmt: skip
    part = widget("project", reads=[read(look)], data=data, label="Project")

    def act(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        return operated(ctx, secret, event, desk.obey)

    @for_viewers
    def enter(event: gr.EventData) -> tuple[str | dict[str, Any], dict[str, Any]]:
        """What the browser is to keep, and the answer; a wrong secret leaves it what it has.

        Whoever may only look is sent through the operator's door: their events end before anybody asks for a secret, and as
        they have no name they become nobody else by that.
        """
        secret = str((event._data or {}).get("secret") or "")
        known = {"done": "You are the operator in this browser now."} if ctx.may_operate(secret) else {"door": True}
        reply = operated(ctx, secret, event, lambda _: known)
        return (secret if "done" in reply else gr.skip()), reply

    part.act(act, operator, part, **QUIET)
    part.secret(enter, None, [operator, part], **QUIET)


class Desk:
    """What the screen does, for all pages of a server."""

    def __init__(self, ctx: Context, downloads: Downloads | None = None) -> None:
        self.ctx = ctx
        self.downloads = downloads or Downloads()
        self._examined = functools.lru_cache(maxsize=8)(_examined_at)
        self._lock = threading.Lock()

    def look(self) -> dict[str, Any]:
        """Everything the screen shows by itself."""
        ctx = self.ctx
        progress, engine = self.downloads.progress(), supervisor.engine_state(ctx.db)
        there = engine.row is not None and engine.state is not EngineState.ABSENT
        return {
            "current": ctx.project.id,
            "projects": [line(ctx, project) for project in reversed(projects(ctx.db))],
            "download": progress and asdict(progress),
            "engine": {"state": engine.state, "stoppable": there},
        }

    def obey(self, said: dict[str, Any]) -> dict[str, Any]:
        """One act of the operator: {"do", …}. Raises LabError for what cannot be done or read."""
        acts = {
            "open": self.open, "check": self.check, "preview": self.preview, "create": self.create,
            "cancel": self.cancel, "stop-engine": self.stop_engine, "about": self.about, "rename": self.rename,
            "delete": self.delete,
        }  # fmt: skip
        act = acts.get(str(said.get("do")))
        if act is None:
            raise ConfigError(f'The lab cannot "{said.get("do")}" here. Reload the page and try again.')
        return act(said)

    def open(self, said: dict[str, Any]) -> dict[str, Any]:
        open_project(self.ctx.db, whole(said, "project"))
        return {"done": f'"{self.ctx.project.name}" is open, in every browser that looks at this lab.'}

    def rename(self, said: dict[str, Any]) -> dict[str, Any]:
        name = check_name(str(said.get("name") or ""))
        rename_project(self.ctx.db, whole(said, "project"), name)
        return {"done": f'The project is called "{name}" now.'}

    def delete(self, said: dict[str, Any]) -> dict[str, Any]:
        gone = remove_project(self.ctx.db, self.ctx.home, whole(said, "project"))
        steward.forget(gone.id)
        return {"done": f'The project "{gone.name}" is deleted.'}

    def check(self, said: dict[str, Any]) -> dict[str, Any]:
        """What the model is, what it needs, and whether it fits."""
        return {"check": self.fit(self.facts(said))}

    def fit(self, facts: ModelFacts) -> dict[str, Any]:
        found = estimate(facts, machine())
        return {
            "model": model_words(facts.name),
            "architecture": facts.architecture,
            "parameters": facts.parameters,
            "download": facts.download_bytes,
            "parts": [[part.name, part.size, part.formula] for part in found.parts],
            "need": found.need,
            "free": found.machine.free,
            "where": found.machine.name,
            "verdict": found.verdict,
            "advice": found.advice,
        }

    def facts(self, said: dict[str, Any]) -> ModelFacts:
        """Raises ModelError. Asked for again within a minute, the answer is remembered: the Hub may take seconds."""
        return self._examined(str(said.get("model") or "").strip(), int(time.monotonic() // 60))

    def preview(self, said: dict[str, Any]) -> dict[str, Any]:
        """The person's own prompts as they were understood."""
        texts = own_prompts(said)
        held = sum(part == "eval" for _, part in split(texts))
        return {"preview": {"count": len(texts), "eval": held, "first": texts[:5]}}

    def create(self, said: dict[str, Any]) -> dict[str, Any]:
        """A new project, at once or when its model has been downloaded. A model that does not fit is doubted once."""
        facts = self.facts(said)
        chosen, seed = str(said.get("set")), -1
        with contextlib.suppress(ValueError):
            seed = int(str(said.get("seed")))
        if not 0 <= seed <= MAX_SEED:
            raise ConfigError(f"The seed is a whole number from 0 to {MAX_SEED:,}.")
        own = own_prompts(said) if chosen == OWN else []
        if chosen != OWN and chosen not in PROMPT_SETS:
            raise ConfigError(f'There is no prompt set "{chosen}"; choose one of {", ".join(PROMPT_SETS)}.')
        title = " ".join(Path(str(said.get("file") or "own prompts")).name.split())[:60] if own else chosen
        name = str(said.get("name") or "")
        fit = self.fit(facts)
        if fit["verdict"] is Verdict.TOO_LARGE and said.get("sure") is not True:
            return {
                "check": fit,
                "doubt": "This model is too large for this machine, as far as can be told beforehand.",
            }

        def make(_: Path | None = None) -> str:
            with self._lock:
                project = new_project(
                    self.ctx.db, model=facts.name, prompt_set=title, own_prompts=own, seed=seed, name=name
                )
            return f'Project "{project.name}" is made and open. The engine writes its first pairs.'

        if facts.files:
            self.downloads.start(facts, make)
            return {"done": f"Downloading {facts.name}; the project opens when it is here. Work in this one goes on."}
        return {"done": make()}

    def cancel(self, _: dict[str, Any]) -> dict[str, Any]:
        if self.downloads.cancel():
            return {"done": "The download is cancelled. What has arrived is kept for the next time."}
        return {"done": "There is no download to cancel; the last one has arrived."}

    def stop_engine(self, _: dict[str, Any]) -> dict[str, Any]:
        stopped = supervisor.stop_engine(self.ctx.db, self.ctx.home)
        return {"done": "The engine has ended." if stopped else "There was no engine to end."}

    def about(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"about": about_home(self.ctx.home)}


def _examined_at(model: str, minute: int) -> ModelFacts:
    return examine(model)


def own_prompts(said: dict[str, Any]) -> list[str]:
    """Raises ConfigError with the lines that cannot be used."""
    return parse_prompts(str(said.get("text") or ""), str(said.get("file") or "prompts.txt"))


def line(ctx: Context, project: Project) -> dict[str, Any]:
    """A project as a line of the list."""
    db = ctx.db
    counts = vote_counts(db, project.id)
    human, simulated = (sum(counts[source].values()) - counts[source][Choice.SKIP] for source in Source)
    train, held = (len(prompts(db, project.id, part)) for part in ("train", "eval"))
    return {
        "id": project.id,
        "name": project.name,
        "model": model_words(project.model),
        "set": project.prompt_set,
        "train": train,
        "eval": held,
        "pairs": count_pairs(db, project.id),
        "human": human,
        "simulated": simulated,
        "models": len(reward_models(db, project.id)),
        "runs": len(runs(db, project.id)),
        "seed": project.seed,
        "created": project.created_at,
    }


def model_words(model: str) -> str:
    """A model's name without the folders around it: those are the operator's business."""
    if model == EMBEDDED:
        return "embedded model"
    return Path(model).name if Path(model).is_absolute() else model
