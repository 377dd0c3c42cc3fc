"""Events of the page: who may trigger them, their payloads, and how errors are shown."""

import functools
import json
import logging
import threading
import time
import zlib
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

import gradio as gr

from rlhf_lab.errors import LabError
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.request_checks import describe_exception
from rlhf_lab.ui.shared.api import UNUSABLE_REQUEST_MESSAGE, FieldError, PayloadT, parse_payload

log = logging.getLogger("rlhf_lab.ui.requests")

P = ParamSpec("P")
T = TypeVar("T")


def show_errors(handler: Callable[P, T]) -> Callable[P, T]:
    """A handler whose LabErrors are shown as Gradio's message instead of failing silently. `require_role_for_events` leaves out
    of it what the visitor may not read."""

    @functools.wraps(handler)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return handler(*args, **kwargs)
        except LabError as error:
            raise _toast(error) from error

    return wrapped


def _toast(error: LabError) -> gr.Error:
    return gr.Error(str(error), duration=None, print_exception=False)


def allow_viewers(handler: Callable[P, T]) -> Callable[P, T]:
    """Marks an event that viewers may trigger; `require_role_for_events` leaves it unguarded."""
    handler.for_viewers = True  # type: ignore[attr-defined]  # stays with the function through functools.wraps
    return handler


def require_role_for_events(page: gr.Blocks, ctx: Context) -> None:
    """Guard every event of a page, whatever screen it belongs to: viewers trigger only those marked by `allow_viewers`.

    Events for the operator alone are guarded further by `operator_action`.
    """
    for event in page.fns.values():
        if event.fn is None:
            continue
        if not getattr(event.fn, "for_viewers", False):
            event.fn = _require_labeller_for(event.fn, ctx)
        event.fn = log_unexpected_errors(event.fn, ctx)
    page.process_api = _without_traceback(page.process_api)  # type: ignore[method-assign]  # Gradio has no hook for it


def _require_labeller_for(handler: Callable[P, T], ctx: Context) -> Callable[P, T]:
    @functools.wraps(handler)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        ctx.require_labeller()
        return handler(*args, **kwargs)

    return show_errors(wrapped)


def _without_traceback(process_api: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """`process_api` that logs errors in one line. For values that a component does not accept, Gradio would print a traceback,
    and it does so before it calls the handler, where roles are checked."""

    @functools.wraps(process_api)
    async def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await process_api(*args, **kwargs)
        except gr.Error as error:
            error.print_exception = False
            raise
        except Exception as error:
            log.error("An event failed: %s", describe_exception(error))
            raise _toast(LabError(UNUSABLE_REQUEST_MESSAGE)) from error

    return wrapped


def log_unexpected_errors(handler: Callable[P, T], ctx: Context) -> Callable[P, T]:
    """A handler whose unexpected errors become one line in the log and a message on the page. Gradio would print a traceback for
    every request and send no message."""

    @functools.wraps(handler)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return handler(*args, **kwargs)
        except (LabError, gr.Error) as error:
            raise _toast(
                LabError(ctx.message_for_visitor(error.message if isinstance(error, gr.Error) else error))
            ) from error
        except Exception as error:
            log.error("%s failed: %s", handler.__name__, describe_exception(error))
            raise _toast(LabError(UNUSABLE_REQUEST_MESSAGE)) from error

    return wrapped


def server_function(function: Callable[[dict[str, Any]], T], name: str) -> Callable[[Any], T | dict[str, str]]:
    """A server function of a widget, which the page calls by `name`. Errors are returned as {"error": message}, because Gradio
    turns exceptions into null."""

    def wrapped(query: Any) -> T | dict[str, str]:
        try:
            return function(query if isinstance(query, dict) else {})
        except LabError as error:
            return {"error": str(error)}
        except Exception as error:
            log.error("%s failed: %s", name, describe_exception(error))
            return {"error": UNUSABLE_REQUEST_MESSAGE}

    wrapped.__name__ = name
    return wrapped


def revision_of(value: Any) -> str:
    """A short checksum of JSON data, by which a page recognises changes."""
    return f"{zlib.crc32(json.dumps(value, sort_keys=True).encode()):x}"


def if_changed(reply: dict[str, Any], query: dict[str, Any]) -> dict[str, Any]:
    """The reply, or {"unchanged": True} to a page that has it already."""
    revision = revision_of(reply)
    return {"unchanged": True} if query.get("revision") == revision else reply | {"revision": revision}


Handler = Callable[..., dict[str, Any]]


def operator_action(ctx: Context, model: type[PayloadT], *, toast_errors: bool = False) -> Callable[[Handler], Handler]:
    """Decorates an event handler that only the operator may trigger.

    The decorated function is called with the parsed payload and the further inputs of the event. Gradio calls the decorated
    handler with the secret that the browser stores, the event and these inputs. The reply is what the function returns, or
    {"error": message} (with the "field" of a FieldError); both contain the request_id. toast_errors: show errors as Gradio's
    message instead.
    """

    def decorate(function: Handler) -> Handler:
        def handler(secret: str | None, event: gr.EventData, *values: Any) -> dict[str, Any]:
            return _reply(
                event,
                model,
                lambda payload: function(payload, *values),
                lambda: ctx.require_operator(secret),
                toast_errors,
            )

        handler.__name__ = function.__name__  # Gradio names the endpoint after it
        return handler

    return decorate


def visitor_action(model: type[PayloadT], *, toast_errors: bool = False) -> Callable[[Handler], Handler]:
    """As `operator_action`, for actions that every labeller may perform. Gradio calls the handler with the event and its further
    inputs."""

    def decorate(function: Handler) -> Handler:
        def handler(event: gr.EventData, *values: Any) -> dict[str, Any]:
            return _reply(event, model, lambda payload: function(payload, *values), lambda: None, toast_errors)

        handler.__name__ = function.__name__
        return handler

    return decorate


def _reply(
    event: gr.EventData,
    model: type[PayloadT],
    function: Callable[[PayloadT], dict[str, Any]],
    check: Callable[[], None],
    toast_errors: bool,
) -> dict[str, Any]:
    data = event._data if isinstance(event._data, dict) else {}
    reply = {"request_id": data.get("request_id")}
    try:
        check()
        return reply | function(parse_payload(model, data))
    except LabError as error:
        if toast_errors:
            raise _toast(error) from error
        return reply | {"error": str(error)} | ({"field": error.field} if isinstance(error, FieldError) else {})


def ttl_cache(seconds: float, function: Callable[[], T]) -> Callable[[], T]:
    """The function with its result cached for this many seconds, so that many polling pages cost no more than one."""
    lock, cached = threading.Lock(), list[tuple[float, T]]()

    @functools.wraps(function)
    def wrapped() -> T:
        with lock:
            now = time.monotonic()
            if not cached or now - cached[0][0] > seconds:
                cached[:] = [(now, function())]
            return cached[0][1]

    return wrapped
