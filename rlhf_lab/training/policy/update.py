"""The updates of a step by gradient descent: every algorithm but trpo, and the value updates of trpo."""

from collections.abc import Callable

import torch
from torch import Tensor

from rlhf_lab.core.policy_losses import token_mean, total_loss
from rlhf_lab.training.policy.invariants import check_first_ratio, raise_not_finite
from rlhf_lab.training.policy.kl_budget import OldPolicy, kl_minus_rounding, limit_update, rounding_error_kl, update_kl
from rlhf_lab.training.policy.metrics import UpdateStats
from rlhf_lab.training.policy.objectives import (
    LossDenominators,
    loss_denominators,
    policy_loss,
    ratio_cliprange,
    value_loss,
)
from rlhf_lab.training.policy.rollout import MicroBatch, Rollout
from rlhf_lab.training.policy.train_state import TrainState


def gradient_update(state: TrainState, rollout: Rollout) -> UpdateStats:
    """The epochs of one step. Stops early at target_kl; skips an update whose mean ratio exceeds the threshold."""
    config, step = state.config, state.steps_done
    stats = UpdateStats(has_clipping=ratio_cliprange(config) is not None)
    start = [parameter.detach().clone() for parameter in state.policy.adapters.parameters(state.policy.adapter)]
    if step < config.value_warmup:
        value_only_update(state, rollout, stats)
        return stats
    for epoch in range(config.epochs):
        first_update = stats.update_count
        for minibatch_index, minibatch in enumerate(state.minibatches(epoch, rollout.batch)):
            minibatch_backward(state, rollout, minibatch, stats)
            stats.all_reduce(state.distributed)
            if not stats.update_count and not stats.skipped_count:
                check_first_ratio(stats.max_first_ratio_deviation, state.policy.backbone.model.dtype, step + 1)
            if stats.mean_ratio > config.ratio_threshold:
                stats.skip()
                state.optimizer.zero_grad()
                continue
            if state.ptx is not None:
                path = (step, epoch, minibatch_index)
                stats.add(ptx=state.ptx.batch_backward(path, config, state.distributed, state.on_progress))
            optimizer_step(state, stats)
        if config.target_kl is not None and stats.approx_kl_since(first_update) > config.target_kl:
            break
    old = OldPolicy(rollout.batch, rollout.old_logprobs)
    rounding = rounding_error_kl(state, old, start)
    stats.extra_metrics |= limit_update(state, old, start, rounding)
    if state.penalty_controller is not None:
        responses, tokens = len(rollout.scores), int(rollout.batch.lengths[:, 1].sum())
        stats.extra_metrics |= {
            "policy/step_kl": kl_minus_rounding(update_kl(state, old), rounding) * responses / tokens,
            "policy/penalty_coef": state.penalty_controller.value,
        }
        state.penalty_controller.update(stats.extra_metrics["policy/step_kl"])
    return stats


def value_only_update(state: TrainState, rollout: Rollout, stats: UpdateStats) -> None:
    """The same epochs for the value function alone; the policy does not change."""
    for epoch in range(state.config.epochs):
        for minibatch in state.minibatches(epoch, rollout.batch):
            stats.begin_update()
            denominators = loss_denominators(rollout, minibatch)
            for indices in state.distributed.shard(minibatch):
                state.on_progress()
                value_backward(state, rollout.select(indices), denominators, stats)
            stats.all_reduce(state.distributed)
            optimizer_step(state, stats)


def optimizer_step(state: TrainState, stats: UpdateStats) -> None:
    """`apply_gradient` at the end of an update."""
    stats.finish_update(apply_gradient(state, stats.non_finite_losses))


def apply_gradient(state: TrainState, non_finite_losses: Callable[[], list[str]]) -> Tensor:
    """Clip the gradient and step the optimizer; returns the gradient's norm before clipping.

    non_finite_losses: returns the names of the losses that are not finite, for the message. Raises NotFiniteError before a
    gradient that is not finite is applied.
    """
    state.distributed.all_reduce_grads(state.parameters)
    grad_norm = torch.nn.utils.clip_grad_norm_(state.parameters, state.config.max_grad_norm)
    if not bool(torch.isfinite(grad_norm)):
        state.optimizer.zero_grad()
        raise_not_finite([*non_finite_losses(), "grad_norm"], state.steps_done + 1)
    state.optimizer.step()
    state.optimizer.zero_grad()
    return grad_norm


def minibatch_backward(state: TrainState, rollout: Rollout, minibatch: list[Tensor], stats: UpdateStats) -> None:
    """Accumulate the gradient of one minibatch over its micro-batches, whose size only affects memory."""
    denominators = loss_denominators(rollout, minibatch)
    stats.begin_update()
    for indices in state.distributed.shard(minibatch):
        state.on_progress()
        micro_batch_backward(state, rollout.select(indices), denominators, stats)


def micro_batch_backward(
    state: TrainState, micro_batch: MicroBatch, denominators: LossDenominators, stats: UpdateStats
) -> None:
    """Accumulate the gradient of one micro-batch.

    A separate function, so that its local variables, and with them the autograd graph, are freed before the next forward pass.
    A graph that outlives its backward pass is scattered among the freed activations and fragments their memory.
    """
    config, policy = state.config, state.policy
    shared_trunk = config.uses_value_function and policy.value_trunk != "critic"
    output = policy.evaluate(micro_batch.batch, config.temperature, config.entropy_coef > 0)
    policy_terms = policy_loss(output.logprobs, micro_batch, denominators, config, state.coefficients)
    entropy = token_mean(output.entropy, micro_batch.batch.mask, denominators.tokens)
    value_terms = value_loss(output.values, micro_batch, denominators, config) if shared_trunk else None
    total_loss(
        policy_terms.loss, value=value_terms.loss if value_terms else 0.0, entropy=entropy,
        vf_coef=config.vf_coef, entropy_coef=config.entropy_coef,
    ).backward()  # fmt: skip
    stats.add_policy(policy_terms, output.logprobs, micro_batch.old_logprobs, micro_batch.batch.mask, entropy)
    if value_terms is not None:
        stats.add_value(value_terms)
    elif config.uses_value_function:  # after the policy's backward pass: only one adapter at a time is active
        value_backward(state, micro_batch, denominators, stats)


def value_backward(
    state: TrainState, micro_batch: MicroBatch, denominators: LossDenominators, stats: UpdateStats
) -> None:
    """Accumulate the gradient of the value loss, in a separate forward pass."""
    values, _ = state.policy.compute_values(micro_batch.batch)
    value_terms = value_loss(values, micro_batch, denominators, state.config)
    (state.config.vf_coef * value_terms.loss).backward()
    stats.add_value(value_terms)
