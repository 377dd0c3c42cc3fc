"""Confidence intervals of proportions and means, without torch."""

import math
from collections.abc import Hashable, Iterable, Sequence
from statistics import fmean, stdev
from typing import Any, TypeVar

from rlhf_lab.errors import ConfigError

T = TypeVar("T")

#: With fewer clusters no interval is computed, because it would be too wide to be useful (docs/DECISIONS.md).
MIN_CLUSTERS = 5
TAIL = 0.025  # of the distribution, on each side of a 95 % interval
_FIRST_QUANTILES = (math.inf, 12.706, 4.303, 3.182)


def hit(difference: T) -> T:
    """Whether a prediction is right, from the predicted score of the chosen text minus that of the other: 1 above 0, 0 below,
    and ½ for equal scores, which are no prediction. difference: a float, or a numpy array or tensor of any shape.
    """
    value: Any = difference
    result: T = (value > 0) + 0.5 * (value == 0)
    return result


def wilson_interval(successes: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """The Wilson score interval for the proportion `successes` / `n`; z = 1.96 for 95 % confidence.

    Returns:
        (low, high) within [0, 1]; low is exactly 0.0 for no success, high exactly 1.0 for no failure; (0.0, 1.0) for n = 0.

    Raises:
        ConfigError: a negative count, more successes than trials, z not positive.

    Source: Wilson 1927. Its coverage holds for small n and near 0 and 1, where that of the normal interval does not.
    """
    if not (0 <= successes <= n and z > 0):
        raise ConfigError(f"successes={successes}, n={n}, z={z}: the interval needs 0 <= successes <= n and z > 0.")
    if n == 0:
        return 0.0, 1.0
    return _wilson(successes / n, n, z)


def exact_interval(successes: int, n: int) -> tuple[float, float]:
    """The exact 95 % interval for the proportion `successes` / `n` of independent trials (Clopper & Pearson 1934).

    Returns:
        (low, high) within [0, 1]; (0.0, 1.0) for n = 0. It leaves out one half if and only if the exact two-sided binomial test
        of one half, by twice the smaller tail, rejects it at 5 %. It covers the truth in at least 95 % of the cases for every n
        and proportion; Wilson's is narrower, and covers it less often for some: 4 of 4 leave out one half, a case in eight.

    Raises:
        ConfigError: a negative count, or more successes than trials.
    """
    if not 0 <= successes <= n:
        raise ConfigError(f"successes={successes}, n={n}: the interval needs 0 <= successes <= n.")
    low = 0.0 if successes == 0 else _share_with_tail(n, successes, TAIL)
    high = 1.0 if successes == n else 1.0 - _share_with_tail(n, n - successes, TAIL)
    return low, high


def detectable_share(n: int) -> float | None:
    """The smallest share above one half that n independent choices show with a probability of 80 %: their `exact_interval` is
    then above one half. None if even n equal choices may be chance (n < 6).

    Smaller shares are shown less often than that, so "no difference found" does not mean that there is none.
    """
    wins = next((k for k in range(n // 2 + 1, n + 1) if _binomial_tail(n, k, 0.5) <= TAIL), None)
    return None if wins is None else _share_with_tail(n, wins, 0.8)


def _binomial_tail(n: int, wins: int, share: float) -> float:
    """The probability of so many wins or more in n independent trials; 0 < share < 1."""
    logs = (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(wins, n + 1))
    odds = zip(logs, range(wins, n + 1), strict=True)
    return math.fsum(math.exp(log + k * math.log(share) + (n - k) * math.log(1 - share)) for log, k in odds)


def _share_with_tail(n: int, wins: int, probability: float) -> float:
    """The share of successes for which so many wins or more have this probability; wins >= 1. By bisection, to 1e-12."""
    low, high = 0.0, 1.0
    for _ in range(40):
        share = (low + high) / 2
        low, high = (low, share) if _binomial_tail(n, wins, share) >= probability else (share, high)
    return high


def preference_interval(pairs: Iterable[tuple[int, int]]) -> tuple[float, float] | None:
    """A 95 % interval for the share of decided answers that prefer a model's texts, in a blind test.

    pairs: (answers for the model, decided answers) of each pair. For at most one answer to a pair it is `exact_interval`; for
    several, `clustered_interval`, because answers to the same pair are alike. None for a few pairs with several answers.
    """
    counts = list(pairs)
    if all(trials <= 1 for _, trials in counts):
        return exact_interval(sum(wins for wins, _ in counts), sum(trials for _, trials in counts))
    return clustered_interval(counts)


def clustered_interval(clusters: Iterable[tuple[float, int]]) -> tuple[float, float] | None:
    """A 95 % interval for a proportion whose trials are correlated within clusters, such as several people's answers to a pair.

    clusters: (successes, trials) of each; clusters without trials are ignored.

    Returns:
        (low, high) as `wilson_interval`; None for fewer than MIN_CLUSTERS clusters.

    Raises:
        ConfigError: a negative count, more successes than trials in a cluster.

    The interval is for the population of clusters: with pairs as clusters it is for other pairs and the same people. The share
    p = sum(x_i) / sum(n_i) is a ratio of two sums over m clusters; its variance by linearisation is
    v = m / (m - 1) · sum((x_i - p·n_i)²) / sum(n_i)² (Cochran 1977, Sampling Techniques, 3rd ed., section 3.12). The result is
    Wilson's interval for the effective number of independent trials, p·(1 - p) / v, at most sum(n_i), with Student's t of m - 1
    degrees of freedom for z (Korn & Graubard 1998, Survey Methodology 24; Dean & Pagano 2015, Journal of Survey Statistics and
    Methodology 3). For p = 0 or 1, where v is 0, the effective number is m.
    """
    counts = [(x, n) for x, n in clusters if (x, n) != (0, 0)]
    if not all(0 <= x <= n for x, n in counts):
        raise ConfigError(f"clusters={counts}: the interval needs 0 <= successes <= trials.")
    if len(counts) < MIN_CLUSTERS:
        return None
    return _wilson(*_effective_trials(counts), student_t(len(counts) - 1))


def _effective_trials(counts: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """The share of successes, and the number of independent trials in which it would have the same variance; see
    `clustered_interval`. counts: (successes, trials) of at least 2 clusters."""
    m, total = len(counts), sum(n for _, n in counts)
    share = sum(x for x, _ in counts) / total
    bernoulli_variance = share * (1.0 - share)
    if bernoulli_variance <= 0:
        return share, float(m)
    variance = m / (m - 1) * sum((x - share * n) ** 2 for x, n in counts) / total**2
    return share, bernoulli_variance / max(variance, bernoulli_variance / total)


def grouped_interval(hits: Iterable[tuple[Hashable, float]]) -> tuple[float, float]:
    """A 95 % interval for a share of hits that are correlated within groups, such as predictions about one prompt by one model.

    hits: (group, `hit`) of each trial. The interval is `clustered_interval`; with fewer than MIN_CLUSTERS groups,
    Wilson's interval of the share for one trial per group; (0.0, 1.0) without trials.
    """
    return counted_interval(_counts_by_group(hits))


def counted_interval(counts: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """`grouped_interval` of hits that are counted already. counts: (hits, trials > 0) of each group."""
    return clustered_interval(counts) or _one_trial_per_group(counts, 1.0)


def cross_validated_interval(hits: Iterable[tuple[Hashable, float]]) -> tuple[float, float]:
    """A 95 % interval for the expected accuracy on new groups of a model that is trained on as many labels as these.

    hits: (group, `hit`) of each label, predicted by a model that was trained on the labels of all other groups. Such predictions
    are correlated: of two labels, each is among those from which the other is predicted. Without a signal the scores add up to a
    sum over pairs of labels whose two terms are equal, so its variance is twice that of independent predictions; the better the
    predictions, the less a single label changes. The variance is therefore that of `grouped_interval` times
    1 + 4 p (1 - p) for the share p; the result is Wilson's interval, with Student's t for the number of groups, or for the
    effective number of independent trials before this factor if that is smaller. So it contains `grouped_interval` of the same
    hits. Its coverage was measured: benchmarks/results/intervals.md.
    """
    counts = _counts_by_group(hits)
    if len(counts) < MIN_CLUSTERS:
        return _one_trial_per_group(counts, 2.0)
    share, trials = _effective_trials(counts)
    degrees_of_freedom = max(1, min(len(counts), round(trials)) - 1)
    return _wilson(share, trials / (1.0 + 4.0 * share * (1.0 - share)), student_t(degrees_of_freedom))


def held_out_interval(hits: Sequence[tuple[Hashable, float]], *, cross_validated: bool) -> tuple[float, float]:
    """The 95 % interval for the expected accuracy of a reward model on new groups of labels, such as prompts.

    hits: (group, `hit`) of each held-out label. cross_validated: whether each group was predicted by a model that was trained on
    the others, and not all groups by one model, whose predictions are independent. Fewer than MIN_CLUSTERS groups predicted by
    one model are treated alike, because Wilson's interval for so few trials covers too rarely.
    """
    few_groups = len({group for group, _ in hits}) < MIN_CLUSTERS
    return cross_validated_interval(hits) if cross_validated or few_groups else grouped_interval(hits)


def _counts_by_group(hits: Iterable[tuple[Hashable, float]]) -> list[tuple[float, int]]:
    """(successes, trials) of each group."""
    counts: dict[Hashable, tuple[float, int]] = {}
    for group, value in hits:
        successes, trials = counts.get(group, (0, 0))
        counts[group] = (successes + value, trials + 1)
    return list(counts.values())


def _one_trial_per_group(counts: Sequence[tuple[float, int]], variance_factor: float) -> tuple[float, float]:
    if not counts:
        return 0.0, 1.0
    return _wilson(sum(x for x, _ in counts) / sum(n for _, n in counts), len(counts) / variance_factor, 1.96)


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """A 95 % interval for the mean of n independent values: mean ± t · sd / sqrt(n).

    Returns:
        (low, high); None for fewer than MIN_CLUSTERS values, and for equal ones, which do not say how much others would vary.

    t: Student's, of n - 1 degrees of freedom (Student 1908, Biometrika 6); sd: of the sample.
    """
    if len(values) < MIN_CLUSTERS:
        return None
    mean, half_width = fmean(values), student_t(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return (mean - half_width, mean + half_width) if half_width else None


def student_t(degrees_of_freedom: int) -> float:
    """The 97.5 % quantile of Student's t, to 0.3 %; infinity for 0 degrees of freedom.

    Source: Abramowitz & Stegun 1964, table 26.10 up to 3 degrees of freedom, then 26.7.5, to the third power of
    1 / degrees_of_freedom.
    """
    if degrees_of_freedom < len(_FIRST_QUANTILES):
        return _FIRST_QUANTILES[degrees_of_freedom]
    z = 1.96
    term1, term2 = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    term3 = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + term1 / degrees_of_freedom + term2 / degrees_of_freedom**2 + term3 / degrees_of_freedom**3


def _wilson(share: float, n: float, z: float) -> tuple[float, float]:
    centre = share + z * z / (2 * n)
    half_width = z * math.sqrt(share * (1.0 - share) / n + z * z / (4.0 * n * n))
    scale = 1.0 + z * z / n
    # At the ends the exact values are 0 and 1, but the formulas give rounding errors.
    low = 0.0 if share == 0.0 else (centre - half_width) / scale
    high = 1.0 if share == 1.0 else (centre + half_width) / scale
    return low, high
