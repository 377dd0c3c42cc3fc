"""Migrations of the tables, one file per change in versions/. Imported only when there is one to run."""

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
    """Every revision this version of the lab knows, newest first."""
    return [script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()]


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Bring the tables to a revision, inside the transaction that `connection` is in.

    SQLite: on a connection without foreign keys, because dropping a table to recreate it would delete the rows that refer to it.
    StoreError: rows would lose what they refer to.
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
    """The rows of SQLite with a foreign key to a missing row: (table, row id, referenced table)."""
    if connection.dialect.name != "sqlite":
        return set()
    return {tuple(row)[:3] for row in connection.exec_driver_sql("PRAGMA foreign_key_check")}
