"""From what was measured to what is learnt from: rewards, advantages and value targets of a rollout."""

from torch import Tensor

from rlhf_lab.config import PolicyConfig
from rlhf_lab.core.advantages import gae, nstep, whiten
from rlhf_lab.core.credit import (
    grpo_advantages,
    over_tokens,
    reinforce_weights,
    rloo_advantages,
    truncation_values,
    value_targets,
)
from rlhf_lab.core.kl import kl_estimate, shape_rewards
from rlhf_lab.core.score_shaping import missing_eos_penalty, normalise_scores
from rlhf_lab.errors import TrainingError
from rlhf_lab.trainers.rollout import Measured, Rollout


def shaped(measured: Measured, beta: float, config: PolicyConfig, scale: float = 1.0) -> Rollout:
    """The rollout that is learnt from. scale: what scores are divided by. Raises TrainingError for prompts out of groups."""
    rows, values = measured.rows, measured.values
    kl = to_reference(measured, config)
    scaled = normalise_scores(measured.scores, scale=scale)
    within = normalise_scores(scaled, clip=config.score_clip)
    clipped = None if config.score_clip is None else (within != scaled).double().mean()
    earned = missing_eos_penalty(within, rows.ended, config.missing_eos_penalty)
    charged = beta if config.kl_penalty == "reward" else 0.0
    rewards = shape_rewards(earned, kl, rows.mask, charged, config.score_placement)
    if config.whiten_rewards:
        rewards = whiten(rewards, rows.mask, shift_mean=False)
    last = None if measured.after is None else truncation_values(measured.after, rows.ended)
    raw = advantages = advantages_of(measured, rewards, last, config)
    returns = value_targets(
        rewards, values, rows.mask, gamma=config.gamma, lam=config.lam,
        target=config.value_target, last_values=last,
    )  # fmt: skip
    if config.whiten_advantages:
        advantages = whiten(advantages, rows.mask)
    old, ref, sampler = measured.old_logprobs, measured.ref_logprobs, measured.sampler_logprobs
    return Rollout(
        rows, measured.scores, earned, old, ref, sampler, values, kl, rewards, raw, advantages, returns, clipped, last
    )  # fmt: skip


def to_reference(measured: Measured, config: PolicyConfig) -> Tensor:
    """(B, R) KL to the reference per token by the estimator of the config, 0 on padding."""
    if config.kl_estimator == "full":
        assert measured.full_kl is not None
        return measured.full_kl
    kl = kl_estimate(measured.old_logprobs, measured.ref_logprobs, config.kl_estimator)
    return kl.masked_fill(~measured.rows.mask, 0.0)


def advantages_of(measured: Measured, rewards: Tensor, last: Tensor | None, config: PolicyConfig) -> Tensor:
    """(B, R) what each token is told by the algorithm of the config, before whitening."""
    mask, values = measured.rows.mask, measured.values
    if config.algorithm in ("rloo", "grpo"):
        totals = grouped(measured, rewards.sum(1), config.group_size)
        compared = (
            rloo_advantages(totals) if config.algorithm == "rloo" else grpo_advantages(totals, scale=config.group_scale)
        )
        return over_tokens(compared.flatten(), mask)
    if config.algorithm == "reinforce":
        return reinforce_weights(
            rewards, mask, gamma=config.gamma, credit=config.credit, baseline=config.baseline, values=values
        )  # fmt: skip
    if config.advantage == "nstep":
        return nstep(rewards, values, mask, gamma=config.gamma, n=config.nstep, last_values=last)[0]
    return gae(rewards, values, mask, gamma=config.gamma, lam=config.lam, last_values=last)[0]


def grouped(measured: Measured, totals: Tensor, size: int) -> Tensor:
    """(B,) -> (P, G): rows of one prompt stand side by side. Raises TrainingError where they do not."""
    prompts, lengths = measured.rows.prompts, measured.rows.lengths[:, 0]
    count = len(totals)
    alike = count % size == 0
    if alike:
        first = prompts.view(count // size, size, -1)
        alike = bool((first == first[:, :1]).all()) and bool(
            (lengths.view(-1, size) == lengths.view(-1, size)[:, :1]).all()
        )
    if not alike:
        raise TrainingError(
            f"{count} responses do not stand in groups of {size} to one prompt each, so there is nothing to compare. "
            "Pass every prompt group_size times in a row."
        )
    return totals.view(-1, size)
