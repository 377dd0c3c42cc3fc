import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

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


def test_the_migrations_write_the_very_same_sql(db: Database, home: Path, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'direct.db'}")
    metadata.create_all(engine)
    engine.dispose()
    migrated, direct = _ddl(home / "lab.db"), _ddl(tmp_path / "direct.db")
    assert "uq_votes_live" in direct
    assert any("WHERE undone_at IS NULL" in line for line in direct["uq_votes_live"])
    assert migrated == direct


def test_opening_again_changes_nothing(db: Database, home: Path) -> None:
    before = _ddl(home / "lab.db")
    Database.open(home).close()
    assert _ddl(home / "lab.db") == before


def test_a_newer_schema_is_refused_and_left_alone(home: Path) -> None:
    Database.open(home).close()
    with closing(sqlite3.connect(home / "lab.db")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0999'")
        connection.commit()
    with pytest.raises(StoreError, match=r"newer version.*0999.*Update"):
        Database.open(home)
    with closing(sqlite3.connect(home / "lab.db")) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == ("0999",)


def test_a_database_of_something_else_is_refused_and_left_alone(home: Path) -> None:
    home.mkdir()
    with closing(sqlite3.connect(home / "lab.db")) as connection:
        connection.execute("CREATE TABLE cats (name)")
        connection.commit()
    with pytest.raises(StoreError, match=r"something else.*cats.*--home"):
        Database.open(home)
    assert set(_ddl(home / "lab.db")) == {"cats"}
