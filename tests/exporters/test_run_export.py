"""A run's files: exact contents, and what readers of each format get."""

import csv
import json

import pytest

from rlhf_lab.common.records import StepResult
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import StoreError
from rlhf_lab.exporters.json_io import portable_name
from rlhf_lab.exporters.run_export import export_run
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import create_run

METRICS = """\
step,grad_norm,lr,objective/kl,time/rollout,time/update
1,,0.0006,0.1,2.0,0.5
2,,0.0003,,2.0,0.5
3,inf,0.0,-1e-07,,
"""


def exported_file(name_part, db, home, run, out, **options):
    """Export a run; the file with `name_part` in its name."""
    (path,) = (path for path in export_run(db, home, run.id, out, **options) if name_part in path.name)
    return path


def test_metrics_csv_has_a_row_per_step_and_a_column_per_metric(db, home, run, out):
    path = exported_file("metrics.csv", db, home, run, out)
    assert path == out / "run-1-metrics.csv"
    assert path.read_bytes() == METRICS.encode()
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["lr"]) for row in rows] == [6e-4, 3e-4, 0.0]


def test_metrics_round_trip_exactly(db, home, run, out):
    third = 1 / 3
    record_step(db, run.id, StepResult(4, {"lr": third}))
    last = exported_file("metrics.csv", db, home, run, out).read_text().splitlines()[-1]
    assert float(last.split(",")[2]) == third


def test_samples_with_nan_as_null(db, home, run, out, hostile):
    rows = [
        json.loads(line)
        for line in exported_file("samples.jsonl", db, home, run, out).read_text(encoding="utf-8").splitlines()
    ]
    assert rows == [
        {"step": 0, "prompt": "Once", "seed": 3, "text": " base", "score": 0.25, "gold": None, "cut": None},
        {"step": 0, "prompt": hostile, "seed": 4, "text": hostile, "score": None, "gold": None, "cut": None},
        {"step": 2, "prompt": "Once", "seed": 3, "text": " later", "score": 1.5, "gold": 2.0, "cut": None},
    ]


def test_manifest_content_without_local_paths(db, home, run, out):
    text = exported_file("manifest.json", db, home, run, out).read_text(encoding="utf-8")
    assert "/data" not in text
    assert "NaN" not in text
    content = json.loads(text)
    assert content["run"] | {"created_at": 0, "updated_at": 0} == {
        "id": 1, "name": "my run", "status": "queued", "message": "", "step": 3, "total_steps": 8, "created_at": 0,
        "updated_at": 0,
    }  # fmt: skip
    assert content["config"] == {"algorithm": "ppo", "beta": 0.1}
    assert content["manifest"] == {"judge": "mine.py:nice", "machine": {"backbone": "tiny", "threads": 2}}
    (event,) = content["events"]
    assert (event["kind"], event["payload"], event["applied_step"]) == ("set", {"name": "beta", "value": 0.2}, 2)
    assert (content["project"]["model"], content["project"]["model_hash"], content["project"]["seed"]) == (
        "tiny",
        "abc",
        7,
    )
    model = content["reward_model"]
    assert (model["id"], model["config"], model["report"]) == (1, {"epochs": 2}, {"accuracy": None})
    assert (model["labels"]["count"], model["labels"]["source"]) == (4, "human")
    assert len(model["labels"]["digest"]) == 64


@pytest.mark.parametrize(
    ("name", "portable"),
    [
        ("embedded", "embedded"),
        ("owner/model", "owner/model"),
        ("/data/models/x", "x"),
        ("./models/x/", "x"),
        ("a/b/c", "c"),
        ("~/x", "x"),
        (r"C:\models\x", "x"),
        ("/data/mine.py:nice", "mine.py:nice"),
        ("cheerful", "cheerful"),
    ],
)
def test_portable_names_of_paths(name, portable):
    assert portable_name(name) == portable


def test_run_export_files(db, home, run, out, names):
    paths = export_run(db, home, run.id, out)
    found = [path.relative_to(out).as_posix() for path in paths]
    assert found == ["run-1-metrics.csv", "run-1-samples.jsonl", "run-1-tokens.jsonl", "run-1-manifest.json"]
    assert names(out) == sorted(found)


def test_an_error_in_one_file_leaves_none(db, home, run, out, names):
    out.mkdir()
    (out / "run-1-manifest.json").write_text("mine")
    with pytest.raises(StoreError, match=r"run-1-manifest\.json is there already"):
        export_run(db, home, run.id, out)
    assert names(out) == ["run-1-manifest.json"]
    assert (out / "run-1-manifest.json").read_text() == "mine"
    export_run(db, home, run.id, out, force=True)
    assert len(names(out)) == 4


def test_a_run_without_steps(db, home, run, out):
    config = PolicyConfig().to_dict()
    new = create_run(db, run.project_id, run.reward_model_id, "new", config=config, manifest={}, total_steps=40)
    paths = export_run(db, home, new.id, out)
    assert [path.stat().st_size for path in paths[:2]] == [len("step\n"), 0]
    with pytest.raises(StoreError, match="no run 99"):
        export_run(db, home, 99, out)
