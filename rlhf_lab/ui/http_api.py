"""API for programs that label: next_pair, submit_vote and status, with the same rules as the page.

    curl -d '{"name": "my-tool"}' -H 'Content-Type: application/json' http://127.0.0.1:7860/api/next_pair

or, with more work for the lab, through Gradio:

    from gradio_client import Client
    lab = Client("http://127.0.0.1:7860/")
    pair = lab.predict(name="my-tool", api_name="/next_pair")
    lab.predict(name="my-tool", pair_id=pair["id"], choice="left", uuid="…", api_name="/submit_vote")

Votes through this API have via = "api" and the annotator "api:NAME", so a program is never taken for a person. A name belongs to
the client that first used it (see `ApiClients`).
"""

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any, Literal, TypedDict

import anyio
import gradio as gr
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rlhf_lab.errors import LabelError, LabError, NotAllowedError, StaleVoteError
from rlhf_lab.jobs import retraining
from rlhf_lab.store.pair_leases import count_free_pairs
from rlhf_lab.store.projects import get_labelling_config
from rlhf_lab.ui.auth.api_clients import Client
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.gradio_patches import current_request, set_current_request
from rlhf_lab.ui.network import read_body
from rlhf_lab.ui.request_checks import BadRequestError, describe_exception, is_json, parse_json
from rlhf_lab.ui.shared import voting
from rlhf_lab.ui.shared.crowd import annotator_notice, sees_comparisons
from rlhf_lab.ui.shared.presence import PRESENCE

log = logging.getLogger("rlhf_lab.ui.requests")

MAX_REQUEST_BYTES = 10_000
MAX_SESSION_LENGTH = 100
#: Requests that are handled at the same time; the others wait in order. More threads would only compete for Python's GIL and
#: wait for the one that writes to the database.
MAX_CONCURRENT_REQUESTS = 2
FAILED_MESSAGE = "The lab failed to answer; its log says why. Try again."

Endpoint = Callable[..., Any]


class PairReply(TypedDict):
    id: int | None
    prompt: str
    left: str
    right: str


class VoteReply(TypedDict):
    vote_id: int | None
    uuid: str
    counted: bool
    why: str


class StatusReply(TypedDict):
    project: str
    labels: int
    simulated: int
    goal: int
    ready: int
    here: int


def build(ctx: Context) -> None:
    """Add the endpoints of Gradio's API. They bypass its queue, so that no call is refused because the queue is full."""
    for endpoint in endpoints(ctx):
        gr.api(_for_gradio(ctx, endpoint), api_name=endpoint.__name__, queue=False)  # type: ignore[attr-defined]


def _for_gradio(ctx: Context, endpoint: Endpoint) -> Endpoint:
    """The endpoint with errors that Gradio sends as messages. For other exceptions it would print a traceback."""

    @functools.wraps(endpoint)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return endpoint(*args, **kwargs)
        except LabError as error:
            raise gr.Error(ctx.message_for_visitor(error), duration=None, print_exception=False) from error
        except Exception as error:
            log.error("%s failed: %s", endpoint.__name__, describe_exception(error))
            raise gr.Error(FAILED_MESSAGE, duration=None, print_exception=False) from error

    return wrapped


def routes(ctx: Context) -> list[Route]:
    """POST /api/next_pair and /api/submit_vote with a JSON object of the arguments, GET /api/status; they reply with the result.

    The object may have another key `session`, a random text that distinguishes programs at the same address. Errors are
    {"error": text} with status 403 if something is not allowed, 400 for invalid arguments, 415 for another content type, 413 for
    a body that is too long.
    """
    limiter: anyio.CapacityLimiter | None = None

    def route(endpoint: Endpoint) -> Route:
        async def handle(request: Request) -> Response:
            nonlocal limiter
            limiter = limiter or anyio.CapacityLimiter(MAX_CONCURRENT_REQUESTS)
            arguments: Any = {}
            if request.method == "POST":
                if not is_json(request.scope):
                    return _error("Send the arguments as a JSON object, with Content-Type: application/json.", 415)
                body = await read_body(request, MAX_REQUEST_BYTES)
                if body is None:
                    return _error(f"A request has at most {MAX_REQUEST_BYTES:,} bytes.", 413)
                try:
                    arguments = parse_json(body)
                except BadRequestError as error:
                    return _error(str(error), error.status)
            set_current_request(request)
            return await anyio.to_thread.run_sync(_call, ctx, endpoint, arguments, request, limiter=limiter)

        return Route(f"/api/{endpoint.__name__}", handle, methods=["POST" if _parameters(endpoint) else "GET"])

    return [route(endpoint) for endpoint in endpoints(ctx)]


def _call(ctx: Context, endpoint: Endpoint, arguments: Any, request: Request) -> Response:
    try:
        return JSONResponse(endpoint(**_checked_arguments(endpoint, arguments, request)))
    except NotAllowedError as error:
        return _error(ctx.message_for_visitor(error), 403)
    except LabError as error:
        return _error(ctx.message_for_visitor(error), 400)
    except Exception as error:
        log.error("%s failed: %s", endpoint.__name__, describe_exception(error))
        return _error(FAILED_MESSAGE, 500)


def _checked_arguments(endpoint: Endpoint, arguments: Any, request: Request) -> dict[str, Any]:
    """The arguments without `session`, which is stored in the request. Raises LabelError for unknown or missing ones."""
    names = _parameters(endpoint)
    if not isinstance(arguments, dict):
        raise LabelError(f"Send a JSON object with {', '.join(names)}.")
    session = arguments.pop("session", "")
    if not isinstance(session, str) or len(session) > MAX_SESSION_LENGTH:
        raise LabelError(f"`session` must be a text of at most {MAX_SESSION_LENGTH} characters.")
    request.state.api_session = session
    if unknown := set(arguments) - set(names):
        raise LabelError(f"Unknown: {', '.join(sorted(unknown))}. There are {', '.join(names)} and session.")
    required = [name for name, parameter in names.items() if parameter.default is parameter.empty]
    if missing := [name for name in required if name not in arguments]:
        raise LabelError(f"Missing: {', '.join(missing)}.")
    return arguments


def _parameters(endpoint: Endpoint) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(endpoint).parameters)


def _error(message: str, status: int) -> JSONResponse:
    return JSONResponse({"error": message}, status)


def endpoints(ctx: Context) -> list[Endpoint]:
    """next_pair, submit_vote and status."""

    def next_pair(name: str = "", code: str = "") -> PairReply:
        """The pair to judge next: {"id", "prompt", "left", "right"}; {"id": null} while none is ready. It is reserved for you
        for a while. name: who judges. code: the join code, if the lab has one. If the lab's rules have paused you, an error
        says so."""
        annotator, project_id = annotator_name(ctx, name, code), ctx.project.id
        PRESENCE.touch(annotator)
        rules = get_labelling_config(ctx.db, project_id)
        if text := annotator_notice(ctx, project_id, annotator, rules).pause:
            raise NotAllowedError(text)
        leases = voting.lease_pairs(ctx, project_id, annotator, rules, prefetch=0)
        if not leases:
            return {"id": None, "prompt": "", "left": "", "right": ""}
        view = voting.lease_view(ctx, leases[0], rules)
        return {"id": view["id"], "prompt": view["prompt"], "left": view["left"], "right": view["right"]}

    def submit_vote(
        name: str, pair_id: int, choice: Literal["left", "right", "tie", "both_bad", "skip"], uuid: str, code: str = "",
        strength: Literal["", "slightly", "clearly", "much"] = "", note: str = "", ms: int = 0,
    ) -> VoteReply:  # fmt: skip
        """Your answer to a pair from next_pair. choice: left, right, tie, both_bad or skip. uuid: any text that identifies
        this vote; a vote that is sent again counts once. strength: slightly, clearly, much or empty.
        Returns {"vote_id", "uuid", "counted"}; counted is false, with "why", if the pair is not (or no longer) reserved for
        you."""
        annotator = annotator_name(ctx, name, code)
        answer = {
            "pair_id": pair_id, "choice": choice, "uuid": uuid, "strength": strength, "note": note, "duration_ms": ms,
        }  # fmt: skip
        payload = _parse_answer(answer)
        try:
            vote = voting.cast_vote(ctx, payload, annotator, via="api")
        except StaleVoteError as error:
            return {"vote_id": None, "uuid": payload.uuid, "counted": False, "why": str(error)}
        ctx.instant_reward.labels_changed()
        return {"vote_id": vote.id, "uuid": vote.uuid, "counted": True, "why": ""}

    def status() -> StatusReply:
        """{"project", "labels", "simulated", "goal", "ready", "here"}: labels by people and simulated ones, the number at
        which the next reward model is trained, pairs ready for a new annotator (in a lab with gold pairs always 1),
        people here now."""
        project = ctx.project
        label_counts = retraining.get_label_progress(ctx.db, project.id)
        ready = 1  # the last pair that is given to somebody would be missing only if it is ordinary
        if sees_comparisons(ctx):
            ready = count_free_pairs(ctx.db, project.id, "", get_labelling_config(ctx.db, project.id))
        return {
            "project": project.name, "labels": label_counts.human, "simulated": label_counts.simulated, "goal": label_counts.goal,
            "ready": ready, "here": PRESENCE.count(),
        }  # fmt: skip

    return [next_pair, submit_vote, status]


def _parse_answer(answer: dict[str, Any]) -> voting.VotePayload:
    """Raises LabelError, naming the argument and what it may be."""
    try:
        return voting.VotePayload.model_validate(answer)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
    name = "ms" if problem["loc"][0] == "duration_ms" else problem["loc"][0]
    raise LabelError(f"`{name}` cannot be used: {problem['msg']}.")


def annotator_name(ctx: Context, name: object, code: object) -> str:
    """The annotator name of the calling program.

    Raises NotAllowedError for a wrong join code or a name of another client, LabelError without a name.
    """
    if not isinstance(name, str) or not isinstance(code, str):
        raise LabelError("`name` and `code` must be texts.")
    address = ctx.client_address()
    if not ctx.is_labeller():
        ctx.api_clients.check_code(code, ctx.access.code, address)
    request = current_request()
    session = getattr(getattr(request, "state", None), "api_session", "") or getattr(request, "session_hash", None)
    client: Client = ("address", address)
    if own_name := ctx.visitor().name:
        client = ("name", own_name)
    elif session:
        client = ("session", session)
    has_limit = ctx.access.is_multi_user and not ctx.is_operator()
    return f"api:{ctx.api_clients.bind_name(name, client, address if has_limit else '')}"
