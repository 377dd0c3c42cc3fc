"""Screen "Label": choose the better of two texts, by keys or buttons; the next pair appears immediately."""

import threading
import time
from typing import Any

import gradio as gr

from rlhf_lab.common.enums import Choice
from rlhf_lab.common.records import Lease
from rlhf_lab.errors import LabelError, LabError, NotAllowedError, StaleVoteError
from rlhf_lab.jobs import retraining, run_control, scheduler
from rlhf_lab.jobs.answer_length import length_note
from rlhf_lab.jobs.project_setup import copy_project
from rlhf_lab.judges.builtin import JUDGES
from rlhf_lab.store.adjudication import stop_adjudicating
from rlhf_lab.store.gold_pairs import mark_gold
from rlhf_lab.store.pair_leases import redo_last_vote, start_adjudicating, undo_last_vote
from rlhf_lab.store.projects import get_labelling_config
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.run_views.run_feed import runs_note
from rlhf_lab.ui.run_views.stage_estimates import next_pair_sentence
from rlhf_lab.ui.shared import voting
from rlhf_lab.ui.shared.api import Payload, parse_payload
from rlhf_lab.ui.shared.crowd import (
    annotator_notice,
    disputed_view,
    is_expert,
    pause_text,
    refuse_if_paused,
    require_expert,
)
from rlhf_lab.ui.shared.events import Handler, allow_viewers, operator_action, ttl_cache, visitor_action
from rlhf_lab.ui.shared.instant_view import instant_view
from rlhf_lab.ui.shared.presence import PRESENCE
from rlhf_lab.ui.shared.widgets import SILENT_MULTIPLE_EVENT, widget

OTHER_PROJECT_NOTICE = "Another project has been opened; here is its next pair. Nothing was undone or redone."
DISPUTES_CACHED_S = 10.0
_count_lock = threading.Lock()


class LabelPayload(Payload):
    """annotator: the name that the page sends. project_created_at: identifies the project that the page shows."""

    annotator: str | None = None
    project_created_at: float | None = None


class ResetPayload(LabelPayload):
    """stop_run: the id of a run to stop first; None keeps all runs."""

    stop_run: int | None = None


class InstantQuery(LabelPayload):
    """vote_uuid: the page's last vote, whose prediction it waits for or shows; "" for none."""

    vote_uuid: str = ""


class AdjudicationPayload(LabelPayload):
    """Decide disputed pairs as an expert, or stop doing so."""

    stop: bool = False


class GoldPayload(LabelPayload):
    """Make the pair of one's own vote a gold pair, or an ordinary pair again."""

    vote_id: int
    is_gold: bool


class JudgePayload(LabelPayload):
    """Let a simulated judge label `count` pairs."""

    judge: str
    count: int


def build(ctx: Context, operator: gr.BrowserState) -> None:
    """The screen's widget and its events."""
    cached_progress = ttl_cache(1.0, lambda: {"project_created_at": ctx.project.created_at} | label_progress(ctx))
    cached_disputes = ttl_cache(DISPUTES_CACHED_S, lambda: (ctx.project.id, disputed_view(ctx, ctx.project.id)))

    def recent_votes(query: dict[str, Any]) -> dict[str, Any]:
        annotator = ctx.require_annotator(parse_payload(LabelPayload, query).annotator)
        return {"votes": voting.recent_votes(ctx, annotator)}

    def presence(query: dict[str, Any]) -> dict[str, Any]:
        people_here = touch_presence(ctx, ctx.annotator_or_empty(parse_payload(LabelPayload, query).annotator))
        return {"people_here": people_here, "you": visitor_info(ctx)} | cached_progress()

    def instant(query: dict[str, Any]) -> dict[str, Any]:
        payload = parse_payload(InstantQuery, query)
        return instant_view(ctx, ctx.annotator_or_empty(payload.annotator), payload.vote_uuid)

    def disputed(query: dict[str, Any]) -> dict[str, Any]:
        annotator = ctx.annotator_or_empty(parse_payload(LabelPayload, query).annotator)
        if not annotator or not is_expert(ctx, annotator):
            return {"count": 0, "pairs": []}
        project_id, view = cached_disputes()
        return view if project_id == ctx.project.id else {"count": 0, "pairs": []}

    judges = [
        {"name": judge.name, "description": judge.description, "prompt_set": judge.prompt_set}
        for judge in JUDGES.values()
    ]
    handlers = voting_handlers(ctx)
    component = widget(
        "label",
        "label/view.js",
        events=("judge", "reset", *handlers),
        server_functions={"recent_votes": recent_votes, "presence": presence, "instant": instant, "disputed": disputed},
        data={"judges": judges},
        label="Label pairs of texts",
    )

    @operator_action(ctx, JudgePayload, toast_errors=True)
    def judge(payload: JudgePayload) -> dict[str, Any]:
        annotator = ctx.require_annotator(payload.annotator)
        notice = ctx.scheduler.request_judge_labels(ctx.project.id, payload.judge, payload.count)
        ctx.instant_reward.labels_changed()
        return state(ctx, annotator, notice=notice)

    @operator_action(ctx, ResetPayload, toast_errors=True)
    def reset(payload: ResetPayload) -> dict[str, Any]:
        annotator = ctx.require_annotator(payload.annotator)
        if payload.stop_run is not None:
            run_control.stop(ctx.db, payload.stop_run)
        project = copy_project(ctx.db, ctx.project)
        notice = f'A new project was created: "{project.name}". The old one is kept under Project.{runs_note(ctx)}'
        return state(ctx, annotator, notice=notice)

    for name, handler in handlers.items():
        getattr(component, name)(handler, None, component, **SILENT_MULTIPLE_EVENT)
    component.judge(judge, operator, component, **SILENT_MULTIPLE_EVENT)
    component.reset(reset, operator, component, **SILENT_MULTIPLE_EVENT)


def voting_handlers(ctx: Context) -> dict[str, Handler]:
    """The handlers of a labeller's events, by the event's name."""

    @allow_viewers
    @visitor_action(LabelPayload, toast_errors=True)
    def opened(payload: LabelPayload) -> dict[str, Any]:
        return state(ctx, ctx.annotator_or_empty(payload.annotator))

    @visitor_action(voting.VotePayload, toast_errors=True)
    def vote(payload: voting.VotePayload) -> dict[str, Any]:
        annotator, notice = ctx.require_annotator(payload.annotator), ""
        try:
            stored = voting.cast_vote(ctx, payload, annotator)
            if stored.choice is not Choice.SKIP:
                ctx.instant_reward.predict_vote(stored)
        except LabelError as error:  # the page already shows the next pair; this reply makes it show the right one
            notice = refusal(error, payload)
        return state(ctx, annotator, notice=notice) | {"vote_uuid": payload.uuid}

    @visitor_action(LabelPayload, toast_errors=True)
    def undo(payload: LabelPayload) -> dict[str, Any]:
        annotator, project = ctx.require_annotator(payload.annotator), ctx.project
        if voting.is_stale_project(ctx, payload.project_created_at):
            return state(ctx, annotator, notice=OTHER_PROJECT_NOTICE)
        if pause_text(ctx, annotator):
            return state(ctx, annotator)
        rules = get_labelling_config(ctx.db, project.id)
        voting.check_may_hold(ctx, annotator, rules)
        undone = undo_last_vote(ctx.db, project.id, annotator, rules)
        if undone is not None:
            ctx.instant_reward.forget_votes(annotator, undone.pair.id)
        notice = "There is nothing to undo." if undone is None else "Your last answer was undone."
        return state(ctx, annotator, notice=notice)

    @visitor_action(LabelPayload, toast_errors=True)
    def redo(payload: LabelPayload) -> dict[str, Any]:
        annotator = ctx.require_annotator(payload.annotator)
        if voting.is_stale_project(ctx, payload.project_created_at):
            return state(ctx, annotator, notice=OTHER_PROJECT_NOTICE)
        redone = redo_last_vote(ctx.db, ctx.project.id, annotator)
        ctx.instant_reward.labels_changed()
        notice = "There is nothing to redo." if redone is None else "The undone vote counts again."
        return state(ctx, annotator, notice=notice)

    @visitor_action(voting.ChangePayload, toast_errors=True)
    def amend(payload: voting.ChangePayload) -> dict[str, Any]:
        annotator, notice = ctx.require_annotator(payload.annotator), "Your earlier answer was changed."
        try:
            refuse_if_paused(ctx, annotator)
            voting.change_vote(ctx, payload, annotator)
            ctx.instant_reward.labels_changed()
        except (StaleVoteError, NotAllowedError) as error:
            notice = refusal(error, payload)
        return state(ctx, annotator, notice=notice) | {"vote_uuid": payload.uuid}

    return {"opened": opened, "vote": vote, "undo": undo, "redo": redo, "amend": amend} | expert_handlers(ctx)


def expert_handlers(ctx: Context) -> dict[str, Handler]:
    """The handlers of events that only experts and the operator may trigger, by the event's name."""

    @visitor_action(AdjudicationPayload, toast_errors=True)
    def adjudicate(payload: AdjudicationPayload) -> dict[str, Any]:
        annotator, project = ctx.require_annotator(payload.annotator), ctx.project
        require_expert(ctx, annotator)
        if voting.is_stale_project(ctx, payload.project_created_at):
            return state(ctx, annotator, notice=OTHER_PROJECT_NOTICE)
        if payload.stop:
            stop_adjudicating(ctx.db, project.id, annotator)
            return state(ctx, annotator)
        rules = get_labelling_config(ctx.db, project.id)
        voting.check_may_hold(ctx, annotator, rules)
        lease = start_adjudicating(ctx.db, project.id, annotator, rules)
        return state(ctx, annotator, notice="" if lease else "There is no disputed pair left for you.")

    @visitor_action(GoldPayload, toast_errors=True)
    def gold(payload: GoldPayload) -> dict[str, Any]:
        annotator = ctx.require_annotator(payload.annotator)
        require_expert(ctx, annotator)
        if voting.is_stale_project(ctx, payload.project_created_at):
            return state(ctx, annotator, notice=OTHER_PROJECT_NOTICE)
        notice = "It is no longer a gold pair."
        if payload.is_gold:
            notice = "It is now a gold pair; your answer is the known one."
        try:
            mark_gold(ctx.db, ctx.project.id, annotator, payload.vote_id, payload.is_gold)
        except LabelError as error:
            notice = str(error)
        return state(ctx, annotator, notice=notice)

    return {"adjudicate": adjudicate, "gold": gold}


def refusal(error: LabError, answer: voting.Answer) -> str:
    """Why an answer was not stored, with the note that the person typed."""
    return f'{error} Your note was: "{answer.note}"' if answer.note else str(error)


def touch_presence(ctx: Context, name: str) -> int:
    """Record that this labeller has the page open. Returns how many labellers have."""
    if ctx.is_labeller():
        PRESENCE.touch(name)
    return PRESENCE.count()


def state(ctx: Context, annotator: str, *, notice: str = "") -> dict[str, Any]:
    """Everything the widget shows. `pair` is None while the engine samples new ones; `waiting_text` says so.

    `next_pair` is leased to this person too: the page draws it as soon as they answer.
    """
    project = ctx.project
    rules = get_labelling_config(ctx.db, project.id)
    waiting_text, leases, note = "", list[Lease](), ""
    if ctx.is_labeller():
        waiting_text, note = annotator_notice(ctx, project.id, annotator, rules)
    if ctx.is_labeller() and not waiting_text:
        try:
            leases = voting.lease_pairs(ctx, project.id, annotator, rules, prefetch=voting.PAIRS_OF_PAGE - 1)
        except NotAllowedError as error:
            waiting_text = str(error)
    elif not waiting_text:
        waiting_text = "You can view everything. To label, log in with the join code."
    pairs = [voting.lease_view(ctx, lease, rules, project.system_prompt) for lease in leases]
    pair, next_pair, *_ = [*pairs, None, None]
    return {
        "request_id": time.time_ns(),  # Gradio does not pass a value to the script that equals the previous one
        "project": {
            "project_created_at": project.created_at, "name": project.name, "prompt_set": project.prompt_set,
        },
        "pair": pair,
        "next_pair": next_pair,
        "waiting_text": "" if pair else waiting_text or no_pair_text(ctx),
        "you": visitor_info(ctx),
        "guideline": rules.guideline,
        "quality_note": note,
        "length_note": length_note(ctx.db, project) if ctx.is_operator() else "",
        "people_here": touch_presence(ctx, annotator),
        "notice": notice,
        "vote_uuid": None,  # of the vote or change that this replies to
    } | label_progress(ctx)  # fmt: skip


def no_pair_text(ctx: Context) -> str:
    """Why there is no pair, and how long the next one takes."""
    return f"{scheduler.no_pair_message(ctx.db, ctx.project.id)} {next_pair_sentence(ctx)}".strip()


def visitor_info(ctx: Context) -> dict[str, str]:
    """The visitor's name and role."""
    visitor = ctx.visitor()
    return {"name": visitor.registered_name, "role": visitor.role.value}


def training_text(ctx: Context) -> str:
    """The state of the training of a reward model, for which there are enough labels."""
    db, project_id = ctx.db, ctx.project.id
    cancelled_text = "The last training of a reward model was cancelled; the next one starts after a new label."
    status = retraining.training_status(db, project_id)
    return status or (cancelled_text if retraining.was_cancelled(db, project_id) else "")


def label_progress(ctx: Context) -> dict[str, Any]:
    """How many labels there are, and when the next reward model is trained. The page uses `counted_at` to ignore older
    replies."""
    with _count_lock:
        counted_at, progress = time.time_ns() // 1000, retraining.get_label_progress(ctx.db, ctx.project.id)
    return {
        "counted_at": counted_at,
        "labels": progress.human,
        "simulated": progress.simulated,
        "active_run": next(
            ({"id": run.id, "name": run.name, "status": run.status} for run in run_control.active_runs(ctx.db)), None
        ),
        "next_training_at": progress.goal,
        "labels_to_next": progress.remaining,
        "has_model": bool(progress.newest_model_id),
        "training_text": "" if progress.remaining > 0 else training_text(ctx),
    }
