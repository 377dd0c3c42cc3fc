"""Controls for the operator only: hidden from labellers and viewers, with a notice; enabled for the operator.

The lab has an active and a stopped run, a blind test, an import and two projects, so that every control exists.
"""

import json
import subprocess
import sys
import time

import pytest
from browser_lab import ROOT
from playwright.sync_api import expect
from prepared_labs import idle_lab, without_engine
from test_people_screen import access_keys, join_as

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
from rlhf_lab.ui.page import APIS

#: Controls that only the operator may use, by screen (values of data-do).
OPERATOR_CONTROLS = {
    "Train": ["start-open", "pause", "stop", "knob-beta", "set-beta", "knob-lr", "set-lr", "switch"],
    "Compare": ["blind-pairs", "blind-begin", "blind-rename", "blind-delete"],
    "Runs & data": [
        "run-rename", "run-resume", "run-delete", "export-labels", "export-dataset", "export-run", "export-reward-model",
        "export-recipe", "export-label-recipe", "run-metrics-choose", "export-source", "quality-weight", "quality-train",
        "data-choose", "data-hub", "data-hub-look", "data-back", "backup-create", "backup-choose",
        "mirror-repository", "mirror-token", "mirror-set-up",
    ],
    "Reward model": ["train", "source"],
    "Project": ["project-rename", "project-temperature", "project-length", "project-open", "project-delete", "stop-engine"],
}  # fmt: skip
#: Of these, values that others read: disabled.
READABLE = ("run-rename", "project-rename", "project-temperature", "project-length")
#: Further elements that others do not see.
HIDDEN_FROM_OTHERS = {
    "Label": [".talks"],
    "Train": [],
    "Compare": [],
    "Runs & data": [],
    "Reward model": ["#reward-settings"],
    "Project": [".make", "[data-do=lab-about]"],
}
#: Controls that labellers may use on the same screens.
LABELLER_CONTROLS = {
    "Label": ["left", "skip"], "Train": ["pick", "latest"], "Compare": ["write", "another", "blind-pick"],
    "Runs & data": ["run-choose", "run-watch"], "Reward model": ["look-1"],
}  # fmt: skip
NOTICES = {
    "Train": "Only the operator can start and control runs; you can watch.",
    "Compare": "Only the operator can start and change blind tests; you can judge their pairs.",
    "Runs & data": "Only the operator can change runs, train, export and import; you can view and compare.",
    "Reward model": "Only the operator can train reward models; you can view them.",
    "People": "Only the operator can change the labelling rules and remove people from the lab.",
    "Project": "Only the operator can open, create and change projects; you can view them.",
}
SCREENS = ["Label", *NOTICES]
ACTIONS = {endpoint.path for api in APIS for endpoint in api.endpoints.values() if not endpoint.is_read}
REPORT = {"accuracy": 0.8, "accuracy_low": 0.7, "accuracy_high": 0.9, "train_accuracy": 0.9, "folds": 3}


def fill_lab(lab) -> None:
    """Add everything that the controls need; no engine runs."""
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
        payload = {"prompts": ["Once"], "checkpoint": "base"}
        writing = [add_running_job(db, here, JobKind.COMPLETE, **payload) for _ in range(2)]
        add_test(db, here, *writing)
        add_running_job(db, here, JobKind.TRAIN_POLICY, run_id=going.id)


def add_running_job(db, project_id: int, kind: JobKind, **payload) -> int:
    """A running job without an engine."""
    now = time.time()
    values = {"kind": kind, "status": JobStatus.RUNNING, "project_id": project_id, "payload": payload, "error": ""}
    values |= {"progress": 0.25, "best_progress": 0.0, "attempts": 0, "created_at": now, "updated_at": now}
    with db.write() as conn:
        return insert_row(conn, t.jobs, values)


@pytest.fixture(scope="module")
def multi_user_lab(tmp_path_factory):
    home = tmp_path_factory.mktemp("lab") / "home"
    multi_user = idle_lab(home, options=("--host", "0.0.0.0"), environment={"RLHF_LAB_CONTAINER": "0"})
    with without_engine(multi_user) as lab:
        fill_lab(lab)
        yield lab


def go_to(page, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()
    if name == "Runs & data":
        for fold in ("runs-quality", "runs-import", "runs-backup"):
            if not page.locator(f"#{fold} .lab").first.is_visible():
                page.locator(f"#{fold} > button").click()


def first_control(page, what: str):
    return page.locator(f'[data-do="{what}"]').first


#: JavaScript: of the controls with this data-do: [whether some are visible, how many of these are enabled].
CONTROL_COUNTS = """what => {
    const found = [...document.querySelectorAll(`[data-do="${what}"]`)].filter((one) => one.checkVisibility());
    return [found.length > 0, found.filter((one) => !one.matches(':disabled')).length]; }"""


def expect_unusable(page, what: str) -> None:
    """A control is hidden, or a value that can only be read: disabled for mouse, keyboard and screen readers."""
    control = first_control(page, what)
    expect(control).to_be_disabled()
    expect(control).to_be_visible(visible=what in READABLE)
    assert page.evaluate(CONTROL_COUNTS, what) == [what in READABLE, 0], what
    assert control.evaluate("node => { node.focus(); node.click(); return document.activeElement !== node; }"), what
    assert first_control(page, what).evaluate("node => getComputedStyle(node).cursor") != "pointer", what


def expect_enabled(page, what: str) -> None:
    expect(first_control(page, what)).to_be_visible()
    expect(first_control(page, what)).to_be_enabled()


def expect_full_access(page) -> None:
    """Every control is enabled, and there is no notice."""
    for name in SCREENS:
        go_to(page, name)
        for what in OPERATOR_CONTROLS.get(name, []) + LABELLER_CONTROLS.get(name, []):
            if what in ("latest", "run-delete", "export-adapter"):
                continue  # disabled for other reasons
            expect_enabled(page, what)
        for what in HIDDEN_FROM_OTHERS.get(name, []):
            expect(page.locator(what).first).to_be_visible()
    go_to(page, "People")
    expect(page.locator("summary:has-text('Labelling rules')")).to_be_visible()
    expect(page.locator(".invite svg.qr path")).to_have_count(1)
    assert page.locator(".lab-only").count() >= len(NOTICES)
    assert [one for one in page.locator(".lab-only").all() if one.is_visible()] == []
    assert page.locator("fieldset:disabled, body.lab-guest").count() == 0


def is_action(url: str) -> bool:
    return "/run/predict" in url or url.rpartition("/lab-api/")[2] in ACTIONS


def test_a_labeller_sees_a_notice_in_place_of_the_operators_controls(multi_user_lab, open_page):
    page = join_as(multi_user_lab, open_page, "Ann")
    sent = []
    page.on("request", lambda request: sent.append(request.url) if is_action(request.url) else None)
    for name in SCREENS:
        go_to(page, name)
        if name in NOTICES:
            notice = page.locator(".lab-only", has_text=NOTICES[name])
            expect(notice).to_be_visible()
        for what in LABELLER_CONTROLS.get(name, []):
            if what != "latest":
                expect_enabled(page, what)
        before = len(sent)
        for what in OPERATOR_CONTROLS.get(name, []):
            expect_unusable(page, what)
        assert len(sent) == before, name
        for what in HIDDEN_FROM_OTHERS.get(name, []):
            expect(page.locator(what).first).to_be_hidden()
    go_to(page, "People")
    for hidden in ("summary:has-text('Labelling rules')", ".invite", "svg.qr"):
        assert page.locator(hidden).count() == 0
    expect(page.locator(".lab-people .erasure")).to_be_hidden()
    assert access_keys(multi_user_lab)["code"] not in page.content()


def enter_as_operator(lab, open_page):
    page = open_page(lab)
    page.goto(f"{lab.url}enter?key={access_keys(lab)['operator']}")
    return page


def leave_status_unanswered(page) -> list:
    """The list of the requests that are not answered from now on."""
    requests = []
    page.route("**/lab-api/header/status", lambda route: requests.append(route))  # noqa: PLW0108  Playwright reads its signature
    return requests


def test_controls_are_right_before_the_first_reply_of_the_server(multi_user_lab, open_page):
    for page, check in (
        (enter_as_operator(multi_user_lab, open_page), expect_enabled),
        (join_as(multi_user_lab, open_page, "Cid"), expect_unusable),
    ):
        requests = leave_status_unanswered(page)
        page.reload()
        go_to(page, "Train")
        check(page, "start-open")
        assert requests
        assert page.locator(".lab-header .strip").count() == 0


def test_everything_is_enabled_until_the_visitor_is_no_longer_operator(multi_user_lab, open_page):
    page = enter_as_operator(multi_user_lab, open_page)
    expect_full_access(page)
    go_to(page, "Train")
    expect_enabled(page, "pause")
    cookies = page.context.cookies()
    page.context.clear_cookies()
    for what in ("pause", "start-open", "set-lr"):
        expect_unusable(page, what)
    expect(page.locator(".lab-only", has_text=NOTICES["Train"])).to_be_visible()
    expect(page.locator("body.lab-guest")).to_have_count(1)
    assert page.locator(".toast-body").count() == 0
    page.context.add_cookies(cookies)
    expect_enabled(page, "pause")


def test_operator_secret_enables_everything_now_and_after_a_reload(multi_user_lab, open_page):
    page = join_as(multi_user_lab, open_page, "Bob")
    go_to(page, "Runs & data")
    expect_unusable(page, "run-delete")
    go_to(page, "Project")
    expect_unusable(page, "stop-engine")
    page.evaluate("window.unchanged = true")
    first_control(page, "secret").fill(access_keys(multi_user_lab)["operator"])
    first_control(page, "secret-enter").click()
    expect(first_control(page, "project-notice")).to_have_text("You are the operator in this browser now.")
    expect_full_access(page)
    assert page.evaluate("window.unchanged") is True
    go_to(page, "Project")
    expect(first_control(page, "secret")).to_be_hidden()
    assert page.url == f"{multi_user_lab.url}#project"  # does not contain the secret
    go_to(page, "Compare")
    page.reload()
    expect_enabled(page, "blind-begin")
    page.wait_for_function("() => document.querySelector('.lab-header .strip')")
    page.wait_for_timeout(2500)  # the reply to the secret has arrived
    expect_enabled(page, "blind-begin")
    go_to(page, "Runs & data")
    first_control(page, "run-rename").click()
    first_control(page, "run-name").fill("renamed by Bob")
    first_control(page, "run-name-sure").click()
    expect(first_control(page, "runs-notice")).to_contain_text("renamed by Bob")
