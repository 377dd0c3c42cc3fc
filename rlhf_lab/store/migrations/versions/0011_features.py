"""Features of completions for the instant reward model. The engine computes those of existing texts."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "features",
        sa.Column("completion_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("layers", sa.Integer(), nullable=False),
        sa.Column("vector", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["completion_id"], ["completions.id"], name="fk_features_completion_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("completion_id", name="pk_features"),
    )
