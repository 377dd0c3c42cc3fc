"""The doors of a guarded lab: /join for labellers (code and name), /enter for the operator (the secret link) and for people who
have a password (the file that `rlhf_lab.ui.auth_file` reads)."""

import asyncio
import functools
import hmac
import threading
import time
from collections import deque
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from rlhf_lab import passwords
from rlhf_lab.errors import LabError
from rlhf_lab.labelling import Role
from rlhf_lab.store.database import Database
from rlhf_lab.store.people import OPERATOR, join
from rlhf_lab.ui.access import Access, Visitor
from rlhf_lab.ui.doorway import form, let_in, password_form

MOST_BYTES = 4_000
WRONG_PER_MINUTE = 30
#: What is compared with where nobody has the name: that takes as long as a hash of somebody's.
NOBODYS = passwords.SCHEME + "$" + 32 * "0" + "$" + 64 * "0"


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


def entrance(db: Database, access: Access, *, sign_in: bool = False) -> list[BaseRoute]:
    """The routes of the doors. sign_in: the form also shows the way to the one of `rlhf_lab.ui.sign_in`."""
    patience = Patience()
    show_form = functools.partial(form, sign_in=sign_in, passwords=bool(access.people))

    async def show(request: Request) -> Response:
        if request.method == "POST":
            return await enter(request)
        return show_form(request.query_params.get("code", ""))

    async def enter(request: Request) -> Response:
        said = await _said(request)
        if said is None:
            return show_form("", "That is too long for a code and a name.", 413)
        code, name = said.get("code", "").strip().upper(), said.get("name", "")
        if patience.exhausted():
            return show_form(code, "Too many wrong codes in the last minute. Wait a minute and try again.", 429)
        if not same(code, access.join_code.upper()):
            patience.wrong()
            return show_form("", "That is not the join code of this lab. Ask whoever runs it.", 403, name)
        try:
            person = join(db, name, access.people)
        except LabError as error:
            return show_form(code, str(error), 400, name)
        return let_in(request, access, Visitor(Role.LABELLER, person.name))

    by_password = PasswordDoor(access)

    async def come_in(request: Request) -> Response:
        if access.people and "key" not in request.query_params:
            return await by_password(request)
        # Without patience: nobody guesses 18 random bytes, and whoever mistypes join codes must not keep the operator out.
        if not same(request.query_params.get("key", ""), access.operator_secret):
            return show_form(
                "", "That is not the operator's link of this lab; it is printed where the lab is started.", 403
            )
        return let_in(request, access, Visitor(Role.OPERATOR, OPERATOR))

    methods = ["GET", "POST"] if access.people else ["GET"]
    return [Route("/join", show, methods=["GET", "POST"]), Route("/enter", come_in, methods=methods)]


class PasswordDoor:
    """The form for people of the file. One password is looked at at a time, for each takes 16 MB."""

    def __init__(self, access: Access) -> None:
        self.access, self._patience, self._turn = access, Patience(), asyncio.Lock()

    async def __call__(self, request: Request) -> Response:
        if request.method != "POST":
            return password_form()
        said = await _said(request)
        if said is None:
            return password_form("That is too long for a name and a password.", 413)
        name = " ".join(said.get("name", "").split())
        async with self._turn:
            if self._patience.exhausted():
                words = "Too many wrong passwords in the last minute. Wait a minute and try again."
                return password_form(words, 429, name)
            entry = self.access.people.get(name)
            kept = entry.password if entry else NOBODYS
            fits = await run_in_threadpool(passwords.matches, said.get("password", ""), kept)
            if entry is None or not fits:
                self._patience.wrong()
                return password_form("Name and password do not fit. Ask whoever runs this lab.", 403, name)
        return let_in(request, self.access, Visitor(entry.role, entry.name))


async def _said(request: Request) -> dict[str, str] | None:
    """The fields of a form; None where it is too long to be one."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BYTES:
            return None
    return {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}


def same(said: str, right: str) -> bool:
    return bool(right) and hmac.compare_digest(said.encode(), right.encode())
