"""What a test finds in its lab: labels, reward models and runs, put there through the store and made by the lab's own engine."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from browser_lab import Lab
from helpers import until

from rlhf_lab.common.enums import ACTIVE_RUN_STATUSES, UNFINISHED_JOB_STATUSES, JobKind, JobStatus, RunStatus, Source
from rlhf_lab.common.records import Job, Project, Run, Vote
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.errors import StoreError
from rlhf_lab.jobs import queue, run_control
from rlhf_lab.jobs.judge_labelling import label_with_judge
from rlhf_lab.jobs.project_setup import new_project, remove_project
from rlhf_lab.judges.builtin import load_judge, prefer
from rlhf_lab.store.blind_tests import blind_tests, delete_test
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import current_project, open_project
from rlhf_lab.store.runs import get_run, rename_run, runs
from rlhf_lab.store.votes import cast_vote, next_unvoted_pair

#: A reward model that is there in a moment, with no figure that says how good it is.
AT_ONCE = RewardConfig(folds=0, epochs=1)


def finished(db: Database, job: Job) -> None:
    """Wait for a job. AssertionError at once if it fails."""

    def ended() -> bool:
        now = queue.get_job(db, job.id)
        assert now.status in (*UNFINISHED_JOB_STATUSES, JobStatus.DONE), f"{now.kind} is {now.status}: {now.error}"
        return now.status is JobStatus.DONE

    until(ended, f"the job {job.kind}")


def label(db: Database, project_id: int, source: Source, count: int) -> None:
    """Labels that agree with a judge: its own, or a person's. The pairs that come with a project are enough for them."""
    judge = load_judge("cheerful")
    if source is Source.SIMULATED:
        assert sum(label_with_judge(db, project_id, judge, count).values()) == count
        return
    for _ in range(count):
        pair = next_unvoted_pair(db, project_id, "Ann")
        choice = prefer(judge, pair.first.text, pair.second.text)
        cast_vote(db, Vote(str(uuid.uuid4()), pair.id, "Ann", source, choice, first_on_left=True))


@contextmanager
def learnt_lab(home: Path, source: Source, *configs: RewardConfig) -> Iterator[Lab]:
    """A lab that has been started, with 14 labels and a reward model by each config, numbered from 1."""
    lab = Lab(home)
    with Database.open(home) as db:
        project = new_project(db)
        label(db, project.id, source, 14)
        jobs = [ask_for_reward_model(db, project.id, source, config) for config in configs]
        try:
            lab.start()
            for job in jobs:
                finished(db, job)
            yield lab
        finally:
            lab.end()


def ask_for_reward_model(db: Database, project_id: int, source: Source, config: RewardConfig) -> Job:
    """Asked for before the lab is started: while it waits, none is trained by itself."""
    payload = {"source": source.value, "config": config.to_dict()}
    return queue.submit(db, JobKind.TRAIN_REWARD, project_id, payload)


@contextmanager
def going_run(db: Database, home: Path, **config) -> Iterator[Run]:
    """A run of the open project that has made two steps and goes on. It is stopped after that, whatever became of it."""
    project = current_project(db)
    run = run_control.start_run(db, home, project.id, PolicyConfig(steps=400, **config))
    try:

        def stepped() -> bool:
            now = get_run(db, run.id)
            assert now.status is not RunStatus.FAILED, now.message
            return now.step >= 2

        until(stepped, "the first steps of a run")
        yield run
    finally:
        rest(db)


def rest(db: Database) -> None:
    """Stop every run, and wait until the engine has let go of them."""
    for run in runs(db):
        if run.status in ACTIVE_RUN_STATUSES:
            with suppress(StoreError):  # it has ended by itself meanwhile
                run_control.stop(db, run.id)
    until(
        lambda: not queue.jobs(db, kinds=[JobKind.TRAIN_POLICY], statuses=UNFINISHED_JOB_STATUSES),
        "the end of the runs",
    )


def only(db: Database, home: Path, run: Run) -> None:
    """Leave the one run, under its name; what a test has added to its project goes: other runs, and blind tests."""
    rest(db)
    for test in blind_tests(db, run.project_id):
        delete_test(db, test.id)
    for other in runs(db):
        if other.id != run.id:
            run_control.delete(db, home, other.id)
    rename_run(db, run.id, run.name)


@contextmanager
def another_project(db: Database, home: Path) -> Iterator[Project]:
    """A new project, open in the lab. It is gone after that, and the one before is open again."""
    before = current_project(db)
    made = new_project(db)

    def gone() -> bool:
        with suppress(StoreError):  # pairs are being written ahead for it
            return bool(remove_project(db, home, made.id))
        return False

    try:
        yield made
    finally:
        open_project(db, before.id)
        rest(db)
        until(gone, "the end of a project")
