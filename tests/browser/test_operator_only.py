"""What only the operator may do, as the page shows it: to labellers greyed with the reason, to everybody else as ever.

Both labs of the file hold what the buttons are about: a run that goes on, one to resume, a blind test, an import, two projects.
"""

import json
import re
import subprocess
import sys
import time

import pytest
from browser_lab import ROOT, Lab
from playwright.sync_api import expect
from test_people_screen import joined, keys

from rlhf_lab.common.enums import JobKind, JobStatus, RunStatus, Source
from rlhf_lab.common.records import LabelSnapshot, StepResult
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store import tables as t
from rlhf_lab.store.blind_tests import add_test
from rlhf_lab.store.database import Database, insert_row
from rlhf_lab.store.projects import current_project, open_project
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import create_run, set_run_status

#: What the operator alone may press, by screen: all of it is there, as often as the lab is furnished for.
THEIRS = {
    "Train": ["start-open", "pause", "stop", "knob-beta", "set-beta", "knob-lr", "set-lr", "switch"],
    "Compare": ["blind-pairs", "blind-begin", "blind-rename", "blind-delete"],
    "Runs & data": [
        "run-rename", "run-resume", "run-delete", "export-labels", "export-dataset", "export-run", "export-reward-model",
        "export-source", "quality-weight", "quality-train", "data-choose", "data-hub", "data-hub-look", "data-back",
    ],
    "Reward model": ["train", "source"],
    "Project": ["project-rename", "project-open", "project-delete", "stop-engine"],
}  # fmt: skip
#: What is not shown to others at all.
HIDDEN = {
    "Label": [".talks"],
    "Train": [],
    "Compare": [],
    "Runs & data": [],
    "Reward model": ["#reward-settings"],
    "Project": [".make", "[data-do=lab-about]"],
}
#: What they may do on the same screens.
OURS = {
    "Label": ["left", "skip"], "Train": ["pick", "latest"], "Compare": ["write", "another", "blind-pick"],
    "Runs & data": ["run-choose", "run-watch"], "Reward model": ["explain"],
}  # fmt: skip
WORDS = {
    "Train": "Only the operator starts and steers runs here; you can watch.",
    "Compare": "Only the operator begins and changes blind tests here; you can judge their pairs.",
    "Runs & data": "Only the operator changes runs, trains, exports and imports here; you can look and compare.",
    "Reward model": "Only the operator trains reward models here; you can look, and ask about texts of your own.",
    "People": "Only the operator makes the labelling rules and takes people out of the lab.",
    "Project": "Only the operator opens, makes and changes projects here; you can look.",
}
SCREENS = ["Label", *WORDS]
REPORT = {"accuracy": 0.8, "accuracy_low": 0.7, "accuracy_high": 0.9, "train_accuracy": 0.9, "folds": 3}


def furnish(lab) -> None:
    """Put everything into a lab that somebody might press; no engine works on any of it."""
    votes = lab.home.parent / "votes.jsonl"
    votes.write_text(json.dumps({"prompt": "Why?", "chosen": "Because.", "rejected": "No.", "annotator": "ann"}) + "\n")
    command = [sys.executable, "-m", "rlhf_lab", "import", str(votes), "--home", str(lab.home)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    with Database.open(lab.home) as db:
        here = current_project(db).id
        new_project(db, name="Another one")
        open_project(db, here)
        models = [
            add_reward_model(db, here, "x", config={}, report=REPORT, snapshot=LabelSnapshot((), "", Source.HUMAN))
            for _ in range(2)
        ]
        going, stopped = (
            create_run(db, here, models[0].id, name, config=PolicyConfig(steps=9).to_dict(), manifest={}, total_steps=9)
            for name in ("the run that goes on", "the run that was stopped")
        )
        set_run_status(db, going.id, RunStatus.RUNNING)
        set_run_status(db, stopped.id, RunStatus.STOPPED)
        for step in (1, 2):
            record_step(db, going.id, StepResult(step, {"objective/scores": 0.1 * step, "objective/kl": 0.2}))
        asked = {"prompts": ["Once"], "checkpoint": "base"}
        writing = [at_work(db, here, JobKind.COMPLETE, **asked) for _ in range(2)]
        add_test(db, here, *writing)
        at_work(db, here, JobKind.TRAIN_POLICY, run_id=going.id)


def at_work(db, project_id: int, kind: JobKind, **payload) -> int:
    """A job that goes on, on no engine."""
    now = time.time()
    values = {"kind": kind, "status": JobStatus.RUNNING, "project_id": project_id, "payload": payload, "error": ""}
    values |= {"progress": 0.25, "best_progress": 0.0, "attempts": 0, "created_at": now, "updated_at": now}
    with db.write() as conn:
        return insert_row(conn, t.jobs, values)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    lab = Lab(tmp_path_factory.mktemp("lab") / "home", options=("--host", "0.0.0.0")).start()
    furnish(lab)
    yield lab
    lab.end()


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    lab = Lab(tmp_path_factory.mktemp("own") / "home").start()
    furnish(lab)
    yield lab
    lab.end()


def go_to(page, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()
    if name == "Runs & data":
        for fold in ("runs-quality", "runs-import"):
            if not page.locator(f"#{fold} .lab").is_visible():
                page.locator(f"#{fold} > button").click()


def named(page, what: str):
    return page.locator(f'[data-do="{what}"]').first


#: Of the named controls: [how many a person sees, how many of these take a press or a key].
STATE = """what => { const found = [...document.querySelectorAll(`[data-do="${what}"]`)].filter((one) => one.checkVisibility());
    return [found.length > 0, found.filter((one) => !one.matches(':disabled')).length]; }"""


def closed(page, what: str) -> None:
    """There, greyed, and out of reach of mouse and keys; a reader of the screen is told that it cannot be used."""
    control = named(page, what)
    expect(control).to_be_disabled()
    expect(control).to_be_visible()
    assert page.evaluate(STATE, what) == [True, 0], what
    assert control.evaluate("node => { node.focus(); node.click(); return document.activeElement !== node; }"), what
    assert named(page, what).evaluate("node => getComputedStyle(node).cursor") != "pointer", what


def open_to(page, what: str) -> None:
    expect(named(page, what)).to_be_visible()
    expect(named(page, what)).to_be_enabled()


def sees_everything(page) -> None:
    """As a page looked before anybody knew of operators."""
    for name in SCREENS:
        go_to(page, name)
        for what in THEIRS.get(name, []) + OURS.get(name, []):
            if what in ("latest", "run-delete", "export-adapter"):
                continue  # at rest for other reasons
            open_to(page, what)
        for what in HIDDEN.get(name, []):
            expect(page.locator(what).first).to_be_visible()
    go_to(page, "People")
    expect(page.locator("summary:has-text('Labelling rules')")).to_be_visible()
    assert page.locator(".lab-only").count() >= len(WORDS)
    assert [one for one in page.locator(".lab-only").all() if one.is_visible()] == []
    assert page.locator("fieldset:disabled, body.lab-guest").count() == 0


def test_a_labeller_sees_at_once_what_is_the_operators_and_who_that_is(guarded, open_page):
    page = joined(guarded, open_page, "Ann")
    sent = []
    page.on("request", lambda request: sent.append(request.url) if "/run/predict" in request.url else None)
    for name in SCREENS:
        go_to(page, name)
        if name in WORDS:
            mine = page.locator(".lab-only", has_text=WORDS[name])
            expect(mine).to_be_visible()
        for what in OURS.get(name, []):
            if what != "latest":
                open_to(page, what)
        before = len(sent)
        for what in THEIRS.get(name, []):
            closed(page, what)
        assert len(sent) == before, name
        for what in HIDDEN.get(name, []):
            expect(page.locator(what).first).to_be_hidden()
    go_to(page, "People")
    assert page.locator("summary:has-text('Labelling rules')").count() == 0


class Silent:
    """A route's handler: the header never says who operates the lab."""

    held = 0

    def __call__(self, route) -> None:
        if '"status"' in (route.request.post_data or ""):
            self.held += 1
            return None
        return route.continue_()


def test_a_page_says_so_from_its_first_moment_on_before_the_lab_has_answered_it(guarded, own, open_page):
    for page, look in ((open_page(own), open_to), (joined(guarded, open_page, "Cid"), closed)):
        silent = Silent()
        page.route(re.compile("component_server"), silent)
        page.reload()
        go_to(page, "Train")
        look(page, "start-open")
        assert silent.held > 0
        assert page.locator(".lab-header .strip").count() == 0


def test_the_operator_sees_no_such_words_and_everything_enabled(guarded, open_page):
    page = open_page(guarded)
    page.goto(f"{guarded.url}enter?key={keys(guarded)['operator']}")
    sees_everything(page)


def test_a_page_whose_visitor_ceases_to_be_the_operator_says_so_by_itself(guarded, open_page):
    page = open_page(guarded)
    page.goto(f"{guarded.url}enter?key={keys(guarded)['operator']}")
    go_to(page, "Train")
    open_to(page, "pause")
    kept = page.context.cookies()
    page.context.clear_cookies()
    for what in ("pause", "start-open", "set-lr"):
        closed(page, what)
    expect(page.locator(".lab-only", has_text=WORDS["Train"])).to_be_visible()
    page.context.add_cookies(kept)
    open_to(page, "pause")


def test_whoever_is_alone_with_the_lab_sees_no_change(own, open_page):
    sees_everything(open_page(own))


def test_the_secret_makes_everything_usable_without_a_reload_and_on_the_next_visit(guarded, open_page):
    page = joined(guarded, open_page, "Bob")
    go_to(page, "Runs & data")
    closed(page, "run-delete")
    go_to(page, "Project")
    closed(page, "stop-engine")
    page.evaluate("window.unchanged = true")
    named(page, "secret").fill(keys(guarded)["operator"])
    named(page, "secret-enter").click()
    expect(named(page, "project-notice")).to_have_text("You are the operator in this browser now.")
    sees_everything(page)
    assert page.evaluate("window.unchanged") is True
    go_to(page, "Compare")
    page.reload()
    open_to(page, "blind-begin")
    page.wait_for_function("() => document.querySelector('.lab-header .strip')")
    page.wait_for_timeout(2500)  # what the lab says of the secret has come
    open_to(page, "blind-begin")
    go_to(page, "Runs & data")
    named(page, "run-rename").click()
    named(page, "run-name").fill("renamed by Bob")
    named(page, "run-name-keep").click()
    expect(named(page, "runs-notice")).to_contain_text("renamed by Bob")


def test_who_may_only_look_is_told_the_same(guarded, open_page):
    page = open_page(guarded)
    page.wait_for_selector("body.lab-guest")
    go_to(page, "Train")
    closed(page, "start-open")
    closed(page, "stop")
    assert page.locator(".toast-body").count() == 0


def test_a_wrong_secret_after_a_right_one_takes_nothing_away(guarded, open_page):
    page = joined(guarded, open_page, "Dan")
    go_to(page, "Project")
    for said, answer in (
        (keys(guarded)["operator"], "You are the operator"),
        ("not it", "Only the operator may do this"),
    ):
        named(page, "secret").fill(said)
        named(page, "secret-enter").click()
        expect(named(page, "project-notice")).to_contain_text(answer)
        open_to(page, "stop-engine")
    go_to(page, "Runs & data")
    named(page, "run-rename").click()
    named(page, "run-name").fill("renamed by Dan")
    named(page, "run-name-keep").click()
    expect(named(page, "runs-notice")).to_contain_text("renamed by Dan")  # the server goes by the same secret
