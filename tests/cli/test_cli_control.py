"""`control`: each action has its effect, and impossible actions are refused. No engine is started."""

import json

import pytest

from rlhf_lab.cli.main import main
from rlhf_lab.common.enums import EventKind, JobKind, JobStatus, RunStatus, Source
from rlhf_lab.common.records import LabelSnapshot
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.jobs import engine_process, queue, run_control
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import create_project
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.runs import create_run, events, get_run, runs, set_run_status


@pytest.fixture
def started(monkeypatch):
    homes = []
    monkeypatch.setattr(engine_process, "ensure_engine", lambda db, home: homes.append(home))
    return homes


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def db(home, started):
    """Run 1, running in an engine that exists only as the claim on its job."""
    with Database.open(home) as db:
        project = create_project(db, "p", "embedded", "", "tales", 0, [("Once", "train"), ("Far", "eval")])
        pinned = LabelSnapshot((), "", Source.HUMAN)
        model = add_reward_model(db, project.id, "reward_models/x", config={}, report={}, snapshot=pinned)
        config = PolicyConfig(steps=9).to_dict()
        run = create_run(db, project.id, model.id, "first", config=config, manifest={}, total_steps=9)
        queue.submit(db, JobKind.TRAIN_POLICY, project.id, {"run_id": run.id})
        queue.claim(db, [JobKind.TRAIN_POLICY], engine_process.record_heartbeat(db, "busy"))
        set_run_status(db, run.id, RunStatus.RUNNING)
        yield db


@pytest.fixture
def call(home, capsys):
    def run_control_command(*words):
        status = main(["control", *words, "--home", str(home), "--json"])
        (line,) = capsys.readouterr().out.strip().splitlines()
        return status, json.loads(line)

    return run_control_command


@pytest.mark.parametrize(
    ("words", "kind", "payload"),
    [
        (["pause"], EventKind.PAUSE, {}),
        (["resume"], EventKind.RESUME, {}),
        (["stop"], EventKind.STOP, {}),
        (["set", "beta", "0.25"], EventKind.SET, {"name": "beta", "value": 0.25}),
        (["set", "lr", "3e-4"], EventKind.SET, {"name": "lr", "value": 3e-4}),
        (["set", "lr", "automatic"], EventKind.SET, {"name": "lr", "value": "automatic"}),
        (["switch-reward", "1"], EventKind.SWITCH_REWARD, {"reward_model_id": 1}),
    ],
)
def test_control_records_an_event_for_a_running_run(db, call, home, started, words, kind, payload):
    status, reply = call("1", *words)
    assert (status, reply) == (0, {"run": 1, "name": "first", "asked": " ".join(words), "status": "running", "step": 0})
    assert [(event.kind, event.payload) for event in events(db, 1)] == [(kind, payload)]
    assert home in started  # an engine is there to act on it


@pytest.mark.parametrize(
    ("words", "kind", "remedy"),
    [
        (["9", "pause"], "StoreError", "python -m rlhf_lab runs"),
        (["1", "set", "beta", "-1"], "ConfigError", "below the minimum"),
        (["1", "set", "beta", "much"], "ConfigError", 'beta = "much" is not a number'),
        (["1", "set", "beta", "nan"], "ConfigError", "finite"),
        (["1", "set", "beta", "automatic"], "ConfigError", "beta cannot be automatic: nothing adapts it in this run"),
        (["1", "set", "gamma", "1"], "ConfigError", "only beta and lr"),
        (["1", "set", "beta"], "ConfigError", "set takes NAME VALUE"),
        (["1", "pause", "now"], "ConfigError", "pause takes no value"),
        (["1", "switch-reward", "7"], "StoreError", "no reward model 7"),
        (["1", "switch-reward", "x"], "ConfigError", "not a number"),
        (["1", "delete"], "StoreError", "stop it before"),
        (["1", "rename", "x" * 81], "ConfigError", "1 to 80"),
    ],
)
def test_refused_actions_are_not_recorded(db, call, started, words, kind, remedy):
    status, reply = call(*words)
    assert (status, reply["kind"]) == (1, kind)
    assert remedy in reply["error"]
    assert (events(db, 1), started, get_run(db, 1).name) == ([], [], "first")


@pytest.mark.parametrize(("low", "warns"), [(0.31, True), (0.0, True), (0.62, False)])
def test_a_switch_to_a_reward_model_that_may_be_guessing_warns(db, home, capsys, low, warns):
    snapshot = LabelSnapshot((), "", Source.HUMAN)
    row = add_reward_model(db, 1, "reward_models/y", config={}, report={"accuracy_low": low}, snapshot=snapshot)
    assert main(["control", "1", "switch-reward", str(row.id), "--home", str(home), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["asked"] == f"switch-reward {row.id}"  # the warning does not mix with the JSON
    assert (f"reward model {row.id}: On held-out pairs it may rank no better than chance" in captured.err) is warns


def test_a_stopped_run_is_resumed_renamed_and_deleted(db, call, home, started):
    queue.finish(db, 1, {})
    set_run_status(db, 1, RunStatus.STOPPED)
    assert call("1", "rename", "a better name")[1]["name"] == "a better name"
    assert started == []
    assert call("1", "resume")[0] == 0
    job = run_control.open_job(db, 1)
    assert (job.id, job.status) == (2, JobStatus.QUEUED)
    assert call("1", "stop")[1]["status"] == "stopped"
    assert call("1", "delete") == (0, {"run": 1, "deleted": True})
    assert runs(db) == []


def test_text_output_of_control(db, home, capsys):
    assert main(["control", "1", "set", "beta", "0.5", "--home", str(home)]) == 0
    assert capsys.readouterr().out == ("run 1: set beta 0.5 requested, which takes a moment; it is running at step 0\n")


def test_train_policy_creates_and_resumes_a_run(db, home, capsys, monkeypatch):
    """The command waits for the job of the new run; here no engine takes the job, and it fails."""

    def fail(opened, where):
        if (job := run_control.open_job(opened, 2)) is not None:
            queue.fail(opened, job.id, "nobody is here")
        return engine_process.engine_state(opened)

    monkeypatch.setattr(engine_process, "ensure_engine", fail)
    status = main(
        ["train-policy", "--steps", "3", "--name", "second", "--judge", "polite", "--json", "--home", str(home)]
    )
    assert status == 1
    assert "run 2: nobody is here" in json.loads(capsys.readouterr().out)["error"]
    run = get_run(db, 2)
    assert (run.name, run.total_steps, run.manifest["judge"], run.config["steps"]) == ("second", 3, "polite", 3)
    status = main(["train-policy", "--resume", "2", "--json", "--home", str(home)])
    assert (status, len(queue.jobs(db))) == (1, 3)
    assert get_run(db, 2).id == max(run.id for run in runs(db))


def test_unsupported_process_counts_are_refused_before_the_run_is_created(db, home, capsys):
    status = main(["train-policy", "--algorithm", "trpo", "--processes", "2", "--json", "--home", str(home)])
    assert status == 1
    assert "Set processes to 1" in json.loads(capsys.readouterr().out)["error"]
    assert [run.id for run in runs(db)] == [1]


def test_resume_with_another_process_count(db, home, capsys, monkeypatch):
    queue.cancel(db, 1)
    set_run_status(db, 1, RunStatus.STOPPED)

    def fail(opened, _):
        queue.fail(opened, 2, "nobody is here")
        return engine_process.engine_state(opened)

    monkeypatch.setattr(engine_process, "ensure_engine", fail)
    assert main(["train-policy", "--resume", "1", "--processes", "2", "--json", "--home", str(home)]) == 1
    assert "run 1: nobody is here" in json.loads(capsys.readouterr().out)["error"]
    assert [event.payload.get("processes") for event in events(db, 1)] == [2, None]  # and that it was resumed


def test_stop_engine_says_how_long_it_may_take(home, db, capsys, monkeypatch):
    monkeypatch.setattr(engine_process, "stop_engine", lambda db, home: True)
    assert main(["stop-engine", "--home", str(home)]) == 0
    printed = capsys.readouterr()
    assert (printed.err, printed.out) == ("stopping the engine (up to 20 seconds) …\n", "the engine has ended\n")


def test_a_training_of_a_reward_model_is_cancelled(home, db, capsys):
    job = queue.submit(db, JobKind.TRAIN_REWARD, 1, {"source": "human"})
    command = ["train-reward", "--cancel", "--home", str(home), "--json"]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out) == {"job": job.id, "cancelled": True}
    assert queue.get_job(db, job.id).status is JobStatus.CANCELLED
    assert main(command) == 1
    assert "nothing to cancel" in json.loads(capsys.readouterr().out)["error"]
