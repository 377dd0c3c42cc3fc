"""The prompts of each step and the minibatches of its responses, in orders derived from the seed alone."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.models.batch import Batch


def prompt_indices(step: int, prompt_count: int, config: PolicyConfig) -> list[int]:
    """The indices of a step's prompts, each group_size times in a row; each pass over all prompts is in a new random order."""
    prompts_per_step = config.responses_per_step // config.group_size
    start = step * prompts_per_step
    positions = range(start, start + prompts_per_step)
    return [
        i for i in shuffled_indices(positions, prompt_count, config.seed, "prompts") for _ in range(config.group_size)
    ]


def shuffled_indices(positions: range, count: int, seed: int, *purpose: str | int) -> list[int]:
    """The items at some positions of an endless sequence: all `count` items, each time in a new random order."""
    orders: dict[int, list[int]] = {}
    indices = []
    for position in positions:
        round_ = position // count
        if round_ not in orders:
            generator = torch.Generator().manual_seed(derive_seed(seed, *purpose, round_))
            orders[round_] = torch.randperm(count, generator=generator).tolist()
        indices.append(orders[round_][position % count])
    return indices


def minibatches(
    step: int, epoch: int, batch: Batch, config: PolicyConfig, processes: int = 1
) -> Iterator[list[Tensor]]:
    """The minibatches of an epoch, each a list of micro-batches (row indices) of rows of similar length.

    `config.minibatches` of them (or one per row, if there are fewer rows), of sizes that differ by at most one row.
    """
    seed = derive_seed(config.seed, "minibatches", step, epoch)
    lengths = batch.lengths.sum(1)
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed))
    for minibatch in order.tensor_split(min(config.minibatches, len(order))):
        by_length = minibatch[lengths[minibatch].argsort(stable=True)]
        yield split_micro_batches(by_length, config.micro_batch, processes)


def split_micro_batches(indices: Tensor, max_size: int, processes: int) -> list[Tensor]:
    """Split rows (N,) into micro-batches of at most `max_size`.

    For several processes: the same number for each, of sizes that differ by at most one. Where there are too few rows for that, a
    micro-batch may be larger than `max_size`.
    """
    if processes == 1:
        return list(indices.split(max_size))
    count_per_process = max(1, min(math.ceil(len(indices) / (max_size * processes)), len(indices) // processes))
    return list(indices.tensor_split(min(count_per_process * processes, len(indices))))
