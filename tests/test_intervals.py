"""The Wilson interval against published values, by hand, and at its ends."""

import math

import pytest

from rlhf_lab import intervals
from rlhf_lab.errors import ConfigError


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        # Newcombe 1998, table I, method 3 (four decimals)
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_interval_against_published_values(successes, n, low, high):
    got = intervals.wilson_interval(successes, n, z=1.959964)
    assert got == pytest.approx((low, high), abs=5e-5)


def test_wilson_interval_by_hand():
    """5 of 10 at z = 2: centre 1/2; half width 2 sqrt(1/40 + 4/400) / (1 + 4/10) = sqrt(7/50) / 1.4."""
    low, high = intervals.wilson_interval(5, 10, z=2.0)
    assert (low, high) == pytest.approx((0.5 - math.sqrt(0.14) / 1.4, 0.5 + math.sqrt(0.14) / 1.4), abs=1e-12)
    assert type(low) is float
    half = 0.5 * math.sqrt(0.025 + 0.000625) / 1.025  # z = 1/2
    assert intervals.wilson_interval(5, 10, z=0.5) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-12)


def test_wilson_interval_at_the_ends():
    assert intervals.wilson_interval(0, 0) == (0.0, 1.0)
    for n in range(1, 60):  # all right: n / (n + z^2) to 1; all wrong: the mirror image; never beyond, by rounding
        low, high = intervals.wilson_interval(n, n)
        assert (low, high) == pytest.approx((n / (n + 1.96**2), 1.0), abs=1e-12)
        assert high == 1.0
        low, high = intervals.wilson_interval(0, n)
        assert (low, high) == pytest.approx((0.0, 1.96**2 / (n + 1.96**2)), abs=1e-12)
        assert low == 0.0


@pytest.mark.parametrize(("successes", "n", "z"), [(-1, 3, 1.96), (4, 3, 1.96), (1, 3, 0.0), (0, -1, 1.96)])
def test_wilson_interval_refuses_bad_counts(successes, n, z):
    with pytest.raises(ConfigError):
        intervals.wilson_interval(successes, n, z)
