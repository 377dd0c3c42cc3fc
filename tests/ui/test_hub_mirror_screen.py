"""Section "Copy on the Hub" without a browser: its state, and who may change it."""

import dataclasses
import json

import pytest

from rlhf_lab.backup.mirror_records import MirrorState
from rlhf_lab.backup.mirror_settings import MirrorSettings, read_settings, write_settings
from rlhf_lab.jobs.mirror_control import MirrorControl
from rlhf_lab.ui.runs.hub_mirror import api as hub_mirror
from rlhf_lab.ui.shared.api import FieldError, parse_payload

ENTERED = MirrorSettings("someone/lab", "hf_secret")


@pytest.fixture
def screen(ctx, calls):
    """The requests of the operator."""
    write_settings(ctx.home, ENTERED)
    return calls(hub_mirror, dataclasses.replace(ctx, mirror=MirrorControl(ctx.home, {})))


@pytest.fixture
def visitor_screen(ctx, calls):
    """The requests of a visitor who is not the operator."""
    write_settings(ctx.home, ENTERED)
    lab = dataclasses.replace(ctx, mirror=MirrorControl(ctx.home, {}), operator_secret="secret")
    return calls(hub_mirror, lab)


def test_a_page_never_gets_the_token(visitor_screen, ctx):
    MirrorState("someone/lab", saved_at=1.0, problem="The Hub …").write(ctx.home)
    state = visitor_screen.state()
    assert state.pop("age_s") > 1e9
    assert state == {
        "repository": "someone/lab", "problem": "The Hub …", "has_conflict": False, "is_set_by_variable": False,
        "has_token_variable": False, "has_token": True,
    }  # fmt: skip
    assert "hf_secret" not in json.dumps(state)


@pytest.mark.parametrize("action", ["set_up", "take_over", "turn_off"])
def test_only_the_operator_may(visitor_screen, ctx, action):
    reply = getattr(visitor_screen, action)({"repository": "a/b", "token": "hf_theirs"})
    assert "Only the operator" in reply["error"]
    assert read_settings(ctx.home) == ENTERED


def test_the_operator_stops_saving(screen, ctx):
    assert screen.turn_off() == (
        "The lab is not saved any more, and the token is forgotten. What is in someone/lab stays there."
    )
    assert read_settings(ctx.home) is None
    assert screen.state()["repository"] == ""


def test_an_error_repeats_no_token(screen):
    reply = screen.set_up({"repository": "lab", "token": "hf_theirs"})
    assert reply["error"] == '"lab" is not a name of a repository on the Hub. Write OWNER/NAME.'
    with pytest.raises(FieldError, match="Token: a text has more than 1,000") as error:
        parse_payload(hub_mirror.MirrorSetUp, {"token": "hf_theirs" * 200})
    assert "hf_theirs" not in str(error.value)
    assert "hf_theirs" not in repr(parse_payload(hub_mirror.MirrorSetUp, {"token": "hf_theirs"}))


def test_a_lab_that_is_never_saved_has_no_state(ctx, calls):
    assert "not saved to the Hub" in calls(hub_mirror, ctx).state()["error"]
