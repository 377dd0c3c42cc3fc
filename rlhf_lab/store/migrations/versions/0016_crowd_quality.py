"""Gold pairs, experts' decisions on disputed pairs, and weights of votes in a reward model."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("pairs", sa.Column("gold", sa.String(length=20), nullable=True))
    op.add_column("pairs", sa.Column("gold_at", sa.Float(), nullable=True))
    gold = sa.text("gold IS NOT NULL")
    op.create_index("ix_pairs_gold", "pairs", ["project_id"], sqlite_where=gold, postgresql_where=gold)
    for table in ("votes", "leases"):
        op.add_column(table, sa.Column("adjudication", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.drop_index("uq_votes_live", table_name="votes")
    live = sa.text("undone_at IS NULL")
    op.create_index(
        "uq_votes_live", "votes", ["pair_id", "annotator", "repeat", "adjudication"],
        unique=True, sqlite_where=live, postgresql_where=live,
    )  # fmt: skip
    op.create_index(
        "ix_votes_adjudication", "votes", ["pair_id"],
        sqlite_where=sa.text("adjudication IS 1"), postgresql_where=sa.text("adjudication IS true"),
    )  # fmt: skip
    op.add_column("reward_models", sa.Column("vote_weights", sa.Text(), server_default=sa.text("'[]'"), nullable=False))
    op.create_table(
        "project_people",
        sa.Column("project_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("annotator", sa.String(length=200), nullable=False),
        sa.Column("is_expert", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("gold_since", sa.Float(), server_default=sa.text("0"), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_project_people_project_id"),
        sa.PrimaryKeyConstraint("project_id", "annotator", name="pk_project_people"),
        sqlite_with_rowid=False,
    )
