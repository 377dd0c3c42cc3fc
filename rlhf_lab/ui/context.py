"""What every screen needs: the home, the store, and who may do what."""

import functools
import hmac
import json
import os
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from urllib.parse import urlsplit

import gradio as gr
from gradio.context import LocalContext

from rlhf_lab.errors import LabError, NotAllowedError
from rlhf_lab.jobs.setup import pick_project
from rlhf_lab.labelling import Role
from rlhf_lab.records import Project
from rlhf_lab.store.database import Database
from rlhf_lab.store.people import joined_at
from rlhf_lab.ui.access import ALONE, Access, Visitor, guarded_access
from rlhf_lab.ui.auth_file import Entry

P = ParamSpec("P")
T = TypeVar("T")
SECRET_VARIABLE = "RLHF_LAB_OPERATOR_SECRET"


@dataclass(frozen=True)
class Context:
    """One page server. operator_secret: None where everybody at the page is its operator (a laptop).

    address: how others reach it; "" where they do not, and on a Space. proxied: it is a proxy's that stands before the lab.
    """

    home: Path
    db: Database
    operator_secret: str | None = None
    on_space: bool = False
    access: Access = ALONE
    address: str = ""
    proxied: bool = False

    @classmethod
    def open(cls, home: Path) -> "Context":
        """The home's store; on a Space the operator's secret comes from the environment ("" refuses everybody)."""
        on_space = bool(os.environ.get("SPACE_ID"))
        secret = os.environ.get(SECRET_VARIABLE, "") if on_space else os.environ.get(SECRET_VARIABLE)
        return cls(home, Database.open(home), secret, on_space)

    def guarded(self, *, open_to_all: bool, people: Mapping[str, Entry] | None = None) -> "Context":
        """The same lab for an address that others reach: visitors have roles. people: who enters by a password. StoreError."""
        access = guarded_access(
            self.home, open_to_all=open_to_all, operator_secret=self.operator_secret, people=people,
            since=functools.partial(joined_at, self.db),
        )  # fmt: skip
        if self.proxied:
            access = replace(access, host=urlsplit(self.address).netloc)
        return replace(self, access=access, operator_secret=access.operator_secret)

    @property
    def project(self) -> Project:
        """The project that the page shows: the one opened last."""
        return pick_project(self.db, None)

    def visitor(self, request: Any = None) -> Visitor:
        """Who sent a request, else who asked for what is being done now; the operator where nobody has to say who they are."""
        return self.access.visitor(LocalContext.request.get(None) if request is None else request)

    def name(self, said: object) -> str:
        """The annotator that asks; "" where nobody knows. said: what their page sends, which counts as it stands on a lab of
        one's own alone."""
        if not self.access.guarded:
            return str(said or "").strip()
        return self.visitor().name or self.access.named(said)

    def operates(self, request: Any = None) -> bool:
        """Whether the visitor entered as the operator, or none is asked for: who may do everything without the secret."""
        return self.operator_secret is None or (self.access.guarded and self.visitor(request).role is Role.OPERATOR)

    def require_operator(self, secret: str | None) -> None:
        """Raises NotAllowedError unless the visitor `operates` or gives the operator's secret."""
        if not self.operates() and not self._is_secret(secret):
            raise NotAllowedError(
                "Only the operator may do this. Open the operator's link that was printed when the lab was started, or enter "
                f"the operator's secret under Project; it is the value of {SECRET_VARIABLE} where the lab runs."
            )

    def may_operate(self, secret: str | None) -> bool:
        """Whether `require_operator` lets the visitor pass; never whoever may only look, whose events end before that."""
        return self.operates() or (self.visitor().role.may(Role.LABELLER) and self._is_secret(secret))

    def _is_secret(self, said: str | None) -> bool:
        secret = self.operator_secret
        return bool(secret) and hmac.compare_digest((said or "").encode(), (secret or "").encode())

    def require_labeller(self) -> None:
        """Raises NotAllowedError for a visitor who may only look."""
        if not self.visitor().role.may(Role.LABELLER):
            raise NotAllowedError("You may look at this lab. To label, enter with the join code: open the page /join.")


def told(handler: Callable[P, T]) -> Callable[P, T]:
    """A handler whose LabErrors reach the person as a message instead of a silent failure."""

    @functools.wraps(handler)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return handler(*args, **kwargs)
        except LabError as error:
            raise gr.Error(str(error), duration=None, print_exception=False) from error

    return wrapped


def for_viewers(handler: Callable[P, T]) -> Callable[P, T]:
    """Marks an event that somebody who may only look may trigger; `guard_events` lets it pass."""
    handler.for_viewers = True  # type: ignore[attr-defined]  # stays with the function through functools.wraps
    return handler


def guard_events(page: gr.Blocks, ctx: Context) -> None:
    """Make every event of a page ask who triggers it, whatever screen it belongs to: viewers trigger none but the marked.

    What only the operator may do asks for more by itself (`require_operator`).
    """
    for event in page.fns.values():
        if event.fn is not None and not getattr(event.fn, "for_viewers", False):
            event.fn = _guarded(event.fn, ctx)


def _guarded(handler: Callable[P, T], ctx: Context) -> Callable[P, T]:
    @functools.wraps(handler)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        ctx.require_labeller()
        return handler(*args, **kwargs)

    return told(wrapped)


def read(function: Callable[[Any], T]) -> Callable[[Any], T | dict[str, str]]:
    """A server function for a widget: errors come back as {"error": words}, because Gradio turns exceptions into null."""

    @functools.wraps(function)
    def wrapped(question: Any) -> T | dict[str, str]:
        try:
            return function(question or {})
        except LabError as error:
            return {"error": str(error)}

    return wrapped


def unless_seen(reply: dict[str, Any], question: dict[str, Any]) -> dict[str, Any]:
    """The reply, or {"same": True} to a page that has it already."""
    seen = f"{zlib.crc32(json.dumps(reply, sort_keys=True).encode()):x}"
    return {"same": True} if question.get("seen") == seen else reply | {"seen": seen}


def operated(
    ctx: Context, secret: str | None, event: gr.EventData, do: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """What a widget is told about an act of the operator: what `do` says, or {"error": words}; with the "at" it was sent at."""
    said = dict(event._data or {})
    try:
        ctx.require_operator(secret)
        return {"at": said.get("at"), **do(said)}
    except LabError as error:
        return {"at": said.get("at"), "error": str(error)}


def shared_for(seconds: float, function: Callable[[], T]) -> Callable[[], T]:
    """The function's answer, asked for at most once in so many seconds however many pages poll."""
    lock, held = threading.Lock(), list[tuple[float, T]]()

    @functools.wraps(function)
    def answer() -> T:
        with lock:
            now = time.monotonic()
            if not held or now - held[0][0] > seconds:
                held[:] = [(now, function())]
            return held[0][1]

    return answer
