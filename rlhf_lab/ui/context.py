"""What every screen needs: the home, the store, and who may do what."""

import functools
import hmac
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import gradio as gr

from rlhf_lab.errors import LabError, NotAllowedError
from rlhf_lab.jobs.setup import pick_project
from rlhf_lab.records import Project
from rlhf_lab.store.database import Database

P = ParamSpec("P")
T = TypeVar("T")
SECRET_VARIABLE = "RLHF_LAB_OPERATOR_SECRET"


@dataclass(frozen=True)
class Context:
    """One page server. operator_secret: None where everybody at the page is its operator (a laptop)."""

    home: Path
    db: Database
    operator_secret: str | None = None
    on_space: bool = False

    @classmethod
    def open(cls, home: Path) -> "Context":
        """The home's store; on a Space the operator's secret comes from the environment ("" refuses everybody)."""
        on_space = bool(os.environ.get("SPACE_ID"))
        secret = os.environ.get(SECRET_VARIABLE, "") if on_space else os.environ.get(SECRET_VARIABLE)
        return cls(home, Database.open(home), secret, on_space)

    @property
    def project(self) -> Project:
        """The project that the page shows: the one opened last."""
        return pick_project(self.db, None)

    def require_operator(self, secret: str | None) -> None:
        """Raises NotAllowedError unless the secret is the operator's, or none is asked for."""
        if self.operator_secret is None:
            return
        if not self.operator_secret or not hmac.compare_digest(secret or "", self.operator_secret):
            raise NotAllowedError(
                "Only the operator may do this. Enter the operator's secret under Project; it is the value of "
                f"{SECRET_VARIABLE} where the lab runs."
            )


def told(handler: Callable[P, T]) -> Callable[P, T]:
    """A handler whose LabErrors reach the person as a message instead of a silent failure."""

    @functools.wraps(handler)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return handler(*args, **kwargs)
        except LabError as error:
            raise gr.Error(str(error), duration=None, print_exception=False) from error

    return wrapped


def read(function: Callable[[Any], T]) -> Callable[[Any], T | dict[str, str]]:
    """A server function for a widget: errors come back as {"error": words}, because Gradio turns exceptions into null."""

    @functools.wraps(function)
    def wrapped(question: Any) -> T | dict[str, str]:
        try:
            return function(question or {})
        except LabError as error:
            return {"error": str(error)}

    return wrapped


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
