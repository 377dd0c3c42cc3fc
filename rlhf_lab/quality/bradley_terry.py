"""The Bradley-Terry model of a tournament: one score per contestant from pairwise answers.

P(i is preferred to j) = σ(s_i − s_j). The scores have independent normal priors of mean 0 and standard deviation PRIOR_SD, so
that they stay finite for a contestant that wins every comparison. Their intervals do not use the prior. Source: Bradley &
Terry 1952, Biometrika 39.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.common.stats import student_t

Matrix = NDArray[np.float64]

PRIOR_SD = 2.0  # log-odds: two contestants differ by less than 5.5 (a win rate of 99.6 %) with 95 % probability
MAX_SCORE = 20.0  # log-odds; an end of an interval beyond it is not computed
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


def score_intervals(fit: BradleyTerryFit, wins: Sequence[Matrix]) -> list[tuple[float | None, float | None]]:
    """The 95 % intervals of the scores for other prompts, although answers about texts of one prompt are correlated.

    fit: of the sum of `wins`. wins: the win matrix of each prompt that has answers. The prior does not limit an interval: its end
    is None where the answers do not limit the score, as above an undefeated contestant.

    An interval contains the scores x with |U(x)| <= t sqrt(V I(x)): U is the derivative of the log-likelihood in the score,
    maximised over those of the others, and I its information (Rao 1948; for two contestants it is Wilson's interval of the win
    rate). V is how much larger the variance of U is than for independent answers, and t Student's quantile for the effective
    number of prompts (`_design_effects`). At the end that is farther from 0, where few answers go against
    the score, V / 2 is added to the right side (Yates 1934): half an answer.
    """
    total = sum(wins, np.zeros((len(fit.scores),) * 2))
    has_ends = _limited_below_and_above(total)
    effects, prompts = _design_effects(fit, wins, has_ends)
    intervals: list[tuple[float | None, float | None]] = [(0.0, 0.0)]
    for i in range(1, len(total)):
        quantile = student_t(max(0, prompts[i] - 1)) * math.sqrt(effects[i])
        low, high = (
            _score_at(total, i, sign * quantile, sign * effects[i] / 2 if sign * fit.scores[i] < -TOLERANCE else 0.0)
            if has_end and quantile < math.inf
            else None
            for sign, has_end in zip((1, -1), has_ends[i], strict=True)
        )
        intervals.append((low, high))
    return intervals


def are_compared(wins: Matrix) -> list[bool]:
    """Whether answers connect a contestant to contestant 0, directly or through others; always true of 0 itself. wins: (n, n)."""
    return [bool(one) for one in _reachable(wins + wins.T > 0)[0]]


def _limited_below_and_above(total: Matrix) -> list[tuple[bool, bool]]:
    """Whether the answers limit each score below and above: below if a chain of contestants, of which each was preferred to the
    next one at least once, leads from it to contestant 0, and above if one leads back (Ford 1957, American Mathematical
    Monthly 64)."""
    chains = _reachable(total > 0)
    return [(bool(below), bool(above)) for below, above in zip(chains[:, 0], chains[0], strict=True)]


def _reachable(edges: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(n, n) whether a chain of edges leads from i to j; also from each i to itself."""
    reachable = edges | np.eye(len(edges), dtype=np.bool_)
    for _ in range(len(edges).bit_length()):
        reachable = reachable @ reachable
    return reachable


def _design_effects(
    fit: BradleyTerryFit, wins: Sequence[Matrix], has_ends: Sequence[tuple[bool, bool]]
) -> tuple[list[float], list[int]]:
    """For each contestant, the variance of its score over that of independent answers, at least 1, and the effective number of
    prompts from which its score is known.

    With the Hessian H of the negative log-posterior and the gradients g of the log-likelihood of each of the m prompts, the
    variance is that of H⁻¹ (m / (m − 1) · Σ g gᵀ) H⁻¹ (Liang & Zeger 1986, Biometrika 73). Where an end is missing, g shows
    nothing about the correlation: then the answers about one contestant to one prompt count as one.

    The effective number is (Σ h)² / Σ h² (Kish 1965, Survey Sampling), with h the share of a prompt in the variance of the score
    for independent answers: m if all prompts have equal shares, and 1 if the others compare contestants that say nothing about
    the distance to contestant 0.
    """
    count, m = len(fit.scores), len(wins)
    if m < 2:
        return [1.0] * count, [m] * count
    win_rates = _sigmoid(fit.scores[:, None] - fit.scores[None, :])
    grads = np.array([(w - (w + w.T) * win_rates).sum(1) for w in wins])
    total = sum(wins, np.zeros((count, count)))
    comparisons = total + total.T
    influence = _relative_to_first(count) @ np.linalg.inv(_hessian(comparisons, win_rates, 1 / PRIOR_SD**2))
    clustered = np.diag(influence @ (m / (m - 1) * grads.T @ grads) @ influence.T)
    shares = np.array([np.diag(influence @ _hessian(w + w.T, win_rates, 0.0) @ influence.T) for w in wins])
    independent = shares.sum(0)
    effective = independent**2 / np.maximum(np.square(shares).sum(0), 1e-300)
    prompts = sum((((w + w.T).sum(1) > 0).astype(float) for w in wins), np.zeros(count))
    per_prompt = (comparisons.sum(1) / np.maximum(1, prompts)).max()
    effects = [
        max(1.0, float(both / alone) if alone > 0 else 1.0, 1.0 if all(ends) else float(per_prompt))
        for both, alone, ends in zip(clustered, independent, has_ends, strict=True)
    ]
    return effects, [round(float(number)) for number in effective]


def _score_at(total: Matrix, contestant: int, deviate: float, correction: float) -> float | None:
    """The score x of a contestant at which (U(x) - correction) / sqrt(I(x)) of `score_intervals` is `deviate`, by bisection;
    None beyond MAX_SCORE."""
    others = [i for i in range(1, len(total)) if i != contestant]
    comparisons, precision = total + total.T, np.eye(len(others)) / (2 * PRIOR_SD**2)
    scores = np.zeros(len(total))

    def standardised(x: float) -> float:
        scores[contestant] = x
        for _ in range(100):  # maximise over the others, whose prior relative to contestant 0 keeps them finite
            win_rates = _sigmoid(scores[:, None] - scores[None, :])
            gradient = total.sum(1) - (comparisons * win_rates).sum(1)
            hessian = _hessian(comparisons, win_rates, 0.0)
            inner = hessian[np.ix_(others, others)] + precision
            step = np.linalg.solve(inner, gradient[others] - precision @ scores[others])
            scores[others] += step * min(1.0, MAX_NEWTON_STEP / max(float(np.abs(step).max(initial=0.0)), TOLERANCE))
            if np.abs(step).max(initial=0.0) < 1e-6:
                break
        cross = hessian[contestant, others]
        information = hessian[contestant, contestant] - cross @ np.linalg.solve(inner, cross)
        return float((gradient[contestant] - correction) / math.sqrt(max(float(information), 1e-300)))

    low, high = -MAX_SCORE, MAX_SCORE
    if not standardised(high) < deviate < standardised(low):
        return None
    while high - low > 5e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if standardised(middle) > deviate else (low, middle)
    return (low + high) / 2


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
