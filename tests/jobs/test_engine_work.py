"""What the page says of the work of the engine."""

import pytest

from rlhf_lab.common.enums import JobKind, RunStatus
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.jobs.engine_work import JOB_LABELS, work_text
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store.database import Database
from rlhf_lab.store.runs import create_run, set_run_status


@pytest.fixture
def db(tmp_path):
    with Database.open(tmp_path / "home") as db:
        yield db


def begin(db, kind, project_id, payload=None):
    engine = engine_process.record_heartbeat(db, "busy")
    job = queue.submit(db, kind, project_id, payload or {})
    queue.claim(db, [kind], engine, project_id)
    return job


def test_every_kind_of_work_has_words():
    assert set(JOB_LABELS) == set(JobKind)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (JobKind.TRAIN_REWARD, "training the reward model"),
        (JobKind.SAMPLE_PAIRS, "writing pairs"),
        (JobKind.TOURNAMENT, "writing for a tournament"),
        (JobKind.CHAT, ""),  # it takes seconds
    ],
)
def test_the_work_of_the_engine(db, kind, text):
    project = new_project(db)
    queue.submit(db, kind, project.id, {})
    assert work_text(db) == ""  # it waits
    queue.claim(db, [kind], engine_process.record_heartbeat(db, "busy"))
    assert work_text(db) == text
    assert work_text(db, without=[kind]) == ""


def test_the_run_in_whose_pauses_other_work_is_done_is_named(db):
    """Also if it belongs to another project."""
    project, other = new_project(db), new_project(db)
    config = PolicyConfig(steps=3).to_dict()
    run = create_run(db, other.id, None, "r", config=config, manifest={}, total_steps=3)
    begin(db, JobKind.TRAIN_POLICY, other.id, {"run_id": run.id})
    pairs = begin(db, JobKind.SAMPLE_PAIRS, project.id)
    assert work_text(db) == f"training run {run.id}"
    set_run_status(db, run.id, RunStatus.PAUSED)
    assert work_text(db) == f"waiting in run {run.id}, which is paused"
    assert work_text(db, without=[JobKind.TRAIN_POLICY]) == "writing pairs"
    queue.finish(db, pairs.id, {})
    assert work_text(db, without=[JobKind.TRAIN_POLICY]) == ""


def test_an_engine_that_has_ended_does_nothing(db):
    begin(db, JobKind.TRAIN_REWARD, new_project(db).id)
    engine_process.mark_engine_stopped(db, engine_process.record_heartbeat(db, "busy"))
    assert work_text(db) == ""
