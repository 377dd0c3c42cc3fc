"""A lab with a few texts in it, and scripts run in processes of their own.

Every test runs on SQLite. Those on the `db` of this file run on PostgreSQL too where RLHF_LAB_POSTGRES names a server's
database: postgresql+psycopg://user@host/name, of a user who may make others; they work in databases of their own beside it.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from rlhf_lab.records import NewCompletion, Pair, Project
from rlhf_lab.store import projects
from rlhf_lab.store.database import Database
from rlhf_lab.store.tables import metadata

ROOT = Path(__file__).parents[2]
POSTGRES = os.environ.get("RLHF_LAB_POSTGRES")
#: About SQLite's files, locks and plans.
SQLITE_ONLY = ("test_damage", "test_database", "test_migrations", "test_indices")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store" in metafunc.fixturenames:
        # Hypothesis's many examples in one database take a minute on a server, and say nothing new there.
        only = getattr(metafunc.function, "is_hypothesis_test", False)
        both = POSTGRES and not only and metafunc.module.__name__.split(".")[-1] not in SQLITE_ONLY
        metafunc.parametrize("store", ["sqlite", "postgresql"] if both else ["sqlite"], indirect=True)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def store(request: pytest.FixtureRequest, home: Path) -> Path | str:
    """What `Database.open` takes: a home, or the URL of a server's database without rows."""
    if request.param == "sqlite":
        return home
    home.mkdir()
    url: str = request.getfixturevalue("server")
    engine = create_engine(url)
    with engine.begin() as conn:
        conn.execute(text(f"TRUNCATE {', '.join(metadata.tables)} RESTART IDENTITY CASCADE"))
    engine.dispose()
    return url


@pytest.fixture(scope="session")
def server() -> str:
    """A database of the server with the tables of today, made once: migrations take longer than most tests."""
    assert POSTGRES
    name = f"rlhf_lab_{os.environ.get('PYTEST_XDIST_WORKER', 'tests')}"  # tests in two processes empty a database each
    engine = create_engine(POSTGRES, isolation_level="AUTOCOMMIT")
    with engine.connect() as conn:
        conn.execute(text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
        conn.execute(text(f"CREATE DATABASE {name}"))
    url = engine.url.set(database=name).render_as_string(hide_password=False)
    engine.dispose()
    Database.open(url).close()
    return url


@pytest.fixture
def db(store: Path | str) -> Iterator[Database]:
    with Database.open(store) as opened:
        yield opened


@pytest.fixture
def project(db: Database) -> Project:
    return projects.create_project(
        db, "tales", "assets/model", "abc", "tiny tales", 7, [("Once", "train"), ("There", "train"), ("Far", "eval")]
    )


@pytest.fixture
def make_pairs(db: Database, project: Project) -> Callable[[int], list[Pair]]:
    """n pairs of texts "a0"/"b0", "a1"/"b1" … for the prompt "Once"; token ids [i, 1] and [i, 2]."""

    def make(n: int) -> list[Pair]:
        prompt = projects.prompts(db, project.id, "train")[0]
        new = [
            NewCompletion(prompt.id, f"{side}{i}", (i, 1 + (side == "b")), "base", i) for i in range(n) for side in "ab"
        ]
        added = projects.add_completions(db, new)
        return projects.add_pairs(db, project.id, [(added[2 * i].id, added[2 * i + 1].id, "random") for i in range(n)])

    return make


@pytest.fixture
def script(home: Path, store: Path | str) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Start a Python script in a new process; it finds the lab's folder at sys.argv[1], what to open in the variable STORE.

    None outlives the test.
    """
    started: list[subprocess.Popen[str]] = []

    def start(source: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", source, str(home), *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"STORE": str(store)},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
