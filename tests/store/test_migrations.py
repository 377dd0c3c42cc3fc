import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text
from support.databases import create_old_database
from test_project_deletion import fill, finish

from rlhf_lab.errors import StoreError
from rlhf_lab.store import migrations, projects
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import delete_project
from rlhf_lab.store.tables import SCHEMA_VERSION, metadata

ADDED = re.compile(r"\s*, (\w+ [A-Z]+)")


def test_the_newest_migration_is_the_version_the_code_expects() -> None:
    assert migrations.revisions()[0] == SCHEMA_VERSION


@pytest.mark.parametrize("migrated", [False, True])
def test_a_new_database_has_the_tables_of_the_code(fresh: str, migrated: bool) -> None:
    if migrated:
        create_old_database(fresh, "0009")
    with Database.open(fresh) as db, db.read() as conn:
        assert compare_metadata(MigrationContext.configure(conn, opts={"compare_type": True}), metadata) == []
        assert MigrationContext.configure(conn).get_current_revision() == SCHEMA_VERSION


def test_only_an_old_database_is_migrated(fresh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    migrated: list[object] = []
    monkeypatch.setattr(migrations, "upgrade", migrated.append)
    Database.open(fresh).close()
    Database.open(fresh).close()
    assert not migrated
    _do(fresh, "UPDATE alembic_version SET version_num = '0017'")
    Database.open(fresh).close()
    assert len(migrated) == 1


def _ddl(path: Path) -> dict[str, list[str]]:
    """Every table and index with its clauses, sorted; Alembic's comparison overlooks checks and partial indices.

    A column that was added later stands on the line of the one before it; a table that was made anew has its name in quotes.
    """
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    result = {
        name: ADDED.sub(r",\n\1", sql.removesuffix(")").replace(f'"{name}"', name, 1).replace(" (", "(\n", 1))
        for name, sql in rows
    }
    return {
        name: sorted(line.strip().rstrip(",") for line in sql.splitlines() if line.strip())
        for name, sql in result.items()
        if name != "sqlite_sequence"
    }


@pytest.mark.sqlite
def test_the_migrations_write_the_very_same_sql(db: Database, home: Path, tmp_path: Path) -> None:
    old = f"sqlite:///{tmp_path / 'lab.db'}"
    create_old_database(old, "0009")
    Database.open(old).close()
    migrated, direct = _ddl(tmp_path / "lab.db"), _ddl(home / "lab.db")
    assert "uq_votes_live" in direct
    assert any("WHERE undone_at IS NULL" in line for line in direct["uq_votes_live"])
    assert migrated == direct


def _columns(url: str) -> dict[str, list[str]]:
    """Every table and the names of its columns."""
    engine = create_engine(url)
    result = inspect(engine)
    tables = {name: [column["name"] for column in result.get_columns(name)] for name in result.get_table_names()}
    engine.dispose()
    return tables


def _do(url: str, *statements: str) -> None:
    engine = create_engine(url)
    with engine.begin() as conn:
        for statement in statements:
            conn.execute(text(statement))
    engine.dispose()


def test_opening_again_changes_nothing(fresh: str, home: Path) -> None:
    Database.open(home).close()
    before = _columns(fresh)
    assert set(before) == {*metadata.tables, "alembic_version"}
    _do(fresh, "INSERT INTO presence VALUES ('ann', 1.5)")
    Database.open(home).close()
    assert _columns(fresh) == before
    with Database.open(home) as db, db.read() as conn:
        assert conn.execute(text("SELECT who, seen_at FROM presence")).all() == [("ann", 1.5)]


@pytest.mark.sqlite
def test_opening_again_rewrites_no_statement(db: Database, home: Path) -> None:
    before = _ddl(home / "lab.db")
    Database.open(home).close()
    assert _ddl(home / "lab.db") == before


def test_a_newer_schema_is_refused_and_left_alone(fresh: str, home: Path) -> None:
    Database.open(home).close()
    before = _columns(fresh)
    _do(fresh, "UPDATE alembic_version SET version_num = '0999'")
    with pytest.raises(StoreError, match=r"newer version.*0999.*Update"):
        Database.open(home)
    assert _columns(fresh) == before


@pytest.mark.parametrize("revision", ["0001", "0008", "0010", "0016"])
def test_a_schema_of_a_development_version_is_refused_and_left_alone(fresh: str, home: Path, revision: str) -> None:
    create_old_database(fresh, "0009")
    _do(fresh, f"UPDATE alembic_version SET version_num = '{revision}'")
    before = _columns(fresh)
    with pytest.raises(StoreError, match=rf"schema {revision}.*runs` of version 0\.2\.0.*Nothing was changed"):
        Database.open(home)
    assert _columns(fresh) == before


def test_a_database_of_something_else_is_refused_and_left_alone(fresh: str, home: Path) -> None:
    _do(fresh, "CREATE TABLE cats (name TEXT)")
    with pytest.raises(StoreError, match=r"another program.*cats.*--home"):
        Database.open(home)
    assert _columns(fresh) == {"cats": ["name"]}


def test_two_processes_that_open_a_new_lab_create_it_once(fresh: str, home: Path, script: Callable) -> None:
    opened = [script(OPENS) for _ in range(2)]
    for process in opened:
        assert process.stdout.readline() == "ready\n"
    (home / "go").touch()
    for process in opened:
        assert (process.communicate(timeout=60)[1], process.returncode) == ("", 0)
    assert set(_columns(fresh)) == {*metadata.tables, "alembic_version"}


OPENS = """
import sys, time
from pathlib import Path
from rlhf_lab.store.database import Database
print("ready", flush=True)
while not (Path(sys.argv[1]) / "go").exists():
    time.sleep(0.002)
Database.open(Path(sys.argv[1])).close()
"""


# A lab of version 0.1.0.


@cache
def _old_columns() -> dict[str, str]:
    """Every table of schema 0009 and its columns, separated by commas."""
    with TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/lab.db"
        create_old_database(url, "0009")
        columns = _columns(url)
    return {name: ", ".join(columns[name]) for name in metadata.tables if name in columns}


@pytest.fixture
def old(home: Path, tmp_path: Path) -> Path:
    """Two projects with at least one row in every table that belongs to a project; the second has no active run or job."""
    with Database.open(tmp_path / "current") as db:
        for name in ("kept", "leaving"):
            fill(db, projects.create_project(db, name, "assets/model", "abc", "tiny tales", 7, [("Once", "train")]))
        finish(db)
        projects.open_project(db, 1)
    home.mkdir()
    create_old_database(f"sqlite:///{home / 'lab.db'}", "0009", rows=False)
    with closing(sqlite3.connect(home / "lab.db")) as connection:
        connection.execute("ATTACH ? AS current", (str(tmp_path / "current" / "lab.db"),))
        with connection:
            for name, columns in _old_columns().items():
                connection.execute(f"INSERT INTO {name} ({columns}) SELECT {columns} FROM current.{name}")
    return home


def _contents(home: Path) -> tuple[dict[str, list], list]:
    """The rows of every table of schema 0009, and the result of the integrity check of SQLite."""
    with closing(sqlite3.connect(home / "lab.db")) as connection:
        rows = {
            name: connection.execute(f"SELECT {columns} FROM {name} ORDER BY 1, 2").fetchall()
            for name, columns in _old_columns().items()
        }
        wrong = connection.execute("PRAGMA integrity_check").fetchall()
        return rows, wrong + connection.execute("PRAGMA foreign_key_check").fetchall()


def _version(home: Path) -> str:
    with closing(sqlite3.connect(home / "lab.db")) as connection:
        return str(connection.execute("SELECT version_num FROM alembic_version").fetchone()[0])


@pytest.mark.sqlite
def test_a_lab_of_the_version_before_keeps_every_row(old: Path, tmp_path: Path) -> None:
    before, integrity = _contents(old)
    assert {name for name, rows in before.items() if not rows} == {"token_records", "engines", "people", "presence"}
    Database.open(old).close()
    assert _contents(old) == (before, integrity) == (before, [("ok",)])
    Database.open(tmp_path / "new").close()
    assert _ddl(old / "lab.db") == _ddl(tmp_path / "new" / "lab.db")


@pytest.mark.sqlite
def test_foreign_keys_are_back_after_a_migration(old: Path) -> None:
    with Database.open(old) as db:
        with db.write() as conn:
            assert conn.execute(text("PRAGMA foreign_keys")).scalar() == 1
        with pytest.raises(StoreError, match="violate"), db.write() as conn:
            conn.execute(text("DELETE FROM projects WHERE id = 1"))
    assert len(_contents(old)[0]["scores"]) == 2


def _ids(home: Path) -> dict[str, list[int]]:
    return {
        name: [row[0] for row in rows] for name, rows in _contents(home)[0].items() if "id" in metadata.tables[name].c
    }


@pytest.mark.sqlite
def test_ids_of_a_deleted_project_are_not_reused(old: Path) -> None:
    with Database.open(old) as db:
        before = _ids(old)
        delete_project(db, 2)
        fill(db, projects.create_project(db, "next", "assets/model", "abc", "tiny tales", 7, [("Once", "train")]))
    after = _ids(old)
    for name in before.keys() - {"run_events", "engines", "people"}:
        new = set(after[name]) - set(before[name])
        assert (name, min(new)) == (name, max(before[name]) + 1)


@pytest.mark.sqlite
def test_an_interrupted_migration_leaves_the_lab_unchanged(old: Path, script: Callable) -> None:
    before = _contents(old)
    process = script(CUT_OFF)
    assert (process.communicate(timeout=60)[1], process.returncode) == ("", 9)
    assert (_version(old), _contents(old)) == ("0009", before)
    Database.open(old).close()
    assert (_version(old), _contents(old)) == (SCHEMA_VERSION, before)


CUT_OFF = """
import os, sys
from pathlib import Path
from rlhf_lab.store import migrations, projects, sqlite
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import delete_project
calls = []
def dangling(connection):
    calls.append(connection)
    if len(calls) == 2:  # all migrations have run
        assert "max_new_tokens" in connection.exec_driver_sql("SELECT sql FROM sqlite_master WHERE name = 'projects'").scalar()
        os._exit(9)
    return set()
migrations._dangling_rows = dangling
Database.open(Path(sys.argv[1]))
"""


@pytest.mark.sqlite
def test_a_migration_that_would_leave_dangling_rows_is_rolled_back(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, upgrade = _contents(old), migrations.command.upgrade

    def careless(config: Config, revision: str) -> None:
        upgrade(config, revision)
        config.attributes["connection"].execute(text("DELETE FROM prompts WHERE id = 1"))

    monkeypatch.setattr(migrations.command, "upgrade", careless)
    with pytest.raises(StoreError, match=r"4 rows would lose the rows.*Nothing was changed"):
        Database.open(old)
    assert (_version(old), _contents(old)) == ("0009", before)


@pytest.mark.sqlite
def test_a_lab_that_had_dangling_rows_before_is_migrated(old: Path) -> None:
    with closing(sqlite3.connect(old / "lab.db")) as connection, connection:
        connection.execute("UPDATE votes SET pair_id = 99 WHERE id = 1")
    before = _contents(old)
    Database.open(old).close()
    assert (_version(old), _contents(old)) == (SCHEMA_VERSION, before)
