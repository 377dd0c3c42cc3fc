"""Limits on request bodies: their length, who may upload, and the total space for uploads."""

import asyncio
import json
from dataclasses import replace
from urllib.parse import quote

import pytest
from gradio.route_utils import upload_fn
from starlette.applications import Starlette
from starlette.formparsers import MultiPartException
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from rlhf_lab.common.records import Role
from rlhf_lab.ui import body_limits
from rlhf_lab.ui.auth.visitors import LOCAL_ACCESS, Access, JoinCode, Visitor
from rlhf_lab.ui.body_limits import BodyLimits
from rlhf_lab.ui.middleware import UPLOAD_PATH, folder_size
from rlhf_lab.ui.page import launch_options
from rlhf_lab.ui.runs.downloads import cache_folder

ACCESS = Access(default_role=Role.VIEWER, key=b"k" * 32, operator_secret="secret", code=JoinCode("ABC234"))
MB = 1_000_000


def cookies(role):
    return {ACCESS.login_cookie_name: ACCESS.cookie_value(Visitor(role, "Ann"))} if role else {}


def client(folder, role=None, access=ACCESS):
    """A small application behind the limits, visited with this role; None: an anonymous viewer of a multi-user lab."""

    async def read_json(request):
        try:
            return PlainTextResponse(f"{len(await request.body())} bytes")
        except Exception:  # as FastAPI does
            return PlainTextResponse("There was an error parsing the body", status_code=400)

    async def read_raw(request):
        return PlainTextResponse(f"{len(await request.body())} bytes")

    async def upload(request):
        try:
            paths, *_ = await upload_fn(request, folder, 5 * MB, None)
        except MultiPartException as error:
            return PlainTextResponse(error.message, status_code=400)
        return JSONResponse([str(path) for path in paths])

    def may_upload(request):
        return access.visitor(request).role is Role.OPERATOR

    routes = [
        Route("/json", read_json, methods=["GET", "POST", "PUT"]),
        Route("/raw", read_raw, methods=["POST"]),
        Route(UPLOAD_PATH, upload, methods=["POST"]),
    ]
    limits = Middleware(BodyLimits, may_upload=may_upload, upload_folder=folder)
    return TestClient(
        Starlette(routes=routes, middleware=[limits]), base_url="http://lab.example", cookies=cookies(role)
    )


def in_chunks(total, size=100_000):
    """A body without a Content-Length."""
    for start in range(0, total, size):
        yield b"x" * min(size, total - start)


def files(count, size):
    return [("files", (f"{i}.csv", bytes([i]) * size)) for i in range(count)]


def test_a_body_up_to_the_limit_is_read(tmp_path):
    for path in ("/json", "/raw"):
        assert client(tmp_path).post(path, content=b"x" * MB).text == "1000000 bytes"
        assert client(tmp_path).post(path, content=in_chunks(MB)).text == "1000000 bytes"


@pytest.mark.parametrize("role", [None, Role.LABELLER, Role.OPERATOR])
@pytest.mark.parametrize("path", ["/json", "/raw"])
def test_a_longer_body_gets_413_with_and_without_a_content_length(tmp_path, path, role):
    visit = client(tmp_path, role)
    for content in (b"x" * (MB + 1), in_chunks(MB + 1)):
        answer = visit.post(path, content=content)
        assert answer.status_code == 413
        assert "1 MB" in answer.text


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_the_limit_holds_for_every_method(tmp_path, method):
    assert client(tmp_path).request(method, "/json", content=in_chunks(MB + 1)).status_code == 413


def test_reading_ends_at_the_limit(tmp_path):
    """Of 50 MB the application takes eleven chunks of 100 kB: the eleventh exceeds the limit."""
    taken, replies = [], []

    async def receive():
        taken.append(100_000)
        return {"type": "http.request", "body": b"x" * 100_000, "more_body": len(taken) < 500}

    async def send(message):
        replies.append(message)

    scope = {"type": "http", "method": "POST", "path": "/raw", "query_string": b"", "root_path": "", "headers": []}
    asyncio.run(client(tmp_path).app(scope, receive, send))
    assert len(taken) == 11
    assert [message.get("status") for message in replies] == [413, None]


def test_a_content_length_that_is_no_number_is_not_believed(tmp_path):
    answer = client(tmp_path).post("/raw", content=in_chunks(MB + 1), headers={"content-length": "many"})
    assert answer.status_code == 413


@pytest.mark.parametrize("multi_user", [False, True])
def test_every_lab_has_the_limits(ctx, multi_user):
    lab = ctx.as_multi_user(open_to_all=False) if multi_user else ctx
    assert BodyLimits in [entry.cls for entry in launch_options(lab)["app_kwargs"]["middleware"]]


@pytest.mark.parametrize("role", [None, Role.VIEWER, Role.LABELLER])
def test_who_may_not_import_cannot_upload(tmp_path, role):
    answer = client(tmp_path, role).post(UPLOAD_PATH, files=files(1, 10))
    assert answer.status_code == 403
    assert "Only the operator" in answer.text
    assert folder_size(tmp_path) == 0


@pytest.mark.parametrize("path", [UPLOAD_PATH + "/", "/lab" + UPLOAD_PATH])
def test_another_spelling_of_the_upload_path_is_an_upload_too(tmp_path, path):
    assert client(tmp_path).post(path, files=files(1, 10)).status_code == 403


def test_the_operator_uploads(tmp_path):
    answer = client(tmp_path, Role.OPERATOR).post(UPLOAD_PATH, files=files(2, 1_500_000))
    assert answer.status_code == 200
    assert len(answer.json()) == 2
    assert folder_size(tmp_path) == 3_000_000


class Sent:
    """A request without cookies, with these headers."""

    def __init__(self, **headers):
        self.cookies, self.headers = {}, {name.replace("_", "-"): value for name, value in headers.items()}


@pytest.mark.parametrize("kind", ["local", "local with a secret", "multi-user"])
def test_a_browser_that_stores_the_operators_secret_sends_it_with_an_upload(ctx, kind):
    lab = replace(ctx, operator_secret="sesame €" if kind == "local with a secret" else None)
    if kind == "multi-user":
        lab = lab.as_multi_user(open_to_all=True)
    routes = {middleware.cls: middleware.kwargs for middleware in launch_options(lab)["app_kwargs"]["middleware"]}
    may_upload = routes[BodyLimits]["may_upload"]
    assert may_upload(Sent(x_lab_operator=quote(lab.operator_secret or "")))
    for wrong in ("", "x", "sesame", quote((lab.operator_secret or "")[:-1]), quote(lab.access.join_code)):
        assert may_upload(Sent(x_lab_operator=wrong)) is (kind == "local"), wrong


@pytest.mark.parametrize("size", [1, 7, 50, 10_000])
@pytest.mark.parametrize("boundary", ["b", "----WebKitFormBoundary7MA4YWxk"])
def test_parts_are_counted_before_they_are_parsed(tmp_path, boundary, size):
    """Also where a boundary is divided between two chunks."""
    part = f'--{boundary}\r\nContent-Disposition: form-data; name="files"; filename="f"\r\n\r\n1,2\r\n'.encode()
    for parts, is_accepted in ((20, True), (21, False), (1001, False)):
        body = part * parts + f"--{boundary}--\r\n".encode()
        counted = body_limits.CountedBody(None, None, MB, lambda _: True, boundary.encode())
        refused = [counted._has_too_many_parts(body[start : start + size]) for start in range(0, len(body), size)]
        assert any(refused) is not is_accepted
    headers = {"content-type": f"multipart/form-data; boundary={boundary}"}
    answer = client(tmp_path, Role.OPERATOR).post(UPLOAD_PATH, content=body, headers=headers)
    assert (answer.status_code, "at most 20 files" in answer.text, folder_size(tmp_path)) == (413, True, 0)


def test_downloads_on_offer_take_no_room_from_uploads(tmp_path, monkeypatch):
    monkeypatch.setattr(body_limits, "MAX_UPLOADED_BYTES", 1000)
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    cache = cache_folder()
    (cache / "ab12").mkdir(parents=True)
    (cache / "ab12" / "backup.zip").write_bytes(b"x" * 5000)
    (tmp_path / "upload").write_bytes(b"x" * 400)
    assert client(tmp_path, Role.OPERATOR).post(UPLOAD_PATH, files=files(1, 100)).status_code == 200
    assert client(tmp_path, Role.OPERATOR).post(UPLOAD_PATH, files=files(1, 500)).status_code == 507


def test_whoever_is_at_this_computer_uploads_to_a_local_lab(tmp_path):
    answer = client(tmp_path, access=LOCAL_ACCESS).post(UPLOAD_PATH, files=files(1, 10))
    assert answer.status_code == 200


def test_files_of_other_paths_are_refused(tmp_path):
    """Gradio's other endpoints would write them to the disk without these checks."""
    answer = client(tmp_path, Role.OPERATOR).post("/raw", files=files(1, 10))
    assert answer.status_code == 415


def test_an_upload_longer_than_a_request_may_be_gets_413_and_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(body_limits, "MAX_UPLOAD_BYTES", 2 * MB)
    answer = client(tmp_path, Role.OPERATOR).post(UPLOAD_PATH, files=files(3, 900_000))
    assert answer.status_code == 413
    assert folder_size(tmp_path) == 0


def test_one_request_with_many_files_cannot_exceed_the_room_that_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(body_limits, "MAX_UPLOADED_BYTES", 2 * MB)
    answer = client(tmp_path, Role.OPERATOR).post(UPLOAD_PATH, files=files(20, 300_000))
    assert answer.status_code == 507
    assert "an hour" in answer.text
    assert folder_size(tmp_path) == 0


def test_concurrent_uploads_share_the_room(tmp_path, monkeypatch):
    """Each alone would fit: the second upload counts what the first has sent so far."""
    monkeypatch.setattr(body_limits, "MAX_UPLOADED_BYTES", 1000)
    room = body_limits.UploadRoom(tmp_path)
    assert room.take(600)
    (tmp_path / "first").write_bytes(b"x" * 600)
    assert not room.take(600)
    assert room.take(400)


def test_room_that_was_freed_meanwhile_is_found_before_an_upload_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(body_limits, "MAX_UPLOADED_BYTES", 1000)
    room = body_limits.UploadRoom(tmp_path)
    (tmp_path / "old").write_bytes(b"x" * 900)
    room.measure()
    (tmp_path / "old").unlink()
    assert room.take(500)


def test_an_upload_that_is_broken_off_leaves_no_file(tmp_path):
    """Gradio would leave its temporary files."""
    boundary = "b"
    start = f'--{boundary}\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\n'.encode()
    messages = iter([
        {"type": "http.request", "body": start + b"x" * 1000, "more_body": True}, {"type": "http.disconnect"},
    ])  # fmt: skip
    cookie = "; ".join(f"{name}={value}" for name, value in cookies(Role.OPERATOR).items())
    scope = {
        "type": "http", "method": "POST", "path": UPLOAD_PATH, "query_string": b"", "root_path": "", "http_version": "1.1",
        "headers": [(b"content-type", f"multipart/form-data; boundary={boundary}".encode()), (b"cookie", cookie.encode()),
                    (b"host", b"lab.example")],
    }  # fmt: skip

    async def receive():
        return next(messages)

    async def send(message):
        pass

    asyncio.run(client(tmp_path, Role.OPERATOR).app(scope, receive, send))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_replies_name_what_to_do(tmp_path):
    answer = client(tmp_path).post("/json", content=json.dumps({"data": "x" * 2 * MB}))
    assert answer.status_code == 413
    assert "Send less" in answer.text


async def answered(limits, parts, *, ends=True, path="/raw"):
    """Send the parts of a body to an application behind the limits that reads it; the status of the reply."""
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    if ends:
        messages.append({"type": "http.request", "body": b"", "more_body": False})
    sent = []

    async def receive():
        if not messages:
            await asyncio.Event().wait()
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}
    await limits(scope, receive, send)
    return sent[0]["status"]


async def read_whole(scope, receive, send):
    while (await receive())["more_body"]:
        pass
    await PlainTextResponse("read")(scope, receive, send)


def test_slow_bodies_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(body_limits, "BODY_S", 0.2)
    limits = BodyLimits(read_whole, lambda _: False, tmp_path)
    assert asyncio.run(answered(limits, [b"x" * MB])) == 200
    assert asyncio.run(answered(limits, [b"x"], ends=False)) == 408
    assert asyncio.run(answered(limits, [], ends=False)) == 408
    assert limits.waiting.count == 0


def test_streams_without_a_body_have_no_time_limit(tmp_path, monkeypatch):
    """Of a request without a body, whose reply waits until the client disconnects."""
    monkeypatch.setattr(body_limits, "BODY_S", 0.0)

    async def stream(scope, receive, send):
        assert (await receive())["type"] == "http.request"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receive(), 0.4)
        await PlainTextResponse("end")(scope, receive, send)

    assert asyncio.run(answered(BodyLimits(stream, lambda _: False, tmp_path), [])) == 200


def test_only_long_bodies_share_the_memory_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(body_limits, "MAX_WAITING_BYTES", 2 * MB)

    async def at_once():
        limits, is_released, waiting = None, asyncio.Event(), []

        async def hold(scope, receive, send):
            while (await receive())["more_body"]:
                pass
            waiting.append(scope)
            await is_released.wait()
            await PlainTextResponse("read")(scope, receive, send)

        limits = BodyLimits(hold, lambda _: False, tmp_path)
        held = [asyncio.create_task(answered(limits, [b"x" * MB])) for _ in range(2)]
        while len(waiting) < 2:
            await asyncio.sleep(0)
        refused = await answered(limits, [b"x" * 60_000])
        short = asyncio.create_task(answered(limits, [b"x" * 50_000]))
        while len(waiting) < 3:
            await asyncio.sleep(0)
        is_released.set()
        statuses = [await task for task in (*held, short)]
        return refused, statuses, await answered(limits, [b"x" * MB])

    assert asyncio.run(at_once()) == (503, [200, 200, 200], 200)
