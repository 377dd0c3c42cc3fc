"""Curves thinned for a plot keep their ends and peaks."""

import math

from rlhf_lab.common.curves import downsample, downsample_values


def test_downsampling_by_hand() -> None:
    points = [(0, 0.0), (1, 5.0), (2, 3.0), (3, 4.0), (4, 1.0), (5, 2.0), (6, 9.0), (7, 8.0)]
    assert downsample(points, 8) == points
    # between the ends two buckets: steps 1 to 3 (lowest 2, highest 1) and 4 to 6 (lowest 4, highest 6)
    assert downsample(points, 6) == [(0, 0.0), (1, 5.0), (2, 3.0), (4, 1.0), (6, 9.0), (7, 8.0)]
    assert downsample(points, 4) == [(0, 0.0), (4, 1.0), (6, 9.0), (7, 8.0)]
    flat = [(step, 1.0) for step in range(8)]
    assert downsample(flat, 6) == [(0, 1.0), (1, 1.0), (4, 1.0), (7, 1.0)]


def test_downsampling_skips_nan_where_a_bucket_has_numbers() -> None:
    points = [(0, 1.0), (1, math.nan), (2, math.nan), (3, 2.0), (4, math.nan), (5, math.nan)]
    assert [step for step, _ in downsample(points, 4)] == [0, 3, 5]
    assert [step for step, _ in downsample([(s, math.nan) for s in range(6)], 4)] == [0, 1, 5]


def test_values_without_coordinates() -> None:
    assert downsample_values([0.0, 5.0, 3.0, 4.0, 1.0, 2.0, 9.0, 8.0], 4) == [0.0, 1.0, 9.0, 8.0]
    assert downsample_values([], 4) == []
