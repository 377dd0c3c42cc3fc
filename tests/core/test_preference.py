"""The Bradley-Terry loss, penalties and ensembles. Expected values: plain Python, or worked by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_lab.core import preference
from rlhf_lab.errors import ConfigError

NAN, INF = float("nan"), float("inf")
CHOSEN, REJECTED = [1.5, -0.3, 0.2, 2.0], [0.5, 0.4, 0.2, -1.0]


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def loop_loss(chosen, rejected, margin, smoothing, tie):
    """Binary cross-entropy of sigmoid(chosen - rejected - margin), pair by pair."""
    total = 0.0
    for c, r, m, is_tie in zip(chosen, rejected, margin, tie, strict=True):
        prob = 1 / (1 + math.exp(-(c - r - (0.0 if is_tie else m))))
        target = 0.5 if is_tie else 1 - smoothing
        total -= target * math.log(prob) + (1 - target) * math.log(1 - prob)
    return total / len(chosen)


def test_loss_of_one_pair_by_hand():
    """sigmoid(log 3) = 3/4, so the loss is log(4/3); the other way round it is log 4."""
    three = f64([math.log(3.0)])
    zero = f64([0.0])
    assert preference.bradley_terry_loss(three, zero).item() == pytest.approx(math.log(4 / 3), abs=1e-12)
    assert preference.bradley_terry_loss(zero, three).item() == pytest.approx(math.log(4), abs=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_equals_loop(dtype, tolerance, smoothing):
    tie = [False, False, True, True]
    margin = [0.5, 0.0, 1.0, 2.0]
    loss = preference.bradley_terry_loss(
        torch.tensor(CHOSEN, dtype=dtype),
        torch.tensor(REJECTED, dtype=dtype),
        margin=torch.tensor(margin, dtype=dtype),
        label_smoothing=smoothing,
        tie=torch.tensor(tie),
    )
    assert loss.dtype == dtype
    assert loss.item() == pytest.approx(loop_loss(CHOSEN, REJECTED, margin, smoothing, tie), abs=tolerance)


def test_margin_is_subtracted_and_may_be_a_number():
    loss = preference.bradley_terry_loss(f64([2.0]), f64([0.0]), margin=2.0)
    assert loss.item() == pytest.approx(math.log(2), abs=1e-12)


def test_tie_pulls_scores_together_whatever_its_margin():
    """A tie at difference 0 has loss log 2 and gradient 0; a margin of NaN on it changes nothing."""
    chosen, rejected = f64([0.7]).requires_grad_(), f64([0.7])
    loss = preference.bradley_terry_loss(chosen, rejected, margin=f64([NAN]), tie=torch.tensor([True]))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2), abs=1e-12)
    assert chosen.grad.item() == 0.0


def test_smoothing_stops_at_its_optimum():
    """With 20 % wrong votes the loss is least at sigmoid(difference) = 0.8, i.e. at log 4."""
    chosen = f64([math.log(4.0)]).requires_grad_()
    preference.bradley_terry_loss(chosen, f64([0.0]), label_smoothing=0.2).backward()
    assert chosen.grad.item() == pytest.approx(0.0, abs=1e-12)


def test_loss_stays_finite_for_large_differences():
    loss = preference.bradley_terry_loss(torch.tensor([0.0]), torch.tensor([1000.0]))
    assert loss.item() == 1000.0


# --- what keeps scores in place, and ensembles ----------------------------------------------------------------------


def test_the_loss_is_never_negative():
    """Right order small, wrong order large, both above 0: -log sigmoid of +-2 is log(1 + e^-+2)."""
    two, zero = f64([2.0]), f64([0.0])
    right, wrong = preference.bradley_terry_loss(two, zero).item(), preference.bradley_terry_loss(zero, two).item()
    assert right == pytest.approx(math.log1p(math.exp(-2)), abs=1e-12)
    assert wrong == pytest.approx(math.log1p(math.exp(2)), abs=1e-12)
    assert 0 < right < math.log(2) < wrong


@pytest.mark.parametrize("strength", [torch.tensor([0, 1, 3]), f64([0.0, 1.0, 3.0])])
def test_margin_grows_with_the_strength(strength):
    """0, 1, 3 steps of 1/3; with the difference equal to the margin the loss is log 2."""
    margin = preference.margin_from_strength(strength, 1 / 3)
    assert margin.tolist() == pytest.approx([0.0, 1 / 3, 1.0], abs=1e-6)
    assert margin.is_floating_point()
    loss = preference.bradley_terry_loss(margin, torch.zeros_like(margin), margin=margin)
    assert loss.item() == pytest.approx(math.log(2), abs=1e-6)
    assert preference.margin_from_strength(strength, 0.0).tolist() == [0.0] * 3


def test_centring_and_l2_by_hand():
    """Pairs (3, 1) and (-1, 2): sums 4 and 1: (16 + 1) / 2; squares 9 + 1 + 1 + 4 over four scores."""
    chosen, rejected = f64([3.0, -1.0]).requires_grad_(), f64([1.0, 2.0]).requires_grad_()
    centring, size = preference.centring_penalty(chosen, rejected), preference.score_l2(chosen, rejected)
    assert (centring.item(), size.item()) == (8.5, 3.75)
    pulls = torch.autograd.grad(centring, (chosen, rejected))
    assert pulls[0].tolist() == pulls[1].tolist() == [4.0, 1.0]
    assert [x.tolist() for x in torch.autograd.grad(size, (chosen, rejected))] == [[1.5, -0.5], [0.5, 1.0]]


def test_ensembles_by_hand():
    """Scores 1, 3, 8 | 2, 2, 2: means 4 and 2, least 1 and 2, variance (9 + 1 + 16) / 3 and 0."""
    scores = f64([[1.0, 2.0], [3.0, 2.0], [8.0, 2.0]])
    assert preference.combine_ensemble_scores(scores).tolist() == [4.0, 2.0]
    assert preference.combine_ensemble_scores(scores, "worst").tolist() == [1.0, 2.0]
    got = preference.combine_ensemble_scores(scores, "uncertainty", coef=0.5).tolist()
    assert got == pytest.approx([4.0 - 13 / 3, 2.0], abs=1e-12)
    for mode in ("mean", "worst", "uncertainty"):
        assert preference.combine_ensemble_scores(scores[:1], mode).tolist() == [1.0, 2.0]


def test_regularisers_and_ensembles_gradcheck():
    chosen, rejected = f64(CHOSEN).requires_grad_(), f64(REJECTED).requires_grad_()
    assert torch.autograd.gradcheck(preference.centring_penalty, (chosen, rejected))
    assert torch.autograd.gradcheck(preference.score_l2, (chosen, rejected))
    for mode in ("mean", "worst", "uncertainty"):
        assert torch.autograd.gradcheck(
            lambda a, b, m=mode: preference.combine_ensemble_scores(torch.stack([a, b + 0.1]), m, 0.3),
            (chosen, rejected),
        )


def test_regularisers_and_ensembles_refuse_bad_arguments():
    scores = f64([[1.0, 2.0]])
    refused = [
        lambda: preference.margin_from_strength(torch.tensor([1]), -0.1),
        lambda: preference.margin_from_strength(torch.tensor([INF]), 0.1),
        lambda: preference.margin_from_strength(torch.tensor([NAN]), 0.1),
        lambda: preference.bradley_terry_loss(torch.zeros(2), torch.zeros(2), margin=INF),
        lambda: preference.bradley_terry_loss(torch.zeros(2), torch.zeros(2), margin=NAN),
        lambda: preference.margin_from_strength(torch.tensor([-1]), 0.1),
        lambda: preference.centring_penalty(f64([]), f64([])),
        lambda: preference.centring_penalty(f64([1.0]), f64([1.0, 2.0])),
        lambda: preference.score_l2(f64([]), f64([])),
        lambda: preference.combine_ensemble_scores(scores[0]),
        lambda: preference.combine_ensemble_scores(scores[:0]),
        lambda: preference.combine_ensemble_scores(scores, "median"),
        lambda: preference.combine_ensemble_scores(scores, "uncertainty", -1.0),
    ]
    for call in refused:
        with pytest.raises(ConfigError):
            call()


def test_loss_gradcheck():
    chosen, rejected, margin = (f64(x).requires_grad_() for x in (CHOSEN, REJECTED, [0.1, 0.2, 0.3, 0.4]))
    tie = torch.tensor([False, True, False, False])
    assert torch.autograd.gradcheck(
        lambda c, r, m: preference.bradley_terry_loss(c, r, margin=m, label_smoothing=0.1, tie=tie),
        (chosen, rejected, margin),
    )


@settings(derandomize=True, database=None, deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.floats(-8, 8), st.floats(-8, 8), st.booleans()), min_size=1, max_size=6))
def test_tied_or_not_loss_equals_loop_property(pairs):
    chosen, rejected, tie = (list(column) for column in zip(*pairs, strict=True))
    loss = preference.bradley_terry_loss(f64(chosen), f64(rejected), tie=torch.tensor(tie))
    assert loss.item() == pytest.approx(loop_loss(chosen, rejected, [0.0] * len(tie), 0.0, tie), abs=1e-9)


@pytest.mark.parametrize(
    "arguments",
    [
        {"label_smoothing": 0.5},
        {"label_smoothing": -0.1},
        {"label_smoothing": NAN},
        {"margin": f64([1.0, 2.0])},
        {"tie": torch.tensor([0.0, 1.0, 0.0, 1.0])},
        {"tie": torch.tensor([True])},
        {"rejected": f64([1.0])},
        {"chosen": f64([]), "rejected": f64([])},
    ],
)
def test_loss_refuses_bad_arguments(arguments):
    with pytest.raises(ConfigError):
        preference.bradley_terry_loss(**{"chosen": f64(CHOSEN), "rejected": f64(REJECTED)} | arguments)
