"""Puts the files of a snapshot into a home, all or none.

The files are collected in a folder of the home, where their database is opened, which migrates it. Only then they take the place
of the old content, which is kept (store/home_replacement.py).
"""

import contextlib
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from sqlalchemy import func, select, update

from rlhf_lab.backup.snapshot import SECRET_FILES, STATE_FILES, SnapshotFile
from rlhf_lab.common.atomic import fsync_path
from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, JobKind, RunStatus
from rlhf_lab.common.hashing import file_sha256
from rlhf_lab.common.paths import REWARD_MODELS_FOLDER, RUNS_FOLDER, database_url_override
from rlhf_lab.common.private_files import make_private_folder
from rlhf_lab.errors import DataError, StoreError
from rlhf_lab.rewards.terms import REWARDS_FOLDER
from rlhf_lab.store import home_lock, home_replacement
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import FILE_NAME, Database

#: What a restore replaces in a home. Logs, and folders of earlier restores, stay.
CONTENT = (
    FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm", f"{FILE_NAME}-journal",
    REWARD_MODELS_FOLDER, RUNS_FOLDER, REWARDS_FOLDER, *STATE_FILES, *SECRET_FILES,
)  # fmt: skip
TEMPORARY_PREFIX = ".restore-"
#: A checked backup that the operator uploaded, and one that takes effect at the next start of the page.
CHECKED_FOLDER, CONFIRMED_FOLDER = f"{TEMPORARY_PREFIX}checked", f"{TEMPORARY_PREFIX}confirmed"
#: Of an upload that was given up, and of a checked backup that nobody confirmed.
MAX_UPLOAD_AGE_S = 86_400.0
INTERRUPTED_MESSAGE = "it was being trained when the backup was made; resume it to go on from its last checkpoint"


@contextmanager
def new_content(home: Path) -> Iterator[Path]:
    """Yield an empty folder on the home's disk, in which the caller puts the files of a snapshot. Deleted afterwards, if it is
    still there. Raises StoreError for a home that cannot be used."""
    if database_url_override() is not None:
        raise StoreError(
            "RLHF_LAB_STORE names another database, which a restore would not change. Restore without this variable, into a home "
            "with its own database."
        )
    folder = home / f"{TEMPORARY_PREFIX}{secrets.token_hex(4)}"
    try:
        make_private_folder(folder)
        yield folder
    except OSError as error:
        raise StoreError(
            f"The home {home} could not be written ({error.strerror or error}). Check that the disk has free space and that you "
            "may write to the folder, then try again. The old content of the home was not changed."
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_content(folder: Path) -> None:
    """Open the database of a restored folder, which migrates it; its engines belong to another machine or an earlier time.

    Raises StoreError for a database that this version cannot open.
    """
    with Database.open(folder) as db:
        _end_processes(db)
    for path in [*folder.glob(f"{FILE_NAME}.*"), *folder.glob(f"{FILE_NAME}-*")]:
        path.unlink()  # locks, and the log, which was copied to the file when the database was closed


def put_in_place(home: Path, folder: Path) -> Path | None:
    """Replace the home's content by a checked folder in it. The old content is kept: its folder, None if there was none.

    Call it with the exclusive lock of the home (store/home_lock.py). Raises StoreError.
    """
    new = home / home_replacement.NEW_FOLDER
    replaced = [name for name in CONTENT if name not in SECRET_FILES or (folder / name).exists()]
    try:
        if home_replacement.is_unfinished(home):
            home_replacement.finish_replacement(home)
        for path in folder.rglob("*"):
            fsync_path(path)
        for other in (new, home / CONFIRMED_FOLDER):  # of an earlier restore; a part of it must not keep this name
            if other != folder and other.exists():
                shutil.rmtree(other.rename(home / f"{TEMPORARY_PREFIX}{secrets.token_hex(4)}"))
        if folder != new:
            folder.rename(new)
        return home_replacement.replace_content(home, replaced)
    except OSError as error:
        raise StoreError(
            f"The files could not be put in place in {home} ({error.strerror or error}). Nothing is lost: the new ones are in "
            "the home, too. Free some disk space; the next start of the lab goes on."
        ) from error


def restore_files(files: Iterable[SnapshotFile], home: Path) -> Path | None:
    """Make verified copies of a snapshot's files the content of a home that nobody uses.

    Returns the folder with the old content; None: there was none. Raises DataError for a file that is not what its record says,
    StoreError for a home that is in use, cannot be written, or gets a database that this version cannot open.
    """
    make_private_folder(home)
    with home_lock.lock_exclusively(home), new_content(home) as folder:
        for file in files:
            target = folder / safe_path(file.path)
            make_private_folder(target.parent)
            shutil.copyfile(file.source, target)
            if target.stat().st_size != file.size or file_sha256(target) != file.sha256:
                raise DataError(f"{file.path} is damaged: its checksum differs. Nothing was changed.")
        check_content(folder)
        return put_in_place(home, folder)


def safe_path(path: str) -> PurePosixPath:
    """The path, if it is one of CONTENT or under it. Raises DataError."""
    relative = PurePosixPath(path)
    parts = path.split("/")
    is_plain = all(part not in ("", ".", "..") and "\\" not in part and ":" not in part for part in parts)
    if not is_plain or "\0" in path or relative.is_absolute() or parts[0] not in CONTENT:
        raise DataError(f"It contains {path!r}, which is no file of a lab. Nothing was changed.")
    return relative


def apply_confirmed(home: Path) -> Path | None:
    """At the start of the page: put a restore in place that the operator confirmed on it, or that was interrupted before it began
    to replace.

    Returns the folder with the old content; None: no restore waits, or there was no content. Raises StoreError while other
    processes use the home.
    """
    remove_leftovers(home, min_age_s=MAX_UPLOAD_AGE_S)
    if _waiting_folder(home) is None:
        return None
    try:
        with home_lock.lock_exclusively(home):
            folder = _waiting_folder(home)  # another page may have been quicker
            return put_in_place(home, folder) if folder is not None else None
    except StoreError as error:
        raise StoreError(f"A backup waits to be restored. {error}") from error


def _waiting_folder(home: Path) -> Path | None:
    """The checked content that takes the home's place at the next start. A folder gets the name NEW_FOLDER when it is complete,
    and restore.json follows; between the two a kill leaves the folder alone."""
    if (home / CONFIRMED_FOLDER).is_dir():
        return home / CONFIRMED_FOLDER
    new = home / home_replacement.NEW_FOLDER
    return new if new.is_dir() and not home_replacement.is_unfinished(home) else None


def remove_leftovers(home: Path, *, min_age_s: float = 0.0) -> None:
    """Delete what interrupted restores and uploads left, and checked backups that nobody confirmed, if they are this old.

    Without the exclusive lock of the home another page may be at work, so give an age that its folders do not reach.
    """
    for folder in home.glob(f"{TEMPORARY_PREFIX}*"):
        if folder.name in (CONFIRMED_FOLDER, home_replacement.NEW_FOLDER):
            continue
        with contextlib.suppress(OSError):  # another page was quicker
            if time.time() - folder.stat().st_mtime >= min_age_s:
                shutil.rmtree(folder, ignore_errors=True)


def _end_processes(db: Database) -> None:
    """No engine of the snapshot works on this home: queued jobs go on with the next one, runs without a job can be resumed."""
    jobs, runs, engines = t.jobs.c, t.runs.c, t.engines.c
    with db.write() as conn:
        values = {"host": "", "pid": 0, "process_started": 0.0}
        conn.execute(
            update(t.engines).values(**values, stopped_at=func.coalesce(engines.stopped_at, engines.started_at))
        )
        conn.execute(t.presence.delete())
        unfinished = select(jobs.payload).where(
            jobs.kind == JobKind.TRAIN_POLICY, jobs.status.in_(UNFINISHED_JOB_STATUSES)
        )
        with_job = [payload["run_id"] for payload in conn.execute(unfinished).scalars()]
        is_without_process = runs.status.in_((RunStatus.RUNNING, RunStatus.PAUSED)) & runs.id.not_in(with_job)
        values = {"status": RunStatus.INTERRUPTED, "message": INTERRUPTED_MESSAGE}
        conn.execute(update(t.runs).where(is_without_process).values(**values))
