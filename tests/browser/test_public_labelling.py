"""Public labelling in a real browser: identity of visitors with and without cookies, protection against taking a name."""

import sqlite3

import pytest
from browser_lab import current_pair, press_key
from playwright.sync_api import expect
from prepared_labs import idle_lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A lab where every visitor may label."""
    lab = idle_lab(tmp_path_factory.mktemp("open") / "home", options=("--public-labelling",))
    lab.environment = {"RLHF_LAB_FRAME_ORIGINS": "http://localhost:*"}
    lab.start()
    yield lab
    lab.stop()


def active_votes(lab) -> list[tuple[str, str]]:
    with sqlite3.connect(lab.home / "lab.db") as db:
        query = "SELECT annotator, pair_id FROM votes WHERE undone_at IS NULL ORDER BY id"
        return [(name, str(pair)) for name, pair in db.execute(query)]


def latest_annotator(lab) -> str:
    return active_votes(lab)[-1][0]


def test_labels_given_before_the_lab_was_public_are_marked_as_the_visitors_own(tmp_path, open_page):
    """They keep the name under which they were cast; only that browser shows whose they are."""
    lab = idle_lab(tmp_path / "home").start()
    page = open_page(lab)
    press_key(page, "1")
    earlier_name = latest_annotator(lab)
    page.close()
    lab.stop()
    lab.options = ("--public-labelling",)
    lab.start()
    try:
        page = page.context.new_page()
        page.goto(lab.url)
        press_key(page, "2")
        assert latest_annotator(lab) != earlier_name
        page.click("role=tab[name='People']")
        row = f".lab-people tr[data-name={earlier_name}]"
        expect(page.locator(row)).to_contain_text("you, before this lab was opened to others")
        other = open_page(lab)
        other.click("role=tab[name='People']")
        expect(other.locator(row)).to_be_visible()
        expect(other.locator(row)).not_to_contain_text("you,")
    finally:
        for one in [one for context in page.context.browser.contexts for one in context.pages]:
            one.close()  # before its server ends
        lab.stop()


def test_visitor_keeps_their_name_after_a_reload_and_nobody_can_take_it(lab, open_page):
    page = open_page(lab)
    voted = press_key(page, "1")
    name, pair = active_votes(lab)[-1]
    assert name.startswith("visitor-")
    assert pair != voted  # the page does not know the pair's own id
    shown = current_pair(page)
    page.reload()
    assert current_pair(page) == shown
    press_key(page, "2")
    assert latest_annotator(lab) == name
    attacker = open_page(lab)
    assert current_pair(attacker) != current_pair(page)
    attacker.click("role=tab[name='People']")
    attacker.wait_for_selector(f".lab-people tr[data-name={name}]")  # the name is public
    before = active_votes(lab)
    for annotator in (name, "", None):
        answer = attacker.request.post(f"{lab.url}lab-api/label/undo", data={"annotator": annotator})
        assert "There is nothing to undo." in answer.text()
    attacker.context.clear_cookies()
    answer = attacker.request.post(f"{lab.url}lab-api/label/undo", data={"annotator": name})
    assert "no usable name" in answer.json()["error"]
    assert active_votes(lab) == before
    page.keyboard.press("u")
    expect(page.locator(".lab-label .lab-notice")).to_contain_text("Your last answer was undone.")
    assert active_votes(lab) == before[:-1]


def test_labelling_without_cookies_and_storage(lab, open_page):
    """In a frame of another site over http, where browsers refuse both; the name lasts as long as the page."""
    page, other_url = open_page(lab), lab.url.replace("127.0.0.1", "localhost")  # another site for the browser
    page.context.clear_cookies()
    page.add_init_script("""for (const name of ['localStorage', 'sessionStorage'])
        Object.defineProperty(window, name, { configurable: true,
            get() { throw new DOMException('refused', 'SecurityError'); } });""")

    def framed():
        page.goto(f"{other_url}robots.txt")
        page.set_content(f'<iframe src="{lab.url}" style="width:1200px;height:850px"></iframe>')
        page.wait_for_selector("iframe")
        return page.frames[1]

    def click(frame, name):
        pair = current_pair(frame)
        frame.click(f"[data-do={name}]")
        frame.wait_for_selector(f".lab-label[data-open]:not([data-pair='{pair}'])")
        return pair

    count, frame = len(active_votes(lab)), framed()
    pairs = [click(frame, name) for name in ("left", "right", "tie")]
    names, voted = zip(*active_votes(lab)[count:], strict=True)
    assert (len(set(names)), len(set(voted)), len(set(pairs))) == (1, 3, 3)
    click(frame, "undo")
    assert current_pair(frame) == pairs[-1]
    assert len(active_votes(lab)) == count + 2
    assert page.context.cookies() == []
    click(framed(), "left")
    assert latest_annotator(lab) not in names
    open_page.console_messages[:] = [words for words in open_page.console_messages if other_url not in words]
