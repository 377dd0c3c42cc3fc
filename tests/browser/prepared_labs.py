"""Labs with labels, reward models and runs, added through the store; without an engine, or trained by the lab's engine."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from browser_lab import Lab
from helpers import wait_until

from rlhf_lab.common.enums import ACTIVE_RUN_STATUSES, UNFINISHED_JOB_STATUSES, JobKind, JobStatus, RunStatus, Source
from rlhf_lab.common.records import Job, NewCompletion, Project, Run, Vote
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.errors import StoreError
from rlhf_lab.jobs import engine_process, queue, run_control
from rlhf_lab.jobs.judge_labelling import label_with_judge
from rlhf_lab.jobs.project_setup import new_project, remove_project
from rlhf_lab.judges.builtin import load_judge, prefer
from rlhf_lab.store import tables as t
from rlhf_lab.store.blind_tests import blind_tests, delete_test
from rlhf_lab.store.database import Database
from rlhf_lab.store.features import TextFeatures, add_features, texts_without_features
from rlhf_lab.store.projects import add_completions, add_pairs, current_project, open_project, prompts
from rlhf_lab.store.runs import get_run, rename_run, runs
from rlhf_lab.store.votes import cast_vote, next_unvoted_pair

#: Trains at once, without cross-validation.
FAST_CONFIG = RewardConfig(folds=0, epochs=1)
#: For the visitors of a file of tests: each of them makes the scheduler keep more pairs ready.
POOL_SIZE = 400


def fill_pool(db: Database, project_id: int) -> None:
    """Give a new project enough pairs, and empty features of all texts, so that no engine starts before a job is submitted."""
    shipped = [text for _, text in texts_without_features(db, project_id, 1000)]
    chosen = prompts(db, project_id, "train")[:POOL_SIZE]
    firsts, seconds = (
        add_completions(
            db, [NewCompletion(one.id, f"{start} {one.id}.", (5, 1 + one.id % 500), "base", 0) for one in chosen]
        )
        for start in ("A tale of a fox, number", "A poem about the sea, number")
    )
    add_pairs(db, project_id, [(first.id, second.id, "test") for first, second in zip(firsts, seconds, strict=True)])
    nothing = TextFeatures(1, np.zeros(0, np.float16))
    add_features(db, {text.id: nothing for text in (*shipped, *firsts, *seconds)})


def idle_lab(home: Path, **options) -> Lab:
    """A lab, not started, with a project whose pool is full: its page starts no engine for itself."""
    with Database.open(home) as db:
        fill_pool(db, new_project(db).id)
    return Lab(home, **options)


def idle_engine(db: Database) -> int:
    """Make this process the lab's engine until tomorrow; returns its id. It does nothing: tests claim and finish jobs."""
    engine = engine_process.record_heartbeat(db, "idle")
    with db.write() as conn:
        conn.execute(t.engines.update().where(t.engines.c.id == engine).values(beat_at=time.time() + 86_400))
    return engine


def finish_job(db: Database, job: Job, result: dict) -> None:
    """Finish a job as the engine does. It is the oldest queued one of its kind."""
    claimed = queue.claim(db, [job.kind], idle_engine(db), job.project_id)
    assert claimed is not None
    assert claimed.id == job.id
    queue.finish(db, job.id, result)


@contextmanager
def without_engine(lab: Lab) -> Iterator[Lab]:
    """Start a lab whose engine is this process: jobs and runs stay in the state that a test gives them."""
    with Database.open(lab.home) as db:
        engine = idle_engine(db)
        try:
            yield lab.start()
        finally:
            engine_process.mark_engine_stopped(db, engine)
            lab.stop()


def wait_for_job(db: Database, job: Job) -> None:
    """Wait until a job is done. AssertionError at once if it fails."""

    def is_done() -> bool:
        current = queue.get_job(db, job.id)
        assert current.status in (*UNFINISHED_JOB_STATUSES, JobStatus.DONE), (
            f"{current.kind} is {current.status}: {current.error}"
        )
        return current.status is JobStatus.DONE

    wait_until(is_done, f"the job {job.kind}")


def add_labels(db: Database, project_id: int, source: Source, count: int) -> None:
    """Label a project's shipped pairs as a judge prefers, under the judge's name or the person Ann's."""
    judge = load_judge("cheerful")
    if source is Source.SIMULATED:
        assert sum(label_with_judge(db, project_id, judge, count).values()) == count
        return
    for _ in range(count):
        pair = next_unvoted_pair(db, project_id, "Ann")
        choice = prefer(judge, pair.prompt.text, pair.first.text, pair.second.text)
        cast_vote(db, Vote(str(uuid.uuid4()), pair.id, "Ann", source, choice, first_on_left=True))


@contextmanager
def lab_with_reward_models(home: Path, source: Source, *configs: RewardConfig) -> Iterator[Lab]:
    """A running lab with 14 labels and one reward model per config; their ids start at 1."""
    lab = Lab(home)
    with Database.open(home) as db:
        project = new_project(db)
        add_labels(db, project.id, source, 14)
        jobs = [submit_reward_training(db, project.id, source, config) for config in configs]
        try:
            lab.start()
            for job in jobs:
                wait_for_job(db, job)
            yield lab
        finally:
            lab.stop()


def submit_reward_training(db: Database, project_id: int, source: Source, config: RewardConfig) -> Job:
    """Submit a training before the lab is started; while it is queued, no automatic training starts."""
    payload = {"source": source.value, "config": config.to_dict()}
    return queue.submit(db, JobKind.TRAIN_REWARD, project_id, payload)


@contextmanager
def running_run(db: Database, home: Path, **config) -> Iterator[Run]:
    """An active run of the open project that has done two steps. It is stopped at the end."""
    project = current_project(db)
    run = run_control.start_run(db, home, project.id, PolicyConfig(steps=400, **config))
    try:

        def has_stepped() -> bool:
            current = get_run(db, run.id)
            assert current.status is not RunStatus.FAILED, current.message
            return current.step >= 2

        wait_until(has_stepped, "the first steps of a run")
        yield run
    finally:
        stop_all_runs(db)


def stop_all_runs(db: Database) -> None:
    """Stop every run and wait until the engine has finished with them."""
    for run in runs(db):
        if run.status in ACTIVE_RUN_STATUSES:
            with suppress(StoreError):  # it has ended by itself
                run_control.stop(db, run.id)
    wait_until(
        lambda: not queue.jobs(db, kinds=[JobKind.TRAIN_POLICY], statuses=UNFINISHED_JOB_STATUSES),
        "the end of the runs",
    )


def delete_other_runs(db: Database, home: Path, run: Run) -> None:
    """Delete all other runs and the blind tests of its project, and restore the run's name."""
    stop_all_runs(db)
    for test in blind_tests(db, run.project_id):
        delete_test(db, test.id)
    for other in runs(db):
        if other.id != run.id:
            run_control.delete(db, home, other.id)
    rename_run(db, run.id, run.name)


@contextmanager
def temporary_project(db: Database, home: Path, *, idle: bool = False) -> Iterator[Project]:
    """A new project, open in the lab. At the end it is deleted and the previous one opened again. idle: with a full pool."""
    before = current_project(db)
    project = new_project(db)
    if idle:
        fill_pool(db, project.id)

    def is_removed() -> bool:
        for job in queue.jobs(db, project_id=project.id, statuses=UNFINISHED_JOB_STATUSES):
            queue.cancel(db, job.id)
        with suppress(StoreError):  # an engine has not ended its job yet
            return bool(remove_project(db, home, project.id))
        return False

    try:
        yield project
    finally:
        open_project(db, before.id)
        stop_all_runs(db)
        wait_until(is_removed, "the removal of a project")
