"""Blind tests: comparisons of texts of two models, and people's answers."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "blind_tests",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("first_job", sa.Integer(), nullable=False),
        sa.Column("second_job", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_blind_tests_project_id"),
        sa.ForeignKeyConstraint(["first_job"], ["jobs.id"], name="fk_blind_tests_first_job"),
        sa.ForeignKeyConstraint(["second_job"], ["jobs.id"], name="fk_blind_tests_second_job"),
        sa.PrimaryKeyConstraint("id", name="pk_blind_tests"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_blind_tests_project_id", "blind_tests", ["project_id"])
    op.create_table(
        "blind_votes",
        sa.Column("test_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("annotator", sa.String(length=200), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("choice", sa.String(length=20), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["test_id"], ["blind_tests.id"], name="fk_blind_votes_test_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("test_id", "annotator", "position", name="pk_blind_votes"),
        sqlite_with_rowid=False,
    )
