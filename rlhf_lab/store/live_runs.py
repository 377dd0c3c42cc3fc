"""Heads and pairs of live runs: runs whose reward model learns while people label.

A head that a step has used is never changed, so a resumed run scores with the same heads again. A pair names the step of the
policy that wrote one of its texts, and who wrote the other one; nobody learns this before they have voted.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, delete, func, insert, select

from rlhf_lab.common.enums import ACTIVE_RUN_STATUSES, Choice, EventKind, Opponent
from rlhf_lab.errors import StoreError
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database
from rlhf_lab.store.votes import NOT_A_REPEAT, NOT_AN_ADJUDICATION, has_live_vote


@dataclass(frozen=True)
class LiveHead:
    """weights: (F,) float32, of unscaled features. labels, decided: the number of labels that it learned from, and of those that
    prefer a text. labels_digest: of its votes. kl_budget: nats per response that it allows the policy."""

    run_id: int
    version: int
    labels: int
    decided: int
    labels_digest: str
    kl_budget: float
    weights: NDArray[np.float32]


@dataclass(frozen=True)
class LivePair:
    """policy_side: the text of the policy after `step` steps. opponent: who wrote the other one. Both are None if both texts are
    the policy's, of this step and of the next one. opponent_step: of a checkpoint, else None."""

    pair_id: int
    run_id: int
    step: int
    opponent: Opponent | None
    opponent_step: int | None
    policy_side: Choice | None


@dataclass(frozen=True)
class LiveAnswer:
    """The answer to a pair of the policy after `step` steps and an opponent. won: whether the policy's text was preferred; None
    for neither."""

    pair_id: int
    step: int
    opponent: Opponent
    opponent_step: int | None
    won: bool | None


def add_head(db: Database, head: LiveHead) -> None:
    """Store a new version, before the event of the step that uses it first. Replaces one that was not used because the
    engine ended in between."""
    h = t.live_heads.c
    values = {
        "run_id": head.run_id, "version": head.version, "labels": head.labels, "decided": head.decided,
        "labels_digest": head.labels_digest, "kl_budget": head.kl_budget, "weights": head.weights.astype("<f4").tobytes(),
        "created_at": time.time(),
    }  # fmt: skip
    with db.write() as conn:
        conn.execute(delete(t.live_heads).where(h.run_id == head.run_id, h.version == head.version))
        conn.execute(insert(t.live_heads).values(values))


def get_head(db: Database, run_id: int, version: int) -> LiveHead:
    h = t.live_heads.c
    query = select(h.labels, h.decided, h.labels_digest, h.kl_budget, h.weights).where(
        h.run_id == run_id, h.version == version
    )
    row = db.fetch(query).one_or_none()
    if row is None:
        raise StoreError(f"Run {run_id} has no reward model of version {version}. Start a new run.")
    return LiveHead(run_id, version, *row[:4], np.frombuffer(row.weights, "<f4"))


def newest_version(db: Database, run_id: int) -> int:
    """The newest version that the run has used; 0 without any."""
    e = t.run_events.c
    payloads = db.fetch(select(e.payload).where(e.run_id == run_id, e.kind == EventKind.HEAD)).scalars()
    return max((int(payload["version"]) for payload in payloads), default=0)


def add_live_pairs(db: Database, pairs: Sequence[LivePair]) -> None:
    if pairs:
        with db.write() as conn:
            conn.execute(insert(t.live_pairs), [dict(vars(pair)) for pair in pairs])


def has_pairs_of_step(db: Database, run_id: int, step: int) -> bool:
    p = t.live_pairs.c
    return db.fetch(select(p.pair_id).where(p.run_id == run_id, p.step == step).limit(1)).first() is not None


def count_live_pairs(db: Database, run_id: int) -> int:
    query = select(func.count()).select_from(t.live_pairs).where(t.live_pairs.c.run_id == run_id)
    return int(db.fetch(query).scalar_one())


def unanswered_pairs(db: Database, run_id: int, since_step: int = 0) -> list[int]:
    """Ids of the run's pairs of this step and later ones on which nobody has voted, newest first."""
    p = t.live_pairs.c
    query = select(p.pair_id).join(t.pairs, t.pairs.c.id == p.pair_id)
    unanswered = query.where(p.run_id == run_id, p.step >= since_step, ~has_live_vote())
    return list(db.fetch(unanswered.order_by(p.pair_id.desc())).scalars())


def pairs_of_active_runs(conn: Connection, project_id: int) -> list[int]:
    """Ids of the live pairs of the project's unfinished runs, newest first: people get these before others."""
    p, r = t.live_pairs.c, t.runs.c
    query = select(p.pair_id).join(t.runs, r.id == p.run_id)
    active = query.where(r.project_id == project_id, r.status.in_(ACTIVE_RUN_STATUSES))
    return list(conn.execute(active.order_by(p.pair_id.desc())).scalars())


def live_pairs_by_id(db: Database, pair_ids: Collection[int]) -> dict[int, LivePair]:
    """Which of these pairs are pairs of a live run."""
    rows = db.fetch(select(t.live_pairs).where(t.live_pairs.c.pair_id.in_(pair_ids)))
    return {row.pair_id: LivePair(**row._mapping) for row in rows}


def answers_version(db: Database, run_id: int) -> tuple[int, int, float]:
    """Changes with every answer to a pair of the run, and when one is undone."""
    p, v = t.live_pairs.c, t.votes.c
    query = select(func.count(), func.coalesce(func.max(v.id), 0), func.coalesce(func.max(v.undone_at), 0.0))
    row = db.fetch(query.select_from(t.live_pairs).join(t.votes, v.pair_id == p.pair_id).where(p.run_id == run_id))
    return tuple(row.one())


def live_answers(db: Database, run_id: int) -> list[LiveAnswer]:
    """The first answer to each pair of the run's policy against the base model or a checkpoint, in the order of the votes.

    An answer counts once it is given, also if it is undone or changed later: the page has shown by then whose text it was, so
    taking back the defeats, or the wins, would decide the test. Counting all of them keeps its probability of a false stop.
    """
    p, v = t.live_pairs.c, t.votes.c
    query = (
        select(p.pair_id, p.step, p.opponent, p.opponent_step, p.policy_side, v.choice)
        .join(t.votes, v.pair_id == p.pair_id)
        .where(p.run_id == run_id, p.opponent.is_not(None), NOT_A_REPEAT, NOT_AN_ADJUDICATION)
        .where(v.choice != Choice.SKIP)
        .order_by(v.id)
    )
    rows = db.fetch(query).all()
    first_votes = {row.pair_id: row for row in reversed(rows)}
    return [
        LiveAnswer(
            row.pair_id, row.step, row.opponent, row.opponent_step,
            row.choice is row.policy_side if row.choice in (Choice.FIRST, Choice.SECOND) else None,
        )
        for row in rows
        if first_votes[row.pair_id] is row
    ]  # fmt: skip
