"""A run may have no reward model if its reward has other terms.

With SQLite, the constraint is dropped by recreating the table, as in 0009; ids are not reused.
"""

from alembic import op
from sqlalchemy import Connection

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_context().dialect.name == "sqlite":
        _recreate_table(op.get_bind())
    else:
        op.alter_column("runs", "reward_model_id", nullable=True)


def _recreate_table(conn: Connection) -> None:
    last_id = conn.exec_driver_sql("SELECT seq FROM sqlite_sequence WHERE name = 'runs'").scalar()
    table, *indices = conn.exec_driver_sql(
        "SELECT sql FROM sqlite_master WHERE tbl_name = 'runs' AND sql IS NOT NULL ORDER BY type DESC"
    ).scalars()
    columns = table.partition("(")[2].replace("reward_model_id INTEGER NOT NULL", "reward_model_id INTEGER", 1)
    conn.exec_driver_sql(f"CREATE TABLE runs_anew ({columns}")
    conn.exec_driver_sql("INSERT INTO runs_anew SELECT * FROM runs")
    conn.exec_driver_sql("DROP TABLE runs")
    conn.exec_driver_sql("ALTER TABLE runs_anew RENAME TO runs")
    for index in indices:
        conn.exec_driver_sql(index)
    if last_id is not None:
        conn.exec_driver_sql("DELETE FROM sqlite_sequence WHERE name = 'runs'")
        conn.exec_driver_sql("INSERT INTO sqlite_sequence (name, seq) VALUES ('runs', ?)", (last_id,))
