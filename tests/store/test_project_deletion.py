"""Deleting a project removes all of its rows and none of another project."""

from collections.abc import Callable

import numpy as np
import pytest
from sqlalchemy import select

from rlhf_lab.common.enums import Choice, EventKind, JobKind, Opponent, RunStatus, Source
from rlhf_lab.common.records import LabelSnapshot, NewCompletion, PairKey, Project, Sample, StepResult, Vote
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.errors import StoreError
from rlhf_lab.jobs import queue
from rlhf_lab.store import (
    blind_tests,
    live_runs,
    pair_leases,
    project_people,
    projects,
    reward_models,
    run_metrics,
    runs,
    tournaments,
    votes,
)
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database
from rlhf_lab.store.features import TextFeatures, add_features
from rlhf_lab.store.projects import delete_project
from rlhf_lab.store.reward_scores import add_scores

APART = {"projects", "engines", "people", "presence"}  # all other tables hold what belongs to a project


def fill(db: Database, project: Project) -> int:
    """Add at least one row to every table that belongs to a project; returns the run."""
    prompt = projects.prompts(db, project.id, "train")[0]
    created = projects.add_completions(db, [NewCompletion(prompt.id, f"text {n}", (n,), "base", n) for n in range(4)])
    one, _ = projects.add_pairs(
        db, project.id, [(created[0].id, created[1].id, "x"), (created[2].id, created[3].id, "x")]
    )
    add_features(db, {created[0].id: TextFeatures(1, np.ones(2, np.float16))})
    votes.cast_vote(db, Vote(f"{project.id}", one.id, "ann", Source.HUMAN, Choice.FIRST, True))
    pair_leases.lease_pair(db, project.id, "ann")
    projects.set_labelling_config(db, project.id, LabellingConfig(overlap=2))
    project_people.set_expert(db, project.id, "ann", True)
    snapshot = LabelSnapshot((1,), "", Source.HUMAN)
    model = reward_models.add_reward_model(db, project.id, f"rm/{project.id}", config={}, report={}, snapshot=snapshot)
    add_scores(db, model.id, {created[0].id: 0.5})
    run = runs.create_run(db, project.id, model.id, "r", config={}, manifest={}, total_steps=1)
    run_metrics.record_step(db, run.id, StepResult(1, {"a": 1.0}, [], [Sample("p", 1, "t", 0.5)]))
    runs.add_event(db, run.id, EventKind.NOTE, {})
    live_runs.add_head(db, live_runs.LiveHead(run.id, 1, 6, 6, "", 1.0, np.ones(2, np.float32)))
    live_runs.add_live_pairs(db, [live_runs.LivePair(one.id, run.id, 1, Opponent.BASE, None, Choice.FIRST)])
    runs.set_run_status(db, run.id, RunStatus.STOPPED)
    job = queue.submit(db, JobKind.COMPLETE, project.id, {})
    with db.write() as conn:
        values = {"project_id": project.id, "name": "f", "who": "", "use_prompts": False, "created_at": 1.0}
        conn.execute(t.imports.insert().values(**values))
    blind_tests.add_answers(db, blind_tests.add_test(db, project.id, job.id, job.id).id, "ann", {0: Choice.TIE})
    tournament = tournaments.add_tournament(db, project.id, job.id)
    tournaments.lease_tournament_pair(db, tournament.id, "ann", lambda answers, since: PairKey(0, 0, 1))
    return run.id


def finish(db: Database) -> None:
    with db.write() as conn:
        conn.execute(t.jobs.update().values(status="done"))


def rows(db: Database) -> dict[str, list]:
    with db.read() as conn:
        return {table.name: sorted(map(repr, conn.execute(select(table)))) for table in t.metadata.sorted_tables}


@pytest.fixture
def other(db: Database) -> Project:
    return projects.create_project(db, "other", "assets/model", "abc", "tiny tales", 7, [("Once", "train")])


def test_a_deleted_project_leaves_no_rows_and_other_projects_stay(
    db: Database, project: Project, other: Project
) -> None:
    fill(db, other)
    finish(db)
    before = rows(db)
    run_id = fill(db, project)
    finish(db)
    filled = rows(db)
    grown = {name for name in filled if len(filled[name]) > len(before[name])}
    assert grown == set(filled) - APART - {"prompts", "token_records"}
    projects.open_project(db, other.id)
    before = before | {"projects": [one for one in rows(db)["projects"] if "'other'" in one]}
    pairs = {lease.partition(",")[0] for lease in before["leases"]}  # ended by the same person's lease in the project
    before["leases"] = [lease for lease in filled["leases"] if lease.partition(",")[0] in pairs]
    left = delete_project(db, project.id)
    assert (left.run_ids, left.reward_model_paths) == ([run_id], [f"rm/{project.id}"])
    after = rows(db)
    assert len(after.pop("prompts")) == 1
    del before["prompts"]
    assert after == before


def test_an_open_or_active_project_is_not_deleted(db: Database, project: Project, other: Project) -> None:
    projects.open_project(db, other.id)
    run_id = fill(db, project)
    filled = rows(db)
    with pytest.raises(StoreError, match="still has work in progress"):  # a job waits
        delete_project(db, project.id)
    assert rows(db) == filled
    finish(db)
    for status in (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.PAUSED):
        runs.set_run_status(db, run_id, status)
        filled = rows(db)
        with pytest.raises(StoreError, match="still has work in progress"):
            delete_project(db, project.id)
        assert rows(db) == filled
    projects.open_project(db, project.id)
    with pytest.raises(StoreError, match="is open"):
        delete_project(db, project.id)
    with pytest.raises(StoreError, match="no project 99"):
        delete_project(db, 99)


def test_foreign_key_checks_of_a_deletion_use_indices(make_pairs: Callable) -> None:
    """For each deleted row the database looks for rows that reference it."""
    make_pairs(1)
    for table in t.metadata.sorted_tables:
        first = {index.columns[0].name for index in table.indexes if index.dialect_options["sqlite"]["where"] is None}
        first |= {next(iter(result.columns)).name for result in table.constraints if len(result.columns)}
        for column in table.columns:
            for key in column.foreign_keys:
                if key.column.table.name in ("prompts", "completions", "pairs"):
                    assert column.name in first, (table.name, column.name)
