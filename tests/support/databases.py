"""Homes whose tables are in SQLite, and also in PostgreSQL where RLHF_LAB_POSTGRES names a database of a server.

Its value looks like postgresql+psycopg://user@host/name; the user must be allowed to create databases: the tests use their own.
A test with the fixture `db` runs on each backend; one marked `sqlite` is about SQLite's files, locks and query plans. With
RLHF_LAB_REQUIRE_POSTGRES=1 a missing server is a failure.
"""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from rlhf_lab.common.paths import STORE_VARIABLE
from rlhf_lab.common.records import Vote
from rlhf_lab.store.database import Database
from rlhf_lab.store.tables import metadata
from rlhf_lab.store.votes import mark_last_vote_undone

__all__ = ["db", "fresh", "home", "pytest_generate_tests", "script", "server", "store"]
ROOT = Path(__file__).parents[2]
#: Databases of earlier versions, as the SQL that creates them.
SCHEMAS = ROOT / "tests" / "compatibility" / "schemas"
POSTGRES = os.environ.get("RLHF_LAB_POSTGRES")
REQUIRED = os.environ.get("RLHF_LAB_REQUIRE_POSTGRES") == "1"
#: TRUNCATE takes three times as long, because it writes new files for all tables.
_EMPTY_TABLES = "; ".join([
    "SET session_replication_role = replica",  # foreign keys are not checked
    *(f"DELETE FROM {name}" for name in metadata.tables),
    "SELECT setval(oid::regclass, 1, false) FROM pg_class WHERE relkind = 'S'",
])  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store" in metafunc.fixturenames:
        # Hypothesis's many examples in one database take a minute on a server, and say nothing new there.
        only = getattr(metafunc.function, "is_hypothesis_test", False) or any(
            mark.name == "sqlite" for mark in metafunc.definition.iter_markers()
        )
        metafunc.parametrize("store", ["sqlite", "postgresql"] if POSTGRES and not only else ["sqlite"], indirect=True)


def undo_vote(db: Database, project_id: int, annotator: str) -> Vote | None:
    """Undo a person's last vote without leasing its pair to them again."""
    with db.write() as conn:
        return mark_last_vote_undone(conn, project_id, annotator)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, home: Path) -> Path:
    """A home to open; if its tables are on a server, they are empty."""
    if getattr(request, "param", "sqlite") == "postgresql":  # none in tests/mutation
        url: str = request.getfixturevalue("server")
        engine = create_engine(url)
        with engine.begin() as conn:
            conn.exec_driver_sql(_EMPTY_TABLES)
        engine.dispose()
        monkeypatch.setenv(STORE_VARIABLE, url)
    return home


@pytest.fixture
def fresh(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, store: Path) -> str:
    """The URL of the database that `home` opens: without tables, and not opened before."""
    url = f"sqlite:///{store / 'lab.db'}"
    if STORE_VARIABLE in os.environ:
        url = empty_database("fresh")
        monkeypatch.setenv(STORE_VARIABLE, url)
    store.mkdir()
    return url


@pytest.fixture(scope="session")
def server() -> str:
    """A database of the server with the current tables, created once because migrations take longer than most tests."""
    url = empty_database("tests")
    Database.open(url).close()
    return url


def empty_database(name: str) -> str:
    """The URL of a new database of the server."""
    assert POSTGRES
    name = f"rlhf_lab_{name}_{os.environ.get('PYTEST_XDIST_WORKER', '')}"  # each test process has its own
    engine = create_engine(POSTGRES, isolation_level="AUTOCOMMIT")
    with engine.connect() as conn:
        conn.execute(text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
        conn.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return engine.url.set(database=name).render_as_string(hide_password=False)


def create_old_database(url: str, revision: str, *, rows: bool = True) -> None:
    """Create the tables of an earlier version in an empty database, with the rows of its file."""
    if make_url(url).get_backend_name() == "postgresql":
        engine = create_engine(url)
        with engine.begin() as conn:
            conn.exec_driver_sql((SCHEMAS / f"{revision}.postgresql.sql").read_text(encoding="utf-8"))
        engine.dispose()
        return
    script = (SCHEMAS / f"{revision}.sql").read_text(encoding="utf-8")
    if not rows:
        lines = script.splitlines(keepends=True)
        script = "".join(line for line in lines if not line.startswith("INSERT") or "alembic_version" in line)
    with closing(sqlite3.connect(str(make_url(url).database))) as connection:
        connection.executescript(script)


@pytest.fixture
def db(store: Path, empty_home: Path) -> Iterator[Database]:
    if STORE_VARIABLE not in os.environ and not store.exists():
        shutil.copytree(empty_home, store)
    with Database.open(store) as opened:
        yield opened


@pytest.fixture
def script(store: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a Python script in a new process; it finds the home at sys.argv[1]. None outlives the test."""
    started: list[subprocess.Popen[str]] = []

    def start(source: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", source, str(store), *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
