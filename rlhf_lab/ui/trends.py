"""What a curve does now and did before, through its noise: means of windows of steps."""

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

WINDOW = 5  # steps that count as "now"; as many before them are "before"
NOISE_STEPS = 50  # the last steps that say how noisy a curve is
MEDIAN_OF_DIFFERENCES = 0.6745 * math.sqrt(2)  # of two draws from a normal distribution of sd 1


class Trend(NamedTuple):
    """first: mean of the first steps; before, now: means of the last two windows; best: the highest window's mean.

    points: how many are finite. doubt: the change that noise alone makes between two windows (2 standard errors).
    last: the newest value. A curve that ends on the other side of its window's mean neither rises nor falls: it may be turning.
    """

    first: float
    before: float
    now: float
    best: float
    points: int
    doubt: float
    last: float

    @property
    def change(self) -> float:
        return self.now - self.before

    def beyond(self, threshold: float) -> float:
        """The threshold, or what noise alone makes if that is more."""
        return max(threshold, self.doubt)

    def rises(self, threshold: float) -> bool:
        return self.change > self.beyond(threshold) and self.last >= self.now

    def falls(self, threshold: float) -> bool:
        return self.change < -self.beyond(threshold) and self.last <= self.now


def trend(points: Sequence[tuple[int, float]]) -> Trend | None:
    """None for a curve without a finite point. With few points the windows shrink."""
    values = [value for _, value in points if math.isfinite(value)]
    if not values:
        return None
    window = max(1, min(WINDOW, len(values) // 2))
    now = values[-window:]
    before = values[-2 * window : -window] or now
    sums = [0.0, *itertools.accumulate(values)]
    best = max(sums[i + window] - sums[i] for i in range(len(values) - window + 1)) / window
    doubt = 2 * noise(values[-NOISE_STEPS:]) * math.sqrt(2 / window)
    return Trend(_mean(values[:window]), _mean(before), _mean(now), best, len(values), doubt, values[-1])


def noise(values: Sequence[float]) -> float:
    """The sd of the noise around a smooth curve, from the median difference of neighbours; 0 for fewer than 3 values."""
    if len(values) < 3:
        return 0.0
    return statistics.median(abs(b - a) for a, b in itertools.pairwise(values)) / MEDIAN_OF_DIFFERENCES


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)
