"""Screen "Label": two texts, which is better? Keys and buttons; the next pair is there at once."""

import threading
import time
from collections.abc import Callable
from typing import Any

import gradio as gr

from rlhf_lab.errors import LabelError, StaleVoteError
from rlhf_lab.jobs import steward
from rlhf_lab.jobs.setup import copy_project
from rlhf_lab.judges import JUDGES
from rlhf_lab.labelling import Lease, Role
from rlhf_lab.store.labelling import labelling_of
from rlhf_lab.store.leases import lease_pairs, put_back, take_back
from rlhf_lab.store.people import MAX_NAME
from rlhf_lab.ui import ballot
from rlhf_lab.ui.ballot import cast, left_is_first
from rlhf_lab.ui.context import Context, for_viewers, read, shared_for, told
from rlhf_lab.ui.presence import PRESENCE
from rlhf_lab.ui.widgets import QUIET, widget

__all__ = ["build", "cast", "left_is_first", "name_of", "state"]

OTHER_PROJECT = "Another project was opened meanwhile; here is its next pair. Nothing was taken back or counted again."
_counting = threading.Lock()


def build(ctx: Context, operator: gr.BrowserState) -> None:
    """The screen's widget and its events."""
    judges = [{"name": judge.name, "about": judge.description, "set": judge.prompt_set} for judge in JUDGES.values()]

    shared = shared_for(1.0, lambda: {"open": ctx.project.created_at} | standing(ctx))

    def earlier(question: dict[str, Any]) -> dict[str, Any]:
        return {"votes": ballot.earlier(ctx, checked_name(ctx, question.get("annotator")))}

    def here(question: dict[str, Any]) -> dict[str, Any]:
        return {"here": present(ctx, name_if_any(ctx, question.get("annotator"))), "you": you(ctx)} | shared()

    part = widget(
        "label",
        reads=[read(earlier), read(here)],
        scripts=["markdown"],
        data={"judges": judges},
        label="Label pairs of texts",
    )
    # QUIET: else Gradio sends nothing again while an answer is outstanding; the script itself sends one at a time.

    def judge(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        ctx.require_operator(secret)
        said = steward.ask_judge(ctx.db, ctx.project.id, str(event.judge), int(event.count))
        return state(ctx, name_of(ctx, event), notice=said)

    def reset(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        ctx.require_operator(secret)
        project = copy_project(ctx.db, ctx.project)
        return state(
            ctx, name_of(ctx, event),
            notice=f'A fresh project begins: "{project.name}". The old one is kept under Project.',
        )  # fmt: skip

    for name, handler in voting(ctx).items():
        getattr(part, name)(told(handler), None, part, **QUIET)
    part.judge(told(judge), operator, part, **QUIET)
    part.reset(told(reset), operator, part, **QUIET)


def voting(ctx: Context) -> dict[str, Callable[[gr.EventData], dict[str, Any]]]:
    """What a labeller can do, by the name of the widget's event."""

    @for_viewers
    def opened(event: gr.EventData) -> dict[str, Any]:
        return state(ctx, name_if_any(ctx, (event._data or {}).get("annotator")))

    def vote(event: gr.EventData) -> dict[str, Any]:
        said = dict(event._data or {}) | {"annotator": name_of(ctx, event)}
        notice = ""
        try:
            cast(ctx, said)
        except LabelError as error:  # the page has gone on to the next pair; this answer takes it back to the right one
            notice = str(error)
        return state(ctx, said["annotator"], notice=notice) | {"vote": said.get("uuid")}

    def undo(event: gr.EventData) -> dict[str, Any]:
        who, project = name_of(ctx, event), ctx.project
        if ballot.of_another(ctx, event._data or {}):
            return state(ctx, who, notice=OTHER_PROJECT)
        taken = take_back(ctx.db, project.id, who, labelling_of(ctx.db, project.id))
        if taken is None:
            return state(ctx, who, notice="There is nothing to undo.")
        return state(ctx, who, notice="Your last answer is taken back.")

    def redo(event: gr.EventData) -> dict[str, Any]:
        who = name_of(ctx, event)
        if ballot.of_another(ctx, event._data or {}):
            return state(ctx, who, notice=OTHER_PROJECT)
        if put_back(ctx.db, ctx.project.id, who) is None:
            return state(ctx, who, notice="There is nothing to redo.")
        return state(ctx, who, notice="The vote you had undone counts again.")

    def amend(event: gr.EventData) -> dict[str, Any]:
        who = name_of(ctx, event)
        try:
            ballot.change(ctx, dict(event._data or {}) | {"annotator": who})
        except StaleVoteError as error:
            return state(ctx, who, notice=str(error))
        return state(ctx, who, notice="Your earlier answer is changed.")

    return {"opened": opened, "vote": vote, "undo": undo, "redo": redo, "amend": amend}


def name_of(ctx: Context, event: gr.EventData) -> str:
    """The name of the annotator who sends an event. Raises LabelError."""
    return checked_name(ctx, (event._data or {}).get("annotator"))


def checked_name(ctx: Context, said: object) -> str:
    """A name that may label. Raises LabelError for none, one that is too long, and one that the lab did not give."""
    name = ctx.name(said)
    if not name or len(name) > MAX_NAME or not name.isprintable() or name.startswith(("judge:", "api:")):
        raise LabelError("This page has no usable name for you; reload it.")
    return name


def name_if_any(ctx: Context, said: object) -> str:
    """`checked_name`; "" for who may only look."""
    return checked_name(ctx, said) if ctx.visitor().role.may(Role.LABELLER) else ""


def present(ctx: Context, name: str) -> int:
    """Note that this labeller has the page open; how many have."""
    if ctx.visitor().role.may(Role.LABELLER):
        PRESENCE.touch(name)
    return PRESENCE.count()


def state(ctx: Context, annotator: str, *, notice: str = "") -> dict[str, Any]:
    """Everything the widget shows. `pair` is null while the engine writes new ones; `waiting` says so.

    `after` is the pair that comes next, kept for this person too: the page draws it at the press of a key.
    """
    project, visitor = ctx.project, ctx.visitor()
    rules = labelling_of(ctx.db, project.id)
    waiting, kept = "", list[Lease]()
    if not visitor.role.may(Role.LABELLER):
        waiting = "You may look around. To label, enter with the join code."
    else:
        kept = lease_pairs(ctx.db, project.id, annotator, rules)
    pair, after, *_ = [*(ballot.shown(one.pair, annotator, one.repeat, rules) for one in kept), None, None]
    here = present(ctx, annotator)
    return {
        "at": time.time_ns(),  # a value equal to the one before would not reach the script
        "project": {"made": project.created_at, "name": project.name, "set": project.prompt_set},
        "pair": pair,
        "after": after,
        "waiting": "" if pair else waiting or steward.why_no_pair(ctx.db, project.id),
        "you": you(ctx),
        "guideline": rules.guideline,
        "here": here,
        "notice": notice,
        "vote": None,  # the click that this answers
    } | standing(ctx)


def you(ctx: Context) -> dict[str, str]:
    """Who asks, and what they may do."""
    visitor = ctx.visitor()
    return {"name": visitor.nickname, "role": visitor.role.value}


def standing(ctx: Context) -> dict[str, Any]:
    """How many labels there are, and how far the next reward model is; of two such answers the greater `counted` is newer."""
    with _counting:
        counted, progress = time.time_ns() // 1000, steward.labels(ctx.db, ctx.project.id)
    return {
        "counted": counted,
        "labels": progress.human,
        "simulated": progress.simulated,
        "goal": progress.goal,
        "left": progress.to_next,
        "models": progress.newest_model,
        "learning": "" if progress.to_next > 0 else steward.learning(ctx.db, ctx.project.id),
    }
