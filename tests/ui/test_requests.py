"""The requests of the page: payloads, roles, errors, revisions, cached replies, and how they travel."""

import json
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import Field
from starlette.applications import Starlette
from starlette.testclient import TestClient
from support.page_requests import requests_of
from typing_extensions import TypedDict

from rlhf_lab.common.records import Role
from rlhf_lab.errors import LabelError
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.ui.context import OPERATOR_HEADER
from rlhf_lab.ui.limits import ANSWER, READ
from rlhf_lab.ui.page import APIS
from rlhf_lab.ui.shared.api import OTHER_PROJECT_MESSAGE, Api, DecimalNumber, Payload, Requests, act_limits

api = Api("shop")
calls_of_stock = []


class Order(Payload):
    item: str
    count: DecimalNumber = Field(default=1, title="How many", ge=0.5, le=9)


class Receipt(TypedDict):
    item: str
    count: float


@api.action(Order, limit=ANSWER)
def order(ctx, payload: Order) -> Receipt:
    if payload.item == "moon":
        raise LabelError("The moon is sold out.")
    if payload.item == "bug":
        raise ZeroDivisionError("a programming error")
    return {"item": payload.item, "count": "many" if payload.item == "wrong" else payload.count}


@api.action(Payload, role=Role.OPERATOR)
def close(ctx, payload: Payload) -> None:
    return None


@api.read(Payload)
def greeting(ctx, payload: Payload) -> str:
    return f"Hello {payload.annotator}"


@api.read(Order, cached_s=60)
def stock(ctx, payload: Order) -> int:
    calls_of_stock.append(payload.item)
    return len(calls_of_stock)


class Move(Payload):
    project: int


@api.action(Move)
def move(ctx, payload: Move) -> int:
    return payload.project


@pytest.fixture
def shop(ctx):
    calls_of_stock.clear()
    return requests_of(ctx, api)


@pytest.fixture
def client(ctx):
    """A client of the requests by HTTP, of a lab that others reach."""
    shared = ctx.as_multi_user(open_to_all=True)
    with TestClient(Starlette(routes=[Requests(shared, [api]).route()])) as client:
        client.secret = shared.operator_secret
        yield client


def test_a_reply_and_a_number_with_a_decimal_comma(shop):
    assert shop.order({"item": "star", "count": "2,5", "unknown": 1}) == {"item": "star", "count": 2.5}
    assert shop.close() is None


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ({"item": "moon"}, {"error": "The moon is sold out."}),
        ({}, {"error": "The page sent no usable item. Reload it and try again."}),
        ([1], {"error": "The page sent no usable item. Reload it and try again."}),
        ({"item": "a", "count": "10"}, {"error": 'How many = "10": give a number from 0.5 to 9.', "field": "count"}),
        ({"item": "a", "count": "x"}, {"error": 'How many = "x": give a number from 0.5 to 9.', "field": "count"}),
    ],
)
def test_errors_are_sentences_that_name_the_field(shop, payload, error):
    assert shop.order(payload) == error


@pytest.mark.parametrize("item", ["bug", "wrong"])
def test_an_unexpected_error_or_reply_is_one_line_in_the_log(shop, caplog, item):
    with caplog.at_level(logging.ERROR, "rlhf_lab.ui.requests"):
        assert "cannot process" in shop.order({"item": item})["error"]
    (record,) = caplog.records
    assert record.message.startswith("shop/order failed: ")
    assert "\n" not in record.message


def test_a_read_that_has_not_changed_is_not_sent_again(shop, client):
    answer = client.post("/lab-api/shop/greeting", json={"annotator": "Ann"}).json()
    assert answer["reply"] == "Hello Ann"
    again = {"X-Lab-Revision": answer["revision"]}
    assert client.post("/lab-api/shop/greeting", json={"annotator": "Ann"}, headers=again).json() == {"unchanged": True}
    changed = client.post("/lab-api/shop/greeting", json={"annotator": "Bob"}, headers=again).json()
    assert changed["reply"] == "Hello Bob"
    assert "revision" not in client.post("/lab-api/shop/order", json={"item": "a"}).json()


def test_a_cached_reply_is_computed_once_for_all_visitors_with_the_same_payload(shop):
    assert [shop.stock({"item": "a", "annotator": name}) for name in ("Ann", "Bob")] == [1, 1]
    assert shop.stock({"item": "b"}) == 2
    assert calls_of_stock == ["a", "b"]


def test_roles(ctx, shop):
    assert "error" not in shop.order({"item": "a"})  # a local lab: the visitor is the operator
    viewer = requests_of(ctx.as_multi_user(open_to_all=False), api)
    assert "join code" in viewer.order({"item": "a"})["error"]
    assert "join code" in viewer.order({})["error"]  # before the payload is read
    assert viewer.greeting({"annotator": "Eve"}) == "Hello Eve"
    labeller = requests_of(ctx.as_multi_user(open_to_all=True), api)
    assert labeller.order({"item": "a"}) == {"item": "a", "count": 1}
    assert "Only the operator" in labeller.close()["error"]


def test_the_operators_secret_is_sent_in_a_header(client, ctx):
    def close_with(secret):
        return client.post("/lab-api/shop/close", json={}, headers={OPERATOR_HEADER: secret}).json()

    assert close_with(client.secret) == {"reply": None}
    assert "Only the operator" in close_with(client.secret[:-1])["error"]
    viewers = replace(ctx.as_multi_user(open_to_all=False), operator_secret=client.secret)
    with TestClient(
        Starlette(routes=[Requests(viewers, [api]).route()])
    ) as other:  # who has no role gets none by the secret
        reply = other.post("/lab-api/shop/close", json={}, headers={OPERATOR_HEADER: client.secret})
        assert "Only the operator" in reply.json()["error"]


def test_only_json_of_existing_requests_is_read(client):
    assert client.post("/lab-api/shop/sell", json={}).status_code == 404
    assert (
        client.post("/lab-api/shop/greeting", content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
    )
    assert client.get("/lab-api/shop/greeting").status_code == 405


def test_reads_count_together_and_each_action_for_itself(ctx):
    assert act_limits([api]) == {"read": READ, "shop/order": ANSWER, "shop/close": READ, "shop/move": READ}
    requests = Requests(ctx, [api])
    assert [requests.act(name) for name in ("shop/greeting", "shop/order", "GET /")] == ["read", "shop/order", "GET /"]


def test_every_request_of_the_page_declares_what_it_replies():
    endpoints = [endpoint for one in APIS for endpoint in one.endpoints.values()]
    assert endpoints
    for endpoint in endpoints:
        assert endpoint.reply_type not in (dict, dict[str, object]), endpoint.path
        assert "Any]" not in repr(endpoint.reply_type), endpoint.path


def test_the_types_for_javascript_are_current():
    script = Path(__file__).parents[1] / "javascript" / "generate_types.py"
    code = f"import runpy; module = runpy.run_path({str(script)!r}); print(module['generated']() == module['TYPES'].read_text())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n", "run python tests/javascript/generate_types.py"


def test_an_action_of_a_screen_that_shows_another_project_is_refused(ctx, shop):
    shown = ctx.project.id
    assert shop.order({"item": "star", "shown_project": shown}) == {"item": "star", "count": 1}
    new_project(ctx.db, name="second")
    for send, payload in ((shop.order, {"item": "star"}), (shop.close, {})):
        assert send(payload | {"shown_project": shown})["error"] == OTHER_PROJECT_MESSAGE
        assert "error" not in (send(payload) or {})  # the screen shows none
    assert shop.greeting({"annotator": "ann", "shown_project": shown}) == "Hello ann"
    assert shop.move({"project": 7, "shown_project": shown}) == 7  # names the project itself


def test_a_cached_reply_does_not_depend_on_the_shown_project(shop):
    assert [shop.stock({"item": "pen", "shown_project": project}) for project in (None, 1, 2)] == [1, 1, 1]


def test_a_reply_is_json_without_nan(ctx):
    reply = Api("odd")

    @reply.read(Payload)
    def number(ctx, payload: Payload) -> float:
        return float("nan")

    assert json.loads(Requests(ctx, [reply]).answer(reply.endpoints["number"], {}))["reply"] is None
