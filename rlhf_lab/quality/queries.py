"""Votes for the statistics of `agreement`, and the labels that a reward model doubts."""

import time
from dataclasses import dataclass

from sqlalchemy import and_, select

from rlhf_lab.common.enums import VIA_SIDES_UNKNOWN, Choice, Source
from rlhf_lab.common.records import Pair, RewardModelRow, Vote
from rlhf_lab.errors import StaleVoteError
from rlhf_lab.quality.agreement import VoteRecord
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import load_pairs
from rlhf_lab.store.votes import LIVE_VOTE, NOT_A_REPEAT, live_votes_query, update_vote, vote_from_row

MAX_DOUBTED_LABELS = 20


@dataclass(frozen=True)
class DoubtedLabel:
    """A label that a model trained without it gave a low probability. current_choice: of the annotator's live vote, if any."""

    vote: Vote
    pair: Pair
    probability: float
    current_choice: Choice | None


def vote_records(db: Database, project_id: int, source: Source) -> list[VoteRecord]:
    """Live votes of one source, hidden repeats and experts' decisions included, skips left out, in the order they were cast."""
    v = t.votes.c
    columns = (
        v.id,
        v.pair_id,
        v.annotator,
        v.choice,
        v.first_on_left,
        v.response_ms,
        v.created_at,
        v.repeat,
        v.via,
        v.adjudication,
    )
    query = live_votes_query(project_id, source, *columns).where(v.choice != Choice.SKIP).order_by(v.id)
    with db.read() as conn:
        return [
            VoteRecord(
                row.id,
                row.pair_id,
                row.annotator,
                row.choice,
                None if row.via == VIA_SIDES_UNKNOWN else row.first_on_left,
                row.response_ms,
                row.created_at,
                row.repeat,
                row.adjudication,
            )
            for row in conn.execute(query)
        ]


def doubted_labels(db: Database, model: RewardModelRow) -> list[DoubtedLabel]:
    """The labels that a reward model most disagrees with, by its report, the worst first."""
    disagreements = model.report.get("disagreements") or []
    vote_ids = model.snapshot.vote_ids
    probabilities = {
        vote_ids[int(item["index"])]: float(item["probability"])
        for item in disagreements[:MAX_DOUBTED_LABELS]
        if int(item["index"]) < len(vote_ids)
    }
    v = t.votes.c
    with db.read() as conn:
        votes = {row.id: vote_from_row(row) for row in conn.execute(select(t.votes).where(v.id.in_(probabilities)))}
        pairs = {pair.id: pair for pair in load_pairs(conn, [vote.pair_id for vote in votes.values()])}
        live_query = select(v.pair_id, v.annotator, v.choice).where(v.pair_id.in_(pairs), LIVE_VOTE, NOT_A_REPEAT)
        live_choices = {(row.pair_id, row.annotator): row.choice for row in conn.execute(live_query)}
    return [
        DoubtedLabel(
            votes[vote_id],
            pairs[votes[vote_id].pair_id],
            probability,
            live_choices.get((votes[vote_id].pair_id, votes[vote_id].annotator)),
        )
        for vote_id, probability in probabilities.items()
        if vote_id in votes
    ]


def request_new_vote(db: Database, project_id: int, vote_id: int) -> None:
    """Undo a live vote, so that its annotator is shown the pair again.

    StaleVoteError: there is no such live vote in this project (any more).
    """
    in_project = and_(t.pairs.c.id == t.votes.c.pair_id, t.pairs.c.project_id == project_id)
    query = select(t.votes.c.id).join(t.pairs, in_project).where(t.votes.c.id == vote_id, LIVE_VOTE)
    with db.write() as conn:
        if conn.execute(query).scalar() is None:
            raise StaleVoteError("That vote was changed or taken back meanwhile. Look at the list again.")
        update_vote(conn, vote_id, undone_at=time.time())
