"""Formulas that tests check or compare with, but the package does not use (see docs/FROM_THE_TEXTS.md)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf_lab.common.enums import AnyKLEstimator
from rlhf_lab.core.advantages import check_masked, masked_mean
from rlhf_lab.core.kl import full_kl, kl_estimate
from rlhf_lab.core.logprobs import token_logprobs
from rlhf_lab.core.policy_losses import clipped_value_loss, reinforce_loss, total_loss
from rlhf_lab.errors import ConfigError


def response_mask(responses: Tensor, eos_token_id: int | Sequence[int]) -> Tensor:
    """True on every token up to and including the first end-of-sequence token.

    The lengths decide, never the pad id: pad may equal EOS, and EOS may be the very first token (then the response is
    that one token). A row without EOS was cut by the length limit and is True throughout.

    Args:
        responses: (B, T) integer token ids, generated tokens only, the response starting at column 0.
        eos_token_id: the stop token, or several of them.

    Returns:
        (B, T) bool.

    Raises:
        ConfigError: responses not (B, T) integers, no stop token.

    Source: as TRL's `first_true_indices` / OpenAI lm-human-preferences, with EOS kept in the loss.
    """
    if responses.dim() != 2 or responses.is_floating_point() or responses.dtype == torch.bool:
        raise ConfigError(f"responses is {tuple(responses.shape)} {responses.dtype}: pass (B, T) integer token ids.")
    eos_ids = [eos_token_id] if isinstance(eos_token_id, int) else list(eos_token_id)
    if not eos_ids:
        raise ConfigError("eos_token_id is empty: without a stop token no response ends. Pass at least one id.")
    is_eos = torch.isin(responses, torch.tensor(eos_ids, dtype=responses.dtype, device=responses.device))
    eos_before = is_eos.cumsum(dim=1) - is_eos.long()
    return eos_before == 0


def kl_from_logits(
    logits: Tensor,
    ref_logits: Tensor,
    tokens: Tensor,
    estimator: AnyKLEstimator = "k1",
    temperature: float = 1.0,
) -> Tensor:
    """Per-token KL(policy || reference) by any estimator; "full" sums over the whole vocabulary (`full_kl`).

    Args:
        logits, ref_logits: (B, T, V) float; position t predicts tokens[:, t].
        tokens: (B, T) int64, sampled by the policy; "full" does not look at them.
        estimator: "k1", "k2", "k3" (see `kl_estimate`) or "full".
        temperature: > 0, divides both.

    Returns:
        (B, T), nats.

    Raises:
        ConfigError: unknown estimator, shapes that differ, temperature not positive and finite.
    """
    if estimator == "full":
        return full_kl(logits, ref_logits, temperature)
    logprobs = token_logprobs(logits, tokens, temperature=temperature)
    return kl_estimate(logprobs, token_logprobs(ref_logits, tokens, temperature=temperature), estimator)


def time_discount(mask: Tensor, gamma: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """gamma^t, t counted from 0 at the first response token: (B, T), 0 on padding.

    The factor that makes rewards-to-go or advantages the gradient of the *discounted* return; practice leaves it out,
    and with gamma 1 it is 1.

    Raises:
        ConfigError: a mask that is not (B, T) bool, gamma outside [0, 1].

    Source: Sutton & Barto 2018 §13.3 (the boxed algorithm); Thomas 2014 "Bias in natural actor-critic algorithms".
    """
    check_masked(mask)
    if mask.dim() != 2 or not 0.0 <= gamma <= 1.0:
        raise ConfigError(f"mask is {tuple(mask.shape)}, gamma {gamma}: pass (B, T) and a number from 0 to 1.")
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0).to(dtype)
    return torch.pow(torch.as_tensor(gamma, dtype=dtype, device=mask.device), positions).masked_fill(~mask, 0.0)


class A2CLoss(NamedTuple):
    """Scalars; loss = policy + vf_coef * value."""

    loss: Tensor
    policy: Tensor
    value: Tensor  # with the 1/2, before vf_coef


def a2c_loss(
    logprobs: Tensor,
    values: Tensor,
    advantages: Tensor,
    returns: Tensor,
    mask: Tensor,
    *,
    vf_coef: float,
    denominator: Tensor | float | None = None,
) -> A2CLoss:
    """Advantage actor-critic: -A log pi, plus vf_coef times half the squared error of the values; token means.

    Args:
        logprobs: (B, T) float, nats; carries the policy's gradient.
        values: (B, T); carries the critic's gradient, through the squared error alone.
        advantages: (B, T); no gradient flows through them, even if they were computed from values.
        returns: (B, T), what values should be; no gradient flows through them.
        mask: (B, T) bool; anything may stand outside it.
        vf_coef: >= 0.
        denominator: > 0, response tokens in the whole minibatch; None: those of this mask.

    Raises:
        ConfigError: shapes that differ, a mask that is not bool, vf_coef negative, denominator not positive.

    Source: Mnih et al. 2016 (A3C) §4, synchronous.
    """
    policy = reinforce_loss(logprobs, advantages, mask, reduction="token_mean", denominator=denominator)
    value = clipped_value_loss(
        values, values.detach(), returns.detach(), mask, cliprange_value=None, denominator=denominator
    ).loss
    return A2CLoss(total_loss(policy, value=value, vf_coef=vf_coef), policy, value)


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


def effective_sample_size(ratios: Tensor, mask: Tensor) -> Tensor:
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
