"""Screen "Reward model": train one, see its accuracy and calibration, and the score of each word of a text."""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NotRequired, Required

import gradio as gr
import numpy as np
from typing_extensions import TypedDict

from rlhf_lab.common.chat_format import turns_of_prompt
from rlhf_lab.common.curves import downsample_values
from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, Choice, JobKind, JobStatus, Source
from rlhf_lab.common.person_names import is_blank
from rlhf_lab.common.records import REQUESTER_KEY, Comparison, Job, RewardPredictionStats, Role
from rlhf_lab.common.text_attributes import ATTRIBUTES, attribute_labels, ignored_in
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.errors import ConfigError, LabError, NotAllowedError
from rlhf_lab.jobs import engine_process, queue, retraining, run_control
from rlhf_lab.jobs.demo import visitor_training_goal
from rlhf_lab.jobs.judge_labelling import judge_name_of
from rlhf_lab.quality.queries import request_new_vote, restore_vote
from rlhf_lab.store.blind_tests import open_test_models
from rlhf_lab.store.features import StoredText
from rlhf_lab.store.label_snapshots import comparisons_by_vote
from rlhf_lab.store.reward_model_list import ListedRewardModel, list_reward_models, listed_model
from rlhf_lab.store.reward_models import get_reward_model
from rlhf_lab.store.reward_scores import prediction_accuracy
from rlhf_lab.store.votes import next_unvoted_pair, vote_counts
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.limits import ENGINE
from rlhf_lab.ui.reward.check import CheckView, check_view, start_check
from rlhf_lab.ui.run_views.stage_estimates import estimates_key, reward_sentences
from rlhf_lab.ui.shared.api import Api, LongText, Payload
from rlhf_lab.ui.shared.charts import PLOTLY_CONFIG, layout
from rlhf_lab.ui.shared.crowd import sees_comparisons, visible_votes
from rlhf_lab.ui.shared.forms import SEND_VALUES, Form, SettingsQuery, parse_settings
from rlhf_lab.ui.shared.generation_requests import own_job, submit_short_jobs
from rlhf_lab.ui.shared.instant_view import rounded_bound
from rlhf_lab.ui.shared.widgets import widget

api = Api("reward")
MAX_TEXT_CHARS = 4000  # of a text to explain, including its prompt
MAX_POINTS = 300  # of a loss curve
MAX_LISTED = 50  # reward models
MIN_INFLUENCE = 0.005  # of a label that is shown, in sd
MAX_LABELS_SHOWN = 3  # that raise a score, and that lower it
MAX_LOG_ODDS = 18.0
MIN_DECIDED_LABELS = 2  # needed for a training


class ModelQuery(Payload):
    model: int


class JobQuery(Payload):
    job: int


class TrainReward(SettingsQuery):
    """last_training: the id of the newest training that the page shows, 0 for none."""

    source: Source
    last_training: int | None = None


class CancelTraining(Payload):
    job: int


class TrainAsVisitor(Payload):
    """As TrainReward, in demo mode: from people's labels, with the default settings."""

    last_training: int | None = None


class ExplainText(Payload):
    """tokens: the first of some tokens of the text and the end, to explain what they add to the score; None for the whole
    text."""

    model: int
    prompt: LongText = ""
    text: LongText = ""
    tokens: tuple[int, int] | None = None


class ChooseAttribute(Payload):
    """Whether the next reward model ignores an attribute of the texts. The other settings are those of `model`."""

    model: int
    attribute: str
    ignore: bool
    last_training: int | None = None


class TakeOutLabel(Payload):
    """put_back: count a label again that was taken out."""

    vote: int
    put_back: bool = False


class JobId(TypedDict):
    job: int


class ModelSummary(TypedDict):
    """A row of the list of reward models. low, high: of the 95 % interval of the accuracy."""

    id: int
    labels: int
    accuracy: float | None
    low: float | None
    high: float | None
    source: Source
    source_text: str
    created_at: float


class Training(TypedDict):
    """An unfinished training. loss: per update of the present fit."""

    id: int
    running: bool
    progress: float
    eta_s: float | None
    stage: str
    loss: list[float]
    note: str
    status_text: str


class LabelCounts(TypedDict):
    """goals: how many labels of each source the next training needs. visitor_goal: how many one by visitors of a demo needs."""

    human: int
    simulated: int
    goals: dict[Source, int]
    visitor_goal: NotRequired[int]


class PredictionStats(TypedDict):
    """How often votes were predicted; chosen: on pairs that were chosen because they are informative."""

    right: float
    decided: int
    low: float
    high: float
    chosen_right: float
    chosen_decided: int


class InstantAccuracy(TypedDict):
    source: Source
    decided: int
    accuracy: float
    low: float | None
    high: float | None
    ignores: str


class RewardState(TypedDict):
    """What changes while the screen is open; models: the newest first. default_id: of the one that a new run learns from; it is
    shown first."""

    project: int
    models: list[ModelSummary]
    default_id: int | None
    job: Training | None
    last_training: int
    cancelled: bool
    failed: str
    labels: LabelCounts
    prediction_stats: dict[Source, PredictionStats]
    instant: InstantAccuracy | None
    estimates_key: str


class ExampleText(TypedDict):
    """A text to explain. tag: what is known about it."""

    prompt: str
    turns: list[dict[str, str]]
    text: str
    tag: str


class Disagreement(TypedDict):
    """A label that the model would have decided otherwise. probability: that it gave this label."""

    turns: list[dict[str, str]]
    chosen: str
    rejected: str
    probability: float


class AttributeRow(TypedDict):
    """What labels say about an attribute of the texts. odds: by what `step_text` multiplies the odds of being preferred;
    low, high: 95 % interval; None if they are not measured."""

    name: str
    label: str
    step_text: str
    odds: float | None
    low: float | None
    high: float | None
    is_ignored: bool


class RewardReport(TypedDict):
    """The constant facts about a reward model. calibration: (confidence, accuracy, pairs) of each bin; scores: (score, texts)."""

    id: int
    counts_hidden: bool
    ties: int
    folds: int
    train_accuracy: float | None
    chosen_scores: list[tuple[float, int]]
    rejected_scores: list[tuple[float, int]]
    length_correlation: float | None
    loss: list[float]
    pooling: str | None
    warm_start: bool
    adapter_rejected: bool
    note: str
    seconds: float | None
    example_texts: list[ExampleText]
    calibration: list[tuple[float, float, int]]
    calibration_error: float | None
    disagreements: list[Disagreement]
    attributes: list[AttributeRow]


class LabelBehindScore(TypedDict):
    """A label and by how much it raises the score of a text, in sd of the base's texts."""

    vote: int
    turns: list[dict[str, str]]
    chosen: str
    rejected: str
    is_tie: bool
    influence: float


class InstantExplanation(TypedDict):
    """A text's score by the head that is fitted after every vote, with its 95 % interval, and the labels that raise and lower it
    most; for some tokens of a text, what they add to the score. ignores: the attributes of texts that scores ignore."""

    score: float
    low: float
    high: float
    labels: list[LabelBehindScore]
    ignores: str


class Explanation(TypedDict, total=False):
    """Waiting (with `running`), failed (with `failure`), or the score of a text and of its tokens, if single ones have one.
    has_adapter: whether the reward model has a trained adapter, which `instant` does not explain. instant: None for others than
    the operator, since it shows how labels were given, and before the head has learnt anything."""

    is_waiting: Required[bool]
    running: bool
    failure: str
    score: float
    tokens: list[str]
    token_scores: list[float] | None
    has_adapter: bool
    instant: InstantExplanation | None


def build(ctx: Context) -> None:
    component = widget(
        "reward",
        "reward/view.js",
        events=(SEND_VALUES,),
        charts=True,
        data={"layout": layout(190), "config": PLOTLY_CONFIG, "is_demo": ctx.demo is not None},
        label="Reward model",
    )
    with gr.Accordion("All settings of the next reward model", open=False, elem_id="reward-settings"):
        Form(RewardConfig(), "reward", skip=ATTRIBUTES).send_values_to(component)


@api.read(Payload)
def state(ctx: Context, query: Payload) -> RewardState:
    """As for the operator, but for visitors who may not see comparisons without what depends on the number of labels that a model
    was trained on."""
    cached = ctx.cache.get("reward/state", 1.0, lambda: screen_state(ctx))
    if sees_comparisons(ctx):
        return cached
    none = {source: prediction_stats_view(RewardPredictionStats(0, 0, 0.0, 1.0)) for source in Source}
    training: Training | None = {**cached["job"], "loss": [], "note": ""} if cached["job"] else None
    return {**cached, "prediction_stats": none, "job": training}


@api.read(ModelQuery)
def report(ctx: Context, query: ModelQuery) -> RewardReport:
    return model_detail(ctx, query.model, query.annotator)


@api.read(SettingsQuery)
def estimates(ctx: Context, query: SettingsQuery) -> dict[str, str]:
    """How long a training with these settings takes, by the source of its labels; empty if they are invalid."""
    try:
        config = RewardConfig.from_dict(parse_settings(RewardConfig, query.settings))
    except ConfigError:
        return {}
    return reward_sentences(ctx, config)


@api.read(JobQuery)
def explanation(ctx: Context, query: JobQuery) -> Explanation:
    return explanation_view(ctx, own_job(ctx, query.job, JobKind.EXPLAIN, ctx.annotator_or_empty(query.annotator)))


@api.action(TrainReward, role=Role.OPERATOR)
def train(ctx: Context, payload: TrainReward) -> JobId:
    settings = parse_settings(RewardConfig, payload.settings)
    config = retraining.next_config(ctx.db, ctx.project.id, payload.source, settings)
    return {"job": start_training(ctx, payload.source, config, payload.last_training).id}


@api.action(TrainAsVisitor, limit=ENGINE)
def visitor_train(ctx: Context, payload: TrainAsVisitor) -> JobId:
    if ctx.demo is None:
        raise NotAllowedError("Visitors can train a reward model only in demo mode.")
    ctx.demo.check_training(ctx.project)
    config = retraining.next_config(ctx.db, ctx.project.id, Source.HUMAN)
    return {"job": start_training(ctx, Source.HUMAN, config, payload.last_training).id}


@api.action(ChooseAttribute, role=Role.OPERATOR)
def choose_attribute(ctx: Context, payload: ChooseAttribute) -> JobId:
    """Train a reward model that ignores an attribute, or one that does not."""
    if payload.attribute not in ATTRIBUTES:
        raise LabError(f'There is no attribute "{payload.attribute:.40}". Choose one of {", ".join(ATTRIBUTES)}.')
    row = listed_model(ctx.db, ctx.project.id, payload.model)
    choice = {payload.attribute: "ignore" if payload.ignore else "as_labelled"}
    config = RewardConfig.from_dict(row.config | choice)
    return {"job": start_training(ctx, row.source, config, payload.last_training).id}


@api.read(ModelQuery)
def check(ctx: Context, query: ModelQuery) -> CheckView:
    return check_view(ctx, query.model, ctx.annotator_or_empty(query.annotator))


@api.action(ModelQuery, role=Role.OPERATOR)
def begin_check(ctx: Context, payload: ModelQuery) -> CheckView:
    start_check(ctx, payload.model)
    return check_view(ctx, payload.model, ctx.require_annotator(payload.annotator))


@api.action(CancelTraining, role=Role.OPERATOR)
def cancel(ctx: Context, payload: CancelTraining) -> None:
    retraining.cancel_training(ctx.db, ctx.project.id, payload.job)


@api.action(ExplainText, limit=ENGINE)
def explain(ctx: Context, payload: ExplainText) -> JobId:
    """Raises LabError while others may judge texts that the reward model chose: its scores would tell which ones."""
    if not ctx.is_operator() and payload.model in open_test_models(ctx.db, ctx.project.id):
        raise LabError(
            "People are judging texts that this reward model chose. Wait until the operator has ended the blind test."
        )
    return {"job": submit_explanation(ctx, payload, ctx.require_annotator(payload.annotator)).id}


def start_training(ctx: Context, source: Source, config: RewardConfig, last_training: int | None = None) -> Job:
    """Submit a training job; if the same job was submitted by another person since `last_training`, return that job.

    Raises LabError if another training is unfinished or was just submitted, or if there are too few labels.
    """
    counts = vote_counts(ctx.db, ctx.project.id)[source]
    if counts[Choice.FIRST] + counts[Choice.SECOND] < MIN_DECIDED_LABELS:
        whose = "people's" if source is Source.HUMAN else "simulated"
        raise LabError(
            f"There are fewer than {MIN_DECIDED_LABELS} decided {whose} labels. Label some pairs under Label, or "
            "choose other labels."
        )
    already_training = LabError("A reward model is already being trained; wait for it.")
    if queue.jobs(ctx.db, project_id=ctx.project.id, kinds=[JobKind.TRAIN_REWARD], statuses=UNFINISHED_JOB_STATUSES):
        raise already_training
    job = retraining.submit_training(ctx.db, ctx.project.id, source, config, last_training)
    engine_process.ensure_engine(ctx.db, ctx.home)
    if (job.payload["source"], job.payload["config"]) != (source.value, config.to_dict()):
        if job.status in UNFINISHED_JOB_STATUSES:
            raise already_training  # another training was submitted after the check above
        raise LabError(
            "Somebody else has just trained a reward model with other settings. Press Train again if you still want "
            "another one."
        )
    return job


def submit_explanation(ctx: Context, request: ExplainText, annotator: str) -> Job:
    """Have the engine score each word of a text for this annotator. Raises LabError for an empty or very long text."""
    if is_blank(request.text[: MAX_TEXT_CHARS + 1]) or len(request.prompt) + len(request.text) > MAX_TEXT_CHARS:
        raise LabError(f"Enter a text of 1 to {MAX_TEXT_CHARS} characters, including the prompt.")
    get_reward_model(ctx.db, request.model)
    items: list[dict[str, Any]] = [{"prompt": request.prompt, "text": request.text}]
    if request.tokens is not None:
        first, end = request.tokens
        if not 0 <= first < end:
            raise LabError("There are no such words in the text. Press Show words, and choose a word.")
        items[0] |= {"first": first, "end": end}
    job_payload = {"reward_model_id": request.model, "items": items, REQUESTER_KEY: annotator}
    return submit_short_jobs(ctx, JobKind.EXPLAIN, annotator, [job_payload])[0]


@api.action(TakeOutLabel, role=Role.OPERATOR)
def take_out_label(ctx: Context, payload: TakeOutLabel) -> None:
    """Undo a label, so that nothing learns from it and its annotator may see the pair again; or make it count again."""
    change = restore_vote if payload.put_back else request_new_vote
    change(ctx.db, ctx.project.id, payload.vote)
    ctx.instant_reward.labels_changed()


def explanation_view(ctx: Context, job: Job) -> Explanation:
    """An EXPLAIN job for the page: waiting, failed, or its one result."""
    if job.status in UNFINISHED_JOB_STATUSES:
        return {"is_waiting": True, "running": job.status is JobStatus.RUNNING}
    if job.status is not JobStatus.DONE or not job.result:
        return {"is_waiting": False, "failure": job.error or "It was cancelled."}
    item, asked = job.result["items"][0], job.payload["items"][0]
    text = StoredText(asked["prompt"], asked["text"])
    return {
        "is_waiting": False, "score": item["score"], "tokens": item["tokens"], "token_scores": item["token_scores"],
        "has_adapter": bool(job.result.get("has_adapter")),
        "instant": instant_explanation(ctx, item.get("features", ""), text, item.get("share", 1.0))
        if ctx.is_operator() else None,
    }  # fmt: skip


def instant_explanation(ctx: Context, features: str, text: StoredText, share: float) -> InstantExplanation | None:
    """The labels behind the score of a text. features, share: as in the result of an EXPLAIN job."""
    vector = np.frombuffer(base64.b64decode(features), "<f2").astype(np.float32)
    if not len(vector) or not np.isfinite(vector).all():
        return None
    explained = ctx.instant_reward.explain(ctx.project.id, vector, text, share)
    if explained is None:
        return None
    ordered = sorted(explained.influences.items(), key=lambda item: item[1])
    extreme = [(vote, x) for vote, x in ordered[: -MAX_LABELS_SHOWN - 1 : -1] if x >= MIN_INFLUENCE]
    extreme += [(vote, x) for vote, x in ordered[:MAX_LABELS_SHOWN] if x <= -MIN_INFLUENCE]
    labels = comparisons_by_vote(ctx.db, [vote for vote, _ in extreme])
    return {
        "score": explained.score,
        "low": explained.score - explained.half_width, "high": explained.score + explained.half_width,
        "ignores": attribute_labels(ctx.instant_reward.figures(ctx.project.id).ignored),
        "labels": [
            {
                "vote": vote, "turns": turns_of_prompt(labels[vote].prompt), "chosen": labels[vote].chosen.strip(),
                "rejected": labels[vote].rejected.strip(), "is_tie": labels[vote].tie, "influence": influence,
            }
            for vote, influence in extreme
            if vote in labels
        ],
    }  # fmt: skip


def screen_state(ctx: Context) -> RewardState:
    project = ctx.project
    label_counts = retraining.get_label_progress(ctx.db, project.id)
    latest = retraining.last_training(ctx.db, project.id)
    models = list_reward_models(ctx.db, project.id)
    default = run_control.best_supported(models)
    labels: LabelCounts = {
        "human": label_counts.human,
        "simulated": label_counts.simulated,
        "goals": {source: retraining.training_goal(ctx.db, project.id, source) for source in Source},
    }
    if ctx.demo is not None:
        labels["visitor_goal"] = visitor_training_goal(ctx.db, project.id)
    return {
        "project": project.id,
        "models": [model_summary(row) for row in models[:MAX_LISTED]],
        "default_id": default.id if default else None,
        "job": training_view(ctx, latest) if latest and latest.status in UNFINISHED_JOB_STATUSES else None,
        "last_training": latest.id if latest else 0,
        "cancelled": latest is not None and latest.status is JobStatus.CANCELLED,
        "failed": latest.error if latest and latest.status is JobStatus.FAILED else "",
        "labels": labels,
        "prediction_stats": {source: prediction_stats(ctx, source) for source in Source},
        "instant": instant_accuracy(ctx),
        "estimates_key": estimates_key(ctx),
    }


def instant_accuracy(ctx: Context) -> InstantAccuracy | None:
    """Leave-one-out accuracy of the instant reward model; None while it has too few labels."""
    figures = ctx.instant_reward.figures(ctx.project.id)
    if figures.right is None:
        return None
    return {
        "source": figures.source, "decided": figures.decided, "accuracy": figures.right / figures.decided,
        "low": rounded_bound(figures.low), "high": rounded_bound(figures.high), "ignores": attribute_labels(figures.ignored),
    }  # fmt: skip


def prediction_stats(ctx: Context, source: Source) -> PredictionStats:
    """How often votes were predicted by the reward model that was the newest when they were cast."""
    return prediction_stats_view(prediction_accuracy(ctx.db, ctx.project.id, source))


def prediction_stats_view(stats: RewardPredictionStats) -> PredictionStats:
    return {
        "right": stats.right, "decided": stats.decided, "low": stats.low, "high": stats.high,
        "chosen_right": stats.chosen_right, "chosen_decided": stats.chosen_decided,
    }  # fmt: skip


def training_view(ctx: Context, job: Job) -> Training:
    result = job.result or {}
    return {
        "id": job.id, "running": job.status is JobStatus.RUNNING, "progress": job.progress, "eta_s": job.eta_s,
        "stage": result.get("stage", ""), "loss": thin_and_round(result.get("loss", [])), "note": result.get("note", ""),
        "status_text": retraining.training_status(ctx.db, ctx.project.id),
    }  # fmt: skip


def thin_and_round(numbers: list[float]) -> list[float]:
    """At most MAX_POINTS, with four significant digits."""
    return [float(f"{x:.4g}") for x in downsample_values(numbers, MAX_POINTS)]


def model_summary(row: ListedRewardModel) -> ModelSummary:
    accuracy, low, high = (
        rounded_bound(row.report.get(name)) for name in ("accuracy", "accuracy_low", "accuracy_high")
    )
    return {
        "id": row.id, "labels": row.label_count, "accuracy": accuracy, "low": low, "high": high,
        "source": row.source, "source_text": source_text(row), "created_at": row.created_at,
    }  # fmt: skip


def source_text(row: ListedRewardModel) -> str:
    """Whose labels the model was trained on, and which attributes of the texts it ignores."""
    names = ", ".join(sorted({judge_name_of(name) for name in row.annotators}))
    simulated = f"simulated by {names}" if names else "simulated"
    ignored = attribute_labels(ignored_in(row.config))
    return ("people" if row.source is Source.HUMAN else simulated) + (f"; ignores {ignored}" if ignored else "")


def model_detail(ctx: Context, model: int, annotator: str | None = None) -> RewardReport:
    """annotator: the name that the visitor's page sends. Raises StoreError if there is no such model."""
    row = listed_model(ctx.db, ctx.project.id, model)
    counts_hidden = not sees_comparisons(ctx)
    if counts_hidden:
        row = without_counts(row)
    report, labels = row.report, training_labels(ctx, row, annotator)
    return {
        "id": row.id, "counts_hidden": counts_hidden,
        "ties": report.get("ties", 0), "folds": report.get("folds", 0), "train_accuracy": report.get("train_accuracy"),
        "chosen_scores": row.chosen_scores, "rejected_scores": row.rejected_scores,
        "length_correlation": report.get("length_correlation"), "loss": thin_and_round(row.loss),
        "pooling": row.config.get("pooling"), "warm_start": bool(row.config.get("warm_start")),
        "adapter_rejected": (report.get("adapter") or {}).get("used") is False,
        "note": report.get("note", ""), "seconds": report.get("seconds"),
        "example_texts": example_texts(ctx, [labels[vote_id] for vote_id in row.examples if vote_id in labels]),
        "calibration": [(predicted, right, pairs) for predicted, right, pairs in report.get("calibration") or ()],
        "calibration_error": report.get("expected_calibration_error"),
        "disagreements": disagreement_rows(row.disagreements, labels),
        "attributes": attribute_rows(report.get("attribute_effects") or [], row.config),
    }  # fmt: skip


def attribute_rows(effects: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> list[AttributeRow]:
    """The measured attributes and the ignored ones, in the order of ATTRIBUTES."""
    by_name, rows = {effect["name"]: effect for effect in effects}, list[AttributeRow]()
    for name, attribute in ATTRIBUTES.items():
        is_ignored, effect = config.get(name) == "ignore", by_name.get(name)
        if effect is not None or is_ignored:
            odds, low, high = (
                None if effect is None else odds_ratio(effect[key]) for key in ("log_odds", "low", "high")
            )
            rows.append({
                "name": name, "label": attribute.label, "step_text": attribute.step_text, "odds": odds, "low": low,
                "high": high, "is_ignored": is_ignored,
            })  # fmt: skip
    return rows


def odds_ratio(log_odds: float) -> float:
    """With three significant digits; at most about 10^8 and at least 10^-8, which is more than is ever known."""
    return float(f"{math.exp(min(max(log_odds, -MAX_LOG_ODDS), MAX_LOG_ODDS)):.3g}")


def without_counts(row: ListedRewardModel) -> ListedRewardModel:
    """The reward model without all that tells how many labels it was trained on, votes on gold pairs left out."""
    kept = {name: row.report.get(name) for name in ("adapter", "folds", "train_accuracy", "length_correlation")}
    rounded = {name: round(value, 2) if isinstance(value, float) else value for name, value in kept.items()}
    return replace(row, report=rounded, chosen_scores=[], rejected_scores=[], loss=[])


def training_labels(ctx: Context, row: ListedRewardModel, annotator: str | None) -> dict[int, Comparison]:
    """The labels whose texts are shown, by vote, in their present state, without deleted ones and without those that the visitor
    may not see (`visible_votes`); none for visitors who may not see comparisons."""
    if not sees_comparisons(ctx):
        return {}
    shown = [*(vote_id for vote_id, _ in row.disagreements), *row.examples]
    return comparisons_by_vote(ctx.db, visible_votes(ctx, shown, annotator))


def disagreement_rows(
    disagreements: Sequence[tuple[int, float]], labels: Mapping[int, Comparison]
) -> list[Disagreement]:
    """disagreements: (vote, probability)."""
    return [
        {
            "turns": turns_of_prompt(labels[vote_id].prompt),
            "chosen": labels[vote_id].chosen.strip(),
            "rejected": labels[vote_id].rejected.strip(),
            "probability": probability,
        }
        for vote_id, probability in disagreements
        if vote_id in labels
    ]


def example_texts(ctx: Context, decided: Sequence[Comparison]) -> list[ExampleText]:
    """Texts to explain: a pair without a vote, and decided pairs that the model was trained on."""
    texts = []
    # Another pair than this one on a person's screen would be a gold pair.
    pair = next_unvoted_pair(ctx.db, ctx.project.id, "reward screen") if sees_comparisons(ctx) else None
    if pair is not None:
        texts = [(pair.prompt.text, side.text, "waits for a label") for side in (pair.first, pair.second)]
    for label in decided:
        texts += [(label.prompt, label.chosen, "preferred"), (label.prompt, label.rejected, "not preferred")]
    return [
        {"prompt": prompt, "turns": turns_of_prompt(prompt), "text": text.strip(), "tag": tag}
        for prompt, text, tag in texts
    ]
