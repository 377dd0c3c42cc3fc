"""Process settings for small machines: for training (before torch is imported), and for the page.

Training, measured on 2 shared cores:
- With OpenMP threads that spin for a long time, an update was up to 25 times slower while another process was busy. With threads
  that sleep immediately, a PPO step was 1.35 to 1.7 times slower on an idle machine, because a small operation ends before a
  sleeping thread is awake. So threads spin about as long as it takes to wake them (40 µs on a virtual core), and three times as
  long in a command without a page.
- glibc returned the memory pages of every large tensor to the kernel immediately, so each step caused page faults for them
  again: 2.9 s instead of 1.1 s for a forward and backward pass.
- oneDNN, which computes bfloat16 products on a CPU, caches the workspaces of 1,024 shapes by default. Texts differ in length, so
  the memory of a long training grew to 20 GB. The limit is set to 64; with 32, a PPO step in bfloat16 rebuilt some workspaces in
  each pass.

The page: every visit left 2 to 4 MB in the heaps of its threads, of which Python used 0.3 MB; with one heap that returns free
memory it is 1 MB. Objects created at the start (modules, components) live as long as the process. Garbage collection among them
took a quarter of the start-up time and found nothing.
"""

import ctypes
import gc
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
TRAINING_ENV = {
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "3000",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
#: Different values for a command that trains without a page.
STANDALONE_ENV = {"GOMP_SPINCOUNT": "10000"}


#: Parts of the names of variables that only the page's process needs. The engine downloads models with HF_TOKEN.
PAGE_SECRETS = ("SECRET", "JOIN_CODE")
#: Of the lab's environment for processes that run programs of others.
PASSED_VARIABLES = (
    "PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH",
    "OMP_NUM_THREADS",
)  # fmt: skip
_PR_SET_DUMPABLE = 4


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables without the secrets of the page, for processes that start functions of users."""
    return {name: value for name, value in environment.items() if not any(word in name for word in PAGE_SECRETS)}


def module_environment() -> dict[str, str]:
    """The environment of a process that runs a module of this package, without the secrets of the page."""
    return {**TRAINING_ENV, **without_secrets(os.environ), "PYTHONPATH": _python_path()}


def minimal_environment() -> dict[str, str]:
    """The environment of a process that runs programs of others with a module of this package: no tokens or passwords."""
    passed = {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ}
    return {**passed, "PYTHONPATH": _python_path()}


def _python_path() -> str:
    return os.pathsep.join(filter(None, [str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH")]))


def hide_environment() -> None:
    """Keep other processes of this user from reading this process's environment and memory. On Linux only; processes of root, or
    with the right to trace, can read them all the same."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def set_training_env(standalone: bool = False) -> None:
    """Set the variables that are not set yet, and let glibc keep freed memory for the next tensor. standalone: without a page."""
    for name, value in (TRAINING_ENV | (STANDALONE_ENV if standalone else {})).items():
        os.environ.setdefault(name, value)
    _set_malloc_options({_M_MMAP_THRESHOLD: 1 << 30, _M_TRIM_THRESHOLD: 2**31 - 1})


def thread_count() -> int:
    """Number of threads for training: OMP_NUM_THREADS if it is set, otherwise the number of cores that this process may use."""
    stated = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # with a comma: one number per nesting level
    if stated.isdecimal() and int(stated):
        return int(stated)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def limit_malloc_arenas() -> None:
    """Let glibc use one heap for all threads and return free memory. Call it before any thread is started."""
    _set_malloc_options({_M_ARENA_MAX: 1, _M_MMAP_THRESHOLD: 1 << 16, _M_TRIM_THRESHOLD: 1 << 17})


@contextmanager
def freeze_gc() -> Iterator[None]:
    """Disable garbage collection in the block, and exclude the objects created there from later collections."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _set_malloc_options(options: dict[int, int]) -> None:
    """Call mallopt, unless the system has no glibc or the user has set its options."""
    if sys.platform == "linux" and "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            for option, value in options.items():
                libc.mallopt(option, value)
