"""Sessions that were ended by logging out stay ended, whatever other visitors do."""

import json
import time

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from rlhf_lab.common.records import Role
from rlhf_lab.ui.auth.ended_sessions import EndedSessions
from rlhf_lab.ui.auth.login_routes import login_routes
from rlhf_lab.ui.auth.password_file import PasswordEntry
from rlhf_lab.ui.auth.visitors import Visitor, multi_user_access

MONTH_S = 30 * 86_400.0
OPERATOR, ANN = Visitor(Role.OPERATOR, "operator"), Visitor(Role.LABELLER, "Ann")


class Request:
    def __init__(self, access, cookie):
        self.headers = {"host": "lab.example"}
        self.cookies = {access.login_cookie_name: cookie}


@pytest.fixture
def clock(monkeypatch):
    now = [1_000_000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    return now


@pytest.fixture
def access(tmp_path):
    entries = {"Ann": PasswordEntry("Ann", Role.LABELLER, "right")}
    return multi_user_access(tmp_path, open_to_all=True, password_entries=entries)


@pytest.fixture
def web(ctx, access):
    app = Starlette(routes=login_routes(ctx.db, access))
    return TestClient(app, base_url="http://lab.example", follow_redirects=False)


def listed(home):
    file = home / "ended_sessions.json"
    return json.loads(file.read_text()) if file.exists() else {}


def role_of(access, cookie):
    return access.visitor(Request(access, cookie)).role


@pytest.mark.parametrize("name", ["", "visitor-0123456789ab"])
def test_a_page_cookie_ends_no_session(access, web, tmp_path, name):
    web.cookies = {access.login_cookie_name: access.cookie_value(Visitor(Role.VIEWER, name))}
    assert web.post("/leave").status_code == 303
    assert listed(tmp_path) == {}


@pytest.mark.parametrize(
    "visitor",
    [OPERATOR, ANN, Visitor(Role.OPERATOR, "@me"), Visitor(Role.LABELLER, "Bob"), Visitor(Role.LABELLER, "visitor-1")],
)
def test_every_login_session_is_listed(access, web, tmp_path, visitor):
    web.cookies = {access.login_cookie_name: access.cookie_value(visitor)}
    web.post("/leave")
    (key,) = listed(tmp_path)
    assert key[16:] == f" {visitor.name}"


def test_log_outs_of_others_never_restore_a_session(access, web, tmp_path):
    copied = access.cookie_value(OPERATOR)
    access.end_session(Request(access, copied))
    others = [access.cookie_value(ANN) for _ in range(250)]
    for cookie in others:
        access.end_session(Request(access, cookie))
    assert len(listed(tmp_path)) <= 101
    restarted = multi_user_access(tmp_path, open_to_all=False, password_entries=access.password_entries)
    for lab in (access, restarted):
        assert [role_of(lab, cookie) for cookie in (copied, *others)] == [lab.default_role] * 251


def test_the_101st_log_out_ends_all_sessions_of_its_name(clock, tmp_path):
    sessions = EndedSessions(tmp_path / "list.json")
    for i in range(100):
        sessions.add(f"{i}", "Ann", MONTH_S)
    assert not sessions.has("open", "Ann", clock[0])
    clock[0] += 10.0
    sessions.add("100", "Ann", MONTH_S)
    assert json.loads((tmp_path / "list.json").read_text()) == {"* Ann": clock[0]}
    assert [sessions.has(f"{i}", "Ann", clock[0] - 10.0) for i in (0, 99, 100)] == [True] * 3
    assert sessions.has("open", "Ann", clock[0])
    assert not sessions.has("later", "Ann", clock[0] + 1.0)
    assert not any(sessions.has("open", name, clock[0] - 10.0) for name in ("Bob", "Mary Ann", ""))


def test_names_that_end_alike_are_counted_apart(clock):
    sessions = EndedSessions()
    for i in range(100):
        sessions.add(f"{i}", "Mary Ann", MONTH_S)
    sessions.add("x", "Ann", MONTH_S)
    assert not sessions.has("open", "Mary Ann", 0.0)
    assert not sessions.has("open", "Ann", 0.0)


def test_a_session_is_listed_until_its_cookie_has_expired(clock, tmp_path):
    sessions = EndedSessions(tmp_path / "list.json")
    sessions.add("a", "Ann", MONTH_S)
    clock[0] += MONTH_S
    sessions.add("b", "Bob", MONTH_S)
    assert sessions.has("a", "Ann", 0.0)
    clock[0] += 1.0
    sessions.add("b", "Bob", MONTH_S)
    assert json.loads((tmp_path / "list.json").read_text()) == {"b Bob": clock[0]}


def test_a_list_of_an_earlier_version_is_used(clock, tmp_path):
    file = tmp_path / "list.json"
    file.write_text(json.dumps({"0123456789abcdef": clock[0]}))
    sessions = EndedSessions(file)
    sessions.add("b", "Bob", MONTH_S)
    assert sessions.has("0123456789abcdef", "Ann", clock[0])
    assert not sessions.has("0123456789abcdee", "Ann", clock[0])
