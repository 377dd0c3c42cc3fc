"""Screen "Reward model": train it, see what it has learnt, and which words it likes."""

from typing import Any

import gradio as gr

from rlhf_lab.config import RewardConfig
from rlhf_lab.errors import LabError
from rlhf_lab.jobs import queue, steward, supervisor
from rlhf_lab.jobs.labelling import judge_of
from rlhf_lab.records import Job, JobKind, JobStatus, RewardModelRow, Source
from rlhf_lab.store.comparisons import annotators_of, next_pair
from rlhf_lab.store.runs import get_reward_model, latest_reward_model, reward_models
from rlhf_lab.store.scores import foresight
from rlhf_lab.ui.charts import CONFIG, layout
from rlhf_lab.ui.context import Context, read, told
from rlhf_lab.ui.forms import Form
from rlhf_lab.ui.widgets import widget

OPEN = (JobStatus.QUEUED, JobStatus.RUNNING)
LONGEST = 4000  # characters of a text to explain


def build(ctx: Context, operator: gr.BrowserState) -> None:
    def state(question: dict[str, Any]) -> dict[str, Any]:
        return seen(ctx, question.get("model"))

    def explained(question: dict[str, Any]) -> dict[str, Any]:
        return answer_of(queue.get_job(ctx.db, int(question["job"])))

    data = {"layout": layout(190), "config": CONFIG}
    part = widget("reward", reads=[read(state), read(explained)], charts=True, data=data, label="Reward model")
    with gr.Accordion("All settings of the next reward model", open=False, elem_id="reward-settings"):
        form = Form(RewardConfig, "reward")
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "queue": False}

    def train(secret: str | None, event: gr.EventData, *values: Any) -> dict[str, Any]:
        said = event._data
        try:
            ctx.require_operator(secret)
            begin(ctx, Source(said["source"]), RewardConfig.from_dict(form.read(values)))
        except LabError as error:
            return {"at": said.get("at"), "error": str(error)}
        return {"at": said.get("at")}

    def explain(event: gr.EventData) -> dict[str, Any]:
        said = event._data
        try:
            job = ask(ctx, int(said["model"]), str(said["prompt"]), str(said["text"]))
        except LabError as error:
            return {"at": said.get("at"), "error": str(error)}
        return {"at": said.get("at"), "job": job.id}

    part.train(train, [operator, *form.components], part, **quiet)
    part.explain(told(explain), None, part, **quiet)


def begin(ctx: Context, source: Source, config: RewardConfig) -> Job:
    """Submit a training. Raises LabError when one is under way."""
    if queue.jobs(ctx.db, project_id=ctx.project.id, kinds=[JobKind.TRAIN_REWARD], statuses=OPEN):
        raise LabError("A reward model is being trained already; wait for it.")
    job = steward.submit_training(ctx.db, ctx.project.id, source, config)
    supervisor.ensure_engine(ctx.db, ctx.home)
    return job


def ask(ctx: Context, model: int, prompt: str, text: str) -> Job:
    """Ask the engine which words of a text earn its score. Raises LabError for an empty or very long text."""
    if not text.strip() or len(prompt) + len(text) > LONGEST:
        raise LabError(f"Give a text of 1 to {LONGEST} characters, prompt included.")
    payload = {"reward_model_id": model, "items": [{"prompt": prompt, "text": text}]}
    job = queue.submit(ctx.db, JobKind.EXPLAIN, ctx.project.id, payload)
    supervisor.ensure_engine(ctx.db, ctx.home)
    return job


def answer_of(job: Job) -> dict[str, Any]:
    """An EXPLAIN job as the widget needs it: still waiting, failed, or its one item."""
    if job.status in OPEN:
        return {"waiting": True}
    if job.status is not JobStatus.DONE or not job.result:
        return {"waiting": False, "failed": job.error or "It was cancelled."}
    return {"waiting": False, **job.result["items"][0]}


def seen(ctx: Context, chosen: Any) -> dict[str, Any]:
    """Everything the screen shows; `model` is the chosen reward model, or the newest."""
    project = ctx.project
    rows = reward_models(ctx.db, project.id)
    row = next((row for row in rows if chosen and row.id == int(chosen)), rows[0] if rows else None)
    now = steward.labels(ctx.db, project.id)
    latest = queue.jobs(ctx.db, project_id=project.id, kinds=[JobKind.TRAIN_REWARD], limit=1)
    pair = next_pair(ctx.db, project.id, "reward screen")
    return {
        "model": row and detail(ctx, row),
        "models": [summary(ctx, other) for other in rows[:50]],
        "job": training(latest[0]) if latest and latest[0].status in OPEN else None,
        "failed": latest[0].error if latest and latest[0].status is JobStatus.FAILED else "",
        "labels": {"human": now.human, "simulated": now.simulated, "goal": now.goal, "left": now.to_next},
        "example": {"prompt": pair.prompt.text, "text": pair.first.text.strip()} if pair else None,
    }


def training(job: Job) -> dict[str, Any]:
    known = job.result or {}
    return {
        "progress": job.progress, "eta_s": job.eta_s, "stage": known.get("stage", "waiting for the engine"),
        "loss": [float(f"{x:.4g}") for x in known.get("loss", [])][-300:], "note": known.get("note", ""),
    }  # fmt: skip


def summary(ctx: Context, row: RewardModelRow) -> dict[str, Any]:
    report = row.report
    return {
        "id": row.id, "labels": len(row.snapshot.vote_ids), "accuracy": report.get("accuracy"), "when": row.created_at,
        "low": report.get("accuracy_low"), "high": report.get("accuracy_high"), "source": source_of(ctx, row),
    }  # fmt: skip


def source_of(ctx: Context, row: RewardModelRow) -> str:
    """Whose labels it learnt from, in words."""
    if row.snapshot.source is Source.HUMAN:
        return "people"
    names = sorted({judge_of(name) for name in annotators_of(ctx.db, row.snapshot)})
    return f"simulated by {', '.join(names)}" if names else "simulated"


def detail(ctx: Context, row: RewardModelRow) -> dict[str, Any]:
    report = get_reward_model(ctx.db, row.id).report
    newest = latest_reward_model(ctx.db, row.project_id, row.snapshot.source)
    told_before = foresight(ctx.db, row.project_id, row.snapshot.source)
    return {
        **summary(ctx, row),
        "ties": report.get("ties", 0), "folds": report.get("folds", 0), "train_accuracy": report.get("train_accuracy"),
        "chosen": report.get("chosen_scores", []), "rejected": report.get("rejected_scores", []),
        "length_correlation": report.get("length_correlation"), "pooling": row.config.get("pooling"),
        "seconds": report.get("seconds"), "loss": report.get("loss", [])[:300],
        "newest": newest is not None and newest.id == row.id,
        "foresight": {
            "right": told_before.right, "decided": told_before.decided, "low": told_before.low, "high": told_before.high,
        },
    }  # fmt: skip
