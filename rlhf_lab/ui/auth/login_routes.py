"""Login routes of a multi-user lab: /join for labellers (code and name), /enter for the operator (the secret link) and for people
in the password file (`rlhf_lab.ui.auth.password_file`), /leave to log out."""

import asyncio
import functools
import logging
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
from rlhf_lab.ui.auth.failed_attempts import FailedAttemptLimiter
from rlhf_lab.ui.auth.login_pages import (
    join_form_page,
    login_redirect,
    logout_page,
    logout_redirect,
    password_form_page,
)
from rlhf_lab.ui.auth.password_file import find_entry
from rlhf_lab.ui.auth.visitors import Access, Visitor, is_join_code, secrets_equal
from rlhf_lab.ui.locations import without_locations
from rlhf_lab.ui.network import read_body

MAX_FORM_BYTES = 4_000
#: Verified if no entry has the name, so that the response takes as long as for a known name.
DUMMY_HASH = passwords.SCHEME + "$" + 32 * "0" + "$" + 64 * "0"

logger = logging.getLogger(__name__)


def login_routes(db: Database, access: Access, *, show_oauth: bool = False) -> list[BaseRoute]:
    """The login routes. show_oauth: the join form also links to the login of `rlhf_lab.ui.auth.oauth`."""
    forms = LoginForms(db, access, show_oauth=show_oauth)
    endpoints = {"/join": forms.join, "/enter": forms.enter, "/leave": forms.leave}
    return [Route(path, endpoint, methods=["GET", "POST"]) for path, endpoint in endpoints.items()]


class LoginForms:
    """The endpoints. A form sent by a page of another site is refused: it could log the visitor in under a name of its choice
    (login CSRF), or log them out."""

    def __init__(self, db: Database, access: Access, *, show_oauth: bool) -> None:
        self.db, self.access = db, access
        self._limiter, self._password_login = access.code.failures, PasswordLogin(access)
        self._join_form = functools.partial(
            join_form_page, show_oauth=show_oauth, show_password_link=bool(access.password_entries)
        )

    async def join(self, request: Request) -> Response:
        if request.method != "POST":
            return self._join_form(request.query_params.get("code", ""))
        if self.access.is_cross_site(request):
            return self._foreign_form_page()
        fields = await _read_form(request)
        if fields is None:
            return self._join_form("", "The code or the name is too long.", 413)
        return await self._submit_join_form(request, fields)

    async def _submit_join_form(self, request: Request, fields: dict[str, str]) -> Response:
        code, name = fields.get("code", "").strip(), fields.get("name", "")
        address = self.access.client_address(request)
        wait_message = "Too many wrong codes in the last minute. Wait a minute and try again."
        if self._limiter.is_blocked(address):
            return self._join_form(code, wait_message, 429)
        if not is_join_code(code, self.access.join_code):
            if self._limiter.record_failure(address):
                return self._join_form(code, wait_message, 429, name)
            return self._join_form(code, "This is not the join code of this lab. Ask whoever runs it.", 403, name)
        return await run_in_threadpool(self._add_labeller, request, code, name)

    def _add_labeller(self, request: Request, code: str, name: str) -> Response:
        try:
            person = add_person(self.db, name, self.access.password_entries)
        except LabError as error:
            return self._join_form(code, without_locations(str(error), [self.db.location]), 400, name)
        if not is_join_code(code, self.access.join_code):  # renewed in between
            return self._join_form(code, "The join code has just changed. Ask whoever runs the lab.", 403, name)
        return login_redirect(request, self.access, Visitor(Role.LABELLER, person.name))

    async def enter(self, request: Request) -> Response:
        if request.method != "POST":
            if self.access.password_entries and "key" not in request.query_params:
                return password_form_page()
            return self._enter_by_key(request, request.query_params.get("key", ""))
        if self.access.is_cross_site(request):
            return self._foreign_form_page()
        fields = await _read_form(request)
        if fields is None:
            return password_form_page("The name or the password is too long.", 413)
        if "key" in fields:
            return self._enter_by_key(request, fields["key"])
        return (
            await self._password_login(request, fields) if self.access.password_entries else Response(status_code=405)
        )

    def _enter_by_key(self, request: Request, key: str) -> Response:
        # Not limited: nobody guesses 18 random bytes, and wrong join codes must not keep the operator out.
        if not secrets_equal(key, self.access.operator_secret):
            return self._join_form(
                "", "This is not the operator's link of this lab. The link is printed when the lab starts.", 403
            )
        return login_redirect(request, self.access, Visitor(Role.OPERATOR, OPERATOR_NAME))

    async def leave(self, request: Request) -> Response:
        if request.method != "POST":
            visitor = await run_in_threadpool(self.access.visitor, request)
            return logout_page(visitor.registered_name)
        if self.access.is_cross_site(request):
            return self._foreign_form_page()
        try:
            await run_in_threadpool(self.access.end_session, request)
        except LabError as error:
            logger.warning("%s", error)
        return logout_redirect(request, self.access)

    def _foreign_form_page(self) -> Response:
        own_address = self.access.public_url
        advice = f"Open {own_address} and log in there." if own_address else "Log in here instead."
        return self._join_form("", f"A page of another site sent this form, so nothing was done. {advice}", 403)


class PasswordLogin:
    """Login by name and password. Verifies one password at a time, because each takes 16 MB."""

    def __init__(self, access: Access) -> None:
        self.access, self._limiter, self._lock = access, FailedAttemptLimiter("passwords"), asyncio.Lock()

    async def __call__(self, request: Request, fields: dict[str, str]) -> Response:
        name, address = " ".join(fields.get("name", "").split()), self.access.client_address(request)
        wait_message = "Too many wrong passwords in the last minute. Wait a minute and try again."
        async with self._lock:
            if self._limiter.is_blocked(address):
                return password_form_page(wait_message, 429, name)
            entry = find_entry(self.access.password_entries, name)
            stored_hash = entry.password if entry else DUMMY_HASH
            is_match = await run_in_threadpool(passwords.verify_password, fields.get("password", ""), stored_hash)
            if entry is None or not is_match:
                if self._limiter.record_failure(address):
                    return password_form_page(wait_message, 429, name)
                return password_form_page("Name or password is wrong. Ask the operator of this lab.", 403, name)
        return login_redirect(request, self.access, Visitor(entry.role, entry.name))


async def _read_form(request: Request) -> dict[str, str] | None:
    """The fields of a form; None if it is too long."""
    body = await read_body(request, MAX_FORM_BYTES)
    if body is None:
        return None
    return {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
