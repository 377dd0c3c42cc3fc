"""Errors during a job, in this process: out of memory, full disk, bad live settings, and requests to stop."""

import errno
import math
import time
from itertools import pairwise

import pytest
import torch
from support_worker import REWARD

from rlhf_lab.common.checkpoint_index import checkpoint_steps
from rlhf_lab.common.enums import EventKind, JobKind, JobStatus, RunStatus
from rlhf_lab.common.records import RunEvent
from rlhf_lab.engine import job_handlers, policy_run, worker
from rlhf_lab.engine.error_messages import explain_error
from rlhf_lab.engine.model_cache import ModelCache
from rlhf_lab.engine.run_events import effective_events, last_per_setting
from rlhf_lab.errors import StoreError
from rlhf_lab.jobs import queue, run_control, run_lock
from rlhf_lab.models.memory_errors import is_out_of_memory
from rlhf_lab.store.reward_models import latest_reward_model, reward_models
from rlhf_lab.store.runs import add_event, events, get_run
from rlhf_lab.training import checkpoints
from rlhf_lab.training.checkpoints import load_latest
from rlhf_lab.training.policy import trainer, update


def test_a_reverted_setting_is_not_replayed(lab, at, monkeypatch):
    plain, run_id = lab.run(), lab.run()
    at(1, lambda: run_control.set_live_setting(lab.db, plain, "beta", 0.3))
    lab.train(plain)
    check = trainer.check_metrics

    def breaks(metrics, *args):
        check(metrics | ({"loss/policy": math.nan} if metrics["objective/kl_coef"] == 0.9 else {}), *args)

    monkeypatch.setattr(trainer, "check_metrics", breaks)
    at(2, lambda: run_control.set_live_setting(lab.db, run_id, "beta", 0.9))
    assert lab.train(run_id).status is JobStatus.FAILED
    assert checkpoint_steps(lab.folder / "runs" / str(run_id)) == [2]
    assert lab.train(run_id).status is JobStatus.FAILED  # resumed as it was, it fails as it did
    run_control.set_live_setting(lab.db, run_id, "beta", 0.3)
    at(3, lab.worker.request_exit)
    job = lab.train(run_id)
    assert job.status is JobStatus.QUEUED
    lab.next_engine()  # and not after another resume either
    assert lab.do(job).status is JobStatus.DONE
    turned = [event.applied_step for event in events(lab.db, run_id) if event.kind is EventKind.SET]
    assert turned == [3, 2]
    assert lab.curve(run_id) == lab.curve(plain)


def test_effective_events():
    def event(number, step, kind=EventKind.SET, **payload):
        return RunEvent(number, 1, kind, payload, 0.0, step)

    bad = event(1, 6, name="lr", value=1.0)
    other = event(2, 6, name="beta", value=0.2)
    switch = event(3, 7, EventKind.SWITCH_REWARD, reward_model_id=2)
    note = event(4, 7, EventKind.NOTE, micro_batch=1)
    pending = event(5, None, name="beta", value=0.1)
    reset = event(6, 5, name="lr", value=0.001)
    newer = event(7, 9, name="lr", value=0.002)
    switched_back = event(8, 5, EventKind.SWITCH_REWARD, reward_model_id=1)
    assert effective_events([bad, other, switch, note, pending, reset, newer, switched_back]) == [
        other, note, reset, newer, switched_back,
    ]  # fmt: skip


def test_last_per_setting():
    def event(number, kind=EventKind.SET, **payload):
        return RunEvent(number, 1, kind, payload, 0.0, None)

    bad, good = event(1, name="lr", value=1.0), event(5, name="lr", value=0.001)
    switched, switched_again = (event(n, EventKind.SWITCH_REWARD, reward_model_id=n) for n in (2, 6))
    other, note, more = event(3, name="beta", value=0.2), event(4, EventKind.NOTE), event(7, EventKind.NOTE)
    assert last_per_setting([bad, switched, other, note, good, switched_again, more]) == [
        other,
        note,
        good,
        switched_again,
        more,
    ]
    assert last_per_setting([]) == []


def test_only_the_last_of_several_switches_is_loaded(lab, at, monkeypatch):
    """During the run, where all are marked as applied; and on a resume after two that took effect at different steps."""
    first = latest_reward_model(lab.db, lab.project.id).id
    for seed in (7, 8):
        lab.train_reward(seed=seed)
    second, third = (row.id for row in reward_models(lab.db, lab.project.id) if row.id != first)
    run_id, loaded, get = lab.run(), [], ModelCache.reward_model
    with lab.db.write() as conn:
        conn.exec_driver_sql(f"UPDATE runs SET reward_model_id = {first} WHERE id = {run_id}")

    def reward_model(self, reward_model_id, slot):
        if slot == "reward":
            loaded.append(reward_model_id)
        return get(self, reward_model_id, slot)

    def switch_several_times():
        for model in (third, second, first, second):
            run_control.switch_reward_model(lab.db, run_id, model)

    monkeypatch.setattr(ModelCache, "reward_model", reward_model)
    at(1, switch_several_times)
    at(2, lambda: run_control.switch_reward_model(lab.db, run_id, third))
    at(4, lambda: run_control.stop(lab.db, run_id))
    assert lab.train(run_id).result["status"] == "stopped"
    assert loaded == [first, second, third]
    assert [event.applied_step for event in events(lab.db, run_id)][:5] == [2, 2, 2, 2, 3]
    loaded.clear()
    assert lab.train(run_id).status is JobStatus.DONE
    assert loaded == [first, third]


def test_a_note_cancels_no_recorded_event(lab):
    run = policy_run.PolicyRun(lab.worker.model_cache, lab.run())
    replayed = [RunEvent(9, 1, EventKind.NOTE, {"micro_batch": 1}, 0.0, 3)]
    run.events_to_replay = list(replayed)
    add_event(lab.db, run.run.id, EventKind.NOTE, {"words": "processes 2 → 1", "processes": 1})
    run._apply_controls()
    assert run.events_to_replay == replayed
    assert [event.applied_step for event in events(lab.db, run.run.id)] == [0]


def test_a_switch_of_the_reward_model_is_replayed_after_a_stop(lab, at):
    first = latest_reward_model(lab.db, lab.project.id).id
    lab.do(lab.submit(JobKind.TRAIN_REWARD, source="simulated", config=REWARD | {"seed": 7, "epochs": 2}))
    other = latest_reward_model(lab.db, lab.project.id).id
    runs = [lab.run() for _ in range(3)]
    for run_id in runs:
        with lab.db.write() as conn:
            conn.exec_driver_sql(f"UPDATE runs SET reward_model_id = {first} WHERE id = {run_id}")
    unswitched, plain, stopped = runs
    lab.train(unswitched)
    at(1, lambda: run_control.switch_reward_model(lab.db, plain, other))
    lab.train(plain)
    at(1, lambda: run_control.switch_reward_model(lab.db, stopped, other))
    at(4, lambda: run_control.stop(lab.db, stopped))
    assert lab.train(stopped).result["status"] == "stopped"
    lab.train(stopped)
    assert [event.applied_step for event in events(lab.db, plain)] == [2]
    assert lab.curve(plain)[:2] == lab.curve(unswitched)[:2]
    assert lab.curve(plain)[2] != lab.curve(unswitched)[2]
    assert lab.curve(stopped) == lab.curve(plain)


def test_the_adaptive_controller_is_resumed(lab, at):
    changes = {"kl_controller": "adaptive", "kl_target": 0.05, "kl_horizon": 20.0}
    plain, stopped = lab.run(**changes), lab.run(**changes)
    lab.train(plain)
    rows = [row for _, row in lab.curve(plain)]
    for current, following in pairwise(rows):  # Ziegler et al. 2019 §2.2, 6 episodes a step
        error = min(max(current["objective/kl"] / 0.05 - 1, -0.2), 0.2)
        assert following["objective/kl_coef"] == pytest.approx(current["objective/kl_coef"] * (1 + error * 6 / 20))
    assert len({row["objective/kl_coef"] for row in rows}) == 5
    at(3, lambda: run_control.stop(lab.db, stopped))
    lab.train(stopped)
    lab.train(stopped)
    assert lab.curve(stopped) == lab.curve(plain)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory")])
def test_out_of_memory_repeats_the_step_with_a_smaller_micro_batch(lab, at, monkeypatch, error):
    small, run_id = lab.run(batch_size=8, micro_batch=2), lab.run(batch_size=8, micro_batch=32)
    lab.train(small)
    accumulate = update.minibatch_backward

    def greedy(state, rollout, minibatch, stats):
        if len(minibatch[0]) > 2:
            accumulate(state, rollout, minibatch, stats)  # half the work is done when memory runs out
            raise error
        return accumulate(state, rollout, minibatch, stats)

    monkeypatch.setattr(update, "minibatch_backward", greedy)
    at(3, lambda: run_control.stop(lab.db, run_id))
    lab.train(run_id)
    monkeypatch.setattr(update, "minibatch_backward", accumulate)
    lab.train(run_id)  # although there is enough memory now, the noted micro_batch is used
    (note,) = [event for event in events(lab.db, run_id) if event.kind is EventKind.NOTE]
    assert (note.applied_step, note.payload["micro_batch"]) == (0, 2)
    assert "memory ran out in step 1" in note.payload["words"]
    assert lab.curve(run_id) == lab.curve(small)


def test_permanent_out_of_memory_fails_the_run_with_advice(lab, monkeypatch):
    run_id = lab.run()

    def out_of_memory(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(update, "minibatch_backward", out_of_memory)
    job = lab.train(run_id)
    assert job.status is JobStatus.FAILED
    assert "smaller batch_size" in get_run(lab.db, run_id).message
    assert [event.payload["micro_batch"] for event in events(lab.db, run_id)] == [1]
    assert not is_out_of_memory(RuntimeError("shapes differ"))
    assert "shapes differ" in explain_error(RuntimeError("shapes differ"))


def test_out_of_memory_halves_the_batch_of_reward_training(lab, monkeypatch):
    train, sizes = job_handlers.train_reward, []

    def greedy(adapters, labels, reference, config, **options):
        sizes.append(config.batch_size)
        if config.batch_size > 3:
            raise RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
            )
        return train(adapters, labels, reference, config, **options)

    monkeypatch.setattr(job_handlers, "train_reward", greedy)
    assert (
        lab.do(lab.submit(JobKind.TRAIN_REWARD, source="simulated", config=REWARD | {"batch_size": 16})).status
        == "done"
    )
    assert sizes == [16, 6, 3]
    assert latest_reward_model(lab.db, lab.project.id).config["batch_size"] == 3


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_at_a_checkpoint_fails_the_run_and_it_resumes_when_there_is_space(lab, monkeypatch):
    plain, run_id = lab.run(), lab.run()
    lab.train(plain)
    save = checkpoints.save_file
    folder = lab.folder / "runs" / str(run_id)
    with monkeypatch.context() as disk:
        disk.setattr(checkpoints, "save_file", lambda *args: full() if checkpoint_steps(folder) else save(*args))
        job = lab.train(run_id)
    assert job.status is JobStatus.FAILED
    assert "Free some disk space and resume" in get_run(lab.db, run_id).message
    assert checkpoint_steps(folder) == [2]
    assert list(folder.glob(".building-*")) == []
    assert lab.train(run_id).status is JobStatus.DONE
    assert lab.curve(run_id) == lab.curve(plain)


def test_a_full_disk_leaves_no_partial_reward_model(lab, monkeypatch):
    before = reward_models(lab.db, lab.project.id)
    folders = sorted((lab.folder / "reward_models").iterdir())
    with monkeypatch.context() as disk:
        disk.setattr("rlhf_lab.models.reward_model.save_file", full)
        job = lab.train_reward()
    assert job.status is JobStatus.FAILED
    assert "Free some disk space" in job.error
    assert reward_models(lab.db, lab.project.id) == before
    assert sorted((lab.folder / "reward_models").iterdir()) == folders
    assert lab.train_reward().status is JobStatus.DONE


def test_a_result_that_cannot_be_stored_is_stored_later(lab, monkeypatch):
    """Its run is done, and stays so."""
    original, attempts = queue.finish, []

    def refused_once(*args):
        attempts.append(1)
        if len(attempts) == 1:
            raise StoreError("The database failed: the disk is full.")
        return original(*args)

    monkeypatch.setattr(worker, "RETRY_INTERVAL_S", 0.0)
    monkeypatch.setattr(queue, "finish", refused_once)
    run_id = lab.run(steps=1)
    assert lab.train(run_id).status is JobStatus.DONE
    assert get_run(lab.db, run_id).status is RunStatus.DONE
    assert len(attempts) == 2


def test_a_result_that_can_never_be_stored_fails_its_job(lab, monkeypatch):
    monkeypatch.setattr(worker, "RESULT_RETRY_S", -1.0)
    monkeypatch.setattr(worker, "pairs_job", lambda *_, **__: {"text": object()})  # no JSON
    job = lab.do(lab.submit(JobKind.SAMPLE_PAIRS, count=1))
    assert job.status is JobStatus.FAILED
    assert "nothing was stored" in job.error


def test_requeueing_a_short_job_is_retried(lab, monkeypatch):
    original, attempts = queue.requeue, []

    def refused_once(*args):
        attempts.append(1)
        if len(attempts) == 1:
            raise StoreError("The database failed: the disk is full.")
        return original(*args)

    def dropped(*_, **__):
        raise worker._JobAborted

    monkeypatch.setattr(worker, "RETRY_INTERVAL_S", 0.0)
    monkeypatch.setattr(worker, "pairs_job", dropped)
    monkeypatch.setattr(queue, "requeue", refused_once)
    assert lab.do(lab.submit(JobKind.SAMPLE_PAIRS, count=1)).status is JobStatus.QUEUED
    assert len(attempts) == 2


@pytest.mark.parametrize(("error", "traced"), [(StoreError("The disk is full."), False), (KeyError("x"), True)])
def test_only_unexpected_errors_have_a_traceback_in_the_log(lab, error, traced, monkeypatch, caplog):
    def broken(*_):
        raise error

    monkeypatch.setattr(worker.Worker, "_dispatch", broken)
    assert lab.train(lab.run(steps=2)).status is JobStatus.FAILED
    assert ("Traceback" in caplog.text) is traced
    assert str(error) in caplog.text


def test_recording_a_failure_is_retried(lab, monkeypatch):
    run_id = lab.run(steps=2)
    fail, attempts = queue.fail, []

    def refused(*_, **__):
        raise StoreError("The database failed: the disk is full.")

    def refused_twice(*args):
        attempts.append(1)
        return refused() if len(attempts) < 3 else fail(*args)

    monkeypatch.setattr(worker, "RETRY_INTERVAL_S", 0.0)
    monkeypatch.setattr("rlhf_lab.engine.policy_run.record_step", refused)
    monkeypatch.setattr(queue, "fail", refused_twice)
    job = lab.train(run_id)
    assert len(attempts) == 3
    assert job.status is JobStatus.FAILED
    assert "disk is full" in job.error
    assert get_run(lab.db, run_id).status is RunStatus.FAILED


def test_a_crash_while_a_checkpoint_is_replaced_leaves_the_old_one(lab, at, monkeypatch):
    run_id = lab.run()
    at(2, lambda: run_control.stop(lab.db, run_id))
    lab.train(run_id)
    folder = lab.folder / "runs" / str(run_id)
    tensors, numbers = load_latest(folder)
    rename = type(folder).rename

    def crash(path, target):
        if path.name.startswith(".building-"):
            raise KeyboardInterrupt
        return rename(path, target)

    adapters = lab.worker.model_cache.load_project(lab.project)[1]
    with monkeypatch.context() as power:
        power.setattr(type(folder), "rename", crash)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.save_checkpoint(folder, adapters, "policy", tensors, numbers | {"beta": 9.0})
    assert list(folder.glob(".building-*"))
    assert load_latest(folder)[1] == numbers
    assert list(folder.glob(".*")) == []
    checkpoints.save_checkpoint(folder, adapters, "policy", tensors, numbers | {"beta": 9.0})
    assert load_latest(folder)[1]["beta"] == 9.0
    assert {path.name for path in folder.iterdir()} == {"step-000002", run_lock.LOCK_FILE, run_lock.OWNER_FILE}


@pytest.mark.parametrize("kind", [EventKind.STOP, EventKind.PAUSE])
def test_a_short_job_is_requeued_when_the_run_is_to_halt(lab, at, monkeypatch, kind):
    run_id, requested = lab.run(steps=2), []
    complete = worker.complete

    def long(*args, on_progress, **options):
        if requested:
            return complete(*args, on_progress=on_progress, **options)
        requested.append(add_event(lab.db, run_id, kind, {}))
        for _ in range(2000):
            on_progress()  # raises when the job is to be interrupted
            time.sleep(0.005)
        raise AssertionError("the short job was not interrupted")

    monkeypatch.setattr(worker, "complete", long)
    jobs = []

    def ask():
        jobs.append(lab.submit(JobKind.COMPLETE, prompts=["the cat"], max_new_tokens=2))
        if kind is EventKind.PAUSE:  # the job ends while the run is paused, and only then the run is resumed
            finish = queue.finish
            monkeypatch.setattr(
                queue, "finish", lambda *args: add_event(lab.db, run_id, EventKind.RESUME, {}) and finish(*args)
            )

    at(1, ask)
    status = lab.train(run_id).result["status"]
    job_status = queue.get_job(lab.db, jobs[0].id).status
    assert (status, job_status) == (("stopped", "queued") if kind is EventKind.STOP else ("done", "done"))
