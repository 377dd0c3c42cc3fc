"""The tables. Times are seconds since 1970 (UTC), ids are integers, enums are their words.

    projects ─┬─ prompts ── completions ── pairs ─┬─ votes
              │                                   └─ leases                    who has which pair on screen
              ├─ labelling                                                     by which rules its people label
              ├─ reward_models ── scores                                      what it thought of completions, beforehand
              │       └────────── runs ─┬─ metrics, samples, token_records     written step by step
              │                         └─ run_events                          what people and the engine changed
              └─ jobs ── engines                                               who works on what
    people                                                                     who entered with the join code
    presence                                                                   is a page open?

A change here needs a new file in migrations/versions and a new SCHEMA_VERSION (a test compares the two).
"""

from enum import StrEnum
from typing import Any

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Enum,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

from rlhf_lab import records
from rlhf_lab.store.json_columns import Json, PackedJson

SCHEMA_VERSION = "0005"


def _words(kind: type[StrEnum]) -> Enum:
    return Enum(
        kind, native_enum=False, length=20, values_callable=lambda members: [member.value for member in members]
    )


def _id() -> Column[int]:
    return Column("id", Integer, primary_key=True)


def _needed(name: str, kind: Any, **options: Any) -> Column[Any]:
    return Column(name, kind, nullable=False, **options)


def _belongs_to(name: str, target: str, **options: Any) -> Column[Any]:
    return Column(name, Integer, ForeignKey(f"{target}.id", ondelete=options.pop("ondelete", None)), **options)


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

projects = Table(
    "projects",
    metadata,
    _id(),
    _needed("name", Text),
    _needed("model", Text),
    _needed("model_hash", Text),
    _needed("prompt_set", Text),
    _needed("seed", Integer),
    _needed("created_at", Float),
    Column("opened_at", Float),  # the page shows the project opened last; NULL: never since it was made
)

prompts = Table(
    "prompts",
    metadata,
    _id(),
    _belongs_to("project_id", "projects", nullable=False),
    _needed("text", Text),
    _needed("split", String(8)),
    _needed("labels_only", Boolean, server_default=false()),  # came with imported labels: nobody writes texts for it
    CheckConstraint("split IN ('train', 'eval')", name="split"),
    Index(None, "project_id", "split"),
)

completions = Table(
    "completions",
    metadata,
    _id(),
    _belongs_to("prompt_id", "prompts", nullable=False, index=True),
    _needed("text", Text),
    _needed("token_ids", Json),
    _needed("checkpoint", Text),  # "base", "shipped" or "run/<id>/<step>"
    _needed("seed", Integer),
    _needed("created_at", Float),
)

pairs = Table(
    "pairs",
    metadata,
    _id(),
    _belongs_to("project_id", "projects", nullable=False, index=True),
    _belongs_to("first_id", "completions", nullable=False),
    _belongs_to("second_id", "completions", nullable=False),
    _needed("reason", Text),
    _needed("created_at", Float),
    UniqueConstraint("first_id", "second_id"),
    CheckConstraint("first_id <> second_id", name="distinct"),
)

votes = Table(
    "votes",
    metadata,
    _id(),
    _needed("uuid", String(64), unique=True),  # made by the client: a repeated request is one vote
    _belongs_to("pair_id", "pairs", nullable=False),
    _needed("annotator", Text),
    _needed("source", _words(records.Source)),
    _needed("choice", _words(records.Choice)),
    _needed("first_on_left", Boolean),
    Column("response_ms", Integer),
    _needed("created_at", Float),
    Column("undone_at", Float),
    Column("strength", _words(records.Strength)),
    _needed("note", Text, server_default=text("''")),
    _needed("repeat", Boolean, server_default=false()),
    _needed("via", String(20), server_default=text("'page'")),
    Index(None, "annotator", "id"),
)

_LIVE = text("undone_at IS NULL")
Index(
    "uq_votes_live", votes.c.pair_id, votes.c.annotator, votes.c.repeat,
    unique=True, sqlite_where=_LIVE, postgresql_where=_LIVE,
)  # fmt: skip  # one live vote per pair and annotator, and one more as a hidden repeat

labelling = Table(
    "labelling",
    metadata,
    _belongs_to("project_id", "projects", primary_key=True, autoincrement=False),
    _needed("settings", Json),
)

# Who has which pair on screen. One row per pair and person; it ends with the vote.
leases = Table(
    "leases",
    metadata,
    _belongs_to("pair_id", "pairs", primary_key=True, autoincrement=False),
    Column("annotator", String(200), primary_key=True),
    _needed("repeat", Boolean),
    _needed("leased_at", Float),
    _needed("expires_at", Float),
    Index(None, "annotator"),
    sqlite_with_rowid=False,
)

people = Table(
    "people",
    metadata,
    _id(),
    _needed("name", String(200), unique=True),
    _needed("joined_at", Float),
)

reward_models = Table(
    "reward_models",
    metadata,
    _id(),
    _belongs_to("project_id", "projects", nullable=False, index=True),
    _needed("path", Text),
    _needed("config", Json),
    _needed("report", Json),
    _needed("vote_ids", Json),
    _needed("labels_digest", String(64)),
    _needed("source", _words(records.Source)),
    _needed("created_at", Float),
)

# Clustered by reward model, as they are read: no row ids.
scores = Table(
    "scores",
    metadata,
    _belongs_to("reward_model_id", "reward_models", primary_key=True, ondelete="CASCADE"),
    _belongs_to("completion_id", "completions", primary_key=True, ondelete="CASCADE"),
    Column("score", Float),  # NULL is NaN
    sqlite_with_rowid=False,
)

runs = Table(
    "runs",
    metadata,
    _id(),
    _belongs_to("project_id", "projects", nullable=False, index=True),
    _belongs_to("reward_model_id", "reward_models", nullable=False),
    _needed("name", Text),
    _needed("status", _words(records.RunStatus)),
    _needed("config", Json),
    _needed("manifest", Json),
    _needed("step", Integer),
    _needed("total_steps", Integer),
    _needed("message", Text),
    _needed("created_at", Float),
    _needed("updated_at", Float),
    # A deleted run's id names its folder and the completions it wrote ("run/<id>/<step>"): never give it away again.
    sqlite_autoincrement=True,
)

# One narrow row per number, clustered by curve. Measured with 40 metrics x 10,000 steps against one JSON row per step:
# four whole curves 19 ms (227 ms), file 14 MB (47 MB), a step's write 0.5 ms (0.2 ms), points since a cursor 0.1 ms
# (0.1 ms). The second index serves "every metric since step n" and the deletion of a step. SQLite stores NaN as NULL:
# NULL is NaN.
metrics = Table(
    "metrics",
    metadata,
    _belongs_to("run_id", "runs", primary_key=True, ondelete="CASCADE"),
    Column("name", String(80), primary_key=True),
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("value", Float),
    Index(None, "run_id", "step"),
    sqlite_with_rowid=False,
)

samples = Table(
    "samples",
    metadata,
    _belongs_to("run_id", "runs", primary_key=True, ondelete="CASCADE"),
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("position", Integer, primary_key=True, autoincrement=False),
    _needed("prompt", Text),
    _needed("seed", Integer),
    _needed("text", Text),
    Column("score", Float),  # NULL is NaN
    Column("gold", Float),
)

token_records = Table(
    "token_records",
    metadata,
    _belongs_to("run_id", "runs", primary_key=True, ondelete="CASCADE"),
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("position", Integer, primary_key=True, autoincrement=False),
    _needed("record", PackedJson),
)

run_events = Table(
    "run_events",
    metadata,
    _id(),
    _belongs_to("run_id", "runs", nullable=False, index=True, ondelete="CASCADE"),
    _needed("kind", _words(records.EventKind)),
    _needed("payload", Json),
    _needed("created_at", Float),
    Column("applied_step", Integer),
)

engines = Table(
    "engines",
    metadata,
    _id(),
    _needed("host", Text),
    _needed("pid", Integer),
    _needed("process_started", Float),
    _needed("started_at", Float),
    Column("beat_at", Float),
    Column("stopped_at", Float),
    _needed("state", Text),
    _needed("device", Text),
    Column("memory_mb", Float),
    Index(None, "host", "pid"),
)

jobs = Table(
    "jobs",
    metadata,
    _id(),
    _needed("kind", _words(records.JobKind)),
    _needed("status", _words(records.JobStatus)),
    _belongs_to("project_id", "projects"),
    _needed("payload", Json),
    Column("result", Json),
    _needed("error", Text),
    _needed("progress", Float),
    _needed("best_progress", Float),  # the furthest an interrupted attempt came
    Column("eta_s", Float),
    _belongs_to("engine_id", "engines"),
    _needed("attempts", Integer),
    _needed("created_at", Float),
    _needed("updated_at", Float),
    Index(None, "status", "kind", "id"),
    Index(None, "project_id", "id"),
)

presence = Table(
    "presence",
    metadata,
    Column("who", String(20), primary_key=True),
    _needed("seen_at", Float),
)
