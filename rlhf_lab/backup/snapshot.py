"""A consistent copy of a home while people vote and an engine trains.

A snapshot contains the database and every file that its rows refer to. It is taken in this order:

1. The checkpoints of runs are linked. A step is stored in the database before its checkpoint is written, so the database, which
   is copied later, contains every linked step. In the other order a checkpoint could be ahead of the metrics.
2. The database is copied by SQLite's online backup, in one read transaction.
3. The other files are linked or copied. A reward model's folder is complete before its row is inserted, so every row of the copy
   has its folder. Files whose row is not in the copy are left out.

If files disappear while they are collected (for example because a run is deleted), the snapshot is taken again. Checkpoints and
reward models are never changed in place, so a hard link preserves their content even if the original is deleted; where hard links
are not supported, they are copied. Locks, logs, exports and temporary files are left out. Only log files are ever appended to.
"""

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from rlhf_lab.common.checkpoint_index import (
    best_step,
    checkpoint_folder,
    checkpoint_steps,
    is_intact,
)
from rlhf_lab.common.hashing import file_sha256
from rlhf_lab.common.paths import (
    ACCESS_FILE,
    DEMO_FILE,
    ENDED_SESSIONS_FILE,
    RUNS_FOLDER,
    SPEED_FILE,
    database_url_override,
    ptx_texts_file,
)
from rlhf_lab.common.private_files import PRIVATE_FILE, make_private_folder
from rlhf_lab.errors import StoreError
from rlhf_lab.rewards.terms import REWARDS_FOLDER
from rlhf_lab.store import home_replacement, sqlite
from rlhf_lab.store.database import FILE_NAME, lab_exists

#: Small files of a home; each of them may be missing.
STATE_FILES = (DEMO_FILE, SPEED_FILE)
#: Signing key of cookies, operator's secret, join code, and who has logged out.
SECRET_FILES = (ACCESS_FILE, ENDED_SESSIONS_FILE)
BUSY_TIMEOUT_S = 10.0
MAX_ATTEMPTS = 5


class CheckpointRule(StrEnum):
    """Which checkpoints of each run a snapshot contains. NEWEST: the one from which a run is resumed, and the best one."""

    ALL = "all"
    NEWEST = "newest"
    NONE = "none"


class SnapshotFile(NamedTuple):
    """path: POSIX, relative to the home. source: the copy or link in the snapshot's folder. size: bytes."""

    path: str
    source: Path
    size: int
    sha256: str


class KnownFile(NamedTuple):
    """A file of the home that was hashed: it is not hashed again while size (bytes), mtime_ns and inode stay the same."""

    size: int
    mtime_ns: int
    inode: int
    sha256: str


@dataclass(frozen=True)
class Snapshot:
    """files: sorted by path; the database is FILE_NAME. schema: revision of the database. created_at: seconds since 1970. known:
    checksums by path, which speed up the next snapshot. missing: paths that rows refer to but that are not in the home."""

    files: tuple[SnapshotFile, ...]
    schema: str
    created_at: float
    known: Mapping[str, KnownFile]
    missing: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def take_snapshot(
    home: Path,
    folder: Path,
    *,
    known: Mapping[str, KnownFile] | None = None,
    checkpoints: CheckpointRule = CheckpointRule.ALL,
    secrets: bool = False,
) -> Snapshot:
    """Take a snapshot of a home, which may be in use.

    Args:
        home: its tables must be in its lab.db.
        folder: a new or empty folder for the copies and links. The caller deletes it after use. If it is on the disk of the home,
            the database is the only large file that is copied.
        known: `Snapshot.known` of an earlier snapshot.
        checkpoints: a run restored without checkpoints starts again from its first step when it is resumed.
        secrets: include SECRET_FILES, which keep people signed in. They allow anybody who has them to act as the operator, so
            only the operator may receive such a snapshot.

    Raises StoreError.
    """
    check_home(home)
    try:
        lock = home_replacement.use_home(home)  # completes the replacement first if a restore was killed during it
    except OSError as exc:
        raise StoreError(
            f"The home {home} cannot be used: {exc.strerror or exc}. Check that you may write to it."
        ) from exc
    try:
        return _take_snapshot(home, folder, known or {}, checkpoints, secrets)
    finally:
        lock.release()


def _take_snapshot(
    home: Path, folder: Path, known: Mapping[str, KnownFile], checkpoints: CheckpointRule, secrets: bool
) -> Snapshot:
    missing: tuple[str, ...] = ()
    for _ in range(MAX_ATTEMPTS):
        try:
            _clear(folder)
            snapshot = _Collector(home, folder, known, checkpoints, secrets).collect()
        except FileNotFoundError:
            continue  # deleted while it was read
        except sqlite3.Error as exc:
            raise sqlite.to_store_error(exc, str(home / FILE_NAME)) from exc
        except OSError as exc:
            raise StoreError(
                f"The home {home} could not be copied to {folder} ({exc.strerror or exc}). Free some disk space and "
                "try again. The lab was not changed."
            ) from exc
        if snapshot.missing == missing:
            return snapshot
        missing = snapshot.missing  # if the next attempt misses the same files, they were not just deleted
    raise StoreError(f"Files of {home} are being deleted while they are copied. Try again in a moment.")


def check_home(home: Path) -> None:
    """Raises StoreError if the home has no lab, or its tables are elsewhere."""
    if database_url_override() is not None:
        raise StoreError(
            "The lab's tables are not in its home but where RLHF_LAB_STORE says, so the home alone would be no "
            "backup. Copy the database with its own tools (pg_dump, pg_restore) while nothing trains, and the "
            "folder of the home as it is."
        )
    if not lab_exists(home):
        raise StoreError(f"There is no lab in {home}. Give its folder with --home.")


def _clear(folder: Path) -> None:
    """Create the folder, or empty it after a failed attempt."""
    make_private_folder(folder)
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


class _ChangedError(FileNotFoundError):
    """A file was replaced while it was copied."""


class _Collector:
    """Collects the files of one attempt."""

    def __init__(
        self, home: Path, folder: Path, known: Mapping[str, KnownFile], checkpoints: CheckpointRule, secrets: bool
    ) -> None:
        self._home, self._folder = home, folder
        self._checkpoints, self._secrets = checkpoints, secrets
        self._digests = {(file.inode, file.size, file.mtime_ns): file.sha256 for file in known.values()}
        self._files: dict[str, SnapshotFile] = {}
        self._known: dict[str, KnownFile] = {}

    def collect(self) -> Snapshot:
        created_at = time.time()
        if self._checkpoints is not CheckpointRule.NONE:
            for checkpoint in self._checkpoint_folders():
                for path in _regular_files(checkpoint):
                    self._link(path)
        rows = self._copy_database()
        missing = []
        for reward_model in rows.reward_models:
            paths = list(_regular_files(self._home / reward_model))
            for path in paths:
                self._link(path)
            if not paths:
                missing.append(reward_model)
        for run_id in rows.runs_with_texts:
            texts = ptx_texts_file(self._home, run_id)
            if texts.is_file():
                self._link(texts)
            else:
                missing.append(texts.relative_to(self._home).as_posix())
        for path in self._small_files():
            self._copy(path)
        files = [file for file in self._files.values() if not _belongs_to_other_run(file.path, rows.runs)]
        return Snapshot(
            tuple(sorted(files)), rows.schema, created_at, dict(sorted(self._known.items())), tuple(sorted(missing))
        )

    def _checkpoint_folders(self) -> Iterator[Path]:
        for run_path in sorted((self._home / RUNS_FOLDER).glob("*")):
            steps = checkpoint_steps(run_path)
            if self._checkpoints is CheckpointRule.NEWEST:
                newest_first = (
                    step for step in reversed(steps) if is_intact(checkpoint_folder(run_path, step), self._digest)
                )
                steps = sorted({step for step in (next(newest_first, None), best_step(run_path)) if step is not None})
            yield from (checkpoint_folder(run_path, step) for step in steps)

    def _small_files(self) -> Iterator[Path]:
        """Files that may be edited in place, such as custom reward functions."""
        for name in STATE_FILES + (SECRET_FILES if self._secrets else ()):
            if (self._home / name).is_file():
                yield self._home / name
        yield from _regular_files(self._home / REWARDS_FOLDER)

    def _copy_database(self) -> "_Rows":
        source, target = self._home / FILE_NAME, self._folder / FILE_NAME
        target.touch(PRIVATE_FILE)
        uri = f"{source.resolve().as_uri()}?mode=rw"  # a missing file must not become an empty database
        with (
            closing(sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S)) as home_connection,
            closing(sqlite3.connect(target)) as copy,
        ):
            home_connection.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")  # the copy is one file, without a log
            rows = _Rows.read(copy)
        size = target.stat().st_size
        self._files[FILE_NAME] = SnapshotFile(FILE_NAME, target, size, file_sha256(target))
        return rows

    def _link(self, path: Path) -> None:
        """Add a file that is never changed in place."""
        target = self._target(path)
        try:
            os.link(path, target)
        except FileNotFoundError:
            raise
        except OSError:  # another disk, or one without links
            self._copy(path)
        else:
            self._add(path, target, target.stat())

    def _copy(self, path: Path) -> None:
        target, before = self._target(path), path.stat()
        shutil.copyfile(path, target)
        target.chmod(PRIVATE_FILE)
        after = path.stat()
        if _identity(before) != _identity(after) or target.stat().st_size != before.st_size:
            raise _ChangedError(str(path))
        self._add(path, target, before)

    def _target(self, path: Path) -> Path:
        target = self._folder / path.relative_to(self._home)
        make_private_folder(target.parent)
        return target

    def _add(self, path: Path, target: Path, status: os.stat_result) -> None:
        """status: of the file in the home."""
        name = path.relative_to(self._home).as_posix()
        digest = self._digests.get(_identity(status)) or file_sha256(target)
        self._digests[_identity(status)] = digest
        self._files[name] = SnapshotFile(name, target, status.st_size, digest)
        self._known[name] = KnownFile(status.st_size, status.st_mtime_ns, status.st_ino, digest)

    def _digest(self, path: Path) -> str:
        """SHA-256 of a file of the home."""
        identity = _identity(path.stat())
        if identity not in self._digests:
            self._digests[identity] = file_sha256(path)
        return self._digests[identity]


class _Rows(NamedTuple):
    """What the rows of a database refer to. The queries work with every revision of the schema."""

    schema: str
    reward_models: list[str]
    runs: set[int]
    runs_with_texts: list[int]

    @classmethod
    def read(cls, connection: sqlite3.Connection) -> "_Rows":
        (schema,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        runs = connection.execute("SELECT id, manifest FROM runs ORDER BY id").fetchall()
        return cls(
            str(schema),
            [path for (path,) in connection.execute("SELECT path FROM reward_models ORDER BY id")],
            {run_id for run_id, _ in runs},
            [run_id for run_id, manifest in runs if "ptx_texts" in json.loads(manifest)],
        )


def _belongs_to_other_run(path: str, run_ids: set[int]) -> bool:
    """Whether a path belongs to a run that is not in the database."""
    parts = path.split("/")
    return parts[0] == RUNS_FOLDER and not (parts[1].isdigit() and int(parts[1]) in run_ids)


def _regular_files(folder: Path) -> Iterator[Path]:
    """The files below a folder, without hidden (temporary) files, links and Python's caches. Empty if the folder is missing."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        is_hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
        if not is_hidden and path.is_file() and not path.is_symlink():
            yield path


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns
