"""The stage in a browser: its values and charts of a run, and that nothing of a run is left when it is closed or another project
is opened. No engine."""

import pytest
from helpers import change_replies, control
from playwright.sync_api import expect
from prepared_labs import temporary_project

from rlhf_lab.common.enums import RunStatus, Source
from rlhf_lab.common.records import LabelSnapshot, StepResult
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import create_run, set_run_status


@pytest.fixture
def run(db, idle_project):
    """A run that trains, with one step."""
    report = {"accuracy": 0.8, "accuracy_low": 0.7, "accuracy_high": 0.9}
    learned = LabelSnapshot((), "", Source.HUMAN)
    model = add_reward_model(db, idle_project.id, "x", config={}, report=report, snapshot=learned)
    config = PolicyConfig(steps=9).to_dict()
    created = create_run(db, idle_project.id, model.id, "on the stage", config=config, manifest={}, total_steps=9)
    set_run_status(db, created.id, RunStatus.RUNNING)
    add_step(db, created, 1, 0.25)
    yield created
    set_run_status(db, created.id, RunStatus.STOPPED)  # no engine would stop it


def add_step(db, run, at: int, score: float) -> None:
    values = {"objective/scores": score, "objective/kl": 0.5, "policy/clipfrac_avg": 0.125, "loss/value_avg": 2.0}
    record_step(db, run.id, StepResult(at, values))


def open_stage(lab, open_page):
    page = open_page(lab, viewport={"width": 1920, "height": 1080})
    control(page, "stage").click()
    expect(page.locator(".lab-stage .main-svg").first).to_be_visible()
    return page


def test_the_values_are_those_of_the_newest_step(lab, db, run, open_page):
    page = open_stage(lab, open_page)
    values, step = page.locator(".lab-stage .values div"), page.locator(".lab-stage .figures h3")
    expect(step).to_have_text("Step 1")
    expect(values).to_have_text(["Score0.25", "KL to the base0.5", "Clip fraction13 %", "Value loss2"])
    term = values.first.locator("button")
    term.focus()
    add_step(db, run, 2, 1.5)
    expect(values.first).to_have_text("Score1.5")
    expect(step).to_have_text("Step 2")
    expect(term).to_be_focused()  # only the numbers are drawn again


def test_keys_of_a_presenter_press_no_button(lab, run, open_page):
    """Space and Enter, the keys of a presenter's remote, act on the button with the focus."""
    page = open_stage(lab, open_page)
    expect(page.locator(".lab-stage")).to_be_focused()
    for key in ("Space", "Enter"):
        page.keyboard.press(key)
    assert page.locator("dialog[open]").count() == 1


def test_a_chart_makes_room_for_a_caption_that_grows(lab, run, open_page):
    page = open_stage(lab, open_page)
    page.locator(".lab-stage .verdict").first.evaluate("node => { node.style.height = '160px'; }")
    page.wait_for_function("""() => [...document.querySelectorAll('.lab-stage .chart')].every((chart) =>
        chart.querySelector('.main-svg').getBoundingClientRect().bottom
            <= chart.querySelector('.verdict').getBoundingClientRect().top + 1)""")


def test_a_closed_stage_gives_its_charts_back(lab, run, open_page):
    page = open_stage(lab, open_page)
    expect(page.locator(".lab-stage .main-svg >> visible=true")).not_to_have_count(0)
    page.evaluate("""() => {
        window.purged = [];
        const { purge } = window.Plotly;
        window.Plotly.purge = (plot) => { window.purged.push(plot.ariaLabel); return purge(plot); }; }""")
    control(page, "stage-close").click()
    expect(page.locator(".lab-stage")).to_have_count(0)
    page.wait_for_function("window.purged.length > 0")
    assert page.evaluate("window.purged") == ["Score over the steps", "KL to the base over the steps"]


def test_the_stage_drops_the_run_of_another_project(lab, db, run, open_page):
    page = open_stage(lab, open_page)
    stage = page.locator(".lab-stage")
    expect(stage.locator(".state")).to_contain_text("Training · step 1 of 9")
    with temporary_project(db, lab.home, idle=True):
        expect(stage.locator(".state")).to_have_text("Which text is better? You decide")
        expect(stage.locator(".values div, .plots figure, .figures h3:not(:empty)")).to_have_count(0)
        assert "no-run" in stage.get_attribute("class")
        present = stage.locator(".steps [aria-current=step]")
        expect(present).to_have_text("People choose the better of two texts.10 more labels for a reward model")
        expect(stage.locator(".steps li")).to_have_count(3)
        for large in (present, stage.locator(".count").first):
            assert large.evaluate("node => parseFloat(getComputedStyle(node).fontSize)") >= 28


@pytest.mark.parametrize("size", [(1920, 1080), (1280, 800)])
def test_a_long_sentence_and_a_code_without_a_link_have_room(lab, run, open_page, size):
    """As in a container, which does not know its address, while people label texts of the run."""
    page = open_page(lab, viewport=dict(zip(("width", "height"), size, strict=True)))
    sentence = "3 of 8 for the policy. Not yet known which texts people prefer (about 14 more answers at this rate)."
    brake = {"brake": {"state": "unknown", "text": sentence, "step": None}}
    change_replies(page, "header/status", lambda reply: reply | {"can_invite": True})
    change_replies(page, "people/invite", lambda _: {"code": "ABC234", "link": "", "qr": None})
    change_replies(
        page, "train/points", lambda reply: reply | ({"state": reply["state"] | brake} if reply.get("state") else {})
    )
    expect(control(page, "join")).to_be_visible()  # the changed status has arrived
    control(page, "stage").click()
    counts, corner = page.locator(".lab-stage .counts"), page.locator(".lab-stage .corner")
    expect(counts).to_contain_text("about 14 more answers")
    assert counts.evaluate("node => node.scrollHeight <= node.clientHeight + 1")
    expect(page.locator(".lab-stage .values div")).to_have_count(4)
    last, card = page.locator(".lab-stage .values div").last.bounding_box(), corner.bounding_box()
    assert last["y"] + last["height"] <= card["y"]
    expect(corner.locator(".hint")).to_be_hidden()
    code = page.locator(".lab-stage .code").bounding_box()
    assert card["y"] <= code["y"]
    assert code["y"] + code["height"] <= card["y"] + card["height"]
    page.unroute_all(behavior="wait")
