"""The web page. Imports Gradio here, before any module of the package, without its slowest optional imports."""

import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rlhf_lab.common.process_env import freeze_gc

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "200")


@contextmanager
def without_stubs() -> Iterator[None]:
    """Prevent Gradio 6.31 from writing type stubs for all its components at import, which takes half of the import's time.

    It skips classes whose file is unknown (component_meta.create_or_modify_pyi).
    """

    def unknown(object: object) -> str:
        raise OSError("no type stubs wanted")

    getfile = inspect.getfile
    inspect.getfile = unknown
    try:
        yield
    finally:
        inspect.getfile = getfile


@contextmanager
def without_arrow() -> Iterator[None]:
    """Prevent the import of pyarrow, which costs 34 MB of memory, and seconds from a cold disk.

    Gradio imports pandas, for components that the lab does not use, and pandas imports pyarrow if it is installed. Later
    imports of pyarrow work.
    """
    hidden = "pyarrow" not in sys.modules
    if hidden:
        modules: dict[str, Any] = sys.modules
        modules["pyarrow"] = None  # makes `import pyarrow` fail
    try:
        yield
    finally:
        if hidden:
            del sys.modules["pyarrow"]


with freeze_gc(), without_stubs(), without_arrow():
    import gradio  # noqa: F401
