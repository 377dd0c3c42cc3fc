"""Replaces the content of a home by the files of a snapshot: all of them, or none.

The files are first collected in a new folder of the home, and their database is opened there, which migrates it. Only then do
they replace the old content, which is moved to a folder of the home (store/home_replacement.py).
"""

import contextlib
import secrets
import shutil
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from sqlalchemy import func, select, update

from rlhf_lab.backup.snapshot import SECRET_FILES, STATE_FILES, SnapshotFile
from rlhf_lab.common.atomic import fsync_path
from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, JobKind, RunStatus
from rlhf_lab.common.hashing import file_sha256
from rlhf_lab.common.paths import REWARD_MODELS_FOLDER, RUNS_FOLDER, database_url_override
from rlhf_lab.common.private_files import make_private_folder
from rlhf_lab.errors import CorruptStoreError, DataError, LabError, StoreError
from rlhf_lab.rewards.terms import REWARDS_FOLDER
from rlhf_lab.store import home_lock, home_replacement
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import FILE_NAME, Database

#: Files and folders of a home that a restore replaces. Logs and the folders of earlier restores stay.
CONTENT = (
    FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm", f"{FILE_NAME}-journal",
    REWARD_MODELS_FOLDER, RUNS_FOLDER, REWARDS_FOLDER, *STATE_FILES, *SECRET_FILES,
)  # fmt: skip
TEMPORARY_PREFIX = ".restore-"
#: An uploaded and checked backup, and one that the operator has confirmed: it is restored at the next start of the page.
CHECKED_FOLDER, CONFIRMED_FOLDER = f"{TEMPORARY_PREFIX}checked", f"{TEMPORARY_PREFIX}confirmed"
#: Abandoned uploads and unconfirmed backups are deleted at this age.
MAX_UPLOAD_AGE_S = 86_400.0
INTERRUPTED_MESSAGE = "it was being trained when the backup was made; resume it to go on from its last checkpoint"


@contextmanager
def new_content(home: Path) -> Iterator[Path]:
    """Yield an empty folder in the home for the files of a snapshot. It is deleted afterwards, unless the caller has moved it.

    Raises StoreError if the home cannot be used or written.
    """
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


NO_DATABASE_MESSAGE = (
    f"The backup or save contains no database ({FILE_NAME}), so it is not a complete lab. Nothing was changed. Choose "
    "another one."
)


def check_file_list(paths: Collection[str]) -> None:
    """Raises DataError for a backup or a save without a database, which would be restored as an empty lab."""
    if FILE_NAME not in paths:
        raise DataError(NO_DATABASE_MESSAGE)


def check_content(folder: Path) -> None:
    """Open the database of a restored folder, which migrates it, and mark its engines as stopped.

    Raises DataError for a database that this version cannot open, and for an empty file, which would become an empty lab. The
    message does not name the folder, which nobody knows and which is deleted afterwards.
    """
    file = folder / FILE_NAME
    if not file.stat().st_size:
        raise DataError(NO_DATABASE_MESSAGE)
    try:
        with Database.open(folder) as db:
            _end_processes(db)
    except LabError as error:
        reason = str(error).replace(str(file), FILE_NAME).replace(str(folder), "the backup")
        if isinstance(error, CorruptStoreError):
            reason = f"{FILE_NAME} is damaged: {error.reason}. Choose another backup or save."
        raise DataError(f"The database of the backup or save cannot be used. Nothing was changed. {reason}") from error
    for path in [*folder.glob(f"{FILE_NAME}.*"), *folder.glob(f"{FILE_NAME}-*")]:
        path.unlink()  # locks, and the write-ahead log, which was checkpointed when the database was closed


def install_files(home: Path, folder: Path) -> Path | None:
    """Replace the home's content by that of a checked folder in the home.

    Returns the folder that holds the old content, or None if there was none. The caller must hold the exclusive lock of the home
    (store/home_lock.py). Raises StoreError.
    """
    new = home / home_replacement.NEW_FOLDER
    replaced = [name for name in CONTENT if name not in SECRET_FILES or (folder / name).exists()]
    try:
        if home_replacement.is_unfinished(home):
            home_replacement.finish_replacement(home)
        for path in folder.rglob("*"):
            fsync_path(path)
        for other in (new, home / CONFIRMED_FOLDER):  # renamed first: a partly deleted folder must not have these names
            if other != folder and other.exists():
                shutil.rmtree(other.rename(home / f"{TEMPORARY_PREFIX}{secrets.token_hex(4)}"))
        if folder != new:
            folder.rename(new)
        return home_replacement.replace_content(home, replaced)
    except OSError as error:
        raise StoreError(
            f"The files could not be put in place in {home} ({error.strerror or error}). Nothing is lost: the new ones are in "
            "the home, too. Free some disk space; the next start of the lab completes the restore."
        ) from error


def restore_files(files: Iterable[SnapshotFile], home: Path) -> Path | None:
    """Copy and verify a snapshot's files, and replace the content of a home, which must not be in use, by them.

    Returns the folder that holds the old content, or None if there was none. Raises DataError for a file whose size or checksum
    differs from its record, StoreError if the home is in use or cannot be written, or if this version cannot open the database.
    """
    files = list(files)
    check_file_list([file.path for file in files])
    make_private_folder(home)
    with home_lock.lock_exclusively(home), new_content(home) as folder:
        for file in files:
            target = folder / safe_path(file.path)
            make_private_folder(target.parent)
            shutil.copyfile(file.source, target)
            if target.stat().st_size != file.size or file_sha256(target) != file.sha256:
                raise DataError(f"{file.path} is damaged: its checksum differs. Nothing was changed.")
        check_content(folder)
        return install_files(home, folder)


def safe_path(path: str) -> PurePosixPath:
    """The path as a PurePosixPath. Raises DataError if it is neither in CONTENT nor below a folder of CONTENT."""
    relative = PurePosixPath(path)
    parts = path.split("/")
    is_plain = all(part not in ("", ".", "..") and "\\" not in part and ":" not in part for part in parts)
    if not is_plain or "\0" in path or relative.is_absolute() or parts[0] not in CONTENT:
        raise DataError(f"It contains {path!r}, which is not a file of a lab. Nothing was changed.")
    return relative


def apply_confirmed(home: Path) -> Path | None:
    """Carry out a pending restore, at the start of the page.

    A restore is pending if the operator has confirmed it on the page, or if it was interrupted before it replaced anything.
    Returns the folder that holds the old content, or None if no restore is pending or there was no content. Raises StoreError
    while other processes use the home.
    """
    remove_leftovers(home, min_age_s=MAX_UPLOAD_AGE_S)
    if _waiting_folder(home) is None:
        return None
    try:
        with home_lock.lock_exclusively(home):
            folder = _waiting_folder(home)  # another process may have restored it before the lock was acquired
            return install_files(home, folder) if folder is not None else None
    except StoreError as error:
        raise StoreError(f"A backup waits to be restored. {error}") from error


def _waiting_folder(home: Path) -> Path | None:
    """The checked content that replaces the home's content at the next start.

    A complete folder is first renamed to NEW_FOLDER, then restore.json is written. A process killed between the two leaves
    NEW_FOLDER without restore.json.
    """
    if (home / CONFIRMED_FOLDER).is_dir():
        return home / CONFIRMED_FOLDER
    new = home / home_replacement.NEW_FOLDER
    return new if new.is_dir() and not home_replacement.is_unfinished(home) else None


def remove_leftovers(home: Path, *, min_age_s: float = 0.0) -> None:
    """Delete folders of at least this age that interrupted restores and uploads left, and unconfirmed backups.

    Without the exclusive lock of the home, another process may be using such a folder: then pass an age that excludes it.
    """
    for folder in home.glob(f"{TEMPORARY_PREFIX}*"):
        if folder.name in (CONFIRMED_FOLDER, home_replacement.NEW_FOLDER):
            continue
        with contextlib.suppress(OSError):  # another process has deleted it
            if time.time() - folder.stat().st_mtime >= min_age_s:
                shutil.rmtree(folder, ignore_errors=True)


def _end_processes(db: Database) -> None:
    """Mark the engines of the snapshot as stopped, and runs that have no job as interrupted, so that they can be resumed.

    Queued jobs stay queued for the next engine.
    """
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
