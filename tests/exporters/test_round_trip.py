"""import(export(x)) loses nothing, for every format and any texts; the layouts are those that TRL documents."""

import csv
import gzip
import io
import json
import random

import pytest
from support.databases import undo_vote
from support.exported_rows import label_rows

from rlhf_lab.common.chat_format import prompt_of_chat
from rlhf_lab.common.enums import Choice, Source, Strength
from rlhf_lab.common.records import NewCompletion, Vote
from rlhf_lab.exporters.dataset_folder import export_dataset
from rlhf_lab.exporters.label_export import LabelExportOptions, export_labels
from rlhf_lab.importers.parser import ImportRequest, parse_file
from rlhf_lab.importers.writer import ImportTarget, save_import
from rlhf_lab.store import projects
from rlhf_lab.store.database import Database
from rlhf_lab.store.votes import cast_vote

# fmt: off
PIECES = [
    "", " ", "a", "Assistant:", "\n\nHuman: ", "\n\nAssistant:", '"', "'", ",", ";", "\t", "\n", "\r\n", "\r", "\\n", "ä",
    "👩\u200d👧", "\u2028", "\x85", "\x0b", "null", "NaN", "=1+1", "[1]", "{}", "true", "\ufeff", "\u202e", "<b>", "0", "e\u0301",
]
# fmt: on


def text(rng, least=0):
    return "".join(rng.choice(PIECES) for _ in range(rng.randint(least, 8)))


def random_lab(home, seed):
    """Pairs of odd texts, votes of several people and judges, ties, skips, undone votes, repeats, equal texts, equal pairs."""
    rng = random.Random(seed)
    db = Database.open(home)
    prompts = {f"{text(rng)}{i}{text(rng)}": rng.choice(["train", "eval"]) for i in range(4)}
    project = projects.create_project(db, "p", "embedded", "abc", "own", seed, list(prompts.items()))
    stored_prompts = [p for part in ("train", "eval") for p in projects.prompts(db, project.id, part)]
    for number in range(12):
        prompt = rng.choice(stored_prompts)
        texts = rng.choice([(text(rng), text(rng)), ("same", "same"), ("x", "y")])
        sides = projects.add_completions(db, [
            NewCompletion(prompt.id, words, (number, side), rng.choice(["base", "run/1/5"]), rng.randrange(2**53))
            for side, words in enumerate(texts)
        ])  # fmt: skip
        (pair,) = projects.add_pairs(
            db, project.id, [(sides[0].id, sides[1].id, rng.choice(["random", "uncertainty: 0.3"]))]
        )
        for name in rng.sample(["ann", "@bob, jr.", "'=судья", "judge:polite"], rng.randint(0, 4)):
            for repeat in (False, True)[: rng.randint(1, 2)]:
                cast_vote(db, Vote(
                    f"{seed}-{number}-{name}-{repeat}", pair.id, name,
                    Source.SIMULATED if name.startswith("judge:") else Source.HUMAN, rng.choice(list(Choice)), rng.random() < 0.5,
                    rng.choice([None, rng.randrange(10**6)]), rng.random() * 2e9, strength=rng.choice([None, *Strength]),
                    note=text(rng), repeat=repeat, via=rng.choice(["page", "api"]),
                ))  # fmt: skip
        if rng.random() < 0.2:
            undo_vote(db, project.id, "ann")
    return db, project


def stored_votes(db):
    """The votes of people and judges as stored, without skips and undone votes."""
    with db.read() as conn:
        rows = conn.exec_driver_sql(
            "SELECT uuid, annotator, source, choice, repeat, response_ms, created_at, strength, note, via FROM votes"
            " WHERE choice <> 'skip' AND undone_at IS NULL ORDER BY uuid"
        )
        return [tuple(row) for row in rows]


def comparable(rows, imported):
    """Rows with pair ids renumbered by first occurrence and checkpoints without "imported/"."""
    pairs: dict = {}
    found = []
    for original in rows:
        row = original | {"pair_id": pairs.setdefault(original["pair_id"], len(pairs))}
        for side in ("chosen", "rejected"):
            checkpoint = row[f"checkpoint_{side}"]
            assert checkpoint.startswith("imported/") is imported
            row[f"checkpoint_{side}"] = checkpoint.removeprefix("imported/")
        found.append(row)
    return found


ALL = LabelExportOptions(source=None, token_ids=True)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("format_", ["jsonl", "jsonl.gz", "json", "csv", "parquet"])
def test_export_import_round_trip(tmp_path, format_, seed):
    db, project = random_lab(tmp_path / "a", seed)
    path = export_labels(
        db, project.id, tmp_path / "out", LabelExportOptions(source=None, token_ids=True, format=format_)
    )
    before = label_rows(db, project, ALL)
    assert len(before) > 5
    with Database.open(tmp_path / "b") as other:
        there = projects.create_project(other, "q", "embedded", "abc", "own", 1, [("something else", "train")])
        found = parse_file(ImportRequest(str(path)))
        assert found.errors == []
        done = save_import(other, found, ImportTarget(there.id))
        assert (done.votes, done.duplicates) == (len(before), 0)
        more = save_import(other, found, ImportTarget(there.id))
        assert (more.votes, more.held, more.pairs, more.duplicates) == (0, len(before), 0, 0)
        after = label_rows(other, there, ALL)
        original_votes, imported_votes = stored_votes(db), stored_votes(other)
    assert save_import(db, found, ImportTarget(project.id)).held == len(before)
    assert label_rows(db, project, ALL) == before
    db.close()
    assert len(original_votes) == len(before)
    assert imported_votes == original_votes
    assert comparable(after, True) == comparable(before, False)


@pytest.mark.parametrize("seed", range(4))
def test_conversations_round_trip(tmp_path, seed):
    db, project = random_lab(tmp_path / "a", seed)
    for layout in ("votes", "explicit", "implicit"):
        for format_ in ("jsonl", "parquet"):
            options = LabelExportOptions(source=None, messages=True, layout=layout, format=format_)
            path = export_labels(db, project.id, tmp_path / f"{layout}-{format_}", options)
            plain = label_rows(
                db, project, LabelExportOptions(source=None, layout="votes" if layout == "votes" else "explicit")
            )
            found = parse_file(ImportRequest(str(path)))
            assert found.errors == []
            got = [decided(item) for item in found.votes]
            assert got == [(row["prompt"], row["chosen"], row["rejected"]) for row in plain]
    db.close()


def decided(item):
    sides = (item.first.text, item.second.text)
    better, worse = sides[::-1] if item.choice is Choice.SECOND else sides
    return item.prompt, better, worse


def rows_of(path):
    content = path.read_bytes()
    if path.name.endswith(".gz"):
        content = gzip.decompress(content)
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return parquet.read_table(io.BytesIO(content)).to_pylist()
    if path.suffix == ".csv":
        return list(csv.DictReader(io.StringIO(content.decode(), newline="")))
    return (
        json.loads(content) if path.suffix == ".json" else [json.loads(line) for line in content.split(b"\n") if line]
    )


@pytest.mark.parametrize("format_", ["jsonl", "jsonl.gz", "json", "csv", "parquet"])
def test_trl_layouts_have_exactly_trls_columns(db, project, voted, out, format_):
    explicit = export_labels(db, project.id, out, LabelExportOptions(layout="explicit", format=format_))
    assert rows_of(explicit) == [
        {"prompt": "Once", "chosen": " a1", "rejected": " b1"}, {"prompt": "Once", "chosen": " b2", "rejected": " a2"},
    ]  # fmt: skip
    implicit = export_labels(db, project.id, out / "i", LabelExportOptions(layout="implicit", format=format_))
    assert rows_of(implicit) == [
        {"chosen": "Once a1", "rejected": "Once b1"}, {"chosen": "Once b2", "rejected": "Once a2"},
    ]  # fmt: skip


def test_trls_conversational_layouts(db, project, voted, out):
    options = LabelExportOptions(layout="explicit", messages=True)
    assert rows_of(export_labels(db, project.id, out, options))[0] == {
        "prompt": [{"role": "user", "content": "Once"}],
        "chosen": [{"role": "assistant", "content": " a1"}],
        "rejected": [{"role": "assistant", "content": " b1"}],
    }
    options = LabelExportOptions(layout="implicit", messages=True, format="parquet")
    assert rows_of(export_labels(db, project.id, out, options))[1] == {
        "chosen": [{"role": "user", "content": "Once"}, {"role": "assistant", "content": " b2"}],
        "rejected": [{"role": "user", "content": "Once"}, {"role": "assistant", "content": " a2"}],
    }


def test_imported_conversations_are_exported_as_messages(tmp_path, db, project):
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    row = {
        "prompt": turns,
        "chosen": [{"role": "assistant", "content": "d"}],
        "rejected": [{"role": "assistant", "content": "e"}],
    }
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps(row))
    save_import(db, parse_file(ImportRequest(str(path))), ImportTarget(project.id, use_prompts=True))
    assert prompt_of_chat(turns) in [p.text for p in projects.prompts(db, project.id, "train")]
    options = LabelExportOptions(layout="explicit", messages=True)
    assert rows_of(export_labels(db, project.id, tmp_path / "out", options)) == [row]


def test_agreement_filter(db, project, voted, out):
    """Pair 1: ann says first, bob and cy say second."""
    for who in ("bob", "cy"):
        cast_vote(db, Vote(f"{who}1", voted[0], who, Source.HUMAN, Choice.SECOND, True))
    two_thirds = label_rows(db, project, LabelExportOptions(agreement=0.66))
    assert [row["uuid"] for row in two_thirds] == ["u2", "u3", "u6", "bob1", "cy1"]
    assert [row["uuid"] for row in label_rows(db, project, LabelExportOptions(agreement=0.67))] == ["u2", "u3", "u6"]


def test_agreement_is_a_share_of_the_votes_without_rounding(db, project, voted):
    """0.56 * 25 is more than 14 in floating point."""
    for i in range(25):
        choice = Choice.FIRST if i < 14 else Choice.SECOND
        cast_vote(db, Vote(f"n{i}", voted[0], f"annotator {i}", Source.HUMAN, choice, True))
    options = LabelExportOptions(agreement=0.56, annotators=tuple(f"annotator {i}" for i in range(25)))
    assert len(label_rows(db, project, options)) == 14


def test_unknown_sides_stay_unknown(tmp_path, db):
    path = tmp_path / "plain.jsonl"
    path.write_text('{"prompt": "Once", "chosen": "a", "rejected": "b"}')
    for turn in range(2):
        there = projects.create_project(db, f"{turn}", "embedded", "abc", "own", turn, [("Once", "train")])
        save_import(db, parse_file(ImportRequest(str(path))), ImportTarget(there.id))
        rows = label_rows(db, there, LabelExportOptions())
        assert [row["first_on_left"] for row in rows] == [None]
        path = export_labels(db, there.id, tmp_path / f"out{turn}")
    assert {row["via"] for row in rows} == {"import unsided"}


def test_csv_escapes_formulas_but_not_in_text_columns(tmp_path, db, project):
    prompt = projects.prompts(db, project.id, "train")[0]
    sides = projects.add_completions(db, [NewCompletion(prompt.id, text, (1,), "base", 3) for text in ("-a", "=b")])
    (pair,) = projects.add_pairs(db, project.id, [(sides[0].id, sides[1].id, "@reason")])
    notes = {
        "=1+1": "'=1+1",
        "+x": "'+x",
        "-x": "'-x",
        "@x": "'@x",
        "\tx": "'\tx",
        "'=x": "''=x",
        "'x": "'x",
        "1-1": "1-1",
    }
    for number, note in enumerate(notes):
        cast_vote(
            db,
            Vote(f"-u{number}", pair.id, f"=who{number}", Source.HUMAN, Choice.FIRST, True, created_at=-1.5, note=note),
        )
    path = export_labels(db, project.id, tmp_path / "out", LabelExportOptions(format="csv"))
    rows = rows_of(path)
    assert [row["note"] for row in rows] == list(notes.values())
    assert {(row["chosen"], row["rejected"], row["reason"], row["created_at"]) for row in rows} == {
        ("-a", "=b", "'@reason", "-1.5")
    }
    assert [(row["annotator"], row["uuid"]) for row in rows] == [(f"'=who{i}", f"'-u{i}") for i in range(len(notes))]
    assert b",-1.5," in path.read_bytes()  # a number, without quotes
    found = parse_file(ImportRequest(str(path))).votes
    assert [item.note for item in found] == list(notes)
    assert {(item.annotator, item.uuid, item.reason) for item in found} == {
        (f"=who{i}", f"-u{i}", "@reason") for i in range(len(notes))
    }
    for format_, told in (("csv", True), ("jsonl", False)):
        folder = export_dataset(db, project.id, tmp_path / format_, LabelExportOptions(format=format_))
        assert ("takes the apostrophe away" in (folder / "README.md").read_text()) is told
    others = tmp_path / "others.csv"
    others.write_text("prompt,chosen,rejected,annotator\nOnce,'=a,b,'=ann\n")
    (theirs,) = parse_file(ImportRequest(str(others))).votes  # not an export of the lab: no apostrophe is removed
    assert (decided(theirs)[1], theirs.annotator) == ("'=a", "'=ann")
