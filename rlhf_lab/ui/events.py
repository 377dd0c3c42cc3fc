"""Events of the page: who may trigger them, what they carry, and how errors reach the person."""

import functools
import json
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import gradio as gr
from pydantic import BaseModel, ConfigDict, ValidationError

from rlhf_lab.errors import ConfigError, LabError
from rlhf_lab.ui.context import Context

P = ParamSpec("P")
T = TypeVar("T")


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
    """Marks an event that somebody who may only look may trigger; `require_role_for_events` lets it pass."""
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


def revision_of(value: Any) -> str:
    """A short checksum of JSON data, by which a page knows whether something has changed."""
    return f"{zlib.crc32(json.dumps(value, sort_keys=True).encode()):x}"


def if_changed(reply: dict[str, Any], query: dict[str, Any]) -> dict[str, Any]:
    """The reply, or {"unchanged": True} to a page that has it already."""
    revision = revision_of(reply)
    return {"unchanged": True} if query.get("revision") == revision else reply | {"revision": revision}


class Payload(BaseModel):
    """What the page sends with an event; each event has a subclass with its fields. Unknown keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    request_id: int | None = None  # sent back with the reply, so that the page knows which request it answers


PayloadT = TypeVar("PayloadT", bound=Payload)


def parse_payload(model: type[PayloadT], data: Any) -> PayloadT:
    """Raises ConfigError, naming the field, for data that does not fit the model."""
    try:
        return model.model_validate(dict(data or {}))
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=True)[0]
        cause = problem.get("ctx", {}).get("error")
        if isinstance(cause, LabError):
            raise cause from None
        raise unusable(str(problem["loc"][0]) if problem["loc"] else "request") from None


def unusable(name: str) -> ConfigError:
    """The error for a field of a payload that is missing or malformed."""
    return ConfigError(f"The page sent no usable {name.replace('_', ' ')}. Reload it and try again.")


def operator_action(
    ctx: Context, model: type[PayloadT]
) -> Callable[[Callable[..., dict[str, Any]]], Callable[..., dict[str, Any]]]:
    """Decorates an event handler that only the operator may trigger.

    The decorated function is called with the parsed payload and the further inputs of the event. Gradio calls the result with
    the secret that the browser keeps, the event and these inputs. The reply is what the function returns, or {"error": message};
    both carry the request_id.
    """

    def decorate(function: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        def handler(secret: str | None, event: gr.EventData, *values: Any) -> dict[str, Any]:
            def checked(payload: PayloadT) -> dict[str, Any]:
                return function(payload, *values)

            return _reply(event, model, checked, lambda: ctx.require_operator(secret))

        handler.__name__ = function.__name__  # Gradio names the endpoint after it
        return handler

    return decorate


def visitor_action(
    model: type[PayloadT],
) -> Callable[[Callable[..., dict[str, Any]]], Callable[..., dict[str, Any]]]:
    """As `operator_action`, for what every labeller may do. Gradio calls the result with the event and its further inputs."""

    def decorate(function: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        def handler(event: gr.EventData, *values: Any) -> dict[str, Any]:
            return _reply(event, model, lambda payload: function(payload, *values))

        handler.__name__ = function.__name__
        return handler

    return decorate


def _reply(
    event: gr.EventData,
    model: type[PayloadT],
    function: Callable[[PayloadT], dict[str, Any]],
    check: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    data = dict(event._data or {})
    reply = {"request_id": data.get("request_id")}
    try:
        check()
        return reply | function(parse_payload(model, data))
    except LabError as error:
        return reply | {"error": str(error), "field": getattr(error, "field", "")}


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
