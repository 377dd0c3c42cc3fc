"""Settings of a new run, of the header and of an active run; navigation between screens."""

import re

import pytest
from browser_lab import current_pair, press_key
from helpers import PAGE_TIMEOUT_MS, change_replies, open_tab, wait_until
from playwright.sync_api import TimeoutError, expect
from prepared_labs import add_labels

from rlhf_lab.common.enums import RunStatus, Source
from rlhf_lab.common.records import LabelSnapshot, StepResult
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import current_project
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import create_run, events, runs, set_run_status
from rlhf_lab.ui.run_views.run_comparison import MAX_RUNS

UNMEASURED = {"accuracy": None, "accuracy_low": None, "accuracy_high": None}
FILLED_FIELDS = ("group_size", "epochs", "minibatches", "batch_size")


def test_choosing_an_algorithm_fills_in_its_settings(lab, open_page):
    page = open_page(lab)
    page.get_by_role("tab", name="Train", exact=True).click()
    shown = "document.querySelector('#start-settings').style.setProperty('display', 'block', 'important')"
    page.locator("#start-settings").wait_for(state="attached")
    page.evaluate(shown)  # otherwise hidden until there is a reward model
    page.get_by_role("button", name="All settings of the new run").click()
    groups = page.locator("[id^=start-group-]")
    groups.first.wait_for()
    assert [groups.nth(i).get_attribute("id") for i in range(groups.count())] == [
        f"start-group-{name}"
        for name in ("run", "rollouts", "reward", "kl", "advantages", "policy-loss", "value", "offline-methods", "lora")
    ]
    for name in ("Run", "Rollouts"):
        page.locator(f"#start-group-{name.lower()} button", has_text=re.compile(f"^{name}")).first.click()
    choose_until_filled_in(page, "rloo")
    page.locator("#start-group-policy-loss button", has_text=re.compile("^Policy loss")).first.click()
    clip = page.locator("#start-cliprange")
    expect(clip.locator("textarea, input")).to_be_disabled()
    page.wait_for_function(  # hover until the page knows the new algorithm
        """() => { const node = document.querySelector('#start-cliprange');
            node.dispatchEvent(new MouseEvent('mouseover', {bubbles: true}));
            return node.title.includes('rloo does not use this setting (only for ppo, grpo)'); }"""
    )
    expect(page.locator("#start-entropy_coef").locator("textarea, input")).to_be_enabled()


def choose_until_filled_in(page, name):
    """Choose an algorithm until every field shows its recommended value.

    Right after a section is opened, Gradio ignores the events of its fields, so the choice is repeated.
    """
    for choice in (name, "ppo", name, "ppo", name):
        recommended = PolicyConfig.for_algorithm(choice)
        page.locator("#start-algorithm input").click()
        page.get_by_role("option", name=choice, exact=True).click()
        try:
            page.wait_for_function(
                """given => Object.entries(given).every(([name, value]) =>
                    document.querySelector(`#start-${name} textarea, #start-${name} input`)?.value === value)""",
                arg={field: str(getattr(recommended, field)) for field in FILLED_FIELDS}, timeout=PAGE_TIMEOUT_MS / 3,
            )  # fmt: skip
        except TimeoutError:
            continue
        if choice == name:
            return
    shown = {
        field: page.locator(f"#start-{field}").locator("textarea, input").first.input_value() for field in FILLED_FIELDS
    }
    raise AssertionError(f"the fields show {shown}")


def expect_open(page, name: str) -> None:
    expect(page.get_by_role("tab", name=name, exact=True)).to_have_attribute("aria-selected", "true")


def test_the_address_the_screen_and_the_projector_mode_survive(lab, open_page):
    page = open_page(lab, viewport={"width": 390, "height": 800})
    expect(page.get_by_role("tab")).to_have_count(9)
    page.get_by_role("tab", name="Reward model", exact=True).click()
    expect(page).to_have_url(f"{lab.url}#reward-model")
    page.get_by_role("tab", name="Runs & data", exact=True).click()
    page.get_by_role("tab", name="Runs & data", exact=True).click()  # already open: no new history entry
    expect(page).to_have_url(f"{lab.url}#runs-data")
    expect_open(page, "Runs & data")
    for step, name in (
        ("back", "Reward model"),
        ("back", "Label"),
        ("forward", "Reward model"),
        ("forward", "Runs & data"),
    ):
        page.evaluate(f"history.{step}()")
        expect_open(page, name)
        if name == "Label":
            expect(page).to_have_url(lab.url)
    page.evaluate("location.hash = '#comp'")  # a short form
    expect_open(page, "Compare")
    page.set_viewport_size({"width": 1280, "height": 900})  # a phone has no projector mode
    page.click("[data-do=projector]")
    page.reload()
    expect_open(page, "Compare")
    expect(page.locator("[data-do=projector]")).to_have_attribute("aria-pressed", "true")
    page.click("[data-do=projector]")
    page.goto(f"{lab.url}?a#people")  # a link, which loads the page
    expect_open(page, "People")
    expect(page.locator("[data-do=projector]")).to_have_attribute("aria-pressed", "false")


def test_header_shows_the_job_and_follows_the_open_screen(lab, open_page):
    """The replies about the header are those of an engine that has not reported its device yet, before two votes."""
    page, first = open_page(lab), {}
    current_pair(page)
    job = {"label": "run 7, step 3 of 40", "run": 7, "step": 3, "progress": 0.1, "show_percent": False, "eta_s": None}
    engine = {"label": "engine works", "style": "busy", "description": "It goes on.", "device": "", "memory_mib": None}
    engine["is_working"] = True

    def outdated(reply):
        first.update(first or reply)
        return first | {"job": job, "engine": engine}

    change_replies(page, "header/status", outdated)
    what, machine = page.locator(".lab-header .job .what"), page.locator(".lab-header .machine")
    expect(what).to_have_text("run 7, step 3 of 40")
    expect(machine).to_have_text("engine works")
    engine |= {"device": "cpu", "memory_mib": 512.0}
    expect(machine).to_have_text("cpu · 537 MB")  # 512 · 1.048576
    for run, step, shown in ((7, 5, 5), (8, 9, 3)):
        page.evaluate(
            f"window.dispatchEvent(new CustomEvent('lab-step', {{ detail: {{ run: {run}, step: {step} }} }}))"
        )
        assert what.inner_text() == f"run 7, step {shown} of 40"
    press_key(page, "1")
    press_key(page, "2")
    expect(page.locator(".lab-header")).to_contain_text(f"{first['labels'] + 2} labels")
    job |= {"label": "run 1, step 26 of 40 for " + "a long name " * 9, "progress": 0.65, "eta_s": 190.0}
    left = what.locator(".left")
    expect(left).to_have_text(" · 3 min left")  # the name is truncated, not the remaining time
    edges = what.evaluate("what => [what.querySelector('.left'), what].map((one) => one.getBoundingClientRect().right)")
    assert edges[0] <= edges[1] + 0.5
    assert left.evaluate("e => e.scrollWidth <= e.clientWidth")
    page.unroute_all(behavior="wait")


def test_a_run_that_starts_while_the_list_is_open_is_chosen_for_comparison(lab, idle_project, open_page):
    with Database.open(lab.home) as db:
        labels = LabelSnapshot((), "", Source.SIMULATED)
        model = add_reward_model(db, idle_project.id, "x", config={}, report=UNMEASURED, snapshot=labels)

        def add(name):
            run = create_run(
                db, idle_project.id, model.id, name, config=PolicyConfig(steps=9).to_dict(), manifest={}, total_steps=9
            )
            set_run_status(db, run.id, RunStatus.STOPPED)
            return run.id

        first = add("first")
        page = open_page(lab)
        open_tab(page, "Runs & data")
        box = "[data-do=run-choose][data-run='{}']"
        expect(page.locator(box.format(first))).to_be_checked()
        page.locator(box.format(first)).uncheck()
        second = add("second")
        expect(page.locator(box.format(second))).to_be_checked()
        expect(page.locator(box.format(first))).not_to_be_checked()
        expect(page.locator(".lab-runs .legend li")).to_have_text([f"{second} second"])
        for number in range(MAX_RUNS):
            add(f"more {number}")
        expect(page.locator("[data-do=run-choose]")).to_have_count(MAX_RUNS + 2)
        expect(page.locator("[data-do=run-choose]:checked")).to_have_count(MAX_RUNS)
        page.locator("[data-do=run-choose]:not(:checked)").first.click()
        expect(page.locator("[data-do=runs-notice]")).to_contain_text(f"At most {MAX_RUNS} runs")


def add_model(db, source: Source) -> int:
    """Add a reward model without training. Returns its id."""
    snapshot, report = LabelSnapshot((), "", source), {"accuracy": 0.8, "accuracy_low": 0.7, "accuracy_high": 0.9}
    return add_reward_model(db, current_project(db).id, "x", config={}, report=report, snapshot=snapshot).id


def test_default_reward_model_is_from_people_even_if_a_judge_has_a_newer_one(lab, open_page):
    with Database.open(lab.home) as db:
        human, judged = add_model(db, Source.HUMAN), add_model(db, Source.SIMULATED)
        page = open_page(lab)
        page.get_by_role("tab", name="Train", exact=True).click()
        reward, note = page.locator("[data-do=start-reward]"), page.locator("[data-do=start-note]")
        expect(reward).to_have_value(str(human))
        expect(note).to_contain_text(
            f"Reward model {human} is preselected because it is the newest from people's labels"
        )
        reward.select_option(str(judged))
        expect(note).not_to_contain_text("is preselected")
        later = add_model(db, Source.HUMAN)  # the form is rebuilt and keeps the choice
        expect(reward.locator("option").first).to_have_attribute("value", str(later))
        expect(reward).to_have_value(str(judged))
        training_reply = {
            "training_text": "A reward model learns from people's labels.",
            "training_progress": 0.25,
        }
        change_replies(page, "start_run/options", lambda reply: reply | training_reply)
        expect(note).to_contain_text(
            f"{training_reply['training_text']} A run started now learns from reward model {judged} and can be"
        )
        reward.evaluate("e => { e.seen = true; }")
        training_reply["training_progress"] = 0.5
        page.wait_for_timeout(3000)
        assert reward.evaluate("e => e.seen")  # an open list is not rebuilt with every percent
        page.unroute_all(behavior="wait")


@pytest.mark.parametrize("control", ["start-steps", "start-size"])
def test_typed_numbers_survive_a_redraw_of_the_form(lab, idle_project, open_page, control):
    with Database.open(lab.home) as db:
        add_model(db, Source.HUMAN)
        page = open_page(lab)
        page.get_by_role("tab", name="Train", exact=True).click()
        steps, models = page.locator(f"[data-do={control}]"), page.locator("[data-do=start-reward] option")
        expect(page.locator("[data-do=start]")).to_be_enabled()
        steps.press("ControlOrMeta+a")
        steps.press_sequentially("123")  # the field still has the focus: this is not entered yet
        add_model(db, Source.HUMAN)
        expect(models).to_have_count(3)  # two, and none
        expect(steps).to_have_value("123")
        expect(steps).to_be_focused()
        steps.press("Enter")
        expect(steps).to_have_value("123")


def test_the_size_of_a_step_stands_beside_the_number_of_steps(lab, idle_project, open_page):
    """The setting is another one for a method that learns from fixed texts; what was entered stays."""
    with Database.open(lab.home) as db:
        add_model(db, Source.HUMAN)
        add_labels(db, idle_project.id, Source.SIMULATED, 4)
        page = open_page(lab)
        page.get_by_role("tab", name="Train", exact=True).click()
        size, field = page.locator("[data-do=start-size]"), page.locator(".field:has([data-do=start-size])")
        expect(field).to_have_text("responses per step")
        expect(size).to_have_value("32")
        size.fill("12")
        size.press("Enter")
        page.locator("[data-do=start-algorithm]").select_option("sft")
        expect(field).to_have_text("texts per step")
        expect(size).to_have_value("16")
        page.locator("[data-do=start-algorithm]").select_option("dpo")
        expect(field).to_have_text("pairs per step")
        page.locator("[data-do=start-algorithm]").select_option("grpo")
        expect(field).to_have_text("responses per step")
        expect(size).to_have_value("12")
        page.locator("[data-do=start]").click()
        wait_until(lambda: runs(db, idle_project.id), "a run")
        assert runs(db, idle_project.id)[0].config["batch_size"] == 12


def test_emptied_setting_of_a_run_shows_the_value_in_use(lab, open_page):
    with Database.open(lab.home) as db:
        config = PolicyConfig(beta=0.25, kl_budget=4.0).to_dict()
        model = add_model(db, Source.HUMAN)
        run = create_run(db, current_project(db).id, model, "", config=config, manifest={}, total_steps=40)
        set_run_status(db, run.id, RunStatus.RUNNING)
        page = open_page(lab)
        page.get_by_role("tab", name="Train", exact=True).click()
        beta = page.locator("[data-do=knob-beta]")
        expect(beta).to_have_value("0.25")
        for leave in ("Enter", "Tab"):
            beta.fill("")
            beta.press(leave)
            expect(beta).to_have_value("0.25")
        expect(page.locator("[data-do=error]")).to_be_hidden()
        who, automatic = page.locator("[data-do=set-by-beta]"), page.locator("[data-do=automatic-beta]")
        expect(who).to_have_text("set automatically")
        record_step(db, run.id, StepResult(1, {"objective/kl_coef": 0.01943, "lr": config["lr"]}))
        expect(beta).to_have_value("0.0194")
        record_step(db, run.id, StepResult(2, {"objective/kl_coef": 2.2e-11, "lr": config["lr"]}))
        expect(beta).to_have_value("0")
        expect(automatic).to_be_hidden()
        beta.fill("0.5")
        page.click("[data-do=set-beta]")
        expect(who).to_have_text("set by hand")
        expect(beta).to_have_value("0.5")
        automatic.click()
        expect(who).to_have_text("set automatically")
        expect(page.locator("[data-asked]")).to_contain_text("beta automatic")
        assert [event.payload["value"] for event in events(db, run.id)] == [0.5, "automatic"]
        set_run_status(db, run.id, RunStatus.STOPPED)
