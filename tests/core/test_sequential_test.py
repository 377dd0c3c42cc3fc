"""The tests that stop a run which people no longer prefer: by hand, by enumeration of all answers, and by simulation."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from rlhf_lab.common.enums import BrakeState, Opponent
from rlhf_lab.core.sequential_test import (
    START_SCALE,
    Answer,
    EProcess,
    Evidence,
    brake,
    is_preferred,
    no_evidence,
    should_stop,
    start_weight,
    waiting_weight,
)

BASE, BEST = Opponent
THIRD, FIFTHS = Fraction(1, 3), Fraction(3, 5)


def answers(opponent, text):
    """Answers from "+" for a win, "-" for a defeat, "=" for no decision."""
    return [Answer(opponent, {"+": True, "-": False, "=": None}[each]) for each in text]


def exact_value(successes):
    """The e-value as defined: each part of the capital, at each of the bets, multiplied by each answer since its start."""
    total, parts = Fraction(0), Fraction(0)
    for start in range(len(successes)):
        part = Fraction(50, (start + 50) * (start + 51))
        parts += part
        for bet in (THIRD, FIFTHS):
            capital = part / 2
            for success in successes[start:]:
                capital *= 1 + bet if success else 1 - bet
            total += capital
    return total + 1 - parts


def value_after(successes):
    process = EProcess()
    for success in successes:
        process = process.after(success)
    return float(process.value)


def test_e_values_by_hand():
    """The first part is 50 / (50 · 51) = 1/51. A success multiplies its halves by 4/3 and 8/5, a failure by 2/3 and 2/5.

    After one success: (4/3 + 8/5) / 102 + 50/51 = 1 + 0.46667 / 51; after one failure 1 - 0.46667 / 51. The second part is
    50 / (51 · 52) = 25/1326. Success, failure: ((8/9 + 16/25) / 102 + (2/3 + 2/5) · 25/2652) + 50/52.
    """
    assert value_after([]) == 1.0
    assert value_after([True]) == pytest.approx(1.0091503267973856, abs=1e-14)
    assert value_after([False]) == pytest.approx(0.9908496732026144, abs=1e-14)
    assert value_after([True, False]) == pytest.approx(
        (8 / 9 + 16 / 25) / 102 + (2 / 3 + 2 / 5) * 25 / 2652 + 50 / 52, abs=1e-14
    )


def test_the_parts_of_the_capital_add_up_to_one():
    assert start_weight(0) == pytest.approx(1 / 51)
    for count in (0, 1, 7, 400):
        assert math.fsum(map(start_weight, range(count))) + waiting_weight(count) == pytest.approx(1.0)
    assert waiting_weight(START_SCALE) == 0.5


@pytest.mark.parametrize("length", [1, 5, 12])
def test_the_expected_e_value_of_even_answers_is_one(length):
    """Of all sequences of this length, computed at once; for p = 0.4 it is lower, for p = 0.6 higher."""
    sequences = np.array(list(itertools.product([False, True], repeat=length)))
    process = EProcess()
    for column in sequences.T:
        process = process.after(column)
    for p, relation in ((0.5, 0), (0.4, -1), (0.6, 1)):
        probabilities = np.where(sequences, p, 1 - p).prod(1)
        assert probabilities.sum() == pytest.approx(1.0)
        excess = float(probabilities @ process.value) - 1.0
        assert abs(excess) < 1e-12 if relation == 0 else math.copysign(1, excess) == relation
    if length == 5:
        assert process.value.tolist() == pytest.approx([float(exact_value(row)) for row in sequences.tolist()])


def test_stopping_at_any_time_keeps_the_expectation():
    """The chance that the capital ever reaches 1.2 within 12 even answers is at most 1 / 1.2, and its mean at that time, or at
    the end, is exactly 1."""
    sequences = np.array(list(itertools.product([False, True], repeat=12)))
    process, stopped = EProcess(), np.full(len(sequences), np.nan)
    for column in sequences.T:
        process = process.after(column)
        stopped = np.where(np.isnan(stopped) & (process.value >= 1.2), process.value, stopped)
    assert np.where(np.isnan(stopped), process.value, stopped).mean() == pytest.approx(1.0, abs=1e-12)
    assert 0.01 < np.isfinite(stopped).mean() <= 1 / 1.2


def test_an_adaptive_choice_of_opponent_keeps_the_expectation():
    """All sequences of 10 even answers; who has won the most answers so far is asked about, the base if both are equal."""
    values = []
    for sequence in itertools.product([False, True], repeat=10):
        evidence, lost = no_evidence(), {BASE: 0, BEST: 0}
        for won in sequence:
            opponent = max(lost, key=lambda each: lost[each])
            evidence[opponent], lost[opponent] = evidence[opponent].after(won), lost[opponent] + (not won)
        values.append(sum(float(evidence[opponent].declined.value) for opponent in Opponent) / 2)
    assert max(values) > 1.5
    assert math.fsum(values) / len(values) == pytest.approx(1.0, abs=1e-12)


def test_runs_without_a_difference_are_rarely_stopped():
    """400 runs of 400 answers, half of them about each opponent: with a probability of 5 % more than 31 of them have
    less than one chance in 200. The same bound holds for PREFERRED."""
    stopped, preferred = first_times(np.full(400, 0.5), np.full(400, 0.5), runs=400)
    assert 1 <= np.isfinite(stopped).sum() <= 31
    assert 1 <= np.isfinite(preferred).sum() <= 31


@pytest.mark.parametrize(("share", "limit"), [(0.2, 40), (1 / 3, 120)])
@pytest.mark.parametrize("opponent", [BASE, BEST])
def test_a_late_decline_is_noticed(opponent, share, limit):
    """After 20 answers of which the policy wins 70 %, its win rate falls; the other opponent has no answers."""
    rates = np.where(np.arange(400) < 20, 0.7, share)
    times, _ = first_times(*((rates, None) if opponent is BASE else (None, rates)), runs=400)
    assert (times > 20).mean() > 0.99
    assert np.median(times) - 20 <= limit


def first_times(base_rates, best_rates, runs):
    """(runs,) answers about each opponent after which a run is stopped, and is preferred; infinite: never. rates: (n,)."""
    random, evidence = np.random.default_rng(0), no_evidence()
    stopped, preferred = np.full(runs, np.inf), np.full(runs, np.inf)
    for i in range(len(base_rates if base_rates is not None else best_rates)):
        for opponent, rates in ((BASE, base_rates), (BEST, best_rates)):
            if rates is not None:
                evidence[opponent] = evidence[opponent].after(random.random(runs) < rates[i])
        stopped = np.where(should_stop(evidence), np.minimum(stopped, i + 1), stopped)
        preferred = np.where(is_preferred(evidence), np.minimum(preferred, i + 1), preferred)
    return stopped, preferred


def test_states():
    """Of equal answers, 14 bring the e-value above 20, and 16 above 39, so that its mean with the 1 of the other test is 20."""
    for count, expected in ((0, "unknown"), (13, "unknown"), (14, "preferred")):
        assert brake(answers(BASE, "+" * count)).state is BrakeState(expected), count
    for count, expected in ((15, "unknown"), (16, "declined")):
        assert brake(answers(BASE, "-" * count)).state is BrakeState(expected), count
    assert [float(exact_value([True] * count)) >= 20 for count in (13, 14)] == [False, True]
    assert [float(exact_value([True] * count)) >= 39 for count in (15, 16)] == [False, True]
    assert brake(answers(BEST, "+" * 40)).state is BrakeState.UNKNOWN, "better than the best checkpoint, base unknown"


def test_the_worse_comparison_is_named():
    report = brake(answers(BASE, "+" * 30) + answers(BEST, "-" * 30))
    assert (report.state, report.worse_than) == (BrakeState.DECLINED, BEST)
    assert report.wins == {BASE: 30, BEST: 0}
    assert brake(answers(BASE, "-" * 30)).worse_than is BASE
    assert brake(answers(BASE, "+" * 30)).worse_than is None


def test_both_tests_together_stop_earlier():
    """14 defeats against each, which is not enough for either alone."""
    both = [answer for pair in zip(answers(BASE, "-" * 20), answers(BEST, "-" * 20), strict=True) for answer in pair]
    report = brake(both)
    assert report.state is BrakeState.DECLINED
    assert report.answers_read == 28
    values = [float(report.evidence[opponent].declined.value) for opponent in Opponent]
    assert values == pytest.approx([float(exact_value([True] * 14))] * 2)


def test_a_stop_lasts_and_early_wins_do_not_prevent_it():
    report = brake(answers(BASE, "+" * 60 + "-" * 60 + "+" * 100))
    assert report.state is BrakeState.DECLINED
    assert 60 < report.answers_read < 120
    assert repr(report) == repr(brake(answers(BASE, "+" * 60 + "-" * (report.answers_read - 60))))


def test_undecided_answers_change_nothing_but_what_was_read():
    plain, mixed = answers(BASE, "+-++"), answers(BASE, "=+-=+=+=")
    assert brake(mixed).answers_read == 8
    assert repr(brake(mixed)._replace(answers_read=4)) == repr(brake(plain))


def test_preferred_ends_when_the_evidence_does():
    assert brake(answers(BASE, "+" * 14)).state is BrakeState.PREFERRED
    assert brake(answers(BASE, "+" * 14 + "-")).state is BrakeState.UNKNOWN


def test_capital_is_bounded():
    """100 wins in a row would make 51 stakes of 1.6^100 = 2.6e20; after a decline nobody waits until such a stake is lost."""
    evidence = Evidence()
    for _ in range(100):
        evidence = evidence.after(True)
    third = sum(25 / ((start + 50) * (start + 51)) * (4 / 3) ** (100 - start) for start in range(100))
    assert evidence.preferred.stakes.tolist() == pytest.approx([third, 1e12])
    assert 0 < float(evidence.declined.value) < 0.4


@pytest.mark.parametrize("text", ["", "====", "+-" * 60])
def test_no_forecast_without_a_trend(text):
    assert brake(answers(BASE, text)).more_answers is None


def test_forecasts_of_clear_trends():
    """From 20 answers of which 15 or 5 are wins: the states change after about as many answers as in simulations with such rates
    (benchmarks/results/live.md), and half as many of them are about an opponent if the other one has the other half."""
    rising, falling = brake(answers(BASE, "+++-" * 3)), brake(answers(BASE, "---+" * 3))
    assert rising.state is falling.state is BrakeState.UNKNOWN
    assert rising.more_answers is not None
    assert falling.more_answers is not None
    assert 10 <= rising.more_answers <= 40
    assert rising.more_answers <= falling.more_answers <= 50, "a stop needs the larger e-value"
    shared = [
        answer for pair in zip(answers(BASE, "+++-" * 3), answers(BEST, "+-" * 6), strict=True) for answer in pair
    ]
    assert brake(shared).more_answers == pytest.approx(2 * rising.more_answers, rel=0.4)
