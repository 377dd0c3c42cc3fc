"""From a click to a label: the vote on a pair, and the labels a reward model learns from.

Human and simulated votes never mix: whoever asks for labels names the source.
"""

import time
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, func, select, update

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import Pair, Vote
from rlhf_lab.errors import LabelError, StaleVoteError
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import AnyRow, Database, insert_row
from rlhf_lab.store.projects import load_pairs


def next_unvoted_pair(db: Database, project_id: int, annotator: str, source: Source = Source.HUMAN) -> Pair | None:
    """A pair this annotator has no live vote on: the one with the fewest votes, then the oldest; None if there is none.

    Only votes of `source` count: what a judge labelled does not decide what a person sees first. Nothing is kept for the
    annotator: people get theirs through `leases`.
    """
    is_live_vote = and_(t.votes.c.pair_id == t.pairs.c.id, t.votes.c.undone_at.is_(None), t.votes.c.source == source)
    vote_count = select(func.count()).select_from(t.votes).where(is_live_vote).correlate(t.pairs).scalar_subquery()
    query = select(t.pairs.c.id).where(_unvoted_by(project_id, annotator)).order_by(vote_count, t.pairs.c.id).limit(1)
    with db.read() as conn:
        pair_id = conn.execute(query).scalar()
        return None if pair_id is None else load_pairs(conn, [pair_id])[0]


def count_unvoted_pairs(db: Database, project_id: int, annotator: str) -> int:
    """How many pairs this annotator could still label."""
    with db.read() as conn:
        query = select(func.count()).select_from(t.pairs).where(_unvoted_by(project_id, annotator))
        return conn.execute(query).scalar_one()


def _unvoted_by(project_id: int, annotator: str) -> ColumnElement[bool]:
    own_live_vote = and_(
        t.votes.c.pair_id == t.pairs.c.id, t.votes.c.annotator == annotator, t.votes.c.undone_at.is_(None)
    )
    in_project = and_(t.pairs.c.project_id == project_id, t.pairs.c.taken_back_at.is_(None))
    return and_(in_project, ~select(t.votes.c.id).where(own_live_vote).correlate(t.pairs).exists())


def cast_vote(db: Database, vote: Vote) -> Vote:
    """Store one answer. The same uuid again returns the first row and changes nothing, even if it was undone since.

    StaleVoteError: no such pair, or this annotator has a live vote on it. LabelError: no uuid or no annotator.
    """
    check_vote(vote)
    with db.write() as conn:
        existing = vote_by_uuid(conn, vote.uuid)
        if existing is not None:
            return existing
        pair_query = select(t.pairs.c.id).where(t.pairs.c.id == vote.pair_id, t.pairs.c.taken_back_at.is_(None))
        if conn.execute(pair_query).scalar() is None:
            raise StaleVoteError(f"Pair {vote.pair_id} does not exist (any more). Reload the page for the next pair.")
        if live_vote(conn, vote.pair_id, vote.annotator, vote.repeat) is not None:
            raise StaleVoteError(
                f"{vote.annotator} has already voted on pair {vote.pair_id}. Undo that vote to change it, or go on."
            )
        return insert_vote(conn, vote)


def check_vote(vote: Vote) -> None:
    """Raises LabelError for a vote that nobody cast, or that nothing could be compared with when it comes again."""
    if not vote.uuid or not vote.annotator:
        raise LabelError("A vote needs the client's uuid and the annotator's name; reload the page and try again.")


def vote_by_uuid(conn: Connection, uuid: str) -> Vote | None:
    row = conn.execute(select(t.votes).where(t.votes.c.uuid == uuid)).one_or_none()
    return None if row is None else vote_from_row(row)


def live_vote(conn: Connection, pair_id: int, annotator: str, repeat: bool = False) -> Vote | None:
    """This annotator's live vote on a pair: the first one, or the one on its hidden repeat."""
    v = t.votes.c
    condition = and_(v.pair_id == pair_id, v.annotator == annotator, v.undone_at.is_(None), v.repeat.is_(repeat))
    row = conn.execute(select(t.votes).where(condition)).one_or_none()
    return None if row is None else vote_from_row(row)


def insert_vote(conn: Connection, vote: Vote) -> Vote:
    """Store a vote inside the caller's transaction, which has looked that nothing speaks against it."""
    values = {
        "uuid": vote.uuid,
        "pair_id": vote.pair_id,
        "annotator": vote.annotator,
        "source": vote.source,
        "choice": vote.choice,
        "first_on_left": vote.first_on_left,
        "response_ms": vote.response_ms,
        "created_at": vote.created_at or time.time(),
        "strength": vote.strength,
        "note": vote.note,
        "repeat": vote.repeat,
        "via": vote.via,
    }
    vote_id = insert_row(conn, t.votes, values)
    return vote_from_row(conn.execute(select(t.votes).where(t.votes.c.id == vote_id)).one())


def undo_vote(db: Database, project_id: int, annotator: str, source: Source = Source.HUMAN) -> Vote | None:
    """Take back this annotator's last live vote and return it; None if there is none. The row stays, marked."""
    with db.write() as conn:
        return mark_last_vote_undone(conn, project_id, annotator, source)


def mark_last_vote_undone(
    conn: Connection, project_id: int, annotator: str, source: Source = Source.HUMAN
) -> Vote | None:
    """`undo_vote` inside the caller's transaction."""
    query = (
        live_votes_query(project_id, source, repeats=True)
        .where(t.votes.c.annotator == annotator)
        .with_only_columns(t.votes.c.id)
        .order_by(None)
        .order_by(t.votes.c.id.desc())
        .limit(1)
    )
    vote_id = conn.execute(query).scalar()
    if vote_id is None:
        return None
    conn.execute(update(t.votes).where(t.votes.c.id == vote_id).values(undone_at=time.time()))
    return vote_from_row(conn.execute(select(t.votes).where(t.votes.c.id == vote_id)).one())


def find_vote(db: Database, uuid: str) -> Vote | None:
    """The vote of a click that has arrived before."""
    with db.read() as conn:
        return vote_by_uuid(conn, uuid)


def vote_history(db: Database, project_id: int, annotator: str, limit: int = 30) -> list[tuple[Vote, Pair]]:
    """This person's newest live votes with their pairs, newest first. Hidden repeats stay hidden."""
    v = t.votes.c
    query = (
        select(t.votes)
        .join(t.pairs, t.pairs.c.id == v.pair_id)
        .where(
            t.pairs.c.project_id == project_id, v.annotator == annotator, v.source == Source.HUMAN,
            v.undone_at.is_(None), v.repeat.is_(False),
        )
        .order_by(v.id.desc())
        .limit(limit)
    )  # fmt: skip
    with db.read() as conn:
        votes = [vote_from_row(row) for row in conn.execute(query)]
        pairs = {pair.id: pair for pair in load_pairs(conn, [vote.pair_id for vote in votes])}
    return [(vote, pairs[vote.pair_id]) for vote in votes]


def vote_counts(db: Database, project_id: int) -> dict[Source, dict[Choice, int]]:
    """Live votes by source and choice; every source and choice is a key. Hidden repeats are no labels."""
    counts = {source: dict.fromkeys(Choice, 0) for source in Source}
    query = (
        select(t.votes.c.source, t.votes.c.choice, func.count())
        .join(t.pairs, t.pairs.c.id == t.votes.c.pair_id)
        .where(t.pairs.c.project_id == project_id, t.votes.c.undone_at.is_(None), t.votes.c.repeat.is_(False))
        .group_by(t.votes.c.source, t.votes.c.choice)
    )
    with db.read() as conn:
        for source, choice, n in conn.execute(query):
            counts[source][choice] = n
    return counts


def voters(db: Database, project_id: int, source: Source) -> list[str]:
    """Who cast the live votes of a source, by name."""
    query = live_votes_query(project_id, source).with_only_columns(t.votes.c.annotator).order_by(None).distinct()
    with db.read() as conn:
        return sorted(conn.execute(query).scalars())


def live_votes_query(project_id: int, source: Source, *, repeats: bool = False) -> Select[*tuple[Any, ...]]:
    query = (
        select(t.votes)
        .join(t.pairs, t.pairs.c.id == t.votes.c.pair_id)
        .where(t.pairs.c.project_id == project_id, t.votes.c.source == source, t.votes.c.undone_at.is_(None))
        .order_by(t.votes.c.id)
    )
    return query if repeats else query.where(t.votes.c.repeat.is_(False))


def vote_from_row(row: AnyRow) -> Vote:
    return Vote(**row._mapping)
