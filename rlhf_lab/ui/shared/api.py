"""Requests of the page: where a request is parsed, given a role and timed, and where an error becomes a sentence.

A screen declares its requests on functions of a module, which a test calls like any other function:

    api = Api("chat")

    @api.action(AskPayload, limit=ENGINE)
    def ask(ctx: Context, payload: AskPayload) -> JobList: ...

The page sends POST /lab-api/chat/ask with the payload as JSON (`shared/api.js`). The answer is {"reply": …}, or {"error": a
sentence, "field": the form field that it is about}. Reads also have a "revision"; a page that has this revision already gets
{"unchanged": true}.
"""

import json
import logging
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, TypeVar, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from typing_extensions import TypedDict

from rlhf_lab.common.records import Role
from rlhf_lab.common.text import cut_middle
from rlhf_lab.errors import ConfigError, LabError, StoreError
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.gradio_patches import set_current_request
from rlhf_lab.ui.limits import API_FOLDER, READ, Limit
from rlhf_lab.ui.request_checks import describe_exception, is_json, parse_json

log = logging.getLogger("rlhf_lab.ui.requests")
REVISION_HEADER = "x-lab-revision"
UNUSABLE_REQUEST_MESSAGE = "The lab cannot process this request of the page. Reload the page and try again."
OTHER_PROJECT_MESSAGE = (
    "Another project has been opened, so nothing was done. Look at what is shown now, and try again."
)
SLOW_S = 2.0
#: Of a name, an identifier or another short text in a request. Messages repeat them.
MAX_NAME_CHARS = 1_000
MAX_TEXT_CHARS = 1_000_000
MAX_TYPED_CHARS = 100  # of an invalid number, in a message
#: A text that people write, such as a prompt or a note.
LongText = Annotated[str, Field(max_length=MAX_TEXT_CHARS)]


class Payload(BaseModel):
    """What the page sends with a request; subclasses define the fields. Unknown keys are ignored. Every text has at most
    MAX_NAME_CHARS characters, unless its field says otherwise (`LongText`).

    annotator: the name that the page sends for its visitor (`Context.annotator_name`). shown_project: the id of the project that
    the screen shows, if its replies name one; an action is refused while another project is open. A number that a person types
    has a title, the label of its field on the page; errors are then shown at that field.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", str_max_length=MAX_NAME_CHARS)

    annotator: str | None = None
    shown_project: int | None = None


class RunPayload(Payload):
    """A request about a run of the open project; one about any other run is refused before its handler is called."""

    run: int


class Message(TypedDict):
    """The reply of an action: a sentence about what was done."""

    message: str


PayloadT = TypeVar("PayloadT", bound=Payload)
ReplyT = TypeVar("ReplyT")
Handler = Callable[[Context, PayloadT], ReplyT]
#: A number that may be typed with a decimal comma.
DecimalNumber = Annotated[
    float, BeforeValidator(lambda value: value.replace(",", ".") if isinstance(value, str) else value)
]


class FieldError(LabError):
    """The value of one form field is invalid; `field` is the field's name."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True)
class Endpoint(Generic[PayloadT, ReplyT]):
    """One request of a screen. act: what it counts as (`limits.RequestLimiter`). cached_s: for how long a reply is reused for
    every visitor who sends the same payload."""

    path: str
    handler: Handler[PayloadT, ReplyT]
    payload: type[PayloadT]
    role: Role
    act: str
    limit: Limit
    is_read: bool = False
    cached_s: float = 0.0

    @property
    def reply_type(self) -> Any:
        return get_type_hints(self.handler, include_extras=True)["return"]


@dataclass(frozen=True)
class Api:
    """The requests of one screen, by name."""

    screen: str
    endpoints: dict[str, Endpoint[Any, Any]] = field(default_factory=dict)

    def read(
        self, payload: type[PayloadT], *, role: Role = Role.VIEWER, cached_s: float = 0.0, limit: Limit = READ
    ) -> Callable[[Handler[PayloadT, ReplyT]], Handler[PayloadT, ReplyT]]:
        """A request that changes nothing. With cached_s, its reply must not depend on the visitor. limit: of one that costs more
        than a poll, which is then counted by itself."""
        act = {"act": "read"} if limit is READ else {}
        return self._add(payload, role=role, limit=limit, is_read=True, cached_s=cached_s, **act)

    def action(
        self, payload: type[PayloadT], *, role: Role = Role.LABELLER, limit: Limit = READ
    ) -> Callable[[Handler[PayloadT, ReplyT]], Handler[PayloadT, ReplyT]]:
        """A request that changes something, for visitors with at least this role. limit: how often."""
        return self._add(payload, role=role, limit=limit)

    def _add(
        self, payload: type[PayloadT], **options: Any
    ) -> Callable[[Handler[PayloadT, ReplyT]], Handler[PayloadT, ReplyT]]:
        def register(handler: Handler[PayloadT, ReplyT]) -> Handler[PayloadT, ReplyT]:
            name = handler.__name__
            path = f"{self.screen}/{name}"
            self.endpoints[name] = Endpoint(path=path, handler=handler, payload=payload, **({"act": path} | options))
            return handler

        return register


def act_limits(apis: Iterable[Api]) -> Mapping[str, Limit]:
    """How often each act of these screens may be done."""
    return {endpoint.act: endpoint.limit for api in apis for endpoint in api.endpoints.values()}


def parse_payload(model: type[PayloadT], data: Any) -> PayloadT:
    """Raises ConfigError, naming the field, for data that does not fit the model; FieldError for a text that is too long, and for
    a field with a title."""
    try:
        return model.model_validate(data if isinstance(data, dict) else {})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
    name = str(problem["loc"][0]) if problem["loc"] else "request"
    info = model.model_fields.get(name)
    if problem["type"] == "string_too_long":
        what, count = name.replace("_", " "), problem["ctx"]["max_length"]
        raise FieldError(name, f"{what[:1].upper()}{what[1:]}: a text has more than {count:,} characters. Shorten it.")
    if info is None or info.title is None:
        raise unusable(name)
    type_text = "a whole number" if info.annotation is int else "a number"
    low, high = (next(getattr(item, end) for item in info.metadata if hasattr(item, end)) for end in ("ge", "le"))
    typed = cut_middle(str(data.get(name, "")).strip(), MAX_TYPED_CHARS)
    raise FieldError(name, f'{info.title} = "{typed}": give {type_text} from {low:,} to {high:,}.')


def revision_of(value: Any) -> str:
    """A short checksum of JSON data, by which a page recognises changes."""
    return f"{zlib.crc32(json.dumps(value, sort_keys=True).encode()):x}"


def unusable(name: str) -> ConfigError:
    """The error for a field of a payload that is missing or malformed."""
    return ConfigError(f"The page sent no usable {name.replace('_', ' ')}. Reload it and try again.")


class Requests:
    """Answers the requests of some screens for one lab."""

    def __init__(self, ctx: Context, apis: Iterable[Api]) -> None:
        self.ctx = ctx
        self.endpoints = {endpoint.path: endpoint for api in apis for endpoint in api.endpoints.values()}

    def act(self, name: str) -> str:
        """What a request counts as: that of an endpoint of this path, any other act itself."""
        return self.endpoints[name].act if name in self.endpoints else name

    def route(self) -> Route:
        """POST /lab-api/SCREEN/NAME. Only JSON, which a page of another site cannot send without being asked first."""

        async def endpoint(request: Request) -> Response:
            target = self.endpoints.get(request.path_params["path"])
            if target is None:
                return JSONResponse({"error": "There is no such request. Reload the page."}, 404)
            if not is_json(request.scope):
                return JSONResponse({"error": "This request takes JSON."}, 415)
            data = parse_json(await request.body())
            set_current_request(request)
            answer = await run_in_threadpool(self.answer, target, data, request.headers.get(REVISION_HEADER, ""))
            return Response(answer, media_type="application/json")

        return Route(f"{API_FOLDER}/{{path:path}}", endpoint, methods=["POST"])

    def answer(self, endpoint: Endpoint[Any, Any], data: Any, known_revision: str = "") -> bytes:
        """The JSON of the answer to the current request (see `set_current_request`)."""
        began = time.monotonic()
        try:
            self._check_role(endpoint.role)
            body = self.ctx.reply_for_visitor(self._reply(endpoint, parse_payload(endpoint.payload, data)))
        except LabError as error:
            place = {"field": error.field} if isinstance(error, FieldError) else {}
            return json.dumps({"error": self.ctx.message_for_visitor(error)} | place).encode()
        except Exception as error:
            log.error("%s failed: %s", endpoint.path, describe_exception(error))
            return json.dumps({"error": UNUSABLE_REQUEST_MESSAGE}).encode()
        if (seconds := time.monotonic() - began) > SLOW_S:
            log.warning("%s took %.1f s", endpoint.path, seconds)
        if not endpoint.is_read:
            return b'{"reply":%s}' % body
        revision = f"{zlib.crc32(body):x}"
        if revision == known_revision:
            return b'{"unchanged":true}'
        return b'{"reply":%s,"revision":"%s"}' % (body, revision.encode())

    def _check_role(self, role: Role) -> None:
        if role is Role.OPERATOR:
            self.ctx.require_operator()
        elif role is Role.LABELLER:
            self.ctx.require_labeller()

    def _check_project(self, shown_project: int | None) -> None:
        """Raises StoreError if the screen still shows a project that is no longer open."""
        if shown_project is not None and shown_project != self.ctx.project.id:
            raise StoreError(OTHER_PROJECT_MESSAGE)

    def _reply(self, endpoint: Endpoint[Any, Any], payload: Payload) -> bytes:
        """The reply as JSON; a cached one if there is one."""
        if isinstance(payload, RunPayload):
            self.ctx.run(payload.run)
        if not endpoint.is_read and "project" not in endpoint.payload.model_fields:
            self._check_project(payload.shown_project)
        if not endpoint.cached_s:
            return _to_json(endpoint, endpoint.handler(self.ctx, payload))
        key = endpoint.path, payload.model_dump_json(exclude={"annotator", "shown_project"})
        return self.ctx.cache.get(
            key, endpoint.cached_s, lambda: _to_json(endpoint, endpoint.handler(self.ctx, payload))
        )


def _to_json(endpoint: Endpoint[Any, Any], reply: Any) -> bytes:
    """Raises PydanticSerializationError for a reply that is not of the declared type."""
    return _adapter(endpoint.reply_type).dump_json(reply)


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def _adapter(reply_type: Any) -> TypeAdapter[Any]:
    key = repr(reply_type)
    if key not in _ADAPTERS:
        _ADAPTERS[key] = TypeAdapter(reply_type)
    return _ADAPTERS[key]
