"""The votes of a project as the figures need them, and the labels a reward model doubts."""

import time
from dataclasses import dataclass

from sqlalchemy import select, update

from rlhf_lab.errors import StaleVoteError
from rlhf_lab.exports.labels import SIDES_UNKNOWN
from rlhf_lab.kinds import Choice, Source
from rlhf_lab.quality.figures import Said
from rlhf_lab.records import Pair, RewardModelRow, Vote
from rlhf_lab.store import tables as t
from rlhf_lab.store.comparisons import vote_of
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import read_pairs

MOST_DOUBTS = 20


@dataclass(frozen=True)
class Doubt:
    """A label that the model, trained without it, gave a low probability. now: the annotator's live vote, if any."""

    vote: Vote
    pair: Pair
    probability: float
    now: Choice | None


def votes_of(db: Database, project_id: int, source: Source) -> list[Said]:
    """Live votes of one source, hidden repeats among them, in the order they were cast. Skips say nothing."""
    v = t.votes.c
    query = (
        select(v.id, v.pair_id, v.annotator, v.choice, v.first_on_left, v.response_ms, v.created_at, v.repeat, v.via)
        .join(t.pairs, t.pairs.c.id == v.pair_id)
        .where(t.pairs.c.project_id == project_id, v.source == source, v.undone_at.is_(None), v.choice != Choice.SKIP)
        .order_by(v.id)
    )
    with db.read() as conn:
        return [
            Said(
                row.id, row.pair_id, row.annotator, row.choice, None if row.via == SIDES_UNKNOWN else row.first_on_left,
                row.response_ms, row.created_at, row.repeat,
            )
            for row in conn.execute(query)
        ]  # fmt: skip


def doubts(db: Database, model: RewardModelRow) -> list[Doubt]:
    """The labels a reward model most disagrees with (its report names them), the worst first."""
    said = model.report.get("disagreements") or []
    ids = model.snapshot.vote_ids
    wanted = {
        ids[int(one["index"])]: float(one["probability"]) for one in said[:MOST_DOUBTS] if int(one["index"]) < len(ids)
    }
    v = t.votes.c
    with db.read() as conn:
        votes = {row.id: vote_of(row) for row in conn.execute(select(t.votes).where(v.id.in_(wanted)))}
        pairs = {pair.id: pair for pair in read_pairs(conn, [vote.pair_id for vote in votes.values()])}
        live = select(v.pair_id, v.annotator, v.choice).where(
            v.pair_id.in_(pairs), v.undone_at.is_(None), v.repeat.is_(False)
        )
        now = {(row.pair_id, row.annotator): row.choice for row in conn.execute(live)}
    return [
        Doubt(
            votes[vote_id],
            pairs[votes[vote_id].pair_id],
            p,
            now.get((votes[vote_id].pair_id, votes[vote_id].annotator)),
        )
        for vote_id, p in wanted.items()
        if vote_id in votes
    ]


def ask_again(db: Database, project_id: int, vote_id: int) -> None:
    """Set a live vote aside, so that its annotator is asked about the pair again; the row stays, marked as undone.

    StaleVoteError: there is no such live vote in this project (any more).
    """
    v = t.votes.c
    query = (
        select(v.id)
        .join(t.pairs, t.pairs.c.id == v.pair_id)
        .where(v.id == vote_id, v.undone_at.is_(None), t.pairs.c.project_id == project_id)
    )
    with db.write() as conn:
        if conn.execute(query).scalar() is None:
            raise StaleVoteError("That vote was changed or taken back meanwhile. Look at the list again.")
        conn.execute(update(t.votes).where(v.id == vote_id).values(undone_at=time.time()))
