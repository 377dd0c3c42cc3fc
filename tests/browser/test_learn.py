"""The screen Learn in a browser: every page by keyboard at two widths, its question answered, and progress that stays."""

import re

import pytest
from accessibility import NAMELESS, visible_texts
from helpers import control, open_screen
from playwright.sync_api import expect

MAX_WORDS = 90
WORDS = ".lab-learn .words > p:not(.formula, .notice), .lab-learn .question p"
#: What answers the question of each page: values of sliders, and controls to press, in turn.
ANSWERS = {
    "world": ["slip=0.7", "piece-bathtub", "cell-9"],
    "trajectory": ["gamma=0.6"],
    "gradient": ["exponent=4"],
    "to-go": [],  # depends on the walk: see below
    "baseline": ["baseline=36"],
    "importance": ["newRandom=1"],
    "text": ["at=1000"],
    "clipping": [],
    "gae": ["lam=0"],
    "value": ["value=1000"],
    "pairs": ["difference=0"],
    "kl": [],
    "entropy": ["temperature=0.5"],
    "gold": ["at=24"],
}
SET_SLIDER = """(node, value) => {
  node.value = value;
  node.dispatchEvent(new Event('input', { bubbles: true }));
}"""
#: Tries every position until the page says that it is right.
TRY_ALL = """(node) => {
  for (let value = Number(node.min); value <= Number(node.max); value += Number(node.step)) {
    node.value = value;
    node.dispatchEvent(new Event('input', { bubbles: true }));
    if (document.querySelector('.lab-learn .right')) return;
  }
}"""


def answer(page, name: str) -> None:
    for act in ANSWERS[name]:
        slider, _, value = act.partition("=")
        if value:
            control(page, f"slide-{slider}").evaluate(SET_SLIDER, value)
        else:
            control(page, act).click()
    if name == "to-go":
        moves = page.locator(".lab-learn .tokens button").all_text_contents()
        control(page, f"token-{max(i for i, move in enumerate(moves) if move.endswith(' −40'))}").click()
    if name in ("kl", "clipping", "value", "entropy", "baseline"):
        page.locator(".lab-learn input[type=range]").first.evaluate(TRY_ALL)


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)], ids=["wide", "phone"])
def test_every_page_by_keyboard(lab, open_page, size):
    page = open_screen(lab, open_page, "Learn", viewport={"width": size[0], "height": size[1]})
    expect(control(page, "learn-back")).to_be_disabled()
    names = [
        dot.get_attribute("data-do").removeprefix("learn-") for dot in page.locator(".lab-learn .dots button").all()
    ]
    assert names == [*ANSWERS, "broken"]
    right = page.locator(".lab-learn .right")
    for number, name in enumerate(names, start=1):
        dot = control(page, f"learn-{name}")
        expect(dot).to_have_attribute("aria-current", "page")
        expect(page.locator(".lab-learn .formula")).to_have_count(int(name != "broken"))
        assert len(" ".join(page.locator(WORDS).all_text_contents()).split()) <= MAX_WORDS, name
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        assert not NAMELESS.search(page.locator(".lab-learn").aria_snapshot()), name
        assert [text for text in visible_texts(page) if text.contrast < 4.5] == [], name
        expect(right).to_have_count(0)
        if name != "broken":
            answer(page, name)
            expect(right).to_have_text("✓ That is it.")
            expect(dot).to_have_text("✓")
        page.locator(".lab-learn h2").click()
        if number < len(names):
            page.keyboard.press("ArrowRight")
            expect(page.locator(".lab-learn h2")).to_be_focused()
    expect(control(page, "learn-next")).to_be_disabled()
    page.keyboard.press("ArrowLeft")
    expect(control(page, "learn-gold")).to_have_attribute("aria-current", "page")
    page.reload()
    expect(control(page, "learn-gold")).to_have_text("✓")
    expect(control(page, "learn-broken")).to_have_text(re.compile(r"\d+"))


def test_numbers_say_where_they_come_from_and_the_keys_of_a_slider_turn_no_page(lab, open_page):
    page = open_screen(lab, open_page, "Learn")
    control(page, "learn-gae").click()
    expect(page.locator(".lab-learn .picture")).to_contain_text("These numbers are recorded.")
    slider = control(page, "slide-lam")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    expect(slider).to_have_attribute("aria-valuetext", "0.95")
    expect(control(page, "learn-gae")).to_have_attribute("aria-current", "page")
    control(page, "token-2").focus()
    page.keyboard.press("Enter")
    expect(control(page, "token-2")).to_be_focused()
    expect(page.locator(".lab-learn .facts")).to_contain_text("Token 3")
