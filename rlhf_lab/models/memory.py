"""Work without a gradient in smaller pieces where memory runs out: rows do not influence each other."""

import gc
import logging
import math
from collections.abc import Callable
from typing import TypeVar

import torch

from rlhf_lab.models.backbone import Backbone

_NO_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "alloc_failed")
_T = TypeVar("_T")

log = logging.getLogger("rlhf_lab.models")


def out_of_memory(error: BaseException) -> bool:
    """Whether a smaller batch may help. PyTorch has a class for GPUs only; on a CPU the words say it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _NO_MEMORY)


def free_memory(backbone: Backbone | None = None) -> None:
    """Give back what the last failure left reserved, and what a backbone keeps between samplings."""
    if backbone is not None and backbone.graphs is not None:
        backbone.graphs.free()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def in_pieces(backbone: Backbone, count: int, do: Callable[[slice], _T]) -> list[_T]:
    """What `do` answers for the rows 0 … count: all at once, or in as many pieces as the backbone's memory has wanted so far.

    Where memory runs out, the pieces are half as large from there on, down to single rows, and stay so. Processes that hold a
    backbone together must make the same passes, so for them it is an error.
    """
    done: list[_T] = []
    start = 0
    while start < count:
        rows = slice(start, min(count, start + math.ceil(count / backbone.pieces)))
        try:
            done.append(do(rows))
            start = rows.stop
            continue
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error) or rows.stop - start == 1 or backbone.shards is not None:
                raise
        free_memory(backbone)
        backbone.pieces *= 2
        log.warning("memory ran out at %d rows; it goes on with half as many: slower, same result", rows.stop - start)
    return done
