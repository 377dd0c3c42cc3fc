"""How labels depend on attributes of the texts, and features and scores without them. numpy.

The labels follow P(a ≻ b) = sigmoid(w·(φ(a) − φ(b)) + γ·(z(a) − z(b))), where z are the attributes and φ the features less
their regression on z over reference texts. So γ is the whole linear effect of an attribute on the log-odds, and w·φ has none.
The prior of w is that of `fit_dual`, N(0, 1/ridge); that of γ, for attributes of standard deviation 1, is
N(0, PRIOR_SD²/ridge): a standard deviation of 1.7 to 3 log-odds for the ridges of 1 to 3 with which effects are measured.
Both give one Gram matrix, K + PRIOR_SD² ΔzΔzᵀ.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np

from rlhf_lab.core.preference_fit import (
    DualFit,
    Float32,
    Float64,
    PreferenceTargets,
    bradley_terry_nll,
    indices_by_group,
    scaled_system,
)

PRIOR_SD = 3.0
CHI2_95 = 3.841458820694124  # 95 % quantile of the chi-squared distribution with one degree of freedom
MAX_STEP = 1e6
#: The least ridge of a fit for effects: the scores of two texts then differ by a prior standard deviation of 1.4 log-odds. Where
#: no label is surprising, a smaller ridge lets the features explain each label, and effects would be unknown.
MIN_RIDGE = 1.0
MIN_SPREAD = 1e-3  # standard deviation of an attribute over the reference texts; below it the attribute is left out
#: Of the labelled differences, in standard deviations of the reference texts: below it, labels say nothing about the attribute.
MIN_DIFFERENCE = 0.05


class AttributeScaler:
    """Attributes with mean 0 and standard deviation 1 over reference texts; those that hardly vary are always 0."""

    def __init__(self, reference: Float64) -> None:
        """reference: (M, A)."""
        self.mean, spread = reference.mean(0), reference.std(0)
        self.varies = spread > MIN_SPREAD
        self.sd = np.where(self.varies, spread, 1.0)

    def __call__(self, values: Float64) -> Float64:
        """(..., A) scaled values."""
        return self.differences(values - self.mean)

    def differences(self, values: Float64) -> Float64:
        """(..., A) scaled differences of values."""
        result: Float64 = np.where(self.varies, values / self.sd, 0.0)
        return result


def linear_slopes(values: Float64 | Float32, attributes: Float64) -> Float64:
    """(A, ...) slopes of the least-squares regression of values (M, ...) on attributes (M, A), with an intercept.

    The shortest solution, so an attribute that is constant has slope 0.
    """
    centred = attributes - attributes.mean(0)
    slopes: Float64 = np.linalg.lstsq(centred, np.asarray(values, np.float64) - values.mean(0), rcond=1e-9)[0]
    return slopes


class AttributeRegression:
    """Removes from features their linear relation to attributes of the texts, as it is over reference texts.

    scaler: of the attributes. slopes: (A, D), of features for each unit of a scaled attribute.
    """

    def __init__(self, features: Float32, attributes: Float64) -> None:
        """features (M, D), attributes (M, A): of the reference texts."""
        self.scaler = AttributeScaler(attributes)
        self.slopes = linear_slopes(features, self.scaler(attributes))

    def residual(self, features: Float32, scaled: Float64) -> Float32:
        """(N, D) features less what scaled attributes (N, A) explain; also of differences of texts."""
        result: Float32 = features - (scaled @ self.slopes).astype(np.float32)
        return result


class AttributeEffects(NamedTuple):
    """log_odds: (A,) change of the log-odds of being preferred for each unit of an attribute. low, high: (A,) bounds of the 95 %
    intervals."""

    log_odds: Float64
    low: Float64
    high: Float64


def attribute_gram(differences: Float64) -> Float64:
    """(N, N), added to the Gram matrix of the features. differences: (N, A) scaled attributes, chosen - rejected."""
    result: Float64 = PRIOR_SD**2 * differences @ differences.T
    return result


def attribute_effects(
    gram: Float64, fit: DualFit, targets: PreferenceTargets, differences: Float64
) -> AttributeEffects:
    """The effects of scaled attributes in a fit with the Gram matrix `gram`, which contains `attribute_gram(differences)`.

    An interval ends where the posterior has fallen by CHI2_95 / 2 nats, while all other weights follow an effect as in the
    Laplace approximation (Rasmussen & Williams 2006, section 3.4). Where labels are nearly always explained, the posterior is far
    from a normal distribution, whose interval would contain 0.
    """
    root = np.sqrt(fit.curvature)
    scaled = PRIOR_SD * differences * root[:, None]
    solved = np.linalg.solve(scaled_system(gram, root, fit.ridge), scaled)
    variance = (1.0 - np.einsum("na,na->a", scaled, solved)) / fit.ridge  # of each effect over PRIOR_SD
    moves = (PRIOR_SD * differences - gram @ (root[:, None] * solved)) / (
        fit.ridge * variance
    )  # of scores, per unit of it
    bounds = [
        PRIOR_SD * _step_bounds(fit, targets, move, float(one)) for move, one in zip(moves.T, variance, strict=True)
    ]
    low, high = np.reshape(bounds, (-1, 2)).T
    log_odds = PRIOR_SD**2 * differences.T @ fit.coefficients
    return AttributeEffects(log_odds, log_odds + low, log_odds + high)


def _step_bounds(fit: DualFit, targets: PreferenceTargets, move: Float64, variance: float) -> Float64:
    """(2,) the steps down and up, from the fitted effect over PRIOR_SD, to the ends of its interval. move: (N,) of the scores for
    each unit of a step. variance: of the effect over PRIOR_SD."""
    nats, slope = bradley_terry_nll(fit.scores, targets), fit.ridge * float(fit.coefficients @ move)
    prior = 1.0 / variance - float(fit.curvature @ move**2)  # second derivative of the prior's part

    def deviance(step: float) -> float:
        rise = bradley_terry_nll(fit.scores + step * move, targets) - nats
        return 2 * (rise + slope * step) + prior * step**2

    sd = math.sqrt(variance)
    return np.array([_crossing(deviance, -sd), _crossing(deviance, sd)])


def _crossing(deviance: Callable[[float], float], start: float) -> float:
    """The step, in the direction of `start`, at which a convex deviance, 0 at step 0, reaches CHI2_95."""
    near, far = 0.0, 2.0 * start
    while deviance(far) < CHI2_95 and abs(far) < MAX_STEP:
        near, far = far, 2.0 * far
    for _ in range(50):
        middle = (near + far) / 2
        near, far = (middle, far) if deviance(middle) < CHI2_95 else (near, middle)
    return far


def held_out_attribute_scores(gram: Float64, fit: DualFit, differences: Float64, groups: Sequence[Hashable]) -> Float64:
    """(N,) the part γ·Δz of the score differences of `held_out_scores`, from the same arguments.

    Without the labels b, the coefficients a of a least-squares fit become a − M⁻¹_:b (M⁻¹_bb)⁻¹ a_b, where M = K + ridge W⁻¹.
    """
    root = np.sqrt(fit.curvature)
    inverse = np.outer(root, root) * np.linalg.inv(scaled_system(gram, root, fit.ridge))
    result = np.empty_like(fit.scores)
    for indices in indices_by_group(groups):
        block = np.linalg.solve(inverse[np.ix_(indices, indices)], fit.coefficients[indices])
        effects = PRIOR_SD**2 * differences.T @ (fit.coefficients - inverse[:, indices] @ block)
        result[indices] = differences[indices] @ effects
    return result
