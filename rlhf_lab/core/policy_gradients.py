"""The losses beside PPO-clip: REINFORCE, A2C, PPO with a KL penalty, pretraining text mixed in, and their sum.

Every result is a loss, to be minimised: objectives (surrogate, entropy) enter with a minus sign. Reductions and
`denominator` as in `policy_losses`.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf_lab.core.advantages import check_masked
from rlhf_lab.core.kl import kl_estimate
from rlhf_lab.core.logprobs import token_logprobs
from rlhf_lab.core.policy_losses import clipped_value_loss, ppo_clip, reduce_tokens, token_mean
from rlhf_lab.errors import ConfigError
from rlhf_lab.kinds import Reduction


class A2CLoss(NamedTuple):
    """Scalars; loss = policy + vf_coef * value."""

    loss: Tensor
    policy: Tensor
    value: Tensor  # with the 1/2, before vf_coef


class PenaltyLoss(NamedTuple):
    """Scalars; only the loss carries a gradient."""

    loss: Tensor
    kl: Tensor  # token mean of KL(old || new), nats: what `AdaptivePenalty.update` wants
    approx_kl: Tensor  # mean of (logprobs - old_logprobs)^2 / 2, nats
    ratio_mean: Tensor  # mean of exp(logprobs - old_logprobs)


def reinforce_loss(
    logprobs: Tensor,
    weights: Tensor,
    mask: Tensor,
    *,
    reduction: Reduction = "trajectory_sum",
    denominator: Tensor | float | None = None,
) -> Tensor:
    """-sum_t weight_t log pi(a_t | s_t), mean over trajectories: minus its gradient estimates the policy gradient.

    Only the gradient means anything; the number itself is not minus the return.

    Args:
        logprobs: (B, T) float, nats, of the policy that sampled; carries the gradient.
        weights: (B, T), e.g. `credit.reinforce_weights` or advantages; no gradient flows through them.
        mask: (B, T) bool; anything may stand outside it.
        reduction: "trajectory_sum" is unbiased; the others weigh by length, see `policy_losses.reduce_tokens`.
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
        kl: (B, T), the exact KL(old || new) with its gradient, e.g. `full_kl(old_logits, logits)`. None: its estimate k3
            from the sampled tokens, (r - 1) - log r, which is never negative.

    Raises:
        ConfigError: shapes that differ, a mask that is not bool, coef negative, denominator not positive.

    Source: Schulman et al. 2017 eq. 8. The penalty is added to the loss; it does not multiply the surrogate.
    """
    surrogate = ppo_clip(logprobs, old_logprobs, advantages, mask, cliprange=None, denominator=denominator)
    _check_coefs(coef=coef)
    if kl is None:  # filled first: the exponential of junk in padding would leave NaN in the gradient
        kl = kl_estimate(old_logprobs.masked_fill(~mask, 0.0), logprobs.masked_fill(~mask, 0.0), "k3")
    mean_kl = token_mean(kl, mask, denominator)
    return PenaltyLoss(
        surrogate.loss + coef * mean_kl,
        mean_kl.detach(),
        approx_kl=surrogate.approx_kl,
        ratio_mean=surrogate.ratio_mean,
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


def _check_coefs(**coefs: float) -> None:
    for name, coef in coefs.items():
        if not 0 <= coef < math.inf:
            raise ConfigError(f"{name} is {coef}: below 0 it would reward the opposite. Choose 0 or more.")
