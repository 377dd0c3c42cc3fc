"""Imported votes in the tables: on existing or new pairs, without votes that exist already, with a count of duplicates."""

import json
import re
import subprocess
import sys

import pytest
from sqlalchemy import select

from rlhf_lab.cli.main import main
from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import NewCompletion, Vote
from rlhf_lab.errors import DataError, StoreError
from rlhf_lab.importers import writer
from rlhf_lab.importers.__main__ import handle_request
from rlhf_lab.importers.parsed_rows import Limits
from rlhf_lab.importers.parser import ImportRequest, parse_file
from rlhf_lab.importers.writer import ImportTarget, save_import
from rlhf_lab.store import projects
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database
from rlhf_lab.store.label_snapshots import load_comparisons, snapshot_labels
from rlhf_lab.store.votes import cast_vote, vote_counts

VOTES = [
    {"prompt": "Once", "first": "a", "second": "b", "annotator": "ann", "winner": "first"},
    {"prompt": "Once", "first": "b", "second": "a", "annotator": "bob", "winner": "first"},
    {"prompt": "Once", "first": "a", "second": "b", "annotator": "cy", "winner": "tie"},
    {"prompt": "New", "first": "a", "second": "b", "annotator": "ann", "winner": "second"},
]
OTHER = {"first": "second", "second": "first", "tie": "tie"}


def votes(db):
    """(prompt, first, second, annotator, choice, first_on_left) of every vote, in order."""
    v = t.votes.c
    query = (
        select(
            t.prompts.c.text,
            projects.FIRST_COMPLETION.c.text,
            projects.SECOND_COMPLETION.c.text,
            v.annotator,
            v.choice,
            v.first_on_left,
            v.pair_id,
        )
        .select_from(t.votes)
        .join(t.pairs, t.pairs.c.id == v.pair_id)
        .join(projects.FIRST_COMPLETION, projects.FIRST_COMPLETION.c.id == t.pairs.c.first_id)
        .join(projects.SECOND_COMPLETION, projects.SECOND_COMPLETION.c.id == t.pairs.c.second_id)
        .join(t.prompts, t.prompts.c.id == projects.FIRST_COMPLETION.c.prompt_id)
        .order_by(v.id)
    )
    with db.read() as conn:
        return [tuple(row) for row in conn.execute(query)]


def test_votes_of_several_annotators_join_one_pair_in_either_text_order(db, project, files):
    result = save_import(db, files.parse("v.jsonl", VOTES), ImportTarget(project.id))
    assert (result.votes, result.pairs, result.prompts, result.duplicates) == (4, 2, 1, 0)
    assert result.annotators == ["ann", "bob", "cy"]
    parsed = votes(db)
    assert [row[:5] for row in parsed] == [
        ("Once", "a", "b", "ann", Choice.FIRST), ("Once", "a", "b", "bob", Choice.SECOND),
        ("Once", "a", "b", "cy", Choice.TIE), ("New", "a", "b", "ann", Choice.SECOND),
    ]  # fmt: skip
    assert [row[6] for row in parsed] == [1, 1, 1, 2]


def test_first_on_left_is_flipped_with_the_text_order(db, project, files):
    rows = [row | {"winner": "left"} for row in VOTES[:2]]
    save_import(db, files.parse("v.jsonl", rows), ImportTarget(project.id))
    assert [row[4:6] for row in votes(db)] == [(Choice.FIRST, True), (Choice.SECOND, False)]


def test_labels_reach_the_trainer(db, project, files):
    save_import(db, files.parse("v.jsonl", VOTES), ImportTarget(project.id))
    parsed = load_comparisons(db, snapshot_labels(db, project.id, Source.HUMAN))
    assert [(c.prompt, c.chosen, c.rejected, c.tie, c.chosen_ids) for c in parsed] == [
        ("Once", "a", "b", False, ()), ("Once", "b", "a", False, ()), ("Once", "a", "b", True, ()), ("New", "b", "a", False, ()),
    ]  # fmt: skip


def test_a_vote_joins_an_existing_pair(db, project, files):
    prompt = projects.prompts(db, project.id, "train")[0]
    a, b = projects.add_completions(db, [NewCompletion(prompt.id, text, (1,), "base", 3) for text in "ab"])
    (pair,) = projects.add_pairs(db, project.id, [(b.id, a.id, "random")])
    cast_vote(db, Vote("u", pair.id, "ann", Source.HUMAN, Choice.SECOND, True))
    result = save_import(db, files.parse("v.jsonl", VOTES[1:3]), ImportTarget(project.id))
    assert (result.votes, result.pairs, result.prompts) == (2, 0, 0)
    assert [row[3:5] for row in votes(db)] == [("ann", Choice.SECOND), ("bob", Choice.FIRST), ("cy", Choice.TIE)]


@pytest.mark.parametrize(("drop", "stored", "pairs"), [(False, 6, 4), (True, 4, 2)])
def test_duplicates_are_counted_and_stored_unless_dropped(db, project, files, drop, stored, pairs):
    duplicates = [VOTES[0] | {"winner": "tie"}, VOTES[3] | {"first": "b", "second": "a"}]  # ann changed her mind
    result = save_import(db, files.parse("v.jsonl", VOTES + duplicates), ImportTarget(project.id, drop_duplicates=drop))
    assert (result.duplicates, result.dropped, result.votes, result.pairs) == (2, 2 if drop else 0, stored, pairs)
    assert projects.count_pairs(db, project.id) == pairs


@pytest.mark.parametrize("named", [False, True])
def test_importing_the_same_file_twice_adds_nothing(db, project, files, named):
    rows = [row | ({"pair_id": i // 3} if named else {}) for i, row in enumerate(VOTES)]
    save_import(db, files.parse("v.jsonl", rows), ImportTarget(project.id))
    before = votes(db)
    turned = [row | {"first": row["second"], "second": row["first"], "winner": OTHER[row["winner"]]} for row in rows]
    for repeated in (rows, rows[::-1], turned):
        result = save_import(db, files.parse("again.jsonl", repeated), ImportTarget(project.id))
        assert (result.votes, result.held, result.skipped, result.duplicates, result.pairs, result.prompts) == (
            0,
            4,
            4,
            0,
            0,
            0,
        )
    assert votes(db) == before


def test_a_repeat_under_another_pair_name_is_no_duplicate(db, project, files):
    rows = [VOTES[0] | {"pair_id": 7}, VOTES[0] | {"pair_id": 8, "winner": "second"}, VOTES[1] | {"pair_id": 8}]
    result = save_import(db, files.parse("v.jsonl", rows), ImportTarget(project.id))
    assert (result.duplicates, result.pairs) == (0, 2)
    assert [row[6] for row in votes(db)] == [1, 2, 2]


def test_prompts_keep_their_split_and_new_ones_are_labels_only_by_default(db, project, files):
    rows = [VOTES[0] | {"prompt": f"p{i}"} for i in range(8)] + [VOTES[0] | {"prompt": "Far"}]
    parsed = files.parse("v.jsonl", rows)
    assert save_import(db, parsed, ImportTarget(project.id)).prompts == 8
    assert [p.text for p in projects.prompts(db, project.id, "train")] == ["Once"]
    assert [p.text for p in projects.prompts(db, project.id, "eval")] == ["Far"]
    parsed = files.parse("w.jsonl", [row | {"prompt": row["prompt"].replace("p", "q")} for row in rows] + rows[:1])
    assert save_import(db, parsed, ImportTarget(project.id, use_prompts=True)).prompts == 8
    assert [p.text for p in projects.prompts(db, project.id, "train")] == ["Once", "p0"] + [f"q{i}" for i in range(6)]
    assert [p.text for p in projects.prompts(db, project.id, "eval")] == ["Far", "q6", "q7"]


def test_default_source_and_annotator(db, project, files):
    rows = [{"prompt": "Once", "chosen": "a", "rejected": "b"}]
    save_import(db, files.parse("v.jsonl", rows), ImportTarget(project.id, source=Source.SIMULATED, annotator="llm"))
    assert votes(db)[0][3] == "llm"
    assert vote_counts(db, project.id)[Source.HUMAN] == dict.fromkeys(Choice, 0)


def test_token_ids_are_kept_only_for_the_same_model_hash(db, project, files):
    row = {"prompt": "Once", "chosen": "a", "rejected": "b", "annotator": "x", "source": "human", "first_on_left": True,
           "choice": "first", "chosen_ids": [1, 2], "rejected_ids": [3], "checkpoint_chosen": "run/3/4",
           "seed_chosen": 5}  # fmt: skip
    rows = [row | {"model_hash": "abc"}, row | {"prompt": "Far", "model_hash": "other"}]
    save_import(db, files.parse("v.jsonl", rows), ImportTarget(project.id))
    with db.read() as conn:
        c = t.completions.c
        parsed = conn.execute(select(c.token_ids, c.checkpoint, c.seed).order_by(c.id)).all()
    assert parsed == [
        ([1, 2], "imported/run/3/4", 5),
        ([3], "imported", 0),
        ([], "imported/run/3/4", 5),
        ([], "imported", 0),
    ]


def test_an_error_rolls_back_the_chunk(db, project, files, monkeypatch):
    monkeypatch.setattr(writer._ImportWriter, "_insert_votes", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save_import(db, files.parse("v.jsonl", VOTES), ImportTarget(project.id))
    assert projects.count_pairs(db, project.id) == 0
    assert [p.text for p in projects.prompts(db, project.id, "train")] == ["Once"]
    with pytest.raises(StoreError, match="no project 9"):
        save_import(db, files.parse("v.jsonl", VOTES), ImportTarget(9))


def test_uuids_are_kept_unless_they_are_taken(db, project, files):
    row = {"prompt": "Once", "chosen": "a", "rejected": "b", "annotator": "x", "source": "human", "first_on_left": True,
           "choice": "first", "uuid": "mine"}  # fmt: skip
    save_import(db, files.parse("v.jsonl", [row, row | {"annotator": "y"}]), ImportTarget(project.id))
    with db.read() as conn:
        first, second = conn.execute(select(t.votes.c.uuid).order_by(t.votes.c.id)).scalars()
    assert first == "mine"
    assert len(second) == 36


def test_the_command(tmp_path, files, capsys):
    home = str(tmp_path / "home")
    path = str(files.rows("v.jsonl", [*VOTES, VOTES[0], VOTES[0] | {"winner": "tie"}]))
    assert main(["import", path, "--home", home, "--preview", "--json"]) == 0
    reply = json.loads(capsys.readouterr().out)["preview"]
    assert (reply["votes"], reply["choices"], reply["people"]) == (6, {"first": 3, "tie": 2, "second": 1}, 3)
    assert not (tmp_path / "home").exists()
    assert main(["import", path, "--home", home, "--json", "--drop-duplicates"]) == 0
    reply = json.loads(capsys.readouterr().out)
    assert (reply["imported"], reply["skipped"], reply["errors"]) == (4, 2, [])
    assert (reply["saved"]["votes"], reply["saved"]["duplicates"], reply["saved"]["dropped"]) == (4, 2, 2)
    assert main(["import", path, "--home", home, "--json"]) == 0
    reply = json.loads(capsys.readouterr().out)
    assert (reply["imported"], reply["skipped"], reply["saved"]["held"], reply["saved"]["duplicates"]) == (2, 4, 4, 2)
    assert main(["import", path, "--home", home]) == 0
    words = capsys.readouterr().out
    assert "Imported: 0 votes from v.jsonl, on 0 new pairs and 0 new prompts." in words
    assert "Left out, because they are already in this project: 6 votes (the same answer of the same person" in words
    assert main(["import", str(tmp_path / "none.csv"), "--home", home, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["kind"] == "DataError"
    assert main(["import", path, "--home", home, "--choices", "x=y"]) == 1
    assert "--choices cannot be read" in capsys.readouterr().err


ONCE = {"prompt": "Once", "chosen": "a", "rejected": "b", "annotator": "ann"}


def test_the_preview_of_the_command_counts_duplicates_as_the_page_does(db, project, files, tmp_path, capsys):
    home = str(tmp_path / "home")
    path = str(files.rows("v.jsonl", [ONCE, ONCE | {"chosen": "b", "rejected": "a"}, ONCE | {"rejected": "a"}]))
    save_import(db, files.parse("held.jsonl", [ONCE]), ImportTarget(project.id))

    def preview(*more):
        assert main(["import", path, "--home", home, "--preview", "--json", *more]) == 0
        return json.loads(capsys.readouterr().out)["preview"]

    reply = preview()
    assert (reply["held"], reply["duplicates"], reply["dropped"]) == (1, 1, 0)
    assert reply["doubts"] == (
        "Please check: 1 vote already in this project, left out; 1 vote by a person who has already compared the same two "
        "texts, in the file or in this project; 1 comparison of a text with itself, which a reward model cannot learn from."
    )
    assert reply == handle_request({"what": path, "home": home, "project": project.id})["preview"]
    assert preview("--project", "1", "--drop-duplicates")["dropped"] == 1
    assert preview("--source", "simulated")["held"] == 0
    for more in (["--new-project", "x"], ["--home", str(tmp_path / "none")]):
        reply = preview(*more)
        assert (reply["held"], reply["duplicates"]) == (0, 1)
    assert not (tmp_path / "none").exists()
    assert len(projects.projects(db)) == len(votes(db)) == 1
    assert main(["import", path, "--home", home, "--preview"]) == 0
    words = capsys.readouterr().out
    assert words.startswith("v.jsonl: 3 rows, 3 votes on 1 prompt (")
    assert "; 1 annotator\n" in words
    assert "\nPlease check: 1 vote already in this project, left out; 1 vote by" in words


def test_a_preview_creates_no_project(files, tmp_path):
    path = str(files.rows("v.jsonl", [ONCE]))
    Database.open(tmp_path / "home").close()
    assert main(["import", path, "--home", str(tmp_path / "home"), "--preview"]) == 0
    with Database.open(tmp_path / "home") as db:
        assert projects.projects(db) == []


def test_a_new_project_has_the_prompts_of_the_file(tmp_path, files, capsys):
    rows = [{"prompt": f"p{i}", "chosen": "a", "rejected": "b"} for i in range(8)]
    home = tmp_path / "home"
    path = str(files.rows("v.parquet", rows))
    assert main(["import", path, "--home", str(home), "--new-project", "of others", "--json"]) == 0
    new_project_id = json.loads(capsys.readouterr().out)["project"]
    with Database.open(home) as db:
        assert projects.get_project(db, new_project_id).name == "of others"
        assert len(projects.prompts(db, new_project_id, "train")) == 6
        assert (
            vote_counts(db, new_project_id)[Source.HUMAN][Choice.FIRST]
            + vote_counts(db, new_project_id)[Source.HUMAN][Choice.SECOND]
            == 8
        )


def test_the_import_subprocess(db, project, files, tmp_path):
    path = files.rows("up.jsonl", VOTES)
    request_base = {"what": str(path), "home": str(tmp_path / "home"), "project": project.id}
    assert {handle_request(request_base)["preview"][name] for name in ("held", "duplicates")} == {0}
    assert votes(db) == []
    request = {**request_base, "name": "votes.jsonl", "save": True}
    result = subprocess.run(
        [sys.executable, "-m", "rlhf_lab.importers"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=True,
    )
    reply = json.loads(result.stdout)
    assert reply["saved"]["votes"] == 4
    assert reply["message"].startswith("Imported: 4 votes from votes.jsonl, on 2 new pairs and 1 new prompt.")
    assert len(votes(db)) == 4
    assert [handle_request(request_base)["preview"][name] for name in ("held", "duplicates")] == [4, 0]
    assert "error" in handle_request({**request_base, "what": str(tmp_path / "none")})
    assert "meanings of the votes" in handle_request({**request_base, "choices": "huh"})["error"]
    unknown = files.rows("unknown.jsonl", [{"question": "?", "good": "a", "bad": "b"}])
    assert handle_request({**request_base, "what": str(unknown)})["columns"] == ["question", "good", "bad"]
    unclear = files.rows("doubtful.jsonl", [{"prompt": "?", "first": "a", "second": "b", "winner": 0}])
    assert handle_request({**request_base, "what": str(unclear)})["columns"] == ["prompt", "first", "second", "winner"]


def test_reading_a_file_does_not_import_torch(files, db, project, tmp_path):
    path = files.rows("v.parquet", [{"prompt": "p", "chosen": "a", "rejected": "b"}])
    script = (
        "import sys; from rlhf_lab.importers.__main__ import handle_request;"
        f"there = {{'what': {str(path)!r}, 'home': {str(tmp_path / 'home')!r}, 'project': {project.id}}};"
        "assert handle_request(there)['preview']['votes'] == 1;"
        "print('torch' in sys.modules, 'datasets' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False False"


def test_hub_data_sets_are_streamed(monkeypatch, db, project):
    requests, read = [], []

    def load_dataset(name, config, *, split, streaming):
        requests.append((name, config, split, streaming))
        for i in range(1000):
            read.append(i)
            yield {"prompt": f"p{i}", "chosen": "a", "rejected": "b"}

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    parsed = parse_file(ImportRequest("someone/pairs", split="test", config_name="en", limits=Limits(max_rows=20)))
    assert requests == [("someone/pairs", "en", "test", True)]
    assert (len(parsed.votes), len(read)) == (20, 22)
    assert "row 21: more than 20 rows" in str(parsed.errors[0])

    def absent(*_, **__):
        raise FileNotFoundError("Dataset 'someone/none' doesn't exist on the Hub")

    monkeypatch.setattr("datasets.load_dataset", absent)
    with pytest.raises(DataError, match=r"doesn't exist on the Hub\. Check the name"):
        parse_file(ImportRequest("someone/none"))


SPLITS = {
    "p0": "eval",
    "p1": "train",
    "p2": "train",
    "p3": "eval",
    "p4": "train",
    "p5": "train",
    "p6": "train",
    "p7": "train",
}
OWN_EXPORT = {
    "chosen": "a",
    "rejected": "b",
    "annotator": "ann",
    "source": "human",
    "first_on_left": True,
    "choice": "first",
}


def prompt_splits(home, project_id):
    with Database.open(home) as db:
        return {p.text: name for name in ("train", "eval") for p in projects.prompts(db, project_id, name)}


@pytest.mark.parametrize("name", ["own.jsonl", "own.csv", "own.parquet"])
def test_a_new_project_keeps_the_splits_of_an_own_export(tmp_path, files, capsys, name):
    rows = [{"prompt": prompt, "split": split} | OWN_EXPORT for prompt, split in SPLITS.items()]
    home = tmp_path / "home"
    path = str(files.rows(name, [*rows, rows[0] | {"annotator": "bob"}]))
    assert main(["import", path, "--home", str(home), "--new-project", "again", "--json"]) == 0
    assert prompt_splits(home, json.loads(capsys.readouterr().out)["project"]) == SPLITS


def test_prompts_without_a_split_are_divided_among_themselves(tmp_path, files, capsys):
    """Of four such prompts the last quarter, one, is for evaluation."""
    splits = {"p0": "eval", "p1": None, "p2": "train", "p3": None, "p4": None, "p5": None}
    rows = [{"prompt": prompt, "split": split} | OWN_EXPORT for prompt, split in splits.items()]
    home = tmp_path / "home"
    path = str(files.rows("own.jsonl", rows))
    assert main(["import", path, "--home", str(home), "--new-project", "again", "--json"]) == 0
    expected = {"p0": "eval", "p1": "train", "p2": "train", "p3": "train", "p4": "train", "p5": "eval"}
    assert prompt_splits(home, json.loads(capsys.readouterr().out)["project"]) == expected


def test_new_prompts_of_an_import_keep_their_split_beside_those_without_one(db, project, files):
    """With --use-prompts: the last of four without a split is for evaluation, independent of the splits of the others."""
    splits = {"p0": "eval", "p1": None, "p2": "train", "p3": None, "p4": None, "p5": None, "p6": "train"}
    rows = [{"prompt": prompt, "split": split} | OWN_EXPORT for prompt, split in splits.items()]
    save_import(db, files.parse("own.jsonl", rows), ImportTarget(project.id, use_prompts=True))
    assert [p.text for p in projects.prompts(db, project.id, "eval")] == ["Far", "p0", "p5"]


def test_an_unknown_split_is_an_error(files):
    row = {"prompt": "p0", "split": "test"} | OWN_EXPORT
    (error,) = files.parse("own.jsonl", [row]).errors
    assert str(error) == (
        "row 1 (line 1): split is 'test'; it can be train, eval. Correct it, or leave the column out: --map split=."
    )


def test_a_prompt_in_both_splits_is_an_error(files):
    rows = [{"prompt": "p0", "split": split} | OWN_EXPORT for split in ("eval", None, "train")]
    parsed = files.parse("own.jsonl", rows)
    assert [vote.row_number for vote in parsed.votes] == [1, 2]
    assert [str(error) for error in parsed.errors] == [
        "row 3 (line 3): split is 'train', but 'eval' in row 1 for the same prompt. Give the prompt one split."
    ]


def test_a_prompt_that_the_project_has_in_another_split_is_an_error(db, project, files, tmp_path, capsys):
    """The project has "Once" for training and "Far" for evaluation."""
    rows = [{"prompt": prompt, "split": "eval"} | OWN_EXPORT for prompt in ("Once", "Far", "New")]
    path = files.rows("own.jsonl", [rows[0] | {"chosen": None}, *rows])
    error = (
        "row 2: split is 'eval', but the project has this prompt in 'train'. Take the row out, or leave the column out: "
        "--map split=."
    )
    with pytest.raises(DataError, match=re.escape(error)):
        save_import(db, files.read(path), ImportTarget(project.id))
    assert votes(db) == []
    result = save_import(db, files.read(path), ImportTarget(project.id, skip_broken=True))
    assert (result.votes, result.broken) == (2, 2)
    assert [row[0] for row in votes(db)] == ["Far", "New"]
    request = {"what": str(path), "home": str(tmp_path / "home"), "project": project.id}
    on_page = error.replace("--map split=", 'choose "no column" for "split"')
    assert handle_request(request)["preview"]["problems"][1] == on_page
    command = ["import", str(path), "--home", str(tmp_path / "home"), "--json"]
    assert main([*command, "--preview"]) == 1
    assert json.loads(capsys.readouterr().out)["errors"][1] == error
    assert main([*command, "--skip-broken"]) == 0
    assert json.loads(capsys.readouterr().out)["errors"][1] == error
    result = save_import(db, files.read(path, mapping={"split": ""}), ImportTarget(project.id, skip_broken=True))
    assert (result.votes, result.broken) == (1, 1)


@pytest.mark.parametrize(("column", "length"), [("note", 1000), ("uuid", 64), ("via", 20)])
@pytest.mark.parametrize("name", ["own.jsonl", "own.csv"])
def test_a_text_of_a_vote_is_kept_whole_or_is_an_error(db, project, files, column, length, name):
    row = {"prompt": "Once"} | OWN_EXPORT
    parsed = files.parse(name, [row | {column: "x" * length}, row | {column: "x" * (length + 1)}])
    assert [str(error).split(": ")[1] for error in parsed.errors] == [
        f"{column} has {length + 1:,} characters, more than {length:,}. Shorten it or take the row out."
    ]
    save_import(db, parsed, ImportTarget(project.id, skip_broken=True))
    with db.read() as conn:
        assert conn.execute(select(t.votes.c[column])).scalars().all() == ["x" * length]


@pytest.mark.parametrize("name", ["plain.jsonl", "plain.csv"])
def test_a_new_project_keeps_the_splits_of_any_file(tmp_path, files, capsys, name):
    rows = [{"prompt": prompt, "split": split, "chosen": "a", "rejected": "b"} for prompt, split in SPLITS.items()]
    path = str(files.rows(name, rows))
    assert main(["import", path, "--home", str(tmp_path / "home"), "--new-project", "again", "--json"]) == 0
    assert prompt_splits(tmp_path / "home", json.loads(capsys.readouterr().out)["project"]) == SPLITS


def test_a_result_names_the_columns_that_were_not_used(db, project, files, tmp_path, capsys):
    path = str(files.rows("v.jsonl", [ONCE | {"topic": "tales", "margin": 2, "empty": None}]))
    request = {"what": path, "home": str(tmp_path / "home"), "project": project.id, "save": True}
    assert "Not used: topic, margin." in handle_request(request)["message"]
    assert main(["import", path, "--home", str(tmp_path / "home")]) == 0
    assert "Not used: topic, margin." in capsys.readouterr().out
    assert main(["import", path, "--home", str(tmp_path / "home"), "--preview"]) == 0
    assert "; not used: topic, margin\n" in capsys.readouterr().out
