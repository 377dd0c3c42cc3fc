"""Whether the operator has taken out a vote."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("votes", sa.Column("taken_out", sa.Boolean(), server_default=sa.false(), nullable=False))
