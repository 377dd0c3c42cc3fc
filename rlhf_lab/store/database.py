"""Access to the database from several threads and processes, and its errors.

    db = Database.open(home)
    db.fetch(query)                   the result of one query
    with db.read() as conn: ...       a consistent snapshot; never waits for a writer
    with db.write() as conn: ...      an exclusive transaction: rows that it reads cannot change until it commits

There is one writer at a time on every backend (SQLite: BEGIN IMMEDIATE; PostgreSQL: an advisory lock), so "check, then insert"
is safe. Do not nest `write` in `write`: it would wait for itself.
"""

import logging
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVarTuple

from filelock import FileLock, Timeout
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    Integer,
    Result,
    Row,
    Table,
    create_engine,
    insert,
    inspect,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.sql.selectable import TypedReturnsRows

from rlhf_lab.common.paths import database_url_override
from rlhf_lab.common.private_files import PRIVATE_FILE, make_private_folder, restrict_file, restrict_folder
from rlhf_lab.common.program_names import lab_command
from rlhf_lab.errors import BusyStoreError, StoreError
from rlhf_lab.store import home_replacement, sqlite
from rlhf_lab.store.filesystem import wal_problem
from rlhf_lab.store.home_lock import SharedLock
from rlhf_lab.store.tables import SCHEMA_VERSION, alembic_version, create_tables

log = logging.getLogger("rlhf_lab.store")

AnyRow = Row[*tuple[Any, ...]]
Ts = TypeVarTuple("Ts")


class _UncastInteger(Integer):
    """For PostgreSQL: a parameter is not cast to the 31 bits of a column, so comparing with a larger number that somebody sends
    is no error: no row has it, as on SQLite."""

    render_bind_cast = False


FILE_NAME = "lab.db"
_LOCK_WRITERS = text("SELECT pg_advisory_xact_lock(7264833)")  # an arbitrary number, the same for every lab
_OPENING_TIMEOUT_S = 60.0
#: `busy_timeout_s` of processes that train: they can wait, and a run must not fail because another process writes for long.
TRAINING_BUSY_TIMEOUT_S = 300.0
CONNECT_TIMEOUT_S = 10  # for a connection to a database server
#: Longer, because without a write-ahead log a commit waits until all readers have finished, and readers wait for the commit.
ROLLBACK_BUSY_TIMEOUT_S = 60.0


def lab_exists(home: Path) -> bool:
    """Whether the folder is the home of a lab. If RLHF_LAB_STORE names another database, only the folder must exist."""
    if database_url_override():
        return home.is_dir()
    return (home / FILE_NAME).is_file() or home_replacement.is_unfinished(home)


class Database:
    """Created by `Database.open`; may be shared between threads. Each process opens its own."""

    def __init__(self, engine: Engine, location: str, busy_timeout_s: float) -> None:
        self.location = location
        self._busy_timeout_s = busy_timeout_s
        # The threads of a process queue for this lock, and its holder waits for the database. SQLite polls its own lock, at worst
        # every 0.1 s: with 30 threads voting continuously the slowest vote took 3.9 s without this lock, and 0.4 s with it.
        self._write_lock = threading.Lock()
        self._files: sqlite.OpenFiles | None = None  # None for a server, and while the database is being opened
        self._home_lock: SharedLock | None = None  # None in the same cases
        self.wal_problem = ""  # why the database has a rollback journal; "" if it has a write-ahead log
        self._reader = engine
        self._writer = engine.execution_options(**{sqlite.WRITER_OPTION: True})
        self._fast_writer = self._writer.execution_options(**{sqlite.NOT_DURABLE_OPTION: True})

    @classmethod
    def open(cls, location: Path | str, *, busy_timeout_s: float = 10.0) -> Self:
        """Open a database, create it if it is missing, and migrate old tables.

        location: a home folder (its database is its lab.db, or that of RLHF_LAB_STORE) or a database URL. Raises StoreError if it
        cannot be used, CorruptStoreError if it is damaged; a damaged file has been renamed.
        """
        database_url = location if isinstance(location, str) and "://" in location else database_url_override()
        if database_url != location:
            _make_home(Path(location).expanduser())
        if database_url is None:
            return cls._open_file(Path(location).expanduser() / FILE_NAME, busy_timeout_s)
        url = _parse_url(database_url)
        if url.get_backend_name() == "postgresql":
            return cls._open_server(url, busy_timeout_s)
        return cls._open_file(Path(url.database or "").expanduser(), busy_timeout_s)

    @classmethod
    def _open_file(cls, path: Path, busy_timeout_s: float) -> Self:
        _make_folder(path.parent)
        try:
            lock = path.with_name(path.name + ".lock")
            lock.touch(
                PRIVATE_FILE
            )  # fails at once if the folder is not writable; FileLock would try until its timeout
            restrict_file(lock)
            home_lock = home_replacement.use_home(path.parent)
            # Only one process at a time checks, renames and migrates the file.
            with FileLock(lock, timeout=_OPENING_TIMEOUT_S, mode=PRIVATE_FILE):
                _make_file_private(path)
                sqlite.quarantine_if_corrupt(path, busy_timeout_s)
                problem = _choose_journal(path, busy_timeout_s)
                wal = not problem
                if not wal:
                    busy_timeout_s = max(busy_timeout_s, ROLLBACK_BUSY_TIMEOUT_S)
                db = cls(sqlite.create_sqlite_engine(path, busy_timeout_s, wal=wal), str(path), busy_timeout_s)
                db.wal_problem = problem
                if problem:
                    log.warning("%s uses a rollback journal instead of a write-ahead log, because %s", path, problem)
                with db._closed_on_error():
                    engine_without_foreign_keys = sqlite.create_sqlite_engine(
                        path, busy_timeout_s, foreign_keys=False, wal=wal
                    )
                    with cls(engine_without_foreign_keys, str(path), busy_timeout_s) as migration_db:
                        migration_db._upgrade_schema()
                    db._files = sqlite.OpenFiles(path, wal=wal)
                    db._home_lock = home_lock
        except Timeout as exc:
            raise StoreError(
                f"Another process has been opening {path} for {_OPENING_TIMEOUT_S:.0f} s. Wait for it or stop it; "
                f"`{lab_command()} doctor` lists what is running."
            ) from exc
        except OSError as exc:
            raise _home_error(path.parent, exc) from exc
        except sqlite3.Error as exc:
            raise sqlite.to_store_error(exc, str(path)) from exc
        return db

    @classmethod
    def _open_server(cls, url: URL, busy_timeout_s: float) -> Self:
        try:
            engine = create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": CONNECT_TIMEOUT_S})
        except (ModuleNotFoundError, NoSuchModuleError) as exc:
            raise StoreError(f"The database driver is missing ({exc}): pip install 'psycopg[binary]'.") from exc
        engine.dialect.colspecs = {**engine.dialect.colspecs, Integer: _UncastInteger}
        db = cls(engine, url.render_as_string(hide_password=True), busy_timeout_s)
        # By default, each query of a PostgreSQL transaction has its own snapshot. A writer needs that, because its first query
        # waits for the write lock; a reader needs one snapshot for all queries.
        db._reader = engine.execution_options(isolation_level="REPEATABLE READ")
        with db._closed_on_error():
            db._upgrade_schema()
        return db

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A read transaction. Raises LostStoreError if the database's file was deleted or replaced."""
        if self._files is not None:
            self._files.check()
        with self._transaction(self._reader) as conn:
            yield conn

    def fetch(self, query: TypedReturnsRows[*Ts], parameters: Mapping[str, Any] | None = None) -> Result[*Ts]:
        """The result of one query, in a read transaction of its own."""
        with self.read() as conn:
            return conn.execute(query, parameters).freeze()()

    @contextmanager
    def write(self, *, durable: bool = True) -> Iterator[Connection]:
        """An exclusive transaction: committed at the end, rolled back after an exception.

        durable: wait until the commit is on the disk (5 to 15 ms). Pass False only for rows that may be lost in a power failure.
        Raises LostStoreError if the database's file was deleted or replaced, before the transaction or during it.
        """
        if not self._write_lock.acquire(timeout=self._busy_timeout_s):
            raise BusyStoreError(
                f"The database {self.location} failed: another thread of this program has been writing for "
                f"{self._busy_timeout_s:.0f} s. Try again."
            )
        try:
            if self._files is not None:
                self._files.check()
            with self._transaction(self._writer if durable else self._fast_writer) as conn:
                if conn.dialect.name == "postgresql":
                    conn.execute(text(f"SET LOCAL lock_timeout = {round(1000 * self._busy_timeout_s)}"))
                    conn.execute(_LOCK_WRITERS)
                elif self._files is not None and self.wal_problem:
                    self._files.check(writing=True)
                yield conn
            if self._files is not None:
                self._files.check(log=True)
        finally:
            self._write_lock.release()

    def truncate_log(self) -> None:
        """Remove deleted rows from SQLite's write-ahead log too, or if a reader needs the log, at its next checkpoint."""
        if self._reader.dialect.name == "sqlite":
            sqlite.truncate_wal(self._reader)

    def close(self) -> None:
        self._reader.dispose()
        if self._files is not None:
            self._files.forget_log()
        if self._home_lock is not None:
            self._home_lock.release()
            self._home_lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _transaction(self, engine: Engine) -> Iterator[Connection]:
        try:
            with engine.begin() as conn:
                yield conn
        except DBAPIError as exc:
            raise sqlite.to_store_error(exc.orig, self.location) from exc
        except (OverflowError, UnicodeEncodeError) as exc:  # an integer of more than 64 bits, a lone surrogate
            raise StoreError(
                f"The database {self.location} does not accept this value: {exc}. Nothing was stored."
            ) from exc
        except SQLAlchemyError as exc:  # for example, no connection became free
            raise StoreError(f"The database {self.location} failed: nothing was stored. Try again. ({exc})") from exc

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _upgrade_schema(self) -> None:
        with self.read() as conn:
            version = self._schema_version(conn)
        if version is None:
            with self.write() as conn:
                version = self._schema_version(conn)  # another process may have created the tables meanwhile
                if version is None:
                    create_tables(conn)
                    return
        if version == SCHEMA_VERSION:
            return
        from rlhf_lab.store import migrations  # late, because importing Alembic takes 0.3 s

        if migrations.is_of_development(version):
            raise StoreError(
                f"The database {self.location} was created by a development version of the lab (schema {version}), and only "
                f"version 0.2.0 can migrate it. Run `{lab_command()} runs` of version 0.2.0 on this home once, then use this "
                "version, or choose another home with --home. Nothing was changed."
            )
        if version not in migrations.revisions():
            raise StoreError(
                f"The database {self.location} was created by a newer version of the lab (schema {version}; this "
                f"version supports {SCHEMA_VERSION}). Update the lab, or choose another home with --home. Nothing "
                "was changed."
            )
        with self.write() as conn:
            migrations.upgrade(conn)

    def _schema_version(self, conn: Connection) -> str | None:
        names = inspect(conn).get_table_names()
        if alembic_version.name in names:
            return conn.execute(select(alembic_version.c.version_num)).scalar()
        if names:
            raise StoreError(
                f"The database {self.location} belongs to another program: its tables are "
                f"{', '.join(sorted(names)[:3])} … Choose another home with --home. Nothing was changed."
            )
        return None


def _choose_journal(path: Path, busy_timeout_s: float) -> str:
    """Set the journal mode. Returns "" for a write-ahead log, or the reason for a rollback journal. Raises StoreError."""
    problem = wal_problem(path.parent, has_wal=sqlite.has_wal(path))
    if not problem and not sqlite.set_journal_mode(path, busy_timeout_s, wal=True):
        problem = "its disk does not support shared memory between processes"
    if problem and not sqlite.set_journal_mode(path, busy_timeout_s, wal=False):
        raise StoreError(
            f"The database {path} must not have a write-ahead log ({problem}), but another process uses it with one. End the "
            "page and the engine, then start again."
        )
    return problem


def _make_folder(folder: Path) -> None:
    try:
        make_private_folder(folder)
    except OSError as exc:
        raise _home_error(folder, exc) from exc


def _make_home(home: Path) -> None:
    """Create the home, or make an existing folder private. The engine's files are made private too."""
    _make_folder(home)
    restrict_folder(home)
    for path in home.glob("engine.*"):
        restrict_file(path)


def _make_file_private(path: Path) -> None:
    """Create the database's file as a private one. SQLite would use default permissions; its log inherits those of the file."""
    if not path.exists():
        path.touch(PRIVATE_FILE)
    for suffix in ("", "-wal", "-shm"):
        restrict_file(path.with_name(path.name + suffix))


def _home_error(folder: Path, exc: OSError) -> StoreError:
    return StoreError(
        f"The home {folder} cannot be used: {exc.strerror or exc}. Check that it is a folder on a disk with free "
        "space that "
        "you may write to, or choose another with --home."
    )


def _parse_url(url_text: str) -> URL:
    try:
        url = make_url(url_text)
    except ArgumentError as exc:
        raise StoreError("The database URL cannot be read. It looks like postgresql+psycopg://user@host/name.") from exc
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise StoreError(f"The lab stores in SQLite or PostgreSQL, not in {url.get_backend_name()}.")
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise StoreError(
            "A database in memory cannot be shared by the page and the engine: name a file or a home folder."
        )
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").expanduser().is_absolute():
        raise StoreError("Give the absolute path of the database file, as in sqlite:////data/lab.db.")
    return url


def insert_row(conn: Connection, table: Table, values: Mapping[str, Any]) -> int:
    """Insert one row and return its id."""
    return int(conn.execute(insert(table).values(**values).returning(table.c.id)).scalar_one())


def in_chunks(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Slices that are small enough for `IN (…)`: SQLite allows 32,766 variables in a statement."""
    for start in range(0, len(ids), 5_000):
        yield ids[start : start + 5_000]
