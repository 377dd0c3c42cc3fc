"""Somebody is taken out of a lab: by its operator alone, and the browser that entered by the name is a stranger's then."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from gradio.context import LocalContext

from rlhf_lab.common.records import Role
from rlhf_lab.store.annotators import OPERATOR_NAME, add_person
from rlhf_lab.store.erasure import known_names
from rlhf_lab.ui.auth.password_file import PasswordEntry
from rlhf_lab.ui.auth.visitors import COOKIE_NAME, Visitor
from rlhf_lab.ui.screens import people
from rlhf_lab.ui.services.presence import PRESENCE


class Asked:
    def __init__(self, cookie: str) -> None:
        self.cookies, self.headers = {COOKIE_NAME: cookie}, {"host": "lab.example"}


@pytest.fixture
def lab(ctx):
    return ctx.as_multi_user(open_to_all=False)


@pytest.fixture
def part(lab, calls):
    return calls(people, lab, "known", "leave")


@pytest.fixture
def asked_by():
    tokens = []
    yield lambda cookie: tokens.append(LocalContext.request.set(Asked(cookie)))
    for token in reversed(tokens):
        LocalContext.request.reset(token)


def sent(name, *, votes=False):
    return SimpleNamespace(_data={"at": 1, "name": name, "votes": votes})


ASKED = SimpleNamespace(_data={"at": 1})


def test_the_operator_alone_sees_whom_there_is_and_takes_them_out(lab, part, asked_by):
    ann = lab.access.cookie_value(Visitor(Role.LABELLER, add_person(lab.db, "Ann").name))
    asked_by(ann)
    for refused in (part.known("", ASKED), part.leave("", sent("Ann"))):
        assert "Only the operator" in refused.pop("error")
        assert refused == {"at": 1}
    assert part.read is None  # what a page reads by itself comes without the secret
    assert known_names(lab.db) == ["Ann"]
    PRESENCE.touch("Ann")
    asked_by(lab.access.cookie_value(Visitor(Role.OPERATOR, OPERATOR_NAME)))
    assert part.known("", ASKED) == {"at": 1, "names": ["Ann"]}
    assert part.leave("", sent("Ann")) == {"at": 1, "done": "The name is out of this lab."}
    assert (part.known("", ASKED)["names"], "Ann" in PRESENCE.names()) == ([], False)
    assert "Nobody here is called" in part.leave("", sent("Ann"))["error"]


def test_whoever_has_the_secret_does_so_too_and_stays_who_they_are(lab, part, asked_by):
    asked_by(lab.access.cookie_value(Visitor(Role.LABELLER, add_person(lab.db, "Ann").name)))
    add_person(lab.db, "Bob")
    for wrong in (None, "", lab.operator_secret.swapcase(), lab.access.join_code):
        assert "Only the operator" in part.known(wrong, ASKED)["error"]
    assert part.known(lab.operator_secret, ASKED) == {"at": 1, "names": ["Ann", "Bob"]}
    assert "done" in part.leave(lab.operator_secret, sent("Bob"))
    assert lab.visitor() == Visitor(Role.LABELLER, "Ann")


def test_at_a_lab_of_ones_own_with_a_secret_nobody_chooses_without_it(ctx, calls):
    part = calls(people, replace(ctx, operator_secret="sesame"), "known", "leave")
    assert "Only the operator" in part.known("", ASKED)["error"]
    assert part.known("sesame", ASKED) == {"at": 1, "names": []}


def test_their_cookie_ends_also_for_whoever_takes_the_name_after_them(lab):
    def seen(cookie):
        return lab.access.visitor(Asked(cookie))

    cookie = lab.access.cookie_value(Visitor(Role.LABELLER, add_person(lab.db, "Ann").name))
    bob = lab.access.cookie_value(Visitor(Role.LABELLER, add_person(lab.db, "Bob").name))
    assert seen(cookie) == Visitor(Role.LABELLER, "Ann")
    people.handle_erasure(lab, {"name": "Ann"})
    assert (seen(cookie), seen(bob)) == (Visitor(Role.VIEWER), Visitor(Role.LABELLER, "Bob"))
    other = lab.access.cookie_value(Visitor(Role.LABELLER, add_person(lab.db, "Ann").name))
    assert (seen(cookie), seen(other)) == (Visitor(Role.VIEWER), Visitor(Role.LABELLER, "Ann"))


def test_a_cookie_of_before_people_were_marked_counts_while_they_are_here(lab):
    add_person(lab.db, "Ann")
    old = lab.access.sign([Role.LABELLER.value, "Ann"])
    assert lab.access.visitor(Asked(old)) == Visitor(Role.LABELLER, "Ann")
    people.handle_erasure(lab, {"name": "Ann"})
    assert lab.access.visitor(Asked(old)) == Visitor(Role.VIEWER)


def test_a_name_of_the_file_of_passwords_is_said_to_be_there_still(ctx):
    lab = ctx.as_multi_user(open_to_all=False, people={"Ann": PasswordEntry("Ann", Role.LABELLER, "x")})
    add_person(lab.db, "Ann")
    assert "take its line out too" in people.handle_erasure(lab, {"name": "Ann"})
