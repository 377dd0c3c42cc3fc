"""Tournaments: people compare texts of several models in blind pairs."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tournaments",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_tournaments_project_id"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_tournaments_job_id"),
        sa.PrimaryKeyConstraint("id", name="pk_tournaments"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_tournaments_project_id", "tournaments", ["project_id"])
    op.create_table(
        "tournament_answers",
        sa.Column("tournament_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("annotator", sa.String(length=200), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("first", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("second", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("choice", sa.String(length=20), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tournament_id"], ["tournaments.id"], name="fk_tournament_answers_tournament_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint(
            "tournament_id", "annotator", "position", "first", "second", name="pk_tournament_answers"
        ),
        sqlite_with_rowid=False,
    )
