"""The metrics of a step, for a rollout constructed by hand."""

import math

import pytest
import torch
from support import tiny_models

from rlhf_lab.core.policy_losses import PolicyLoss, ValueLoss, ppo_clip
from rlhf_lab.models.batch import Batch
from rlhf_lab.training.policy import trainer as policy_module
from rlhf_lab.training.policy.metrics import UpdateStats, peak_memory, reset_peak_memory, step_metrics
from rlhf_lab.training.policy.rollout import Rollout

MASK = torch.tensor([[True, True, True], [True, False, False]])


SHARES = (None, torch.tensor(0.25))


def rollout_by_hand(clipped=None):
    rows = Batch(
        torch.tensor([[9], [9]]), torch.ones(2, 1, dtype=torch.int64),
        torch.tensor([[20, 21, 0], [22, 0, 0]]), MASK, torch.tensor([True, False]),
        torch.tensor([[1, 3], [1, 1]]),
    )  # fmt: skip
    old = torch.tensor([[-1.0, -2.0, -3.0], [-4.0, 0.0, 0.0]])
    return Rollout(
        batch=rows,
        scores=torch.tensor([3.0, 1.0]),
        shaped_scores=torch.tensor([2.5, 1.0]),
        old_logprobs=old,
        ref_logprobs=old - 0.5,
        sampler_logprobs=old + torch.tensor([[0.0, -0.02, 0.0], [0.01, 9.0, 9.0]]),
        values=torch.tensor([[1.0, 2.0, 3.0], [2.0, 0.0, 0.0]]),
        kl=torch.tensor([[0.5, 0.25, -0.15], [2.0, 0.0, 0.0]]),
        rewards=torch.tensor([[-0.1, 0.0, 3.0], [0.5, 0.0, 0.0]]),
        raw_advantages=torch.tensor([[1.5, -0.5, 2.5], [-1.5, 0.0, 0.0]]),
        advantages=torch.tensor([[1.0, -1.0, 2.0], [-2.0, 0.0, 0.0]]),
        returns=torch.tensor([[1.0, 1.0, 4.0], [2.0, 0.0, 0.0]]),
        score_clip_fraction=clipped,
    )


def add(stats, ratio, parts):
    """One micro-batch with the given ratios (the last position is padding) and parts of the losses."""
    old = torch.zeros(1, len(ratio) + 1)
    new = torch.tensor([[*(math.log(r) for r in ratio), 5.0]])
    mask = torch.tensor([[True] * len(ratio) + [False]])
    p = [torch.tensor(x) for x in parts]
    stats.add_policy(PolicyLoss(p[0], p[1], p[2], p[3]), new, old, mask, p[6])
    stats.add_value(ValueLoss(p[4], p[5]))


def stats_by_hand():
    """Two updates; the first of two micro-batches, whose parts add up. Ratios 1, 1 | 1, 0.5 | and 2."""
    stats = UpdateStats()
    stats.begin_update()
    add(stats, [1.0, 1.0], (0.1, 0.2, 0.3, 0.5, 0.4, 0.5, 0.6))
    add(stats, [1.0, 0.5], (0.1, 0.0, 0.1, 0.375, 0.2, 0.1, 0.2))
    stats.finish_update(torch.tensor(3.0))
    stats.begin_update()
    add(stats, [2.0], (1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0))
    stats.finish_update(torch.tensor(5.0))
    return stats


def test_micro_batches_add_up_and_updates_average():
    stats = stats_by_hand()
    assert (stats.update_count, stats.skipped_count) == (2, 0)
    actual = {
        name: stats.mean(name) for name in ("policy", "clipfrac", "approxkl", "ratio", "value", "entropy", "grad_norm")
    }
    expected = {
        "policy": 0.6,
        "clipfrac": 0.6,
        "approxkl": 0.7,
        "ratio": 1.4375,
        "value": 0.8,
        "entropy": 0.9,
        "grad_norm": 4.0,
    }
    assert actual == pytest.approx(expected, abs=1e-6)
    assert stats.mean_ratio == 2.0
    assert [stats.approx_kl_since(n) for n in (0, 1, 2)] == pytest.approx([0.7, 1.0, 0.0])


def test_first_ratio_deviation_is_that_of_the_first_minibatch():
    """All its micro-batches, and none of the later minibatches: those come after an update."""
    stats = UpdateStats()
    stats.begin_update()
    add(stats, [1.0, 0.99], (0.0,) * 7)
    assert float(stats.first_ratio_deviation) == pytest.approx(0.01, abs=1e-6)
    add(stats, [0.97], (0.0,) * 7)
    add(stats, [1.01, 1.0], (0.0,) * 7)
    assert float(stats.first_ratio_deviation) == pytest.approx(0.03, abs=1e-6)
    stats.finish_update(torch.tensor(1.0))
    stats.begin_update()
    add(stats, [3.0], (0.0,) * 7)
    assert float(stats.first_ratio_deviation) == pytest.approx(0.03, abs=1e-6)


def test_a_first_minibatch_that_was_skipped_counts_too():
    stats = UpdateStats()
    stats.begin_update()
    add(stats, [1.02], (0.0,) * 7)
    stats.skip()
    stats.begin_update()
    add(stats, [3.0], (0.0,) * 7)
    assert float(stats.first_ratio_deviation) == pytest.approx(0.02, abs=1e-6)


def test_metrics_by_hand():
    metrics = step_metrics(rollout_by_hand(), stats_by_hand(), beta=0.2, lr=0.01, episode=64)
    expected = {
        "objective/kl": (0.6 + 2.0) / 2, "objective/kl_coef": 0.2, "objective/scores": 2.0,
        "objective/scores_sd": math.sqrt(2), "objective/non_score_reward": -0.26, "objective/rlhf_reward": 1.49,
        "objective/entropy": (6.0 + 4.0) / 2, "policy/approxkl_avg": 0.7, "policy/clipfrac_avg": 0.6,
        "policy/entropy_avg": 0.9, "loss/policy_avg": 0.6, "loss/value_avg": 0.8, "val/clipfrac_avg": 0.8,
        # ratios 1, 1, 1, 0.5 and 2 of the two updates: mean 1.1, mean square 1.45
        "val/ratio": 1.4375, "val/ratio_var": 1.45 - 1.1**2,
        # ratios 1, 1, 1, 0.5: (3.5)^2 / 3.25 of 4 tokens; one alone: all of it
        "val/ess": (3.5**2 / 3.25 / 4 + 1) / 2,
        "val/first_ratio_deviation": 0.5, "val/value": 2.0, "val/sampler_gap": 0.02, "val/stop_token_rate": 0.5,
        "val/skipped_updates": 0.0, "tokens/response_len": 2.0, "grad_norm": 4.0, "lr": 0.01, "episode": 64.0,
        # advantages 1, -1, 2, -2: mean 0, variance 10/3; returns 1, 1, 4, 2: variance 2; residuals 0, -1, 1, 0: 2/3
        "val/advantage_sd": math.sqrt(10 / 3), "val/explained_variance": 1 - (2 / 3) / 2,
    }  # fmt: skip
    assert metrics.pop("memory/peak") > 1
    assert metrics == pytest.approx(expected, abs=1e-5)


def test_score_clipfrac_is_reported_only_with_a_clip():
    actual = [step_metrics(rollout_by_hand(share), UpdateStats(), beta=0.2, lr=0.01, episode=64) for share in SHARES]
    assert [metrics.get("objective/score_clipfrac") for metrics in actual] == [None, 0.25]


def test_value_only_updates_report_no_grad_norm():
    """As in a step of trpo: norm 3 of the policy's update, 100 of the values'."""
    stats = UpdateStats()
    stats.begin_update()
    add(stats, [1.0], (0.0,) * 7)
    stats.finish_update(torch.tensor(3.0))
    stats.begin_update()
    stats.add_value(ValueLoss(torch.tensor(2.0), torch.tensor(0.0)))
    stats.finish_update(torch.tensor(100.0))
    metrics = step_metrics(rollout_by_hand(), stats, beta=0.2, lr=0.01, episode=64)
    assert (metrics["grad_norm"], metrics["loss/value_avg"], stats.update_count) == (3.0, 1.0, 2)


def test_ratio_variance_by_hand():
    """Ratios 1, 1, 1, 2 of one update: mean 1.25, mean square 1.75."""
    stats = UpdateStats()
    stats.begin_update()
    add(stats, [1.0, 1.0, 1.0, 2.0], (0.0, 0.0, 0.0, 1.25, 0.0, 0.0, 0.0))
    stats.finish_update(torch.tensor(0.0))
    metrics = step_metrics(rollout_by_hand(), stats, beta=0.0, lr=0.0, episode=1)
    assert metrics["val/ratio_var"] == pytest.approx(1.75 - 1.25**2)


def test_ratios_beyond_float32_are_clamped_as_in_the_loss():
    """exp(100) twice and 1 twice; the loss bounds them at e^79.8: mean e^79.8 / 2, variance its square, effective size
    2 of 4."""
    old, mask = torch.zeros(1, 4), torch.ones(1, 4, dtype=torch.bool)
    new = torch.tensor([[100.0, 100.0, 0.0, 0.0]])
    stats = UpdateStats()
    stats.begin_update()
    policy = ppo_clip(new, old, torch.ones(1, 4), mask, cliprange=0.2)
    stats.add_policy(policy, new, old, mask, torch.tensor(0.0))
    stats.finish_update(torch.tensor(0.0))
    metrics = step_metrics(rollout_by_hand(), stats, beta=0.0, lr=0.0, episode=1)
    most = math.exp(0.9 * math.log(torch.finfo(torch.float32).max))
    assert metrics["val/ratio"] == pytest.approx(most / 2, rel=1e-4)
    assert metrics["val/ratio_var"] == pytest.approx((most / 2) ** 2, rel=1e-4)
    assert metrics["val/ess"] == pytest.approx(0.5, rel=1e-4)
    assert metrics["val/first_ratio_deviation"] == pytest.approx(most, rel=1e-4)


def test_a_step_whose_updates_were_all_skipped_has_finite_numbers():
    stats = UpdateStats()
    stats.skip()
    metrics = step_metrics(rollout_by_hand(), stats, beta=0.2, lr=0.01, episode=64)
    assert metrics["val/skipped_updates"] == 1.0
    assert all(math.isfinite(value) for value in metrics.values())


UPDATE_METRICS = {
    "policy/approxkl_avg", "policy/clipfrac_avg", "policy/entropy_avg", "loss/policy_avg", "val/ratio", "val/ratio_var",
    "val/ess", "grad_norm",
}  # fmt: skip
KL_BUDGET_METRICS = {"policy/update_kl", "policy/update_fraction"}


def test_update_metrics_are_left_out_without_policy_updates(gpt2_folder):
    """A ratio or an entropy of 0 would be wrong: during the warm-up of the values, and if every update was skipped."""
    trainer = tiny_models.learner(gpt2_folder, "ppo", value_trunk="detached", value_warmup=1)
    warming, learning = (result.metrics.keys() for result in tiny_models.run(trainer, 2))
    assert learning - warming == UPDATE_METRICS | KL_BUDGET_METRICS
    skipped = UpdateStats()
    skipped.begin_update()
    add(skipped, [30.0], (0.0,) * 7)
    skipped.skip()
    metrics = step_metrics(rollout_by_hand(), skipped, beta=0.2, lr=0.01, episode=64)
    assert not UPDATE_METRICS & metrics.keys()


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_peak_memory_of_a_gpu_is_that_of_the_step(monkeypatch, device):
    """Steps that take 30, 10 and 20 MiB: a high step does not hide the lower ones behind it."""
    memory = {"peak": 0}
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: memory.update(peak=0))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: memory["peak"] * 2**20)
    actual = []
    for allocated in (30, 10, 20):
        reset_peak_memory(torch.device(device))
        memory["peak"] = max(memory["peak"], allocated)
        actual.append(peak_memory(torch.device(device)))
    if device == "cuda":
        assert actual == [30.0, 10.0, 20.0]
    else:
        assert memory["peak"] == 30
        assert min(actual) > 1


def test_every_step_resets_the_peak_memory(llama_folder, monkeypatch):
    calls = []
    monkeypatch.setattr(policy_module, "reset_peak_memory", lambda device: calls.append(device.type))
    trainer = tiny_models.trainer(llama_folder)
    trainer.run_step()
    trainer.step(["the cat"] * 4, ["sat ."] * 4, [1.0, 2.0, 0.0, 1.0])
    assert calls == ["cpu", "cpu"]
