"""The strip above every screen: engine, device, memory, labels, reward accuracy, what runs and how long it still takes."""

import contextlib
from typing import Any

import gradio as gr

from rlhf_lab.assets import EMBEDDED
from rlhf_lab.errors import LabError
from rlhf_lab.jobs import queue, steward, supervisor
from rlhf_lab.kinds import EngineState, JobKind, JobStatus, RunStatus, Source
from rlhf_lab.labelling import Role
from rlhf_lab.records import EngineStatus, Job
from rlhf_lab.store.people import MAX_NAME
from rlhf_lab.store.projects import get_project
from rlhf_lab.store.runs import get_run, latest_reward_model
from rlhf_lab.ui.context import Context, for_viewers, read, shared_for
from rlhf_lab.ui.presence import PRESENCE
from rlhf_lab.ui.widgets import UNSEEN, widget

WORDS = {
    JobKind.SAMPLE_PAIRS: "writing pairs",
    JobKind.TRAIN_REWARD: "training the reward model",
    JobKind.TRAIN_POLICY: "PPO",
    JobKind.COMPLETE: "writing",
    JobKind.EXPLAIN: "reading a text",
}
ENGINE = {
    EngineState.ABSENT: ("engine rests", "", "It starts by itself as soon as there is something to do."),
    EngineState.STARTING: ("engine starts", "busy", "It loads the model; some seconds."),
    EngineState.ALIVE: ("engine ready", "good", "The process that trains and writes. It outlives this page."),
    EngineState.DEAD: ("engine lost", "bad", "It vanished or is silent; work goes on from its last checkpoint when it is back."),
}  # fmt: skip


def build(ctx: Context, operator: gr.BrowserState) -> None:
    def look() -> dict[str, Any]:
        supervisor.touch_ui(ctx.db)
        return state(ctx)

    shared = shared_for(1.0, look)

    def status(said: dict[str, Any]) -> dict[str, Any]:
        name = ctx.name(said.get("annotator"))[:MAX_NAME]
        if name and name.isprintable() and ctx.visitor().role.may(Role.LABELLER):
            PRESENCE.touch(name)  # on whatever screen
        return shared() | {"operates": ctx.operates()}

    @for_viewers
    def prove(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        """Whether the secret that a browser keeps is the operator's."""
        return {"at": (event._data or {}).get("at"), "operates": ctx.may_operate(secret)}

    part = widget("header", reads=[read(status)], label="State of the lab")
    part.prove(prove, operator, part, **UNSEEN)


def state(ctx: Context) -> dict[str, Any]:
    project = ctx.project
    labels = steward.labels(ctx.db, project.id)
    row = latest_reward_model(ctx.db, project.id, Source.HUMAN) or latest_reward_model(ctx.db, project.id)
    running = queue.jobs(ctx.db, statuses=[JobStatus.RUNNING])
    job = min(running, key=lambda job: job.id) if running else None
    engine = supervisor.engine_state(ctx.db)
    return {
        "project": project.name,
        "model": "embedded model" if project.model == EMBEDDED else project.model.rstrip("/").rsplit("/", 1)[-1],
        "labels": labels.human,
        "simulated": labels.simulated,
        "reward": row and {
            "id": row.id,
            "accuracy": row.report["accuracy"],
            "low": row.report["accuracy_low"] if row.report["accuracy"] is not None else None,
            "high": row.report["accuracy_high"],
            "simulated": row.snapshot.source is Source.SIMULATED,
        },
        "engine": _engine(engine, job is not None),
        "job": job and _job(ctx, job),
        "warning": _warning(ctx),
    }  # fmt: skip


def _engine(status: EngineStatus, busy: bool) -> dict[str, Any]:
    words, mood, about = ENGINE[status.state]
    works = busy and status.state is EngineState.ALIVE
    if works:
        words, mood = "engine works", "busy"
    row = status.row if status.state is EngineState.ALIVE else None
    return {
        "words": words, "mood": mood or "rest", "about": about, "device": row.device if row else "",
        "memory_mb": row.memory_mb if row else None, "works": works,
    }  # fmt: skip


def _job(ctx: Context, job: Job) -> dict[str, Any]:
    words, is_run, eta_s = WORDS[job.kind], job.kind is JobKind.TRAIN_POLICY, job.eta_s
    if is_run:
        run = get_run(ctx.db, int(job.payload["run_id"]))
        status = "" if run.status is RunStatus.RUNNING else f" {run.status.value}"
        eta_s = None if run.status is RunStatus.PAUSED else eta_s  # nobody knows when it goes on
        words = f"run {run.id}{status}, step {run.step} of {run.total_steps}"
    if job.project_id not in (None, ctx.project.id):
        with contextlib.suppress(LabError):  # it may have been deleted meanwhile
            words += f" for {get_project(ctx.db, job.project_id).name}"
    return {"words": words, "progress": job.progress, "percent": not is_run, "eta_s": eta_s}


def _warning(ctx: Context) -> str:
    if not ctx.on_space:
        return ""
    return (
        "This Space keeps labels and models on a disk that is wiped when it restarts. Export what you want to keep "
        "under Runs & data."
    )
