"""The Wilson interval against published values, by hand, and at its ends."""

import math
import random

import numpy as np
import pytest

from rlhf_lab.common import stats
from rlhf_lab.common.stats import hit
from rlhf_lab.core.preference_fit import PreferenceTargets, fit_dual, held_out_scores
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
    actual = stats.wilson_interval(successes, n, z=1.959964)
    assert actual == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(("n", "share"), [(20, 0.80), (40, 0.73), (80, 0.67), (200, 0.61)])
def test_what_a_number_of_choices_shows(n, share):
    """Rounded up, as on the page. The exact test: 15 of 20 has a two-sided p of 0.041, 14 of 20 one of 0.115."""
    assert math.ceil(100 * stats.detectable_share(n)) / 100 == share


def test_what_few_choices_show_by_hand():
    """Five equal choices have p = 2/32; six have 2/64, and are six with a probability of 0.8 at a share of 0.8^(1/6)."""
    assert [stats.detectable_share(n) for n in range(6)] == [None] * 6
    assert stats.detectable_share(6) == pytest.approx(0.8 ** (1 / 6), abs=1e-9)
    assert stats.detectable_share(2000) == pytest.approx(0.5 + 2.8 * math.sqrt(0.25 / 2000), abs=1e-3)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        # Newcombe 1998, table I, method 5 (four decimals)
        (81, 263, 0.2527, 0.3676),
        (15, 148, 0.0578, 0.1617),
        (0, 20, 0.0, 0.1684),
        (1, 29, 0.0009, 0.1776),
    ],
)
def test_exact_interval_against_published_values(successes, n, low, high):
    assert stats.exact_interval(successes, n) == pytest.approx((low, high), abs=5e-5)
    assert stats.exact_interval(n - successes, n) == pytest.approx((1 - high, 1 - low), abs=5e-5)


def test_exact_interval_by_hand():
    """All of n: low^n = 0.025. One of two: 1 - (1 - low)^2 = 0.025."""
    assert stats.exact_interval(0, 0) == (0.0, 1.0)
    for n in (1, 4, 5, 6, 90):
        assert stats.exact_interval(n, n) == (pytest.approx(0.025 ** (1 / n), abs=1e-9), 1.0)
    assert stats.exact_interval(1, 2) == pytest.approx((1 - math.sqrt(0.975), math.sqrt(0.975)), abs=1e-9)
    for successes, n in ((-1, 3), (4, 3), (0, -1)):
        with pytest.raises(ConfigError):
            stats.exact_interval(successes, n)


def test_an_interval_of_preferences_is_exact_for_one_answer_a_pair():
    assert stats.preference_interval([(1, 1)] * 4 + [(0, 0)] * 9) == stats.exact_interval(4, 4)
    several = [(3, 3)] * 5 + [(0, 0), (1, 1)]
    assert stats.preference_interval(several) == stats.clustered_interval(several)
    assert stats.preference_interval([(2, 2), (1, 1)]) is None


def test_wilson_interval_by_hand():
    """5 of 10 at z = 2: centre 1/2; half width 2 sqrt(1/40 + 4/400) / (1 + 4/10) = sqrt(7/50) / 1.4."""
    low, high = stats.wilson_interval(5, 10, z=2.0)
    assert (low, high) == pytest.approx((0.5 - math.sqrt(0.14) / 1.4, 0.5 + math.sqrt(0.14) / 1.4), abs=1e-12)
    assert type(low) is float
    half = 0.5 * math.sqrt(0.025 + 0.000625) / 1.025  # z = 1/2
    assert stats.wilson_interval(5, 10, z=0.5) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-12)


def test_wilson_interval_at_the_ends():
    assert stats.wilson_interval(0, 0) == (0.0, 1.0)
    for n in range(1, 60):  # all right: n / (n + z^2) to 1; all wrong: the mirror image; never beyond, by rounding
        low, high = stats.wilson_interval(n, n)
        assert (low, high) == pytest.approx((n / (n + 1.96**2), 1.0), abs=1e-12)
        assert high == 1.0
        low, high = stats.wilson_interval(0, n)
        assert (low, high) == pytest.approx((0.0, 1.96**2 / (n + 1.96**2)), abs=1e-12)
        assert low == 0.0


@pytest.mark.parametrize(("successes", "n", "z"), [(-1, 3, 1.96), (4, 3, 1.96), (1, 3, 0.0), (0, -1, 1.96)])
def test_wilson_interval_refuses_bad_counts(successes, n, z):
    with pytest.raises(ConfigError):
        stats.wilson_interval(successes, n, z)


def wilson_by_equation(share, n, t):
    """Wilson's interval, written from the equation in his paper."""
    centre, half = share + t * t / (2 * n), t * math.sqrt(share * (1 - share) / n + (t / (2 * n)) ** 2)
    return pytest.approx(((centre - half) / (1 + t * t / n), (centre + half) / (1 + t * t / n)), abs=7e-4)


def test_clustered_interval_by_hand():
    """Ten pairs of three answers, x = 3 3 3 3 3 3 2 1 0 0: p = 21/30; the squares of x - 2.1 sum to
    6·0.81 + 0.01 + 1.21 + 2·4.41 = 14.9; v = 10/9 · 14.9 / 900 = 149/8100; n = 0.21 / v = 1701/149; t(9) = 2.2622 (tables)."""
    pairs = [(3, 3)] * 6 + [(2, 3), (1, 3), (0, 3), (0, 3)]
    low, high = stats.clustered_interval(pairs)
    assert (low, high) == wilson_by_equation(0.7, 1701 / 149, 2.2622)
    assert (low, high) == pytest.approx((0.3757, 0.9005), abs=2e-4)
    assert type(low) is float
    assert stats.clustered_interval([(0, 0), *reversed(pairs)]) == pytest.approx((low, high), abs=1e-12)
    mirrored = stats.clustered_interval([(n - x, n) for x, n in pairs])
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_clusters_of_different_sizes_by_hand():
    """Five pairs with 1 of 1, five with 1 of 3: p = 10/20; residuals 1/2 and -1/2; v = 10/9 · 10/4 / 400 = 1/144; n = 36, but
    there are no more than 20 answers. Five with 3 of 3, five with 0 of 1: p = 15/20; residuals 3/4 and -3/4; v = 10/9 · 45/8 /
    400 = 1/64; n = 3/16 · 64 = 12."""
    assert stats.clustered_interval([(1, 1), (1, 3)] * 5) == wilson_by_equation(0.5, 20, 2.2622)
    assert stats.clustered_interval([(3, 3), (0, 1)] * 5) == wilson_by_equation(0.75, 12, 2.2622)


def test_fully_correlated_clusters_count_once():
    """One answer each: v = p(1 - p) / (m - 1), as for m - 1 trials; three times the same answer: no narrower."""
    one = stats.clustered_interval([(1, 1)] * 15 + [(0, 1)] * 6)
    assert one == wilson_by_equation(15 / 21, 20, 2.0860)
    assert stats.clustered_interval([(3, 3)] * 15 + [(0, 3)] * 6) == pytest.approx(one, abs=1e-12)
    low, high = stats.clustered_interval([(3, 3)] * 12)
    assert (low, high) == (pytest.approx(12 / (12 + 2.2010**2), abs=2e-4), 1.0)
    assert stats.clustered_interval([(0, 3)] * 12) == (0.0, pytest.approx(1 - low, abs=1e-12))


def test_few_clusters_have_no_interval_and_bad_counts_are_refused():
    assert stats.clustered_interval([]) is None
    assert stats.clustered_interval([(2, 3)] * 4 + [(0, 0)] * 9) is None  # pairs without answers do not count
    # p = 9/15; the squares of x - 1.8 sum to 2.8; n = 0.24 / (5/4 · 2.8 / 225) = 15.4, but there are 15
    assert stats.clustered_interval([(2, 3), (1, 3)] * 2 + [(3, 3)]) == wilson_by_equation(0.6, 15, 2.7764)
    for wrong in ((4, 3), (-1, 3), (1, 0)):
        with pytest.raises(ConfigError):
            stats.clustered_interval([wrong] * 20)


def test_grouped_interval_counts_few_groups_once():
    """4 groups with 9 of 12: Wilson's interval of 3/4 for 4 trials; from 5 on the clustered one."""
    few = [("abcd"[i % 4], i % 4 < 3) for i in range(12)]
    assert stats.grouped_interval(few) == wilson_by_equation(0.75, 4, 1.96)
    five = iter([*few, ("e", True), ("e", False), ("e", False)])
    assert stats.grouped_interval(five) == stats.clustered_interval([(3, 3), (3, 3), (3, 3), (0, 3), (1, 3)])
    assert stats.grouped_interval([(1, True), (2, True), (3, False)]) == stats.wilson_interval(2, 3)
    assert stats.grouped_interval([]) == (0.0, 1.0)


def test_student_t_against_tables():
    expected = [math.inf, 12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281]
    assert [stats.student_t(df) for df in range(11)] == pytest.approx(expected, rel=3e-3)
    assert stats.student_t(10**9) == pytest.approx(1.96)


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("correlation", [0.1, 0.5, 0.8])
def test_clustered_interval_has_its_coverage_for_correlated_answers(share, correlation):
    """Each pair has its own probability, Beta with mean `share` and this correlation; 15 % of the answers are
    ties. 2,000 tests of 24 pairs: the standard error of a coverage of 95 % is half a point; for 24 pairs the worst of
    all nine is 93.5 %."""
    rng, size = random.Random(f"{share}/{correlation}"), 1 / correlation - 1
    covered = naive = 0
    for _ in range(2000):
        pairs = []
        for _ in range(24):
            chance = rng.betavariate(share * size, (1 - share) * size)
            decided = sum(rng.random() > 0.15 for _ in range(3))
            pairs.append((sum(rng.random() < chance for _ in range(decided)), decided))
        low, high = stats.clustered_interval(pairs)
        covered += low <= share <= high
        low, high = stats.wilson_interval(sum(x for x, _ in pairs), sum(n for _, n in pairs))
        naive += low <= share <= high
    assert 0.92 <= covered / 2000 <= 0.985
    if correlation >= 0.5:
        assert naive / 2000 < 0.9


def test_mean_interval_by_hand():
    """1 to 5: mean 3, sd sqrt(5/2), t(4) = 2.7764 (tables); five times 0 and 2: mean 1, sd sqrt(10/9), t(9) = 2.2622."""
    low, high = stats.mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (low, high) == pytest.approx((3 - 2.7764 * math.sqrt(0.5), 3 + 2.7764 * math.sqrt(0.5)), abs=7e-3)
    low, high = stats.mean_interval([0.0, 2.0] * 5)
    assert (low, high) == pytest.approx((1 - 2.2622 / 3, 1 + 2.2622 / 3), abs=7e-4)
    assert stats.mean_interval([4.0] * 5) is None  # nothing says how much others would vary


def test_few_values_have_no_mean_interval():
    assert stats.mean_interval([1.0, 2.0, 3.0, 4.0]) is None
    assert stats.mean_interval([]) is None


def test_mean_interval_has_its_coverage():
    rng = random.Random(0)
    draws = [stats.mean_interval([rng.gauss(2, 3) for _ in range(6)]) for _ in range(4000)]
    assert sum(low <= 2 <= high for low, high in draws) / 4000 == pytest.approx(0.95, abs=0.01)


def test_equal_scores_are_half_right():
    """Of numbers and of arrays."""
    assert [hit(difference) for difference in (0.3, -0.3, 0.0)] == [1.0, 0.0, 0.5]
    assert hit(np.array([[2.0, -1.0], [0.0, math.nan]])).tolist() == [[1.0, 0.0], [0.5, 0.0]]


def test_cross_validated_interval_by_hand():
    """30 of 40 groups of one label: the variance of 40 groups, 40 / 39 · 3/16 / 40, is that of 39 trials; times 1 + 4 · 3/16 it
    is that of 22.286. t(38) = 2.0244 (tables). Wilson: (0.75 + 0.09195 ± 0.20719) / 1.18390."""
    low, high = stats.cross_validated_interval((i, float(i < 30)) for i in range(40))
    assert (low, high) == (pytest.approx(0.5362, abs=5e-4), pytest.approx(0.8862, abs=5e-4))


def test_cross_validated_interval_of_groups_by_hand():
    """Ten groups of three labels that are all right or all wrong count as 10 labels, of which 5 are right: 10 / 9 times more
    variance than independent groups, so 9 trials, times 2; t(8) = 2.3060 (tables)."""
    n, z = 4.5, 2.3060
    half_width = z * math.sqrt(0.25 / n + z * z / (4 * n * n)) / (1 + z * z / n)
    actual = stats.cross_validated_interval((i % 10, float(i % 10 < 5)) for i in range(30))
    assert actual == pytest.approx((0.5 - half_width, 0.5 + half_width), abs=2e-3)


def test_cross_validated_interval_of_few_groups():
    """Half of the trials of `grouped_interval`: 2 for four groups. None at all without labels."""
    assert stats.cross_validated_interval([(i, float(i < 2)) for i in range(4)]) == stats.wilson_interval(1, 2)
    assert stats.cross_validated_interval([]) == (0.0, 1.0)


def test_cross_validated_interval_of_few_large_groups_by_hand():
    """18 of 20 labels right in each of five groups: 100 trials, times 1 + 4 · 0.09 is that of 73.529; but five groups: t(4) =
    2.7764 (tables). Wilson: (0.9 + 0.05242 ± 0.11038) / 1.10484."""
    low, high = stats.cross_validated_interval((i % 5, float(i < 90)) for i in range(100))
    assert (low, high) == (pytest.approx(0.7621, abs=1e-3), pytest.approx(0.9620, abs=1e-3))


def test_cross_validated_interval_contains_that_of_independent_predictions():
    """Of groups of any sizes, that agree or not."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        groups = rng.integers(rng.integers(1, 12), size=rng.integers(1, 60)).tolist()
        rights = rng.random(12) if rng.random() < 0.5 else np.full(12, 0.9)
        hits = [(group, float(rng.random() < rights[group])) for group in groups]
        (low, high), (inner_low, inner_high) = stats.cross_validated_interval(hits), stats.grouped_interval(hits)
        assert low <= inner_low
        assert inner_high <= high


def test_held_out_interval_is_that_of_the_way_of_holding_out():
    many, few = [(i % 6, float(i > 4)) for i in range(12)], [(i, float(i > 1)) for i in range(4)]
    assert stats.held_out_interval(many, cross_validated=True) == stats.cross_validated_interval(many)
    assert stats.held_out_interval(many, cross_validated=False) == stats.grouped_interval(many)
    assert stats.grouped_interval(many) != stats.cross_validated_interval(many)
    assert stats.held_out_interval(few, cross_validated=False) == stats.cross_validated_interval(few)
    assert stats.held_out_interval([], cross_validated=False) == (0.0, 1.0)


@pytest.mark.parametrize(("per_prompt", "coverage_before"), [(1, 0.92), (4, 0.96)])
def test_cross_validated_interval_has_its_coverage_for_coin_flips(per_prompt, coverage_before):
    """300 times 60 labels without a signal and a head with a fixed ridge: the true accuracy is 1/2. An interval as for one
    model's predictions covers it too rarely. The standard error of a coverage of 95 % is 1.3 points."""
    rng, covered, as_before = np.random.default_rng(0), 0, 0
    groups = [i // per_prompt for i in range(60)]
    targets = PreferenceTargets(np.zeros(60, np.bool_))
    for _ in range(300):
        prompt = np.repeat(rng.normal(size=(60 // per_prompt, 30)), per_prompt, axis=0)
        differences = (0.3**0.5 * prompt + 0.7**0.5 * rng.normal(size=(60, 30))) * rng.choice([-1, 1], size=(60, 1))
        gram = differences @ differences.T / 15
        hits = hit(held_out_scores(gram, fit_dual(gram, targets, 0.3), groups)).tolist()
        intervals = stats.cross_validated_interval, stats.grouped_interval
        (low, high), (low_before, high_before) = (interval(zip(groups, hits, strict=True)) for interval in intervals)
        covered, as_before = covered + (low <= 0.5 <= high), as_before + (low_before <= 0.5 <= high_before)
    assert 0.93 <= covered / 300 <= 0.995  # 15 prompts of four labels: fewer degrees of freedom than labels
    assert as_before / 300 < coverage_before
