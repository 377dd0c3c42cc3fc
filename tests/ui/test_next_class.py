"""What the next class begins with: a new project, a new join code, training stopped or kept."""

import json
from types import SimpleNamespace

import pytest
from fake_runs import a_run
from gradio.context import LocalContext

from rlhf_lab.common.enums import JobStatus, RunStatus, Source
from rlhf_lab.common.paths import ACCESS_FILE
from rlhf_lab.common.records import Role
from rlhf_lab.jobs import queue, retraining
from rlhf_lab.store.annotators import OPERATOR_NAME, add_person, names_without_numbers
from rlhf_lab.store.projects import create_project, projects
from rlhf_lab.store.runs import get_run, set_run_status
from rlhf_lab.ui.auth.visitors import Visitor
from rlhf_lab.ui.people import api as people


def request_of(access, role, name):
    """A request with the login cookie of a visitor."""
    cookie = access.cookie_value(Visitor(role, name))
    return SimpleNamespace(cookies={access.login_cookie_name: cookie}, headers={"host": "lab.example"})


@pytest.fixture
def act_as():
    """act_as(access, role): from now on requests come from a visitor of this role."""
    tokens = []
    yield lambda access, role: tokens.append(LocalContext.request.set(request_of(access, role, OPERATOR_NAME)))
    for token in reversed(tokens):
        LocalContext.request.reset(token)


@pytest.fixture
def lab(ctx, monkeypatch):
    monkeypatch.delenv("RLHF_LAB_JOIN_CODE", raising=False)
    return ctx.as_multi_user(open_to_all=False)


def test_a_new_code_puts_labellers_out_and_keeps_the_operator(lab):
    access = lab.access
    ann = request_of(access, Role.LABELLER, add_person(lab.db, "Ann").name)
    operator = request_of(access, Role.OPERATOR, OPERATOR_NAME)
    assert access.visitor(ann) == Visitor(Role.LABELLER, "Ann")
    old = access.join_code
    access.code.renew()
    assert access.join_code != old
    assert len(access.join_code) == 6
    assert access.visitor(ann) == Visitor(Role.VIEWER)
    assert access.visitor(operator) == Visitor(Role.OPERATOR, OPERATOR_NAME)
    assert json.loads((lab.home / ACCESS_FILE).read_text())["code"] == access.join_code
    restarted = lab.as_multi_user(open_to_all=False).access
    assert restarted.join_code == access.join_code
    assert restarted.visitor(ann) == Visitor(Role.VIEWER)
    assert restarted.visitor(request_of(restarted, Role.LABELLER, "Ann")).role is Role.LABELLER


def test_a_code_from_the_environment_is_not_renewed(lab, calls, act_as, monkeypatch):
    monkeypatch.setenv("RLHF_LAB_JOIN_CODE", "ABC234")
    fixed = lab.as_multi_user(open_to_all=False)
    act_as(fixed.access, Role.OPERATOR)
    assert calls(people, fixed).class_state({})["has_code"] is False
    reply = calls(people, fixed).next_class({"new_code": True, "new_project": True})
    assert "RLHF_LAB_JOIN_CODE" in reply["error"]
    assert fixed.access.join_code == "ABC234"
    assert len(projects(lab.db)) == 1


@pytest.mark.parametrize("stops", [False, True])
def test_a_new_project_keeps_or_stops_the_run(ctx, calls, stops):
    run, old = a_run(ctx, "mine"), ctx.project
    set_run_status(ctx.db, run.id, RunStatus.QUEUED)
    screen = calls(people, ctx)
    assert screen.class_state({})["runs"] == [
        {"id": run.id, "name": "mine", "status": "queued", "step": 0, "total_steps": run.total_steps}
    ]
    reply = screen.next_class({"new_project": True, "stop_training": stops})
    assert ctx.project.id != old.id
    assert (get_run(ctx.db, run.id).status is RunStatus.STOPPED) is stops
    assert (f'Run {run.id} of "{old.name}" is queued.' in reply["message"]) is not stops
    assert (f"Run {run.id} is stopped." in reply["message"]) is stops


@pytest.mark.parametrize("stops", [False, True])
def test_the_training_of_the_old_reward_model_is_cancelled_with_the_runs(ctx, calls, stops):
    old, screen = ctx.project, calls(people, ctx)
    assert screen.class_state({})["training"] == ""
    job = retraining.submit_training(ctx.db, old.id, Source.HUMAN)
    assert screen.class_state({})["training"] == "A reward model from people's labels waits for the engine."
    reply = screen.next_class({"new_project": True, "stop_training": stops})
    assert (queue.get_job(ctx.db, job.id).status is JobStatus.CANCELLED) is stops
    assert ("The training of a reward model is cancelled" in reply["message"]) is stops


def test_nothing_changes_without_a_choice_and_only_the_operator_chooses(lab, calls, act_as):
    before, code = projects(lab.db), lab.access.join_code
    act_as(lab.access, Role.OPERATOR)
    assert calls(people, lab).next_class({}) == {"message": "Nothing was changed."}
    for role in (Role.LABELLER, Role.VIEWER):
        act_as(lab.access, role)
        reply = calls(people, lab).next_class({"new_project": True, "new_code": True, "stop_training": True})
        assert "Only the operator" in reply["error"]
    assert (projects(lab.db), lab.access.join_code) == (before, code)


def test_a_new_class_shows_names_without_numbers(lab, calls):
    """Votes keep the stored name. "Team 2" is a name of its own, because nobody is called "Team"."""

    def shown(*present):
        return names_without_numbers(lab.db, projects(lab.db)[-1].id, present)

    for name in ("Ada", "Ben", "Ada"):
        add_person(lab.db, name)
    assert shown() == {}  # two of one class
    create_project(lab.db, "next", "m", "d", "p", 1, [("a", "train")])
    joined = [add_person(lab.db, name).name for name in ("ada", "Ben", "Team 2", "Cid")]
    assert joined == ["ada 3", "Ben 2", "Team 2", "Cid"]
    assert shown() == {"ada 3": "ada", "Ben 2": "Ben"}
    assert calls(people, lab).state({})["shown_names"] == {"ada 3": "ada", "Ben 2": "Ben"}
    assert shown("Ben") == {"ada 3": "ada"}  # of the former class, still logged in
    add_person(lab.db, "Ada")
    assert shown() == {"Ben 2": "Ben"}
