"""Part "Quality of the labels": agreement, consistency and habits of annotators; whom to learn from; labels to look at again."""

import json
import zlib
from typing import Any

import gradio as gr

from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, JobKind, Source
from rlhf_lab.common.records import RewardModelRow
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.quality import (
    Agreement,
    AnnotatorQuality,
    TimeBucket,
    annotator_qualities,
    doubted_labels,
    krippendorff_alpha,
    pairwise_agreement,
    quality_over_time,
    request_new_vote,
    vote_records,
)
from rlhf_lab.store.label_snapshots import snapshot_annotators
from rlhf_lab.store.reward_models import get_reward_model, reward_models
from rlhf_lab.ui.components.widgets import SILENT_MULTIPLE_EVENT, widget
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.events import operator_action, show_errors
from rlhf_lab.ui.screens.train import parse_int

MAX_PEOPLE = 200
MAX_MODELS = 12
MAX_WEIGHT = 10
TIME_BUCKETS = 8


def build(ctx: Context, operator: gr.BrowserState) -> None:
    controller = QualityController(ctx)

    def look(query: dict[str, Any]) -> dict[str, Any]:
        return controller.get_state(query)

    data = {"heaviest": MAX_WEIGHT}
    component = widget("quality", server_functions={"look": look}, data=data, label="Quality of the labels")

    def act(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        return operator_action(ctx, secret, event, controller.handle_action)

    component.act(show_errors(act), operator, component, **SILENT_MULTIPLE_EVENT)


class QualityController:
    """What the part shows and does, for all pages of a server."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._cached_stats: tuple[Any, dict[str, Any]] | None = None

    def get_state(self, query: dict[str, Any]) -> dict[str, Any]:
        """Everything shown, for {"source", "seen"}; {"same": True} to a page that has it."""
        source = Source(query["source"]) if query.get("source") in tuple(Source) else self._default_source()
        reply = self._agreement_stats(source) | {
            "source": source.value,
            "models": self._models(),
            "doubts": self._doubts(source),
        }
        training = queue.jobs(
            self.ctx.db, project_id=self.ctx.project.id, kinds=[JobKind.TRAIN_REWARD], statuses=UNFINISHED_JOB_STATUSES
        )
        reply |= {"training": bool(training), "project": self.ctx.project.id}
        revision = f"{zlib.crc32(json.dumps(reply, sort_keys=True).encode()):x}"
        return {"same": True} if query.get("seen") == revision else reply | {"seen": revision}

    def _default_source(self) -> Source:
        """People's votes, unless there are only simulated ones."""
        human, simulated = (vote_records(self.ctx.db, self.ctx.project.id, source) for source in Source)
        return Source.SIMULATED if simulated and not human else Source.HUMAN

    def _agreement_stats(self, source: Source) -> dict[str, Any]:
        votes = vote_records(self.ctx.db, self.ctx.project.id, source)
        key = (self.ctx.project.id, source, hash(tuple(votes)))
        if self._cached_stats is None or self._cached_stats[0] != key:
            annotators = annotator_qualities(votes)
            self._cached_stats = (
                key,
                {
                    "votes": len(votes),
                    "alpha": rounded(krippendorff_alpha(votes)),
                    "agreement": share_with_interval(pairwise_agreement(votes)),
                    "people": [annotator_row(person) for person in annotators[:MAX_PEOPLE]],
                    "more": max(0, len(annotators) - MAX_PEOPLE),
                    "time": [time_bucket_row(bucket) for bucket in quality_over_time(votes, TIME_BUCKETS)]
                    if votes
                    else [],
                },
            )
        return self._cached_stats[1]

    def _models(self) -> list[dict[str, Any]]:
        return [self._model(row) for row in reward_models(self.ctx.db, self.ctx.project.id)[:MAX_MODELS]]

    def _model(self, row: RewardModelRow) -> dict[str, Any]:
        weights = row.report.get("weights") or {}
        names = snapshot_annotators(self.ctx.db, row.snapshot)
        return {
            "id": row.id, "labels": len(row.snapshot.vote_ids), "source": row.snapshot.source.value,
            "people": [[name, weights.get(name, 1)] for name in names[:12]], "all": len(names),
            "chosen": bool(row.report.get("annotators")), "accuracy": row.report.get("accuracy"),
            "low": row.report.get("accuracy_low"), "high": row.report.get("accuracy_high"),
        }  # fmt: skip

    def _doubts(self, source: Source) -> dict[str, Any] | None:
        """The labels that the newest reward model on this source's labels finds least likely; None without one."""
        rows = reward_models(self.ctx.db, self.ctx.project.id)
        row = next((row for row in rows if row.snapshot.source is source), None)
        if row is None:
            return None
        doubtful_labels = doubted_labels(self.ctx.db, get_reward_model(self.ctx.db, row.id))
        return {"model": row.id, "labels": [
            {
                "vote": doubt.vote.id, "annotator": doubt.vote.annotator, "choice": doubt.vote.choice.value,
                "probability": round(doubt.probability, 3), "prompt": doubt.pair.prompt.text, "first": doubt.pair.first.text,
                "second": doubt.pair.second.text, "open": doubt.current_choice is None,
            }
            for doubt in doubtful_labels
        ]}  # fmt: skip

    def handle_action(self, payload: dict[str, Any]) -> dict[str, Any]:
        """One act of the operator: {"do": "train" | "again", …}. Raises LabError."""
        if payload.get("do") == "train":
            return {"done": self.train(payload)}
        if payload.get("do") == "again":
            request_new_vote(self.ctx.db, self.ctx.project.id, parse_int(payload, "vote"))
            return {"done": "The vote is set aside; who cast it is asked about that pair again."}
        raise ConfigError(f'The lab cannot "{payload.get("do")}" here. Reload the page and try again.')

    def train(self, payload: dict[str, Any]) -> str:
        """A reward model from some people's labels: {"source", "weights": {annotator: 0 … 10}}, 0 leaves them out."""
        ctx, weights = self.ctx, payload.get("weights")
        if payload.get("source") not in tuple(Source) or not isinstance(weights, dict):
            raise ConfigError("The page asked for nobody's labels. Reload it and try again.")
        if any(type(weight) is not int or not 0 <= weight <= MAX_WEIGHT for weight in weights.values()):
            raise ConfigError(f"A weight is a whole number from 0 (left out) to {MAX_WEIGHT}.")
        source = Source(payload["source"])
        label_counts: dict[str, int] = {}
        for vote in vote_records(ctx.db, ctx.project.id, source):
            label_counts[vote.annotator] = label_counts.get(vote.annotator, 0) + (not vote.repeat)
        included = [name for name in label_counts if weights.get(name, 1) > 0]
        if not included:
            raise ConfigError("Everybody is left out. Choose at least one annotator to learn from.")
        if queue.jobs(
            ctx.db, project_id=ctx.project.id, kinds=[JobKind.TRAIN_REWARD], statuses=UNFINISHED_JOB_STATUSES
        ):
            raise ConfigError("A reward model is being trained already; wait for it.")
        job_payload: dict[str, Any] = {
            "source": source.value, "config": {}, "labels": sum(label_counts[name] for name in included),
            "weights": {name: weights[name] for name in included if weights.get(name, 1) != 1},
        }  # fmt: skip
        if len(included) < len(label_counts):
            job_payload["annotators"] = included
        queue.submit(ctx.db, JobKind.TRAIN_REWARD, ctx.project.id, job_payload)
        engine_process.ensure_engine(ctx.db, ctx.home)
        return f"A reward model from {len(included)} of {len(label_counts)} annotators is asked for; compare it below when it is there."


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def share_with_interval(agreement: Agreement) -> list[float | int | None]:
    """[share, low, high, of how many]"""
    low, high = agreement.interval
    return [rounded(agreement.share), round(low, 4), round(high, 4), agreement.compared]


def time_bucket_row(bucket: TimeBucket) -> dict[str, Any]:
    return {
        "start": bucket.start,
        "end": bucket.end,
        "votes": bucket.votes,
        "others": rounded(bucket.agreement_with_others.share),
        "self": rounded(bucket.self_consistency.share),
        "alpha": rounded(bucket.alpha),
        "left": rounded(bucket.left_preference.share),
        "ties": rounded(bucket.ties.share),
        "seconds": rounded(bucket.median_seconds),
    }


def annotator_row(person: AnnotatorQuality) -> dict[str, Any]:
    return {
        "name": person.annotator,
        "votes": person.votes,
        "others": share_with_interval(person.agreement_with_others),
        "self": share_with_interval(person.self_consistency),
        "left": share_with_interval(person.left_preference),
        "ties": share_with_interval(person.ties),
        "seconds": rounded(person.median_seconds),
        "without": rounded(person.alpha_without),
        "time": [time_bucket_row(bucket) for bucket in person.time_buckets],
    }
