"""Recognises out-of-memory errors. PyTorch has an exception class only for GPUs; on a CPU the message is searched."""

import re

import torch

#: Messages of PyTorch, its allocator, oneDNN (which names the step and not the cause), C++ and the operating system.
_MESSAGES = re.compile(
    r"out of memory|can(no|')t allocate memory|not enough memory|alloc_failed|bad_alloc"
    r"|could not create a primitive(?! descriptor)",
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a smaller batch or model may help."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or bool(_MESSAGES.search(str(error)))
