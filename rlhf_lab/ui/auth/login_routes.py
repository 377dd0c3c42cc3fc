"""Login routes of a multi-user lab: /join for labellers (code and name), /enter for the operator (the secret link) and for people
in the password file (`rlhf_lab.ui.auth.password_file`)."""

import asyncio
import functools
import threading
import time
from collections import deque
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from rlhf_lab.common import passwords
from rlhf_lab.common.records import Role
from rlhf_lab.errors import LabError
from rlhf_lab.store.annotators import OPERATOR_NAME, add_person
from rlhf_lab.store.database import Database
from rlhf_lab.ui.auth.login_pages import join_form_page, login_redirect, password_form_page
from rlhf_lab.ui.auth.visitors import Access, Visitor, secrets_equal
from rlhf_lab.ui.network import read_body

MAX_FORM_BYTES = 4_000
MAX_FAILURES_PER_MINUTE = 30
#: Verified where nobody has the name, so that the response takes as long as for a known name.
DUMMY_HASH = passwords.SCHEME + "$" + 32 * "0" + "$" + 64 * "0"


class FailedAttemptLimiter:
    """Counts failed attempts of the last minute, of all visitors together."""

    def __init__(self) -> None:
        self._failures: deque[float] = deque(maxlen=MAX_FAILURES_PER_MINUTE)
        self._lock = threading.Lock()

    def is_blocked(self) -> bool:
        with self._lock:
            return len(self._failures) == MAX_FAILURES_PER_MINUTE and time.monotonic() - self._failures[0] < 60.0

    def record_failure(self) -> None:
        with self._lock:
            self._failures.append(time.monotonic())


def login_routes(db: Database, access: Access, *, show_oauth: bool = False) -> list[BaseRoute]:
    """show_oauth: the form also links to the login of `rlhf_lab.ui.auth.oauth`."""
    limiter = FailedAttemptLimiter()
    show_form = functools.partial(
        join_form_page, show_oauth=show_oauth, show_password_link=bool(access.password_entries)
    )

    foreign_form_message = "A page of another site sent this form, so nobody was let in. " + (
        f"Open {access.public_url} and enter there." if access.public_url else "Enter here instead."
    )

    async def join_endpoint(request: Request) -> Response:
        if request.method == "POST":
            if access.is_cross_site(request):
                return show_form("", foreign_form_message, 403)
            return await submit_join_form(request)
        return show_form(request.query_params.get("code", ""))

    async def submit_join_form(request: Request) -> Response:
        fields = await _read_form(request)
        if fields is None:
            return show_form("", "That is too long for a code and a name.", 413)
        code, name = fields.get("code", "").strip().upper(), fields.get("name", "")
        if limiter.is_blocked():
            return show_form(code, "Too many wrong codes in the last minute. Wait a minute and try again.", 429)
        if not secrets_equal(code, access.join_code.upper()):
            limiter.record_failure()
            return show_form("", "That is not the join code of this lab. Ask whoever runs it.", 403, name)
        try:
            person = add_person(db, name, access.password_entries)
        except LabError as error:
            return show_form(code, str(error), 400, name)
        return login_redirect(request, access, Visitor(Role.LABELLER, person.name))

    password_login = PasswordLogin(access)

    def enter_by_key(request: Request, key: str) -> Response:
        # Not limited: nobody guesses 18 random bytes, and wrong join codes must not keep the operator out.
        if not secrets_equal(key, access.operator_secret):
            return show_form(
                "", "That is not the operator's link of this lab; it is printed where the lab is started.", 403
            )
        return login_redirect(request, access, Visitor(Role.OPERATOR, OPERATOR_NAME))

    async def enter_endpoint(request: Request) -> Response:
        if request.method == "POST":
            return await submit_enter_form(request)
        if access.password_entries and "key" not in request.query_params:
            return password_form_page()
        return enter_by_key(request, request.query_params.get("key", ""))

    async def submit_enter_form(request: Request) -> Response:
        if access.is_cross_site(request):
            return show_form("", foreign_form_message, 403)
        fields = await _read_form(request)
        if fields is None:
            return password_form_page("That is too long for a name and a password.", 413)
        if "key" in fields:
            return enter_by_key(request, fields["key"])
        return await password_login(request, fields) if access.password_entries else Response(status_code=405)

    return [
        Route(path, endpoint, methods=["GET", "POST"])
        for path, endpoint in (("/join", join_endpoint), ("/enter", enter_endpoint))
    ]


class PasswordLogin:
    """Entering by name and password. Verifies one password at a time, because each takes 16 MB."""

    def __init__(self, access: Access) -> None:
        self.access, self._limiter, self._lock = access, FailedAttemptLimiter(), asyncio.Lock()

    async def __call__(self, request: Request, fields: dict[str, str]) -> Response:
        name = " ".join(fields.get("name", "").split())
        async with self._lock:
            if self._limiter.is_blocked():
                error_message = "Too many wrong passwords in the last minute. Wait a minute and try again."
                return password_form_page(error_message, 429, name)
            entry = self.access.password_entries.get(name)
            stored_hash = entry.password if entry else DUMMY_HASH
            is_match = await run_in_threadpool(passwords.verify_password, fields.get("password", ""), stored_hash)
            if entry is None or not is_match:
                self._limiter.record_failure()
                return password_form_page("Name and password do not fit. Ask whoever runs this lab.", 403, name)
        return login_redirect(request, self.access, Visitor(entry.role, entry.name))


async def _read_form(request: Request) -> dict[str, str] | None:
    """The fields of a form; None where it is too long."""
    body = await read_body(request, MAX_FORM_BYTES)
    if body is None:
        return None
    return {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
