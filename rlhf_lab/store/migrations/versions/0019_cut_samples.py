"""After how many tokens a sample of a run was cut off."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("samples", sa.Column("cut", sa.Integer()))
