"""Screen "Reward model": train it, see what it has learnt, and which words it likes."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import gradio as gr

from rlhf_lab.config import RewardConfig
from rlhf_lab.errors import LabError, StoreError
from rlhf_lab.jobs import queue, steward, supervisor
from rlhf_lab.jobs.labelling import judge_of
from rlhf_lab.kinds import OPEN, Choice, JobKind, JobStatus, Source
from rlhf_lab.records import Comparison, Job, RewardModelRow
from rlhf_lab.store.comparisons import annotators_of, comparisons, next_pair, vote_counts
from rlhf_lab.store.runs import get_reward_model, reward_models
from rlhf_lab.store.scores import foresight
from rlhf_lab.ui.asking import refuse_a_crowd
from rlhf_lab.ui.charts import CONFIG, layout
from rlhf_lab.ui.context import Context, operated, read, shared_for, told
from rlhf_lab.ui.forms import Form
from rlhf_lab.ui.widgets import UNSEEN, widget

LONGEST = 4000  # characters of a text to explain
EXAMPLES = 4  # labelled pairs whose texts are offered
MOST_POINTS = 300  # of a loss curve
FEWEST = 2  # decided labels that a training needs


def build(ctx: Context, operator: gr.BrowserState) -> None:
    shared = shared_for(1.0, lambda: seen(ctx))

    def state(_: dict[str, Any]) -> dict[str, Any]:
        return shared()

    def report(question: dict[str, Any]) -> dict[str, Any]:
        return detail(ctx, number_of(question, "model"))

    def explained(question: dict[str, Any]) -> dict[str, Any]:
        return answer_of(queue.get_job(ctx.db, number_of(question, "job")))

    data = {"layout": layout(190), "config": CONFIG}
    part = widget(
        "reward", reads=[read(state), read(report), read(explained)], charts=True, scripts=["reward_figures"], data=data,
        label="Reward model",
    )  # fmt: skip
    with gr.Accordion("All settings of the next reward model", open=False, elem_id="reward-settings"):
        form = Form(RewardConfig(), "reward")

    def train(secret: str | None, event: gr.EventData, *values: Any) -> dict[str, Any]:
        def do(said: dict[str, Any]) -> dict[str, Any]:
            begin(ctx, source_named(said.get("source")), RewardConfig.from_dict(form.read(values)))
            return {"begun": True}

        return operated(ctx, secret, event, do)

    def explain(event: gr.EventData) -> dict[str, Any]:
        said = event._data
        try:
            job = ask(ctx, number_of(said, "model"), str(said.get("prompt", "")), str(said.get("text", "")))
        except LabError as error:
            return {"at": said.get("at"), "error": str(error)}
        return {"at": said.get("at"), "job": job.id}

    part.train(train, [operator, *form.components], part, **UNSEEN)
    part.explain(told(explain), None, part, **UNSEEN)


def begin(ctx: Context, source: Source, config: RewardConfig) -> Job:
    """Submit a training. Raises LabError when one is under way, and where there is too little to learn from."""
    counts = vote_counts(ctx.db, ctx.project.id)[source]
    if counts[Choice.FIRST] + counts[Choice.SECOND] < FEWEST:
        whose = "people's" if source is Source.HUMAN else "simulated"
        raise LabError(
            f"There are fewer than {FEWEST} decided {whose} labels. Label some pairs under Label, or choose the other labels."
        )
    busy = LabError("A reward model is being trained already; wait for it.")
    if queue.jobs(ctx.db, project_id=ctx.project.id, kinds=[JobKind.TRAIN_REWARD], statuses=OPEN):
        raise busy
    job = steward.submit_training(ctx.db, ctx.project.id, source, config)
    supervisor.ensure_engine(ctx.db, ctx.home)
    if (job.payload["source"], job.payload["config"]) != (source.value, config.to_dict()):
        raise busy  # somebody asked for another one since that look
    return job


def source_named(name: Any) -> Source:
    """Raises LabError for what is no source of labels."""
    try:
        return Source(name)
    except ValueError:
        raise LabError("The page named no labels to learn from; reload it.") from None


def ask(ctx: Context, model: int, prompt: str, text: str) -> Job:
    """Ask the engine which words of a text earn its score. Raises LabError for an empty or very long text."""
    if not text.strip() or len(prompt) + len(text) > LONGEST:
        raise LabError(f"Give a text of 1 to {LONGEST} characters, prompt included.")
    get_reward_model(ctx.db, model)
    refuse_a_crowd(ctx)
    payload = {"reward_model_id": model, "items": [{"prompt": prompt, "text": text}]}
    job = queue.submit(ctx.db, JobKind.EXPLAIN, ctx.project.id, payload)
    supervisor.ensure_engine(ctx.db, ctx.home)
    return job


def number_of(question: dict[str, Any], name: str) -> int:
    """Raises LabError where the browser sent none."""
    try:
        return int(question[name])
    except (KeyError, TypeError, ValueError):
        raise LabError(f"The page asked for no {name}; reload it.") from None


def answer_of(job: Job) -> dict[str, Any]:
    """An EXPLAIN job as the widget needs it: still waiting, failed, or its one item. Raises LabError for any other job."""
    if job.kind is not JobKind.EXPLAIN:
        raise LabError(f"Job {job.id} explains no text; reload the page.")
    if job.status in OPEN:
        return {"waiting": True, "begun": job.status is JobStatus.RUNNING}
    if job.status is not JobStatus.DONE or not job.result:
        return {"waiting": False, "failed": job.error or "It was cancelled."}
    return {"waiting": False, **job.result["items"][0]}


def seen(ctx: Context) -> dict[str, Any]:
    """What changes while the screen is open: the reward models (newest first), the training, the labels, the foresight."""
    project = ctx.project
    rows = reward_models(ctx.db, project.id)
    now = steward.labels(ctx.db, project.id)
    latest = queue.jobs(ctx.db, project_id=project.id, kinds=[JobKind.TRAIN_REWARD], limit=1)
    goals = {source.value: steward.goal_of(ctx.db, project.id, source) for source in Source}
    return {
        "project": project.id,
        "models": [summary(ctx, row) for row in rows[:50]],
        "job": training(ctx, latest[0]) if latest and latest[0].status in OPEN else None,
        "failed": latest[0].error if latest and latest[0].status is JobStatus.FAILED else "",
        "labels": {"human": now.human, "simulated": now.simulated, "goals": goals, "every": steward.TRAIN_EVERY},
        "foresight": {source.value: told_before(ctx, source) for source in Source},
    }


def told_before(ctx: Context, source: Source) -> dict[str, Any]:
    """Predict, then reveal: each vote against the reward model that was the newest when it was cast."""
    known = foresight(ctx.db, ctx.project.id, source)
    return dataclasses.asdict(known)


def training(ctx: Context, job: Job) -> dict[str, Any]:
    known = job.result or {}
    return {
        "id": job.id, "begun": job.status is JobStatus.RUNNING, "progress": job.progress, "eta_s": job.eta_s,
        "stage": known.get("stage", ""), "loss": rounded(known.get("loss", [])), "note": known.get("note", ""),
        "words": steward.learning(ctx.db, ctx.project.id),
    }  # fmt: skip


def rounded(numbers: list[float]) -> list[float]:
    """Evenly thinned to MOST_POINTS, the last one kept, four significant digits."""
    stride = -(-len(numbers) // MOST_POINTS) or 1
    return [float(f"{x:.4g}") for x in numbers[::-1][::stride][::-1]]


def summary(ctx: Context, row: RewardModelRow) -> dict[str, Any]:
    report = row.report
    return {
        "id": row.id, "labels": len(row.snapshot.vote_ids), "accuracy": report.get("accuracy"), "when": row.created_at,
        "low": report.get("accuracy_low"), "high": report.get("accuracy_high"), "source": source_of(ctx, row),
        "kind": row.snapshot.source.value,
    }  # fmt: skip


def source_of(ctx: Context, row: RewardModelRow) -> str:
    """Whose labels it learnt from, in words."""
    if row.snapshot.source is Source.HUMAN:
        return "people"
    names = sorted({judge_of(name) for name in annotators_of(ctx.db, row.snapshot)})
    return f"simulated by {', '.join(names)}" if names else "simulated"


def detail(ctx: Context, model: int) -> dict[str, Any]:
    """What never changes about a reward model; asked for once. Raises StoreError where there is no such model."""
    row = get_reward_model(ctx.db, model)
    report, learnt = row.report, labels_of(ctx, row)
    return {
        "id": row.id,
        "ties": report.get("ties", 0), "folds": report.get("folds", 0), "train_accuracy": report.get("train_accuracy"),
        "chosen": [round(score, 2) for score in report.get("chosen_scores", [])],
        "rejected": [round(score, 2) for score in report.get("rejected_scores", [])],
        "length_correlation": report.get("length_correlation"), "loss": rounded(report.get("loss", [])),
        "pooling": row.config.get("pooling"), "warm_start": bool(row.config.get("warm_start")),
        "seconds": report.get("seconds"), "texts": examples(ctx, row, learnt),
        "calibration": report.get("calibration") or [], "calibration_error": report.get("expected_calibration_error"),
        "disagreements": disagreements(report.get("disagreements") or [], learnt),
    }  # fmt: skip


def labels_of(ctx: Context, row: RewardModelRow) -> list[Comparison]:
    """The labels a reward model learnt from; none where they were changed by hand since."""
    try:
        return comparisons(ctx.db, row.snapshot)
    except StoreError:
        return []


def disagreements(said: Sequence[dict[str, float]], learnt: Sequence[Comparison]) -> list[dict[str, Any]]:
    """The report's {"index", "probability"} of labels that the model would have decided otherwise, as texts."""
    return [
        {
            "prompt": label.prompt,
            "chosen": label.chosen.strip(),
            "rejected": label.rejected.strip(),
            "probability": one["probability"],
        }
        for one in said
        if int(one["index"]) < len(learnt)
        for label in [learnt[int(one["index"])]]
    ]


def examples(ctx: Context, row: RewardModelRow, learnt: Sequence[Comparison]) -> list[dict[str, str]]:
    """Texts to look into: a pair that nobody labelled yet, and the last decided ones this model learnt from."""
    found = []
    pair = next_pair(ctx.db, row.project_id, "reward screen")
    if pair is not None:
        found = [
            {"prompt": pair.prompt.text, "text": side.text.strip(), "what": "waits for a label"}
            for side in (pair.first, pair.second)
        ]
    decided = [item for item in learnt if not item.tie]
    for item in reversed(decided[-EXAMPLES:]):
        for text, what in ((item.chosen, "preferred"), (item.rejected, "not preferred")):
            found.append({"prompt": item.prompt, "text": text.strip(), "what": what})
    return found
