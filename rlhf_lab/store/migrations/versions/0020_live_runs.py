"""Heads and pairs of live runs."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "live_heads",
        sa.Column("run_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("labels", sa.Integer(), nullable=False),
        sa.Column("decided", sa.Integer(), nullable=False),
        sa.Column("labels_digest", sa.String(length=64), nullable=False),
        sa.Column("kl_budget", sa.Float(), nullable=False),
        sa.Column("weights", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_live_heads_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "version", name="pk_live_heads"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "live_pairs",
        sa.Column("pair_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("opponent", sa.String(length=20)),
        sa.Column("opponent_step", sa.Integer()),
        sa.Column("policy_side", sa.String(length=20)),
        sa.ForeignKeyConstraint(["pair_id"], ["pairs.id"], name="fk_live_pairs_pair_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_live_pairs_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("pair_id", name="pk_live_pairs"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_live_pairs_run_id", "live_pairs", ["run_id"])
