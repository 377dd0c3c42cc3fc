"""A run of PPO that is logged to a tracker: bit-identical to one that is not, whatever the tracker does."""

import dataclasses
import threading
import time

import pytest

from rlhf_lab.common.checkpoint_index import checkpoint_folder, checkpoint_steps
from rlhf_lab.common.enums import EventKind, JobStatus
from rlhf_lab.engine import tracker_process
from rlhf_lab.engine import worker as worker_module
from rlhf_lab.engine.tracker_process import RunLogger
from rlhf_lab.errors import TrackerError
from rlhf_lab.jobs import run_control
from rlhf_lab.jobs.run_tracking import Tracker
from rlhf_lab.store.database import Database
from rlhf_lab.store.run_metrics import sample_steps, samples_at
from rlhf_lab.store.runs import events, set_manifest

TRACKER = Tracker("trackio", "p", {})


class Fake:
    """A tracker whose first `log` does something; `reached` is set then. The run's reward model is sent to another one."""

    def __init__(self, log):
        self.behaviour, self.reached, self.steps = log, threading.Event(), []

    def start(self, tracker, unique, name, *_):
        return (Fake(lambda: None) if ": reward model" in name else self), "there"

    def log(self, values, step=None):
        self.reached.set()
        self.behaviour()
        self.steps.append(step)

    def finish(self):
        pass


def tracked(lab, **changes):
    run_id = lab.run(**changes)
    set_manifest(lab.db, run_id, {"tracker": dataclasses.asdict(TRACKER)})
    return run_id


def outcome(lab, run_id):
    """Everything that a run computes: metrics, samples and the tensors of its last checkpoint."""
    folder = lab.folder / "runs" / str(run_id)
    newest = checkpoint_folder(folder, checkpoint_steps(folder)[-1])
    tensors = {path.name: path.read_bytes() for path in newest.iterdir() if path.suffix == ".safetensors"}
    assert tensors
    samples = [(step, samples_at(lab.db, run_id, step)) for step in sample_steps(lab.db, run_id)]
    return lab.curve(run_id), samples, tensors


def in_a_thread(fake, threads):
    """Replaces the process of the tracker by a thread of this one."""

    def start_tracking(_, home, run):
        if "tracker" not in run.manifest:
            return

        def follow():
            with Database.open(home) as db:
                try:
                    RunLogger(db, home, run.id, TRACKER, fake.start).execute(wait_s=30)
                except TrackerError:
                    fake.steps.append("failed")

        threads.append(threading.Thread(target=follow, daemon=True))
        threads[-1].start()

    return start_tracking


@pytest.fixture
def plain(lab):
    run_id = lab.run()
    lab.train(run_id)
    return outcome(lab, run_id)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(tracker_process, "POLL_S", 0.01)
    monkeypatch.setattr(tracker_process, "logged_value", lambda name, samples, step: len(samples))


def fails():
    raise OSError("no network")


@pytest.mark.parametrize("behaviour", ["works", "fails", "never returns"])
def test_a_tracked_run_is_bit_identical(lab, plain, at, monkeypatch, quick, behaviour):
    end, threads = threading.Event(), []
    fake = Fake({"works": lambda: None, "fails": fails, "never returns": end.wait}[behaviour])
    monkeypatch.setattr(worker_module, "start_tracking", in_a_thread(fake, threads))
    run_id = tracked(lab)
    at(2, lambda: fake.reached.wait(30))
    assert lab.train(run_id).status is JobStatus.DONE
    assert fake.reached.is_set()
    assert behaviour != "never returns" or fake.steps == []
    assert outcome(lab, run_id) == plain
    end.set()
    threads[0].join(30)
    assert fake.steps == (["failed"] if behaviour == "fails" else [0, 1, 2, 3, 4, 5])
    words = [event.payload["words"] for event in events(lab.db, run_id) if event.kind is EventKind.NOTE]
    assert any("the run goes on without it (OSError)" in text for text in words) == (behaviour == "fails")


def test_a_stopped_run_goes_on_in_the_same_run_of_the_tracker(lab, plain, at, monkeypatch, quick):
    fake, threads, names = Fake(lambda: None), [], []
    start = fake.start
    fake.start = lambda tracker, unique, name, *rest: names.append(name) or start(tracker, unique, name)
    monkeypatch.setattr(worker_module, "start_tracking", in_a_thread(fake, threads))
    run_id = tracked(lab)
    at(3, lambda: run_control.stop(lab.db, run_id))
    lab.train(run_id)
    lab.train(run_id)
    for thread in threads:
        thread.join(30)
    assert outcome(lab, run_id) == plain
    assert fake.steps == [0, 1, 2, 3, 4, 5]
    assert [name for name in names if ": reward model" in name] == names[:1]
    assert len(set(names[1:])) == 1


def test_a_tracker_whose_process_cannot_be_started_does_not_stop_the_run(lab, monkeypatch):
    def start_tracking(*_):
        raise OSError("too many processes")

    monkeypatch.setattr(worker_module, "start_tracking", start_tracking)
    run_id = tracked(lab)
    assert lab.train(run_id).status is JobStatus.DONE


def test_a_tracker_that_another_program_recorded_does_not_stop_the_run(lab, caplog):
    run_id = lab.run()
    set_manifest(lab.db, run_id, {"tracker": {"name": "wandb", "project": "p", "route": {"WANDB_MODE": "a\0b"}}})
    assert lab.train(run_id).status is JobStatus.DONE
    (line,) = [record.getMessage() for record in caplog.records if "tracker" in record.getMessage()]
    assert line.startswith(f"run {run_id} is not logged to its tracker: WANDB_MODE has a value")


FAKE = {
    "fails": "def init(**_):\n    raise OSError('no network')\n",
    "never returns": "import pathlib, threading\n\ndef init(**_):\n    pathlib.Path(__file__).with_name('reached').touch()\n"
    "    threading.Event().wait()\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", FAKE)
def test_a_real_process_beside_a_run(lab, plain, at, tmp_path, monkeypatch, behaviour):
    """With a package that takes the place of trackio; step 3 waits until the tracker has begun."""
    (tmp_path / "trackio-1.0.dist-info").mkdir()
    (tmp_path / "trackio-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: trackio\nVersion: 1.0\n")
    (tmp_path / "trackio.py").write_text(FAKE[behaviour])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    started, start_tracking = [], worker_module.start_tracking
    monkeypatch.setattr(worker_module, "start_tracking", lambda *args: started.append(start_tracking(*args)))
    run_id = tracked(lab)

    def wait():
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and started[0].poll() is None and not (tmp_path / "reached").exists():
            time.sleep(0.1)

    at(2, wait)
    assert lab.train(run_id).status is JobStatus.DONE
    assert outcome(lab, run_id) == plain
    words = [event.payload["words"] for event in events(lab.db, run_id) if event.kind is EventKind.NOTE]
    if behaviour == "fails":
        assert words[0].startswith("trackio failed, and the run goes on without it (OSError). To send the missing")
    else:
        assert (tmp_path / "reached").exists()
        assert (started[0].poll(), words) == (None, [])
        started[0].kill()
