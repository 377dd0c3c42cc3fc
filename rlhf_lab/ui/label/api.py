"""Screen "Label": choose the better of two texts, by keys or buttons; the next pair appears immediately."""

import threading
import time

from typing_extensions import TypedDict

from rlhf_lab.common.enums import Choice
from rlhf_lab.common.records import Lease, Role
from rlhf_lab.errors import LabelError, LabError, NotAllowedError, StaleVoteError
from rlhf_lab.jobs import retraining, scheduler
from rlhf_lab.jobs.answer_length import length_note
from rlhf_lab.judges.builtin import JUDGES
from rlhf_lab.store.adjudication import stop_adjudicating
from rlhf_lab.store.edited_answers import add_edited_answer
from rlhf_lab.store.gold_pairs import mark_gold
from rlhf_lab.store.pair_leases import redo_last_vote, start_adjudicating, undo_last_vote, what_can_be_undone
from rlhf_lab.store.projects import get_labelling_config
from rlhf_lab.ui.compare.typed_texts import hides_scores
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.header.guide import label_note
from rlhf_lab.ui.limits import ANSWER
from rlhf_lab.ui.run_views.stage_estimates import next_pair_sentence
from rlhf_lab.ui.shared import voting
from rlhf_lab.ui.shared.api import Api, Payload
from rlhf_lab.ui.shared.crowd import (
    Disputes,
    annotator_notice,
    disputed_view,
    fixed_pairs,
    is_expert,
    pause_text,
    refuse_if_paused,
    require_expert,
)
from rlhf_lab.ui.shared.instant_view import InstantFigures, instant_view
from rlhf_lab.ui.shared.presence import PRESENCE, PageVisitor, shown_names
from rlhf_lab.ui.shared.widgets import widget

api = Api("label")
OTHER_PROJECT_NOTICE = "Another project has been opened; here is its next pair. Nothing was undone or redone."
PROGRESS_CACHED_S, DISPUTES_CACHED_S = 1.0, 10.0
_count_lock = threading.Lock()


class LabelPayload(Payload):
    """project_created_at: identifies the project that the page shows."""

    project_created_at: float | None = None


class InstantQuery(Payload):
    """vote_uuid: the page's last vote, whose prediction it waits for or shows; "" for none."""

    vote_uuid: str = ""


class AdjudicationPayload(LabelPayload):
    """Decide disputed pairs as an expert, or stop doing so."""

    stop: bool = False


class GoldPayload(LabelPayload):
    """Make the pair of one's own vote a gold pair, or an ordinary pair again."""

    vote_id: int
    is_gold: bool


class JudgePayload(Payload):
    """Let a simulated judge label `count` pairs."""

    judge: str
    count: int


class LabelProgress(TypedDict):
    """How many labels there are, and when the next reward model is trained. The page uses `counted_at` to ignore older
    replies. guide_note: what the guide says of it."""

    counted_at: int
    labels: int
    simulated: int
    next_training_at: int
    labels_to_next: int
    has_model: bool
    training_text: str
    guide_note: str


class PeopleHere(LabelProgress):
    project_created_at: float
    people_here: int
    you: PageVisitor
    shown_names: dict[str, str]
    length_note: str


class LabelProject(TypedDict):
    id: int
    project_created_at: float
    name: str
    prompt_set: str


class LabelState(LabelProgress):
    """Everything the screen shows. `pair` is None while the engine samples new ones; `waiting_text` says so.

    `next_pair` is leased to this person too: the page draws it as soon as they answer. can_undo, can_redo: there is something.
    notice: the outcome of what they did.
    """

    project: LabelProject
    pair: voting.ShownPair | None
    next_pair: voting.ShownPair | None
    waiting_text: str
    you: PageVisitor
    shown_names: dict[str, str]
    may_edit: bool
    can_undo: bool
    can_redo: bool
    guideline: str
    quality_note: str
    length_note: str
    people_here: int
    notice: str


def build(ctx: Context) -> None:
    judges = [
        {"name": judge.name, "description": judge.description, "prompt_set": judge.prompt_set}
        for judge in JUDGES.values()
    ]
    widget("label", "label/view.js", data={"judges": judges}, label="Label pairs of texts")


@api.read(Payload)
def recent_votes(ctx: Context, query: Payload) -> list[voting.EarlierVote]:
    return voting.recent_votes(ctx, ctx.require_annotator(query.annotator))


@api.read(Payload)
def presence(ctx: Context, query: Payload) -> PeopleHere:
    people_here = touch_presence(ctx, ctx.annotator_or_empty(query.annotator))
    project = ctx.project
    progress = ctx.cache.get(("label progress", project.id), PROGRESS_CACHED_S, lambda: label_progress(ctx))
    return {
        **progress,
        "project_created_at": project.created_at,
        "people_here": people_here,
        "you": visitor_info(ctx),
        "shown_names": shown_names(ctx),
        "length_note": operator_length_note(ctx),
    }


@api.read(InstantQuery)
def instant(ctx: Context, query: InstantQuery) -> InstantFigures:
    annotator = ctx.annotator_or_empty(query.annotator)
    view = instant_view(ctx, annotator, query.vote_uuid)
    predicted = ctx.instant_reward.prediction(query.vote_uuid, annotator)
    if predicted is not None and hides_scores(ctx, predicted[0].pair_id):
        view["prediction"] = None
    return view


@api.read(Payload)
def disputed(ctx: Context, query: Payload) -> Disputes:
    """Empty for all who are no experts."""
    annotator, project_id = ctx.annotator_or_empty(query.annotator), ctx.project.id
    if not annotator or not is_expert(ctx, annotator):
        return {"count": 0, "prompts": []}
    return ctx.cache.get(("disputes", project_id), DISPUTES_CACHED_S, lambda: disputed_view(ctx, project_id))


@api.action(JudgePayload, role=Role.OPERATOR)
def judge(ctx: Context, payload: JudgePayload) -> LabelState:
    annotator = ctx.require_annotator(payload.annotator)
    notice = ctx.scheduler.request_judge_labels(ctx.project.id, payload.judge, payload.count)
    ctx.instant_reward.labels_changed()
    return state(ctx, annotator, notice=notice)


@api.action(Payload, role=Role.VIEWER, limit=ANSWER)
def opened(ctx: Context, payload: Payload) -> LabelState:
    """An action, because it leases pairs."""
    return state(ctx, ctx.annotator_or_empty(payload.annotator))


@api.action(voting.VotePayload, limit=ANSWER)
def vote(ctx: Context, payload: voting.VotePayload) -> LabelState:
    annotator, notice = ctx.require_annotator(payload.annotator), ""
    try:
        stored = voting.cast_vote(ctx, payload, annotator)
        if stored.choice is not Choice.SKIP:
            ctx.instant_reward.predict_vote(stored)
        if payload.edit and not stored.undone_at and voting.may_edit(ctx):
            add_edited_answer(ctx.db, stored, payload.edit)
            ctx.instant_reward.labels_changed()
    except LabelError as error:  # the page already shows the next pair; this reply makes it show the right one
        notice = refusal(error, payload)
    return state(ctx, annotator, notice=notice)


@api.action(LabelPayload, limit=ANSWER)
def undo(ctx: Context, payload: LabelPayload) -> LabelState:
    annotator, project = ctx.require_annotator(payload.annotator), ctx.project
    if voting.is_stale_project(ctx, payload.project_created_at):
        return state(ctx, annotator, notice=OTHER_PROJECT_NOTICE)
    if pause_text(ctx, annotator):
        return state(ctx, annotator)
    rules = get_labelling_config(ctx.db, project.id)
    voting.check_may_hold(ctx, annotator, rules)
    try:
        fixed = fixed_pairs(ctx, payload.annotator)
        undone = undo_last_vote(ctx.db, project.id, annotator, rules, fixed=fixed)
    except StaleVoteError as error:
        return state(ctx, annotator, notice=str(error))
    if undone is not None:
        ctx.instant_reward.forget_votes(annotator, undone.pair.id)
    notice = "There is nothing to undo." if undone is None else "Your last answer was undone."
    return state(ctx, annotator, notice=notice)


@api.action(LabelPayload, limit=ANSWER)
def redo(ctx: Context, payload: LabelPayload) -> LabelState:
    annotator = ctx.require_annotator(payload.annotator)
    if voting.is_stale_project(ctx, payload.project_created_at):
        return state(ctx, annotator, notice=OTHER_PROJECT_NOTICE)
    redone = redo_last_vote(ctx.db, ctx.project.id, annotator)
    ctx.instant_reward.labels_changed()
    notice = "There is nothing to redo." if redone is None else "The undone vote counts again."
    return state(ctx, annotator, notice=notice)


@api.action(voting.ChangePayload, limit=ANSWER)
def amend(ctx: Context, payload: voting.ChangePayload) -> LabelState:
    annotator, notice = ctx.require_annotator(payload.annotator), "Your earlier answer was changed."
    try:
        refuse_if_paused(ctx, annotator)
        voting.change_vote(ctx, payload, annotator)
        ctx.instant_reward.labels_changed()
    except (StaleVoteError, NotAllowedError) as error:
        notice = refusal(error, payload)
    return state(ctx, annotator, notice=notice)


@api.action(AdjudicationPayload, limit=ANSWER)
def adjudicate(ctx: Context, payload: AdjudicationPayload) -> LabelState:
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


@api.action(GoldPayload, limit=ANSWER)
def gold(ctx: Context, payload: GoldPayload) -> LabelState:
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


def refusal(error: LabError, answer: voting.Answer) -> str:
    """Why an answer was not stored, with the note and the edited text that the person typed."""
    edit = answer.edit if isinstance(answer, voting.VotePayload) else ""
    typed = {"note": answer.note, "edited text": edit}
    return " ".join([str(error), *(f'Your {name} was: "{text}"' for name, text in typed.items() if text)])


def touch_presence(ctx: Context, name: str) -> int:
    """Record that this labeller has the page open. Returns how many labellers have."""
    if ctx.is_labeller():
        PRESENCE.touch(name)
    return PRESENCE.count()


def state(ctx: Context, annotator: str, *, notice: str = "") -> LabelState:
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
        waiting_text = (
            "You can view everything. To label, log in with the join code. If you started this lab, open the operator's link "
            "that it printed."
        )
    pairs = [voting.lease_view(ctx, lease, rules, project.system_prompt) for lease in leases]
    pair, next_pair, *_ = [*pairs, None, None]
    can_undo, can_redo = what_can_be_undone(ctx.db, project.id, annotator) if ctx.is_labeller() else (False, False)
    return {
        "project": {
            "id": project.id, "project_created_at": project.created_at, "name": project.name,
            "prompt_set": project.prompt_set,
        },
        "pair": pair,
        "next_pair": next_pair,
        "waiting_text": "" if pair else waiting_text or no_pair_text(ctx),
        "you": visitor_info(ctx),
        "shown_names": shown_names(ctx),
        "may_edit": voting.may_edit(ctx),
        "can_undo": can_undo,
        "can_redo": can_redo,
        "guideline": rules.guideline,
        "quality_note": note,
        "length_note": operator_length_note(ctx),
        "people_here": touch_presence(ctx, annotator),
        "notice": notice,
        **label_progress(ctx),
    }  # fmt: skip


def no_pair_text(ctx: Context) -> str:
    """Why there is no pair, and how long the next one takes."""
    return f"{scheduler.no_pair_message(ctx.db, ctx.project.id)} {next_pair_sentence(ctx)}".strip()


def operator_length_note(ctx: Context) -> str:
    return length_note(ctx.db, ctx.project) if ctx.is_operator() else ""


def visitor_info(ctx: Context) -> PageVisitor:
    visitor = ctx.visitor()
    return {"name": visitor.registered_name, "role": visitor.role}


def label_progress(ctx: Context) -> LabelProgress:
    with _count_lock:
        counted_at, progress = time.time_ns() // 1000, retraining.get_label_progress(ctx.db, ctx.project.id)
    return {
        "counted_at": counted_at,
        "labels": progress.human,
        "simulated": progress.simulated,
        "next_training_at": progress.goal,
        "labels_to_next": progress.remaining,
        "has_model": bool(progress.newest_model_id),
        "training_text": "" if progress.remaining > 0 else retraining.training_status(ctx.db, ctx.project.id),
        "guide_note": label_note(ctx.db, ctx.project.id, progress),
    }
