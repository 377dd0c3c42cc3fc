"""Part "Copy on the Hub": the operator enters repository and token, takes over from another lab, or stops saving.

The token is never sent to a page; a page learns only whether there is one.
"""

import time
from typing import Any, Literal

import gradio as gr
from pydantic import Field

from rlhf_lab.common.storage import is_on_storage
from rlhf_lab.jobs.mirror_control import MirrorControl
from rlhf_lab.jobs.mirror_loop import mirror_view
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.shared.api import Payload
from rlhf_lab.ui.shared.events import operator_action
from rlhf_lab.ui.shared.widgets import SILENT_MULTIPLE_EVENT, widget


class MirrorAction(Payload):
    """action: "set_up" saving to a repository with a token ("": the one that was entered before); "take_over" the repository from
    another lab; "turn_off" saving."""

    action: Literal["set_up", "take_over", "turn_off"]
    repository: str = Field("", max_length=200)
    token: str = Field("", max_length=1000, repr=False)


def build(ctx: Context, control: MirrorControl, operator: gr.BrowserState) -> None:
    def get_state(_: dict[str, Any]) -> dict[str, Any]:
        return state(control)

    @operator_action(ctx, MirrorAction)
    def action(payload: MirrorAction) -> dict[str, Any]:
        return {"message": handle_action(control, payload)}

    component = widget(
        "hub_mirror",
        "runs/hub_mirror/view.js", events=("action",), server_functions={"get_state": get_state}, label="Copy on the Hub",
        data={"is_disk_wiped": ctx.on_space and not is_on_storage(ctx.home)},
    )  # fmt: skip
    component.action(action, operator, component, **SILENT_MULTIPLE_EVENT)


def state(control: MirrorControl) -> dict[str, Any]:
    """The state that everybody may see. age_s: seconds since everything was saved; None if nothing was saved yet."""
    view = mirror_view(control.home, control.repository)
    return {
        "repository": control.repository,
        "age_s": None if view.saved_at is None else max(0.0, time.time() - view.saved_at),
        "problem": view.problem if control.repository else "",
        "has_conflict": control.has_conflict,
        "is_set_by_variable": control.is_set_by_variable,
        "has_token_variable": control.has_token_variable,
        "has_token": control.has_token,
    }


def handle_action(control: MirrorControl, payload: MirrorAction) -> str:
    """Perform an action; returns the message for the operator. Raises LabError."""
    match payload.action:
        case "set_up":
            control.set_up(payload.repository, payload.token)
            return f"The Hub accepts {control.repository}. The lab saves itself there from now on."
        case "take_over":
            control.take_over()
            return f"The next save replaces what the other lab has saved to {control.repository}."
        case "turn_off":
            repository = control.repository
            control.turn_off()
            return f"The lab is not saved any more, and the token is forgotten. What is in {repository} stays there."
