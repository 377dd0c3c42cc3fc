"""The head fitted on frozen features: a convex problem whose answer can be checked."""

import math

import pytest
import torch
from support import tiny_models  # noqa: F401  one thread

from rlhf_lab.training.reward.head_init import VARIANCE_FLOOR, FeatureScaler, PreferenceTargets, fit_head_weights


def problem(seed=0, rows=12, width=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=generator, dtype=torch.float64), torch.arange(rows) % 4 == 3


def loss(weights, differences, ties, ridge):
    """Sum of -log sigmoid(w d), half of both sides for a tie, + ridge / 2 |w|^2; plain Python."""
    total = ridge / 2 * math.fsum(w * w for w in weights)
    for row, tie in zip(differences.tolist(), ties.tolist(), strict=True):
        logit = math.fsum(w * x for w, x in zip(weights, row, strict=True))
        won, lost = math.log1p(math.exp(-logit)), math.log1p(math.exp(logit))
        total += (won + lost) / 2 if tie else won
    return total


@pytest.mark.parametrize("ridge", [0.3, 3.0, 100.0])
def test_no_direction_lowers_the_loss(ridge):
    """The central differences of an independent float64 loss vanish at the fit, and any step away is worse."""
    differences, ties = problem()
    weights = fit_head_weights(differences, PreferenceTargets(ties), ridge).tolist()
    least, step = loss(weights, differences, ties, ridge), 1e-4
    for i in range(len(weights)):
        up, down = list(weights), list(weights)
        up[i] += step
        down[i] -= step
        above, below = loss(up, differences, ties, ridge), loss(down, differences, ties, ridge)
        assert abs(above - below) / (2 * step) < 1e-7
        assert min(above, below) > least


def test_one_dimension_by_hand():
    """d = 1: sigmoid(-w) = ridge w at the optimum. w = 1 for ridge = sigmoid(-1) = 0.2689414213699951."""
    weights = fit_head_weights(
        torch.ones(1, 1, dtype=torch.float64), PreferenceTargets(torch.tensor([False])), 0.2689414213699951
    )
    assert weights.tolist() == pytest.approx([1.0], abs=1e-9)
    two = fit_head_weights(
        torch.tensor([[1.0], [1.0]]).double(), PreferenceTargets(torch.tensor([False, False])), 2 * 0.2689414213699951
    )
    assert two.tolist() == pytest.approx([1.0], abs=1e-9)


def test_ties_pull_the_scores_to_zero():
    ones = torch.ones(2, 1, dtype=torch.float64)
    assert fit_head_weights(ones, PreferenceTargets(torch.tensor([True, True])), 1.0).tolist() == pytest.approx(
        [0.0], abs=1e-12
    )
    alone = float(fit_head_weights(ones[:1], PreferenceTargets(torch.tensor([False])), 0.1))
    assert 0 < float(fit_head_weights(ones, PreferenceTargets(torch.tensor([False, True])), 0.1)) < alone


def test_separable_pairs_stay_finite():
    differences = torch.eye(3, dtype=torch.float64) * 1000
    weights = fit_head_weights(differences, PreferenceTargets(torch.zeros(3, dtype=torch.bool)), 0.3)
    assert bool(torch.isfinite(weights).all())
    assert bool((weights > 0).all())


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_margins_counts_and_smoothing_in_the_fit(smoothing):
    """The derivative of the loss written out row by row vanishes: a label drawn twice counts twice, a margin on a tie not."""
    differences, ties = problem()
    margins = torch.arange(12).double() / 4
    counts = torch.tensor([0, 1, 2] * 4).double()
    weights = fit_head_weights(differences, PreferenceTargets(ties, margins, counts, smoothing), 0.7)
    for i in range(5):
        slope = 0.7 * float(weights[i])
        for row, tie, margin, count in zip(
            differences.tolist(), ties.tolist(), margins.tolist(), counts.tolist(), strict=True
        ):
            logit = math.fsum(float(w) * x for w, x in zip(weights, row, strict=True)) - (0.0 if tie else margin)
            slope += count * row[i] * (1 / (1 + math.exp(-logit)) - (0.5 if tie else 1 - smoothing))
        assert abs(slope) < 1e-9


@pytest.mark.parametrize(
    ("margin", "ridge", "optimum"), [(5.0, 0.01, 7.5107562012), (200.0, 1.0, 1.0), (1.0, 1e-3, 6.0942900650)]
)
def test_the_fit_converges_with_wide_margins(margin, ridge, optimum):
    """d = 1: ridge w = sigmoid(margin - w), solved by bisection here; whole Newton steps from 0 never arrive for 5 and 0.01."""
    low, high = 0.0, 1 / ridge
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if ridge * middle < 1 / (1 + math.exp(middle - margin)) else (low, middle)
    assert low == pytest.approx(optimum, abs=1e-9)
    labels = PreferenceTargets(torch.tensor([False]), torch.tensor([margin]).double())
    assert fit_head_weights(torch.ones(1, 1).double(), labels, ridge).tolist() == pytest.approx([optimum], abs=1e-9)


def test_feature_scaler_by_hand():
    """Two directions of variance 9 : 1 around (5, 5, 5), the third of none; mean variance 10/3, so v = 2.7, 0.3, 0."""
    base = torch.tensor([[8.0, 5, 5], [2, 5, 5], [5, 6, 5], [5, 4, 5]]).double()
    stretch = FeatureScaler(base, 0.5)
    factors = [math.sqrt(v + VARIANCE_FLOOR) for v in (2.7, 0.3, 0.0)]
    spread = math.sqrt((factors[0] ** 2 * 18 + factors[1] ** 2 * 2) / 3 / 3)
    actual = stretch(torch.eye(3).double())
    torch.testing.assert_close(actual, torch.diag(torch.tensor(factors).double() / spread))
    assert stretch.mean.tolist() == [5, 5, 5]


@pytest.mark.parametrize("power", [0.0, 0.25, 1.0])
def test_scaled_features_have_unit_spread(power):
    base = torch.randn(20, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * torch.arange(1, 7)
    stretch, larger = FeatureScaler(base, power), FeatureScaler(base * 1000 + 3, power)
    stretched = stretch(base)
    assert float(stretched.var(0).mean()) == pytest.approx(1.0)
    torch.testing.assert_close(larger(base * 1000), stretched)
    torch.testing.assert_close(stretch(torch.eye(6).double()), stretch(torch.eye(6).double()).T)
    if power == 0:
        torch.testing.assert_close(stretched, base / base.var(0).mean().sqrt())


def test_equal_base_texts_scale_nothing():
    stretch = FeatureScaler(torch.ones(4, 3).double(), 0.25)
    assert bool(stretch(torch.eye(3).double()).isfinite().all())


def test_the_fit_is_exact_with_fewer_labels_than_features():
    """7 labels in 40 dimensions, solved in the span of the labels: the same optimum, found by plain gradient descent."""
    differences, ties = problem(3, rows=7, width=40)
    weights, slow = fit_head_weights(differences, PreferenceTargets(ties), 5.0), torch.zeros(40).double()
    target = torch.where(ties, 0.5, 1.0).double()
    for _ in range(3000):
        slow = slow - 0.02 * (differences.T @ (torch.sigmoid(differences @ slow) - target) + 5.0 * slow)
    torch.testing.assert_close(weights, slow, atol=1e-9, rtol=1e-9)
