"""What the page shows before Gradio has rendered it: our styles and scripts in the HTML itself, and the pair to label.

Gradio adds a custom head only when its own script runs, seconds later on a slow machine. In the body, our styles also come after
Gradio's, which would otherwise override them.
"""

import contextlib
import re
from collections.abc import Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlhf_lab.errors import LabError
from rlhf_lab.ui.auth.login_pages import cookie_header, is_https
from rlhf_lab.ui.auth.visitors import COOKIE_MAX_AGE_S, LOCAL_ACCESS, Access
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.gradio_patches import set_current_request
from rlhf_lab.ui.label import api as label
from rlhf_lab.ui.network import read_body
from rlhf_lab.ui.request_checks import BadRequestError, is_json, parse_json
from rlhf_lab.ui.shared.api import Payload, parse_payload
from rlhf_lab.ui.shared.presence import PRESENCE
from rlhf_lab.ui.shared.voting import give_leases_back

MAX_REQUEST_BYTES = 1_000
BODY_TAG = re.compile(rb"<body\b[^>]*>")  # what Gradio puts into scripts has no "<"


class BodyInjectionMiddleware:
    """ASGI middleware: inserts meta tags about the visitor and then `html` at the start of the page's <body>.

    The meta tags contain the page cookie of visitors who label without logging in, and whether the visitor is not the operator.
    Must run before the compression of the response.
    """

    def __init__(
        self,
        app: ASGIApp,
        html: str,
        access: Access = LOCAL_ACCESS,
        is_operator: Callable[[Request], bool] = lambda _: True,
    ) -> None:
        self.app, self.html, self.access, self.is_operator = app, html, access, is_operator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"] != "/":
            await self.app(scope, receive, send)
            return
        start_message: Message = {}
        page = b""
        injected, extra_headers = await run_in_threadpool(self._injected_html, Request(scope))

        async def collect(message: Message) -> None:
            nonlocal start_message, page
            if message["type"] == "http.response.start":
                start_message = message
                return
            page += message.get("body", b"")
            if message.get("more_body"):
                return
            page = BODY_TAG.sub(lambda match: match[0] + injected, page, count=1)
            length = (b"content-length", str(len(page)).encode())
            start_message["headers"] = [
                *(header for header in start_message["headers"] if header[0] != length[0]),
                length,
                *extra_headers,
            ]
            await send(start_message)
            await send({"type": "http.response.body", "body": page})

        await self.app(scope, receive, collect)

    def _injected_html(self, request: Request) -> tuple[bytes, list[tuple[bytes, bytes]]]:
        """The HTML to insert, and headers to add, because a page made for one visitor must not be cached for others."""
        injected, extra_headers = self.html, []
        if not self.is_operator(request):
            injected = f'<meta name="lab-guest">{injected}'
        if name := self.access.anonymous_cookie(request):
            injected = f'<meta name="lab-visitor" content="{name}">{injected}'
            https = is_https(request, self.access.public_url)
            cookie = cookie_header(self.access.page_cookie_name, name, COOKIE_MAX_AGE_S, https=https)
            extra_headers = [(b"set-cookie", cookie.encode())]
        if injected is not self.html:
            extra_headers.append((b"cache-control", b"private, no-cache"))
        return injected.encode(), extra_headers


def page_routes(ctx: Context) -> list[Route]:
    """Requests of a page before Gradio has started, and when it is closed. Only JSON, which pages of other sites cannot send.

    POST /first {annotator}: {turns, left, right, guideline} of the pair that the screen Label will show, leased as there;
    status 204 if there is none.
    POST /closed {annotator}: the visitor no longer counts as present, until another visible page of theirs reports.
    """
    return [_json_route(ctx, "/first", first_pair), _json_route(ctx, "/closed", leave)]


def _json_route(ctx: Context, path: str, handle: Callable[[Context, Any], dict[str, Any] | None]) -> Route:
    """A route whose body is JSON. Its reply is that of `handle`; status 204 for None."""

    async def endpoint(request: Request) -> Response:
        body = await read_body(request, MAX_REQUEST_BYTES)
        if body is None:
            return Response(status_code=413)
        if not is_json(request.scope):
            return Response(status_code=415)
        try:
            payload = parse_json(body)
        except BadRequestError:
            return Response(status_code=400)
        set_current_request(request)
        reply = await run_in_threadpool(handle, ctx, payload)
        return JSONResponse(reply) if reply else Response(status_code=204)

    return Route(path, endpoint, methods=["POST"])


def first_pair(ctx: Context, payload: Any) -> dict[str, Any] | None:
    """The pair to show, or None. Errors are not reported here: the screen itself shows them a moment later."""
    try:
        annotator = parse_payload(Payload, payload).annotator
        state = label.state(ctx, ctx.require_annotator(annotator))
    except LabError:
        return None
    pair = state["pair"]
    return pair and {name: pair[name] for name in ("turns", "left", "right", "cut")} | {"guideline": state["guideline"]}


def leave(ctx: Context, payload: Any) -> None:
    """No longer count the visitor among the people who have the page open, and give the pair on their screen back."""
    with contextlib.suppress(LabError):
        if annotator := ctx.annotator_or_empty(parse_payload(Payload, payload).annotator):
            PRESENCE.remove(annotator)
            give_leases_back(ctx, annotator)
