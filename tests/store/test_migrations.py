import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text

from rlhf_lab.errors import StoreError
from rlhf_lab.store import migrations
from rlhf_lab.store.database import Database
from rlhf_lab.store.tables import SCHEMA_VERSION, metadata

ADDED = re.compile(r", (\w+ [A-Z]+)")


def test_the_newest_migration_is_the_version_the_code_expects() -> None:
    assert migrations.revisions()[0] == SCHEMA_VERSION


def test_upgrading_an_empty_database_gives_the_tables_of_the_code(db: Database) -> None:
    with db.read() as conn:
        assert compare_metadata(MigrationContext.configure(conn, opts={"compare_type": True}), metadata) == []


def _ddl(path: Path) -> dict[str, list[str]]:
    """Every table and index with its clauses, sorted; Alembic's comparison overlooks checks and partial indices.

    A column that was added later stands on the line of the one before it.
    """
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    found = {name: ADDED.sub(r",\n\1", sql.replace(" (", "(\n", 1)) for name, sql in rows}
    return {
        name: sorted(line.strip().rstrip(",") for line in sql.splitlines() if line.strip())
        for name, sql in found.items()
        if name not in ("alembic_version", "sqlite_sequence")
    }


@pytest.mark.sqlite
def test_the_migrations_write_the_very_same_sql(db: Database, home: Path, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'direct.db'}")
    metadata.create_all(engine)
    engine.dispose()
    migrated, direct = _ddl(home / "lab.db"), _ddl(tmp_path / "direct.db")
    assert "uq_votes_live" in direct
    assert any("WHERE undone_at IS NULL" in line for line in direct["uq_votes_live"])
    assert migrated == direct


def _columns(url: str) -> dict[str, list[str]]:
    """Every table and the names of its columns."""
    engine = create_engine(url)
    found = inspect(engine)
    tables = {name: [column["name"] for column in found.get_columns(name)] for name in found.get_table_names()}
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


def test_a_database_of_something_else_is_refused_and_left_alone(fresh: str, home: Path) -> None:
    _do(fresh, "CREATE TABLE cats (name TEXT)")
    with pytest.raises(StoreError, match=r"something else.*cats.*--home"):
        Database.open(home)
    assert _columns(fresh) == {"cats": ["name"]}


def test_two_that_open_a_new_lab_at_once_make_it_once(fresh: str, home: Path, script: Callable) -> None:
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
