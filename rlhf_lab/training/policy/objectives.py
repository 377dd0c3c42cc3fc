"""The loss of a micro-batch, by algorithm: one function for the policy, one for the values. The signs are those of a loss."""

from typing import NamedTuple

import torch
from torch import Tensor

from rlhf_lab.common.enums import CLIPPED_ALGORITHMS, SINGLE_PASS_ALGORITHMS, LossReduction
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.core.kl import kl_estimate
from rlhf_lab.core.policy_losses import (
    PolicyLoss,
    ValueLoss,
    clipped_value_loss,
    ppo_clip,
    ppo_penalty,
    reduce_tokens,
    reinforce_loss,
)
from rlhf_lab.training.policy.rollout import MicroBatch, Rollout

REDUCTIONS: dict[str, LossReduction] = {"token": "token_mean", "trajectory": "trajectory_mean", "sum": "trajectory_sum"}


class LossDenominators(NamedTuple):
    """The minibatch that micro-batches are parts of: what their losses are divided by, so that they add up."""

    tokens: int
    responses: int

    def for_reduction(self, reduction: LossReduction) -> float:
        return self.tokens if reduction == "token_mean" else float(self.responses)


class AdaptiveCoefficients(NamedTuple):
    """What steers itself over a run: beta of the KL to the reference, coef of the KL between old and new policy."""

    kl_beta: float
    penalty_coef: float


def loss_denominators(rollout: Rollout, minibatch: list[Tensor]) -> LossDenominators:
    indices = torch.cat(minibatch)
    return LossDenominators(int(rollout.batch.lengths[indices, 1].sum()), len(indices))


def ratio_cliprange(config: PolicyConfig) -> float | None:
    """The clip of the ratio, for the algorithms that have one."""
    return config.cliprange if config.algorithm in CLIPPED_ALGORITHMS else None


def policy_loss(
    logprobs: Tensor,
    micro_batch: MicroBatch,
    denominators: LossDenominators,
    config: PolicyConfig,
    coefficients: AdaptiveCoefficients,
) -> PolicyLoss:
    """The policy's loss; the figures beside it are means over tokens, whatever the loss averages.

    logprobs: (B, R), of the policy being trained.
    """
    mask, reduction = micro_batch.batch.mask, REDUCTIONS[config.loss_mean]
    old_logprobs, advantages, denominator = (
        micro_batch.old_logprobs,
        micro_batch.advantages,
        denominators.for_reduction(reduction),
    )
    if config.algorithm == "ppo_penalty":
        penalty_terms = ppo_penalty(
            logprobs, old_logprobs, advantages, mask, coef=coefficients.penalty_coef, denominator=denominators.tokens
        )
        zero = torch.zeros_like(penalty_terms.approx_kl)
        terms = PolicyLoss(penalty_terms.loss, zero, penalty_terms.approx_kl, penalty_terms.ratio_mean)
    else:
        terms = ppo_clip(
            logprobs, old_logprobs, advantages, mask, cliprange=ratio_cliprange(config), denominator=denominators.tokens
        )
        if config.algorithm in SINGLE_PASS_ALGORITHMS:
            objective = reinforce_loss(logprobs, advantages, mask, reduction=reduction, denominator=denominator)
            terms = terms._replace(loss=objective)
        elif reduction != "token_mean":
            objective = ppo_clip(
                logprobs,
                old_logprobs,
                advantages,
                mask,
                cliprange=ratio_cliprange(config),
                denominator=denominator,
                reduction=reduction,
            ).loss
            terms = terms._replace(loss=objective)
    if config.kl_penalty == "loss":
        assert config.kl_estimator != "full"  # PolicyConfig refuses it
        kl = kl_estimate(logprobs, micro_batch.ref_logprobs, config.kl_estimator)
        terms = terms._replace(loss=terms.loss + coefficients.kl_beta * reduce_tokens(kl, mask, reduction, denominator))
    return terms


def value_loss(
    values: Tensor, micro_batch: MicroBatch, denominators: LossDenominators, config: PolicyConfig
) -> ValueLoss:
    """The values' loss, before vf_coef. values: (B, R), of the head being trained."""
    return clipped_value_loss(
        values,
        micro_batch.values,
        micro_batch.returns,
        micro_batch.batch.mask,
        cliprange_value=config.cliprange_value,
        denominator=denominators.tokens,
    )
