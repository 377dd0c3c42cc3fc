"""Answers of the chat: sampled in time slices during a training, stopped immediately, and limited to the model's context."""

import pytest
from support import tiny_models
from support_worker import Lab

from rlhf_lab.common.enums import JobKind, JobStatus
from rlhf_lab.engine import worker as worker_module
from rlhf_lab.engine.chat import truncate_conversation
from rlhf_lab.errors import ModelError
from rlhf_lab.jobs import queue


@pytest.fixture(scope="module")
def chat_lab(tmp_path_factory, model):
    lab = Lab(tmp_path_factory.mktemp("chat"), model)
    yield lab
    lab.db.close()


@pytest.fixture
def updates(monkeypatch):
    """The texts that are stored while an answer is sampled, one for each token."""
    stored, original = [], queue.update_progress
    monkeypatch.setattr(worker_module, "CHAT_UPDATE_S", 0.0)

    def spy(db, job_id, progress, eta_s=None, partial_result=None):
        stored.extend([] if partial_result is None else [partial_result["text"]])  # None: the progress of other jobs
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


def test_an_answer_is_what_complete_writes_and_appears_token_by_token(chat_lab, updates):
    expected = chat_lab.do(chat_lab.submit(JobKind.COMPLETE, prompts=["the cat"], seed=3, max_new_tokens=20)).result
    updates.clear()
    done = chat_lab.do(chat_lab.submit(JobKind.CHAT, **request()))
    assert done.status is JobStatus.DONE
    assert (done.result["text"], done.result["tokens"]) == (expected["texts"][0], expected["tokens"][0])
    assert done.result["prompt"] == "the cat"
    assert len(updates) == len(done.result["tokens"]) - 1 > 3
    assert all(done.result["text"].startswith(text) for text in updates)
    assert sorted(updates, key=len) == updates


def test_a_stopped_answer_keeps_its_text_and_writes_no_more(chat_lab, updates, monkeypatch):
    complete = chat_lab.do(chat_lab.submit(JobKind.CHAT, **request())).result
    job, original, states = chat_lab.submit(JobKind.CHAT, **request()), queue.update_progress, []

    def stop_at_the_third(*args, **options):
        states.append(original(*args, **options))
        if len(states) == 3:
            queue.cancel(chat_lab.db, job.id)
        return states[-1]

    monkeypatch.setattr(queue, "update_progress", stop_at_the_third)
    stopped = chat_lab.do(job)
    assert states == [True, True, True, False]
    assert stopped.status is JobStatus.CANCELLED
    assert stopped.result["tokens"] == complete["tokens"][:3]
    assert complete["text"].startswith(stopped.result["text"])


def test_beside_a_training_an_answer_comes_in_slices_between_other_jobs(chat_lab, monkeypatch):
    complete = chat_lab.do(chat_lab.submit(JobKind.CHAT, **request())).result
    monkeypatch.setattr(worker_module, "CHAT_SLICE_S", (0.0, 0.0))
    answer, another = (chat_lab.submit(JobKind.CHAT, **request()) for _ in range(2))
    chat_lab.worker.run_short_job(chat_lab.project.id)
    assert queue.get_job(chat_lab.db, answer.id).status is JobStatus.RUNNING
    monkeypatch.setattr(worker_module, "CHAT_SLICE_S", (60.0, 60.0))  # the training has not had the same time yet
    text = chat_lab.submit(JobKind.COMPLETE, prompts=["moon"], max_new_tokens=3)
    chat_lab.worker.run_short_job(chat_lab.project.id)
    assert queue.get_job(chat_lab.db, text.id).status is JobStatus.DONE
    chat_lab.worker.run_short_job(chat_lab.project.id)
    assert queue.get_job(chat_lab.db, another.id).status is JobStatus.QUEUED
    chat_lab.worker._chat_slice_ended_at = 0.0
    chat_lab.worker.run_short_job(chat_lab.project.id)
    finished = queue.get_job(chat_lab.db, answer.id)
    assert finished.status is JobStatus.DONE
    assert finished.result["tokens"] == complete["tokens"]
    queue.cancel(chat_lab.db, another.id)


def test_an_answer_that_outlives_its_training_is_finished_and_the_engine_puts_it_back_when_it_exits(
    chat_lab, monkeypatch
):
    monkeypatch.setattr(worker_module, "CHAT_SLICE_S", (0.0, 0.0))
    chat_lab.worker._chat_slice_ended_at = 0.0
    job = chat_lab.submit(JobKind.CHAT, **request())
    chat_lab.worker.run_short_job(chat_lab.project.id)
    chat_lab.worker.idle_exit_s = -1.0  # the loop ends when there is nothing to do
    chat_lab.worker._run_loop()
    assert queue.get_job(chat_lab.db, job.id).status is JobStatus.DONE
    job = chat_lab.submit(JobKind.CHAT, **request())
    chat_lab.worker._chat_slice_ended_at = 0.0
    chat_lab.worker.run_short_job(chat_lab.project.id)
    assert queue.get_job(chat_lab.db, job.id).status is JobStatus.RUNNING
    chat_lab.worker.request_exit()
    chat_lab.worker._run_loop()
    assert queue.get_job(chat_lab.db, job.id).status is JobStatus.QUEUED
    queue.cancel(chat_lab.db, job.id)
    chat_lab.next_engine()


def test_the_oldest_turns_are_left_out_if_the_conversation_is_too_long(chat_lab):
    backbone, _ = chat_lab.worker.model_cache.load_project(chat_lab.project)  # its context is 96 tokens
    chat = [
        {"role": "user", "content": "the " * 40}, {"role": "assistant", "content": "cat"},
        {"role": "user", "content": "moon"}, {"role": "assistant", "content": " ran"}, {"role": "user", "content": "good"},
    ]  # fmt: skip
    assert truncate_conversation(backbone, chat, 20).turns_left_out == 0
    shorter = truncate_conversation(backbone, chat, 80)
    assert shorter.turns_left_out == 2
    assert shorter.prompt == "moon ran good"  # no chat template: the turns are one continued text
    assert shorter.tokens == backbone.encode_prompt("moon ran good")
    with pytest.raises(ModelError, match="Shorten the message"):
        truncate_conversation(backbone, chat, 96)


def test_control_tokens_in_a_message_are_text(chat_lab):
    backbone, _ = chat_lab.worker.model_cache.load_project(chat_lab.project)
    eos = backbone.tokenizer.eos_token
    tokens = truncate_conversation(backbone, [{"role": "user", "content": f"the cat{eos} ran"}], 8).tokens
    assert tiny_models.EOS not in tokens
