"""Where a run is logged: what is chosen, refused and recorded, and the process that is started."""

import argparse
import dataclasses
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import time
from typing import ClassVar

import pytest

from rlhf_lab.cli import track
from rlhf_lab.cli.track import set_route
from rlhf_lab.common.enums import RunStatus, Source
from rlhf_lab.common.records import LabelSnapshot, Run, StepResult
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs import run_tracking
from rlhf_lab.jobs.run_tracking import Tracker, log_reward_model, start_tracking, tracker_entry, wait_for_tracking
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import create_project
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import add_note, create_run, delete_run, events

RUN = Run(3, 1, None, "r", RunStatus.QUEUED, {}, {}, 0, 4, "", 100.25, 0.0)


@pytest.fixture
def installed(monkeypatch):
    """All trackers are installed, and nothing is set for them."""
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.0")
    for name in [run_tracking.TRACK_VARIABLE, *(name for names in run_tracking.ROUTES.values() for name in names)]:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("option", "variable", "expected"),
    [
        (None, None, None),
        (None, "", None),
        (None, " off ", None),
        ("off", "wandb", None),
        ("", "wandb", None),
        (None, "trackio", ("trackio", "rlhf-lab")),
        ("wandb:my_team-2", "trackio", ("wandb", "my_team-2")),
        ("tensorboard", None, ("tensorboard", "rlhf-lab")),
        ("trackio:", None, ("trackio", "rlhf-lab")),
    ],
)
def test_an_option_wins_over_the_variable(installed, monkeypatch, option, variable, expected):
    if variable is not None:
        monkeypatch.setenv("RLHF_LAB_TRACK", variable)
    entry = tracker_entry(option).get("tracker")
    assert (entry and (entry["name"], entry["project"])) == expected


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("mlflow", 'no tracker "mlflow"; choose one of trackio, wandb, tensorboard, or off'),
        ("Trackio", 'no tracker "Trackio"'),
        ("wandb:../x", r'"\.\./x" cannot be the project'),
        ("wandb:" + "p" * 101, "at most 100 letters"),
        ("trackio:a:b", '"a:b" cannot be the project'),
    ],
)
def test_what_is_no_tracker(installed, option, message):
    with pytest.raises(ConfigError, match=message):
        tracker_entry(option)


def test_a_package_that_is_missing_is_named_before_the_run_starts(monkeypatch, tmp_path):
    """A folder of the tracker's name, which wandb leaves where it works, is no package."""
    (tmp_path / "wandb").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ConfigError, match=r"wandb, which is not installed\. Install it .* \(pip install wandb\)"):
        tracker_entry("wandb")


def test_a_run_records_where_its_data_go_but_no_secrets(installed, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ENTITY", "")
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setenv("TRACKIO_DIR", "/tracks")
    monkeypatch.setenv("TRACKIO_WRITE_TOKEN", "secret")
    expected = {"name": "wandb", "project": "p", "route": {"WANDB_MODE": "offline"}}
    assert tracker_entry("wandb:p") == {"tracker": expected}
    assert tracker_entry("trackio")["tracker"]["route"] == {"TRACKIO_DIR": "/tracks"}


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TRACKIO_SERVER_URL", "https://tracks.test/?write_token=abc"),
        ("WANDB_BASE_URL", "https://me:password@wandb.test"),
    ],
)
def test_a_secret_in_an_address_is_refused(installed, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=rf"^{variable} contains a password or token") as caught:
        tracker_entry(variable.partition("_")[0].lower())
    assert value not in str(caught.value)


class Process:
    """Records how a process is started; it lives until it has a return code."""

    started: ClassVar[list] = []

    def __init__(self, command, **options):
        self.command, self.options, self.returncode = command, options, None
        self.started.append(self)

    def poll(self):
        return self.returncode

    def wait(self):
        return 0


@pytest.fixture
def started(installed, monkeypatch):
    monkeypatch.setattr(Process, "started", [])
    monkeypatch.setattr(run_tracking, "_processes", [])
    monkeypatch.setattr(subprocess, "Popen", Process)
    return Process.started


@pytest.fixture
def notes(monkeypatch):
    found = []
    monkeypatch.setattr(run_tracking, "add_note", lambda db, run_id, words, *_, **__: found.append((run_id, words)))
    return found


def tracked(record):
    return dataclasses.replace(RUN, manifest={"tracker": record})


SECRETS = {
    "RLHF_LAB_OPERATOR_SECRET": "s", "RLHF_LAB_JOIN_CODE": "j", "HF_TOKEN": "h", "OPENAI_API_KEY": "o",
    "AWS_SECRET_ACCESS_KEY": "a", "WANDB_API_KEY": "w", "TRACKIO_WRITE_TOKEN": "t", "PGPASSWORD": "p",
}  # fmt: skip
NEEDED = {
    "RLHF_LAB_STORE": "sqlite:///x.db", "RLHF_LAB_JOURNAL": "truncate", "https_proxy": "http://p", "SSL_CERT_FILE": "/ca",
    "TMPDIR": "/t", "HOME": "/h",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "route", "secrets"),
    [
        ("wandb", {"WANDB_MODE": "offline"}, {"WANDB_API_KEY"}),
        ("trackio", {}, {"TRACKIO_WRITE_TOKEN"}),
        ("trackio", {"TRACKIO_SPACE_ID": "me/space"}, {"TRACKIO_WRITE_TOKEN", "HF_TOKEN"}),
        ("tensorboard", {}, set()),
    ],
)
def test_the_process_gets_the_route_of_the_run_and_the_secrets_of_its_tracker_only(
    started, monkeypatch, tmp_path, name, route, secrets
):
    of_the_engine = {"WANDB_MODE": "online", "WANDB_ENTITY": "engine", "TRACKIO_SPACE_ID": "engine/space"}
    monkeypatch.setattr(os, "environ", os.environ | SECRETS | NEEDED | of_the_engine)
    assert start_tracking(None, tmp_path, RUN) is None
    assert not started
    process = start_tracking(None, tmp_path, tracked(dataclasses.asdict(Tracker(name, "mine", route))))
    assert started == [process]
    option = name if name == "tensorboard" else f"{name}:mine"
    assert process.command[1:8] == ["-m", "rlhf_lab", "track", "3", "--to", option, "--home"]
    options = process.options
    assert SECRETS.keys() & options["env"].keys() == secrets
    assert NEEDED.items() <= options["env"].items()
    assert {key: options["env"].get(key) for key in of_the_engine} == dict.fromkeys(of_the_engine) | route
    assert options["stdin"] == options["stdout"] == options["stderr"] == subprocess.DEVNULL


FOREIGN = [
    None,
    ["wandb"],
    {"name": "wandb"},
    {"name": ["wandb"], "project": "p", "route": {}},
    {"name": "sh", "project": "p", "route": {}},
    {"name": "wandb", "project": "p --to x", "route": {}},
    {"name": "wandb", "project": "p", "route": [["WANDB_MODE", "offline"]]},
    {"name": "wandb", "project": "p", "route": {"WANDB_MODE": ["offline"]}},
    {"name": "wandb", "project": "p", "route": {"WANDB_MODE": "off\0line"}},
    {"name": "trackio", "project": "p", "route": {"TRACKIO_DIR": "\ud83d"}},
    {"name": "wandb", "project": "p", "route": {"WANDB_BASE_URL": "https://me:password@wandb.test"}},
]


@pytest.mark.parametrize("record", FOREIGN, ids=range(len(FOREIGN)))
def test_a_record_that_no_start_writes_starts_nothing(started, tmp_path, record):
    with pytest.raises(ConfigError):
        start_tracking(None, tmp_path, tracked(record))
    if isinstance(record, dict) and record["name"] in ("wandb", "trackio"):  # the command asks for this tracker
        before = dict(os.environ)
        with pytest.raises(ConfigError):
            set_route(tracked(record), record["name"])
        assert os.environ == before
    assert not started


def test_other_variables_of_a_record_are_not_used(started, monkeypatch, tmp_path):
    """Neither by the engine nor by the command."""
    route = {"LD_PRELOAD": "/evil.so", "PYTHONPATH": "/evil", "TRACKIO_DIR": "/evil", "WANDB_MODE": "offline"}
    run = tracked({"name": "wandb", "project": "p", "route": route, "more": 1})
    monkeypatch.setattr(os, "environ", os.environ | {"AWS_SECRET_ACCESS_KEY": "a", "WANDB_ENTITY": "shell"})
    process = start_tracking(None, tmp_path, run)
    assert set_route(run, "wandb:other") == Tracker("wandb", "other", {"WANDB_MODE": "offline"})
    for environment in (process.options["env"], os.environ):
        assert environment["WANDB_MODE"] == "offline"
        assert not {"LD_PRELOAD", "TRACKIO_DIR", "AWS_SECRET_ACCESS_KEY", "WANDB_ENTITY"} & environment.keys()
        assert "/evil" not in environment.get("PYTHONPATH", "")


def test_the_command_follows_its_variables_for_a_tracker_that_the_run_did_not_record(started, monkeypatch):
    run = tracked({"name": "wandb", "project": "p", "route": {"WANDB_MODE": "\0"}})
    monkeypatch.setattr(os, "environ", os.environ | {"TRACKIO_DIR": "/tracks"})
    assert set_route(run, "trackio") == Tracker("trackio", "rlhf-lab", {"TRACKIO_DIR": "/tracks"})
    assert os.environ["TRACKIO_DIR"] == "/tracks"
    with pytest.raises(ConfigError, match="WANDB_MODE"):
        set_route(run, "wandb")


def test_the_command_hides_its_environment_before_anything_else(monkeypatch):
    class Hidden(Exception):
        pass

    def hide():
        raise Hidden

    monkeypatch.setattr(track, "hide_environment", hide)
    with pytest.raises(Hidden):
        track.run(argparse.Namespace())


@pytest.fixture
def run_with_tracker(tmp_path, empty_home):
    home = shutil.copytree(empty_home, tmp_path / "home")
    with Database.open(home) as db:
        project = create_project(db, "tales", "tiny", "abc", "tales", 7, [("Once", "train")])
        manifest = {"tracker": {"name": "trackio", "project": "mine", "route": {}}}
        run = create_run(db, project.id, None, "r", config={"algorithm": "ppo"}, manifest=manifest, total_steps=4)
        record_step(db, run.id, StepResult(2, {"objective/kl": 0.5}))
        yield db, home, run


@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("kill -9 $$", "its process was ended by signal 9, perhaps because memory ran out"),
        ("kill -15 $$", "its process was ended by signal 15"), ("exit 3", "its process ended with code 3"), ("exit 0", None),
    ],
)  # fmt: skip
def test_a_process_that_ends_without_a_word_is_noted(run_with_tracker, tmp_path, monkeypatch, script, reason):
    db, home, run = run_with_tracker
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    monkeypatch.setattr(run_tracking, "_processes", [])
    monkeypatch.setattr(run_tracking.sys, "executable", str(program))
    process = start_tracking(db, home, run)
    said = wait_for_tracking(db, run.id, 30.0)
    assert process.returncode is not None
    noted = [(event.payload["words"], event.applied_step) for event in events(db, run.id)]
    words = (
        f"trackio failed, and the run goes on without it ({reason}). To send the missing steps: "
        f"python -m rlhf_lab track {run.id} --to trackio:mine"
    )
    assert noted == ([(words, 2)] if reason else [])
    assert said == ([words] if reason else [])


def test_a_process_that_said_why_it_failed_is_noted_once(run_with_tracker, tmp_path, monkeypatch):
    """And a run that was deleted meanwhile is no error."""
    db, home, run = run_with_tracker
    tracker = Tracker("trackio", "mine", {})

    class Ended:
        def wait(self):
            return 1

    add_note(db, run.id, "an earlier failure", 1, tracker=1, failed=1)
    add_note(db, run.id, "logged to trackio", 1, tracker=1)
    run_tracking._note_its_end(Ended(), home, run.id, tracker, time.time() + 60)
    add_note(db, run.id, "it says why", 1, tracker=1, failed=1)
    run_tracking._note_its_end(Ended(), home, run.id, tracker, time.time() - 60)
    words = [event.payload["words"] for event in events(db, run.id)]
    assert [text.partition(",")[0] for text in words] == [
        "an earlier failure", "logged to trackio", "trackio failed", "it says why"
    ]  # fmt: skip
    delete_run(db, run.id)
    run_tracking._note_its_end(Ended(), home, run.id, tracker, 0.0)


def test_at_most_three_processes_live_at_a_time(started, notes, tmp_path):
    run = tracked({"name": "trackio", "project": "mine", "route": {}})
    first = [start_tracking(None, tmp_path, run) for _ in range(3)]
    assert None not in first
    assert start_tracking(None, tmp_path, run) is None
    words = (
        "not logged to trackio: three runs are being logged already. To send it later: "
        "python -m rlhf_lab track 3 --to trackio:mine"
    )
    assert notes == [(3, words)]
    first[1].returncode = 1
    assert start_tracking(None, tmp_path, run) is not None
    assert start_tracking(None, tmp_path, run) is None
    assert (len(started), len(notes)) == (4, 2)


TRACKIO = {"tracker": {"name": "trackio", "project": "mine", "route": {"TRACKIO_DIR": "/tracks"}}}


@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("""echo noise; echo '{"name": "reward model 4 (4-x)", "look": "there"}'""",
         "logged to trackio, project mine, run reward model 4 (4-x); look at it there"),
        ("""echo '{"error": "trackio failed (OSError)", "kind": "TrackerError"}'; exit 1""", "trackio failed (OSError)"),
        ("kill -9 $$", "its process was ended by signal 9, perhaps because memory ran out"),
        ("echo noise; exit 1", "its process ended with code 1"),
    ],
)  # fmt: skip
def test_a_reward_model_is_logged_by_a_process_that_says_what_happened(tmp_path, monkeypatch, script, said):
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\necho "$@" "$TRACKIO_DIR" > {tmp_path}/called\n{script}\n')
    program.chmod(0o700)
    monkeypatch.setattr(run_tracking.sys, "executable", str(program))
    assert log_reward_model(tmp_path, 4, {}) == ""
    assert not (tmp_path / "called").exists()
    words = log_reward_model(tmp_path, 4, TRACKIO)
    if said.startswith("its process"):
        said = (
            f"trackio failed; the reward model is stored in the lab ({said}). To send its training: "
            "python -m rlhf_lab track --reward-model 4 --to trackio:mine"
        )
    assert words == said
    options = f"--to trackio:mine --home {tmp_path} --wait 600 --json /tracks"
    assert (tmp_path / "called").read_text().strip() == f"-m rlhf_lab track --reward-model 4 {options}"


@pytest.mark.slow
def test_a_reward_model_reaches_a_tracker(run_with_tracker, tmp_path, monkeypatch):
    """With a package that takes the place of trackio, and notes what it is called with."""
    db, home, run = run_with_tracker
    report = {"loss": [0.7, 0.5], "accuracy": 0.75}
    row = add_reward_model(
        db, run.project_id, "x", config={"lr": 0.1}, report=report, snapshot=LabelSnapshot((), "", Source.HUMAN)
    )
    (tmp_path / "trackio-1.0.dist-info").mkdir()
    (tmp_path / "trackio-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: trackio\nVersion: 1.0\n")
    (tmp_path / "trackio.py").write_text(FAKE_TRACKIO)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    name = f"reward model {row.id} ({row.id}-{int(1000 * row.created_at):x})"
    words = log_reward_model(home, row.id, TRACKIO)
    assert words == f"logged to trackio, project mine, run {name}; look at it with: trackio show --project mine"
    logged = [json.loads(line) for line in (tmp_path / "logged").read_text().splitlines()]
    assert logged == [
        ["mine", name],
        [1, {"train/loss": 0.7}],
        [2, {"train/loss": 0.5, "eval/accuracy": 0.75}],
        ["finish"],
    ]


FAKE_TRACKIO = """
import json, pathlib

def note(*values):
    with pathlib.Path(__file__).with_name("logged").open("a") as file:
        print(json.dumps(values), file=file)

class Run:
    config = {}

    def log(self, values, step=None, **_):
        note(step, values)

    def finish(self):
        note("finish")

def init(project=None, name=None, **_):
    print("trackio prints")
    note(project, name)
    return Run()
"""
