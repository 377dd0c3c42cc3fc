"""Background tasks: pairs are sampled ahead, judges continue, reward models are retrained, an engine is started for them."""

import json
import shutil
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from sqlalchemy import func, insert, select

from rlhf_lab.common.checkpoint_index import TRAINER_FILE
from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, Choice, JobKind, Source
from rlhf_lab.common.hashing import file_sha256
from rlhf_lab.common.records import LabelSnapshot, NewCompletion, Vote
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs import engine_process, queue, retraining, scheduler
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store import (
    features,
    label_snapshots,
    pair_leases,
    projects,
    reward_model_list,
    tables,
    vote_table,
    votes,
)
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import current_project
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.runs import create_run


@pytest.fixture
def db(tmp_path, project_home):
    with Database.open(shutil.copytree(project_home, tmp_path, dirs_exist_ok=True)) as db:
        yield db


@pytest.fixture
def project(db):
    return current_project(db)


@pytest.fixture
def runner(db, tmp_path, monkeypatch):
    """A scheduler that starts no engine but counts how often it would have. All texts count as complete."""
    monkeypatch.setattr(scheduler, "lacks_measurement", lambda *_: False)
    monkeypatch.setattr(engine_process, "ensure_engine", lambda *_: calls.append(1))
    calls: list[int] = []
    created = scheduler.Scheduler(tmp_path, db)
    created.calls = calls
    return created


def open_kinds(db):
    return [job.kind for job in queue.jobs(db, statuses=UNFINISHED_JOB_STATUSES)]


def add_pairs(db, project, count):
    prompt = projects.prompts(db, project.id, "train")[0]
    created = projects.add_completions(
        db, [NewCompletion(prompt.id, f"t{i}", (i,), "base", i) for i in range(2 * count)]
    )
    return projects.add_pairs(db, project.id, [(created[2 * i].id, created[2 * i + 1].id, "r") for i in range(count)])


def add_missing_features(db, project):
    texts = features.texts_without_features(db, project.id, 1000)
    features.add_features(db, {text.id: features.TextFeatures(1, np.ones(1, np.float16)) for _, text in texts})


def label(db, project, count, source=Source.HUMAN, choice=Choice.FIRST):
    who = "ann" if source is Source.HUMAN else "judge:cheerful"
    for _ in range(count):
        pair = votes.next_unvoted_pair(db, project.id, who, source)
        votes.cast_vote(db, Vote(f"{who}{pair.id}", pair.id, who, source, choice, True))


def write_checkpoint(run, step):
    """A complete checkpoint without the state for a resume, as older checkpoints have it."""
    folder = run / f"step-{step:06d}"
    folder.mkdir(parents=True)
    (folder / "adapter.bin").write_text(f"of step {step}")
    digests = {"adapter.bin": file_sha256(folder / "adapter.bin"), TRAINER_FILE: "given up"}
    (folder / "state.json").write_text(json.dumps({"sha256": digests}))
    return folder


def train_jobs(db):
    return [job for job in queue.jobs(db, statuses=UNFINISHED_JOB_STATUSES) if job.kind is JobKind.TRAIN_REWARD]


def test_pairs_are_sampled_ahead_by_one_job_and_an_engine_is_started(db, project, runner):
    runner.run_once()
    runner.run_once()
    assert open_kinds(db) == [JobKind.SAMPLE_PAIRS]
    assert len(runner.calls) == 2


def test_a_new_project_is_measured_once_after_its_first_pairs(db, project, runner, monkeypatch):
    asked, answers = [], [None, True]
    monkeypatch.setattr(scheduler, "lacks_measurement", lambda *_: asked.append(1) or answers.pop(0))
    runner.run_once()  # submits pairs, and knows too little
    assert open_kinds(db) == [JobKind.SAMPLE_PAIRS]
    runner.run_once()  # they are being sampled
    queue.fail(db, queue.jobs(db)[0].id, "later")
    runner.run_once()
    runner.run_once()
    assert (open_kinds(db), len(asked)) == ([JobKind.MEASURE_LENGTH], 2)


def test_before_the_first_pair_exists_nobody_is_told_to_have_seen_every_pair(db):
    project = projects.create_project(db, "own", "assets/model", "abc", "own", 7, [("Once", "train")])
    starting = "There is no pair yet. The engine, which writes the first ones, is starting …"
    assert scheduler.no_pair_message(db, project.id) == starting
    engine_process.record_heartbeat(db, "idle")
    assert scheduler.no_pair_message(db, project.id) == "There is no pair yet. The engine is writing the first ones …"
    job = queue.submit(db, JobKind.SAMPLE_PAIRS, project.id, {"count": 1})
    queue.fail(db, job.id, "The model cannot be loaded.")
    message = scheduler.no_pair_message(db, project.id)
    assert message == (
        "There is no pair yet, and the first ones could not be written: The model cannot be loaded. It is retried "
        "automatically."
    )


def test_the_message_without_a_pair_follows_the_engine_and_the_last_job(db, project, runner):
    """No engine; an engine that samples; failed sampling; and the retry after it."""
    assert scheduler.no_pair_message(db, project.id).endswith(", is starting …")
    engine_process.record_heartbeat(db, engine_process.STATE_STARTING)
    assert scheduler.no_pair_message(db, project.id).endswith(", is starting …")
    engine_process.record_heartbeat(db, "idle")
    assert "is writing new ones" in scheduler.no_pair_message(db, project.id)
    runner.run_once()
    (job,) = queue.jobs(db, statuses=UNFINISHED_JOB_STATUSES)
    assert "is writing new ones" in scheduler.no_pair_message(db, project.id)
    queue.fail(db, job.id, "The model cannot be loaded.")
    assert "could not be written: The model cannot be loaded. It is retried" in scheduler.no_pair_message(
        db, project.id
    )
    queue.submit(db, JobKind.SAMPLE_PAIRS, project.id, {"count": 1})
    assert "is writing new ones" in scheduler.no_pair_message(db, project.id)


def test_the_message_without_a_pair_names_an_engine_that_ended_and_one_that_hangs(db, project, monkeypatch):
    engine_process.record_heartbeat(db, "idle")
    now = engine_process.time.time()
    monkeypatch.setattr(engine_process.time, "time", lambda: now + engine_process.HEARTBEAT_TIMEOUT_S + 1)
    assert scheduler.no_pair_message(db, project.id).endswith(", does not respond: stop it under Project.")
    monkeypatch.setattr(engine_process, "_find_process", lambda process: None)
    assert scheduler.no_pair_message(db, project.id).endswith(", ended; it is restarted automatically …")


@pytest.mark.parametrize("later", [scheduler.RETRY_AFTER_S + 1, -86_400.0])  # or when the clock was set back
def test_failed_sampling_is_retried_after_a_while(db, project, runner, monkeypatch, later):
    runner.run_once()
    (job,) = queue.jobs(db, statuses=UNFINISHED_JOB_STATUSES)
    queue.fail(db, job.id, "the model cannot be loaded")
    at = queue.get_job(db, job.id).updated_at
    monkeypatch.setattr(scheduler.time, "time", lambda: at + scheduler.RETRY_AFTER_S - 1)
    runner.run_once()
    assert open_kinds(db) == []
    monkeypatch.setattr(scheduler.time, "time", lambda: at + later)
    runner.run_once()
    assert open_kinds(db) == [JobKind.SAMPLE_PAIRS]


def test_a_full_pool_needs_no_job(db, project, runner):
    add_pairs(db, project, scheduler.PAIR_POOL_SIZE)
    add_missing_features(db, project)
    runner.run_once()
    assert open_kinds(db) == []
    assert runner.calls == []


def test_an_engine_is_started_for_texts_without_features(db, project, runner, monkeypatch):
    """A home of an older version with a full pool: checked immediately, then every ten seconds."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(monotonic=lambda: clock.now, time=time.time))
    add_pairs(db, project, scheduler.PAIR_POOL_SIZE)
    for passed, calls in ((0, 1), (9, 1), (1, 2)):
        clock.now += passed
        runner.run_once()
        assert len(runner.calls) == calls
    add_missing_features(db, project)
    clock.now += 10
    runner.run_once()
    assert len(runner.calls) == 2
    assert open_kinds(db) == []


def test_the_person_with_the_fewest_pairs_left_counts(db, project, runner):
    add_pairs(db, project, scheduler.PAIR_POOL_SIZE)
    ready = votes.count_unvoted_pairs(db, project.id, "ann")
    label(db, project, ready - scheduler.PAIR_POOL_SIZE + 1, choice=Choice.SKIP)
    runner.run_once()
    assert open_kinds(db) == [JobKind.SAMPLE_PAIRS]


def test_the_first_reward_model_comes_at_ten_labels(db, project, runner):
    add_pairs(db, project, 60)
    label(db, project, retraining.LABELS_FOR_FIRST_MODEL - 1)
    runner.run_once()
    assert train_jobs(db) == []
    label(db, project, 1)
    runner.run_once()
    runner.run_once()
    (job,) = train_jobs(db)
    assert job.payload["source"] == "human"
    assert job.payload["labels"] == retraining.LABELS_FOR_FIRST_MODEL


def test_the_next_reward_model_comes_twenty_labels_later(db, project, runner):
    add_pairs(db, project, 60)
    label(db, project, 12)
    pinned = label_snapshots.snapshot_labels(db, project.id, Source.HUMAN)
    add_reward_model(db, project.id, "x", config={}, report={}, snapshot=pinned)
    label(db, project, retraining.LABELS_PER_RETRAINING - 1)
    runner.run_once()
    assert train_jobs(db) == []
    label(db, project, 1)
    runner.run_once()
    assert len(train_jobs(db)) == 1


def test_only_ties_train_nothing_and_skips_do_not_count(db, project, runner):
    add_pairs(db, project, 60)
    label(db, project, 20, choice=Choice.TIE)
    label(db, project, 5, choice=Choice.SKIP)
    runner.run_once()
    assert train_jobs(db) == []
    assert retraining.get_label_progress(db, project.id).human == 20


def test_failed_training_is_retried_with_one_more_label(db, project, runner):
    add_pairs(db, project, 60)
    label(db, project, 10)
    runner.run_once()
    queue.fail(db, train_jobs(db)[0].id, "no")
    runner.run_once()
    assert train_jobs(db) == []
    label(db, project, 1)
    runner.run_once()
    assert len(train_jobs(db)) == 1


def train(db, project):
    """A reward model from all labels of people, as of a training that has ended."""
    pinned = label_snapshots.snapshot_labels(db, project.id, Source.HUMAN)
    add_reward_model(db, project.id, "x", config={}, report={}, snapshot=pinned)


@pytest.mark.parametrize(("is_first", "distance"), [(True, 10), (False, 20)])
def test_a_cancelled_training_comes_again_after_as_many_labels_as_between_two(db, project, runner, is_first, distance):
    """Counted from the cancellation, not from the beginning of the training; also if another source was trained on since."""
    add_pairs(db, project, 120)
    if not is_first:
        label(db, project, 10)
        train(db, project)
    label(db, project, distance)
    runner.run_once()
    label(db, project, 7)  # they arrive during the training
    retraining.cancel_training(db, project.id)
    labels = votes.label_count(votes.vote_counts(db, project.id)[Source.HUMAN])
    runner.run_once()
    assert train_jobs(db) == []
    judged = retraining.submit_training(db, project.id, Source.SIMULATED)
    queue.fail(db, judged.id, "no")
    label(db, project, distance - 1)
    assert retraining.get_label_progress(db, project.id).remaining == 1
    runner.run_once()
    assert train_jobs(db) == []
    label(db, project, 1)
    runner.run_once()
    (job,) = train_jobs(db)
    assert (job.payload["source"], job.payload["labels"]) == ("human", labels + distance)
    queue.cancel(db, job.id)  # without a count, that at its beginning is known
    assert retraining.training_goal(db, project.id, Source.HUMAN) == labels + 2 * distance


def test_labels_count_as_before_once_a_model_was_trained_after_a_cancelled_training(db, project, runner):
    add_pairs(db, project, 60)
    label(db, project, 10)
    job = retraining.submit_training(db, project.id, Source.HUMAN)
    retraining.cancel_training(db, project.id)
    asked = retraining.submit_training(db, project.id, Source.HUMAN)
    assert asked.id != job.id
    train(db, project)
    queue.fail(db, asked.id, "no")  # any end but a cancellation
    assert retraining.training_goal(db, project.id, Source.HUMAN) == 30


def test_a_judge_continues_with_new_pairs_and_then_its_labels_are_trained_on(db, project, runner):
    runner.request_judge_labels(project.id, "cheerful", 40)
    runner.run_once()
    assert open_kinds(db) == [JobKind.SAMPLE_PAIRS]  # simulated labels wait until the judge has finished
    add_pairs(db, project, 40)
    runner.run_once()
    assert (
        retraining.get_label_progress(db, project.id).simulated
        + votes.vote_counts(db, project.id)[Source.SIMULATED][Choice.SKIP]
        == 40
    )
    runner.run_once()
    assert [job.payload["source"] for job in train_jobs(db)] == ["simulated"]
    assert retraining.get_label_progress(db, project.id).human == 0


def test_no_training_while_a_judge_is_labelling(db, project, runner, monkeypatch):
    add_pairs(db, project, 60)
    original, jobs_in_between = scheduler.label_with_judge, []

    def in_halves(db, project_id, judge, count):
        first = original(db, project_id, judge, count // 2)
        runner.run_once()  # the scheduler's own thread may run at any moment
        jobs_in_between.append(train_jobs(db))
        return Counter(first) + Counter(original(db, project_id, judge, count - count // 2))

    monkeypatch.setattr(scheduler, "label_with_judge", in_halves)
    runner.request_judge_labels(project.id, "cheerful", 40)
    assert jobs_in_between == [[]]
    runner.run_once()
    assert [job.payload["labels"] for job in train_jobs(db)] == [
        retraining.get_label_progress(db, project.id).simulated
    ]


def test_an_unknown_judge_is_refused(runner, project):
    with pytest.raises(ConfigError):
        runner.request_judge_labels(project.id, "nobody", 4)


def test_no_file_of_a_judge_is_run_for_the_page(runner, project, tmp_path):
    """A program may send events to a page, and the file may have been uploaded."""
    trace, file = tmp_path / "trace", tmp_path / "own.py"
    file.write_text(f"open({str(trace)!r}, 'w').close()\ndef f(text): return 1.0\n")
    with pytest.raises(ConfigError, match=r"no judge .* on the page. Choose one of cheerful"):
        runner.request_judge_labels(project.id, f"{file}:f", 4)
    assert not trace.exists()


def test_each_source_has_its_own_training_goal(db, project):
    none = LabelSnapshot((), "", Source.SIMULATED)
    add_reward_model(db, project.id, "x", config={}, report={}, snapshot=none)
    assert retraining.training_goal(db, project.id, Source.HUMAN) == retraining.LABELS_FOR_FIRST_MODEL
    assert retraining.training_goal(db, project.id, Source.SIMULATED) == retraining.LABELS_PER_RETRAINING


def rule(db, project, **changes):
    projects.set_labelling_config(db, project.id, LabellingConfig(**changes))


def test_the_projects_sampling_method_is_in_the_job(db, project, runner):
    rule(db, project, sampling="uncertainty")
    runner.run_once()
    (job,) = queue.jobs(db, statuses=UNFINISHED_JOB_STATUSES)
    assert job.payload["sampling"] == "uncertainty"
    assert "checkpoint" not in job.payload


def test_pairs_of_the_policy_come_from_its_newest_checkpoint(db, project, runner, tmp_path):
    rule(db, project, texts="policy")
    add_pairs(db, project, scheduler.PAIR_POOL_SIZE)
    runner.run_once()
    assert open_kinds(db) == []  # no run yet: pairs of the base model suffice
    none = LabelSnapshot((), "", Source.HUMAN)
    model = add_reward_model(db, project.id, "x", config={}, report={}, snapshot=none)
    run = create_run(db, project.id, model.id, "r", config={}, manifest={}, total_steps=9)
    for step in (10, 9, 100):
        write_checkpoint(tmp_path / "runs" / str(run.id), step)
    runner.run_once()
    (job,) = queue.jobs(db, statuses=UNFINISHED_JOB_STATUSES)
    assert job.payload == {"count": scheduler.POLICY_PAIR_POOL_SIZE, "checkpoint": f"run/{run.id}/100"}


def test_a_damaged_checkpoint_is_not_sampled_from(db, project, tmp_path):
    """The newest intact checkpoint of the newest run that has one is used."""
    none = LabelSnapshot((), "", Source.HUMAN)
    model = add_reward_model(db, project.id, "x", config={}, report={}, snapshot=none)
    old, new = (create_run(db, project.id, model.id, "r", config={}, manifest={}, total_steps=9) for _ in range(2))
    created = [
        write_checkpoint(tmp_path / "runs" / str(run.id), step) for run, step in ((old, 9), (new, 10), (new, 20))
    ]
    assert scheduler.newest_checkpoint(tmp_path, db, project.id) == f"run/{new.id}/20"
    (created[2] / "adapter.bin").write_text("of step 2")
    assert scheduler.newest_checkpoint(tmp_path, db, project.id) == f"run/{new.id}/10"
    (created[1] / "adapter.bin").unlink()
    assert scheduler.newest_checkpoint(tmp_path, db, project.id) == f"run/{old.id}/9"
    (created[0] / "state.json").unlink()
    assert scheduler.newest_checkpoint(tmp_path, db, project.id) is None


def test_overlap_and_leases_of_others_count_for_the_pool(db, project, runner):
    add_pairs(db, project, scheduler.PAIR_POOL_SIZE)
    free = pair_leases.count_free_pairs(db, project.id, "ann")
    for n in range(free - scheduler.PAIR_POOL_SIZE + 1):
        pair_leases.lease_pair(db, project.id, f"visitor {n}")
    runner.run_once()
    assert open_kinds(db) == [JobKind.SAMPLE_PAIRS]
    rule(db, project, overlap=50)
    assert pair_leases.count_free_pairs(db, project.id, "ann", projects.get_labelling_config(db, project.id)) == free


def test_two_pages_of_one_home_submit_each_job_once(db, project, runner, monkeypatch, tmp_path):
    """Both find the same jobs due before either of them submits one."""
    add_pairs(db, project, 20)
    label(db, project, 12)
    both = threading.Barrier(2, timeout=60)

    def synchronised(find):
        def found(*args):
            answer = find(*args)
            both.wait()
            return answer

        return found

    for name in ("count_active_annotators", "is_retraining_due"):
        monkeypatch.setattr(scheduler, name, synchronised(getattr(scheduler, name)))
    with Database.open(tmp_path) as other_db, ThreadPoolExecutor() as pages:
        for round_ in [pages.submit(one.run_once) for one in (runner, scheduler.Scheduler(tmp_path, other_db))]:
            round_.result()
    assert sorted(open_kinds(db)) == [JobKind.SAMPLE_PAIRS, JobKind.TRAIN_REWARD]


def test_votes_and_reward_models_of_an_opened_project_are_read_before_a_visitor_comes(db, runner, monkeypatch):
    votes_read, models_read = [], []
    append_votes, listed = vote_table._Reader._append_votes, reward_model_list._listed

    def count_votes(reader, rows):
        votes_read.append(reader.project_id)
        append_votes(reader, rows)

    def count_models(row, table):
        models_read.append(row.id)
        return listed(row, table)

    monkeypatch.setattr(vote_table._Reader, "_append_votes", count_votes)
    monkeypatch.setattr(reward_model_list, "_listed", count_models)
    for number in range(2):
        project = new_project(db)
        (pair,) = add_pairs(db, project, 1)
        with db.write() as conn:
            conn.execute(insert(tables.votes), [
                {"uuid": f"u{number}", "pair_id": pair.id, "annotator": "ann", "source": Source.HUMAN,
                 "choice": Choice.FIRST, "first_on_left": True, "created_at": 1.0, "via": "page"}
            ])  # fmt: skip
            vote_id = conn.execute(select(func.max(tables.votes.c.id))).scalar_one()
        row = add_reward_model(
            db,
            project.id,
            "m",
            config={},
            report={"accuracy": 0.8},
            snapshot=LabelSnapshot((vote_id,), "", Source.HUMAN),
        )
        for kind in (JobKind.SAMPLE_PAIRS, JobKind.TRAIN_REWARD):  # nothing is due, so nothing else reads the votes
            queue.submit(db, kind, project.id, {"count": 1})
        monkeypatch.setattr(scheduler, "texts_without_features", lambda *_: [])
        runner.run_once()
        assert (votes_read, models_read) == ([project.id], [row.id])
        retraining.get_label_progress(db, project.id)  # what the header of the first visitor shows
        runner.run_once()
        assert (votes_read, models_read) == ([project.id], [row.id])
        votes_read.clear()
        models_read.clear()


def test_an_error_of_any_kind_does_not_end_the_scheduler(db, tmp_path, monkeypatch):
    seen = threading.Event()
    rounds = []

    def run_once(self):
        rounds.append(1)
        if len(rounds) == 1:
            raise RuntimeError("no connection became free")
        seen.set()

    monkeypatch.setattr(scheduler, "SCHEDULE_INTERVAL_S", 0.01)
    monkeypatch.setattr(scheduler.Scheduler, "run_once", run_once)
    runner = scheduler.Scheduler(tmp_path, db)
    runner.start()
    try:
        assert seen.wait(10)
    finally:
        runner.stop()
