"""The Bradley-Terry model of a tournament: one score per contestant from pairwise answers.

P(i is preferred to j) = σ(s_i − s_j). The scores have independent normal priors of mean 0 and standard deviation PRIOR_SD, so
that they stay finite for a contestant that wins every comparison. Source: Bradley & Terry 1952, Biometrika 39.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.common.stats import student_t

Matrix = NDArray[np.float64]

PRIOR_SD = 2.0  # log-odds: two contestants differ by less than 5.5 (a win rate of 99.6 %) with 95 % probability
Z_95 = 1.96
MAX_NEWTON_STEP = 1.0
TOLERANCE = 1e-10


@dataclass(frozen=True)
class BradleyTerryFit:
    """scores: (n,) log-odds of being preferred to contestant 0, whose score is 0. covariance: (n, n) of the scores, from the
    inverse Hessian of the negative log-posterior (Laplace approximation)."""

    scores: Matrix
    covariance: Matrix

    def expected_information(self) -> Matrix:
        """(n, n) expected reduction of the entropy of the scores by one more answer about i and j, in nats.

        It is ½ log(1 + p(1 − p) v) with the predicted win rate p and the variance v of s_i − s_j, because an answer adds p(1 − p)
        to the Hessian along this difference.
        """
        win_rates = _sigmoid(self.scores[:, None] - self.scores[None, :])
        variances = np.diag(self.covariance)
        difference_variances = variances[:, None] + variances[None, :] - 2 * self.covariance
        information: Matrix = 0.5 * np.log1p(win_rates * (1 - win_rates) * difference_variances)
        return information


def fit_bradley_terry(wins: Matrix, pending: Matrix | None = None) -> BradleyTerryFit:
    """The scores that maximise the posterior, by Newton's method.

    Args:
        wins: (n, n) how often i was preferred to j; a tie counts one half for both.
        pending: (n, n) symmetric, number of comparisons without an answer yet; they only reduce the covariance.
    """
    count, precision = len(wins), 1 / PRIOR_SD**2
    comparisons, scores = wins + wins.T, np.zeros(len(wins))
    for _ in range(1000):
        win_rates = _sigmoid(scores[:, None] - scores[None, :])
        gradient = wins.sum(1) - (comparisons * win_rates).sum(1) - precision * scores
        step = np.linalg.solve(_hessian(comparisons, win_rates, precision), gradient)
        scores = scores + step * min(1.0, MAX_NEWTON_STEP / max(float(np.abs(step).max()), TOLERANCE))
        if np.abs(step).max() < TOLERANCE:
            break
    win_rates = _sigmoid(scores[:, None] - scores[None, :])
    seen = comparisons if pending is None else comparisons + pending
    covariance = np.linalg.inv(_hessian(seen, win_rates, precision))
    to_first = _relative_to_first(count)
    return BradleyTerryFit(to_first @ scores, to_first @ covariance @ to_first.T)


def score_intervals(fit: BradleyTerryFit, wins: Sequence[Matrix]) -> list[tuple[float, float]]:
    """The 95 % intervals of the scores for other prompts, although answers about texts of one prompt are correlated.

    fit: of the sum of `wins`. wins: the win matrix of each prompt that has answers.

    The variance is H⁻¹ (m / (m − 1) · Σ g gᵀ + I / PRIOR_SD²) H⁻¹, with the Hessian H of the negative log-posterior and the
    gradients g of the log-likelihood of each of the m prompts (Liang & Zeger 1986, Biometrika 73), with Student's t of m − 1
    degrees of freedom. An interval is at least as wide as that of independent answers, and at most that of the prior.
    """
    count, cluster_count, precision = len(fit.scores), len(wins), 1 / PRIOR_SD**2
    prior_half_width = Z_95 * PRIOR_SD * 2**0.5
    half_widths = np.full(count, prior_half_width)
    if cluster_count > 1:
        win_rates = _sigmoid(fit.scores[:, None] - fit.scores[None, :])
        grads = np.array([(w - (w + w.T) * win_rates).sum(1) for w in wins])
        total = sum(wins, np.zeros((count, count)))
        influence = _relative_to_first(count) @ np.linalg.inv(_hessian(total + total.T, win_rates, precision))
        grad_variance = cluster_count / (cluster_count - 1) * grads.T @ grads + precision * np.eye(count)
        clustered = student_t(cluster_count - 1) * np.sqrt(np.diag(influence @ grad_variance @ influence.T))
        independent = Z_95 * np.sqrt(np.diag(fit.covariance))
        half_widths = np.minimum(prior_half_width, np.maximum(independent, clustered))
    half_widths[0] = 0.0
    return [(float(score - half), float(score + half)) for score, half in zip(fit.scores, half_widths, strict=True)]


def _relative_to_first(count: int) -> Matrix:
    """(n, n) maps scores to their differences to the first one."""
    differences = np.eye(count)
    differences[:, 0] -= 1
    return differences


def _hessian(comparisons: Matrix, win_rates: Matrix, precision: float) -> Matrix:
    """The Hessian of the negative log-posterior."""
    weights = comparisons * win_rates * (1 - win_rates)
    hessian: Matrix = np.diag(weights.sum(1) + precision) - weights
    return hessian


def _sigmoid(x: Matrix) -> Matrix:
    result: Matrix = 0.5 * (1 + np.tanh(0.5 * x))
    return result
