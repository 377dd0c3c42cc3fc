"""Work of several processes: a child of the engine, started by `accelerate launch`, one process a GPU (gloo on CPUs).

The child trains and writes; the engine watches it, goes on serving short jobs, and takes it down when it leaves. Controls of a
run are rows of the store as ever: the leading process obeys them between two steps and tells the others.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

import torch

from rlhf_lab.config import PolicyConfig, RewardConfig
from rlhf_lab.engine.faults import explain_together
from rlhf_lab.engine.lab import REWARD_MODELS, Lab
from rlhf_lab.engine.policy_run import LEAVES, POLL_EVERY_S, RUN_BROKE, PolicyRun
from rlhf_lab.engine.work import Progress, reward_job
from rlhf_lab.errors import EngineError, LabError, TrainingError
from rlhf_lab.home import run_folder
from rlhf_lab.jobs import control, queue, supervisor
from rlhf_lab.jobs.claims import check_free, claimed, held
from rlhf_lab.kinds import GOING, JobStatus, RunStatus
from rlhf_lab.models.generation import Tick
from rlhf_lab.records import Job, ProcessIdentity
from rlhf_lab.store.database import Database
from rlhf_lab.store.runs import get_run, set_run_status
from rlhf_lab.trainers.group import Group, launched, leave

LAUNCH = Path(__file__).with_name("launch.yaml")
LOG = "processes.log"
ENGINE = "RLHF_LAB_ENGINE"  # who started the processes, as JSON: for them alone
TERM_WAIT_S = 20.0
LAUNCHED = "TORCHELASTIC_RUN_ID"  # in the environment of what `accelerate launch` starts
TELLING_S = 30.0  # how long a process that met an error leaves the telling to the leading one, which met it too
REWARD_BROKE = (
    f"one of the processes that trained the reward model died, and the others were ended ({LOG} in the home's folder "
    f"{REWARD_MODELS} says more). The labels are untouched: train it again."
)


def command_of(processes: int, part: list[str]) -> list[str]:
    """What starts the processes; part: their command line."""
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(LAUNCH)]
    return [*launch, "--num_processes", str(processes), "-m", "rlhf_lab", *part]


def run_together(processes: int, part: list[str], folder: Path, stays: Callable[[], bool]) -> bool:
    """Start the processes and stay with them until they have ended; what they say goes to a log in the folder.

    stays: asked all along; once it says false, or raises, they are ended. Returns whether they ended by themselves.
    """
    check_devices(processes)
    folder.mkdir(parents=True, exist_ok=True)
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    with (folder / LOG).open("ab") as log:
        child = subprocess.Popen(
            command_of(processes, part), stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": threads, ENGINE: json.dumps(dataclasses.asdict(supervisor.this_process()))},
        )  # fmt: skip
        try:
            while child.poll() is None:
                if not stays():
                    return False
                time.sleep(POLL_EVERY_S)
        finally:
            end(child)
    return True


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


def last_words(folder: Path) -> str:
    """ " It ended with: …", the last line that the processes wrote; "" where there is none."""
    with suppress(OSError):
        lines = (folder / LOG).read_bytes()[-4000:].decode("utf-8", "replace").splitlines()
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f" It ended with: {said[:300]}" if said else ""
    return ""


def check_devices(processes: int) -> None:
    """Raises TrainingError where processes would share a GPU."""
    gpus = torch.cuda.device_count()
    if 0 < gpus < processes:
        raise TrainingError(
            f"{processes} processes need a GPU each, and there are {gpus}. Set processes to {gpus} or fewer; a run begun with "
            f"more goes on so: python -m rlhf_lab train-policy --resume RUN --processes {gpus}"
        )


def train_policy(
    home: Path, db: Database, run_id: int, *, serve: Tick, leaving: Callable[[], bool], progress: Progress
) -> RunStatus:
    """A run in processes of its own, until it ends; INTERRUPTED when the engine leaves, for its job to be put back. Raises
    TrainingError when it failed or one of them died, ClaimedError while it has some already."""
    check_free(home, run_id)
    run = get_run(db, run_id)
    began, first = time.monotonic(), run.step

    def stays() -> bool:
        if leaving():
            return False
        serve()
        done = get_run(db, run_id).step
        left = (time.monotonic() - began) / (done - first) * (run.total_steps - done) if done > first else None
        progress(done / run.total_steps, left, {"run_id": run_id, "step": done})
        return True

    part = ["train-policy", "--run", str(run_id), "--home", str(home)]
    if not run_together(control.processes_of(db, run), part, run_folder(home, run_id), stays):
        if not held(home, run_id):  # else somebody was quicker, and ours were still waiting
            set_run_status(db, run_id, RunStatus.INTERRUPTED, LEAVES)
        return RunStatus.INTERRUPTED
    ended = get_run(db, run_id)
    if ended.status in GOING:
        check_free(home, run_id)  # somebody was quicker; what is left of our own ends within moments
        raise TrainingError(RUN_BROKE + last_words(run_folder(home, run_id)))
    if ended.status is RunStatus.FAILED:
        raise TrainingError(ended.message)
    return ended.status


def train_reward(home: Path, db: Database, job: Job, *, tick: Tick) -> dict[str, object] | None:
    """A reward model in processes of its own; the job's result, None where it was cancelled. The leading process records how
    the job ended. Raises TrainingError when it failed or one of them died; `tick` is called meanwhile and may raise."""

    def stays() -> bool:
        tick()
        return queue.get_job(db, job.id).status is not JobStatus.CANCELLED

    part = ["train-reward", "--job", str(job.id), "--home", str(home)]
    run_together(int(job.payload["config"]["processes"]), part, home / REWARD_MODELS, stays)
    ended = queue.get_job(db, job.id)
    if ended.status is JobStatus.RUNNING:
        raise TrainingError(REWARD_BROKE + last_words(home / REWARD_MODELS))
    if ended.status is JobStatus.FAILED:
        raise TrainingError(ended.error)
    return ended.result if ended.status is JobStatus.DONE else None


@contextmanager
def joined() -> Iterator[Group]:
    """The group of these processes, for as long as they work. Where the engine or their launcher dies they end with it: the
    next one does the work again, and two must not write.

    Nobody leaves before the leading one has stored what was found: the end of one, should it be no good one, ends all. And all
    meet an error of ours at the same point; one that left at once would take the leading one down before that has told anybody.
    """
    if engine := os.environ.get(ENGINE):
        supervisor.end_with(ProcessIdentity(**json.loads(engine)))
    if LAUNCHED in os.environ:
        supervisor.end_with(supervisor.parent_process())
    group = launched()
    try:
        yield group
        group.told(None)
    except LabError:
        if not group.leads:
            time.sleep(TELLING_S)
        raise
    finally:
        leave()


def _leading(group: Group, home: Path, run_id: int) -> AbstractContextManager[None]:
    """The leading process claims the run for all."""
    return claimed(home, run_id) if group.leads else nullcontext()


def take_part_in_run(home: Path, run_id: int) -> RunStatus:
    """What each process of a run does: lead or follow, until the run ends."""
    with joined() as group, Database.open(home) as db, _leading(group, home, run_id):
        sharded = group.size > 1 and PolicyConfig.from_dict(get_run(db, run_id).config).shard_backbone
        try:
            run = PolicyRun(Lab(home, db, group=group, sharded=sharded), run_id)
        except Exception as error:  # what fails later, `execute` records itself
            if group.leads:
                set_run_status(db, run_id, RunStatus.FAILED, explain_together(error, group, RUN_BROKE))
            raise
        if group.leads:
            return run.execute()
        run.follow()
        return RunStatus.DONE


def take_part_in_reward(home: Path, job_id: int) -> None:
    """What each process of a reward training does; the leading one tells how far it is, and how the job ended."""
    with joined() as group, Database.open(home) as db:
        job = queue.get_job(db, job_id)
        if job.status is not JobStatus.RUNNING:
            raise EngineError(f"job {job_id} is {job.status.value}; only one that the engine works on has processes.")
        sharded = group.size > 1 and RewardConfig.from_dict(job.payload["config"]).shard_backbone
        lab = Lab(home, db, group=group, sharded=sharded)
        if not group.leads:
            reward_job(lab, job)
            return

        def progress(share: float, left: float | None, so_far: dict[str, object]) -> None:
            queue.update_progress(db, job_id, share, left, so_far)

        try:
            queue.finish(db, job_id, reward_job(lab, job, progress=progress))
        except Exception as error:
            queue.fail(db, job_id, explain_together(error, group, REWARD_BROKE))
            raise
