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

from rlhf_lab.common.records import Project
from rlhf_lab.config.labelling import Role
from rlhf_lab.errors import LabError, NotAllowedError
from rlhf_lab.jobs.project_setup import pick_project
from rlhf_lab.store.annotators import joined_at
from rlhf_lab.store.database import Database
from rlhf_lab.ui.auth.password_file import PasswordEntry
from rlhf_lab.ui.auth.visitors import LOCAL_ACCESS, Access, Visitor, multi_user_access

P = ParamSpec("P")
T = TypeVar("T")
OPERATOR_SECRET_ENV_VAR = "RLHF_LAB_OPERATOR_SECRET"


@dataclass(frozen=True)
class Context:
    """One page server. operator_secret: None where everybody at the page is its operator (a laptop).

    address: how others reach it; "" where they do not, and on a Space. proxied: it is a proxy's that stands before the lab.
    """

    home: Path
    db: Database
    operator_secret: str | None = None
    on_space: bool = False
    access: Access = LOCAL_ACCESS
    public_url: str = ""
    behind_proxy: bool = False

    @classmethod
    def open(cls, home: Path) -> "Context":
        """The home's store; on a Space the operator's secret comes from the environment ("" refuses everybody)."""
        on_space = bool(os.environ.get("SPACE_ID"))
        secret = os.environ.get(OPERATOR_SECRET_ENV_VAR, "") if on_space else os.environ.get(OPERATOR_SECRET_ENV_VAR)
        return cls(home, Database.open(home), secret, on_space)

    def as_multi_user(
        self, *, open_to_all: bool, password_entries: Mapping[str, PasswordEntry] | None = None
    ) -> "Context":
        """The same lab for an address that others reach: visitors have roles. people: who enters by a password. StoreError."""
        access = multi_user_access(
            self.home, open_to_all=open_to_all, operator_secret=self.operator_secret, password_entries=password_entries,
            joined_at=functools.partial(joined_at, self.db),
        )  # fmt: skip
        if self.behind_proxy:
            access = replace(access, host=urlsplit(self.public_url).netloc)
        return replace(self, access=access, operator_secret=access.operator_secret)

    @property
    def project(self) -> Project:
        """The project that the page shows: the one opened last."""
        return pick_project(self.db, None)

    def visitor(self, request: Any = None) -> Visitor:
        """Who sent a request, else who asked for what is being done now; the operator where nobody has to say who they are."""
        return self.access.visitor(LocalContext.request.get(None) if request is None else request)

    def annotator_name(self, claimed_name: object) -> str:
        """The annotator that asks; "" where nobody knows. said: what their page sends, which counts as it stands on a lab of
        one's own alone."""
        if not self.access.is_multi_user:
            return str(claimed_name or "").strip()
        return self.visitor().name or self.access.name_from_token(claimed_name)

    def is_operator(self, request: Any = None) -> bool:
        """Whether the visitor entered as the operator, or none is asked for: who may do everything without the secret."""
        return self.operator_secret is None or (
            self.access.is_multi_user and self.visitor(request).role is Role.OPERATOR
        )

    def require_operator(self, secret: str | None) -> None:
        """Raises NotAllowedError unless the visitor `operates` or gives the operator's secret."""
        if not self.is_operator() and not self._is_secret(secret):
            raise NotAllowedError(
                "Only the operator may do this. Open the operator's link that was printed when the lab was started, or enter "
                f"the operator's secret under Project; it is the value of {OPERATOR_SECRET_ENV_VAR} where the lab runs."
            )

    def is_operator_with_secret(self, secret: str | None) -> bool:
        """Whether `require_operator` lets the visitor pass; never whoever may only look, whose events end before that."""
        return self.is_operator() or (self.visitor().role.at_least(Role.LABELLER) and self._is_secret(secret))

    def _is_secret(self, candidate: str | None) -> bool:
        secret = self.operator_secret
        return bool(secret) and hmac.compare_digest((candidate or "").encode(), (secret or "").encode())

    def require_labeller(self) -> None:
        """Raises NotAllowedError for a visitor who may only look."""
        if not self.visitor().role.at_least(Role.LABELLER):
            raise NotAllowedError("You may look at this lab. To label, enter with the join code: open the page /join.")


def show_errors(handler: Callable[P, T]) -> Callable[P, T]:
    """A handler whose LabErrors reach the person as a message instead of a silent failure."""

    @functools.wraps(handler)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return handler(*args, **kwargs)
        except LabError as error:
            raise gr.Error(str(error), duration=None, print_exception=False) from error

    return wrapped


def allow_viewers(handler: Callable[P, T]) -> Callable[P, T]:
    """Marks an event that somebody who may only look may trigger; `guard_events` lets it pass."""
    handler.for_viewers = True  # type: ignore[attr-defined]  # stays with the function through functools.wraps
    return handler


def require_role_for_events(page: gr.Blocks, ctx: Context) -> None:
    """Make every event of a page ask who triggers it, whatever screen it belongs to: viewers trigger none but the marked.

    What only the operator may do asks for more by itself (`require_operator`).
    """
    for event in page.fns.values():
        if event.fn is not None and not getattr(event.fn, "for_viewers", False):
            event.fn = _require_labeller_for(event.fn, ctx)


def _require_labeller_for(handler: Callable[P, T], ctx: Context) -> Callable[P, T]:
    @functools.wraps(handler)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        ctx.require_labeller()
        return handler(*args, **kwargs)

    return show_errors(wrapped)


def server_function(function: Callable[[Any], T]) -> Callable[[Any], T | dict[str, str]]:
    """A server function for a widget: errors come back as {"error": words}, because Gradio turns exceptions into null."""

    @functools.wraps(function)
    def wrapped(query: Any) -> T | dict[str, str]:
        try:
            return function(query or {})
        except LabError as error:
            return {"error": str(error)}

    return wrapped


def if_changed(reply: dict[str, Any], query: dict[str, Any]) -> dict[str, Any]:
    """The reply, or {"same": True} to a page that has it already."""
    revision = f"{zlib.crc32(json.dumps(reply, sort_keys=True).encode()):x}"
    return {"same": True} if query.get("seen") == revision else reply | {"seen": revision}


def operator_action(
    ctx: Context, secret: str | None, event: gr.EventData, handler: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """What a widget is told about an act of the operator: what `do` says, or {"error": words}; with the "at" it was sent at."""
    payload = dict(event._data or {})
    try:
        ctx.require_operator(secret)
        return {"at": payload.get("at"), **handler(payload)}
    except LabError as error:
        return {"at": payload.get("at"), "error": str(error)}


def ttl_cache(seconds: float, function: Callable[[], T]) -> Callable[[], T]:
    """The function's answer, asked for at most once in so many seconds however many pages poll."""
    lock, cached = threading.Lock(), list[tuple[float, T]]()

    @functools.wraps(function)
    def wrapped() -> T:
        with lock:
            now = time.monotonic()
            if not cached or now - cached[0][0] > seconds:
                cached[:] = [(now, function())]
            return cached[0][1]

    return wrapped
