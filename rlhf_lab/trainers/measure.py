"""What the models say of a batch of responses, before any update: old and reference log-probabilities, values, KL."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from rlhf_lab.config import PolicyConfig
from rlhf_lab.core.kl import full_kl
from rlhf_lab.models.generation import Tick
from rlhf_lab.models.rows import Rows
from rlhf_lab.trainers.group import ALONE, Group
from rlhf_lab.trainers.rollout import Measured, Policy, response_logprobs


@torch.no_grad()
def measure(
    policy: Policy, rows: Rows, scores: Tensor, sampler_logprobs: Sequence[Sequence[float]] | None,
    parts: Iterable[Tensor], config: PolicyConfig, tick: Tick, group: Group = ALONE,
) -> Measured:  # fmt: skip
    """Measure the rows, part by part (row indices).

    The old log-probabilities come from the forward pass that training uses, on the very micro-batches of the first epoch
    (`parts`; of several processes each has its own), so that the first ratios are exactly 1. sampler_logprobs: None where
    somebody else wrote the responses.
    """
    old = torch.zeros(rows.mask.shape, device=rows.mask.device)
    ref, values, sampler, exact = (torch.zeros_like(old) for _ in range(4))
    after = torch.zeros(len(scores), device=old.device)
    wants_kl, own_pass = config.kl_estimator == "full", policy.trunk == "critic" or config.bootstrap_cut
    for part in parts:
        tick()
        some, index = rows.take(part), part.to(old.device, non_blocking=True)
        length = some.mask.shape[1]
        evaluated = policy.evaluate(some, config.temperature)
        states = policy.reference_states(some)
        old[index, :length] = evaluated.logprobs.to(old)
        ref[index, :length] = response_logprobs(policy.backbone, states, some, config.temperature)[0].to(old)
        values[index, :length] = evaluated.values.to(old)
        if wants_kl:
            exact[index, :length] = exact_kl(policy, some, states, config.temperature).to(old)
        if own_pass:
            own, after[index] = (x.to(old) for x in policy.values_of(some))
            values[index, :length] = own
    group.add_up([old, ref, values, exact, after])
    if sampler_logprobs is None:
        sampler = old
    else:
        length = old.shape[1]
        padded = [[*row, *[0.0] * (length - len(row))] for row in sampler_logprobs]
        sampler = torch.tensor(padded, dtype=sampler.dtype).to(old.device, non_blocking=True)
    return Measured(
        rows, scores, old, ref, sampler, values,
        full_kl=exact if wants_kl else None, after=after if config.bootstrap_cut else None,
    )  # fmt: skip


def exact_kl(policy: Policy, rows: Rows, reference: Tensor, temperature: float) -> Tensor:
    """(B, R) KL(policy || reference) over the whole vocabulary, 0 on padding. reference: (B, R, H) hidden states."""
    real = rows.real
    logits = policy.backbone.logits(policy.predicting(rows)[real])
    kl = full_kl(logits, policy.backbone.logits(reference[real]), temperature)
    return torch.zeros(rows.mask.shape, dtype=kl.dtype, device=kl.device).index_put(real, kl)
