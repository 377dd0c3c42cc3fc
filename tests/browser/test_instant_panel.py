"""The instant reward model on the screen "Label": it shows its prediction after each vote and does not shift the layout."""

from browser_lab import current_pair, press_key
from helpers import wait_for_engine
from playwright.sync_api import expect
from test_right_edge import add_project
from test_right_edge import vote as vote_of

from rlhf_lab.common.enums import Choice
from rlhf_lab.store.database import Database

#: JavaScript: from the buttons above the panel to the controls below it.
HEIGHT = """() => { const [above, below] = ['.others', '.more'].map((name) => document.querySelector(`.lab-label ${name}`));
    return Math.round(below.getBoundingClientRect().top - above.getBoundingClientRect().bottom); }"""


def vote(page) -> str:
    """Vote for the text that begins with A. Returns the pair that was on screen."""
    current_pair(page)
    return press_key(page, "1" if page.inner_text(".side.left .lab-text").startswith("A") else "2")


def test_each_vote_is_predicted_and_nothing_moves(lab, open_page):
    """On a phone the panel is in view where the texts have room beside it (fitTextHeights of shared/dom.js)."""
    with Database.open(lab.home) as db:
        project = add_project(db, "Instant", "tale")
        page = open_page(lab)
        panel = page.locator(".lab-label .instant")
        expect(panel).to_contain_text("starts after 6 answers that prefer one text; so far there are 0")
        height = page.evaluate(HEIGHT)
        vote(page)
        expect(panel).to_contain_text("so far there is 1")
        assert page.evaluate(HEIGHT) == height
        for _ in range(7):
            vote_of(db, project, "Ann", Choice.FIRST)
    wait_for_engine(page, "() => document.querySelector('.lab-label .instant').dataset.right")
    for width, window_height in ((1280, 900), (412, 915)):
        page.set_viewport_size({"width": width, "height": window_height})
        expect(panel).to_contain_text("predicts your next answer")
        height = page.evaluate(HEIGHT)
        voted = vote(page)
        verdict = panel.locator(".verdict")
        is_expected = verdict.get_attribute("data-expected") == "true"
        if width > 640:
            text = "The instant reward model predicted " + ("your last answer" if is_expected else "the other text")
        else:
            text = ("Predicted" if is_expected else "Not predicted") + " by the instant reward model"
        expect(verdict).to_have_text(f"{'✓' if is_expected else '✗'} {text}", use_inner_text=True)
        chosen, other = (float(text.replace("−", "-")) for text in panel.locator(".score b").all_inner_texts())
        assert (chosen >= other) is is_expected or chosen == other
        assert page.evaluate(HEIGHT) == height
        box = panel.bounding_box()
        assert box["y"] + box["height"] <= window_height
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.keyboard.press("u")
        page.wait_for_selector(f".lab-label[data-open='{voted}']")
        expect(verdict).to_have_count(0)
        expect(panel).to_contain_text("predicts your next answer")
    page.set_viewport_size({"width": 1280, "height": 900})
    press_key(page, "0")
    expect(panel.locator(".verdict")).to_have_text(
        "Your last answer preferred neither text. Scores:", use_inner_text=True
    )
    expect(panel.locator(".score .muted")).to_have_text(["left", "right"])
