"""Erasing a person: only the operator may do it, and the browser of the person becomes that of a viewer."""

from dataclasses import replace
from urllib.parse import quote

import pytest
from gradio.context import LocalContext

from rlhf_lab.common.records import Role
from rlhf_lab.store.annotators import OPERATOR_NAME, add_person
from rlhf_lab.store.erasure import known_names
from rlhf_lab.ui.auth.password_file import PasswordEntry
from rlhf_lab.ui.auth.visitors import Visitor
from rlhf_lab.ui.context import OPERATOR_HEADER
from rlhf_lab.ui.people import api as people
from rlhf_lab.ui.shared.presence import PRESENCE


class FakeRequest:
    def __init__(self, access, cookie: str, secret: str = "") -> None:
        self.cookies = {access.login_cookie_name: cookie}
        self.headers = {"host": "lab.example", OPERATOR_HEADER: quote(secret)}


@pytest.fixture
def lab(ctx):
    return ctx.as_multi_user(open_to_all=False)


@pytest.fixture
def screen(lab, calls):
    return calls(people, lab)


@pytest.fixture
def send_as(lab):
    """send_as(cookie, secret): from now on requests contain these."""
    tokens = []
    yield lambda *sent: tokens.append(LocalContext.request.set(FakeRequest(lab.access, *sent)))
    for token in reversed(tokens):
        LocalContext.request.reset(token)


def erase(lab, name):
    return people.erase(lab, people.ErasePayload(name=name))["message"]


def test_only_the_operator_lists_and_erases_people(lab, screen, send_as):
    ann = lab.access.cookie_value(Visitor(Role.LABELLER, add_person(lab.db, "Ann").name))
    send_as(ann)
    for refused in (screen.names(), screen.erase({"name": "Ann"})):
        assert "Only the operator" in refused.pop("error")
        assert refused == {}
    send_as("")
    assert "Ann" not in str(screen.state())
    assert known_names(lab.db) == ["Ann"]
    PRESENCE.touch("Ann")
    send_as(lab.access.cookie_value(Visitor(Role.OPERATOR, OPERATOR_NAME)))
    assert screen.names() == ["Ann"]
    assert screen.erase({"name": "Ann"}) == {"message": "The name was removed from this lab."}
    assert (screen.names(), "Ann" in PRESENCE.names()) == ([], False)
    assert "Nobody in this lab is called" in screen.erase({"name": "Ann"})["error"]


def test_all_but_the_state_is_for_the_operator_alone():
    roles = {name: endpoint.role for name, endpoint in people.api.endpoints.items()}
    assert roles.pop("state") is Role.VIEWER
    assert set(roles.values()) == {Role.OPERATOR}


def test_the_operators_secret_allows_erasing_without_changing_who_the_visitor_is(lab, screen, send_as):
    ann = lab.access.cookie_value(Visitor(Role.LABELLER, add_person(lab.db, "Ann").name))
    add_person(lab.db, "Bob")
    for wrong in ("", lab.operator_secret.swapcase(), lab.access.join_code):
        send_as(ann, wrong)
        assert "Only the operator" in screen.names()["error"]
    send_as(ann, lab.operator_secret)
    assert screen.names() == ["Ann", "Bob"]
    assert "message" in screen.erase({"name": "Bob"})
    assert lab.visitor() == Visitor(Role.LABELLER, "Ann")


def test_a_local_lab_with_a_secret_lists_nobody_without_it(ctx, calls, send_secret):
    screen = calls(people, replace(ctx, operator_secret="sesame"))
    assert "Only the operator" in screen.names()["error"]
    send_secret("sesame")
    assert screen.names() == []


def test_erasing_ends_the_cookie_also_where_somebody_else_takes_the_name(lab):
    def visitor_of(cookie):
        return lab.access.visitor(FakeRequest(lab.access, cookie))

    cookie = lab.access.cookie_value(Visitor(Role.LABELLER, add_person(lab.db, "Ann").name))
    bob = lab.access.cookie_value(Visitor(Role.LABELLER, add_person(lab.db, "Bob").name))
    assert visitor_of(cookie) == Visitor(Role.LABELLER, "Ann")
    erase(lab, "Ann")
    assert (visitor_of(cookie), visitor_of(bob)) == (Visitor(Role.VIEWER), Visitor(Role.LABELLER, "Bob"))
    other = lab.access.cookie_value(Visitor(Role.LABELLER, add_person(lab.db, "Ann").name))
    assert (visitor_of(cookie), visitor_of(other)) == (Visitor(Role.VIEWER), Visitor(Role.LABELLER, "Ann"))


def test_erasing_a_name_of_the_password_file_says_to_remove_its_line(ctx):
    lab = ctx.as_multi_user(open_to_all=False, password_entries={"Ann": PasswordEntry("Ann", Role.LABELLER, "x")})
    add_person(lab.db, "Ann")
    assert "remove its line" in erase(lab, "Ann")
