"""`export`: which files are written, what is printed, and that an error leaves nothing behind."""

import contextlib
import json
import os
import subprocess
import sys
import uuid

import pytest

from rlhf_lab.cli.main import main
from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import StepResult, Vote
from rlhf_lab.jobs.judge_labelling import label_with_judge
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.judges.builtin import JUDGES
from rlhf_lab.store import tables as t
from rlhf_lab.store.annotators import VISITOR_PREFIX
from rlhf_lab.store.database import Database
from rlhf_lab.store.label_snapshots import snapshot_labels
from rlhf_lab.store.projects import open_project
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import create_run
from rlhf_lab.store.votes import cast_vote, next_unvoted_pair


@pytest.fixture
def lab(tmp_path):
    """Two projects; the newer one has 3 simulated labels, a tie by a person, a reward model and two runs."""
    home = tmp_path / "home"
    with Database.open(home) as db:
        new_project(db, prompt_set="support")
        project = new_project(db)
        label_with_judge(db, project.id, JUDGES["cheerful"], 3)
        pair = next_unvoted_pair(db, project.id, "ann")
        cast_vote(db, Vote(str(uuid.uuid4()), pair.id, "ann", Source.HUMAN, Choice.TIE, True))
        pinned = snapshot_labels(db, project.id, Source.SIMULATED)
        model = add_reward_model(db, project.id, "reward_models/gone", config={}, report={}, snapshot=pinned)
        for name in ("a", "b"):
            run = create_run(db, project.id, model.id, name, config={}, manifest={}, total_steps=3)
            record_step(db, run.id, StepResult(1, {"lr": 0.5}))
    return home


def test_votes_on_gold_pairs_are_exported_if_asked_for(lab, export):
    with Database.open(lab) as db, db.write() as conn:
        conn.execute(t.pairs.update().where(t.pairs.c.id != 0).values(gold=Choice.FIRST))
    assert export("labels", "--source", "simulated")[1]["kind"] == "LabelError"
    assert len(labels(export("labels", "--source", "simulated", "--gold")[1])) == 3


@pytest.fixture
def export(lab, tmp_path, capsys):
    def call(*words, out="out"):
        status = main(["export", *words, "--home", str(lab), "--out", str(tmp_path / out), "--json"])
        (line,) = capsys.readouterr().out.strip().splitlines()
        return status, json.loads(line)

    return call


def labels(reply):
    (file,) = reply["files"]
    with open(file, encoding="utf-8") as lines:  # noqa: PTH123
        return [json.loads(line) for line in lines]


def test_human_labels_by_default(export, tmp_path):
    status, reply = export("labels", "--layout", "votes")
    assert (status, reply) == (0, {"files": [str(tmp_path / "out" / "labels-project-2.jsonl")]})
    assert [(row["source"], row["tie"]) for row in labels(reply)] == [("human", True)]
    assert labels(reply)[0]["annotator"] == "ann"
    _, reply = export("labels", "--layout", "votes", "--no-names", out="nameless")
    assert [row["annotator"].startswith(VISITOR_PREFIX) for row in labels(reply)] == [True]
    _, reply = export("labels", "--source", "simulated", out="judge")
    assert [(row["source"], row["annotator"]) for row in labels(reply)] == [("simulated", "judge:cheerful")] * 3
    _, reply = export("labels", "--source", "all", "--ties", "keep", "--token-ids", out="both")
    assert sorted(row["source"] for row in labels(reply)) == ["human", *["simulated"] * 3]
    assert all(row["chosen_ids"] for row in labels(reply))
    _, reply = export("labels", "--source", "all", "--layout", "votes", "--annotator", "ann", out="ann")
    assert len(labels(reply)) == 1


@pytest.mark.parametrize(
    ("words", "kind", "remedy"),
    [
        (["labels"], "LabelError", "layout votes"),
        (["labels", "--ties", "drop"], "LabelError", "3 simulated"),
        (["labels", "--layout", "explicit", "--ties", "keep"], "ConfigError", "Use --layout votes"),
        (["labels", "--project", "1"], "LabelError", "another source"),
        (["labels", "--project", "9"], "ConfigError", "2 (Tales)"),
        (["run", "9"], "StoreError", "python -m rlhf_lab runs"),
        (["run", "--project", "1"], "ConfigError", "train-policy"),
        (["run", "--step", "5"], "StoreError", "no checkpoint yet"),
        (["reward-model"], "StoreError", "Train it again"),
        (["reward-model", "9"], "StoreError", "no reward model 9"),
        (["reward-model", "--project", "1"], "ConfigError", "train-reward"),
    ],
)
def test_errors_name_the_remedy_and_leave_nothing(export, tmp_path, words, kind, remedy):
    status, reply = export(*words)
    assert (status, reply["kind"]) == (1, kind)
    assert remedy in reply["error"]
    assert not (tmp_path / "out").exists()


def test_newest_run_by_default(export):
    _, reply = export("run")
    names = [file.rpartition("/")[2] for file in reply["files"]]
    assert names == ["run-2-metrics.csv", "run-2-samples.jsonl", "run-2-tokens.jsonl", "run-2-manifest.json"]
    _, reply = export("run", "1")
    assert all("run-1" in file for file in reply["files"])


def test_files_are_replaced_only_with_force(export, tmp_path):
    export("run")
    target = tmp_path / "out" / "run-2-metrics.csv"
    target.write_text("mine")
    status, reply = export("run")
    assert (status, "--force" in reply["error"], target.read_text()) == (1, True, "mine")
    assert export("run", "--force")[0] == 0
    assert target.read_text() == "step,lr\n1,0.5\n"


def test_text_output_lists_the_paths(lab, tmp_path, capsys):
    assert main(["export", "run", "--home", str(lab), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.splitlines()[0] == str(tmp_path / "out" / "run-2-metrics.csv")


def test_a_home_without_a_lab_is_not_created(tmp_path, capsys):
    home = tmp_path / "mistyped"
    assert main(["export", "labels", "--home", str(home), "--out", str(tmp_path / "out")]) == 1
    assert "There is no lab in" in capsys.readouterr().err
    assert not home.exists()
    assert not (tmp_path / "out").exists()


def test_default_project_is_the_one_opened_last(lab, export):
    with Database.open(lab) as db:
        open_project(db, 1)
    assert "Project 1 has no run" in export("run")[1]["error"]


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("kind", ["labels", "dataset"])
def test_a_progress_bar_is_shown_only_on_a_terminal(lab, tmp_path, kind):
    import pty

    def output(*words, out):
        command = [
            sys.executable,
            "-m",
            "rlhf_lab",
            "export",
            kind,
            "--home",
            str(lab),
            "--out",
            str(tmp_path / out),
            "--ties",
            "keep",
        ]
        terminal, end = pty.openpty()
        try:
            subprocess.run([*command, *words], stdin=end, stdout=end, stderr=end, check=True)
            os.set_blocking(terminal, False)
            printed = b""
            with contextlib.suppress(BlockingIOError):  # a read returns a part of what is there
                while True:
                    printed += os.read(terminal, 4096)
            return printed.decode()
        finally:
            os.close(terminal)
            os.close(end)

    bar = output(out="bar")
    assert "writing the labels" in bar
    assert "100%" in bar
    with_json = output("--json", out="json")
    assert "writing" not in with_json
    assert json.loads(with_json)["files"]


def test_no_progress_is_printed_without_a_terminal(lab, tmp_path, capsys):
    assert main(["export", "labels", "--home", str(lab), "--out", str(tmp_path / "out"), "--layout", "votes"]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (f"{tmp_path / 'out' / 'labels-project-2.jsonl'}\n", "")
