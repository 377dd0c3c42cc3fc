"""Votes for the statistics of `agreement`, and the labels to which a reward model gives a low probability."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import and_, delete, select

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import Pair, Vote
from rlhf_lab.errors import StaleVoteError
from rlhf_lab.quality.agreement import FIRST, TIE, VoteColumns
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import live_pair_of, load_pairs
from rlhf_lab.store.reward_model_list import ListedRewardModel
from rlhf_lab.store.vote_table import VoteTable, code, current_votes
from rlhf_lab.store.votes import LIVE_VOTE, NOT_A_REPEAT, update_vote, vote_from_row

NO_LIVE_VOTE = "That vote has been changed or undone. Reload the page."


@dataclass(frozen=True)
class UnlikelyLabel:
    """A label to which a model trained without it gave a low probability. current_choice: of the annotator's live vote, if
    any."""

    vote: Vote
    pair: Pair
    probability: float
    current_choice: Choice | None


def vote_columns(db: Database, project_id: int, source: Source) -> VoteColumns:
    """Live votes of one source, including hidden repeats and experts' decisions, without skips."""
    table = current_votes(db, project_id)
    return table.cached(("columns", source), lambda: columns_of(table, source))


def columns_of(table: VoteTable, source: Source) -> VoteColumns:
    rows = np.flatnonzero(table.live & (table.source == code(source)) & (table.choice != code(Choice.SKIP)))
    value = np.minimum(table.choice[rows].astype(np.int64), TIE)  # "both are bad" is a tie
    left_won = np.where(value == FIRST, table.first_on_left[rows], ~table.first_on_left[rows]).astype(np.int64)
    left_won[(value == TIE) | table.sides_unknown[rows]] = -1
    return VoteColumns(
        table.names, table.annotator[rows], table.pair[rows], value, left_won, table.response_ms[rows],
        table.created_at[rows], table.repeat[rows], table.adjudication[rows],
    )  # fmt: skip


def unlikely_labels(db: Database, model: ListedRewardModel) -> list[UnlikelyLabel]:
    """The labels with which a reward model disagrees most, according to its report, the worst first."""
    probabilities = dict(model.disagreements)
    v = t.votes.c
    with db.read() as conn:
        votes = {row.id: vote_from_row(row) for row in conn.execute(select(t.votes).where(v.id.in_(probabilities)))}
        pairs = {pair.id: pair for pair in load_pairs(conn, [vote.pair_id for vote in votes.values()])}
        live_query = select(v.pair_id, v.annotator, v.choice).where(v.pair_id.in_(pairs), LIVE_VOTE, NOT_A_REPEAT)
        live_choices = {(row.pair_id, row.annotator): row.choice for row in conn.execute(live_query)}
    return [
        UnlikelyLabel(
            votes[vote_id],
            pairs[votes[vote_id].pair_id],
            probability,
            live_choices.get((votes[vote_id].pair_id, votes[vote_id].annotator)),
        )
        for vote_id, probability in probabilities.items()
        if vote_id in votes
    ]


def restore_votes(db: Database, project_id: int, vote_ids: Sequence[int]) -> list[int]:
    """Make undone votes live again, if that is possible; those that are live stay so. Returns those that are live now. Their
    annotators are not shown the pairs any more.

    Not possible: this project has no such vote, its annotator has voted on the pair again, or it belongs to an import that was
    undone. Raises StaleVoteError if no vote is live.
    """
    v, i, newer = t.votes.c, t.imports.c, t.votes.alias("newer").c
    is_replaced = select(newer.id).where(
        newer.pair_id == v.pair_id, newer.annotator == v.annotator, newer.repeat == v.repeat,
        newer.adjudication == v.adjudication, newer.undone_at.is_(None), newer.id != v.id,
    )  # fmt: skip
    import_was_undone = select(i.id).where(i.id == v.import_id, i.taken_back_at.is_not(None))
    query = select(v.id, v.pair_id, v.annotator).join(t.pairs, t.pairs.c.id == v.pair_id)
    query = query.where(
        v.id.in_(vote_ids), live_pair_of(project_id), ~is_replaced.correlate(t.votes).exists(),
        ~import_was_undone.correlate(t.votes).exists(),
    )  # fmt: skip
    with db.write() as conn:
        rows = conn.execute(query.order_by(v.id)).all()
        if not rows:
            raise StaleVoteError("That label cannot be put back: its pair has been labelled again, or it is gone.")
        for row in rows:
            own_lease = and_(t.leases.c.pair_id == row.pair_id, t.leases.c.annotator == row.annotator)
            conn.execute(delete(t.leases).where(own_lease))
            update_vote(conn, row.id, undone_at=None, taken_out=False)
    return [row.id for row in rows]


def labels_of_same_pair(db: Database, project_id: int, vote_ids: Sequence[int]) -> dict[int, list[int]]:
    """By live vote of this project: all live labels of its source on its pair, with those that an expert overruled."""
    vote, v = t.votes.alias("vote").c, t.votes.c
    query = (
        select(vote.id, v.id.label("other"))
        .join(t.pairs, t.pairs.c.id == vote.pair_id)
        .join(t.votes, and_(v.pair_id == vote.pair_id, v.source == vote.source))
        .where(vote.id.in_(vote_ids), vote.undone_at.is_(None), t.pairs.c.project_id == project_id)
        .where(LIVE_VOTE, NOT_A_REPEAT, v.choice != Choice.SKIP)
        .order_by(v.id)
    )
    found: dict[int, list[int]] = {}
    for row in db.fetch(query):
        found.setdefault(row.id, []).append(row.other)
    return found


def take_out_labels(db: Database, project_id: int, vote_id: int) -> list[int]:
    """Undo all labels of the pair of a live label, from the same source, so that nothing learns from the pair; returns their ids.

    Otherwise another person's label, or one that an expert had overruled, would take its place. Raises StaleVoteError if there is
    no such live label in this project (any more).
    """
    votes = labels_of_same_pair(db, project_id, [vote_id]).get(vote_id, [])
    if not votes:
        raise StaleVoteError(NO_LIVE_VOTE)
    with db.write() as conn:
        for other in votes:
            update_vote(conn, other, undone_at=time.time(), taken_out=True)
    return votes


def request_new_vote(db: Database, project_id: int, vote_id: int) -> None:
    """Undo a live vote, so that its annotator is shown the pair again. They cannot redo it.

    Raises StaleVoteError if there is no such live vote in this project (any more).
    """
    in_project = and_(t.pairs.c.id == t.votes.c.pair_id, t.pairs.c.project_id == project_id)
    query = select(t.votes.c.id).join(t.pairs, in_project).where(t.votes.c.id == vote_id, LIVE_VOTE)
    with db.write() as conn:
        if conn.execute(query).scalar() is None:
            raise StaleVoteError(NO_LIVE_VOTE)
        update_vote(conn, vote_id, undone_at=time.time(), taken_out=True)
