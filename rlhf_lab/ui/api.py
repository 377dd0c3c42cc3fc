"""Labelling by programs: next_pair, submit_vote and status, beside the page and by the same rules.

    from gradio_client import Client
    lab = Client("http://127.0.0.1:7860/")
    pair = lab.predict(name="my-tool", api_name="/next_pair")
    lab.predict(name="my-tool", pair_id=pair["id"], choice="left", uuid="…", api_name="/submit_vote")

Votes that come through here carry via = "api", and their annotator is "api:NAME", so that a program is never taken for a
person who joined.
"""

from typing import Literal, TypedDict

from gradio.events import api

from rlhf_lab.errors import LabelError, NotAllowedError, StaleVoteError
from rlhf_lab.jobs import steward
from rlhf_lab.labelling import Role
from rlhf_lab.store.labelling import labelling_of
from rlhf_lab.store.leases import free_pairs, lease_pair
from rlhf_lab.ui import ballot
from rlhf_lab.ui.context import Context, for_viewers, told
from rlhf_lab.ui.entrance import Patience, same
from rlhf_lab.ui.presence import PRESENCE

MAX_NAME = 50


class Asked(TypedDict):
    id: int | None
    prompt: str
    left: str
    right: str


class Taken(TypedDict):
    vote_id: int | None
    uuid: str
    counted: bool
    why: str


class Status(TypedDict):
    project: str
    labels: int
    simulated: int
    goal: int
    ready: int
    here: int


def build(ctx: Context) -> None:
    """The three endpoints. They bypass the queue's limit: a full hall is not refused."""
    caller = Caller(ctx)

    @for_viewers
    def next_pair(name: str = "", code: str = "") -> Asked:
        """The pair to judge next: {"id", "prompt", "left", "right"}; {"id": null} while none is ready. It stays yours for a
        while. name: who judges. code: the join code, where the lab has one."""
        who = caller.name(name, code)
        PRESENCE.touch(who)
        rules = labelling_of(ctx.db, ctx.project.id)
        lease = lease_pair(ctx.db, ctx.project.id, who, rules)
        if lease is None:
            return {"id": None, "prompt": "", "left": "", "right": ""}
        shown = ballot.shown(lease.pair, who, lease.repeat, rules)
        return {"id": shown["id"], "prompt": shown["prompt"], "left": shown["left"], "right": shown["right"]}

    @for_viewers
    def submit_vote(
        name: str, pair_id: int, choice: Literal["left", "right", "tie", "both_bad", "skip"], uuid: str, code: str = "",
        strength: Literal["", "slightly", "clearly", "much"] = "", note: str = "", ms: int = 0,
    ) -> Taken:  # fmt: skip
        """Your answer to a pair that next_pair gave you. choice: left, right, tie, both_bad or skip. uuid: any text that
        names this vote: sent again, it counts once. strength: slightly, clearly, much or empty.
        Returns {"vote_id", "uuid", "counted"}; counted is false, with "why", where the pair is not yours (any more)."""
        who = caller.name(name, code)
        said = {
            "annotator": who, "pair_id": pair_id, "choice": choice, "uuid": uuid, "strength": strength, "note": note, "ms": ms,
        }  # fmt: skip
        try:
            vote = ballot.cast(ctx, said, via="api")
        except StaleVoteError as error:
            return {"vote_id": None, "uuid": uuid, "counted": False, "why": str(error)}
        if (vote.annotator, vote.pair_id) != (who, pair_id):
            raise LabelError("Another vote has this uuid already; nothing was counted. Make a new one for each vote.")
        return {"vote_id": vote.id, "uuid": vote.uuid, "counted": True, "why": ""}

    @for_viewers
    def status() -> Status:
        """{"project", "labels", "simulated", "goal", "ready", "here"}: labels by people and simulated ones, the number at
        which the next reward model is trained, pairs ready for somebody new, people here now."""
        project = ctx.project
        labels = steward.labels(ctx.db, project.id)
        ready = free_pairs(ctx.db, project.id, "", labelling_of(ctx.db, project.id))
        return {
            "project": project.name, "labels": labels.human, "simulated": labels.simulated, "goal": labels.goal,
            "ready": ready, "here": PRESENCE.count(),
        }  # fmt: skip

    for endpoint in (next_pair, submit_vote, status):
        api(told(endpoint), api_name=endpoint.__name__, queue=False)


class Caller:
    """Tells programs apart, and keeps those out who may not label."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._patience = Patience()

    def name(self, name: str, code: str) -> str:
        """The annotator's name. Raises NotAllowedError without the right code where one is needed, LabelError for no name."""
        visitor = self.ctx.visitor()
        if not visitor.role.may(Role.LABELLER):
            if self._patience.exhausted():
                raise NotAllowedError("Too many wrong codes in the last minute. Wait a minute and try again.")
            if not same(code.strip().upper(), self.ctx.access.join_code.upper()):
                self._patience.wrong()
                raise NotAllowedError("Labelling needs the lab's join code here: give it as `code`.")
        name = " ".join(name.split())
        if not name or len(name) > MAX_NAME or not name.isprintable():
            raise LabelError(f"Say who judges: `name`, 1 to {MAX_NAME} characters.")
        return f"api:{name}"
