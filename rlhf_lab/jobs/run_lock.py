"""A lock in the folder of a run ensures that only one process writes the run. A file beside it names that process.

The lock is released when its process ends, even if it is killed. If a run is marked as running or paused, has no job and its lock
is free, then its process, which was started without the engine, has vanished. Only the machine of that process can decide this,
since a lock on a network file system may look free although it is held. The machine is identified by host name or boot id,
because a recreated container has another host name.
"""

import dataclasses
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from sqlalchemy import select

from rlhf_lab.common.atomic import write_file_atomically
from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, JobKind, RunStatus
from rlhf_lab.common.paths import run_folder
from rlhf_lab.common.program_names import lab_command
from rlhf_lab.common.records import ProcessIdentity
from rlhf_lab.errors import ClaimedError
from rlhf_lab.jobs import engine_process
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database
from rlhf_lab.store.runs import update_run

LOCK_FILE = "training.lock"
OWNER_FILE = "writer.json"
LOCK_TIMEOUT_S = 10.0  # long enough for the worker processes of a killed launcher to end
STARTED_RUN_STATUSES = (RunStatus.RUNNING, RunStatus.PAUSED)


@contextmanager
def lock_run(home: Path, run_id: int) -> Iterator[None]:
    """Hold the lock of a run. Raises ClaimedError while another process, or its group of workers, writes the run."""
    with _acquire_lock(home, run_id):
        owner = json.dumps(dataclasses.asdict(engine_process.this_process()))
        write_file_atomically(run_folder(home, run_id) / OWNER_FILE, owner)
        yield


def check_unlocked(home: Path, run_id: int) -> None:
    """Raises ClaimedError while a process writes the run."""
    with _acquire_lock(home, run_id):
        return


def _acquire_lock(home: Path, run_id: int) -> AbstractContextManager[object]:
    """Acquire the lock of a run. Raises ClaimedError."""
    folder = run_folder(home, run_id)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return FileLock(folder / LOCK_FILE, timeout=LOCK_TIMEOUT_S).acquire()
    except Timeout as error:
        raise ClaimedError(
            f"run {run_id} is being trained by another process. Stop it first: {lab_command()} control {run_id} stop"
        ) from error


def is_locked(home: Path, run_id: int) -> bool:
    """Whether a process writes the run now."""
    if lock_owner(home, run_id) is None:
        return False
    try:
        with FileLock(run_folder(home, run_id) / LOCK_FILE, timeout=0):
            return False
    except Timeout:
        return True


def lock_owner(home: Path, run_id: int) -> ProcessIdentity | None:
    """The process that writes a run or was the last to do so; None if unknown."""
    with suppress(OSError, ValueError, TypeError):
        return ProcessIdentity(**json.loads((run_folder(home, run_id) / OWNER_FILE).read_text(encoding="utf-8")))
    return None


def mark_interrupted_runs(db: Database, home: Path) -> list[int]:
    """Mark runs whose process has vanished as interrupted; returns their ids. Runs with a job are left to the engine."""
    candidates = db.fetch(select(t.runs.c.id).where(t.runs.c.status.in_(STARTED_RUN_STATUSES))).scalars().all()
    return [run_id for run_id in candidates if _owner_is_gone(home, run_id) and _mark_interrupted(db, run_id)]


def _owner_is_gone(home: Path, run_id: int) -> bool:
    owner, this_process = lock_owner(home, run_id), engine_process.this_process()
    return (
        owner is not None
        and (owner.host == this_process.host or "" != owner.boot == this_process.boot)
        and not is_locked(home, run_id)
    )


def _mark_interrupted(db: Database, run_id: int) -> bool:
    """Mark a run as interrupted. Returns False, without a change, if the run has just ended or has a job."""
    message = (
        "the process that trained it ended unexpectedly; resume it from its last checkpoint: "
        f"{lab_command()} train-policy --resume {run_id}"
    )
    is_open_training_job = (t.jobs.c.kind == JobKind.TRAIN_POLICY) & t.jobs.c.status.in_(UNFINISHED_JOB_STATUSES)
    with db.write() as conn:
        status = conn.execute(select(t.runs.c.status).where(t.runs.c.id == run_id)).scalar()
        payloads = conn.execute(select(t.jobs.c.payload).where(is_open_training_job)).scalars()
        if status not in STARTED_RUN_STATUSES or any(payload.get("run_id") == run_id for payload in payloads):
            return False
        update_run(conn, run_id, status=RunStatus.INTERRUPTED, message=message)
    return True
