"""The tables. Times are seconds since 1970 (UTC), ids are integers, enums are their words.

    projects ─┬─ prompts ── completions ── pairs ─┬─ votes
              │                                   └─ leases                    who has which pair on screen
              ├─ labelling                                                     by which rules its people label
              ├─ imports                                                       which files brought prompts, pairs and votes
              ├─ reward_models ── scores                                      what it thought of completions, beforehand
              │       └────────── runs ─┬─ metrics, samples, token_records     written step by step
              │                         └─ run_events                          what people and the engine changed
              └─ jobs ─┬─ engines                                              who works on what
                       └─ blind_tests ── blind_votes                           whose texts people like, not knowing whose
    people                                                                     who entered with the join code
    presence                                                                   is a page open?

What can be deleted and is known by its id outside (a page that stays open, an export, a folder) never leaves that id to another:
PostgreSQL gives none twice, and SQLite does not where a table is `numbered`.

A change here needs a new file in migrations/versions and a new SCHEMA_VERSION (a test compares the two).
"""

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Float,
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

from rlhf_lab import kinds
from rlhf_lab.store.columns import LONG, NAMES, Json, PackedJson, belongs_to, id_column, needed, numbered, words

SCHEMA_VERSION = "0009"

metadata = MetaData(naming_convention=NAMES)

projects = numbered(
    "projects",
    metadata,
    id_column(),
    needed("name", Text),
    needed("model", Text),
    needed("model_hash", Text),
    needed("prompt_set", Text),
    needed("seed", LONG),
    needed("created_at", Float),
    Column("opened_at", Float),  # the page shows the project opened last; NULL: never since it was made
)

# What an import brought names it (import_id, without a foreign key: SQLite would copy whole tables to add one).
imports = numbered(
    "imports", metadata, id_column(), belongs_to("project_id", "projects", nullable=False, index=True),
    needed("name", Text), needed("who", Text), needed("use_prompts", Boolean), needed("created_at", Float),
    Column("taken_back_at", Float),  # when that began
)  # fmt: skip

prompts = numbered(
    "prompts",
    metadata,
    id_column(),
    belongs_to("project_id", "projects", nullable=False),
    needed("text", Text),
    needed("split", String(8)),
    needed("labels_only", Boolean, server_default=false()),  # came with imported labels: nobody writes texts for it
    CheckConstraint("split IN ('train', 'eval')", name="split"),
    Column("import_id", Integer, index=True),  # which import made it one to write texts for
    Index(None, "project_id", "split"),
)

completions = numbered(
    "completions",
    metadata,
    id_column(),
    belongs_to("prompt_id", "prompts", nullable=False, index=True),
    needed("text", Text),
    needed("token_ids", Json),
    needed("checkpoint", Text),  # "base", "shipped" or "run/<id>/<step>"
    needed("seed", LONG),
    needed("created_at", Float),
)

pairs = numbered(
    "pairs",
    metadata,
    id_column(),
    belongs_to("project_id", "projects", nullable=False, index=True),
    belongs_to("first_id", "completions", nullable=False),
    belongs_to("second_id", "completions", nullable=False, index=True),
    needed("reason", Text),
    needed("created_at", Float),
    UniqueConstraint("first_id", "second_id"),
    CheckConstraint("first_id <> second_id", name="distinct"),
    Column("import_id", Integer, index=True),
    Column("taken_back_at", Float),  # with its import: nobody is shown it any more
)

votes = numbered(
    "votes",
    metadata,
    id_column(),
    needed("uuid", String(64), unique=True),  # made by the client: a repeated request is one vote
    belongs_to("pair_id", "pairs", nullable=False, index=True),
    needed("annotator", Text),
    needed("source", words(kinds.Source)),
    needed("choice", words(kinds.Choice)),
    needed("first_on_left", Boolean),
    Column("response_ms", LONG),
    needed("created_at", Float),
    Column("undone_at", Float),
    Column("strength", words(kinds.Strength)),
    needed("note", Text, server_default=text("''")),
    needed("repeat", Boolean, server_default=false()),
    needed("via", String(20), server_default=text("'page'")),
    Column("import_id", Integer, index=True),
    Index(None, "annotator", "id"),
)

_LIVE = text("undone_at IS NULL")
Index(
    "uq_votes_live", votes.c.pair_id, votes.c.annotator, votes.c.repeat,
    unique=True, sqlite_where=_LIVE, postgresql_where=_LIVE,
)  # fmt: skip  # one live vote per pair and annotator, and one more as a hidden repeat

labelling = Table(
    "labelling", metadata, belongs_to("project_id", "projects", primary_key=True, autoincrement=False), needed("settings", Json)
)  # fmt: skip

# Who has which pair on screen. One row per pair and person; it ends with the vote.
leases = Table(
    "leases",
    metadata,
    belongs_to("pair_id", "pairs", primary_key=True, autoincrement=False),
    Column("annotator", String(200), primary_key=True),
    needed("repeat", Boolean),
    needed("leased_at", Float),
    needed("expires_at", Float),
    Index(None, "annotator"),
    sqlite_with_rowid=False,
)

people = Table("people", metadata, id_column(), needed("name", String(200), unique=True), needed("joined_at", Float))

reward_models = numbered(
    "reward_models",
    metadata,
    id_column(),
    belongs_to("project_id", "projects", nullable=False, index=True),
    needed("path", Text),
    needed("config", Json),
    needed("report", Json),
    needed("vote_ids", Json),
    needed("labels_digest", String(64)),
    needed("source", words(kinds.Source)),
    needed("created_at", Float),
)

# Clustered by reward model, as they are read: no row ids.
scores = Table(
    "scores",
    metadata,
    belongs_to("reward_model_id", "reward_models", primary_key=True, ondelete="CASCADE"),
    belongs_to("completion_id", "completions", primary_key=True, ondelete="CASCADE", index=True),
    Column("score", Float),  # NULL is NaN
    sqlite_with_rowid=False,
)

runs = numbered(
    "runs",
    metadata,
    id_column(),  # its id names a folder and the completions it wrote ("run/<id>/<step>")
    belongs_to("project_id", "projects", nullable=False, index=True),
    belongs_to("reward_model_id", "reward_models", nullable=False),
    needed("name", Text),
    needed("status", words(kinds.RunStatus)),
    needed("config", Json),
    needed("manifest", Json),
    needed("step", Integer),
    needed("total_steps", Integer),
    needed("message", Text),
    needed("created_at", Float),
    needed("updated_at", Float),
)

# One narrow row per number, clustered by curve. Measured with 40 metrics x 10,000 steps against one JSON row per step:
# four whole curves 19 ms (227 ms), file 14 MB (47 MB), a step's write 0.5 ms (0.2 ms), points since a cursor 0.1 ms
# (0.1 ms). The second index serves "every metric since step n" and the deletion of a step. SQLite stores NaN as NULL:
# NULL is NaN.
metrics = Table(
    "metrics",
    metadata,
    belongs_to("run_id", "runs", primary_key=True, ondelete="CASCADE"),
    Column("name", String(80), primary_key=True),
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("value", Float),
    Index(None, "run_id", "step"),
    sqlite_with_rowid=False,
)

samples = Table(
    "samples",
    metadata,
    belongs_to("run_id", "runs", primary_key=True, ondelete="CASCADE"),
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("position", Integer, primary_key=True, autoincrement=False),
    needed("prompt", Text),
    needed("seed", LONG),
    needed("text", Text),
    Column("score", Float),  # NULL is NaN
    Column("gold", Float),
)

token_records = Table(
    "token_records",
    metadata,
    belongs_to("run_id", "runs", primary_key=True, ondelete="CASCADE"),
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("position", Integer, primary_key=True, autoincrement=False),
    needed("record", PackedJson),
)

run_events = Table(
    "run_events",
    metadata,
    id_column(),
    belongs_to("run_id", "runs", nullable=False, index=True, ondelete="CASCADE"),
    needed("kind", words(kinds.EventKind)),
    needed("payload", Json),
    needed("created_at", Float),
    Column("applied_step", Integer),
)

engines = Table(
    "engines",
    metadata,
    id_column(),
    needed("host", Text),
    needed("pid", Integer),
    needed("process_started", Float),
    needed("started_at", Float),
    Column("beat_at", Float),
    Column("stopped_at", Float),
    needed("state", Text),
    needed("device", Text),
    Column("memory_mb", Float),  # in MiB
    Index(None, "host", "pid"),
)

jobs = numbered(
    "jobs",
    metadata,
    id_column(),
    needed("kind", words(kinds.JobKind)),
    needed("status", words(kinds.JobStatus)),
    belongs_to("project_id", "projects"),
    needed("payload", Json),
    Column("result", Json),
    needed("error", Text),
    needed("progress", Float),
    needed("best_progress", Float),  # the furthest an interrupted attempt came
    Column("eta_s", Float),
    belongs_to("engine_id", "engines"),
    needed("attempts", Integer),
    needed("created_at", Float),
    needed("updated_at", Float),
    Index(None, "status", "kind", "id"),
    Index(None, "project_id", "id"),
)

blind_tests = numbered(
    "blind_tests",
    metadata,
    id_column(),
    belongs_to("project_id", "projects", nullable=False, index=True),
    belongs_to("first_job", "jobs", nullable=False),  # whose results are the texts
    belongs_to("second_job", "jobs", nullable=False),
    needed("created_at", Float),
)

blind_votes = Table(
    "blind_votes",
    metadata,
    belongs_to("test_id", "blind_tests", primary_key=True, autoincrement=False, ondelete="CASCADE"),
    Column("annotator", String(200), primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    needed("choice", words(kinds.Choice)),
    needed("created_at", Float),
    sqlite_with_rowid=False,
)

presence = Table("presence", metadata, Column("who", String(20), primary_key=True), needed("seen_at", Float))
