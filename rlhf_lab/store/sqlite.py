"""SQLite: connection settings, the check for a corrupt file, and error messages."""

import contextlib
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

from rlhf_lab.common.program_names import lab_command
from rlhf_lab.errors import BusyStoreError, CorruptStoreError, LostStoreError, StoreError

WRITER_OPTION = "rlhf_lab_writer"  # execution option: this connection's transactions begin with the write lock
#: Execution option of a writer: a commit does not wait for the disk. A power failure may lose the transaction, unless a later
#: commit did wait.
NOT_DURABLE_OPTION = "rlhf_lab_not_durable"

# PRAGMA quick_check reads the whole file (42 MB: 0.07 s). It is skipped above this size, to start fast. A damaged header or
# schema is detected at any size, because every start reads them.
QUICK_CHECK_BELOW = 256 * 2**20

_CORRUPTION_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_LOCK_NOT_AVAILABLE = "55P03"  # PostgreSQL: lock_timeout has expired
_NO_SHARED_MEMORY_CODES = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL)


class OpenFiles:
    """Detects that the files of an open database were deleted, replaced or truncated.

    SQLite would continue to use deleted files, whose content is lost when the last process closes them, and the pages of a
    truncated file that are in its cache.
    """

    def __init__(self, path: Path, *, wal: bool = True) -> None:
        self.path, self._wal, self._log = path, wal, path.with_name(path.name + "-wal")
        self._inodes: dict[Path, tuple[int, int]] = {}
        self._size = 0  # of the database's file, which never shrinks between transactions
        self.check()

    def check(self, *, log: bool = False, writing: bool = False) -> None:
        """Raises LostStoreError if a file was deleted or replaced, CorruptStoreError if it was truncated.

        log: also check the write-ahead log, which exists while a connection is open. writing: this process has the write lock.
        Without a write-ahead log the file grows before a commit and shrinks at a rollback, so its size is checked only while no
        other process can write.
        """
        for file in (self.path, self._log) if log and self._wal else (self.path,):
            known_size = self._size  # read before the file's size, because another thread may update it in between
            try:
                status = file.stat()
            except OSError:
                inode = None
            else:
                inode = (status.st_dev, status.st_ino)
                if file == self.path and (self._wal or writing):
                    if status.st_size < known_size:
                        raise _corrupt_while_open(str(file), "it was truncated")
                    self._size = max(self._size, status.st_size)
            if inode is None or self._inodes.setdefault(file, inode) != inode:
                raise LostStoreError(
                    f"{file} was deleted, moved or replaced while the lab was running, so nothing is stored any "
                    "more. Stop the lab, put the file back or choose another home with --home, and start it again."
                )

    def forget_log(self) -> None:
        """Forget the log's inode. Closing all connections has deleted the log, and the next one creates another."""
        self._inodes.pop(self._log, None)


def create_sqlite_engine(path: Path, busy_timeout_s: float, *, foreign_keys: bool = True, wal: bool = True) -> Engine:
    """An engine that begins transactions itself, because Python's sqlite3 begins them too late (see `begin_transaction`).

    foreign_keys: False only for migrations. SQLite cannot change it within a transaction. wal: False for a rollback journal.
    """
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        connect_args={"timeout": busy_timeout_s},  # seconds; this is PRAGMA busy_timeout
        max_overflow=-1,  # unlimited: a thread must never wait for a free connection
    )

    @event.listens_for(engine, "connect")
    def set_pragmas(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        connection.isolation_level = None
        if not wal:
            connection.execute(
                "PRAGMA journal_mode=TRUNCATE"
            )  # applies to this connection; the file is already in a rollback mode
        # secure_delete overwrites deleted content with zeros, so that no erased name stays in the file.
        for pragma in (f"foreign_keys={'ON' if foreign_keys else 'OFF'}", "synchronous=FULL", "secure_delete=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin_transaction(connection: Connection) -> None:
        # A plain BEGIN takes the write lock at the first write; if another process wrote since the first read, SQLite fails with
        # "database is locked" at once, whatever the timeout. BEGIN IMMEDIATE waits for the lock instead.
        options = connection.get_execution_options()
        if not options.get(WRITER_OPTION, False):
            connection.exec_driver_sql("BEGIN")
            return
        # Without a write-ahead log NORMAL could damage the file in a power failure.
        synchronous = "NORMAL" if wal and options.get(NOT_DURABLE_OPTION, False) else "FULL"
        if connection.info.get("synchronous", "FULL") != synchronous:
            connection.exec_driver_sql(f"PRAGMA synchronous={synchronous}")
            connection.info["synchronous"] = synchronous
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def set_journal_mode(path: Path, busy_timeout_s: float, *, wal: bool) -> bool:
    """Set the journal mode: a write-ahead log, with which readers and the writer do not block each other, or a rollback journal.

    The mode is stored in the file. Returns whether it was set: False if the disk does not support shared memory between
    processes. Raises sqlite3.Error, for example if the mode has to be changed while other processes use the database.
    """
    with closing(sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None)) as connection:
        if not wal:
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")  # reads an old write-ahead log without shared memory
        try:
            row = connection.execute(f"PRAGMA journal_mode={'WAL' if wal else 'TRUNCATE'}").fetchone()
        except sqlite3.OperationalError as exc:
            if wal and primary_error_code(exc) in _NO_SHARED_MEMORY_CODES:
                return False
            raise
        return bool(row[0] == ("wal" if wal else "truncate"))


def has_wal(path: Path) -> bool:
    """Whether a database file uses a write-ahead log (sqlite.org/fileformat.html, offset 18). False for an empty file.

    If the log exists, the file is not read: this process may have it open, and closing any descriptor of it would release the
    locks of its connections (POSIX). Another process could then believe that it is the last user and delete the log.
    """
    if path.with_name(path.name + "-wal").exists():
        return True
    with path.open("rb") as file:
        return file.read(20)[18:] == b"\2\2"


def truncate_wal(engine: Engine) -> None:
    """Copy the write-ahead log into the file and truncate it, unless readers or disk errors prevent it."""
    connection = engine.raw_connection()
    try:
        with contextlib.suppress(sqlite3.Error):
            connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
    finally:
        connection.close()


def quarantine_if_corrupt(path: Path, busy_timeout_s: float) -> None:
    """Check an existing file; rename a damaged one, with its log, and raise CorruptStoreError with the new name.

    The caller must ensure that no other process can open the same path for the first time.
    """
    corruption = _find_corruption(path, busy_timeout_s)
    if corruption is None:
        return
    target = _unused_quarantine_path(path)
    # The log comes first: after an interruption the damaged file still exists, and the next start renames it.
    for suffix in ("-wal", "-shm", ""):
        file = path.with_name(path.name + suffix)
        if file.exists():
            file.rename(target.with_name(target.name + suffix))
    raise CorruptStoreError(
        f"The database {path} is damaged ({corruption}). Nothing was deleted: it was moved to {target}. Start again "
        "to create a new database; to recover rows from the old one, copy it and run "
        f"`sqlite3 {target.name} .recover`.",
        corruption,
    )


def _find_corruption(path: Path, busy_timeout_s: float) -> str | None:
    if not path.exists() or path.stat().st_size == 0:
        # SQLite writes to the log only after the file has its first page, so the file was truncated by something else.
        log = path.with_name(path.name + "-wal")
        return "it is empty, but its log is not" if log.exists() and log.stat().st_size else None
    # Read-only, so that the check cannot change a damaged file: closing a normal connection would checkpoint the log.
    uri = f"{path.resolve().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=busy_timeout_s, isolation_level=None)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if path.stat().st_size > QUICK_CHECK_BELOW:
                return None
            (check_result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as exc:
        if primary_error_code(exc) in _CORRUPTION_CODES:
            return str(exc)
        raise
    return None if check_result == "ok" else " ".join(str(check_result).split())


def _unused_quarantine_path(path: Path) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    name, n = f"{path.name}.corrupt-{stamp}", 1
    while any(path.with_name(name + suffix).exists() for suffix in ("", "-wal", "-shm")):
        n += 1
        name = f"{path.name}.corrupt-{stamp}-{n}"
    return path.with_name(name)


def primary_error_code(exc: BaseException | None) -> int | None:
    """SQLite's primary error code, the low byte of the extended code; None for other errors."""
    code = getattr(exc, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def to_store_error(exc: BaseException | None, path: str) -> StoreError:
    """Convert an error of SQLite or PostgreSQL into a StoreError with advice."""
    advice = {
        sqlite3.SQLITE_BUSY: f"another process kept it locked for too long. Check `{lab_command()} doctor`, and try again.",
        sqlite3.SQLITE_READONLY: "it may not be written. Make the file and its folder writable, "
        "or choose another home with --home.",
        sqlite3.SQLITE_FULL: "the disk is full. What was committed before is safe. Free some space and try again.",
        sqlite3.SQLITE_IOERR: "the disk refused to read or write: it may be full, over a quota, or failing. "
        "What was committed before is safe. Free some space, check the disk, and try again.",
        sqlite3.SQLITE_CANTOPEN: "it cannot be opened. Check that its folder exists and is writable, "
        "or choose another home with --home.",
        sqlite3.SQLITE_CONSTRAINT: "the rows violate a constraint, which is an error in the program; nothing was stored.",
    }
    is_busy_server = getattr(exc, "sqlstate", None) == _LOCK_NOT_AVAILABLE
    code = sqlite3.SQLITE_BUSY if is_busy_server else primary_error_code(exc)
    if code in _CORRUPTION_CODES:
        return _corrupt_while_open(path, str(exc))
    error_class = BusyStoreError if code == sqlite3.SQLITE_BUSY else StoreError
    return error_class(f"The database {path} failed: {advice.get(code or 0, 'nothing was stored.')} ({exc})")


def _corrupt_while_open(path: str, reason: str) -> CorruptStoreError:
    return CorruptStoreError(
        f"The database {path} is damaged ({reason}), so nothing is stored any more. Stop the lab and copy the file; "
        "the next start examines it and sets it aside.",
        reason,
    )
