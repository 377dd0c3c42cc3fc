"""A Space shows the lab in a frame of another site, where browsers partition or block cookies."""

import sqlite3
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from helpers import PAGE_TIMEOUT_MS
from playwright.sync_api import TimeoutError, expect
from prepared_labs import idle_lab
from spaces_proxy import TlsProxy

CODE = "FRAME7"


@pytest.fixture
def lab_behind_proxy(tmp_path):
    """A lab and the proxy in front of it. Its https address is that of the Space."""
    proxy, lab = TlsProxy(0, tmp_path), idle_lab(tmp_path / "home")
    lab.environment = {"RLHF_LAB_OPERATOR_SECRET": "five big cats", "RLHF_LAB_JOIN_CODE": CODE}
    lab.environment |= {"RLHF_LAB_FRAME_ORIGINS": "http://127.0.0.1:*"}
    lab.environment |= {"SPACE_ID": "somebody/lab", "SPACE_HOST": f"localhost:{proxy.port}"}
    try:
        proxy.upstream_port = lab.start().port
        yield lab, proxy
        lab.stop()
    finally:
        proxy.close()


def open_framed(page, url):
    """The frame with the lab. Reloaded once on a timeout: a machine short of memory kills the frame's process first."""
    events, frame = [], page.frame_locator("iframe")
    page.on("console", lambda message: events.append(f"{message.type}: {message.text}"))
    page.on("requestfailed", lambda request: events.append(f"{request.failure}: {request.url}"))
    page.on("response", lambda response: events.append(f"{response.status}: {response.url}"))
    page.goto(url)
    try:
        frame.get_by_text("Join to label").wait_for()
    except TimeoutError:
        print("not in the frame:", *events, [part.url for part in page.frames], sep="\n")
        page.reload()
    return frame


def test_joining_and_voting_in_a_frame_of_another_site(lab_behind_proxy, chromium, tmp_path):
    """Without partitioned cookies the frame would forget the visitor, and the page would still ask to join."""
    lab, proxy = lab_behind_proxy
    context = chromium.new_context(ignore_https_errors=True, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PAGE_TIMEOUT_MS)
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(error.message))
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text(
        f'<iframe src="{proxy.url}" style="width:1200px;height:850px"></iframe>'
    )
    site = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=tmp_path / "site"))
    threading.Thread(target=site.serve_forever, daemon=True).start()
    frame = open_framed(page, f"http://127.0.0.1:{site.server_port}/")  # for the browser another site than localhost
    frame.get_by_text("Join to label").click()
    frame.locator("#code").fill(CODE)
    frame.locator("#name").fill("Fay")
    frame.locator("button").click()
    expect(frame.locator("[data-you]")).to_have_text("you are Fay")
    cookies = [cookie for cookie in context.cookies() if cookie["domain"] == "localhost"]
    assert {(cookie["sameSite"], cookie["secure"], cookie["httpOnly"]) for cookie in cookies} == {("None", True, True)}
    assert all(cookie.get("partitionKey") for cookie in cookies)
    expect(frame.locator(".lab-label[data-open]")).to_be_visible()
    pair = frame.locator(".lab-label").get_attribute("data-pair")
    frame.locator("[data-do=left]").click()
    expect(frame.locator(f".lab-label[data-open]:not([data-pair='{pair}'])")).to_be_visible()
    with sqlite3.connect(lab.home / "lab.db") as db:
        assert db.execute("SELECT annotator FROM votes").fetchall() == [("Fay",)]
    assert wrong == []  # even where the browser refuses storage
    context.close()
    site.shutdown()
    site.server_close()
