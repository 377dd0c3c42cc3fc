"""Part "Somebody leaves" of the screen People: the operator takes a name, and the votes under it if they like, out of the lab."""

from typing import Any

import gradio as gr

from rlhf_lab.jobs.forgetting import forget_person
from rlhf_lab.store.forgetting import names
from rlhf_lab.ui.context import Context, operated
from rlhf_lab.ui.presence import PRESENCE
from rlhf_lab.ui.widgets import UNSEEN, widget

IN_FILE = " The name stands in the file of passwords: take its line out too, and start the lab again."


def build(ctx: Context, operator: gr.BrowserState) -> None:
    part = widget("leaving", label="Somebody leaves")

    def known(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        """Whom the operator can choose."""
        return operated(ctx, secret, event, lambda _: {"names": names(ctx.db)})

    def leave(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        return operated(ctx, secret, event, lambda said: {"done": let_go(ctx, said)})

    part.known(known, operator, part, **UNSEEN)
    part.leave(leave, operator, part, **UNSEEN)


def let_go(ctx: Context, said: dict[str, Any]) -> str:
    """Take {"name", "votes": theirs too} out of the lab; returns what to tell the operator. Raises LabError."""
    name, votes = str(said.get("name") or ""), said.get("votes") is True
    count = forget_person(ctx.db, ctx.home, name, votes=votes)
    PRESENCE.forget(name)
    became = "taken back" if votes else "kept, as those of a visitor without a name"
    told = "The name is out of this lab" + (f"; votes that are {became}: {count}." if count else ".")
    return told + (IN_FILE if name in ctx.access.people else "")
