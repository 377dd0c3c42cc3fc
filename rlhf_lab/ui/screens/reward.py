"""Screen "Reward model": train it, see what it has learnt, and which words it likes."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import gradio as gr

from rlhf_lab.common.curves import downsample_values
from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, Choice, JobKind, JobStatus, Source
from rlhf_lab.common.records import Comparison, Job, RewardModelRow
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.errors import LabError, StoreError
from rlhf_lab.jobs import engine_process, queue, scheduler
from rlhf_lab.jobs.judge_labelling import judge_name_of
from rlhf_lab.store.reward_scores import prediction_accuracy
from rlhf_lab.store.runs import get_reward_model, reward_models
from rlhf_lab.store.votes import load_comparisons, next_unvoted_pair, snapshot_annotators, vote_counts
from rlhf_lab.ui.components.charts import PLOTLY_CONFIG, layout
from rlhf_lab.ui.components.forms import Form
from rlhf_lab.ui.components.widgets import SILENT_EVENT, widget
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.events import operator_action, server_function, show_errors, ttl_cache
from rlhf_lab.ui.services.generation_requests import check_queue_capacity

MAX_TEXT_CHARS = 4000  # characters of a text to explain
MAX_EXAMPLES = 4  # labelled pairs whose texts are offered
MAX_POINTS = 300  # of a loss curve
MIN_DECIDED_LABELS = 2  # decided labels that a training needs


def build(ctx: Context, operator: gr.BrowserState) -> None:
    cached_state = ttl_cache(1.0, lambda: screen_state(ctx))

    def state(_: dict[str, Any]) -> dict[str, Any]:
        return cached_state()

    def report(query: dict[str, Any]) -> dict[str, Any]:
        return model_detail(ctx, parse_id(query, "model"))

    def explained(query: dict[str, Any]) -> dict[str, Any]:
        return explanation_view(queue.get_job(ctx.db, parse_id(query, "job")))

    data = {"layout": layout(190), "config": PLOTLY_CONFIG}
    component = widget(
        "reward",
        server_functions=[server_function(state), server_function(report), server_function(explained)],
        charts=True,
        scripts=["reward_figures"],
        data=data,
        label="Reward model",
    )
    with gr.Accordion("All settings of the next reward model", open=False, elem_id="reward-settings"):
        form = Form(RewardConfig(), "reward")

    def train(secret: str | None, event: gr.EventData, *values: Any) -> dict[str, Any]:
        def handler(payload: dict[str, Any]) -> dict[str, Any]:
            start_training(ctx, parse_source(payload.get("source")), RewardConfig.from_dict(form.parse(values)))
            return {"begun": True}

        return operator_action(ctx, secret, event, handler)

    def explain(event: gr.EventData) -> dict[str, Any]:
        payload = event._data
        try:
            job = submit_explanation(
                ctx, parse_id(payload, "model"), str(payload.get("prompt", "")), str(payload.get("text", ""))
            )
        except LabError as error:
            return {"at": payload.get("at"), "error": str(error)}
        return {"at": payload.get("at"), "job": job.id}

    component.train(train, [operator, *form.components], component, **SILENT_EVENT)
    component.explain(show_errors(explain), None, component, **SILENT_EVENT)


def start_training(ctx: Context, source: Source, config: RewardConfig) -> Job:
    """Submit a training. Raises LabError when one is under way, and where there is too little to learn from."""
    counts = vote_counts(ctx.db, ctx.project.id)[source]
    if counts[Choice.FIRST] + counts[Choice.SECOND] < MIN_DECIDED_LABELS:
        whose = "people's" if source is Source.HUMAN else "simulated"
        raise LabError(
            f"There are fewer than {MIN_DECIDED_LABELS} decided {whose} labels. Label some pairs under Label, or choose the other labels."
        )
    already_training = LabError("A reward model is being trained already; wait for it.")
    if queue.jobs(ctx.db, project_id=ctx.project.id, kinds=[JobKind.TRAIN_REWARD], statuses=UNFINISHED_JOB_STATUSES):
        raise already_training
    job = scheduler.submit_training(ctx.db, ctx.project.id, source, config)
    engine_process.ensure_engine(ctx.db, ctx.home)
    if (job.payload["source"], job.payload["config"]) != (source.value, config.to_dict()):
        raise already_training  # somebody asked for another one since that look
    return job


def parse_source(name: Any) -> Source:
    """Raises LabError for what is no source of labels."""
    try:
        return Source(name)
    except ValueError:
        raise LabError("The page named no labels to learn from; reload it.") from None


def submit_explanation(ctx: Context, model: int, prompt: str, text: str) -> Job:
    """Ask the engine which words of a text earn its score. Raises LabError for an empty or very long text."""
    if not text.strip() or len(prompt) + len(text) > MAX_TEXT_CHARS:
        raise LabError(f"Give a text of 1 to {MAX_TEXT_CHARS} characters, prompt included.")
    get_reward_model(ctx.db, model)
    check_queue_capacity(ctx)
    payload = {"reward_model_id": model, "items": [{"prompt": prompt, "text": text}]}
    job = queue.submit(ctx.db, JobKind.EXPLAIN, ctx.project.id, payload)
    engine_process.ensure_engine(ctx.db, ctx.home)
    return job


def parse_id(payload: dict[str, Any], name: str) -> int:
    """Raises LabError where the browser sent none."""
    try:
        return int(payload[name])
    except (KeyError, TypeError, ValueError):
        raise LabError(f"The page asked for no {name}; reload it.") from None


def explanation_view(job: Job) -> dict[str, Any]:
    """An EXPLAIN job as the widget needs it: still waiting, failed, or its one item. Raises LabError for any other job."""
    if job.kind is not JobKind.EXPLAIN:
        raise LabError(f"Job {job.id} explains no text; reload the page.")
    if job.status in UNFINISHED_JOB_STATUSES:
        return {"waiting": True, "begun": job.status is JobStatus.RUNNING}
    if job.status is not JobStatus.DONE or not job.result:
        return {"waiting": False, "failed": job.error or "It was cancelled."}
    return {"waiting": False, **job.result["items"][0]}


def screen_state(ctx: Context) -> dict[str, Any]:
    """What changes while the screen is open: the reward models (newest first), the training, the labels, the foresight."""
    project = ctx.project
    rows = reward_models(ctx.db, project.id)
    label_counts = scheduler.get_label_progress(ctx.db, project.id)
    latest_jobs = queue.jobs(ctx.db, project_id=project.id, kinds=[JobKind.TRAIN_REWARD], limit=1)
    goals = {source.value: scheduler.training_goal(ctx.db, project.id, source) for source in Source}
    return {
        "project": project.id,
        "models": [model_summary(ctx, row) for row in rows[:50]],
        "job": training_view(ctx, latest_jobs[0])
        if latest_jobs and latest_jobs[0].status in UNFINISHED_JOB_STATUSES
        else None,
        "failed": latest_jobs[0].error if latest_jobs and latest_jobs[0].status is JobStatus.FAILED else "",
        "labels": {
            "human": label_counts.human,
            "simulated": label_counts.simulated,
            "goals": goals,
            "every": scheduler.LABELS_PER_RETRAINING,
        },
        "foresight": {source.value: prediction_stats(ctx, source) for source in Source},
    }


def prediction_stats(ctx: Context, source: Source) -> dict[str, Any]:
    """Predict, then reveal: each vote against the reward model that was the newest when it was cast."""
    stats = prediction_accuracy(ctx.db, ctx.project.id, source)
    return dataclasses.asdict(stats)


def training_view(ctx: Context, job: Job) -> dict[str, Any]:
    result = job.result or {}
    return {
        "id": job.id, "begun": job.status is JobStatus.RUNNING, "progress": job.progress, "eta_s": job.eta_s,
        "stage": result.get("stage", ""), "loss": thin_and_round(result.get("loss", [])), "note": result.get("note", ""),
        "words": scheduler.training_status(ctx.db, ctx.project.id),
    }  # fmt: skip


def thin_and_round(numbers: list[float]) -> list[float]:
    """At most MAX_POINTS, with four significant digits."""
    return [float(f"{x:.4g}") for x in downsample_values(numbers, MAX_POINTS)]


def model_summary(ctx: Context, row: RewardModelRow) -> dict[str, Any]:
    report = row.report
    return {
        "id": row.id, "labels": len(row.snapshot.vote_ids), "accuracy": report.get("accuracy"), "when": row.created_at,
        "low": report.get("accuracy_low"), "high": report.get("accuracy_high"), "source": source_text(ctx, row),
        "kind": row.snapshot.source.value,
    }  # fmt: skip


def source_text(ctx: Context, row: RewardModelRow) -> str:
    """Whose labels it learnt from, in words."""
    if row.snapshot.source is Source.HUMAN:
        return "people"
    names = sorted({judge_name_of(name) for name in snapshot_annotators(ctx.db, row.snapshot)})
    return f"simulated by {', '.join(names)}" if names else "simulated"


def model_detail(ctx: Context, model: int) -> dict[str, Any]:
    """What never changes about a reward model; asked for once. Raises StoreError where there is no such model."""
    row = get_reward_model(ctx.db, model)
    report, labels = row.report, training_labels(ctx, row)
    return {
        "id": row.id,
        "ties": report.get("ties", 0), "folds": report.get("folds", 0), "train_accuracy": report.get("train_accuracy"),
        "chosen": [round(score, 2) for score in report.get("chosen_scores", [])],
        "rejected": [round(score, 2) for score in report.get("rejected_scores", [])],
        "length_correlation": report.get("length_correlation"), "loss": thin_and_round(report.get("loss", [])),
        "pooling": row.config.get("pooling"), "warm_start": bool(row.config.get("warm_start")),
        "seconds": report.get("seconds"), "texts": example_texts(ctx, row, labels),
        "calibration": report.get("calibration") or [], "calibration_error": report.get("expected_calibration_error"),
        "disagreements": disagreement_rows(report.get("disagreements") or [], labels),
    }  # fmt: skip


def training_labels(ctx: Context, row: RewardModelRow) -> list[Comparison]:
    """The labels a reward model learnt from; none where they were changed by hand since."""
    try:
        return load_comparisons(ctx.db, row.snapshot)
    except StoreError:
        return []


def disagreement_rows(reported: Sequence[dict[str, float]], labels: Sequence[Comparison]) -> list[dict[str, Any]]:
    """The report's {"index", "probability"} of labels that the model would have decided otherwise, as texts."""
    return [
        {
            "prompt": label.prompt,
            "chosen": label.chosen.strip(),
            "rejected": label.rejected.strip(),
            "probability": item["probability"],
        }
        for item in reported
        if int(item["index"]) < len(labels)
        for label in [labels[int(item["index"])]]
    ]


def example_texts(ctx: Context, row: RewardModelRow, labels: Sequence[Comparison]) -> list[dict[str, str]]:
    """Texts to look into: a pair that nobody labelled yet, and the last decided ones this model learnt from."""
    rows = []
    pair = next_unvoted_pair(ctx.db, row.project_id, "reward screen")
    if pair is not None:
        rows = [
            {"prompt": pair.prompt.text, "text": side.text.strip(), "what": "waits for a label"}
            for side in (pair.first, pair.second)
        ]
    decided = [item for item in labels if not item.tie]
    for item in reversed(decided[-MAX_EXAMPLES:]):
        for text, tag in ((item.chosen, "preferred"), (item.rejected, "not preferred")):
            rows.append({"prompt": item.prompt, "text": text.strip(), "what": tag})
    return rows
