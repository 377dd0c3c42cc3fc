"""The longest response of a project, in tokens. Earlier texts all have at most 64."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("projects", sa.Column("max_new_tokens", sa.Integer(), server_default=sa.text("64"), nullable=False))
