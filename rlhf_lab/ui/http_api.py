"""API for programs that label: next_pair, submit_vote and status, with the same rules as the page.

    from gradio_client import Client
    lab = Client("http://127.0.0.1:7860/")
    pair = lab.predict(name="my-tool", api_name="/next_pair")
    lab.predict(name="my-tool", pair_id=pair["id"], choice="left", uuid="…", api_name="/submit_vote")

Votes through this API have via = "api" and the annotator "api:NAME", so a program is never taken for a person. A name belongs to
the client that first used it, until that client has called nothing for NAME_IDLE_S seconds or the page is started again; so do
the names that look like it.
"""

import threading
import time
from typing import Literal, TypedDict

from gradio.context import LocalContext
from gradio.events import api

from rlhf_lab.common.person_names import latin_spelling, lookalike_keys, mixed_scripts, normalize_name
from rlhf_lab.errors import LabelError, NotAllowedError, StaleVoteError
from rlhf_lab.jobs import retraining
from rlhf_lab.store.pair_leases import count_free_pairs, lease_pair
from rlhf_lab.store.projects import get_labelling_config
from rlhf_lab.ui.auth.login_routes import FailedAttemptLimiter
from rlhf_lab.ui.auth.visitors import secrets_equal
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.events import allow_viewers, parse_payload, show_errors
from rlhf_lab.ui.services import voting
from rlhf_lab.ui.services.crowd import refuse_if_paused
from rlhf_lab.ui.services.presence import PRESENCE

MAX_TOOL_NAME_LENGTH = 50
NAME_IDLE_S = 600


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
    """The three endpoints. They bypass Gradio's queue, so that no call is refused because it is full."""
    caller = ApiCaller(ctx)

    @allow_viewers
    def next_pair(name: str = "", code: str = "") -> PairReply:
        """The pair to judge next: {"id", "prompt", "left", "right"}; {"id": null} while none is ready. It stays yours for a
        while. name: who judges. code: the join code, where the lab has one. An error says so where the rules pause you."""
        annotator = caller.annotator_name(name, code)
        PRESENCE.touch(annotator)
        rules = get_labelling_config(ctx.db, ctx.project.id)
        refuse_if_paused(ctx, annotator)
        lease = lease_pair(ctx.db, ctx.project.id, annotator, rules)
        if lease is None:
            return {"id": None, "prompt": "", "left": "", "right": ""}
        view = voting.lease_view(ctx, lease, rules)
        return {"id": view["id"], "prompt": view["prompt"], "left": view["left"], "right": view["right"]}

    @allow_viewers
    def submit_vote(
        name: str, pair_id: int, choice: Literal["left", "right", "tie", "both_bad", "skip"], uuid: str, code: str = "",
        strength: Literal["", "slightly", "clearly", "much"] = "", note: str = "", ms: int = 0,
    ) -> VoteReply:  # fmt: skip
        """Your answer to a pair that next_pair gave you. choice: left, right, tie, both_bad or skip. uuid: any text that
        names this vote: sent again, it counts once. strength: slightly, clearly, much or empty.
        Returns {"vote_id", "uuid", "counted"}; counted is false, with "why", where the pair is not yours (any more)."""
        annotator = caller.annotator_name(name, code)
        answer = {
            "pair_id": pair_id, "choice": choice, "uuid": uuid, "strength": strength, "note": note, "duration_ms": ms,
        }  # fmt: skip
        payload = parse_payload(voting.VotePayload, answer)
        try:
            vote = voting.cast_vote(ctx, payload, annotator, via="api")
        except StaleVoteError as error:
            return {"vote_id": None, "uuid": payload.uuid, "counted": False, "why": str(error)}
        if vote.annotator != annotator or not voting.is_shown_as(ctx, annotator, vote.pair_id, payload.pair_id):
            raise LabelError("Another vote already has this uuid; nothing was counted. Use a new uuid for each vote.")
        ctx.instant_reward.labels_changed()
        return {"vote_id": vote.id, "uuid": vote.uuid, "counted": True, "why": ""}

    @allow_viewers
    def status() -> StatusReply:
        """{"project", "labels", "simulated", "goal", "ready", "here"}: labels by people and simulated ones, the number at
        which the next reward model is trained, pairs ready for somebody new, people here now."""
        project = ctx.project
        label_counts = retraining.get_label_progress(ctx.db, project.id)
        ready = count_free_pairs(ctx.db, project.id, "", get_labelling_config(ctx.db, project.id))
        return {
            "project": project.name, "labels": label_counts.human, "simulated": label_counts.simulated, "goal": label_counts.goal,
            "ready": ready, "here": PRESENCE.count(),
        }  # fmt: skip

    for endpoint in (next_pair, submit_vote, status):
        api(show_errors(endpoint), api_name=endpoint.__name__, queue=False)


class ApiCaller:
    """Names of the programs that call, and whether they may label."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._limiter = FailedAttemptLimiter("join codes")
        self._lock = threading.Lock()
        self._owners: dict[str, tuple[str, float]] = {}  # look-alike key of a name -> (client, time of its last call)

    def annotator_name(self, name: object, code: object) -> str:
        """The annotator's name.

        Raises NotAllowedError without the right code where one is needed and for another client's name, LabelError for no name.
        """
        if not isinstance(name, str) or not isinstance(code, str):
            raise LabelError("`name` and `code` must be texts.")
        if not self.ctx.is_labeller():
            address = self.ctx.client_address()
            if self._limiter.is_blocked(address):
                raise NotAllowedError("Too many wrong codes in the last minute. Wait a minute and try again.")
            if not secrets_equal(code.strip().upper(), self.ctx.access.join_code.upper()):
                self._limiter.record_failure(address)
                raise NotAllowedError("This lab requires the join code: pass it as `code`.")
        name = normalize_name(name)
        if (
            not 1 <= len(name) <= MAX_TOOL_NAME_LENGTH
            or not name.isprintable()
            or latin_spelling(name).casefold().startswith(("api:", "judge:"))
        ):
            raise LabelError(
                f"Pass the name of the annotator: `name`, 1 to {MAX_TOOL_NAME_LENGTH} characters, without api: or judge:."
            )
        if scripts := mixed_scripts(name):
            raise LabelError(
                f"A word of `name` mixes letters of several alphabets ({', '.join(scripts)}). Write each word in one "
                "alphabet."
            )
        self._bind_name(name)
        return f"api:{name}"

    def _bind_name(self, name: str) -> None:
        """Raises NotAllowedError for a name that another client uses, or that looks like one."""
        client, now, keys = self._client(), time.monotonic(), lookalike_keys(name)
        with self._lock:
            self._owners = {
                key: (owner, called_at)
                for key, (owner, called_at) in self._owners.items()
                if now - called_at <= NAME_IDLE_S
            }
            if any(self._owners.get(key, (client, now))[0] != client for key in keys):
                raise NotAllowedError(
                    f'Another client uses the name "{name}", or one that looks like it. Choose another one; this one is free '
                    f"again when its client has called nothing for {NAME_IDLE_S // 60} minutes."
                )
            self._owners.update(dict.fromkeys(keys, (client, now)))

    def _client(self) -> str:
        """What distinguishes the caller: their cookie's name, else the session that gradio_client draws, else their address."""
        session = getattr(LocalContext.request.get(None), "session_hash", None)
        return self.ctx.visitor().name or session or self.ctx.client_address()
