"""The screen Learn in a browser: every page by keyboard at two widths, its question answered, and progress that stays."""

import dataclasses
import re

import pytest
from accessibility import NAMELESS, visible_texts
from helpers import control, open_screen
from playwright.sync_api import expect
from prepared_labs import temporary_project

from rlhf_lab.common.enums import Source
from rlhf_lab.common.records import LabelSnapshot, Sample, StepResult, TokenRecord
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.store.database import Database
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import create_run

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
BOTTOMS = "nodes => Math.max(...nodes.map((node) => node.getBoundingClientRect().bottom + scrollY))"
#: The charts of which an axis has no title, or one of less than 11 pixels.
WITHOUT_TITLES = """charts => charts.filter((chart) => [...chart.querySelectorAll('text.title')].some(
  (text) => !text.textContent || Math.min(text.getBoundingClientRect().width, text.getBoundingClientRect().height) < 11)
).map((chart) => chart.getAttribute('aria-label'))"""
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
        if size == (1280, 800) and name != "broken":
            assert page.locator(".lab-learn :is(.question, .picture)").evaluate_all(BOTTOMS) <= size[1], name
        assert page.locator(".lab-learn .lab-chart").evaluate_all(WITHOUT_TITLES) == [], name
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


def test_the_circles_have_titles_for_mouse_and_keyboard(lab, open_page):
    page = open_screen(lab, open_page, "Learn")
    shown = "node => getComputedStyle(node, '::after').content"
    circle, other = control(page, "learn-gae"), control(page, "learn-value")
    assert circle.evaluate(shown) == "none"
    circle.hover()
    assert circle.evaluate(shown) == '"9. Whose merit was it?"'
    page.mouse.move(3, 3)
    circle.focus()
    page.keyboard.press("Tab")
    expect(other).to_be_focused()
    assert other.evaluate(shown) == '"10. A guess that learns, in small steps"'


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


TOKENS = TokenRecord(
    row=0, prompt="Once", token_ids=[5, 6, 7], tokens=["a", "b", "c"], logprob=[-1.0] * 3, old_logprob=[-1.1] * 3,
    ref_logprob=[-1.0] * 3, kl=[0.1] * 3, value=[0.5] * 3, reward=[0.0, 0.0, 1.0], advantage=[1.0] * 3, ratio=[1.1] * 3,
    clipped=[False] * 3, raw_advantage=[0.5] * 3, target=[1.0] * 3, score=1.0, shaped_score=1.0,
)  # fmt: skip


def add_finished_run(db, project_id: int, notable_row: int = 0) -> int:
    """With two responses in each step; the one of `notable_row` has the largest advantages."""
    config = PolicyConfig.for_algorithm("ppo", steps=4).to_dict()
    snapshot = LabelSnapshot((1, 2, 3), "digest", Source.SIMULATED)
    model = add_reward_model(db, project_id, "x", config={}, report={"accuracy": 0.8}, snapshot=snapshot)
    run = create_run(db, project_id, model.id, "a run", config=config, manifest={}, total_steps=4)
    rows = [
        dataclasses.replace(TOKENS, row=row, tokens=list(letters), advantage=[2.0 if row == notable_row else 1.0] * 3)
        for row, letters in enumerate(("abc", "def"))
    ]
    for step in range(5):
        samples = [Sample("Once", 1, f"text {step}", 0.5)] if step % 2 == 0 else []
        record_step(db, run.id, StepResult(step, {}, rows if step else [], samples))
    return run.id


@pytest.mark.parametrize(("row", "token"), [(0, "c"), (1, "f")])
def test_other_screens_lead_to_a_run_and_to_a_token_although_train_was_not_drawn_yet(lab, open_page, row, token):
    with Database.open(lab.home) as db, temporary_project(db, lab.home, idle=True) as project:
        older, newer = (add_finished_run(db, project.id, row) for _ in range(2))
        page = open_screen(lab, open_page, "Runs & data")
        control(page, "run-watch").and_(page.locator(f'[data-run="{older}"]')).click()
        expect(page.locator(".lab-train")).to_have_attribute("data-run", str(older))
        expect(page.locator(".token-view")).not_to_have_attribute("open", "")

        page = open_screen(lab, open_page, "Learn")
        control(page, "learn-gae").click()
        control(page, "token-2").click()
        control(page, "learn-run").click()
        expect(page.locator(".lab-train")).to_have_attribute("data-run", str(newer))
        expect(page.locator("[data-token-step]")).to_have_text("step 4")
        expect(page.locator(".token-view .pinned")).to_have_text(token)
