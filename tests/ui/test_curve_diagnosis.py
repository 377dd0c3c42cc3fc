"""Every rule of the diagnosis on constructed curves: its message, and no message just inside a threshold."""

import math
import random
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlhf_lab.config.kl_control import kl_control_of
from rlhf_lab.ui.run_views.curve_diagnosis import RULES, Level, diagnose
from rlhf_lab.ui.run_views.curve_trends import SettingChange, noise_sd, trend
from rlhf_lab.ui.shared.charts import CURVES

SCORE, REWARD, KL, GOLD = "objective/scores", "objective/rlhf_reward", "objective/kl", "objective/gold"
PENALTY = "objective/non_score_reward"
CLIP, VALUE, ENTROPY, LENGTH = "policy/clipfrac_avg", "loss/value_avg", "policy/entropy_avg", "tokens/response_len"
CLIPPED, RATIO, STOPS, EXPLAINED = (
    "objective/score_clipfrac",
    "val/ratio",
    "val/stop_token_rate",
    "val/explained_variance",
)


def budgeted(budget, algorithm="ppo"):
    return kl_control_of({"kl_budget": budget, "algorithm": algorithm})


def curve(*parts):
    """(value, steps) pairs one after the other: flat pieces without noise."""
    values = [value for value, steps in parts for _ in range(steps)]
    return list(enumerate(values, start=1))


def ramp(start, end, steps):
    return [(i + 1, start + (end - start) * i / (steps - 1)) for i in range(steps)]


def test_a_trend_is_means_of_windows_of_five():
    result = trend([(i + 1, float(v)) for i, v in enumerate([1, 2, 3, 4, 5, 10, 10, 10, 10, 10, 0, 1, 2, 3, 4])])
    assert (result.initial, result.previous, result.current, result.best, result.num_points) == (
        3.0,
        10.0,
        2.0,
        10.0,
        15,
    )
    assert result.change == -8.0


def test_with_few_points_the_windows_shrink():
    assert trend([(1, 4.0)])[:6] == (4.0, 4.0, 4.0, (1, 4.0), (1, 4.0), 1)
    assert trend([(1, 4.0), (2, 6.0)])[:6] == (4.0, 4.0, 6.0, (2, 6.0), (1, 4.0), 2)
    assert trend([(1, 1.0), (2, 3.0), (3, 5.0), (4, 7.0)])[:6] == (2.0, 2.0, 6.0, (4, 6.0), (2, 2.0), 4)
    assert trend([]) is None
    assert trend([(1, math.nan), (2, math.inf)]) is None


def test_noise_is_estimated_from_neighbours_and_ignores_a_jump():
    # differences 1, 1, 1, 1: median 1, over 0.6745 * sqrt(2) = 0.95388
    assert noise_sd([0.0, 1.0, 0.0, 1.0, 0.0]) == pytest.approx(1 / 0.953887, rel=1e-5)
    assert noise_sd([0.0] * 10 + [50.0] * 10) == 0.0
    assert noise_sd([1.0, 9.0]) == 0.0
    assert noise_sd([0.25 * i for i in range(9)]) == 0.0  # a slope is not noise
    draw = random.Random(0)
    assert noise_sd([draw.gauss(3, 2) for _ in range(5000)]) == pytest.approx(2, rel=0.05)


def series(*values):
    return list(enumerate(values, start=1))


# Peaks and dips within the last five steps: the mean of the window has moved, but the end of the curve goes back.
PEAK = series(1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 4.0, 3.5, 3.0, 2.5)  # 2.0, then 3.4, and at last 2.5
DIP = series(3.0, 2.5, 2.0, 1.5, 1.0, 0.0, 0.0, 0.5, 1.0, 1.5)  # 2.0, then 0.6, and at last 1.5


def test_a_curve_that_turned_within_its_last_window_neither_rises_nor_falls():
    # neighbours differ by 0.5 in the median: noise 0.5 / 0.953873 = 0.524, doubt 2 * 0.524 * sqrt(2 / 5) = 0.663
    peak, dip = trend(PEAK), trend(DIP)
    assert (peak.previous, peak.current, peak.latest, dip.previous, dip.current, dip.latest) == (
        2.0,
        3.4,
        2.5,
        2.0,
        0.6,
        1.5,
    )
    assert peak.change > peak.effective_threshold(0.2)
    assert not peak.is_rising(0.2)
    assert dip.change < -dip.effective_threshold(0.2)
    assert not dip.is_falling(0.2)
    assert trend(PEAK[:-3]).is_rising(0.2)
    assert trend(DIP[:-3]).is_falling(0.2)


def test_the_extremes_are_window_means_at_the_middle_of_the_window():
    """Measured every fifth step, with a gap: the windows are those of the values that there are."""
    values = [0.0] * 5 + [1.0, 2.0, 3.0, 2.0, 1.0, math.nan] + [-4.0] * 5 + [0.5] * 5
    result = trend([(5 * i, value) for i, value in enumerate(values)])
    assert (result.highest, result.lowest) == ((35, pytest.approx(1.8)), (65, pytest.approx(-4.0)))
    assert result.turn(0.1) == result.lowest  # 4.0 below its start, 1.3 above its end
    assert result.turn(4.5) is None
    assert trend(series(*[value for value in values if value > -1])).turn(0.1) == (8, pytest.approx(1.8))


FALLEN = curve((1.0, 5), (0.8, 5))
CASES = {
    "score: past a peak": ({SCORE: PEAK}, SCORE, Level.GOOD, "Mean score 3.40 sd, +1.40 since the start, now up and down."),
    "score: out of a dip": ({SCORE: DIP}, SCORE, Level.WARN, "now up and down: lower than at the start; read the"),
    "reward: out of a dip": ({REWARD: DIP}, REWARD, Level.WARN, "now up and down: lower than at the start."),
    "kl: past a peak": ({KL: PEAK}, KL, Level.GOOD, "Mean KL 3.4 nats a response, +1.4 since the start, now up and down"),
    "kl: out of a dip": ({KL: DIP}, KL, Level.GOOD, "Mean KL 0.6 nats a response, −1.4 since the start, now up and down"),
    "kl: fast no longer": ({KL: series(*[2 * value for _, value in PEAK])}, KL, Level.INFO, "start, now up and down"),
    "kl: past a peak while gold is flat": (
        {KL: series(*[8 + value for _, value in PEAK]), GOLD: curve((2.0, 10))}, KL, Level.WARN, "down: above the usual",
    ),
    "kl: rising while gold is out of a dip": ({KL: ramp(9, 14, 10), GOLD: DIP}, KL, Level.ALERT, "while gold does not rise"),
    "value: past a peak": ({VALUE: PEAK}, VALUE, Level.GOOD, "Mean value loss 3.4, +70 % since the start, now up and down"),
    "value: out of a dip": ({VALUE: DIP}, VALUE, Level.GOOD, "Mean value loss 0.6, −70 % since the start, now up and down"),
    "score: rose and fell": (
        {SCORE: curve((0.0, 8), (1.0, 9), (0.25, 6))}, SCORE, Level.WARN,
        "Mean score 0.25 sd, +0.25 since the start, highest around step 11 (1.00), now falling",
    ),
    "score: back at its start": (
        {SCORE: curve((0.0, 8), (1.0, 9), (0.0, 10))}, SCORE, Level.WARN,
        "Mean score 0.00 sd, hardly any change since the start, highest around step 11 (1.00), now steady: no clear gain so far",
    ),
    "length: shorter in between": (
        {LENGTH: curve((40.0, 8), (12.0, 9), (42.8, 10))}, LENGTH, Level.GOOD,
        "43 tokens, +7 % since the start, lowest around step 11 (12), now steady.",
    ),
    "value: rose and fell": (
        {VALUE: curve((0.1, 8), (0.4, 9), (0.107, 10))}, VALUE, Level.GOOD,
        "Mean value loss 0.107, hardly any change since the start, highest around step 11 (0.4), now steady.",
    ),
    "gold: below its best, which the text has": (
        {GOLD: curve((0.0, 8), (2.0, 9), (0.5, 10))}, GOLD, Level.WARN,
        "Mean gold 0.50, +0.50 since the start, highest around step 11 (2.00), now steady: below its best.",
    ),
    "gold: only fell": (
        {GOLD: curve((2.0, 8), (0.5, 10))}, GOLD, Level.WARN, "−1.50 since the start, now steady: below its best, 2.00.",
    ),
    "score: early": ({SCORE: curve((0.3, 4))}, SCORE, Level.INFO, "too early"),
    "score: rising": ({SCORE: curve((0.0, 5), (0.2, 5))}, SCORE, Level.GOOD, "rising"),
    "score: learned, then flat": ({SCORE: curve((0.0, 5), (0.5, 5), (0.6, 5))}, SCORE, Level.GOOD, "since the start, now st"),
    "score: not yet": ({SCORE: curve((0.0, 14))}, SCORE, Level.INFO, "steady since the start: too early"),
    "score: a visible rise that noise may cause": (
        {SCORE: series(0.0, 0.6, 0.1, 0.9, 0.3, 1.1, 0.4, 1.3)}, SCORE, Level.INFO,
        "Mean score 0.78 sd, +0.38 since the start, within the noise.",
    ),
    "score: never": ({SCORE: curve((0.0, 15))}, SCORE, Level.WARN, "steady since the start: no clear gain so far; raise lr"),
    "score: falling": ({SCORE: curve((1.0, 5), (0.8, 5))}, SCORE, Level.WARN, "−0.20 since the start, now falling"),
    "score: all that is wanted": (
        {SCORE: ramp(0, 2, 20), CLIPPED: ramp(0.8, 0.96, 20)}, SCORE, Level.INFO,
        "score_clip clips 94 % of the scores, so higher scores bring no more reward",
    ),
    "score: room below the clip": (
        {SCORE: ramp(0, 2, 20), CLIPPED: curve((0.9, 20))}, SCORE, Level.GOOD,
        "the reward model likes. score_clip clips 90 % of the scores: differences among these are not rewarded.",
    ),
    "score: few are clipped": ({SCORE: ramp(0, 2, 20), CLIPPED: curve((0.24, 20))}, SCORE, Level.GOOD, "reward model likes."),
    "score: cut at the lower end": (
        {SCORE: ramp(-3, -2, 20), CLIPPED: curve((0.95, 20))}, SCORE, Level.GOOD, "clips 95 % of the scores: differences among",
    ),
    "score: fell, then steady": ({SCORE: curve((1.0, 5), (0.0, 15))}, SCORE, Level.WARN, "−1.00 since the start, now steady"),
    "score: exploited": (
        {SCORE: ramp(0, 2, 20), GOLD: curve((1.0, 5), (2.0, 5), (1.0, 10))}, SCORE, Level.ALERT, "exploits",
    ),
    "reward: early": ({REWARD: curve((0.3, 3))}, REWARD, Level.INFO, "Mean reward 0.30: too early to say."),
    "reward: the KL eats the score": (
        {REWARD: curve((-34.8, 3)), SCORE: curve((0.8, 3)), PENALTY: curve((-35.0, 3))}, REWARD, Level.WARN,
        "Mean reward −34.80, though the score is 0.80: mostly the KL penalty (−35.00); lower beta.",
    ),
    "reward: nothing known of its parts": (
        {REWARD: curve((-1.0, 3)), SCORE: curve((0.8, 3))}, REWARD, Level.WARN, "though the score is 0.80: far below the score.",
    ),
    "reward: clipped": (
        {REWARD: curve((-0.4, 3)), SCORE: curve((0.8, 3)), PENALTY: curve((-0.1, 3))}, REWARD, Level.WARN,
        "Mean reward −0.40, though the score is 0.80: mostly the clipping or scaling of scores (−1.10).",
    ),
    "reward: falls with the score": (
        {REWARD: FALLEN, SCORE: FALLEN, PENALTY: curve((0.0, 10))}, REWARD, Level.INFO, "now falling: mostly the score (−0.20).",
    ),
    "reward: two parts of equal weight": (
        {REWARD: curve((1.0, 5), (0.4, 5)), SCORE: curve((1.0, 5), (0.9, 5)), PENALTY: curve((0.0, 5), (-0.25, 5))}, REWARD,
        Level.WARN, "Mean reward 0.40, −0.60 since the start, now falling: lower than 5 steps ago.",
    ),
    "reward: rising": ({REWARD: ramp(0, 1, 10)}, REWARD, Level.GOOD, "since the start"),
    "reward: falling": ({REWARD: curve((1.0, 5), (0.7, 5))}, REWARD, Level.WARN, "start, now falling: lower than 5 steps ago."),
    "reward: below its start": (
        {REWARD: curve((1.0, 5), (0.7, 10)), SCORE: curve((1.0, 15)), PENALTY: curve((0.0, 5), (-0.3, 10))}, REWARD, Level.WARN,
        "−0.30 since the start, now steady: mostly the KL penalty (−0.30); lower beta.",
    ),
    "kl: near": ({KL: curve((1.0, 10))}, KL, Level.GOOD, "Mean KL 1.0 nats a response, steady since the start: near the base"),
    "kl: rising slowly": ({KL: curve((1.0, 5), (2.0, 5))}, KL, Level.GOOD, "+1.0 since the start, now rising: near"),
    "kl: coming back": ({KL: curve((3.0, 5), (2.0, 5))}, KL, Level.GOOD, "−1.0 since the start, now falling: near"),
    "kl: no longer near": ({KL: curve((5.0, 10))}, KL, Level.INFO, "steady since the start: no longer near the base"),
    "kl: creeps up": ({KL: ramp(0, 0.8, 8)}, KL, Level.GOOD, "+0.5 since the start: near"),
    "kl: early": ({KL: curve((0.0, 1))}, KL, Level.INFO, "too early"),
    "kl: an estimate below 0": (
        {KL: curve((-0.08, 6))}, KL, Level.GOOD, "near the base model. Points below 0 are noise of the estimate",
    ),
    "kl: below 0 at first": ({KL: curve((-0.1, 1), (2.0, 14))}, KL, Level.GOOD, "near the base model. Points below 0 are noise"),
    "kl: below 0 and hardly moved": (
        {KL: curve((-0.01, 15)), SCORE: curve((0.0, 15))}, KL, Level.WARN, "hardly moved; raise lr or lower beta. Points below 0",
    ),
    "kl: fast": ({KL: curve((1.0, 5), (3.5, 5))}, KL, Level.WARN, "+2.5 in 5 steps: fast"),
    "kl: high": ({KL: curve((9.0, 10))}, KL, Level.WARN, "above the usual 8"),
    "kl: far": ({KL: curve((15.0, 10))}, KL, Level.ALERT, "far from the base"),
    "kl: rising while gold is flat": (
        {KL: curve((12.0, 5), (14.0, 5)), GOLD: curve((2.0, 10))}, KL, Level.ALERT,
        "Mean KL 14.0 nats a response, +2.0 since the start, now rising, while gold does not rise: the policy probably exploits "
        "the reward model; raise beta or stop.",
    ),
    "kl: rising while gold falls": ({KL: ramp(9, 14, 10), GOLD: curve((2.0, 5), (1.5, 5))}, KL, Level.ALERT, "gold does not"),
    "kl: rising with gold": ({KL: curve((9.0, 5), (10.0, 5)), GOLD: ramp(0, 3, 10)}, KL, Level.WARN, "read the samples"),
    "kl: negative": ({KL: curve((-0.6, 10))}, KL, Level.WARN, "negative"),
    "kl: nothing happens": ({KL: curve((0.01, 15)), SCORE: curve((0.0, 15))}, KL, Level.WARN, "hardly moved"),
    "clip: healthy": ({CLIP: curve((0.12, 10))}, CLIP, Level.GOOD, "12 % of tokens clipped: these tokens reached the edge"),
    "clip: nearly none": ({CLIP: curve((0.002, 10))}, CLIP, Level.GOOD, "0.2 % of tokens clipped: clipping hardly changed"),
    "clip: large": ({CLIP: curve((0.3, 10))}, CLIP, Level.WARN, "lower lr or epochs"),
    "clip: far too large": ({CLIP: curve((0.45, 10))}, CLIP, Level.ALERT, "far too large"),
    "value: falling": (
        {VALUE: curve((1.0, 5), (0.5, 5)), EXPLAINED: curve((0.4, 10))}, VALUE, Level.GOOD,
        "−50 % since the start, now falling. The value function explains 40 % of",
    ),
    "value: early": ({VALUE: curve((1.0, 4))}, VALUE, Level.INFO, "too early"),
    "value: explains nothing": (
        {VALUE: curve((1.0, 15)), EXPLAINED: curve((0.04, 15))}, VALUE, Level.INFO, "The value function explains 4 %",
    ),
    "value: explains a little": (
        {VALUE: curve((1.0, 15)), EXPLAINED: curve((0.06, 15))}, VALUE, Level.GOOD, "explains 6 %",
    ),
    "value: moves within its noise": (
        {VALUE: [(i, 0.02 + 0.01 * (i % 2) + 0.003 * (i > 10)) for i in range(1, 16)]}, VALUE, Level.GOOD,
        "+12 % since the start, within the noise, now up and down.",
    ),
    "value: worse than a constant": (
        {VALUE: curve((1.0, 15)), EXPLAINED: curve((-0.6, 15))}, VALUE, Level.INFO,
        "Explained variance −0.60, worse than a constant: the errors of the value function vary 60 % more than the returns.",
    ),
    "value: clipped scores leave nothing to explain": (
        {VALUE: curve((1.0, 15)), EXPLAINED: curve((-0.6, 15)), CLIPPED: curve((0.88, 15))}, VALUE, Level.INFO,
        "than the returns; score_clip clips 88 % of the scores, which leaves less variance to explain.",
    ),
    "value: as good as a constant": (
        {VALUE: curve((1.0, 15)), EXPLAINED: curve((-0.004, 15))}, VALUE, Level.INFO, "The value function explains 0 %",
    ),
    "value: fell long ago": ({VALUE: curve((0.16, 5), (0.04, 15))}, VALUE, Level.GOOD, "−75 % since the start, now steady."),
    "value: steady": ({VALUE: curve((1.0, 5), (1.05, 5))}, VALUE, Level.GOOD, "steady"),
    "value: rising": ({VALUE: curve((1.0, 5), (1.5, 5))}, VALUE, Level.GOOD, "rising"),
    "value: doubled": ({VALUE: curve((1.0, 5), (2.1, 5))}, VALUE, Level.WARN, "now rising: more than doubled in 5 steps."),
    "entropy: varied": ({ENTROPY: curve((2.0, 5), (1.5, 5))}, ENTROPY, Level.GOOD, "varied"),
    "entropy: shrinks": ({ENTROPY: curve((2.0, 5), (1.0, 5))}, ENTROPY, Level.WARN, "50 % of its start"),
    "entropy: collapsed": ({ENTROPY: curve((2.0, 5), (0.5, 5))}, ENTROPY, Level.ALERT, "nearly the same"),
    "length: as before": ({LENGTH: curve((40.0, 5), (44.0, 5))}, LENGTH, Level.GOOD, "+10 %"),
    "length: early": ({LENGTH: curve((40.0, 4))}, LENGTH, Level.INFO, "40 tokens: too early"),
    "length: longer": ({LENGTH: curve((40.0, 5), (52.0, 5))}, LENGTH, Level.WARN, "start, now rising: much longer"),
    "length: shorter": ({LENGTH: curve((40.0, 5), (28.0, 5))}, LENGTH, Level.WARN, "much shorter than at"),
    "length: exploited": ({LENGTH: curve((40.0, 5), (62.0, 5))}, LENGTH, Level.ALERT, "than at the start; read the samples."),
    "length: rises with the score": (
        {LENGTH: curve((40.0, 5), (62.0, 5)), SCORE: curve((0.0, 5), (1.0, 5))}, LENGTH, Level.ALERT,
        "much longer than at the start; the score rose too, so check whether length itself is rewarded.",
    ),
    "gold: early": ({GOLD: curve((1.0, 4))}, GOLD, Level.INFO, "too early"),
    "gold: rising": ({GOLD: ramp(0, 2, 20)}, GOLD, Level.GOOD, "the judge agrees"),
    "gold: past its best, within the noise": (
        {GOLD: [(i, (i > 5) * 4.0 - (i > 10) * 0.8 + 0.8 * (-1) ** i) for i in range(1, 16)]}, GOLD, Level.INFO,
        "at its highest: it may have started to fall",
    ),
    "gold: no gain": ({GOLD: curve((1.0, 20))}, GOLD, Level.INFO, "no clear gain yet"),
    "gold: fallen": ({GOLD: curve((1.0, 5), (2.0, 5), (1.4, 5))}, GOLD, Level.WARN, "below its best"),
    "gold: over-optimised": (
        {SCORE: ramp(0, 2, 20), GOLD: curve((1.0, 5), (2.0, 5), (1.0, 10))}, GOLD, Level.ALERT, "over-optimisation",
    ),
    "ratio: near 1": ({RATIO: curve((1.01, 5))}, RATIO, Level.GOOD, "1.010"),
    "ratio: drifts": ({RATIO: curve((1.07, 5))}, RATIO, Level.WARN, "changes much"),
    "stops: all": ({STOPS: curve((0.95, 5))}, STOPS, Level.GOOD, "95 %"),
    "stops: fewer": ({STOPS: curve((0.8, 5))}, STOPS, Level.WARN, "80 % of responses end by themselves: the others"),
    "stops: rambling": ({STOPS: curve((0.5, 5))}, STOPS, Level.ALERT, "the others are cut off"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case):
    curves, metric, level, text = CASES[case]
    diagnosis = diagnose(curves)[metric]
    assert (diagnosis.level, text in diagnosis.message) == (level, True), diagnosis


FALLS = FALLEN
UP, DOWN = SettingChange(4, "beta", 0.1, 0.5), SettingChange(4, "beta", 0.5, 0.1)
CHANGED_SETTINGS = {
    "beta raised": ([UP], Level.INFO, "falling, probably because beta went from 0.1 to 0.5 after step 4: a higher beta"),
    "beta lowered": ([DOWN], Level.WARN, "now falling: the score falls, though no other curve shows"),
    "lr raised": ([SettingChange(4, "lr", 1e-4, 1e-3)], Level.WARN, "because lr went from 0.0001 to 0.001 after step 4; set it"),
    "lr lowered": ([SettingChange(4, "lr", 1e-3, 1e-4)], Level.INFO, "lr went from 0.001 to 0.0001 after step 4: wait a few"),
    "both at once": ([UP, SettingChange(4, "lr", 1e-3, 1e-4)], Level.INFO, "beta went from 0.1 to 0.5"),
    "after the fall": ([UP._replace(step=9)], Level.WARN, "now falling: the score falls, though no other curve shows"),
    "not yet in use": ([UP._replace(step=10)], Level.WARN, "now falling: the score falls, though no other curve shows"),
    "the later of two": ([UP, SettingChange(7, "lr", 1e-4, 1e-3)], Level.WARN, "lr went from 0.0001 to 0.001 after step 7"),
    "long ago": ([UP._replace(step=-21)], Level.WARN, "now falling: the score falls, though no other curve shows"),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGED_SETTINGS, ids=str)
def test_a_falling_score_names_the_changed_setting(case):
    changes, level, text = CHANGED_SETTINGS[case]
    diagnosis = diagnose({SCORE: FALLS}, changes)[SCORE]
    assert (diagnosis.level, text in diagnosis.message) == (level, True), diagnosis


LARGE_UPDATES = {
    "many tokens clipped": {CLIP: curve((0.3, 10))},
    "the KL is far": {KL: curve((15.0, 10))},
    "the KL rises fast": {KL: curve((1.0, 5), (3.5, 5))},
    "the ratio drifts": {RATIO: curve((1.07, 10))},
}


@pytest.mark.parametrize("case", LARGE_UPDATES, ids=str)
def test_a_falling_score_advises_a_lower_lr_where_another_curve_shows_large_updates(case):
    diagnoses = diagnose({SCORE: FALLS} | LARGE_UPDATES[case])
    assert diagnoses[SCORE].message == (
        "Mean score 0.80 sd, −0.20 since the start, now falling: the updates may be too large; lower lr."
    )


def test_a_falling_score_does_not_advise_a_lower_lr_where_clip_fraction_and_kl_are_small():
    diagnosis = diagnose({SCORE: FALLS, CLIP: curve((0.01, 10)), KL: curve((1.0, 10))})[SCORE]
    assert diagnosis.message == (
        "Mean score 0.80 sd, −0.20 since the start, now falling: the score falls, though no other curve shows large updates; "
        "read the samples."
    )


def test_a_falling_score_of_a_live_run_is_explained_by_its_new_labels():
    heads = {"live/head": curve((1.0, 5), (2.0, 5))}
    expected = "now falling: new labels have changed the reward model, so the score may fall for that reason."
    diagnosis = diagnose({SCORE: FALLS} | heads)[SCORE]
    assert (diagnosis.level, expected in diagnosis.message) == (Level.INFO, True), diagnosis
    assert "no other curve" in diagnose({SCORE: FALLS, "live/head": curve((2.0, 10))})[SCORE].message


def test_the_clip_fraction_does_not_deny_large_updates_that_the_kl_shows():
    message = diagnose({CLIP: curve((0.01, 10)), KL: curve((1.0, 5), (3.5, 5))})[CLIP].message
    assert message == "1.0 % of tokens clipped, but another curve shows updates that are too large."


def test_a_flat_score_far_from_the_base_model_does_not_advise_to_raise_lr_or_lower_beta():
    diagnoses = diagnose({SCORE: curve((0.0, 20)), KL: curve((174.0, 20))})
    assert diagnoses[KL].message.endswith("raise beta or lower lr.")
    assert (
        diagnoses[SCORE].message
        == "Mean score 0.00 sd, steady since the start: no clear gain so far; label more pairs."
    )


@pytest.mark.parametrize(
    ("score", "budget", "algorithm", "message"),
    [
        (curve((0.0, 20)), 4.0, "ppo", "Mean score 0.00 sd, steady since the start: no clear gain so far."),
        (
            curve((0.0, 20)),
            None,
            "ppo",
            "Mean score 0.00, steady since the start: no clear gain so far; raise lr or lower beta.",
        ),
        (curve((0.0, 20)), None, "sft", "Mean score 0.00, steady since the start: no clear gain so far; raise lr."),
        (
            ramp(0, 2, 20),
            None,
            "grpo",
            "Mean score 1.79, +1.58 since the start, now rising: the policy learns what is rewarded.",
        ),
    ],
)
def test_terms_alone_have_nothing_to_label_and_a_unit_only_with_a_budget(score, budget, algorithm, message):
    assert (
        diagnose({SCORE: score}, (), budgeted(budget, algorithm), algorithm, has_reward_model=False)[SCORE].message
        == message
    )


def test_offline_methods_hold_the_budget_by_lr_alone():
    message = diagnose({KL: curve((5.5, 20))}, (), budgeted(4.0, "dpo"), "dpo")[KL].message
    assert message == "Mean KL 5.5: above the budget of 4; the score cannot rise further there."


def test_a_clipped_score_far_from_the_base_model_does_not_advise_a_higher_clip():
    curves = {SCORE: ramp(0, 2, 20), CLIPPED: curve((0.96, 20))}
    assert diagnose(curves)[SCORE].message.endswith("stop here, or start with a higher score_clip.")
    assert diagnose(curves | {KL: curve((174.0, 20))})[SCORE].message.endswith("bring no more reward: stop here.")
    assert diagnose(curves | {KL: curve((9.0, 20))})[SCORE].message.endswith("bring no more reward: stop here.")


def test_no_metric_advises_a_lower_beta_while_another_is_not_a_number():
    curves = {SCORE: curve((0.5, 6)), REWARD: curve((-1.0, 6)), PENALTY: curve((-1.5, 6))}
    text = "Mean reward −1.00, though the score is 0.50: mostly the KL penalty (−1.50)"
    assert diagnose(curves)[REWARD].message == f"{text}; lower beta."
    diagnoses = diagnose(curves | {VALUE: [*curve((1.0, 5)), (6, math.nan)]})
    assert "lower lr" in diagnoses[VALUE].message
    assert diagnoses[REWARD].message == f"{text}."


MOVE_MORE = re.compile(r"\braise (?:\w+ or )?lr|\blower beta|higher (?:score_)?clip")
MOVE_LESS = re.compile(r"\blower lr|\braise beta|set it back|\bor epochs|\bstop or\b|or stop\b|: stop, ")


def flat_or_moving_curve():
    """Curves of 1 to 40 steps with one or two levels, of sizes from tiny to absurd."""
    level = st.one_of(st.floats(-2, 2), st.floats(0, 20), st.floats(-200, 700), st.just(math.nan))
    part = st.tuples(level, st.integers(1, 20))
    return st.lists(part, min_size=1, max_size=3).map(lambda parts: curve(*parts))


@settings(max_examples=400, deadline=None)
@given(
    st.dictionaries(st.sampled_from([*RULES, CLIPPED, EXPLAINED]), flat_or_moving_curve(), min_size=2),
    st.lists(
        st.builds(
            SettingChange, st.integers(0, 40), st.sampled_from(["lr", "beta"]), st.floats(0.01, 1), st.floats(0.01, 1)
        ),
        max_size=2,
    ),
    st.one_of(st.none(), st.floats(0.1, 50)),
)
def test_no_two_verdicts_give_opposite_advice(curves, changes, kl_budget):
    messages = [diagnosis.message for diagnosis in diagnose(curves, changes, budgeted(kl_budget)).values()]
    more = [message for message in messages if MOVE_MORE.search(message)]
    less = [message for message in messages if MOVE_LESS.search(message)]
    assert not (more and less), (more, less)
    if kl_budget is not None:  # the controller sets both; only a change by a person is to be reverted
        steered = re.compile(r"(?<!stop, )lower lr(?! and)|raise lr|(?:raise|lower) beta")
        assert not [message for message in messages if steered.search(message)]
        assert not more


ADVICE = re.compile(r"(raise|lower(?! than)|stop|read|label|look|set|wait|use|check|start|try)\b", re.IGNORECASE)


def assert_reason(diagnosis):
    """A caption in the colour of a warning says why after its figures, before any advice."""
    if diagnosis.level in (Level.WARN, Level.ALERT):
        reason = diagnosis.message.partition(": ")[2]
        assert reason, diagnosis
        assert not ADVICE.match(reason), diagnosis


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_warning_of_a_rule_has_a_reason(case):
    assert_reason(diagnose(CASES[case][0])[CASES[case][1]])


@settings(max_examples=400, deadline=None)
@given(
    st.dictionaries(st.sampled_from([*RULES, CLIPPED, EXPLAINED]), flat_or_moving_curve(), min_size=2),
    st.lists(st.builds(SettingChange, st.integers(0, 40), st.sampled_from(["lr", "beta"]), st.just(0.1), st.just(0.2))),
    st.one_of(st.none(), st.floats(0.1, 50)),
    st.sampled_from(["ppo", "dpo", "sft"]),
    st.booleans(),
)
def test_every_warning_has_a_reason(curves, changes, kl_budget, algorithm, has_reward_model):
    control = budgeted(kl_budget, algorithm)
    for diagnosis in diagnose(curves, changes, control, algorithm, has_reward_model=has_reward_model).values():
        assert_reason(diagnosis)


def test_within_a_large_budget_a_run_that_exploits_the_reward_model_is_to_stop():
    """KL 9 of 12: beta and lr belong to the budget."""
    curves = {"objective/kl": [(1, 0.0), (2, 9.0)], "objective/gold": [(1, 0.0), (2, 0.0)]}
    message = diagnose(curves, [], budgeted(12.0))["objective/kl"].message
    assert message.endswith("exploits the reward model; stop, or start with a lower kl_budget.")


def test_far_from_the_base_within_a_large_budget_the_budget_is_to_be_lowered():
    message = diagnose({KL: curve((15.0, 10))}, [], budgeted(20.0))[KL].message
    assert message == (
        "Mean KL 15.0 nats a response, steady since the start: far from the base model; stop, or start with a "
        "lower kl_budget."
    )


BUDGET_CASES = {
    "far below": (curve((1.0, 10)), Level.GOOD, "steady since the start: below the budget of 4."),
    "just below": (curve((3.0, 10)), Level.GOOD, "below the budget of 4."),
    "reached": (curve((3.2, 10)), Level.GOOD, "Mean KL 3.2 nats a response: at the budget of 4."),
    "within its noise": (curve((5.1, 10)), Level.GOOD, "at the budget of 4."),
    "above": (curve((5.3, 10)), Level.WARN, "above the budget of 4; beta rises until the KL is back at the budget."),
    "far beyond": (curve((8.1, 10)), Level.ALERT, "far beyond the budget of 4. Look at the best checkpoint, or stop."),
    "not moving": (
        curve((0.7, 20)),
        Level.WARN,
        "Mean KL 0.70: the policy has hardly moved; use more steps, or more responses",
    ),
    "early": (curve((1.0, 4)), Level.INFO, "too early"),
}


@pytest.mark.parametrize("case", BUDGET_CASES, ids=str)
def test_the_kl_is_compared_with_its_budget(case):
    points, level, text = BUDGET_CASES[case]
    diagnosis = diagnose({KL: points}, control=budgeted(4.0))[KL]
    assert (diagnosis.level, diagnosis.message.endswith(text) or text in diagnosis.message) == (level, True), diagnosis


def test_the_budget_of_a_live_run_is_what_its_labels_allow():
    curves = {KL: curve((1.1, 10)), "live/kl_budget": curve((1.2, 10))}
    message = diagnose(curves, control=budgeted(1.2))[KL].message
    assert message == "Mean KL 1.1 nats a response: at the budget of 1.2 that the labels so far allow."


def test_with_a_budget_advice_to_change_lr_or_beta_is_left_out():
    large = diagnose({CLIP: curve((0.5, 10)), RATIO: curve((1.2, 10))}, control=budgeted(4.0))
    for diagnosis in large.values():
        assert diagnosis.message.endswith("the KL budget lowers lr and raises beta automatically.")
    assert diagnose({SCORE: curve((0.0, 20))}, control=budgeted(4.0))[SCORE].message.endswith(
        "no clear gain so far; label more pairs."
    )
    curves = {REWARD: curve((1.0, 5), (0.5, 5)), SCORE: curve((1.0, 10)), PENALTY: curve((0.0, 5), (-0.5, 5))}
    text = "Mean reward 0.50, −0.50 since the start, now falling: mostly the KL penalty (−0.50)"
    assert diagnose(curves, control=budgeted(4.0))[REWARD] == (Level.INFO, f"{text}.")
    by_hand = diagnose(curves, control=budgeted(4.0), set_by_hand=["beta"])[REWARD]
    assert by_hand == (Level.WARN, f"{text}; lower beta.")


@pytest.mark.parametrize(
    ("algorithm", "by_hand", "action", "outlook"),
    [
        ("ppo", [], "the KL budget lowers lr and raises beta automatically", "beta rises until"),
        ("ppo", ["lr"], "the KL budget raises beta automatically", "beta rises until"),
        ("ppo", ["beta"], "the KL budget lowers lr automatically", "beta was set by hand and does not rise: raise it"),
        ("ppo", ["beta", "lr"], "updates far too large; lower lr", "beta was set by hand"),
        ("dpo", [], "the KL budget lowers lr automatically", "the score cannot rise further there"),
        (
            "dpo",
            ["lr"],
            "updates far too large; lower lr",
            "lr was set by hand and does not fall: lower it, or make it auto",
        ),
    ],
)
def test_what_the_budget_does_leaves_out_what_a_person_has_set(algorithm, by_hand, action, outlook):
    curves = {CLIP: curve((0.5, 10)), KL: curve((5.5, 10))}
    diagnoses = diagnose(curves, (), budgeted(4.0, algorithm), algorithm, set_by_hand=by_hand)
    assert f"{action}." in diagnoses[CLIP].message
    assert outlook in diagnoses[KL].message


@pytest.mark.parametrize("by_hand", [("beta",), ("lr", "beta")])
def test_a_kl_above_the_budget_that_a_person_must_lower_is_not_to_be_raised(by_hand):
    flat = {SCORE: curve((0.1, 30)), REWARD: curve((0.1, 30)), KL: curve((5.4, 30))}
    diagnoses = diagnose(flat, (), budgeted(4.0), "ppo", set_by_hand=by_hand)
    assert "raise it" in diagnoses[KL].message
    assert not any("lower beta" in one.message or "raise lr" in one.message for one in diagnoses.values())


# ---- the parts of the reward

NAMED_PART = re.compile(
    r": mostly (the score|the KL penalty|the penalty for a missing end|the clipping or scaling of scores)"
    r" \(([+−][\d.]+)\)"
)


def mean(values):
    return sum(values) / len(values)


@st.composite
def rewards_by_part(draw):
    """Levels of score, KL penalty and share of responses that end, which change once; the score is clipped."""
    steps, change = draw(st.integers(2, 30)), draw(st.integers(1, 29))
    level = st.floats(-3, 3, allow_subnormal=False)

    def two(values):
        before, after = draw(values), draw(values)
        return [before if i < change else after for i in range(steps)]

    return (
        two(level),
        two(st.floats(-40, 2, allow_subnormal=False)),
        two(st.floats(0, 1)),
        draw(st.sampled_from([0.0, 1.0, 5.0])),
    )


@settings(max_examples=300, deadline=None)
@example(([0.0] * 5, [0.0, 0.0, -1.0, -1.0, -1.0], [0.0] * 5, 0.0), None)  # compared with the start only
@given(rewards_by_part(), st.one_of(st.none(), st.just(4.0)))
def test_a_reward_names_a_part_only_if_that_explains_at_least_half(parts, kl_budget):
    scores, penalties, ends, penalty = parts
    missing = [-penalty * (1 - share) for share in ends]
    clipped = [min(max(score, -1.5), 1.5) for score in scores]
    rewards = [sum(row) for row in zip(clipped, penalties, missing, strict=True)]
    curves = {SCORE: series(*scores), PENALTY: series(*penalties), STOPS: series(*ends), REWARD: series(*rewards)}
    message = diagnose(curves, control=budgeted(kl_budget), missing_eos_penalty=penalty)[REWARD].message
    named = NAMED_PART.search(message)
    assert ("mostly" in message) == (named is not None)
    if named is None:
        return
    columns = {
        "the score": scores, "the KL penalty": penalties, "the penalty for a missing end": missing,
        "the clipping or scaling of scores": [a - b for a, b in zip(clipped, scores, strict=True)],
    }  # fmt: skip
    part, size = columns[named[1]], max(1, min(5, len(scores) // 2))

    def amount(values):
        now = mean(values[-size:])
        if "though the score" in message:
            return now
        return now - (mean(values[-2 * size : -size]) if "now falling" in message else mean(values[:size]))

    total = mean(rewards[-size:]) - mean(scores[-size:]) if "though the score" in message else amount(rewards)
    assert amount(part) <= total / 2 + 1e-9 < 0
    assert all(
        amount(part) <= amount(other) + 1e-9
        for name, other in columns.items()
        if name != "the score" or "now" in message
    )
    assert float(named[2].replace("−", "-")) == pytest.approx(amount(part), abs=0.0051)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-5, 5, allow_subnormal=False), min_size=10, max_size=30), st.floats(0.01, 2))
def test_every_caption_compares_alike(values, threshold):
    """All curves that are compared say the same of the same values, and what they say is true."""
    steps = len(values)
    compared = trend(series(*values)).compared(threshold, "GAIN", "{:.9f}".format)
    gain, change = mean(values[-5:]) - mean(values[:5]), mean(values[-5:]) - mean(values[-10:-5])
    assert ("GAIN" in compared) == (abs(gain) > threshold) or abs(gain) == pytest.approx(threshold)
    assert ("rising" in compared) <= (change > threshold and values[-1] >= mean(values[-5:]) - 1e-9)
    assert ("falling" in compared) <= (change < -threshold and values[-1] <= mean(values[-5:]) + 1e-9)
    assert steps >= 10
    if max(values) - min(values) <= threshold:
        assert compared == "steady since the start"
    windows = [mean(values[i : i + 5]) for i in range(steps - 4)]
    rise, fall = max(windows) - max(windows[0], windows[-1]), min(windows[0], windows[-1]) - min(windows)
    margin = max(threshold, 2 * trend(series(*values)).noise_margin)
    turned = re.search(r"(highest|lowest) around step (\d+) \((.+?)\)", compared)
    assert bool(turned) == (max(rise, fall) > margin) or max(rise, fall) == pytest.approx(margin)
    if turned:
        extreme = max(windows) if turned[1] == "highest" else min(windows)
        assert float(turned[3]) == pytest.approx(extreme, abs=1e-8)
        assert windows[int(turned[2]) - 3] == pytest.approx(extreme, abs=1e-8)


def test_noise_alone_is_no_turn():
    """Of 400 curves that rise or stay, with noise, at most one in a hundred has one."""
    turns = 0
    for seed in range(400):
        draw = random.Random(seed)
        slope = draw.choice([0.0, 0.02])
        values = [slope * step + draw.gauss(0, 1) for step in range(draw.choice([12, 40, 200]))]
        turns += trend(series(*values)).turn(0.1) is not None
    assert turns <= 4


@pytest.mark.parametrize("name", ["beta", "lr"])
def test_a_falling_score_after_a_change_of_an_adapted_setting_names_no_old_value(name):
    change = SettingChange(7, name, None, 0.5)
    verdict = diagnose({SCORE: curve((3.0, 7), (1.0, 5))}, [change], control=budgeted(4.0))[SCORE]
    assert verdict.level == Level.INFO
    assert verdict.message.endswith(f"since {name} was set to 0.5 after step 7: wait a few steps.")


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from([SCORE, CLIP, KL, RATIO]), flat_or_moving_curve(), min_size=1))
def test_the_score_advises_a_lower_lr_only_where_clip_fraction_kl_or_ratio_does(curves):
    diagnoses = diagnose(curves)
    if SCORE in diagnoses and "the updates may be too large" in diagnoses[SCORE].message:
        assert any("lr" in diagnoses[name].message for name in (CLIP, KL, RATIO) if name in diagnoses), diagnoses


INSIDE = {
    "score falls by less than counts": (SCORE, curve((1.0, 5), (0.86, 5)), Level.INFO),
    "clip at its upper limit": (CLIP, curve((0.25, 10)), Level.GOOD),
    "kl at its limit": (KL, curve((4.0, 10)), Level.GOOD),
    "kl no longer near": (KL, curve((8.0, 10)), Level.INFO),
    "kl still small at step 14": (KL, curve((0.01, 14)), Level.GOOD),
    "value loss just doubled": (VALUE, curve((1.0, 5), (2.0, 5)), Level.GOOD),
    "entropy at its limit": (ENTROPY, curve((2.0, 5), (1.21, 5)), Level.GOOD),
    "length at its limit": (LENGTH, curve((40.0, 5), (50.0, 5)), Level.GOOD),
    "one window of value loss is no doubling": (VALUE, curve((1.0, 4), (9.0, 4)), Level.GOOD),
}


@pytest.mark.parametrize("case", INSIDE, ids=str)
def test_just_inside_a_threshold(case):
    metric, points, level = INSIDE[case]
    assert diagnose({metric: points})[metric].level is level


def test_noise_alone_raises_no_alarm():
    """Healthy runs with noisy batches: hardly any of 200 gets an alert."""
    alarms = 0
    for seed in range(200):
        draw = random.Random(seed)
        steps = range(1, draw.choice([12, 20, 40, 100]))
        diagnoses = diagnose({
            SCORE: [(s, min(1.0, s / 10) + draw.gauss(0, 0.25)) for s in steps],
            GOLD: [(s, 1 + draw.gauss(0, 1)) for s in steps],
            KL: [(s, min(2.0, s / 10) + draw.gauss(0, 0.3)) for s in steps],
        })  # fmt: skip
        alarms += any(diagnosis.level is Level.ALERT for diagnosis in diagnoses.values())
    assert alarms <= 6


def test_every_drawn_curve_has_a_rule():
    assert {item.metric for item in CURVES} <= set(RULES)


@pytest.mark.parametrize("metric", RULES)
@pytest.mark.parametrize(
    "points", [[(1, 0.0)], [(1, 5.0)], [(1, -2.0), (2, 3.0)], [(1, 0.0)] * 3, ramp(0, 0, 40)], ids=len
)
def test_every_rule_has_a_message_for_few_points_and_zeros(metric, points):
    diagnosis = diagnose({metric: points})[metric]
    assert isinstance(diagnosis.level, Level)
    assert diagnosis.message.endswith(".")
    assert "nan" not in diagnosis.message


def test_an_empty_curve_and_an_unknown_metric_have_no_diagnosis():
    assert diagnose({}) == {}
    assert diagnose({SCORE: [], "grad_norm": [(1, 1.0)]}) == {}


def test_a_gap_is_forgiven_and_an_end_in_nan_is_an_alert_that_names_its_step():
    gap = [(1, 1.0), (2, math.nan), (3, 1.0), (4, 1.0), (5, 1.0), (6, 1.0)]
    assert diagnose({CLIP: gap})[CLIP].level is Level.ALERT  # clip fraction 1: the message of its own rule
    assert "far too large" in diagnose({CLIP: gap})[CLIP].message
    for value in (math.nan, math.inf, -math.inf):
        diagnosis = diagnose({KL: [*curve((1.0, 6)), (7, value), (8, value)]})[KL]
        assert diagnosis.level is Level.ALERT
        assert "since step 7" in diagnosis.message
    assert "since step 1" in diagnose({KL: [(1, math.nan)]})[KL].message


def test_another_metric_of_nan_only_disturbs_no_rule():
    assert diagnose({KL: curve((9.0, 5), (10.0, 5)), GOLD: [(1, math.nan)]})[KL].level is Level.WARN
