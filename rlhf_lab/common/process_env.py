"""Process settings on a small machine: `set_training_env` for what trains, before torch is imported; `limit_malloc_arenas` and `freeze_gc` for
the page.

Measured on 2 shared cores. OpenMP threads that spin for long made an update up to 25 times slower while another process was
busy; threads that sleep at once made a PPO step 1.35 to 1.7 times slower on an idle machine, because a small operation is over
before a sleeper is awake. So beside a page they spin for as long as waking takes, some 40 microseconds where that means waking a
virtual core; three times as long in a command that has the machine to itself. And glibc gave every large
tensor's pages back to the kernel at once, so that each step faulted them in again (2.9 s for a forward and backward instead of
1.1 s). oneDNN, which computes bfloat16 products on a CPU, keeps the workspace of each shape it has met, by itself of 1,024:
texts differ in length, so a long training grew to 20 GB. It keeps 64: with 32 a PPO step in bfloat16 made some anew at each pass.

The page is the other way round: every visit left 2 to 4 MB behind in the heaps of its threads, though Python held 0.3 MB of it.
With one heap that gives back what is free, 1 MB. And what it makes at its start stays, modules and components alike: Python's
search for unused cycles among them took a quarter of the start's time, and finds nothing.
"""

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
TRAINING_ENV = {
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "3000",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
#: What differs in a command that trains by itself, with no page beside it.
STANDALONE_ENV = {"GOMP_SPINCOUNT": "10000"}


def set_training_env(standalone: bool = False) -> None:
    """Set the environment where the person has not, and let glibc keep freed memory for the next tensor."""
    for name, value in (TRAINING_ENV | (STANDALONE_ENV if standalone else {})).items():
        os.environ.setdefault(name, value)
    _set_malloc_options({_M_MMAP_THRESHOLD: 1 << 30, _M_TRIM_THRESHOLD: 2**31 - 1})


def limit_malloc_arenas() -> None:
    """Let glibc keep one heap for all threads and give back what is free. Call it before there are threads."""
    _set_malloc_options({_M_ARENA_MAX: 1, _M_MMAP_THRESHOLD: 1 << 16, _M_TRIM_THRESHOLD: 1 << 17})


@contextmanager
def freeze_gc() -> Iterator[None]:
    """Whatever is made meanwhile stays: no search for unused cycles now, and none among these objects later."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _set_malloc_options(options: dict[int, int]) -> None:
    """Nothing where there is no glibc, or the person has chosen already."""
    if sys.platform == "linux" and "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            for option, value in options.items():
                libc.mallopt(option, value)
