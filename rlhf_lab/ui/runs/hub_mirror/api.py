"""Part "Copy on the Hub": the operator enters repository and token, takes over from another lab, or stops saving.

The token is never sent to a page; a page learns only whether there is one.
"""

from pydantic import Field
from typing_extensions import TypedDict

from rlhf_lab.common.records import Role
from rlhf_lab.common.storage import is_on_storage
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs.mirror_control import MirrorControl
from rlhf_lab.jobs.mirror_loop import mirror_view
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.shared.api import Api, Payload
from rlhf_lab.ui.shared.widgets import widget

api = Api("hub_mirror")


class MirrorSetUp(Payload):
    """token: "" for the one that was entered before."""

    repository: str = Field("", max_length=200)
    token: str = Field("", max_length=1000, repr=False)


class MirrorStatus(TypedDict):
    """What everybody may see. age_s: seconds since everything was saved; None if nothing was saved yet."""

    repository: str
    age_s: float | None
    problem: str
    has_conflict: bool
    is_set_by_variable: bool
    has_token_variable: bool
    has_token: bool


def build(ctx: Context) -> None:
    data = {"is_disk_wiped": ctx.on_space and not is_on_storage(ctx.home)}
    widget("hub_mirror", "runs/hub_mirror/view.js", data=data, label="Copy on the Hub")


def control_of(ctx: Context) -> MirrorControl:
    if ctx.mirror is None:
        raise ConfigError("This lab is not saved to the Hub. Reload the page.")
    return ctx.mirror


@api.read(Payload)
def state(ctx: Context, query: Payload) -> MirrorStatus:
    control = control_of(ctx)
    view = mirror_view(control.home, control.repository)
    return {
        "repository": control.repository,
        "age_s": view.age_s,
        "problem": view.problem if control.repository else "",
        "has_conflict": control.has_conflict,
        "is_set_by_variable": control.is_set_by_variable,
        "has_token_variable": control.has_token_variable,
        "has_token": control.has_token,
    }


@api.action(MirrorSetUp, role=Role.OPERATOR)
def set_up(ctx: Context, payload: MirrorSetUp) -> str:
    control = control_of(ctx)
    control.set_up(payload.repository, payload.token)
    return f"The Hub accepts {control.repository}. The lab saves itself there from now on."


@api.action(Payload, role=Role.OPERATOR)
def take_over(ctx: Context, payload: Payload) -> str:
    control = control_of(ctx)
    control.take_over()
    return f"The next save replaces what the other lab has saved to {control.repository}."


@api.action(Payload, role=Role.OPERATOR)
def turn_off(ctx: Context, payload: Payload) -> str:
    control = control_of(ctx)
    repository = control.repository
    control.turn_off()
    return f"The lab is not saved any more, and the token is forgotten. What is in {repository} stays there."
