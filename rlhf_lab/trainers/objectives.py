"""The loss of a micro-batch, by algorithm: one function for the policy, one for the values. The signs are those of a loss."""

from typing import NamedTuple

import torch
from torch import Tensor

from rlhf_lab.config import PolicyConfig
from rlhf_lab.core.kl import kl_estimate
from rlhf_lab.core.policy_gradients import ppo_penalty, reinforce_loss
from rlhf_lab.core.policy_losses import PolicyLoss, ValueLoss, clipped_value_loss, ppo_clip, reduce_tokens
from rlhf_lab.kinds import CLIPPED, ON_POLICY, Reduction
from rlhf_lab.trainers.rollout import Part, Rollout

REDUCTIONS: dict[str, Reduction] = {"token": "token_mean", "trajectory": "trajectory_mean", "sum": "trajectory_sum"}


class Whole(NamedTuple):
    """The minibatch that micro-batches are parts of: what their losses are divided by, so that they add up."""

    tokens: int
    responses: int

    def of(self, reduction: Reduction) -> float:
        return self.tokens if reduction == "token_mean" else float(self.responses)


class Weights(NamedTuple):
    """What steers itself over a run: beta of the KL to the reference, coef of the KL between old and new policy."""

    beta: float
    coef: float


def whole_of(rollout: Rollout, minibatch: list[Tensor]) -> Whole:
    index = torch.cat(minibatch)
    return Whole(int(rollout.rows.lengths[index, 1].sum()), len(index))


def clip_of(config: PolicyConfig) -> float | None:
    """The clip of the ratio, for the algorithms that have one."""
    return config.cliprange if config.algorithm in CLIPPED else None


def policy_loss(logprobs: Tensor, part: Part, whole: Whole, config: PolicyConfig, weights: Weights) -> PolicyLoss:
    """The policy's loss; the figures beside it are means over tokens, whatever the loss averages.

    logprobs: (B, R), of the policy being trained.
    """
    mask, reduction = part.rows.mask, REDUCTIONS[config.loss_mean]
    old, advantages, divisor = part.old_logprobs, part.advantages, whole.of(reduction)
    if config.algorithm == "ppo_penalty":
        penalised = ppo_penalty(logprobs, old, advantages, mask, coef=weights.coef, denominator=whole.tokens)
        nothing = torch.zeros_like(penalised.approx_kl)
        loss = PolicyLoss(penalised.loss, nothing, penalised.approx_kl, penalised.ratio_mean)
    else:
        loss = ppo_clip(logprobs, old, advantages, mask, cliprange=clip_of(config), denominator=whole.tokens)
        if config.algorithm in ON_POLICY:
            own = reinforce_loss(logprobs, advantages, mask, reduction=reduction, denominator=divisor)
            loss = loss._replace(loss=own)
        elif reduction != "token_mean":
            own = ppo_clip(
                logprobs, old, advantages, mask, cliprange=clip_of(config), denominator=divisor, reduction=reduction
            ).loss
            loss = loss._replace(loss=own)
    if config.kl_penalty == "loss":
        assert config.kl_estimator != "full"  # PolicyConfig refuses it
        kl = kl_estimate(logprobs, part.ref_logprobs, config.kl_estimator)
        loss = loss._replace(loss=loss.loss + weights.beta * reduce_tokens(kl, mask, reduction, divisor))
    return loss


def value_loss(values: Tensor, part: Part, whole: Whole, config: PolicyConfig) -> ValueLoss:
    """The values' loss, before vf_coef. values: (B, R), of the head being trained."""
    return clipped_value_loss(
        values,
        part.values,
        part.returns,
        part.rows.mask,
        cliprange_value=config.cliprange_value,
        denominator=whole.tokens,
    )
