"""The reward models of a project for lists: without their labels, whose ids are megabytes of a large lab, and long reports.

What is left of a row is read once. It never changes, except that erasing a person replaces a name, which begins a new epoch of
the votes' table.
"""

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
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

#: Of a report: a number for each label.
LONG_REPORT_KEYS = ("chosen_scores", "rejected_scores", "loss")
MAX_DISAGREEMENTS = 20
MAX_EXAMPLES = 4
MAX_LOSS_POINTS = 300


@dataclass(frozen=True, eq=False)
class ListedRewardModel:
    """report: without LONG_REPORT_KEYS. label_count, newest_vote_id: of the labels it was trained on; 0 for none.

    annotators: who cast them, by name. disagreements: votes that it most disagrees with, as (vote id, probability), the worst
    first. examples: its last decided votes, newest first. trained_pairs: positions in the table of votes. chosen_scores,
    rejected_scores: of texts, as (score, number of texts). loss: of its training, thinned out.
    """

    id: int
    created_at: float
    source: Source
    config: dict[str, Any]
    report: dict[str, Any]
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
    """Newest first."""
    m = t.reward_models.c
    with db.read() as conn:
        ids = conn.execute(select(m.id).where(m.project_id == project_id).order_by(m.id.desc())).scalars().all()
    votes = current_votes(db, project_id)  # after the ids: it has every vote that these models were trained on
    with _LOCK:
        epoch, known = _LISTED.setdefault(db, {}).get(project_id, (votes.epoch, {}))
        listed = {i: known[i] for i in ids if i in known and epoch == votes.epoch}
        columns = (m.id, m.created_at, m.source, m.config, m.report, m.vote_ids)
        for model_id in ids:
            if model_id not in listed:
                with db.read() as conn:
                    row = conn.execute(select(*columns).where(m.id == model_id)).one_or_none()
                if row is not None:  # not deleted in between
                    listed[model_id] = _listed(row, votes)
        _LISTED[db][project_id] = votes.epoch, listed
        return [listed[i] for i in ids if i in listed]


def newest_listed(db: Database, project_id: int, source: Source | None = None) -> ListedRewardModel | None:
    """The newest one. source: of its labels; None: any."""
    models = list_reward_models(db, project_id)
    return next((model for model in models if source in (None, model.source)), None)


def listed_model(db: Database, project_id: int, model_id: int) -> ListedRewardModel:
    """StoreError: the project has no such reward model."""
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
        label_count=len(vote_ids),
        newest_vote_id=int(vote_ids.max()) if len(vote_ids) else 0,
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


def _counted(scores: Iterable[float]) -> list[tuple[float, int]]:
    """Scores with two decimals, ascending, and how often each occurs."""
    return sorted(Counter(round(score, 2) for score in scores).items())
