"""Screen "Label": two texts, which is better? Keys and buttons; the next pair is there at once."""

import threading
import time
from collections.abc import Callable
from typing import Any

import gradio as gr

from rlhf_lab.common.records import Lease, Role
from rlhf_lab.errors import LabelError, StaleVoteError
from rlhf_lab.jobs import scheduler
from rlhf_lab.jobs.project_setup import copy_project
from rlhf_lab.judges.builtin import JUDGES
from rlhf_lab.store.annotators import MAX_PERSON_NAME_CHARS
from rlhf_lab.store.pair_leases import lease_pairs, redo_last_vote, undo_last_vote
from rlhf_lab.store.projects import get_labelling_config
from rlhf_lab.ui.components.widgets import SILENT_MULTIPLE_EVENT, widget
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.events import allow_viewers, server_function, show_errors, ttl_cache
from rlhf_lab.ui.services import voting
from rlhf_lab.ui.services.presence import PRESENCE
from rlhf_lab.ui.services.voting import cast_vote, is_first_on_left

__all__ = ["annotator_from_event", "build", "cast_vote", "is_first_on_left", "state"]

OTHER_PROJECT_NOTICE = (
    "Another project was opened meanwhile; here is its next pair. Nothing was taken back or counted again."
)
_count_lock = threading.Lock()


def build(ctx: Context, operator: gr.BrowserState) -> None:
    """The screen's widget and its events."""
    judges = [{"name": judge.name, "about": judge.description, "set": judge.prompt_set} for judge in JUDGES.values()]

    cached_progress = ttl_cache(1.0, lambda: {"open": ctx.project.created_at} | label_progress(ctx))

    def earlier(query: dict[str, Any]) -> dict[str, Any]:
        return {"votes": voting.recent_votes(ctx, require_annotator(ctx, query.get("annotator")))}

    def here(query: dict[str, Any]) -> dict[str, Any]:
        return {
            "here": touch_presence(ctx, optional_annotator(ctx, query.get("annotator"))),
            "you": visitor_info(ctx),
        } | cached_progress()

    component = widget(
        "label",
        server_functions=[server_function(earlier), server_function(here)],
        scripts=["markdown"],
        data={"judges": judges},
        label="Label pairs of texts",
    )
    # QUIET: else Gradio sends nothing again while an answer is outstanding; the script itself sends one at a time.

    def judge(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        ctx.require_operator(secret)
        notice = scheduler.request_judge_labels(ctx.db, ctx.project.id, str(event.judge), int(event.count))
        return state(ctx, annotator_from_event(ctx, event), notice=notice)

    def reset(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        ctx.require_operator(secret)
        project = copy_project(ctx.db, ctx.project)
        return state(
            ctx, annotator_from_event(ctx, event),
            notice=f'A fresh project begins: "{project.name}". The old one is kept under Project.',
        )  # fmt: skip

    for name, handler in voting_handlers(ctx).items():
        getattr(component, name)(show_errors(handler), None, component, **SILENT_MULTIPLE_EVENT)
    component.judge(show_errors(judge), operator, component, **SILENT_MULTIPLE_EVENT)
    component.reset(show_errors(reset), operator, component, **SILENT_MULTIPLE_EVENT)


def voting_handlers(ctx: Context) -> dict[str, Callable[[gr.EventData], dict[str, Any]]]:
    """What a labeller can do, by the name of the widget's event."""

    @allow_viewers
    def opened(event: gr.EventData) -> dict[str, Any]:
        return state(ctx, optional_annotator(ctx, (event._data or {}).get("annotator")))

    def vote(event: gr.EventData) -> dict[str, Any]:
        payload = dict(event._data or {}) | {"annotator": annotator_from_event(ctx, event)}
        notice = ""
        try:
            cast_vote(ctx, payload)
        except LabelError as error:  # the page has gone on to the next pair; this answer takes it back to the right one
            notice = str(error)
        return state(ctx, payload["annotator"], notice=notice) | {"vote": payload.get("uuid")}

    def undo(event: gr.EventData) -> dict[str, Any]:
        annotator, project = annotator_from_event(ctx, event), ctx.project
        if voting.is_stale_project(ctx, event._data or {}):
            return state(ctx, annotator, notice=OTHER_PROJECT_NOTICE)
        undone = undo_last_vote(ctx.db, project.id, annotator, get_labelling_config(ctx.db, project.id))
        if undone is None:
            return state(ctx, annotator, notice="There is nothing to undo.")
        return state(ctx, annotator, notice="Your last answer is taken back.")

    def redo(event: gr.EventData) -> dict[str, Any]:
        annotator = annotator_from_event(ctx, event)
        if voting.is_stale_project(ctx, event._data or {}):
            return state(ctx, annotator, notice=OTHER_PROJECT_NOTICE)
        if redo_last_vote(ctx.db, ctx.project.id, annotator) is None:
            return state(ctx, annotator, notice="There is nothing to redo.")
        return state(ctx, annotator, notice="The vote you had undone counts again.")

    def amend(event: gr.EventData) -> dict[str, Any]:
        annotator = annotator_from_event(ctx, event)
        try:
            voting.change_vote(ctx, dict(event._data or {}) | {"annotator": annotator})
        except StaleVoteError as error:
            return state(ctx, annotator, notice=str(error))
        return state(ctx, annotator, notice="Your earlier answer is changed.")

    return {"opened": opened, "vote": vote, "undo": undo, "redo": redo, "amend": amend}


def annotator_from_event(ctx: Context, event: gr.EventData) -> str:
    """The name of the annotator who sends an event. Raises LabelError."""
    return require_annotator(ctx, (event._data or {}).get("annotator"))


def require_annotator(ctx: Context, claimed_name: object) -> str:
    """A name that may label. Raises LabelError for none, one that is too long, and one that the lab did not give."""
    name = ctx.annotator_name(claimed_name)
    if not name or len(name) > MAX_PERSON_NAME_CHARS or not name.isprintable() or name.startswith(("judge:", "api:")):
        raise LabelError("This page has no usable name for you; reload it.")
    return name


def optional_annotator(ctx: Context, claimed_name: object) -> str:
    """`require_annotator`; "" for who may only look."""
    return require_annotator(ctx, claimed_name) if ctx.visitor().role.at_least(Role.LABELLER) else ""


def touch_presence(ctx: Context, name: str) -> int:
    """Note that this labeller has the page open; how many have."""
    if ctx.visitor().role.at_least(Role.LABELLER):
        PRESENCE.touch(name)
    return PRESENCE.count()


def state(ctx: Context, annotator: str, *, notice: str = "") -> dict[str, Any]:
    """Everything the widget shows. `pair` is null while the engine writes new ones; `waiting` says so.

    `after` is the pair that comes next, kept for this person too: the page draws it at the press of a key.
    """
    project, visitor = ctx.project, ctx.visitor()
    rules = get_labelling_config(ctx.db, project.id)
    waiting, leases = "", list[Lease]()
    if not visitor.role.at_least(Role.LABELLER):
        waiting = "You may look around. To label, enter with the join code."
    else:
        leases = lease_pairs(ctx.db, project.id, annotator, rules)
    pair, next_view, *_ = [
        *(voting.pair_view(lease.pair, annotator, lease.repeat, rules) for lease in leases),
        None,
        None,
    ]
    people_here = touch_presence(ctx, annotator)
    return {
        "at": time.time_ns(),  # a value equal to the one before would not reach the script
        "project": {"made": project.created_at, "name": project.name, "set": project.prompt_set},
        "pair": pair,
        "after": next_view,
        "waiting": "" if pair else waiting or scheduler.no_pair_message(ctx.db, project.id),
        "you": visitor_info(ctx),
        "guideline": rules.guideline,
        "here": people_here,
        "notice": notice,
        "vote": None,  # the click that this answers
    } | label_progress(ctx)


def visitor_info(ctx: Context) -> dict[str, str]:
    """Who asks, and what they may do."""
    visitor = ctx.visitor()
    return {"name": visitor.registered_name, "role": visitor.role.value}


def label_progress(ctx: Context) -> dict[str, Any]:
    """How many labels there are, and how far the next reward model is; of two such answers the greater `pluralize` is newer."""
    with _count_lock:
        counted_at, progress = time.time_ns() // 1000, scheduler.get_label_progress(ctx.db, ctx.project.id)
    return {
        "counted": counted_at,
        "labels": progress.human,
        "simulated": progress.simulated,
        "goal": progress.goal,
        "left": progress.remaining,
        "models": progress.newest_model_id,
        "learning": "" if progress.remaining > 0 else scheduler.training_status(ctx.db, ctx.project.id),
    }
