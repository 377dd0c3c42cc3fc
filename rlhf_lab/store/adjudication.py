"""Disputed pairs and the decisions of experts on them. A decision is a vote with `adjudication`; it is the label of the pair."""

from typing import Any

from sqlalchemy import Connection, Select, and_, case, delete, func, select

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import Pair
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import live_pair_of, load_pairs
from rlhf_lab.store.votes import LIVE_VOTE, NOT_A_REPEAT, NOT_AN_ADJUDICATION, is_decided

MAX_LISTED_PAIRS = 20


def disputed_pairs(db: Database, project_id: int, annotator: str) -> tuple[int, list[Pair]]:
    """The number of pairs that this expert can decide, and the first of them."""
    pair_ids = db.fetch(_disputed_pair_ids(project_id, annotator)).scalars().all()
    with db.read() as conn:
        return len(pair_ids), load_pairs(conn, pair_ids[:MAX_LISTED_PAIRS])


def next_disputed_pair(
    conn: Connection, project_id: int, annotator: str, queued_ids: list[int], now: float
) -> int | None:
    """The oldest disputed pair for this expert that is not in `queued_ids` and that no other expert has on screen."""
    lease = t.leases.c
    is_on_another_screen = and_(lease.adjudication.is_(True), lease.annotator != annotator, lease.expires_at > now)
    opened = select(lease.pair_id).where(lease.pair_id == t.votes.c.pair_id, is_on_another_screen).correlate(t.votes)
    query = _disputed_pair_ids(project_id, annotator)
    query = query.where(t.votes.c.pair_id.not_in(queued_ids), ~opened.exists())
    pair_id: int | None = conn.execute(query.limit(1)).scalar()
    return pair_id


def stop_adjudicating(db: Database, project_id: int, annotator: str) -> None:
    """Release the disputed pairs that are leased to a person."""
    in_project = t.leases.c.pair_id.in_(select(t.pairs.c.id).where(t.pairs.c.project_id == project_id))
    own_lease = and_(t.leases.c.annotator == annotator, t.leases.c.adjudication.is_(True), in_project)
    with db.write() as conn:
        conn.execute(delete(t.leases).where(own_lease))


def _disputed_pair_ids(project_id: int, annotator: str) -> Select[*tuple[Any, ...]]:
    """Pairs on which people's votes differ and that no expert has decided, except those that this expert has skipped.

    "Both bad" counts as a tie.
    """
    v = t.votes.c
    value = case((v.choice == Choice.BOTH_BAD, Choice.TIE.value), else_=v.choice)
    own = t.votes.alias("own").c
    skipped = select(own.id).where(
        own.pair_id == v.pair_id, own.adjudication.is_(True), own.undone_at.is_(None), own.annotator == annotator
    )
    return (
        select(v.pair_id)
        .join(t.pairs, t.pairs.c.id == v.pair_id)
        .where(live_pair_of(project_id), t.pairs.c.gold.is_(None), LIVE_VOTE, NOT_A_REPEAT, NOT_AN_ADJUDICATION)
        .where(v.source == Source.HUMAN, v.choice != Choice.SKIP)
        .where(~is_decided(t.votes), ~skipped.correlate(t.votes).exists())
        .group_by(v.pair_id)
        .having(func.min(value) != func.max(value))
        .order_by(v.pair_id)
    )
