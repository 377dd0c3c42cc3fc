"""The policy loss and the value loss of a micro-batch, to be minimised, for the algorithm of the config."""

from typing import NamedTuple

import torch
from torch import Tensor

from rlhf_lab.common.enums import LossReduction
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
    """The tokens and responses of a minibatch: the denominators of its micro-batches' losses, so that these add up."""

    tokens: int
    responses: int

    def for_reduction(self, reduction: LossReduction) -> float:
        return self.tokens if reduction == "token_mean" else float(self.responses)


class AdaptiveCoefficients(NamedTuple):
    """Coefficients of the KL to the reference (beta) and of the KL between old and new policy (ppo_penalty)."""

    kl_beta: float
    penalty_coef: float


def loss_denominators(rollout: Rollout, minibatch: list[Tensor]) -> LossDenominators:
    indices = torch.cat(minibatch)
    return LossDenominators(int(rollout.batch.lengths[indices, 1].sum()), len(indices))


def ratio_cliprange(config: PolicyConfig) -> float | None:
    """The clip range of the ratio; None for algorithms without one."""
    return config.cliprange if config.spec.clips else None


def policy_loss(
    logprobs: Tensor,
    micro_batch: MicroBatch,
    denominators: LossDenominators,
    config: PolicyConfig,
    coefficients: AdaptiveCoefficients,
) -> PolicyLoss:
    """The policy loss, reduced as `config.loss_mean` says, and statistics, which are always token means.

    logprobs: (B, R), of the policy being trained. Raises ConfigError for an unknown algorithm.
    """
    mask, reduction = micro_batch.batch.mask, REDUCTIONS[config.loss_mean]
    old_logprobs, advantages = micro_batch.old_logprobs, micro_batch.advantages
    denominator, cliprange = denominators.for_reduction(reduction), ratio_cliprange(config)
    if config.spec.loss == "ratio_and_penalty":
        penalty_terms = ppo_penalty(
            logprobs, old_logprobs, advantages, mask, coef=coefficients.penalty_coef, denominator=denominators.tokens
        )
        zero = torch.zeros_like(penalty_terms.approx_kl)
        terms = PolicyLoss(penalty_terms.loss, zero, penalty_terms.approx_kl, penalty_terms.ratio_mean)
    else:
        terms = ppo_clip(logprobs, old_logprobs, advantages, mask, cliprange=cliprange, denominator=denominators.tokens)
        if config.spec.loss == "log_probability":
            loss = reinforce_loss(logprobs, advantages, mask, reduction=reduction, denominator=denominator)
            terms = terms._replace(loss=loss)
        elif reduction != "token_mean":
            loss = ppo_clip(
                logprobs,
                old_logprobs,
                advantages,
                mask,
                cliprange=cliprange,
                denominator=denominator,
                reduction=reduction,
            ).loss
            terms = terms._replace(loss=loss)
    if config.kl_penalty == "loss":
        assert config.kl_estimator != "full"  # rejected by PolicyConfig
        kl = kl_estimate(logprobs, micro_batch.ref_logprobs, config.kl_estimator)
        terms = terms._replace(loss=terms.loss + coefficients.kl_beta * reduce_tokens(kl, mask, reduction, denominator))
    return terms


def value_loss(
    values: Tensor, micro_batch: MicroBatch, denominators: LossDenominators, config: PolicyConfig
) -> ValueLoss:
    """The value loss without vf_coef. values: (B, R), of the head being trained."""
    return clipped_value_loss(
        values,
        micro_batch.values,
        micro_batch.returns,
        micro_batch.batch.mask,
        cliprange_value=config.cliprange_value,
        denominator=denominators.tokens,
    )
