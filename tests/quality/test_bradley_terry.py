"""The Bradley-Terry fit against numbers worked by hand and an independent slow implementation."""

import math
import random

import numpy as np
import pytest

from rlhf_lab.quality.bradley_terry import _score_at, are_compared, fit_bradley_terry, score_intervals


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


def interval_of(wins):
    """Of contestant 1; that of contestant 0 is always (0, 0)."""
    first, interval = score_intervals(fit_bradley_terry(sum(wins)), wins)
    assert first == (0, 0)
    return interval


def test_interval_of_one_answer_to_each_prompt_by_hand():
    """Ten prompts, five wins each. Of the prompts' gradients ±1/2, 10/9 · 10/4 is 10/9 of the information 10/4: Wilson's interval
    of 1/2 for 10 / (10/9) = 9 answers with t(9) = 2.2622 is 0.1989 to 0.8011, log-odds ±1.3928."""
    assert interval_of([FIRST_WINS, SECOND_WINS] * 5) == pytest.approx((-1.3928, 1.3928), abs=3e-3)


def test_interval_of_correlated_answers_by_hand():
    """Three equal answers to each of ten prompts say no more than one."""
    assert interval_of([3 * FIRST_WINS, 3 * SECOND_WINS] * 5) == pytest.approx((-1.3928, 1.3928), abs=3e-3)


def test_interval_is_at_least_that_of_independent_answers():
    """A win of each at every one of five prompts: all gradients are 0. Wilson's for 10 answers with t(4) = 2.7764."""
    assert interval_of([FIRST_WINS + SECOND_WINS] * 5) == pytest.approx((-1.5848, 1.5848), abs=5e-3)


@pytest.mark.parametrize("people", [1, 3])
def test_without_a_defeat_there_is_no_upper_end(people):
    """Nine or more answers in ten go one way. Ten of ten prompts: Wilson's lower end 10 / (10 + 2.2622²) = 0.66148, log-odds
    0.66991, also if three people judge each prompt."""
    low, high = interval_of([people * SECOND_WINS] * 10)
    assert (low, high) == (pytest.approx(0.66991, abs=3e-3), None)
    assert interval_of([people * FIRST_WINS] * 10) == (None, pytest.approx(-0.66991, abs=3e-3))
    low, high = interval_of([people * SECOND_WINS] * 9 + [people * FIRST_WINS])
    assert low < 2 < high


def test_one_prompt_limits_nothing():
    """It says nothing about other prompts."""
    assert interval_of([100 * FIRST_WINS]) == (None, None)
    assert interval_of([50 * FIRST_WINS + 50 * SECOND_WINS]) == (None, None)
    unseen = fit_bradley_terry(np.zeros((3, 3)))
    assert score_intervals(unseen, []) == [(0, 0), (None, None), (None, None)]


def test_prompts_that_say_nothing_about_the_distance_to_the_base_do_not_count():
    """All answers about 1 and 0 are on one prompt; on ten others 1 is compared with 2, which is compared with nobody else. Even
    answers, so every information is 1/4: of 1 only the first prompt counts."""
    first = 5 * np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    others = [np.zeros((3, 3)) for _ in range(10)]
    for i, wins in enumerate(others):
        wins[1 + i % 2, 2 - i % 2] = 1
    wins = [first, *others]
    assert score_intervals(fit_bradley_terry(sum(wins)), wins)[1] == (None, None)


def test_unequal_prompts_count_by_their_answers():
    """Two prompts with four answers and two with two are as sure as (4 + 4 + 2 + 2)² / (16 + 16 + 4 + 4) = 3.6 prompts, rounded
    to 4; with eight answers for four, 20² / (64 + 64 + 4 + 4) = 2.94, to 3. All even: no variance between prompts, so Wilson's
    interval of 1/2 for all answers with t(3) = 3.1824 and t(2) = 4.3027."""
    even = FIRST_WINS + SECOND_WINS
    for answers, t in ((4, 3.1824), (8, 4.3027)):
        n = 2 * answers + 4
        half = t * math.sqrt(0.25 / n + t * t / (4 * n * n)) / (1 + t * t / n)
        expected = math.log((0.5 + half) / (0.5 - half))
        wins = [answers / 2 * even, answers / 2 * even, even, even]
        assert interval_of(wins) == pytest.approx((-expected, expected), abs=1e-2)


def test_ends_follow_chains_of_preferences():
    """2 beat 1 and 1 beat 0, 1 also beat 2: nothing leads from 0 up to them. 3 lost to 2 only, which says nothing about 0."""
    total = np.zeros((4, 4))
    total[2, 1], total[1, 2], total[1, 0], total[2, 3] = 3, 1, 4, 2
    wins = [total / 8] * 8
    _, *others = score_intervals(fit_bradley_terry(total), wins)
    assert [(low is None, high is None) for low, high in others] == [(False, True), (False, True), (True, True)]
    assert are_compared(total) == [True] * 4
    total[2, 1] = total[1, 2] = 0
    assert are_compared(total) == [True, True, False, False]


def test_intervals_have_their_coverage_for_other_prompts():
    """Four people judge all pairs of three equally good contestants; single texts differ by a normal quality. Of 80 tournaments
    with 12 prompts, whose true scores are 0; the standard error of a coverage of 95 % is 1.7 points."""
    rng = np.random.default_rng(0)
    covered = naive = 0
    for _ in range(80):
        wins = []
        for quality in rng.normal(size=(12, 3)):
            win_rates = 1 / (1 + np.exp(quality[None, :] - quality[:, None]))
            won = np.triu(rng.binomial(4, win_rates), 1).astype(float)
            wins.append(won + np.triu(4 - won, 1).T)
        fit = fit_bradley_terry(sum(wins))
        for i, (low, high) in list(enumerate(score_intervals(fit, wins)))[1:]:
            covered += low <= 0 <= high
            naive += abs(fit.scores[i]) <= 1.96 * math.sqrt(fit.covariance[i, i])
    assert 0.92 <= covered / 160 <= 0.99
    assert naive / 160 < 0.9


@pytest.mark.parametrize(("log_odds", "prompts", "people"), [(2, 12, 1), (4, 12, 3), (6, 48, 1)])
def test_intervals_have_their_coverage_beside_much_better_models(log_odds, prompts, people):
    """150 draws each: the standard error of a coverage of 95 % is 1.8 points. Of log-odds 4 and 6 most draws have no defeat."""
    rng, covered = np.random.default_rng(0), 0
    for _ in range(150):
        won = rng.binomial(people, 1 / (1 + math.exp(-log_odds)), prompts)
        low, high = interval_of([w * SECOND_WINS + (people - w) * FIRST_WINS for w in won])
        covered += (low is None or low <= log_odds) and (high is None or log_odds <= high)
    assert covered / 150 >= 0.93


def slow_profile(total, x):
    """The log-likelihood of the score x of contestant 1 of three, maximised over that of contestant 2 with a prior of variance
    8, by ternary search."""

    def value(y):
        s = [0.0, x, y]
        return sum(-total[i][j] * math.log1p(math.exp(s[j] - s[i])) for i in range(3) for j in range(3)) - y * y / 16

    low, high = -20.0, 20.0
    for _ in range(200):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (left, high) if value(left) < value(right) else (low, right)
    y = (low + high) / 2
    return value(y)


@pytest.mark.parametrize("deviate", [-2.0, 1.5])
def test_an_end_is_where_the_standardised_derivative_has_its_value(deviate):
    """Derivative and information of the profile by finite differences."""
    total = np.array([[0.0, 3.0, 1.0], [5.0, 0.0, 2.0], [4.0, 6.0, 0.0]])
    x, h = _score_at(total, 1, deviate, 0.0), 1e-3
    below, at, above = (slow_profile(total.tolist(), x + shift) for shift in (-h, 0.0, h))
    slope, information = (above - below) / (2 * h), -(above - 2 * at + below) / h**2
    assert slope / math.sqrt(information) == pytest.approx(deviate, abs=2e-3)


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
