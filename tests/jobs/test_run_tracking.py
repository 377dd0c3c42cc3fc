"""Where a run is logged: what is chosen, refused and recorded, and the process that is started."""

import dataclasses
import importlib.metadata
import os
import subprocess
import sys

import pytest

from rlhf_lab.common.enums import RunStatus
from rlhf_lab.common.records import Run
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs import run_tracking
from rlhf_lab.jobs.run_tracking import Tracker, start_tracking, tracker_entry

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


def test_the_process_gets_the_route_of_the_run_and_not_that_of_the_engine(monkeypatch, tmp_path):
    started = []

    class Process:
        def __init__(self, command, **options):
            started.append((command, options))

        def wait(self):
            return 0

    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.setattr(os, "environ", os.environ | {"WANDB_MODE": "online", "WANDB_ENTITY": "engine", "WANDB_API_KEY": "k",
                                                     "RLHF_LAB_OPERATOR_SECRET": "s"})  # fmt: skip
    assert start_tracking(tmp_path, RUN) is None
    assert not started
    entry = dataclasses.asdict(Tracker("wandb", "mine", {"WANDB_MODE": "offline"}))
    assert start_tracking(tmp_path, dataclasses.replace(RUN, manifest={"tracker": entry})) is not None
    ((command, options),) = started
    assert command[1:8] == ["-m", "rlhf_lab", "track", "3", "--to", "wandb:mine", "--home"]
    environment = options["env"]
    assert (environment["WANDB_MODE"], environment["WANDB_API_KEY"]) == ("offline", "k")
    assert not {"WANDB_ENTITY", "RLHF_LAB_OPERATOR_SECRET"} & environment.keys()
    assert options["stdin"] == options["stdout"] == options["stderr"] == subprocess.DEVNULL
