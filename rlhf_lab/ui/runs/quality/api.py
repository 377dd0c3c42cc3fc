"""Part "Quality of the labels": agreement and consistency of annotators, training on a selection of them, unlikely labels."""

from typing import Any

from pydantic import StrictFloat, StrictInt
from typing_extensions import TypedDict

from rlhf_lab.common.chat_format import turns_of_prompt
from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, Choice, JobKind, Source
from rlhf_lab.common.records import Role
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.quality.agreement import (
    Agreement,
    AnnotatorQuality,
    TimeBucket,
    VoteColumns,
    annotator_qualities,
    krippendorff_alpha,
    pairwise_agreement,
    quality_over_time,
)
from rlhf_lab.quality.queries import columns_of, request_new_vote, unlikely_labels, vote_columns
from rlhf_lab.store.reward_model_list import ListedRewardModel, accuracy_of, list_reward_models, newest_listed
from rlhf_lab.store.vote_table import current_votes
from rlhf_lab.ui.compare.typed_texts import votes_with_scores
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.shared.api import Api, Payload
from rlhf_lab.ui.shared.crowd import sees_comparisons, visible_votes
from rlhf_lab.ui.shared.widgets import widget

api = Api("quality")
MAX_PEOPLE = 200
MAX_MODELS = 12
MAX_MODEL_PEOPLE = 12  # annotators named for each reward model
MAX_WEIGHT = 10
TIME_BUCKETS = 8
CLOSED_TEXT = (
    "This project shows gold pairs, so only the operator sees how votes compare: such figures would reveal these pairs."
)


class QualityQuery(Payload):
    source: Source | None = None


class WeightedAnnotators(Payload):
    """weights: 0 to MAX_WEIGHT by annotator, 0 leaves them out; 1 for those not named."""

    source: Source
    weights: dict[str, StrictInt | StrictFloat]


class VoteToRepeat(Payload):
    vote_id: int


class ShareRow(TypedDict):
    """A share with its 95 % interval, and the number of cases; share: None without cases."""

    share: float | None
    low: float
    high: float
    count: int


class TimeBucketRow(TypedDict):
    """Shares of the votes of a period, alpha, and the median seconds of a vote."""

    start: float
    end: float
    votes: int
    with_others: float | None
    with_self: float | None
    alpha: float | None
    left: float | None
    ties: float | None
    seconds: float | None


class AnnotatorRow(TypedDict):
    name: str
    votes: int
    with_others: ShareRow
    with_self: ShareRow
    left: ShareRow
    ties: ShareRow
    seconds: float | None
    alpha_without: float | None
    time_buckets: list[TimeBucketRow]


class AgreementStats(TypedDict):
    """unlisted_count: annotators beyond MAX_PEOPLE."""

    votes: int
    alpha: float | None
    agreement: ShareRow
    people: list[AnnotatorRow]
    unlisted_count: int
    time_buckets: list[TimeBucketRow]


class TrainedOn(TypedDict):
    """A reward model. people: (name, weight) of the first annotators; has_selection: they were chosen."""

    id: int
    labels: int
    source: Source
    people: list[tuple[str, float]]
    annotator_count: int
    has_selection: bool
    accuracy: float | None
    low: float | None
    high: float | None


class UnlikelyLabel(TypedDict):
    """probability: that a model trained without this label gives it. is_set_aside: the vote does not count any more."""

    vote_id: int
    annotator: str
    choice: Choice
    probability: float
    turns: list[dict[str, str]]
    first: str
    second: str
    is_set_aside: bool


class UnlikelyLabels(TypedDict):
    reward_model_id: int
    labels: list[UnlikelyLabel]


class QualityFigures(AgreementStats):
    """The votes of one source. unlikely_labels: None without a reward model of this source."""

    source: Source
    reward_models: list[TrainedOn]
    unlikely_labels: UnlikelyLabels | None
    is_training: bool
    project: int


class QualityView(TypedDict):
    """figures: None for visitors who may not see comparisons of votes; then closed_text says why."""

    closed_text: str
    figures: QualityFigures | None


def build(ctx: Context) -> None:
    widget("quality", "runs/quality/view.js", data={"heaviest": MAX_WEIGHT}, label="Quality of the labels")


@api.read(QualityQuery)
def state(ctx: Context, query: QualityQuery) -> QualityView:
    if not sees_comparisons(ctx):
        return {"closed_text": CLOSED_TEXT, "figures": None}
    project_id, source = ctx.project.id, query.source or default_source(ctx)
    table = current_votes(ctx.db, project_id)
    stats: AgreementStats = table.cached(("quality", source), lambda: agreement_stats(columns_of(table, source)))
    return {
        "closed_text": "",
        "figures": {
            **stats,
            "source": source,
            "reward_models": [trained_on(row) for row in list_reward_models(ctx.db, project_id)[:MAX_MODELS]],
            "unlikely_labels": unlikely_labels_view(ctx, source, query.annotator),
            "is_training": is_training(ctx),
            "project": project_id,
        },
    }


@api.action(VoteToRepeat, role=Role.OPERATOR)
def ask_again(ctx: Context, payload: VoteToRepeat) -> str:
    request_new_vote(ctx.db, ctx.project.id, payload.vote_id)
    return "The vote was set aside. Its annotator will see the pair again."


@api.action(WeightedAnnotators, role=Role.OPERATOR)
def train(ctx: Context, payload: WeightedAnnotators) -> str:
    """Start the training of a reward model on the labels of annotators with a weight above 0."""
    source, weights = payload.source, payload.weights
    if not all(isinstance(weight, int) and 0 <= weight <= MAX_WEIGHT for weight in weights.values()):
        raise ConfigError(f"A weight is a whole number from 0 (left out) to {MAX_WEIGHT}.")
    label_counts = vote_columns(ctx.db, ctx.project.id, source).label_counts()
    included = [name for name in label_counts if weights.get(name, 1) > 0]
    if not included:
        raise ConfigError("All annotators are left out. Choose at least one.")
    if is_training(ctx):
        raise ConfigError("A reward model is already being trained; wait for it.")
    job_payload: dict[str, Any] = {
        "source": source.value, "config": {}, "labels": sum(label_counts[name] for name in included),
        "weights": {name: weights[name] for name in included if weights.get(name, 1) != 1},
    }  # fmt: skip
    if len(included) < len(label_counts):
        job_payload["annotators"] = included
    queue.submit(ctx.db, JobKind.TRAIN_REWARD, ctx.project.id, job_payload)
    engine_process.ensure_engine(ctx.db, ctx.home)
    return (
        f"A reward model from {len(included)} of {len(label_counts)} annotators is being trained. Compare it "
        "below when it is done."
    )


def default_source(ctx: Context) -> Source:
    """People's votes, unless there are only simulated ones."""
    human, simulated = (len(vote_columns(ctx.db, ctx.project.id, source)) for source in Source)
    return Source.SIMULATED if simulated and not human else Source.HUMAN


def is_training(ctx: Context) -> bool:
    kinds, statuses = [JobKind.TRAIN_REWARD], UNFINISHED_JOB_STATUSES
    return bool(queue.jobs(ctx.db, project_id=ctx.project.id, kinds=kinds, statuses=statuses))


def trained_on(row: ListedRewardModel) -> TrainedOn:
    weights, names, accuracy = row.report.get("weights") or {}, row.annotators, accuracy_of(row.report)
    return {
        "id": row.id, "labels": row.trained_count, "source": row.source,
        "people": [(name, weights.get(name, 1)) for name in names[:MAX_MODEL_PEOPLE]], "annotator_count": len(names),
        "has_selection": bool(row.report.get("annotators")), "accuracy": accuracy.value,
        "low": accuracy.low, "high": accuracy.high,
    }  # fmt: skip


def unlikely_labels_view(ctx: Context, source: Source, annotator: str | None) -> UnlikelyLabels | None:
    """The labels of a source that its newest reward model finds least likely, of those that the visitor may see; None without a
    reward model. annotator: the name that the visitor's page sends."""
    row = newest_listed(ctx.db, ctx.project.id, source)
    if row is None:
        return None
    visible = visible_votes(ctx, votes_with_scores(ctx, (vote_id for vote_id, _ in row.disagreements)), annotator)
    labels: list[UnlikelyLabel] = [
        {
            "vote_id": label.vote.id, "annotator": label.vote.annotator, "choice": label.vote.choice,
            "probability": round(label.probability, 3), "turns": turns_of_prompt(label.pair.prompt.text),
            "first": label.pair.first.text, "second": label.pair.second.text,
            "is_set_aside": label.current_choice is None,
        }
        for label in unlikely_labels(ctx.db, row)
        if label.vote.id in visible
    ]  # fmt: skip
    return {"reward_model_id": row.id, "labels": labels}


def agreement_stats(votes: VoteColumns) -> AgreementStats:
    annotators = annotator_qualities(votes)
    return {
        "votes": len(votes),
        "alpha": rounded(krippendorff_alpha(votes)),
        "agreement": share_row(pairwise_agreement(votes)),
        "people": [annotator_row(annotator) for annotator in annotators[:MAX_PEOPLE]],
        "unlisted_count": max(0, len(annotators) - MAX_PEOPLE),
        "time_buckets": [time_bucket_row(bucket) for bucket in quality_over_time(votes, TIME_BUCKETS)],
    }


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def share_row(agreement: Agreement) -> ShareRow:
    low, high = agreement.interval
    return {
        "share": rounded(agreement.share), "low": round(low, 4), "high": round(high, 4), "count": agreement.compared
    }  # fmt: skip


def time_bucket_row(bucket: TimeBucket) -> TimeBucketRow:
    return {
        "start": bucket.start,
        "end": bucket.end,
        "votes": bucket.votes,
        "with_others": rounded(bucket.agreement_with_others.share),
        "with_self": rounded(bucket.self_consistency.share),
        "alpha": rounded(bucket.alpha),
        "left": rounded(bucket.left_preference.share),
        "ties": rounded(bucket.ties.share),
        "seconds": rounded(bucket.median_seconds),
    }


def annotator_row(annotator: AnnotatorQuality) -> AnnotatorRow:
    return {
        "name": annotator.annotator,
        "votes": annotator.votes,
        "with_others": share_row(annotator.agreement_with_others),
        "with_self": share_row(annotator.self_consistency),
        "left": share_row(annotator.left_preference),
        "ties": share_row(annotator.ties),
        "seconds": rounded(annotator.median_seconds),
        "alpha_without": rounded(annotator.alpha_without),
        "time_buckets": [time_bucket_row(bucket) for bucket in annotator.time_buckets],
    }
