"""--temperature, --max-new-tokens and --system-prompt for a new or an existing project, a run, and single completions."""

import json
from dataclasses import asdict

import pytest
from support.fake_hub import model

from rlhf_lab.cli import commands, demo
from rlhf_lab.cli.main import main
from rlhf_lab.common.enums import JobKind, Source
from rlhf_lab.common.records import LabelSnapshot
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.jobs.answer_length import length_rows
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.judges.builtin import JUDGES
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import count_pairs, projects
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.runs import runs


@pytest.fixture
def db(tmp_path, monkeypatch):
    """A lab with a project at temperature 0.7 with texts of up to 96 tokens, and a reward model; jobs are queued and not run."""
    monkeypatch.setattr(engine_process, "ensure_engine", lambda *_: None)
    monkeypatch.setattr(
        commands, "wait_for_job", lambda *_: {"pair_ids": [], "texts": ["x"], "note": "", "status": "done", "step": 0}
    )
    with Database.open(tmp_path / "home") as db:
        project = new_project(db, temperature=0.7, max_new_tokens=96)
        report = {"accuracy": 0.9, "accuracy_low": 0.8, "accuracy_high": 1.0, "labels": 20}
        snapshot = LabelSnapshot((), "", Source.HUMAN)
        add_reward_model(db, project.id, "reward_models/x", config={}, report=report, snapshot=snapshot)
        yield db


def call(tmp_path, *words):
    return main([*words, "--home", str(tmp_path / "home"), "--json"])


@pytest.mark.parametrize(("options", "expected"), [((), 0.7), (("--temperature", "1.2"), 1.2)])
def test_a_run_has_the_projects_temperature_unless_one_is_given(db, tmp_path, options, expected):
    assert call(tmp_path, "train-policy", *options) == 0
    (run,) = runs(db)
    assert run.config["temperature"] == expected
    assert ("temperature" in run.name) == bool(options)


@pytest.mark.parametrize(("options", "expected"), [((), 96), (("--max-new-tokens", "128"), 128)])
def test_a_run_has_the_projects_length_unless_one_is_given(db, tmp_path, options, expected):
    assert call(tmp_path, "train-policy", *options) == 0
    (run,) = runs(db)
    assert run.config["max_new_tokens"] == expected
    assert ("max_new_tokens" in run.name) == bool(options)


@pytest.mark.parametrize(("options", "expected"), [((), {}), (("--temperature", "0.5"), {"temperature": 0.5})])
def test_completions_leave_the_temperature_to_the_project_unless_one_is_given(db, tmp_path, options, expected):
    assert call(tmp_path, "complete", "--prompt", "Once", *options) == 0
    (job,) = queue.jobs(db, kinds=[JobKind.COMPLETE])
    assert {name: value for name, value in job.payload.items() if name == "temperature"} == expected


def test_pairs_sets_the_temperature_of_a_new_or_the_open_project(db, tmp_path, capsys):
    new_project(db)
    pairs = count_pairs(db, 2)
    assert call(tmp_path, "pairs", "--temperature", "0.8") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["project"] == 2
    assert f"{pairs} pairs written at 1 are kept" in printed.err
    assert call(tmp_path, "pairs", "--model", "embedded", "--temperature", "0.9") == 0
    assert capsys.readouterr().err == ""
    assert [project.temperature for project in projects(db)] == [0.7, 0.8, 0.9]
    for words in (("pairs",), ("pairs", "--model", "embedded"), ("complete", "--prompt", "x"), ("train-policy",)):
        assert call(tmp_path, *words, "--temperature", "9") == 1
        assert "temperature = 9" in json.loads(capsys.readouterr().out)["error"]
    assert len(projects(db)) == 3


def test_pairs_sets_the_length_of_a_new_or_the_open_project(db, tmp_path, capsys):
    new_project(db)
    pairs = count_pairs(db, 2)
    assert pairs > 0
    assert call(tmp_path, "pairs", "--max-new-tokens", "128") == 0
    assert f"at most 128 tokens. {pairs} pairs written with at most 64 are kept" in capsys.readouterr().err
    assert call(tmp_path, "pairs", "--model", "embedded", "--max-new-tokens", "80") == 0
    capsys.readouterr()
    assert [project.max_new_tokens for project in projects(db)] == [96, 128, 80]
    assert count_pairs(db, 3) == 0  # the shipped pairs have up to 64 tokens
    for words in (("pairs",), ("pairs", "--model", "embedded"), ("train-policy",)):
        assert call(tmp_path, *words, "--max-new-tokens", "0") == 1
        assert "max_new_tokens = 0" in json.loads(capsys.readouterr().out)["error"]
    assert len(projects(db)) == 3


def test_pairs_measures_the_length_and_prints_the_proposal(db, tmp_path, capsys, monkeypatch):
    rows = [asdict(row) for row in length_rows([10, 80, 90, 90], {64: 1.0, 96: 2.0}, adds_instruction=True)]
    result = {"rows": rows, "system_prompt": "", "seconds": 3.0, "note": ""}
    monkeypatch.setattr(commands, "wait_for_job", lambda *_: result)
    assert call(tmp_path, "pairs", "--measure-length") == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["rows"], printed["proposal"]) == (rows, rows[1])
    assert main(["pairs", "--measure-length", "--home", str(tmp_path / "home")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [" ".join(line.split()) for line in lines[:3]] == [
        "4 answers, measured in 3 s",
        "with instruction 64 tokens 25% complete (5% to 70%) mean 50 tokens 0.50 s a pair",
        "with instruction 96 tokens 100% complete (51% to 100%) mean 68 tokens 1.00 s a pair",
    ]
    assert 'at most 96 tokens and a system prompt that ends with "Answer in one sentence."' in lines[3]
    assert [job.kind for job in queue.jobs(db)] == [JobKind.MEASURE_LENGTH] * 2


def test_pairs_begins_a_project_with_a_system_prompt_and_template_arguments(db, tmp_path, capsys):
    folder = model(tmp_path / "chat")
    (folder / "chat_template.jinja").write_text("{{ enable_thinking }}")
    assert call(tmp_path, "pairs", "--model", str(folder), "--system-prompt", "Be kind.") == 0
    arguments = '{"enable_thinking": true}'
    assert call(tmp_path, "pairs", "--model", str(folder), "--template-arguments", arguments) == 0
    assert call(tmp_path, "pairs", "--system-prompt", "Be terse.") == 0
    found = [(project.system_prompt, project.template_arguments) for project in projects(db)[1:]]
    assert found == [("Be kind.", {"enable_thinking": False}), ("", {"enable_thinking": True}), ("Be terse.", {})]
    capsys.readouterr()
    assert call(tmp_path, "pairs", "--template-arguments", arguments) == 1
    assert "chat template of embedded is missing" in json.loads(capsys.readouterr().out)["error"]


def test_demo_takes_the_prompts_that_suit_the_model_and_then_the_judge(tmp_path):
    base, chat = (str(model(tmp_path / name)) for name in ("base", "chat"))
    (tmp_path / "chat" / "chat_template.jinja").write_text("{{ messages }}")
    prompt_sets = {
        (name, judge): demo._prompt_set_of(name, JUDGES[judge])
        for name in (base, chat, "embedded")
        for judge in ("polite", "brief")
    }
    assert prompt_sets == {
        (base, "polite"): "support", (base, "brief"): None, (chat, "polite"): None, (chat, "brief"): None,
        ("embedded", "polite"): "support", ("embedded", "brief"): None,
    }  # fmt: skip
