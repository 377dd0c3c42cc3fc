"""The first tables."""

import sqlalchemy as sa
from alembic import op

from rlhf_lab.store.column_types import LONG

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _labels()
    _runs()
    _steps()
    _work()


def _labels() -> None:
    op.create_table(
        "projects",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("model_hash", sa.Text(), nullable=False),
        sa.Column("prompt_set", sa.Text(), nullable=False),
        sa.Column("seed", LONG, nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_projects"),
    )
    op.create_table(
        "prompts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("split", sa.String(length=8), nullable=False),
        sa.CheckConstraint("split IN ('train', 'eval')", name=op.f("ck_prompts_split")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_prompts_project_id"),
        sa.PrimaryKeyConstraint("id", name="pk_prompts"),
    )
    op.create_index("ix_prompts_project_id_split", "prompts", ["project_id", "split"])
    op.create_table(
        "completions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("prompt_id", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("token_ids", sa.Text(), nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=False),
        sa.Column("seed", LONG, nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["prompt_id"], ["prompts.id"], name="fk_completions_prompt_id"),
        sa.PrimaryKeyConstraint("id", name="pk_completions"),
    )
    op.create_index("ix_completions_prompt_id", "completions", ["prompt_id"])
    op.create_table(
        "pairs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("first_id", sa.Integer(), nullable=False),
        sa.Column("second_id", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.CheckConstraint("first_id <> second_id", name=op.f("ck_pairs_distinct")),
        sa.ForeignKeyConstraint(["first_id"], ["completions.id"], name="fk_pairs_first_id"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_pairs_project_id"),
        sa.ForeignKeyConstraint(["second_id"], ["completions.id"], name="fk_pairs_second_id"),
        sa.PrimaryKeyConstraint("id", name="pk_pairs"),
        sa.UniqueConstraint("first_id", "second_id", name="uq_pairs_first_id_second_id"),
    )
    op.create_index("ix_pairs_project_id", "pairs", ["project_id"])
    op.create_table(
        "votes",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("uuid", sa.String(length=64), nullable=False),
        sa.Column("pair_id", sa.Integer(), nullable=False),
        sa.Column("annotator", sa.Text(), nullable=False),
        sa.Column("source", sa.String(length=20), nullable=False),
        sa.Column("choice", sa.String(length=20), nullable=False),
        sa.Column("first_on_left", sa.Boolean(), nullable=False),
        sa.Column("response_ms", LONG),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("undone_at", sa.Float()),
        sa.ForeignKeyConstraint(["pair_id"], ["pairs.id"], name="fk_votes_pair_id"),
        sa.PrimaryKeyConstraint("id", name="pk_votes"),
        sa.UniqueConstraint("uuid", name="uq_votes_uuid"),
    )
    op.create_index("ix_votes_annotator_id", "votes", ["annotator", "id"])
    op.create_index(
        "uq_votes_live",
        "votes",
        ["pair_id", "annotator"],
        unique=True,
        sqlite_where=sa.text("undone_at IS NULL"),
        postgresql_where=sa.text("undone_at IS NULL"),
    )


def _runs() -> None:
    op.create_table(
        "reward_models",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("report", sa.Text(), nullable=False),
        sa.Column("vote_ids", sa.Text(), nullable=False),
        sa.Column("labels_digest", sa.String(length=64), nullable=False),
        sa.Column("source", sa.String(length=20), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_reward_models_project_id"),
        sa.PrimaryKeyConstraint("id", name="pk_reward_models"),
    )
    op.create_index("ix_reward_models_project_id", "reward_models", ["project_id"])
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("reward_model_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("manifest", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("total_steps", sa.Integer(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("updated_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_runs_project_id"),
        sa.ForeignKeyConstraint(["reward_model_id"], ["reward_models.id"], name="fk_runs_reward_model_id"),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_runs_project_id", "runs", ["project_id"])


def _steps() -> None:
    op.create_table(
        "metrics",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("value", sa.Float()),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_metrics_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "name", "step", name="pk_metrics"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_metrics_run_id_step", "metrics", ["run_id", "step"])
    op.create_table(
        "samples",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("seed", LONG, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("score", sa.Float()),
        sa.Column("gold", sa.Float()),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_samples_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "step", "position", name="pk_samples"),
    )
    op.create_table(
        "token_records",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_token_records_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "step", "position", name="pk_token_records"),
    )
    op.create_table(
        "run_events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("applied_step", sa.Integer()),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_run_events_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_run_events"),
    )
    op.create_index("ix_run_events_run_id", "run_events", ["run_id"])


def _work() -> None:
    op.create_table(
        "engines",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("process_started", sa.Float(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("beat_at", sa.Float()),
        sa.Column("stopped_at", sa.Float()),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("memory_mb", sa.Float()),
        sa.PrimaryKeyConstraint("id", name="pk_engines"),
    )
    op.create_index("ix_engines_host_pid", "engines", ["host", "pid"])
    op.create_table(
        "jobs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("project_id", sa.Integer()),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("result", sa.Text()),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("progress", sa.Float(), nullable=False),
        sa.Column("best_progress", sa.Float(), nullable=False),
        sa.Column("eta_s", sa.Float()),
        sa.Column("engine_id", sa.Integer()),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("updated_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["engine_id"], ["engines.id"], name="fk_jobs_engine_id"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_jobs_project_id"),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
    )
    op.create_index("ix_jobs_project_id_id", "jobs", ["project_id", "id"])
    op.create_index("ix_jobs_status_kind_id", "jobs", ["status", "kind", "id"])
    op.create_table(
        "presence",
        sa.Column("who", sa.String(length=20), nullable=False),
        sa.Column("seen_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("who", name="pk_presence"),
    )
