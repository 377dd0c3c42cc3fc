"""The memory that reading a file may take: a small file can unpack to more than a machine has."""

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from rlhf_lab.errors import DataError
from rlhf_lab.importers.parsed_rows import Limits


@contextmanager
def limited_memory(name: str, limits: Limits) -> Iterator[None]:
    """Raise DataError, which names the file, where this process takes more memory than `limits` and the machine allow.

    The limit holds for the process and ends with the context. Only Linux has one; elsewhere the system's own limits hold.
    Libraries are loaded before it: their memory grows with the number of cores, and running out of it ends the process.
    """
    from pyarrow import parquet  # noqa: F401

    memory = min(limits.max_memory, psutil.virtual_memory().available)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_DATA, (psutil.Process().memory_info().data + memory, hard))
    try:
        yield
    except MemoryError:
        raise DataError(f"{name} takes more than {memory:,} bytes of memory. Import it in parts.") from None
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
