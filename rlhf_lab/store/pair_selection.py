"""Which pair a person sees next: a hidden repeat, or one that still wants votes. Conditions and queries for `leases`."""

from sqlalchemy import ColumnElement, Connection, and_, case, func, select

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.store import tables as t

PAIRS_LEFT_FOR_OTHERS = 4  # pairs that stay for others when one is kept for somebody who has one on screen already
REPEAT_AFTER_VOTES = 8  # own votes between the first look at a pair and its hidden repeat


def next_hidden_repeat(
    conn: Connection, project_id: int, annotator: str, config: LabellingConfig, queued_ids: list[int]
) -> int | None:
    """A pair for a second look behind those `previous`; whether one is due is a draw that a reload does not repeat."""
    if config.repeats <= 0:
        return None
    v, repeat_vote = t.votes.c, t.votes.alias("again")
    own_live_vote = and_(
        t.pairs.c.project_id == project_id, v.annotator == annotator, v.source == Source.HUMAN, v.undone_at.is_(None)
    )
    vote_count = conn.execute(
        select(func.count()).select_from(t.votes).join(t.pairs, t.pairs.c.id == v.pair_id).where(own_live_vote)
    ).scalar_one()
    if derive_seed(project_id, "hidden repeat", annotator, vote_count + len(queued_ids)) % 10_000 >= round(
        10_000 * config.repeats
    ):
        return None
    already_repeated = and_(
        repeat_vote.c.pair_id == v.pair_id, repeat_vote.c.annotator == annotator, repeat_vote.c.repeat.is_(True),
        repeat_vote.c.undone_at.is_(None),
    )  # fmt: skip
    newest_vote_ids = (
        select(v.id)
        .join(t.pairs, t.pairs.c.id == v.pair_id)
        .where(own_live_vote)
        .order_by(v.id.desc())
        .limit(REPEAT_AFTER_VOTES)
    )
    query = (
        select(v.pair_id)
        .join(t.pairs, t.pairs.c.id == v.pair_id)
        .where(
            own_live_vote, v.repeat.is_(False), v.choice != Choice.SKIP, v.id.not_in(newest_vote_ids),
            *([v.pair_id.not_in(queued_ids)] if queued_ids else []),
            ~select(repeat_vote.c.id).where(already_repeated).exists(),
        )
        .order_by(v.id)
        .limit(1)
    )  # fmt: skip
    pair_id: int | None = conn.execute(query).scalar()
    return pair_id


def next_open_pair(
    conn: Connection, project_id: int, annotator: str, config: LabellingConfig, queued_ids: list[int], now: float
) -> int | None:
    vote_and_lease_count, v = votes_and_leases(annotator, now), t.votes.c
    enough = vote_and_lease_count >= config.overlap
    skipped = and_(v.pair_id == t.pairs.c.id, v.choice == Choice.SKIP, v.source == Source.HUMAN, v.undone_at.is_(None))
    skip_count = select(func.count()).select_from(t.votes).where(skipped).correlate(t.pairs).scalar_subquery()
    age_order = t.pairs.c.id.desc() if config.texts == "policy" else t.pairs.c.id
    query = (
        select(t.pairs.c.id)
        .where(unvoted_by(project_id, annotator))
        .order_by(
            case((enough, 1), else_=0),
            skip_count,
            case((enough, vote_and_lease_count), else_=-vote_and_lease_count),
            age_order,
        )
    )
    if queued_ids:
        query = query.where(t.pairs.c.id.not_in(queued_ids), ~enough)
    pair_ids = conn.execute(query.limit(1 + PAIRS_LEFT_FOR_OTHERS if queued_ids else 1)).scalars().all()
    return None if len(pair_ids) <= (PAIRS_LEFT_FOR_OTHERS if queued_ids else 0) else pair_ids[0]


def unvoted_by(project_id: int, annotator: str) -> ColumnElement[bool]:
    v = t.votes.c
    own_live_vote = and_(v.pair_id == t.pairs.c.id, v.annotator == annotator, v.undone_at.is_(None))
    in_project = and_(t.pairs.c.project_id == project_id, t.pairs.c.taken_back_at.is_(None))
    return and_(in_project, ~select(v.id).where(own_live_vote).correlate(t.pairs).exists())


def votes_and_leases(annotator: str, now: float) -> ColumnElement[int]:
    """Of the pair in the query around it: votes of people that say something, and leases of others that still run."""
    v, lease_cols = t.votes.c, t.leases.c
    counted_vote = and_(
        v.pair_id == t.pairs.c.id, v.source == Source.HUMAN, v.undone_at.is_(None), v.repeat.is_(False),
        v.choice != Choice.SKIP,
    )  # fmt: skip
    other_lease = and_(
        lease_cols.pair_id == t.pairs.c.id,
        lease_cols.annotator != annotator,
        lease_cols.expires_at > now,
        lease_cols.repeat.is_(False),
    )
    vote_count = select(func.count()).select_from(t.votes).where(counted_vote).correlate(t.pairs).scalar_subquery()
    lease_count = select(func.count()).select_from(t.leases).where(other_lease).correlate(t.pairs).scalar_subquery()
    return vote_count + lease_count


def has_enough_votes(conn: Connection, pair_id: int, annotator: str, config: LabellingConfig, now: float) -> bool:
    query = (
        select(votes_and_leases(annotator, now) >= config.overlap).select_from(t.pairs).where(t.pairs.c.id == pair_id)
    )
    return bool(conn.execute(query).scalar())
