"""Labels as JSON Lines: every field of every row, filters, and that other programs read the texts unchanged."""

import json
import os
import stat
import subprocess
import sys

import pytest

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.errors import ConfigError, LabelError, StoreError
from rlhf_lab.exporters.dataset_folder import export_dataset
from rlhf_lab.exporters.label_export import LAYOUTS, LabelExportOptions, count_left_out, export_labels
from rlhf_lab.store import tables as t
from rlhf_lab.store.projects import set_labelling_config

COMMON = {"both_bad": False, "source": "human", "annotator": "ann", "created_at": 100.5, "reason": "random",
          "split": "train", "prompt": "Once", "strength": None, "note": "", "repeat": False, "via": "page",
          "adjudication": False, "gold": None}  # fmt: skip
FIRST_CHOSEN = {"checkpoint_chosen": "base", "checkpoint_rejected": "run/1/5", "seed_chosen": 11, "seed_rejected": 12}
SECOND_CHOSEN = {"checkpoint_chosen": "run/1/5", "checkpoint_rejected": "base", "seed_chosen": 12, "seed_rejected": 11}
# fmt: off
HUMAN = [
    COMMON | FIRST_CHOSEN | {"chosen": " a1", "rejected": " b1", "tie": False, "choice": "first", "first_on_left": True,
                             "response_ms": 1200, "uuid": "u1", "pair_id": 1},
    COMMON | SECOND_CHOSEN | {"chosen": " b2", "rejected": " a2", "tie": False, "choice": "second", "first_on_left": False,
                              "response_ms": None, "uuid": "u2", "pair_id": 2},
    COMMON | FIRST_CHOSEN | {"chosen": " a3", "rejected": " b3", "tie": True, "choice": "tie", "first_on_left": True,
                             "response_ms": None, "uuid": "u3", "pair_id": 3, "annotator": "bob"},
    COMMON | FIRST_CHOSEN | {"chosen": " a5", "rejected": " b5", "tie": True, "choice": "both_bad", "both_bad": True,
                             "first_on_left": False, "response_ms": None, "uuid": "u6", "pair_id": 5},
]
# fmt: on


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_human_labels(db, project, voted, out, names):
    path = export_labels(db, project.id, out)
    assert path == out / "labels-project-1.jsonl"
    assert read(path) == HUMAN
    assert names(out) == ["labels-project-1.jsonl"]


@pytest.mark.skipif(os.name != "posix", reason="permission bits")
def test_other_users_of_the_computer_cannot_read_exported_labels(db, project, voted, out):
    before = os.umask(0o022)
    path = export_labels(db, project.id, out)
    os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_lines_start_with_trls_columns(db, project, voted, out):
    first = export_labels(db, project.id, out).read_bytes().split(b"\n")[0]
    assert first.startswith(b'{"prompt": "Once", "chosen": " a1", "rejected": " b1", "tie": false, ')


def test_simulated_labels_are_marked_and_texts_round_trip(db, project, voted, out, hostile):
    (row,) = read(export_labels(db, project.id, out, LabelExportOptions(Source.SIMULATED)))
    assert (row["source"], row["annotator"], row["choice"]) == ("simulated", "judge:polite", "second")
    assert (row["prompt"], row["chosen"], row["rejected"]) == (hostile, hostile[::-1], hostile)


@pytest.mark.parametrize(
    ("options", "uuids"),
    [
        ({"source": None}, ["u1", "u2", "u3", "u6", "u7"]),
        ({"source": None, "ties": "drop"}, ["u1", "u2", "u7"]),
        ({"annotators": ("bob",)}, ["u3"]),
        ({"ties": "drop"}, ["u1", "u2"]),
        ({"source": None, "annotators": ("judge:polite",)}, ["u7"]),
    ],
)
def test_filters(db, project, voted, out, options, uuids):
    assert [row["uuid"] for row in read(export_labels(db, project.id, out, LabelExportOptions(**options)))] == uuids


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", ["labels", "dataset"])
@pytest.mark.parametrize(
    ("asks", "trains", "chosen"),
    [(False, False, [" b2"]), (True, False, [" a1", " b2"]), (False, True, [" a1", " b2"])],
)
def test_votes_on_gold_pairs_test_people_and_are_no_labels(
    db, project, voted, tmp_path, layout, form, asks, trains, chosen
):
    """ann's votes on pairs 1, which is gold, and 2; bob's tie on the gold pair 3. Archives have every vote."""
    set_labelling_config(db, project.id, LabellingConfig(gold_training=trains))
    with db.write() as conn:
        conn.execute(t.pairs.update().where(t.pairs.c.id.in_([voted[0], voted[2]])).values(gold=Choice.FIRST))
    options = LabelExportOptions(layout=layout, gold=asks)
    counted = count_left_out(db, project.id, options)
    if form == "labels":
        path = export_labels(db, project.id, tmp_path / "out", options)
    else:
        folder = export_dataset(db, project.id, tmp_path / "out", options)
        path, leaves_out = folder / "data" / "train.jsonl", layout != "votes" and not (asks or trains)
        assert (
            "without votes on pairs with a known answer (2 left out)" in (folder / "README.md").read_text()
        ) is leaves_out
        assert json.loads((folder / "provenance.json").read_text())["gold_left_out"] == counted.gold
    texts = [row["chosen"] for row in read(path)]
    if layout == "votes":
        assert (texts, counted) == ([" a1", " b2", " a3", " a5"], (0, 0))
    else:
        assert texts == (chosen if layout != "implicit" else [f"Once{text}" for text in chosen])
        assert counted == ((2, 0) if len(chosen) == 2 else (1, 2))
        assert ("2 votes on gold pairs left out" in counted.note()) is (len(chosen) == 1)


def test_pseudonyms_are_distinct_and_stable(db, project, voted, out, tmp_path):
    options = LabelExportOptions(None, names=False)
    rows = read(export_labels(db, project.id, out, options))
    ann, same, bob, ann_again, judge = [row["annotator"] for row in rows]
    assert (ann, ann) == (same, ann_again) != (bob, bob)
    assert (ann, bob) == ("visitor-bb82030dbc2b", "visitor-011e39efe225")
    assert judge == "judge:polite"
    assert read(export_labels(db, project.id, tmp_path / "again", options)) == rows
    folder = export_dataset(db, project.id, tmp_path / "set", LabelExportOptions(annotators=("ann",), names=False))
    content = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*") if path.is_file())
    assert '"ann"' not in content
    assert json.loads((folder / "provenance.json").read_text())["chosen_with"]["annotators"] == 1


def test_token_ids_are_optional(db, project, voted, out):
    rows = read(export_labels(db, project.id, out, LabelExportOptions(token_ids=True)))
    assert [(row["chosen_ids"], row["rejected_ids"]) for row in rows[:2]] == [([4, 0], [5, 6, 0]), ([5, 6, 0], [4, 0])]
    assert "chosen_ids" not in HUMAN[0]


@pytest.mark.parametrize(
    "options",
    [{"annotators": ("carol",)}, {"annotators": ("bob",), "ties": "drop"}, {"agreement": 0.9, "annotators": ("dan",)}],
)
def test_nothing_to_export_is_an_error_that_names_what_exists(db, project, voted, out, options, names):
    with pytest.raises(LabelError, match="it has 4 of people and 1 simulated"):
        export_labels(db, project.id, out, LabelExportOptions(**options))
    assert not out.exists()


def test_other_errors(db, project, voted, out):
    with pytest.raises(ConfigError, match="keep, drop"):
        export_labels(db, project.id, out, LabelExportOptions(ties="maybe"))
    with pytest.raises(StoreError, match="no project 9"):
        export_labels(db, 9, out)
    assert not out.exists()


def test_existing_files_are_replaced_only_with_force(db, project, voted, out, names):
    path = export_labels(db, project.id, out)
    path.write_text("mine")
    with pytest.raises(StoreError, match="--force"):
        export_labels(db, project.id, out)
    assert path.read_text() == "mine"
    assert read(export_labels(db, project.id, out, force=True)) == HUMAN
    assert names(out) == ["labels-project-1.jsonl"]


def test_a_folder_that_is_a_file_is_refused(db, project, voted, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match="choose another folder"):
        export_labels(db, project.id, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


LOAD = """
import json, sys
from datasets import load_dataset
rows = load_dataset("json", data_files=sys.argv[1], split="train", cache_dir=sys.argv[2])
print(json.dumps([dict(row) for row in rows]))
"""


def test_datasets_reads_the_exported_file(db, project, voted, out, tmp_path):
    path = export_labels(db, project.id, out, LabelExportOptions(None, token_ids=True))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOAD, str(path), str(tmp_path / "cache")],
        capture_output=True, text=True, check=True, env={"HF_HUB_OFFLINE": "1", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert json.loads(done.stdout.splitlines()[-1]) == read(path)
    assert len(read(path)) == 5
