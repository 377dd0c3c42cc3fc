"""The HTML before Gradio has rendered the page: inline styles and scripts, and the pair that Label will show."""

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import select
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import HTMLResponse, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from rlhf_lab.common.records import Role
from rlhf_lab.store import tables
from rlhf_lab.store.annotators import add_person
from rlhf_lab.store.pair_leases import lease_pair
from rlhf_lab.ui import initial_html
from rlhf_lab.ui.auth.visitors import Visitor
from rlhf_lab.ui.initial_html import BodyInjectionMiddleware, page_routes
from rlhf_lab.ui.label import api as label
from rlhf_lab.ui.page import initial_body_html
from rlhf_lab.ui.shared.presence import Presence

ROOT = Path(__file__).resolve().parents[2]
START = "<style>p { margin: 0 }</style><script>'<body> … é \\\\1'</script>"
PAGE = "<!doctype html><html><head><meta charset='utf-8'></head><body style='margin: 0'>once</body></html>"
WANTED = PAGE.replace("once", f"{START}once")


def post(ctx, payload, path="/first", **more):
    client = TestClient(Starlette(routes=page_routes(ctx)))
    return client.post(path, **({"json": payload} | more))


def app(page=PAGE):
    async def whole(request):
        return HTMLResponse(page)

    async def pieces(request):
        return StreamingResponse(iter([page[:20].encode(), page[20:].encode()]), media_type="text/html")

    middleware = [Middleware(GZipMiddleware, minimum_size=50), Middleware(BodyInjectionMiddleware, html=START)]
    return TestClient(Starlette(routes=[Route("/other", whole), Route("/", whole)], middleware=middleware)), pieces


def test_the_html_is_inserted_only_into_the_page():
    client, _ = app()
    answer = client.get("/")
    assert answer.text == WANTED
    plain = client.get("/", headers={"accept-encoding": "identity"})
    assert int(plain.headers["content-length"]) == len(answer.content)
    assert client.get("/other").text == PAGE


def test_a_page_sent_in_pieces_is_put_together():
    _, pieces = app()
    client = TestClient(
        Starlette(routes=[Route("/", pieces)], middleware=[Middleware(BodyInjectionMiddleware, html=START)])
    )
    assert client.get("/").text == WANTED


def test_our_script_does_not_end_the_element_that_it_is_in():
    start = initial_body_html()
    assert (start.count("</script"), start.count("</style")) == (2, 1)  # before_gradio.js, and the tag of a module
    assert start.index("window.requestAnimationFrame") < start.index("</script") < start.index('type="module"')


#: In a separate process, because Gradio's server leaves sockets and loops open.
SLOW = """
import os, sys
from pathlib import Path
import gradio.networking, httpx
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.page import build_page, launch_options

gradio.networking.url_ok = lambda url: False
ctx = Context.open(Path(sys.argv[1]))
ctx.project
app, url, _ = build_page(ctx).launch(server_name="127.0.0.1", prevent_thread_lock=True, **launch_options(ctx))
print(httpx.get(url).text, flush=True)
for n in range(201):
    app.state_holder[f"visit {n}"]
print("visits kept:", len(app.state_holder.session_data), "visit 0" in app.state_holder, "visit 1" in app.state_holder)
sys.stdout.flush()
os._exit(0)
"""


def test_a_lab_whose_page_is_slow_at_first_starts_all_the_same(tmp_path):
    """Gradio requests its own page at the start and would end if that took more than 3 s. Of 201 visits 200 are kept."""
    command = [sys.executable, "-c", SLOW, str(tmp_path / "home")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    html = done.stdout
    assert not done.returncode, done.stderr[-3000:]
    assert (
        html.index("<body") < html.index(".lab-first") < html.index("/label/first_pair.js") < html.index("<gradio-app")
    )
    assert html.endswith("visits kept: 200 False True\n")


def test_the_initial_pair_is_the_one_that_the_screen_shows(ctx):
    first = post(ctx, {"annotator": "ann"}).json()
    again = post(ctx, {"annotator": "ann"}).json()
    shown = label.state(ctx, "ann")["pair"]
    assert first == again == {name: shown[name] for name in ("turns", "left", "right", "cut")} | {"guideline": ""}


@pytest.mark.parametrize(
    "payload", [{}, {"annotator": ""}, {"annotator": "judge:cheerful"}, [], "ann", {"annotator": 3 * "x" * 30}]
)
def test_a_page_without_a_usable_name_gets_no_pair(ctx, payload):
    assert post(ctx, payload).status_code == 204


def test_a_guarded_lab_shows_it_to_those_who_have_joined(ctx):
    guarded = ctx.as_multi_user(open_to_all=False)
    assert post(guarded, {"annotator": "ann"}).status_code == 204
    cookie = guarded.access.cookie_value(Visitor(Role.LABELLER, add_person(ctx.db, "Ann").name))
    answer = post(
        guarded, {"annotator": "somebody"}, headers={"cookie": f"{guarded.access.login_cookie_name}={cookie}"}
    )
    held = lease_pair(
        ctx.db, ctx.project.id, "Ann"
    )  # leased to the name in the cookie, not to the one that the page sent
    assert held is not None
    assert {answer.json()["left"], answer.json()["right"]} == {
        held.pair.first.text.strip(),
        held.pair.second.text.strip(),
    }
    with ctx.db.read() as conn:
        assert set(conn.execute(select(tables.leases.c.annotator)).scalars()) == {"Ann"}


def test_only_short_json_is_read(ctx):
    assert post(ctx, None, json=None, content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
    assert post(ctx, {"annotator": "x" * 2000}).status_code == 413
    assert post(ctx, None, json=None, content=b"{", headers={"content-type": "application/json"}).status_code == 400


def test_a_closed_page_is_no_longer_counted(ctx, monkeypatch):
    here = Presence()
    monkeypatch.setattr(initial_html, "PRESENCE", here)
    monkeypatch.setattr(label, "PRESENCE", here)
    for name in ("ann", "bob"):
        post(ctx, {"annotator": name})
    assert here.names() == ["ann", "bob"]
    assert post(ctx, {"annotator": "ann"}, "/closed").status_code == 204
    assert post(ctx, {"annotator": ""}, "/closed").status_code == 204
    assert here.names() == ["bob"]
    guarded = ctx.as_multi_user(open_to_all=False)
    assert post(guarded, {"annotator": "bob"}, "/closed").status_code == 204  # of a visitor who is not bob
    assert here.names() == ["bob"]
