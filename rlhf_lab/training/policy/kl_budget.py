"""Keeps a run within its KL budget: limits the size of an update, and adapts the learning rate.

After the updates of a step, KL(old || new) is measured on the step's responses. If it exceeds a limit, the change of the
parameters is scaled back until the KL is below the limit, as in a trust region, so that no step exceeds the budget by much. The
learning rate is raised or lowered to bring the measured KL to a target. `kl_control.py` says the limit and the target, and adapts
beta. Offline methods sample no responses in most steps; they do this in the steps that measure the policy.

In half precision even a tiny change of the parameters rounds every activation differently, which adds as much to the measured KL
per token as a useful update does. This part is measured with a hundredth of an update and subtracted, so that the learning
rate, the coefficient of ppo_penalty and the line search of trpo do not respond to rounding.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf_lab.core.kl import kl_estimate, lr_factor
from rlhf_lab.kernels.ops import HALF_DTYPES
from rlhf_lab.models.batch import Batch
from rlhf_lab.training.policy.train_state import TrainState

MAX_ATTEMPTS = 8  # to scale an update back before it is undone
LR_RANGE = (1e-3, 10.0)  # times the configured learning rate
ROUNDING_SHARE = 0.01  # of an update: without rounding, its KL would be a ten-thousandth of the update's
ROUNDING_EVERY = 5  # at steps divisible by this the rounding is measured again
ROUNDING_ERROR = 0.05  # of the rounding: smaller KLs cannot be distinguished from 0


class OldPolicy(NamedTuple):
    """Responses of the policy before the updates of a step, and their (B, R) log-probabilities under it; 0 on padding."""

    batch: Batch
    logprobs: Tensor


def limit_update(state: TrainState, old: OldPolicy, start: Sequence[Tensor], rounding: float) -> dict[str, float]:
    """Scale the policy's change since `start` back until its KL is within the limit, and adapt the learning rate, unless a
    person has set it. Returns metrics: KL(old || new), and the fraction of the change that is left; none if there is no limit.

    start: the policy adapter's parameters before the updates of the step. rounding: `rounding_error_kl` of these updates.
    """
    control, limit = state.kl_control, state.kl_control.max_update_kl
    if not control.has_budget:
        return {}
    parameters = state.policy.adapters.parameters(state.policy.adapter)
    end = [parameter.detach().clone() for parameter in parameters]
    kl = first_kl = kl_minus_rounding(update_kl(state, old), rounding)
    fraction = 1.0
    for attempt in range(MAX_ATTEMPTS + 1):
        if kl <= limit:
            break
        shrink = 0.9 * math.sqrt(limit / kl) if math.isfinite(kl) else 0.0
        fraction = fraction * min(0.9, max(0.1, shrink)) if attempt < MAX_ATTEMPTS else 0.0
        set_between(parameters, start, end, fraction)
        kl = kl_minus_rounding(update_kl(state, old), rounding) if fraction else 0.0
    target, measurable = control.target_update_kl * state.lr_multiplier() ** 2, ROUNDING_ERROR * rounding
    # If the target is 0, or neither KL can be distinguished from 0, the measurement carries no information.
    factor = (
        1.0 if target == 0.0 or max(first_kl, target) <= measurable else lr_factor(max(first_kl, measurable), target)
    )
    if "lr" not in state.set_by_hand:
        low, high = (state.config.lr * factor for factor in LR_RANGE)
        state.lr = min(max(state.lr * factor, low), high)
    control.update_fraction = fraction
    return {"policy/update_kl": kl, "policy/update_fraction": fraction}


def kl_minus_rounding(kl: float, rounding: float) -> float:
    """A measured KL minus the part due to rounding, at least 0; NaN stays NaN."""
    return kl if math.isnan(kl) else max(0.0, kl - rounding)


def rounding_error_kl(state: TrainState, old: OldPolicy, start: Sequence[Tensor]) -> float:
    """What rounding alone adds to `update_kl`, nats per response; 0 in full precision, or if nothing measures updates. Measured
    again at steps divisible by ROUNDING_EVERY.

    start: the policy adapter's parameters before the updates of the step.
    """
    if state.policy.backbone.model.dtype not in HALF_DTYPES or not state.measures_updates:
        return 0.0
    tokens = int(old.batch.lengths[:, 1].sum()) / len(old.logprobs)
    if state.rounding is None or state.steps_done % ROUNDING_EVERY == 0:
        parameters = state.policy.adapters.parameters(state.policy.adapter)
        end = [parameter.detach().clone() for parameter in parameters]
        set_between(parameters, start, end, ROUNDING_SHARE)
        kl = update_kl(state, old)
        set_between(parameters, end, end, 0.0)
        if math.isfinite(kl):  # not finite: the update broke the policy
            state.rounding = kl / tokens
    return (state.rounding or 0.0) * tokens


@torch.no_grad()
def set_between(parameters: Sequence[Tensor], start: Sequence[Tensor], end: Sequence[Tensor], fraction: float) -> None:
    """Set parameters to start + fraction · (end - start)."""
    for parameter, first, last in zip(parameters, start, end, strict=True):
        parameter.copy_(first.lerp(last, fraction) if fraction else first)


@torch.no_grad()
def update_kl(state: TrainState, old: OldPolicy) -> float:
    """KL(old || new) of the policy: k3 on the tokens of `old`, summed per response, mean over responses, nats."""
    micro_batches = [indices for minibatch in state.minibatches(0, old.batch) for indices in minibatch]
    total = torch.zeros((), dtype=torch.float64, device=old.logprobs.device)
    for indices in state.distributed.shard(micro_batches):
        state.on_progress()
        batch = old.batch.select(indices)
        new_logprobs = state.policy.evaluate(batch, state.config.temperature).logprobs
        old_logprobs = old.logprobs[indices.to(old.logprobs.device, non_blocking=True), : batch.mask.shape[1]]
        kl = kl_estimate(old_logprobs.to(new_logprobs), new_logprobs, "k3").double()
        total += kl.masked_fill(~batch.mask, 0.0).sum()
    state.distributed.all_reduce_([total])
    return float(total) / len(old.logprobs)
