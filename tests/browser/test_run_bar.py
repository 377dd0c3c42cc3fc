"""The bar of a run: the recorded run in its list of runs, and a question before Stop drops a long step. No engine."""

import pytest
from helpers import change_replies, control, open_tab, wait_until
from playwright.sync_api import expect

from rlhf_lab.common.enums import EventKind, RunStatus
from rlhf_lab.common.records import StepResult
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import create_run, pending_events, set_run_status

BAND = ".lab-train .lab-replay"


@pytest.fixture
def run(db, idle_project):
    """A run without a reward model, with one of 11 steps."""
    config = PolicyConfig(steps=11).to_dict()
    created = create_run(db, idle_project.id, None, "in the bar", config=config, manifest={}, total_steps=11)
    set_run_status(db, created.id, RunStatus.RUNNING)
    record_step(db, created.id, StepResult(1, {"objective/scores": 0.25, "objective/kl": 0.5}))
    yield created
    set_run_status(db, created.id, RunStatus.STOPPED)  # no engine would stop it


def test_the_list_of_runs_offers_the_recorded_run(lab, run, open_page):
    page = open_page(lab)
    open_tab(page, "Train")
    screen, runs = page.locator(".lab-train"), control(page, "pick")
    expect(screen).to_have_attribute("data-run", str(run.id))
    runs.select_option("recorded")
    expect(page.locator(BAND)).to_contain_text("a replay, not training")
    expect(page.locator(".lab-train .sample").first).to_be_visible()
    control(page, "replay-close").click()
    expect(screen).to_have_attribute("data-run", str(run.id))
    expect(runs).to_have_value(str(run.id))


def test_on_a_phone_the_band_of_a_recording_takes_two_lines_above_the_form(lab, idle_project, open_page):
    page = open_page(lab, viewport={"width": 390, "height": 844})
    open_tab(page, "Train")
    form = page.locator(".lab-run-form .lab-card")
    expect(form).to_contain_text("PPO needs a reward model")
    page.locator(".lab-train [data-do=replay]").click()
    band = page.locator(BAND)
    expect(page.locator(".lab-train .sample").first).to_be_visible()
    tops = band.locator("strong, button, input, select, .position >> visible=true").evaluate_all(
        "nodes => nodes.map((node) => { const { top, bottom } = node.getBoundingClientRect(); return (top + bottom) / 2; })"
    )
    assert len(tops) == 6
    assert all(abs(top - tops[1]) < 8 for top in tops[1:])
    assert band.locator("strong").evaluate("node => node.getClientRects().length") == 1
    assert band.evaluate("node => node.scrollWidth <= node.clientWidth")
    assert band.bounding_box()["y"] < form.bounding_box()["y"]


def test_stop_asks_before_it_drops_a_long_step(lab, db, run, open_page):
    """Ten steps are left, which take 900 s."""
    page = open_page(lab)
    change_replies(
        page,
        "train/points",
        lambda reply: {**reply, "state": reply["state"] | {"eta_s": 900}} if "state" in reply else reply,
    )
    open_tab(page, "Train")
    question = page.locator(".lab-question")
    control(page, "stop").click()
    expect(question).to_contain_text("step 2, which takes about 1 min 30 s")
    control(page, "stop-leave").click()
    expect(question).to_have_count(0)
    assert not pending_events(db, run.id)
    control(page, "stop").click()
    control(page, "stop-sure").click()
    expect(page.locator("[data-asked]")).to_contain_text("requested: stop")
    expect(question).to_have_count(0)
    wait_until(lambda: [event.kind for event in pending_events(db, run.id)] == [EventKind.STOP], "the request", page)
    page.unroute_all(behavior="wait")


def test_a_control_is_named_before_the_lab_has_answered(lab, run, open_page):
    page = open_page(lab)
    page.route("**/lab-api/train/control", lambda route: None)  # no answer
    open_tab(page, "Train")
    control(page, "pause").click()
    expect(page.locator("[data-asked]")).to_contain_text("requested: pause")
    page.unroute_all(behavior="ignoreErrors")


def test_stop_does_not_ask_about_a_short_step(lab, db, run, open_page):
    page = open_page(lab)
    open_tab(page, "Train")
    control(page, "stop").click()
    expect(page.locator("[data-asked]")).to_contain_text("requested: stop")
