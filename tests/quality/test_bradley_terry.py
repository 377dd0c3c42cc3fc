"""The Bradley-Terry fit against numbers worked by hand and an independent slow implementation."""

import math
import random

import numpy as np
import pytest

from rlhf_lab.quality.bradley_terry import fit_bradley_terry, score_intervals


def test_equal_wins_by_hand():
    """10 comparisons, 5 each: both scores are 0, and var(s1 - s0) = 2 / (1/4 + 10/2) = 0.38095."""
    fit = fit_bradley_terry(np.array([[0.0, 5.0], [5.0, 0.0]]))
    assert fit.scores.tolist() == [0, 0]
    assert fit.covariance.tolist() == [[0, 0], [0, pytest.approx(0.3809524, abs=1e-7)]]
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


FIRST_WINS, SECOND_WINS = np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([[0.0, 0.0], [1.0, 0.0]])
PRIOR_HALF_WIDTH = 1.96 * math.sqrt(8)


def half_width(wins):
    """Of the interval of contestant 1; that of contestant 0 is always (0, 0)."""
    fit = fit_bradley_terry(sum(wins))
    first, (low, high) = score_intervals(fit, wins)
    assert first == (0, 0)
    assert (low + high) / 2 == pytest.approx(fit.scores[1])
    return (high - low) / 2


def test_interval_of_one_answer_to_each_prompt_by_hand():
    """Ten prompts, five wins each, along (-1, 1) / sqrt(2): H = 1/4 + 10/2 = 21/4; Σ g gᵀ = 10 · 1/4 · 2 = 5, of which
    10/9; var(s1 - s0) = 2 (50/9 + 1/4) / H² = 0.421265; t(9) = 2.2622 (tables)."""
    assert half_width([FIRST_WINS, SECOND_WINS] * 5) == pytest.approx(2.2622 * math.sqrt(0.421265), rel=3e-3)


def test_interval_of_correlated_answers_by_hand():
    """Three equal answers to each of ten prompts: H = 1/4 + 15; Σ g gᵀ = 45; var = 2 (50 + 1/4) / H² = 0.43214."""
    assert half_width([3 * FIRST_WINS, 3 * SECOND_WINS] * 5) == pytest.approx(2.2622 * math.sqrt(0.43214), rel=3e-3)


def test_interval_is_at_least_that_of_independent_answers_and_at_most_that_of_the_prior():
    """A win of each at every prompt: all gradients are 0, so var = 2 / (1/4 + 10/2) as for 10 independent answers."""
    assert half_width([FIRST_WINS + SECOND_WINS] * 5) == pytest.approx(1.96 * math.sqrt(0.3809524))
    assert half_width([100 * FIRST_WINS]) == pytest.approx(PRIOR_HALF_WIDTH)
    assert half_width([100 * FIRST_WINS, 100 * SECOND_WINS]) == pytest.approx(PRIOR_HALF_WIDTH)
    unseen = fit_bradley_terry(np.zeros((3, 3)))
    assert score_intervals(unseen, [])[1:] == [pytest.approx((-PRIOR_HALF_WIDTH, PRIOR_HALF_WIDTH))] * 2


def test_intervals_have_their_coverage_for_other_prompts():
    """Four people judge all pairs of three equally good contestants; single texts differ by a normal quality. Of 400
    tournaments with 12 prompts, whose true scores are 0; the standard error of a coverage of 95 % is 0.8 points."""
    rng = np.random.default_rng(0)
    covered = naive = 0
    for _ in range(400):
        wins = []
        for quality in rng.normal(size=(12, 3)):
            win_rates = 1 / (1 + np.exp(quality[None, :] - quality[:, None]))
            won = np.triu(rng.binomial(4, win_rates), 1).astype(float)
            wins.append(won + np.triu(4 - won, 1).T)
        fit = fit_bradley_terry(sum(wins))
        for i, (low, high) in list(enumerate(score_intervals(fit, wins)))[1:]:
            covered += low <= 0 <= high
            naive += abs(fit.scores[i]) <= 1.96 * math.sqrt(fit.covariance[i, i])
    assert 0.92 <= covered / 800 <= 0.985
    assert naive / 800 < 0.9


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
