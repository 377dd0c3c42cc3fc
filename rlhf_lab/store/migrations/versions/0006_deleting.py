"""Indices for the deletion of a project. Without them, each deleted text caused a scan of whole tables."""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_pairs_second_id", "pairs", ["second_id"])
    op.create_index("ix_votes_pair_id", "votes", ["pair_id"])
    op.create_index("ix_scores_completion_id", "scores", ["completion_id"])
