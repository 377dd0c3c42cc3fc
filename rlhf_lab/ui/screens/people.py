"""Screen "People": who is here, what everybody did and how consistently, how others join, and by which rules they label."""

from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

import gradio as gr
import segno

from rlhf_lab.config.base import Setting, fields_of
from rlhf_lab.config.labelling import SAMPLING_METHODS, LabellingConfig
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs.person_erasure import erase_person_data
from rlhf_lab.store.annotators import MAX_PERSON_NAME_CHARS, annotator_stats
from rlhf_lab.store.erasure import known_names
from rlhf_lab.store.projects import get_labelling_config, set_labelling_config
from rlhf_lab.ui.components.widgets import SILENT_EVENT, widget
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.events import operator_action, server_function, ttl_cache
from rlhf_lab.ui.network import is_loopback
from rlhf_lab.ui.services.presence import PRESENCE

pass

__all__ = ["SAMPLING_METHODS", "build"]

MAX_ROWS = 100


def build(ctx: Context, operator: gr.BrowserState) -> None:
    cached_leaderboard = ttl_cache(3.0, lambda: leaderboard(ctx))

    def look(query: dict[str, Any]) -> dict[str, Any]:
        name = ctx.annotator_name(query.get("annotator"))[:MAX_PERSON_NAME_CHARS]
        return {
            "you": {"name": name, "role": ctx.visitor().role.value},
            "here": PRESENCE.names(),
            "board": cached_leaderboard(),
            "rules": get_labelling_config(ctx.db, ctx.project.id).to_dict(),
        }

    fields = [asdict(item) | {"type": item.type.__name__} for item in fields_of(LabellingConfig)]
    component = widget("people", server_functions=[server_function(look)], data={"fields": fields}, label="People")

    def rules(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        return operator_action(ctx, secret, event, lambda payload: update_labelling_config(ctx, payload))

    def invite(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        """An event and no server function: these come without the secret that a browser keeps."""
        return operator_action(
            ctx, secret, event, lambda payload: {"invite": invitation(ctx, str(payload.get("origin") or ""))}
        )

    component.rules(rules, operator, component, **SILENT_EVENT)
    component.invite(invite, operator, component, **SILENT_EVENT)
    build_erasure(ctx, operator)


def leaderboard(ctx: Context) -> list[dict[str, Any]]:
    """A line for each person: labels, agreement with themselves on hidden repeats and with others on shared pairs."""
    return [asdict(annotator_row) for annotator_row in annotator_stats(ctx.db, ctx.project.id)[:MAX_ROWS]]


def update_labelling_config(ctx: Context, payload: dict[str, Any]) -> dict[str, Any]:
    """Take {"rules": {name: value}} as the project's labelling settings. Raises ConfigError; then nothing changes."""
    project = ctx.project
    settings = {item.name: item for item in fields_of(LabellingConfig)}
    submitted = payload.get("rules")
    if not isinstance(submitted, dict):
        raise ConfigError("The settings could not be read. Reload the page and try again.")
    values = {name: _parse_value(settings[name], value) for name, value in submitted.items() if name in settings}
    set_labelling_config(ctx.db, project.id, get_labelling_config(ctx.db, project.id).replace(**values))
    return {"done": "From the next pair on everybody labels by these rules."}


def _parse_value(item: Setting, value: Any) -> Any:
    if item.type in (int, float):
        try:
            return item.type(str(value))
        except ValueError:
            raise ConfigError(f'{item.name} = "{value}" is not a number: {item.help}') from None
    return value


def invitation(ctx: Context, origin: str) -> dict[str, Any] | None:
    """{"code", "link", "size", "path"}: the join code, and the QR code of the link as an SVG path; None where nobody can join.

    origin: the page's address as the operator sees it, which at the lab's own computer is not the one that phones reach.
    """
    if not ctx.on_space and is_loopback(urlsplit(origin).hostname or ""):
        origin = ctx.public_url
    if not ctx.access.is_multi_user or not origin:
        return None
    link = f"{origin.rstrip('/')}/join?code={ctx.access.join_code}"
    return {"code": ctx.access.join_code, "link": link} | qr_code(link)


def qr_code(text: str) -> dict[str, Any]:
    """A QR code: its size in modules with the quiet zone, and a path of unit squares."""
    matrix = segno.make(text[:300], error="m").matrix
    border = 4
    squares = [
        f"M{x + border} {y + border}h1v1h-1z" for y, row in enumerate(matrix) for x, module in enumerate(row) if module
    ]
    return {"size": len(matrix) + 2 * border, "path": "".join(squares)}


PASSWORD_FILE_NOTE = " The name stands in the file of passwords: take its line out too, and start the lab again."


def build_erasure(ctx: Context, operator: gr.BrowserState) -> None:
    component = widget("leaving", label="Somebody leaves")

    def known(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        """Whom the operator can choose."""
        return operator_action(ctx, secret, event, lambda _: {"names": known_names(ctx.db)})

    def leave(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        return operator_action(ctx, secret, event, lambda payload: {"done": handle_erasure(ctx, payload)})

    component.known(known, operator, component, **SILENT_EVENT)
    component.leave(leave, operator, component, **SILENT_EVENT)


def handle_erasure(ctx: Context, payload: dict[str, Any]) -> str:
    """Take {"name", "votes": theirs too} out of the lab; returns what to tell the operator. Raises LabError."""
    name, votes = str(payload.get("name") or ""), payload.get("votes") is True
    count = erase_person_data(ctx.db, ctx.home, name, votes=votes)
    PRESENCE.remove(name)
    outcome = "taken back" if votes else "kept, as those of a visitor without a name"
    message = "The name is out of this lab" + (f"; votes that are {outcome}: {count}." if count else ".")
    return message + (PASSWORD_FILE_NOTE if name in ctx.access.password_entries else "")
