"""Screen "People": who is here, a leaderboard, the invitation, the labelling rules, gold pairs, and erasing a person."""

from typing import Any
from urllib.parse import quote, urlsplit

import gradio as gr
import segno

from rlhf_lab.common.program_names import page_command
from rlhf_lab.config.base import fields_of
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.errors import LabelError
from rlhf_lab.jobs.person_erasure import erase_person_data
from rlhf_lab.store.annotators import MAX_PERSON_NAME_CHARS, annotator_stats
from rlhf_lab.store.erasure import known_names
from rlhf_lab.store.project_people import end_pause, set_expert
from rlhf_lab.store.projects import get_labelling_config, set_labelling_config
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.network import is_loopback
from rlhf_lab.ui.shared.api import Payload, parse_payload
from rlhf_lab.ui.shared.crowd import gold_view, sees_comparisons
from rlhf_lab.ui.shared.events import operator_action, ttl_cache
from rlhf_lab.ui.shared.forms import parse_value
from rlhf_lab.ui.shared.presence import PRESENCE
from rlhf_lab.ui.shared.widgets import SILENT_EVENT, widget

MAX_ROWS = 100
PASSWORD_FILE_NOTE = " The name is also in the password file: remove its line and restart the lab."


class PeopleQuery(Payload):
    annotator: str | None = None


class RulesPayload(Payload):
    """rules: values of the project's LabellingConfig, by name."""

    rules: dict[str, Any]


class InvitePayload(Payload):
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


def build(ctx: Context, operator: gr.BrowserState) -> None:
    cached_leaderboard = ttl_cache(3.0, lambda: leaderboard(ctx))

    def get_state(query: dict[str, Any]) -> dict[str, Any]:
        name = ctx.annotator_name(parse_payload(PeopleQuery, query).annotator)[:MAX_PERSON_NAME_CHARS]
        rows, has_agreement = cached_leaderboard(), sees_comparisons(ctx)
        return {
            "you": {"name": name, "role": ctx.visitor().role.value},
            "present": PRESENCE.names(),
            "leaderboard": rows if has_agreement else [row | {"comparisons": 0, "agreements": 0} for row in rows],
            "has_agreement": has_agreement,
            "rules": get_labelling_config(ctx.db, ctx.project.id).to_dict(),
        }

    component = widget(
        "people",
        "people/view.js",
        events=("rules", "invite", "list_names", "erase", "gold", "person"),
        server_functions={"get_state": get_state},
        data={"fields": rule_fields(), "page_command": page_command()},
        label="People",
    )

    @operator_action(ctx, RulesPayload)
    def rules(payload: RulesPayload) -> dict[str, Any]:
        return update_labelling_config(ctx, payload)

    # Events and not server functions, because server functions do not get the secret that a browser stores.
    @operator_action(ctx, InvitePayload)
    def invite(payload: InvitePayload) -> dict[str, Any]:
        return {"invite": invitation(ctx, payload.origin)}

    @operator_action(ctx, Payload)
    def list_names(_: Payload) -> dict[str, Any]:
        return {"names": known_names(ctx.db)}

    @operator_action(ctx, ErasePayload)
    def erase(payload: ErasePayload) -> dict[str, Any]:
        return {"message": erase_person(ctx, payload)}

    @operator_action(ctx, Payload)
    def gold(_: Payload) -> dict[str, Any]:
        return {"gold": gold_view(ctx)}

    @operator_action(ctx, PersonPayload)
    def person(payload: PersonPayload) -> dict[str, Any]:
        return {"message": decide_about_person(ctx, payload), "gold": gold_view(ctx)}

    for handler in (rules, invite, list_names, erase, gold, person):
        getattr(component, handler.__name__)(handler, operator, component, **SILENT_EVENT)


def rule_fields() -> list[dict[str, Any]]:
    """The labelling rules as fields of the page's form."""
    return [
        {
            "name": item.name, "type": item.type.__name__, "help": item.help, "low": item.low, "high": item.high,
            "choices": item.choices, "group": item.group,
        }
        for item in fields_of(LabellingConfig)
    ]  # fmt: skip


def leaderboard(ctx: Context) -> list[dict[str, Any]]:
    """A row per person: labels, self-consistency on hidden repeats and with others on shared pairs."""
    return [
        {
            "annotator": row.annotator, "labels": row.labels, "repeats": row.repeated, "consistent_repeats": row.same,
            "comparisons": row.shared, "agreements": row.agreed,
        }
        for row in annotator_stats(ctx.db, ctx.project.id)[:MAX_ROWS]
    ]  # fmt: skip


def decide_about_person(ctx: Context, payload: PersonPayload) -> str:
    """Apply the operator's decision; returns a message for them. Raises LabelError for a name that nobody has."""
    if payload.name not in known_names(ctx.db):
        raise LabelError(f'Nobody in this lab is called "{payload.name}" (any more).')
    project_id = ctx.project.id
    if payload.go_on:
        end_pause(ctx.db, project_id, payload.name)
        return f"{payload.name} can continue; the count of gold answers was reset."
    set_expert(ctx.db, project_id, payload.name, bool(payload.is_expert))
    return f"{payload.name} is {'an expert' if payload.is_expert else 'no expert'} in this project."


def update_labelling_config(ctx: Context, payload: RulesPayload) -> dict[str, Any]:
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


def invitation(ctx: Context, origin: str) -> dict[str, Any] | None:
    """{"code", "link", "qr"}: the join code, and the link that contains it; None if nobody can join. link: "" if a lab in a
    container does not know its address.

    origin: the page's address in the operator's browser. On the lab's own computer, other devices need a different address.
    """
    if not ctx.on_space and is_loopback(urlsplit(origin).hostname or ""):
        origin = ctx.public_url
    if not ctx.access.is_multi_user or not (origin or needs_address(ctx)):
        return None
    if not origin:
        return {"code": ctx.access.join_code, "link": "", "qr": None}
    link = f"{origin.rstrip('/')}/join?code={quote(ctx.access.join_code)}"
    return {"code": ctx.access.join_code, "link": link, "qr": qr_code(link)}


def needs_address(ctx: Context) -> bool:
    """Whether others can reach the lab, but at an address that it does not know, because it runs in a container."""
    return ctx.access.is_multi_user and ctx.in_container and not ctx.public_url


def qr_code(text: str) -> dict[str, Any]:
    """A QR code: {"size": in modules with the quiet zone, "path": an SVG path of unit squares}."""
    matrix = segno.make(text[:300], error="m").matrix
    border = 4
    squares = [
        f"M{x + border} {y + border}h1v1h-1z" for y, row in enumerate(matrix) for x, module in enumerate(row) if module
    ]
    return {"size": len(matrix) + 2 * border, "path": "".join(squares)}


def erase_person(ctx: Context, payload: ErasePayload) -> str:
    """Erase a person from the lab; returns the message for the operator. Raises LabError."""
    name, votes = payload.name, payload.delete_votes
    count = erase_person_data(ctx.db, ctx.home, name, votes=votes)
    PRESENCE.remove(name)
    outcome = "deleted" if votes else "kept without the name"
    message = "The name was removed from this lab" + (f"; votes that are {outcome}: {count}." if count else ".")
    return message + (PASSWORD_FILE_NOTE if name in ctx.access.password_entries else "")
