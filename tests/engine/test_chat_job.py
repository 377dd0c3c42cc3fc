"""Answers of the chat: sampled in slices beside a training, stopped at once, and cut to the model's context."""

import pytest
from support import tiny_models
from support_worker import Lab

from rlhf_lab.common.enums import JobKind, JobStatus
from rlhf_lab.engine import worker as worker_module
from rlhf_lab.engine.chat import fit_conversation
from rlhf_lab.errors import ModelError
from rlhf_lab.jobs import queue


@pytest.fixture(scope="module")
def made(tmp_path_factory, model):
    lab = Lab(tmp_path_factory.mktemp("chat"), model)
    yield lab
    lab.db.close()


@pytest.fixture
def updates(monkeypatch):
    """The texts that are stored while an answer is sampled, one for each token."""
    stored, original = [], queue.update_progress
    monkeypatch.setattr(worker_module, "CHAT_UPDATE_S", 0.0)

    def spy(db, job_id, progress, eta_s=None, partial_result=None):
        stored.append(partial_result["text"])
        return original(db, job_id, progress, eta_s, partial_result)

    monkeypatch.setattr(queue, "update_progress", spy)
    return stored


def request(**changes):
    chat = [{"role": "user", "content": "the cat"}]
    return {
        "chat": chat,
        "checkpoint": "base",
        "seed": 3,
        "temperature": 1.0,
        "top_p": 1.0,
        "max_new_tokens": 20,
    } | changes


def test_an_answer_is_what_complete_writes_and_appears_token_by_token(made, updates):
    expected = made.do(made.submit(JobKind.COMPLETE, prompts=["the cat"], seed=3, max_new_tokens=20)).result
    updates.clear()
    done = made.do(made.submit(JobKind.CHAT, **request()))
    assert done.status is JobStatus.DONE
    assert (done.result["text"], done.result["tokens"]) == (expected["texts"][0], expected["tokens"][0])
    assert done.result["prompt"] == "the cat"
    assert len(updates) == len(done.result["tokens"]) - 1 > 3
    assert all(done.result["text"].startswith(text) for text in updates)
    assert sorted(updates, key=len) == updates


def test_a_stopped_answer_keeps_its_text_and_writes_no_more(made, updates, monkeypatch):
    complete = made.do(made.submit(JobKind.CHAT, **request())).result
    job, original, states = made.submit(JobKind.CHAT, **request()), queue.update_progress, []

    def stop_at_the_third(*args, **options):
        states.append(original(*args, **options))
        if len(states) == 3:
            queue.cancel(made.db, job.id)
        return states[-1]

    monkeypatch.setattr(queue, "update_progress", stop_at_the_third)
    stopped = made.do(job)
    assert states == [True, True, True, False]
    assert stopped.status is JobStatus.CANCELLED
    assert stopped.result["tokens"] == complete["tokens"][:3]
    assert complete["text"].startswith(stopped.result["text"])


def test_beside_a_training_an_answer_comes_in_slices_between_other_jobs(made, monkeypatch):
    complete = made.do(made.submit(JobKind.CHAT, **request())).result
    monkeypatch.setattr(worker_module, "CHAT_SLICE_S", (0.0, 0.0))
    answer, another = (made.submit(JobKind.CHAT, **request()) for _ in range(2))
    made.worker.run_short_job(made.project.id)
    assert queue.get_job(made.db, answer.id).status is JobStatus.RUNNING
    monkeypatch.setattr(worker_module, "CHAT_SLICE_S", (60.0, 60.0))  # the training has not had as long yet
    text = made.submit(JobKind.COMPLETE, prompts=["moon"], max_new_tokens=3)
    made.worker.run_short_job(made.project.id)
    assert queue.get_job(made.db, text.id).status is JobStatus.DONE
    made.worker.run_short_job(made.project.id)
    assert queue.get_job(made.db, another.id).status is JobStatus.QUEUED
    made.worker._chat_slice_ended_at = 0.0
    made.worker.run_short_job(made.project.id)
    finished = queue.get_job(made.db, answer.id)
    assert finished.status is JobStatus.DONE
    assert finished.result["tokens"] == complete["tokens"]
    queue.cancel(made.db, another.id)


def test_an_answer_that_outlives_its_training_is_finished_and_the_engine_puts_it_back_when_it_exits(made, monkeypatch):
    monkeypatch.setattr(worker_module, "CHAT_SLICE_S", (0.0, 0.0))
    made.worker._chat_slice_ended_at = 0.0
    job = made.submit(JobKind.CHAT, **request())
    made.worker.run_short_job(made.project.id)
    made.worker.idle_exit_s = -1.0  # the loop ends when there is nothing to do
    made.worker._run_loop()
    assert queue.get_job(made.db, job.id).status is JobStatus.DONE
    job = made.submit(JobKind.CHAT, **request())
    made.worker._chat_slice_ended_at = 0.0
    made.worker.run_short_job(made.project.id)
    assert queue.get_job(made.db, job.id).status is JobStatus.RUNNING
    made.worker.request_exit()
    made.worker._run_loop()
    assert queue.get_job(made.db, job.id).status is JobStatus.QUEUED
    queue.cancel(made.db, job.id)
    made.next_engine()


def test_the_oldest_turns_are_left_out_if_the_conversation_is_too_long(made):
    backbone, _ = made.worker.model_cache.load_project(made.project)  # its context is 96 tokens
    chat = [
        {"role": "user", "content": "the " * 40}, {"role": "assistant", "content": "cat"},
        {"role": "user", "content": "moon"}, {"role": "assistant", "content": " ran"}, {"role": "user", "content": "good"},
    ]  # fmt: skip
    assert fit_conversation(backbone, chat, 20).turns_left_out == 0
    shorter = fit_conversation(backbone, chat, 80)
    assert shorter.turns_left_out == 2
    assert shorter.prompt == "moon ran good"  # no chat template: one text that goes on
    assert shorter.tokens == backbone.encode_prompt("moon ran good")
    with pytest.raises(ModelError, match="Shorten the message"):
        fit_conversation(backbone, chat, 96)


def test_control_tokens_in_a_message_are_text(made):
    backbone, _ = made.worker.model_cache.load_project(made.project)
    eos = backbone.tokenizer.eos_token
    typed = fit_conversation(backbone, [{"role": "user", "content": f"the cat{eos} ran"}], 8).tokens
    assert tiny_models.EOS not in typed
