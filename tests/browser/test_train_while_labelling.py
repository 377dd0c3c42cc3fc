"""Training while people label, with an engine: the operator starts it on Label, two people label texts of the policy, and Train
shows where labels arrived and what the blind answers say."""

import re

import pytest
from browser_lab import Lab, current_pair, press_key
from helpers import control, open_tab, wait_for_engine
from playwright.sync_api import expect
from prepared_labs import add_labels, stop_all_runs
from test_people_screen import access_keys, join_as

from rlhf_lab.common.enums import Source
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store.database import Database

WRITER = r"(the policy at step \d+(?: or \d+)?|the base model|the checkpoint of step \d+)"
MAX_ANSWERS = 40  # until a person gets a pair of the policy and another model
#: JavaScript: the short lines at the foot of the curve of the score.
TICKS = """() => [...document.querySelectorAll('.lab-train .js-plotly-plot')][0]?.layout.shapes
    ?.filter((line) => line.y1 < 0.5).length ?? 0"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A lab of several people with seven labels; its engine writes, trains and computes features."""
    home = tmp_path_factory.mktemp("lab") / "home"
    lab = Lab(home, options=("--host", "0.0.0.0"), environment={"RLHF_LAB_CONTAINER": "0"})
    with Database.open(home) as db:
        add_labels(db, new_project(db).id, Source.HUMAN, 7)
        try:
            yield lab.start()
        finally:
            stop_all_runs(db)
            lab.stop()


def label_until_two_models(page) -> str:
    """Who wrote the texts of the last pair, which is one of the policy and another model. Nothing says it before the answer."""
    writers = control(page, "writers")
    for _ in range(MAX_ANSWERS):
        current_pair(page)
        assert not re.search(WRITER, page.inner_text(".lab-label .sides"))
        press_key(page, "1")
        expect(page.locator(".lab-label .instant")).not_to_contain_text("is being trained on your answer")
        if writers.count() and re.search("base|checkpoint", writers.inner_text()):
            return writers.inner_text()
    raise AssertionError("no pair of two models")


def test_the_policy_trains_while_two_people_label(lab, open_page):
    people = [join_as(lab, open_page, name) for name in ("Ann", "Bob")]
    operator = open_page(lab)
    operator.goto(f"{lab.url}enter?key={access_keys(lab)['operator']}")
    wait_for_engine(operator, "() => document.querySelector('[data-do=start-live]')")  # the labels have features
    assert [control(page, "start-live").count() for page in people] == [0, 0]
    control(operator, "start-live").click()
    expect(operator.locator(".lab-label .instant")).to_contain_text("A run that learns from your answers was started.")
    open_tab(operator, "Train")
    brake = control(operator, "brake")
    wait_for_engine(operator, "() => document.querySelector('[data-do=brake]')?.checkVisibility()")
    expect(brake).to_have_text("Blind answers: none yet. Some of the next pairs compare the policy with another model.")
    expect(operator.locator(".lab-header")).to_contain_text("instant reward model")
    wait_for_engine(operator, f"() => ({TICKS})() >= 1")
    before = operator.evaluate(TICKS)
    for page in people:
        assert control(page, "writers").count() == 0
        writers = label_until_two_models(page)
        assert re.fullmatch(f"Your last pair: the first text was written by {WRITER}, the second by {WRITER}.", writers)
    wait_for_engine(operator, f"before => ({TICKS})() > before", before)  # a head that learned from their labels
    expect(brake).to_contain_text(re.compile(r"\d of \d for the policy\. Not yet known"))


def test_the_panel_says_that_the_policy_is_trained_only_while_it_is(lab, open_page):
    operator = open_page(lab)
    operator.goto(f"{lab.url}enter?key={access_keys(lab)['operator']}")
    panel, text = operator.locator(".lab-label .instant"), "A run that learns from your answers was started."
    with Database.open(lab.home) as db:
        stop_all_runs(db)
        for end in (lambda: stop_all_runs(db), lambda: new_project(db)):
            wait_for_engine(operator, "() => document.querySelector('[data-do=start-live]')")
            control(operator, "start-live").click()
            expect(panel).to_contain_text(text)
            end()
            expect(panel).not_to_contain_text(text)
