"""The values of every token of a few responses in a step, for the token view of the page and for exports."""

from typing import Any

import torch
from torch import Tensor

from rlhf_lab.common.records import TokenRecord
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.core.advantages import WHITEN_EPS, masked_mean, masked_var
from rlhf_lab.core.logprobs import finite_exponent
from rlhf_lab.models.batch import Batch
from rlhf_lab.training.policy.objectives import ratio_cliprange
from rlhf_lab.training.policy.rollout import PolicyModel, Rollout


@torch.no_grad()
def token_records(policy: PolicyModel, rollout: Rollout, config: PolicyConfig) -> list[TokenRecord]:
    """Records of the first rows of a rollout, after the step's updates. Costs a forward pass of these rows."""
    count = min(config.token_rows, len(rollout.scores))
    batch = rollout.batch.select(torch.arange(count))
    columns = _token_columns(policy, rollout, batch, config)
    advantage_mean, advantage_sd = _whitening_stats(rollout) if config.whiten_advantages else (None, None)
    cpu_batch = Batch(*(tensor.cpu() for tensor in batch))
    records = []
    for row in range(count):
        length = int(cpu_batch.mask[row].sum())
        ids = cpu_batch.responses[row, :length].tolist()
        prompt_ids = cpu_batch.prompts[row][cpu_batch.prompt_mask[row].bool()].tolist()
        records.append(
            TokenRecord(
                row=row,
                prompt=policy.backbone.decode(prompt_ids),
                prompt_ids=prompt_ids,
                token_ids=ids,
                tokens=policy.backbone.token_strings([*prompt_ids, *ids])[len(prompt_ids) :],
                score=float(rollout.scores[row]),
                shaped_score=float(rollout.shaped_scores[row]),
                bootstrap_value=0.0 if rollout.bootstrap_values is None else float(rollout.bootstrap_values[row]),
                advantage_mean=advantage_mean,
                advantage_sd=advantage_sd,
                **{name: column[row, :length].tolist() for name, column in columns.items()},
            )
        )
    return records


def _token_columns(policy: PolicyModel, rollout: Rollout, batch: Batch, config: PolicyConfig) -> dict[str, Any]:
    """(rows, R) each, on the CPU: the columns of TokenRecord by name."""

    def trim(column: Tensor) -> Tensor:
        return column[: len(batch.mask), : batch.mask.shape[1]]

    logprobs = policy.evaluate(batch, config.temperature).logprobs
    old_logprobs, advantages = trim(rollout.old_logprobs), trim(rollout.advantages)
    ratio = finite_exponent(logprobs - old_logprobs).exp()  # as the loss computes it
    clipped, cliprange = torch.zeros_like(batch.mask), ratio_cliprange(config)
    if cliprange is not None:
        clipped = ((ratio > 1 + cliprange) & (advantages > 0)) | ((ratio < 1 - cliprange) & (advantages < 0))
    columns = {
        "logprob": logprobs, "old_logprob": old_logprobs, "ref_logprob": trim(rollout.ref_logprobs), "kl": trim(rollout.kl),
        "value": trim(rollout.values), "reward": trim(rollout.rewards), "advantage": advantages, "ratio": ratio,
        "clipped": clipped, "raw_advantage": trim(rollout.raw_advantages),
    }  # fmt: skip
    if config.uses_value_function:
        columns["target"] = trim(rollout.returns)
    return {name: column.cpu() for name, column in columns.items()}


def _whitening_stats(rollout: Rollout) -> tuple[float, float]:
    """The mean that `core.advantages.whiten` subtracted from the advantages, and the standard deviation it divided by."""
    raw, mask = rollout.raw_advantages, rollout.batch.mask
    return float(masked_mean(raw, mask)), float((masked_var(raw, mask) + WHITEN_EPS).sqrt())
