"""Screen "People": who is here, what everybody did and how consistently, how others join, and by which rules they label."""

from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

import gradio as gr
import segno

from rlhf_lab.errors import ConfigError
from rlhf_lab.labelling import SAMPLING, LabellingConfig
from rlhf_lab.settings import Setting, fields_of
from rlhf_lab.store.labelling import labelling_of, set_labelling, standings
from rlhf_lab.store.people import MAX_NAME
from rlhf_lab.ui import leaving
from rlhf_lab.ui.address import is_loopback
from rlhf_lab.ui.context import Context, operated, read, shared_for
from rlhf_lab.ui.presence import PRESENCE
from rlhf_lab.ui.widgets import UNSEEN, widget

__all__ = ["SAMPLING", "build"]

MOST_ROWS = 100


def build(ctx: Context, operator: gr.BrowserState) -> None:
    board = shared_for(3.0, lambda: leaderboard(ctx))

    def look(question: dict[str, Any]) -> dict[str, Any]:
        name = ctx.name(question.get("annotator"))[:MAX_NAME]
        return {
            "you": {"name": name, "role": ctx.visitor().role.value},
            "here": PRESENCE.names(),
            "board": board(),
            "rules": labelling_of(ctx.db, ctx.project.id).to_dict(),
        }

    fields = [asdict(item) | {"type": item.type.__name__} for item in fields_of(LabellingConfig)]
    part = widget("people", reads=[read(look)], data={"fields": fields}, label="People")

    def rules(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        return operated(ctx, secret, event, lambda said: change_rules(ctx, said))

    def invite(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        """An event and no server function: these come without the secret that a browser keeps."""
        return operated(ctx, secret, event, lambda said: {"invite": invitation(ctx, str(said.get("origin") or ""))})

    part.rules(rules, operator, part, **UNSEEN)
    part.invite(invite, operator, part, **UNSEEN)
    leaving.build(ctx, operator)


def leaderboard(ctx: Context) -> list[dict[str, Any]]:
    """A line for each person: labels, agreement with themselves on hidden repeats and with others on shared pairs."""
    return [asdict(one) for one in standings(ctx.db, ctx.project.id)[:MOST_ROWS]]


def change_rules(ctx: Context, said: dict[str, Any]) -> dict[str, Any]:
    """Take {"rules": {name: value}} as the project's labelling settings. Raises ConfigError; then nothing changes."""
    project = ctx.project
    known = {item.name: item for item in fields_of(LabellingConfig)}
    given = said.get("rules")
    if not isinstance(given, dict):
        raise ConfigError("The settings could not be read. Reload the page and try again.")
    values = {name: _value(known[name], value) for name, value in given.items() if name in known}
    set_labelling(ctx.db, project.id, labelling_of(ctx.db, project.id).replace(**values))
    return {"done": "From the next pair on everybody labels by these rules."}


def _value(item: Setting, value: Any) -> Any:
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
        origin = ctx.address
    if not ctx.access.guarded or not origin:
        return None
    link = f"{origin.rstrip('/')}/join?code={ctx.access.join_code}"
    return {"code": ctx.access.join_code, "link": link} | qr(link)


def qr(text: str) -> dict[str, Any]:
    """A QR code: its size in modules with the quiet zone, and a path of unit squares."""
    matrix = segno.make(text[:300], error="m").matrix
    border = 4
    squares = [
        f"M{x + border} {y + border}h1v1h-1z" for y, row in enumerate(matrix) for x, module in enumerate(row) if module
    ]
    return {"size": len(matrix) + 2 * border, "path": "".join(squares)}
