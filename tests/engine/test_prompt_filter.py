"""Prompts that are too long for the model are left out and reported; jobs use the others."""

import json

import pytest
from support import tiny_models
from support_worker import Lab

from rlhf_lab.cli import demo
from rlhf_lab.cli.main import main
from rlhf_lab.common.enums import EventKind, JobKind, JobStatus
from rlhf_lab.common.records import Prompt
from rlhf_lab.engine import pair_sampling
from rlhf_lab.engine.pair_sampling import PairRequest, sample_pairs
from rlhf_lab.engine.policy_run import PolicyRun
from rlhf_lab.engine.prompt_filter import filter_prompts
from rlhf_lab.errors import LabelError, ModelError
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.judges.builtin import JUDGES
from rlhf_lab.store import tables as t
from rlhf_lab.store.projects import prompts
from rlhf_lab.store.reward_models import latest_reward_model
from rlhf_lab.store.run_metrics import samples_at
from rlhf_lab.store.runs import events, get_run
from rlhf_lab.ui.compare.blind_results import left_out_note, pair_texts
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.shared.generation_requests import SamplingPayload, submit_completions

LONG = "the " * 200  # the context is 96


def of_lengths(*words):
    return [Prompt(i, 1, "the " * count, "train") for i, count in enumerate(words)]


@pytest.fixture
def backbone(model):
    return tiny_models.load(model)


def test_default_response_length_fits_the_longest_usual_prompt(backbone):
    assert backbone.context_length == 96
    fit = filter_prompts(backbone, of_lengths(3, 48, 5, 49, 96, 97), 64, shortens=True)
    assert ([p.id for p in fit.prompts], fit.response_length, fit.too_long_count) == ([0, 1, 2], 48, 3)
    assert fit.message == "3 prompts left out: too long for the model with 48 new tokens"
    fit = filter_prompts(backbone, of_lengths(3, 32), 64, shortens=True)
    assert (len(fit.prompts), fit.response_length, fit.too_long_count, fit.message) == (2, 64, 0, "")


def test_with_only_long_prompts_the_shortest_sets_the_response_length(backbone):
    fit = filter_prompts(backbone, of_lengths(95, 90, 91), 64, shortens=True)
    assert ([p.id for p in fit.prompts], fit.response_length, fit.too_long_count) == ([1], 6, 2)


def test_max_new_tokens_is_used(backbone):
    fit = filter_prompts(backbone, of_lengths(3, 48, 91, 92), 5)
    assert ([p.id for p in fit.prompts], fit.response_length, fit.too_long_count) == ([0, 1, 2], 5, 1)
    assert fit.message == "1 prompt left out: too long for the model with 5 new tokens"
    assert filter_prompts(backbone, [], 5) == ([], 5, 0)


@pytest.mark.parametrize(("words", "max_new_tokens"), [((96, 200), None), ((95,), 2)])
def test_no_fitting_prompt_is_an_error_with_advice(backbone, words, max_new_tokens):
    with pytest.raises(ModelError, match=rf"the shortest takes {words[0]}.*reads 96 in all.*longer context"):
        filter_prompts(backbone, of_lengths(*words), max_new_tokens or 64, shortens=max_new_tokens is None)


def too_long(lab):
    """Add a prompt to each split that leaves no room for a response."""
    with lab.db.write() as conn:
        for part in ("train", "eval"):
            row = {"project_id": lab.project.id, "text": LONG + part, "split": part, "labels_only": False}
            conn.execute(t.prompts.insert().values(**row))


def test_a_prompt_that_is_too_long_does_not_fail_pairs_or_runs(lab, caplog):
    too_long(lab)
    assert {pair.prompt.text for pair in sample_pairs(lab.worker.model_cache, lab.project, PairRequest(12))} == set(
        tiny_models.PROMPTS
    )
    assert "1 prompt left out: too long for the model with 64 new tokens" in caplog.text
    assert lab.train_reward().status is JobStatus.DONE
    run_id = lab.run(sample_count=6)
    assert lab.train(run_id).result["status"] == "done"
    (note,) = events(lab.db, run_id)
    assert (note.kind, note.applied_step) == (EventKind.NOTE, 0)
    words = get_run(lab.db, run_id).config["max_new_tokens"]
    assert note.payload == {"words": f"1 prompt left out: too long for the model with {words} new tokens"}
    stored = [prompt.text for prompt in prompts(lab.db, lab.project.id, "eval")]
    assert [sample.prompt for sample in samples_at(lab.db, run_id, 0)] == stored[:-1]


def test_other_prompts_are_sampled_as_without_the_long_one(tmp_path, model):
    sampled = []
    for name in ("with", "without"):
        lab = Lab(tmp_path / name, model)
        if name == "with":
            too_long(lab)
        pairs = sample_pairs(lab.worker.model_cache, lab.project, PairRequest(12))
        sampled.append([(pair.prompt.text, pair.first.text, pair.second.text) for pair in pairs])
        lab.db.close()
    assert sampled[0] == sampled[1]


def test_the_error_of_too_few_pairs_includes_the_skipped_prompts(lab, monkeypatch):
    monkeypatch.setattr(pair_sampling, "_sample_groups", lambda *_: ([], True))
    with pytest.raises(LabelError) as plain:
        sample_pairs(lab.worker.model_cache, lab.project, PairRequest(3))
    too_long(lab)
    with pytest.raises(LabelError) as actual:
        sample_pairs(lab.worker.model_cache, lab.project, PairRequest(3))
    assert str(actual.value) == f"{plain.value} 1 prompt left out: too long for the model with 64 new tokens."


def test_complete_skips_long_prompts_with_leave_out(lab):
    """91 words and 5 new tokens fill the context of 96."""
    fits, scorer = ["the " * 91, "moon", "the cat"], latest_reward_model(lab.db, lab.project.id).id
    ask = {"max_new_tokens": 5, "reward_model_id": scorer, "words": True}
    plain = lab.do(lab.submit(JobKind.COMPLETE, prompts=fits, **ask)).result
    assert "left_out" not in plain
    requested = [fits[0], "the " * 92, fits[1], LONG, fits[2]]
    done = lab.do(lab.submit(JobKind.COMPLETE, prompts=requested, leave_out=True, **ask)).result
    assert done == plain | {"left_out": [1, 3]}  # each word as if the others were not there
    assert len(done["texts"]) == len(done["scores"]) == len(done["token_scores"]) == 3
    assert lab.do(lab.submit(JobKind.COMPLETE, prompts=fits, leave_out=True, **ask)).result == plain | {"left_out": []}
    job = lab.do(lab.submit(JobKind.COMPLETE, prompts=requested, **ask))  # a prompt entered by a person is not left out
    assert job.status is JobStatus.FAILED
    assert "a prompt of 200 tokens and a response of 5 do not fit" in job.error
    job = lab.do(lab.submit(JobKind.COMPLETE, prompts=[LONG, "the " * 92], leave_out=True, **ask))
    assert job.status is JobStatus.FAILED
    assert "no prompt leaves room for a response of 5 tokens: the shortest takes 92" in job.error


def test_default_length_of_completions_fits_the_usual_prompts(lab):
    """48 words leave room for 48 tokens, which do not fit behind 49 words."""
    requested = [LONG, "the " * 48, "the " * 49]
    done = lab.do(lab.submit(JobKind.COMPLETE, prompts=requested, leave_out=True)).result
    assert (done["left_out"], len(done["texts"])) == ([0, 2], 1)
    assert len(done["tokens"][0]) <= 48


def test_the_pairs_job_reports_skipped_prompts(lab):
    assert lab.do(lab.submit(JobKind.SAMPLE_PAIRS, count=2)).result["note"] == ""
    too_long(lab)
    done = lab.do(lab.submit(JobKind.SAMPLE_PAIRS, count=2, max_new_tokens=8)).result
    assert (len(done["pair_ids"]), done["note"]) == (
        2, "1 prompt left out: too long for the model with 8 new tokens"
    )  # fmt: skip


def test_the_command_line_reports_skipped_prompts(lab, monkeypatch, capsys):
    def work(db, home):
        for job in queue.jobs(lab.db, statuses=[JobStatus.QUEUED]):
            lab.do(job)
        return engine_process.engine_state(lab.db)

    monkeypatch.setattr(engine_process, "ensure_engine", work)
    command = ["pairs", "--count", "3", "--home", str(lab.worker.model_cache.home)]
    assert main(command) == 0
    assert capsys.readouterr().out == "3 new pairs in project 1 (tiny)\n"
    too_long(lab)
    assert main(command) == 0
    left_out = "1 prompt left out: too long for the model with 64 new tokens"
    assert capsys.readouterr().out == f"3 new pairs in project 1 (tiny); {left_out}\n"
    assert main([*command, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["project"], len(output["pair_ids"]), output["note"]) == (1, 3, left_out)


def test_a_blind_test_leaves_out_the_same_prompts_for_both_models(lab, monkeypatch):
    """Prompts 0 and 3 are too long; best of 4 gets each prompt four times, the other model once."""
    monkeypatch.setattr(engine_process, "ensure_engine", lambda db, home: None)
    ctx, scorer = Context(lab.worker.model_cache.home, lab.db), latest_reward_model(lab.db, lab.project.id).id
    models = ["base/best/4", "base"]
    payload = SamplingPayload(models=models, seed=1, temperature=1, max_new_tokens=8, reward_model_id=scorer)
    requested = [LONG, "the cat", "moon", "the " * 89, "the king and the frog"]
    for job in (jobs := submit_completions(ctx, payload, models, requested, skip_too_long=True)):
        lab.do(job)
    first, second = (queue.get_job(lab.db, job.id) for job in jobs)
    assert (first.result["left_out"], second.result["left_out"]) == ([0, 1, 2, 3, 12, 13, 14, 15], [0, 3])
    couples = pair_texts(first, second)
    assert {at: couple.prompt for at, couple in couples.items()} == {
        1: "the cat", 2: "moon", 4: "the king and the frog"
    }  # fmt: skip
    assert [couple.second for couple in couples.values()] == [text.strip() for text in second.result["texts"]]
    assert couples[4].first in [text.strip() for text in first.result["texts"][8:]]
    assert couples[4].scores[0] == round(max(first.result["scores"][8:]), 3)
    assert left_out_note(first, couples) == "2 prompts left out: too long for the model with 8 new tokens."


def test_the_demo_evaluates_on_fitting_prompts(lab, monkeypatch):
    too_long(lab)
    monkeypatch.setattr(demo, "SAMPLES_PER_PROMPT", [16, 16, 4])
    run = PolicyRun(lab.worker.model_cache, lab.run(steps=1))
    run.execute()
    scorer = lab.worker.model_cache.reward_model(run.run.reward_model_id, "reward")
    actual = demo.evaluate(
        lab.worker.model_cache, lab.project, run.trainer.state.policy, scorer, JUDGES["concise"], run.config
    )
    assert [sample["prompt"] for sample in actual.samples] == ["a good bird", "the moon", "a good bird"]


@pytest.mark.parametrize(("limit", "base_samples"), [(2**25, 16 + 4), (0, 16)])
def test_the_demo_samples_less_of_a_large_model(lab, monkeypatch, limit, base_samples):
    assert (sum(demo.SAMPLES_PER_PROMPT), len(demo.SAMPLES_PER_PROMPT)) == (2560, 256)
    assert (sum(demo.SAMPLES_PER_PROMPT_IF_LARGE), len(demo.SAMPLES_PER_PROMPT_IF_LARGE)) == (768, 96)
    monkeypatch.setattr(demo, "SAMPLES_PER_PROMPT", [16, 4])
    monkeypatch.setattr(demo, "SAMPLES_PER_PROMPT_IF_LARGE", [16])
    monkeypatch.setattr(demo, "LARGE_MODEL_WEIGHTS", limit)
    counts, original = [], demo.sample_responses

    def spy(backbone, texts, **options):
        counts.append(len(texts))
        return original(backbone, texts, **options)

    monkeypatch.setattr(demo, "sample_responses", spy)
    run = PolicyRun(lab.worker.model_cache, lab.run(steps=1))
    run.execute()
    scorer = lab.worker.model_cache.reward_model(run.run.reward_model_id, "reward")
    demo.evaluate(lab.worker.model_cache, lab.project, run.trainer.state.policy, scorer, JUDGES["concise"], run.config)
    assert counts == [base_samples, 2 if limit else 1]
