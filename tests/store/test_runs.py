import dataclasses
from collections.abc import Callable

import pytest

from rlhf_lab.common.enums import EventKind, RunStatus, Source
from rlhf_lab.common.records import LabelSnapshot, Project, Run, Sample, StepResult
from rlhf_lab.errors import StoreError
from rlhf_lab.store import reward_models, run_metrics, runs
from rlhf_lab.store.database import Database

HUMAN = LabelSnapshot((3, 5, 8), "d" * 64, Source.HUMAN)
SIMULATED = LabelSnapshot((), "e" * 64, Source.SIMULATED)


@pytest.fixture
def make_run(db: Database, project: Project) -> Callable[..., Run]:
    def make(name: str = "first") -> Run:
        reward_model = reward_models.add_reward_model(db, project.id, "rm/1", config={}, report={}, snapshot=HUMAN)
        return runs.create_run(
            db, project.id, reward_model.id, name, config={"lr": 2e-4}, manifest={"torch": "2"}, total_steps=40
        )

    return make


def test_reward_models(db: Database, project: Project) -> None:
    assert reward_models.latest_reward_model(db, project.id) is None
    config, report = {"pooling": "mean", "rank": 8}, {"accuracy": 0.85, "folds": [1, 2]}
    old = reward_models.add_reward_model(db, project.id, "reward/1", config=config, report=report, snapshot=HUMAN)
    new = reward_models.add_reward_model(db, project.id, "reward/2", config={}, report={}, snapshot=SIMULATED)
    assert (old.config, old.report, old.snapshot, old.path) == (config, report, HUMAN, "reward/1")
    assert reward_models.get_reward_model(db, old.id) == old
    assert reward_models.reward_models(db, project.id) == [new, old]
    assert reward_models.reward_models(db, project.id + 1) == []
    assert reward_models.latest_reward_model(db, project.id) == new
    assert reward_models.latest_reward_model(db, project.id, Source.HUMAN) == old
    assert reward_models.latest_reward_model(db, project.id + 1, Source.HUMAN) is None
    with pytest.raises(StoreError, match="no reward model 9"):
        reward_models.get_reward_model(db, 9)


def test_a_run_from_queue_to_end(db: Database, project: Project, make_run: Callable) -> None:
    run = make_run()
    assert (run.status, run.step, run.total_steps, run.message) == (RunStatus.QUEUED, 0, 40, "")
    assert (run.config, run.manifest) == ({"lr": 2e-4}, {"torch": "2"})
    assert runs.get_run(db, run.id) == run
    runs.set_run_status(db, run.id, RunStatus.FAILED, "NaN in the loss")
    runs.rename_run(db, run.id, "second try")
    changed = runs.get_run(db, run.id)
    assert changed.updated_at >= run.updated_at
    assert changed == dataclasses.replace(
        run, status=RunStatus.FAILED, message="NaN in the loss", name="second try", updated_at=changed.updated_at
    )
    runs.set_run_status(db, run.id, RunStatus.RUNNING)
    assert runs.get_run(db, run.id).message == ""
    other = make_run("other")
    assert [result.name for result in runs.runs(db)] == ["other", "second try"]
    assert [result.id for result in runs.runs(db, project.id)] == [other.id, run.id]
    assert runs.runs(db, project.id + 1) == []


def test_only_runs_that_have_changed_are_read_again(db: Database, project: Project, make_run: Callable) -> None:
    first, second, third = make_run("first"), make_run("second"), make_run("third")
    before = runs.runs(db, project.id)
    runs.rename_run(db, second.id, "renamed")
    runs.delete_run(db, third.id)
    after = runs.runs(db, project.id)
    assert [(run.id, run.name) for run in after] == [(second.id, "renamed"), (first.id, "first")]
    assert after[1] is before[2]
    assert runs.runs(db, project.id)[0] is after[0]
    assert [run.name for run in runs.runs(db)] == ["renamed", "first"]


def test_an_unknown_run_is_named(db: Database) -> None:
    for action in (
        lambda: runs.get_run(db, 7),
        lambda: runs.set_run_status(db, 7, RunStatus.DONE),
        lambda: runs.rename_run(db, 7, "x"),
        lambda: runs.delete_run(db, 7),
        lambda: runs.add_event(db, 7, EventKind.STOP, {}),
        lambda: run_metrics.record_step(db, 7, StepResult(1, {"a": 1.0})),
        lambda: run_metrics.delete_steps_after(db, 7, 1),
    ):
        with pytest.raises(StoreError, match="no run 7"):
            action()


def test_deleting_a_run_takes_its_rows_and_never_reuses_its_id(db: Database, make_run: Callable) -> None:
    remaining, run = make_run("kept"), make_run()
    for each in (remaining, run):
        run_metrics.record_step(db, each.id, StepResult(1, {"a": 1.0}, [], [Sample("p", 1, "t", 0.5)]))
        runs.add_event(db, each.id, EventKind.NOTE, {})
    for status in (RunStatus.RUNNING, RunStatus.PAUSED):
        runs.set_run_status(db, run.id, status)
        with pytest.raises(StoreError, match=f"Run {run.id} is {status}: stop it"):
            runs.delete_run(db, run.id)
    runs.set_run_status(db, run.id, RunStatus.STOPPED)
    runs.delete_run(db, run.id)
    with db.read() as conn:
        for table in ("runs", "metrics", "samples", "run_events"):
            assert conn.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() == 1, table
    assert runs.runs(db)[0].id == remaining.id
    assert make_run("new").id > run.id


def test_events_wait_in_order_until_they_are_applied(db: Database, make_run: Callable) -> None:
    run, other = make_run(), make_run("other")
    first = runs.add_event(db, run.id, EventKind.SET, {"kl_coef": 0.3})
    runs.add_event(db, other.id, EventKind.STOP, {})
    second = runs.add_event(db, run.id, EventKind.PAUSE, {})
    assert (first.kind, first.payload, first.applied_step) == (EventKind.SET, {"kl_coef": 0.3}, None)
    assert runs.pending_events(db, run.id) == [first, second]
    runs.mark_event_applied(db, first.id, 12)
    assert runs.pending_events(db, run.id) == [second]
    runs.mark_event_applied(db, first.id, 15)
    assert runs.events(db, run.id) == [dataclasses.replace(first, applied_step=12), second]
    runs.mark_event_applied(db, second.id, 0)
    assert runs.pending_events(db, run.id) == []
