"""Erasing a person: only the operator may do it, and the browser of the person becomes that of a viewer."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from gradio.context import LocalContext

from rlhf_lab.common.records import Role
from rlhf_lab.store.annotators import OPERATOR_NAME, add_person
from rlhf_lab.store.erasure import known_names
from rlhf_lab.ui.auth.password_file import PasswordEntry
from rlhf_lab.ui.auth.visitors import Visitor
from rlhf_lab.ui.people import api as people
from rlhf_lab.ui.shared.presence import PRESENCE


class FakeRequest:
    def __init__(self, access, cookie: str) -> None:
        self.cookies, self.headers = {access.login_cookie_name: cookie}, {"host": "lab.example"}


@pytest.fixture
def lab(ctx):
    return ctx.as_multi_user(open_to_all=False)


@pytest.fixture
def screen(lab, calls):
    return calls(people, lab)


@pytest.fixture
def handle_event_with(lab):
    tokens = []
    yield lambda cookie: tokens.append(LocalContext.request.set(FakeRequest(lab.access, cookie)))
    for token in reversed(tokens):
        LocalContext.request.reset(token)


def erase_event(name, *, votes=False):
    return SimpleNamespace(_data={"request_id": 1, "name": name, "delete_votes": votes})


def erase(lab, name):
    return people.erase_person(lab, people.ErasePayload(name=name))


LIST_EVENT = SimpleNamespace(_data={"request_id": 1})


def test_only_the_operator_lists_and_erases_people(lab, screen, handle_event_with):
    ann = lab.access.cookie_value(Visitor(Role.LABELLER, add_person(lab.db, "Ann").name))
    handle_event_with(ann)
    for refused in (screen.list_names("", LIST_EVENT), screen.erase("", erase_event("Ann"))):
        assert "Only the operator" in refused.pop("error")
        assert refused == {"request_id": 1}
    handle_event_with("")
    assert "Ann" not in str(screen.read({}))  # a server function gets no secret
    assert known_names(lab.db) == ["Ann"]
    PRESENCE.touch("Ann")
    handle_event_with(lab.access.cookie_value(Visitor(Role.OPERATOR, OPERATOR_NAME)))
    assert screen.list_names("", LIST_EVENT) == {"request_id": 1, "names": ["Ann"]}
    assert screen.erase("", erase_event("Ann")) == {"request_id": 1, "message": "The name was removed from this lab."}
    assert (screen.list_names("", LIST_EVENT)["names"], "Ann" in PRESENCE.names()) == ([], False)
    assert "Nobody in this lab is called" in screen.erase("", erase_event("Ann"))["error"]


def test_the_operators_secret_allows_erasing_without_changing_who_the_visitor_is(lab, screen, handle_event_with):
    handle_event_with(lab.access.cookie_value(Visitor(Role.LABELLER, add_person(lab.db, "Ann").name)))
    add_person(lab.db, "Bob")
    for wrong in (None, "", lab.operator_secret.swapcase(), lab.access.join_code):
        assert "Only the operator" in screen.list_names(wrong, LIST_EVENT)["error"]
    assert screen.list_names(lab.operator_secret, LIST_EVENT) == {"request_id": 1, "names": ["Ann", "Bob"]}
    assert "message" in screen.erase(lab.operator_secret, erase_event("Bob"))
    assert lab.visitor() == Visitor(Role.LABELLER, "Ann")


def test_a_local_lab_with_a_secret_lists_nobody_without_it(ctx, calls):
    screen = calls(people, replace(ctx, operator_secret="sesame"))
    assert "Only the operator" in screen.list_names("", LIST_EVENT)["error"]
    assert screen.list_names("sesame", LIST_EVENT) == {"request_id": 1, "names": []}


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
