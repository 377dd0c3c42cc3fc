"""Process settings that training needs on a small machine. Call `prepare` before torch is imported.

Measured on 2 shared cores. OpenMP threads that spin for long made an update up to 25 times slower while another process was
busy; threads that sleep at once made a PPO step 1.35 to 1.7 times slower on an idle machine, because a small operation is over
before a sleeper is awake. So they spin for as long as waking takes, some 20 microseconds. And glibc gave every large tensor's
pages back to the kernel at once, so that each step faulted them in again (2.9 s for a forward and backward instead of 1.1 s).
"""

import ctypes
import os
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
ENVIRONMENT = {
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "1000",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


def prepare() -> None:
    """Set the environment where the person has not, and let glibc keep freed memory for the next tensor."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if sys.platform == "linux" and "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
            libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
