"""Which process writes a run, and the status of a run whose process has died.

Here a process that locks the run stands for it.
"""

import dataclasses
import json
import subprocess
import sys

import pytest

from rlhf_lab.cli.main import main
from rlhf_lab.common.enums import EventKind, JobKind, RunStatus, Source
from rlhf_lab.common.paths import run_folder
from rlhf_lab.common.records import LabelSnapshot
from rlhf_lab.errors import EngineError, StoreError
from rlhf_lab.jobs import engine_process, queue, run_control, run_lock, scheduler
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.runs import create_run, events, get_run, set_run_status

WRITES = """
import sys, time
from pathlib import Path
from rlhf_lab.jobs.run_lock import lock_run
with lock_run(Path(sys.argv[1]), int(sys.argv[2])):
    print("claimed", flush=True)
    time.sleep(120)
"""


@pytest.fixture
def run(db, home, monkeypatch):
    """A run with the status running, without a job."""
    monkeypatch.setattr(engine_process, "ensure_engine", lambda *_: None)
    project = new_project(db)
    model = add_reward_model(db, project.id, "x", config={}, report={}, snapshot=LabelSnapshot((), "", Source.HUMAN))
    created = create_run(db, project.id, model.id, "r", config={}, manifest={}, total_steps=9)
    set_run_status(db, created.id, RunStatus.RUNNING)
    return created.id


@pytest.fixture
def process(home, run):
    """A process that holds the lock of the run."""
    child = subprocess.Popen([sys.executable, "-c", WRITES, str(home), str(run)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "claimed\n"
    yield child
    child.kill()
    child.communicate()


def status(db, run):
    return get_run(db, run).status


def end(process):
    process.kill()
    process.wait()


@pytest.mark.parametrize("status_before", [RunStatus.RUNNING, RunStatus.PAUSED])
def test_a_run_whose_process_was_killed_is_marked_as_interrupted(db, home, run, process, status_before):
    set_run_status(db, run, status_before)
    assert run_lock.lock_owner(home, run).pid == process.pid
    assert run_lock.mark_interrupted_runs(db, home) == []
    assert status(db, run) is status_before
    end(process)
    assert run_lock.mark_interrupted_runs(db, home) == [run]
    result = get_run(db, run)
    assert result.status is RunStatus.INTERRUPTED
    assert result.message.endswith(f"python -m rlhf_lab train-policy --resume {run}")
    assert run_lock.mark_interrupted_runs(db, home) == []


def written_elsewhere(home, run, **there):
    names = dataclasses.asdict(run_lock.lock_owner(home, run))
    (run_folder(home, run) / run_lock.OWNER_FILE).write_text(json.dumps(names | {"host": "gpu-box"} | there))


def test_a_run_of_another_machine_is_not_marked(db, home, run, process, monkeypatch):
    end(process)
    for there, here in (("a", "b"), ("", "b"), ("a", ""), ("", "")):
        monkeypatch.setattr(engine_process, "boot_id", lambda here=here: here)
        written_elsewhere(home, run, boot=there)
        assert run_lock.mark_interrupted_runs(db, home) == []
        assert status(db, run) is RunStatus.RUNNING


def test_a_run_of_a_recreated_container_is_recognised_by_its_boot_id(db, home, run, process, monkeypatch):
    """Another host name but the same kernel: the lock belongs to the kernel, so it is decisive."""
    monkeypatch.setattr(engine_process, "boot_id", lambda: "a")
    written_elsewhere(home, run, boot="a")
    assert run_lock.mark_interrupted_runs(db, home) == []
    assert status(db, run) is RunStatus.RUNNING
    end(process)
    assert run_lock.mark_interrupted_runs(db, home) == [run]


def test_the_boot_id_is_read_from_the_kernel(tmp_path, monkeypatch):
    (tmp_path / "boot_id").write_text("0b7c\n")
    monkeypatch.setattr(engine_process, "_BOOT_ID", tmp_path / "boot_id")
    assert engine_process.this_process().boot == "0b7c"
    monkeypatch.setattr(engine_process, "_BOOT_ID", tmp_path / "nowhere")
    assert engine_process.this_process().boot == ""


def test_a_run_without_a_known_process_is_not_marked(db, home, run):
    assert run_lock.mark_interrupted_runs(db, home) == []
    (run_folder(home, run)).mkdir(parents=True)
    (run_folder(home, run) / run_lock.OWNER_FILE).write_text('{"half')
    assert run_lock.mark_interrupted_runs(db, home) == []
    assert status(db, run) is RunStatus.RUNNING
    assert not (run_folder(home, run) / run_lock.LOCK_FILE).exists()


def test_a_run_with_a_job_is_left_to_the_engine(db, home, run, process):
    end(process)
    job = queue.submit(db, JobKind.TRAIN_POLICY, 1, {"run_id": run})
    other = queue.submit(db, JobKind.TRAIN_POLICY, 1, {"run_id": run + 1})
    assert run_lock.mark_interrupted_runs(db, home) == []
    queue.cancel(db, job.id)
    assert run_lock.mark_interrupted_runs(db, home) == [run]
    assert queue.get_job(db, other.id).status == "queued"


def test_ended_runs_are_not_marked(db, home, run, process):
    end(process)
    for ended in (RunStatus.DONE, RunStatus.FAILED, RunStatus.STOPPED):
        set_run_status(db, run, ended, "its own words")
        assert run_lock.mark_interrupted_runs(db, home) == []
        assert not run_lock._mark_interrupted(db, run)  # it ended between the check and the write
        assert (status(db, run), get_run(db, run).message) == (ended, "its own words")


def test_one_process_writes_a_run(db, home, run, process, monkeypatch):
    monkeypatch.setattr(run_lock, "LOCK_TIMEOUT_S", 0.05)
    with (
        pytest.raises(EngineError, match=f"run {run} is being trained by another process"),
        run_lock.lock_run(home, run),
    ):
        pass
    assert run_lock.lock_owner(home, run).pid == process.pid
    end(process)
    with run_lock.lock_run(home, run):
        assert run_lock.lock_owner(home, run) == engine_process.this_process()
        assert run_lock.is_locked(home, run)
    assert not run_lock.is_locked(home, run)


def test_the_page_and_the_command_line_mark_interrupted_runs(db, home, run, process, capsys):
    runner = scheduler.Scheduler(home, db)
    runner.run_once()
    assert status(db, run) is RunStatus.RUNNING
    end(process)
    runner.run_once()
    assert status(db, run) is RunStatus.INTERRUPTED
    for command in (["runs"], ["control", str(run), "stop"]):
        set_run_status(db, run, RunStatus.RUNNING)
        main([*command, "--home", str(home), "--json"])
        assert "interrupted" in capsys.readouterr().out
        assert status(db, run) is RunStatus.INTERRUPTED
    set_run_status(db, run, RunStatus.RUNNING)
    run_control.delete(db, home, run)


def test_resuming_a_run_that_is_trained_without_a_job_queues_none(db, home, run, process):
    with pytest.raises(StoreError, match=f"Run {run} is already in progress"):
        run_control.resume(db, home, run)
    set_run_status(db, run, RunStatus.PAUSED)
    run_control.resume(db, home, run)
    assert [event.kind for event in events(db, run)] == [EventKind.RESUME]
    assert run_control.last_job(db, run) is None
    end(process)
    run_control.resume(db, home, run)
    assert run_control.open_job(db, run) is not None
