"""The KL budget of a live run: reliability by hand and by sampling, and what it does to a run."""

import numpy as np
import pytest

from rlhf_lab.core.evidence_budget import evidence_budget, score_reliability
from rlhf_lab.core.preference_fit import PreferenceTargets, fit_dual
from rlhf_lab.errors import ConfigError


def reliability(differences, texts, ridge):
    gram = differences @ differences.T
    fit = fit_dual(gram, PreferenceTargets(np.zeros(len(differences), np.bool_)), ridge)
    return score_reliability(gram, fit, differences @ texts.T, (texts**2).sum(1))


def test_one_label_by_hand():
    """d = 1 and ridge = sigmoid(-1) = 0.26894: the weight is 1, the Hessian sigmoid(-1)·sigmoid(1) + ridge = 0.46555.

    Of the differences 2 and 0, scores are 2 and 0 (mean square 2), variances 4 / 0.46555 and 0 (mean 4.29592).
    """
    value = reliability(np.ones((1, 1)), np.array([[2.0], [0.0]]), 0.2689414213699951)
    assert value == pytest.approx(2 / (2 + 2 / (0.2689414213699951 * 1.7310585786300049)), abs=1e-6)


def test_many_texts_equal_a_dense_posterior():
    """Of the covariance of the weights, (X^T W X + ridge)⁻¹, in the space of features."""
    random = np.random.default_rng(0)
    differences, texts, ridge = random.normal(size=(12, 5)), random.normal(size=(7, 5)), 0.5
    fit = fit_dual(differences @ differences.T, PreferenceTargets(np.zeros(12, np.bool_)), ridge)
    weights = differences.T @ fit.coefficients
    covariance = np.linalg.inv((differences.T * fit.curvature) @ differences + ridge * np.eye(5))
    signal, noise = np.mean((texts @ weights) ** 2), np.mean(np.einsum("md,de,me->m", texts, covariance, texts))
    assert reliability(differences, texts, ridge) == pytest.approx(signal / (signal + noise), rel=1e-6)


def test_it_rises_with_labels_that_agree_and_falls_with_those_that_do_not():
    one = np.array([[1.0, 0.0]])
    texts = np.eye(2)
    values = [reliability(np.repeat(one, count, axis=0), texts, 1.0) for count in (1, 4, 16)]
    assert values == sorted(values)
    assert values[0] < 0.15
    assert reliability(np.repeat(np.vstack([one, -one]), 8, axis=0), texts, 1.0) == pytest.approx(0.0, abs=1e-9)
    assert reliability(one, np.zeros((3, 2)), 1.0) == 0.0


@pytest.mark.parametrize("ridge", [0.5, 8.0])
def test_it_is_slightly_below_the_squared_correlation_with_the_true_scores(ridge):
    """200 heads of 30 labels whose true weights are drawn from the prior of the fit. The standard error is at most 0.02."""
    random, differences_from_truth = np.random.default_rng(1), []
    for _ in range(200):
        true = random.normal(size=8) / ridge**0.5
        pairs, texts = random.normal(size=(30, 8)), random.normal(size=(64, 8))
        signs = np.where(random.random(30) < 1 / (1 + np.exp(-pairs @ true)), 1.0, -1.0)
        chosen = pairs * signs[:, None]
        fit = fit_dual(chosen @ chosen.T, PreferenceTargets(np.zeros(30, np.bool_)), ridge)
        correlation = np.corrcoef(texts @ true, texts @ (chosen.T @ fit.coefficients))[0, 1]
        differences_from_truth.append(reliability(chosen, texts, ridge) - correlation**2)
    assert -0.15 < np.mean(differences_from_truth) < 0.0


def test_budget():
    assert [evidence_budget(4.0, share) for share in (0.0, 0.25, 1.0)] == [0.0, 1.0, 4.0]


@pytest.mark.parametrize(("full", "share"), [(0.0, 0.5), (-1.0, 0.5), (4.0, -0.1), (4.0, 1.1), (4.0, float("nan"))])
def test_no_such_budget(full, share):
    with pytest.raises(ConfigError, match="full="):
        evidence_budget(full, share)
