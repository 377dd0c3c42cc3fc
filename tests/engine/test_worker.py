"""The worker and a run in this process, on a tiny model: controls of a run and their effect."""

import math
import threading

import pytest
import torch
from safetensors.torch import load_file
from sqlalchemy import func, select
from support_worker import REWARD

from rlhf_lab.common.checkpoint_index import checkpoint_steps
from rlhf_lab.common.enums import EventKind, JobKind, JobStatus, RunStatus
from rlhf_lab.common.model_files import ADAPTER_FILE
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.engine import distributed_launch, job_handlers
from rlhf_lab.engine import worker as worker_module
from rlhf_lab.engine.policy_run import PolicyRun, RunStopped
from rlhf_lab.engine.worker import Worker
from rlhf_lab.errors import ModelError
from rlhf_lab.jobs import engine_process, queue, retraining, run_control
from rlhf_lab.kernels.compile import describe
from rlhf_lab.store import tables as t
from rlhf_lab.store.projects import create_project
from rlhf_lab.store.reward_models import latest_reward_model, reward_models
from rlhf_lab.store.runs import add_event, events, get_run, pending_events, runs
from rlhf_lab.training.policy import trainer


class Killed(BaseException):
    pass


def test_short_jobs_during_a_run_change_no_number(lab, at):
    plain, run_id = lab.run(), lab.run()
    assert lab.train(plain).result["status"] == "done"
    model = latest_reward_model(lab.db, lab.project.id)
    other = create_project(lab.db, "other", lab.project.model, "", "tiny", 0, [("the cat", "train")])
    jobs = []

    def ask():
        foreign = lab.submit(JobKind.COMPLETE, other.id, prompts=["the cat"])
        for i in range(20):
            checkpoint = ("base", f"run/{plain}/4")[i % 2]
            jobs.append(lab.submit(JobKind.COMPLETE, prompts=["the cat"], checkpoint=checkpoint, seed=i,
                                   max_new_tokens=4, reward_model_id=model.id))  # fmt: skip
        jobs.append(lab.submit(JobKind.SAMPLE_PAIRS, count=3))
        for _ in jobs:
            lab.worker.run_short_job(lab.project.id)
        assert [queue.get_job(lab.db, job.id).status for job in jobs] == [JobStatus.DONE] * 21
        lab.worker.run_short_job(lab.project.id)
        assert queue.get_job(lab.db, foreign.id).status is JobStatus.QUEUED

    at(2, ask)
    lab.train(run_id)
    assert jobs
    assert [step for step, _ in lab.curve(plain)] == [1, 2, 3, 4, 5]
    assert lab.curve(run_id) == lab.curve(plain)


@pytest.mark.parametrize("error", [ModelError, torch.OutOfMemoryError])
def test_a_checkpoint_is_loaded_again_after_another_one_could_not_be(fresh, tmp_path, monkeypatch, error):
    cache = fresh.worker.model_cache
    _, adapters = cache.load_project(fresh.project)
    for name in ("good", "bad"):
        adapters.add("new", r=4, alpha=8, seed=1, trainable=False)
        adapters.save("new", tmp_path / name)
    monkeypatch.setattr(cache, "resolve_checkpoint_folder", lambda name: tmp_path / name)
    load_tensors = adapters.load_tensors

    def fail(*_):
        raise error("no")

    cache.load_checkpoint("good", "slot")
    monkeypatch.setattr(adapters, "load_tensors", fail)
    with pytest.raises(error):
        cache.load_checkpoint("bad", "slot")
    monkeypatch.setattr(adapters, "load_tensors", load_tensors)
    with adapters.using(cache.load_checkpoint("good", "slot")):
        loaded = adapters.tensors("slot")
    assert all(torch.equal(value, loaded[key]) for key, value in load_file(tmp_path / "good" / ADAPTER_FILE).items())


def test_stop_resume_and_engine_exit_repeat_the_curve_with_its_settings(lab, at):
    plain = lab.run()
    add_event(lab.db, plain, EventKind.SET, {"name": "beta", "value": 0.7})
    lab.train(plain)
    assert [event.applied_step for event in events(lab.db, plain)] == [0]
    assert {row["objective/kl_coef"] for _, row in lab.curve(plain)} == {0.7}
    run_id = lab.run()
    add_event(lab.db, run_id, EventKind.SET, {"name": "beta", "value": 0.7})
    at(1, lambda: add_event(lab.db, run_id, EventKind.STOP, {}))
    assert lab.train(run_id).result["status"] == "stopped"
    assert get_run(lab.db, run_id).status is RunStatus.STOPPED
    at(3, lab.worker.request_exit)
    job = lab.train(run_id)
    assert (job.status, get_run(lab.db, run_id).status) == (JobStatus.QUEUED, RunStatus.INTERRUPTED)
    lab.next_engine()
    lab.do(job)
    assert get_run(lab.db, run_id).status is RunStatus.DONE
    assert lab.curve(run_id) == lab.curve(plain)


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_stop_survives_an_exit_before_it_is_stored(lab, at, monkeypatch, is_resumed):
    def killed(*_):
        raise Killed

    run_id = lab.run()
    at(3, lambda: add_event(lab.db, run_id, EventKind.STOP, {}))
    job = lab.submit(JobKind.TRAIN_POLICY, run_id=run_id)
    with monkeypatch.context() as change:
        change.setattr(PolicyRun, "_save_speed", killed)
        with pytest.raises(Killed):
            lab.do(job)
    assert get_run(lab.db, run_id).status is RunStatus.RUNNING
    queue.requeue(lab.db, job.id)
    monkeypatch.setattr(run_control.engine_process, "ensure_engine", lambda *_: None)
    lab.next_engine()
    if not is_resumed:
        assert lab.do(job).result["status"] == "stopped"
        assert (get_run(lab.db, run_id).status, get_run(lab.db, run_id).step) == (RunStatus.STOPPED, 3)
    run_control.resume(lab.db, lab.folder, run_id)
    assert lab.do(run_control.last_job(lab.db, run_id)).status is JobStatus.DONE
    assert get_run(lab.db, run_id).status is RunStatus.DONE


def test_a_resumed_run_keeps_its_prompts(lab, at):
    """An import adds prompts while it is stopped, and texts are no longer sampled for one of its own."""
    plain, run_id = lab.run(), lab.run()
    lab.train(plain)
    at(2, lambda: add_event(lab.db, run_id, EventKind.STOP, {}))
    lab.train(run_id)
    prompts = t.prompts.c
    with lab.db.write() as conn:
        first = conn.execute(select(func.min(prompts.id))).scalar()
        conn.execute(t.prompts.update().where(prompts.id == first).values(labels_only=True))
        for split in ("train", "eval"):
            conn.execute(t.prompts.insert().values(project_id=lab.project.id, text=f"a {split} bird", split=split))
    lab.next_engine()
    lab.train(run_id)
    assert get_run(lab.db, run_id).status is RunStatus.DONE
    assert lab.curve(run_id) == lab.curve(plain)


def test_nan_fails_the_run_keeps_its_checkpoint_and_it_can_be_resumed(lab, monkeypatch):
    plain, run_id = lab.run(), lab.run()
    lab.train(plain)
    check = trainer.check_metrics

    def broken(metrics, dtype, step):
        check(metrics | ({"loss/policy": math.nan} if step == 4 else {}), dtype, step)

    with monkeypatch.context() as context:
        context.setattr(trainer, "check_metrics", broken)
        job = lab.train(run_id)
    assert job.status is JobStatus.FAILED
    assert "NaN" in job.error
    assert get_run(lab.db, run_id).status is RunStatus.FAILED
    assert "resume" in get_run(lab.db, run_id).message
    assert checkpoint_steps(lab.folder / "runs" / str(run_id)) == [2]
    lab.train(run_id)
    assert lab.curve(run_id) == lab.curve(plain)
    messages = [(event.payload["words"], event.applied_step) for event in events(lab.db, run_id)]
    assert messages == [("step 3 taken again", 2)]
    assert not events(lab.db, plain)


def test_a_run_resumed_in_another_dtype_has_a_note(lab, at):
    run_id = lab.run()
    at(1, lambda: add_event(lab.db, run_id, EventKind.STOP, {}))
    lab.train(run_id)
    device = lab.worker.model_cache.device_name
    assert device
    assert "float" not in device
    lab.next_engine()
    lab.worker.model_cache.dtype = torch.bfloat16
    lab.train(run_id)
    assert lab.worker.model_cache.device_name == f"{device}, bfloat16"
    run, reached = get_run(lab.db, run_id), get_run(lab.db, run_id).step
    assert (run.status, run.manifest["machine"]["dtype"]) == (RunStatus.DONE, "bfloat16")
    kernels = describe(torch.bfloat16) if device == "cpu" else "no kernels: not on a CPU"
    assert run.manifest["machine"]["kernels"] == kernels
    (note,) = [event for event in events(lab.db, run_id) if event.kind is EventKind.NOTE]
    assert note.payload["words"] == "computed in bfloat16 from here on, in float32 before"
    assert note.applied_step < reached


@pytest.mark.parametrize("loaded", [False, True])
def test_a_run_resumes_in_its_own_dtype(lab, at, loaded):
    run_id = lab.run()
    at(1, lambda: add_event(lab.db, run_id, EventKind.STOP, {}))
    lab.worker.model_cache.dtype = torch.bfloat16
    lab.worker.model_cache.unload()
    lab.train(run_id)
    lab.next_engine()  # which would load the model in float32
    if loaded:
        assert lab.worker.model_cache.load_project(lab.project)[0].model.dtype == torch.float32
    lab.train(run_id)
    run = get_run(lab.db, run_id)
    assert (run.status, run.manifest["machine"]["dtype"]) == (RunStatus.DONE, "bfloat16")
    assert run.manifest["machine"]["dtype_reason"] == "requested by the caller"
    assert not [event for event in events(lab.db, run_id) if event.kind is EventKind.NOTE]


def test_the_environment_variable_overrules_the_dtype_of_a_run(lab, at, monkeypatch):
    run_id = lab.run()
    at(1, lambda: add_event(lab.db, run_id, EventKind.STOP, {}))
    lab.train(run_id)
    lab.next_engine()
    monkeypatch.setenv("RLHF_LAB_DTYPE", "bfloat16")
    lab.train(run_id)
    assert get_run(lab.db, run_id).manifest["machine"]["dtype"] == "bfloat16"


@pytest.mark.parametrize("before", [["pause", "pause", "resume"], ["pause", "resume"]])
def test_one_resume_ends_every_earlier_pause(lab, at, before):
    run_id = lab.run(steps=2)
    at(0, lambda: [add_event(lab.db, run_id, EventKind(kind), {}) for kind in before])
    give_up = threading.Timer(20, lab.worker.request_exit)
    give_up.start()
    job = lab.train(run_id)
    give_up.cancel()
    assert job.status is JobStatus.DONE
    assert pending_events(lab.db, run_id) == []


def test_an_earlier_resume_does_not_end_a_pause(lab):
    run_id = lab.run(steps=2)
    run = PolicyRun(lab.worker.model_cache, run_id)
    add_event(lab.db, run_id, EventKind.RESUME, {})
    add_event(lab.db, run_id, EventKind.PAUSE, {})
    requested = iter([False, False, True])
    run.should_exit = lambda: next(requested)
    with pytest.raises(RunStopped, match="paused"):
        run.on_progress()
    assert get_run(lab.db, run_id).status is RunStatus.PAUSED


def test_a_cancelled_reward_training_stores_nothing(lab, monkeypatch):
    before = reward_models(lab.db, lab.project.id)
    job = lab.submit(JobKind.TRAIN_REWARD, source="simulated", config=REWARD)
    update = queue.update_progress

    def cancelled(db, job_id, *args):
        queue.cancel(db, job_id)
        return update(db, job_id, *args)

    monkeypatch.setattr(queue, "update_progress", cancelled)
    assert lab.do(job).status is JobStatus.CANCELLED
    assert reward_models(lab.db, lab.project.id) == before


def test_a_reward_training_is_cancelled_in_any_stage(lab, monkeypatch):
    """Features, cross-validation, fits and scores: whenever the engine looks, also where no update reports progress."""
    calls, cancel_at, job = 0, 0, None

    def is_running(db, job_id):
        nonlocal calls
        calls += 1
        if calls == cancel_at:
            queue.cancel(db, job_id)
        return queue.get_job(db, job_id).status is JobStatus.RUNNING

    monkeypatch.setattr(worker_module, "CANCEL_POLL_S", 0.0)
    monkeypatch.setattr(queue, "is_running", is_running)
    update = queue.update_progress
    monkeypatch.setattr(queue, "update_progress", lambda *args: update(*args) or True)  # does not notice it
    config = REWARD | {"folds": 2, "warm_start": True}
    lab.worker.model_cache.references.clear()
    assert lab.train_reward(**config).status is JobStatus.DONE
    before, total = reward_models(lab.db, lab.project.id), calls
    assert total > 10
    for cancel_at in (1, total // 3, 2 * total // 3, total):
        calls = 0
        lab.worker.model_cache.references.clear()  # they are sampled again
        job = lab.train_reward(**config)
        assert job.status is JobStatus.CANCELLED
        assert calls == cancel_at  # it ended there
        assert reward_models(lab.db, lab.project.id) == before
    cancel_at = 0
    assert lab.train_reward(**config).status is JobStatus.DONE


def test_cancelling_while_files_are_written_stores_no_reward_model(lab, monkeypatch):
    before, save = reward_models(lab.db, lab.project.id), job_handlers._save_reward_model
    folders = sorted((lab.folder / "reward_models").iterdir())

    def cancelled(*args):
        retraining.cancel_training(lab.db, lab.project.id)
        return save(*args)

    monkeypatch.setattr(job_handlers, "_save_reward_model", cancelled)
    assert lab.train_reward().status is JobStatus.CANCELLED
    assert reward_models(lab.db, lab.project.id) == before
    assert sorted((lab.folder / "reward_models").iterdir()) == folders


def test_reward_training_is_not_repeated_after_a_late_exit(lab, monkeypatch):
    def killed(*_):
        raise Killed

    count = len(reward_models(lab.db, lab.project.id))
    then_run = {"config": PolicyConfig().to_dict(), "name": "then"}
    job = lab.submit(JobKind.TRAIN_REWARD, source="simulated", config=REWARD, then_run=then_run)
    with monkeypatch.context() as change:
        change.setattr(run_control.engine_process, "ensure_engine", lambda *_: None)
        change.setattr(queue, "finish", killed)
        with pytest.raises(Killed):
            lab.do(job)
        queue.requeue(lab.db, job.id)
        change.undo()
        change.setattr(run_control.engine_process, "ensure_engine", lambda *_: None)
        lab.next_engine()
        assert lab.do(job).status is JobStatus.DONE
    assert len(reward_models(lab.db, lab.project.id)) == count + 1
    assert [run.name for run in runs(lab.db, lab.project.id)] == ["then"]


def test_reward_training_is_requeued_when_the_engine_exits(lab):
    lab.worker.request_exit()
    job = lab.train_reward()
    assert job.status is JobStatus.QUEUED
    lab.next_engine()
    assert lab.do(job).status is JobStatus.DONE


def test_a_run_whose_engine_died_too_often_has_failed(lab, monkeypatch):
    run_id = lab.run()
    job = lab.submit(JobKind.TRAIN_POLICY, run_id=run_id)
    queue.claim(lab.db, [JobKind.TRAIN_POLICY], lab.worker.engine_id)
    with lab.db.write() as conn:
        conn.execute(t.engines.update().values(process_started=1.0))
        conn.execute(t.jobs.update().where(t.jobs.c.id == job.id).values(attempts=queue.MAX_ATTEMPTS - 1))
    worker = Worker(lab.folder, lab.db, idle_exit_s=0)
    worker.run()
    worker.request_exit()  # ends its heartbeat
    assert queue.get_job(lab.db, job.id).status is JobStatus.FAILED
    assert get_run(lab.db, run_id).status is RunStatus.FAILED
    assert engine_process.engine_state(lab.db).row.stopped_at is not None


def test_while_the_model_is_sharded_it_is_not_loaded_in_the_engine(lab, monkeypatch):
    """Other requests get an error with the reason; new pairs wait until the training has ended."""
    requested = lab.submit(JobKind.COMPLETE, prompts=["the cat"], max_new_tokens=2)
    pairs = lab.submit(JobKind.SAMPLE_PAIRS, count=1)
    loaded = []

    def train_policy(home, db, run_id, *, run_short_job, should_exit, report_progress):
        run_short_job()
        run_short_job()
        loaded.append(lab.worker.model_cache.device_name)
        return RunStatus.STOPPED

    monkeypatch.setattr(distributed_launch, "train_policy", train_policy)
    lab.train(lab.run(processes=2, shard_backbone=True))
    assert loaded == [""]
    refused = queue.get_job(lab.db, requested.id)
    assert refused.status is JobStatus.FAILED
    assert "there is not enough memory to load it again" in refused.error
    assert queue.get_job(lab.db, pairs.id).status is JobStatus.QUEUED
    assert lab.do(pairs).status is JobStatus.DONE
    again = lab.submit(JobKind.COMPLETE, prompts=["the cat"], max_new_tokens=2)
    assert lab.do(again).status is JobStatus.DONE
