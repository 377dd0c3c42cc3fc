"""Estimates of how long a stage will take, from the measurements of the lab's engine."""

import re
from pathlib import Path

import pytest
from helpers import control, open_screen, open_section, wait_until
from playwright.sync_api import expect
from prepared_labs import FAST_CONFIG, lab_with_reward_models

from rlhf_lab.common.enums import Source
from rlhf_lab.jobs.time_estimate import project_speed
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import current_project

SENTENCE = re.compile(r"^(About|Less than|Up to) .* on this machine\.$")


@pytest.fixture(scope="module")
def trained_lab(tmp_path_factory):
    home: Path = tmp_path_factory.mktemp("estimates") / "home"
    with lab_with_reward_models(home, Source.SIMULATED, FAST_CONFIG) as lab, Database.open(home) as db:

        def is_measured() -> bool:
            speed = project_speed(home, db, current_project(db))
            return speed is not None and speed.is_measured

        wait_until(is_measured, "the rates of the engine")
        yield lab


def test_each_stage_is_estimated_beside_its_button(trained_lab, open_page):
    page = open_screen(trained_lab, open_page, "Reward model")
    expect(control(page, "estimate").first).to_have_text(SENTENCE)
    page.get_by_role("tab", name="Compare", exact=True).click()
    expect(page.locator(".lab-compare [data-do=estimate]")).to_have_text(SENTENCE)
    expect(control(page, "blind-estimate")).to_have_text("")
    page.select_option("[data-do=model-2]", "base/best/4")
    expect(control(page, "blind-estimate")).to_have_text(SENTENCE)
    page.locator(".fold summary").click()
    page.fill("[data-do=samples]", "many")
    expect(page.locator(".lab-compare [data-do=estimate]")).to_have_text("")


def test_the_estimate_of_a_run_follows_its_settings(trained_lab, open_page):
    """A choice made as soon as the form is visible stays, although the values of the preset arrive later."""
    page = open_screen(trained_lab, open_page, "Train")
    control(page, "start-algorithm").select_option("sft")
    expect(control(page, "start")).to_have_text("Start SFT")
    expect(control(page, "start-estimate")).to_have_text(SENTENCE)
    expect(control(page, "start")).to_have_text("Start SFT")
    expect(control(page, "start")).to_be_enabled()  # the values of SFT have arrived
    page.get_by_role("button", name="All settings of the new run").click()
    steps = page.locator("#start-steps").locator("textarea, input")
    open_section(page.locator("#start-group-run button", has_text=re.compile("^Run")).first, steps)
    estimate = control(page, "start-estimate")
    steps.fill("900000")
    expect(estimate).to_have_text(re.compile("^About .* hours on this machine"))
    expect(control(page, "start-steps")).to_have_value("900000")
    steps.fill("many")
    expect(estimate).to_have_text("")
    control(page, "start-steps").fill("800000")
    control(page, "start-steps").press("Tab")
    expect(steps).to_have_value("800000")
    expect(estimate).to_have_text(re.compile("^About .* hours on this machine"))
