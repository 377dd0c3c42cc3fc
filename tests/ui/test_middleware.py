"""The request guard: the host names of a local lab, and the origins that may send requests."""

import re
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from rlhf_lab.errors import ConfigError
from rlhf_lab.ui.middleware import UPLOAD_PATH, FrameGuard, RequestGuard, folder_size, frame_origins, hostname
from rlhf_lab.ui.page import launch_options
from rlhf_lab.ui.scripts import UI
from rlhf_lab.ui.shared import widgets


def reply(request):
    return PlainTextResponse("in")


def client(is_local=True):
    routes = [Route("/", reply), Route(UPLOAD_PATH, reply, methods=["GET", "POST"])]
    return TestClient(Starlette(routes=routes, middleware=[Middleware(RequestGuard, local_only=is_local)]))


@pytest.mark.parametrize(
    ("host", "name"),
    [("localhost:7860", "localhost"), ("127.0.0.1", "127.0.0.1"), ("[::1]:7860", "::1"), ("", "localhost"),
     ("evil.example:7860", "evil.example"), ("localhost.evil.example", "localhost.evil.example")],
)  # fmt: skip
def test_hostname_of_a_request(host, name):
    assert hostname(host) == name


def test_a_local_lab_answers_only_to_local_host_names(tmp_path):
    statuses = {host: client().get("/", headers={"host": host}).status_code
             for host in ("localhost:7860", "127.0.0.1:7860", "[::1]:7860", "evil.example:7860", "192.168.1.5")}  # fmt: skip
    assert statuses == {
        "localhost:7860": 200, "127.0.0.1:7860": 200, "[::1]:7860": 200, "evil.example:7860": 421, "192.168.1.5": 421,
    }  # fmt: skip
    assert "start it with --host" in client().get("/", headers={"host": "evil.example"}).text


def test_a_guarded_lab_answers_to_every_name(tmp_path):
    assert client(is_local=False).get("/", headers={"host": "lab.example"}).text == "in"


@pytest.mark.parametrize(
    ("variables", "policy"),
    [
        ({}, "frame-ancestors 'self'"),
        ({"SPACE_HOST": "a-b.hf.space"}, "frame-ancestors 'self' https://huggingface.co"),
        (
            {"RLHF_LAB_FRAME_ORIGINS": "https://courses.example.org, http://localhost:*"},
            "frame-ancestors 'self' https://courses.example.org http://localhost:*",
        ),
    ],
)
def test_every_response_says_who_may_show_it_in_a_frame(variables, policy):
    """Also refusals of the other checks, and responses with a policy of their own, which holds too."""

    async def own_policy(scope, receive, send):
        await PlainTextResponse("x", headers={"content-security-policy": "default-src 'none'"})(scope, receive, send)

    origins = frame_origins(variables)
    guarded = FrameGuard(RequestGuard(own_policy, local_only=True), origins)
    for host, status, own in (("localhost", 200, ["default-src 'none'"]), ("evil.example", 421, [])):
        answer = TestClient(guarded).get("/", headers={"host": host})
        assert (answer.status_code, answer.headers.get_list("content-security-policy")) == (status, [*own, policy])
        assert answer.headers["x-content-type-options"] == "nosniff"
        answer = TestClient(guarded).get("/gradio_api/file=/x", headers={"host": host})
        assert answer.headers.get_list("content-security-policy") == [*own, f"{policy}; sandbox"]


@pytest.mark.parametrize(
    "origins", ["evil.example", "https://a.example/path", "https://a.example;script-src", "'none'", "*"]
)
def test_what_is_no_origin_cannot_be_put_into_the_policy(origins):
    with pytest.raises(ConfigError, match="is not an origin"):
        frame_origins({"RLHF_LAB_FRAME_ORIGINS": origins})


def test_every_lab_has_the_frame_guard_before_all_other_checks(ctx):
    for lab in (ctx, ctx.as_multi_user(open_to_all=True)):
        assert launch_options(lab)["app_kwargs"]["middleware"][0].cls is FrameGuard


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS"])
@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost:8888",
        "http://127.0.0.1:7860",
        "http://localhost",
        "https://evil.example",
        "null",
        "http://[::1",
        "https://localhost:7860",
        "chrome-extension://localhost:7860",
    ],
)
def test_a_local_lab_refuses_pages_of_other_origins(tmp_path, method, origin):
    """Another port of this computer is the page of another program, which must neither act nor read."""
    headers = {"host": "localhost:7860", "origin": origin, "x-forwarded-host": origin.partition("//")[2]}
    for path in ("/", UPLOAD_PATH):
        answer = client().request(method, path, headers=headers)
        assert (answer.status_code, "another site" in answer.text) == (403, True)


@pytest.mark.parametrize(
    "host", ["localhost:7860", "127.0.0.1:7860", "[::1]:7860", "localhost", "LOCALHOST", "localhost.:7860"]
)
def test_a_local_lab_answers_its_own_pages_and_programs(tmp_path, host):
    for headers in ({"host": host}, {"host": host, "origin": f"http://{host}"}):
        assert client().get("/", headers=headers).text == "in"
        assert client().post(UPLOAD_PATH, headers=headers).text == "in"


def test_a_multi_user_lab_refuses_uploads_of_other_sites(tmp_path):
    """Their other requests are those of a viewer (`Access.visitor`)."""
    headers = {"host": "lab.example", "origin": "https://evil.example"}
    visit = client(is_local=False)
    assert visit.post(UPLOAD_PATH, headers=headers).status_code == 403
    assert visit.get("/", headers=headers).text == "in"
    own = headers | {"origin": "http://lab.example"}
    assert visit.post(UPLOAD_PATH, headers=own).text == "in"


def test_the_size_of_a_folder_is_that_of_its_files(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"x" * 10)
    (tmp_path / "b").write_bytes(b"x")
    assert (folder_size(tmp_path), folder_size(tmp_path / "none")) == (11, 0)


@pytest.mark.parametrize("file", [*sorted(UI.rglob("*.js")), Path(widgets.__file__)], ids=lambda file: file.name)
def test_a_page_below_a_path_asks_its_own_lab(file):
    """An address that begins with "/" is at the root of a proxy, which may be another site."""
    assert not re.search(r"[\"'`(=]/(gradio_api|join|enter)\b", file.read_text(encoding="utf-8"))
