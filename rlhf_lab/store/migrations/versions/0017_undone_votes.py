"""Indices of undone votes and pairs, to detect without reading all rows whether one was undone or restored."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table, column in (("votes", "undone_at"), ("pairs", "taken_back_at")):
        undone = sa.text(f"{column} IS NOT NULL")
        op.create_index(f"ix_{table}_undone", table, [column, "id"], sqlite_where=undone, postgresql_where=undone)
