"""Identity and rights of a visitor: cookies, login routes, and the role check before every event."""

import asyncio
import base64
import hashlib
import json
import re
import shutil
import stat
import time
from dataclasses import replace

import pytest
from gradio.context import LocalContext
from sqlalchemy import select
from starlette.applications import Starlette
from starlette.testclient import TestClient

from rlhf_lab.common.paths import ACCESS_FILE
from rlhf_lab.common.records import Role
from rlhf_lab.errors import LabelError, NotAllowedError, StoreError
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store import tables
from rlhf_lab.store.annotators import add_person
from rlhf_lab.store.database import Database
from rlhf_lab.ui.auth import failed_attempts, login_routes
from rlhf_lab.ui.auth.api_clients import ApiClients
from rlhf_lab.ui.auth.login_pages import join_form_page
from rlhf_lab.ui.auth.visitors import (
    LOCAL_ACCESS,
    JoinCode,
    Visitor,
    is_join_code,
    multi_user_access,
    secrets_equal,
)
from rlhf_lab.ui.context import OPERATOR_SECRET_ENV_VAR, Context
from rlhf_lab.ui.label import api as label
from rlhf_lab.ui.page import build_page, launch_options


class FakeRequest:
    """A request with a login cookie; only the attributes that are read."""

    def __init__(self, access, cookie: str = "", **headers: str) -> None:
        self.cookies = {access.login_cookie_name: cookie} if cookie else {}
        self.headers = {"host": "lab.example"} | headers


def visitor_of(access, cookie, **headers):
    """The visitor that a request with this login cookie comes from."""
    return access.visitor(FakeRequest(access, cookie, **headers))


@pytest.fixture
def ctx(tmp_path, project_home, monkeypatch):
    monkeypatch.delenv(OPERATOR_SECRET_ENV_VAR, raising=False)
    monkeypatch.setenv("RLHF_LAB_JOIN_CODE", "ABC234")
    with Database.open(shutil.copytree(project_home, tmp_path, dirs_exist_ok=True)) as db:
        yield Context(tmp_path, db).as_multi_user(open_to_all=False)


def joined(ctx):
    with ctx.db.read() as conn:
        return set(conn.execute(select(tables.people.c.name)).scalars())


@pytest.fixture
def handle_event_of():
    """handle_event_of(request): from now on the code runs as in an event that was sent by this request."""
    tokens = []
    yield lambda request: tokens.append(LocalContext.request.set(request))
    for token in reversed(tokens):
        LocalContext.request.reset(token)


@pytest.fixture
def web(ctx):
    with TestClient(
        Starlette(routes=login_routes.login_routes(ctx.db, ctx.access)),
        base_url="http://lab.example",
        follow_redirects=False,
    ) as client:
        yield client


def test_on_a_local_lab_every_visitor_is_operator_whatever_their_cookie(ctx):
    assert LOCAL_ACCESS.visitor(None).role is Role.OPERATOR
    assert LOCAL_ACCESS.visitor(
        FakeRequest(ctx.access, ctx.access.cookie_value(Visitor(Role.LABELLER, "Ann")))
    ) == Visitor(Role.OPERATOR)


def test_roles_contain_those_before_them():
    may = {role: [needed for needed in Role if role.at_least(needed)] for role in Role}
    assert [len(found) for found in may.values()] == [1, 2, 3]
    assert may[Role.LABELLER] == [Role.VIEWER, Role.LABELLER]


def test_a_cookie_identifies_a_visitor_and_cannot_be_forged(ctx):
    access, ann = ctx.access, Visitor(Role.LABELLER, add_person(ctx.db, "Ann").name)
    cookie = access.cookie_value(ann)
    assert access.visitor(FakeRequest(ctx.access, cookie)) == ann
    assert access.visitor(FakeRequest(ctx.access)) == access.visitor(None) == Visitor(Role.VIEWER)
    operator = access.cookie_value(Visitor(Role.OPERATOR, "operator"))
    body, signature = cookie.rsplit(".", 1)
    other_lab = multi_user_access(ctx.home / "other", open_to_all=False)
    for forged in (
        operator.rsplit(".", 1)[0] + "." + signature, body + ".", body, "x.y", "", "é.é", body[:-1] + "." + signature,
        other_lab.cookie_value(ann),
    ):  # fmt: skip
        assert access.visitor(FakeRequest(ctx.access, forged)).role is Role.VIEWER


def test_a_labellers_cookie_needs_a_person_who_joined(ctx):
    cookie = ctx.access.cookie_value(Visitor(Role.LABELLER, "Ann"))
    assert visitor_of(ctx.access, cookie) == Visitor(Role.VIEWER)
    add_person(ctx.db, "Ann")
    assert visitor_of(ctx.access, cookie) == Visitor(Role.VIEWER)  # it has no fingerprint


@pytest.mark.parametrize("change", [{"operator_secret": "other"}, {"code": JoinCode("other")}], ids=str)
def test_a_new_secret_or_code_ends_old_cookies(ctx, change):
    cookie = ctx.access.cookie_value(Visitor(Role.LABELLER, add_person(ctx.db, "Ann").name))
    assert replace(ctx.access, **change).visitor(FakeRequest(ctx.access, cookie)).role is Role.VIEWER


def test_a_page_of_another_site_cannot_act_with_the_cookie(ctx, monkeypatch):
    cookie = ctx.access.cookie_value(Visitor(Role.OPERATOR, "operator"))
    role = {
        origin: visitor_of(ctx.access, cookie, origin=origin).role
        for origin in ("http://lab.example", "https://evil.example", "null", "https://me.hf.space")
    }
    assert [name for name, found in role.items() if found is Role.OPERATOR] == ["http://lab.example"]
    monkeypatch.setenv("SPACE_HOST", "me.hf.space")
    assert visitor_of(ctx.access, cookie, origin="https://me.hf.space").role is Role.OPERATOR


@pytest.mark.parametrize("scheme", ["https", "chrome-extension", "ftp"])
def test_a_page_of_another_scheme_is_another_site(ctx, scheme):
    """Without `--url` the lab uses http, whatever a header says."""
    cookie = ctx.access.cookie_value(Visitor(Role.OPERATOR, "operator"))
    forwarded = {"x-forwarded-proto": scheme}
    assert visitor_of(ctx.access, cookie, host="lab:1", origin=f"{scheme}://lab:1", **forwarded).role is Role.VIEWER


def test_a_space_is_reached_by_https_at_its_names_alone(ctx, monkeypatch):
    monkeypatch.setenv("SPACE_HOST", "a-b.hf.space")
    cookie = ctx.access.cookie_value(Visitor(Role.OPERATOR, "operator"))
    accepted = [
        (host, origin)
        for host in ("a-b.hf.space", "evil")
        for origin in ("https://a-b.hf.space", "http://a-b.hf.space", "https://evil", "http://evil")
        if visitor_of(ctx.access, cookie, host=host, origin=origin).role is Role.OPERATOR
    ]
    assert accepted == [("a-b.hf.space", "https://a-b.hf.space"), ("evil", "https://a-b.hf.space")]


def test_behind_a_proxy_the_public_host_is_our_own_origin(tmp_path):
    with Database.open(tmp_path) as db:
        new_project(db)
        lab = Context(tmp_path, db, public_url="https://lab.example/rlhf/", behind_proxy=True).as_multi_user(
            open_to_all=False
        )
        cookie = lab.access.cookie_value(Visitor(Role.OPERATOR, "operator"))
        role = {
            origin: visitor_of(lab.access, cookie, host="127.0.0.1:7860", origin=origin).role
            for origin in ("https://lab.example", "https://evil.example", "https://lab.example:8443")
        }
    assert [name for name, found in role.items() if found is Role.OPERATOR] == ["https://lab.example"]


def test_forwarded_host_does_not_make_another_origin_ours(ctx):
    """Any page may send X-Forwarded-Host; only a browser writes Host and Origin."""
    cookie = ctx.access.cookie_value(Visitor(Role.OPERATOR, "operator"))
    forwarded = {"x-forwarded-host": "evil", "x-forwarded-server": "evil", "forwarded": "host=evil"}
    assert visitor_of(ctx.access, cookie, host="lab:1", origin="http://evil", **forwarded).role is Role.VIEWER
    assert visitor_of(ctx.access, cookie, host="lab:1", origin="http://lab:2", **forwarded).role is Role.VIEWER
    assert visitor_of(ctx.access, cookie, host="lab:1", origin="http://lab:1", **forwarded).role is Role.OPERATOR


@pytest.mark.parametrize(
    "origin", ["http://[::1", "http://", "lab.example", "null", "https://lab.example.evil.example"]
)
def test_a_malformed_or_opaque_origin_is_another_site(ctx, origin):
    cookie = ctx.access.cookie_value(Visitor(Role.OPERATOR, "operator"))
    assert visitor_of(ctx.access, cookie, origin=origin).role is Role.VIEWER


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("https://Lab.example/", "https://lab.example"),
        ("https://lab.example:443/rlhf/", "https://lab.example"),
        ("http://lab.example:80/", "http://lab.example"),
        ("https://lab.example:8443/", "https://lab.example:8443"),
        ("https://ä.test/", "https://xn--4ca.test"),
        ("https://Straße.test:8443/", "https://xn--strae-oqa.test:8443"),
    ],
)
def test_the_stated_address_is_the_only_own_origin_behind_a_proxy(ctx, url, own):
    """A proxy passes its own name for the lab as Host: a page at that name on the visitor's computer is not the lab."""
    access = replace(ctx.access, public_url=url)
    cookie = access.cookie_value(Visitor(Role.OPERATOR, "operator"))
    origins = (own, "http://127.0.0.1:7860", own.replace("http", "ftp"), f"{own}1", "https://lab.example:1")
    accepted = [
        origin
        for origin in origins
        if visitor_of(access, cookie, host="127.0.0.1:7860", origin=origin).role is Role.OPERATOR
    ]
    assert accepted == [own]


def test_each_name_of_a_space_is_our_own_origin(ctx, monkeypatch):
    monkeypatch.setenv("SPACE_HOST", "me.hf.space, lab.me")
    cookie = ctx.access.cookie_value(Visitor(Role.OPERATOR, "operator"))
    for origin, role in (
        ("https://me.hf.space", Role.OPERATOR),
        ("https://lab.me", Role.OPERATOR),
        ("https://", Role.VIEWER),
    ):
        assert visitor_of(ctx.access, cookie, host="10.0.0.1:7860", origin=origin).role is role


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://lab.example:81", "https://lab.example"])
def test_a_form_of_another_site_logs_nobody_in(ctx, web, origin):
    headers = {"origin": origin, "x-forwarded-host": "evil.example"}
    for path, fields in (
        ("/join", {"code": "ABC234", "name": "Mallory"}),
        ("/enter", {"name": "Ann", "password": "x"}),
        ("/enter", {"key": ctx.operator_secret}),
    ):
        answer = web.post(path, data=fields, headers=headers)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers
        assert "another site" in answer.text
    assert joined(ctx) == set()


def test_the_labs_own_form_logs_in(web):
    headers = {"origin": "http://lab.example"}
    assert web.post("/join", data={"code": "ABC234", "name": "Ann"}, headers=headers).status_code == 303


def test_the_login_page_lets_the_browser_state_its_origin(web):
    """With the policy no-referrer a browser sends its form with the origin "null", as another site's sandboxed page would."""
    assert web.get("/join").headers["referrer-policy"] == "same-origin"


def test_the_keys_stay_and_only_their_owner_reads_them(tmp_path, monkeypatch):
    monkeypatch.delenv("RLHF_LAB_JOIN_CODE", raising=False)
    first, again = (multi_user_access(tmp_path / "h", open_to_all=True) for _ in range(2))
    assert first == again
    assert (len(first.key), len(first.join_code), first.default_role) == (32, 6, Role.LABELLER)
    path = tmp_path / "h" / ACCESS_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text(json.dumps({"key": "00"}))
    with pytest.raises(StoreError, match="Delete it to get a new join code"):
        multi_user_access(tmp_path / "h", open_to_all=True)


def test_joining_gives_a_cookie_with_the_role_of_a_labeller(ctx, web):
    shown = web.get("/join?code=<b>")
    assert shown.status_code == 200
    assert "<b>" not in shown.text
    answer = web.post("/join", data={"code": " abc234 ", "name": "  Ann   Lee "})
    assert (answer.status_code, answer.headers["location"]) == (303, "./")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert visitor_of(ctx.access, web.cookies[ctx.access.login_cookie_name]) == Visitor(Role.LABELLER, "Ann Lee")
    assert joined(ctx) == {"Ann Lee"}


def test_one_browser_enters_two_labs_of_one_computer(tmp_path):
    """Browsers send cookies to every port and path of a computer: each lab reads its own."""
    labs = [multi_user_access(tmp_path / name, open_to_all=False) for name in ("one", "other")]
    own = [Visitor(Role.OPERATOR, "Ann"), Visitor(Role.LABELLER, "Ann at work")]
    request = FakeRequest(labs[0])
    request.cookies = {lab.login_cookie_name: lab.cookie_value(visitor) for lab, visitor in zip(labs, own, strict=True)}
    assert [lab.visitor(request) for lab in labs] == own
    request.cookies = {lab.login_cookie_name: labs[0].cookie_value(own[0]) for lab in labs}
    assert [lab.visitor(request) for lab in labs] == [own[0], Visitor(Role.VIEWER)]


def test_over_https_the_cookie_reaches_us_in_the_frame_of_another_site(web):
    answer = web.post("/join", data={"code": "ABC234", "name": "Ann"}, headers={"x-forwarded-proto": "https"})
    assert "SameSite=None; Secure" in answer.headers["set-cookie"]
    answer = web.post("/join", data={"code": "ABC234", "name": "Bob"}, headers={"x-forwarded-proto": "https,http"})
    assert "SameSite=None; Secure" in answer.headers["set-cookie"]  # one proxy behind another


def login_cookie(lab, **headers):
    """The Set-Cookie header that joining gets."""
    with TestClient(Starlette(routes=login_routes.login_routes(lab.db, lab.access)), follow_redirects=False) as client:
        answer = client.post("/join", data={"code": "ABC234", "name": "Ann"}, headers=headers)
    return answer.headers["set-cookie"]


def behind_proxy(ctx, url):
    return replace(ctx, access=replace(ctx.access, public_url=url))


def test_the_stated_scheme_decides_how_cookies_are_kept_whatever_the_request_says(ctx):
    """The nginx configuration in docs/NETWORK.md sends no X-Forwarded-Proto."""
    secure = "HttpOnly; SameSite=None; Secure; Partitioned"
    for forwarded in ({}, {"x-forwarded-proto": "http"}, {"x-forwarded-proto": "https"}):
        assert login_cookie(behind_proxy(ctx, "https://lab.test/"), **forwarded).endswith(secure)
        assert login_cookie(behind_proxy(ctx, "http://lab.test/"), **forwarded).endswith("HttpOnly; SameSite=Lax")


def test_on_a_space_cookies_are_for_https_alone(ctx, monkeypatch):
    monkeypatch.setenv("SPACE_HOST", "a-b.hf.space")
    for forwarded in ({}, {"x-forwarded-proto": "http"}):
        assert login_cookie(ctx, **forwarded).endswith("HttpOnly; SameSite=None; Secure; Partitioned")


def test_a_login_cookie_ends_after_a_month_even_if_a_copy_is_kept(ctx, monkeypatch):
    now = [1_700_000_000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    cookie = ctx.access.cookie_value(Visitor(Role.OPERATOR, "operator"))
    now[0] += 30 * 86_400
    assert visitor_of(ctx.access, cookie).role is Role.OPERATOR
    now[0] += 1
    assert visitor_of(ctx.access, cookie).role is Role.VIEWER
    now[0] -= 40 * 86_400  # a clock that is set back does not lock anybody out
    assert visitor_of(ctx.access, cookie).role is Role.OPERATOR


def test_the_time_in_a_cookie_is_signed(ctx):
    first, second = (ctx.access.cookie_value(Visitor(Role.OPERATOR, "operator")).rsplit(".", 2) for _ in range(2))
    assert visitor_of(ctx.access, ".".join(first)).role is Role.OPERATOR
    assert visitor_of(ctx.access, ".".join([first[0], f"A{first[1]}", first[2]])).role is Role.VIEWER
    assert visitor_of(ctx.access, ".".join([first[0], *second[1:]])).role is Role.VIEWER


def test_logging_out_ends_copies_of_the_cookie_and_no_other_session(ctx, web):
    web.post("/join", data={"code": "ABC234", "name": "Ann"})
    copied_cookie = web.cookies[ctx.access.login_cookie_name]
    other = ctx.access.cookie_value(Visitor(Role.LABELLER, "Ann"))
    assert "You are logged in as Ann" in web.get("/leave").text
    answer = web.post("/leave", headers={"origin": "http://lab.example"})
    assert (answer.status_code, answer.headers["location"]) == (303, "./")
    assert ctx.access.login_cookie_name not in web.cookies
    assert all("Max-Age=0" in header for header in answer.headers.get_list("set-cookie"))
    assert visitor_of(ctx.access, copied_cookie) == Visitor(Role.VIEWER)
    assert visitor_of(ctx.access, other) == Visitor(Role.LABELLER, "Ann")
    for last in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_":  # some decode to the same signature
        assert visitor_of(ctx.access, copied_cookie[:-1] + last) == Visitor(Role.VIEWER)


def test_a_log_out_is_remembered_when_the_lab_starts_again(ctx, web):
    web.get("/enter", params={"key": ctx.operator_secret})
    copied_cookie = web.cookies[ctx.access.login_cookie_name]
    web.post("/leave")
    restarted = Context(ctx.home, ctx.db).as_multi_user(open_to_all=False)
    assert visitor_of(restarted.access, copied_cookie).role is Role.VIEWER
    assert (
        visitor_of(restarted.access, restarted.access.cookie_value(Visitor(Role.OPERATOR, "operator"))).role
        is Role.OPERATOR
    )


def test_a_damaged_list_of_log_outs_says_what_to_do(ctx):
    (ctx.home / "ended_sessions.json").write_text("[1]")
    with pytest.raises(
        StoreError, match=r"ended_sessions\.json cannot be used .* Delete it together with access\.json"
    ):
        Context(ctx.home, ctx.db).as_multi_user(open_to_all=False)


def test_a_page_of_another_site_logs_nobody_out(ctx, web):
    web.post("/join", data={"code": "ABC234", "name": "Ann"})
    answer = web.post("/leave", headers={"origin": "http://evil.example"})
    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
    assert visitor_of(ctx.access, web.cookies[ctx.access.login_cookie_name]) == Visitor(Role.LABELLER, "Ann")


def test_the_operators_key_can_be_sent_without_being_part_of_an_address(ctx, web):
    assert web.post("/enter", data={"key": "guess"}).status_code == 403
    answer = web.post("/enter", data={"key": ctx.operator_secret})
    assert (answer.status_code, answer.headers["location"]) == (303, "./")
    assert visitor_of(ctx.access, web.cookies[ctx.access.login_cookie_name]).role is Role.OPERATOR


def test_a_wrong_key_is_taken_out_of_the_address_bar_by_the_only_script_allowed(web):
    answer = web.get("/enter?key=guess")
    (script,) = re.findall("<script>(.*?)</script>", answer.text)
    assert "history.replaceState(null, '', location.pathname" in script
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in answer.headers["content-security-policy"]
    assert "guess" not in answer.text


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"code": "WRONG1", "name": "Ann"}, 403, "not the join code"),
        ({"code": "ABC234", "name": " "}, 400, "Choose a name"),
        ({"code": "ABC234", "name": "x" * 61}, 400, "Choose a name"),
        ({"code": "ABC234", "name": "judge:cheerful"}, 400, "Choose a name"),
        ({"code": "ABC234", "name": "An\u200bn"}, 400, "contains an invisible character (U+200B)"),
        ({"code": "ABC234", "name": "x" * 9000}, 413, "too long"),
        ({}, 403, "not the join code"),
    ],
)
def test_a_refused_join_says_why_and_sets_no_cookie(ctx, web, fields, status, words):
    answer = web.post("/join", data=fields)
    assert answer.status_code == status
    assert words in answer.text
    assert "set-cookie" not in answer.headers


def test_a_code_that_is_renewed_while_somebody_joins_lets_nobody_in(ctx, web, monkeypatch):
    def add_and_renew(*arguments):
        person = add_person(*arguments)
        monkeypatch.setattr(ctx.access.code, "value", "NEW234")
        return person

    monkeypatch.setattr(login_routes, "add_person", add_and_renew)
    answer = web.post("/join", data={"code": "ABC234", "name": "Ann"})
    assert answer.status_code == 403
    assert "has just changed" in answer.text
    assert "set-cookie" not in answer.headers


def test_the_focus_is_on_what_is_missing_or_wrong(web):
    def focused(answer):
        (field,) = re.findall(r"<input id=\"(\w+)\"[^>]* autofocus", answer.text)
        return field

    assert focused(web.get("/join")) == "code"
    assert focused(web.get("/join?code=ABC234")) == "name"
    refused = web.post("/join", data={"code": "WRONG<1", "name": "Ann"})
    assert focused(refused) == "code"
    assert 'value="WRONG&lt;1"' in refused.text  # one letter may be wrong: the others need not be typed again
    assert 'value="Ann"' in refused.text
    assert focused(web.post("/join", data={"code": "ABC234", "name": " "})) == "name"


@pytest.mark.parametrize(
    "typed",
    [
        "ABC 234",
        "a b c 2 3 4",
        "abc-234",
        "\u00a0ABC\u2009234\n",
        "ＡＢＣ２３４",
        "ABC٢٣٤",
        "A.B.C.2.3.4",
        "ABC\u200b234",
        '"ABC234"',
    ],
)
def test_a_join_code_counts_however_it_is_typed(web, typed):
    answer = web.post("/join", data={"code": typed, "name": "Ann"})
    assert (answer.status_code, answer.headers.get("location")) == (303, "./")
    ApiClients().check_code(typed, JoinCode("ABC234"), "10.0.0.1")


@pytest.mark.parametrize(
    "typed", ["ABC23", "ABC2344", "CBA234", "ABC+234", "", " ", "-", "АВС234"]
)  # the last is Cyrillic
def test_other_codes_do_not(web, typed):
    assert web.post("/join", data={"code": typed, "name": "Ann"}).status_code == 403
    with pytest.raises(NotAllowedError, match="join code"):
        ApiClients().check_code(typed, JoinCode("ABC234"), "10.0.0.1")


@pytest.mark.parametrize(
    ("typed", "code", "is_equal"),
    [("see you-2", "See You 2!", True), ("!!!", "!!!", True), ("?", "!!!", False), ("", "!!!", False), ("", "", False)],
)
def test_a_join_code_of_ones_own(typed, code, is_equal):
    assert is_join_code(typed, code) is is_equal


def test_guessing_codes_ends_and_the_right_one_waits_a_minute(web):
    for _ in range(failed_attempts.MAX_FAILURES_PER_MINUTE):
        assert web.post("/join", data={"code": "GUESS1", "name": "Ann"}).status_code == 403
    assert web.post("/join", data={"code": "ABC234", "name": "Ann"}).status_code == 429


def guess_codes(client, addresses, times=failed_attempts.MAX_FAILURES_PER_MINUTE):
    """Send wrong codes from each address, as the proxy states it; returns the statuses for the last one."""
    for address in addresses:
        headers = {"x-forwarded-for": address}
        statuses = [
            client.post("/join", data={"code": "GUESS1", "name": "Mallory"}, headers=headers).status_code
            for _ in range(times)
        ]
    return statuses


def join_status(client, address, name="Ann"):
    return client.post("/join", data={"code": "ABC234", "name": name}, headers={"x-forwarded-for": address}).status_code


@pytest.fixture
def proxied(ctx):
    """A browser that reaches the lab through a proxy."""
    lab = behind_proxy(ctx, "https://lab.example/")
    routes = login_routes.login_routes(lab.db, lab.access)
    with TestClient(Starlette(routes=routes), base_url="https://lab.example", follow_redirects=False) as client:
        yield client


def test_an_address_that_guesses_codes_keeps_no_other_address_out(proxied):
    assert set(guess_codes(proxied, ["203.0.113.5"])) == {403}
    assert join_status(proxied, "203.0.113.5") == 429
    assert join_status(proxied, "203.0.113.5, 203.0.113.6") == 303  # the proxy wrote the last one
    assert join_status(proxied, "203.0.113.6, 203.0.113.5") == 429  # the visitor wrote the first one


def test_all_addresses_of_an_ipv6_network_count_as_one(proxied):
    guess_codes(proxied, [f"2001:db8:1:2::{number:x}" for number in range(30)], times=1)
    assert join_status(proxied, "2001:db8:1:2:ffff::1") == 429
    assert join_status(proxied, "2001:db8:1:3::1") == 303


@pytest.mark.parametrize(
    ("stated", "other"),
    [
        ("203.0.113.5:{}", "203.0.113.6:1"),
        ("[2001:db8:1:2::1]:{}", "[2001:db8:1:3::1]:1"),
        ("[2001:db8:1:2::{}]", "[2001:db8:1:3::1]"),
    ],
)
def test_a_port_that_the_proxy_states_makes_no_other_address(proxied, stated, other):
    guess_codes(proxied, [stated.format(4000 + number) for number in range(30)], times=1)
    assert join_status(proxied, stated.format(5000)) == 429
    assert join_status(proxied, other) == 303


def test_without_a_stated_proxy_the_header_with_the_address_does_not_count(web):
    guess_codes(web, [f"203.0.113.{number}" for number in range(30)], times=1)
    assert join_status(web, "198.51.100.1") == 429


def test_a_flood_of_wrong_codes_is_logged_and_keeps_no_correct_code_out(proxied, caplog, monkeypatch):
    monkeypatch.setattr(failed_attempts, "MAX_TOTAL_FAILURES_PER_MINUTE", 50)
    limiter = failed_attempts.FailedAttemptLimiter("join codes")
    flooded = [limiter.record_failure(f"203.0.113.{number}") for number in range(60)]
    assert flooded == [False] * 49 + [True] * 11
    assert not limiter.is_blocked("198.51.100.1")
    assert not limiter.is_blocked("203.0.113.3")
    assert [record.getMessage() for record in caplog.records] == [
        "50 wrong join codes within a minute: somebody may be guessing. Correct ones are still accepted."
    ]


def test_wrong_codes_of_people_and_programs_are_counted_together(ctx, web):
    for _ in range(failed_attempts.MAX_FAILURES_PER_MINUTE):
        web.post("/join", data={"code": "GUESS1", "name": "Ann"})
    with pytest.raises(NotAllowedError, match="Too many wrong codes"):
        ctx.api_clients.check_code("ABC234", ctx.access.code, "testclient")


def test_in_a_flood_wrong_codes_wait_and_the_correct_one_opens(ctx, monkeypatch):
    monkeypatch.setattr(failed_attempts, "MAX_TOTAL_FAILURES_PER_MINUTE", 50)
    lab = behind_proxy(ctx, "https://lab.example/")
    lab.access.code.failures = failed_attempts.FailedAttemptLimiter("join codes")
    with TestClient(Starlette(routes=login_routes.login_routes(lab.db, lab.access)), follow_redirects=False) as client:
        guess_codes(client, [f"203.0.113.{number}" for number in range(50)], times=1)
        assert guess_codes(client, ["198.51.100.1"], times=2) == [429, 429]
        assert join_status(client, "198.51.100.1") == 303


def test_only_so_many_addresses_are_counted(monkeypatch):
    monkeypatch.setattr(failed_attempts, "MAX_COUNTED_ADDRESSES", 2)
    limiter = failed_attempts.FailedAttemptLimiter("join codes")
    for address in ("a", "b", "a", "c"):
        limiter.record_failure(address)
    assert list(limiter._by_address) == ["a", "c"]


def test_guessed_codes_do_not_keep_the_operator_out(ctx, web):
    for _ in range(failed_attempts.MAX_FAILURES_PER_MINUTE):
        web.post("/join", data={"code": "GUESS1", "name": "Ann"})
    assert web.get("/enter?key=guess").status_code == 403
    assert web.get("/enter", params={"key": ctx.operator_secret}).status_code == 303


def test_the_operators_link_and_a_wrong_one(ctx, web):
    assert web.get("/enter?key=guess").status_code == 403
    assert web.get("/enter").status_code == 403
    answer = web.get("/enter", params={"key": ctx.operator_secret})
    assert answer.status_code == 303
    assert visitor_of(ctx.access, web.cookies[ctx.access.login_cookie_name]).role is Role.OPERATOR


def test_a_taken_name_gets_a_number(ctx):
    assert [add_person(ctx.db, "Ann").name for _ in range(3)] == ["Ann", "Ann 2", "Ann 3"]
    assert add_person(ctx.db, "operator").name == "operator 2"  # the first one came by the operator's link
    assert joined(ctx) == {"Ann", "Ann 2", "Ann 3", "operator 2"}
    assert [add_person(ctx.db, name, ("Dan",)).name for name in ("ANN", "Operator", "dan")] == [
        "ANN 4",
        "Operator 3",
        "dan 2",
    ]


@pytest.mark.parametrize(
    ("name", "stored_name"),
    [
        ("Ann\u3164", "Ann 2"),  # Hangul filler
        ("A\ufe0fnn", "Ann 2"),  # variation selector
        ("\uff21nn", "Ann 2"),  # fullwidth A
        ("\u0391\u039d\u039d", "\u0391\u039d\u039d 2"),  # Greek capitals
        ("oper\ufe0fator", "operator 2"),
        ("operator\u3164", "operator 2"),
        ("0perator", "0perator 2"),
        ("OPERATOR\u115f", "OPERATOR 2"),
    ],
)
def test_a_name_that_looks_like_another_gets_a_number(ctx, name, stored_name):
    add_person(ctx.db, "Ann")
    assert add_person(ctx.db, name).name == stored_name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("\u0410nn", "mixes letters of several alphabets (CYRILLIC, LATIN)"),
        ("\u043eperator", "mixes letters of several alphabets"),
        ("oper\u200bator", "contains an invisible character (U+200B)"),
        ("\u3164\u3164", "Choose a name"),
        ("Judge:cheerful", "Choose a name"),
        ("visitor\u20111", "Choose a name"),
        ("\u0430\u0440\u0456:x", "Choose a name"),  # "api" in Cyrillic letters
        ("\uff20ann", "Choose a name"),
    ],
)
def test_a_name_that_pretends_to_be_something_else_is_refused(ctx, name, words):
    with pytest.raises(LabelError, match=re.escape(words)):
        add_person(ctx.db, name)


def test_composed_and_decomposed_letters_are_one_name(ctx):
    assert [add_person(ctx.db, name).name for name in ("Zo\u00eb", "Zoe\u0308", "Zoe")] == [
        "Zo\u00eb",
        "Zo\u00eb 2",
        "Zoe",
    ]


def test_a_name_that_looks_like_one_of_the_password_file_is_not_free(ctx):
    assert add_person(ctx.db, "\u0415\u0443\u0435", ["Eye"]).name == "\u0415\u0443\u0435 2"  # Cyrillic


def test_the_number_behind_the_longest_name_leaves_it_usable(ctx):
    names = [add_person(ctx.db, "x" * 60).name for _ in range(2)]
    assert names == ["x" * 60, "x" * 58 + " 2"]


def test_a_visitor_cannot_label_under_the_name_of_who_joined(ctx, handle_event_of):
    add_person(ctx.db, "Ann")
    with pytest.raises(LabelError, match="no usable name"):
        ctx.require_annotator("Ann")
    handle_event_of(FakeRequest(ctx.access, ctx.access.cookie_value(Visitor(Role.LABELLER, "Ann"))))
    assert ctx.require_annotator("somebody else") == "Ann"


@pytest.mark.parametrize("role", Role)
def test_each_role_may_do_what_the_roles_below_may(ctx, handle_event_of, role):
    add_person(ctx.db, "Ann")
    handle_event_of(FakeRequest(ctx.access, ctx.access.cookie_value(Visitor(role, "Ann"))))
    for needed, ask in ((Role.LABELLER, ctx.require_labeller), (Role.OPERATOR, ctx.require_operator)):
        if role.at_least(needed):
            ask()
        else:
            with pytest.raises(NotAllowedError, match=r"join code|operator's link"):
                ask()


def test_a_viewer_is_shown_no_pair_and_how_to_join(ctx, handle_event_of):
    handle_event_of(FakeRequest(ctx.access))
    shown = label.state(ctx, "visitor-1")
    assert shown["pair"] is None
    assert "join code" in shown["waiting_text"]
    assert shown["you"] == {"name": "", "role": "viewer"}


def test_no_event_reaches_the_server_but_those_of_programs(ctx, in_loop):
    """They check the role themselves; the page sends requests, whose roles `Requests` checks."""
    page = in_loop(lambda: build_page(ctx))
    handlers = [event.fn.__name__ for event in page.fns.values() if event.fn is not None]
    assert sorted(handlers) == ["next_pair", "status", "submit_vote"]
    assert len(page.fns) > len(handlers)


def test_only_a_multi_user_lab_identifies_visitors(ctx):
    assert "auth_dependency" not in launch_options(Context(ctx.home, ctx.db))
    ask = launch_options(ctx)["auth_dependency"]
    cookie = ctx.access.cookie_value(Visitor(Role.LABELLER, add_person(ctx.db, "Ann").name))
    assert asyncio.run(ask(FakeRequest(ctx.access, cookie))) == "labeller:Ann"
    assert asyncio.run(ask(FakeRequest(ctx.access))) == "viewer:"


def test_after_a_minute_the_right_code_opens_again(web, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for _ in range(failed_attempts.MAX_FAILURES_PER_MINUTE):
        web.post("/join", data={"code": "GUESS1", "name": "Ann"})
    now[0] += 59
    assert web.post("/join", data={"code": "ABC234", "name": "Ann"}).status_code == 429
    now[0] += 1
    assert web.post("/join", data={"code": "ABC234", "name": "Ann"}).status_code == 303


def test_an_empty_secret_is_never_accepted():
    assert secrets_equal("sesame", "sesame")
    assert not secrets_equal("", "")
    assert not secrets_equal("sesam", "sesame")


def test_form_input_is_escaped_when_shown_again(web):
    """The form keeps the entered name and shows the error message."""
    answer = web.post("/join", data={"code": "WRONG1", "name": '"><img src=x>'})
    assert 'value="&quot;&gt;&lt;img src=x&gt;"' in answer.text
    assert "<img" not in answer.text
    assert '<p role="alert">&lt;b&gt;no&lt;/b&gt;</p>' in join_form_page(error_message="<b>no</b>").body.decode()
