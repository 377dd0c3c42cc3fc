"""How sure a share is. Plain arithmetic, so that the parts without torch can use it too."""

import math

from rlhf_lab.errors import ConfigError


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
    share = successes / n
    centre = share + z * z / (2 * n)
    half_width = z * math.sqrt(share * (1.0 - share) / n + z * z / (4.0 * n * n))
    scale = 1.0 + z * z / n
    # At the ends the exact values are 0 and 1; rounding would leave a hair beside them.
    low = 0.0 if successes == 0 else (centre - half_width) / scale
    high = 1.0 if successes == n else (centre + half_width) / scale
    return low, high
