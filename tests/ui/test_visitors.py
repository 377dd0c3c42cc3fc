"""Public labelling: the page contains a signed random name; a name without its signature is refused."""

import json
import re
import time
from dataclasses import replace

import pytest
from gradio.context import LocalContext
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from rlhf_lab.common.records import Role
from rlhf_lab.errors import LabelError, LabError
from rlhf_lab.store.annotators import OPERATOR_NAME, VISITOR_PREFIX, add_person
from rlhf_lab.store.votes import vote_history
from rlhf_lab.ui import http_api
from rlhf_lab.ui.auth.api_clients import ApiClients
from rlhf_lab.ui.auth.visitors import Visitor, multi_user_access
from rlhf_lab.ui.context import OPERATOR_SECRET_ENV_VAR
from rlhf_lab.ui.initial_html import BodyInjectionMiddleware, page_routes
from rlhf_lab.ui.label import api as label
from rlhf_lab.ui.shared import voting
from rlhf_lab.ui.shared.api import parse_payload
from rlhf_lab.ui.shared.presence import PRESENCE

PAGE = "<!doctype html><html><head></head><body>lab</body></html>"
JSON = {"content-type": "application/json"}
META = re.compile(r'<body><meta name="lab-visitor" content="([\w.-]+)"><meta name="lab-guest"><b>')


@pytest.fixture
def lab(ctx, monkeypatch):
    """A lab in which every visitor may label."""
    monkeypatch.delenv(OPERATOR_SECRET_ENV_VAR, raising=False)
    return ctx.as_multi_user(open_to_all=True)


class FakeRequest:
    """Only the attributes of a request that are read."""

    client = None

    def __init__(self, cookies: dict[str, str] | None = None, **headers: str) -> None:
        self.cookies, self.headers = cookies or {}, {"host": "lab.example"} | headers


@pytest.fixture
def handle_event_with():
    """handle_event_with(cookies): from now on the code runs as in an event that was sent with these cookies."""
    tokens = []
    yield lambda cookies=None: tokens.append(LocalContext.request.set(FakeRequest(cookies)))
    for token in reversed(tokens):
        LocalContext.request.reset(token)


def browser(lab, url="http://lab.example"):
    page = Route("/", lambda request: HTMLResponse(PAGE, headers={"set-cookie": "other=1", "etag": "x"}))
    middleware = [
        Middleware(BodyInjectionMiddleware, html="<b>start</b>", access=lab.access, is_operator=lab.is_operator)
    ]
    return TestClient(Starlette(routes=[page, *page_routes(lab)], middleware=middleware), base_url=url)


def named(lab, client):
    """The signed name in the page, and the name without the signature."""
    (signed,) = META.findall(client.get("/").text)
    return signed, lab.access.name_from_token(signed)


def newcomer(lab):
    """(cookies, name) of a new visitor."""
    signed, name = named(lab, browser(lab))
    return {lab.access.page_cookie_name: signed}, name


def votes(lab, name):
    return [(vote.pair_id, vote.choice.value) for vote, _ in vote_history(lab.db, lab.project.id, name)]


def send(lab, name, token, **more):
    """A request of the screen Label by a page that sends this token as its annotator. Raises LabError."""
    endpoint = label.api.endpoints[name]
    return endpoint.handler(lab, parse_payload(endpoint.payload, {"annotator": token, **more}))


def test_a_local_lab_has_no_annotator_whose_name_is_not_drawn(ctx):
    for name in ("\u3164", "\ufe0f", "\u0301"):
        with pytest.raises(LabelError, match="no usable name"):
            ctx.require_annotator(name)


def vote(lab, token=""):
    pair = label.state(lab, lab.require_annotator(token))["pair"]["id"]
    send(lab, "vote", token, pair_id=pair, choice="tie", uuid=f"{token[:9]}-{pair}")
    return pair


def test_the_page_brings_a_name_which_a_browser_keeps(lab):
    client = browser(lab)
    answer = client.get("/")
    signed, name = named(lab, client)
    assert re.fullmatch(r"visitor-[0-9a-f]{12}", name)
    (signed_first,) = META.findall(answer.text)
    assert lab.access.name_from_token(signed_first) == name  # the second time it comes from the cookie
    assert client.cookies[lab.access.page_cookie_name] == signed
    set_cookies = answer.headers.get_list("set-cookie")
    assert set_cookies[0] == "other=1"
    assert "Max-Age=2592000; HttpOnly; SameSite=Lax" in set_cookies[1]
    assert answer.headers["cache-control"] == "private, no-cache"  # no cache passes it to another visitor
    assert named(lab, browser(lab))[1] != name
    stated = replace(lab, access=replace(lab.access, public_url="https://lab.example/"))
    assert "SameSite=None; Secure; Partitioned" in browser(stated).get("/").headers.get_list("set-cookie")[1]
    framed = browser(lab, "https://lab.example").get("/").headers.get_list("set-cookie")
    assert "SameSite=None; Secure; Partitioned" in framed[1]


def test_a_random_name_counts_for_a_month_after_the_last_visit(lab, monkeypatch):
    now = [1_700_000_000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    client = browser(lab)
    first, name = named(lab, client)
    now[0] += 20 * 86_400
    second, _ = named(lab, client)
    now[0] += 20 * 86_400
    assert (lab.access.name_from_token(first), lab.access.name_from_token(second)) == ("", name)
    assert named(lab, client)[1] == name


def test_a_browser_that_refuses_the_cookie_labels_by_the_name_of_its_page(lab, handle_event_with):
    signed, name = named(lab, browser(lab))
    handle_event_with()
    vote(lab, signed)
    assert [choice for _, choice in votes(lab, name)] == ["tie"]
    assert lab.annotator_or_empty(signed) == name
    answer = browser(lab).post("/first", json={"annotator": signed})
    assert answer.json()["left"] == label.state(lab, name)["pair"]["left"]


def test_who_has_entered_gets_no_random_name(lab):
    add_person(lab.db, "Ann")
    for visitor in (Visitor(Role.LABELLER, "Ann"), Visitor(Role.OPERATOR, OPERATOR_NAME)):
        client = browser(lab)
        client.cookies.set(lab.access.login_cookie_name, lab.access.cookie_value(visitor))
        answer = client.get("/")
        guest = '<meta name="lab-guest">' if visitor.role is Role.LABELLER else ""
        assert answer.text == PAGE.replace("<body>", f"<body>{guest}<b>start</b>")
        assert answer.headers.get("cache-control") == ("private, no-cache" if guest else None)
        assert answer.headers.get_list("set-cookie") == ["other=1"]


def test_no_random_name_on_a_local_lab_and_where_labelling_needs_a_code(ctx, lab):
    for other in (ctx, ctx.as_multi_user(open_to_all=False)):
        answer = browser(other).get("/")
        assert "lab-visitor" not in answer.text
        assert answer.headers.get_list("set-cookie") == ["other=1"]
        assert ("lab-guest" in answer.text) is (other is not ctx)  # on a local lab everybody is the operator


def test_the_login_cookie_counts_more_than_the_page_cookie(lab, handle_event_with):
    cookies, _ = newcomer(lab)
    ann = lab.access.cookie_value(Visitor(Role.LABELLER, add_person(lab.db, "Ann").name))
    handle_event_with(cookies | {lab.access.login_cookie_name: ann})
    assert lab.visitor() == Visitor(Role.LABELLER, "Ann")
    assert lab.annotator_name(cookies[lab.access.page_cookie_name]) == "Ann"  # also on a page loaded before
    handle_event_with(cookies | {lab.access.login_cookie_name: f"{ann}x"})
    assert lab.visitor().name.startswith(VISITOR_PREFIX)


@pytest.fixture
def victim(lab, handle_event_with):
    """(name, pair): a visitor who voted on a pair and sees another one."""
    cookies, name = newcomer(lab)
    handle_event_with(cookies)
    pair = vote(lab)
    before = votes(lab, name)
    assert [choice for _, choice in before] == ["tie"]
    yield name, pair
    assert votes(lab, name) == before  # after all attempts of others
    handle_event_with(cookies)
    assert send(lab, "undo", "")["notice"] == "Your last answer was undone."


def try_everything(lab, token):
    """Send all kinds of requests with a token as the annotator: each must be refused. Returns the messages."""
    messages = []
    tries = [
        (name, {"pair_id": 1, "choice": "left", "uuid": "stolen", "vote_id": 1, "is_gold": True})
        for name in ("vote", "undo", "redo", "amend", "opened", "adjudicate", "gold", "recent_votes")
    ]
    for name, more in tries:
        with pytest.raises(LabError) as refused:
            send(lab, name, token, **more)
        messages.append(str(refused.value))
    with pytest.raises(LabelError):
        voting.recent_votes(lab, lab.require_annotator(token))
    answer = browser(lab).post("/first", content=json.dumps({"annotator": token}), headers=JSON)
    assert (answer.status_code, answer.content) == (204, b"") or answer.status_code == 400  # a lone surrogate
    return messages


def test_a_name_without_a_signature_is_refused(lab, victim, handle_event_with):
    handle_event_with()
    assert set(try_everything(lab, victim[0])) == {"This page has no usable name for you; reload it."}


def test_a_visitor_with_a_cookie_cannot_act_under_another_name(lab, victim, handle_event_with):
    name, pair = victim
    cookies, own_name = newcomer(lab)
    handle_event_with(cookies)
    assert send(lab, "undo", name)["notice"] == "There is nothing to undo."
    assert "Your vote was not counted" in send(lab, "vote", name, pair_id=pair, choice="left", uuid="x")["notice"]
    assert "was deleted or undone" in send(lab, "amend", name, vote_id=1, choice="left", uuid="y")["notice"]
    assert voting.recent_votes(lab, lab.require_annotator(name)) == []
    assert lab.require_annotator(name) == own_name


@pytest.mark.parametrize("place", ["cookie", "page"])
def test_forged_tampered_and_foreign_tokens_are_refused(lab, victim, handle_event_with, place):
    name, _ = victim
    signed = lab.access.cookie_value(Visitor(Role.VIEWER, name))
    body, signature = signed.rsplit(".", 1)
    foreign = multi_user_access(lab.home / "other", open_to_all=True)
    own_token = lab.access.cookie_value(Visitor(Role.VIEWER, "visitor-000000000000"))
    own_body, own_signature = own_token.rsplit(".", 1)
    for forged in (
        foreign.cookie_value(Visitor(Role.VIEWER, name)), f"{body}.", f"{body}.{signature[:-1]}", f"{signed}0", body,
        f"{body}.{own_signature}", f"{own_body}.{signature}", "\ud800.\ud800", "é.é", ".", name, '["viewer", "x"]',
    ):  # fmt: skip
        handle_event_with(
            {lab.access.page_cookie_name: forged, lab.access.login_cookie_name: forged} if place == "cookie" else None
        )
        try_everything(lab, forged)
        assert lab.visitor() == Visitor(Role.LABELLER)
    for invalid in (None, 7, [signed], {"name": name}):
        assert lab.access.name_from_token(invalid) == ""
    client = browser(lab)
    client.cookies.set(lab.access.page_cookie_name, foreign.cookie_value(Visitor(Role.VIEWER, name)))
    assert named(lab, client)[1] not in ("", name)  # a new visitor, with a new name


def test_a_login_cookie_sent_by_the_page_is_refused(lab, handle_event_with):
    """Scripts cannot read this cookie, so it is valid only as a cookie."""
    handle_event_with()
    add_person(lab.db, "Ann")
    for visitor in (Visitor(Role.LABELLER, "Ann"), Visitor(Role.OPERATOR, OPERATOR_NAME)):
        try_everything(lab, lab.access.cookie_value(visitor))


def test_a_random_name_does_not_label_once_a_code_is_needed(lab, ctx, handle_event_with):
    cookies, name = newcomer(lab)
    closed = ctx.as_multi_user(open_to_all=False)
    assert closed.access.key == lab.access.key
    handle_event_with(cookies)
    assert closed.visitor() == Visitor(Role.VIEWER, name)
    for signed in (*cookies.values(), ""):
        assert closed.annotator_or_empty(signed) == ""
        assert send(closed, "opened", signed)["pair"] is None


def test_a_page_of_another_site_does_not_act_as_the_visitor(lab, victim):
    cookies = {lab.access.page_cookie_name: lab.access.cookie_value(Visitor(Role.VIEWER, victim[0]))}
    assert lab.access.visitor(FakeRequest(cookies)).name == victim[0]
    assert lab.access.visitor(FakeRequest(cookies, origin="https://evil.example")) == Visitor(Role.LABELLER)


def test_a_program_never_has_the_name_of_a_person(lab, victim, handle_event_with):
    for cookies in (None, newcomer(lab)[0]):
        handle_event_with(cookies)
        started_again = replace(lab, api_clients=ApiClients())
        assert http_api.annotator_name(started_again, victim[0], "") == f"api:{victim[0]}"


def test_only_signed_names_are_present(lab, handle_event_with):
    PRESENCE._last_seen.clear()
    cookies, name = newcomer(lab)
    handle_event_with(cookies)
    label.touch_presence(lab, lab.annotator_or_empty("somebody"))
    assert PRESENCE.names() == [name]


def test_the_screen_shows_only_registered_names(lab, handle_event_with):
    cookies, _ = newcomer(lab)
    handle_event_with(cookies)
    assert send(lab, "opened", "")["you"] == {"name": "", "role": "labeller"}
    handle_event_with(
        {lab.access.login_cookie_name: lab.access.cookie_value(Visitor(Role.LABELLER, add_person(lab.db, "Ann").name))}
    )
    assert send(lab, "opened", "")["you"] == {"name": "Ann", "role": "labeller"}


def test_a_local_lab_accepts_any_name(ctx):
    assert [ctx.require_annotator(name) for name in ("ann", " bob ")] == ["ann", "bob"]
