"""The job that measures how long a project's answers are."""

import pytest

from rlhf_lab.common.enums import JobKind, JobStatus
from rlhf_lab.engine import length_measurement
from rlhf_lab.engine.length_measurement import measure_length
from rlhf_lab.engine.worker import Worker
from rlhf_lab.errors import LabError
from rlhf_lab.jobs import answer_length, queue
from rlhf_lab.jobs.answer_length import measured_rows
from rlhf_lab.models.sampling import sampler

INSTRUCTION = "the good king"


@pytest.fixture
def samplings(lab, monkeypatch):
    """(prompts, responses) of every sampling, in order. The candidates are shorter than usual."""
    recorded, true_sample = [], sampler._sample

    def sample(backbone, prompts, *rest):
        sampled = true_sample(backbone, prompts, *rest)
        recorded.append((list(map(list, prompts)), sampled.tokens))
        return sampled

    monkeypatch.setattr(sampler, "_sample", sample)
    monkeypatch.setattr(length_measurement, "CANDIDATES", (4, 16, 32))
    for module in (length_measurement, answer_length):
        monkeypatch.setattr(module, "INSTRUCTION", INSTRUCTION)
    return recorded


def test_the_rows_are_those_of_the_sampled_lengths(lab, samplings):
    result = measure_length(lab.worker.model_cache, lab.project)
    rows, responses = measured_rows(result), [ids for _, tokens in samplings for ids in tokens]
    backbone, _ = lab.worker.model_cache.load_project(lab.project)
    ended = [len(ids) for ids in responses if ids[-1] in backbone.eos_ids]
    assert [row.max_new_tokens for row in rows] == [4, 16, 32]
    assert {row.adds_instruction for row in rows} == {False}  # this model has no chat template
    assert [row.complete for row in rows] == [sum(length <= limit for length in ended) for limit in (4, 16, 32)]
    assert [row.texts for row in rows] == [len(responses)] * 3
    for row in rows:
        mean = sum(min(len(ids), row.max_new_tokens) for ids in responses) / len(responses)
        assert row.mean_tokens == pytest.approx(mean)
    assert rows[0].seconds <= rows[1].seconds <= rows[2].seconds
    assert result["system_prompt"] == ""


def test_a_chat_model_also_answers_with_the_instruction(lab, samplings):
    """The same prompts, after the instruction as system prompt; afterwards the project's own settings apply."""
    backbone, _ = lab.worker.model_cache.load_project(lab.project)
    backbone.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    rows = measured_rows(measure_length(lab.worker.model_cache, lab.project))
    assert [(row.adds_instruction, row.max_new_tokens) for row in rows] == [
        (adds, limit) for adds in (False, True) for limit in (4, 16, 32)
    ]
    (plain, _), (instructed, _) = samplings[:2]
    words = backbone.tokenizer(INSTRUCTION, add_special_tokens=False).input_ids
    for before, after in zip(plain, instructed, strict=True):
        assert after == [*words, *before]
    assert backbone.chat_settings == lab.project.chat_settings


def test_lengths_stop_at_the_context(lab, samplings, monkeypatch):
    monkeypatch.setattr(length_measurement, "CANDIDATES", (4, 64, 4096))
    backbone, _ = lab.worker.model_cache.load_project(lab.project)
    limits = [row.max_new_tokens for row in measured_rows(measure_length(lab.worker.model_cache, lab.project))]
    assert limits[:-1] == [limit for limit in (4, 64) if limit < limits[-1]]
    assert limits[-1] < backbone.context_length


def test_a_model_that_is_too_slow_is_refused_after_the_budget(lab, samplings):
    with pytest.raises(LabError, match="could not be measured within 0 s"):
        measure_length(lab.worker.model_cache, lab.project, budget_s=0.0)


def test_the_job_stores_its_result_and_lets_short_jobs_run_in_between(lab, samplings, monkeypatch):
    waiting = lab.submit(JobKind.COMPLETE, prompts=["the cat"], max_new_tokens=4)
    order, true_run = [], Worker.run_job

    def run_job(worker, job):
        true_run(worker, job)
        order.append(job.kind)

    monkeypatch.setattr(Worker, "run_job", run_job)
    job = lab.do(lab.submit(JobKind.MEASURE_LENGTH))
    assert job.status is JobStatus.DONE
    assert len(measured_rows(job.result)) == 3
    assert order == [JobKind.COMPLETE, JobKind.MEASURE_LENGTH]
    assert queue.get_job(lab.db, waiting.id).status is JobStatus.DONE
