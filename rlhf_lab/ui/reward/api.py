"""Screen "Reward model": train one, see its accuracy and calibration, and the score of each word of a text."""

from typing import NotRequired

import gradio as gr
from pydantic import Field
from typing_extensions import TypedDict

from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, Choice, JobKind, JobStatus, Source
from rlhf_lab.common.records import Job, RewardPredictionStats, Role
from rlhf_lab.common.text_attributes import ATTRIBUTES, attribute_labels, ignored_in
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.errors import ConfigError, LabError, NotAllowedError
from rlhf_lab.jobs import engine_process, queue, retraining, run_control
from rlhf_lab.jobs.demo import visitor_training_goal
from rlhf_lab.jobs.judge_labelling import judge_name_of
from rlhf_lab.quality.queries import restore_votes, take_out_labels
from rlhf_lab.store.reward_model_list import ListedRewardModel, accuracy_of, list_reward_models, listed_model
from rlhf_lab.store.reward_scores import prediction_accuracy
from rlhf_lab.store.votes import vote_counts
from rlhf_lab.ui.compare.typed_texts import check_may_score, why_not_scored
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.limits import ENGINE
from rlhf_lab.ui.reward.check import SIZES, CheckView, check_view, start_check
from rlhf_lab.ui.reward.explanation import ExplainText, Explanation, explanation_view, submit_explanation
from rlhf_lab.ui.reward.model_report import RewardReport, model_detail, thin_and_round
from rlhf_lab.ui.run_views.stage_estimates import estimates_key, reward_sentences
from rlhf_lab.ui.shared.api import Api, Payload
from rlhf_lab.ui.shared.charts import PLOTLY_CONFIG, layout
from rlhf_lab.ui.shared.crowd import sees_comparisons
from rlhf_lab.ui.shared.forms import SEND_VALUES, Form, SettingsQuery, parse_settings
from rlhf_lab.ui.shared.generation_requests import LostJobError, own_job
from rlhf_lab.ui.shared.instant_view import rounded_bound
from rlhf_lab.ui.shared.widgets import widget

api = Api("reward")
MAX_LISTED = 50  # reward models
MIN_DECIDED_LABELS = 2  # needed for a training


class ModelQuery(Payload):
    model: int


class CheckPayload(ModelQuery):
    """pairs: as many as the page announced."""

    pairs: int | None = Field(default=None, ge=1, le=SIZES[0])


class JobQuery(Payload):
    job: int


class TrainReward(SettingsQuery):
    """last_training: the id of the newest training that the page shows, 0 for none."""

    source: Source
    last_training: int | None = None


class TrainAsVisitor(Payload):
    """As TrainReward, in demo mode: from people's labels, with the default settings."""

    last_training: int | None = None


class ChooseAttribute(Payload):
    """Whether the next reward model ignores an attribute of the texts. The other settings are those of `model`."""

    model: int
    attribute: str
    ignore: bool
    last_training: int | None = None


class TakeOutLabel(Payload):
    """vote: a label whose pair is taken out. put_back: labels that were taken out and count again."""

    vote: int = 0
    put_back: list[int] | None = None


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


class InstantAccuracy(TypedDict):
    source: Source
    decided: int
    accuracy: float
    low: float | None
    high: float | None
    ignores: str


class RewardState(TypedDict):
    """What changes while the screen is open; models: the newest first. default_id: of the one that a new run learns from; it is
    shown first. scores_hidden: see `why_not_scored`."""

    project: int
    models: list[ModelSummary]
    default_id: int | None
    job: Training | None
    last_training: int
    cancelled: bool
    failed: str
    labels: LabelCounts
    prediction_stats: dict[Source, RewardPredictionStats]
    instant: InstantAccuracy | None
    estimates_key: str
    scores_hidden: str


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
    none = dict.fromkeys(Source, RewardPredictionStats(0, 0, 0.0, 1.0))
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
    try:
        job = own_job(ctx, query.job, JobKind.EXPLAIN, ctx.annotator_or_empty(query.annotator))
    except LostJobError as error:
        return {"is_waiting": False, "failure": str(error)}
    return explanation_view(ctx, job)


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


@api.action(CheckPayload, role=Role.OPERATOR)
def begin_check(ctx: Context, payload: CheckPayload) -> CheckView:
    start_check(ctx, payload.model, payload.pairs)
    return check_view(ctx, payload.model, ctx.require_annotator(payload.annotator))


@api.action(JobQuery, role=Role.OPERATOR)
def cancel(ctx: Context, payload: JobQuery) -> None:
    retraining.cancel_training(ctx.db, ctx.project.id, payload.job)


@api.action(ExplainText, limit=ENGINE)
def explain(ctx: Context, payload: ExplainText) -> JobId:
    check_may_score(ctx)
    return {"job": submit_explanation(ctx, payload, ctx.require_annotator(payload.annotator)).id}


def start_training(ctx: Context, source: Source, config: RewardConfig, last_training: int | None = None) -> Job:
    """Submit a training job; if the same job was submitted by another person since `last_training`, return that job.

    Raises LabError if another training is unfinished or was just submitted, or if there are too few labels.
    """
    counts = vote_counts(ctx.db, ctx.project.id)[source]
    if counts[Choice.FIRST] + counts[Choice.SECOND] < MIN_DECIDED_LABELS:
        labels = "labels by people" if source is Source.HUMAN else "simulated labels"
        raise LabError(
            f"There are fewer than {MIN_DECIDED_LABELS} decided {labels}. Label some pairs under Label, or "
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


@api.action(TakeOutLabel, role=Role.OPERATOR)
def take_out_label(ctx: Context, payload: TakeOutLabel) -> list[int]:
    """Undo all labels of a pair, so that nothing learns from them and their annotators may see the pair again; or make them count
    again. Returns these labels."""
    project_id = ctx.project.id
    if payload.put_back:
        votes = restore_votes(ctx.db, project_id, payload.put_back)
    else:
        votes = take_out_labels(ctx.db, project_id, payload.vote)
    ctx.instant_reward.labels_changed()
    return votes


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
        "prediction_stats": {source: prediction_accuracy(ctx.db, project.id, source) for source in Source},
        "instant": instant_accuracy(ctx),
        "estimates_key": estimates_key(ctx),
        "scores_hidden": why_not_scored(ctx),
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


def training_view(ctx: Context, job: Job) -> Training:
    result = job.result or {}
    return {
        "id": job.id, "running": job.status is JobStatus.RUNNING, "progress": job.progress, "eta_s": job.eta_s,
        "stage": result.get("stage", ""), "loss": thin_and_round(result.get("loss", [])), "note": result.get("note", ""),
        "status_text": retraining.training_status(ctx.db, ctx.project.id),
    }  # fmt: skip


def model_summary(row: ListedRewardModel) -> ModelSummary:
    accuracy, low, high = map(rounded_bound, accuracy_of(row.report))
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
