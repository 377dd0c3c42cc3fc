"""SQLite no longer reuses the ids of deleted projects and of the rows deleted with them.

To get AUTOINCREMENT, tables are recreated according to https://www.sqlite.org/lang_altertable.html (section 7). Foreign keys are
off during the migration (`Database`).
"""

import re

from alembic import op
from sqlalchemy import Connection

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

TABLES = ("projects", "prompts", "completions", "pairs", "votes", "reward_models", "jobs")


def upgrade() -> None:
    if op.get_context().dialect.name == "sqlite":
        for table in TABLES:
            _recreate_table(op.get_bind(), table)


def _recreate_table(conn: Connection, table: str) -> None:
    """Recreate a table with the same columns, rows and indices, and AUTOINCREMENT for its key."""
    made, *indices = conn.exec_driver_sql(
        "SELECT sql FROM sqlite_master WHERE tbl_name = ? AND sql IS NOT NULL ORDER BY type DESC", (table,)
    ).scalars()
    columns = re.sub(rf",\s*CONSTRAINT pk_{table} PRIMARY KEY \(id\)", "", made.partition("(")[2])
    columns = columns.replace("id INTEGER NOT NULL", "id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT", 1)
    conn.exec_driver_sql(f"CREATE TABLE {table}_anew ({columns}")
    conn.exec_driver_sql(f"INSERT INTO {table}_anew SELECT * FROM {table}")
    conn.exec_driver_sql(f"DROP TABLE {table}")
    conn.exec_driver_sql(f"ALTER TABLE {table}_anew RENAME TO {table}")
    for index in indices:
        conn.exec_driver_sql(index)
