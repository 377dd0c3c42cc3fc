"""How much of its KL budget a live run may use, by what the labels say about the reward head. numpy.

A shift of the policy by a given KL changes the true reward by r·sqrt(2 KL) standard deviations, where r is the
correlation of the head's scores with the true ones. What else it does to the texts costs about as much per nat with a bad
head as with a good one. If that is c·KL, the sum is largest at KL = r² / (2 c²): the best budget is proportional to r². It
is not known, but the posterior of the fit says what to expect. In simulated live runs with such a cost this was better than
a fixed budget, and than budgets by the number of labels or by the cross-validated accuracy: docs/LEARNING.md, "The budget
of a live run".
"""

import numpy as np

from rlhf_lab.core.preference_fit import DualFit, Float64, score_variance
from rlhf_lab.errors import ConfigError


def score_reliability(gram: Float64, fit: DualFit, products: Float64, square_norms: Float64) -> float:
    """The expected share of the variance of true score differences that the head's differences explain, in [0, 1].

    gram: (N, N), fit: of N labels. products: (N, M), differences of the labels (chosen - rejected) times M differences of texts,
    such as pairs of reference texts; square_norms: (M,), of these. With the head's differences s and their posterior variances v
    it is mean(s²) / (mean(s²) + mean(v)): the reliability of classical test theory (Lord & Novick 1968, section 3.4). 0 if all
    texts are equal.

    It rises as labels determine the head; labels that contradict each other lower it. On average it is 0.03 to 0.15 below the
    squared correlation of the head's scores with the true ones, if the prior of the fit is right.
    """
    signal = float(np.mean((products.T @ fit.coefficients) ** 2))
    total = signal + float(score_variance(gram, fit, products, square_norms).mean())
    return signal / total if total > 0 else 0.0


def evidence_budget(full: float, reliability: float) -> float:
    """The KL budget, in nats, of a live run whose head has this reliability: a share of the full budget. Not below 0.

    Raises:
        ConfigError: a full budget that is not positive, a reliability outside [0, 1].
    """
    if not (full > 0 and 0.0 <= reliability <= 1.0):
        raise ConfigError(f"full={full}, reliability={reliability}: needs a positive budget and a share of 0 to 1.")
    return full * reliability
