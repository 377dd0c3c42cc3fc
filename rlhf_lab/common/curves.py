"""Curves thinned for a plot."""

import math
from collections.abc import Sequence
from operator import itemgetter

Point = tuple[int, float]


def downsample(points: list[Point], max_points: int) -> list[Point]:
    """At most `max_points` (4 or more): the ends, and of each bucket in between its lowest and highest point.

    NaN is chosen only where a bucket has nothing else. Source: min-max downsampling, as oscilloscopes do it.
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
