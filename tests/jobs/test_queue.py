import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from sqlalchemy import Connection

from rlhf_lab.common.enums import JobKind, JobStatus, RunStatus
from rlhf_lab.common.text import cut_middle
from rlhf_lab.errors import StoreError
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import create_project, open_project
from rlhf_lab.store.runs import create_run, get_run, set_run_status

GONE = {"process_started": 1.0}  # this pid was recycled: the engine that had it is dead
COMPLETE, SAMPLE, REWARD = JobKind.COMPLETE, JobKind.SAMPLE_PAIRS, JobKind.TRAIN_REWARD


@pytest.fixture
def engine_id(engine_row: Callable[..., int]) -> int:
    return engine_row()


def test_a_job_from_submit_to_done(db: Database, engine_id: int) -> None:
    job = queue.submit(db, COMPLETE, None, {"prompt": "Once", "n": 4})
    assert (job.status, job.progress, job.eta_s, job.result, job.error) == (JobStatus.QUEUED, 0.0, None, None, "")
    assert (job.payload, job.engine_id, job.attempts) == ({"prompt": "Once", "n": 4}, None, 0)
    assert job.created_at == pytest.approx(time.time(), abs=10)
    claimed = queue.claim(db, [COMPLETE], engine_id)
    assert claimed is not None
    assert (claimed.id, claimed.status, claimed.engine_id) == (job.id, JobStatus.RUNNING, engine_id)
    assert queue.update_progress(db, job.id, 0.25, 12.0)
    assert (queue.get_job(db, job.id).progress, queue.get_job(db, job.id).eta_s) == (0.25, 12.0)
    assert queue.finish(db, job.id, {"texts": ["a"]})
    done = queue.get_job(db, job.id)
    assert (done.status, done.result, done.progress, done.eta_s) == (JobStatus.DONE, {"texts": ["a"]}, 1.0, 0.0)
    assert done.updated_at >= done.created_at


def test_only_progress_does_not_wait_for_the_disk(
    db: Database, engine_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer of a chat is stored ten times a second."""
    job, waits, write = queue.submit(db, COMPLETE, None, {}), list[bool](), db.write

    def recorded(*, durable: bool = True) -> AbstractContextManager[Connection]:
        waits.append(durable)
        return write(durable=durable)

    monkeypatch.setattr(db, "write", recorded)
    queue.claim(db, [COMPLETE], engine_id)
    queue.update_progress(db, job.id, 0.5, partial_result={"text": "On"})
    engine_process.record_heartbeat(db, "idle")
    engine_process.touch_ui(db)
    queue.finish(db, job.id, {"text": "Once"})
    assert waits == [True, False, False, False, True]


def test_the_oldest_job_of_the_requested_kinds_is_claimed(db: Database, engine_id: int) -> None:
    first = queue.submit(db, SAMPLE, None, {})
    second = queue.submit(db, COMPLETE, None, {})
    third = queue.submit(db, SAMPLE, None, {})
    assert queue.claim(db, [REWARD], engine_id) is None
    assert queue.claim(db, [], engine_id) is None
    assert queue.claim(db, [COMPLETE, REWARD], engine_id).id == second.id
    assert queue.claim(db, [COMPLETE, SAMPLE], engine_id).id == first.id
    assert queue.claim(db, [COMPLETE, SAMPLE], engine_id).id == third.id
    assert queue.claim(db, [COMPLETE, SAMPLE], engine_id) is None


def test_jobs_of_the_open_project_come_first(db: Database, engine_id: int) -> None:
    old, new = (create_project(db, name, "m", "h", "tales", 0, [("Once", "train")]) for name in ("old", "new"))
    jobs = [queue.submit(db, SAMPLE, project_id, {}) for project_id in (None, old.id, new.id, old.id, new.id)]
    claimed = [queue.claim(db, [SAMPLE], engine_id).id for _ in range(2)]
    assert claimed == [jobs[2].id, jobs[4].id]
    open_project(db, old.id)
    newest = queue.submit(db, SAMPLE, new.id, {})
    claimed = [queue.claim(db, [SAMPLE], engine_id).id for _ in range(4)]
    assert claimed == [jobs[1].id, jobs[3].id, jobs[0].id, newest.id]


def test_claiming_does_not_wait_for_a_writer_when_there_is_nothing(db: Database, engine_id: int) -> None:
    with db.write():
        start = time.monotonic()
        assert queue.claim(db, [COMPLETE], engine_id) is None
        assert time.monotonic() - start < 2


def test_a_cancelled_job_stays_cancelled(db: Database, engine_id: int) -> None:
    queued, running = queue.submit(db, SAMPLE, None, {}), queue.submit(db, COMPLETE, None, {})
    queue.claim(db, [COMPLETE], engine_id)
    assert queue.cancel(db, queued.id)
    assert queue.cancel(db, running.id)
    assert queue.claim(db, [SAMPLE], engine_id) is None
    assert not queue.update_progress(db, running.id, 0.9)
    assert not queue.finish(db, running.id, {"late": True})
    assert not queue.fail(db, running.id, "late")
    assert not queue.cancel(db, running.id)
    assert queue.requeue_interrupted(db) == []
    for job_id in (queued.id, running.id):
        job = queue.get_job(db, job_id)
        assert (job.status, job.result, job.error, job.progress) == (JobStatus.CANCELLED, None, "", 0.0)


def test_a_failed_job_says_why(db: Database, engine_id: int) -> None:
    job = queue.submit(db, SAMPLE, None, {})
    assert not queue.finish(db, job.id, {})  # nobody is working on it
    queue.claim(db, [SAMPLE], engine_id)
    assert queue.fail(db, job.id, "out of memory")
    assert not queue.finish(db, job.id, {})
    assert not queue.cancel(db, job.id)
    assert (queue.get_job(db, job.id).status, queue.get_job(db, job.id).error) == (JobStatus.FAILED, "out of memory")


def test_lists_are_newest_first_and_filtered(db: Database, engine_id: int) -> None:
    one, two, three = (queue.submit(db, kind, None, {}) for kind in (SAMPLE, COMPLETE, SAMPLE))
    queue.claim(db, [COMPLETE], engine_id)
    ids = lambda **filters: [job.id for job in queue.jobs(db, **filters)]  # noqa: E731
    assert ids() == [three.id, two.id, one.id]
    assert ids(limit=1) == [three.id]
    assert ids(kinds=[SAMPLE]) == [three.id, one.id]
    assert ids(statuses=[JobStatus.RUNNING]) == [two.id]
    assert ids(kinds=[SAMPLE], statuses=[JobStatus.RUNNING]) == []
    assert ids(project_id=1) == []
    with pytest.raises(StoreError, match="no job 99"):
        queue.get_job(db, 99)


def test_jobs_of_a_dead_engine_are_queued_again(db: Database, engine_row: Callable[..., int]) -> None:
    dead, alive = engine_row(**GONE), engine_row()
    jobs = [queue.submit(db, SAMPLE, None, {"n": n}) for n in range(4)]
    for engine_id in (dead, alive, dead):
        queue.claim(db, [SAMPLE], engine_id)
    queue.update_progress(db, jobs[0].id, 0.5, 3.0)
    changed = queue.requeue_interrupted(db)
    assert [job.id for job in changed] == [jobs[0].id, jobs[2].id]
    assert changed == [queue.get_job(db, job.id) for job in changed]
    assert {(job.status, job.engine_id, job.eta_s) for job in changed} == {(JobStatus.QUEUED, None, None)}
    assert queue.get_job(db, jobs[1].id).engine_id == alive
    assert queue.requeue_interrupted(db) == []
    assert queue.claim(db, [SAMPLE], alive).id == jobs[0].id
    assert queue.get_job(db, jobs[0].id).payload == {"n": 0}


def test_an_engine_on_another_machine_is_gone_after_a_minute_without_heartbeat(
    db: Database, engine_row: Callable[..., int]
) -> None:
    now = time.time()
    seconds = (-600, 5, 50, 70, -7200)  # the last one: the clock was set back since
    ids = [engine_row(host="elsewhere", beat_at=now - age) for age in seconds]
    ids.append(engine_row(host="elsewhere", beat_at=now, stopped_at=now))
    jobs = [queue.submit(db, SAMPLE, None, {}) for _ in ids]
    for engine_id in ids:
        queue.claim(db, [SAMPLE], engine_id)
    assert [job.id for job in queue.requeue_interrupted(db)] == [job.id for job in jobs[3:]]


def interrupt(db: Database, engine_id: int, job_id: int, progress: float) -> tuple[JobStatus, int]:
    assert queue.claim(db, [SAMPLE], engine_id).id == job_id
    queue.update_progress(db, job_id, progress)
    (job,) = queue.requeue_interrupted(db)
    return job.status, job.attempts


def test_five_interruptions_without_progress_fail_the_job(db: Database, engine_row: Callable[..., int]) -> None:
    dead = engine_row(**GONE)
    job = queue.submit(db, SAMPLE, None, {})
    queued = JobStatus.QUEUED
    assert interrupt(db, dead, job.id, 0.0) == (queued, 1)
    assert interrupt(db, dead, job.id, 0.0) == (queued, 2)
    assert interrupt(db, dead, job.id, 0.4) == (queued, 1)  # more progress than before: the count starts again
    assert interrupt(db, dead, job.id, 0.4) == (queued, 2)
    assert interrupt(db, dead, job.id, 0.3) == (queued, 3)
    assert interrupt(db, dead, job.id, 0.4) == (queued, 4)  # up from 0.3, but not beyond the previous maximum
    assert interrupt(db, dead, job.id, 0.4) == (JobStatus.FAILED, 5)
    failed = queue.get_job(db, job.id)
    assert "5 times" in failed.error
    assert "40 %" in failed.error
    assert "smaller batch" in failed.error
    assert queue.claim(db, [SAMPLE], dead) is None


WORKER = """
import sys, time
from pathlib import Path
from rlhf_lab.jobs import queue, engine_process
from rlhf_lab.common.enums import JobKind
from rlhf_lab.store.database import Database
home = Path(sys.argv[1])
with Database.open(home) as db:
    engine_id = engine_process.record_heartbeat(db, "idle")
    print("ready", flush=True)
    while not (home / "go").exists():
        time.sleep(0.002)
    while (job := queue.claim(db, [JobKind.SAMPLE_PAIRS], engine_id)) is not None:
        queue.update_progress(db, job.id, 0.5)
        time.sleep(0.005)  # the work
        assert queue.finish(db, job.id, {"by": engine_id}), job
        print(job.id)
"""


def test_two_processes_share_the_jobs_and_none_is_done_twice(db: Database, home: Path, script: Callable) -> None:
    jobs = [queue.submit(db, SAMPLE, None, {}) for _ in range(100)]
    processes = [script(WORKER), script(WORKER)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    (home / "go").touch()
    done: list[list[int]] = []
    for process in processes:
        out, err = process.communicate(timeout=50)
        assert (process.returncode, err) == (0, "")
        done.append([int(line) for line in out.split()])
    assert sorted(done[0] + done[1]) == [job.id for job in jobs]
    assert min(map(len, done)) > 10  # both took jobs; otherwise the test would prove nothing
    assert {job.status for job in queue.jobs(db, limit=999)} == {JobStatus.DONE}


def test_an_engine_that_exits_requeues_its_job(db: Database, engine_id: int) -> None:
    job = queue.submit(db, COMPLETE, None, {})
    assert not queue.requeue(db, job.id)  # not running
    queue.claim(db, [COMPLETE], engine_id)
    assert queue.requeue(db, job.id)
    waiting = queue.get_job(db, job.id)
    assert (waiting.status, waiting.engine_id, waiting.attempts) == (JobStatus.QUEUED, None, 0)
    assert queue.claim(db, [COMPLETE], engine_id).id == job.id
    queue.cancel(db, job.id)
    assert not queue.requeue(db, job.id)
    assert queue.get_job(db, job.id).status is JobStatus.CANCELLED


def test_a_partial_result_is_stored_until_the_final_one(db: Database, engine_id: int) -> None:
    job = queue.submit(db, REWARD, None, {})
    queue.claim(db, [REWARD], engine_id)
    assert queue.update_progress(db, job.id, 0.1, None, {"loss": [0.7]})
    assert queue.get_job(db, job.id).result == {"loss": [0.7]}
    assert queue.update_progress(db, job.id, 0.2)  # no new partial result: the previous one stays
    assert queue.get_job(db, job.id).result == {"loss": [0.7]}
    assert queue.finish(db, job.id, {"answer": 1})
    assert not queue.update_progress(db, job.id, 0.3, None, {"loss": []})
    assert queue.get_job(db, job.id).result == {"answer": 1}


def test_every_stored_error_is_cut_and_keeps_its_end(db: Database) -> None:
    """Of a job and of a run, whoever raised it."""
    error = f"The judge failed: {'x' * 5_000_000}. Correct the function."
    project = create_project(db, "tales", "m", "", "tales", 7, [("Once", "train")])
    job = queue.submit(db, JobKind.CHAT, project.id, {})
    queue.fail(db, job.id, error)
    run = create_run(db, project.id, None, "r", config={}, manifest={}, total_steps=1)
    set_run_status(db, run.id, RunStatus.FAILED, error)
    for stored in (queue.get_job(db, job.id).error, get_run(db, run.id).message):
        assert len(stored) == 1000
        assert stored.startswith("The judge failed: xxx")
        assert stored.endswith("xxx. Correct the function.")
    assert cut_middle("x" * 1000, 1000) == "x" * 1000
