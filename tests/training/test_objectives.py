"""The loss of a micro-batch by algorithm, by hand: ratios 1.5 and 0.5 in one response, 2 in the other."""

import math

import pytest
import torch

from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.models.batch import Batch
from rlhf_lab.training.policy.objectives import AdaptiveCoefficients, LossDenominators, policy_loss, value_loss
from rlhf_lab.training.policy.rollout import MicroBatch

MASK, LENGTHS = torch.tensor([[True, True], [True, False]]), torch.tensor([[1, 2], [1, 1]])
RATIOS = [1.5, 0.5, 2.0]
NEW = torch.tensor([[math.log(1.5), math.log(0.5)], [math.log(2.0), 3.0]], requires_grad=True)
ADVANTAGES = torch.tensor([[1.0, -1.0], [2.0, 9.0]])
PART = MicroBatch(
    batch=Batch(torch.zeros(2, 1), torch.ones(2, 1), torch.zeros(2, 2), MASK, torch.tensor([True, True]), LENGTHS),
    old_logprobs=torch.zeros(2, 2),
    ref_logprobs=torch.full((2, 2), 0.1),
    advantages=ADVANTAGES,
    values=torch.tensor([[1.0, 0.0], [2.0, 0.0]]),
    returns=torch.tensor([[2.0, 1.0], [2.5, 0.0]]),
)
WHOLE = LossDenominators(3, 2)
NONE = AdaptiveCoefficients(kl_beta=0.0, penalty_coef=0.0)
K3 = [r - 1 - math.log(r) for r in RATIOS]
TO_REFERENCE = [math.exp(0.1 - math.log(r)) - 1 + math.log(r) - 0.1 for r in RATIOS]
LOGS = [1 * math.log(1.5) - 1 * math.log(0.5), 2 * math.log(2.0)]  # sum of A log pi of each response


def loss(algorithm, weights=NONE, whole=WHOLE, **changes):
    own = {"rloo": {"group_size": 2}, "grpo": {"group_size": 2}, "ppo": {"cliprange": 0.2}}.get(algorithm, {})
    actual = policy_loss(NEW, PART, whole, PolicyConfig.for_algorithm(algorithm, **(own | changes)), weights)
    assert actual.loss.requires_grad
    return actual._replace(loss=actual.loss.detach())


@pytest.mark.parametrize(
    ("algorithm", "changes", "expected"),
    [
        ("ppo", {}, (-1.2 + 0.8 - 2.4) / 3),
        ("ppo", {"cliprange": None}, (-1.5 + 0.5 - 4.0) / 3),
        ("trpo", {}, (-1.5 + 0.5 - 4.0) / 3),
        ("grpo", {"loss_mean": "token"}, (-1.2 + 0.8 - 2.4) / 3),
        ("grpo", {}, ((-1.2 + 0.8) / 2 - 2.4) / 2),
        ("ppo", {"loss_mean": "sum"}, (-1.2 + 0.8 - 2.4) / 2),
        ("a2c", {}, -sum(LOGS) / 3),
        ("reinforce", {"loss_mean": "sum"}, -sum(LOGS) / 2),
        ("rloo", {"loss_mean": "trajectory"}, -(LOGS[0] / 2 + LOGS[1]) / 2),
        ("reinforce", {"loss_mean": "token"}, -sum(LOGS) / 3),
    ],
)
def test_policy_loss(algorithm, changes, expected):
    actual = loss(algorithm, **changes)
    assert float(actual.loss) == pytest.approx(expected, abs=1e-6)
    assert float(actual.ratio_mean) == pytest.approx(sum(RATIOS) / 3)
    assert float(actual.approx_kl) == pytest.approx(sum(math.log(r) ** 2 / 2 for r in RATIOS) / 3)
    clips = algorithm in ("ppo", "grpo") and "cliprange" not in changes
    assert float(actual.clipfrac) == pytest.approx(1.0 if clips else 0.0)


def test_the_penalty_is_added_with_its_weight():
    plain = (-1.5 + 0.5 - 4.0) / 3
    assert float(loss("ppo_penalty").loss) == pytest.approx(plain)
    assert float(loss("ppo_penalty", AdaptiveCoefficients(9.0, 0.5)).loss) == pytest.approx(plain + 0.5 * sum(K3) / 3)


def test_a_kl_in_the_loss_is_that_of_the_new_policy():
    settings = {"kl_penalty": "loss", "kl_estimator": "k3"}
    actual = loss("ppo", AdaptiveCoefficients(0.25, 0.0), **settings)
    assert float(actual.loss) == pytest.approx(-2.8 / 3 + 0.25 * sum(TO_REFERENCE) / 3)
    rows = [(TO_REFERENCE[0] + TO_REFERENCE[1]) / 2, TO_REFERENCE[2]]
    assert float(loss("grpo", AdaptiveCoefficients(0.25, 0.0), **settings).loss) == pytest.approx(
        -1.3 + 0.25 * sum(rows) / 2
    )


@pytest.mark.parametrize(
    ("estimator", "slopes"),
    [("k2", [math.log(r) - 0.1 for r in RATIOS]), ("k3", [1 - math.exp(0.1) / r for r in RATIOS])],
)
def test_a_kl_in_the_loss_has_a_gradient(estimator, slopes):
    """All three ratios are clipped, so the slope is the KL's alone: d of d^2 / 2, and 1 - exp(-d); beta 0.3, three tokens."""
    config = PolicyConfig(kl_penalty="loss", kl_estimator=estimator)
    actual = torch.autograd.grad(policy_loss(NEW, PART, WHOLE, config, AdaptiveCoefficients(0.3, 0.0)).loss, NEW)[0]
    assert actual[MASK].tolist() == pytest.approx([0.1 * slope for slope in slopes], abs=1e-6)
    assert float(actual[1, 1]) == 0.0


def test_micro_batches_share_the_denominator_of_the_minibatch():
    """Half as large a share of a minibatch of 6 tokens and 4 responses, the KL included."""
    twice, kl = LossDenominators(torch.tensor(6), 4), {"kl_penalty": "loss", "kl_estimator": "k3"}
    for algorithm, changes in (("ppo", kl), ("grpo", kl), ("reinforce", {"loss_mean": "sum"}), ("ppo_penalty", {})):
        weights = AdaptiveCoefficients(0.3, 0.7)
        assert float(loss(algorithm, weights, twice, **changes).loss) == pytest.approx(
            float(loss(algorithm, weights, **changes).loss) / 2
        )


def test_value_loss_is_clipped_around_the_old_values():
    """(1.5 - 2)^2 against (1.2 - 2)^2; (0.1 - 1)^2 twice; (2.5 - 2.5)^2 against (2.2 - 2.5)^2; half their mean."""
    values = torch.tensor([[1.5, 0.1], [2.5, 7.0]])
    actual = value_loss(values, PART, WHOLE, PolicyConfig())
    assert float(actual.loss) == pytest.approx((0.64 + 0.81 + 0.09) / 6)
    plain = value_loss(values, PART, WHOLE, PolicyConfig(cliprange_value=None))
    assert float(plain.loss) == pytest.approx((0.25 + 0.81) / 6)
