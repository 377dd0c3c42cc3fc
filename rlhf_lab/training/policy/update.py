"""The updates of a step by gradient descent: every algorithm but trpo, and trpo's values."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlhf_lab.core.kl import kl_estimate
from rlhf_lab.core.policy_losses import token_mean, total_loss
from rlhf_lab.training.policy.invariants import raise_not_finite
from rlhf_lab.training.policy.metrics import UpdateStats
from rlhf_lab.training.policy.objectives import (
    LossDenominators,
    loss_denominators,
    policy_loss,
    ratio_cliprange,
    value_loss,
)
from rlhf_lab.training.policy.rollout import MicroBatch, Rollout

if TYPE_CHECKING:
    from rlhf_lab.training.policy.trainer import PolicyTrainer


def gradient_update(trainer: "PolicyTrainer", rollout: Rollout) -> UpdateStats:
    """The epochs of one step. Stops early at target_kl; skips an update whose mean ratio exceeds the threshold."""
    config = trainer.config
    stats = UpdateStats(has_clipping=ratio_cliprange(config) is not None)
    if trainer.steps_done < config.value_warmup:
        value_only_update(trainer, rollout, stats)
        return stats
    for epoch in range(config.epochs):
        first_update = stats.update_count
        for minibatch_index, minibatch in enumerate(trainer.minibatches(epoch, rollout.batch)):
            minibatch_backward(trainer, rollout, minibatch, stats)
            stats.all_reduce(trainer.distributed)
            if not stats.update_count and not stats.skipped_count:
                trainer.check_first_ratio(stats.first_ratio_deviation)
            if stats.mean_ratio > config.ratio_threshold:
                stats.skip()
                trainer.optimizer.zero_grad()
                continue
            if trainer.ptx is not None:
                ptx_loss = trainer.ptx.batch_backward(
                    trainer.steps_done, epoch, minibatch_index, config.micro_batch, trainer.distributed
                )
                stats.add(ptx=ptx_loss)
            optimizer_step(trainer, stats)
        if config.target_kl is not None and stats.approx_kl_since(first_update) > config.target_kl:
            break
    if trainer.penalty_controller is not None:
        stats.extra_metrics |= {
            "policy/step_kl": step_kl(trainer, rollout),
            "policy/penalty_coef": trainer.penalty_controller.value,
        }
        trainer.penalty_controller.update(stats.extra_metrics["policy/step_kl"])
    return stats


def value_only_update(trainer: "PolicyTrainer", rollout: Rollout, stats: UpdateStats) -> None:
    """The same epochs for the values alone; the policy stays as it is."""
    for epoch in range(trainer.config.epochs):
        for minibatch in trainer.minibatches(epoch, rollout.batch):
            stats.begin_update()
            denominators = loss_denominators(rollout, minibatch)
            for indices in trainer.distributed.shard(minibatch):
                trainer.on_progress()
                value_backward(trainer, rollout.select(indices), denominators, stats)
            stats.all_reduce(trainer.distributed)
            optimizer_step(trainer, stats)


def optimizer_step(trainer: "PolicyTrainer", stats: UpdateStats) -> None:
    """Clip the gradient and let the optimiser step. Raises NotFiniteError before a broken gradient can reach the weights."""
    trainer.distributed.all_reduce_grads(trainer.parameters)
    grad_norm = torch.nn.utils.clip_grad_norm_(trainer.parameters, trainer.config.max_grad_norm)
    if not bool(torch.isfinite(grad_norm)):
        trainer.optimizer.zero_grad()
        raise_not_finite([*stats.non_finite_losses(), "grad_norm"], trainer.steps_done + 1)
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
    stats.finish_update(grad_norm)


def minibatch_backward(trainer: "PolicyTrainer", rollout: Rollout, minibatch: list[Tensor], stats: UpdateStats) -> None:
    """Gradients of one minibatch, micro-batch by micro-batch; the split changes nothing but memory."""
    denominators = loss_denominators(rollout, minibatch)
    stats.begin_update()
    for indices in trainer.distributed.shard(minibatch):
        trainer.on_progress()
        micro_batch_backward(trainer, rollout.select(indices), denominators, stats)


def micro_batch_backward(
    trainer: "PolicyTrainer", micro_batch: MicroBatch, denominators: LossDenominators, stats: UpdateStats
) -> None:
    """The gradient of one micro-batch. A function of its own, so that its graph is gone before the next forward pass: what is
    left of a graph lies among the activations it held, and their room could not be used again."""
    config = trainer.config
    shared_trunk = config.uses_value_function and trainer.policy.value_trunk != "critic"
    output = trainer.policy.evaluate(micro_batch.batch, config.temperature, config.entropy_coef > 0)
    policy_terms = policy_loss(output.logprobs, micro_batch, denominators, config, trainer.coefficients)
    entropy = token_mean(output.entropy, micro_batch.batch.mask, denominators.tokens)
    value_terms = value_loss(output.values, micro_batch, denominators, config) if shared_trunk else None
    total_loss(
        policy_terms.loss, value=value_terms.loss if value_terms else 0.0, entropy=entropy,
        vf_coef=config.vf_coef, entropy_coef=config.entropy_coef,
    ).backward()  # fmt: skip
    stats.add_policy(policy_terms, output.logprobs, micro_batch.old_logprobs, micro_batch.batch.mask, entropy)
    if value_terms is not None:
        stats.add_value(value_terms)
    elif config.uses_value_function:  # after the policy's gradient: one adapter at a time is merged
        value_backward(trainer, micro_batch, denominators, stats)


def value_backward(
    trainer: "PolicyTrainer", micro_batch: MicroBatch, denominators: LossDenominators, stats: UpdateStats
) -> None:
    """The gradient of the values' loss by a forward pass of their own."""
    value_terms = value_loss(
        trainer.policy.compute_values(micro_batch.batch)[0], micro_batch, denominators, trainer.config
    )
    (trainer.config.vf_coef * value_terms.loss).backward()
    stats.add_value(value_terms)


@torch.no_grad()
def step_kl(trainer: "PolicyTrainer", rollout: Rollout) -> float:
    """KL(old || new) that the step ended with: token mean of k3 on the sampled tokens, nats."""
    micro_batches = [micro_batch for minibatch in trainer.minibatches(0, rollout.batch) for micro_batch in minibatch]
    denominators, total = loss_denominators(rollout, micro_batches), torch.zeros((), device=rollout.scores.device)
    for indices in trainer.distributed.shard(micro_batches):
        trainer.on_progress()
        micro_batch = rollout.select(indices)
        new_logprobs = trainer.policy.evaluate(micro_batch.batch, trainer.config.temperature).logprobs
        total += token_mean(
            kl_estimate(micro_batch.old_logprobs.to(new_logprobs), new_logprobs, "k3"),
            micro_batch.batch.mask,
            denominators.tokens,
        )
    trainer.distributed.all_reduce_([total])
    return float(total)
