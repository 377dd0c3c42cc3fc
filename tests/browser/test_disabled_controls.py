"""What cannot be done or told at the moment, and the reason that is shown; what stands on the axes of a run that has begun.

One lab for the file, on a machine that seems to have a megabyte of memory.
"""

import re
import time

import pytest
from browser_lab import Lab, pair_of
from helpers import works
from playwright.sync_api import expect

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

#: Opacity, and whether it takes a click, of every button of a screen.
BUTTONS = """names => [...new Set([...document.querySelectorAll(names)].filter((one) => one.checkVisibility())
    .map((one) => getComputedStyle(one)).map((style) => `${style.opacity} ${style.pointerEvents}`))]"""
HEADER, SCREEN = ".lab-header button", ".lab:not(.lab-header) button"
#: What is drawn, its unit, what a reader of the screen is told, what stands beside a step.
AXES = """figures => figures.filter((one) => one.offsetParent).map((one) => [one.querySelector('h3').textContent,
    one.querySelector('h3 + *').textContent, one.querySelector('.plot').getAttribute('aria-label'),
    one.querySelector('.plot')._fullLayout.xaxis.unifiedhovertitle.text])"""
#: On which side of its line the words of the first mark on the score stand.
SIDE = """side => (document.querySelector("[data-metric='objective/scores'] .plot")?.layout.annotations
    || [])[0]?.xanchor === side"""
TITLES = "plot => [plot._fullLayout.xaxis.title.text, plot._fullLayout.yaxis.title.text]"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    lab = Lab(tmp_path_factory.mktemp("lab") / "home", environment={"RLHF_LAB_FREE_MEMORY": "1000000"}).start()
    yield lab
    lab.end()


def screen(lab, open_page, name: str):
    page = open_page(lab)
    page.get_by_role("tab", name=name, exact=True).click()
    return page


def at_work(db, kind: JobKind, **payload) -> int:
    """A job that goes on, on no engine."""
    now = time.time()
    values = {"kind": kind, "status": JobStatus.RUNNING, "project_id": current_project(db).id, "payload": payload}
    values |= {"error": "", "progress": 0.25, "best_progress": 0.0, "attempts": 0, "created_at": now, "updated_at": now}
    with db.write() as conn:
        return insert_row(conn, t.jobs, values)


def test_a_page_that_does_not_reach_its_lab_greys_its_buttons_until_it_does(lab, open_page):
    page = open_page(lab)
    pair_of(page)
    assert page.evaluate(BUTTONS, SCREEN) == ["1 auto"]
    page.route("**/component_server**", lambda route: route.abort())
    page.wait_for_selector("body.lab-offline")
    assert page.evaluate(BUTTONS, SCREEN) == ["0.45 none"]
    assert page.evaluate(BUTTONS, HEADER) == ["1 auto"]
    told = page.evaluate("getComputedStyle(document.querySelector('.lab-header'), '::after').content")
    assert told == '"The page cannot reach the lab. Is app.py still running?"'
    page.unroute("**/component_server**")
    page.wait_for_selector("body:not(.lab-offline)")
    assert page.evaluate(BUTTONS, SCREEN) == ["1 auto"]
    open_page.said[:] = [words for words in open_page.said if "ERR_FAILED" not in words]


def test_where_nothing_can_be_started_stands_why(lab, open_page):
    page = screen(lab, open_page, "Train")
    start = page.locator(".lab-start")
    expect(start).to_contain_text("PPO needs a reward model, and a reward model needs labels.")
    expect(start).to_contain_text("Label 10 more pairs under Label, or let a simulated judge label 40 there;")
    expect(start.locator("button")).to_have_count(0)
    with Database.open(lab.home) as db:
        job = at_work(db, JobKind.TRAIN_REWARD, source="human")
        expect(start).to_contain_text("A reward model learns from people's labels. 25 % done; this takes some seconds.")
        page.get_by_role("tab", name="Reward model", exact=True).click()
        train, reason = page.locator("[data-do=train]"), page.locator("[data-do=train] ~ [data-do=next]")
        expect(train).to_be_disabled()
        expect(train).to_have_text("Training …")
        expect(reason).to_have_text("A reward model learns from people's labels.")
        queue.cancel(db, job)
    expect(train).to_be_enabled()
    expect(train).to_have_text("Train now")
    expect(reason).to_have_text("It also trains by itself, every 20 labels: next at 10, 10 labels to go.")


def test_before_its_first_step_nobody_says_how_long_a_run_takes_and_then_its_axes_are_named(lab, fresh, open_page):
    page = screen(lab, open_page, "Train")
    expect(page.locator(".lab-header")).to_contain_text(re.compile("engine (ready|works)|writing pairs"))
    with Database.open(lab.home) as db:
        learnt = LabelSnapshot((), "", Source.HUMAN)
        report = {"accuracy": 0.8, "accuracy_low": 0.7, "accuracy_high": 0.9}
        model = add_reward_model(db, fresh.id, "x", config={}, report=report, snapshot=learnt)
        config = PolicyConfig(steps=4).to_dict()
        run = create_run(db, fresh.id, model.id, "begun", config=config, manifest={}, total_steps=4)
        set_run_status(db, run.id, RunStatus.RUNNING)
        job = at_work(db, JobKind.TRAIN_POLICY, run_id=run.id)
        step, header = page.locator(".lab-train [data-step]"), page.locator(".lab-header .job .what")
        expect(step).to_have_text("step 0 of 4")
        expect(header).to_have_text(f"run {run.id}, step 0 of 4")
        values = {"objective/scores": 0.5, "objective/kl": 0.2, "policy/clipfrac_avg": 0.1, "loss/value_avg": 0.3}
        for at in (1, 2):
            record_step(db, run.id, StepResult(at, values))
        queue.update_progress(db, job, 0.5, 7.0)
        expect(step).to_have_text("step 2 of 4 · about 7 s left")
        expect(header).to_have_text(f"run {run.id}, step 2 of 4 · 7 s left")
        mark_event_applied(db, add_event(db, run.id, EventKind.SET, {"name": "lr", "value": 1e-4}).id, 1)
        works(page, SIDE, "right")  # the words of a mark stay inside the figure
        record_step(db, run.id, StepResult(3, values))
        record_step(db, run.id, StepResult(4, values))
        works(page, SIDE, "left")  # and change sides as there is more room on the other one
        queue.cancel(db, job)
        set_run_status(db, run.id, RunStatus.STOPPED)
    figures = page.locator(".lab-train .grid > [data-metric]")
    expect(figures.filter(visible=True)).to_have_count(4)
    assert figures.evaluate_all(AXES) == [
        ["Reward model's score", "sd", "Reward model's score over the steps", "step %{x}"],
        ["KL to the reference", "nats", "KL to the reference over the steps", "step %{x}"],
        ["Clip fraction", "share", "Clip fraction over the steps", "step %{x}"],
        ["Value loss", "", "Value loss over the steps", "step %{x}"],
    ]
    page.get_by_role("tab", name="Runs & data", exact=True).click()
    page.wait_for_function("() => document.querySelector('.lab-runs .plot.score')?.data?.length === 1")
    assert page.locator(".lab-runs .plot.wide").evaluate(TITLES) == ["step", "Reward model's score (sd)"]
    assert page.locator(".lab-runs .plot.score").evaluate(TITLES) == ["√KL (√nats)", "score (sd)"]
    widths = page.locator(".lab-runs .plot.score").evaluate("plot => [plot._fullLayout.width, plot.clientWidth]")
    assert widths[0] == pytest.approx(widths[1], abs=2), "no gold, so it has the room of both"


def test_a_model_that_is_too_large_is_doubted_and_made_all_the_same(lab, open_page):
    page = screen(lab, open_page, "Project")
    page.locator("[data-do=new-name]").fill("all the same")
    page.click("[data-do=new-create]")
    doubt = page.locator(".make .lab-notice", has_text="too large for this machine")
    expect(doubt).to_have_text(
        "This model is too large for this machine, as far as can be told beforehand.Create it all the same"
    )
    expect(page.locator(".make .verdict")).to_have_attribute("data-verdict", "does not fit")
    with Database.open(lab.home) as db:
        assert len(projects(db)) == 1
    page.get_by_role("button", name="Create it all the same").click()
    expect(page.locator("[data-do=project-notice]")).to_have_text(
        'Project "all the same" is made and open. The engine writes its first pairs.'
    )
    expect(doubt).to_have_count(0)
    with Database.open(lab.home) as db:
        assert [project.name for project in projects(db)] == ["Tales", "all the same"]
