"""A lab whose disk was wiped, as on a Space, is restored from its repository on the Hub: labels, curves and samples."""

import shutil

import pytest
from browser_lab import Lab, press_key
from helpers import ENGINE_TIMEOUT_MS, control, open_tab, wait_until
from playwright.sync_api import expect
from prepared_labs import FAST_CONFIG, add_labels, submit_reward_training, wait_for_job
from support.mirror_hub import MirrorHub

from rlhf_lab.common.enums import RunStatus, Source
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.jobs import run_control
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store.database import Database
from rlhf_lab.store.runs import get_run

STEPS = 3
#: JavaScript: the points of every curve, by metric.
CURVES = """() => Object.fromEntries([...document.querySelectorAll('.lab-train [data-metric]')]
    .filter((one) => one.querySelector('.js-plotly-plot')?.data)
    .map((one) => [one.dataset.metric, one.querySelector('.js-plotly-plot').data.map((line) => [...line.x, ...line.y])]))"""
#: JavaScript: whether every curve has the points of all steps.
ARE_DRAWN = f"""() => {{
    const curves = Object.values(({CURVES})());
    return curves.length > 5 && curves.every((lines) => lines[0]?.length === {2 * STEPS}); }}"""


@pytest.fixture
def hub(tmp_path):
    server = MirrorHub(tmp_path / "hub")
    with server.running():
        yield server


@pytest.fixture
def lab(hub, tmp_path):
    environment = hub.environment(tmp_path / "cache") | {"RLHF_LAB_MIRROR": "someone/lab"}
    lab = Lab(tmp_path / "home", environment=environment)
    yield lab
    lab.stop()


def train(lab):
    """14 labels of Ann, a reward model, and a finished run."""
    with Database.open(lab.home) as db:
        project = new_project(db)
        add_labels(db, project.id, Source.HUMAN, 14)
        job = submit_reward_training(db, project.id, Source.HUMAN, FAST_CONFIG)
        lab.start()
        wait_for_job(db, job)
        config = PolicyConfig(steps=STEPS, batch_size=4, sample_every=2)
        run = run_control.start_run(db, lab.home, project.id, config, name="finished")
        wait_until(lambda: get_run(db, run.id).status is RunStatus.DONE, "the end of the run")


def shown_state(page):
    """What a person sees of their labels and of the run."""
    open_tab(page, "Label")
    page.locator("details.history summary").click()
    page.wait_for_selector(".earlier [data-do=amend]")
    state = {"labels": page.inner_text(".earlier")}
    badges = page.locator(".lab-header .lab-badge").all_inner_texts()
    state["header"] = [badge for badge in badges if "label" in badge or "accuracy" in badge]
    open_tab(page, "Train")
    page.wait_for_function(ARE_DRAWN, timeout=ENGINE_TIMEOUT_MS)
    state["curves"] = page.evaluate(CURVES)
    for step, key in ((STEPS, "End"), (0, "Home")):
        control(page, "scrub").press(key)
        expect(page.locator(".lab-train .side .now .tag").first).to_have_text(f"step {step}" if step else "base")
        state[f"samples of step {step}"] = page.inner_text(".lab-train .side")
    return state


def test_labels_curves_and_samples_come_back_on_a_new_disk(lab, open_page):
    train(lab)
    page = open_page(lab)
    for key in "12":
        press_key(page, key)
    expect(control(page, "mirror")).to_contain_text("Saved ", timeout=ENGINE_TIMEOUT_MS)
    before = shown_state(page)
    assert "16 labels" in before["header"]
    assert len(before["samples of step 0"].splitlines()) > 10
    browser_data = page.context.storage_state()
    page.context.close()
    lab.stop()  # the page saves once more
    shutil.rmtree(lab.home)

    lab.start()
    assert "The lab was restored from someone/lab" in lab.log.read_text()
    after = shown_state(open_page(lab, storage_state=browser_data))
    for part, value in before.items():
        assert after[part] == value, part
