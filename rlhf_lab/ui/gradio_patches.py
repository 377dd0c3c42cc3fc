"""What the lab uses of Gradio beyond its documented interface, each with the reason. No other module reaches into Gradio.

`tests/ui/test_gradio_patches.py` names every attribute and says which one a new version has moved.
"""

import asyncio
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.requests import Request

from rlhf_lab.common.process_env import freeze_gc


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
    import gradio as gr
    from gradio.context import LocalContext
    from gradio.processing_utils import check_all_files_in_cache, save_file_to_cache
    from gradio.route_utils import BUILD_PATH_LIB
    from gradio.utils import get_upload_folder
    from uvicorn.protocols.http import auto

#: The scripts and styles of Gradio's own page, which the lab serves compressed and for caches (scripts.py).
ASSETS_FOLDER = Path(BUILD_PATH_LIB)
#: Option of `launch`: do not request the own page first, because Gradio exits if that takes 3 s.
NO_FIRST_REQUEST = {"_frontend": False}


#: Seconds between two checks of Gradio's queue for new events.
QUEUE_POLL_S = 0.01
MAX_QUEUE_SESSIONS = 1000


def check_queue_less_often(page: gr.Blocks) -> None:
    """Gradio's own interval of 1 ms takes 6 % of a core while nothing happens, and there is no option for it."""
    page._queue.sleep_when_free = QUEUE_POLL_S


@contextmanager
def http_protocol(protocol: type[asyncio.Protocol]) -> Iterator[None]:
    """Let the server of a page that is launched handle connections by this protocol. Gradio passes no option on to Uvicorn, which
    then takes the class that is patched here."""
    module: Any = auto
    default, module.AutoHTTPProtocol = module.AutoHTTPProtocol, protocol
    try:
        yield
    finally:
        module.AutoHTTPProtocol = default


def current_request() -> Any:
    """The request that is being handled, of the page or of a program that uses Gradio's client; None outside of one."""
    return LocalContext.request.get(None)


def set_current_request(request: Request) -> None:
    """Make this the request that `current_request` returns, as Gradio does for its events."""
    LocalContext.request.set(gr.Request(request))


def upload_folder() -> Path:
    """Where Gradio stores uploads, and the files that it serves by their path."""
    return Path(get_upload_folder())


def save_to_cache(file: Path, folder: Path) -> Path:
    """Move a file to where Gradio serves it, at a path that contains a hash of its content."""
    return Path(save_file_to_cache(file, cache_dir=str(folder)))


def page_events(app: Any) -> Mapping[int, Any] | None:
    """The events of the page that an application of Gradio serves, by their number; None for another application."""
    return getattr(getattr(app, "blocks", None), "fns", None)


def forget_old_sessions(app: Any) -> None:
    """Forget the oldest sessions of Gradio's queue: it keeps one for each session hash, for good if nobody reads its
    results."""
    queue = getattr(getattr(app, "blocks", None), "_queue", None)
    sessions = getattr(queue, "pending_event_ids_session", {})
    while len(sessions) > MAX_QUEUE_SESSIONS:
        sessions.pop(next(iter(sessions)))


def names_other_file(value: Any) -> bool:
    """Whether a JSON value names a file other than an uploaded one, for which Gradio would print a traceback."""
    try:
        check_all_files_in_cache(value)
    except (gr.Error, OSError, ValueError):
        return True
    return False
