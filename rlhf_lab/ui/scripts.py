"""The page's JavaScript: our ES modules, plotly.js, and the files of Gradio's own page, each compressed once.

The address of our modules contains a hash of all of them, and they import each other by relative addresses, so a page never mixes
modules of two versions of the lab. The name of each of Gradio's scripts contains a hash of it. Browsers may cache both forever.
"""

import gzip
import hashlib
import io
import mimetypes
import re
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import plotly
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from rlhf_lab.ui.gradio_patches import ASSETS_FOLDER


def version_of(modules: Mapping[str, bytes]) -> str:
    """16 hexadecimal digits of a hash of all names and sources."""
    digest = hashlib.sha256()
    for name, source in modules.items():
        digest.update(f"{name} {len(source)}\n".encode() + source)
    return digest.hexdigest()[:16]


UI = Path(__file__).parent
#: The only script that is not a module: it runs before Gradio's scripts.
FIRST_SCRIPT = UI / "shared" / "before_gradio.js"
#: "shared/dom.js" -> its source.
MODULES = {
    path.relative_to(UI).as_posix(): path.read_bytes() for path in sorted(UI.rglob("*.js")) if path != FIRST_SCRIPT
}
#: The style sheets, those that all screens share first.
STYLES = sorted(UI.rglob("*.css"), key=lambda path: (path.parent.name != "shared", path))
VERSION = version_of(MODULES)
#: Relative to the page, which may lie below a proxy's path.
MODULE_FOLDER = f"lab-assets/{VERSION}"
#: The screen Learn loads its modules when it is opened, and a shared page has its own.
LOADED_LATER = ("learn/", "share/")
PLOTLY_JS = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
PLOTLY_ADDRESS = f"lab-assets/plotly-{plotly.__version__}/plotly.min.js"  # relative to the page
CACHE_FOR_EVER = "public, max-age=31536000, immutable"
#: Names of Gradio's files whose content never changes, such as index-DphvyggB.js.
HASHED_SCRIPT = re.compile(r".+-[\w-]{8,}\.(js|css)")
MISSING_MESSAGE = "This lab has no such script. Reload the page: it may be of another version of the lab.\n"


def module_address(path: str) -> str:
    """Address of a module, such as "chat/view.js". Raises KeyError if there is none."""
    assert MODULES[path]
    return f"{MODULE_FOLDER}/{path}"


def module_tags() -> str:
    """Tags that load label/first_pair.js without waiting for Gradio's scripts, and then the other modules, but for those that a
    first visit does not need."""
    first = ("label/first_pair.js", "shared/dom.js", "shared/html.js", "shared/session.js")
    others = [path for path in MODULES if path not in first and not path.startswith(LOADED_LATER)]
    return (
        f'<script type="module" async src="{MODULE_FOLDER}/{first[0]}"></script>'
        + "".join(f'<link rel="modulepreload" href="{MODULE_FOLDER}/{path}">' for path in first[1:])
        + "".join(f'<link rel="modulepreload" href="{MODULE_FOLDER}/{path}" fetchpriority="low">' for path in others)
    )


def module_route() -> Route:
    """GET a module; 404 for another version, whose modules must not be mixed with these."""

    def endpoint(request: Request) -> Response:
        source = MODULES.get(request.path_params["path"])
        if source is None or request.path_params["version"] != VERSION:
            return PlainTextResponse(MISSING_MESSAGE, 404)
        return _response(request, _compressed(source), "text/javascript")

    return Route("/lab-assets/{version}/{path:path}", endpoint)


def plotly_route() -> Route:
    """GET plotly.js. Must come before `module_route`. Gradio's route for files would compress its 5 MB for each request, in the
    thread that answers everybody."""

    def endpoint(request: Request) -> Response:
        return _response(request, _compressed_file(PLOTLY_JS), "text/javascript")

    return Route(f"/{PLOTLY_ADDRESS}", endpoint)


def gradio_assets_route(folder: Path = ASSETS_FOLDER) -> Route:
    """GET a file of Gradio's page. Gradio's own route compresses it for each request and forbids browsers to cache it."""
    names = {path.name for path in folder.iterdir() if path.is_file()}

    def endpoint(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in names:
            return PlainTextResponse("There is no such file.\n", 404)
        media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
        if not HASHED_SCRIPT.fullmatch(name):  # a font, which is compressed already, or a file whose content may change
            return FileResponse(folder / name)
        return _response(request, _compressed_file(folder / name), media_type)

    return Route("/assets/{name:path}", endpoint)


_COMPRESSED_FILES: dict[Path, bytes] = {}
_one_at_a_time = threading.Lock()


def _compressed_file(path: Path) -> bytes:
    """Compressed once, also if many ask for it at once."""
    with _one_at_a_time:
        if path not in _COMPRESSED_FILES:
            _COMPRESSED_FILES[path] = gzip.compress(path.read_bytes())
        return _COMPRESSED_FILES[path]


@cache
def _compressed(module: bytes) -> bytes:
    return gzip.compress(module)


def _response(request: Request, compressed: bytes, media_type: str) -> Response:
    """A response that browsers may cache forever. Clients that do not accept gzip get it uncompressed."""
    headers = {"cache-control": CACHE_FOR_EVER, "vary": "Accept-Encoding"}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        source = gzip.GzipFile(fileobj=io.BytesIO(compressed))
        return StreamingResponse(iter(lambda: source.read(1 << 16), b""), media_type=media_type, headers=headers)
    return Response(compressed, media_type=media_type, headers=headers | {"content-encoding": "gzip"})
