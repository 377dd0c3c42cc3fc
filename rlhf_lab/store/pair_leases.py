"""Leases of pairs to people, and their votes on leased pairs.

A pair that is shown to a person, or prefetched by their page, is leased to them for a while, and others get other pairs. The
leases of a person are a stack: the newest one is on screen. Whatever leases pairs to a person ends their other leases
(`_save_stack`), so nobody holds more pairs than their page shows and has prefetched. Every function that writes is one
transaction.

    lease_pairs ─▶ vote_on_lease ──▶ undo_last_vote ──▶ redo_last_vote
                        └──────▶ change_vote
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, and_, bindparam, delete, func, insert, select, update

from rlhf_lab.common.enums import Source
from rlhf_lab.common.records import Lease, Vote
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.errors import StaleVoteError
from rlhf_lab.store import tables as t
from rlhf_lab.store.adjudication import next_disputed_pair
from rlhf_lab.store.database import AnyRow, Database, in_chunks
from rlhf_lab.store.edited_answers import redo_edit, undo_edited
from rlhf_lab.store.live_runs import pairs_of_active_runs
from rlhf_lab.store.pair_selection import (
    draw_gold_pair,
    has_enough_votes,
    human_vote_counts,
    label_and_lease_counts,
    next_hidden_repeat,
    next_open_pair,
    running_leases,
)
from rlhf_lab.store.projects import live_pair_of, load_pairs
from rlhf_lab.store.vote_table import VoteTable, current_votes
from rlhf_lab.store.votes import (
    check_vote,
    insert_vote,
    is_decided,
    last_live_vote,
    live_vote,
    live_votes_query,
    mark_last_vote_undone,
    update_vote,
    vote_by_uuid,
    vote_from_row,
)

DEFAULT_CONFIG = LabellingConfig()
STACK_GAP_S = 0.001  # a prefetched pair's lease starts this much before that of the pair shown before it
PURGE_EXPIRED_AFTER_S = 86_400.0  # leases that expired this long ago are deleted; votes on such pairs are rejected

# Statements used by every call are built once, since SQLAlchemy takes longer to build one than SQLite to execute it.
_OWN_LEASES = (
    select(t.leases)
    .where(t.leases.c.annotator == bindparam("annotator"))
    .order_by(t.leases.c.leased_at.desc(), t.leases.c.pair_id)
)
_RENEW_LEASE = update(t.leases).where(
    t.leases.c.pair_id == bindparam("renewed_pair"), t.leases.c.annotator == bindparam("renewed_by")
)


class _Selected(NamedTuple):
    """A pair to lease; the flags are those of `Lease`."""

    pair_id: int
    repeat: bool = False
    adjudication: bool = False


def lease_pair(
    db: Database, project_id: int, annotator: str, config: LabellingConfig = DEFAULT_CONFIG, *, now: float | None = None
) -> Lease | None:
    """Lease the next pair to this person. Returns None if there is no pair left.

    In this order: their newest lease again; a hidden repeat that is due; a pair on which they have no vote. Instead of the
    last, a gold pair of the same origin is drawn at the rate of the settings. Pairs of a run that is training with a live reward
    or a brake come first, the newest of them before the others. Pairs that need votes come before those that have
    enough; among them, those skipped by fewer people, then those that need the fewest further votes, then the oldest (or the
    newest if the texts come from the policy; a random one in a project with gold pairs). An expert who has begun to decide
    disputed pairs (`start_adjudicating`) gets these one after the other.
    """
    return next(iter(lease_pairs(db, project_id, annotator, config, prefetch=0, now=now)), None)


def lease_pairs(
    db: Database,
    project_id: int,
    annotator: str,
    config: LabellingConfig = DEFAULT_CONFIG,
    *,
    prefetch: int = 1,
    now: float | None = None,
) -> list[Lease]:
    """Like `lease_pair`, and lease up to `prefetch` pairs to show next, unless only few pairs that need votes are left."""
    now = time.time() if now is None else now
    with db.write(durable=False) as conn:  # a lost lease is harmless: two people may get the same pair
        votes = current_votes(db, project_id)  # they cannot change before this transaction ends
        leases = _own_leases(conn, annotator)
        if any(lease.expires_at < now - PURGE_EXPIRED_AFTER_S for lease in leases):
            _purge_expired(conn, annotator, now)
            leases = _own_leases(conn, annotator)
        in_project = set(votes.pair_id[votes.positions_of_pairs([lease.pair_id for lease in leases])].tolist())
        selected = [
            _Selected(lease.pair_id, lease.repeat, lease.adjudication)
            for lease in leases
            if lease.pair_id in in_project and _is_usable(conn, lease, config, now)
        ]
        if selected and selected[0].adjudication:
            selected = [item for item in selected if item.adjudication]
        selected = selected[: 1 + prefetch]
        while len(selected) <= prefetch:
            next_pair = _next_pair(conn, votes, project_id, annotator, config, selected, now)
            if next_pair is None:
                break
            selected.append(next_pair)
        return _save_stack(conn, selected, annotator, config, now, max([now, *(lease.leased_at for lease in leases)]))


def _purge_expired(conn: Connection, annotator: str, now: float) -> None:
    """Delete long-expired leases."""
    has_expired = t.leases.c.expires_at < now - PURGE_EXPIRED_AFTER_S
    conn.execute(delete(t.leases).where(t.leases.c.annotator == annotator, has_expired))


def _next_pair(
    conn: Connection,
    votes: VoteTable,
    project_id: int,
    annotator: str,
    config: LabellingConfig,
    selected: list[_Selected],
    now: float,
) -> _Selected | None:
    """The pair to show after those selected, or None if there is none."""
    selected_ids = [item.pair_id for item in selected]
    if selected and selected[0].adjudication:
        disputed = next_disputed_pair(conn, project_id, annotator, selected_ids, now)
        if disputed is not None:
            return _Selected(disputed, adjudication=True)
    repeat = next_hidden_repeat(votes, project_id, annotator, config, selected_ids)
    if repeat is not None:
        return _Selected(repeat, repeat=True)
    live_ids = pairs_of_active_runs(conn, project_id)
    open_pair = next_open_pair(conn, votes, annotator, config, selected_ids, now, live_ids)
    if open_pair is None:
        return None
    return _Selected(draw_gold_pair(conn, votes, annotator, config, open_pair, now) or open_pair)


def start_adjudicating(
    db: Database, project_id: int, annotator: str, config: LabellingConfig = DEFAULT_CONFIG, *, now: float | None = None
) -> Lease | None:
    """Lease the first disputed pair to an expert, to be shown next. Returns None if no pair needs a decision."""
    now = time.time() if now is None else now
    with db.write() as conn:
        pair_id = next_disputed_pair(conn, project_id, annotator, [], now)
        if pair_id is None:
            return None
        leased_at = _top_of_stack(conn, annotator, now) + STACK_GAP_S
        return _save_stack(conn, [_Selected(pair_id, adjudication=True)], annotator, config, now, leased_at)[0]


def lease_next(
    db: Database, pair_id: int, annotator: str, config: LabellingConfig = DEFAULT_CONFIG, *, now: float | None = None
) -> Lease:
    """Lease this pair to a person, to be shown next. Raises StaleVoteError if they have voted on it."""
    now = time.time() if now is None else now
    with db.write() as conn:
        if live_vote(conn, pair_id, annotator) is not None:
            raise StaleVoteError(
                "You have already voted on these two answers. Change your vote under Label, in your earlier labels."
            )
        leased_at = _top_of_stack(conn, annotator, now) + STACK_GAP_S
        return _save_stack(conn, [_Selected(pair_id)], annotator, config, now, leased_at)[0]


def count_free_pairs(
    db: Database,
    project_id: int,
    annotator: str,
    config: LabellingConfig = DEFAULT_CONFIG,
    *,
    checkpoint: str | None = None,
    now: float | None = None,
) -> int:
    """How many pairs without a vote of this person need votes and are not leased to others. checkpoint: only with its texts."""
    return fewest_free_pairs(db, project_id, [annotator], config, checkpoint=checkpoint, now=now)


def fewest_free_pairs(
    db: Database,
    project_id: int,
    annotators: Sequence[str],
    config: LabellingConfig,
    *,
    checkpoint: str | None = None,
    now: float | None = None,
) -> int:
    """The minimum of `count_free_pairs` over these people."""
    votes = current_votes(db, project_id)

    def count(annotator: str) -> int:
        counts = label_and_lease_counts(votes, leases, annotator)
        free = votes.unvoted_by(annotator) & (counts < config.overlap)
        return _count_with_texts_of(conn, votes, free, checkpoint)

    with db.read() as conn:
        leases = running_leases(conn, time.time() if now is None else now)
        return min(map(count, annotators))


def count_pairs_ahead(db: Database, project_id: int, *, checkpoint: str | None = None) -> int:
    """How many pairs no person has judged or skipped, whether they are leased or not. checkpoint: only with its texts."""
    votes = current_votes(db, project_id)
    with db.read() as conn:
        return _count_with_texts_of(conn, votes, votes.pair_live & (human_vote_counts(votes) == 0), checkpoint)


def _count_with_texts_of(
    conn: Connection, votes: VoteTable, is_counted: NDArray[np.bool_], checkpoint: str | None
) -> int:
    positions, completion = np.flatnonzero(is_counted), t.completions.c
    if checkpoint is None:
        return len(positions)
    queries = (
        select(func.count()).where(completion.id.in_(ids), completion.checkpoint == checkpoint)
        for ids in in_chunks(votes.first_id[positions].tolist())
    )
    return sum(conn.execute(query).scalar_one() for query in queries)


def count_active_annotators(db: Database, project_id: int, now: float | None = None) -> int:
    """How many people have a pair on screen."""
    query = (
        select(func.count(t.leases.c.annotator.distinct()))
        .join(t.pairs, t.pairs.c.id == t.leases.c.pair_id)
        .where(t.pairs.c.project_id == project_id, t.leases.c.expires_at > (time.time() if now is None else now))
    )
    return db.fetch(query).scalar_one()


def vote_on_lease(
    db: Database, vote: Vote, config: LabellingConfig = DEFAULT_CONFIG, *, now: float | None = None
) -> Vote:
    """Store a person's vote on a pair that was leased to them, and end the lease. A repeated uuid changes nothing.

    The lease determines whether the vote is a hidden repeat or an expert's decision. Raises StaleVoteError if they have already
    voted on the pair, if it was never leased to them, if the lease expired and the pair has all the votes it needs, or if another
    expert has decided it. Raises LabelError without uuid or annotator.
    """
    check_vote(vote)
    now = time.time() if now is None else now
    with db.write() as conn:
        if (existing := vote_by_uuid(conn, vote.uuid)) is not None:
            return existing
        lease_condition = and_(t.leases.c.pair_id == vote.pair_id, t.leases.c.annotator == vote.annotator)
        lease = conn.execute(select(t.leases).where(lease_condition)).one_or_none()
        if lease is None:
            raise StaleVoteError(_not_leased_message(conn, vote))
        if lease.adjudication and not _is_usable(conn, lease, config, now):
            raise StaleVoteError("Another expert has already decided this pair. Your answer was not counted.")
        if not _is_usable(conn, lease, config, now):
            raise StaleVoteError(
                "Your reservation of this pair expired, and others have judged it. Your vote was not counted; here "
                "is the next pair."
            )
        conn.execute(delete(t.leases).where(lease_condition))
        return insert_vote(conn, replace(vote, repeat=lease.repeat, adjudication=lease.adjudication))


def undo_last_vote(
    db: Database,
    project_id: int,
    annotator: str,
    config: LabellingConfig = DEFAULT_CONFIG,
    *,
    now: float | None = None,
    fixed: Collection[int] = (),
) -> Lease | None:
    """Undo this person's last live vote and lease its pair to them again. Returns None if there is nothing to undo.

    An edited answer is undone as a whole, and redone (store/edited_answers.py). fixed: ids of pairs on which their answers stay;
    raises StaleVoteError for these.
    """
    now = time.time() if now is None else now
    with db.write() as conn:
        undone = mark_last_vote_undone(conn, project_id, annotator)
        if undone is None:
            return None
        _check_not_fixed(undone, fixed)
        undone = undo_edited(conn, undone) or undone
        _check_not_fixed(undone, fixed)
        leased_at = _top_of_stack(conn, annotator, now) + STACK_GAP_S
        selected = _Selected(undone.pair_id, undone.repeat, undone.adjudication)
        return _save_stack(conn, [selected], annotator, config, now, leased_at)[0]


def redo_last_vote(db: Database, project_id: int, annotator: str) -> Vote | None:
    """Restore the vote that this person undid last, unless another one was cast since. Returns None if there is nothing to redo.

    A vote that was undone with its import, taken out by the operator, or replaced by another one stays undone.
    """
    with db.write() as conn:
        undone = _last_undone_vote(conn, project_id, annotator)
        if undone is None:
            return None
        conn.execute(delete(t.leases).where(t.leases.c.pair_id == undone.pair_id, t.leases.c.annotator == annotator))
        redo_edit(conn, undone)
        return update_vote(conn, undone.id, undone_at=None)


def what_can_be_undone(db: Database, project_id: int, annotator: str) -> tuple[bool, bool]:
    """Whether there is something to undo, and something to redo."""
    with db.read() as conn:
        is_undoable = last_live_vote(conn, project_id, annotator) is not None
        return is_undoable, _last_undone_vote(conn, project_id, annotator) is not None


def _last_undone_vote(conn: Connection, project_id: int, annotator: str) -> Vote | None:
    """The vote that this person can redo."""
    v, i, newer = t.votes.c, t.imports.c, t.votes.alias("newer").c
    is_replaced = (
        select(newer.id)
        .where(newer.pair_id == v.pair_id, newer.annotator == v.annotator, newer.id > v.id)
        .where(newer.repeat == v.repeat, newer.adjudication == v.adjudication)
        .correlate(t.votes)
        .exists()
    )
    import_was_undone = (
        select(i.id).where(i.id == v.import_id, i.taken_back_at.is_not(None)).correlate(t.votes).exists()
    )
    own_vote = and_(live_pair_of(project_id), v.annotator == annotator, v.source == Source.HUMAN, ~import_was_undone)
    own_votes = select(t.votes).join(t.pairs, t.pairs.c.id == v.pair_id).where(own_vote)
    undone = conn.execute(
        own_votes.where(v.undone_at.is_not(None), v.taken_out.is_(False), ~is_replaced)
        .order_by(v.undone_at.desc(), v.id)
        .limit(1)
    ).first()
    if undone is None:
        return None
    latest = conn.execute(own_votes.with_only_columns(func.max(v.created_at)).where(v.undone_at.is_(None))).scalar()
    if latest is not None and latest >= undone.undone_at:
        return None
    is_voted_again = live_vote(conn, undone.pair_id, annotator, undone.repeat, undone.adjudication) is not None
    return None if is_voted_again else vote_from_row(undone)


def _check_not_fixed(vote: Vote, fixed: Collection[int]) -> None:
    if vote.pair_id in fixed:
        raise StaleVoteError(
            "The reports show how others have answered this pair, so your answer stays as it is. Nothing was changed."
        )


def change_vote(db: Database, project_id: int, vote_id: int, new_vote: Vote, fixed: Collection[int] = ()) -> Vote:
    """Replace a vote by another one on the same pair; the old row stays, marked as undone. A repeated change does nothing.

    Sides and repeat are taken from the old vote. Raises StaleVoteError if this person has no such live vote, if another vote has
    the uuid, and for a vote on the fixed pairs.
    """
    check_vote(new_vote)
    v = t.votes.c
    query = live_votes_query(project_id, Source.HUMAN, v.id)
    with db.write() as conn:
        own_vote = and_(v.id == vote_id, v.annotator == new_vote.annotator)
        existing = vote_by_uuid(conn, new_vote.uuid)
        if existing is not None and existing.id > vote_id and existing.annotator == new_vote.annotator:
            of_same_pair = own_vote, v.pair_id == existing.pair_id, v.repeat == existing.repeat
            if conn.execute(select(v.id).where(*of_same_pair)).first() is not None:
                return existing
        if existing is not None or conn.execute(query.where(own_vote)).scalar() is None:
            raise StaleVoteError("That vote was deleted or undone; nothing was changed. Reload the page.")
        old = update_vote(conn, vote_id, undone_at=time.time())
        _check_not_fixed(old, fixed)
        return insert_vote(
            conn,
            replace(
                new_vote,
                pair_id=old.pair_id,
                first_on_left=old.first_on_left,
                repeat=old.repeat,
                adjudication=old.adjudication,
            ),
        )


def end_leases(db: Database, annotator: str, *, now: float | None = None) -> None:
    """End this person's running leases, because they closed the page: others may get the pairs. A vote on one is still accepted
    while it needs votes, and a page that is opened again shows it again."""
    now = time.time() if now is None else now
    leases = t.leases.c
    with db.write(durable=False) as conn:
        conn.execute(
            update(t.leases).where(leases.annotator == annotator, leases.expires_at > now).values(expires_at=now)
        )


def leased_pairs(db: Database, annotator: str) -> dict[int, bool]:
    """The pairs on which this person can vote because they are or were leased to them -> whether it is a hidden repeat.

    The sides of a hidden repeat are swapped.
    """
    with db.read() as conn:
        return {lease.pair_id: lease.repeat for lease in _own_leases(conn, annotator)}


def _own_leases(conn: Connection, annotator: str) -> Sequence[AnyRow]:
    """This person's leases in all projects, newest first."""
    return conn.execute(_OWN_LEASES, {"annotator": annotator}).all()


def _is_usable(conn: Connection, lease: AnyRow, config: LabellingConfig, now: float) -> bool:
    """Whether a vote on a leased pair is accepted: while the lease runs, and afterwards while the pair needs votes.

    Leases of hidden repeats never become invalid; a decision is accepted until an expert has made one.
    """
    if lease.adjudication:
        query = select(t.leases.c.pair_id).where(t.leases.c.pair_id == lease.pair_id, is_decided(t.leases))
        return conn.execute(query).first() is None
    return bool(lease.expires_at > now or lease.repeat or not has_enough_votes(conn, lease, config, now))


def _top_of_stack(conn: Connection, annotator: str, now: float) -> float:
    """The later of now and the start of this person's newest lease, in case the clock was set back."""
    return max([now, *(float(lease.leased_at) for lease in _own_leases(conn, annotator))])


def _save_stack(
    conn: Connection, stack: list[_Selected], annotator: str, config: LabellingConfig, now: float, top: float
) -> list[Lease]:
    """Start or renew the leases of these pairs, the first on top, and end this person's other running leases, as `end_leases`
    does. top: start of the newest lease."""
    c = t.leases.c
    is_other = and_(c.annotator == annotator, c.expires_at > now, c.pair_id.not_in([item.pair_id for item in stack]))
    conn.execute(update(t.leases).where(is_other).values(expires_at=now))
    return [
        _save_lease(conn, item, annotator, config, now, top - depth * STACK_GAP_S) for depth, item in enumerate(stack)
    ]


def _save_lease(
    conn: Connection, selected: _Selected, annotator: str, config: LabellingConfig, now: float, leased_at: float
) -> Lease:
    """Start or renew a lease. leased_at: determines its position in the stack."""
    expires_at, (pair_id, repeat, adjudication) = now + config.hold_s, selected
    values = {"repeat": repeat, "leased_at": leased_at, "expires_at": expires_at, "adjudication": adjudication}
    if conn.execute(_RENEW_LEASE, values | {"renewed_pair": pair_id, "renewed_by": annotator}).rowcount == 0:
        conn.execute(insert(t.leases), values | {"pair_id": pair_id, "annotator": annotator})
    return Lease(load_pairs(conn, [pair_id])[0], annotator, repeat, expires_at, adjudication)


def _not_leased_message(conn: Connection, vote: Vote) -> str:
    if live_vote(conn, vote.pair_id, vote.annotator) is not None:
        return (
            "You have already voted on this pair, perhaps in another tab: that answer counts, this one does not. "
            "Undo it to change it, or continue."
        )
    return "That pair was not given to you, so the vote was not counted. Reload the page for the next pair."
