"""Trainings in two processes under the engine: the same numbers as in one process, and the death of a process."""

import subprocess
import sys
import threading
import time
from contextlib import nullcontext

import psutil
import pytest
from accelerate.commands import launch
from accelerate.commands.config import config_args
from support import tiny_models
from support_worker import REWARD

from rlhf_lab.common.checkpoint_index import checkpoint_steps
from rlhf_lab.common.enums import EventKind, JobKind, JobStatus, RunStatus
from rlhf_lab.common.records import RunEvent
from rlhf_lab.engine import distributed_launch, policy_run
from rlhf_lab.engine.model_cache import ModelCache
from rlhf_lab.errors import EngineError, TrainingError
from rlhf_lab.jobs import queue, run_control, run_lock
from rlhf_lab.store.reward_models import reward_models
from rlhf_lab.store.run_metrics import samples_at
from rlhf_lab.store.runs import events, get_run, set_manifest, set_run_status
from rlhf_lab.training.distributed import Distributed

STEPS = {"steps": 4, "checkpoint_every": 2}
LONG = REWARD | {"processes": 2, "epochs": 200, "folds": 3}


def parts(name):
    """The processes that take part in a training of this name."""
    return [p for p in psutil.Process().children(recursive=True) if name in p.cmdline() and "-m" in p.cmdline()]


@pytest.mark.slow
def test_two_processes_have_the_curve_of_one(lab):
    curves = []
    for processes in (1, 2):
        run_id = lab.run(processes=processes, **STEPS)
        assert lab.train(run_id).status is JobStatus.DONE
        assert get_run(lab.db, run_id).status is RunStatus.DONE
        assert len(checkpoint_steps(lab.folder / "runs" / str(run_id))) == 2
        curves.append(lab.curve(run_id))
    assert [step for step, _ in curves[1]] == [1, 2, 3, 4]
    for (_, one), (_, two) in zip(*curves, strict=True):
        del one["val/clipfrac_avg"], two["val/clipfrac_avg"]  # counts values whose two losses differ by rounding alone
        assert two == pytest.approx(one, rel=1e-3, abs=1e-4)


@pytest.mark.slow
def test_a_run_of_two_processes_resumes_in_one_with_the_same_curve(lab):
    whole, run_id = lab.run(**STEPS), lab.run(processes=2, **STEPS)
    assert lab.train(whole).status is JobStatus.DONE

    def stop_later():
        while get_run(lab.db, run_id).step < 1:
            time.sleep(0.01)
        run_control.stop(lab.db, run_id)

    stopper = threading.Thread(target=stop_later)
    stopper.start()
    lab.train(run_id)
    stopper.join()
    reached = get_run(lab.db, run_id).step
    assert get_run(lab.db, run_id).status is RunStatus.STOPPED
    run_control.resume(lab.db, lab.folder, run_id, processes=1)
    assert lab.do(run_control.last_job(lab.db, run_id)).status is JobStatus.DONE
    assert [event.applied_step for event in events(lab.db, run_id) if "processes" in event.payload] == [reached]
    for (_, one), (_, two) in zip(lab.curve(whole), lab.curve(run_id), strict=True):
        del one["val/clipfrac_avg"], two["val/clipfrac_avg"]
        assert two == pytest.approx(one, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(("initial", "requested"), [(2, 1), (1, 2)])
def test_a_run_is_trained_in_as_many_processes_as_it_was_resumed_with(lab, monkeypatch, initial, requested):
    together_with = []

    def run_together(processes, *_):
        together_with.append(processes)
        return False

    monkeypatch.setattr(distributed_launch, "launch_and_wait", run_together)
    run_id = lab.run(processes=initial, steps=1)
    set_run_status(lab.db, run_id, RunStatus.STOPPED)
    run_control.resume(lab.db, lab.folder, run_id, requested)
    lab.do(run_control.last_job(lab.db, run_id))
    assert together_with == ([2] if requested == 2 else [])
    assert get_run(lab.db, run_id).status is (RunStatus.INTERRUPTED if requested == 2 else RunStatus.DONE)


@pytest.mark.slow
def test_a_sharded_backbone_has_the_curve_of_one_process(lab):
    curves, samples = [], []
    for changes in ({}, {"processes": 2, "shard_backbone": True}):
        run_id = lab.run(**changes, **STEPS)
        job = lab.train(run_id)
        assert job.status is JobStatus.DONE, job.error
        assert checkpoint_steps(lab.folder / "runs" / str(run_id)) == [2, 4]
        curves.append(lab.curve(run_id))
        samples.append([[sample.text for sample in samples_at(lab.db, run_id, step)] for step in (0, 2, 4)])
    assert [step for step, _ in curves[1]] == [1, 2, 3, 4]
    for (_, one), (_, two) in zip(*curves, strict=True):
        del one["val/clipfrac_avg"], two["val/clipfrac_avg"]  # counts values whose two losses differ by rounding alone
        assert two == pytest.approx(one, rel=1e-3, abs=1e-3)
    assert samples[1] == samples[0]
    assert all(samples[0])


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_a_killed_process_ends_the_run_and_it_resumes(lab, sharded):
    config = {"processes": 2, "steps": 20 if sharded else 60, "checkpoint_every": 5, "shard_backbone": sharded}
    whole = lab.run(**config)
    assert lab.train(whole).status is JobStatus.DONE
    run_id = lab.run(**config)

    def kill_later():
        while get_run(lab.db, run_id).step < 5:
            time.sleep(0.02)
        kill_one("train-policy")

    killer = threading.Thread(target=kill_later)
    killer.start()
    job = lab.train(run_id)
    killer.join()
    assert job.status is JobStatus.FAILED
    assert "one of the processes of the run died" in job.error
    assert get_run(lab.db, run_id).status is RunStatus.FAILED
    assert not parts("train-policy")
    run_control.resume(lab.db, lab.folder, run_id)
    job = lab.do(run_control.last_job(lab.db, run_id))
    assert job.status is JobStatus.DONE
    assert lab.curve(run_id) == lab.curve(whole)


@pytest.mark.slow
def test_processes_end_with_their_launcher_and_a_resumed_run_has_one_writer(lab):
    run_id = lab.run(processes=2, steps=200, checkpoint_every=5)
    left = []

    def kill_the_launcher():
        while get_run(lab.db, run_id).step < 5:
            time.sleep(0.02)
        left.extend(part for part in parts("train-policy") if part.environ().get("RANK"))
        left[0].parent().kill()

    killer = threading.Thread(target=kill_the_launcher)
    killer.start()
    job = lab.train(run_id)
    killer.join()
    assert job.status is JobStatus.FAILED
    assert len(left) == 2
    assert psutil.wait_procs(left, timeout=10)[1] == []
    reached = get_run(lab.db, run_id).step
    time.sleep(1.0)
    assert get_run(lab.db, run_id).step == reached < 200


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["launcher", "leader"])
def test_a_run_started_by_hand_that_dies_is_noticed_and_resumes(lab, victim):
    run_id = lab.run(processes=2, steps=200, checkpoint_every=5)
    part = ["train-policy", "--run", str(run_id), "--home", str(lab.folder)]
    launcher = subprocess.Popen(
        distributed_launch.launch_command(2, part), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while get_run(lab.db, run_id).step < 5:
            time.sleep(0.02)
        assert run_lock.mark_interrupted_runs(lab.db, lab.folder) == []
        writes = [part for part in parts("train-policy") if part.environ().get("RANK") == "0"]
        (launcher if victim == "launcher" else writes[0]).kill()
        launcher.wait(60)
        psutil.wait_procs(writes, timeout=60)
    finally:
        launcher.kill()
    run = get_run(lab.db, run_id)
    if (
        victim == "launcher" and run.status is RunStatus.FAILED
    ):  # the other process ended first, and the main process recorded the failure
        assert run.message == policy_run.RUN_PROCESS_DIED
    else:
        assert run.status is RunStatus.RUNNING
        assert run_lock.mark_interrupted_runs(lab.db, lab.folder) == [run_id]
        assert get_run(lab.db, run_id).status is RunStatus.INTERRUPTED
    run_control.resume(lab.db, lab.folder, run_id)
    run_control.stop(lab.db, run_id)
    assert get_run(lab.db, run_id).status is RunStatus.STOPPED


class Following(Distributed):
    def broadcast(self, value):
        return value


def test_other_processes_do_not_write_the_runs_folder_and_row(lab):
    run_id = lab.run(steps=2, batch_size=4, checkpoint_every=1)
    folder = lab.folder / "runs" / str(run_id)
    follower = ModelCache(lab.folder, lab.db, distributed=Following(1, 2))
    policy_run.PolicyRun(follower, run_id)
    assert not folder.exists()
    assert lab.train(run_id).status is JobStatus.DONE
    (folder / "step-000002").rename(folder / ".replaced-step-000002")
    (folder / ".building-step-000003-1").mkdir()
    before, row = sorted(path.name for path in folder.iterdir()), get_run(lab.db, run_id)
    run = policy_run.PolicyRun(follower, run_id)
    run._apply_event(RunEvent(1, run_id, EventKind.SET, {"name": "beta", "value": -1.0}, 0.0, 1))
    assert run.trainer.steps_done == 1
    assert sorted(path.name for path in folder.iterdir()) == before
    assert get_run(lab.db, run_id) == row
    assert (
        policy_run.PolicyRun(lab.worker.model_cache, run_id).trainer.steps_done == 2
    )  # the main process does clean up
    assert {path.name for path in folder.glob(".*")} == set()


def test_the_main_process_recovers_the_folder_before_the_others_read_it(lab, monkeypatch):
    messages = []
    run_id = lab.run(steps=2, batch_size=4)
    monkeypatch.setattr(policy_run, "load_latest", lambda _, **options: messages.append(options))
    monkeypatch.setattr(Following, "broadcast", lambda *_: messages.append("broadcast"))
    for rank in (0, 1):
        policy_run.PolicyRun(ModelCache(lab.folder, lab.db, distributed=Following(rank, 2)), run_id)
    assert messages == [{}, "broadcast", "broadcast", {"recover": False}]


def test_a_locked_run_is_not_started(lab, monkeypatch):
    monkeypatch.setattr(run_lock, "LOCK_TIMEOUT_S", 0.05)
    run_id = lab.run(steps=1)
    with run_lock.lock_run(lab.folder, run_id):
        with pytest.raises(EngineError, match=f"run {run_id} is being trained by another process. Stop it first"):
            distributed_launch.run_policy_worker(lab.folder, run_id)
        assert get_run(lab.db, run_id).status is RunStatus.QUEUED
    assert distributed_launch.run_policy_worker(lab.folder, run_id) is RunStatus.DONE


@pytest.mark.parametrize("processes", [1, 2])
def test_the_job_of_a_run_started_by_hand_fails_alone(lab, monkeypatch, processes):
    """The run is unchanged, because another process trains it."""
    monkeypatch.setattr(run_lock, "LOCK_TIMEOUT_S", 0.05)
    monkeypatch.setattr(distributed_launch, "launch_and_wait", lambda *_: pytest.fail("processes were started"))
    run_id = lab.run(processes=processes, steps=1)
    with run_lock.lock_run(lab.folder, run_id):
        set_run_status(lab.db, run_id, RunStatus.PAUSED, "its own words")
        ended = lab.train(run_id)
    assert ended.status is JobStatus.FAILED
    assert ended.error.startswith(f"run {run_id} is being trained by another process. Stop it first")
    run = get_run(lab.db, run_id)
    assert (run.status, run.message) == (RunStatus.PAUSED, "its own words")


def test_a_run_started_by_hand_during_the_launch_keeps_its_status(lab, monkeypatch):
    monkeypatch.setattr(run_lock, "LOCK_TIMEOUT_S", 0.05)
    run_id = lab.run(processes=2, steps=1)
    other = run_lock.lock_run(lab.folder, run_id)

    def lock_first(*_):
        other.__enter__()
        set_run_status(lab.db, run_id, RunStatus.RUNNING)
        return True

    monkeypatch.setattr(distributed_launch, "launch_and_wait", lock_first)
    ended = lab.train(run_id)
    assert ended.status is JobStatus.FAILED
    assert "another process" in ended.error
    assert get_run(lab.db, run_id).status is RunStatus.RUNNING
    other.__exit__(None, None, None)
    set_run_status(lab.db, run_id, RunStatus.QUEUED)
    monkeypatch.setattr(distributed_launch, "launch_and_wait", lambda *_: True)
    assert lab.train(run_id).error.startswith(distributed_launch.RUN_PROCESS_DIED)
    assert get_run(lab.db, run_id).status is RunStatus.FAILED


def test_an_exiting_engine_does_not_interrupt_a_run_locked_by_others(lab, monkeypatch):
    run_id = lab.run(processes=2, steps=1)
    other = run_lock.lock_run(lab.folder, run_id)

    def exit_during_launch(*_):
        other.__enter__()
        set_run_status(lab.db, run_id, RunStatus.RUNNING, "its own words")
        return False

    monkeypatch.setattr(distributed_launch, "launch_and_wait", exit_during_launch)
    job = lab.train(run_id)
    assert job.status is JobStatus.QUEUED
    run = get_run(lab.db, run_id)
    assert (run.status, run.message) == (RunStatus.RUNNING, "its own words")
    other.__exit__(None, None, None)
    monkeypatch.setattr(distributed_launch, "launch_and_wait", lambda *_: False)
    assert lab.do(job).status is JobStatus.QUEUED
    run = get_run(lab.db, run_id)
    assert (run.status, run.message) == (RunStatus.INTERRUPTED, policy_run.ENGINE_EXIT_MESSAGE)


def test_a_reward_worker_needs_a_running_job(lab):
    job = lab.submit(JobKind.TRAIN_REWARD, source="simulated", config=REWARD)
    with pytest.raises(EngineError, match=f"job {job.id} is queued"):
        distributed_launch.run_reward_worker(lab.folder, job.id)


def test_the_last_log_line_is_in_the_error(tmp_path):
    assert distributed_launch.last_log_line(tmp_path) == ""
    (tmp_path / distributed_launch.LOG_FILE).write_text("Traceback\n  line\nValueError: unknown keys\n\n")
    assert distributed_launch.last_log_line(tmp_path) == " It ended with: ValueError: unknown keys"


def kill_one(name, rank=1):
    next(part for part in parts(name) if part.environ().get("RANK") == str(rank)).kill()


def reward_job(lab, **config):
    return lab.submit(JobKind.TRAIN_REWARD, source="simulated", config=REWARD | config)


def during(lab, job, act):
    """Run the job; call `act` in another thread as soon as the processes train."""

    def wait_and_act():
        while not queue.get_job(lab.db, job.id).progress:
            time.sleep(0.02)
        act()

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    ended = lab.do(job)
    thread.join()
    return ended


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_two_processes_train_the_reward_model_of_one(lab, sharded):
    model_count = len(reward_models(lab.db, lab.project.id))
    rows, folders = [], lab.folder / "reward_models"
    for processes in (1, 2):
        job = lab.do(reward_job(lab, folds=3, processes=processes, shard_backbone=sharded and processes > 1))
        assert job.status is JobStatus.DONE, job.error
        rows = reward_models(lab.db, lab.project.id)
        assert len(rows) == model_count + processes  # of the second training only the main process has stored a model
        assert len([path for path in folders.iterdir() if path.is_dir()]) == model_count + processes
        assert job.result["reward_model_id"] == max(row.id for row in rows)
    assert "error" not in (folders / "processes.log").read_text().lower()
    one, two = sorted(rows, key=lambda row: row.id)[-2:]
    assert one.snapshot == two.snapshot
    for name in ("loss", "chosen_scores", "rejected_scores", "accuracy", "length_correlation"):
        assert two.report[name] == pytest.approx(one.report[name], rel=1e-3, abs=1e-3), name
    lab.worker.model_cache.load_project(lab.project)
    texts = [
        lab.worker.model_cache.reward_model(row.id, f"slot {row.id}").scores(*tiny_models.ragged()).tolist()
        for row in (one, two)
    ]
    assert texts[1] == pytest.approx(texts[0], rel=1e-3, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_fails_the_reward_training_and_it_can_be_repeated(lab, rank):
    before = reward_models(lab.db, lab.project.id)
    job = during(lab, reward_job(lab, **LONG), lambda: kill_one("train-reward", rank))
    assert job.status is JobStatus.FAILED
    assert "one of the processes that trained the reward model died" in job.error
    assert "The labels are untouched" in job.error
    assert not parts("train-reward")
    assert reward_models(lab.db, lab.project.id) == before
    assert lab.do(reward_job(lab, processes=2)).status is JobStatus.DONE
    assert len(reward_models(lab.db, lab.project.id)) == len(before) + 1


@pytest.mark.slow
def test_a_cancelled_training_ends_its_processes(lab):
    before = reward_models(lab.db, lab.project.id)
    job = reward_job(lab, **LONG)
    assert during(lab, job, lambda: queue.cancel(lab.db, job.id)).status is JobStatus.CANCELLED
    assert not parts("train-reward")
    assert reward_models(lab.db, lab.project.id) == before


@pytest.mark.slow
def test_insufficient_labels_are_refused_with_the_usual_message(lab):
    job = lab.do(lab.submit(JobKind.TRAIN_REWARD, source="human", config=REWARD | {"processes": 2}))
    assert job.status is JobStatus.FAILED
    assert job.error.startswith("there are no labels of people yet")
    assert not parts("train-reward")


def test_a_run_that_cannot_start_has_an_error_message(lab):
    run_id = lab.run(processes=2, ptx_coef=0.1)
    set_manifest(lab.db, run_id, {"ptx_texts": {"source": "mine.txt", "count": 3}})  # and the file was deleted
    with pytest.raises(TrainingError, match="cannot be read"):
        distributed_launch.run_policy_worker(lab.folder, run_id)
    run = get_run(lab.db, run_id)
    assert run.status is RunStatus.FAILED
    assert run.message.startswith(f"the pretraining texts of run {run_id} cannot be read")


@pytest.mark.parametrize("error", [None, TrainingError, RuntimeError])
def test_join_distributed_waits_for_the_main_process_unless_it_failed(monkeypatch, error):
    messages = []

    class Followers(Distributed):
        def broadcast(self, value):
            messages.append("broadcast")

    monkeypatch.setattr(distributed_launch, "init_from_env", lambda: Followers(1, 2))
    monkeypatch.setattr(distributed_launch, "shutdown", lambda: messages.append("left"))
    monkeypatch.setattr(distributed_launch.time, "sleep", messages.append)
    with pytest.raises(error) if error else nullcontext(), distributed_launch.join_distributed():
        if error:
            raise error("x")
    assert messages == {None: ["broadcast", "left"], TrainingError: [30.0, "left"], RuntimeError: ["left"]}[error]


def test_no_eta_before_the_first_step(lab, monkeypatch):
    run_id, reports = lab.run(processes=2), []
    monkeypatch.setattr(distributed_launch, "launch_and_wait", lambda _processes, _part, _folder, poll: poll())
    options = {
        "run_short_job": lambda: None,
        "should_exit": lambda: False,
        "report_progress": reports.append,
    }
    with pytest.raises(TrainingError):
        distributed_launch.train_policy(lab.folder, lab.db, run_id, **options)
    assert reports == [(0.0, None, {"run_id": run_id, "step": 0})]


def test_the_users_accelerate_config_is_not_read(tmp_path, monkeypatch):
    user_config = tmp_path / "default_config.yaml"
    user_config.write_text(
        "distributed_type: DEEPSPEED\nnum_machines: 4\nmachine_rank: 3\nnum_processes: 8\nmixed_precision: fp16\n"
        "gpu_ids: '0'\nmain_process_ip: 10.0.0.1\nmain_process_port: 77\nuse_cpu: true\nenable_cpu_affinity: true\n"
        "dynamo_config: {dynamo_backend: INDUCTOR}\ndeepspeed_config: {zero_stage: 3}\n"
    )
    for module in (launch, config_args):
        monkeypatch.setattr(module, "default_config_file", str(user_config))
    python, *words = distributed_launch.launch_command(2, ["train-policy", "--run", "7"])
    assert (python, words[:2]) == (sys.executable, ["-m", "accelerate.commands.launch"])
    args, *_ = launch._validate_launch_command(launch.launch_command_parser().parse_args(words[2:]))
    assert [args.module, args.training_script, *args.training_script_args] == [
        True,
        "rlhf_lab",
        "train-policy",
        "--run",
        "7",
    ]
    assert (args.num_processes, args.num_machines, args.machine_rank, args.gpu_ids) == (2, 1, 0, "all")
    assert (args.multi_gpu, args.use_deepspeed, args.use_fsdp, args.cpu, args.use_cpu) == (True, *4 * [False])
    assert (args.mixed_precision, args.dynamo_backend, args.debug) == ("no", "no", False)
    assert (args.main_process_ip, args.main_process_port, args.enable_cpu_affinity) == (None, 0, False)


def test_processes_do_not_share_a_gpu(monkeypatch):
    monkeypatch.setattr(distributed_launch.torch.cuda, "device_count", lambda: 2)
    distributed_launch.check_devices(2)
    with pytest.raises(TrainingError, match=r"Set processes to 2 or fewer; .*--resume RUN --processes 2"):
        distributed_launch.check_devices(3)
