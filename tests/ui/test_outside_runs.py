"""Runs that were made elsewhere: their metrics are read, compared beside the lab's, and used for nothing else."""

import json
import math
import os
import shutil

import pytest
from support.page_requests import requests_of

from rlhf_lab.cli.main import main
from rlhf_lab.common.enums import RunStatus
from rlhf_lab.common.records import StepResult
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import DataError, StoreError
from rlhf_lab.importers import run_metrics
from rlhf_lab.importers.run_metrics import read_metrics
from rlhf_lab.jobs import run_control
from rlhf_lab.store import runs as store
from rlhf_lab.store.database import Database
from rlhf_lab.store.run_metrics import metrics_since, record_step
from rlhf_lab.ui.chat import api as chat
from rlhf_lab.ui.compare import api as compare
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.header.guide import progress_of
from rlhf_lab.ui.run_views.run_feed import feed_of
from rlhf_lab.ui.runs import api as runs_api

HISTORY = [
    {
        "step": 1,
        "epoch": 0.5,
        "loss": 0.25,
        "learning_rate": 1e-3,
        "objective/scores": 0.5,
        "completions/mean_length": 9.0,
    },
    {"step": 2, "epoch": 1.0, "loss": -0.75, "learning_rate": 5e-4, "objective/scores": 1.5, "grad_norm": "nan"},
    {"step": 2, "train_runtime": 12.5, "note": "done", "flags": [1], "none": None, "flag": True},
]
STATE = {"global_step": 2, "log_history": HISTORY, "stateful_callbacks": {"A": {"args": {"x": 1}}}, "best_metric": None}
HOSTILE = "<img src=x onerror=alert(1)>"


def write(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content, encoding="utf-8")
    return path


@pytest.fixture
def ctx(tmp_path, project_home):
    with Database.open(shutil.copytree(project_home, tmp_path / "home")) as db:
        yield Context(tmp_path / "home", db)


def own_run(ctx):
    config = PolicyConfig(steps=10).to_dict()
    labels = {"vote_ids": [], "digest": "d" * 64, "source": "human"}
    run = store.create_run(
        ctx.db, ctx.project.id, None, "ours", config=config, manifest={"labels": labels}, total_steps=10
    )
    record_step(ctx.db, run.id, StepResult(1, {"objective/scores": 0.25, "objective/kl": 0.5}))
    store.set_run_status(ctx.db, run.id, RunStatus.DONE)
    return run.id


def import_state(ctx, tmp_path, *arguments, name="theirs"):
    path = write(tmp_path, "output/trainer_state.json", json.dumps(STATE))
    assert main(["import-run", str(path), "--home", str(ctx.home), "--name", name, *arguments]) == 0
    (run,) = [run for run in store.runs(ctx.db, made_elsewhere=True) if run.name == name]
    return run


def test_the_command_renames_and_deletes_it(ctx, tmp_path, capsys):
    run = import_state(ctx, tmp_path)
    for words in (["rename", "another name"], ["delete"]):
        capsys.readouterr()
        assert main(["control", str(run.id), *words, "--home", str(ctx.home), "--json"]) == 0
        assert json.loads(capsys.readouterr().out).get("name", "another name") == "another name"
    assert store.runs(ctx.db, made_elsewhere=True) == []


def test_the_state_of_trl(tmp_path):
    """The final row has the step of the last one; two names are those of the lab."""
    path = write(tmp_path, "trainer_state.json", json.dumps(STATE))
    read = read_metrics(path)
    assert read.steps[1] == {
        "epoch": 0.5, "loss": 0.25, "lr": 1e-3, "objective/scores": 0.5, "tokens/response_len": 9.0
    }  # fmt: skip
    assert math.isnan(read.steps[2].pop("grad_norm"))
    assert read.steps[2] == {"epoch": 1.0, "loss": -0.75, "lr": 5e-4, "objective/scores": 1.5, "train_runtime": 12.5}
    assert (read.ignored, read.text_count, read.replaced_count) == (("flag", "flags", "note"), 0, 0)
    assert read_metrics(tmp_path).steps.keys() == {1, 2}


def test_the_newest_checkpoint_of_a_folder(tmp_path):
    for step in (8, 10):
        state = {"log_history": [{"step": step, "loss": 1.0}]}
        write(tmp_path, f"checkpoint-{step}/trainer_state.json", json.dumps(state))
    assert list(read_metrics(tmp_path).steps) == [10]


def test_tables_in_any_order(tmp_path):
    """CSV with Step as some trackers write it, JSON Lines with integers beyond floating point, the last of two values."""
    table = write(tmp_path, "log.csv", "Step,loss,lr,learning_rate\n3.0,0.5,1,7\n1,1e999,2,off\n3,0.25,,\n2,,3,8\n")
    read = read_metrics(table)
    assert read.steps == {
        1: {"loss": math.inf, "lr": 2.0}, 2: {"lr": 3.0, "learning_rate": 8.0}, 3: {"loss": 0.25, "lr": 1.0, "learning_rate": 7.0}
    }  # fmt: skip
    assert list(read.steps) == [1, 2, 3]
    assert (read.text_count, read.replaced_count) == (1, 1)
    lines = write(tmp_path, "log.jsonl", '{"step": 2, "a": 1' + "0" * 400 + '}\n{"step": 0, "a": -1e-320}\n')
    assert read_metrics(lines).steps == {0: {"a": -1e-320}, 2: {"a": math.inf}}


def test_names_of_columns_are_printed_without_control_characters(ctx, tmp_path, capsys):
    """25 names, of which 20 are printed."""
    row = {"step": 1, "a": 1.0, "\x1b]0;owned\x07\x9b2J": "x", **{f"n{i:02}": "x" for i in range(24)}}
    path = write(tmp_path, "log.jsonl", json.dumps(row))
    assert main(["import-run", str(path), "--home", str(ctx.home)]) == 0
    printed = capsys.readouterr().out
    assert "?]0;owned??2J, n00, n01" in printed
    assert printed.rstrip().endswith("n17, n18 and 5 more")
    assert all(char.isprintable() or char == "\n" for char in printed)


def test_updates_become_steps(tmp_path):
    """Means of two updates each; a value that is not finite does not spoil the mean."""
    rows = [{"step": step, "a": value} for step, value in ((1, 1.0), (2, 3.0), (3, float("nan")), (4, 5.0), (5, 9.0))]
    path = write(tmp_path, "log.jsonl", "\n".join(map(json.dumps, rows)))
    assert read_metrics(path, updates_per_step=2).steps == {1: {"a": 2.0}, 2: {"a": 5.0}, 3: {"a": 9.0}}


def test_an_object_of_columns_is_a_table(tmp_path):
    read = read_metrics(write(tmp_path, "log.jsonl", '{"step": [1, 2], "a": [0.5, null]}'))
    assert read.steps == {1: {"a": 0.5}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"step": 1, "a": 1}\n{"a": 2}', r"row 2 \(line 2\): there is no step"),
        ('{"step": 1.5, "a": 1}\n{"step": 2, "a": 1}', "not a whole number"),
        ('{"step": -1, "a": 1}\n{"step": 2, "a": 1}', "not a whole number"),
        ('{"step": 1e999, "a": 1}\n{"step": 2, "a": 1}', "not a whole number"),
        ('{"step": NaN, "a": 1}\n{"step": 2, "a": 1}', "not a whole number"),
        ('{"step": 3000000000, "a": 1}\n{"step": 2, "a": 1}', "not a whole number"),
        ('{"step": 1, "a": "x"}\n{"step": 2}', "no numbers beside the steps"),
        ('{"step": 1, "a\\u0000b": 1}\n{"step": 2}', "cannot be the name"),
        ('{"step": 1, "\\ud800": 1}\n{"step": 2}', "cannot be the name"),
        ('{"step": 1, "' + "n" * 81 + '": 1}\n{"step": 2}', "cannot be the name"),
        ('{"step": 1, "a": 1}\n{"step": 2, "a": ' + "[" * 10000, "row 2"),
        ('{"train": [{"step": 1, "a": "b", "c": "d"}], "test": [{"step": 1, "a": "b", "c": "d"}]}',
         "save it as CSV or JSON Lines, with a row for each step"),
        (b"\x00\x01\xff\xfe\x80binary\x00", "."), (b"", "."), ("[]", "."), ('{"log_history": []}', "."), ("{", "."),
    ],
)  # fmt: skip
def test_files_that_are_no_metrics_change_nothing(ctx, tmp_path, capsys, content, message):
    path = write(tmp_path, "log.jsonl", content)
    with pytest.raises(DataError, match=message):
        read_metrics(path)
    assert main(["import-run", str(path), "--home", str(ctx.home)]) == 1
    printed = capsys.readouterr().err
    assert "log.jsonl" in printed
    assert "--" not in printed  # import-run has no option for what a file means
    assert store.runs(ctx.db, made_elsewhere=True) == []


def test_limits(tmp_path, monkeypatch):
    monkeypatch.setattr(run_metrics, "MAX_VALUES", 3)
    path = write(tmp_path, "log.csv", "step,a,b\n1,1,1\n2,1,\n")
    assert len(read_metrics(path).steps) == 2
    path = write(tmp_path, "log.csv", "step,a,b\n1,1,1\n2,1,1\n")
    with pytest.raises(DataError, match="more than 3 numbers"):
        read_metrics(path)
    with pytest.raises(DataError, match=r"no trainer_state\.json"):
        read_metrics(tmp_path)
    with pytest.raises(DataError, match="0 updates per step"):
        read_metrics(path, 0)


def test_it_is_listed_and_compared_as_made_elsewhere(ctx, tmp_path, capsys):
    ours = own_run(ctx)
    run = import_state(ctx, tmp_path, name=HOSTILE)
    screen = requests_of(ctx, runs_api.api)
    theirs, listed = screen.overview()["runs"]
    assert (theirs["name"], theirs["outside_file"], theirs["algorithm"]) == (HOSTILE, "trainer_state.json", "")
    assert (theirs["step"], theirs["score"], theirs["is_resumable"]) == (2, 1.5, False)
    assert (listed["outside_file"], listed["algorithm"]) == ("", "ppo")
    compared = screen.compare({"runs": [ours, run.id]})
    assert [one["outside_file"] for one in compared["runs"]] == ["", "trainer_state.json"]
    assert [one["points"] for one in compared["runs"]] == [[[1, 0.25]], [[1, 0.5], [2, 1.5]]]
    table = write(tmp_path, "log.csv", "step,first,between\n1,1,\n2,,1\n3,1,\n")
    assert main(["import-run", str(table), "--home", str(ctx.home)]) == 0
    assert screen.compare({"runs": [run.id + 1]})["metrics"] == ["between", "first"]
    digest = run.manifest["made_elsewhere"]["sha256"]
    assert compared["setting_differences"] == [
        {"name": "made", "about": "", "values": ["in this lab", f"elsewhere: trainer_state.json, {digest[:8]}"]}
    ]
    capsys.readouterr()
    assert main(["runs", "--home", str(ctx.home), "--json"]) == 0
    _, theirs, listed = json.loads(capsys.readouterr().out)["runs"]
    assert theirs["made_elsewhere"] == "trainer_state.json"
    assert "made_elsewhere" not in listed


def test_it_is_offered_for_nothing_else(ctx, tmp_path, capsys):
    run = import_state(ctx, tmp_path)
    assert [name for name, _ in chat.options(ctx, chat.OptionsQuery())["models"]] == ["base"]
    assert [name for name, _ in compare.comparison_options(ctx)["models"]] == ["base"]
    assert compare.run_details(ctx, [run.id])["steps_by_run"] == {}
    assert feed_of(ctx).poll(runs_feed(run.id))["run"] is None
    assert progress_of(ctx).runs == ()
    screen = requests_of(ctx, runs_api.api)
    assert "was made elsewhere" in screen.resume({"run": run.id})["error"]
    for command in (["export", "run", str(run.id), "--out", "x"], ["export", "model", str(run.id), "--out", "x"],
                    ["export", "recipe", str(run.id), "--out", "x"], ["control", str(run.id), "resume"],
                    ["control", str(run.id), "set", "beta", "1"], ["share", str(run.id), "--out", "x.html"]):  # fmt: skip
        capsys.readouterr()
        assert main([*command, "--home", str(ctx.home)]) == 1, command
        assert "was made elsewhere" in capsys.readouterr().err
    with pytest.raises(StoreError, match="was made elsewhere"):
        run_control.resume(ctx.db, ctx.home, run.id)


def runs_feed(run_id):
    from rlhf_lab.ui.run_views.run_feed import FeedQuery

    return FeedQuery(run=run_id)


def test_an_import_is_whole_and_can_be_undone(ctx, tmp_path, capsys, monkeypatch):
    run = import_state(ctx, tmp_path, "--updates-per-step", "2")
    ((step, values),) = metrics_since(ctx.db, run.id, -1)
    assert (step, values["objective/scores"], values["loss"]) == (1, 1.0, -0.25)
    assert math.isnan(values["grad_norm"])
    ours = own_run(ctx)
    assert main(["import-run", "--undo", str(ours), "--home", str(ctx.home)]) == 1
    assert "lab's own" in capsys.readouterr().err
    screen = requests_of(ctx, runs_api.api)
    screen.rename({"run": run.id, "name": "other"})
    assert main(["import-run", "--undo", str(run.id), "--home", str(ctx.home)]) == 0
    assert [one.id for one in store.runs(ctx.db, made_elsewhere=True)] == [ours]
    assert metrics_since(ctx.db, run.id, -1) == []
    again = import_state(ctx, tmp_path)
    assert "deleted" in screen.delete({"run": again.id})
    assert again.id > run.id


@pytest.mark.skipif(os.name == "nt", reason="such a name needs a file system of Unix")
def test_a_name_that_cannot_be_shown(ctx, tmp_path):
    path = write(tmp_path, "a\n\x1b[1m.jsonl", '{"step": 1, "a": 1}\n{"step": 2, "a": 1}')
    assert main(["import-run", str(path), "--home", str(ctx.home)]) == 0
    (run,) = store.runs(ctx.db, made_elsewhere=True)
    assert run.outside_file == "a??[1m.jsonl"
    assert run.name.endswith("/a??[1m.jsonl")


def test_a_table_of_weights_and_biases_has_the_steps_and_names_of_the_training(tmp_path):
    """Its _step counts calls of log; the training's own step is train/global_step."""
    table = "_step,train/global_step,train/learning_rate,train/objective/kl\n0,10,0.1,1\n1,20,0.2,2\n"
    assert read_metrics(write(tmp_path, "t.csv", table)).steps == {
        10: {"lr": 0.1, "objective/kl": 1.0}, 20: {"lr": 0.2, "objective/kl": 2.0},
    }  # fmt: skip


def test_two_columns_of_one_metric_keep_their_names(tmp_path):
    table = "step,learning_rate,train/learning_rate,train/loss\n1,0.1,0.2,3\n"
    expected = {"learning_rate": 0.1, "train/learning_rate": 0.2, "loss": 3.0}
    assert read_metrics(write(tmp_path, "t.csv", table)).steps == {1: expected}
