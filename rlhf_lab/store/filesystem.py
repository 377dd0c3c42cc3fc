"""Decides whether SQLite's write-ahead log (WAL) is safe in a folder.

The processes that use a WAL share memory through a mapped file (sqlite.org/wal.html). On a network disk or a FUSE file system
each machine or process may see a separate mapping, which would sooner or later damage the database. On such disks the lab uses
a rollback journal instead (`sqlite.py`).
"""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil

from rlhf_lab.common.atomic import temporary_folder
from rlhf_lab.errors import ConfigError

JOURNAL_VARIABLE = "RLHF_LAB_JOURNAL"
WAL, ROLLBACK = "wal", "truncate"
#: Types of file systems that other machines may write to, or that are implemented by a program (FUSE).
UNSAFE_TYPES = frozenset(
    {
        "9p", "acfs", "afpfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "davfs2", "drvfs", "fuse", "fuseblk", "gfs2",
        "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "osxfuse", "prl_fs", "pvfs2", "smb2", "smb3",
        "smbfs", "vboxsf", "virtiofs", "vmhgfs", "webdav",
    }
)  # fmt: skip
UNSAFE_PREFIXES = ("fuse.", "macfuse", "nfs")
TEST_TIMEOUT_S = 20.0

#: The second process of the test. It must see the row of the first process, must not get the write lock while the first process
#: holds it, and then writes a row.
_OTHER_PROCESS = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)
rows = connection.execute("SELECT count(*) FROM t").fetchone()[0]
try:
    connection.execute("BEGIN IMMEDIATE")
    excluded = False
except sqlite3.OperationalError:
    excluded = True
print(rows, excluded, flush=True)
sys.stdin.readline()
connection.execute("INSERT INTO t VALUES (2)")
print("written", flush=True)
sys.stdin.readline()
"""


def wal_problem(folder: Path, *, has_wal: bool) -> str:
    """Why a database in this folder must not have a WAL; "" if it may have one.

    has_wal: the database has a WAL, so the disk passed the test when it was created. RLHF_LAB_JOURNAL (wal or truncate) overrides
    all checks and must be the same for all processes of a lab. Raises ConfigError for another value.
    """
    choice = os.environ.get(JOURNAL_VARIABLE, "").lower()
    if choice == ROLLBACK:
        return f"{JOURNAL_VARIABLE}={ROLLBACK} is set"
    if choice == WAL:
        return ""
    if choice:
        raise ConfigError(
            f"{JOURNAL_VARIABLE} is {WAL} or {ROLLBACK}, not {choice}. Without it the lab finds out by itself."
        )
    kind = filesystem_type(folder)
    if kind in UNSAFE_TYPES or kind.startswith(UNSAFE_PREFIXES):
        return f"its disk is of the type {kind}, a network disk or one that a program implements"
    if not has_wal and not _passes_test(folder):
        return "a test of its disk failed: two processes did not see each other's writes"
    return ""


def filesystem_type(folder: Path) -> str:
    """The type of the file system of a folder, such as ext4, overlay or nfs4; "" if unknown."""
    path = folder.resolve()
    longest, kind = -1, ""
    try:
        partitions = psutil.disk_partitions(all=True)
    except (OSError, RuntimeError):
        return ""
    for partition in partitions:  # of two mounts at the same place, the later one is visible
        mount = Path(partition.mountpoint)
        if path.is_relative_to(mount) and len(mount.parts) >= longest:
            longest, kind = len(mount.parts), partition.fstype.lower()
    return kind


_passes_by_device: dict[int, bool] = {}


def _passes_test(folder: Path) -> bool:
    """Whether two processes can share a WAL on the folder's disk. Each disk is tested once."""
    device = folder.stat().st_dev
    if device not in _passes_by_device:
        try:
            with temporary_folder(folder, ".wal-test-") as scratch:
                _passes_by_device[device] = _share_wal(scratch / "test.db")
        except OSError:
            return True  # the folder cannot be written or no process started: opening the database gives a better error
    return _passes_by_device[device]


def _share_wal(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
            if connection.execute("PRAGMA journal_mode=WAL").fetchone()[0] != "wal":
                return False
            connection.execute("CREATE TABLE t (n)")
            connection.execute("INSERT INTO t VALUES (1)")
            connection.execute("BEGIN IMMEDIATE")
            with subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", _OTHER_PROCESS, str(path)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            ) as other:  # fmt: skip
                assert other.stdin is not None
                assert other.stdout is not None
                try:
                    first = other.stdout.readline().split()
                    connection.execute("COMMIT")
                    other.stdin.write("\n")
                    other.stdin.flush()
                    second = other.stdout.readline().split()
                    rows = connection.execute("SELECT count(*) FROM t").fetchone()[0]
                    other.communicate("\n", timeout=TEST_TIMEOUT_S)
                finally:
                    other.kill()
            return first == ["1", "True"] and second == ["written"] and rows == 2
    except (sqlite3.Error, subprocess.TimeoutExpired, BrokenPipeError):
        return False
