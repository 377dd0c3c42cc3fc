"""Labelling that is open to all: a visitor's name is signed and comes with the page; names that others see let nobody in."""

import json
import re

import gradio as gr
import pytest
from gradio.context import LocalContext
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from rlhf_lab.common.records import Role
from rlhf_lab.errors import LabelError
from rlhf_lab.store.annotators import OPERATOR_NAME, VISITOR_PREFIX, add_person
from rlhf_lab.store.votes import vote_history
from rlhf_lab.ui import http_api
from rlhf_lab.ui.auth.visitors import COOKIE_NAME, Visitor, multi_user_access
from rlhf_lab.ui.context import OPERATOR_SECRET_ENV_VAR
from rlhf_lab.ui.initial_html import BodyInjectionMiddleware, first_pair_route
from rlhf_lab.ui.screens import label
from rlhf_lab.ui.services import voting
from rlhf_lab.ui.services.presence import PRESENCE

PAGE = "<!doctype html><html><head></head><body>lab</body></html>"
JSON = {"content-type": "application/json"}
META = re.compile(r'<body><meta name="lab-visitor" content="([\w.-]+)"><meta name="lab-guest"><b>')


@pytest.fixture
def lab(ctx, monkeypatch):
    """A lab in which whoever reaches the page may label."""
    monkeypatch.delenv(OPERATOR_SECRET_ENV_VAR, raising=False)
    return ctx.as_multi_user(open_to_all=True)


class Asked:
    """A request as far as it is read."""

    def __init__(self, cookies: dict[str, str] | None = None, **headers: str) -> None:
        self.cookies, self.headers = cookies or {}, {"host": "lab.example"} | headers


@pytest.fixture
def asked_by():
    """asked_by(cookies): what is done from now on is done for a request with these cookies, as in an event."""
    tokens = []
    yield lambda cookies=None: tokens.append(LocalContext.request.set(Asked(cookies)))
    for token in reversed(tokens):
        LocalContext.request.reset(token)


def browser(lab, url="http://lab.example"):
    page = Route("/", lambda request: HTMLResponse(PAGE, headers={"set-cookie": "other=1", "etag": "x"}))
    middleware = [
        Middleware(BodyInjectionMiddleware, html="<b>start</b>", access=lab.access, is_operator=lab.is_operator)
    ]
    return TestClient(Starlette(routes=[page, first_pair_route(lab)], middleware=middleware), base_url=url)


def named(lab, client):
    """The signed name that comes with the page, and the name in it."""
    (signed,) = META.findall(client.get("/").text)
    return signed, lab.access.name_from_token(signed)


def newcomer(lab):
    """(cookies, name) of somebody new."""
    signed, name = named(lab, browser(lab))
    return {lab.access.page_cookie_name: signed}, name


def votes(lab, name):
    return [(vote.pair_id, vote.choice.value) for vote, _ in vote_history(lab.db, lab.project.id, name)]


def say(lab, name, said, **more):
    return label.voting_handlers(lab)[name](gr.EventData(None, {"annotator": said, **more}))


def vote(lab, said=""):
    pair = label.state(lab, label.require_annotator(lab, said))["pair"]["id"]
    say(lab, "vote", said, pair_id=pair, choice="tie", uuid=f"{said[:9]}-{pair}")
    return pair


def test_the_page_brings_a_name_which_a_browser_keeps(lab):
    client = browser(lab)
    answer = client.get("/")
    signed, name = named(lab, client)
    assert re.fullmatch(r"visitor-[0-9a-f]{12}", name)
    assert META.findall(answer.text) == [signed]  # the second time it came by the cookie
    assert client.cookies[lab.access.page_cookie_name] == signed
    kept = answer.headers.get_list("set-cookie")
    assert kept[0] == "other=1"
    assert "Max-Age=2592000; HttpOnly; SameSite=Lax" in kept[1]
    assert answer.headers["cache-control"] == "private, no-cache"  # no cache on the way gives it to somebody else
    assert named(lab, browser(lab))[1] != name
    framed = browser(lab, "https://lab.example").get("/").headers.get_list("set-cookie")
    assert "SameSite=None; Secure; Partitioned" in framed[1]


def test_a_browser_that_refuses_the_cookie_labels_by_the_name_of_its_page(lab, asked_by):
    signed, name = named(lab, browser(lab))
    asked_by()
    pair = vote(lab, signed)
    assert votes(lab, name) == [(pair, "tie")]
    assert label.optional_annotator(lab, signed) == name
    answer = browser(lab).post("/first", json={"annotator": signed})
    assert answer.json()["left"] == label.state(lab, name)["pair"]["left"]


def test_whoever_has_entered_is_given_no_other_name(lab):
    add_person(lab.db, "Ann")
    for visitor in (Visitor(Role.LABELLER, "Ann"), Visitor(Role.OPERATOR, OPERATOR_NAME)):
        client = browser(lab)
        client.cookies.set(COOKIE_NAME, lab.access.cookie_value(visitor))
        answer = client.get("/")
        guest = '<meta name="lab-guest">' if visitor.role is Role.LABELLER else ""
        assert answer.text == PAGE.replace("<body>", f"<body>{guest}<b>start</b>")
        assert answer.headers.get("cache-control") == ("private, no-cache" if guest else None)
        assert answer.headers.get_list("set-cookie") == ["other=1"]


def test_where_labelling_needs_a_code_and_on_a_lab_of_ones_own_no_name_comes(ctx, lab):
    for other in (ctx, ctx.as_multi_user(open_to_all=False)):
        answer = browser(other).get("/")
        assert "lab-visitor" not in answer.text
        assert answer.headers.get_list("set-cookie") == ["other=1"]
        assert ("lab-guest" in answer.text) is (other is not ctx)  # on a lab of one's own everybody is the operator


def test_who_enters_by_a_door_is_known_by_that_from_then_on(lab, asked_by):
    mine, _ = newcomer(lab)
    ann = lab.access.cookie_value(Visitor(Role.LABELLER, add_person(lab.db, "Ann").name))
    asked_by(mine | {COOKIE_NAME: ann})
    assert lab.visitor() == Visitor(Role.LABELLER, "Ann")
    assert lab.name(mine[lab.access.page_cookie_name]) == "Ann"  # also on a page from before
    asked_by(mine | {COOKIE_NAME: f"{ann}x"})
    assert lab.visitor().name.startswith(VISITOR_PREFIX)


@pytest.fixture
def victim(lab, asked_by):
    """(name, pair): somebody who voted on a pair and sees another."""
    mine, name = newcomer(lab)
    asked_by(mine)
    pair = vote(lab)
    yield name, pair
    assert votes(lab, name) == [(pair, "tie")]  # whatever the others tried
    asked_by(mine)
    assert say(lab, "undo", "")["notice"] == "Your last answer is taken back."


def everything(lab, said):
    """What a visitor may try under a name: each must be refused. Returns what they were told."""
    told = []
    tries = [
        (name, {"pair_id": 1, "choice": "left", "uuid": "stolen", "vote_id": 1}) for name in label.voting_handlers(lab)
    ]
    for name, more in tries:
        with pytest.raises(LabelError) as refused:
            say(lab, name, said, **more)
        told.append(str(refused.value))
    with pytest.raises(LabelError):
        voting.recent_votes(lab, label.require_annotator(lab, said))
    assert browser(lab).post("/first", content=json.dumps({"annotator": said}), headers=JSON).status_code == 204
    return told


def test_an_id_from_the_screen_people_lets_nobody_in(lab, victim, asked_by):
    asked_by()
    assert set(everything(lab, victim[0])) == {"This page has no usable name for you; reload it."}


def test_with_a_name_of_ones_own_an_id_of_somebody_else_is_not_even_read(lab, victim, asked_by):
    name, pair = victim
    mine, me = newcomer(lab)
    asked_by(mine)
    assert say(lab, "undo", name)["notice"] == "There is nothing to undo."
    assert "was not given to you" in say(lab, "vote", name, pair_id=pair, choice="left", uuid="x")["notice"]
    assert "not there to be changed" in say(lab, "amend", name, vote_id=1, choice="left", uuid="y")["notice"]
    assert voting.recent_votes(lab, label.require_annotator(lab, name)) == []
    assert label.require_annotator(lab, name) == me


@pytest.mark.parametrize("where", ["cookie", "page"])
def test_forged_tampered_and_foreign_names_are_nobody(lab, victim, asked_by, where):
    name, _ = victim
    signed = lab.access.cookie_value(Visitor(Role.VIEWER, name))
    body, signature = signed.split(".")
    foreign = multi_user_access(lab.home / "other", open_to_all=True)
    mine = lab.access.cookie_value(Visitor(Role.VIEWER, "visitor-000000000000"))
    for forged in (
        foreign.cookie_value(Visitor(Role.VIEWER, name)), f"{body}.", f"{body}.{signature[:-1]}", f"{signed}0", body,
        f"{body}.{mine.split('.')[1]}", f"{mine.split('.')[0]}.{signature}", "\ud800.\ud800", "é.é", ".", name, '["viewer", "x"]',
    ):  # fmt: skip
        asked_by({lab.access.page_cookie_name: forged, COOKIE_NAME: forged} if where == "cookie" else None)
        everything(lab, forged)
        assert lab.visitor() == Visitor(Role.LABELLER)
    for nothing in (None, 7, [signed], {"name": name}):
        assert lab.access.name_from_token(nothing) == ""
    client = browser(lab)
    client.cookies.set(lab.access.page_cookie_name, foreign.cookie_value(Visitor(Role.VIEWER, name)))
    assert named(lab, client)[1] not in ("", name)  # a new visitor, with a new name


def test_a_page_is_not_believed_the_name_of_who_entered(lab, asked_by):
    """Their cookie is one that scripts cannot read; it counts as a cookie alone."""
    asked_by()
    add_person(lab.db, "Ann")
    for visitor in (Visitor(Role.LABELLER, "Ann"), Visitor(Role.OPERATOR, OPERATOR_NAME)):
        everything(lab, lab.access.cookie_value(visitor))


def test_a_name_of_open_days_lets_nobody_label_once_a_code_is_needed(lab, ctx, asked_by):
    mine, name = newcomer(lab)
    closed = ctx.as_multi_user(open_to_all=False)
    assert closed.access.key == lab.access.key
    asked_by(mine)
    assert closed.visitor() == Visitor(Role.VIEWER, name)
    for signed in (*mine.values(), ""):
        assert label.optional_annotator(closed, signed) == ""
        assert say(closed, "opened", signed)["pair"] is None


def test_another_site_s_page_acts_for_nobody(lab, victim):
    cookies = {lab.access.page_cookie_name: lab.access.cookie_value(Visitor(Role.VIEWER, victim[0]))}
    assert lab.access.visitor(Asked(cookies)).name == victim[0]
    assert lab.access.visitor(Asked(cookies, origin="https://evil.example")) == Visitor(Role.LABELLER)


def test_a_program_is_never_a_person_of_the_page(lab, victim, asked_by):
    for cookies in (None, newcomer(lab)[0]):
        asked_by(cookies)
        assert http_api.ApiCaller(lab).annotator_name(victim[0], "") == f"api:{victim[0]}"


def test_only_signed_names_are_here(lab, asked_by):
    PRESENCE._last_seen.clear()
    mine, name = newcomer(lab)
    asked_by(mine)
    label.touch_presence(lab, label.optional_annotator(lab, "somebody"))
    assert PRESENCE.names() == [name]


def test_the_screen_names_those_who_gave_a_name(lab, asked_by):
    mine, _ = newcomer(lab)
    asked_by(mine)
    assert say(lab, "opened", "")["you"] == {"name": "", "role": "labeller"}
    asked_by({COOKIE_NAME: lab.access.cookie_value(Visitor(Role.LABELLER, add_person(lab.db, "Ann").name))})
    assert say(lab, "opened", "")["you"] == {"name": "Ann", "role": "labeller"}


def test_a_lab_of_ones_own_believes_several_names(ctx):
    assert [label.require_annotator(ctx, name) for name in ("ann", " bob ")] == ["ann", "bob"]
