"""The sampling temperature of a project. Earlier texts were all sampled at temperature 1."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("projects", sa.Column("temperature", sa.Float(), server_default=sa.text("1"), nullable=False))
