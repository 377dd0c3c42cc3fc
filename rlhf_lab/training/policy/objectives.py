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
from rlhf_lab.errors import TrainingError
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
    reduction = REDUCTIONS[config.loss_mean]
    terms = _policy_terms(logprobs, micro_batch, denominators, config, reduction, coefficients.penalty_coef)
    if config.kl_penalty == "loss":
        assert config.kl_estimator != "full"  # rejected by PolicyConfig
        kl = kl_estimate(logprobs, micro_batch.ref_logprobs, config.kl_estimator)
        penalty = reduce_tokens(kl, micro_batch.batch.mask, reduction, denominators.for_reduction(reduction))
        terms = terms._replace(loss=terms.loss + coefficients.kl_beta * penalty)
    return terms


def _policy_terms(
    logprobs: Tensor,
    micro_batch: MicroBatch,
    denominators: LossDenominators,
    config: PolicyConfig,
    reduction: LossReduction,
    penalty_coef: float,
) -> PolicyLoss:
    """`policy_loss` without the KL to the reference. Raises TrainingError for a loss of fixed texts."""
    mask, old_logprobs, advantages = micro_batch.batch.mask, micro_batch.old_logprobs, micro_batch.advantages
    denominator = denominators.for_reduction(reduction)

    def clipped(denominator: float, reduction: LossReduction = "token_mean") -> PolicyLoss:
        return ppo_clip(
            logprobs, old_logprobs, advantages, mask,
            cliprange=ratio_cliprange(config), denominator=denominator, reduction=reduction,
        )  # fmt: skip

    match config.spec.loss:
        case "ratio":
            terms = clipped(denominators.tokens)
            return terms if reduction == "token_mean" else terms._replace(loss=clipped(denominator, reduction).loss)
        case "ratio_and_penalty":
            loss, _, approx_kl, ratio_mean = ppo_penalty(
                logprobs, old_logprobs, advantages, mask, coef=penalty_coef, denominator=denominators.tokens
            )
            return PolicyLoss(loss, torch.zeros_like(approx_kl), approx_kl, ratio_mean)
        case "log_probability":
            loss = reinforce_loss(logprobs, advantages, mask, reduction=reduction, denominator=denominator)
            return clipped(denominators.tokens)._replace(loss=loss)
        case "direct_preference" | "likelihood":
            raise TrainingError(f"{config.algorithm} learns from fixed texts, not from rollouts.")


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
