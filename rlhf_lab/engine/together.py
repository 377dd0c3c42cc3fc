"""A run of several processes: a child of the engine, started by `accelerate launch`, one process a GPU (gloo on CPUs).

The child trains and writes; the engine watches it, goes on serving short jobs, and takes it down when it leaves. Controls are
rows of the store as ever: the leading process obeys them between two steps and tells the others.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from rlhf_lab.engine.lab import Lab
from rlhf_lab.engine.policy_run import POLL_EVERY_S, PolicyRun
from rlhf_lab.engine.work import Progress
from rlhf_lab.errors import TrainingError
from rlhf_lab.models.generation import Tick
from rlhf_lab.records import RunStatus
from rlhf_lab.store.database import Database
from rlhf_lab.store.runs import get_run, set_run_status
from rlhf_lab.trainers.group import ONE_DIED, launched

TERM_WAIT_S = 20.0
UNDER_WAY = (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.PAUSED)


def command_of(home: Path, run_id: int, processes: int) -> list[str]:
    """What starts the processes. `--multi_gpu` is accelerate's word for several processes, on CPUs too."""
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines", "1"]
    plain = ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    child = ["-m", "rlhf_lab", "train-policy", "--run", str(run_id), "--home", str(home)]
    return [*launch, "--num_processes", str(processes), *plain, *child]


def train(
    home: Path, db: Database, run_id: int, *, serve: Tick, leaving: Callable[[], bool], progress: Progress
) -> RunStatus:
    """Start the processes of a run and stay with them until they end. Raises TrainingError when one of them died."""
    run = get_run(db, run_id)
    processes = int(run.config["processes"])
    check_devices(processes)
    log_path = home / "runs" / str(run_id) / "processes.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    began, first = time.monotonic(), run.step
    with log_path.open("ab") as log:
        child = subprocess.Popen(
            command_of(home, run_id, processes), stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": threads},
        )  # fmt: skip
        try:
            while child.poll() is None:
                if leaving():
                    set_run_status(
                        db,
                        run_id,
                        RunStatus.INTERRUPTED,
                        "the engine was asked to leave; the run goes on when it is back",
                    )
                    return RunStatus.INTERRUPTED
                serve()
                done = get_run(db, run_id).step
                left = (time.monotonic() - began) / max(1, done - first) * (run.total_steps - done)
                progress(done / run.total_steps, left, {"run_id": run_id, "step": done})
                time.sleep(POLL_EVERY_S)
        finally:
            end(child)
    run = get_run(db, run_id)
    if run.status in UNDER_WAY:
        raise TrainingError(ONE_DIED)
    if run.status is RunStatus.FAILED:
        raise TrainingError(run.message)
    return run.status


def end(child: subprocess.Popen[bytes]) -> None:
    """End the launcher and what it launched."""
    for sign, patience in ((signal.SIGTERM, TERM_WAIT_S), (signal.SIGKILL, None)):
        if child.poll() is not None:
            return
        os.killpg(child.pid, sign)
        try:
            child.wait(patience)
        except subprocess.TimeoutExpired:
            continue


def check_devices(processes: int) -> None:
    """Raises TrainingError where processes would share a GPU."""
    gpus = torch.cuda.device_count()
    if 0 < gpus < processes:
        raise TrainingError(
            f"{processes} processes need a GPU each, and there are {gpus}. Set processes to {gpus} or fewer."
        )


def take_part(home: Path, run_id: int) -> RunStatus:
    """What each process of a run does: lead or follow, until the run ends."""
    group = launched()
    with Database.open(home) as db:
        run = PolicyRun(Lab(home, db), run_id, group=group)
        if group.leads:
            return run.execute()
        run.follow()
        return RunStatus.DONE
