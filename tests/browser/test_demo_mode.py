"""Demo mode on a Space with four browsers: visitors watch the recording, start runs and wait in the queue; then the reset."""

import re

import pytest
from browser_lab import press_key
from helpers import control, expect_text, open_tab, wait_until
from playwright.sync_api import expect
from prepared_labs import add_labels, idle_engine, idle_lab, without_engine

from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, JobKind, RunStatus, Source
from rlhf_lab.common.paths import run_folder
from rlhf_lab.common.records import VISITOR_RUN, Job, StepResult
from rlhf_lab.jobs import queue
from rlhf_lab.store.database import Database
from rlhf_lab.store.label_snapshots import snapshot_labels
from rlhf_lab.store.reward_models import add_reward_model, reward_models
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import create_run, pending_events, runs, set_run_status
from rlhf_lab.store.votes import vote_counts

SECRET = "three small owls"
BAND = ".lab-train .lab-replay"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A Space in demo mode whose operator has labelled 8 pairs and trained a reward model; the fourth run makes a reset due."""
    environment = {"SPACE_ID": "somebody/lab", "SYSTEM": "spaces", "RLHF_LAB_OPERATOR_SECRET": SECRET}
    options = ("--demo-mode", "max_steps=40", "reset_runs=4")
    lab = idle_lab(tmp_path_factory.mktemp("demo") / "home", options=options, environment=environment)
    with Database.open(lab.home) as db:
        add_labels(db, 1, Source.HUMAN, 8)
        report = {"accuracy": 0.8, "accuracy_low": 0.7, "accuracy_high": 0.9, "train_accuracy": 0.9, "folds": 3}
        snapshot = snapshot_labels(db, 1, Source.HUMAN)
        add_reward_model(db, 1, "x", config={}, report=report, snapshot=snapshot)
    with without_engine(lab):
        yield lab


def begin_run(db, run_id: int) -> Job:
    """Do the first step of the next run, as the engine does."""
    job = queue.claim(db, [JobKind.TRAIN_POLICY], idle_engine(db))
    assert job is not None
    assert job.payload["run_id"] == run_id
    set_run_status(db, run_id, RunStatus.RUNNING)
    record_step(db, run_id, StepResult(1, {"objective/scores": 0.1, "objective/kl": 0.2}))
    return job


def stop_run(db, page, job: Job) -> None:
    """Stop the run on the page; the engine does as it is told."""
    run_id = job.payload["run_id"]
    control(page, "demo-stop").click()
    wait_until(lambda: pending_events(db, run_id), "the request to stop", page)
    set_run_status(db, run_id, RunStatus.STOPPED)
    queue.finish(db, job.id, {})


def start_run(page, steps: int) -> None:
    open_tab(page, "Train")
    for name, value in (("steps", steps), ("responses", 4), ("tokens", 8)):
        control(page, f"demo-{name}").fill(str(value))
    control(page, "demo-start").click()


def watch_recording(page) -> None:
    """Curves and texts of the recording, which says that it is one."""
    control(page, "replay").first.click()
    expect(page.locator(BAND)).to_contain_text("a replay, not training")
    expect(page.locator(".lab-train .chart .main-svg").first).to_be_visible()
    expect(page.locator(".lab-train .sample").first).to_be_visible()


def post_start(page, lab, settings: dict) -> str:
    """Start a run as a program would, with a page's cookies. Returns the text of the reply."""
    return page.request.post(f"{lab.url}lab-api/demo_run/start", data=settings).text()


def test_visitors_start_runs_in_a_queue_and_a_reset_removes_them(lab, open_page):
    operator, ann, bob, cy = (open_page(lab) for _ in range(4))
    operator.goto(f"{lab.url}enter?key={SECRET}")
    press_key(ann, "1")
    expect(ann.get_by_text("Duplicate this Space")).to_have_attribute(
        "href", re.compile("spaces/somebody/lab.duplicate=true")
    )
    for page in (ann, bob):
        watch_recording(page)
    open_tab(operator, "Train")
    expect(control(operator, "start")).to_be_visible()
    expect(control(operator, "demo-start")).to_be_hidden()
    expect_text(bob, "demo-notice", "Next reset: ")
    open_tab(bob, "Train")
    limits = {"steps": 41, "responses": 4, "tokens": 8}
    assert "steps = 41: give a whole number from 1 to 40." in post_start(bob, lab, limits)

    start_run(ann, 40)
    expect_text(ann, "demo-status", "Your run 1 ")
    expect(ann.locator(BAND)).to_have_count(0)
    expect(bob.locator(f"{BAND} .live")).to_have_text("Run 1 waits to train.Watch it live")
    control(bob, "replay-live").click()
    expect(bob.locator(BAND)).to_have_count(0)
    start_run(bob, 40)
    expect_text(bob, "demo-status", "Your run 2 waits: 1 run before yours.")
    open_tab(cy, "Train")
    expect_text(cy, "demo-status", "2 runs before yours: it begins when they have ended.")
    for page in (ann, bob):
        for name in ("start", "start-open"):
            expect(control(page, name)).to_be_hidden()
    expect(control(bob, "stop").first).to_be_disabled()
    for page in (operator, ann, bob):  # everybody watches the active run
        expect(page.locator(".lab-train")).to_have_attribute("data-run", "1")
    assert "You already have a run: run 2" in post_start(bob, lab, limits | {"steps": 2})
    folder = run_folder(lab.home, 1)
    folder.mkdir(parents=True)

    with Database.open(lab.home) as db:
        job = begin_run(db, 1)
        expect(bob.locator(".lab-train [data-step]")).to_contain_text("step 1")
        stop_run(db, ann, job)
        for name in ("Cy", "Dee"):  # one address brings at most half of the runs of an early reset
            run = create_run(db, 1, 1, name, config={}, manifest={VISITOR_RUN: True}, total_steps=1)
            with db.write() as conn:
                conn.exec_driver_sql(
                    f"UPDATE runs SET step = 1, status = 'done', updated_at = updated_at + 1 WHERE id = {run.id}"
                )
        job = begin_run(db, 2)  # makes a reset due
        expect_text(bob, "demo-notice", "The demo is reset when all work in progress has ended.")
        third = post_start(cy, lab, limits | {"steps": 2})
        assert "The demo is about to be reset" in third
        stop_run(db, bob, job)
        for other in queue.jobs(db, statuses=UNFINISHED_JOB_STATUSES):
            queue.cancel(db, other.id)
        wait_until(lambda: not runs(db), "the reset", bob)
        assert sum(vote_counts(db, 1)[Source.HUMAN].values()) == 8  # without Ann's
        assert len(reward_models(db, 1)) == 1
    assert not folder.exists()
    expect(operator.locator(".lab-train")).to_contain_text("No run yet.")
    expect_text(bob, "demo-notice", "Next reset: ")
    expect(control(bob, "demo-start")).to_be_enabled()
    open_tab(ann, "Label")
    press_key(ann, "2")
