"""The queue of people: who has which pair on screen, and the votes on it.

A pair that is shown is leased to that person for a while: others get other pairs. So is the one that they see next, which
their page has at hand already. A person's leases are a stack: the one begun last is on screen. Every function is one writing
transaction, so that two processes never decide on the same moment.

    lease_pairs ─▶ cast_leased ──▶ take_back ──▶ put_back
     (shown)        (voted)        (undone)      (redone)
                        └──────▶ change_vote     (another answer, from the history)
"""

import time
from typing import Any

from sqlalchemy import Connection, and_, delete, func, insert, select, update

from rlhf_lab.common.enums import Source
from rlhf_lab.common.records import Lease, Vote
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.errors import StaleVoteError
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database
from rlhf_lab.store.pair_selection import (
    has_enough_votes,
    next_hidden_repeat,
    next_open_pair,
    unvoted_by,
    votes_and_leases,
)
from rlhf_lab.store.projects import FIRST_COMPLETION, load_pairs
from rlhf_lab.store.votes import (
    check_vote,
    insert_vote,
    live_vote,
    mark_last_vote_undone,
    vote_by_uuid,
    vote_from_row,
)

STACK_GAP_S = 0.001  # how much earlier than the pair on screen the one after it is said to be leased
PURGE_EXPIRED_AFTER_S = 86_400.0  # a lease this long over is removed: a vote for it would be refused as never given


def lease_pair(
    db: Database, project_id: int, annotator: str, config: LabellingConfig | None = None, *, now: float | None = None
) -> Lease | None:
    """Keep a pair for this person and return it: what they hold already, else a hidden repeat when one is due, else the next.

    Next come pairs they never judged that still want votes: those nobody skipped first, then those nearest to having
    enough, then the oldest (the newest where the policy writes: what it says now). Pairs that have enough come last. None:
    they have judged every pair.
    """
    return next(iter(lease_pairs(db, project_id, annotator, config, prefetch=0, now=now)), None)


def lease_pairs(
    db: Database, project_id: int, annotator: str, config: LabellingConfig | None = None, *, prefetch: int = 1,
    now: float | None = None,
) -> list[Lease]:  # fmt: skip
    """`lease_pair`, and up to `causal_mask` pairs that come after it; none of these in a small pool, nor any that has enough votes."""
    config, now = config or LabellingConfig(), time.time() if now is None else now
    with db.write() as conn:
        conn.execute(
            delete(t.leases).where(
                t.leases.c.annotator == annotator, t.leases.c.expires_at < now - PURGE_EXPIRED_AFTER_S
            )
        )
        selected = _open_leases(conn, project_id, annotator, config, now)[: 1 + prefetch]
        while len(selected) <= prefetch:
            selected_ids = [pair_id for pair_id, _ in selected]
            repeat = next_hidden_repeat(conn, project_id, annotator, config, selected_ids)
            pair_id = repeat or next_open_pair(conn, project_id, annotator, config, selected_ids, now)
            if pair_id is None:
                break
            selected.append((pair_id, repeat is not None))
        top = _top_of_stack(conn, annotator, now)
        return [
            _save_lease(conn, *item, annotator, config, now, top - depth * STACK_GAP_S)
            for depth, item in enumerate(selected)
        ]


def count_free_pairs(
    db: Database, project_id: int, annotator: str, config: LabellingConfig | None = None, *, checkpoint: str | None = None,
    now: float | None = None,
) -> int:  # fmt: skip
    """How many pairs this person never judged still want votes and are not kept for others; all, or of one writer's texts."""
    config, now = config or LabellingConfig(), time.time() if now is None else now
    query = (
        select(func.count())
        .select_from(t.pairs)
        .where(unvoted_by(project_id, annotator), votes_and_leases(annotator, now) < config.overlap)
    )
    if checkpoint is not None:
        query = query.join(FIRST_COMPLETION, FIRST_COMPLETION.c.id == t.pairs.c.first_id).where(
            FIRST_COMPLETION.c.checkpoint == checkpoint
        )
    with db.read() as conn:
        return conn.execute(query).scalar_one()


def count_active_annotators(db: Database, project_id: int, now: float | None = None) -> int:
    """How many people have a pair on screen."""
    now = time.time() if now is None else now
    query = (
        select(func.count(t.leases.c.annotator.distinct()))
        .join(t.pairs, t.pairs.c.id == t.leases.c.pair_id)
        .where(t.pairs.c.project_id == project_id, t.leases.c.expires_at > now)
    )
    with db.read() as conn:
        return conn.execute(query).scalar_one()


def vote_on_lease(db: Database, vote: Vote, config: LabellingConfig | None = None, *, now: float | None = None) -> Vote:
    """Store a person's answer to a pair that was given to them, and end its lease. The same uuid again changes nothing.

    Whether it is a hidden repeat is known from the lease. StaleVoteError: they have judged the pair, it was never given to
    them, or their time was over and it has all its votes by now. LabelError: no uuid or no name.
    """
    check_vote(vote)
    config, now = config or LabellingConfig(), time.time() if now is None else now
    with db.write() as conn:
        existing = vote_by_uuid(conn, vote.uuid)
        if existing is not None:
            return existing
        lease_condition = and_(t.leases.c.pair_id == vote.pair_id, t.leases.c.annotator == vote.annotator)
        lease = conn.execute(select(t.leases).where(lease_condition)).one_or_none()
        if lease is None:
            raise StaleVoteError(_not_leased_message(conn, vote))
        if (
            lease.expires_at <= now
            and not lease.repeat
            and has_enough_votes(conn, vote.pair_id, vote.annotator, config, now)
        ):
            raise StaleVoteError(
                "The pair was kept for you for a while; meanwhile others have judged it. Your vote was not counted; "
                "here is the next pair."
            )
        conn.execute(delete(t.leases).where(lease_condition))
        return insert_vote(conn, _replace(vote, repeat=lease.repeat))


def undo_last_vote(
    db: Database, project_id: int, annotator: str, config: LabellingConfig | None = None, *, now: float | None = None
) -> Lease | None:
    """Undo this person's last live vote; the pair is theirs again. None: there is nothing to undo."""
    config, now = config or LabellingConfig(), time.time() if now is None else now
    with db.write() as conn:
        undone = mark_last_vote_undone(conn, project_id, annotator)
        if undone is None:
            return None
        leased_at = _top_of_stack(conn, annotator, now) + STACK_GAP_S
        return _save_lease(conn, undone.pair_id, undone.repeat, annotator, config, now, leased_at)


def redo_last_vote(db: Database, project_id: int, annotator: str) -> Vote | None:
    """Redo: the vote that was undone last counts again, unless another was cast since. None: there is nothing to redo.

    What went with an import is not theirs to bring back.
    """
    v, i = t.votes.c, t.imports.c
    import_was_undone = (
        select(i.id).where(i.id == v.import_id, i.taken_back_at.is_not(None)).correlate(t.votes).exists()
    )
    condition = and_(
        t.pairs.c.project_id == project_id, t.pairs.c.taken_back_at.is_(None), v.annotator == annotator,
        v.source == Source.HUMAN, ~import_was_undone,
    )  # fmt: skip
    own_votes = select(t.votes).join(t.pairs, t.pairs.c.id == v.pair_id).where(condition)
    with db.write() as conn:
        undone = conn.execute(
            own_votes.where(v.undone_at.is_not(None)).order_by(v.undone_at.desc(), v.id).limit(1)
        ).first()
        latest = conn.execute(own_votes.with_only_columns(func.max(v.created_at)).where(v.undone_at.is_(None))).scalar()
        if undone is None or (latest is not None and latest >= undone.undone_at):
            return None
        if live_vote(conn, undone.pair_id, annotator, undone.repeat) is not None:
            return None
        conn.execute(update(t.votes).where(v.id == undone.id).values(undone_at=None))
        conn.execute(delete(t.leases).where(t.leases.c.pair_id == undone.pair_id, t.leases.c.annotator == annotator))
        return vote_from_row(conn.execute(select(t.votes).where(v.id == undone.id)).one())


def change_vote(db: Database, project_id: int, vote_id: int, new_vote: Vote) -> Vote:
    """Another answer instead of an earlier one, which stays as an undone row. The same uuid again changes nothing.

    Pair, sides and repeat are those of the earlier vote. StaleVoteError: there is no such live vote of this person.
    """
    check_vote(new_vote)
    v = t.votes.c
    own_live_vote = and_(
        v.id == vote_id, v.annotator == new_vote.annotator, v.undone_at.is_(None), v.source == Source.HUMAN
    )
    query = (
        select(t.votes)
        .join(t.pairs, t.pairs.c.id == v.pair_id)
        .where(own_live_vote, t.pairs.c.project_id == project_id)
    )
    with db.write() as conn:
        existing = vote_by_uuid(conn, new_vote.uuid)
        if existing is not None:
            return existing
        row = conn.execute(query).one_or_none()
        if row is None:
            raise StaleVoteError(
                "That vote is not there to be changed (any more); nothing was changed. Look at the list again."
            )
        old_vote = vote_from_row(row)
        conn.execute(update(t.votes).where(v.id == vote_id).values(undone_at=time.time()))
        return insert_vote(
            conn,
            _replace(new_vote, pair_id=old_vote.pair_id, first_on_left=old_vote.first_on_left, repeat=old_vote.repeat),
        )


def _replace(vote: Vote, **changes: Any) -> Vote:
    return Vote(**(vars(vote) | changes))


def _open_leases(
    conn: Connection, project_id: int, annotator: str, config: LabellingConfig, now: float
) -> list[tuple[int, bool]]:
    """(pair, repeat) that this person holds, newest first: those whose time is not over, or over but wanted by nobody else."""
    lease_cols = t.leases.c
    query = (
        select(lease_cols.pair_id, lease_cols.repeat, lease_cols.expires_at)
        .join(t.pairs, t.pairs.c.id == lease_cols.pair_id)
        .where(lease_cols.annotator == annotator, t.pairs.c.project_id == project_id)
        .order_by(lease_cols.leased_at.desc(), lease_cols.pair_id)
    )
    return [
        (row.pair_id, row.repeat)
        for row in conn.execute(query).all()
        if row.expires_at > now or row.repeat or not has_enough_votes(conn, row.pair_id, annotator, config, now)
    ]


def _top_of_stack(conn: Connection, annotator: str, now: float) -> float:
    """Now; where the clock was set back, the beginning of this person's newest lease."""
    lease_cols = t.leases.c
    return max(
        now,
        conn.execute(select(func.max(lease_cols.leased_at)).where(lease_cols.annotator == annotator)).scalar() or now,
    )


def _save_lease(
    conn: Connection, pair_id: int, repeat: bool, annotator: str, config: LabellingConfig, now: float, leased_at: float
) -> Lease:
    """The lease, begun now (again); leased_at is its place in the stack."""
    expires_at = now + config.hold_s
    values = {"repeat": repeat, "leased_at": leased_at, "expires_at": expires_at}
    condition = and_(t.leases.c.pair_id == pair_id, t.leases.c.annotator == annotator)
    if conn.execute(update(t.leases).where(condition).values(**values)).rowcount == 0:
        conn.execute(insert(t.leases).values(pair_id=pair_id, annotator=annotator, **values))
    return Lease(load_pairs(conn, [pair_id])[0], annotator, repeat, expires_at)


def _not_leased_message(conn: Connection, vote: Vote) -> str:
    if live_vote(conn, vote.pair_id, vote.annotator) is not None:
        return (
            "You have already voted on this pair, in another tab perhaps: that answer counts, this one does not. Undo it to "
            "change it, or go on."
        )
    return "That pair was not given to you, so the vote was not counted. Reload the page for the next pair."


def is_repeat(db: Database, pair_id: int, annotator: str) -> bool:
    """Whether this person holds the pair as a hidden repeat: its sides are then swapped."""
    lease_cols = t.leases.c
    with db.read() as conn:
        query = select(lease_cols.repeat).where(lease_cols.pair_id == pair_id, lease_cols.annotator == annotator)
        return bool(conn.execute(query).scalar())
