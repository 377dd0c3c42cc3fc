"""Scores of completions by reward models."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "scores",
        sa.Column("reward_model_id", sa.Integer(), nullable=False),
        sa.Column("completion_id", sa.Integer(), nullable=False),
        sa.Column("score", sa.Float()),
        sa.ForeignKeyConstraint(
            ["completion_id"], ["completions.id"], name="fk_scores_completion_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["reward_model_id"], ["reward_models.id"], name="fk_scores_reward_model_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("reward_model_id", "completion_id", name="pk_scores"),
        sqlite_with_rowid=False,
    )
