"""Splits work without gradients into smaller batches when memory runs out: rows do not influence each other."""

import gc
import logging
import math
from collections.abc import Callable
from typing import TypeVar

import torch

from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.memory_errors import is_out_of_memory

_T = TypeVar("_T")

log = logging.getLogger("rlhf_lab.models")


def free_memory(backbone: Backbone | None = None) -> None:
    """Free memory that a failed attempt left reserved, and what a backbone keeps between samplings."""
    if backbone is not None and backbone.cuda_graphs is not None:
        backbone.cuda_graphs.free()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def run_in_chunks(backbone: Backbone, count: int, run_chunk: Callable[[slice], _T]) -> list[_T]:
    """Results of `run_chunk` for the rows 0 to count - 1, in as many chunks as the backbone's memory has required so
    far.

    When memory runs out, chunks are halved, down to single rows, and stay that small. Processes that share a backbone must
    make the same passes, so for them running out of memory is an error.
    """
    results: list[_T] = []
    start = 0
    while start < count:
        chunk = slice(start, min(count, start + math.ceil(count / backbone.batch_splits)))
        try:
            results.append(run_chunk(chunk))
            start = chunk.stop
            continue
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or chunk.stop - start == 1 or backbone.shards is not None:
                raise
        free_memory(backbone)
        backbone.batch_splits *= 2
        log.warning("memory ran out at %d rows; continuing with half as many: slower, same result", chunk.stop - start)
    return results
