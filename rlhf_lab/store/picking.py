"""Which pair a person sees next: a hidden repeat, or one that still wants votes. Conditions and queries for `leases`."""

from sqlalchemy import ColumnElement, Connection, and_, case, func, select

from rlhf_lab.kinds import Choice, Source
from rlhf_lab.labelling import LabellingConfig
from rlhf_lab.seeds import derive
from rlhf_lab.store import tables as t

SPARE = 4  # pairs that stay for others when one is kept for somebody who has one on screen already
REPEAT_AFTER = 8  # own votes between the first look at a pair and its hidden repeat


def repeat_due(
    conn: Connection, project_id: int, annotator: str, config: LabellingConfig, before: list[int]
) -> int | None:
    """A pair for a second look behind those `before`; whether one is due is a draw that a reload does not repeat."""
    if config.repeats <= 0:
        return None
    v, again = t.votes.c, t.votes.alias("again")
    mine = and_(
        t.pairs.c.project_id == project_id, v.annotator == annotator, v.source == Source.HUMAN, v.undone_at.is_(None)
    )
    count = conn.execute(
        select(func.count()).select_from(t.votes).join(t.pairs, t.pairs.c.id == v.pair_id).where(mine)
    ).scalar_one()
    if derive(project_id, "hidden repeat", annotator, count + len(before)) % 10_000 >= round(10_000 * config.repeats):
        return None
    seen = and_(
        again.c.pair_id == v.pair_id, again.c.annotator == annotator, again.c.repeat.is_(True),
        again.c.undone_at.is_(None),
    )  # fmt: skip
    newest = select(v.id).join(t.pairs, t.pairs.c.id == v.pair_id).where(mine).order_by(v.id.desc()).limit(REPEAT_AFTER)
    query = (
        select(v.pair_id)
        .join(t.pairs, t.pairs.c.id == v.pair_id)
        .where(
            mine, v.repeat.is_(False), v.choice != Choice.SKIP, v.id.not_in(newest),
            *([v.pair_id.not_in(before)] if before else []),
            ~select(again.c.id).where(seen).exists(),
        )
        .order_by(v.id)
        .limit(1)
    )  # fmt: skip
    found: int | None = conn.execute(query).scalar()
    return found


def next_wanted(
    conn: Connection, project_id: int, annotator: str, config: LabellingConfig, before: list[int], now: float
) -> int | None:
    held, v = taken(annotator, now), t.votes.c
    enough = held >= config.overlap
    skipped = and_(v.pair_id == t.pairs.c.id, v.choice == Choice.SKIP, v.source == Source.HUMAN, v.undone_at.is_(None))
    skips = select(func.count()).select_from(t.votes).where(skipped).correlate(t.pairs).scalar_subquery()
    order = t.pairs.c.id.desc() if config.texts == "policy" else t.pairs.c.id
    query = (
        select(t.pairs.c.id)
        .where(unseen(project_id, annotator))
        .order_by(case((enough, 1), else_=0), skips, case((enough, held), else_=-held), order)
    )
    if before:
        query = query.where(t.pairs.c.id.not_in(before), ~enough)
    found = conn.execute(query.limit(1 + SPARE if before else 1)).scalars().all()
    return None if len(found) <= (SPARE if before else 0) else found[0]


def unseen(project_id: int, annotator: str) -> ColumnElement[bool]:
    v = t.votes.c
    mine = and_(v.pair_id == t.pairs.c.id, v.annotator == annotator, v.undone_at.is_(None))
    here = and_(t.pairs.c.project_id == project_id, t.pairs.c.taken_back_at.is_(None))
    return and_(here, ~select(v.id).where(mine).correlate(t.pairs).exists())


def taken(annotator: str, now: float) -> ColumnElement[int]:
    """Of the pair in the query around it: votes of people that say something, and leases of others that still run."""
    v, own = t.votes.c, t.leases.c
    said = and_(
        v.pair_id == t.pairs.c.id, v.source == Source.HUMAN, v.undone_at.is_(None), v.repeat.is_(False),
        v.choice != Choice.SKIP,
    )  # fmt: skip
    kept = and_(own.pair_id == t.pairs.c.id, own.annotator != annotator, own.expires_at > now, own.repeat.is_(False))
    votes = select(func.count()).select_from(t.votes).where(said).correlate(t.pairs).scalar_subquery()
    leases = select(func.count()).select_from(t.leases).where(kept).correlate(t.pairs).scalar_subquery()
    return votes + leases


def full(conn: Connection, pair_id: int, annotator: str, config: LabellingConfig, now: float) -> bool:
    query = select(taken(annotator, now) >= config.overlap).select_from(t.pairs).where(t.pairs.c.id == pair_id)
    return bool(conn.execute(query).scalar())
