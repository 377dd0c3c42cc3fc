"""Downsampling of curves for plots."""

import math
from collections.abc import Sequence
from operator import itemgetter

Point = tuple[int, float]


def downsample(points: list[Point], max_points: int) -> list[Point]:
    """At most `max_points` points (at least 4): the ends, and the lowest and highest point of each bucket in between.

    NaN is chosen only if a bucket has no other values. Source: min-max downsampling, as in oscilloscopes.
    """
    if len(points) <= max_points:
        return points
    inner, buckets = points[1:-1], max(1, (max_points - 2) // 2)
    selected = [points[0]]
    for i in range(buckets):
        bucket = inner[i * len(inner) // buckets : (i + 1) * len(inner) // buckets]
        candidates = [point for point in bucket if not math.isnan(point[1])] or bucket[:1]
        selected += sorted({min(candidates, key=itemgetter(1)), max(candidates, key=itemgetter(1))})
    return [*selected, points[-1]]


def downsample_values(values: Sequence[float], max_count: int) -> list[float]:
    """`downsample` for values without coordinates."""
    return [value for _, value in downsample(list(enumerate(values)), max_count)]
