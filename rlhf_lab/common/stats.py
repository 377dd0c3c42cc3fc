"""How sure a share or a mean is. Plain arithmetic, so that the parts without torch can use it too."""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev

from rlhf_lab.errors import ConfigError

#: Of fewer clusters no interval is told: it would be too wide to tell anything (docs/DECISIONS.md).
MIN_CLUSTERS = 5


def wilson_interval(successes: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """The Wilson score interval for a share of `successes` out of `n`; z = 1.96 is 95 % confidence.

    Returns:
        (low, high), python floats within [0, 1]; exactly 0.0 below no success and exactly 1.0 above no failure;
        (0.0, 1.0) for n = 0: nothing was seen, so anything is possible.

    Raises:
        ConfigError: a negative count, more successes than trials, z not positive.

    Source: Wilson 1927; it keeps its coverage for small n and at 0 and 1, where the normal interval fails.
    """
    if not (0 <= successes <= n and z > 0):
        raise ConfigError(f"successes={successes}, n={n}, z={z}: the interval needs 0 <= successes <= n and z > 0.")
    if n == 0:
        return 0.0, 1.0
    return _wilson(successes / n, n, z)


def clustered_interval(clusters: Iterable[tuple[int, int]]) -> tuple[float, float] | None:
    """A 95 % interval for a share whose trials come in clusters, those of one cluster alike: several people's answers to a pair.

    clusters: (successes, trials) of each; those without a trial count nowhere.

    Returns:
        (low, high) as `wilson_interval`; None for fewer than FEWEST_CLUSTERS.

    Raises:
        ConfigError: a negative count, more successes than trials in a cluster.

    Clusters are what another sample would have others of: for answers it speaks of the same people and other pairs. The share
    p = sum(x_i) / sum(n_i) is a ratio of two sums over m clusters, its variance by linearisation
    v = m / (m - 1) · sum((x_i - p·n_i)²) / sum(n_i)² (Cochran 1977, Sampling Techniques, 3rd ed., section 3.12). The interval is
    Wilson's for as many independent trials as have that variance, p·(1 - p) / v, at most those there are, with Student's t of
    m - 1 degrees of freedom for z (Korn & Graubard 1998, Survey Methodology 24; Dean & Pagano 2015, Journal of Survey Statistics
    and Methodology 3). At 0 and 1 v is 0 and says nothing: m trials then, as if each cluster had said one thing.
    """
    counts = [(x, n) for x, n in clusters if (x, n) != (0, 0)]
    if not all(0 <= x <= n for x, n in counts):
        raise ConfigError(f"clusters={counts}: the interval needs 0 <= successes <= trials.")
    m, total = len(counts), sum(n for _, n in counts)
    if m < MIN_CLUSTERS:
        return None
    share = sum(x for x, _ in counts) / total
    bernoulli_variance, effective_trials = share * (1.0 - share), float(m)
    if bernoulli_variance > 0:
        variance = m / (m - 1) * sum((x - share * n) ** 2 for x, n in counts) / total**2
        effective_trials = bernoulli_variance / max(variance, bernoulli_variance / total)
    return _wilson(share, effective_trials, _student_t(m - 1))


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """A 95 % interval for the mean of values that know nothing of each other: mean ± t · sd / sqrt(n).

    Returns:
        (low, high); None for fewer than FEWEST_CLUSTERS values.

    t is Student's of n - 1 degrees of freedom (Student 1908, Biometrika 6), sd that of the sample.
    """
    if len(values) < MIN_CLUSTERS:
        return None
    mean, half_width = fmean(values), _student_t(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return mean - half_width, mean + half_width


def _student_t(degrees_of_freedom: int, z: float = 1.96) -> float:
    """The t that stands as far out as z does on the normal curve; from 4 degrees of freedom on right to 0.3 %.

    Source: Abramowitz & Stegun 1964, 26.7.5, to the third power of 1 / freedom.
    """
    term1, term2 = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    term3 = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + term1 / degrees_of_freedom + term2 / degrees_of_freedom**2 + term3 / degrees_of_freedom**3


def _wilson(share: float, n: float, z: float) -> tuple[float, float]:
    centre = share + z * z / (2 * n)
    half_width = z * math.sqrt(share * (1.0 - share) / n + z * z / (4.0 * n * n))
    scale = 1.0 + z * z / n
    # At the ends the exact values are 0 and 1; rounding would leave a hair beside them.
    low = 0.0 if share == 0.0 else (centre - half_width) / scale
    high = 1.0 if share == 1.0 else (centre + half_width) / scale
    return low, high
