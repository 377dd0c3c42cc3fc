"""The stored values of the tokens of a few texts of each step."""

import math
import statistics

import pytest
import torch
from support import tiny_models

from rlhf_lab.models.batch import make_batch
from rlhf_lab.training.policy.token_traces import token_records


@pytest.mark.parametrize(("cliprange", "clips"), [(0.2, True), (None, False)])
def test_token_records(gpt2_folder, cliprange, clips):
    """The policy moved since the rollout: ratio = exp(logprob - old_logprob), clipped by the side of the advantage."""
    trainer = tiny_models.trainer(gpt2_folder, cliprange=cliprange, token_rows=2, temperature=0.9, score_clip=1.5)
    prompts, responses = tiny_models.ragged(rows=3)
    rows = make_batch(trainer.backbone, prompts, responses)
    rollout = trainer.prepare_rollout(rows, torch.tensor([1.0, -2.0, 0.5]), [[0.0] * len(r) for r in responses])
    everything = [float(one) for one in rollout.raw_advantages[rollout.batch.mask]]
    tiny_models.disturb(trainer.adapters, "policy", scale=0.1)
    records = token_records(trainer.state.policy, rollout, trainer.state.config)
    assert [record.row for record in records] == [0, 1]
    clip_flags = set()
    for record, prompt, response in zip(records, prompts, responses, strict=False):
        i, count = record.row, len(response)
        assert (record.prompt_ids, record.token_ids) == (prompt, response)
        assert "".join(record.tokens) == "".join(f" {tiny_models.WORDS[token]}" for token in response)
        assert record.prompt == " ".join(tiny_models.WORDS[token] for token in prompt)
        lists = (record.logprob, record.old_logprob, record.ref_logprob, record.kl, record.value, record.reward)
        assert {len(x) for x in (*lists, record.advantage, record.ratio, record.clipped)} == {count}
        with trainer.adapters.using("policy"):
            now = tiny_models.teacher_forced(trainer.backbone, prompt, response, 0.9)
        assert record.logprob == pytest.approx(now.tolist(), abs=1e-4)
        before = tiny_models.teacher_forced(trainer.backbone, prompt, response, 0.9)
        assert record.old_logprob == pytest.approx(before.tolist(), abs=1e-4)
        for t in range(count):
            ratio, advantage = record.ratio[t], record.advantage[t]
            assert ratio == pytest.approx(math.exp(record.logprob[t] - record.old_logprob[t]), rel=1e-5)
            assert record.kl[t] == pytest.approx(record.old_logprob[t] - record.ref_logprob[t], abs=1e-6)
            outside = (ratio > 1.2 and advantage > 0) or (ratio < 0.8 and advantage < 0)
            assert record.clipped[t] == (clips and outside)
            clip_flags.add(record.clipped[t])
        missing = 0.0 if response[-1] == tiny_models.EOS else 1.0
        expected = [1.0, -1.5][i] - missing - 0.1 * sum(record.kl)
        assert sum(record.reward) == pytest.approx(expected, abs=1e-5)
        assert (record.score, record.shaped_score) == ([1.0, -2.0][i], [1.0, -1.5][i] - missing)
        assert record.advantage_mean == pytest.approx(statistics.fmean(everything), abs=1e-6)
        assert record.advantage_sd == pytest.approx(statistics.stdev(everything), rel=1e-5)
        for t in range(count):
            assert record.advantage[t] == pytest.approx(
                (record.raw_advantage[t] - record.advantage_mean) / record.advantage_sd, abs=1e-5
            )
            assert record.target[t] == pytest.approx(record.raw_advantage[t] + record.value[t], abs=1e-6)
    assert clip_flags == ({True, False} if clips else {False})


def test_token_records_of_fewer_rows_than_configured(llama_folder):
    trainer = tiny_models.trainer(llama_folder, token_rows=64)
    assert len(trainer.run_step().tokens) == 6
    assert tiny_models.trainer(llama_folder, token_rows=0).run_step().tokens == []


def test_columns_that_an_algorithm_lacks_are_not_recorded(llama_folder):
    """Neither values nor whitening in rloo; the value after a truncated text only if configured."""
    for record in tiny_models.learner(llama_folder, "rloo", token_rows=6).run_step().tokens:
        assert record.target == []
        assert record.advantage_mean is record.advantage_sd is None
        assert record.raw_advantage == record.advantage
    for cut in (False, True):
        trainer = tiny_models.learner(llama_folder, "ppo", bootstrap_cut=cut, token_rows=6)
        values_after_end = {
            record.bootstrap_value for record in tiny_models.run(trainer, 2)[-1].tokens
        }  # before the first step every value is 0
        assert (values_after_end == {0.0}) == (not cut)
