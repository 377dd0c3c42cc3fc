"""No request waits for the database or the disk in the thread that answers everybody."""

import asyncio

import pytest
from gradio.routes import App
from starlette.routing import Route
from starlette.testclient import TestClient

from rlhf_lab.common.records import Role
from rlhf_lab.store.annotators import add_person, joined_at
from rlhf_lab.ui.auth.password_file import PasswordEntry
from rlhf_lab.ui.auth.visitors import Visitor
from rlhf_lab.ui.middleware import UPLOAD_PATH
from rlhf_lab.ui.page import build_page, launch_options
from rlhf_lab.ui.scripts import PLOTLY_ADDRESS

FORMS = [
    ("/join", {"code": "ABC234", "name": "Bob"}), ("/join", {"code": "ABC234", "name": "judge:x"}), ("/join", {"code": "X"}),
    ("/enter", {"name": "Eve", "password": "right"}), ("/enter", {"name": "Eve", "password": "wrong"}), ("/enter", {"key": "s"}),
    ("/leave", {}),
]  # fmt: skip
JSON = [
    ("/lab-api/label/opened", {}), ("/lab-api/header/status", {}), ("/first", {}), ("/closed", {}),
    ("/api/next_pair", {"name": "t", "code": "ABC234"}), ("/gradio_api/run/next_pair", {"data": ["t", "ABC234"]}),
    ("/api/submit_vote", {"name": "t", "pair_id": 1, "choice": "left", "uuid": "u", "code": "ABC234"}),
    ("/gradio_api/reset", {"event_id": "x"}), ("/gradio_api/cancel", {"session_hash": "x", "fn_index": 0, "event_id": "x"}),
]  # fmt: skip
PAGES = [
    "/", "/config", "/robots.txt", "/theme.css", "/manifest.json", "/gradio_api/info", "/gradio_api/file=x",
    "/gradio_api/openapi.json", "/gradio_api/startup-events", "/assets/x", "/lab-assets/x/y.js", "/join", "/enter",
    "/enter?key=s", "/leave", "/api/status", f"/{PLOTLY_ADDRESS}",
]  # fmt: skip


@pytest.fixture
def lab(ctx, monkeypatch):
    monkeypatch.setenv("RLHF_LAB_JOIN_CODE", "ABC234")
    monkeypatch.setenv("RLHF_LAB_OPERATOR_SECRET", "s")
    entries = {"Eve": PasswordEntry("Eve", Role.LABELLER, "right")}
    lab = type(ctx).open(ctx.home)
    yield lab.as_multi_user(open_to_all=True, password_entries=entries)
    lab.db.close()


@pytest.fixture
def app(lab, in_loop, monkeypatch):
    """The app that `launch` serves, with all its middleware."""
    monkeypatch.setattr("mimetypes.add_type", lambda *_: None)  # Gradio changes the table of the process
    options = launch_options(lab)

    def create():
        page = build_page(lab)
        page.theme, page.max_file_size = options["theme"], None
        page.css_paths = page.head_paths = []
        page._set_html_css_theme_variables()
        page.config = page.get_config_file()
        return App.create_app(page, app_kwargs=options["app_kwargs"], auth_dependency=options["auth_dependency"])

    created = in_loop(create)

    async def app(scope, receive, send):
        scope.pop("extensions", None)  # of the test client, for which templates send messages that no server gets
        await created(scope, receive, send)

    return app


def cookies_of(lab, role):
    if role is None:
        return {}
    name = "operator" if role is Role.OPERATOR else add_person(lab.db, "Ann").name
    return {lab.access.login_cookie_name: lab.access.cookie_value(Visitor(role, name))}


@pytest.mark.parametrize("role", [None, Role.LABELLER, Role.OPERATOR])
def test_no_route_blocks_the_event_loop(lab, app, blocking_calls, role):
    web = TestClient(app, base_url="http://lab.example", follow_redirects=False)
    cookies, asked = cookies_of(lab, role), set()

    def ask(method, path, **body):
        web.cookies = cookies
        asked.add((method, path.partition("?")[0]))
        statuses.append((path, web.request(method, path, **body).status_code))

    statuses = []
    for path in PAGES:
        ask("GET", path)
    for path, body in JSON:
        ask("POST", path, json=body)
    ask("POST", UPLOAD_PATH, files=[("files", ("a.csv", b"x"))])
    for path, fields in FORMS:
        ask("POST", path, data=fields)
    own = [route for route in launch_options(lab)["app_kwargs"]["routes"] if isinstance(route, Route)]
    missing = {
        (method, route.path) for route in own for method in route.methods - {"HEAD"}
        if not any(method == was and route.path_regex.match(path) for was, path in asked)
    }  # fmt: skip
    assert missing == set(), "Ask for the new route in this test."
    assert {status for _, status in statuses} == {200, 204, 303, 400, 403, 404}, statuses
    assert blocking_calls == []


def test_a_call_in_the_event_loop_is_noticed(lab, blocking_calls):
    async def read():
        return joined_at(lab.db, "Ann")

    assert joined_at(lab.db, "Ann") is None
    assert blocking_calls == []
    assert asyncio.run(read()) is None
    assert len(blocking_calls) == 1
