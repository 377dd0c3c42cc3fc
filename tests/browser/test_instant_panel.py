"""The instant reward model on the screen "Label": it shows its prediction after each vote and does not shift the layout."""

import pytest
from browser_lab import current_pair, press_key
from helpers import wait_for_engine
from playwright.sync_api import expect
from prepared_labs import temporary_project

from rlhf_lab.store.database import Database

HAS_FIGURES = "() => document.querySelector('.lab-label .instant')?.dataset.right"
#: JavaScript: from the buttons above the panel to the controls below it.
HEIGHT = """() => { const [above, below] = ['.others', '.more'].map((name) => document.querySelector(`.lab-label ${name}`));
    return Math.round(below.getBoundingClientRect().top - above.getBoundingClientRect().bottom); }"""


@pytest.fixture(scope="module")
def lab(shared_lab):
    """With a project whose texts the engine reads."""
    with Database.open(shared_lab.home) as db, temporary_project(db, shared_lab.home):
        yield shared_lab


@pytest.fixture(scope="module")
def labelled(lab, chromium):
    """Seven votes of a person who prefers short texts; the engine has computed the features of the texts."""
    page = chromium.new_page()
    page.goto(lab.url)
    for _ in range(7):
        vote(page)
    wait_for_engine(page, HAS_FIGURES)
    page.close()
    return lab


def vote(page) -> str:
    """Vote for the shorter text. Returns the pair that was on screen."""
    current_pair(page)
    left, right = (page.locator(f".side.{name} .lab-text").inner_text() for name in ("left", "right"))
    return press_key(page, "1" if len(left) < len(right) else "2")


def panel(page):
    return page.locator(".lab-label .instant")


def test_until_there_are_enough_answers_a_sentence_says_so(lab, fresh_project, open_page):
    page = open_page(lab)
    expect(panel(page)).to_contain_text("starts after 6 answers that prefer one text: 0 so far")
    height = page.evaluate(HEIGHT)
    vote(page)
    expect(panel(page)).to_contain_text("1 so far")
    assert page.evaluate(HEIGHT) == height


@pytest.mark.parametrize("size", [(1280, 900), (412, 915)], ids=["wide", "phone"])
def test_each_vote_is_predicted_and_nothing_moves(labelled, open_page, size):
    """On a phone the panel is in view where the texts have room beside it (fitTextHeights of shared/dom.js)."""
    page = open_page(labelled, viewport={"width": size[0], "height": size[1]})
    expect(panel(page)).to_contain_text("predicts your next answer")
    height = page.evaluate(HEIGHT)
    voted = vote(page)
    verdict = panel(page).locator(".verdict")
    outcome = "expected" if verdict.get_attribute("data-expected") == "true" else "did not expect"
    what = "your last answer" if size[0] > 640 else "it"
    model = "The instant reward model" if size[0] > 640 else "The instant model"
    mark = "✓" if outcome == "expected" else "✗"
    expect(verdict).to_have_text(f"{mark} {model} {outcome} {what}", use_inner_text=True)
    chosen, other = (float(text.replace("−", "-")) for text in panel(page).locator(".score b").all_inner_texts())
    assert (chosen >= other) is (verdict.get_attribute("data-expected") == "true") or chosen == other
    expect(panel(page).locator(".accuracy")).to_contain_text("right")
    assert page.evaluate(HEIGHT) == height
    box = panel(page).bounding_box()
    assert box["y"] + box["height"] <= size[1]
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    page.keyboard.press("u")
    page.wait_for_selector(f".lab-label[data-open='{voted}']")
    expect(verdict).to_have_count(0)
    expect(panel(page)).to_contain_text("predicts your next answer")


def test_a_vote_without_a_winner_has_scores_and_no_verdict(labelled, open_page):
    page = open_page(labelled)
    expect(panel(page)).to_contain_text("predicts your next answer")
    press_key(page, "0")
    expect(panel(page).locator(".verdict")).to_have_text(
        "Your last answer had no winner. Its scores:", use_inner_text=True
    )
    expect(panel(page).locator(".score .muted")).to_have_text(["left", "right"])
    press_key(page, "s")
    expect(panel(page)).to_contain_text("predicts your next answer")


def test_another_person_sees_the_accuracy_and_not_the_prediction(labelled, open_page):
    voter, other = open_page(labelled), open_page(labelled)
    expect(panel(other)).to_contain_text("predicts your next answer")
    answers = panel(other).locator(".accuracy").inner_text()
    vote(voter)
    expect(panel(voter).locator(".verdict")).to_have_count(1)
    expect(panel(other).locator(".accuracy")).not_to_have_text(answers)  # at its next poll, within five seconds
    expect(panel(other).locator(".verdict")).to_have_count(0)
    expect(panel(other)).to_contain_text("predicts your next answer")
