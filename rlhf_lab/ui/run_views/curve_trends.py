"""What a training curve does now, beyond its noise, and what a change of it consists of. Pure functions of the curves."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rlhf_lab.common.curves import Point

WINDOW = 5  # steps that count as "now"; the same number before them is "before"
NOISE_STEPS = 50  # the last steps, from which the noise of a curve is estimated
MEDIAN_ABS_NORMAL_DIFFERENCE = 0.6745 * math.sqrt(2)  # of two draws from a normal distribution of sd 1
MAIN_PART = 0.5  # share of a change that a part of the reward must have to be called its main cause

Curves = Mapping[str, Sequence[Point]]


class SettingChange(NamedTuple):
    """A live setting (beta, lr) changed during a run, after `step` steps. old: None where the run itself had adapted it."""

    step: int
    name: str
    old: float | None
    new: float


class Trend(NamedTuple):
    """initial: mean of the first window; previous, current: means of the last two windows; best: the highest window mean.

    num_points: the number of finite values. noise_margin: the change between two windows that noise alone may cause (2 standard
    errors). latest: the newest value. A curve does not count as rising if latest is below the mean of its window, nor as falling
    if latest is above it: it may be turning.
    """

    initial: float
    previous: float
    current: float
    best: float
    num_points: int
    noise_margin: float
    latest: float

    @property
    def change(self) -> float:
        return self.current - self.previous

    @property
    def gain(self) -> float:
        return self.current - self.initial

    def effective_threshold(self, threshold: float) -> float:
        """The threshold, or the noise margin if that is larger."""
        return max(threshold, self.noise_margin)

    def is_rising(self, threshold: float) -> bool:
        return self.change > self.effective_threshold(threshold) and self.latest >= self.current

    def is_falling(self, threshold: float) -> bool:
        return self.change < -self.effective_threshold(threshold) and self.latest <= self.current

    def compared(self, threshold: float, gain: str) -> str:
        """How the curve compares with its start and moves now, as all captions say it. gain: `self.gain` as text.

        A change that one sees is said, also if noise alone may cause it. Before there are two full windows, the second comparison
        is the first one, and is left out.
        """
        since_start = f"{gain if abs(self.gain) > threshold else 'no change'} since the start"
        if threshold < abs(self.gain) <= self.noise_margin:
            since_start += ", within the noise"
        if self.num_points < 2 * WINDOW:
            return since_start
        if abs(self.change) <= threshold:
            return "steady since the start" if abs(self.gain) <= threshold else f"{since_start}, now steady"
        direction = (
            "rising" if self.is_rising(threshold) else "falling" if self.is_falling(threshold) else "up and down"
        )
        return f"{since_start}, now {direction}"


class RewardPart(NamedTuple):
    """A summand of the reward: the score, or what is taken off it. advice: what makes it larger, "" for none."""

    name: str
    trend: Trend
    advice: str = ""


def trend(points: Sequence[Point]) -> Trend | None:
    """None for a curve without a finite point. With few points the windows shrink."""
    values = [value for _, value in points if math.isfinite(value)]
    if not values:
        return None
    window = max(1, min(WINDOW, len(values) // 2))
    current = values[-window:]
    previous = values[-2 * window : -window] or current
    cumulative_sums = [0.0, *itertools.accumulate(values)]
    best = max(cumulative_sums[i + window] - cumulative_sums[i] for i in range(len(values) - window + 1)) / window
    noise_margin = 2 * noise_sd(values[-NOISE_STEPS:]) * math.sqrt(2 / window)
    mean = statistics.fmean
    return Trend(mean(values[:window]), mean(previous), mean(current), best, len(values), noise_margin, values[-1])


def noise_sd(values: Sequence[float]) -> float:
    """The sd of the noise around a smooth curve, from the differences of adjacent values; 0 for fewer than 3 values.

    What most differences have in common is the slope of the curve, not noise.
    """
    if len(values) < 3:
        return 0.0
    differences = [b - a for a, b in itertools.pairwise(values)]
    slope = statistics.median(differences)
    return statistics.median(abs(difference - slope) for difference in differences) / MEDIAN_ABS_NORMAL_DIFFERENCE


def reward_parts(curves: Curves, missing_eos_penalty: float) -> list[RewardPart]:
    """The summands of `objective/rlhf_reward`: score, KL penalty, penalty for a missing end, and what scaling and clipping of the
    score change. Empty if a curve is missing or has gaps, because then the windows of the parts would differ."""
    reward = _finite_values(curves, "objective/rlhf_reward")
    columns = [_finite_values(curves, name) for name in ("objective/scores", "objective/non_score_reward")]
    stop_rate = _finite_values(curves, "val/stop_token_rate") if missing_eos_penalty else dict.fromkeys(reward, 1.0)
    if not reward or any(reward.keys() - column.keys() for column in (*columns, stop_rate)):
        return []
    missing = {step: -missing_eos_penalty * (1 - stop_rate[step]) for step in reward}
    columns.append(missing)
    columns.append({step: reward[step] - sum(column[step] for column in columns) for step in reward})
    trends = [trend([(step, column[step]) for step in reward]) for column in columns]
    texts = (
        ("the score", ""), ("the KL penalty", "lower beta"),
        ("the penalty for a missing end", "a larger max_new_tokens lets more responses end"),
        ("the clipping or scaling of scores", ""),
    )  # fmt: skip
    return [
        RewardPart(name, part, advice) for (name, advice), part in zip(texts, trends, strict=True) if part is not None
    ]


def _finite_values(curves: Curves, name: str) -> dict[int, float]:
    return {step: value for step, value in curves.get(name, ()) if math.isfinite(value)}


def explains_fall(change: SettingChange, points: Sequence[Point]) -> bool:
    """Whether at least MAIN_PART of a curve's fall happened after a change; also if the curve begins after it."""
    before = [value for step, value in points if step <= change.step and math.isfinite(value)][-WINDOW:]
    after = [value for step, value in points if step > change.step and math.isfinite(value)][-WINDOW:]
    curve = trend(points)
    if curve is None or not before or not after:
        return bool(after)
    return statistics.fmean(after) - statistics.fmean(before) <= MAIN_PART * min(curve.change, 0.0)


def not_finite_since(points: Sequence[Point]) -> int | None:
    """The first step of the non-finite values at the end of a curve; None if the newest value is finite."""
    first_step = None
    for step, value in reversed(points):
        if math.isfinite(value):
            break
        first_step = step
    return first_step
