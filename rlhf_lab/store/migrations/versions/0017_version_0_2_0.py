"""The tables of version 0.2.0: temperatures, conversations, features, tournaments, reward terms, gold pairs and experts."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy import Connection

revision = "0017"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("projects", sa.Column("temperature", sa.Float(), server_default=sa.text("1"), nullable=False))
    op.add_column("projects", sa.Column("system_prompt", sa.Text(), server_default=sa.text("''"), nullable=False))
    op.add_column(
        "projects", sa.Column("template_arguments", sa.Text(), server_default=sa.text("'{}'"), nullable=False)
    )
    op.add_column("reward_models", sa.Column("vote_weights", sa.Text(), server_default=sa.text("'[]'"), nullable=False))
    _features()
    _tournaments()
    _runs_without_reward_model()
    _gold_pairs_and_experts()
    for table, column in (("votes", "undone_at"), ("pairs", "taken_back_at")):
        undone = sa.text(f"{column} IS NOT NULL")
        op.create_index(f"ix_{table}_undone", table, [column, "id"], sqlite_where=undone, postgresql_where=undone)


def _features() -> None:
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


def _tournaments() -> None:
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


def _runs_without_reward_model() -> None:
    """A run may have no reward model if its reward has other terms."""
    if op.get_context().dialect.name == "sqlite":
        _recreate_runs(op.get_bind())
    else:
        op.alter_column("runs", "reward_model_id", nullable=True)


def _recreate_runs(conn: Connection) -> None:
    """Drop the constraint as https://www.sqlite.org/lang_altertable.html says (section 7), without reusing ids.

    Foreign keys are off during the migration (`Database`).
    """
    last_id = conn.exec_driver_sql("SELECT seq FROM sqlite_sequence WHERE name = 'runs'").scalar()
    table, *indices = conn.exec_driver_sql(
        "SELECT sql FROM sqlite_master WHERE tbl_name = 'runs' AND sql IS NOT NULL ORDER BY type DESC"
    ).scalars()
    columns = table.partition("(")[2].replace("reward_model_id INTEGER NOT NULL", "reward_model_id INTEGER", 1)
    conn.exec_driver_sql(f"CREATE TABLE runs_anew ({columns}")
    conn.exec_driver_sql("INSERT INTO runs_anew SELECT * FROM runs")
    conn.exec_driver_sql("DROP TABLE runs")
    conn.exec_driver_sql("ALTER TABLE runs_anew RENAME TO runs")
    for index in indices:
        conn.exec_driver_sql(index)
    if last_id is not None:
        conn.exec_driver_sql("DELETE FROM sqlite_sequence WHERE name = 'runs'")
        conn.exec_driver_sql("INSERT INTO sqlite_sequence (name, seq) VALUES ('runs', ?)", (last_id,))


def _gold_pairs_and_experts() -> None:
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
