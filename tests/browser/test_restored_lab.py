"""A lab whose disk was wiped, as on a Space, is restored from its repository on the Hub: labels, curves and samples."""

import shutil

import pytest
from browser_lab import press_key
from helpers import ENGINE_TIMEOUT_MS, control, open_tab
from playwright.sync_api import expect
from prepared_labs import add_labels, idle_lab
from support.mirror_hub import MirrorHub

from rlhf_lab.common.enums import RunStatus, Source
from rlhf_lab.common.records import Sample, StepResult
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.store.database import Database
from rlhf_lab.store.label_snapshots import snapshot_labels
from rlhf_lab.store.projects import current_project
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import create_run, set_run_status
from rlhf_lab.ui.shared.charts import CURVES as CHARTS

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
    lab = idle_lab(tmp_path / "home", environment=environment)
    with Database.open(lab.home) as db:
        add_run(db)
    yield lab.start()
    lab.stop()


def add_run(db):
    """Seven labels of Ann, a reward model, and a finished run."""
    project = current_project(db)
    add_labels(db, project.id, Source.HUMAN, 7)
    report = {"accuracy": 0.8, "accuracy_low": 0.7, "accuracy_high": 0.9, "train_accuracy": 0.9, "folds": 3}
    snapshot = snapshot_labels(db, project.id, Source.HUMAN)
    model = add_reward_model(db, project.id, "x", config={}, report=report, snapshot=snapshot)
    config = PolicyConfig(steps=STEPS).to_dict()
    run = create_run(db, project.id, model.id, "finished", config=config, manifest={}, total_steps=STEPS)
    for step in range(STEPS + 1):
        samples = [Sample("A tale", seed, f"Text {seed} of step {step}", 0.1 * step) for seed in range(6)]
        values = {curve.metric: 0.1 * step for curve in CHARTS} if step else {}
        record_step(db, run.id, StepResult(step, values, [], samples))
    set_run_status(db, run.id, RunStatus.DONE)


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
    page = open_page(lab)
    for key in "12":
        press_key(page, key)
    expect(control(page, "mirror")).to_contain_text("Saved ", timeout=ENGINE_TIMEOUT_MS)
    before = shown_state(page)
    assert "9 labels" in before["header"]
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
