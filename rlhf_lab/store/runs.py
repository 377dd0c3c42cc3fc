"""Policy runs, and the events (controls, changed settings) that people and the engine record for them."""

import threading
import time
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import ColumnElement, Connection, delete, select, update

from rlhf_lab.common.enums import EventKind, RunStatus
from rlhf_lab.common.program_names import lab_command
from rlhf_lab.common.records import Run, RunEvent
from rlhf_lab.errors import StoreError
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, insert_row


def create_run(
    db: Database,
    project_id: int,
    reward_model_id: int | None,
    name: str,
    *,
    config: dict[str, Any],
    manifest: dict[str, Any],
    total_steps: int,
) -> Run:
    """Add a queued run at step 0. Ids are never reused, not even after a run was deleted."""
    now = time.time()
    values: dict[str, Any] = {
        "project_id": project_id,
        "reward_model_id": reward_model_id,
        "name": name,
        "status": RunStatus.QUEUED,
        "config": config,
        "manifest": manifest,
        "step": 0,
        "total_steps": total_steps,
        "message": "",
        "created_at": now,
        "updated_at": now,
    }
    with db.write() as conn:
        return Run(id=insert_row(conn, t.runs, values), **values)


def get_run(db: Database, run_id: int, *, made_elsewhere: bool = False) -> Run:
    """A run. Raises StoreError if there is none, and for one that was made elsewhere unless that is allowed."""
    row = db.fetch(select(t.runs).where(t.runs.c.id == run_id)).one_or_none()
    if row is None:
        raise no_such_run(run_id)
    run = Run(**row._mapping)
    if run.outside_file and not made_elsewhere:
        raise StoreError(
            f"Run {run_id} was made elsewhere ({run.outside_file}): the lab has its metrics and no model. It can be compared "
            "under Runs & data. Choose a run of the lab."
        )
    return run


_LOCK = threading.Lock()
#: The runs of each database and project as they were last read, by id.
_KNOWN: "WeakKeyDictionary[Database, dict[int | None, dict[int, Run]]]" = WeakKeyDictionary()
MAX_READ_BY_ID = 100


def runs(db: Database, project_id: int | None = None, *, made_elsewhere: bool = False) -> list[Run]:
    """The runs of one project, or of all (None), newest first. made_elsewhere: also those of which there are only metrics.

    Every open page asks once a second, so only the runs that have changed since are read in full.
    """
    r = t.runs.c
    of_project = [] if project_id is None else [r.project_id == project_id]
    stamps = db.fetch(select(r.id, r.updated_at).where(*of_project).order_by(r.id.desc()))
    changed_at = {row.id: row.updated_at for row in stamps}
    with _LOCK:
        found = {
            i: run for i, run in _KNOWN.get(db, {}).get(project_id, {}).items() if changed_at.get(i) == run.updated_at
        }
    if missing := [i for i in changed_at if i not in found]:
        chosen = [r.id.in_(missing)] if len(missing) <= MAX_READ_BY_ID else of_project
        found |= {row.id: Run(**row._mapping) for row in db.fetch(select(t.runs).where(*chosen))}
    with _LOCK:
        _KNOWN.setdefault(db, {})[project_id] = found
    listed = [found[i] for i in changed_at if i in found]  # others were deleted in between
    return [run for run in listed if made_elsewhere or not run.outside_file]


def set_run_status(db: Database, run_id: int, status: RunStatus, message: str = "") -> None:
    with db.write() as conn:
        update_run(conn, run_id, status=status, message=message)


def set_manifest(db: Database, run_id: int, manifest: dict[str, Any]) -> None:
    """Replace the manifest; the engine adds device, threads and versions to it."""
    with db.write() as conn:
        update_run(conn, run_id, manifest=manifest)


def rename_run(db: Database, run_id: int, name: str) -> None:
    with db.write() as conn:
        update_run(conn, run_id, name=name)


def delete_run(db: Database, run_id: int) -> None:
    """Delete a run's rows, with its steps and events, but not its files and the completions that it sampled.

    Raises StoreError if it is running or paused.
    """
    with db.write() as conn:
        status = conn.execute(select(t.runs.c.status).where(t.runs.c.id == run_id)).scalar()
        if status is None:
            raise no_such_run(run_id)
        if status in (RunStatus.RUNNING, RunStatus.PAUSED):
            raise StoreError(f"Run {run_id} is {status}: stop it before you delete it.")
        conn.execute(delete(t.runs).where(t.runs.c.id == run_id))  # deletes steps and events too: ON DELETE CASCADE


def update_run(conn: Connection, run_id: int, **values: Any) -> None:
    """Update a run's row inside the caller's transaction. Raises StoreError if there is no such run."""
    result = conn.execute(update(t.runs).where(t.runs.c.id == run_id).values(**values, updated_at=time.time()))
    if result.rowcount == 0:
        raise no_such_run(run_id)


def no_such_run(run_id: int) -> StoreError:
    return StoreError(f"There is no run {run_id}; it may have been deleted. To list the runs: {lab_command()} runs")


def add_event(
    db: Database, run_id: int, kind: EventKind, payload: dict[str, Any], applied_step: int | None = None
) -> RunEvent:
    """Record an event; the engine reads it with `pending_events`, unless it is applied already."""
    with db.write() as conn:
        if conn.execute(select(t.runs.c.id).where(t.runs.c.id == run_id)).scalar() is None:
            raise no_such_run(run_id)
        values: dict[str, Any] = {
            "run_id": run_id, "kind": kind, "payload": payload, "created_at": time.time(), "applied_step": applied_step,
        }  # fmt: skip
        return RunEvent(id=insert_row(conn, t.run_events, values), **values)


def events(db: Database, run_id: int) -> list[RunEvent]:
    """All events of a run, oldest first."""
    return _read_events(db, t.run_events.c.run_id == run_id)


def pending_events(db: Database, run_id: int) -> list[RunEvent]:
    """Events that the engine has not applied yet, oldest first."""
    return _read_events(db, t.run_events.c.run_id == run_id, t.run_events.c.applied_step.is_(None))


def mark_event_applied(db: Database, event_id: int, applied_step: int) -> None:
    """Record that the engine applied the event before this step. An existing record is kept: replays use the same step."""
    not_applied = (t.run_events.c.id == event_id) & t.run_events.c.applied_step.is_(None)
    with db.write() as conn:
        conn.execute(update(t.run_events).where(not_applied).values(applied_step=applied_step))


def add_note(db: Database, run_id: int, message: str, step: int, **payload: int) -> RunEvent:
    """Add a line to the run's history, as of a step."""
    return add_event(db, run_id, EventKind.NOTE, {"words": message, **payload}, step)


def _read_events(db: Database, *conditions: ColumnElement[bool]) -> list[RunEvent]:
    query = select(t.run_events).where(*conditions).order_by(t.run_events.c.id)
    return [RunEvent(**row._mapping) for row in db.fetch(query)]
