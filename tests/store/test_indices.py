"""Every query uses an index, and every index is used, according to the query plans of SQLite. Small tables may be
scanned, all rows of a table counted, and the columns in memory read a table once."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import event
from support.databases import create_old_database, undo_vote

from rlhf_lab.common.enums import Choice, EventKind, JobKind, RunStatus, Source
from rlhf_lab.common.records import LabelSnapshot, PairKey, Project, Sample, StepResult, Vote
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.store import (
    adjudication,
    annotators,
    blind_tests,
    features,
    gold_pairs,
    label_snapshots,
    pair_leases,
    project_people,
    projects,
    reward_models,
    run_metrics,
    runs,
    tournaments,
    votes,
)
from rlhf_lab.store.database import Database
from rlhf_lab.store.import_batches import preview_undo, project_imports, undo_import
from rlhf_lab.store.tables import imports, metadata

pytestmark = pytest.mark.sqlite
COUNTED = re.compile(
    r"SELECT count\(\*\) AS count_1 \nFROM (votes|pairs)"
)  # 200,000 votes: 0.8 ms, by the smallest index
#: For the statement that detects changes (see vote_table): subqueries of one row, and counts of rows.
CHANGES = {
    "SCAN undone", "SCAN withdrawn", "SCAN gold",
    "SCAN votes USING COVERING INDEX ix_votes_import_id", "SCAN pairs USING COVERING INDEX ix_pairs_import_id",
}  # fmt: skip
SMALL = {
    "voter",
    "leases",
    "projects",
    "engines",
    "presence",
    "runs",
    "reward_models",
    "imports",
    "blind_tests",
    "tournaments",
}
#: Used by the database itself, which looks for references to a deleted row (test_project_deletion.py).
DELETING = {"ix_pairs_second_id", "ix_scores_completion_id"}


@pytest.fixture(params=["new", "migrated"])
def db(request: pytest.FixtureRequest, store: Path) -> Iterator[Database]:
    """A database whose tables were created directly, or by the migrations: in another order, which plans may depend on."""
    if request.param == "migrated":
        store.mkdir()
        create_old_database(f"sqlite:///{store / 'lab.db'}", "0009", rows=False)
    with Database.open(store) as opened:
        yield opened


@pytest.fixture
def statements(db: Database) -> Iterator[list[tuple[str, object]]]:
    recorded: list[tuple[str, object]] = []

    def note(_conn, _cursor, sql: str, parameters: object, _context, many: bool) -> None:
        if re.match(r"SELECT|UPDATE|DELETE", sql):
            recorded.append((sql, parameters[0] if many else parameters))

    event.listen(db._reader, "before_cursor_execute", note)
    yield recorded
    event.remove(db._reader, "before_cursor_execute", note)


def test_every_query_uses_an_index(db: Database, project: Project, make_pairs: Callable, statements: list) -> None:
    pair = make_pairs(3)[0]
    human, snapshot = Source.HUMAN, LabelSnapshot((), "", Source.HUMAN)
    votes.cast_vote(db, Vote("u", pair.id, "ann", human, Choice.FIRST, True))
    votes.next_unvoted_pair(db, project.id, "ann")
    votes.count_unvoted_pairs(db, project.id, "ann")
    votes.vote_counts(db, project.id)
    label_snapshots.load_comparisons(db, label_snapshots.snapshot_labels(db, project.id, human, ["ann"]))
    features.add_features(db, {pair.first.id: features.TextFeatures(1, np.ones(2, np.float16))})
    features.load_features(db, [pair.first.id])
    features.newest_labels(db, project.id, human)
    features.texts_without_features(db, project.id, 9)
    undo_vote(db, project.id, "ann")
    rules = LabellingConfig(repeats=0.5)
    lease = pair_leases.lease_pair(db, project.id, "bob", rules)
    vote = pair_leases.vote_on_lease(db, Vote("b", lease.pair.id, "bob", human, Choice.FIRST, True))
    vote = pair_leases.change_vote(db, project.id, vote.id, Vote("c", lease.pair.id, "bob", human, Choice.SECOND, True))
    pair_leases.undo_last_vote(db, project.id, "bob")
    pair_leases.redo_last_vote(db, project.id, "bob")
    for n in range(4):  # with any of these a hidden repeat may be due
        pair_leases.lease_pairs(db, project.id, f"visitor {n}", rules)
    pair_leases.count_free_pairs(db, project.id, "bob")
    votes.vote_history(db, project.id, "bob")
    annotators.annotator_stats(db, project.id)
    projects.get_labelling_config(db, project.id)
    projects.set_labelling_config(db, project.id, LabellingConfig(gold_rate=0.5, gold_rule="down_weight"))
    label_snapshots.snapshot_labels(db, project.id, human)
    for rules in (LabellingConfig(gold_rate=0.5, gold_rule="pause"),) * 9:  # with one of these a gold pair may come
        pair_leases.lease_pairs(db, project.id, "bob", rules)
    gold_pairs.count_gold_pairs(db, project.id)
    gold_pairs.known_answers(db, [pair.id])
    gold_pairs.result_at_last_look(db, project.id, "bob", LabellingConfig())
    adjudication.disputed_pairs(db, project.id, "bob")
    pair_leases.start_adjudicating(db, project.id, "bob")
    adjudication.stop_adjudicating(db, project.id, "bob")
    project_people.set_expert(db, project.id, "bob", True)
    project_people.experts(db, project.id)
    with db.write() as conn:
        values = {"project_id": project.id, "name": "f", "who": "", "use_prompts": True, "created_at": 1.0}
        conn.execute(imports.insert().values(**values))
    project_imports(db, project.id)
    preview_undo(db, project.id, 1)
    undo_import(db, project.id, 1)
    projects.prompts(db, project.id, "train")
    projects.get_pair(db, pair.id)
    reward_model = reward_models.add_reward_model(db, project.id, "", config={}, report={}, snapshot=snapshot)
    reward_models.latest_reward_model(db, project.id, human)
    runs.runs(db, project.id)
    run = runs.create_run(db, project.id, reward_model.id, "r", config={}, manifest={}, total_steps=1)
    run_metrics.record_step(db, run.id, StepResult(1, {"a": 1.0}, [], [Sample("p", 1, "t", 0.5)]))
    run_metrics.metrics_since(db, run.id, 0)
    run_metrics.metric_series(db, run.id, ["a"])
    run_metrics.sample_steps(db, run.id)
    run_metrics.samples_at(db, run.id, 1)
    run_metrics.token_records_at(db, run.id, 1)
    run_metrics.metric_at(db, run.id, 1, "a")
    run_metrics.delete_steps_after(db, run.id, 0)
    runs.mark_event_applied(db, runs.add_event(db, run.id, EventKind.NOTE, {}).id, 1)
    runs.pending_events(db, run.id)
    runs.set_run_status(db, run.id, RunStatus.DONE)
    runs.delete_run(db, run.id)
    job = queue.submit(db, JobKind.COMPLETE, project.id, {})
    blind_tests.add_answers(db, blind_tests.add_test(db, project.id, job.id, job.id).id, "ann", {0: Choice.TIE})
    blind_tests.blind_tests(db, project.id)
    blind_tests.answers(db, 1)
    tournament = tournaments.add_tournament(db, project.id, job.id)
    pair = tournaments.lease_tournament_pair(db, tournament.id, "ann", lambda answers, since: PairKey(0, 0, 1))
    tournaments.answer_tournament_pair(db, tournament.id, "ann", pair, Choice.TIE)
    tournaments.tournaments(db, project.id)
    tournaments.delete_tournament(db, tournament.id)
    engine_id = engine_process.record_heartbeat(db, "idle")
    queue.claim(db, [JobKind.COMPLETE, JobKind.SAMPLE_PAIRS], engine_id)
    queue.update_progress(db, job.id, 0.5)
    queue.requeue_interrupted(db)
    queue.jobs(db, project_id=project.id)
    assert len(statements) > 40
    scans, used = [], set()
    with db.read() as conn:
        for sql, parameters in list(statements):
            for row in conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", parameters).all():
                used.update(re.findall(r"INDEX (\w+)", row[3]))
                scanned = re.match(r"SCAN (?!CONSTANT)(\w+)", row[3])
                whole_run = row[3].endswith("metrics USING PRIMARY KEY (run_id=?)")
                whole_run = whole_run and not sql.startswith("DELETE FROM runs")  # which takes all of the run's
                is_count = COUNTED.fullmatch(sql) or (
                    sql.startswith("SELECT (SELECT coalesce(max(id)") and row[3] in CHANGES
                )
                if whole_run or (scanned and scanned[1] not in SMALL and not is_count):
                    scans.append((row[3], sql))
    assert scans == []
    # Newer SQLite (3.46) goes by the key for an equal step and reads the whole run; this one may not.
    equal = r"metrics\.run_id = \? AND metrics\.step = \?(?! AND metrics\.name)"
    assert [sql for sql, _ in statements if re.search(equal, sql)] == []
    assert {index.name for table in metadata.tables.values() for index in table.indexes} - used == DELETING
