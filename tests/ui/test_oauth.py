"""Signing in with an account: the complete OAuth flow, with a simulated provider."""

import asyncio
import base64
import gzip
import hashlib
import json
import shutil
import time
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import httpx2 as httpx
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from rlhf_lab.common.records import Role
from rlhf_lab.errors import LabelError
from rlhf_lab.store.annotators import add_person, get_or_add_account
from rlhf_lab.store.database import Database
from rlhf_lab.ui import page
from rlhf_lab.ui.auth import oauth
from rlhf_lab.ui.auth.oauth import OAuthProvider, oauth_routes
from rlhf_lab.ui.auth.visitors import COOKIE_PREFIX, Visitor, multi_user_access

SPACE = {
    "OPENID_PROVIDER_URL": "https://hub.example", "OAUTH_CLIENT_ID": "lab", "OAUTH_CLIENT_SECRET": "hush",
    "OAUTH_SCOPES": "openid profile", "SPACE_HOST": "me-lab.hf.space,lab.me", "SPACE_AUTHOR_NAME": "Me",
    "RLHF_LAB_OPERATORS": "other, third",
}  # fmt: skip


class Hub:
    """The provider: one code for one account; it checks the verifier against the challenge."""

    def __init__(self) -> None:
        self.name, self.challenge, self.broken = "ann", "", False
        self.replies = {}  # path -> a function that makes another reply

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.broken:
            raise httpx.ConnectError("no network")
        if request.url.path in self.replies:
            return self.replies[request.url.path]()
        if request.url.path.endswith("openid-configuration"):
            names = ("authorization_endpoint", "token_endpoint", "userinfo_endpoint")
            return httpx.Response(200, json={name: f"https://hub.example/{name}" for name in names})
        if request.url.path == "/token_endpoint":
            form = {name: values[0] for name, values in parse_qs(request.content.decode()).items()}
            digest = (
                base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).decode().rstrip("=")
            )
            right = form["code"] == "good" and digest == self.challenge
            assert request.headers["authorization"] == "Basic " + base64.b64encode(b"lab:hush").decode()
            assert form["redirect_uri"] == "https://me-lab.hf.space/login/callback"
            if not right:
                return httpx.Response(400, json={"error": "invalid_grant"})
            return httpx.Response(200, json={"access_token": "t0k", "token_type": "bearer"})
        assert request.headers["authorization"] == "Bearer t0k"
        return httpx.Response(200, json={"preferred_username": self.name})


@pytest.fixture
def hub():
    return Hub()


@pytest.fixture
def db(tmp_path, empty_home):
    with Database.open(shutil.copytree(empty_home, tmp_path, dirs_exist_ok=True)) as db:
        yield db


@pytest.fixture
def access(tmp_path):
    return multi_user_access(tmp_path, open_to_all=False)


@pytest.fixture
def web(db, access, hub):
    provider = replace(OAuthProvider.from_env(SPACE), transport=httpx.MockTransport(hub))
    app = Starlette(routes=oauth_routes(db, access, provider))
    with TestClient(app, base_url="https://me-lab.hf.space", follow_redirects=False) as client:
        yield client


def start_sign_in(web, hub):
    """Go to the provider. Returns the state that it will send back."""
    answer = web.get("/login/huggingface")
    assert answer.status_code == 303
    location = urlsplit(answer.headers["location"])
    parameters = {name: values[0] for name, values in parse_qs(location.query).items()}
    assert location.netloc + location.path == "hub.example/authorization_endpoint"
    assert (parameters["response_type"], parameters["client_id"], parameters["scope"]) == (
        "code",
        "lab",
        "openid profile",
    )
    assert parameters["code_challenge_method"] == "S256"
    hub.challenge = parameters["code_challenge"]
    return parameters["state"]


def visitor(access, web):
    class Request:
        cookies, headers = web.cookies, {"host": "me-lab.hf.space"}

    return access.visitor(Request)


def test_an_account_labels_under_its_name_at_every_sign_in(db, web, hub, access):
    for _ in range(2):
        answer = web.get("/login/callback", params={"code": "good", "state": start_sign_in(web, hub)})
        assert (answer.status_code, answer.headers["location"]) == (303, "../")
        assert "HttpOnly; SameSite=None; Secure; Partitioned" in answer.headers["set-cookie"]
        assert visitor(access, web) == Visitor(Role.LABELLER, "@ann")
    with pytest.raises(LabelError, match="Choose a name"):
        add_person(db, "@ann")
    assert get_or_add_account(db, "ann").id == get_or_add_account(db, "ann").id
    assert add_person(db, "ann").name == "ann"


@pytest.mark.parametrize("name", ["\u0430nn", "ann\u3164", "\u212aay", "a nn", "", "x" * 60, ["ann"], None, 7])
def test_an_account_without_a_plain_name_is_refused(web, hub, access, name):
    hub.name = name
    answer = web.get("/login/callback", params={"code": "good", "state": start_sign_in(web, hub)})
    assert answer.status_code in (400, 502)
    assert visitor(access, web).role is Role.VIEWER


@pytest.mark.parametrize("name", ["me", "other", "Third"])
def test_the_owner_and_who_is_named_operate(web, hub, access, name):
    hub.name = name
    web.get("/login/callback", params={"code": "good", "state": start_sign_in(web, hub)})
    assert visitor(access, web) == Visitor(Role.OPERATOR, f"@{name}")


def test_an_account_is_stored_in_a_thread(web, hub, access, blocking_calls):
    for _ in range(2):
        web.get("/login/callback", params={"code": "good", "state": start_sign_in(web, hub)})
    assert visitor(access, web) == Visitor(Role.LABELLER, "@ann")
    assert blocking_calls == []


def test_a_stranger_s_answer_is_refused(web, hub, access):
    state = start_sign_in(web, hub)
    for parameters in ({"code": "good", "state": state + "x"}, {"code": "good"}, {}):
        answer = web.get("/login/callback", params=parameters)
        assert answer.status_code == 403
        assert "Sign in again" in answer.text
    web.cookies.clear()
    assert web.get("/login/callback", params={"code": "good", "state": state}).status_code == 403
    assert not [name for name in web.cookies if name.startswith(COOKIE_PREFIX)]


def test_the_state_cookie_ends_after_ten_minutes_and_with_the_sign_in(web, hub, monkeypatch):
    state = start_sign_in(web, hub)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 602)
    assert web.get("/login/callback", params={"code": "good", "state": state}).status_code == 403
    answer = web.get("/login/callback", params={"code": "good", "state": start_sign_in(web, hub)})
    removed = next(one for one in answer.headers.get_list("set-cookie") if one.startswith("rlhf_lab_sign_in="))
    assert removed == "rlhf_lab_sign_in=; Path=/; Max-Age=0; HttpOnly; SameSite=None; Secure; Partitioned"


def test_the_state_cookie_is_no_login_cookie(web, hub, access):
    start_sign_in(web, hub)
    state_cookie = web.cookies["rlhf_lab_sign_in"]
    web.cookies.clear()
    for name in (access.login_cookie_name, access.page_cookie_name):
        web.cookies.set(name, state_cookie)
    assert visitor(access, web) == Visitor(Role.VIEWER)


@pytest.mark.parametrize(
    ("code", "broken", "status", "words"),
    [("bad", False, 502, "OAuthError"), ("good", True, 502, "ConnectError"), ("", False, 403, "refused")],
)
def test_a_provider_that_refuses_or_is_unreachable_is_reported(web, hub, access, code, broken, status, words):
    state = start_sign_in(web, hub)
    hub.broken = broken
    answer = web.get("/login/callback", params={"state": state, "error": "denied"} | ({"code": code} if code else {}))
    assert answer.status_code == status
    assert words in answer.text
    assert 'href="../login/huggingface"' in answer.text
    assert visitor(access, web).role is Role.VIEWER
    if broken:
        assert web.get("/login/huggingface").status_code == 502


METADATA, TOKEN, USER = ".well-known/openid-configuration", "token_endpoint", "userinfo_endpoint"
ENDPOINTS = {name: f"https://hub.example/{name}" for name in ("authorization_endpoint", TOKEN, USER)}
GOOD_TOKEN = {"access_token": "t0k", "token_type": "bearer"}


async def endless_body():
    while True:
        yield b" " * 1000


async def slow_body():
    while True:
        await asyncio.sleep(0.02)
        yield b" "


def redirect():
    return httpx.Response(302, headers={"location": "https://evil.example/"}, json=GOOD_TOKEN)


NONSENSE = {
    "html": lambda: httpx.Response(200, html="<p>Sorry</p>"),
    "nothing": lambda: httpx.Response(204),
    "null": lambda: httpx.Response(200, json=None),
    "list": lambda: httpx.Response(200, json=[1]),
    "number": lambda: httpx.Response(200, json=7),
    "text": lambda: httpx.Response(200, json="abc"),
    "empty": lambda: httpx.Response(200, json={}),
    "deep": lambda: httpx.Response(200, content=b"[" * 50_000),
    "no utf-8": lambda: httpx.Response(200, content=b'{"preferred_username": "\xff"}'),
    "error": lambda: httpx.Response(500, json=GOOD_TOKEN | {"preferred_username": "me"}),
    "redirect": redirect,
    "endless": lambda: httpx.Response(200, content=endless_body()),
    "slow": lambda: httpx.Response(200, content=slow_body()),
    "bomb": lambda: httpx.Response(
        200, headers={"content-encoding": "gzip"}, content=gzip.compress(b'{"preferred_username": "me"}' + b" " * 10**7)
    ),
}


@pytest.mark.parametrize("at", [METADATA, TOKEN, USER])
@pytest.mark.parametrize("reply", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_from_the_provider_lets_nobody_in(web, hub, access, monkeypatch, at, reply):
    monkeypatch.setattr(oauth, "TIMEOUT_S", 0.5)
    state = start_sign_in(web, hub)
    hub.replies[f"/{at}"] = reply
    answer = web.get("/login/callback", params={"code": "good", "state": state})
    assert answer.status_code == 502
    assert "Hugging Face did not confirm who you are" in answer.text
    assert "Sorry" not in answer.text
    assert visitor(access, web).role is Role.VIEWER
    if at == METADATA:
        assert web.get("/login/huggingface").status_code == 502


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (METADATA, ENDPOINTS | {TOKEN: "https://evil.example/token_endpoint"}),
        (METADATA, ENDPOINTS | {TOKEN: "https://hub.example.evil.example/token_endpoint"}),
        (METADATA, ENDPOINTS | {USER: "http://hub.example/userinfo_endpoint"}),
        (METADATA, ENDPOINTS | {USER: ["https://hub.example/userinfo_endpoint"]}),
        (METADATA, {"token_endpoint": None}),
        (TOKEN, {"access_token": "t0k", "token_type": "mac"}),
        (TOKEN, GOOD_TOKEN | {"expires_in": "soon"}),
        (TOKEN, GOOD_TOKEN | {"expires_at": 1}),
        (USER, {"preferred_username": None}),
        (USER, {"preferred_username": ["me"]}),
        (USER, {"preferred_username": True}),
        (USER, {"name": "me"}),
    ],
)
def test_odd_fields_let_nobody_in(web, hub, access, at, value):
    state = start_sign_in(web, hub)
    hub.replies[f"/{at}"] = lambda: httpx.Response(200, json=value)
    assert web.get("/login/callback", params={"code": "good", "state": state}).status_code == 502
    assert visitor(access, web).role is Role.VIEWER


@pytest.mark.parametrize(
    "name",
    [
        "ann\n", "\x1b[31mann", "me\x00", "me\u200b", "ⓜe", "operator\u202e", "../me", "a" * 61, "me, other",
    ],
)  # fmt: skip
def test_account_names_with_odd_characters_never_operate(web, hub, access, name):
    hub.name = name
    web.get("/login/callback", params={"code": "good", "state": start_sign_in(web, hub)})
    assert visitor(access, web) in (Visitor(Role.VIEWER), Visitor(Role.LABELLER, "@ann"))


def test_an_account_called_operator_is_a_labeller(web, hub, access):
    hub.name = "operator"
    web.get("/login/callback", params={"code": "good", "state": start_sign_in(web, hub)})
    assert visitor(access, web) == Visitor(Role.LABELLER, "@operator")


def test_only_a_space_with_its_variables_has_the_oauth_routes(db, access, monkeypatch):
    assert OAuthProvider.from_env({}) is None
    assert (
        OAuthProvider.from_env({name: value for name, value in SPACE.items() if name != "OAUTH_CLIENT_SECRET"}) is None
    )
    for name in SPACE:
        monkeypatch.delenv(name, raising=False)
    paths = [route.path for route in page.auth_routes(db, access)]
    assert paths == ["/join", "/enter", "/leave"]
    for name, value in SPACE.items():
        monkeypatch.setenv(name, value)
    routes = page.auth_routes(db, access)
    assert [route.path for route in routes] == [*paths, "/login/huggingface", "/login/callback"]
    with TestClient(Starlette(routes=routes)) as client:
        assert "Sign in with Hugging Face" in client.get("/join").text
    assert "hush" not in json.dumps([str(route) for route in routes])


def test_certificates_are_read_once(monkeypatch):
    """It takes 50 ms, during which nobody is answered."""
    made, make = [], httpx.create_ssl_context
    monkeypatch.setattr(httpx, "create_ssl_context", lambda: made.append(make()) or made[-1])
    monkeypatch.setattr(httpx, "AsyncHTTPTransport", lambda verify=None: httpx.MockTransport(lambda _: verify))
    oauth.tls_context.cache_clear()
    provider = OAuthProvider.from_env(SPACE)
    used = [provider.client()._transport._transport.handler(None) for _ in range(3)]
    assert (len(made), used) == (1, made * 3)
    oauth.tls_context.cache_clear()
