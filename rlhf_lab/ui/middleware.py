"""Checks before a request reaches the page: the path and the host it asks for, and the page that sent it."""

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlhf_lab.errors import ConfigError
from rlhf_lab.ui.network import is_foreign_origin, is_loopback

#: Of a response, in memory for a client that has not taken it.
PIECE_BYTES = 65_536
GRADIO_PATH = "/gradio_api/"
UPLOAD_PATH = f"{GRADIO_PATH}upload"
WRONG_HOST_MESSAGE = (
    "This lab serves its own computer only: open it as http://localhost. To serve other computers, start it with "
    "--host, or with --url behind a proxy; visitors then have to log in.\n"
)
FOREIGN_ORIGIN_MESSAGE = (
    "A page of another site sent this request, so nothing was done. Open the lab at its own address. Behind a proxy, "
    "start the lab with --url and the address that people open.\n"
)


#: Shows Spaces in a frame.
HUB_ORIGIN = "https://huggingface.co"
FRAMES_ENV_VAR = "RLHF_LAB_FRAME_ORIGINS"
ORIGIN_PATTERN = re.compile(r"https?://[A-Za-z0-9.\-\[\]:*]+")


def frame_origins(environment: Mapping[str, str]) -> list[str]:
    """The origins that may show the lab in a frame: the Hub's on a Space, and those of the variable. Raises ConfigError."""
    origins = environment.get(FRAMES_ENV_VAR, "").replace(",", " ").split()
    for origin in origins:
        if not ORIGIN_PATTERN.fullmatch(origin):
            raise ConfigError(
                f"{FRAMES_ENV_VAR}: {origin!r} is not an origin. Write https://courses.example.org, without a path."
            )
    return ([HUB_ORIGIN] if environment.get("SPACE_HOST") else []) + origins


class BodyPieces:
    """ASGI middleware: sends long bodies in pieces, each when the client has taken the one before. The server would
    otherwise keep whole bodies for clients that do not read them. Must be outside of the compression."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_pieces(message: Message) -> None:
            body = message.get("body", b"")
            for begin in range(PIECE_BYTES, len(body), PIECE_BYTES):
                await send({**message, "body": body[begin - PIECE_BYTES : begin], "more_body": True})
            last = (len(body) - 1) // PIECE_BYTES * PIECE_BYTES if body else 0
            await send({**message, "body": body[last:]} if last else message)

        await self.app(scope, receive, send_pieces)


class FrameGuard:
    """ASGI middleware: adds frame-ancestors to every response, so that a page of another origin cannot show the lab invisibly and
    let a visitor click on it; and nosniff. Must be the outermost one. A policy of the response itself holds as well.

    Nothing below GRADIO_PATH is a page, so what is opened from there as a document is put into a sandbox: without scripts, and
    without the origin of the lab.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str] = ()) -> None:
        self.app, self.policy = app, " ".join(("frame-ancestors 'self'", *origins))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_page = not scope.get("path", "").startswith(GRADIO_PATH)
        policy = self.policy if is_page else f"{self.policy}; sandbox"
        headers = [(b"content-security-policy", policy.encode()), (b"x-content-type-options", b"nosniff")]

        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *headers]}
            await send(message)

        await self.app(scope, receive, send_with_policy)


class RequestGuard:
    """ASGI middleware.

    local_only: the lab has one visitor, who needs no login, so requests of any other page in their browser would be taken for
    theirs. Such requests are recognised by their Origin header (also those of a page on another port of this computer). Requests
    of a site whose name resolves to this computer (DNS rebinding) are recognised by their Host header. (Starlette's
    TrustedHostMiddleware checks the host without saying what to do, and cannot read IPv6 hosts.)
    public_url: the address at which a proxy serves the lab.
    """

    def __init__(self, app: ASGIApp, local_only: bool, public_url: str = "") -> None:
        self.app, self.local_only, self.public_url = app, local_only, public_url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        rejection = self._rejection(scope) if scope["type"] == "http" else None
        await (rejection or self.app)(scope, receive, send)

    def _rejection(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        if self.local_only and not is_loopback(hostname(headers.get("host", ""))):
            return PlainTextResponse(WRONG_HOST_MESSAGE, status_code=421)
        is_upload = scope["path"].startswith(UPLOAD_PATH) and scope["method"] == "POST"
        if (self.local_only or is_upload) and is_foreign_origin(headers, self.public_url):
            return PlainTextResponse(FOREIGN_ORIGIN_MESSAGE, status_code=403)
        return None


#: Gradio's routes that its page, its client or `curl` need. All others, such as those that edit or reload the program, record or
#: fetch from elsewhere, are closed, also those of later versions. `file=` is open for local files only (Gradio decides which): it
#: would also fetch an address, for anybody, and return the result as a page of the lab.
OPEN_ROUTES = re.compile(
    r"/(?:config/?|theme\.css|robots\.txt|manifest\.json|favicon\.ico|pwa_icon(?:/[^/]+)?|(?:assets|static)/.+)?"
    r"|/gradio_api/(?:info/?|openapi\.json|app_id/?|theme\.css|startup-events|heartbeat/[^/]+|reset/?|cancel"
    r"|(?:run|api|call)/[^/]+/?|call/[^/]+/[^/]+/?|queue/(?:join|data)/?|upload/?|upload_progress"
    r"|file=(?:/|[A-Za-z]:[/\\]).+)"
)


class RouteGuard:
    """ASGI middleware: replies 404 to all paths but OPEN_ROUTES and the lab's own routes."""

    def __init__(self, app: ASGIApp, own_routes: Sequence[BaseRoute]) -> None:
        self.app, self.own_routes = app, own_routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = scope["type"] == "lifespan" or (scope["type"] == "http" and self._is_open(scope))
        await (self.app if is_open else PlainTextResponse("There is nothing at this address.\n", 404))(
            without_gradio_gaps(scope), receive, send
        )

    def _is_open(self, scope: Scope) -> bool:
        is_own = any(route.matches(scope)[0] is not Match.NONE for route in self.own_routes)
        return is_own or OPEN_ROUTES.fullmatch(scope["path"]) is not None


def without_gradio_gaps(scope: Scope) -> Scope:
    """A request without what Gradio answers wrongly. A part of a file would have all headers of the request as its own, cookies
    included. The description of the functions for programs would name the host of the very first request to everybody, but that
    of one page names the host of each request."""
    path = scope.get("path", "")
    if path.startswith(f"{GRADIO_PATH}file="):
        return {**scope, "headers": [header for header in scope["headers"] if header[0] != b"range"]}
    if path.rstrip("/") == f"{GRADIO_PATH}info":
        return {**scope, "query_string": scope["query_string"] + b"&page="}
    return scope


def hostname(host: str) -> str:
    """The name in a Host header, without the port: "[::1]:7860" -> "::1"; "localhost" for an empty one."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0] or "localhost"


def folder_size(folder: Path) -> int:
    """Bytes of the files below a folder; files deleted in between do not count."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(root, name).lstat().st_size
    return total
