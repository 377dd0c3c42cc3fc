"""The settings of a new run: folded groups, and an algorithm that fills in what goes well with it."""

import re

from helpers import PATIENCE
from playwright.sync_api import TimeoutError, expect

from rlhf_lab.common.enums import RunStatus, Source
from rlhf_lab.common.records import LabelSnapshot
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import current_project
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.runs import create_run, set_run_status

FILLED_IN = ("group_size", "epochs", "minibatches", "batch_size")


def test_choosing_an_algorithm_fills_in_its_settings(lab, open_page):
    page = open_page(lab)
    page.get_by_role("tab", name="Train", exact=True).click()
    shown = "document.querySelector('#start-settings').style.setProperty('display', 'block', 'important')"
    page.locator("#start-settings").wait_for(state="attached")
    page.evaluate(shown)  # else only once there is a reward model
    page.get_by_role("button", name="All settings of the new run").click()
    groups = page.locator("[id^=start-group-]")
    groups.first.wait_for()
    assert [groups.nth(i).get_attribute("id") for i in range(groups.count())] == [
        f"start-group-{name}"
        for name in ("run", "rollouts", "reward", "kl", "advantages", "policy-loss", "value", "lora")
    ]
    for name in ("Run", "Rollouts"):
        page.locator(f"#start-group-{name.lower()} button", has_text=re.compile(f"^{name}")).first.click()
    choose_until_filled_in(page, "rloo")
    page.locator("#start-group-policy-loss button", has_text=re.compile("^Policy loss")).first.click()
    clip = page.locator("#start-cliprange")
    expect(clip.locator("textarea, input")).to_be_disabled()
    page.wait_for_function(  # a mouse that moves over it, until the page has heard of the algorithm
        """() => { const node = document.querySelector('#start-cliprange');
            node.dispatchEvent(new MouseEvent('mouseover', {bubbles: true}));
            return node.title.includes('rloo does not read this setting, only ppo, grpo'); }"""
    )
    expect(page.locator("#start-entropy_coef").locator("textarea, input")).to_be_enabled()


def choose_until_filled_in(page, name):
    """Choose an algorithm in the fold, until every field shows what is recommended. In the moments after a fold was opened Gradio
    draws a field but does not listen to it yet, and neither sends nor shows anything: a test is quick enough for them."""
    for choice in (name, "ppo", name, "ppo", name):
        recommended = PolicyConfig.for_algorithm(choice)
        page.locator("#start-algorithm input").click()
        page.get_by_role("option", name=choice, exact=True).click()
        try:
            page.wait_for_function(
                """given => Object.entries(given).every(([name, value]) =>
                    document.querySelector(`#start-${name} textarea, #start-${name} input`)?.value === value)""",
                arg={field: str(getattr(recommended, field)) for field in FILLED_IN}, timeout=PATIENCE / 3,
            )  # fmt: skip
        except TimeoutError:
            continue
        if choice == name:
            return
    shown = {
        field: page.locator(f"#start-{field}").locator("textarea, input").first.input_value() for field in FILLED_IN
    }
    raise AssertionError(f"the fields show {shown}")


def test_a_reload_keeps_the_open_screen_and_the_projector(lab, open_page):
    page = open_page(lab)
    page.get_by_role("tab", name="Compare", exact=True).click()
    page.click("button.projector")
    page.reload()
    expect(page.get_by_role("tab", name="Compare", exact=True)).to_have_attribute("aria-selected", "true")
    expect(page.locator("button.projector")).to_have_attribute("aria-pressed", "true")
    page.click("button.projector")
    page.get_by_role("tab", name="Label", exact=True).click()
    page.reload()
    expect(page.locator("button.projector")).to_have_attribute("aria-pressed", "false")
    expect(page.get_by_role("tab", name="Label", exact=True)).to_have_attribute("aria-selected", "true")


def opened(page, name: str) -> None:
    expect(page.get_by_role("tab", name=name, exact=True)).to_have_attribute("aria-selected", "true")


def test_back_and_forward_go_from_screen_to_screen_and_a_link_opens_one(lab, open_page):
    page = open_page(lab)
    page.get_by_role("tab", name="Reward model", exact=True).click()
    expect(page).to_have_url(f"{lab.url}#reward-model")
    page.get_by_role("tab", name="Runs & data", exact=True).click()
    page.get_by_role("tab", name="Runs & data", exact=True).click()  # it is open: no step of its own
    expect(page).to_have_url(f"{lab.url}#runs-data")
    opened(page, "Runs & data")
    page.evaluate("history.back()")
    opened(page, "Reward model")
    page.evaluate("history.back()")
    opened(page, "Label")
    expect(page).to_have_url(lab.url)
    page.evaluate("history.forward()")
    opened(page, "Reward model")
    page.evaluate("history.forward()")
    opened(page, "Runs & data")
    other = page.context.new_page()
    other.goto(f"{lab.url}#people")
    opened(other, "People")


def test_work_with_nothing_left_to_count_is_finishing(lab, open_page):
    page, job = open_page(lab), {"words": "training the reward model", "progress": 0.99, "percent": True, "eta_s": 3.0}

    def working(route):
        route.fulfill(json=route.fetch().json() | {"job": job})

    page.route(lambda url: "component_server" in url, working)
    what = page.locator(".lab-header .job .what")
    expect(what).to_have_text("training the reward model 99 % · 3 s left")
    job["eta_s"] = 0.3
    expect(what).to_have_text("training the reward model 99 % · finishing")
    job |= {"progress": 1.0, "eta_s": None}
    expect(what).to_have_text("training the reward model 100 % · finishing")
    job |= {
        "words": "run 1, step 26 of 40 for " + "a long name " * 9,
        "progress": 0.65,
        "percent": False,
        "eta_s": 190.0,
    }
    left = what.locator(".left")
    expect(left).to_have_text(" · 3 min 10 s left")  # the name is cut, not what people look for
    edges = [box["x"] + box["width"] for box in (left.bounding_box(), what.bounding_box())]
    assert edges[0] <= edges[1] + 0.5
    assert left.evaluate("e => e.scrollWidth <= e.clientWidth")
    page.unroute_all(behavior="wait")


def test_on_a_phone_every_tab_can_be_reached(lab, open_page):
    page = open_page(lab, viewport={"width": 390, "height": 800})
    expect(page.get_by_role("tab")).to_have_count(7)
    page.get_by_role("tab", name="Project", exact=True).click()
    expect(page.locator(".lab-project")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def taught(db, source: Source) -> int:
    """A reward model that nothing was trained for."""
    snapshot, report = LabelSnapshot((), "", source), {"accuracy": 0.8, "accuracy_low": 0.7, "accuracy_high": 0.9}
    return add_reward_model(db, current_project(db).id, "x", config={}, report=report, snapshot=snapshot).id


def test_a_judges_newer_reward_model_is_told_of_and_what_people_taught_stays_chosen(lab, open_page):
    with Database.open(lab.home) as db:
        own, judged = taught(db, Source.HUMAN), taught(db, Source.SIMULATED)
        page = open_page(lab)
        page.get_by_role("tab", name="Train", exact=True).click()
        reward, note = page.locator("[data-do=start-reward]"), page.locator("[data-do=start-note]")
        expect(reward).to_have_value(str(own))
        expect(note).to_contain_text(f"Reward model {judged} is newer, but a simulated judge taught it.")
        reward.select_option(str(judged))
        expect(note).not_to_contain_text("is newer")
        later = taught(db, Source.HUMAN)  # the form is drawn anew, and keeps what was chosen
        expect(reward.locator("option").first).to_have_attribute("value", str(later))
        expect(reward).to_have_value(str(judged))
        learns = {"learning": "A reward model learns from people's labels.", "training": 0.25}

        def learning(route):
            reply = route.fetch().json()
            route.fulfill(json=reply | learns if "learning" in reply and "chosen" in reply else reply)

        page.route(re.compile("component_server"), learning)
        expect(note).to_contain_text(
            f"{learns['learning']} A run started now learns from reward model {judged} and can be"
        )
        reward.evaluate("e => { e.seen = true; }")
        learns["training"] = 0.5
        page.wait_for_timeout(3000)
        assert reward.evaluate("e => e.seen")  # a list that somebody has open is not drawn anew at every per cent
        page.unroute_all(behavior="wait")


def test_a_setting_of_a_run_that_was_emptied_shows_what_is_in_force_again(lab, open_page):
    with Database.open(lab.home) as db:
        config = PolicyConfig(beta=0.25).to_dict()
        model = taught(db, Source.HUMAN)
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
        set_run_status(db, run.id, RunStatus.STOPPED)
