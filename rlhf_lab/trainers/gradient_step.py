"""The updates of a step by gradient descent: every algorithm but trpo, and trpo's values."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlhf_lab.core.kl import kl_estimate
from rlhf_lab.core.policy_gradients import total_loss
from rlhf_lab.core.policy_losses import token_mean
from rlhf_lab.trainers.metrics import UpdateStats
from rlhf_lab.trainers.objectives import Whole, clip_of, policy_loss, value_loss, whole_of
from rlhf_lab.trainers.rollout import Part, Rollout
from rlhf_lab.trainers.selfchecks import refuse

if TYPE_CHECKING:
    from rlhf_lab.trainers.policy import PolicyTrainer


def update(trainer: "PolicyTrainer", rollout: Rollout) -> UpdateStats:
    """The epochs of one step. Stops early at target_kl; skips an update whose mean ratio exceeds the threshold."""
    config = trainer.config
    stats = UpdateStats(clips=clip_of(config) is not None)
    if trainer.steps_done < config.value_warmup:
        learn_values(trainer, rollout, stats)
        return stats
    for epoch in range(config.epochs):
        begun = stats.updates
        for number, minibatch in enumerate(trainer.minibatches(epoch, rollout.rows)):
            accumulate(trainer, rollout, minibatch, stats)
            stats.merge(trainer.group)
            if not stats.updates and not stats.skipped:
                trainer.check_first_ratio(stats.first_ratio_deviation)
            if stats.mean_ratio > config.ratio_threshold:
                stats.skip()
                trainer.optimiser.zero_grad()
                continue
            if trainer.pretraining is not None:
                ptx = trainer.pretraining.accumulate(
                    trainer.steps_done, epoch, number, config.micro_batch, trainer.group
                )
                stats.add(ptx=ptx)
            take(trainer, stats)
        if config.target_kl is not None and stats.approx_kl_since(begun) > config.target_kl:
            break
    if trainer.penalty is not None:
        stats.figures |= {"policy/step_kl": step_kl(trainer, rollout), "policy/penalty_coef": trainer.penalty.value}
        trainer.penalty.update(stats.figures["policy/step_kl"])
    return stats


def learn_values(trainer: "PolicyTrainer", rollout: Rollout, stats: UpdateStats) -> None:
    """The same epochs for the values alone; the policy stays as it is."""
    for epoch in range(trainer.config.epochs):
        for minibatch in trainer.minibatches(epoch, rollout.rows):
            stats.begin_update()
            whole = whole_of(rollout, minibatch)
            for part in trainer.group.own(minibatch):
                trainer.tick()
                value_gradient(trainer, rollout.take(part), whole, stats)
            stats.merge(trainer.group)
            take(trainer, stats)


def take(trainer: "PolicyTrainer", stats: UpdateStats) -> None:
    """Clip the gradient and let the optimiser step. Raises NotFiniteError before a broken gradient can reach the weights."""
    trainer.group.add_gradients(trainer.parameters)
    norm = torch.nn.utils.clip_grad_norm_(trainer.parameters, trainer.config.max_grad_norm)
    if not bool(torch.isfinite(norm)):
        trainer.optimiser.zero_grad()
        refuse([*stats.not_finite(), "grad_norm"], trainer.steps_done + 1)
    trainer.optimiser.step()
    trainer.optimiser.zero_grad()
    stats.finish_update(norm)


def accumulate(trainer: "PolicyTrainer", rollout: Rollout, minibatch: list[Tensor], stats: UpdateStats) -> None:
    """Gradients of one minibatch, micro-batch by micro-batch; the split changes nothing but memory."""
    whole = whole_of(rollout, minibatch)
    stats.begin_update()
    for index in trainer.group.own(minibatch):
        trainer.tick()
        micro_gradient(trainer, rollout.take(index), whole, stats)


def micro_gradient(trainer: "PolicyTrainer", part: Part, whole: Whole, stats: UpdateStats) -> None:
    """The gradient of one micro-batch. A function of its own, so that its graph is gone before the next forward pass: what is
    left of a graph lies among the activations it held, and their room could not be used again."""
    config = trainer.config
    together = config.uses_values and trainer.policy.trunk != "critic"
    now = trainer.policy.evaluate(part.rows, config.temperature, config.entropy_coef > 0)
    policy = policy_loss(now.logprobs, part, whole, config, trainer.weights)
    entropy = token_mean(now.entropy, part.rows.mask, whole.tokens)
    value = value_loss(now.values, part, whole, config) if together else None
    total_loss(
        policy.loss, value=value.loss if value else 0.0, entropy=entropy,
        vf_coef=config.vf_coef, entropy_coef=config.entropy_coef,
    ).backward()  # fmt: skip
    stats.add_policy(policy, now.logprobs, part.old_logprobs, part.rows.mask, entropy)
    if value is not None:
        stats.add_value(value)
    elif config.uses_values:  # after the policy's gradient: one adapter at a time is merged
        value_gradient(trainer, part, whole, stats)


def value_gradient(trainer: "PolicyTrainer", part: Part, whole: Whole, stats: UpdateStats) -> None:
    """The gradient of the values' loss by a forward pass of their own."""
    value = value_loss(trainer.policy.values_of(part.rows)[0], part, whole, trainer.config)
    (trainer.config.vf_coef * value.loss).backward()
    stats.add_value(value)


@torch.no_grad()
def step_kl(trainer: "PolicyTrainer", rollout: Rollout) -> float:
    """KL(old || new) that the step ended with: token mean of k3 on the sampled tokens, nats."""
    parts = [part for minibatch in trainer.minibatches(0, rollout.rows) for part in minibatch]
    whole, total = whole_of(rollout, parts), torch.zeros((), device=rollout.scores.device)
    for index in trainer.group.own(parts):
        trainer.tick()
        part = rollout.take(index)
        new = trainer.policy.evaluate(part.rows, trainer.config.temperature).logprobs
        total += token_mean(kl_estimate(part.old_logprobs.to(new), new, "k3"), part.rows.mask, whole.tokens)
    trainer.group.add_up([total])
    return float(total)
