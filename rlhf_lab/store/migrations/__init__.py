"""Migrations of the tables, one file per change in versions/. Imported only if a migration is due.

The changes between two released versions are one file: databases of the development versions in between are refused.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from rlhf_lab.common.text import pluralize
from rlhf_lab.errors import StoreError


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config


def revisions() -> list[str]:
    """All revisions that this version of the lab can read, newest first."""
    return [script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()]


def is_of_development(revision: str) -> bool:
    """Whether a development version before 0.2.0 had this revision; only version 0.2.0 can migrate it."""
    return revision not in (known := revisions()) and revision < known[0]


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Migrate the tables to a revision, in the current transaction of `connection`.

    With SQLite the connection must have foreign keys off, because dropping a table to recreate it would delete the rows that
    refer to it. Raises StoreError if rows would lose the rows that they refer to.
    """
    config = _config()
    config.attributes["connection"] = connection
    dangling_before = _dangling_rows(connection)
    command.upgrade(config, revision)
    if newly_dangling := _dangling_rows(connection) - dangling_before:
        raise StoreError(
            f"The database could not be brought up to date: {pluralize(len(newly_dangling), 'row')} would lose the "
            "rows that they belong to. Nothing was changed. Continue with the version of the lab that created it, "
            "and report this."
        )


def _dangling_rows(connection: Connection) -> set[tuple[object, ...]]:
    """The rows of an SQLite database with a foreign key to a missing row, as (table, row id, referenced table)."""
    if connection.dialect.name != "sqlite":
        return set()
    return {tuple(row)[:3] for row in connection.exec_driver_sql("PRAGMA foreign_key_check")}
