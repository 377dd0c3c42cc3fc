"""Rewards, advantages and value targets of a rollout, from the outputs of the models."""

from torch import Tensor

from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.core.advantages import (
    broadcast_to_tokens,
    gae,
    grpo_advantages,
    nstep,
    reinforce_weights,
    rloo_advantages,
    truncation_values,
    value_targets,
    whiten,
)
from rlhf_lab.core.kl import kl_estimate, shape_rewards
from rlhf_lab.core.reward_scaling import missing_eos_penalty, normalise_scores
from rlhf_lab.errors import TrainingError
from rlhf_lab.training.policy.rollout import EvaluatedBatch, Rollout


def build_rollout(evaluated: EvaluatedBatch, beta: float, config: PolicyConfig, score_scale: float = 1.0) -> Rollout:
    """The rollout to train on. score_scale: the divisor of the scores. Raises TrainingError if prompts are not grouped."""
    batch, values = evaluated.batch, evaluated.values
    kl = reference_kl(evaluated, config)
    scaled_scores = normalise_scores(evaluated.scores, scale=score_scale)
    clipped_scores = normalise_scores(scaled_scores, clip=config.score_clip)
    clip_fraction = None if config.score_clip is None else (clipped_scores != scaled_scores).double().mean()
    shaped_scores = missing_eos_penalty(clipped_scores, batch.ended, config.missing_eos_penalty)
    kl_coef = beta if config.kl_penalty == "reward" else 0.0
    rewards = shape_rewards(shaped_scores, kl, batch.mask, kl_coef, config.score_placement)
    if config.whiten_rewards:
        rewards = whiten(rewards, batch.mask, shift_mean=False)
    bootstrap_values = (
        None if evaluated.final_state_values is None else truncation_values(evaluated.final_state_values, batch.ended)
    )
    raw_advantages = advantages = compute_advantages(evaluated, rewards, bootstrap_values, config)
    returns = value_targets(
        rewards, values, batch.mask, gamma=config.gamma, lam=config.lam,
        target=config.value_target, last_values=bootstrap_values,
    )  # fmt: skip
    if config.whiten_advantages:
        advantages = whiten(advantages, batch.mask)
    return Rollout(
        batch, evaluated.scores, shaped_scores, evaluated.old_logprobs, evaluated.ref_logprobs, evaluated.sampler_logprobs,
        values, kl, rewards, raw_advantages, advantages, returns, clip_fraction, bootstrap_values,
    )  # fmt: skip


def reference_kl(evaluated: EvaluatedBatch, config: PolicyConfig) -> Tensor:
    """(B, R) KL to the reference per token by the estimator of the config, 0 on padding."""
    if config.kl_estimator == "full":
        assert evaluated.full_kl is not None
        return evaluated.full_kl
    kl = kl_estimate(evaluated.old_logprobs, evaluated.ref_logprobs, config.kl_estimator)
    return kl.masked_fill(~evaluated.batch.mask, 0.0)


def compute_advantages(
    evaluated: EvaluatedBatch, rewards: Tensor, bootstrap_values: Tensor | None, config: PolicyConfig
) -> Tensor:
    """(B, R) advantages by the algorithm of the config, before whitening. Raises TrainingError for one without advantages."""
    mask, values = evaluated.batch.mask, evaluated.values
    match config.spec.advantage:
        case "rloo" | "grpo" as name:
            total_rewards = group_by_prompt(evaluated, rewards.sum(1), config.group_size)
            group_advantages = (
                rloo_advantages(total_rewards)
                if name == "rloo"
                else grpo_advantages(total_rewards, scale=config.group_scale)
            )
            return broadcast_to_tokens(group_advantages.flatten(), mask)
        case "returns":
            return reinforce_weights(
                rewards, mask, gamma=config.gamma, credit=config.credit, baseline=config.baseline, values=values
            )  # fmt: skip
        case "temporal_difference":
            if config.advantage == "nstep":
                return nstep(rewards, values, mask, gamma=config.gamma, n=config.nstep, last_values=bootstrap_values)[0]
            return gae(rewards, values, mask, gamma=config.gamma, lam=config.lam, last_values=bootstrap_values)[0]
        case None:
            raise TrainingError(f"{config.algorithm} learns from fixed texts, which have no advantages.")


def group_by_prompt(evaluated: EvaluatedBatch, total_rewards: Tensor, group_size: int) -> Tensor:
    """(B,) -> (P, G): the rows of a prompt must be adjacent. Raises TrainingError if they are not."""
    count = len(total_rewards)
    is_grouped = count % group_size == 0
    for column in (evaluated.batch.prompts, evaluated.batch.lengths[:, :1]):
        if is_grouped:
            groups = column.view(count // group_size, group_size, -1)
            is_grouped = bool((groups == groups[:, :1]).all())
    if not is_grouped:
        raise TrainingError(
            f"{count} responses are not in groups of {group_size} for the same prompt, so they cannot be compared. "
            "Pass every prompt group_size times in a row."
        )
    return total_rewards.view(-1, group_size)
