"""The losses of policy-gradient training: REINFORCE, PPO with clipping or a KL penalty, value regression, and PPO-ptx.

By default every result is a *token* mean over the whole minibatch. A minibatch that is processed in micro-batches
passes its number of response tokens as `denominator` to each: the losses, gradients and statistics of the micro-batches
then *sum* to exactly those of the minibatch, however it was split. (A mean of means would weigh tokens of short
responses more.) Other reductions exist for comparison, see `reduce_tokens`.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf_lab.common.enums import LossReduction
from rlhf_lab.core.advantages import check_masked, masked_mean, masked_var
from rlhf_lab.core.kl import kl_estimate
from rlhf_lab.core.logprobs import finite_exponent, token_logprobs
from rlhf_lab.errors import ConfigError


class PolicyLoss(NamedTuple):
    """Scalars; only the loss carries a gradient."""

    loss: Tensor
    clipfrac: Tensor  # share of response tokens whose clipped term is strictly the larger loss
    approx_kl: Tensor  # mean of (logprobs - old_logprobs)^2 / 2, nats
    ratio_mean: Tensor  # mean of exp(logprobs - old_logprobs); 1 before the first update


class PenaltyLoss(NamedTuple):
    """Scalars; only the loss carries a gradient."""

    loss: Tensor
    kl: Tensor  # token mean of KL(old || new), nats: the input of `AdaptivePenalty.update`
    approx_kl: Tensor  # mean of (logprobs - old_logprobs)^2 / 2, nats
    ratio_mean: Tensor  # mean of exp(logprobs - old_logprobs)


class ValueLoss(NamedTuple):
    """Scalars; only the loss carries a gradient."""

    loss: Tensor  # with the 1/2, before vf_coef
    clipfrac: Tensor  # share of response tokens whose clipped term is strictly the larger loss


def reinforce_loss(
    logprobs: Tensor,
    weights: Tensor,
    mask: Tensor,
    *,
    reduction: LossReduction = "trajectory_sum",
    denominator: Tensor | float | None = None,
) -> Tensor:
    """-sum_t weight_t log pi(a_t | s_t), mean over trajectories: minus its gradient estimates the policy gradient.

    Only the gradient is meaningful; the value is not minus the return.

    Args:
        logprobs: (B, T) float, nats, of the policy that sampled; carries the gradient.
        weights: (B, T), e.g. `advantages.reinforce_weights` or advantages; no gradient flows through them.
        mask: (B, T) bool; values outside are ignored.
        reduction: "trajectory_sum" is unbiased; the others weigh by length, see `reduce_tokens`.
        denominator: > 0, trajectories (tokens for "token_mean") in the whole minibatch; None: those of this mask.

    Returns:
        Scalar.

    Raises:
        ConfigError: shapes that differ, a mask that is not bool, denominator not positive, no such reduction.

    Source: Williams 1992; Sutton et al. 2000.
    """
    check_masked(mask, logprobs=logprobs, weights=weights)
    terms = -weights.detach().masked_fill(~mask, 0.0) * logprobs.masked_fill(~mask, 0.0)
    return reduce_tokens(terms, mask, reduction, denominator)


def ppo_clip(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    cliprange: float | None,
    denominator: Tensor | float | None = None,
    reduction: LossReduction = "token_mean",
) -> PolicyLoss:
    """Mean of max(-A r, -A clip(r, 1 - eps, 1 + eps)), r = exp(logprobs - old_logprobs).

    Args:
        logprobs: (B, T) float, nats, of the policy being trained; carries the gradient.
        old_logprobs: (B, T), of the policy that sampled, at the same temperature.
        advantages: (B, T), usually whitened.
        mask: (B, T) bool; values outside are ignored.
        cliprange: eps > 0; None leaves the surrogate unclipped (clipfrac is then 0).
        denominator: response tokens (trajectories, for the other reductions) in the whole minibatch, see the module;
            None: those of this mask.
        reduction: see `reduce_tokens`; the statistics stay shares and means under "trajectory_sum" too.

    Returns:
        PolicyLoss(loss, clipfrac, approx_kl, ratio_mean), to be minimised. Where the clipped term counts, the gradient
        is exactly 0. A ratio too large for the dtype counts as e^80 (float32, see `finite_exponent`), in the gradient
        too.

    Raises:
        ConfigError: shapes that differ, a mask that is not bool, cliprange or denominator not positive, no such
            reduction.

    Source: Schulman et al. 2017 eq. 7 (negated: a loss); statistics as in cleanrl `ppo.py` and TRL, masked.
    """
    check_masked(mask, logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages)
    _check_cliprange("cliprange", cliprange)
    log_ratio = (logprobs - old_logprobs).masked_fill(~mask, 0.0)
    ratio = finite_exponent(log_ratio).exp()
    advantages = advantages.masked_fill(~mask, 0.0)
    unclipped = -advantages * ratio
    clipped = unclipped if cliprange is None else -advantages * ratio.clamp(1.0 - cliprange, 1.0 + cliprange)
    stat_reduction: LossReduction = "token_mean" if reduction == "token_mean" else "trajectory_mean"
    return PolicyLoss(
        loss=reduce_tokens(torch.maximum(unclipped, clipped), mask, reduction, denominator),
        clipfrac=reduce_tokens((clipped > unclipped).to(ratio.dtype), mask, stat_reduction, denominator),
        approx_kl=reduce_tokens(0.5 * log_ratio.detach().square(), mask, stat_reduction, denominator),
        ratio_mean=reduce_tokens(ratio.detach(), mask, stat_reduction, denominator),
    )


def ppo_penalty(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    coef: float,
    kl: Tensor | None = None,
    denominator: Tensor | float | None = None,
) -> PenaltyLoss:
    """Token mean of -A r, unclipped, plus coef times the token mean of KL(old || new).

    Args:
        logprobs, old_logprobs, advantages, mask, denominator: as in `ppo_clip`.
        coef: >= 0, loss per nat, e.g. `AdaptivePenalty.value`.
        kl: (B, T), the exact KL(old || new) with its gradient, e.g. `full_kl(old_logits, logits)`. None: its estimate
            k3 from the sampled tokens, (r - 1) - log r, which is never negative.

    Raises:
        ConfigError: shapes that differ, a mask that is not bool, coef negative, denominator not positive.

    Source: Schulman et al. 2017 eq. 8. The penalty is added to the loss; it does not multiply the surrogate.
    """
    surrogate = ppo_clip(logprobs, old_logprobs, advantages, mask, cliprange=None, denominator=denominator)
    _check_coefs(coef=coef)
    if kl is None:  # fill padding first: the exponential of junk would leave NaN in the gradient
        kl = kl_estimate(old_logprobs.masked_fill(~mask, 0.0), logprobs.masked_fill(~mask, 0.0), "k3")
    mean_kl = token_mean(kl, mask, denominator)
    return PenaltyLoss(
        surrogate.loss + coef * mean_kl,
        mean_kl.detach(),
        approx_kl=surrogate.approx_kl,
        ratio_mean=surrogate.ratio_mean,
    )


def clipped_value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    *,
    cliprange_value: float | None,
    denominator: Tensor | float | None = None,
) -> ValueLoss:
    """Half the token mean of max((v - R)^2, (clip(v, v_old - eps, v_old + eps) - R)^2).

    Args:
        values: (B, T) float, units of the score; carries the gradient.
        old_values: (B, T), the predictions at rollout time, around which v is clipped.
        returns: (B, T), unwhitened advantages + old_values.
        mask: (B, T) bool; values outside are ignored.
        cliprange_value: eps > 0, units of the score; None: plain squared error (clipfrac is then 0).
        denominator: response tokens in the whole minibatch, see the module; None: those of this mask.

    Returns:
        ValueLoss(loss, clipfrac), to be minimised.

    Raises:
        ConfigError: shapes that differ, a mask that is not bool, cliprange_value or denominator not positive.

    Source: OpenAI baselines `ppo2/model.py`, TRL `PPOTrainer`, cleanrl `ppo.py`; not in the PPO paper.
    """
    check_masked(mask, values=values, old_values=old_values, returns=returns)
    _check_cliprange("cliprange_value", cliprange_value)
    values, old_values, returns = (x.masked_fill(~mask, 0.0) for x in (values, old_values, returns))
    unclipped = clipped = (values - returns).square()
    if cliprange_value is not None:
        clipped_values = old_values + (values - old_values).clamp(-cliprange_value, cliprange_value)
        clipped = (clipped_values - returns).square()
    return ValueLoss(
        loss=0.5 * token_mean(torch.maximum(unclipped, clipped), mask, denominator),
        clipfrac=token_mean((clipped > unclipped).to(values.dtype), mask, denominator),
    )


def ptx_loss(logits: Tensor, tokens: Tensor, mask: Tensor, denominator: Tensor | float | None = None) -> Tensor:
    """Cross-entropy of pretraining text, token mean: added to PPO's loss it is PPO-ptx.

    Args:
        logits: (B, L, V) float, *unshifted*: logits[:, t] predicts tokens[:, t + 1].
        tokens: (B, L) int64.
        mask: (B, L) bool, True on real tokens; the first of a text has nothing before it and is not predicted.
        denominator: > 0, predicted tokens in the whole minibatch; None: those of this mask.

    Returns:
        Scalar, nats per token, differentiable in logits.

    Raises:
        ConfigError: shapes that do not belong together, a mask that is not bool, denominator not positive.

    Source: Ouyang et al. 2022 (InstructGPT) eq. 2, the last term.
    """
    check_masked(mask, tokens=tokens)
    if mask.dim() != 2 or logits.shape[:-1] != mask.shape:
        raise ConfigError(f"logits is {tuple(logits.shape)}, mask {tuple(mask.shape)}: pass (B, L, V) and (B, L).")
    predicted = mask[:, 1:] & mask[:, :-1]
    logprobs = token_logprobs(logits[:, :-1][predicted], tokens[:, 1:][predicted])
    return -token_mean(logprobs, torch.ones_like(logprobs, dtype=torch.bool), denominator)


def total_loss(
    policy: Tensor,
    *,
    value: Tensor | float = 0.0,
    entropy: Tensor | float = 0.0,
    ptx: Tensor | float = 0.0,
    vf_coef: float = 0.0,
    entropy_coef: float = 0.0,
    ptx_coef: float = 0.0,
) -> Tensor:
    """policy + vf_coef * value - entropy_coef * entropy + ptx_coef * ptx: the signs in one place.

    Args:
        policy, value, ptx: scalars, losses, to be made small.
        entropy: scalar, nats, to be kept large, hence the minus.
        vf_coef, entropy_coef, ptx_coef: >= 0.

    Raises:
        ConfigError: a negative coefficient.

    Source: Schulman et al. 2017 eq. 9, negated.
    """
    _check_coefs(vf_coef=vf_coef, entropy_coef=entropy_coef, ptx_coef=ptx_coef)
    return (
        policy
        + vf_coef * torch.as_tensor(value)
        - entropy_coef * torch.as_tensor(entropy)
        + ptx_coef * torch.as_tensor(ptx)
    )


def token_mean(x: Tensor, mask: Tensor, denominator: Tensor | float | None = None) -> Tensor:
    """Sum of x over the mask divided by denominator (None: the tokens of this mask; 0 if there are none).

    Use it for any further term of the loss, e.g. the entropy bonus, so that micro-batches keep adding up.

    Args:
        x: (B, T) float; values outside the mask are ignored.
        mask: (B, T) bool.
        denominator: > 0, response tokens in the whole minibatch.

    Returns:
        Scalar, differentiable in x.

    Raises:
        ConfigError: shapes that differ, a mask that is not bool, a denominator that is not positive.
    """
    if denominator is None:
        return masked_mean(x, mask)
    if not isinstance(denominator, Tensor) and not denominator > 0:
        raise ConfigError(f"denominator is {denominator}: pass the number of response tokens in the whole minibatch.")
    check_masked(mask, x=x)
    return x.masked_fill(~mask, 0.0).sum() / denominator


def reduce_tokens(
    x: Tensor, mask: Tensor, reduction: LossReduction = "token_mean", denominator: Tensor | float | None = None
) -> Tensor:
    """Reduce per-token terms to a scalar.

    token_mean: the mean over all tokens, so a long response weighs more (PPO). trajectory_mean: the mean of each
    response, then the mean over responses: all responses weigh alike (GRPO). trajectory_sum: the sum of each response,
    then the mean over responses. Only trajectory_sum has the policy gradient of sum_t r_t as its expectation: the other
    two divide by a length that depends on the policy.

    Args:
        x: (B, T) float; values outside the mask are ignored.
        mask: (B, T) bool.
        reduction: one of the three.
        denominator: > 0, in the whole minibatch: tokens for token_mean, trajectories for the others. None: those of
            this mask (rows without a token are no trajectory).

    Returns:
        Scalar, differentiable in x; micro-batches with one denominator add up.

    Raises:
        ConfigError: shapes that differ, a mask that is not bool or not (B, T), denominator not positive, no such
            reduction.

    Source: Sutton et al. 2000 (trajectory_sum); Shao et al. 2024 eq. 3 (trajectory_mean); TRL (token_mean).
    """
    if reduction == "token_mean":
        return token_mean(x, mask, denominator)
    if reduction not in ("trajectory_mean", "trajectory_sum"):
        raise ConfigError(f"There is no reduction {reduction!r}. Choose token_mean, trajectory_mean or trajectory_sum.")
    check_masked(mask, x=x)
    if mask.dim() != 2:
        raise ConfigError(f"mask is {tuple(mask.shape)}: trajectories are the rows of (B, T).")
    lengths = mask.sum(dim=1)
    per_response = x.masked_fill(~mask, 0.0).sum(dim=1)
    if reduction == "trajectory_mean":
        per_response = per_response / lengths.clamp(min=1)
    return token_mean(per_response, lengths > 0, denominator)


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """1 - var(returns - values) / var(returns) over the mask: 1 is perfect, 0 no better than a constant, below 0 worse.

    Args:
        values, returns: (B, T) float; values outside the mask are ignored.
        mask: (B, T) bool.

    Returns:
        Scalar; 0 where the returns do not vary (up to rounding), since there is nothing to explain: never NaN.

    Raises:
        ConfigError: shapes that differ, a mask that is not bool.

    Source: OpenAI baselines `common/math_util.py`, there NaN for constant returns.
    """
    check_masked(mask, values=values, returns=returns)
    returns_var = masked_var(returns, mask)
    rounding_var = (4 * torch.finfo(returns.dtype).eps * masked_mean(returns.abs(), mask)).square()
    is_constant = returns_var <= rounding_var
    explained = 1.0 - masked_var(returns - values, mask) / returns_var
    return explained.masked_fill(is_constant, 0.0)


def _check_cliprange(name: str, cliprange: float | None) -> None:
    if cliprange is not None and not cliprange > 0:
        raise ConfigError(f"{name} is {cliprange}: choose a positive number (0.2 is usual), or None for no clipping.")


def _check_coefs(**coefs: float) -> None:
    for name, coef in coefs.items():
        if not 0 <= coef < math.inf:
            raise ConfigError(f"{name} is {coef}: below 0 it would reward the opposite. Choose 0 or more.")
