"""DPO and IPO against values worked by hand and an independent implementation for one pair at a time in plain Python."""

import math

import pytest
import torch

from rlhf_lab.core.direct_preference import direct_preference_loss
from rlhf_lab.errors import ConfigError


def plain(chosen, rejected, ties, beta, kind, smoothing):
    """Loss and its gradients of one number at a time, from the papers' formulas: a mixture of both orders of a pair."""

    def one(difference):
        if kind == "ipo":
            return (difference - 1 / (2 * beta)) ** 2, 2 * (difference - 1 / (2 * beta))
        sigmoid = 1 / (1 + math.exp(-beta * difference))
        return -math.log(sigmoid), -beta * (1 - sigmoid)

    total, gradients = 0.0, []
    for first, second, tie in zip(chosen, rejected, ties, strict=True):
        wrong = 0.5 if tie else smoothing
        (right_loss, right_gradient), (wrong_loss, wrong_gradient) = one(first - second), one(second - first)
        total += ((1 - wrong) * right_loss + wrong * wrong_loss) / len(chosen)
        gradients.append(((1 - wrong) * right_gradient - wrong * wrong_gradient) / len(chosen))
    return total, gradients


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("kind", ["sigmoid", "ipo"])
def test_loss_and_gradient_equal_plain_numbers(kind, smoothing, dtype):
    chosen, rejected, ties = [1.5, -2.0, 0.25, 4.0], [0.5, 1.0, 0.75, -3.0], [False, False, True, False]
    a, b = (torch.tensor(values, dtype=dtype, requires_grad=True) for values in (chosen, rejected))
    loss = direct_preference_loss(a, b, beta=0.3, kind=kind, label_smoothing=smoothing, tie=torch.tensor(ties))
    loss.backward()
    expected, gradients = plain(chosen, rejected, ties, 0.3, kind, smoothing)
    tolerance = 1e-12 if dtype is torch.float64 else 1e-5
    assert loss.item() == pytest.approx(expected, rel=tolerance)
    assert a.grad.tolist() == pytest.approx(gradients, rel=tolerance)
    assert b.grad.tolist() == pytest.approx([-x for x in gradients], rel=tolerance)


@pytest.mark.parametrize(
    ("settings", "difference", "expected"),
    [
        ({"beta": 0.1}, 0.0, math.log(2)),  # the policy is the reference
        ({"beta": 0.5}, 2 * math.log(3), math.log(4 / 3)),  # sigmoid(log 3) = 3/4
        ({"beta": 0.5, "label_smoothing": 0.25}, 2 * math.log(3), 0.75 * math.log(4 / 3) + 0.25 * math.log(4)),
        ({"beta": 0.5, "tie": torch.tensor([True])}, 2 * math.log(3), 0.5 * math.log(16 / 3)),
        ({"beta": 0.1, "kind": "ipo"}, 0.0, 25.0),  # the target is 5 nats
        ({"beta": 0.1, "kind": "ipo"}, 5.0, 0.0),
        ({"beta": 0.1, "kind": "ipo", "label_smoothing": 0.25}, 3.0, 0.75 * 4 + 0.25 * 64),
        ({"beta": 0.1, "kind": "ipo", "tie": torch.tensor([True])}, 3.0, 0.5 * 4 + 0.5 * 64),
    ],
)
def test_values_worked_by_hand(settings, difference, expected):
    """Only the difference of the log-ratios counts."""
    for offset in (0.0, 1.0):
        loss = direct_preference_loss(
            torch.tensor([offset + difference], dtype=torch.float64),
            torch.tensor([offset], dtype=torch.float64),
            **settings,
        )
        assert float(loss) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"beta": 0.0}, "beta is 0.0"),
        ({"beta": math.inf}, "beta is inf"),
        ({"beta": 0.1, "kind": "hinge"}, "no loss 'hinge'"),
        ({"beta": 0.1, "kind": "ipo", "label_smoothing": 0.5}, "label_smoothing is 0.5"),
        ({"beta": 0.1, "kind": "ipo", "tie": torch.tensor([True])}, "one entry per pair"),
    ],
)
def test_bad_arguments_are_refused(settings, says):
    with pytest.raises(ConfigError, match=says):
        direct_preference_loss(torch.zeros(2), torch.ones(2), **settings)
