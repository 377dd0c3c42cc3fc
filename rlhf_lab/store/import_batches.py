"""Lists the imports of a project and undoes an import.

Nothing is deleted: votes and pairs are marked as undone, so that the labels of trained reward models are kept. A pair is undone
if its import is undone and it has no other live vote. The work is done in chunks with pauses, so that people can vote in
between.
"""

import time
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, ScalarSelect, Table, and_, delete, func, or_, select, update

from rlhf_lab.errors import StoreError
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import FIRST_COMPLETION

CHUNK_SIZE = 200  # votes per transaction: takes about 40 ms, and is small enough for `IN (…)`
#: Processes that wait for SQLite's lock poll it, at worst every 0.1 s, so a pause of this length lets them acquire it. Without
#: pauses they would wait for seconds.
CHUNK_PAUSE_S = 0.1


@dataclass(frozen=True)
class ImportRecord:
    """An imported file. who: the person who imported it, "" if unknown. votes_left, pairs_left: numbers of live ones.

    taken_back_at: when its undo began. If votes or prompts are left, the undo was interrupted and can be repeated.
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
class ImportUndo:
    """The effects of undoing an import, as numbers of rows.

    votes, pairs: that are undone. staying: pairs of the import that stay because of other votes. prompts: for which no more texts
    are sampled. models: reward models that were trained on its votes; they are kept.
    """

    votes: int
    pairs: int
    staying: int
    prompts: int
    models: int


def project_imports(db: Database, project_id: int) -> list[ImportRecord]:
    """The imports of a project, newest first."""
    v, p, i = t.votes.c, t.pairs.c, t.imports.c
    import_ids = select(i.id).where(i.project_id == project_id)
    live_votes, live_pairs = func.count().filter(v.undone_at.is_(None)), func.count().filter(p.taken_back_at.is_(None))
    votes = select(v.import_id, func.count(), live_votes).where(v.import_id.in_(import_ids)).group_by(v.import_id)
    pairs = select(p.import_id, func.count(), live_pairs).where(p.import_id.in_(import_ids)).group_by(p.import_id)
    with db.read() as conn:
        rows = conn.execute(select(t.imports).where(i.project_id == project_id).order_by(i.id.desc())).all()
        vote_counts, pair_counts = ({entry[0]: entry[1:] for entry in conn.execute(query)} for query in (votes, pairs))
    return [
        ImportRecord(
            row.id,
            project_id,
            row.name,
            row.who,
            row.created_at,
            row.taken_back_at,
            *vote_counts.get(row.id, (0, 0)),
            *pair_counts.get(row.id, (0, 0)),
        )
        for row in rows
    ]


def preview_undo(db: Database, project_id: int, import_id: int) -> ImportUndo:
    """The effects that `undo_import` would have. Raises StoreError if there is no such import or it is already undone."""
    with db.read() as conn:
        _check_undoable(conn, project_id, import_id)
        return _preview_undo(conn, project_id, import_id)


def undo_import(db: Database, project_id: int, import_id: int) -> ImportUndo:
    """Undo an import. After an interruption, call it again. Raises StoreError like `preview_undo`."""
    models = preview_undo(db, project_id, import_id).models
    with db.write() as conn:
        _check_undoable(conn, project_id, import_id)
        # Running imports, possibly this one, see this and stop, because rows that they rely on may be undone.
        conn.execute(update(t.imports).where(t.imports.c.id == import_id).values(taken_back_at=time.time()))
    votes = pairs = prompts = after_id = 0
    while True:
        time.sleep(CHUNK_PAUSE_S)
        with db.write() as conn:
            processed, undone = _undo_prompts_chunk(conn, import_id)
        prompts += undone
        if not processed:
            break
    while True:
        with db.write() as conn:
            after_id, chunk_votes, chunk_pairs = _undo_votes_chunk(conn, import_id, after_id)
            if not after_id:
                remaining_pairs = _count(
                    conn, t.pairs, t.pairs.c.import_id == import_id, t.pairs.c.taken_back_at.is_(None)
                )
                return ImportUndo(votes, pairs, remaining_pairs, prompts, models)
        votes, pairs = votes + chunk_votes, pairs + chunk_pairs
        time.sleep(CHUNK_PAUSE_S)


def _check_undoable(conn: Connection, project_id: int, import_id: int) -> None:
    i, v = t.imports.c, t.votes.c
    row = conn.execute(select(t.imports).where(i.id == import_id, i.project_id == project_id)).one_or_none()
    if row is None:
        raise StoreError(f"Project {project_id} has no import {import_id}. Check the list of imports.")
    has_leftovers = or_(
        _exists(t.votes, v.import_id == import_id, v.undone_at.is_(None)),
        _exists(t.prompts, _owned_by_import(import_id)),
    )
    if row.taken_back_at is not None and not conn.execute(select(has_leftovers)).scalar():
        raise StoreError(f"The import of {row.name} has already been undone.")


def _preview_undo(conn: Connection, project_id: int, import_id: int) -> ImportUndo:
    v, p = t.votes.c, t.pairs.c
    live_vote = and_(v.import_id == import_id, v.undone_at.is_(None))
    affected_pair = or_(
        p.import_id == import_id, and_(_is_undone(p.import_id), p.id.in_(select(v.pair_id).where(live_vote)))
    )
    voted_by_others = _has_live_vote(v.import_id.is_distinct_from(import_id))
    live_affected_pair = and_(affected_pair, p.taken_back_at.is_(None))
    return ImportUndo(
        votes=_count(conn, t.votes, live_vote),
        pairs=_count(conn, t.pairs, live_affected_pair, ~voted_by_others),
        staying=_count(conn, t.pairs, p.import_id == import_id, p.taken_back_at.is_(None), voted_by_others),
        prompts=_count(conn, t.prompts, _owned_by_import(import_id), _successor_import(import_id).is_(None)),
        models=_count_models_trained_on(conn, project_id, import_id),
    )


def _undo_prompts_chunk(conn: Connection, import_id: int) -> tuple[int, int]:
    """Returns the number of processed prompts, and of those for which no more texts are sampled.

    The remaining ones are assigned to another import.
    """
    p = t.prompts.c
    ids = conn.execute(select(p.id).where(_owned_by_import(import_id)).limit(CHUNK_SIZE)).scalars().all()
    successor = _successor_import(import_id)
    conn.execute(update(t.prompts).where(p.id.in_(ids)).values(import_id=successor, labels_only=successor.is_(None)))
    return len(ids), _count(conn, t.prompts, p.id.in_(ids), p.labels_only.is_(True))


def _undo_votes_chunk(conn: Connection, import_id: int, after_id: int) -> tuple[int, int, int]:
    """Returns the id of the last processed vote (0 if there are none left), and the numbers of undone votes and pairs."""
    v, p, now = t.votes.c, t.pairs.c, time.time()
    query = select(v.id, v.pair_id).where(v.import_id == import_id, v.id > after_id).order_by(v.id).limit(CHUNK_SIZE)
    rows = conn.execute(query).all()
    ids, pair_ids = [row.id for row in rows], sorted({row.pair_id for row in rows})
    votes = conn.execute(update(t.votes).where(v.id.in_(ids), v.undone_at.is_(None)).values(undone_at=now)).rowcount
    orphaned_pair = and_(p.id.in_(pair_ids), p.taken_back_at.is_(None), _is_undone(p.import_id), ~_has_live_vote())
    pairs = conn.execute(update(t.pairs).where(orphaned_pair).values(taken_back_at=now)).rowcount
    undone_pair_ids = select(p.id).where(p.id.in_(pair_ids), p.taken_back_at.is_not(None))
    conn.execute(delete(t.leases).where(t.leases.c.pair_id.in_(undone_pair_ids)))
    for side in (p.first_id, p.second_id):
        completion_ids = select(side).where(p.id.in_(undone_pair_ids))
        conn.execute(delete(t.features).where(t.features.c.completion_id.in_(completion_ids)))
    return max(ids, default=0), votes, pairs


def _count_models_trained_on(conn: Connection, project_id: int, import_id: int) -> int:
    """How many reward models were trained on votes of the import."""
    m = t.reward_models.c
    vote_ids = set(conn.execute(select(t.votes.c.id).where(t.votes.c.import_id == import_id)).scalars())
    pinned_vote_ids = conn.execute(select(m.vote_ids).where(m.project_id == project_id)).scalars()
    return sum(not vote_ids.isdisjoint(model_vote_ids) for model_vote_ids in pinned_vote_ids)


def _owned_by_import(import_id: int) -> ColumnElement[bool]:
    """Condition for prompts for which texts are sampled because of this import."""
    return t.prompts.c.import_id == import_id


def _successor_import(import_id: int) -> ScalarSelect[int | None]:
    """For the prompt of the enclosing query: another import that needs texts for it and has live votes on it, or NULL."""
    v, p, i = t.votes.c, t.pairs.c, t.imports.c
    return (
        select(func.max(i.id))
        .join(t.votes, v.import_id == i.id)
        .join(t.pairs, p.id == v.pair_id)
        .join(FIRST_COMPLETION, FIRST_COMPLETION.c.id == p.first_id)
        .where(FIRST_COMPLETION.c.prompt_id == t.prompts.c.id, v.undone_at.is_(None))
        .where(i.id != import_id, i.use_prompts.is_(True), i.taken_back_at.is_(None))
        .correlate(t.prompts)
        .scalar_subquery()
    )


def _is_undone(import_id: ColumnElement[int]) -> ColumnElement[bool]:
    return import_id.in_(select(t.imports.c.id).where(t.imports.c.taken_back_at.is_not(None)))


def _has_live_vote(*conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether the pair of the enclosing query has a live vote."""
    v = t.votes.c
    return select(v.id).where(v.pair_id == t.pairs.c.id, v.undone_at.is_(None), *conditions).correlate(t.pairs).exists()


def _exists(table: Table, *conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    return select(table.c.id).where(*conditions).exists()


def _count(conn: Connection, table: Table, *conditions: ColumnElement[bool]) -> int:
    return conn.execute(select(func.count()).select_from(table).where(*conditions)).scalar_one()
