"""From measured values to rewards and advantages, by hand: two responses, of two tokens (ended) and of one (cut)."""

import pytest
import torch

from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import TrainingError
from rlhf_lab.models.batch import Batch
from rlhf_lab.training.policy.rewards_and_advantages import build_rollout
from rlhf_lab.training.policy.rollout import EvaluatedBatch

ROWS = Batch(
    prompts=torch.tensor([[9], [9]]),
    prompt_mask=torch.ones(2, 1, dtype=torch.int64),
    responses=torch.tensor([[20, 0], [21, 0]]),
    mask=torch.tensor([[True, True], [True, False]]),
    ended=torch.tensor([True, False]),
    lengths=torch.tensor([[1, 2], [1, 1]]),
)
OLD = torch.tensor([[-1.0, -2.0], [-0.5, 7.0]])  # 7, 9 and 5 stand in padding
REF = torch.tensor([[-1.2, -1.6], [-1.5, 9.0]])  # k1: 0.2, -0.4 and 1.0
VALUES = torch.tensor([[0.5, 1.0], [0.25, 0.0]])
SCORES = torch.tensor([3.0, -1.0])
EXACT = torch.tensor([[0.5, 0.25], [0.125, 0.0]])
PLAIN = {"whiten_advantages": False, "missing_eos_penalty": 0.0, "score_clip": None}


def rollout(algorithm="ppo", beta=0.5, scale=1.0, after=None, rows=ROWS, **changes):
    if algorithm in ("rloo", "grpo"):
        changes = {"batch_size": 2, "group_size": 2, "minibatches": 1} | changes
    config = PolicyConfig.for_algorithm(algorithm, **(PLAIN | changes))
    return build_rollout(EvaluatedBatch(rows, SCORES, OLD, REF, OLD, VALUES, EXACT, after), beta, config, scale)


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("n", "expected"), [(1, [[0.5, 2.0], [-1.25, 0.0]]), (2, [[2.5, 2.0], [-1.25, 0.0]])])
def test_nstep_advantages_by_hand(n, expected):
    """Without KL the rewards are 0, 3 and -1. One step: 0 + 1 - 0.5, 3 - 1, -1 - 0.25; two: 0 + 3 - 0.5."""
    close(rollout(beta=0.0, advantage="nstep", nstep=n).advantages, expected)


def test_monte_carlo_value_targets():
    close(rollout(beta=0.0, value_target="monte_carlo", lam=0.5).returns, [[3.0, 3.0], [-1.0, 0.0]])
    close(rollout(beta=0.0, lam=0.0).returns, [[1.0, 3.0], [-1.0, 0.0]])


def test_a_truncated_response_is_bootstrapped_and_an_ended_one_is_not():
    """Row 1 was cut: -1 + 2 - 0.25. Row 0 ended: 3 - 1, and 1 - 0.5 + half of it."""
    actual = rollout(beta=0.0, lam=0.5, bootstrap_cut=True, after=torch.tensor([7.0, 2.0]))
    close(actual.advantages, [[1.5, 2.0], [0.75, 0.0]])
    close(actual.returns, [[2.0, 3.0], [1.0, 0.0]])
    two_step = rollout(beta=0.0, advantage="nstep", nstep=2, bootstrap_cut=True, after=torch.tensor([7.0, 2.0]))
    close(two_step.advantages, [[2.5, 2.0], [0.75, 0.0]])


def test_score_placement_spread():
    close(rollout(beta=0.0, score_placement="spread").rewards, [[1.5, 1.5], [-1.0, 0.0]])


def test_a_kl_in_the_loss_is_not_in_the_rewards():
    close(rollout(kl_penalty="loss", kl_estimator="k3").rewards, [[0.0, 3.0], [-1.0, 0.0]])


def test_the_exact_kl_is_used_by_the_full_estimator():
    actual = rollout(kl_estimator="full")
    close(actual.kl, EXACT.tolist())
    close(actual.rewards, [[-0.25, 3.0 - 0.125], [-1.0 - 0.0625, 0.0]])


def test_scores_are_scaled_then_clipped_then_penalised():
    """3 / 2 = 1.5, clipped to 1.2; -0.5, less 0.7 for the missing end."""
    actual = rollout(beta=0.0, scale=2.0, score_clip=1.2, missing_eos_penalty=0.7, scale_scores=True)
    close(actual.rewards, [[0.0, 1.2], [-1.2, 0.0]])
    assert torch.equal(actual.scores, SCORES)
    close(actual.shaped_scores, [1.2, -1.2])


@pytest.mark.parametrize(("clip", "share"), [(1.6, 0.0), (1.5, 0.0), (1.4, 0.5), (0.4, 1.0)])
def test_score_clip_fraction(clip, share):
    """Scaled they are 1.5 and -0.5."""
    assert float(rollout(scale=2.0, score_clip=clip, missing_eos_penalty=0.7).score_clip_fraction) == share
    assert rollout(scale=2.0, score_clip=None).score_clip_fraction is None


@pytest.mark.parametrize(
    ("credit", "baseline", "expected"),
    [
        ("to_go", "none", [[3.1, 3.2], [-1.5, 0.0]]),
        ("total", "none", [[3.1, 3.1], [-1.5, 0.0]]),
        ("to_go", "batch_mean", [[2.3, 2.4], [-2.3, 0.0]]),
        ("total", "value", [[2.6, 2.1], [-1.75, 0.0]]),
    ],
)
def test_reinforce_weights(credit, baseline, expected):
    """Rewards -0.1, 0.2 + 3 and -0.5 - 1; the mean of the totals is 0.8."""
    close(rollout("reinforce", credit=credit, baseline=baseline).advantages, expected)


def test_reinforce_uses_gamma():
    close(rollout("reinforce", gamma=0.5, baseline="none").advantages, [[1.5, 3.2], [-1.5, 0.0]])


def test_group_advantages_include_the_kl():
    """Totals 3.1 and -1.5: each less the other; in grpo 2.3 over the sd 4.6 / sqrt 2."""
    close(rollout("rloo").advantages, [[4.6, 4.6], [-4.6, 0.0]])
    close(rollout("grpo", group_scale=False).advantages, [[2.3, 2.3], [-2.3, 0.0]])
    half = 2.3 / (4.6 / 2**0.5 + 1e-4)
    close(rollout("grpo").advantages, [[half, half], [-half, 0.0]])


def test_ungrouped_prompts_are_refused():
    with pytest.raises(TrainingError, match="2 responses are not in groups of 2"):
        rollout("rloo", rows=ROWS._replace(prompts=torch.tensor([[9], [8]])))
    with pytest.raises(TrainingError, match="group_size times in a row"):
        rollout("grpo", batch_size=3, group_size=3)
