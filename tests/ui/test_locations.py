"""No message for a visitor who is not the operator contains a path or an address of the server, whichever error brings it."""

import logging
from dataclasses import replace

import pytest
from support.page_requests import requests_of
from typing_extensions import TypedDict

import rlhf_lab.importers.column_mapping  # noqa: F401  defines a LabError
from rlhf_lab import errors
from rlhf_lab.common.records import Role
from rlhf_lab.ui.locations import MAX_MESSAGE_CHARS, without_known_locations, without_locations
from rlhf_lab.ui.shared.api import Api, FieldError, LongText, Payload

URL = "postgresql+psycopg://lab:***@db.example.org:5432/votes"
KNOWN = ["/srv/our lab/home", "/data", URL]
#: A location in a message, and what remains of the message.
LOCATIONS = {
    "The database /srv/our lab/home/lab.db is locked.": "The database … is locked.",
    "[Errno 13] Permission denied: '/srv/our lab/home/runs/3/x.json'": "[Errno 13] Permission denied: '…'",
    "/home/jo/.cache/huggingface/hub: no space left": "…: no space left",
    "Delete ~/labs/first by hand, then /tmp/x/y.": "Delete … by hand, then ….",
    r"The file C:\Users\jo\lab.db cannot be read": "The file … cannot be read",
    f"The database {URL} failed.": "The database … failed.",
    'server at "db.example.org" (10.20.30.40), port 5432 failed': 'server at "…" (…), port 5432 failed',
    "There is no lab in /srv/our lab/home. Start one.": "There is no lab in …. Start one.",
    "httpx: https://proxy.internal:8080/api/models?x=1 does not answer": "httpx: … does not answer",
    "/mnt/models/tiny: its weights (/mnt/models/tiny/model.safetensors) are damaged": "…: its weights (…) are damaged",
}
UNCHANGED = (
    "To label, log in with the join code: open the page /join.",
    "Use run/3/latest or run/3/120, 3/4 of the labels, and/or 1/2.",
    "The step is in /data only; left/right/tie are choices. 50 % at 12:30, version 1.2.3.",
)


@pytest.mark.parametrize("message", LOCATIONS)
def test_locations_are_left_out(message):
    assert without_locations(message, KNOWN) == LOCATIONS[message]


@pytest.mark.parametrize("message", UNCHANGED)
def test_other_messages_stay_as_they_are(message):
    assert without_locations(message, KNOWN) == message


@pytest.mark.parametrize("typed", ["x", "a.", "/", "/a", "~", "-/.", "1.", "a:/"])
def test_a_long_message_keeps_its_beginning_and_its_end(ctx, shared, typed):
    """Whatever was typed: a text of a million characters must not keep the lab busy (with a quadratic pattern, for an hour)."""
    message = f"There is no model {(typed * 300_000)[:900_000]} in /srv/our lab/home. Choose another one."
    assert "our lab" not in without_locations(message, KNOWN)
    for lab in (ctx, shared):
        shown = requests_of(lab, api).fail({"kind": "LabelError", "message": message})["error"]
        assert len(shown) <= MAX_MESSAGE_CHARS
        assert shown.startswith("There is no model ")
        assert shown.endswith(" Choose another one.")


LONG_LOCATIONS = ("/srv/our lab/home/runs/3", "10.20.30.40", "https://proxy.internal:8080/api", "/mnt/models/x")


@pytest.mark.parametrize("location", LONG_LOCATIONS)
def test_nothing_of_a_location_remains_where_a_message_is_cut(location):
    """Wherever the location is: the cut may fall on any of its characters."""
    bare = without_locations(f"A {location} z", KNOWN)
    assert bare == "A … z"
    for before in range(MAX_MESSAGE_CHARS - 60, MAX_MESSAGE_CHARS + 1):
        for message in (
            f"{'a ' * (before // 3)}{location}{' z' * 2000}",
            f"{'a ' * 2000}{location}{' z' * (before // 6)}",
        ):
            assert set(without_locations(message, KNOWN)) <= set("az …")


def test_of_replies_only_known_locations_are_left_out():
    body = '{"text":"see /usr/share/x and /data","failure":"/srv/our lab/home/runs/1 is lost","other":"/srv/our lab/homes"}'
    assert without_known_locations(body.encode(), KNOWN).decode() == (
        '{"text":"see /usr/share/x and /data","failure":"… is lost","other":"/srv/our lab/homes"}'
    )
    assert without_known_locations(b"{}", []) == b"{}"


def kinds(kind=errors.LabError):
    return [kind, *(below for sub in kind.__subclasses__() for below in kinds(sub))]


def raised(kind, message):
    """An error of this kind with this message, whatever its constructor takes."""
    error = kind.__new__(kind, message)
    if isinstance(error, FieldError):
        error.field = "field"
    return error


class Text(TypedDict):
    failure: str


class Kind(Payload):
    kind: str
    message: LongText


api = Api("locations")


@api.action(Kind, role=Role.VIEWER)
def fail(ctx, payload: Kind) -> None:
    raise raised(next(kind for kind in kinds() if kind.__name__ == payload.kind), payload.message)


@api.read(Payload)
def stored(ctx, payload: Payload) -> Text:
    return {"failure": f"{ctx.home}/runs/3 is full, see {ctx.db.location}"}


@pytest.fixture
def shared(ctx):
    """A lab of several people: who sends no secret is a viewer."""
    return replace(ctx, operator_secret="s").as_multi_user(open_to_all=False)


@pytest.mark.parametrize("kind", [kind.__name__ for kind in kinds()])
def test_no_kind_of_error_tells_a_visitor_where_the_lab_is(ctx, shared, caplog, kind):
    message = f"The file {ctx.home}/runs/3/state.json of {ctx.db.location} cannot be read ({URL})."
    payload = {"kind": kind, "message": message}
    with caplog.at_level(logging.WARNING):
        shown = requests_of(shared, api).fail(payload)["error"]
    assert shown == "The file … of … cannot be read (…)."
    assert message in caplog.text
    assert requests_of(ctx, api).fail(payload)["error"] == message  # the operator reads it


def test_stored_errors_in_replies_do_not_tell_it_either(ctx, shared):
    assert requests_of(shared, api).stored() == {"failure": "… is full, see …"}
    assert requests_of(ctx, api).stored() == {"failure": f"{ctx.home}/runs/3 is full, see {ctx.db.location}"}
