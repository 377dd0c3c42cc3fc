"""The reward models of a project for lists: without the ids of their labels, which are megabytes in a large lab, and without the
long parts of their reports.

Each row is read only once. Rows never change, except that erasing a person replaces a name; this begins a new epoch of the vote
table.
"""

import math
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select

from rlhf_lab.common.curves import downsample_values
from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.errors import StoreError
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import AnyRow, Database
from rlhf_lab.store.vote_table import VoteTable, code, current_votes

#: Keys of a report whose values have one number per label.
LONG_REPORT_KEYS = ("chosen_scores", "rejected_scores", "loss")
MAX_DISAGREEMENTS = 20
MAX_EXAMPLES = 4
MAX_LOSS_POINTS = 300


@dataclass(frozen=True, eq=False)
class ListedRewardModel:
    """report: without LONG_REPORT_KEYS. trained_count: of the labels it was trained on. label_count, newest_vote_id: of these and
    the votes on gold pairs among them, which everybody may know; 0 for none.

    annotators: sorted names of those who cast them. disagreements: the votes with which the model disagrees most, as (vote id,
    probability), the worst first. examples: the last decided votes, newest first. trained_pairs: positions in the vote table.
    chosen_scores, rejected_scores: histograms as (score, number of texts). loss: of its training, downsampled.
    """

    id: int
    created_at: float
    source: Source
    config: dict[str, Any]
    report: dict[str, Any]
    trained_count: int
    label_count: int
    newest_vote_id: int
    annotators: tuple[str, ...]
    disagreements: tuple[tuple[int, float], ...]
    examples: tuple[int, ...]
    chosen_scores: list[tuple[float, int]]
    rejected_scores: list[tuple[float, int]]
    loss: list[float]
    trained_pairs: NDArray[np.int64]


_LOCK = threading.Lock()
_LISTED: "WeakKeyDictionary[Database, dict[int, tuple[int, dict[int, ListedRewardModel]]]]" = WeakKeyDictionary()


def list_reward_models(db: Database, project_id: int) -> list[ListedRewardModel]:
    """The reward models of a project, newest first."""
    m = t.reward_models.c
    ids = db.fetch(select(m.id).where(m.project_id == project_id).order_by(m.id.desc())).scalars().all()
    votes = current_votes(db, project_id)  # read after the ids, so that it has all votes these models were trained on
    with _LOCK:
        epoch, known = _LISTED.setdefault(db, {}).get(project_id, (votes.epoch, {}))
        listed = {i: known[i] for i in ids if i in known and epoch == votes.epoch}
        columns = (m.id, m.created_at, m.source, m.config, m.report, m.vote_ids)
        for model_id in ids:
            if model_id not in listed:
                row = db.fetch(select(*columns).where(m.id == model_id)).one_or_none()
                if row is not None:  # None if it was deleted in between
                    listed[model_id] = _listed(row, votes)
        _LISTED[db][project_id] = votes.epoch, listed
        return [listed[i] for i in ids if i in listed]


def newest_listed(db: Database, project_id: int, source: Source | None = None) -> ListedRewardModel | None:
    """The newest reward model, or None. source: of its labels; None means any."""
    models = list_reward_models(db, project_id)
    return next((model for model in models if source in (None, model.source)), None)


def listed_model(db: Database, project_id: int, model_id: int) -> ListedRewardModel:
    """The reward model of this id. Raises StoreError if the project has no such reward model."""
    for model in list_reward_models(db, project_id):
        if model.id == model_id:
            return model
    raise StoreError(f"There is no reward model {model_id}. Train one first.")


def _listed(row: AnyRow, votes: VoteTable) -> ListedRewardModel:
    vote_ids = np.array(row.vote_ids, np.int64)
    stored = np.searchsorted(votes.vote_id, vote_ids[np.isin(vote_ids, votes.vote_id)])
    decided = stored[np.isin(votes.choice[stored], [code(Choice.FIRST), code(Choice.SECOND)])]
    return ListedRewardModel(
        id=row.id,
        created_at=row.created_at,
        source=row.source,
        config=row.config,
        report={key: value for key, value in row.report.items() if key not in LONG_REPORT_KEYS},
        trained_count=len(vote_ids),
        label_count=label_count_of(row.report, len(vote_ids)),
        newest_vote_id=max(int(row.report.get("newest_label", 0)), int(vote_ids.max()) if len(vote_ids) else 0),
        annotators=tuple(sorted(votes.names[i] for i in np.unique(votes.annotator[stored]))),
        disagreements=tuple(
            (int(vote_ids[int(item["index"])]), float(item["probability"]))
            for item in (row.report.get("disagreements") or [])[:MAX_DISAGREEMENTS]
            if int(item["index"]) < len(vote_ids)
        ),
        examples=tuple(votes.vote_id[decided[::-1][:MAX_EXAMPLES]].tolist()),
        chosen_scores=_counted(row.report.get("chosen_scores", [])),
        rejected_scores=_counted(row.report.get("rejected_scores", [])),
        loss=downsample_values(row.report.get("loss", []), MAX_LOSS_POINTS),
        trained_pairs=np.unique(votes.pair[stored]),
    )


class ReportedAccuracy(NamedTuple):
    """The accuracy of a reward model on held-out labels, and its 95 % interval. None: not measured, or not by the version of the
    lab that trained the model."""

    value: float | None
    low: float | None
    high: float | None


def accuracy_of(report: Mapping[str, Any]) -> ReportedAccuracy:
    """What a stored report says."""
    values = (report.get(name) for name in ("accuracy", "accuracy_low", "accuracy_high"))
    return ReportedAccuracy(*(None if value is None or not math.isfinite(value) else float(value) for value in values))


def label_count_of(report: Mapping[str, Any], trained_count: int) -> int:
    """The number of labels of a reward model or a run, as everybody may know it. report: also a run's manifest."""
    return int(report.get("labels_cast", trained_count))


def _counted(scores: Iterable[float]) -> list[tuple[float, int]]:
    """The distinct scores, rounded to two decimals, in ascending order, and how often each occurs."""
    return sorted(Counter(round(score, 2) for score in scores).items())
