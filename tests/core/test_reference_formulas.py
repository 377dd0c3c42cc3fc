"""Importance sampling. Expected values by hand and by the definitions; see also test_gridworld.py."""

import math
import statistics

import pytest
import torch
from support import reference_formulas

from rlhf_lab.core import logprobs
from rlhf_lab.errors import ConfigError

NAN, INF = float("nan"), float("inf")
JUNK = [NAN, INF, 7.0]


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("junk", JUNK)
def test_trajectory_log_ratio_is_the_sum_over_the_response(junk):
    """-1 + 2 - (-1.5 + 1) = 1.5; -3 + 4 = 1; a row without tokens 0: the ratio of nothing is 1."""
    new = f64([[-1.0, 2.0, junk], [-3.0, junk, junk], [junk] * 3]).requires_grad_()
    old = f64([[-1.5, 1.0, junk], [-4.0, junk, junk], [junk] * 3])
    mask = torch.tensor([[True, True, False], [True, False, False], [False] * 3])
    got = reference_formulas.trajectory_log_ratio(new, old, mask)
    assert got.tolist() == [1.5, 1.0, 0.0]
    got.sum().backward()
    assert new.grad.tolist() == mask.double().tolist()


@pytest.mark.parametrize(("dtype", "largest"), [(torch.float32, 79.850), (torch.float64, 638.804)])
def test_finite_exponent_is_bounded_and_keeps_its_gradient(dtype, largest):
    """0.9 log(3.4028e38) and 0.9 log(1.7977e308); below it nothing changes, to the last bit."""
    ordinary = torch.tensor([-INF, -1e30, -2.7, -0.0, 1e-30, 0.3, 79.8], dtype=dtype)
    assert torch.equal(logprobs.finite_exponent(ordinary), ordinary)
    huge = torch.tensor([largest + 1, 1e6, 1e30, INF], dtype=dtype).requires_grad_()
    bounded = logprobs.finite_exponent(huge)
    assert bounded.tolist() == pytest.approx([largest] * 4, abs=1e-3)
    bounded.sum().backward()
    assert huge.grad.tolist() == [1.0] * 4
    assert math.isnan(logprobs.finite_exponent(torch.tensor(NAN, dtype=dtype)))


@pytest.mark.parametrize("junk", JUNK)
def test_importance_mean_by_hand(junk):
    """x = 2, 8 with weights 1/2, 3: (1 + 24) / 2 = 12.5; normalised 25 / 3.5."""
    x, ratios, mask = f64([2.0, junk, 8.0]), f64([0.5, junk, 3.0]), torch.tensor([True, False, True])
    assert reference_formulas.importance_mean(x, ratios, mask).item() == 12.5
    assert reference_formulas.importance_mean(x, ratios, mask, normalise=True).item() == pytest.approx(
        25 / 3.5, abs=1e-12
    )
    empty = torch.zeros(3, dtype=torch.bool)
    assert reference_formulas.importance_mean(x, ratios, empty, normalise=True).item() == 0.0


def test_normalised_weights_are_exact_for_a_constant():
    ratios, mask = f64([0.5, 3.0, 1.0]), torch.ones(3, dtype=torch.bool)
    assert reference_formulas.importance_mean(f64([4.0] * 3), ratios, mask, normalise=True).item() == pytest.approx(4.0)
    assert reference_formulas.importance_mean(f64([4.0] * 3), ratios, mask).item() == pytest.approx(6.0)


def test_all_zero_weights_are_refused_when_normalising():
    """0 / 0; without the division the mean of nothing but zeros is 0. Weights outside the mask do not count."""
    x, ratios, mask = f64([2.0, 8.0, 1.0]), f64([0.0, 0.0, 5.0]), torch.tensor([True, True, False])
    assert reference_formulas.importance_mean(x, ratios, mask).item() == 0.0
    with pytest.raises(ConfigError, match="All weights are 0"):
        reference_formulas.importance_mean(x, ratios, mask, normalise=True)
    tiny = f64([-800.0, -801.0, 0.0])  # as the error says: e^-800 is 0, and the same weights up to a factor are not
    shifted = (tiny - tiny[mask].max()).exp()
    expected = (2.0 + 8.0 * math.exp(-1)) / (1 + math.exp(-1))
    assert reference_formulas.importance_mean(x, shifted, mask, normalise=True).item() == pytest.approx(
        expected, abs=1e-12
    )


def test_variance_of_large_values_is_exact():
    """1000 +- 1 with chances 1/2 in float32, whose squares are exact to 0.06: the variance is 1; with p/q = 1/2, 3/2 by hand.

    x p / q = 1001 / 2, 999 * 3 / 2 under q = 1/2, 1/2 of p = 1/4, 3/4: half their distance squared, 499^2.
    """
    x, half = torch.tensor([1001.0, 999.0]), torch.tensor([0.5, 0.5])
    assert reference_formulas.importance_variance(x, half, half).item() == 1.0
    assert reference_formulas.importance_variance(x + 1e5, half, half).item() == 1.0
    assert reference_formulas.importance_variance(x, torch.tensor([0.25, 0.75]), half).item() == 499.0**2


def test_variance_by_hand():
    """x = 1, 3; p = 1/2, 1/2; q = 1/4, 3/4: x p / q = 2 and 2, so it does not vary at all; under p itself it is 1."""
    x, p, q = f64([1.0, 3.0]), f64([0.5, 0.5]), f64([0.25, 0.75])
    assert reference_formulas.importance_variance(x, p, q).item() == pytest.approx(0.0, abs=1e-12)
    assert reference_formulas.importance_variance(x, p, p).item() == pytest.approx(1.0, abs=1e-12)
    assert reference_formulas.importance_variance(x, q, p).item() == pytest.approx(
        0.5 * 0.25 + 0.5 * 20.25 - 6.25, abs=1e-12
    )


def test_variance_with_zero_probabilities():
    impossible = f64([0.0, 1.0])
    assert reference_formulas.importance_variance(f64([5.0, 3.0]), impossible, impossible).item() == 0.0
    assert reference_formulas.importance_variance(f64([5.0, 3.0]), f64([0.5, 0.5]), impossible).item() == INF
    assert reference_formulas.importance_variance(f64([0.0, 3.0]), f64([0.5, 0.5]), impossible).item() == pytest.approx(
        2.25 - 2.25
    )


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_effective_sample_size_by_hand_and_by_the_variance_of_the_weights(junk, dtype, tolerance):
    """Weights 1, 1, 4: 36 / 18 = 2; n / (1 + variance / mean^2) = 3 / (1 + 2 / 4) = 2."""
    ratios = torch.tensor([[1.0, junk], [1.0, 4.0]], dtype=dtype)
    mask = torch.tensor([[True, False], [True, True]])
    assert reference_formulas.effective_sample_size(ratios, mask).item() == pytest.approx(2.0, abs=tolerance)
    weights = ratios[mask].tolist()
    relative = statistics.pvariance(weights) / statistics.fmean(weights) ** 2
    assert reference_formulas.effective_sample_size(ratios, mask).item() == pytest.approx(
        3 / (1 + relative), abs=tolerance
    )


def test_effective_sample_size_limits():
    three = torch.ones(3, dtype=torch.bool)
    assert reference_formulas.effective_sample_size(torch.full((3,), 0.2), three).item() == pytest.approx(3.0)
    assert reference_formulas.effective_sample_size(torch.tensor([1e-9, 1e30, 1.0]), three).item() == pytest.approx(1.0)
    assert reference_formulas.effective_sample_size(torch.zeros(3), three).item() == 0.0
    assert reference_formulas.effective_sample_size(torch.ones(3), ~three).item() == 0.0
    assert reference_formulas.effective_sample_size(torch.ones(0), three[:0]).item() == 0.0


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
        ([0.0, 1.0, 3.0], [0.8, 0.48, -0.16]),
        ([0.0, 1e30, 3e30], [0.8e-30, 0.48e-30, -0.16e-30]),
    ],
)
def test_effective_sample_size_gradient_at_zero_weights(weights, expected):
    """ess = S^2 / Q, its slope (2 S Q - 2 w S^2) / Q^2; S = 4, Q = 10: 0.8 - 0.32 w."""
    ratios = torch.tensor(weights, requires_grad=True)
    reference_formulas.effective_sample_size(ratios, torch.ones(3, dtype=torch.bool)).backward()
    assert ratios.grad.tolist() == pytest.approx(expected, rel=1e-5, abs=0.0)


def test_gradcheck():
    generator = torch.Generator().manual_seed(0)
    x, old = (torch.randn(2, 3, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(2))
    mask = torch.tensor([[True, True, False], [True, True, True]])
    assert torch.autograd.gradcheck(lambda a, b: reference_formulas.trajectory_log_ratio(a, b, mask), (x, old))
    for normalise in (False, True):
        assert torch.autograd.gradcheck(
            lambda a, b, n=normalise: reference_formulas.importance_mean(a, b.exp(), mask, normalise=n), (x, old)
        )
    assert torch.autograd.gradcheck(lambda a: reference_formulas.effective_sample_size(a.exp(), mask), (x,))
    assert torch.autograd.gradgradcheck(lambda a: logprobs.finite_exponent(a).exp(), (x,))
    p, q = x.detach().softmax(-1), old.detach().softmax(-1)
    assert torch.autograd.gradcheck(lambda a: reference_formulas.importance_variance(a, p, q), (x,))


def test_bad_arguments_are_refused():
    x, mask = f64([[1.0, 2.0]]), torch.ones(1, 2, dtype=torch.bool)
    refused = [
        lambda: reference_formulas.trajectory_log_ratio(x, x[:, :1], mask),
        lambda: reference_formulas.importance_mean(x, x, mask.long()),
        lambda: reference_formulas.importance_variance(x, x, x[0]),
        lambda: reference_formulas.effective_sample_size(x[0], mask),
    ]
    for call in refused:
        with pytest.raises(ConfigError):
            call()
    assert math.isfinite(reference_formulas.effective_sample_size(x, mask).item())
