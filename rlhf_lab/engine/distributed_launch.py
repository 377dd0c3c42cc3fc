"""Training in several processes: a child of the engine, started by `accelerate launch`, one process per GPU (gloo on CPUs).

`train_policy` and `train_reward` run in the engine: they start the processes, wait for them while the engine runs short jobs, and
terminate them when the engine exits. `run_policy_worker` and `run_reward_worker` run in each of the started processes. The main
one of these applies the control events of a run between steps and broadcasts them to the others.
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

from rlhf_lab.common.enums import ACTIVE_RUN_STATUSES, JobStatus, RunStatus
from rlhf_lab.common.paths import REWARD_MODELS_FOLDER, run_folder
from rlhf_lab.common.process_env import thread_count
from rlhf_lab.common.program_names import lab_command
from rlhf_lab.common.progress import ProgressCallback
from rlhf_lab.common.records import Job, ProcessIdentity
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.engine.error_messages import explain_distributed_error
from rlhf_lab.engine.job_handlers import reward_job
from rlhf_lab.engine.job_progress import EtaEstimator, JobProgress, JobProgressCallback
from rlhf_lab.engine.model_cache import ModelCache
from rlhf_lab.engine.policy_run import ENGINE_EXIT_MESSAGE, POLL_INTERVAL_S, RUN_PROCESS_DIED, PolicyRun
from rlhf_lab.errors import EngineError, LabError, TrainingError
from rlhf_lab.jobs import engine_process, queue, run_control
from rlhf_lab.jobs.run_lock import check_unlocked, is_locked, lock_run
from rlhf_lab.store.database import TRAINING_BUSY_TIMEOUT_S, Database
from rlhf_lab.store.runs import get_run, set_run_status
from rlhf_lab.training.distributed import Distributed, init_from_env, shutdown

LAUNCH_CONFIG = Path(__file__).with_name("launch.yaml")
LOG_FILE = "processes.log"
ENGINE_VARIABLE = "RLHF_LAB_ENGINE"  # the identity of the engine process, as JSON
TERMINATE_TIMEOUT_S = 20.0
LAUNCHED_VARIABLE = "TORCHELASTIC_RUN_ID"  # set for processes that `accelerate launch` starts
ERROR_REPORT_WAIT_S = 30.0  # after an error in all processes, the others wait this long for the main one to record it
REWARD_PROCESS_DIED = (
    f"one of the processes that trained the reward model died, and the others were ended ({LOG_FILE} in the home's "
    f"folder {REWARD_MODELS_FOLDER} says more). The labels are untouched: train it again."
)


def launch_command(processes: int, arguments: list[str]) -> list[str]:
    """The command that starts the processes. arguments: passed to `python -m rlhf_lab` in each of them."""
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(LAUNCH_CONFIG)]
    return [*launcher, "--num_processes", str(processes), "-m", "rlhf_lab", *arguments]


def launch_and_wait(processes: int, arguments: list[str], folder: Path, keep_running: Callable[[], bool]) -> bool:
    """Start the processes and wait for them; their output goes to a log in the folder.

    keep_running: polled; when it returns false or raises, the processes are terminated. Returns whether they ended without being
    terminated.
    """
    check_devices(processes)
    folder.mkdir(parents=True, exist_ok=True)
    threads = str(max(1, thread_count() // processes))
    with (folder / LOG_FILE).open("ab") as log:
        engine_identity = json.dumps(dataclasses.asdict(engine_process.this_process()))
        child = subprocess.Popen(
            launch_command(processes, arguments), stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": threads, ENGINE_VARIABLE: engine_identity},
        )  # fmt: skip
        try:
            while child.poll() is None:
                if not keep_running():
                    return False
                time.sleep(POLL_INTERVAL_S)
        finally:
            terminate(child)
    return True


def terminate(child: subprocess.Popen[bytes]) -> None:
    """End the launcher and its processes."""
    for signal_number, timeout in ((signal.SIGTERM, TERMINATE_TIMEOUT_S), (signal.SIGKILL, None)):
        if child.poll() is not None:
            return
        os.killpg(child.pid, signal_number)
        try:
            child.wait(timeout)
        except subprocess.TimeoutExpired:
            continue


def last_log_line(folder: Path) -> str:
    """ " It ended with: …" with the last line that the processes wrote; "" if they wrote nothing."""
    with suppress(OSError):
        lines = (folder / LOG_FILE).read_bytes()[-4000:].decode("utf-8", "replace").splitlines()
        last_line = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f" It ended with: {last_line[:300]}" if last_line else ""
    return ""


def check_devices(processes: int) -> None:
    """Raises TrainingError if there are fewer GPUs than processes."""
    gpus = torch.cuda.device_count()
    if 0 < gpus < processes:
        raise TrainingError(
            f"{processes} processes need a GPU each, and there are {gpus}. Set processes to {gpus} or fewer; to "
            f"resume a run that was started with more: {lab_command()} train-policy --resume RUN --processes {gpus}"
        )


def train_policy(
    home: Path,
    db: Database,
    run_id: int,
    *,
    run_short_job: ProgressCallback,
    should_exit: Callable[[], bool],
    report_progress: JobProgressCallback,
) -> RunStatus:
    """Train a run in separate processes. Returns INTERRUPTED if the engine exits; the job is then requeued.

    Raises TrainingError if the run failed or a process died, ClaimedError while another process writes the run.
    """
    check_unlocked(home, run_id)
    run = get_run(db, run_id)
    eta = EtaEstimator(run.step)

    def keep_running() -> bool:
        if should_exit():
            return False
        run_short_job()
        step = get_run(db, run_id).step
        partial_result = {"run_id": run_id, "step": step}
        eta_s = eta.eta_s(step, run.total_steps) if step > run.step + 1 else None  # the first step says too little
        report_progress(JobProgress(step / run.total_steps, eta_s, partial_result))
        return True

    arguments = ["train-policy", "--run", str(run_id), "--home", str(home)]
    if not launch_and_wait(run_control.process_count(db, run), arguments, run_folder(home, run_id), keep_running):
        if not is_locked(home, run_id):  # if locked, another process trains the run and ours were waiting for the lock
            set_run_status(db, run_id, RunStatus.INTERRUPTED, ENGINE_EXIT_MESSAGE)
        return RunStatus.INTERRUPTED
    finished_run = get_run(db, run_id)
    if finished_run.status in ACTIVE_RUN_STATUSES:
        check_unlocked(home, run_id)  # raises if another process started it first
        raise TrainingError(RUN_PROCESS_DIED + last_log_line(run_folder(home, run_id)))
    if finished_run.status is RunStatus.FAILED:
        raise TrainingError(finished_run.message)
    return finished_run.status


def train_reward(home: Path, db: Database, job: Job, *, on_progress: ProgressCallback) -> dict[str, object] | None:
    """Train a reward model in separate processes. Returns the job's result, or None if it was cancelled.

    The main process of the training records the outcome of the job. `on_progress` may raise. Raises TrainingError if the training
    failed or a process died.
    """

    def keep_running() -> bool:
        on_progress()
        return queue.get_job(db, job.id).status is not JobStatus.CANCELLED

    arguments = ["train-reward", "--job", str(job.id), "--home", str(home)]
    launch_and_wait(int(job.payload["config"]["processes"]), arguments, home / REWARD_MODELS_FOLDER, keep_running)
    finished_job = queue.get_job(db, job.id)
    if finished_job.status is JobStatus.RUNNING:
        raise TrainingError(REWARD_PROCESS_DIED + last_log_line(home / REWARD_MODELS_FOLDER))
    if finished_job.status is JobStatus.FAILED:
        raise TrainingError(finished_job.error)
    return finished_job.result if finished_job.status is JobStatus.DONE else None


@contextmanager
def join_distributed() -> Iterator[Distributed]:
    """Join the processes that train together.

    They exit if the engine or their launcher dies: the next engine repeats the work, and two processes must not write at the same
    time. No process exits before the main one has stored the result, because the launcher ends all of them if one fails. A
    LabError occurs in all processes at the same point; the others then wait until the main one has recorded it.
    """
    if engine_identity := os.environ.get(ENGINE_VARIABLE):
        engine_process.exit_when_process_ends(ProcessIdentity(**json.loads(engine_identity)))
    if LAUNCHED_VARIABLE in os.environ:
        engine_process.exit_when_process_ends(engine_process.parent_process())
    distributed = init_from_env()
    try:
        yield distributed
        distributed.broadcast(None)
    except LabError:
        if not distributed.is_main_process:
            time.sleep(ERROR_REPORT_WAIT_S)
        raise
    finally:
        shutdown()


def _lock_if_main_process(distributed: Distributed, home: Path, run_id: int) -> AbstractContextManager[None]:
    """Lock the run in the main process, on behalf of all."""
    return lock_run(home, run_id) if distributed.is_main_process else nullcontext()


def run_policy_worker(home: Path, run_id: int) -> RunStatus:
    """Train a run as one of its processes until the run ends."""
    with (
        join_distributed() as distributed, Database.open(home, busy_timeout_s=TRAINING_BUSY_TIMEOUT_S) as db,
        _lock_if_main_process(distributed, home, run_id),
    ):  # fmt: skip
        sharded = distributed.world_size > 1 and PolicyConfig.from_dict(get_run(db, run_id).config).shard_backbone
        try:
            run = PolicyRun(ModelCache(home, db, distributed=distributed, sharded=sharded), run_id)
        except Exception as error:  # later errors are recorded by `execute`
            if distributed.is_main_process:
                set_run_status(
                    db, run_id, RunStatus.FAILED, explain_distributed_error(error, distributed, RUN_PROCESS_DIED)
                )
            raise
        if distributed.is_main_process:
            return run.execute()
        run.follow()
        return RunStatus.DONE


def run_reward_worker(home: Path, job_id: int) -> None:
    """Train a reward model as one of its processes. The main one reports progress and records the outcome of the job."""
    with join_distributed() as distributed, Database.open(home, busy_timeout_s=TRAINING_BUSY_TIMEOUT_S) as db:
        job = queue.get_job(db, job_id)
        if job.status is not JobStatus.RUNNING:
            raise EngineError(f"job {job_id} is {job.status.value}; only one that the engine works on has processes.")
        sharded = distributed.world_size > 1 and RewardConfig.from_dict(job.payload["config"]).shard_backbone
        model_cache = ModelCache(home, db, distributed=distributed, sharded=sharded)
        if not distributed.is_main_process:
            reward_job(model_cache, job)
            return

        def report_progress(progress: JobProgress) -> None:
            queue.update_progress(db, job_id, *progress)

        try:
            queue.finish(db, job_id, reward_job(model_cache, job, report_progress=report_progress))
        except Exception as error:
            queue.fail(db, job_id, explain_distributed_error(error, distributed, REWARD_PROCESS_DIED))
            raise
