"""Leases, people, labelling settings; strength, note, repeats and origin (via) of votes."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("votes", sa.Column("strength", sa.String(length=20), nullable=True))
    op.add_column("votes", sa.Column("note", sa.Text(), server_default=sa.text("''"), nullable=False))
    op.add_column("votes", sa.Column("repeat", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.add_column("votes", sa.Column("via", sa.String(length=20), server_default=sa.text("'page'"), nullable=False))
    op.drop_index("uq_votes_live", table_name="votes")
    live = sa.text("undone_at IS NULL")
    op.create_index(
        "uq_votes_live", "votes", ["pair_id", "annotator", "repeat"],
        unique=True, sqlite_where=live, postgresql_where=live,
    )  # fmt: skip
    op.create_table(
        "labelling",
        sa.Column("project_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("settings", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_labelling_project_id"),
        sa.PrimaryKeyConstraint("project_id", name="pk_labelling"),
    )
    op.create_table(
        "leases",
        sa.Column("pair_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("annotator", sa.String(length=200), nullable=False),
        sa.Column("repeat", sa.Boolean(), nullable=False),
        sa.Column("leased_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["pair_id"], ["pairs.id"], name="fk_leases_pair_id"),
        sa.PrimaryKeyConstraint("pair_id", "annotator", name="pk_leases"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_leases_annotator", "leases", ["annotator"])
    op.create_table(
        "people",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("joined_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_people"),
        sa.UniqueConstraint("name", name="uq_people_name"),
    )
