"""The head of the instant reward model: against its gradient, explicit Newton steps, and refits without each prompt."""

import math

import numpy as np
import pytest
from support import tiny_models  # noqa: F401  one thread

from rlhf_lab.core.preference_fit import (
    RIDGES,
    LayerScaler,
    PairGram,
    PreferenceTargets,
    choose_ridge,
    fit_dual,
    held_out_scores,
    label_influences,
    log_loss,
    score_variance,
)


def problem(seed=0, rows=12, width=5):
    generator = np.random.default_rng(seed)
    return generator.normal(size=(rows, width)), np.arange(rows) % 4 == 3


def noisy_differences(seed, count, width=400):
    """Differences (chosen - rejected) whose labels mostly follow a hidden direction."""
    generator = np.random.default_rng(seed)
    differences = generator.normal(size=(count, width)) * np.geomspace(3.0, 0.3, width) / width**0.5
    logits = differences @ generator.normal(size=width) * 3 + generator.logistic(size=count)
    return differences * np.sign(logits)[:, None]


def refitted_scores(gram, ties, groups, ridge):
    """Score differences, each from a fit without the labels of its group."""
    scores, groups = np.empty(len(gram)), np.array(groups)
    start = fit_dual(gram, PreferenceTargets(ties), ridge).coefficients
    for group in set(groups.tolist()):
        held_out, rest = np.flatnonzero(groups == group), np.flatnonzero(groups != group)
        fit = fit_dual(gram[np.ix_(rest, rest)], PreferenceTargets(ties[rest]), ridge, start[rest])
        scores[held_out] = gram[np.ix_(held_out, rest)] @ fit.coefficients
    return scores


def test_one_dimension_by_hand():
    """d = 1: sigmoid(-w) = ridge w at the optimum; w = 1 for ridge = sigmoid(-1) = 0.2689414213699951. Here w = a."""
    fit = fit_dual(np.ones((1, 1)), PreferenceTargets(np.array([False])), 0.2689414213699951)
    assert fit.coefficients.tolist() == pytest.approx([1.0], abs=1e-7)
    assert fit.scores.tolist() == pytest.approx([1.0], abs=1e-7)
    assert fit.gradient.tolist() == pytest.approx([-0.2689414213699951], abs=1e-7)
    assert fit.curvature.tolist() == pytest.approx([0.2689414213699951 * 0.7310585786300049], abs=1e-7)


@pytest.mark.parametrize("ridge", [0.3, 3.0, 100.0])
@pytest.mark.parametrize("width", [5, 40])
def test_the_primal_gradient_vanishes(ridge, width):
    """sum of counts * (sigmoid(d w - margin) - target) d + ridge w = 0, row by row: the minimum, for the loss is convex."""
    differences, ties = problem(width=width)
    margins, counts = np.arange(12) / 4, np.array([1.0, 2.0, 3.0] * 4)
    fit = fit_dual(differences @ differences.T, PreferenceTargets(ties, margins, counts, 0.1), ridge)
    weights = differences.T @ fit.coefficients
    total = ridge * weights
    for row, tie, margin, count, score in zip(differences, ties, margins, counts, fit.scores, strict=True):
        logit = float(row @ weights) - (0.0 if tie else margin)
        total = total + count * (1 / (1 + math.exp(-logit)) - (0.5 if tie else 0.9)) * row
        assert score == pytest.approx(float(row @ weights), abs=1e-9)
    assert np.abs(total).max() < 1e-6


def test_the_fit_converges_with_wide_margins():
    """Full Newton steps oscillate where labels start in the flat part of the loss: the line search shortens them."""
    differences, ties = problem(rows=40, width=3)
    margins = np.full(40, 40.0)
    fit = fit_dual(differences @ differences.T, PreferenceTargets(ties, margins), 1e-3)
    weights = differences.T @ fit.coefficients
    probs = 0.5 + 0.5 * np.tanh((differences @ weights - np.where(ties, 0, margins)) / 2)
    residual = differences.T @ (probs - np.where(ties, 0.5, 1.0)) + 1e-3 * weights
    assert np.abs(residual).max() < 1e-4


def test_the_start_point_does_not_change_the_fit():
    differences, ties = problem(rows=30, width=60)
    gram, targets = differences @ differences.T, PreferenceTargets(ties)
    from_zero = fit_dual(gram, targets, 0.5)
    from_random = fit_dual(gram, targets, 0.5, np.random.default_rng(1).normal(size=30))
    assert from_random.scores.tolist() == pytest.approx(from_zero.scores.tolist(), abs=1e-6)


def test_held_out_scores_are_one_explicit_newton_step():
    """Groups of one to three labels: w + H^-1 X_b^T g_b with the Hessian H of all other labels, solved in the primal."""
    differences, ties = problem(rows=12, width=7)
    counts, ridge = np.array([1.0, 2.0, 1.0] * 4), 0.6
    groups = [0, 1, 1, 2, 2, 2, 3, 4, 5, 5, 6, 0]
    gram = differences @ differences.T
    fit = fit_dual(gram, PreferenceTargets(ties, counts=counts), ridge)
    actual = held_out_scores(gram, fit, groups)
    weights = differences.T @ fit.coefficients
    for group in set(groups):
        held_out = [i for i, one in enumerate(groups) if one == group]
        rest = [i for i, one in enumerate(groups) if one != group]
        probs = [1 / (1 + math.exp(-float(differences[i] @ weights))) for i in range(12)]
        hessian = ridge * np.eye(7)
        for i in rest:
            hessian += counts[i] * probs[i] * (1 - probs[i]) * np.outer(differences[i], differences[i])
        ascent = sum(counts[i] * (probs[i] - (0.5 if ties[i] else 1.0)) * differences[i] for i in held_out)
        step = weights + np.linalg.solve(hessian, ascent)
        assert actual[held_out].tolist() == pytest.approx((differences[held_out] @ step).tolist(), abs=1e-6)


@pytest.mark.parametrize(("count", "block"), [(60, 1), (60, 4), (200, 2), (200, 4)])
def test_held_out_accuracy_is_that_of_exact_refits(count, block):
    """Within one accuracy point, on the mean of some draws, and no draw further than two labels away."""
    differing, draws = [], 4 if count == 60 else 2
    for seed in range(draws):
        differences, ties = noisy_differences(seed, count), np.arange(count) % 10 == 9
        gram, groups = differences @ differences.T, [i // block for i in range(count)]
        targets = PreferenceTargets(ties)
        ridge = choose_ridge(gram, targets, groups)
        approximate = held_out_scores(gram, fit_dual(gram, targets, ridge), groups)
        exact = refitted_scores(gram, ties, groups, ridge)
        differing.append(int((approximate[~ties] > 0).sum()) - int((exact[~ties] > 0).sum()))
        assert 0.5 < (exact[~ties] > 0).mean() < 0.95
    assert abs(sum(differing)) / (draws * 0.9 * count) < 0.01
    assert max(map(abs, differing)) <= 2


def test_scores_that_are_only_rounding_are_equal():
    """Of one group nothing is left to learn from, so the head without it is 0, for features of any size."""
    for seed, size in ((0, 1.0), (1, 1.0), (2, 30.0)):
        differences, ties = size * np.random.default_rng(seed).normal(size=(12, 7)), np.zeros(12, np.bool_)
        gram = differences @ differences.T
        fit = fit_dual(gram, PreferenceTargets(ties), 0.1)
        assert held_out_scores(gram, fit, [0] * 12).tolist() == [0.0] * 12
        assert (held_out_scores(gram, fit, range(12)) != 0).all()


def test_a_label_does_not_predict_itself():
    """Random labels: the fit reproduces them, but held-out accuracy is about one half."""
    generator = np.random.default_rng(5)
    differences = generator.normal(size=(200, 2000)) / 2000**0.5
    gram, targets = differences @ differences.T, PreferenceTargets(np.zeros(200, bool))
    fit = fit_dual(gram, targets, 0.1)
    assert (fit.scores > 0).all()
    assert 0.35 < (held_out_scores(gram, fit, range(200)) > 0).mean() < 0.65
    twice = np.concatenate([differences, differences])  # a second label on each pair
    gram = twice @ twice.T
    fit = fit_dual(gram, PreferenceTargets(np.zeros(400, bool)), 0.1)
    assert (held_out_scores(gram, fit, range(400)) > 0).all()
    assert 0.35 < (held_out_scores(gram, fit, [*range(200), *range(200)]) > 0).mean() < 0.65


def test_log_loss_by_hand():
    """-log sigmoid(0) = 0.6931, of ln 3: sigmoid 0.75, 0.2877; a tie there (0.2877 + 1.3863) / 2 = 0.8370, counted twice."""
    scores = np.array([0.0, math.log(3), math.log(3)])
    targets = PreferenceTargets(np.array([False, False, True]), counts=np.array([1.0, 1.0, 2.0]))
    assert log_loss(scores, targets) == pytest.approx((0.6931472 + 0.2876821 + 2 * 0.8369882) / 4, abs=1e-6)


def test_the_ridge_has_the_lowest_held_out_loss():
    chosen = set()
    for seed in range(6):
        differences = (
            noisy_differences(seed, 40) if seed % 2 else np.random.default_rng(seed).normal(size=(40, 300)) / 300**0.5
        )
        gram, ties = differences @ differences.T, np.zeros(40, bool)
        targets, groups = PreferenceTargets(ties), [i // 2 for i in range(40)]
        losses = {
            ridge: log_loss(held_out_scores(gram, fit_dual(gram, targets, ridge), groups), targets) for ridge in RIDGES
        }
        ridge = choose_ridge(gram, targets, groups)
        assert losses[ridge] <= min(losses.values()) + 1e-9
        chosen.add(ridge)
    assert len(chosen) > 1


def test_layers_are_scaled_to_equal_spread_by_hand():
    """Two layers of two units: variances 1 + 0 and 16 + 9 = 25, so that scales are 1 / sqrt(2) and 1 / sqrt(50)."""
    reference = np.array([[1, 5, 4, 3], [-1, 5, -4, -3]], np.float32)
    scaler = LayerScaler(reference, 2)
    assert scaler.mean.tolist() == [0, 5, 0, 0]
    assert scaler(np.ones(4, np.float32)).tolist() == pytest.approx([2**-0.5, 2**-0.5, 50**-0.5, 50**-0.5], rel=1e-6)
    assert (scaler(reference - scaler.mean) ** 2).sum(1).mean() == pytest.approx(1.0, rel=1e-6)


def test_a_layer_without_any_spread_counts_for_nothing():
    scaler = LayerScaler(np.array([[1, 7], [-1, 7]], np.float32), 2)
    assert scaler(np.ones(2, np.float32)).tolist() == pytest.approx([2**-0.5, 0.0], rel=1e-6)


def test_a_gram_matrix_grows_pair_by_pair():
    """150 pairs, in parts, against one product; half precision keeps three digits of small differences."""
    differences = (np.random.default_rng(0).normal(size=(150, 300)) / 300**0.5 * 1e-3).astype(np.float32)
    pairs, start = PairGram(300), 0
    for size in (1, 40, 2, 100, 7):
        pairs.add([1000 + i for i in range(start, start + size)], differences[start : start + size])
        start += size
    assert len(pairs) == 150
    order = [1149, 1000, 1077, 1000]
    signs = np.array([1.0, -1.0, 1.0, 1.0])
    signed = differences[[i - 1000 for i in order]].astype(float) * signs[:, None]
    actual = pairs.gram(order, signs)
    assert actual / 1e-6 == pytest.approx(signed @ signed.T / 1e-6, abs=2e-3)
    assert actual[1, 3] < 0
    assert np.array_equal(actual, actual.T)


def test_weights_score_texts_as_the_fit_does():
    """Two labels on one pair, one of them for the second text: weights · difference is the score difference of each label."""
    differences = np.random.default_rng(3).normal(size=(70, 90)).astype(np.float32) / np.float32(9.5)
    pairs = PairGram(90)
    pairs.add(range(70), differences)
    labels, signs = [*range(70), 4], np.where(np.arange(71) % 3, 1.0, -1.0)
    fit = fit_dual(pairs.gram(labels, signs), PreferenceTargets(np.zeros(71, bool)), 0.5)
    weights = pairs.weights(labels, fit.coefficients * signs)
    assert (differences[labels] @ weights * signs).tolist() == pytest.approx(fit.scores.tolist(), abs=5e-3)


@pytest.mark.parametrize(("count", "ridge"), [(30, 0.1), (60, 1.0), (120, 3.0)])
def test_influences_of_labels_are_those_of_refits_without_them(count, ridge):
    """For ten texts: the same sign for the five largest, and a rank correlation of at least 0.98."""
    differences = noisy_differences(5, count)
    gram, ties = differences @ differences.T, np.arange(count) % 9 == 8
    targets = PreferenceTargets(ties)
    fit = fit_dual(gram, targets, ridge)
    texts = np.random.default_rng(6).normal(size=(10, differences.shape[1])) / differences.shape[1] ** 0.5
    refits = []
    for left_out in range(count):
        rest = [i for i in range(count) if i != left_out]
        refits.append(
            differences[rest].T @ fit_dual(gram[np.ix_(rest, rest)], PreferenceTargets(ties[rest]), ridge).coefficients
        )
    for text in texts:
        actual = label_influences(gram, fit, differences @ text)
        expected = text @ (differences.T @ fit.coefficients) - np.array(refits) @ text
        largest = np.argsort(-np.abs(expected))[:5]
        assert (np.sign(actual[largest]) == np.sign(expected[largest])).all()
        ranks = [np.argsort(np.argsort(values)) for values in (actual, expected)]
        assert np.corrcoef(*ranks)[0, 1] >= 0.98


def test_the_influence_of_the_only_label_is_the_whole_score():
    fit = fit_dual(np.ones((1, 1)), PreferenceTargets(np.array([False])), 0.2689414213699951)
    assert label_influences(np.ones((1, 1)), fit, np.array([0.5])) == pytest.approx([0.5], abs=1e-7)


def test_products_are_those_of_the_differences_with_their_signs():
    """By the ids of the pairs, in half precision."""
    pairs, rows = PairGram(3), np.array([[1.0, 2.0, 0.0], [0.0, -1.0, 4.0]], np.float32)
    pairs.add([7, 3], rows)
    features = np.array([0.5, 1.0, -1.0], np.float32)
    assert pairs.products([3, 7, 3], np.array([1.0, -1.0, -1.0]), features) == pytest.approx(
        [-5.0, -2.5, 5.0], rel=2e-3
    )


@pytest.mark.parametrize("ridge", [0.3, 3.0])
def test_the_variance_of_a_score_is_that_of_all_weights(ridge):
    """xᵀ H⁻¹ x with the Hessian of the primal loss; far from all labels it is that of the prior, |x|² / ridge."""
    differences, ties = problem(width=5)
    gram, targets = differences @ differences.T, PreferenceTargets(ties)
    fit = fit_dual(gram, targets, ridge)
    hessian = differences.T @ (differences * fit.curvature[:, None]) + ridge * np.eye(5)
    text = np.random.default_rng(1).normal(size=5)
    actual = score_variance(gram, fit, differences @ text, float(text @ text))
    assert actual == pytest.approx(float(text @ np.linalg.solve(hessian, text)), rel=1e-8)
    assert actual < text @ text / ridge
    assert score_variance(gram, fit, np.zeros(12), 2.0) == pytest.approx(2.0 / ridge)
