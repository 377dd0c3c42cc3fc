"""What a tracker gets of a run, with a tracker that keeps what it gets: once each, also after a resume; and one that fails."""

import math
import os
import shutil
import subprocess
import sys
import threading

import pytest

from rlhf_lab.common.enums import EventKind, RunStatus, Source
from rlhf_lab.common.records import LabelSnapshot, Sample, StepResult
from rlhf_lab.engine import tracker_process
from rlhf_lab.engine.tracker_process import RewardModelLogger, RunLogger, sample_markdown, tracker_key
from rlhf_lab.errors import ClaimedError, StoreError, TrackerError
from rlhf_lab.jobs.run_tracking import Tracker
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import create_project
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.run_metrics import delete_steps_after, record_step
from rlhf_lab.store.runs import create_run, delete_run, events, set_run_status

HOSTILE = "![x](http://evil.test/x.png)\n\n<script>alert(1)</script>\r\n# = \x07 \u202e \u2028 👩\u200d👧 \\"
BOARD = Tracker("tensorboard", "rlhf-lab", {})


class Kept:
    """A tracker. fails: the call that raises, "start", "log" or "finish"."""

    def __init__(self, fails=""):
        self.fails, self.started, self.logged, self.finished = fails, [], [], 0

    def start(self, tracker, run, name, config, folder):
        self.called("start")
        self.started.append((tracker.project, name, config, folder))
        return self, "there"

    def log(self, values, step=None, **options):
        self.called("log")
        self.logged.append((step, values, options))

    def finish(self):
        self.called("finish")
        self.finished += 1

    def called(self, name):
        if name == self.fails:
            raise OSError(f"no {name}; the key was {os.environ['WANDB_API_KEY']}\n" + "x" * 1000)


@pytest.fixture
def home(tmp_path, empty_home):
    return shutil.copytree(empty_home, tmp_path / "home")


@pytest.fixture
def db(home, monkeypatch):
    monkeypatch.setattr(tracker_process, "POLL_S", 0.01)
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    with Database.open(home) as opened:
        yield opened


@pytest.fixture
def run(db):
    return new_run(db)


def new_run(db):
    project = create_project(db, "tales", "/secret/folder/tiny", "abc", "tales", 7, [("Once", "train")])
    run = create_run(
        db, project.id, None, "my run", config={"algorithm": "ppo", "beta": 0.1}, manifest={"judge": "/secret/judge.py"},
        total_steps=4,
    )  # fmt: skip
    record_step(db, run.id, StepResult(0, {}, samples=[Sample("Once", 3, HOSTILE, math.nan)]))
    record_step(
        db, run.id, StepResult(1, {"objective/kl": 0.5, "lr": math.nan, "grad_norm": math.inf, "eval/kl": 0.25})
    )
    set_run_status(db, run.id, RunStatus.STOPPED)
    return run


def notes(db, run):
    return [
        (event.payload["words"], event.applied_step) for event in events(db, run.id) if event.kind is EventKind.NOTE
    ]


def test_each_step_is_sent_once_under_the_names_of_trl(db, home, run):
    kept = Kept()
    position = RunLogger(db, home, run.id, BOARD, kept.start).execute()
    name = f"my run (1-{int(1000 * run.created_at):x})"
    assert (position.name, position.step, kept.finished) == (name, 1, 1)
    assert kept.logged == [
        (0, {"completions": sample_markdown(Sample("Once", 3, HOSTILE, math.nan))}, {}),
        (1, {"train/objective/kl": 0.5, "eval/kl": 0.25}, {}),
    ]
    ((project, started_as, config, folder),) = kept.started
    assert (project, started_as, folder) == ("rlhf-lab", name, home / "runs" / "1" / "tracking")
    assert (config["beta"], config["model"], config["run"]) == (0.1, "tiny", 1)
    assert "secret" not in repr(config)
    assert notes(db, run) == [("logged to tensorboard; look at it there", 0)]
    RunLogger(db, home, run.id, BOARD, kept.start).execute()  # nothing is new
    assert (len(kept.started), len(kept.logged)) == (1, 2)


def test_a_resumed_run_continues_its_run_in_the_tracker_without_repeated_steps(db, home, run):
    first, second = Kept(), Kept()
    record_step(db, run.id, StepResult(2, {"lr": 0.2}))
    before = RunLogger(db, home, run.id, BOARD, first.start).execute()
    delete_steps_after(db, run.id, 1)  # from the checkpoint of step 1
    for step in (2, 3):
        record_step(db, run.id, StepResult(step, {"lr": step / 10}))
    after = RunLogger(db, home, run.id, BOARD, second.start).execute()
    assert [step for step, _, _ in first.logged] == [0, 1, 2]
    assert second.logged == [(3, {"train/lr": 0.3}, {})]
    assert second.started[0][1] == first.started[0][1] == before.name == after.name


REPORT = {
    "loss": [0.7, 0.6, 0.5], "accuracy": 0.75, "train_accuracy": 0.9, "labels": 20, "agreement": None, "note": "n", "folds": 5,
    "calibration": [[0.5, 1.0, 3]], "tie_accuracy": math.nan, "used": True,
}  # fmt: skip


def test_the_reward_model_of_a_run_is_a_run_of_its_own(db, home, run):
    """The loss of each update, at the last one what the report says; once. The names are those of TRL's RewardTrainer."""
    snapshot = LabelSnapshot((1, 2), "d", Source.HUMAN)
    row = add_reward_model(db, run.project_id, "x", config={"lr": 0.1}, report=REPORT, snapshot=snapshot)
    tracked = create_run(db, run.project_id, row.id, "my run", config={"algorithm": "ppo"}, manifest={}, total_steps=4)
    record_step(db, tracked.id, StepResult(1, {"lr": 0.5}))
    set_run_status(db, tracked.id, RunStatus.STOPPED)
    kept = Kept()
    RunLogger(db, home, tracked.id, BOARD, kept.start).execute()
    numbers = {"eval/accuracy": 0.75, "train/accuracy": 0.9, "eval/labels": 20.0, "eval/folds": 5.0}
    assert [(step, values) for step, values, _ in kept.logged] == [
        (1, {"train/loss": 0.7}), (2, {"train/loss": 0.6}), (3, {"train/loss": 0.5} | numbers), (1, {"train/lr": 0.5})
    ]  # fmt: skip
    (_, name, config, folder), (_, own_name, _, own_folder) = kept.started
    assert name == f"my run: reward model {row.id} ({own_name.removeprefix('my run (')}"
    assert (config["lr"], config["labels"], folder) == (0.1, 2, own_folder / f"reward-model-{row.id}")
    assert kept.finished == 2
    assert [words for words, _ in notes(db, tracked)] == ["logged to tensorboard; look at it there"]
    record_step(db, tracked.id, StepResult(2, {"lr": 0.4}))
    RunLogger(db, home, tracked.id, BOARD, kept.start).execute()
    assert kept.logged[4:] == [(2, {"train/lr": 0.4}, {})]
    assert tracker_process.reward_model_steps({"accuracy": 1.0, "loss": []}) == [(0, {"eval/accuracy": 1.0})]


def test_a_reward_model_without_a_run_is_logged_once(db, home, run):
    snapshot = LabelSnapshot((1, 2), "d", Source.HUMAN)
    row = add_reward_model(db, run.project_id, "x", config={"lr": 0.1}, report=REPORT, snapshot=snapshot)
    kept, key = Kept(), f"{row.id}-{int(1000 * row.created_at):x}"
    loggers = [RewardModelLogger(db, home, row.id, BOARD, kept.start) for _ in range(2)]
    name = f"reward model {row.id} ({key})"
    for logger, look in zip(loggers, ("there", ""), strict=True):  # the second has nothing to send
        position = logger.execute()
        assert (position.name, position.step, logger.look) == (name, 3, look)
    ((_, started_as, config, folder),) = kept.started
    assert (started_as, folder) == (name, home / "tracking" / f"reward-model-{key}")
    assert (config["lr"], config["reward_model"], config["labels"]) == (0.1, row.id, 2)
    assert [(step, values["train/loss"]) for step, values, _ in kept.logged] == [(1, 0.7), (2, 0.6), (3, 0.5)]
    assert (kept.logged[-1][1]["eval/accuracy"], kept.finished) == (0.75, 1)


def test_a_tracker_that_fails_for_a_reward_model_is_told_without_secrets(db, home, run):
    row = add_reward_model(
        db, run.project_id, "x", config={}, report=REPORT, snapshot=LabelSnapshot((), "", Source.HUMAN)
    )
    message = (
        r"tensorboard failed; the reward model is stored in the lab \(OSError\). To send its training: "
        f"python -m rlhf_lab track --reward-model {row.id} --to tensorboard\nno log"
    )
    with pytest.raises(TrackerError, match=message) as raised:
        RewardModelLogger(db, home, row.id, BOARD, Kept("log").start).execute()
    assert "0123456789abcdef" not in str(raised.value)
    RewardModelLogger(db, home, row.id, BOARD, (kept := Kept()).start).execute()
    assert [step for step, _, _ in kept.logged] == [1, 2, 3]


def test_another_project_gets_all_steps(db, home, run):
    first, second = Kept(), Kept()
    for kept, project in ((first, "a"), (second, "b")):
        RunLogger(db, home, run.id, Tracker("tensorboard", project, {}), kept.start).execute()
    assert [step for step, _, _ in second.logged] == [0, 1]


def test_runs_of_the_same_number_in_two_labs_have_two_names(tmp_path, empty_home, monkeypatch):
    names = set()
    for folder in ("one", "two"):
        with Database.open(shutil.copytree(empty_home, tmp_path / folder)) as db:
            names.add(RunLogger(db, tmp_path / folder, new_run(db).id, BOARD, Kept().start).execute().name)
    assert len(names) == 2


def test_a_run_in_progress_is_followed_to_its_end(db, home, run):
    """Its last step is recorded just before its status changes, and is sent as well."""
    set_run_status(db, run.id, RunStatus.RUNNING)
    kept = Kept()
    logger = RunLogger(db, home, run.id, BOARD, kept.start)
    thread = threading.Thread(target=logger.execute)
    log = kept.log

    def log_and_train_on(values, step=None, **options):
        log(values, step, **options)
        if step < 4:
            record_step(db, run.id, StepResult(step + 1, {"lr": 0.1}))
            set_run_status(db, run.id, RunStatus.PAUSED if step < 3 else RunStatus.DONE)

    kept.log = log_and_train_on
    thread.start()
    thread.join(30)
    assert [step for step, _, _ in kept.logged] == [0, 1, 2, 3, 4]
    assert kept.finished == 1


@pytest.mark.parametrize(("fails", "sent"), [("start", 0), ("log", 0), ("finish", 2)])
def test_a_tracker_that_fails_is_named_in_the_history_without_secrets(db, home, run, fails, sent):
    kept = Kept(fails)
    with pytest.raises(
        TrackerError, match=f"tensorboard failed, and the run goes on without it(.|\n)*no {fails}"
    ) as raised:
        RunLogger(db, home, run.id, BOARD, kept.start).execute()
    assert "0123456789abcdef" not in str(raised.value)
    assert len(str(raised.value)) < 600
    assert notes(db, run)[-1][0] == (
        "tensorboard failed, and the run goes on without it (OSError). To send the missing steps: "
        "python -m rlhf_lab track 1 --to tensorboard"
    )
    assert len(kept.logged) == sent
    kept.fails = ""
    RunLogger(db, home, run.id, BOARD, kept.start).execute()
    assert [step for step, _, _ in kept.logged] == [0, 1]


def test_a_step_that_is_recorded_while_the_steps_are_read_is_sent_whole(db, home, run, monkeypatch):
    real = tracker_process.sample_steps

    def with_another_step(*args):
        monkeypatch.setattr(tracker_process, "sample_steps", real)
        record_step(db, run.id, StepResult(2, {"objective/kl": 0.5}, [], [Sample("Once", 1, "upon", 0.5)]))
        return real(*args)

    monkeypatch.setattr(tracker_process, "sample_steps", with_another_step)
    kept = Kept()
    for _ in range(2):
        RunLogger(db, home, run.id, BOARD, kept.start).execute()
    assert [step for step, _, _ in kept.logged] == [0, 1, 2]
    assert "train/objective/kl" in kept.logged[-1][1]


def test_only_one_process_logs_a_run_to_a_tracker(db, home, run):
    kept = Kept()
    logger = RunLogger(db, home, run.id, BOARD, kept.start)

    def another(values, step=None, **options):
        with pytest.raises(ClaimedError, match="Another process logs run 1 to tensorboard"):
            RunLogger(db, home, run.id, BOARD, Kept().start).execute()
        kept.logged.append(step)

    kept.log = another
    logger.execute()
    assert kept.logged == [0, 1]


def test_a_run_that_is_deleted_meanwhile_ends_it(db, home, run):
    kept = Kept()
    set_run_status(db, run.id, RunStatus.RUNNING)

    def delete(values, step=None, **options):
        set_run_status(db, run.id, RunStatus.DONE)
        delete_run(db, run.id)

    kept.log = delete
    with pytest.raises(StoreError, match="no run 1"):
        RunLogger(db, home, run.id, BOARD, kept.start).execute()


HANGS = """
import sys, threading
from pathlib import Path
from rlhf_lab.engine import tracker_process
from rlhf_lab.jobs.run_tracking import Tracker
from rlhf_lab.store.database import Database

class Hangs:
    def start(self, *_):
        return self, "there"

    def log(self, values, step=None):
        print("logs", flush=True)
        threading.Event().wait()

tracker_process.CALL_LIMIT_S = 0.2
home = Path(sys.argv[1])
tracker_process.RunLogger(Database.open(home), home, 1, Tracker("tensorboard", "p", {}), Hangs().start).execute()
"""


def test_a_call_that_never_returns_ends_the_process_and_is_noted(db, home, run):
    done = subprocess.run([sys.executable, "-c", HANGS, home], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (1, "logs\n")
    assert "tensorboard failed, and the run goes on without it (no answer for 0.2 s)" in done.stderr
    assert notes(db, run)[-1][0] == done.stderr.strip()
    RunLogger(db, home, run.id, BOARD, Kept().start).execute()  # its lock is free


def test_samples_as_markdown_show_texts_as_they_are():
    text = sample_markdown(Sample("Once", 3, HOSTILE, 1.5, 2.0))
    assert text.startswith("    Once\n\n→ score 1.500, gold 2.000, seed 3\n\n    ![x]")
    block = text.split("seed 3\n\n")[1]
    assert all(line.startswith("    ") for line in block.split("\n"))


def test_names_in_trackers():
    names = ["objective/kl", "lr", "eval/kl", "evaluation"]
    assert list(map(tracker_key, names)) == ["train/objective/kl", "train/lr", "eval/kl", "train/evaluation"]
