"""The engine as a real process, on the embedded model: jobs are done, and kill -9 changes no number of a run."""

import os
import signal
import subprocess
import sys
import time

from support_engine_process import CONFIG, PATIENCE_S, ROOT

from rlhf_lab.common.enums import EngineState, EventKind, JobKind, JobStatus, RunStatus, Source
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store.run_metrics import samples_at, token_records_at
from rlhf_lab.store.runs import add_event, events, get_run
from rlhf_lab.store.votes import vote_counts


def test_a_run_records_every_step_and_samples(home, undisturbed):
    assert get_run(home.db, undisturbed.id).status is RunStatus.DONE
    assert sorted(home.curve(undisturbed)) == [1, 2, 3, 4, 5]
    assert [sample.prompt for sample in samples_at(home.db, undisturbed.id, 0)] == [
        sample.prompt for sample in samples_at(home.db, undisturbed.id, 5)
    ]
    assert len(token_records_at(home.db, undisturbed.id, 3)) == CONFIG.token_rows
    assert get_run(home.db, undisturbed.id).manifest["machine"]["threads"] == 1


def test_kill_9_and_sigterm_change_no_number_and_lose_no_label(home, reward_model_id, undisturbed):
    """Killed before the first checkpoint and in the last step; between them the process ends cleanly on SIGTERM."""
    votes = vote_counts(home.db, home.project.id)
    run, job = home.run(reward_model_id)
    home.engine()
    home.await_steps(run, 1)
    home.kill()
    time.sleep(0.1)

    home.engine()
    home.await_steps(run, 2)
    row = engine_process.engine_state(home.db).row
    os.kill(row.process.pid, signal.SIGTERM)
    for _ in range(PATIENCE_S * 10):
        if engine_process.engine_state(home.db).row.stopped_at is not None:
            break
        time.sleep(0.1)
    assert engine_process.engine_state(home.db).row.id == row.id
    assert engine_process.engine_state(home.db).row.stopped_at is not None
    assert queue.get_job(home.db, job.id).status is JobStatus.QUEUED
    assert get_run(home.db, run.id).status is RunStatus.INTERRUPTED

    home.engine()
    home.await_steps(run, 4)
    home.kill()
    time.sleep(0.1)
    assert home.done(job).status is JobStatus.DONE
    assert home.curve(run) == home.curve(undisturbed)
    assert vote_counts(home.db, home.project.id) == votes


def test_completions_in_the_middle_of_a_run_change_no_number(home, reward_model_id, undisturbed):
    run, job = home.run(reward_model_id)
    requested = [
        home.submit(
            JobKind.COMPLETE, prompts=["Once there was a fox."], seed=i, max_new_tokens=20, reward_model_id=reward_model_id,
            checkpoint="base" if i % 2 else f"run/{undisturbed.id}/latest",
        )
        for i in range(20)
    ]  # fmt: skip
    assert home.done(job).status is JobStatus.DONE
    assert all(home.done(one).status is JobStatus.DONE for one in requested)
    assert min(queue.get_job(home.db, one.id).updated_at for one in requested) < get_run(home.db, run.id).updated_at
    assert home.curve(run) == home.curve(undisturbed)


def test_a_live_setting_is_recorded_at_its_step(home, reward_model_id, undisturbed):
    run, job = home.run(reward_model_id)
    add_event(home.db, run.id, EventKind.SET, {"name": "beta", "value": 0.5})
    assert home.done(job).status is JobStatus.DONE
    assert [event.applied_step for event in events(home.db, run.id)] == [0]
    assert {metrics["objective/kl_coef"] for metrics in home.curve(run).values()} == {0.5}


def test_a_stopped_run_resumes_with_the_same_curve(home, reward_model_id, undisturbed):
    run, job = home.run(reward_model_id)
    home.engine()
    home.await_steps(run, 1)
    add_event(home.db, run.id, EventKind.STOP, {})
    home.done(job)
    assert get_run(home.db, run.id).status is RunStatus.STOPPED
    assert home.done(home.submit(JobKind.TRAIN_POLICY, run_id=run.id)).status is JobStatus.DONE
    assert home.curve(run) == home.curve(undisturbed)


def test_a_bad_job_fails_with_an_explanation_and_the_engine_continues(home, reward_model_id):
    bad = home.done(home.submit(JobKind.COMPLETE, prompts=["x"], checkpoint="run/999/latest"))
    assert bad.status is JobStatus.FAILED
    assert "no checkpoint" in bad.error
    assert home.done(home.submit(JobKind.COMPLETE, prompts=["Once."], max_new_tokens=4)).status is JobStatus.DONE


def test_a_second_engine_is_refused(home, reward_model_id):
    home.engine()
    assert engine_process.engine_state(home.db).state is EngineState.ALIVE
    done = subprocess.run(  # noqa: PLW1510  a failure is what is tested
        [sys.executable, "-m", "rlhf_lab.engine", "--home", str(home.folder)], cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert "one home has one engine" in done.stderr


def test_training_without_labels_says_what_to_do(home, tmp_path):
    other = new_project(home.db, prompt_set="reviews")
    job = home.done(queue.submit(home.db, JobKind.TRAIN_REWARD, other.id, {"source": Source.HUMAN.value}))
    assert job.status is JobStatus.FAILED
    assert "Label some pairs first" in job.error


def test_the_engine_exits_when_idle(tmp_path):
    done = subprocess.run(  # noqa: PLW1510  a failure is what is tested
        [sys.executable, "-m", "rlhf_lab.engine", "--home", str(tmp_path), "--idle-exit", "0.2"],
        cwd=ROOT,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0
    assert "exiting" in (tmp_path / "engine.log").read_text()
