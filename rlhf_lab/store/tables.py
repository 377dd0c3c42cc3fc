"""The tables. Times are seconds since 1970 (UTC), ids are integers, enums are stored by value.

    projects ─┬─ prompts ── completions ─┬─ pairs ─┬─ votes
              │                          │         └─ leases                   who has which pair on screen
              │                          └─ features                           of texts, for the instant reward model
              ├─ labelling                                                     the project's labelling settings
              ├─ project_people                                                its experts, and since when gold answers count
              ├─ imports                                                       imported files with prompts, pairs and votes
              ├─ reward_models ── scores                                       of completions, before people voted
              │       └────────── runs ─┬─ metrics, samples, token_records     per step
              │                         ├─ run_events                          controls and changed settings
              │                         └─ live_heads, live_pairs              of runs that train while people label
              └─ jobs ─┬─ engines                                              processes that work on jobs
                       └─ blind_tests ── blind_votes                           comparisons of two models
    people                                                                     who entered with the join code
    presence                                                                   when a page was last open

Ids that are known outside the database (an open page, an export, a folder) are never reused after a deletion: PostgreSQL never
reuses ids, and SQLite does not for a `table_without_id_reuse`.

A change here needs a new file in migrations/versions and a new SCHEMA_VERSION (a test compares the two). At a release, the
files since the last one become one file, whose revision is that of the release.
"""

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    UniqueConstraint,
    false,
    insert,
    text,
)
from sqlalchemy.schema import CreateTable

from rlhf_lab.common import enums
from rlhf_lab.store.column_types import (
    LONG,
    NAMING_CONVENTION,
    Json,
    Message,
    PackedJson,
    PlainText,
    enum_type,
    foreign_key,
    id_column,
    required,
    table_without_id_reuse,
)

SCHEMA_VERSION = "0021"

metadata = MetaData(naming_convention=NAMING_CONVENTION)

#: Alembic's own table, in which it stores the revision of a database.
alembic_version = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32)),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)

projects = table_without_id_reuse(
    "projects",
    metadata,
    id_column(),
    required("name", PlainText),
    required("model", PlainText),
    required("model_hash", PlainText),
    required("prompt_set", PlainText),
    required("seed", LONG),
    required("created_at", Float),
    Column("opened_at", Float),  # the page shows the most recently opened project; NULL: when it was created; 0: never
    required("temperature", Float, server_default=text("1")),  # for sampling its texts
    required("system_prompt", PlainText, server_default=text("''")),
    required("template_arguments", Json, server_default=text("'{}'")),  # variables of the chat template
    required("max_new_tokens", Integer, server_default=text("64")),  # the longest response
)

# Imported rows have an import_id. It is not a foreign key, because SQLite would have to copy whole tables to add one.
imports = table_without_id_reuse(
    "imports",
    metadata,
    id_column(),
    foreign_key("project_id", "projects", nullable=False, index=True),
    required("name", PlainText),
    required("who", PlainText),
    required("use_prompts", Boolean),
    required("created_at", Float),
    Column("taken_back_at", Float),  # when its undo began
)

prompts = table_without_id_reuse(
    "prompts",
    metadata,
    id_column(),
    foreign_key("project_id", "projects", nullable=False),
    required("text", PlainText),
    required("split", String(8)),
    required("labels_only", Boolean, server_default=false()),  # from imported labels: no texts are sampled for it
    CheckConstraint("split IN ('train', 'eval')", name="split"),
    Column("import_id", Integer, index=True),  # the import because of which texts are sampled for it
    Index(None, "project_id", "split"),
)

completions = table_without_id_reuse(
    "completions",
    metadata,
    id_column(),
    foreign_key("prompt_id", "prompts", nullable=False, index=True),
    required("text", PlainText),
    required("token_ids", Json),
    required("checkpoint", PlainText),  # "base", "shipped", "run/<id>/<step>", "imported" or "person"
    required("seed", LONG),
    required("created_at", Float),
)

# Hidden states of the model for a completion: see store/features.py.
features = Table(
    "features",
    metadata,
    foreign_key("completion_id", "completions", primary_key=True, ondelete="CASCADE", autoincrement=False),
    required("version", Integer),
    required("layers", Integer),
    required("vector", LargeBinary),  # float16, little-endian; empty: the text has no usable features
)

pairs = table_without_id_reuse(
    "pairs",
    metadata,
    id_column(),
    foreign_key("project_id", "projects", nullable=False, index=True),
    foreign_key("first_id", "completions", nullable=False),
    foreign_key("second_id", "completions", nullable=False, index=True),
    required("reason", PlainText),
    required("created_at", Float),
    UniqueConstraint("first_id", "second_id"),
    CheckConstraint("first_id <> second_id", name="distinct"),
    Column("import_id", Integer, index=True),
    Column("taken_back_at", Float),  # when it was withdrawn, for example with its import; it is not shown
    Column("gold", enum_type(enums.Choice)),  # the known answer of a gold pair
    Column("gold_at", Float),  # when it became a gold pair
)

_GOLD = text("gold IS NOT NULL")
_TAKEN_BACK = text("taken_back_at IS NOT NULL")
Index("ix_pairs_undone", pairs.c.taken_back_at, pairs.c.id, sqlite_where=_TAKEN_BACK, postgresql_where=_TAKEN_BACK)
Index("ix_pairs_gold", pairs.c.project_id, sqlite_where=_GOLD, postgresql_where=_GOLD)

votes = table_without_id_reuse(
    "votes",
    metadata,
    id_column(),
    required("uuid", String(64), unique=True),  # created by the client, so that a repeated request adds no second vote
    foreign_key("pair_id", "pairs", nullable=False, index=True),
    required("annotator", PlainText),
    required("source", enum_type(enums.Source)),
    required("choice", enum_type(enums.Choice)),
    required("first_on_left", Boolean),
    Column("response_ms", LONG),
    required("created_at", Float),
    Column("undone_at", Float),
    Column("strength", enum_type(enums.Strength)),
    required("note", PlainText, server_default=text("''")),
    required("repeat", Boolean, server_default=false()),
    required("via", String(20), server_default=text("'page'")),
    Column("import_id", Integer, index=True),
    required("adjudication", Boolean, server_default=false()),  # an expert's decision: the label of a disputed pair
    required("taken_out", Boolean, server_default=false()),  # undone by the operator: its annotator cannot redo it
    Index(None, "annotator", "id"),
)

_LIVE = text("undone_at IS NULL")
Index(
    "uq_votes_live", votes.c.pair_id, votes.c.annotator, votes.c.repeat, votes.c.adjudication,
    unique=True, sqlite_where=_LIVE, postgresql_where=_LIVE,
)  # fmt: skip  # one live vote per pair and annotator, one more as a hidden repeat, and one as an expert
_UNDONE = text("undone_at IS NOT NULL")
Index(
    "ix_votes_undone", votes.c.undone_at, votes.c.id, sqlite_where=_UNDONE, postgresql_where=_UNDONE
)  # see vote_table
Index(
    "ix_votes_adjudication", votes.c.pair_id,
    sqlite_where=text("adjudication IS 1"), postgresql_where=text("adjudication IS true"),
)  # fmt: skip

labelling = Table(
    "labelling",
    metadata,
    foreign_key("project_id", "projects", primary_key=True, autoincrement=False),
    required("settings", Json),
)

# gold_since: when the operator last ended a pause of this person; earlier gold answers do not count.
project_people = Table(
    "project_people",
    metadata,
    foreign_key("project_id", "projects", primary_key=True, autoincrement=False),
    Column("annotator", String(200), primary_key=True),
    required("is_expert", Boolean, server_default=false()),
    required("gold_since", Float, server_default=text("0")),
    sqlite_with_rowid=False,
)

# Who has which pair on screen. One row per pair and person, deleted by the vote.
leases = Table(
    "leases",
    metadata,
    foreign_key("pair_id", "pairs", primary_key=True, autoincrement=False),
    Column("annotator", String(200), primary_key=True),
    required("repeat", Boolean),
    required("leased_at", Float),
    required("expires_at", Float),
    required("adjudication", Boolean, server_default=false()),
    Index(None, "annotator"),
    sqlite_with_rowid=False,
)

people = Table(
    "people", metadata, id_column(), required("name", String(200), unique=True), required("joined_at", Float)
)

reward_models = table_without_id_reuse(
    "reward_models",
    metadata,
    id_column(),
    foreign_key("project_id", "projects", nullable=False, index=True),
    required("path", PlainText),
    required("config", Json),
    required("report", Json),
    required("vote_ids", Json),
    required("labels_digest", String(64)),
    required("source", enum_type(enums.Source)),
    required("created_at", Float),
    required("vote_weights", Json, server_default=text("'[]'")),  # weights in the order of vote_ids; empty: all 1
)

# Without row ids: clustered by reward model, as they are read.
scores = Table(
    "scores",
    metadata,
    foreign_key("reward_model_id", "reward_models", primary_key=True, ondelete="CASCADE"),
    foreign_key("completion_id", "completions", primary_key=True, ondelete="CASCADE", index=True),
    Column("score", Float),  # NULL is NaN
    sqlite_with_rowid=False,
)

runs = table_without_id_reuse(
    "runs",
    metadata,
    id_column(),  # also in its folder's name and in its completions' checkpoint, "run/<id>/<step>"
    foreign_key("project_id", "projects", nullable=False, index=True),
    foreign_key("reward_model_id", "reward_models"),  # NULL if the reward consists of other terms
    required("name", PlainText),
    required("status", enum_type(enums.RunStatus)),
    required("config", Json),
    required("manifest", Json),
    required("step", Integer),
    required("total_steps", Integer),
    required("message", Message),
    required("created_at", Float),
    required("updated_at", Float),
)

# One narrow row per number, clustered by curve. Measured with 40 metrics x 10,000 steps against one JSON row per step:
# four whole curves 19 ms (227 ms), file 14 MB (47 MB), a step's write 0.5 ms (0.2 ms), points since a cursor 0.1 ms
# (0.1 ms). The second index serves "every metric since step n" and the deletion of a step. SQLite stores NaN as NULL:
# NULL is NaN.
metrics = Table(
    "metrics",
    metadata,
    foreign_key("run_id", "runs", primary_key=True, ondelete="CASCADE"),
    Column("name", String(80), primary_key=True),
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("value", Float),
    Index(None, "run_id", "step"),
    sqlite_with_rowid=False,
)

samples = Table(
    "samples",
    metadata,
    foreign_key("run_id", "runs", primary_key=True, ondelete="CASCADE"),
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("position", Integer, primary_key=True, autoincrement=False),
    required("prompt", PlainText),
    required("seed", LONG),
    required("text", PlainText),
    Column("score", Float),  # NULL is NaN
    Column("gold", Float),
    Column("cut", Integer),  # in tokens; NULL: the text ended, or it was sampled before version 0.3.0
)

token_records = Table(
    "token_records",
    metadata,
    foreign_key("run_id", "runs", primary_key=True, ondelete="CASCADE"),
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("position", Integer, primary_key=True, autoincrement=False),
    required("record", PackedJson),
)

run_events = Table(
    "run_events",
    metadata,
    id_column(),
    foreign_key("run_id", "runs", nullable=False, index=True, ondelete="CASCADE"),
    required("kind", enum_type(enums.EventKind)),
    required("payload", Json),
    required("created_at", Float),
    Column("applied_step", Integer),
)

# The reward models of a live run: heads on frozen features, in the order in which they were fitted.
live_heads = Table(
    "live_heads",
    metadata,
    foreign_key("run_id", "runs", primary_key=True, autoincrement=False, ondelete="CASCADE"),
    Column("version", Integer, primary_key=True, autoincrement=False),
    required("labels", Integer),
    required("decided", Integer),
    required("labels_digest", String(64)),
    required("kl_budget", Float),
    required("weights", LargeBinary),  # float32, little-endian
    required("created_at", Float),
    sqlite_with_rowid=False,
)

# Pairs with a text of the policy of a step; the other text is by the policy too, by the base model or by a checkpoint.
live_pairs = Table(
    "live_pairs",
    metadata,
    foreign_key("pair_id", "pairs", primary_key=True, autoincrement=False, ondelete="CASCADE"),
    foreign_key("run_id", "runs", nullable=False, index=True, ondelete="CASCADE"),
    required("step", Integer),
    Column("opponent", enum_type(enums.Opponent)),  # NULL: the policy of the same step
    Column("opponent_step", Integer),  # of a checkpoint
    Column("policy_side", enum_type(enums.Choice)),  # NULL if both texts are the policy's
    sqlite_with_rowid=False,
)

engines = Table(
    "engines",
    metadata,
    id_column(),
    required("host", PlainText),
    required("pid", Integer),
    required("process_started", Float),
    required("started_at", Float),
    Column("beat_at", Float),
    Column("stopped_at", Float),
    required("state", PlainText),
    required("device", PlainText),
    Column("memory_mb", Float),  # in MiB; the name is kept for compatibility with older databases
    Index(None, "host", "pid"),
)

jobs = table_without_id_reuse(
    "jobs",
    metadata,
    id_column(),
    required("kind", enum_type(enums.JobKind)),
    required("status", enum_type(enums.JobStatus)),
    foreign_key("project_id", "projects"),
    required("payload", Json),
    Column("result", Json),
    required("error", Message),
    required("progress", Float),
    required("best_progress", Float),  # the greatest progress of the interrupted attempts
    Column("eta_s", Float),
    foreign_key("engine_id", "engines"),
    required("attempts", Integer),
    required("created_at", Float),
    required("updated_at", Float),
    Index(None, "status", "kind", "id"),
    Index(None, "project_id", "id"),
)

blind_tests = table_without_id_reuse(
    "blind_tests",
    metadata,
    id_column(),
    foreign_key("project_id", "projects", nullable=False, index=True),
    foreign_key("first_job", "jobs", nullable=False),  # the texts are in its result
    foreign_key("second_job", "jobs", nullable=False),
    required("created_at", Float),
)

blind_votes = Table(
    "blind_votes",
    metadata,
    foreign_key("test_id", "blind_tests", primary_key=True, autoincrement=False, ondelete="CASCADE"),
    Column("annotator", String(200), primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    required("choice", enum_type(enums.Choice)),
    required("created_at", Float),
    sqlite_with_rowid=False,
)

tournaments = table_without_id_reuse(
    "tournaments",
    metadata,
    id_column(),
    foreign_key("project_id", "projects", nullable=False, index=True),
    foreign_key("job_id", "jobs", nullable=False),  # the texts are in its result
    required("created_at", Float),
)

# A row without a choice is a pair that is leased to a person. first < second: indices of the contestants.
tournament_answers = Table(
    "tournament_answers",
    metadata,
    foreign_key("tournament_id", "tournaments", primary_key=True, autoincrement=False, ondelete="CASCADE"),
    Column("annotator", String(200), primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("first", Integer, primary_key=True, autoincrement=False),
    Column("second", Integer, primary_key=True, autoincrement=False),
    Column("choice", enum_type(enums.Choice)),
    required("created_at", Float),
    sqlite_with_rowid=False,
)

presence = Table("presence", metadata, Column("who", String(20), primary_key=True), required("seen_at", Float))


def create_tables(conn: Connection) -> None:
    """Create all tables in an empty database: those that the migrations would give, without running them."""
    for table in metadata.sorted_tables:
        conn.execute(CreateTable(table))
    # In a fixed order, on which query plans depend: of two equally good indices SQLite uses the one created last.
    indices = (index for table in metadata.tables.values() for index in table.indexes)
    for index in sorted(indices, key=lambda index: str(index.name), reverse=True):
        index.create(conn)
    alembic_version.create(conn)
    conn.execute(insert(alembic_version).values(version_num=SCHEMA_VERSION))
