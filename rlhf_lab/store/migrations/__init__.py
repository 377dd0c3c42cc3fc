"""The history of the tables, one file per change in versions/. Imported only when there is something to do."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config


def revisions() -> list[str]:
    """Every revision this version of the lab knows, newest first."""
    return [script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()]


def upgrade(connection: Connection) -> None:
    """Bring the tables to the newest revision, inside the transaction that `connection` is in."""
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
