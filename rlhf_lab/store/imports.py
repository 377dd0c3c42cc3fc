"""What imports brought into a project, and how one is taken back.

Nothing is deleted: votes are marked as undone, as a person's own are, and pairs as taken back, so that reward models keep the
labels they pinned. A pair goes when its import is taken back and no live vote of anybody else is on it. In pieces, with rests
between them, so that whoever votes meanwhile hardly waits.
"""

import time
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, ScalarSelect, Table, and_, delete, func, or_, select, update

from rlhf_lab.errors import StoreError
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import FIRST

PIECE = 200  # votes written at once: some 40 ms, and few enough for an `IN (…)`
#: Between two pieces. Whoever waits for SQLite's lock sleeps and looks again, every 0.1 s at the latest: a gap as long as that
#: is theirs, where an import without gaps would keep them out for seconds.
REST_S = 0.1


@dataclass(frozen=True)
class Import:
    """A file of preferences that was taken in. who: "" where nobody said. left: what of it still counts.

    taken_back_at: when it was taken back; where votes or pairs are left since, that was cut off and can be done again.
    """

    id: int
    project_id: int
    name: str
    who: str
    created_at: float
    taken_back_at: float | None
    votes: int
    votes_left: int
    pairs: int
    pairs_left: int


@dataclass(frozen=True)
class TakenBack:
    """What goes with an import. staying: its pairs that others' votes are on; prompts: no longer written texts for; models:
    reward models that have learnt from its votes."""

    votes: int
    pairs: int
    staying: int
    prompts: int
    models: int


def imports_of(db: Database, project_id: int) -> list[Import]:
    """The imports of a project, newest first."""
    v, p, i = t.votes.c, t.pairs.c, t.imports.c
    mine = select(i.id).where(i.project_id == project_id)
    live, there = func.count().filter(v.undone_at.is_(None)), func.count().filter(p.taken_back_at.is_(None))
    votes = select(v.import_id, func.count(), live).where(v.import_id.in_(mine)).group_by(v.import_id)
    pairs = select(p.import_id, func.count(), there).where(p.import_id.in_(mine)).group_by(p.import_id)
    with db.read() as conn:
        rows = conn.execute(select(t.imports).where(i.project_id == project_id).order_by(i.id.desc())).all()
        of_votes, of_pairs = ({one[0]: one[1:] for one in conn.execute(query)} for query in (votes, pairs))
    return [
        Import(
            row.id, project_id, row.name, row.who, row.created_at, row.taken_back_at,
            *of_votes.get(row.id, (0, 0)), *of_pairs.get(row.id, (0, 0)),
        )
        for row in rows
    ]  # fmt: skip


def what_goes(db: Database, project_id: int, import_id: int) -> TakenBack:
    """What would go with an import. StoreError: the project has no such import, or it is taken back already."""
    with db.read() as conn:
        _known(conn, project_id, import_id)
        return _what_goes(conn, project_id, import_id)


def take_back(db: Database, project_id: int, import_id: int) -> TakenBack:
    """Take an import back and say what went. Cut off, it is done again for the rest. StoreError: as `what_goes`."""
    models = what_goes(db, project_id, import_id).models
    with db.write() as conn:
        _known(conn, project_id, import_id)
        # Imports that go on see this and end, this one too if it is one of them: what they took for held may be going.
        conn.execute(update(t.imports).where(t.imports.c.id == import_id).values(taken_back_at=time.time()))
    votes = pairs = prompts = after = 0
    while True:
        time.sleep(REST_S)
        with db.write() as conn:
            found, gone = _prompts_piece(conn, import_id)
        prompts += gone
        if not found:
            break
    while True:
        with db.write() as conn:
            after, votes_here, pairs_here = _votes_piece(conn, import_id, after)
            if not after:
                staying = _count(conn, t.pairs, t.pairs.c.import_id == import_id, t.pairs.c.taken_back_at.is_(None))
                return TakenBack(votes, pairs, staying, prompts, models)
        votes, pairs = votes + votes_here, pairs + pairs_here
        time.sleep(REST_S)


def _known(conn: Connection, project_id: int, import_id: int) -> None:
    i, v = t.imports.c, t.votes.c
    row = conn.execute(select(t.imports).where(i.id == import_id, i.project_id == project_id)).one_or_none()
    if row is None:
        raise StoreError(f"Project {project_id} has no import {import_id}. Look at the list of imports again.")
    left = or_(_exists(t.votes, v.import_id == import_id, v.undone_at.is_(None)), _exists(t.prompts, _own(import_id)))
    if row.taken_back_at is not None and not conn.execute(select(left)).scalar():
        raise StoreError(f"The import of {row.name} was taken back already; nothing of it is left to take.")


def _what_goes(conn: Connection, project_id: int, import_id: int) -> TakenBack:
    v, p = t.votes.c, t.pairs.c
    here = and_(v.import_id == import_id, v.undone_at.is_(None))
    mine = or_(p.import_id == import_id, and_(_ended(p.import_id), p.id.in_(select(v.pair_id).where(here))))
    kept = _voted_on(v.import_id.is_distinct_from(import_id))
    there = and_(mine, p.taken_back_at.is_(None))
    return TakenBack(
        votes=_count(conn, t.votes, here),
        pairs=_count(conn, t.pairs, there, ~kept),
        staying=_count(conn, t.pairs, p.import_id == import_id, p.taken_back_at.is_(None), kept),
        prompts=_count(conn, t.prompts, _own(import_id), _heir(import_id).is_(None)),
        models=_models(conn, project_id, import_id),
    )


def _prompts_piece(conn: Connection, import_id: int) -> tuple[int, int]:
    """(Prompts looked at, those among them that no longer get texts). The others go on as the prompts of another import."""
    p = t.prompts.c
    ids = conn.execute(select(p.id).where(_own(import_id)).limit(PIECE)).scalars().all()
    heir = _heir(import_id)
    conn.execute(update(t.prompts).where(p.id.in_(ids)).values(import_id=heir, labels_only=heir.is_(None)))
    return len(ids), _count(conn, t.prompts, p.id.in_(ids), p.labels_only.is_(True))


def _votes_piece(conn: Connection, import_id: int, after: int) -> tuple[int, int, int]:
    """(The last vote looked at, 0 behind the end; the votes and the pairs that went)."""
    v, p, now = t.votes.c, t.pairs.c, time.time()
    query = select(v.id, v.pair_id).where(v.import_id == import_id, v.id > after).order_by(v.id).limit(PIECE)
    rows = conn.execute(query).all()
    ids, places = [row.id for row in rows], sorted({row.pair_id for row in rows})
    votes = conn.execute(update(t.votes).where(v.id.in_(ids), v.undone_at.is_(None)).values(undone_at=now)).rowcount
    here = and_(p.id.in_(places), p.taken_back_at.is_(None), _ended(p.import_id), ~_voted_on())
    pairs = conn.execute(update(t.pairs).where(here).values(taken_back_at=now)).rowcount
    gone = select(p.id).where(p.id.in_(places), p.taken_back_at.is_not(None))
    conn.execute(delete(t.leases).where(t.leases.c.pair_id.in_(gone)))
    return max(ids, default=0), votes, pairs


def _models(conn: Connection, project_id: int, import_id: int) -> int:
    """How many reward models have learnt from its votes."""
    m = t.reward_models.c
    ids = set(conn.execute(select(t.votes.c.id).where(t.votes.c.import_id == import_id)).scalars())
    pinned = conn.execute(select(m.vote_ids).where(m.project_id == project_id)).scalars()
    return sum(not ids.isdisjoint(votes) for votes in pinned)


def _own(import_id: int) -> ColumnElement[bool]:
    """Prompts that this import made the project's own."""
    return t.prompts.c.import_id == import_id


def _heir(import_id: int) -> ScalarSelect[int | None]:
    """Of the prompt in the query around it: another import that wants texts for it and has live votes there; or NULL."""
    v, p, i = t.votes.c, t.pairs.c, t.imports.c
    return (
        select(func.max(i.id))
        .join(t.votes, v.import_id == i.id)
        .join(t.pairs, p.id == v.pair_id)
        .join(FIRST, FIRST.c.id == p.first_id)
        .where(FIRST.c.prompt_id == t.prompts.c.id, v.undone_at.is_(None))
        .where(i.id != import_id, i.use_prompts.is_(True), i.taken_back_at.is_(None))
        .correlate(t.prompts)
        .scalar_subquery()
    )


def _ended(import_id: ColumnElement[int]) -> ColumnElement[bool]:
    return import_id.in_(select(t.imports.c.id).where(t.imports.c.taken_back_at.is_not(None)))


def _voted_on(*which: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether the pair in the query around it has a live vote."""
    v = t.votes.c
    return select(v.id).where(v.pair_id == t.pairs.c.id, v.undone_at.is_(None), *which).correlate(t.pairs).exists()


def _exists(table: Table, *which: ColumnElement[bool]) -> ColumnElement[bool]:
    return select(table.c.id).where(*which).exists()


def _count(conn: Connection, table: Table, *which: ColumnElement[bool]) -> int:
    return conn.execute(select(func.count()).select_from(table).where(*which)).scalar_one()
