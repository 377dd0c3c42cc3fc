"""Part "Quality of the labels": agreement and consistency of annotators, training on a selection of them, doubtful labels."""

from typing import Any, TypedDict

import gradio as gr
from pydantic import StrictFloat, StrictInt

from rlhf_lab.common.chat_format import turns_of_prompt
from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, JobKind, Source
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
from rlhf_lab.quality.queries import columns_of, doubted_labels, request_new_vote, vote_columns
from rlhf_lab.store.reward_model_list import ListedRewardModel, list_reward_models, newest_listed
from rlhf_lab.store.vote_table import current_votes
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.shared.api import Payload, parse_payload, unusable
from rlhf_lab.ui.shared.crowd import sees_comparisons
from rlhf_lab.ui.shared.events import if_changed, operator_action
from rlhf_lab.ui.shared.widgets import SILENT_MULTIPLE_EVENT, widget

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


class QualityAction(Payload):
    """action: "train" a reward model on the labels of some annotators; "again": show the pair of vote_id to its annotator again.

    weights: 0 to MAX_WEIGHT by annotator, 0 leaves them out; 1 for those not named.
    """

    action: str = ""
    source: Source | None = None
    weights: dict[str, StrictInt | StrictFloat] | None = None
    vote_id: int | None = None


class ShareRow(TypedDict):
    """A share with its 95 % interval, and the number of cases; share: None without cases."""

    share: float | None
    low: float
    high: float
    count: int


def build(ctx: Context, operator: gr.BrowserState) -> None:
    controller = QualityController(ctx)

    @operator_action(ctx, QualityAction)
    def action(payload: QualityAction) -> dict[str, Any]:
        return {"message": controller.handle_action(payload)}

    component = widget(
        "quality",
        "runs/quality/view.js",
        events=("action",),
        server_functions={"get_state": controller.get_state},
        data={"heaviest": MAX_WEIGHT},
        label="Quality of the labels",
    )
    component.action(action, operator, component, **SILENT_MULTIPLE_EVENT)


class QualityController:
    """The state and the actions of this part, for all pages of a server."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx

    def get_state(self, query: dict[str, Any]) -> dict[str, Any]:
        """The reply to a QualityQuery; {"unchanged": True} if the page already shows it; {"closed_text"} for visitors who may not
        see comparisons of votes."""
        if not sees_comparisons(self.ctx):
            return {"closed_text": CLOSED_TEXT}
        source = parse_payload(QualityQuery, query).source or self._default_source()
        reply = self._agreement_stats(source) | {
            "source": source.value,
            "reward_models": self._models(),
            "doubtful_labels": self._doubtful_labels(source),
            "training": self._is_training(),
            "project": self.ctx.project.id,
        }
        return if_changed(reply, query)

    def _default_source(self) -> Source:
        """People's votes, unless there are only simulated ones."""
        human, simulated = (len(vote_columns(self.ctx.db, self.ctx.project.id, source)) for source in Source)
        return Source.SIMULATED if simulated and not human else Source.HUMAN

    def _is_training(self) -> bool:
        return bool(
            queue.jobs(
                self.ctx.db,
                project_id=self.ctx.project.id,
                kinds=[JobKind.TRAIN_REWARD],
                statuses=UNFINISHED_JOB_STATUSES,
            )
        )

    def _agreement_stats(self, source: Source) -> dict[str, Any]:
        """Computed once for each state of the votes."""
        table = current_votes(self.ctx.db, self.ctx.project.id)
        return table.cached(("quality", source), lambda: agreement_stats(columns_of(table, source)))

    def _models(self) -> list[dict[str, Any]]:
        return [self._model(row) for row in list_reward_models(self.ctx.db, self.ctx.project.id)[:MAX_MODELS]]

    @staticmethod
    def _model(row: ListedRewardModel) -> dict[str, Any]:
        weights = row.report.get("weights") or {}
        names = row.annotators
        return {
            "id": row.id, "labels": row.trained_count, "source": row.source.value,
            "people": [[name, weights.get(name, 1)] for name in names[:MAX_MODEL_PEOPLE]], "annotator_count": len(names),
            "has_selection": bool(row.report.get("annotators")), "accuracy": row.report.get("accuracy"),
            "low": row.report.get("accuracy_low"), "high": row.report.get("accuracy_high"),
        }  # fmt: skip

    def _doubtful_labels(self, source: Source) -> dict[str, Any] | None:
        """The labels of a source that its newest reward model finds least likely; None without a reward model."""
        row = newest_listed(self.ctx.db, self.ctx.project.id, source)
        if row is None:
            return None
        labels = doubted_labels(self.ctx.db, row)
        return {"reward_model_id": row.id, "labels": [
            {
                "vote_id": label.vote.id, "annotator": label.vote.annotator, "choice": label.vote.choice.value,
                "probability": round(label.probability, 3), "turns": turns_of_prompt(label.pair.prompt.text),
                "first": label.pair.first.text, "second": label.pair.second.text,
                "is_set_aside": label.current_choice is None,
            }
            for label in labels
        ]}  # fmt: skip

    def handle_action(self, payload: QualityAction) -> str:
        """Perform an action; returns a message for the operator. Raises LabError."""
        match payload.action:
            case "train":
                return self.train(payload)
            case "again":
                if payload.vote_id is None:
                    raise unusable("vote")
                request_new_vote(self.ctx.db, self.ctx.project.id, payload.vote_id)
                return "The vote was set aside. Its annotator will see the pair again."
        raise ConfigError(f'The lab cannot "{payload.action}" here. Reload the page and try again.')

    def train(self, payload: QualityAction) -> str:
        """Start the training of a reward model on the labels of annotators with a weight above 0."""
        ctx, source, weights = self.ctx, payload.source, payload.weights
        if source is None or weights is None:
            raise ConfigError("The request names no labels. Reload the page and try again.")
        if not all(isinstance(weight, int) and 0 <= weight <= MAX_WEIGHT for weight in weights.values()):
            raise ConfigError(f"A weight is a whole number from 0 (left out) to {MAX_WEIGHT}.")
        label_counts = vote_columns(ctx.db, ctx.project.id, source).label_counts()
        included = [name for name in label_counts if weights.get(name, 1) > 0]
        if not included:
            raise ConfigError("All annotators are left out. Choose at least one.")
        if self._is_training():
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


def agreement_stats(votes: VoteColumns) -> dict[str, Any]:
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


def time_bucket_row(bucket: TimeBucket) -> dict[str, Any]:
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


def annotator_row(annotator: AnnotatorQuality) -> dict[str, Any]:
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
