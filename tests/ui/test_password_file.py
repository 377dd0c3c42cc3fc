"""Login by name and password: the file, the form, and the rights of the cookie."""

from dataclasses import replace

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from rlhf_lab.common import passwords
from rlhf_lab.common.records import Role
from rlhf_lab.errors import ConfigError
from rlhf_lab.store.annotators import add_person
from rlhf_lab.ui.auth import failed_attempts, login_routes
from rlhf_lab.ui.auth.password_file import PasswordEntry, read_password_file
from rlhf_lab.ui.auth.visitors import Visitor
from rlhf_lab.ui.context import OPERATOR_SECRET_ENV_VAR

SALT = bytes(range(16))
#: As `openssl kdf` says for this password and salt, n 16384, r 8, p 1.
OPENSSL = "6fc3dcbad6a2d9f244de39e56cda184d777f2c8aef21e5e3743ac4a6077c3fd7"


@pytest.fixture
def file(tmp_path):
    """file(text): a file that holds it."""

    def write(text):
        path = tmp_path / "people.txt"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.fixture
def lab(ctx, file, monkeypatch):
    monkeypatch.delenv(OPERATOR_SECRET_ENV_VAR, raising=False)
    monkeypatch.setenv("RLHF_LAB_JOIN_CODE", "ABC234")
    text = f"# the class\n\nAnn  Lee:s:e c\nBob:{passwords.hash_password('two owls', SALT)}\nEve:three:operator\n"
    return ctx.as_multi_user(open_to_all=False, password_entries=read_password_file(file(text)))


@pytest.fixture
def web(lab):
    app = Starlette(routes=login_routes.login_routes(lab.db, lab.access))
    with TestClient(app, base_url="http://lab.example", follow_redirects=False) as client:
        yield client


class FakeRequest:
    def __init__(self, access, cookie):
        self.cookies, self.headers = {access.login_cookie_name: cookie}, {"host": "lab.example"}


def visitor_of(access, cookie):
    """The visitor that a request with this login cookie comes from."""
    return access.visitor(FakeRequest(access, cookie))


def enter(web, name, password):
    return web.post("/enter", data={"name": name, "password": password})


def test_a_password_fits_its_hash_and_no_other():
    hashed = passwords.hash_password("two owls", SALT)
    assert hashed == "scrypt$000102030405060708090a0b0c0d0e0f$" + OPENSSL
    assert passwords.HASH_PATTERN.fullmatch(hashed)
    assert passwords.verify_password("two owls", hashed)
    for wrong in ("two owl", "", hashed, "two owls "):
        assert not passwords.verify_password(wrong, hashed)
    assert passwords.hash_password("x") != passwords.hash_password("x")
    assert passwords.verify_password("é\ud800", passwords.hash_password("é\ud800"))


def test_a_line_has_a_name_a_password_and_optionally_operator(lab, file):
    people = lab.access.password_entries
    assert [(one.name, one.role.value) for one in people.values()] == [
        ("Ann Lee", "labeller"), ("Bob", "labeller"), ("Eve", "operator"),
    ]  # fmt: skip
    assert (people["Ann Lee"].password, people["Eve"].password) == ("s:e c", "three")
    assert "three" not in repr(people)
    assert read_password_file(file("\ufeffBob:operator\r\n"))["Bob"] == PasswordEntry("Bob", Role.LABELLER, "operator")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Ann:x\nBob", "line 2: there is no password"),
        ("Ann:\n", "line 1: there is no password"),
        ("#\n\nAnn::operator", "line 3: there is no password"),
        (":x", "line 1: the name must"),
        ("visitor-1:x", "line 1: the name must"),
        ("@ann:x", "line 1: the name must"),
        ("operator:x:operator", "line 1: the name must"),
        ("An\u200bn:x", "line 1: the name must"),
        ("Ann\u3164:x", "line 1: the name must"),
        (f"{'x' * 61}:x", "line 1: the name must"),
        ("Ann:x\nAnn :y", 'line 2: "Ann" occurs twice'),
        ("Ann:scrypt$00$11", "line 1: the hash is incomplete"),
        ("# nobody\n", "contains no names"),
        (b"Ann:\xff\xfe", "cannot be read"),
        (b"x" * 1_000_001, "too long"),
    ],
)
def test_a_broken_file_is_refused_with_the_line(file, text, words):
    with pytest.raises(ConfigError) as refused:
        read_password_file(file(text))
    assert words in str(refused.value)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.txt cannot be read"):
        read_password_file(tmp_path / "none.txt")


@pytest.mark.parametrize(
    ("name", "password", "role"),
    [("Ann Lee", "s:e c", Role.LABELLER), (" Bob ", "two owls", Role.LABELLER), ("Eve", "three", Role.OPERATOR)],
)
def test_name_and_password_let_somebody_in_as_that_name(lab, web, name, password, role):
    assert "Enter with a password" in web.get("/join").text
    assert 'type="password"' in web.get("/enter").text
    answer = enter(web, name, password)
    assert (answer.status_code, answer.headers["location"]) == (303, "./")
    assert "HttpOnly; SameSite=Lax" in answer.headers["set-cookie"]
    assert visitor_of(lab.access, web.cookies[lab.access.login_cookie_name]) == Visitor(role, name.strip())


def test_a_name_may_be_typed_in_decomposed_letters(ctx, file):
    people = read_password_file(file("Zo\u00eb:x\nR\ufb01:y"))
    access = replace(ctx.as_multi_user(open_to_all=False).access, password_entries=people)
    with TestClient(Starlette(routes=login_routes.login_routes(ctx.db, access)), follow_redirects=False) as client:
        for typed, password, name in (
            ("Zoe\u0308", "x", "Zo\u00eb"),
            ("R\ufb01", "y", "R\ufb01"),
            ("Rfi", "y", "R\ufb01"),
        ):
            assert enter(client, typed, password).status_code == 303
            assert visitor_of(access, client.cookies[access.login_cookie_name]) == Visitor(Role.LABELLER, name)


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("Bob", "two owl"),
        ("Bob", ""),
        ("Bob", passwords.hash_password("two owls", SALT)),
        ("bob", "two owls"),
        ("Cid", "x"),
        ("Cid", ""),
        ("", ""),
        ("Ann Lee", "three"),
        ("Eve", "three:operator"),
    ],
)
def test_a_refused_login_says_so_and_sets_no_cookie(web, name, password):
    answer = enter(web, f"{name}<b>", password) if name == "Cid" else enter(web, name, password)
    assert (answer.status_code, "Name or password is wrong" in answer.text) == (403, True)
    assert "set-cookie" not in answer.headers
    assert "<b>" not in answer.text
    assert enter(web, "x" * 5000, "y").status_code == 413


def test_a_password_form_of_another_site_enters_nobody(web):
    for origin, status in (("http://evil.example", 403), ("null", 403), ("http://lab.example", 303)):
        answer = web.post("/enter", data={"name": "Eve", "password": "three"}, headers={"origin": origin})
        assert answer.status_code == status
        assert ("set-cookie" in answer.headers) is (status == 303)


def test_guessing_passwords_ends_and_keeps_neither_codes_nor_the_operators_link_out(lab, web):
    for _ in range(failed_attempts.MAX_FAILURES_PER_MINUTE):
        assert enter(web, "Eve", "guess").status_code == 403
    answer = enter(web, "Eve", "three")
    assert (answer.status_code, "Wait a minute" in answer.text) == (429, True)
    assert web.post("/join", data={"code": "ABC234", "name": "Cid"}).status_code == 303
    assert web.get("/enter", params={"key": lab.operator_secret}).status_code == 303
    assert web.get("/enter?key=guess").status_code == 403


def test_an_address_that_guesses_passwords_keeps_no_other_address_out(lab):
    access = replace(lab.access, public_url="https://lab.example/")
    with TestClient(Starlette(routes=login_routes.login_routes(lab.db, access)), follow_redirects=False) as client:

        def status(address, password):
            fields = {"name": "Eve", "password": password}
            return client.post("/enter", data=fields, headers={"x-forwarded-for": address}).status_code

        for _ in range(failed_attempts.MAX_FAILURES_PER_MINUTE):
            assert status("203.0.113.5", "guess") == 403
        assert status("203.0.113.5", "three") == 429
        assert status("203.0.113.6", "three") == 303


def test_an_unknown_name_takes_as_long_as_a_known_one(web, monkeypatch):
    hashes = []
    monkeypatch.setattr(passwords, "verify_password", lambda password, stored: hashes.append(stored) or True)
    assert enter(web, "Cid", "x").status_code == 403
    assert passwords.HASH_PATTERN.fullmatch(hashes[0])


@pytest.mark.parametrize("stored", ["three", passwords.hash_password("three")])
def test_a_plain_password_takes_as_long_as_a_hashed_one(monkeypatch, stored):
    """Otherwise the time of a refusal would tell whether the file has the name."""
    hashed, scrypt = [], passwords.hashlib.scrypt
    monkeypatch.setattr(
        passwords.hashlib, "scrypt", lambda *args, **options: hashed.append(1) or scrypt(*args, **options)
    )
    for password in ("three", "four"):
        assert passwords.verify_password(password, stored) is (password == "three")
    assert hashed == [1, 1]


def test_nobody_joins_by_code_under_a_name_of_the_file(lab, web):
    web.post("/join", data={"code": "ABC234", "name": "Bob"})
    assert visitor_of(lab.access, web.cookies[lab.access.login_cookie_name]) == Visitor(Role.LABELLER, "Bob 2")


def test_a_cookie_ends_with_its_line_or_password_and_does_as_the_line_says(lab):
    cookie = lab.access.cookie_value(Visitor(Role.LABELLER, "Bob"))
    bob = lab.access.password_entries["Bob"]

    def visitor_with(**people):
        return replace(lab.access, password_entries=people).visitor(FakeRequest(lab.access, cookie))

    assert visitor_with(Bob=bob) == Visitor(Role.LABELLER, "Bob")
    assert visitor_with(Bob=replace(bob, role=Role.OPERATOR)) == Visitor(Role.OPERATOR, "Bob")
    for now in ({}, {"Bob": replace(bob, password="other")}, {"Eve": bob}):
        assert visitor_with(**now) == Visitor(Role.VIEWER)


def test_who_joined_before_as_a_name_of_the_file_is_not_taken_for_its_owner(lab):
    before = replace(lab.access, password_entries={})
    cookie = before.cookie_value(Visitor(Role.LABELLER, add_person(lab.db, "Eve").name))
    assert before.visitor(FakeRequest(lab.access, cookie)) == Visitor(Role.LABELLER, "Eve")
    assert visitor_of(lab.access, cookie) == Visitor(Role.VIEWER)


def test_without_a_password_file_enter_accepts_only_the_operators_link(ctx):
    guarded = ctx.as_multi_user(open_to_all=False)
    with TestClient(Starlette(routes=login_routes.login_routes(ctx.db, guarded.access))) as client:
        assert client.get("/enter").status_code == 403
        assert enter(client, "Bob", "x").status_code == 405
        assert "password" not in client.get("/join").text


def test_an_entered_name_is_escaped_when_shown_again(web):
    answer = web.post("/enter", data={"name": '"><img src=x>', "password": "x"})
    assert 'value="&quot;&gt;&lt;img src=x&gt;"' in answer.text
    assert "<img" not in answer.text
