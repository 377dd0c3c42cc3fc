"""Which prompts a step writes for, and in which order its responses are learnt from: derived from the seed alone."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from rlhf_lab.config import PolicyConfig
from rlhf_lab.models.rows import Rows
from rlhf_lab.seeds import derive


def prompts_of(step: int, count: int, config: PolicyConfig) -> list[int]:
    """The prompts of a step, each group_size times in a row: the list in a new random order each time it is used up.

    count: how many prompts there are.
    """
    wanted = config.responses // config.group_size
    first = step * wanted
    orders: dict[int, list[int]] = {}
    chosen = []
    for position in range(first, first + wanted):
        round_ = position // count
        if round_ not in orders:
            generator = torch.Generator().manual_seed(derive(config.seed, "prompts", round_))
            orders[round_] = torch.randperm(count, generator=generator).tolist()
        chosen += [orders[round_][position % count]] * config.group_size
    return chosen


def minibatches(step: int, epoch: int, rows: Rows, config: PolicyConfig, processes: int = 1) -> Iterator[list[Tensor]]:
    """The minibatches of an epoch, each a list of micro-batches (row indices) of rows of similar length.

    As many as the config says, of sizes that differ by at most one row (one a row where there are fewer rows).
    """
    seed = derive(config.seed, "minibatches", step, epoch)
    lengths = rows.lengths.sum(1)
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed))
    for minibatch in order.tensor_split(min(config.minibatches, len(order))):
        by_length = minibatch[lengths[minibatch].argsort(stable=True)]
        yield in_parts(by_length, config.micro_batch, processes)


def in_parts(rows: Tensor, most: int, processes: int) -> list[Tensor]:
    """Rows (N,) in parts of at most `most`. For several processes in equally many for each, of sizes that differ by at most
    one, as long as there are rows: then a part may have more rows than that."""
    if processes == 1:
        return list(rows.split(most))
    each = max(1, min(math.ceil(len(rows) / (most * processes)), len(rows) // processes))
    return list(rows.tensor_split(min(each * processes, len(rows))))
