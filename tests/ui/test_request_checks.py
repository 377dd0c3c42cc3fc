"""Invalid arguments get a 4xx reply or an {"error"}, and one line in the log."""

import json
from pathlib import Path
from types import SimpleNamespace

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

from rlhf_lab.ui.request_checks import BadRequestError, RequestChecks, check_call, parse_json

JOIN = "/gradio_api/queue/join"
GOOD = {"data": [], "fn_index": 1, "session_hash": "s"}


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
    reply = post(web, JOIN, json.dumps(GOOD))
    assert (reply.status_code, reply.json()) == (200, GOOD)
    assert caplog.records == []


@pytest.mark.parametrize(
    "data",
    [b'"\\ud800"', b'{"\\udfff": 1}', b"[" * 60 + b"]" * 60, b"[" * 9000 + b"]" * 9000, b"NaN", b"Infinity", b"1e999",
     b"9" * 30, b"9" * 6000, b'"\xff"', b"", b"{"],
    ids=lambda data: repr(data[:12]),
)  # fmt: skip
def test_json_that_later_code_cannot_use_gets_400_and_one_line(web, caplog, data):
    reply = post(web, JOIN, b'{"data": ' + data + b', "fn_index": 1}')
    assert reply.status_code == 400
    assert reply.json()["error"]
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"[]," * 300_000 + b"0]", b"[" + b"1," * 450_000 + b"1]", b'{"a":' * 20_000, b'["a\\",' + b"{}," * 200_000 + b"0]",
        b'"\\"' + b'\\"' * 400_000, b'"' * 900_000, b"\\" * 900_000,
    ],
    ids=lambda body: repr(body[:12]),
)  # fmt: skip
def test_a_long_structure_is_refused_before_it_is_parsed(monkeypatch, body):
    """By its commas and brackets outside of strings; or it is no JSON, as the parser finds at once."""
    parsed = []
    monkeypatch.setattr("rlhf_lab.ui.request_checks.check_value", parsed.append)
    with pytest.raises(BadRequestError):
        parse_json(body)
    assert parsed == []


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text(alphabet='a,[]{}":\\\n é', max_size=30),
        lambda inner: (
            st.lists(inner, max_size=5) | st.dictionaries(st.text(alphabet='a,[]"\\', max_size=5), inner, max_size=5)
        ),
    )
)
def test_contents_of_strings_do_not_count(value):
    limit = json.dumps([value, "," * 20_000, "[" * 20_000, '\\"' * 6_000, "{" * 20_000])
    assert parse_json(limit.encode())[0] == value


def test_a_request_is_counted_before_its_body_is_read():
    counted = []

    async def app(*_):
        raise AssertionError

    def count(request, act):
        counted.append(act)
        if len(counted) > 2:
            raise BadRequestError("Too many.", 429, 5)

    client = TestClient(RequestChecks(app, count))
    statuses = [client.post("/lab-api/label/vote", content=b"{", headers={"content-type": "application/json"}).status_code
                for _ in range(4)]  # fmt: skip
    assert statuses == [400, 400, 429, 429]
    assert counted == ["label/vote"] * 4


def scope_of(event, path=JOIN):
    """The scope of a request to a page with this event."""
    return {"path": path, "app": SimpleNamespace(blocks=SimpleNamespace(fns={0: event}))}


def vote():
    pass


VOTE = SimpleNamespace(api_name="vote", inputs=["a", "b"], fn=vote)


@pytest.mark.parametrize("call", [{"fn_index": value} for value in ([1], {"a": 1}, "0", True, 1.5)]
                         + [{"session_hash": 1}, {"session_hash": "x" * 101}, {"trigger_id": "x"}, {"data": "x"},
                            {"batched": True}], ids=repr)  # fmt: skip
def test_a_field_of_another_type_is_refused_by_its_name(call):
    with pytest.raises(BadRequestError, match=f"no usable {next(iter(call))}") as caught:
        check_call(scope_of(VOTE), {"data": [1, 2], "fn_index": 0} | call)
    assert caught.value.status == 422


@pytest.mark.parametrize("body", [[1], 1, "x", None])
def test_a_body_that_is_no_object_gets_422(body):
    with pytest.raises(BadRequestError, match="no usable body") as caught:
        check_call(scope_of(VOTE), body)
    assert caught.value.status == 422


def test_an_event_that_the_browser_handles_is_no_endpoint():
    event = SimpleNamespace(api_name="fill_fields", inputs=[], fn=None)
    for path in (JOIN, "/gradio_api/run/fill_fields"):
        with pytest.raises(BadRequestError, match="no such endpoint") as caught:
            check_call(scope_of(event, path), {"data": [], "fn_index": 0})
        assert caught.value.status == 404


@pytest.mark.parametrize(
    "path", ["/gradio_api/run/vote", "/gradio_api/call/vote", "/gradio_api/queue/join", "/gradio_api/queue/join/"]
)
def test_an_event_gets_as_many_values_as_it_takes_on_every_way(path):
    """Otherwise Gradio prints the values, line breaks included."""
    scope = scope_of(VOTE, path)
    assert check_call(scope, {"data": [1, 2], "fn_index": 0, "session_hash": "s"}) == "vote"
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
    scope = scope_of(SimpleNamespace(api_name="vote", inputs=["a"], fn=vote), "/gradio_api/run/vote")
    with pytest.raises(BadRequestError, match="not sent to the lab"):
        check_call(scope, {"data": [None]} | call)
    uploaded = {"path": str(Path(get_upload_folder()) / "ab12" / "v.csv")}
    check_call(scope, {"data": [None], "event_data": uploaded})


@pytest.mark.parametrize("shape", ['{"jobs": [%s]}', '{"a": {"b": [%s]}}', "[%s]", "[[[%s]]]"])
def test_a_request_has_at_most_ten_thousand_names_and_values(shape):
    """Otherwise one body of a megabyte with 450,000 wrong values takes seconds in the process that answers everybody."""
    others = {'{"jobs": [%s]}': 3, '{"a": {"b": [%s]}}': 5, "[%s]": 1, "[[[%s]]]": 3}[shape]
    longest = 10_000 - others
    parse_json((shape % ",".join(["1"] * longest)).encode())
    with pytest.raises(BadRequestError, match="more than 10,000 values"):
        parse_json((shape % ",".join(["1"] * (longest + 1))).encode())


def test_names_count_as_values():
    parse_json(json.dumps({f"{number}": 1 for number in range(4_999)}).encode())
    with pytest.raises(BadRequestError, match="more than 10,000 values"):
        parse_json(json.dumps({f"{number}": 1 for number in range(5_000)}).encode())
