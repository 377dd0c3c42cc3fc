"""Locks that show which processes use a home: a shared one for each open database, an exclusive one to replace its files.

The locks end with their process. On systems without such locks (Windows, some disks) other processes are not detected.
"""

import errno
import os
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlhf_lab.common.private_files import PRIVATE_FILE, restrict_file
from rlhf_lab.common.program_names import lab_command
from rlhf_lab.errors import StoreError

if sys.platform != "win32":
    import fcntl

LOCK_FILE = "lab.db.users"
POLL_S = 0.1
WAIT_S = 60.0


class SharedLock:
    """Held until `release` is called or the object is garbage-collected."""

    def __init__(self, descriptor: int) -> None:
        self._close = weakref.finalize(self, os.close, descriptor)

    def release(self) -> None:
        self._close()


def lock_shared(home: Path) -> SharedLock:
    """Acquire a shared lock of the home. Waits while another process replaces its files. Raises OSError, StoreError."""
    descriptor, deadline = _open(home), time.monotonic() + WAIT_S
    while not _try_lock(descriptor, exclusive=False):
        if time.monotonic() > deadline:
            os.close(descriptor)
            raise StoreError(
                f"A backup is being restored into {home}. Wait until that command has ended, then try again."
            )
        time.sleep(POLL_S)
    return SharedLock(descriptor)


@contextmanager
def lock_exclusively(home: Path, *, wait_s: float = 0.0) -> Iterator[None]:
    """Hold the exclusive lock of the home. Raises OSError, and StoreError if other processes use it after wait_s seconds."""
    descriptor, deadline = _open(home), time.monotonic() + wait_s
    try:
        while not _try_lock(descriptor, exclusive=True):
            if time.monotonic() >= deadline:
                raise StoreError(
                    f"{home} is in use: the page, the engine or a command has its database open. End the page with Ctrl-C and "
                    f"the engine with `{lab_command()} stop-engine --home {home}`, then try again. Nothing was changed."
                )
            time.sleep(POLL_S)
        yield
    finally:
        os.close(descriptor)


def _open(home: Path) -> int:
    restrict_file(home / LOCK_FILE)
    return os.open(home / LOCK_FILE, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)


def _try_lock(descriptor: int, *, exclusive: bool) -> bool:
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True
