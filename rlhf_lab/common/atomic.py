"""Atomic writes of files and folders: written under a temporary name, flushed to disk, then renamed."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMP_PREFIX, BACKUP_PREFIX = ".building-", ".replaced-"


def write_file_atomically(path: Path, data: str | bytes, *, mode: int | None = None) -> None:
    """Write a file (text as UTF-8); replaces an existing one.

    mode: permission bits, such as 0o600, that the file has from the start; None means the default of new files.

    Raises OSError; `path` is unchanged then.
    """
    with atomic_file(path) as temp_path:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = os.open(temp_path, flags, 0o666 if mode is None else mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder. At the end, the file written there replaces `path`."""
    temp_path = path.with_name(f".{secrets.token_hex(4)}-{path.name}")
    try:
        yield temp_path
        fsync_path(temp_path)
        temp_path.replace(path)
    except BaseException:
        temp_path.unlink(missing_ok=True)
        raise


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yield an empty hidden folder that replaces `target` at the end. After an error `target` is unchanged.

    Only one process may write folders into `target.parent` at a time, because leftovers of a crash are removed first.
    """
    temp_folder = target.with_name(f"{TEMP_PREFIX}{target.name}-{os.getpid()}")
    recover_interrupted_writes(target.parent)
    try:
        temp_folder.mkdir(parents=True)
        yield temp_folder
        for path in temp_folder.rglob("*"):
            fsync_path(path)
        _replace_folder(temp_folder, target)
    except Exception:  # not after an interruption: then the next write removes the folder
        shutil.rmtree(temp_folder, ignore_errors=True)
        raise
    fsync_path(target.parent)


def recover_interrupted_writes(parent: Path) -> None:
    """Remove leftovers of `atomic_folder` after a crash, and restore a folder that was moved away but not replaced yet."""
    for backup in parent.glob(f"{BACKUP_PREFIX}*"):
        target = parent / backup.name.removeprefix(BACKUP_PREFIX)
        if target.exists():
            shutil.rmtree(backup, ignore_errors=True)
        else:
            backup.rename(target)
    for temp_folder in parent.glob(f"{TEMP_PREFIX}*"):
        shutil.rmtree(temp_folder, ignore_errors=True)


@contextmanager
def temporary_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield a new folder in `parent`, on the same file system. It is removed at the end. Safe for concurrent processes."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fsync_path(path: Path) -> None:
    """Flush a file (or, on POSIX, a folder's entries) to disk."""
    if path.is_dir() and os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace_folder(temp_folder: Path, target: Path) -> None:
    """Replace a folder. The old one is kept as a backup until the new one has been renamed."""
    backup = target.with_name(BACKUP_PREFIX + target.name)
    if target.exists():
        target.rename(backup)
    try:
        temp_folder.rename(target)
    except OSError:
        if backup.exists():
            backup.rename(target)
        raise
    shutil.rmtree(backup, ignore_errors=True)
