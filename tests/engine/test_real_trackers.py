"""Trackio on this machine, wandb offline and TensorBoard, installed in an environment of their own: what they get of a run, read
by their own readers."""

import json
import math
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.environments import python_with

from rlhf_lab.common.enums import EventKind, RunStatus, Source
from rlhf_lab.common.records import LabelSnapshot, Sample, StepResult
from rlhf_lab.engine.tracker_process import sample_markdown
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import create_project
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.run_metrics import delete_steps_after, record_step
from rlhf_lab.store.runs import create_run, events, set_run_status

ROOT = Path(__file__).parents[2]
KEY = "f" * 40
HOSTILE = "![x](http://evil.test/x.png)\n\n<script>alert(1)</script>\r\n# = \x07 \u202e \u2028 👩\u200d👧 \\ NaN"
FIRST, LATER = (
    [Sample("Once", 3, HOSTILE, math.nan)],
    [Sample("Once", 3, " end", 1.5, 2.0), Sample(HOSTILE, 4, "", -1.0)],
)
ROWS = {0: [["Once", HOSTILE, None, None]], 2: [["Once", " end", 1.5, 2.0], [HOSTILE, "", -1.0, None]]}
KLS = {1: 0.5, 2: 0.75, 3: 1.5}

READ_TRACKIO = """
import json
from trackio.sqlite_storage import SQLiteStorage
runs = SQLiteStorage.get_runs("rlhf-lab")
print(json.dumps([[name, row] for name in runs for row in SQLiteStorage.get_logs("rlhf-lab", name)]))
"""
#: The file is a log of LevelDB: a head of 7 bytes, then blocks of 32 KiB with records [crc, length, type]. The package's own
#: reader is not in Python; the records are read by its protocol buffers.
READ_WANDB = """
import json, struct, sys
from pathlib import Path
from wandb.proto import wandb_internal_pb2 as pb

def records(data):
    at, whole = 7, b""
    while at < len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield pb.Record.FromString(whole)
            whole = b""

found = []
for file in sorted(Path(sys.argv[1]).rglob("*.wandb")):
    for record in records(file.read_bytes()):
        if record.HasField("run"):
            found.append(["run", record.run.run_id, record.run.display_name, record.run.project])
        if record.HasField("history"):
            items = {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            table = items.get("completions") or {}
            path = table.get("path") or items.get("completions.path")
            rows = json.loads((file.parent / "files" / path).read_text())["data"] if path else []
            found.append(["step", items["_step"], items.get("train/objective/kl"), items.get("eval/kl"), rows])
print(json.dumps(found))
"""
READ_TENSORBOARD = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1]).Reload()
scalars = {tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
texts = [[e.step, e.tensor_proto.string_val[0].decode()] for e in events.Tensors("completions/text_summary")]
print(json.dumps([scalars, texts, events.Tags()["tensors"]]))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of an environment with the trackers and the packages of this one."""
    requirements = str(Path(__file__).with_name("trackers.txt"))
    return python_with(tmp_path_factory.mktemp("trackers") / "env", "trackers", "-r", requirements)


@pytest.fixture
def home(tmp_path, empty_home):
    return shutil.copytree(empty_home, tmp_path / "home")


@pytest.fixture
def db(home):
    with Database.open(home) as opened:
        yield opened


def add_run(db, name):
    """A run that was stopped after two steps."""
    project = create_project(db, "tales", "/secret/folder/tiny", "abc", "tales", 7, [("Once", "train")])
    run = create_run(db, project.id, None, name, config={"beta": 0.1}, manifest={}, total_steps=3)
    record_step(db, run.id, StepResult(0, {}, samples=FIRST))
    record_step(db, run.id, StepResult(1, {"objective/kl": 0.5, "lr": math.nan, "eval/kl": 0.25}))
    record_step(db, run.id, StepResult(2, {"objective/kl": 0.75}, samples=LATER))
    set_run_status(db, run.id, RunStatus.STOPPED)
    return run


def resume(db, run):
    """From the checkpoint of step 1: step 2 again, then the last."""
    delete_steps_after(db, run.id, 1)
    record_step(db, run.id, StepResult(2, {"objective/kl": 0.75}, samples=LATER))
    record_step(db, run.id, StepResult(3, {"objective/kl": 1.5}))


def environment(home, **more):
    return os.environ | {"HOME": str(home), "HF_HUB_OFFLINE": "1", "WANDB_API_KEY": KEY, "PYTHONPATH": str(ROOT)} | more


def call(python, arguments, home, **more):
    done = subprocess.run(
        [python, *arguments], env=environment(home, **more), capture_output=True, text=True, check=False, timeout=300, cwd=home
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def track(python, home, run, to, **more):
    arguments = ["-m", "rlhf_lab", "track", str(run.id), "--to", to, "--home", str(home), "--json"]
    return json.loads(call(python, arguments, home, **more).strip().splitlines()[-1])


def log_twice(python, db, home, to, **more):
    """Two runs, each before and after a resume; returns their names in the tracker."""
    names = []
    for run in (add_run(db, "one"), add_run(db, "two")):
        assert track(python, home, run, to, **more)["step"] == 2
        resume(db, run)
        names.append(track(python, home, run, to, **more)["name"])
        (note, again) = (event.payload["words"] for event in events(db, run.id) if event.kind is EventKind.NOTE)
        assert note == again
        assert note.startswith(f"logged to {to}")
    assert len(set(names)) == 2
    return names


def check_no_secrets(*folders):
    for path in (path for folder in folders for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        assert KEY.encode() not in content, path
        assert b"/secret/folder" not in content, path


@pytest.mark.slow
def test_trackio_on_this_machine(python, db, home, tmp_path):
    folder = tmp_path / "trackio"
    names = log_twice(python, db, home, "trackio", TRACKIO_DIR=str(folder))
    found = json.loads(call(python, ["-c", READ_TRACKIO], home, TRACKIO_DIR=str(folder)))
    for name in names:
        rows = [row for run, row in found if run == name]
        assert [row["step"] for row in rows] == [0, 1, 2, 3]
        assert {row["step"]: row["train/objective/kl"] for row in rows if "train/objective/kl" in row} == KLS
        assert [row["eval/kl"] for row in rows if "eval/kl" in row] == [0.25]
        tables = {row["step"]: row["completions"]["_value"] for row in rows if "completions" in row}
        assert {
            step: [[row[name] for name in ("prompt", "completion", "score", "gold")] for row in table]
            for step, table in tables.items()
        } == ROWS
    check_no_secrets(folder, home / "runs")


@pytest.mark.slow
def test_wandb_offline(python, db, home):
    names = log_twice(python, db, home, "wandb", WANDB_MODE="offline")
    for run_id, name in enumerate(names, 1):
        folder = home / "runs" / str(run_id) / "tracking" / "wandb"
        found = json.loads(call(python, ["-c", READ_WANDB, str(folder)], home))
        runs = [entry[1:] for entry in found if entry[0] == "run"]
        assert len({tuple(run) for run in runs}) == 1
        assert runs[0][1:] == [name, "rlhf-lab"]
        steps = {entry[1]: entry[2:] for entry in found if entry[0] == "step"}
        assert list(steps) == [0, 1, 2, 3]
        assert {step: kl for step, (kl, _, _) in steps.items() if kl is not None} == KLS
        assert steps[1][1] == 0.25
        assert {step: [row[1:] for row in rows] for step, (_, _, rows) in steps.items() if rows} == ROWS
        check_no_secrets(folder)


@pytest.mark.slow
def test_tensorboard_files(python, db, home):
    log_twice(python, db, home, "tensorboard")
    for run_id in (1, 2):
        folder = home / "runs" / str(run_id) / "tracking" / "tensorboard"
        scalars, texts, tensors = json.loads(call(python, ["-c", READ_TENSORBOARD, str(folder)], home))
        assert scalars == {"train/objective/kl": [[1, 0.5], [2, 0.75], [3, 1.5]], "eval/kl": [[1, 0.25]]}
        assert dict(texts) == {step: "\n\n".join(map(sample_markdown, s)) for step, s in ((0, FIRST), (2, LATER))}
        assert len(texts) == 2
        assert tensors == ["completions/text_summary"]
        check_no_secrets(folder)


@pytest.mark.slow
def test_a_reward_model_in_tensorboard(python, db, home):
    project = create_project(db, "tales", "/secret/folder/tiny", "abc", "tales", 7, [("Once", "train")])
    report, snapshot = {"loss": [0.75, 0.5], "accuracy": 0.25}, LabelSnapshot((), "", Source.HUMAN)
    row = add_reward_model(db, project.id, "x", config={"lr": 0.1}, report=report, snapshot=snapshot)
    arguments = ["-m", "rlhf_lab", "track", "--reward-model", str(row.id), "--to", "tensorboard", "--home", str(home)]
    said = [call(python, arguments, home).strip().splitlines()[-1] for _ in range(2)]
    assert said == [
        "logged to tensorboard; look at it with: tensorboard --logdir tracking (in the lab's home)",
        f"tensorboard has reward model {row.id} already",
    ]
    (folder,) = (home / "tracking").iterdir()
    reader = READ_TENSORBOARD.replace('events.Tensors("completions/text_summary")', "[]")
    scalars, _, _ = json.loads(call(python, ["-c", reader, str(folder / "tensorboard")], home))
    assert scalars == {"train/loss": [[1, 0.75], [2, 0.5]], "eval/accuracy": [[2, 0.25]]}
    check_no_secrets(folder)
