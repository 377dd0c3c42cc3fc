"""Checks the JSON of a request before Gradio reads it, so that invalid arguments get a 4xx reply and one line in the log.

Every body below API_PATH is checked as JSON, whatever media type it states, because Gradio's routes differ in what they parse;
elsewhere every body with a JSON media type. Only uploads (`BodyLimits`) are not read.
"""

import email.message
import json
import logging
import math
import re
import traceback
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StrictInt, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlhf_lab.ui.gradio_patches import forget_old_sessions, names_other_file, page_events
from rlhf_lab.ui.limits import act_of_path
from rlhf_lab.ui.middleware import UPLOAD_PATH

log = logging.getLogger("rlhf_lab.ui.requests")

API_PATH = "/gradio_api/"
CALL_PATH = re.compile(rf"{API_PATH}(?:(run|api|call|call/v2)/([^/]*)|queue/join)/?$")
MAX_JSON_DEPTH = 50
MAX_JSON_INT = 2**63 - 1
#: Names and values. The page sends some hundreds; the message about each wrong one of a list costs 10 µs.
MAX_JSON_VALUES = 10_000
TOO_MANY_VALUES = f"The JSON has more than {MAX_JSON_VALUES:,} values."
MAX_SESSION_LENGTH = 100  # of the random text by which Gradio identifies a page or program
#: A string of JSON, or one that does not end.
JSON_STRING = re.compile(rb'"(?>[^"\\]+|\\.)*+(?:"|\\?\Z)', re.DOTALL)


class BadRequestError(Exception):
    """A request that is refused. status: the HTTP status of the reply. wait_s: seconds after which it would be accepted."""

    def __init__(self, message: str, status: int = 400, wait_s: int = 0) -> None:
        super().__init__(message)
        self.status, self.wait_s = status, wait_s


class EventCall(BaseModel):
    """Body of a request to /run, /api, /call and /queue/join."""

    data: list[Any] = []
    fn_index: StrictInt | None = None
    session_hash: Annotated[str, Field(max_length=MAX_SESSION_LENGTH)] | None = None
    trigger_id: StrictInt | None = None
    event_data: Any = None
    batched: Literal[False] | None = None


class RequestChecks:
    """ASGI middleware. count: counts the act that a request asks for (see `limits.LIMITS`), or raises BadRequestError.

    A request is counted before its body is read, so that refused ones count, too. A call of an event, which the body names, is
    counted once more by the name of the event.
    """

    def __init__(self, app: ASGIApp, count: Callable[[Request, str], None] = lambda *_: None) -> None:
        self.app, self.count = app, count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        has_started = False
        if (match := CALL_PATH.match(scope["path"])) is not None and match[1] in ("run", "api"):
            send = refusals_with_400(send)

        async def observed_send(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await run_in_threadpool(self.count, Request(scope), act_of_path(scope["method"], scope["path"]))
            if has_checked_body(scope):
                body, disconnect = await read_all(receive)
                if disconnect is None and (event := check_call(scope, parse_json(body))):
                    await run_in_threadpool(self.count, Request(scope), event)
                receive = replay(body, disconnect, receive)
            await self.app(scope, receive, observed_send)
        except BadRequestError as error:
            log.warning("%r refused: %s", scope["path"], error)
            headers = {"retry-after": str(error.wait_s)} if error.wait_s else None
            await JSONResponse({"error": str(error)}, error.status, headers)(scope, receive, send)
        except Exception as error:
            log.error("%r failed: %s", scope["path"], describe_exception(error))
            if has_started:  # the end of a reply that has begun
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            is_invalid = isinstance(error, (AttributeError, LookupError, TypeError, ValueError))
            reply = {"error": "The lab cannot process this request. Reload the page and try again."}
            await JSONResponse(reply, 400 if is_invalid and scope["method"] == "POST" else 500)(scope, receive, send)


def refusals_with_400(send: Send) -> Send:
    """A `send` for the reply of an event. It replaces status 500, which Gradio uses for an event that is refused with a message,
    by 400."""
    start: Message | None = None
    body = b""

    async def wrapped(message: Message) -> None:
        nonlocal start, body
        if message["type"] == "http.response.start" and message["status"] == 500:
            start = message
            return
        if start is None:
            await send(message)
            return
        body += message.get("body", b"")
        if not message.get("more_body", False):
            await send({**start, "status": 400} if has_error_message(body) else start)
            await send({**message, "body": body})

    return wrapped


def has_error_message(body: bytes) -> bool:
    """Whether a reply of Gradio contains a message; for an unexpected exception it has none."""
    try:
        reply = json.loads(body)
    except ValueError:
        return False
    return isinstance(reply, dict) and isinstance(reply.get("error"), str)


def has_checked_body(scope: Scope) -> bool:
    """Whether the body of a request is read and checked as JSON."""
    if scope["method"] in ("GET", "HEAD", "OPTIONS") or scope["path"].rstrip("/").endswith(UPLOAD_PATH):
        return False
    return bool(scope["path"].startswith(API_PATH)) or is_json(scope)


def is_json(scope: Scope) -> bool:
    """Whether the framework would parse the body as JSON: application/json, or any application/…+json. As FastAPI decides it."""
    message = email.message.Message()
    message["content-type"] = Headers(scope=scope).get("content-type", "").replace("\r", " ").replace("\n", " ")
    subtype = message.get_content_subtype()
    return message.get_content_maintype() == "application" and (subtype == "json" or subtype.endswith("+json"))


async def read_all(receive: Receive) -> tuple[bytes, Message | None]:
    """The body, whose length `BodyLimits` limits, and the disconnect message if the client disconnected."""
    body, has_more = b"", True
    while has_more:
        message = await receive()
        if message["type"] != "http.request":
            return body, message
        body += message.get("body", b"")
        has_more = message.get("more_body", False)
    return body, None


def replay(body: bytes, disconnect: Message | None, receive: Receive) -> Receive:
    """A `receive` that first returns a body that was already read."""
    messages: list[Message] = [disconnect or {"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again


def parse_json(body: bytes) -> Any:
    """The JSON value. Raises BadRequestError for values that later code cannot store or send back, see `check_value`."""
    if not body:
        return None
    check_size(body)
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadRequestError("The body is not valid JSON.") from error
    check_value(value)
    return value


def check_size(body: bytes) -> None:
    """Raises BadRequestError for JSON that has more than MAX_JSON_VALUES values by its commas or brackets. The parser
    would need up to a second for a body of MAX_BODY_BYTES, in the thread that answers everybody."""
    structure = JSON_STRING.sub(b"", body)
    if max(structure.count(b","), structure.count(b"[") + structure.count(b"{")) > MAX_JSON_VALUES:
        raise BadRequestError(TOO_MANY_VALUES)


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def check_value(value: Any) -> None:
    """Raises BadRequestError for deep nesting, very many values, lone surrogates, NUL characters, and numbers beyond 64 bits."""
    count, unchecked = 0, [(value, 0)]
    while unchecked:
        value, depth = unchecked.pop()
        if depth > MAX_JSON_DEPTH:
            raise BadRequestError("The JSON is nested too deeply.")
        items = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
        count += 1
        if count + len(unchecked) + len(items) > MAX_JSON_VALUES:
            raise BadRequestError(TOO_MANY_VALUES)
        unchecked += [(item, depth + 1) for item in items]
        _check_scalar(value)


def _check_scalar(value: Any) -> None:
    if isinstance(value, str):
        if "\0" in value:
            raise BadRequestError("A text contains a NUL character.")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise BadRequestError("A text contains an incomplete character (a lone surrogate).") from error
    elif (isinstance(value, int) and abs(value) > MAX_JSON_INT) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        raise BadRequestError("A number is too large.")


def check_call(scope: Scope, body: Any) -> str:
    """Check that a call names an existing function and has its arguments. Returns the act that it asks for, a row of
    `limits.LIMITS`; "" for a request that is not a call. Raises BadRequestError."""
    match, events = CALL_PATH.match(scope["path"]), page_events(scope.get("app"))
    if match is None or events is None:
        return ""
    forget_old_sessions(scope["app"])
    has_named_values = match[1] == "call/v2"
    try:
        call = EventCall(data=[body]) if has_named_values else EventCall.model_validate(body)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = ".".join(map(str, problem["loc"])) or "body"
        raise BadRequestError(f"The request has no usable {name}.", 422) from error
    if match[1] == "call":  # there Gradio goes by the name alone
        call.fn_index = None
    return check_event(events, match[2] or "", call, has_named_values=has_named_values)


def check_event(events: Mapping[int, Any], api_name: str, call: EventCall, *, has_named_values: bool = False) -> str:
    """Check that the server handles the event, and that it has the right number of values; named ones are checked by Gradio.
    Returns the name of its handler. Raises BadRequestError."""
    if call.fn_index is None:
        event = next((event for event in events.values() if event.api_name == api_name), None)
    else:
        event = events.get(call.fn_index)
    if event is None or event.fn is None:  # those without a function are handled in the browser
        raise BadRequestError("There is no such endpoint. Reload the page.", 404)
    required_count = len(event.inputs)
    if len(call.data) != required_count and not has_named_values:
        raise BadRequestError(f"This endpoint takes {required_count} values, not {len(call.data)}.", 422)
    check_files(call)
    return str(event.fn.__name__)


def check_files(call: EventCall) -> None:
    """Check that an event names no files other than uploaded ones. Raises BadRequestError. No value of an event is a file; its
    data may name one."""
    if has_file(call.data) or names_other_file(call.event_data):
        raise BadRequestError("The request names a file that was not sent to the lab.")


def has_file(value: Any) -> bool:
    """Whether Gradio would interpret a JSON value, or a part of it, as a file."""
    if isinstance(value, dict):
        return isinstance(value.get("path"), str) or any(map(has_file, value.values()))
    return isinstance(value, list) and any(map(has_file, value))


def describe_exception(error: Exception) -> str:
    """Type, place and message of an exception, or of its cause, on one line."""
    if isinstance(error.__cause__, Exception):
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}: {error}"[:500].replace("\n", " ")
