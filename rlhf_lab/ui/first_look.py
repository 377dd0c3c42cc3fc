"""What stands on the page before Gradio has drawn it: our styles and scripts in the HTML itself, and the pair to label.

Gradio adds its users' head only when its own script runs, seconds later on a slow machine; reading can begin before. In the body
our styles also come after all of Gradio's, whose rules would win otherwise.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from gradio.context import LocalContext
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlhf_lab.errors import LabError
from rlhf_lab.ui import label
from rlhf_lab.ui.access import ALONE, Access
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.doorway import MONTH_S, cookie_line, is_https

MOST_BYTES = 1_000
BODY = re.compile(rb"<body\b[^>]*>")  # what Gradio puts into scripts has no "<"


class BodyStart:
    """ASGI middleware: puts `html` at the beginning of the page's <body>, and before it the name of who may label without
    having entered, which their cookie says too, and whether somebody else operates the lab. Inside what compresses answers.

    operates: whether who sent a request is the operator.
    """

    def __init__(
        self, app: ASGIApp, html: str, access: Access = ALONE, operates: Callable[[Request], bool] = lambda _: True
    ) -> None:
        self.app, self.html, self.access, self.operates = app, html, access, operates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"] != "/":
            await self.app(scope, receive, send)
            return
        begun: Message = {}
        page = b""
        start, more = self._greeting(Request(scope))

        async def collect(message: Message) -> None:
            nonlocal begun, page
            if message["type"] == "http.response.start":
                begun = message
                return
            page += message.get("body", b"")
            if message.get("more_body"):
                return
            page = BODY.sub(lambda found: found[0] + start, page, count=1)
            length = (b"content-length", str(len(page)).encode())
            begun["headers"] = [*(pair for pair in begun["headers"] if pair[0] != length[0]), length, *more]
            await send(begun)
            await send({"type": "http.response.body", "body": page})

        await self.app(scope, receive, collect)

    def _greeting(self, request: Request) -> tuple[bytes, list[tuple[bytes, bytes]]]:
        """What the body begins with, and the headers beside it: nobody may keep what is one visitor's for somebody else."""
        start, more = self.html, []
        if not self.operates(request):
            start = f'<meta name="lab-guest">{start}'
        if name := self.access.newcomer(request):
            start = f'<meta name="lab-visitor" content="{name}">{start}'
            cookie = cookie_line(self.access.page_cookie, name, MONTH_S, https=is_https(request))
            more = [(b"set-cookie", cookie.encode())]
        if start is not self.html:
            more.append((b"cache-control", b"private, no-cache"))
        return start.encode(), more


def first_look(ctx: Context) -> Route:
    """POST /first {annotator}: {prompt, left, right, guideline} of the pair that the screen Label will show, kept for this
    person as there; 204 where there is none to show. Only JSON is taken, which another site's page cannot send."""

    async def answer(request: Request) -> Response:
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > MOST_BYTES:
                return Response(status_code=413)
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return Response(status_code=415)
        try:
            said = json.loads(body)
        except ValueError:
            return Response(status_code=400)
        LocalContext.request.set(request)  # type: ignore[arg-type]  # who asks, as in an event
        found = await run_in_threadpool(look, ctx, said)
        return JSONResponse(found) if found else Response(status_code=204)

    return Route("/first", answer, methods=["POST"])


def look(ctx: Context, said: Any) -> dict[str, Any] | None:
    """What to show, or None: whatever is wrong is told by the screen itself, a moment later."""
    try:
        state = label.state(ctx, label.checked_name(ctx, said.get("annotator")))
    except (LabError, AttributeError):
        return None
    pair = state["pair"]
    return pair and {name: pair[name] for name in ("prompt", "left", "right")} | {"guideline": state["guideline"]}
