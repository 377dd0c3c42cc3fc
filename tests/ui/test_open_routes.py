"""Of the routes of the running app, only those of an allow-list and the lab's own are reached."""

import re
from dataclasses import replace

import gradio as gr
import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient, WebSocketDenialResponse

from rlhf_lab.ui.middleware import RouteGuard
from rlhf_lab.ui.page import launch_options

#: All of Gradio that is open, of the version of requirements.txt.
OPEN = {
    "/", "/config", "/config/", "/theme.css", "/robots.txt", "/manifest.json", "/favicon.ico", "/pwa_icon", "/pwa_icon/{size}",
    "/assets/{path}", "/static/{path}",
    *(f"/gradio_api/{path}" for path in (
        "info", "info/", "openapi.json", "app_id", "app_id/", "theme.css", "startup-events", "heartbeat/{session_hash}", "reset",
        "reset/", "cancel", "run/{api_name}", "run/{api_name}/", "api/{api_name}", "api/{api_name}/", "call/{api_name}",
        "call/{api_name}/", "call/v2/{api_name}", "call/v2/{api_name}/", "call/{api_name}/{event_id}", "queue/join",
        "queue/data", "upload", "upload_progress",
    )),
}  # fmt: skip

#: All of Gradio that is closed: what edits the program, fetches from elsewhere, records, shows other pages, or is not needed.
CLOSED = {
    "/login", "/logout", "/openapi.json", "/svelte/{path}", "/monitoring", "/monitoring/summary", "/monitoring/{key}",
    *(f"/gradio_api/{path}" for path in (
        "call/v2/{api_name}/{event_id}", "component_server", "custom_component/{id}/{environment}/{type}/{file_name}",
        "deep_link", "dev/reload", "file/{path}", "file={path_or_url}", "login_check", "process_recording",
        "proxy={url_path}", "queue/status", "runs",
        "run-history/buckets", "run-history/connect", "run-history/records",
        "run-history/records/{endpoint}/{record_id}/assets/{asset_id}", "stream/{event_id}", "stream/{event_id}/close",
        "stream/{session_hash}/{run}/{component_id}/playlist-file", "stream/{session_hash}/{run}/{component_id}/playlist.m3u8",
        "stream/{session_hash}/{run}/{component_id}/{segment_id}.{ext}", "token", "user", "undo-vibe-edit", "vibe-code",
        "vibe-edit", "vibe-starter-queries",
    )),
}  # fmt: skip


@pytest.fixture
def lab(ctx):
    """The routes and the guard of a lab of several people, in front of an app that replies to everything."""
    options = launch_options(replace(ctx, operator_secret="s").as_multi_user(open_to_all=False))
    guards = [entry for entry in options["app_kwargs"]["middleware"] if entry.cls is RouteGuard]
    return options["app_kwargs"]["routes"], TestClient(RouteGuard(PlainTextResponse("in"), **guards[0].kwargs))


def is_open(client, path):
    """Whether GET or POST reaches the app; both are refused with 404 otherwise."""
    replies = {(reply.status_code, reply.text) for reply in (client.get(path), client.post(path, json={}))}
    assert replies in ({(200, "in")}, {(404, "There is nothing at this address.\n")})
    return replies == {(200, "in")}


def page_app(routes=()):
    """Gradio's app with these routes added."""
    with gr.Blocks() as page:
        gr.Button("x").click(lambda: None, api_name="press")
    return gr.routes.App.create_app(page, app_kwargs={"routes": list(routes)})


def guarded_page():
    return TestClient(RouteGuard(page_app(), ()))


def running_paths(routes):
    """The paths of all routes of Gradio's app with these routes added."""
    app = page_app(routes)
    paths = {*app.openapi()["paths"], *(route.path for route in app.routes if hasattr(route, "path"))}
    return {path.replace(":path}", "}") for path in paths}


def test_every_route_is_closed_that_is_not_listed(lab, in_loop):
    routes, client = lab
    paths, own = in_loop(lambda: running_paths(routes)), {route.path.replace(":path}", "}") for route in routes}
    assert "/gradio_api/dev/reload" in paths
    opened = {path for path in paths if is_open(client, re.sub(r"\{[^}]*\}", "x", path))}
    assert own <= opened
    assert opened - own == OPEN
    assert paths >= OPEN
    assert {path.rstrip("/") for path in paths - opened} == CLOSED, (
        "Decide about Gradio's new routes; until then they are closed."
    )


@pytest.mark.parametrize(
    "path",
    [
        "/docs", "/openapi.json", "/gradio_api/", "/gradio_api/next/version", "/x", "/config/x", "/login", "/gradio_api/file/x",
        "/gradio_api//config", "/gradio_api/run/a/b", "/api/vote", "/gradio_api/proxy=http://10.0.0.1/", "/%0aconfig",
    ],
)  # fmt: skip
def test_a_path_that_nobody_listed_is_closed(lab, path):
    assert not is_open(lab[1], path)


@pytest.mark.parametrize(
    "address",
    [
        "http://203.0.113.9/x.png", "https://evil.example/x.html", "http:%2F%2Fevil.example/x.png", "HTTP://evil.example/x",
        "http:%252F%252Fevil.example/x", "%20http://evil.example/", "ftp://evil.example/x", "data:text/html,x", "x.png", "..%2Fx",
        "h", "hf://x/y", "%0ahttp://evil.example/x",
    ],
)  # fmt: skip
def test_addresses_are_not_fetched(lab, address):
    """Gradio fetches an address that it gets in place of a path, and replies with what comes, as a page of the lab."""
    assert not is_open(lab[1], f"/gradio_api/file={address}")


@pytest.mark.parametrize("path", ["/tmp/gradio/plot.js", "C:/Users/ann/plot.js", "C:%5CUsers%5Cann%5Cplot.js"])
def test_local_files_are_open(lab, path):
    assert is_open(lab[1], f"/gradio_api/file={path}?v=1")


def test_a_part_of_a_file_does_not_repeat_the_request(in_loop, tmp_path):
    """Gradio would send the headers of the request, such as cookies, back as those of the response."""
    file = tmp_path / "x.js"
    file.write_text("0123456789")
    gr.set_static_paths([file])
    reply = in_loop(guarded_page).get(f"/gradio_api/file={file}", headers={"range": "bytes=2-4", "cookie": "a=secret"})
    assert (reply.status_code, reply.text) == (200, "0123456789")
    assert "secret" not in str(reply.headers)


@pytest.mark.parametrize("query", ["", "?all_endpoints=true", "?page=x"])
def test_the_host_of_the_first_request_is_not_told_to_others(in_loop, query):
    client = in_loop(guarded_page)
    for host in ("evil.example", "lab.example"):
        text = client.get(f"/gradio_api/info{query}", headers={"host": host}).text
        assert '"/press"' in text
    assert "lab.example" in text
    assert "evil.example" not in text


def test_no_websocket_is_open(lab):
    with pytest.raises(WebSocketDenialResponse) as denial, lab[1].websocket_connect("/config"):
        pass
    assert denial.value.status_code == 404
