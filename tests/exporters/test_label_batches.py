"""Labels are written in batches: all rows of the tables, progress after each batch, and no file after an error."""

import csv
import errno
import gzip
import json
import math
import random
import sqlite3
from contextlib import closing
from itertools import pairwise

import pytest
from pyarrow import parquet
from sqlalchemy import insert

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import NewCompletion, Vote
from rlhf_lab.errors import StoreError
from rlhf_lab.exporters import json_io, label_export
from rlhf_lab.exporters.dataset_folder import export_dataset
from rlhf_lab.exporters.label_export import FORMATS, LabelExportOptions, export_labels, label_batches
from rlhf_lab.store import projects
from rlhf_lab.store import tables as t
from rlhf_lab.store.votes import cast_vote

BATCH = 7
ALL_FIVE = LabelExportOptions(source=None)

#: What an export holds, read without the lab's code.
READ_VOTES = """
    SELECT prompts.text AS prompt, a.text AS chosen, b.text AS rejected, choice IN ('tie', 'both_bad') AS tie,
           choice = 'both_bad' AS both_bad, choice, source, annotator, first_on_left, response_ms, votes.created_at,
           strength, note, repeat, adjudication, gold, via, uuid, pair_id, reason, split,
           a.checkpoint AS checkpoint_chosen, b.checkpoint AS checkpoint_rejected, a.seed AS seed_chosen,
           b.seed AS seed_rejected, a.token_ids AS chosen_ids, b.token_ids AS rejected_ids,
           (SELECT model_hash FROM projects WHERE id = :project) AS model_hash
    FROM votes, pairs, prompts, completions AS a, completions AS b
    WHERE pair_id = pairs.id AND pairs.project_id = :project AND undone_at IS NULL AND choice <> 'skip'
      AND a.id = CASE choice WHEN 'second' THEN second_id ELSE first_id END
      AND b.id = CASE choice WHEN 'second' THEN first_id ELSE second_id END
      AND prompts.id = a.prompt_id
    ORDER BY votes.id
"""
FLAGS = ("tie", "both_bad", "first_on_left", "repeat", "adjudication")
IDS = ("chosen_ids", "rejected_ids")


@pytest.fixture
def many(db, project, monkeypatch):
    """61 exported votes of three people and a judge in this project, between votes in another one."""
    monkeypatch.setattr(label_export, "BATCH_ROWS", BATCH)
    rng = random.Random(3)
    other = projects.create_project(db, "other", "embedded", "abc", "own", 1, [("Elsewhere", "train")])
    pairs = {}
    for owner in (project, other):
        prompt = projects.prompts(db, owner.id, "train")[0]
        texts = [NewCompletion(prompt.id, f' {rng.random()} "x"\n, \x85\u2028=1', (i, 2), "base", i) for i in range(60)]
        sides = [completion.id for completion in projects.add_completions(db, texts)]
        pairs[owner.id] = projects.add_pairs(
            db, owner.id, [(*two, "random") for two in zip(sides[::2], sides[1::2], strict=True)]
        )
    choices = [Choice.FIRST, Choice.SECOND, Choice.TIE, Choice.BOTH_BAD]
    votes = []

    def vote(uuid, project_id, i, annotator, choice, source=Source.HUMAN, undone_at=None):
        votes.append(
            {"uuid": uuid, "pair_id": pairs[project_id][i % 30].id, "annotator": f"{annotator}{i // 30}", "source": source,
             "choice": choice, "first_on_left": rng.random() < 0.5, "response_ms": rng.choice([None, 900]),
             "created_at": i + 0.25, "undone_at": undone_at, "via": "page"}
        )  # fmt: skip

    for i in range(61):
        who, source = rng.choice([("ann", Source.HUMAN), ("=bob", Source.HUMAN), ("judge:vivid", Source.SIMULATED)])
        vote(f"m{i}", project.id, i, who, rng.choice(choices), source)
        vote(f"o{i}", other.id, i, "cy", Choice.FIRST)
        if i % 5 == 0:
            vote(f"s{i}", project.id, i, "dan", Choice.SKIP)
            vote(f"t{i}", project.id, i, "eve", Choice.FIRST, undone_at=99.0)
    with db.write() as conn:
        conn.execute(insert(t.votes), votes)
    return project


def stored_votes(home, project):
    with closing(sqlite3.connect(home / "lab.db")) as connection:
        connection.row_factory = sqlite3.Row
        rows = [dict(row) for row in connection.execute(READ_VOTES, {"project": project.id})]
    return [
        row | {name: bool(row[name]) for name in FLAGS} | {name: json.loads(row[name]) for name in IDS} for row in rows
    ]


def csv_row(row):
    """A line of CSV as values: JSON in cells that are no text, nothing in empty ones, formulas without their apostrophe."""
    numbers = ("response_ms", "created_at", "pair_id", "seed_chosen", "seed_rejected")
    values = {
        name: json.loads(cell) if name in (*FLAGS, *IDS, *numbers) and cell else cell for name, cell in row.items()
    }
    names = {"annotator": row["annotator"].removeprefix("'")}
    return (
        values
        | names
        | {name: row[name] or None for name in ("strength", "gold")}
        | ({} if row["response_ms"] else {"response_ms": None})
    )


def rows_of(path):
    if path.suffix == ".parquet":
        return parquet.read_table(path).to_pylist()
    content = path.read_bytes()
    content = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    if path.suffix == ".csv":
        return [csv_row(row) for row in csv.DictReader(content.splitlines(keepends=True))]
    return json.loads(content) if path.suffix == ".json" else [json.loads(line) for line in content.split("\n")[:-1]]


@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_holds_the_votes_of_the_tables_in_their_order(home, db, many, out, format_):
    path = export_labels(db, many.id, out, LabelExportOptions(source=None, token_ids=True, format=format_))
    expected = stored_votes(home, many)
    assert len(expected) == 61
    assert rows_of(path) == expected
    assert [list(row) for row in rows_of(path)] == [list(expected[0])] * 61


def test_json_is_one_list_indented_by_a_space(db, project, voted, out):
    path = export_labels(db, project.id, out, LabelExportOptions(source=None, format="json"))
    content = path.read_text(encoding="utf-8")
    assert content == json.dumps(json.loads(content), ensure_ascii=False, indent=1) + "\n"


def test_parquet_has_a_row_group_for_each_batch_and_one_schema(db, many, out):
    path = export_labels(db, many.id, out, LabelExportOptions(source=None, format="parquet"))
    file = parquet.ParquetFile(path)
    sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert sizes == [7] * 8 + [5]
    schema = {field.name: str(field.type) for field in file.schema_arrow}
    assert (schema["gold"], schema["strength"], schema["tie"], schema["response_ms"], schema["created_at"]) == (
        "string", "string", "bool", "int64", "double",
    )  # fmt: skip


def test_progress_is_the_fraction_of_the_exported_rows_after_each_batch(db, project, voted, monkeypatch):
    monkeypatch.setattr(label_export, "BATCH_ROWS", 2)
    progress = []
    batches = label_batches(db, project, ALL_FIVE, progress.append)
    for uuids, fractions in ((["u1", "u2"], []), (["u3", "u6"], [0.4]), (["u7"], [0.4, 0.8])):
        assert [row["uuid"] for row in next(batches)] == uuids
        assert progress == fractions
    assert next(batches, None) is None
    assert progress == [0.4, 0.8, 1.0]


def test_progress_counts_only_what_is_exported(db, project, voted, monkeypatch):
    monkeypatch.setattr(label_export, "BATCH_ROWS", 2)
    cast_vote(db, Vote("b1", voted[0], "bob", Source.HUMAN, Choice.SECOND, True))
    cast_vote(db, Vote("c3", voted[2], "cy", Source.HUMAN, Choice.TIE, True))
    for options, uuids, fractions in (
        ({"ties": "drop"}, ["u1", "u2", "b1"], [2 / 3, 1.0]),
        ({"agreement": 0.6}, ["u2", "u3", "u6", "c3"], [0.5, 1.0]),  # ann and bob disagree about the first pair
        ({"annotators": ("cy",)}, ["c3"], [1.0]),
    ):
        progress = []
        batches = label_batches(db, project, LabelExportOptions(**options), progress.append)
        assert [row["uuid"] for rows in batches for row in rows] == uuids
        assert progress == fractions


@pytest.mark.parametrize("format_", FORMATS)
def test_rows_are_in_the_file_before_the_next_batch_is_read(db, project, voted, out, format_, monkeypatch):
    monkeypatch.setattr(label_export, "BATCH_ROWS", 100)
    rng = random.Random(5)
    with db.write() as conn:  # random notes, which compression cannot make small
        conn.execute(insert(t.votes), [
            {"uuid": f"n{i}", "pair_id": voted[0], "annotator": f"p{i}", "source": Source.HUMAN, "choice": Choice.FIRST,
             "first_on_left": True, "response_ms": 9, "created_at": 1.0, "note": rng.randbytes(500).hex(), "via": "page"}
            for i in range(395)
        ])  # fmt: skip
    sizes = []

    def note_size(_fraction):
        (path,) = out.rglob("labels-project-*")
        sizes.append(path.stat().st_size)

    export_labels(db, project.id, out, LabelExportOptions(source=None, format=format_), on_progress=note_size)
    assert len(sizes) == 4
    assert all(size + 10_000 < next_size for size, next_size in pairwise([0, *sizes])), sizes


@pytest.mark.parametrize("format_", FORMATS)
def test_a_full_disk_in_the_middle_leaves_the_old_file_and_nothing_else(db, many, out, format_, names):
    options = LabelExportOptions(source=None, format=format_)
    path = export_labels(db, many.id, out, options)
    before = path.read_bytes()

    def full(fraction):
        assert [name.startswith(".export-") for name in names(out)] == [
            True,
            False,
        ]  # the new file is beside the old one
        if fraction > 0.5:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StoreError, match=r"No space left on device.*Free some disk space"):
        export_labels(db, many.id, out, options, force=True, on_progress=full)
    assert path.read_bytes() == before
    assert names(out) == [path.name]


@pytest.mark.parametrize("export", [export_labels, export_dataset])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError("no memory"), OSError(errno.ENOSPC, "full")])
def test_an_export_that_stops_in_the_middle_leaves_no_folder(db, many, out, export, error):
    def stop(fraction):
        if fraction > 0.5:
            raise error

    for format_ in FORMATS:
        with pytest.raises((KeyboardInterrupt, RuntimeError, StoreError)):
            export(db, many.id, out, LabelExportOptions(source=None, format=format_), on_progress=stop)
        assert not out.exists(), format_


def test_a_data_set_counts_its_rows_over_all_batches(home, db, many, out):
    progress = []
    folder = export_dataset(db, many.id, out, LabelExportOptions(source=None), on_progress=progress.append)
    votes = json.loads((folder / "provenance.json").read_text())
    expected = stored_votes(home, many)
    assert (votes["rows"], len(progress), progress[-1]) == (61, 9, 1.0)
    for key, column in (("by_source", "source"), ("by_annotator", "annotator"), ("by_choice", "choice")):
        values = [row[column] for row in expected]
        assert votes["votes"][key] == {value: values.count(value) for value in set(values)}


@pytest.mark.parametrize("compress", [False, True])
def test_rows_with_the_first_value_of_a_column_are_moved_to_the_beginning_of_long_json_lines(
    tmp_path, monkeypatch, compress
):
    """Readers take the types from the beginning. An empty list, or one of nulls, says no type; NaN is written as null."""
    values = [(None, [], 0.0), (None, [None], math.nan), (7, [], 1.0), (8, [1], 2.0), (None, [2], None), (9, [3], 3.0)]
    rows = [{"text": "\u2028\r\n", "a": a, "ids": ids, "b": b} for a, ids, b in values]
    path = tmp_path / "v.jsonl"
    monkeypatch.setattr(json_io, "TYPED_BYTES", 60)  # a row takes about 50
    assert json_io.write_json_lines(path, rows, compress=compress) == 6
    content = gzip.decompress(path.read_bytes()) if compress else path.read_bytes()
    assert [(row["a"], row["ids"]) for row in map(json.loads, content.splitlines())] == [
        (7, []), (8, [1]), (None, []), (None, [None]), (None, [2]), (9, [3]),
    ]  # fmt: skip
    assert [file.name for file in tmp_path.iterdir()] == ["v.jsonl"]
    monkeypatch.setattr(json_io, "TYPED_BYTES", 300)
    json_io.write_json_lines(path, rows)
    assert [json.loads(line)["a"] for line in path.read_text().splitlines()] == [None, None, 7, 8, None, 9]
