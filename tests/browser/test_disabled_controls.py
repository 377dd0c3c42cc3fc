"""Disabled controls and the reasons shown; remaining time and axis titles of a run that has just started.

One lab for the file, with a reported free memory of one megabyte.
"""

import re
import time

import pytest
from browser_lab import current_pair
from helpers import wait_for_engine
from playwright.sync_api import expect
from prepared_labs import idle_lab

from rlhf_lab.common.enums import EventKind, JobKind, JobStatus, RunStatus, Source
from rlhf_lab.common.records import LabelSnapshot, StepResult
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.jobs import queue
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, insert_row
from rlhf_lab.store.projects import current_project, projects
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import add_event, create_run, mark_event_applied, set_run_status

#: JavaScript: opacity and pointer-events of the visible buttons.
BUTTON_STYLES = """names => [...new Set([...document.querySelectorAll(names)].filter((one) => one.checkVisibility())
    .map((one) => getComputedStyle(one)).map((style) => `${style.opacity} ${style.pointerEvents}`))]"""
#: Addresses of what a page polls.
REQUESTS = re.compile("lab-api/")
HEADER_BUTTONS, SCREEN_BUTTONS = ".lab-header button", ".lab:not(.lab-header) .lab-button:not(:disabled)"
#: JavaScript: title, unit, label for screen readers and hover title of every chart.
CHART_TEXTS = """figures => figures.filter((one) => one.offsetParent).map((one) => [one.querySelector('h3').textContent,
    one.querySelector('h3 + *').textContent, one.querySelector('.plot').getAttribute('aria-label'),
    one.querySelector('.plot')._fullLayout.xaxis.unifiedhovertitle.text])"""
#: JavaScript: on which side of its line the first marker's label on the score is.
MARKER_SIDE = """side => (document.querySelector("[data-metric='objective/scores'] .plot")?.layout.annotations
    || [])[0]?.xanchor === side"""
AXIS_TITLES = "plot => [plot._fullLayout.xaxis.title.text, plot._fullLayout.yaxis.title.text]"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    lab = idle_lab(tmp_path_factory.mktemp("lab") / "home", environment={"RLHF_LAB_FREE_MEMORY": "1000000"}).start()
    yield lab
    lab.stop()


def open_screen(lab, open_page, name: str):
    page = open_page(lab)
    page.get_by_role("tab", name=name, exact=True).click()
    return page


def add_running_job(db, kind: JobKind, **payload) -> int:
    """A running job without an engine."""
    now = time.time()
    values = {"kind": kind, "status": JobStatus.RUNNING, "project_id": current_project(db).id, "payload": payload}
    values |= {"error": "", "progress": 0.25, "best_progress": 0.0, "attempts": 0, "created_at": now, "updated_at": now}
    with db.write() as conn:
        return insert_row(conn, t.jobs, values)


def test_offline_page_disables_its_buttons_until_it_reconnects(lab, open_page):
    page = open_page(lab)
    current_pair(page)
    assert page.evaluate(BUTTON_STYLES, SCREEN_BUTTONS) == ["1 auto"]
    page.route(REQUESTS, lambda route: route.abort())
    page.wait_for_selector("body.lab-offline")
    assert page.evaluate(BUTTON_STYLES, SCREEN_BUTTONS) == ["0.45 none"]
    assert page.evaluate(BUTTON_STYLES, HEADER_BUTTONS) == ["1 auto"]
    message = page.evaluate("getComputedStyle(document.querySelector('.lab-header'), '::after').content")
    assert message == '"The page cannot reach the lab. Is it still running?"'
    page.unroute(REQUESTS)
    page.wait_for_selector("body:not(.lab-offline)")
    assert page.evaluate(BUTTON_STYLES, SCREEN_BUTTONS) == ["1 auto"]
    open_page.console_messages[:] = [words for words in open_page.console_messages if "ERR_FAILED" not in words]


def test_a_lab_that_cannot_work_says_why(lab, open_page):
    page = open_page(lab)
    current_pair(page)
    reason = "The database lab.db is damaged. Stop the lab and copy the file."
    page.route(REQUESTS, lambda route: route.fulfill(json={"error": reason}))
    page.wait_for_selector("body.lab-offline")
    overlay = "getComputedStyle(document.querySelector('.lab-header'), '::after').content"
    page.wait_for_function(f"() => {overlay} === 'attr(data-reason)' || {overlay} === '\"{reason}\"'")
    assert page.get_attribute(".lab-header", "data-reason") == reason
    page.unroute(REQUESTS)
    page.wait_for_selector("body:not(.lab-offline)")


def test_run_form_says_why_nothing_can_be_started(lab, open_page):
    page = open_screen(lab, open_page, "Train")
    start = page.locator(".lab-run-form")
    expect(start).to_contain_text("PPO needs a reward model, and a reward model needs labels.")
    expect(start).to_contain_text("Label 10 more pairs under Label, or let a simulated judge label 40 there;")
    expect(start.locator(".lab-button")).to_have_text(["Start without a reward model …"])
    with Database.open(lab.home) as db:
        job = add_running_job(db, JobKind.TRAIN_REWARD, source="human")
        expect(start).to_contain_text("A reward model from people's labels is being trained. 25 % done.")
        page.get_by_role("tab", name="Reward model", exact=True).click()
        train, reason = page.locator("[data-do=train]"), page.locator("[data-do=next]")
        expect(train).to_be_disabled()
        expect(train).to_have_text("Training …")
        expect(reason).to_have_text("A reward model from people's labels is being trained.")
        queue.cancel(db, job)
    expect(train).to_be_enabled()
    expect(train).to_have_text("Train reward model")
    expect(reason).to_have_text(
        "The last training was cancelled; its labels are kept. "
        "A new one is trained automatically after 10 more labels by people."
    )


def test_remaining_time_and_axis_titles_from_the_first_step_on(lab, idle_project, open_page):
    page = open_screen(lab, open_page, "Train")
    expect(page.locator(".lab-header")).to_contain_text(re.compile("engine (ready|works)|writing pairs"))
    with Database.open(lab.home) as db:
        learned = LabelSnapshot((), "", Source.HUMAN)
        report = {"accuracy": 0.8, "accuracy_low": 0.7, "accuracy_high": 0.9}
        model = add_reward_model(db, idle_project.id, "x", config={}, report=report, snapshot=learned)
        config = PolicyConfig(steps=4).to_dict()
        run = create_run(db, idle_project.id, model.id, "begun", config=config, manifest={}, total_steps=4)
        set_run_status(db, run.id, RunStatus.RUNNING)
        job = add_running_job(db, JobKind.TRAIN_POLICY, run_id=run.id)
        step, header = page.locator(".lab-train [data-step]"), page.locator(".lab-header .job .what")
        expect(step).to_have_text("step 0 of 4")
        expect(header).to_have_text(f"run {run.id}, step 0 of 4")
        values = {"objective/scores": 0.5, "objective/kl": 0.2, "policy/clipfrac_avg": 0.1, "loss/value_avg": 0.3}
        for at in (1, 2):
            record_step(db, run.id, StepResult(at, values))
        queue.update_progress(db, job, 0.5, 7.0)
        expect(step).to_have_text("step 2 of 4 · about 5 s left")
        expect(header).to_have_text(f"run {run.id}, step 2 of 4 · 5 s left")
        mark_event_applied(db, add_event(db, run.id, EventKind.SET, {"name": "lr", "value": 1e-4}).id, 1)
        wait_for_engine(page, MARKER_SIDE, "right")  # the label of a marker stays inside the figure
        record_step(db, run.id, StepResult(3, values))
        record_step(db, run.id, StepResult(4, values))
        wait_for_engine(page, MARKER_SIDE, "left")  # and changes sides when there is more room on the other
        queue.cancel(db, job)
        set_run_status(db, run.id, RunStatus.STOPPED)
    figures = page.locator(".lab-train .grid > [data-metric]")
    expect(figures.filter(visible=True)).to_have_count(4)
    assert figures.evaluate_all(CHART_TEXTS) == [
        ["Score", "sd", "Score over the steps", "step %{x}"],
        ["KL to the base", "nats", "KL to the base over the steps", "step %{x}"],
        ["Clip fraction", "share", "Clip fraction over the steps", "step %{x}"],
        ["Value loss", "", "Value loss over the steps", "step %{x}"],
    ]
    page.get_by_role("tab", name="Runs & data", exact=True).click()
    page.wait_for_function("() => document.querySelector('.lab-runs .plot.score')?.data?.length === 1")
    assert page.locator(".lab-runs .plot.wide").evaluate(AXIS_TITLES) == ["step", "Score (sd)"]
    assert page.locator(".lab-runs .plot.score").evaluate(AXIS_TITLES) == ["√KL (√nats)", "score (sd)"]
    widths = page.locator(".lab-runs .plot.score").evaluate("plot => [plot._fullLayout.width, plot.clientWidth]")
    assert widths[0] == pytest.approx(widths[1], abs=2), "without gold scores it takes the full width"


def test_too_large_model_needs_a_confirmation(lab, open_page):
    page = open_screen(lab, open_page, "Project")
    page.locator("[data-do=new-name]").fill("all the same")
    page.click("[data-do=new-create]")
    warning = page.locator(".make .lab-notice", has_text="too large for this machine")
    expect(warning).to_have_text("This model is probably too large for this machine.Create it anyway")
    expect(page.locator(".make .verdict")).to_have_attribute("data-verdict", "does not fit")
    with Database.open(lab.home) as db:
        assert len(projects(db)) == 1
    page.get_by_role("button", name="Create it anyway").click()
    expect(page.locator("[data-do=project-notice]")).to_have_text(
        'Project "all the same" was created and opened. The engine is writing its first pairs.'
    )
    expect(warning).to_have_count(0)
    with Database.open(lab.home) as db:
        assert [project.name for project in projects(db)] == ["Tales", "all the same"]
