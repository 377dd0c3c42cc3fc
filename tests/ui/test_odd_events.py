"""Invalid arguments to every event that Gradio knows, by a viewer and by the operator, and odd paths: no 5xx, at most one line in
the log. No page of another origin may show what any path replies in a frame."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: In a separate process, because Gradio's server leaves sockets and loops open.
PROGRAM = r"""
import io, json, os, sys, time, urllib.error, urllib.request
from pathlib import Path
from rlhf_lab.common.records import Role
from rlhf_lab.jobs import engine_process
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.ui.auth.visitors import Visitor
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.page import build_page, launch_options

engine_process.ensure_engine = lambda db, home: None
ctx = Context.open(Path(sys.argv[1])).as_multi_user(open_to_all=False)
new_project(ctx.db)
page = build_page(ctx)
_, url, _ = page.launch(server_name="127.0.0.1", prevent_thread_lock=True, **launch_options(ctx))
sys.stderr = log = io.StringIO()

FILE = {"path": "/etc/passwd"}
FILE_DATA = FILE | {"meta": {"_type": "gradio.FileData"}}
#: (role, way, value of each input, event data)
CALLS = (
    ("viewer", "run", None, FILE), ("viewer", "queue/join", None, FILE), ("viewer", "run", None, {"secret": 5, "jobs": "x"}),
    ("viewer", "run", [], {"name": "x"}), ("operator", "run", None, {"x": [FILE]}), ("operator", "run", [], {"request_id": "x"}),
    ("operator", "run", FILE_DATA, None),
)
#: The page has no server functions.
SERVER_FUNCTION_CALLS = (
    {}, [1], *({"data": {}, "component_id": number, "session_hash": "s", "fn_name": "get_state"} for number in (1, 10**6, "x")),
)
UNKNOWN_PATHS = (
    "/gradio_api/call/opened/x", "/gradio_api/call/v2/vote/9", "/gradio_api/queue/data?session_hash=none",
    "/gradio_api/queue/data",
    "/gradio_api/stream/s/1/2/playlist.m3u8", "/gradio_api/file=/etc/passwd", "/gradio_api/upload_progress?upload_id=1",
    "/gradio_api/custom_component/a/b/c/d", "/gradio_api/none", "/none/%0d%0aX", "/static/../x", "/config/x",
)
KNOWN_PATHS = (
    "/", "/config", "/join", "/join?code=X", "/enter?key=x", "/enter", "/leave", "/gradio_api/info", "/api/status", "/theme.css",
    "/gradio_api/app_id",
)


def post(path, body, cookie):
    request = urllib.request.Request(
        url.rstrip("/") + "/gradio_api/" + path, json.dumps(body).encode(), {"Content-Type": "application/json", "Cookie": cookie}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


operator_cookie = f"{ctx.access.login_cookie_name}={ctx.access.cookie_value(Visitor(Role.OPERATOR, 'operator'))}"
result = []
for event in page.fns.values():
    for role, way, value, event_data in CALLS:
        body = {
            "data": [value] * len(event.inputs), "event_data": event_data, "fn_index": event._id, "session_hash": role
        }
        log.seek(0), log.truncate()
        path = way if way == "queue/join" else f"run/{event.api_name}"
        status, text = post(path, body, operator_cookie if role == "operator" else "")
        has_file = "passwd" in json.dumps(body)
        result.append((role, event.api_name, way, str(body)[:200], has_file, status, text[:200], log.getvalue()))
for body in SERVER_FUNCTION_CALLS:
    log.seek(0), log.truncate()
    status, text = post("component_server", body, "")
    result.append(("viewer", "component_server", "component_server", str(body), False, status, text[:200], log.getvalue()))
unknown = []
for path in UNKNOWN_PATHS + KNOWN_PATHS:
    log.seek(0), log.truncate()
    try:
        with urllib.request.urlopen(url.rstrip("/") + path, timeout=60) as reply:
            reply.read()
            status, headers = reply.status, reply.headers
    except urllib.error.HTTPError as error:
        status, headers = error.code, error.headers
    unknown.append((path, status, log.getvalue(), headers.get_all("Content-Security-Policy")))
log.seek(0), log.truncate()
time.sleep(1)  # the queue works on what was sent to it
print("RESULT " + json.dumps([result, unknown, log.getvalue()]), flush=True)
os._exit(0)
"""


ENDPOINTS = ("next_pair", "submit_vote", "status")


def test_no_event_fails_or_floods_the_log(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "home")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    calls, unknown, queue_log = json.loads(lines[0].removeprefix("RESULT "))
    assert len(calls) > 30
    for role, name, way, body, has_file, status, text, log in calls:
        call = (role, name, way, body, status, text, log)
        assert status < 500, call
        assert log.count("\n") <= 1, call
        assert "root:" not in text, call
        if name not in ENDPOINTS:
            assert 400 <= status < 500, call
        elif has_file:
            assert (status, "not sent to the lab" in text) == (400, True), call
    for path, status, log, policies in unknown:
        assert (status < 500, log.count("\n") <= 1) == (True, True), (path, status, log)
        assert any(policy.startswith("frame-ancestors 'self'") for policy in policies or []), path
    assert "Traceback" not in queue_log
    refused = {(role, name) for role, name, way, *_, status, _, _ in calls if way == "run" and status == 400}
    assert {("viewer", "next_pair"), ("viewer", "submit_vote"), ("operator", "submit_vote")} <= refused
