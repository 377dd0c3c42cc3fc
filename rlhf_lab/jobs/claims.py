"""Who writes a run: one process at a time. It holds a lock in the run's folder, and says beside it who it is.

The lock is let go when its process ends, however that ends. So a run that is said to go on, that no job stands for and whose
lock is free, has lost its process: one that was started by hand and killed. Only the machine where that worked judges it: over a
network a lock that looks free may not be. It is known by its host name, or by its kernel's boot id: a container made anew has
another name.
"""

import dataclasses
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from sqlalchemy import select

from rlhf_lab.errors import ClaimedError
from rlhf_lab.home import run_folder
from rlhf_lab.jobs import supervisor
from rlhf_lab.kinds import OPEN, JobKind, RunStatus
from rlhf_lab.records import ProcessIdentity
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database
from rlhf_lab.store.runs import change_run

CLAIM = "training.lock"
WRITER = "writer.json"
CLAIM_WAIT_S = 10.0  # what is left of a group whose launcher was killed ends within moments
AT_WORK = (RunStatus.RUNNING, RunStatus.PAUSED)


@contextmanager
def claimed(home: Path, run_id: int) -> Iterator[None]:
    """Be the only process that writes a run. Raises ClaimedError while another one, or its group, is at work on it."""
    with _lock(home, run_id):
        who = json.dumps(dataclasses.asdict(supervisor.this_process()))
        (run_folder(home, run_id) / WRITER).write_text(who, encoding="utf-8")
        yield


def check_free(home: Path, run_id: int) -> None:
    """Raises ClaimedError while a process writes the run."""
    with _lock(home, run_id):
        return


def _lock(home: Path, run_id: int) -> AbstractContextManager[object]:
    """The lock of a run, held. Raises ClaimedError."""
    folder = run_folder(home, run_id)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return FileLock(folder / CLAIM, timeout=CLAIM_WAIT_S).acquire()
    except Timeout as error:
        raise ClaimedError(
            f"run {run_id} is being trained by another process. Stop it first: python -m rlhf_lab control {run_id} stop"
        ) from error


def held(home: Path, run_id: int) -> bool:
    """Whether a process writes the run at this moment."""
    if writer(home, run_id) is None:
        return False
    try:
        with FileLock(run_folder(home, run_id) / CLAIM, timeout=0):
            return False
    except Timeout:
        return True


def writer(home: Path, run_id: int) -> ProcessIdentity | None:
    """The process that writes a run or was the last to do so; None where nobody knows."""
    with suppress(OSError, ValueError, TypeError):
        return ProcessIdentity(**json.loads((run_folder(home, run_id) / WRITER).read_text(encoding="utf-8")))
    return None


def mark_lost(db: Database, home: Path) -> list[int]:
    """Mark the runs as interrupted whose process is gone without a word; returns their ids. Those an engine works on are its own
    to take up again."""
    with db.read() as conn:
        suspects = conn.execute(select(t.runs.c.id).where(t.runs.c.status.in_(AT_WORK))).scalars().all()
    return [run_id for run_id in suspects if _lost(home, run_id) and _interrupted(db, run_id)]


def _lost(home: Path, run_id: int) -> bool:
    last, here = writer(home, run_id), supervisor.this_process()
    return last is not None and (last.host == here.host or "" != last.boot == here.boot) and not held(home, run_id)


def _interrupted(db: Database, run_id: int) -> bool:
    """False, and nothing changed: the run has ended meanwhile, or has a job."""
    words = (
        "the process that trained it ended without a word; it goes on from its last checkpoint: "
        f"python -m rlhf_lab train-policy --resume {run_id}"
    )
    going = (t.jobs.c.kind == JobKind.TRAIN_POLICY) & t.jobs.c.status.in_(OPEN)
    with db.write() as conn:
        status = conn.execute(select(t.runs.c.status).where(t.runs.c.id == run_id)).scalar()
        jobs = conn.execute(select(t.jobs.c.payload).where(going)).scalars()
        if status not in AT_WORK or any(payload.get("run_id") == run_id for payload in jobs):
            return False
        change_run(conn, run_id, status=RunStatus.INTERRUPTED, message=words)
    return True
