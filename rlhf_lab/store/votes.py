"""Casts, undoes, lists and counts votes on pairs.

A vote is live until it is undone; its row is kept. A pair is live until its import is undone. Human and simulated votes are never
mixed: every query names the source.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, Connection, FromClause, Select, and_, func, or_, select, update

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import Pair, Vote
from rlhf_lab.errors import LabelError, StaleVoteError
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import AnyRow, Database, insert_row
from rlhf_lab.store.projects import load_pairs
from rlhf_lab.store.vote_table import CHOICES, SOURCES, VoteTable, code, current_votes

LIVE_VOTE = t.votes.c.undone_at.is_(None)
#: Not a hidden repeat: repeats measure consistency and are not labels.
NOT_A_REPEAT = t.votes.c.repeat.is_(False)
#: An expert's decision on a disputed pair, which becomes the pair's label; the other votes on the pair are kept.
IS_ADJUDICATION = t.votes.c.adjudication.is_(True)
NOT_AN_ADJUDICATION = t.votes.c.adjudication.is_(False)


def live_votes_query(project_id: int, source: Source, *columns: ColumnElement[Any]) -> Select[*tuple[Any, ...]]:
    """Live votes of a project, including hidden repeats, with all columns of `votes` or the given ones (of votes or pairs)."""
    query = select(*columns) if columns else select(t.votes)
    in_project = and_(t.pairs.c.project_id == project_id, t.votes.c.source == source)
    return query.join(t.pairs, t.pairs.c.id == t.votes.c.pair_id).where(in_project, LIVE_VOTE)


def has_live_vote(*conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether the pair of the enclosing query has a live vote that meets the conditions."""
    vote = select(t.votes.c.id).where(t.votes.c.pair_id == t.pairs.c.id, LIVE_VOTE, *conditions)
    return vote.correlate(t.pairs).exists()


def count_live_votes(*conditions: ColumnElement[bool]) -> ColumnElement[int]:
    """The number of live votes on the pair of the enclosing query that meet the conditions."""
    query = select(func.count()).select_from(t.votes).where(t.votes.c.pair_id == t.pairs.c.id, LIVE_VOTE, *conditions)
    return query.correlate(t.pairs).scalar_subquery()


def is_final_label(annotators: Sequence[str] | None = None) -> ColumnElement[bool]:
    """Whether a live vote is a label of its pair: not a hidden repeat, and not overruled by an expert (of these annotators)."""
    return and_(NOT_A_REPEAT, or_(IS_ADJUDICATION, ~is_decided(t.votes, annotators)))


def is_decided(votes_or_leases: FromClause, annotators: Sequence[str] | None = None) -> ColumnElement[bool]:
    """Whether an expert (of these annotators) has decided the pair of the enclosing query's row."""
    decision = t.votes.alias("decision").c
    query = select(decision.id).where(
        decision.pair_id == votes_or_leases.c.pair_id,
        decision.adjudication.is_(True),
        decision.undone_at.is_(None),
        decision.choice != Choice.SKIP,
    )
    if annotators is not None:
        query = query.where(decision.annotator.in_(annotators))
    return query.correlate(votes_or_leases).exists()


def next_unvoted_pair(db: Database, project_id: int, annotator: str, source: Source = Source.HUMAN) -> Pair | None:
    """The pair with the fewest votes, then the oldest, on which this annotator has no live vote; None if there is none.

    Only votes of `source` are counted. The pair is not leased; pairs for people come from `pair_leases`.
    """
    votes = current_votes(db, project_id)
    unvoted = np.flatnonzero(votes.unvoted_by(annotator))
    if not len(unvoted):
        return None
    counts = votes.count_by_pair(f"{source} votes", lambda some: some.live & (some.source == code(source)))
    pair_id = int(votes.pair_id[unvoted[np.argmin(counts[unvoted])]])
    with db.read() as conn:
        return load_pairs(conn, [pair_id])[0]


def count_unvoted_pairs(db: Database, project_id: int, annotator: str) -> int:
    """How many pairs this annotator could still label."""
    return int(current_votes(db, project_id).unvoted_by(annotator).sum())


def cast_vote(db: Database, vote: Vote) -> Vote:
    """Store a vote. A repeated uuid returns the existing row and changes nothing, even if the vote was undone since.

    Raises StaleVoteError if there is no such pair or this annotator has a live vote on it, LabelError without uuid or annotator.
    """
    check_vote(vote)
    with db.write() as conn:
        if (existing := vote_by_uuid(conn, vote.uuid)) is not None:
            return existing
        pair_query = select(t.pairs.c.id).where(t.pairs.c.id == vote.pair_id, t.pairs.c.taken_back_at.is_(None))
        if conn.execute(pair_query).scalar() is None:
            raise StaleVoteError(f"Pair {vote.pair_id} does not exist. Reload the page for the next pair.")
        if live_vote(conn, vote.pair_id, vote.annotator, vote.repeat) is not None:
            raise StaleVoteError(
                f"{vote.annotator} has already voted on pair {vote.pair_id}. Undo that vote to change it, or continue."
            )
        return insert_vote(conn, vote)


def check_vote(vote: Vote) -> None:
    """Raises LabelError for a vote without uuid or annotator."""
    if not vote.uuid or not vote.annotator:
        raise LabelError("A vote needs the client's uuid and the annotator's name; reload the page and try again.")


def vote_by_uuid(conn: Connection, uuid: str) -> Vote | None:
    return _vote_or_none(conn, t.votes.c.uuid == uuid)


def find_vote(db: Database, uuid: str) -> Vote | None:
    """The vote with this uuid, if the request has been received before; otherwise None."""
    with db.read() as conn:
        return vote_by_uuid(conn, uuid)


def live_vote(
    conn: Connection, pair_id: int, annotator: str, repeat: bool = False, adjudication: bool = False
) -> Vote | None:
    """This annotator's live vote on a pair: the first one, the one on its hidden repeat, or their decision as an expert."""
    v = t.votes.c
    own_vote = and_(v.pair_id == pair_id, v.annotator == annotator, LIVE_VOTE)
    return _vote_or_none(conn, own_vote, v.repeat.is_(repeat), v.adjudication.is_(adjudication))


def _vote_or_none(conn: Connection, *conditions: ColumnElement[bool]) -> Vote | None:
    row = conn.execute(select(t.votes).where(*conditions)).one_or_none()
    return None if row is None else vote_from_row(row)


def insert_vote(conn: Connection, vote: Vote) -> Vote:
    """Store a vote in the caller's transaction. The caller has checked that it is allowed."""
    vote = replace(vote, created_at=vote.created_at or time.time(), undone_at=None, import_id=None)
    values = {name: value for name, value in vars(vote).items() if name != "id"}
    return replace(vote, id=insert_row(conn, t.votes, values))


def mark_last_vote_undone(conn: Connection, project_id: int, annotator: str) -> Vote | None:
    """Undo this person's last live vote in the caller's transaction and return it; None if there is none."""
    vote_id = last_live_vote(conn, project_id, annotator)
    return None if vote_id is None else update_vote(conn, vote_id, undone_at=time.time())


def last_live_vote(conn: Connection, project_id: int, annotator: str) -> int | None:
    """The id of this person's last live vote."""
    v = t.votes.c
    query = live_votes_query(project_id, Source.HUMAN, v.id).where(v.annotator == annotator)
    return conn.execute(query.order_by(v.id.desc()).limit(1)).scalar()


def update_vote(conn: Connection, vote_id: int, **values: Any) -> Vote:
    """Change a vote in the caller's transaction and return it."""
    conn.execute(update(t.votes).where(t.votes.c.id == vote_id).values(**values))
    return vote_from_row(conn.execute(select(t.votes).where(t.votes.c.id == vote_id)).one())


def vote_history(db: Database, project_id: int, annotator: str, limit: int = 30) -> list[tuple[Vote, Pair]]:
    """This person's newest live votes with their pairs, newest first, without hidden repeats."""
    v = t.votes.c
    query = live_votes_query(project_id, Source.HUMAN).where(v.annotator == annotator, NOT_A_REPEAT)
    with db.read() as conn:
        votes = [vote_from_row(row) for row in conn.execute(query.order_by(v.id.desc()).limit(limit))]
        pairs = {pair.id: pair for pair in load_pairs(conn, [vote.pair_id for vote in votes])}
    return [(vote, pairs[vote.pair_id]) for vote in votes]


def votes_on_pairs_of(db: Database, vote_ids: Collection[int], reasons: Collection[str]) -> set[int]:
    """Those of these votes whose pairs were added for one of these reasons."""
    v, p = t.votes.c, t.pairs.c
    query = select(v.id).join(t.pairs, p.id == v.pair_id).where(v.id.in_(vote_ids), p.reason.in_(reasons))
    return set(db.fetch(query).scalars())


def vote_counts(db: Database, project_id: int) -> dict[Source, dict[Choice, int]]:
    """Numbers of live votes by source and choice, including zeros, without hidden repeats and experts' decisions."""
    votes = current_votes(db, project_id)
    counts = votes.cached("counts", lambda: _count_votes(votes))
    return {source: dict(zip(Choice, row, strict=True)) for source, row in zip(Source, counts, strict=True)}


def _count_votes(votes: VoteTable) -> list[list[int]]:
    counted = votes.live & ~votes.repeat & ~votes.adjudication
    cells = len(CHOICES) * votes.source[counted] + votes.choice[counted]
    counts: list[list[int]] = (
        np.bincount(cells, minlength=len(SOURCES) * len(CHOICES)).reshape(len(SOURCES), -1).tolist()
    )
    return counts


def label_count(counts: dict[Choice, int]) -> int:
    """How many of the votes counted by `vote_counts` are labels: all except skips."""
    return sum(counts.values()) - counts[Choice.SKIP]


def voters(db: Database, project_id: int, source: Source) -> list[str]:
    """The sorted names of those who cast the live votes of a source."""
    votes = current_votes(db, project_id)
    cast = votes.annotator[votes.live & ~votes.repeat & (votes.source == code(source))]
    return sorted(votes.names[i] for i in np.unique(cast))


def vote_from_row(row: AnyRow) -> Vote:
    return Vote(**row._mapping)
