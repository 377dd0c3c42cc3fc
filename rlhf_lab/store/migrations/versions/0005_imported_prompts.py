"""Prompts that are used only for their imported labels: no texts are sampled for them."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("prompts", sa.Column("labels_only", sa.Boolean(), server_default=sa.false(), nullable=False))
