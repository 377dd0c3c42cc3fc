"""Importance sampling: expectations under the policy that learns, from tokens that another policy sampled.

w = p(x) / q(x), x sampled from q. The mean of f w is unbiased; its variance grows with the distance between p and q:
that is why PPO clips, penalises, or samples anew.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rlhf_lab.core.advantages import check_masked, masked_mean
from rlhf_lab.errors import ConfigError


def trajectory_log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """log p(trajectory) - log q(trajectory): the sum of the token log-ratios of each response.

    Transitions and first states are the same under both policies and cancel. PPO's ratio is per token instead: it leaves
    out how likely the state itself has become.

    Args:
        logprobs, old_logprobs: (B, T) float, nats; anything in padding.
        mask: (B, T) bool.

    Returns:
        (B,), nats, differentiable.

    Raises:
        ConfigError: shapes that differ, a mask that is not bool.
    """
    check_masked(mask, logprobs=logprobs, old_logprobs=old_logprobs)
    return (logprobs - old_logprobs).masked_fill(~mask, 0.0).sum(dim=-1)


def finite_exponent(x: Tensor) -> Tensor:
    """x, but no larger than 0.9 of the largest exponent of its dtype: 79.8 in float32, 638 in float64.

    The exponential of what comes back is finite, and so is its product with an advantage; 0 times it is 0, where 0 times infinity
    would be NaN. The slope stays 1 beyond, so that a loss goes on pulling the ratio back.

    Args:
        x: any shape, float, e.g. log-ratios in nats; NaN stays NaN.

    Returns:
        Shape of x, differentiable; x itself, to the last bit, wherever it is below.
    """
    return _bounded(x)


class _Bounded(torch.autograd.Function):
    """`clamp` with the gradient of the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004  nothing is kept
        return x.clamp(max=0.9 * math.log(torch.finfo(x.dtype).max))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # noqa: ARG004
        return gradients[0]


_bounded: Callable[[Tensor], Tensor] = _Bounded.apply


def importance_mean(x: Tensor, ratios: Tensor, mask: Tensor, *, normalise: bool = False) -> Tensor:
    """Estimate of E_p[x] from samples of q: mean of w x, or sum(w x) / sum(w).

    Args:
        x: any shape, float; anything outside the mask.
        ratios: same shape, w >= 0.
        mask: bool, same shape.
        normalise: True divides by the sum of the weights: a little biased, far less variance, and exact for a constant x.

    Returns:
        Scalar, differentiable; 0 for an empty mask.

    Raises:
        ConfigError: shapes that differ, a mask that is not bool; normalise where all weights are 0: a mean of nothing.

    Source: Owen, "Monte Carlo theory, methods and examples", chapter 9.
    """
    check_masked(mask, x=x, ratios=ratios)
    x, ratios = x.masked_fill(~mask, 0.0), ratios.masked_fill(~mask, 0.0)
    estimate = masked_mean(x * ratios, mask)
    if not (normalise and bool(mask.any())):
        return estimate
    weight = masked_mean(ratios, mask)
    if bool(weight == 0):
        raise ConfigError(
            "All weights are 0: the new policy does nothing of what was sampled, so the samples say nothing of it. Sample anew; "
            "where exp(log-ratio) came out as 0, pass exp(log-ratio - the largest one), which is the same once normalised."
        )
    return estimate / weight


def importance_variance(x: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Var_q[x p / q] = E_p[x^2 p / q] - (E_p[x])^2, exactly, over a finite set; divide by n for a mean of n samples.

    Args:
        x: (..., V) float, the function's value at each outcome.
        p, q: (..., V) probabilities that sum to 1. Where p is 0, q may be 0 too.

    Returns:
        (...,); infinite where q is 0 and x p is not. With p = q it is Var_p[x].

    Raises:
        ConfigError: shapes that differ.
    """
    if not x.shape == p.shape == q.shape:
        raise ConfigError(f"x is {tuple(x.shape)}, p {tuple(p.shape)}, q {tuple(q.shape)}: they must have one shape.")
    mean = (p * x).sum(dim=-1, keepdim=True)
    # sum q (x p / q - mean)^2: the same, but a difference of two large squares would leave their rounding
    terms = (p * x - q * mean).square() / q
    return terms.masked_fill((p * x == 0) & (q == 0), 0.0).sum(dim=-1)  # 0 / 0 where neither ever happens


def ess(ratios: Tensor, mask: Tensor) -> Tensor:
    """Effective sample size (sum w)^2 / sum w^2 = n / (1 + var(w) / mean(w)^2), with the variance divided by n.

    Args:
        ratios: any shape, float, w >= 0; anything outside the mask.
        mask: bool, same shape.

    Returns:
        Scalar from 1 to n, the number of elements: n if all weights are equal; 0, with slope 0, for an empty mask and where all
        weights are 0. Differentiable.

    Raises:
        ConfigError: shapes that differ, a mask that is not bool.

    Source: Kong 1992 "A note on importance sampling using standardized weights"; Owen, chapter 9.
    """
    check_masked(mask, ratios=ratios)
    weights = ratios.masked_fill(~mask, 0.0)
    largest = weights.max().clamp(min=torch.finfo(weights.dtype).tiny) if weights.numel() else weights.sum()
    weights = weights / largest  # squares of large ratios must not overflow
    squares = weights.square().sum()
    return weights.sum().square() / squares.masked_fill(squares == 0, 1.0)
