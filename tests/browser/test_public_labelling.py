"""Labelling without a code in a real browser: who a visitor is, with cookies and without, and what others cannot do to them."""

import sqlite3

import pytest
from browser_lab import Lab, pair_of, press
from playwright.sync_api import expect


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A lab in which whoever reaches the page may label."""
    lab = Lab(tmp_path_factory.mktemp("open") / "home", options=("--public-labelling",)).start()
    yield lab
    lab.end()


def live(lab) -> list[tuple[str, str]]:
    with sqlite3.connect(lab.home / "lab.db") as db:
        query = "SELECT annotator, pair_id FROM votes WHERE undone_at IS NULL ORDER BY id"
        return [(name, str(pair)) for name, pair in db.execute(query)]


def who(lab) -> str:
    return live(lab)[-1][0]


def test_a_visitor_stays_the_same_over_a_reload_and_nobody_else_can_be_them(lab, open_page):
    page = open_page(lab)
    voted = press(page, "1")
    name, pair = live(lab)[-1]
    assert (name.startswith("visitor-"), pair) == (True, voted)
    shown = pair_of(page)
    page.reload()
    assert pair_of(page) == shown
    press(page, "2")
    assert who(lab) == name
    thief = open_page(lab)
    assert pair_of(thief) != pair_of(page)
    thief.click("role=tab[name='People']")
    thief.wait_for_selector(f".lab-people tr[data-name={name}]")  # it is no secret
    undo = thief.evaluate("window.gradio_config.dependencies.find(d => d.api_name === 'undo').id")
    before = live(lab)
    for said in (name, "", None):
        asked = {"data": [], "fn_index": undo, "session_hash": "t", "event_data": {"annotator": said}}
        answer = thief.request.post(f"{lab.url}gradio_api/run/predict", data=asked)
        assert "There is nothing to undo." in answer.text()
    thief.context.clear_cookies()
    answer = thief.request.post(f"{lab.url}gradio_api/run/predict", data=asked | {"event_data": {"annotator": name}})
    assert (answer.status, "no usable name" in answer.text()) == (500, True)
    assert live(lab) == before
    page.keyboard.press("u")
    expect(page.locator(".lab-notice")).to_contain_text("Your last answer is taken back.")
    assert live(lab) == before[:-1]


def test_where_cookie_and_storage_are_refused_one_labels_for_as_long_as_the_page_is_open(lab, open_page):
    """In the frame of another site, over http."""
    page, elsewhere = open_page(lab), lab.url.replace("127.0.0.1", "localhost")  # to a browser another site
    page.context.clear_cookies()
    page.context.add_init_script("""for (const name of ['localStorage', 'sessionStorage'])
        Object.defineProperty(window, name, { configurable: true,
            get() { throw new DOMException('refused', 'SecurityError'); } });""")

    def framed():
        page.goto(f"{elsewhere}gradio_api/app_id")
        page.set_content(f'<iframe src="{lab.url}" style="width:1200px;height:850px"></iframe>')
        page.wait_for_selector("iframe")
        return page.frames[1]

    def click(frame, name):
        pair = pair_of(frame)
        frame.click(f"[data-do={name}]")
        frame.wait_for_selector(f".lab-label[data-open]:not([data-pair='{pair}'])")
        return pair

    count, frame = len(live(lab)), framed()
    pairs = [click(frame, name) for name in ("left", "right", "tie")]
    names, voted = zip(*live(lab)[count:], strict=True)
    assert (len(set(names)), list(voted)) == (1, pairs)
    click(frame, "undo")
    assert pair_of(frame) == pairs[-1]
    assert len(live(lab)) == count + 2
    assert page.context.cookies() == []
    click(framed(), "left")
    assert who(lab) not in names
    open_page.said[:] = [words for words in open_page.said if elsewhere not in words]
