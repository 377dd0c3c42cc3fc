"""Demo mode on the page: what visitors can trigger and see, and that operator controls are closed to them."""

import json
import shutil
from types import SimpleNamespace

import pytest
from fake_runs import reward_model
from gradio.context import LocalContext
from support.page_requests import requests_of

from rlhf_lab.common.enums import JobKind
from rlhf_lab.common.records import REQUESTER_KEY, VISITOR_RUN, Role
from rlhf_lab.config.demo import DemoConfig
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import LabError
from rlhf_lab.jobs import demo as demo_module
from rlhf_lab.jobs import engine_process, queue, run_control
from rlhf_lab.jobs.judge_labelling import label_with_judge
from rlhf_lab.judges.builtin import load_judge
from rlhf_lab.store.annotators import add_person
from rlhf_lab.store.database import Database
from rlhf_lab.store.erasure import erase_person_rows
from rlhf_lab.store.projects import set_max_new_tokens
from rlhf_lab.store.runs import runs
from rlhf_lab.ui.auth.password_file import PasswordEntry
from rlhf_lab.ui.auth.visitors import Visitor
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.header import api as header
from rlhf_lab.ui.page import APIS
from rlhf_lab.ui.reward import api as reward
from rlhf_lab.ui.shared.generation_requests import check_queue_capacity
from rlhf_lab.ui.train.demo_run import api as demo_run

SETTINGS = {"steps": 4, "responses": 8, "tokens": 16}


@pytest.fixture
def ctx(tmp_path, project_home, monkeypatch):
    """A lab in demo mode where everybody may label; it has a reward model."""
    monkeypatch.setattr(engine_process, "ensure_engine", lambda db, home: None)
    with Database.open(shutil.copytree(project_home, tmp_path, dirs_exist_ok=True)) as db:
        ctx = Context(tmp_path, db).as_multi_user(open_to_all=True).with_demo(DemoConfig(max_steps=10, max_queue=3))
        reward_model(ctx, accuracy_low=0.7, accuracy_high=0.9)
        yield ctx


@pytest.fixture
def visitor_train(ctx):
    return requests_of(ctx, reward.api).visitor_train


@pytest.fixture
def act_as(ctx):
    """act_as(name): from now on that visitor sends the requests, "operator" for the operator."""
    tokens = []

    def become(name):
        visitor = Visitor(Role.OPERATOR if name == "operator" else Role.VIEWER, name)
        cookie = ctx.access.cookie_value(visitor)
        key = ctx.access.login_cookie_name if name == "operator" else ctx.access.page_cookie_name
        request = SimpleNamespace(cookies={key: cookie}, headers={"host": "lab.example"})
        tokens.append(LocalContext.request.set(request))

    yield become
    for token in reversed(tokens):
        LocalContext.request.reset(token)


@pytest.fixture
def form(ctx, calls):
    return calls(demo_run, ctx)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 11}, "steps = 11: give a whole number from 1 to 10."),
        ({"steps": 0}, "steps = 0"),
        ({"responses": 4096}, "responses = 4096: give a whole number from 4 to 32."),
        ({"tokens": 100000}, "tokens = 100000: give a whole number from 8 to 64."),
        ({"steps": 2.5}, "no usable steps"),
        ({"steps": "many"}, "no usable steps"),
        ({"tokens": None}, "no usable tokens"),
    ],
)
def test_settings_beyond_a_limit_are_refused_by_the_server(ctx, form, act_as, changes, message):
    act_as("visitor-1")
    assert message in form.start(SETTINGS | changes)["error"]
    assert runs(ctx.db) == []


def test_other_settings_of_a_request_change_nothing(ctx, form, act_as):
    act_as("visitor-1")
    free = {
        "algorithm": "grpo",
        "rollouts": 64,
        "checkpoint_every": 1,
        "processes": 64,
        "reward_model": 99,
        "name": "x",
    }
    run_id = form.start(SETTINGS | free)["run"]
    (run,) = runs(ctx.db)
    config = {name: run.config[name] for name in ("algorithm", "rollouts", "checkpoint_every", "processes")}
    assert config == {"algorithm": "ppo", "rollouts": 1, "checkpoint_every": 5, "processes": 1}
    assert (run.id, run.total_steps, run.name == "x") == (run_id, 4, False)
    assert run.manifest[VISITOR_RUN] is True


def test_a_visitor_starts_one_run_sees_its_place_and_stops_it(ctx, form, act_as):
    texts = {}
    for name in ("visitor-1", "visitor-2"):
        act_as(name)
        assert form.start(SETTINGS)["runs_before"] == len(texts)
        texts[name] = form.state()["status_text"]
    first, second = (run.id for run in runs(ctx.db)[::-1])
    assert texts == {
        "visitor-1": f"Your run {first} is next. It starts when the engine is free.",
        "visitor-2": f"Your run {second} waits: 1 run before yours.",
    }
    assert "You already have a run" in form.start(SETTINGS)["error"]
    form.stop({"run": first})  # the number of another visitor's run changes nothing
    assert (form.state()["own_run"], form.state()["can_start"]) == (None, True)
    assert {run.id: run.status.value for run in runs(ctx.db)} == {first: "queued", second: "stopped"}
    assert "You have no run that is in progress or waiting." in form.stop()["error"]


def test_a_full_queue_is_refused_by_the_server(ctx, form, act_as):
    for number in range(4):
        act_as(f"visitor-{number}")
        reply = form.start(SETTINGS)
    assert "The queue is full: 3 unfinished runs." in reply["error"]
    assert len(runs(ctx.db)) == 3


def test_a_name_in_the_request_does_not_count(ctx, form, act_as):
    act_as("visitor-1")
    form.start(SETTINGS)
    act_as("visitor-2")
    assert "You have no run" in form.stop({"annotator": "visitor-1"})["error"]
    (job,) = queue.jobs(ctx.db, kinds=[JobKind.TRAIN_POLICY])
    assert job.payload[REQUESTER_KEY] == "visitor-1"


def test_what_visitors_see_without_a_run(ctx, act_as):
    state = demo_run.demo_state(ctx, ctx.demo, "visitor-1")
    for length, proposed in ((48, 48), (200, ctx.demo.config.max_tokens)):
        set_max_new_tokens(ctx.db, ctx.project.id, length)
        assert demo_run.demo_state(ctx, ctx.demo, "visitor-1")["tokens"] == proposed
    assert (state["status_text"], state["can_start"]) == ("No run is in progress: yours starts at once.", True)
    settings = ctx.demo.run_config(ctx.project, **SETTINGS)
    for name in ("visitor-2", "visitor-3"):
        ctx.demo.start_run(ctx.project, settings, name)
    state = demo_run.demo_state(ctx, ctx.demo, "visitor-1")
    assert state["status_text"] == "2 runs before yours: it begins when they have ended."
    assert state["runs_before"] == 2
    state = demo_run.demo_state(ctx, ctx.demo, "")
    assert (state["can_start"], "log in with the join code" in state["status_text"]) == (False, True)


def test_a_running_run_says_its_step(ctx, act_as):
    run = ctx.demo.start_run(ctx.project, ctx.demo.run_config(ctx.project, **SETTINGS), "visitor-1")
    queue.claim(ctx.db, [JobKind.TRAIN_POLICY], engine_process.record_heartbeat(ctx.db, "x"))
    text = demo_run.demo_state(ctx, ctx.demo, "visitor-1")["status_text"]
    assert text == f"Your run {run.id} is in progress: step 0 of 4."


def test_the_form_states_limits_and_rules(ctx):
    data = demo_run.form_data(ctx.demo)
    assert [(field["name"], field["low"], field["high"], field["value"]) for field in data["fields"]] == [
        ("steps", 1, 10, 10),
        ("responses", 4, 32, 32),
        ("tokens", 8, 64, 64),
    ]
    assert data["rules"].endswith("are removed every 6 hours, or earlier after 50 runs or 1,000 labels.")


def test_nothing_of_the_operators_is_open_to_visitors(ctx, act_as):
    act_as("visitor-1")
    for api in APIS:
        screen = requests_of(ctx, api)
        for name, endpoint in api.endpoints.items():
            if endpoint.role is Role.OPERATOR:
                assert "Only the operator may do this" in getattr(screen, name)()["error"], name


def test_the_operator_uses_the_form_of_all_settings_and_is_not_limited(ctx, visitor_train, act_as):
    act_as("operator")
    for _ in range(4):
        run_control.start_run(ctx.db, ctx.home, ctx.project.id, PolicyConfig(steps=400))
    assert len(runs(ctx.db)) == 4
    assert demo_run.demo_state(ctx, ctx.demo, "visitor-1")["can_start"] is False


def test_visitors_train_a_reward_model_when_there_are_enough_labels(ctx, visitor_train, act_as):
    act_as("visitor-1")
    assert "after 10 more labels by people" in visitor_train({"last_training": 0})["error"]
    label_with_judge(ctx.db, ctx.project.id, load_judge("cheerful"), 10)  # labels of a judge do not count
    assert "after 10 more labels by people" in visitor_train({"last_training": 0})["error"]
    with ctx.db.write() as conn:
        conn.exec_driver_sql("UPDATE votes SET source = 'human', annotator = 'visitor-1'")
    assert "job" in visitor_train({"last_training": 0})
    (job,) = queue.jobs(ctx.db, kinds=[JobKind.TRAIN_REWARD])
    assert (job.payload["source"], job.payload["config"]["processes"]) == ("human", 1)
    assert "already being trained" in visitor_train({"last_training": job.id})["error"]


def test_while_a_reset_is_due_nothing_new_starts(ctx, visitor_train, form, act_as, monkeypatch):
    clock = SimpleNamespace(time=lambda: ctx.demo.reset_at + 1)
    monkeypatch.setattr(demo_module, "time", clock)
    act_as("visitor-1")
    assert "about to be reset" in form.start(SETTINGS)["error"]
    assert "about to be reset" in visitor_train({"last_training": 0})["error"]
    with pytest.raises(LabError, match="about to be reset"):
        check_queue_capacity(ctx)
    assert header.state(ctx)["demo"] == {"reset_at": ctx.demo.reset_at, "is_reset_due": True}


def test_without_demo_mode_its_requests_are_refused(ctx):
    lab = Context(ctx.home, ctx.db)
    assert "only in demo mode" in requests_of(lab, reward.api).visitor_train()["error"]
    for refused in (requests_of(lab, demo_run.api).start(SETTINGS), requests_of(lab, demo_run.api).stop()):
        assert "only in demo mode" in refused["error"]
    assert header.state(lab)["demo"] is None


def test_operators_of_a_lab(tmp_path, monkeypatch):
    monkeypatch.setenv("RLHF_LAB_OPERATORS", "Ann-1, bob")
    monkeypatch.setenv("SPACE_AUTHOR_NAME", "Owner")
    entries = [PasswordEntry("Olga", Role.OPERATOR, "x"), PasswordEntry("Lea", Role.LABELLER, "x")]
    people = {entry.name: entry for entry in entries}
    with Database.open(tmp_path) as db:
        lab = Context(tmp_path, db).as_multi_user(open_to_all=False, password_entries=people).with_demo(DemoConfig())
    assert lab.demo.operators == {"operator", "Olga", "@ann-1", "@bob", "@owner"}


def test_a_person_who_is_erased_leaves_their_run_without_a_name(ctx):
    ann = add_person(ctx.db, "Ann").name
    ctx.demo.start_run(ctx.project, ctx.demo.run_config(ctx.project, **SETTINGS), ann)
    erase_person_rows(ctx.db, ann, votes=True)
    (job,) = queue.jobs(ctx.db, kinds=[JobKind.TRAIN_POLICY])
    assert "Ann" not in json.dumps([job.payload, runs(ctx.db)[0].manifest])
    assert runs(ctx.db)[0].manifest[VISITOR_RUN] is True
