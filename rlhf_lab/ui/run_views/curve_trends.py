"""What a training curve does now, beyond its noise, and what a change of it consists of. Pure functions of the curves."""

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rlhf_lab.common.curves import Point

WINDOW = 5  # steps that count as "now"; the same number before them is "before"
NOISE_STEPS = 50  # the last steps, from which the noise of a curve is estimated
MEDIAN_ABS_NORMAL_DIFFERENCE = 0.6745 * math.sqrt(2)  # of two draws from a normal distribution of sd 1
TURN_NOISE_FACTOR = 2.0  # times the noise margin: the best of many windows is partly luck
MAIN_PART = 0.5  # share of a change that a part of the reward must have to be called its main cause

Curves = Mapping[str, Sequence[Point]]


class SettingChange(NamedTuple):
    """A live setting (beta, lr) changed during a run, after `step` steps. old: None where the run itself had adapted it."""

    step: int
    name: str
    old: float | None
    new: float


class Trend(NamedTuple):
    """initial: mean of the first window; previous, current: means of the last two windows; highest, lowest: the extreme window
    means, each with the step in the middle of its window.

    num_points: the number of finite values. noise_margin: the change between two windows that noise alone may cause (2 standard
    errors). latest: the newest value. A curve does not count as rising if latest is below the mean of its window, nor as falling
    if latest is above it: it may be turning.
    """

    initial: float
    previous: float
    current: float
    highest: Point
    lowest: Point
    num_points: int
    noise_margin: float
    latest: float

    @property
    def change(self) -> float:
        return self.current - self.previous

    @property
    def gain(self) -> float:
        return self.current - self.initial

    @property
    def best(self) -> float:
        return self.highest[1]

    def effective_threshold(self, threshold: float) -> float:
        """The threshold, or the noise margin if that is larger."""
        return max(threshold, self.noise_margin)

    def is_rising(self, threshold: float) -> bool:
        return self.change > self.effective_threshold(threshold) and self.latest >= self.current

    def is_falling(self, threshold: float) -> bool:
        return self.change < -self.effective_threshold(threshold) and self.latest <= self.current

    def turn(self, threshold: float) -> Point | None:
        """The step and mean at which the curve was higher than at both its ends, or lower, by more than the threshold and than
        noise explains; of both the one that is further from them. None without any."""
        if self.num_points < 2 * WINDOW:
            return None
        rise = self.highest[1] - max(self.initial, self.current)
        fall = min(self.initial, self.current) - self.lowest[1]
        if max(rise, fall) <= max(threshold, TURN_NOISE_FACTOR * self.noise_margin):
            return None
        return self.highest if rise >= fall else self.lowest

    def compared(self, threshold: float, gain: str, show: Callable[[float], str]) -> str:
        """How the curve compares with its start, where it turned in between, and how it moves now, as all captions say it. gain:
        `self.gain` as text. show: a value as text.

        A change that one sees is said, also if noise alone may cause it. Before there are two full windows, the second comparison
        is the first one, and is left out.
        """
        since_start = f"{gain if abs(self.gain) > threshold else 'hardly any change'} since the start"
        if threshold < abs(self.gain) <= self.noise_margin:
            since_start += ", within the noise"
        if self.num_points < 2 * WINDOW:
            return since_start
        if (turn := self.turn(threshold)) is not None:
            extreme = "highest" if turn == self.highest else "lowest"
            since_start += f", {extreme} around step {turn[0]} ({show(turn[1])})"
        is_steady = abs(self.change) <= threshold
        if is_steady and abs(self.gain) <= threshold and turn is None:
            return "steady since the start"
        direction = (
            "rising" if self.is_rising(threshold) else "falling" if self.is_falling(threshold) else "up and down"
        )
        return f"{since_start}, now {'steady' if is_steady else direction}"


class RewardPart(NamedTuple):
    """A summand of the reward: the score, or what is taken off it. advice: what makes it larger, "" for none."""

    name: str
    trend: Trend
    advice: str = ""


def trend(points: Sequence[Point]) -> Trend | None:
    """None for a curve without a finite point. With few points the windows shrink."""
    finite = [(step, value) for step, value in points if math.isfinite(value)]
    if not finite:
        return None
    values = [value for _, value in finite]
    window = max(1, min(WINDOW, len(values) // 2))
    current = values[-window:]
    previous = values[-2 * window : -window] or current
    cumulative_sums = [0.0, *itertools.accumulate(values)]
    means = [(cumulative_sums[i + window] - cumulative_sums[i]) / window for i in range(len(values) - window + 1)]
    highest, lowest = (means.index(extreme) for extreme in (max(means), min(means)))
    top, bottom = ((finite[i + window // 2][0], means[i]) for i in (highest, lowest))
    noise_margin = 2 * noise_sd(values[-NOISE_STEPS:]) * math.sqrt(2 / window)
    mean = statistics.fmean
    return Trend(
        mean(values[:window]), mean(previous), mean(current), top, bottom, len(values), noise_margin, values[-1]
    )


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
