"""The page's JavaScript: ES modules, served from memory at addresses with the hash of all of them.

Modules import each other by relative addresses. A page therefore never mixes modules of two versions of the lab, and browsers
may keep them for ever.
"""

import hashlib
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from rlhf_lab.common.bundled_assets import ASSETS


def version_of(modules: Mapping[str, bytes]) -> str:
    """16 hexadecimal digits of a hash of all names and sources."""
    digest = hashlib.sha256()
    for name, source in modules.items():
        digest.update(f"{name} {len(source)}\n".encode() + source)
    return digest.hexdigest()[:16]


UI_ASSETS = ASSETS / "ui"
#: "lib/dom.js" -> its source.
MODULES = {path.relative_to(UI_ASSETS).as_posix(): path.read_bytes() for path in sorted(UI_ASSETS.glob("*/*.js"))}
VERSION = version_of(MODULES)
#: Relative to the page, which may lie below a proxy's path.
MODULE_FOLDER = f"lab-assets/{VERSION}"
CACHE_FOR_EVER = "public, max-age=31536000, immutable"
MISSING_MESSAGE = "This lab has no such script. Reload the page: it may be of another version of the lab.\n"


def module_address(name: str) -> str:
    """Address of the module `NAME.js`, in whichever folder of assets/ui it is."""
    (path,) = (path for path in MODULES if path.endswith(f"/{name}.js"))
    return f"{MODULE_FOLDER}/{path}"


def module_tags() -> str:
    """Loads lib/first_pair.js, without waiting for Gradio's scripts, and after it all other modules."""
    first = ("lib/first_pair.js", "lib/dom.js", "lib/session.js")
    others = [path for path in MODULES if path not in first]
    return (
        f'<script type="module" async src="{MODULE_FOLDER}/{first[0]}"></script>'
        + "".join(f'<link rel="modulepreload" href="{MODULE_FOLDER}/{path}">' for path in first[1:])
        + "".join(f'<link rel="modulepreload" href="{MODULE_FOLDER}/{path}" fetchpriority="low">' for path in others)
    )


def module_route() -> Route:
    """GET of a module; 404 for another version, whose modules must not be mixed with these."""

    async def endpoint(request: Request) -> Response:
        source = MODULES.get(request.path_params["path"])
        if source is None or request.path_params["version"] != VERSION:
            return PlainTextResponse(MISSING_MESSAGE, 404)
        return Response(source, media_type="text/javascript", headers={"cache-control": CACHE_FOR_EVER})

    return Route("/lab-assets/{version}/{path:path}", endpoint)
