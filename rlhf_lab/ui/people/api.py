"""Screen "People": who is here, a leaderboard, the invitation, the labelling rules, gold pairs, erasing a person, and what the
next class begins with."""

import contextlib
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit

import segno
from typing_extensions import TypedDict

from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, JobKind, RunStatus
from rlhf_lab.common.program_names import page_command
from rlhf_lab.common.records import AnnotatorActivity, Role
from rlhf_lab.config.base import Setting, fields_of
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.errors import ConfigError, LabelError, StoreError
from rlhf_lab.jobs import queue, run_control
from rlhf_lab.jobs.person_erasure import erase_person_data
from rlhf_lab.jobs.project_setup import copy_project
from rlhf_lab.jobs.retraining import cancel_training, get_label_progress, training_status
from rlhf_lab.store.annotators import MAX_PERSON_NAME_CHARS, annotator_stats
from rlhf_lab.store.erasure import known_names
from rlhf_lab.store.project_people import end_pause, set_expert
from rlhf_lab.store.projects import get_labelling_config, set_labelling_config
from rlhf_lab.store.runs import get_run
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.network import is_loopback, parse_proxy_url
from rlhf_lab.ui.run_views.run_feed import runs_note
from rlhf_lab.ui.shared.api import Api, LongText, Message, Payload
from rlhf_lab.ui.shared.crowd import GoldView, gold_view, sees_comparisons
from rlhf_lab.ui.shared.forms import parse_value
from rlhf_lab.ui.shared.presence import PRESENCE, PageVisitor, shown_names
from rlhf_lab.ui.shared.widgets import widget

api = Api("people")
MAX_ROWS = 100
LEADERBOARD_S = 3.0  # for how long it is reused
RULE_LABELS = {
    "overlap": "Votes per pair",
    "repeats": "Share of pairs shown a second time (0 to 0.5)",
    "hold_s": "Reserve a pair for one person (seconds)",
    "sampling": "Which pairs are shown",
    "texts": "Which model writes the texts",
    "gold_rate": "Share of gold pairs (0 to 0.5)",
    "gold_rule": "Below the lowest acceptable accuracy",
    "gold_bound": "Lowest acceptable accuracy (0 to 1)",
    "gold_answers": "Gold answers before the rule acts",
    "gold_weight": "Weight of votes that count less",
    "gold_training": "Learn from votes on gold pairs",
    "markdown": "Show Markdown",
    "guideline": "Guideline",
}
CHOICE_LABELS = {
    "random": "any",
    "teaching": "two of four texts: complete, of similar length",
    "information": "whose answers are expected to teach the most",
    "uncertainty": "where the reward model is least sure",
    "diversity": "least similar to the existing pairs",
    "none": "nothing happens",
    "inform": "the person gets a friendly note",
    "down_weight": "their votes count less in reward models",
    "pause": "they are paused until you let them continue",
    "base": "the base model",
    "policy": "the newest checkpoint of a run",
}
PASSWORD_FILE_NOTE = " The name is also in the password file: remove its line and restart the lab."


class RulesPayload(Payload):
    """rules: values of the project's LabellingConfig, by name."""

    rules: dict[str, LongText | int | float | bool | None]


class InvitationQuery(Payload):
    """origin: the page's address as the operator sees it."""

    origin: str = ""


class PersonPayload(Payload):
    """What the operator decides about a person: to make them an expert or not, or to end a pause."""

    name: str
    is_expert: bool | None = None
    go_on: bool = False


class ErasePayload(Payload):
    """delete_votes: otherwise they are kept without the name."""

    name: str
    delete_votes: bool = False


class PeopleState(TypedDict):
    """present: the names of those who are connected. shown_names: see `presence.shown_names`. has_agreement: whether this
    visitor may see how often people agree."""

    project: int
    you: PageVisitor
    present: list[str]
    shown_names: dict[str, str]
    leaderboard: list[AnnotatorActivity]
    has_agreement: bool
    rules: LabellingConfig


class QrCode(TypedDict):
    """size: in modules, with the quiet zone. path: an SVG path of unit squares."""

    size: int
    path: str


class Invitation(TypedDict):
    """The join code, and the link that contains it. link: "" if a lab in a container does not know its address."""

    code: str
    link: str
    qr: QrCode | None


class Decision(Message):
    gold: GoldView


class ClassRun(TypedDict):
    id: int
    name: str
    status: RunStatus
    step: int
    total_steps: int


class ClassState(TypedDict):
    """What goes on in the open project. people: names that have labelled. runs: active ones, of all projects. training: of a
    reward model, `training_status`. has_code: whether people join with a code that can be renewed."""

    project: str
    labels: int
    people: int
    present: int
    runs: list[ClassRun]
    training: str
    has_code: bool


class NextClassPayload(Payload):
    """What changes for the next class; everything else is kept. stop_training: of all runs and reward models."""

    new_project: bool = False
    new_code: bool = False
    stop_training: bool = False


def build(ctx: Context) -> None:
    data = {"fields": rule_fields(False), "gold_fields": rule_fields(True), "page_command": page_command()}
    widget("people", "people/view.js", data=data, label="People")


@api.read(Payload)
def state(ctx: Context, query: Payload) -> PeopleState:
    has_agreement, project_id = sees_comparisons(ctx), ctx.project.id
    rows = ctx.cache.get(
        ("leaderboard", project_id), LEADERBOARD_S, lambda: annotator_stats(ctx.db, project_id)[:MAX_ROWS]
    )
    return {
        "project": project_id,
        "you": {"name": ctx.annotator_name(query.annotator)[:MAX_PERSON_NAME_CHARS], "role": ctx.visitor().role},
        "present": PRESENCE.names(),
        "shown_names": shown_names(ctx),
        "leaderboard": rows if has_agreement else [replace(row, shared=0, agreed=0) for row in rows],
        "has_agreement": has_agreement,
        "rules": get_labelling_config(ctx.db, project_id),
    }


@api.read(InvitationQuery, role=Role.OPERATOR)
def invite(ctx: Context, query: InvitationQuery) -> Invitation | None:
    return invitation(ctx, query.origin)


@api.read(Payload, role=Role.OPERATOR)
def names(ctx: Context, _: Payload) -> list[str]:
    """Everybody who can be erased."""
    return known_names(ctx.db)


@api.read(Payload, role=Role.OPERATOR)
def gold(ctx: Context, _: Payload) -> GoldView:
    return gold_view(ctx)


@api.action(RulesPayload, role=Role.OPERATOR)
def set_rules(ctx: Context, payload: RulesPayload) -> Message:
    """Change the project's labelling rules. Raises ConfigError without changing anything."""
    project = ctx.project
    settings = {item.name: item for item in fields_of(LabellingConfig)}
    values = {
        name: parse_value(settings[name], value) if settings[name].type in (int, float) else value
        for name, value in payload.rules.items()
        if name in settings
    }
    set_labelling_config(ctx.db, project.id, get_labelling_config(ctx.db, project.id).replace(**values))
    return {"message": "These rules apply from the next pair on."}


@api.action(PersonPayload, role=Role.OPERATOR)
def decide(ctx: Context, payload: PersonPayload) -> Decision:
    """Apply the operator's decision about a person. Raises LabelError for a name that nobody has."""
    if payload.name not in known_names(ctx.db):
        raise LabelError(f'Nobody in this lab is called "{payload.name}" (any more).')
    project_id = ctx.project.id
    if payload.go_on:
        end_pause(ctx.db, project_id, payload.name)
        message = f"{payload.name} can continue; the count of gold answers was reset."
    else:
        set_expert(ctx.db, project_id, payload.name, bool(payload.is_expert))
        message = f"{payload.name} is {'an expert' if payload.is_expert else 'no expert'} in this project."
    return {"message": message, "gold": gold_view(ctx)}


@api.action(ErasePayload, role=Role.OPERATOR)
def erase(ctx: Context, payload: ErasePayload) -> Message:
    """Erase a person from the lab. Raises LabError."""
    name, votes = payload.name, payload.delete_votes
    count = erase_person_data(ctx.db, ctx.home, name, votes=votes)
    PRESENCE.remove(name)
    outcome = "deleted" if votes else "kept without the name"
    message = "The name was removed from this lab" + (f"; votes that are {outcome}: {count}." if count else ".")
    return {"message": message + (PASSWORD_FILE_NOTE if name in ctx.access.password_entries else "")}


@api.read(Payload, role=Role.OPERATOR)
def class_state(ctx: Context, _: Payload) -> ClassState:
    return {
        "project": ctx.project.name,
        "labels": get_label_progress(ctx.db, ctx.project.id).human,
        "people": len(annotator_stats(ctx.db, ctx.project.id)),
        "present": PRESENCE.count(),
        "runs": [
            {"id": run.id, "name": run.name, "status": run.status, "step": run.step, "total_steps": run.total_steps}
            for run in run_control.active_runs(ctx.db)
        ],
        "training": training_status(ctx.db, ctx.project.id),
        "has_code": ctx.access.code.path is not None and ctx.access.default_role is Role.VIEWER,
    }


@api.action(NextClassPayload, role=Role.OPERATOR)
def next_class(ctx: Context, payload: NextClassPayload) -> Message:
    """The code first, because only that can be refused: nothing is changed then. Trainings of reward models last: the scheduler
    begins none in a project that is not open. Raises StoreError."""
    done = []
    if payload.new_code:
        ctx.access.code.renew()
        PRESENCE.clear()
        done.append(f"The new join code is {ctx.access.join_code}.")
    for run in run_control.active_runs(ctx.db) if payload.stop_training else []:
        with contextlib.suppress(StoreError):  # it has ended in between
            run_control.stop(ctx.db, run.id)
            stopped = get_run(ctx.db, run.id).status is RunStatus.STOPPED
            done.append(f"Run {run.id} {'is stopped' if stopped else 'will stop'}.")
    if payload.new_project:
        project = copy_project(ctx.db, ctx.project)
        note = "" if payload.stop_training else runs_note(ctx)
        done.append(f'"{project.name}" is open now, for everybody. The old project is kept under Project.{note}')
    for job in queue.jobs(ctx.db, kinds=[JobKind.TRAIN_REWARD], statuses=UNFINISHED_JOB_STATUSES):
        with contextlib.suppress(LabelError):  # it has ended in between
            if payload.stop_training and job.project_id is not None:
                cancel_training(ctx.db, job.project_id, job.id)
                done.append(
                    "The training of a reward model is cancelled. To begin it again, press Train reward model in its "
                    "project."
                )
    return {"message": " ".join(done) or "Nothing was changed."}


def rule_fields(are_gold: bool) -> list[dict[str, Any]]:
    """The labelling rules as fields of the page's form, for shared/fields.js."""
    return [rule_field(item) for item in fields_of(LabellingConfig) if (item.group == "gold") is are_gold]


def rule_field(item: Setting) -> dict[str, Any]:
    field = {"name": item.name, "label": RULE_LABELS[item.name], "help": item.help}
    if item.choices:
        return {**field, "choices": [(choice, CHOICE_LABELS[choice]) for choice in item.choices]}
    if item.type is bool:
        return {**field, "type": "checkbox"}
    if item.type is str:
        return {**field, "type": "textarea", "rows": 3}
    return {**field, "type": "number", "min": item.low, "max": item.high, "step": 1 if item.type is int else "any"}


def invitation(ctx: Context, origin: str) -> Invitation | None:
    """None if nobody can join.

    origin: the page's address in the operator's browser. On the lab's own computer, other devices need a different address.
    """
    try:
        address = parse_proxy_url(origin)
    except ConfigError:  # no page has this address
        address = ""
    if not address or (not ctx.on_space and is_loopback(urlsplit(address).hostname or "")):
        address = ctx.public_url
    if not ctx.access.is_multi_user or not (address or needs_address(ctx)):
        return None
    if not address:
        return {"code": ctx.access.join_code, "link": "", "qr": None}
    link = f"{address.rstrip('/')}/join?code={quote(ctx.access.join_code)}"
    return {"code": ctx.access.join_code, "link": link, "qr": qr_code(link)}


def needs_address(ctx: Context) -> bool:
    """Whether others can reach the lab, but at an address that it does not know, because it runs in a container."""
    return ctx.access.is_multi_user and ctx.in_container and not ctx.public_url


def qr_code(text: str) -> QrCode:
    matrix = segno.make(text[:300], error="m").matrix
    border = 4
    squares = [
        f"M{x + border} {y + border}h1v1h-1z" for y, row in enumerate(matrix) for x, module in enumerate(row) if module
    ]
    return {"size": len(matrix) + 2 * border, "path": "".join(squares)}
