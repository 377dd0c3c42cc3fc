"""Which import created which rows, so that an import can be undone. Rows of earlier imports cannot be assigned to one."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "imports",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("use_prompts", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("taken_back_at", sa.Float()),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_imports_project_id"),
        sa.PrimaryKeyConstraint("id", name="pk_imports"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_imports_project_id", "imports", ["project_id"])
    for table in ("prompts", "pairs", "votes"):
        op.add_column(table, sa.Column("import_id", sa.Integer()))
        op.create_index(f"ix_{table}_import_id", table, ["import_id"])
    op.add_column("pairs", sa.Column("taken_back_at", sa.Float()))
