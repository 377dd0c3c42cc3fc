"""Invalid arguments get a 4xx reply or an {"error"}, and one line in the log."""

import asyncio
import json
import logging
from pathlib import Path
from types import SimpleNamespace

import gradio as gr
import pytest
from fastapi import Body, FastAPI
from gradio.utils import get_upload_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from rlhf_lab.ui.request_checks import BadRequestError, RequestChecks, check_call
from rlhf_lab.ui.shared.events import require_role_for_events, server_function

SERVER = "/gradio_api/component_server"
GOOD = {"data": {}, "component_id": 1, "session_hash": "s", "fn_name": "status"}


@pytest.fixture
def web():
    """An application that returns the JSON it gets; /broken fails with a KeyError."""

    async def echo(request):
        return JSONResponse(await request.json())

    async def broken(request):
        return JSONResponse({}["missing"])

    routes = [Route("/gradio_api/broken", broken, methods=["POST"]), Route("/{path:path}", echo, methods=["POST"])]
    with TestClient(Starlette(routes=routes, middleware=[Middleware(RequestChecks)])) as client:
        yield client


def post(web, path, body):
    return web.post(path, content=body, headers={"content-type": "application/json"})


OPTIONAL_BODY = Body(None)


@pytest.fixture(scope="module")
def parsing_framework():
    """FastAPI behind the checks; the reply says whether it parsed the body."""
    app = FastAPI(middleware=[Middleware(RequestChecks)])

    @app.post("/{path:path}")
    def parse(body=OPTIONAL_BODY):
        return {"parsed": isinstance(body, dict)}

    with TestClient(app) as client:
        yield client


TOKENS = st.text("abcdefgjnosxJSON0123456789!#$&^_.+-", min_size=1, max_size=12)
JSON_TYPES = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["application/", "Application/", " application/", "text/", "x/"]),
    st.one_of(st.sampled_from(["json", "JSON", "+json", "problem+json", "json-seq", "jsonx"]), TOKENS),
    st.sampled_from(["", "+json", "+JSON", " "]),
    st.sampled_from(["", ";", "; charset=utf-8", ";a=b", " ; x", ", text/plain", ";application/json"]),
)


@settings(max_examples=150, deadline=None)
@given(content_type=JSON_TYPES, later_type=st.sampled_from([None, "text/plain", "application/json"]))
def test_whatever_media_type_the_framework_parses_is_checked(parsing_framework, content_type, later_type):
    """Elsewhere than below /gradio_api, where the media type does not matter."""
    headers = [("content-type", value) for value in (content_type, later_type) if value is not None]
    parsed = parsing_framework.post("/other", content=b'{"a": 1}', headers=headers).json()["parsed"]
    refused = parsing_framework.post("/other", content=b'{"a": 1e999}', headers=headers).status_code == 400
    assert refused is parsed


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "content_type",
    ["application/ld+json", "APPLICATION/SCIM+JSON;q=1", "text/plain", "image/png", "", "multipart/form-data"],
)
def test_below_gradios_path_the_media_type_does_not_matter(parsing_framework, content_type, method):
    for body in (b'"\\udc00"', b"-1e400", b"[" * 300 + b"]" * 300, b"12" * 40, b"%PDF"):
        answer = parsing_framework.request(
            method, "/gradio_api/reset", content=body, headers={"content-type": content_type}
        )
        assert answer.status_code == 400
        assert answer.json()["error"]


def test_a_reply_that_fails_after_its_beginning_ends_with_one_line_in_the_log(caplog):
    async def stream(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        raise RuntimeError("wrapped") from KeyError("session")

    answer = TestClient(RequestChecks(stream)).get("/gradio_api/queue/data")
    assert (answer.status_code, answer.text) == (200, "a")
    assert [record.getMessage().count("\n") for record in caplog.records] == [0]
    assert "KeyError" in caplog.text


def test_an_ordinary_request_passes_unchanged(web, caplog):
    for path in (SERVER, "/gradio_api/queue/join"):
        reply = post(web, path, json.dumps(GOOD))
        assert (reply.status_code, reply.json()) == (200, GOOD)
    assert caplog.records == []


@pytest.mark.parametrize(
    "data",
    [b'"\\ud800"', b'{"\\udfff": 1}', b"[" * 60 + b"]" * 60, b"[" * 9000 + b"]" * 9000, b"NaN", b"Infinity", b"1e999",
     b"9" * 30, b"9" * 6000, b'"\xff"', b"", b"{"],
    ids=lambda data: repr(data[:12]),
)  # fmt: skip
def test_json_that_later_code_cannot_use_gets_400_and_one_line(web, caplog, data):
    body = b'{"data": ' + data + b', "component_id": 1, "session_hash": "s", "fn_name": "status"}'
    reply = post(web, SERVER, body)
    assert reply.status_code == 400
    assert reply.json()["error"]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("field", ["component_id", "session_hash", "fn_name"])
@pytest.mark.parametrize("value", [[1], {"a": 1}, None, True, 1.5], ids=repr)
def test_a_field_of_another_type_gets_422_and_one_line(web, caplog, field, value):
    reply = post(web, SERVER, json.dumps(GOOD | {field: value}))
    assert reply.status_code == 422
    assert field in reply.json()["error"]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("body", ["[1]", "1", '"x"', "null"])
def test_a_body_that_is_no_object_gets_422(web, body):
    assert post(web, SERVER, body).status_code == 422


@pytest.mark.parametrize(
    "path", ["/gradio_api/run/vote", "/gradio_api/call/vote", "/gradio_api/queue/join", "/gradio_api/queue/join/"]
)
def test_an_event_gets_as_many_values_as_it_takes_on_every_way(path):
    """Otherwise Gradio prints the values, line breaks included."""
    page = SimpleNamespace(fns={0: SimpleNamespace(api_name="vote", inputs=["a", "b"])})
    scope = {"path": path, "app": SimpleNamespace(blocks=page)}
    check_call(scope, {"data": [1, 2], "fn_index": 0, "session_hash": "s"})
    with pytest.raises(BadRequestError, match="takes 2 values, not 1") as caught:
        check_call(scope, {"data": ["x\r\nFORGED"], "fn_index": 0, "session_hash": "s"})
    assert caught.value.status == 422
    with pytest.raises(BadRequestError, match="values, not 0" if "call" in path else "no such endpoint"):
        check_call(scope, {"data": [], "fn_index": 7, "session_hash": "s"})  # /call goes by the name alone


def test_an_error_inside_the_application_gets_400_and_one_line(web, caplog):
    reply = post(web, "/gradio_api/broken", "{}")
    assert reply.status_code == 400
    assert [record.getMessage().count("\n") for record in caplog.records] == [0]
    assert "KeyError" in caplog.text


def test_a_server_function_that_fails_replies_with_an_error_and_logs_one_line(caplog):
    def fail(query):
        return query["annotator"].strip()

    reply = server_function(fail, "status")({"annotator": [1]})
    assert set(reply) == {"error"}
    assert len(caplog.records) == 1
    assert "AttributeError" in caplog.text


def test_an_event_that_fails_shows_a_message_and_logs_one_line(ctx, in_loop, caplog):
    def fail(value):
        return value.strip()

    def build():
        with gr.Blocks(analytics_enabled=False) as page:
            gr.Button().click(fail, gr.Textbox(), None)
        require_role_for_events(page, ctx)
        return page

    (event,) = in_loop(build).fns.values()
    with caplog.at_level(logging.INFO), pytest.raises(gr.Error, match="Reload the page") as failure:
        event.fn([1])
    assert failure.value.print_exception is False
    assert [record.name for record in caplog.records] == ["rlhf_lab.ui.requests"]


@pytest.mark.parametrize(
    ("values", "message", "log_count"),
    [(["b", 1], "not in the list", 0), (["a", -1], "less than minimum", 0), (["a", []], "Reload the page", 1)],
)
def test_a_value_that_a_component_does_not_take_prints_no_traceback(ctx, caplog, values, message, log_count):
    async def process(values):
        with gr.Blocks(analytics_enabled=False) as page:
            gr.Button().click(lambda choice, _: choice, [gr.Dropdown(["a"]), gr.Number(minimum=0)], gr.Textbox())
        require_role_for_events(page, ctx)
        return await page.process_api(block_fn=next(iter(page.fns.values())), inputs=values)

    with pytest.raises(gr.Error, match=message) as failure:
        asyncio.run(process(values))
    assert failure.value.print_exception is False
    assert len(caplog.records) == log_count
    assert asyncio.run(process(["a", 1]))["data"] == ["a"]


@pytest.mark.parametrize(
    ("path", "reply", "status"),
    [("run/vote", {"error": "No."}, 400), ("api/vote", {"error": "No."}, 400), ("run/vote", {"error": None}, 500),
     ("run/vote", ["x"], 500), ("other", {"error": "No."}, 500)],
)  # fmt: skip
def test_an_event_that_is_refused_with_a_reason_has_status_400(path, reply, status):
    async def refuse(_):
        return JSONResponse(reply, 500)

    routes = [Route(f"/gradio_api/{path}", refuse, methods=["POST"])]
    with TestClient(Starlette(routes=routes, middleware=[Middleware(RequestChecks)])) as client:
        answer = post(client, f"/gradio_api/{path}", '{"data": []}')
    assert (answer.status_code, answer.json()) == (status, reply)


FILE = {"path": "/etc/passwd"}


@pytest.mark.parametrize(
    "call",
    [{"event_data": FILE}, {"event_data": {"x": [FILE]}}, {"event_data": FILE | {"meta": {"_type": "gradio.FileData"}}},
     {"event_data": {"path": "/" + "a" * 5000}}, {"event_data": {"path": "a\0b"}}, {"data": [FILE]}, {"data": [[{"x": FILE}]]},
     {"data": [{"path": "http://lab.example/"}]}],
    ids=repr,
)  # fmt: skip
def test_an_event_names_no_files_of_the_lab(call):
    page = SimpleNamespace(fns={0: SimpleNamespace(api_name="vote", inputs=["a"])})
    scope = {"path": "/gradio_api/run/vote", "app": SimpleNamespace(blocks=page)}
    with pytest.raises(BadRequestError, match="not sent to the lab"):
        check_call(scope, {"data": [None]} | call)
    uploaded = {"path": str(Path(get_upload_folder()) / "ab12" / "v.csv")}
    check_call(scope, {"data": [None], "event_data": uploaded})
