"""The JSON API for programs: its replies and its errors."""

import json

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from rlhf_lab.common.records import Role
from rlhf_lab.ui import http_api
from rlhf_lab.ui.auth.visitors import Visitor
from rlhf_lab.ui.shared import voting


@pytest.fixture
def client(ctx):
    return TestClient(Starlette(routes=http_api.routes(ctx)))


def call(client, endpoint, **arguments):
    return client.post(f"/api/{endpoint}", json=arguments)


def test_a_program_labels_with_three_requests(ctx, client):
    pair = call(client, "next_pair", name="tool").json()
    assert set(pair) == {"id", "prompt", "left", "right"}
    assert call(client, "next_pair", name="tool").json() == pair
    vote = {"name": "tool", "pair_id": pair["id"], "choice": "left", "uuid": "u1", "strength": "much", "ms": 1200}
    answer = call(client, "submit_vote", **vote).json()
    assert (answer["counted"], answer["uuid"], answer["why"]) == (True, "u1", "")
    assert call(client, "submit_vote", **vote).json() == answer
    again = call(client, "submit_vote", **vote | {"uuid": "u2"}).json()
    assert (again["counted"], again["vote_id"]) == (False, None)
    assert "already voted" in again["why"]
    with ctx.db.read() as conn:
        rows = conn.exec_driver_sql("SELECT annotator, via, strength, response_ms FROM votes").all()
    assert [tuple(row) for row in rows] == [("api:tool", "api", "much", 1200)]
    assert client.get("/api/status").json()["labels"] == 1


def test_figures_that_a_page_shows_follow_the_votes_of_programs(ctx, client):
    ctx.instant_reward.figures(ctx.project.id)  # a page asks
    ctx.instant_reward._wake.clear()
    pair = call(client, "next_pair", name="tool").json()
    assert not ctx.instant_reward._wake.is_set()
    call(client, "submit_vote", name="tool", pair_id=pair["id"], choice="left", uuid="u1")
    assert ctx.instant_reward._wake.is_set()


def test_programs_of_one_address_are_distinguished_by_their_session(client):
    assert call(client, "next_pair", name="tool", session="one").status_code == 200
    refused = call(client, "next_pair", name="tool", session="two")
    assert refused.status_code == 403
    assert "Another client uses the name" in refused.json()["error"]
    assert call(client, "next_pair", name="tool").status_code == 403
    assert call(client, "next_pair", name="tool", session="one").status_code == 200


def test_a_session_that_equals_an_address_or_a_name_is_another_client(ctx, monkeypatch):
    """The name in a cookie and the address of a client are no secrets; a session is chosen by the program."""
    lab = ctx.as_multi_user(open_to_all=True)
    client = TestClient(Starlette(routes=http_api.routes(lab)))
    cookie = lab.access.cookie_value(Visitor(Role.OPERATOR, "Ann"))
    signed_in = {"cookie": f"{lab.access.login_cookie_name}={cookie}"}
    assert client.post("/api/next_pair", json={"name": "hers"}, headers=signed_in).status_code == 200
    assert call(client, "next_pair", name="tool").status_code == 200
    for name, session in (("hers", "Ann"), ("tool", "testclient")):
        assert call(client, "next_pair", name=name, session=session).status_code == 403
    assert client.post("/api/next_pair", json={"name": "hers", "session": "x"}, headers=signed_in).status_code == 200


def test_a_guarded_lab_asks_for_the_join_code(ctx, monkeypatch):
    monkeypatch.setenv("RLHF_LAB_JOIN_CODE", "ABC234")
    client = TestClient(Starlette(routes=http_api.routes(ctx.as_multi_user(open_to_all=False))))
    refused = call(client, "next_pair", name="tool")
    assert (refused.status_code, "join code" in refused.json()["error"]) == (403, True)
    assert call(client, "next_pair", name="tool", code="abc234").json()["id"] is not None


@pytest.mark.parametrize(
    ("endpoint", "arguments", "message"),
    [
        ("next_pair", {"name": 5}, "must be texts"),
        ("next_pair", {"name": ""}, "Pass the name"),
        ("next_pair", {"who": "tool"}, "Unknown: who. There are name, code and session."),
        ("next_pair", ["tool"], "Send a JSON object with name, code."),
        ("next_pair", {"name": "tool", "session": 1}, "`session` must be a text"),
        ("next_pair", {"name": "tool", "session": "x" * 101}, "`session` must be a text"),
        ("next_pair", {"name": "\ud800"}, "lone surrogate"),
        ("next_pair", {"name": "\0"}, "NUL character"),
        ("submit_vote", {"name": "tool", "pair_id": 1, "choice": "tie", "uuid": "u", "note": "x\0"}, "NUL character"),
        ("submit_vote", {"name": "tool", "pair_id": 1}, "Missing: choice, uuid."),
        ("submit_vote", {"name": "tool", "pair_id": 1, "choice": "best", "uuid": "u"},
         "`choice` cannot be used: Input should be 'left', 'right', 'tie', 'both_bad' or 'skip'."),
        ("submit_vote", {"name": "tool", "pair_id": 1, "choice": "tie", "uuid": "u", "ms": "long"}, "`ms` cannot be used"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_used_get_an_error_message(client, endpoint, arguments, message):
    headers = {"content-type": "application/json"}
    reply = client.post(f"/api/{endpoint}", content=json.dumps(arguments), headers=headers)
    assert reply.status_code == 400
    assert message in reply.json()["error"]


def test_only_short_json_is_read(client):
    assert client.post("/api/next_pair", content=b'{"name": "tool"}').status_code == 415
    json_type = {"content-type": "application/json"}
    assert client.post("/api/next_pair", content=b"{" + b" " * 10_000, headers=json_type).status_code == 413
    assert client.post("/api/next_pair", content=b"{name}", headers=json_type).status_code == 400
    assert client.get("/api/next_pair").status_code == 405


def test_an_unexpected_error_is_one_line_in_the_log(client, monkeypatch, caplog):
    def broken(*args, **kwargs):
        raise ZeroDivisionError("no")

    monkeypatch.setattr(voting, "lease_pairs", broken)
    reply = call(client, "next_pair", name="tool")
    assert (reply.status_code, reply.json()) == (
        500,
        {"error": "The lab failed to answer; its log says why. Try again."},
    )
    assert [record.getMessage().split(" at ")[0] for record in caplog.records] == [
        "next_pair failed: ZeroDivisionError"
    ]
