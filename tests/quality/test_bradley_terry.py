"""The Bradley-Terry fit against numbers worked by hand and an independent slow implementation."""

import math
import random

import numpy as np
import pytest

from rlhf_lab.quality.bradley_terry import fit_bradley_terry


def test_equal_wins_by_hand():
    """10 comparisons, 5 each: both scores are 0, and var(s1 - s0) = 2 / (1/4 + 10/2) = 0.38095."""
    fit = fit_bradley_terry(np.array([[0.0, 5.0], [5.0, 0.0]]))
    assert fit.scores.tolist() == [0, 0]
    assert fit.interval(1) == pytest.approx((-1.20974, 1.20974), abs=1e-5)
    assert fit.interval(0) == (0, 0)
    # p(1 - p) v = 0.0952381; half its log1p
    assert fit.expected_information()[0, 1] == pytest.approx(0.0454858, abs=1e-6)


def test_unequal_wins_by_hand():
    """s1 = -s0 = d/2; d = log 3 where w = 8 * 3/4 + (log 3)/8 = 6.137327 of 8 are won."""
    won = 6 + math.log(3) / 8
    fit = fit_bradley_terry(np.array([[0.0, 8 - won], [won, 0.0]]))
    assert fit.scores[1] == pytest.approx(1.0986123, abs=1e-7)
    # weight 8 * 3/16 = 1.5; var = 2 / (1/4 + 2 * 1.5)
    assert fit.covariance[1, 1] == pytest.approx(0.6153846, abs=1e-7)


def test_a_contestant_that_wins_everything_stays_finite_and_none_is_0():
    fit = fit_bradley_terry(np.array([[0.0, 0.0], [1000.0, 0.0]]))
    assert 5 < fit.scores[1] < 20
    unseen = fit_bradley_terry(np.zeros((3, 3)))
    assert unseen.scores.tolist() == [0, 0, 0]
    assert unseen.covariance[1, 1] == pytest.approx(8)  # two priors of 2²


def test_pending_comparisons_narrow_the_covariance_and_leave_the_scores():
    wins, pending = np.array([[0.0, 2.0], [6.0, 0.0]]), np.array([[0.0, 3.0], [3.0, 0.0]])
    fit, with_pending = fit_bradley_terry(wins), fit_bradley_terry(wins, pending)
    assert with_pending.scores == pytest.approx(fit.scores)
    assert with_pending.covariance[1, 1] < fit.covariance[1, 1]


def slow_fit(wins):
    """Coordinate ascent by bisection, and the Hessian by finite differences."""
    n = len(wins)

    def log_posterior(s):
        total = -sum(x * x for x in s) / 8
        for i in range(n):
            for j in range(n):
                if wins[i][j]:
                    total -= wins[i][j] * math.log1p(math.exp(s[j] - s[i]))
        return total

    def derivative(s, i):
        moved = [list(s), list(s)]
        moved[0][i] += 1e-5
        moved[1][i] -= 1e-5
        return (log_posterior(moved[0]) - log_posterior(moved[1])) / 2e-5

    s = [0.0] * n
    for _ in range(150):
        for i in range(n):
            low, high = -20.0, 20.0
            for _ in range(45):
                s[i] = (low + high) / 2
                low, high = (s[i], high) if derivative(s, i) > 0 else (low, s[i])
    hessian = [[0.0] * n for _ in range(n)]
    for i in range(n):
        for j in range(n):
            ahead, behind = list(s), list(s)
            ahead[j] += 1e-3
            behind[j] -= 1e-3
            hessian[i][j] = -(derivative(ahead, i) - derivative(behind, i)) / 2e-3
    covariance = np.linalg.inv(np.array(hessian))
    variances = [covariance[i][i] + covariance[0][0] - 2 * covariance[i][0] for i in range(n)]
    return [x - s[0] for x in s], variances


def test_agrees_with_the_slow_implementation():
    rng = random.Random(0)
    wins = [[0.0 if i == j else rng.choice([0, 0.5, 1, 2, 4, 7]) for j in range(3)] for i in range(3)]
    fit, (scores, variances) = fit_bradley_terry(np.array(wins)), slow_fit(wins)
    assert fit.scores.tolist() == pytest.approx(scores, abs=1e-4)
    assert np.diag(fit.covariance).tolist()[1:] == pytest.approx(variances[1:], abs=1e-3)
