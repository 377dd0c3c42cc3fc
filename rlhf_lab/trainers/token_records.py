"""What a step knew of every token of a few texts, for the page's microscope and for exports."""

from typing import Any

import torch
from torch import Tensor

from rlhf_lab.config import PolicyConfig
from rlhf_lab.core.advantages import WHITEN_EPS, masked_mean, masked_var
from rlhf_lab.core.importance import finite_exponent
from rlhf_lab.models.rows import Rows
from rlhf_lab.records import TokenRecord
from rlhf_lab.trainers.objectives import clip_of
from rlhf_lab.trainers.rollout import Policy, Rollout


@torch.no_grad()
def token_records(policy: Policy, rollout: Rollout, config: PolicyConfig) -> list[TokenRecord]:
    """Of the first rows of a rollout, after the step's updates; for a forward pass of these rows."""
    count = min(config.token_rows, len(rollout.scores))
    rows = rollout.rows.take(torch.arange(count))
    columns = _columns(policy, rollout, rows, config)
    centre, spread = _whitening(rollout) if config.whiten_advantages else (None, None)
    cpu = Rows(*(part.cpu() for part in rows))
    records = []
    for row in range(count):
        length = int(cpu.mask[row].sum())
        ids = cpu.responses[row, :length].tolist()
        records.append(
            TokenRecord(
                row=row,
                prompt=policy.backbone.decode(cpu.prompts[row][cpu.prompt_mask[row].bool()].tolist()),
                token_ids=ids,
                tokens=policy.backbone.token_strings(ids),
                score=float(rollout.scores[row]),
                earned=float(rollout.earned[row]),
                after=0.0 if rollout.after is None else float(rollout.after[row]),
                centre=centre,
                spread=spread,
                **{name: column[row, :length].tolist() for name, column in columns.items()},
            )
        )
    return records


def _columns(policy: Policy, rollout: Rollout, rows: Rows, config: PolicyConfig) -> dict[str, Any]:
    """(rows, R) each, on the CPU: a TokenRecord's lists by their names."""

    def first(column: Tensor) -> Tensor:
        return column[: len(rows.mask), : rows.mask.shape[1]]

    logprobs = policy.evaluate(rows, config.temperature).logprobs
    old, advantages = first(rollout.old_logprobs), first(rollout.advantages)
    ratio = finite_exponent(logprobs - old).exp()  # as the loss counts it
    clipped, clip = torch.zeros_like(rows.mask), clip_of(config)
    if clip is not None:
        clipped = ((ratio > 1 + clip) & (advantages > 0)) | ((ratio < 1 - clip) & (advantages < 0))
    columns = {
        "logprob": logprobs, "old_logprob": old, "ref_logprob": first(rollout.ref_logprobs), "kl": first(rollout.kl),
        "value": first(rollout.values), "reward": first(rollout.rewards), "advantage": advantages, "ratio": ratio,
        "clipped": clipped, "raw_advantage": first(rollout.raw_advantages),
    }  # fmt: skip
    if config.uses_values:
        columns["target"] = first(rollout.returns)
    return {name: column.cpu() for name, column in columns.items()}


def _whitening(rollout: Rollout) -> tuple[float, float]:
    """What `core.advantages.whiten` took from the advantages and divided them by."""
    raw, mask = rollout.raw_advantages, rollout.rows.mask
    return float(masked_mean(raw, mask)), float((masked_var(raw, mask) + WHITEN_EPS).sqrt())
