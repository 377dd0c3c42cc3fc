"""The tables of version 0.1.0, the oldest that can be migrated. A new database gets the current tables (`store/tables.py`)."""

revision = "0009"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass
