"""The head fitted on frozen features, scaled layer by layer: against the explicit loss and against fits in torch."""

import math

import numpy as np
import pytest
import torch
from support import tiny_models  # noqa: F401  one thread
from support.primal_fit import primal_weights

from rlhf_lab.core.preference_fit import RIDGES, PreferenceTargets, choose_ridge
from rlhf_lab.training.reward import head_init
from rlhf_lab.training.reward.head_init import HeadFitter, PairAttributes

ROWS, LAYERS, WIDTH = 12, 2, 3
TIES = torch.arange(ROWS) % 4 == 3
MARGINS = torch.arange(ROWS).double() / 4
COUNTS = torch.tensor([0, 1, 2] * 4)
GROUPS = [i // 2 for i in range(ROWS)]
EVERY = list(range(ROWS))


def random(rows, seed, spreads=(1.0, 100.0)):
    """(rows, 6) float32: two layers of three units, of very different spread."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.tensor(spreads).repeat_interleave(WIDTH)
    return torch.randn(rows, LAYERS * WIDTH, generator=generator) * spread + 5.0


def fitter_of(ridge=0.5, smoothing=0.0):
    targets = PreferenceTargets(TIES.numpy(), MARGINS.numpy(), label_smoothing=smoothing)
    return HeadFitter(random(ROWS, 0) - random(ROWS, 1), random(40, 2), LAYERS, targets, GROUPS, ridge)


def layer_scales():
    """Each layer has half of the variance, and texts have a mean square distance of 1 from the mean of the reference."""
    reference = random(40, 2).double()
    squares = (reference - reference.mean(0)).square().mean(0)
    return torch.cat([(squares[part].sum() * LAYERS) ** -0.5 * torch.ones(WIDTH) for part in (slice(3), slice(3, 6))])


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_a_head_is_the_fit_in_torch(smoothing):
    """Margins (not on ties), counts and smoothing: by Newton's method for the weights of features that are scaled here."""
    fit = fitter_of(smoothing=smoothing).fit(EVERY, COUNTS)
    differences = (random(ROWS, 0) - random(ROWS, 1)).double() * layer_scales()
    expected = primal_weights(differences, TIES, MARGINS, COUNTS.double(), label_smoothing=smoothing, ridge=0.5)
    torch.testing.assert_close(fit.scaled_weights, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(fit.weights.double(), expected * layer_scales(), rtol=1e-4, atol=1e-5)
    assert float(expected.abs().min()) > 1e-3


def test_the_base_texts_have_a_mean_score_of_zero():
    fit = fitter_of().fit(EVERY, COUNTS)
    assert float((random(40, 2).double() @ fit.weights.double()).mean()) + fit.bias == pytest.approx(0.0, abs=1e-4)
    assert abs(fit.bias) > 0.01


def test_a_head_reads_the_labels_of_its_subset_alone():
    """Scores of the others are the products of their features; a label that counts 0 changes nothing."""
    fitter, subset = fitter_of(), [1, 2, 5, 7, 8]
    fit = fitter.fit(subset, torch.ones(ROWS))
    differences = (random(ROWS, 0) - random(ROWS, 1)).double() * layer_scales()
    ties, counts = torch.zeros(len(subset), dtype=torch.bool), torch.ones(len(subset)).double()
    ties[3] = True  # comparison 7 is a tie
    expected = primal_weights(differences[subset], ties, MARGINS[subset], counts, label_smoothing=0.0, ridge=0.5)
    torch.testing.assert_close(fit.scaled_weights, expected, rtol=1e-4, atol=1e-5)
    assert fit.indices == subset
    torch.testing.assert_close(
        fitter.score_differences(fit, [0, 7]), differences[[0, 7]] @ expected, rtol=1e-4, atol=1e-4
    )
    without = fitter.fit(EVERY, torch.tensor([float(i in subset) for i in EVERY]))
    torch.testing.assert_close(without.scaled_weights, expected, rtol=1e-4, atol=1e-5)


def test_held_out_scores_are_near_those_of_fits_without_the_prompt():
    fitter = fitter_of(ridge=3.0)
    fit, ones = fitter.fit(EVERY, torch.ones(ROWS)), torch.ones(ROWS)
    refitted = [
        float(fitter.score_differences(fitter.fit([j for j in EVERY if GROUPS[j] != GROUPS[i]], ones), [i]))
        for i in EVERY
    ]
    assert fit.held_out.tolist() == pytest.approx(refitted, abs=0.02)
    fitted = fitter.score_differences(fit, EVERY).tolist()
    assert max(abs(a - b) for a, b in zip(fitted, refitted, strict=True)) > 0.1


def test_the_ridge_is_chosen_by_leaving_labels_out():
    fitter = fitter_of(ridge=0.0)
    chosen = choose_ridge(fitter.gram, PreferenceTargets(TIES.numpy(), MARGINS.numpy(), np.ones(ROWS)), GROUPS)
    assert fitter.fit(EVERY, torch.ones(ROWS)).ridge == chosen
    assert chosen in RIDGES


def test_of_many_labels_a_part_is_read(monkeypatch):
    """At most 5 of 12: every third."""
    monkeypatch.setattr(head_init, "MAX_HEAD_LABELS", 5)
    fitter = fitter_of()
    fit = fitter.fit(EVERY, torch.ones(ROWS))
    assert fit.indices == [0, 3, 6, 9]
    assert fitter.gram.shape == (4, 4)
    whole = fitter_of()
    monkeypatch.undo()
    expected = fitter_of().fit([0, 3, 6, 9], torch.ones(ROWS))
    torch.testing.assert_close(fit.weights, expected.weights)
    assert len(fit.held_out) == len(whole.fit(EVERY, torch.ones(ROWS)).held_out) == 4


def test_a_layer_of_equal_texts_and_separable_labels_give_finite_heads():
    features = torch.cat([torch.zeros(4, WIDTH), torch.eye(4)[:, :WIDTH] * 1000], 1)
    targets = PreferenceTargets(np.zeros(4, bool))
    fit = HeadFitter(features, features, LAYERS, targets, [0, 1, 2, 3], 0.03).fit([0, 1, 2], torch.ones(4))
    assert bool(fit.weights.isfinite().all())
    assert fit.weights[:WIDTH].tolist() == [0.0] * WIDTH
    assert bool((fit.weights[WIDTH:] > 0).all())
    assert math.isfinite(fit.bias)


def test_the_head_and_the_attribute_scores_add_up_to_the_log_odds_of_the_fit():
    """The head reads whole features, to which two attributes of the texts contribute much."""
    mixing = torch.linspace(-200, 200, 2 * LAYERS * WIDTH, dtype=torch.float64).reshape(2, -1)
    z, reference_z = random(ROWS, 7)[:, :2].double(), random(40, 8)[:, :2].double()
    differences, reference = ((random(len(of), seed) + of @ mixing).float() for of, seed in ((z, 0), (reference_z, 2)))
    attributes = PairAttributes(z, reference_z)
    fitter = HeadFitter(
        differences, reference, LAYERS, PreferenceTargets(np.zeros(ROWS, bool)), GROUPS, 1.0, attributes
    )
    fit = fitter.fit(EVERY, torch.ones(ROWS))
    of_fit = fitter.score_differences(fit, EVERY) + torch.from_numpy(fitter.attributes @ fit.effects.log_odds)
    of_training = differences @ fit.weights + fitter.attribute_scores(fit)
    assert torch.allclose(of_training.double(), of_fit, atol=1e-3)
