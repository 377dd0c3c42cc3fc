"""A run of two processes under the engine: the curve of one process, and what happens when a process dies."""

import threading
import time

import psutil
import pytest

from rlhf_lab.engine import together
from rlhf_lab.errors import TrainingError
from rlhf_lab.jobs import control
from rlhf_lab.records import JobStatus, RunStatus
from rlhf_lab.store.runs import get_run
from rlhf_lab.trainers.checkpoint import checkpoints

STEPS = {"steps": 4, "checkpoint_every": 2}


@pytest.mark.slow
def test_two_processes_draw_the_curve_of_one(lab):
    curves = []
    for processes in (1, 2):
        run_id = lab.run(processes=processes, **STEPS)
        assert lab.train(run_id).status is JobStatus.DONE
        assert get_run(lab.db, run_id).status is RunStatus.DONE
        assert len(checkpoints(lab.folder / "runs" / str(run_id))) == 2
        curves.append(lab.curve(run_id))
    assert [step for step, _ in curves[1]] == [1, 2, 3, 4]
    for (_, one), (_, two) in zip(*curves, strict=True):
        assert two == pytest.approx(one, rel=1e-3, abs=1e-4)


@pytest.mark.slow
def test_a_killed_process_ends_the_run_and_it_resumes(lab):
    whole = lab.run(processes=2, steps=60, checkpoint_every=5)
    assert lab.train(whole).status is JobStatus.DONE
    run_id = lab.run(processes=2, steps=60, checkpoint_every=5)

    def kill_one():
        while get_run(lab.db, run_id).step < 5:
            time.sleep(0.02)
        found = [p for p in psutil.Process().children(recursive=True) if "train-policy" in p.cmdline()]
        found[-1].kill()

    killer = threading.Thread(target=kill_one)
    killer.start()
    job = lab.train(run_id)
    killer.join()
    assert job.status is JobStatus.FAILED
    assert "one of the processes of the run died" in job.error
    assert get_run(lab.db, run_id).status is RunStatus.FAILED
    assert not [p for p in psutil.Process().children(recursive=True) if "train-policy" in p.cmdline()]
    control.resume(lab.db, lab.folder, run_id)
    job = lab.do(control.last_job(lab.db, run_id))
    assert job.status is JobStatus.DONE
    assert lab.curve(run_id) == lab.curve(whole)


def test_processes_do_not_share_a_gpu(monkeypatch):
    monkeypatch.setattr(together.torch.cuda, "device_count", lambda: 2)
    together.check_devices(2)
    with pytest.raises(TrainingError, match="Set processes to 2 or fewer"):
        together.check_devices(3)
