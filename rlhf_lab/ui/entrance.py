"""The two doors of a guarded lab: /join for labellers (code and name), /enter for the operator (the secret link)."""

import hmac
import threading
import time
from collections import deque
from html import escape
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from rlhf_lab.errors import LabError
from rlhf_lab.labelling import Role
from rlhf_lab.store.database import Database
from rlhf_lab.store.people import MAX_NAME, join
from rlhf_lab.ui.access import COOKIE, Access, Visitor

MONTH_S = 30 * 86_400
MOST_BYTES = 4_000
WRONG_PER_MINUTE = 30
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'",
    "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
}  # fmt: skip
STYLE = """
:root { color-scheme: light dark; font: 17px/1.5 system-ui, -apple-system, 'Segoe UI', sans-serif; }
body { margin: 0; display: grid; place-items: center; min-height: 90vh; padding: 16px; }
form { display: grid; gap: 14px; width: min(100%, 22rem); }
h1 { font-size: 1.4rem; margin: 0; } p { margin: 0; } label { display: grid; gap: 4px; }
input, button { font: inherit; padding: 11px 13px; border-radius: 10px; border: 1px solid #8a93a6; min-width: 0; }
#code { letter-spacing: .18em; text-transform: uppercase; }
button { background: #4f46e5; color: #fff; border: 0; min-height: 48px; font-weight: 600; }
[role=alert] { border-left: 4px solid #b3261e; padding-left: 10px; }
"""


class Patience:
    """Counts wrong codes: guessing one takes longer than a talk, and nobody who mistypes is kept out for long."""

    def __init__(self) -> None:
        self._wrong: deque[float] = deque(maxlen=WRONG_PER_MINUTE)
        self._lock = threading.Lock()

    def exhausted(self) -> bool:
        with self._lock:
            return len(self._wrong) == WRONG_PER_MINUTE and time.monotonic() - self._wrong[0] < 60.0

    def wrong(self) -> None:
        with self._lock:
            self._wrong.append(time.monotonic())


def entrance(db: Database, access: Access) -> list[BaseRoute]:
    """The routes of both doors."""
    patience = Patience()

    async def show(request: Request) -> Response:
        if request.method == "POST":
            return await enter(request)
        return _form(request.query_params.get("code", ""))

    async def enter(request: Request) -> Response:
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > MOST_BYTES:
                return _form("", "That is too long for a code and a name.", 413)
        said = {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
        code, name = said.get("code", "").strip().upper(), said.get("name", "")
        if patience.exhausted():
            return _form(code, "Too many wrong codes in the last minute. Wait a minute and try again.", 429)
        if not same(code, access.join_code.upper()):
            patience.wrong()
            return _form("", "That is not the join code of this lab. Ask whoever runs it.", 403, name)
        try:
            person = join(db, name)
        except LabError as error:
            return _form(code, str(error), 400, name)
        return _with_cookie(request, access, Visitor(Role.LABELLER, person.name))

    async def operator(request: Request) -> Response:
        if patience.exhausted() or not same(request.query_params.get("key", ""), access.operator_secret):
            patience.wrong()
            return _form(
                "", "That is not the operator's link of this lab; it is printed where the lab is started.", 403
            )
        return _with_cookie(request, access, Visitor(Role.OPERATOR, "operator"))

    return [Route("/join", show, methods=["GET", "POST"]), Route("/enter", operator, methods=["GET"])]


def same(said: str, right: str) -> bool:
    return bool(right) and hmac.compare_digest(said.encode(), right.encode())


def _with_cookie(request: Request, access: Access, visitor: Visitor) -> Response:
    """Off to the lab. Over https the cookie is one that also reaches us inside another site's frame, as on Spaces."""
    answer = RedirectResponse("./", status_code=303, headers=HEADERS)
    https = request.url.scheme == "https" or request.headers.get("x-forwarded-proto", "").startswith("https")
    value, age = access.cookie(visitor), f"Path=/; Max-Age={MONTH_S}; HttpOnly"
    scope = "SameSite=None; Secure; Partitioned" if https else "SameSite=Lax"
    answer.headers.append("set-cookie", f"{COOKIE}={value}; {age}; {scope}")
    return answer


def _form(code: str, problem: str = "", status: int = 200, name: str = "") -> HTMLResponse:
    alert = f'<p role="alert">{escape(problem)}</p>' if problem else ""
    page = f"""<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>Join RLHF Lab</title><style>{STYLE}</style></head>
<body><form method="post" action="join"><h1>Join RLHF Lab</h1>
<p>Read two texts, say which is better; a model learns from it.</p>{alert}
<label for="code">Join code<input id="code" name="code" required maxlength="40" autocomplete="off" value="{escape(code)}"></label>
<label for="name">Your name here<input id="name" name="name" required maxlength="{MAX_NAME}" autocomplete="nickname" autofocus
 value="{escape(name)}"></label><button>Join</button></form></body></html>"""
    return HTMLResponse(page, status_code=status, headers=HEADERS)
