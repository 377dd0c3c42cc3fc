"""The job queue between the page and the engine.

queued ──claim──▶ running ──finish / fail──▶ done / failed
   ▲                 │  └──────cancel──────▶ cancelled       (also from queued)
   └─requeue_interrupted (the engine has died; failed after five interruptions without progress)
"""

import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, case, delete, false, select, update

from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, JobKind, JobStatus
from rlhf_lab.common.records import Job
from rlhf_lab.errors import NotFoundError
from rlhf_lab.jobs.engine_process import engine_from_row, is_gone
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, insert_row
from rlhf_lab.store.projects import CURRENT_PROJECT_QUERY

MAX_ATTEMPTS = 5  # interruptions in a row without progress


def submit(db: Database, kind: JobKind, project_id: int | None, payload: dict[str, Any]) -> Job:
    """Queue a job."""
    with db.write() as conn:
        return _submit(conn, kind, project_id, payload)


def submit_once(
    db: Database, kind: JobKind, project_id: int, payload: dict[str, Any], last_known_id: int | None = None
) -> Job:
    """Queue a job, unless the project has an unfinished one of this kind: then that one is returned. Safe between processes.

    last_known_id: a job of this kind with a greater id is returned too, even if it has ended. None: ended jobs do not count.
    """
    is_unfinished = t.jobs.c.status.in_(UNFINISHED_JOB_STATUSES)
    is_newer = t.jobs.c.id > last_known_id if last_known_id is not None else false()
    query = select(t.jobs).where(t.jobs.c.kind == kind, t.jobs.c.project_id == project_id, is_unfinished | is_newer)
    with db.write() as conn:
        row = conn.execute(query.order_by(t.jobs.c.id)).first()
        return _submit(conn, kind, project_id, payload) if row is None else _job_from_row(row)


def submit_run_once(db: Database, project_id: int, payload: dict[str, Any]) -> Job:
    """Queue the training of the run payload["run_id"], or return its unfinished job if there is one. Safe between processes."""
    j = t.jobs.c
    query = select(t.jobs).where(j.kind == JobKind.TRAIN_POLICY, j.status.in_(UNFINISHED_JOB_STATUSES)).order_by(j.id)
    with db.write() as conn:
        unfinished = map(_job_from_row, conn.execute(query).all())
        job = next((job for job in unfinished if job.payload.get("run_id") == payload["run_id"]), None)
        return job or _submit(conn, JobKind.TRAIN_POLICY, project_id, payload)


def _submit(conn: Connection, kind: JobKind, project_id: int | None, payload: dict[str, Any]) -> Job:
    now = time.time()
    values = {
        "kind": kind,
        "status": JobStatus.QUEUED,
        "project_id": project_id,
        "payload": payload,
        "error": "",
        "progress": 0.0,
        "best_progress": 0.0,
        "attempts": 0,
        "created_at": now,
        "updated_at": now,
    }
    job_id = insert_row(conn, t.jobs, values)
    return _job_from_row(conn.execute(select(t.jobs).where(t.jobs.c.id == job_id)).one())


def claim(db: Database, kinds: Sequence[JobKind], engine_id: int, project_id: int | None = None) -> Job | None:
    """Claim the oldest queued job of these kinds for this engine, which sets it to running. None if there is none.

    Jobs of the open project come before those of others. Only one engine can claim a job. project_id: only jobs of this project.
    """
    is_queued = t.jobs.c.status == JobStatus.QUEUED
    open_project = CURRENT_PROJECT_QUERY.with_only_columns(t.projects.c.id).scalar_subquery()
    order = case((t.jobs.c.project_id == open_project, 0), else_=1)
    query = select(t.jobs.c.id).where(is_queued, t.jobs.c.kind.in_(kinds)).order_by(order, t.jobs.c.id).limit(1)
    if project_id is not None:
        query = query.where(t.jobs.c.project_id == project_id)
    if db.fetch(query).scalar() is None:
        return None  # the usual case, many times a second: no need to wait for the write lock
    with db.write() as conn:
        job_id = conn.execute(query).scalar()
        if job_id is None:
            return None
        values = {"status": JobStatus.RUNNING, "engine_id": engine_id, "updated_at": time.time()}
        conn.execute(update(t.jobs).where(t.jobs.c.id == job_id).values(**values))
        return _job_from_row(conn.execute(select(t.jobs).where(t.jobs.c.id == job_id)).one())


def update_progress(
    db: Database, job_id: int, progress: float, eta_s: float | None = None, partial_result: dict[str, Any] | None = None
) -> bool:
    """Store the progress of a running job. Returns False if it is not running any more (cancelled): stop working on it.

    progress: from 0 to 1. eta_s: remaining time in seconds. partial_result: stored as the job's `result` until the next partial
    or the final result replaces it. Does not wait for the disk, because many such writes a second would keep other processes from
    writing.
    """
    extra_values = {} if partial_result is None else {"result": partial_result}
    running = (JobStatus.RUNNING,)
    return _update_job(db, job_id, running, durable=False, progress=progress, eta_s=eta_s, **extra_values)


def requeue(db: Database, job_id: int) -> bool:
    """Queue a running job again, because its engine exits. Returns False if it was not running (cancelled)."""
    return _update_job(db, job_id, (JobStatus.RUNNING,), status=JobStatus.QUEUED, engine_id=None)


def finish(db: Database, job_id: int, result: dict[str, Any]) -> bool:
    """Store the result of a running job. Returns False, without a change, if it was not running (cancelled)."""
    values: dict[str, Any] = {"status": JobStatus.DONE, "result": result, "progress": 1.0, "eta_s": 0.0}
    return _update_job(db, job_id, (JobStatus.RUNNING,), **values)


def fail(db: Database, job_id: int, error: str) -> bool:
    """Mark a job as failed. Returns False, without a change, if it had already ended."""
    return _update_job(db, job_id, UNFINISHED_JOB_STATUSES, status=JobStatus.FAILED, error=error, eta_s=None)


def cancel(db: Database, job_id: int, result: dict[str, Any] | None = None) -> bool:
    """Cancel a job. A running one is stopped at its next `update_progress`. Returns False if it had already ended.

    result: replaces that of the job, if given.
    """
    values: dict[str, Any] = {"status": JobStatus.CANCELLED, "eta_s": None}
    values |= {} if result is None else {"result": result}
    return _update_job(db, job_id, UNFINISHED_JOB_STATUSES, **values)


def is_running(db: Database, job_id: int) -> bool:
    """Whether the job is still to be worked on; false if it was cancelled or deleted."""
    status = db.fetch(select(t.jobs.c.status).where(t.jobs.c.id == job_id)).scalar()
    return status is JobStatus.RUNNING


def remove_chats(db: Database, job_ids: Sequence[int]) -> None:
    """Delete CHAT jobs with their texts. A running one stops, because its `update_progress` returns False."""
    with db.write() as conn:
        conn.execute(delete(t.jobs).where(t.jobs.c.id.in_(job_ids), t.jobs.c.kind == JobKind.CHAT))


def remove_old_chats(db: Database, max_age_s: float) -> None:
    """Delete finished CHAT jobs of all projects that have not changed for longer than `max_age_s` seconds."""
    ended = [status for status in JobStatus if status not in UNFINISHED_JOB_STATUSES]
    is_old = t.jobs.c.updated_at < time.time() - max_age_s
    query = select(t.jobs.c.id).where(t.jobs.c.kind == JobKind.CHAT, t.jobs.c.status.in_(ended), is_old)
    job_ids = db.fetch(query).scalars().all()
    if job_ids:
        remove_chats(db, job_ids)


def get_job(db: Database, job_id: int) -> Job:
    row = db.fetch(select(t.jobs).where(t.jobs.c.id == job_id)).one_or_none()
    if row is None:
        raise NotFoundError(f"There is no job {job_id}.")
    return _job_from_row(row)


def jobs(
    db: Database,
    *,
    project_id: int | None = None,
    kinds: Sequence[JobKind] | None = None,
    statuses: Sequence[JobStatus] | None = None,
    limit: int = 100,
) -> list[Job]:
    """Jobs, newest first. None as a filter matches everything."""
    query = select(t.jobs).order_by(t.jobs.c.id.desc()).limit(limit)
    if project_id is not None:
        query = query.where(t.jobs.c.project_id == project_id)
    if kinds is not None:
        query = query.where(t.jobs.c.kind.in_(kinds))
    if statuses is not None:
        query = query.where(t.jobs.c.status.in_(statuses))
    return [_job_from_row(row) for row in db.fetch(query)]


def requeue_interrupted(db: Database) -> list[Job]:
    """Requeue the running jobs of engines that have ended, oldest first; returns the changed jobs.

    A job that was interrupted MAX_ATTEMPTS times in a row without progress is marked as failed.
    """
    query = (
        select(t.jobs, t.engines)
        .join(t.engines, t.engines.c.id == t.jobs.c.engine_id)
        .where(t.jobs.c.status == JobStatus.RUNNING)
        .order_by(t.jobs.c.id)
    )
    changed = []
    with db.write() as conn:
        for row in conn.execute(query).all():
            if not is_gone(engine_from_row(row._mapping)):
                continue
            job_id = row._mapping[t.jobs.c.id]
            values = {**_after_interruption(row), "updated_at": time.time()}
            conn.execute(update(t.jobs).where(t.jobs.c.id == job_id).values(**values))
            changed.append(_job_from_row(conn.execute(select(t.jobs).where(t.jobs.c.id == job_id)).one()))
    return changed


def _after_interruption(row: Row[*tuple[Any, ...]]) -> dict[str, Any]:
    made_progress = row.progress > row.best_progress
    values = {
        "status": JobStatus.QUEUED,
        "engine_id": None,
        "eta_s": None,
        "best_progress": max(row.progress, row.best_progress),
        "attempts": 1 if made_progress else row.attempts + 1,
    }
    if values["attempts"] >= MAX_ATTEMPTS:
        values["status"] = JobStatus.FAILED
        values["error"] = (
            f"The engine ended {MAX_ATTEMPTS} times while it worked on this, always at or before "
            f"{100 * values['best_progress']:.0f} %. The usual cause is too little memory: try a smaller batch "
            "or model. The engine's last output is in engine.out, in the home."
        )
    return values


def _update_job(
    db: Database, job_id: int, allowed_statuses: Sequence[JobStatus], *, durable: bool = True, **values: Any
) -> bool:
    condition = (t.jobs.c.id == job_id) & t.jobs.c.status.in_(allowed_statuses)
    with db.write(durable=durable) as conn:
        return conn.execute(update(t.jobs).where(condition).values(**values, updated_at=time.time())).rowcount == 1


def _job_from_row(row: Row[*tuple[Any, ...]]) -> Job:
    values = dict(row._mapping)
    del values["best_progress"]
    return Job(**values)
