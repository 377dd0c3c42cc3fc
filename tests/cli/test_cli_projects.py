"""Commands that create a project open it on everybody's page only with --open."""

import json

import pytest

from rlhf_lab.cli import commands, demo
from rlhf_lab.cli.main import main
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.errors import EngineError
from rlhf_lab.jobs import queue
from rlhf_lab.jobs.model_inspection import inspect_model
from rlhf_lab.jobs.project_setup import new_project, open_project_on_model
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import current_project, open_project, projects, set_labelling_config

ROW = {"prompt": "p", "chosen": "a", "rejected": "b"}
COMMANDS = {
    "import": ["import", "votes.jsonl", "--new-project", "theirs"],
    "pairs": ["pairs", "--model", "embedded"],
    "demo": ["demo", "--labels", "2"],
}


@pytest.fixture
def call(tmp_path, monkeypatch):
    """call(command, *more): run it in a home, without an engine. Returns the ids of all projects and of the open one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "votes.jsonl").write_text(json.dumps(ROW))
    monkeypatch.setattr(commands, "wait_for_job", lambda *_: {"pair_ids": []})

    def end(*_, **__):
        raise EngineError("the demo ends here")

    monkeypatch.setattr(demo, "sample_pairs", end)

    def run_command(command, *more):
        main([*COMMANDS[command], "--home", str(tmp_path / "home"), *more])
        with Database.open(tmp_path / "home") as db:
            return [project.id for project in projects(db)], current_project(db).id

    return run_command


@pytest.mark.parametrize("command", COMMANDS)
def test_a_new_project_is_opened_only_if_asked(call, tmp_path, capsys, command):
    with Database.open(tmp_path / "home") as db:
        first = new_project(db)
    assert call(command) == ([1, 2], first.id)
    assert ("--project 2" in capsys.readouterr().out) is (command != "demo")  # the demo needs no further command
    assert call(command) == ([1, 2, 3], first.id)
    assert call(command, "--open") == ([1, 2, 3, 4], 4)
    assert "--project" not in capsys.readouterr().out.splitlines()[-1:]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_first_project_of_a_home_is_open(call, command):
    assert call(command) == ([1], 1)
    assert call(command) == ([1, 2], 1)


def test_open_also_opens_an_existing_project(call, tmp_path):
    with Database.open(tmp_path / "home") as db:
        ids = [new_project(db).id for _ in range(2)]
    assert main(["pairs", "--project", "1", "--home", str(tmp_path / "home")]) == 0
    with Database.open(tmp_path / "home") as db:
        assert current_project(db).id == ids[1]
    assert main(["pairs", "--project", "1", "--open", "--home", str(tmp_path / "home")]) == 0
    with Database.open(tmp_path / "home") as db:
        assert current_project(db).id == ids[0]


def test_pairs_are_selected_by_the_rule_of_the_project_or_as_asked(call, tmp_path):
    with Database.open(tmp_path / "home") as db:
        project = new_project(db)
        for rule in ("random", "diversity"):
            set_labelling_config(db, project.id, LabellingConfig(sampling=rule))
            for words in ((), ("--sampling", "teaching")):
                assert main(["pairs", *words, "--home", str(tmp_path / "home")]) == 0
        payloads = [job.payload["sampling"] for job in queue.jobs(db)]
    assert sorted(payloads) == ["diversity", "random", "teaching", "teaching"]


def test_a_model_opens_its_project_that_was_open_last(tmp_path):
    with Database.open(tmp_path / "home") as db:
        used, other = new_project(db), new_project(db, prompt_set="reviews")
        new_project(db, opens=False)
        open_project(db, used.id)
        open_project(db, other.id)
        assert open_project_on_model(db, inspect_model("embedded")).id == other.id
