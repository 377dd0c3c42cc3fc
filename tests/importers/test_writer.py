"""Into the tables: on pairs that are there or on new ones, what is there already left out, duplicates told."""

import json
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


def test_several_people_on_one_pair_whichever_way_round_it_stood(db, project, files):
    done = save_import(db, files.found("v.jsonl", VOTES), ImportTarget(project.id))
    assert (done.votes, done.pairs, done.prompts, done.duplicates) == (4, 2, 1, 0)
    assert done.annotators == ["ann", "bob", "cy"]
    found = votes(db)
    assert [row[:5] for row in found] == [
        ("Once", "a", "b", "ann", Choice.FIRST), ("Once", "a", "b", "bob", Choice.SECOND),
        ("Once", "a", "b", "cy", Choice.TIE), ("New", "a", "b", "ann", Choice.SECOND),
    ]  # fmt: skip
    assert [row[6] for row in found] == [1, 1, 1, 2]


def test_the_side_follows_the_text_where_a_pair_is_turned(db, project, files):
    rows = [row | {"winner": "left"} for row in VOTES[:2]]
    save_import(db, files.found("v.jsonl", rows), ImportTarget(project.id))
    assert [row[4:6] for row in votes(db)] == [(Choice.FIRST, True), (Choice.SECOND, False)]


def test_labels_reach_the_trainer(db, project, files):
    save_import(db, files.found("v.jsonl", VOTES), ImportTarget(project.id))
    found = load_comparisons(db, snapshot_labels(db, project.id, Source.HUMAN))
    assert [(c.prompt, c.chosen, c.rejected, c.tie, c.chosen_ids) for c in found] == [
        ("Once", "a", "b", False, ()), ("Once", "b", "a", False, ()), ("Once", "a", "b", True, ()), ("New", "b", "a", False, ()),
    ]  # fmt: skip


def test_a_vote_joins_the_pair_that_is_there(db, project, files):
    prompt = projects.prompts(db, project.id, "train")[0]
    a, b = projects.add_completions(db, [NewCompletion(prompt.id, text, (1,), "base", 3) for text in "ab"])
    (pair,) = projects.add_pairs(db, project.id, [(b.id, a.id, "random")])
    cast_vote(db, Vote("u", pair.id, "ann", Source.HUMAN, Choice.SECOND, True))
    done = save_import(db, files.found("v.jsonl", VOTES[1:3]), ImportTarget(project.id))
    assert (done.votes, done.pairs, done.prompts) == (2, 0, 0)
    assert [row[3:5] for row in votes(db)] == [("ann", Choice.SECOND), ("bob", Choice.FIRST), ("cy", Choice.TIE)]


@pytest.mark.parametrize(("drop", "kept", "pairs"), [(False, 6, 4), (True, 4, 2)])
def test_duplicates_are_told_and_kept_unless_they_are_dropped(db, project, files, drop, kept, pairs):
    again = [VOTES[0] | {"winner": "tie"}, VOTES[3] | {"first": "b", "second": "a"}]  # ann thinks otherwise now
    done = save_import(db, files.found("v.jsonl", VOTES + again), ImportTarget(project.id, drop_duplicates=drop))
    assert (done.duplicates, done.dropped, done.votes, done.pairs) == (2, 2 if drop else 0, kept, pairs)
    assert projects.count_pairs(db, project.id) == pairs


@pytest.mark.parametrize("named", [False, True])
def test_the_same_file_twice_counts_once(db, project, files, named):
    rows = [row | ({"pair_id": i // 3} if named else {}) for i, row in enumerate(VOTES)]
    save_import(db, files.found("v.jsonl", rows), ImportTarget(project.id))
    before = votes(db)
    turned = [row | {"first": row["second"], "second": row["first"], "winner": OTHER[row["winner"]]} for row in rows]
    for again in (rows, rows[::-1], turned):
        done = save_import(db, files.found("again.jsonl", again), ImportTarget(project.id))
        assert (done.votes, done.held, done.skipped, done.duplicates, done.pairs, done.prompts) == (0, 4, 4, 0, 0, 0)
    assert votes(db) == before


def test_a_repeated_question_with_a_name_of_its_own_is_no_duplicate(db, project, files):
    rows = [VOTES[0] | {"pair_id": 7}, VOTES[0] | {"pair_id": 8, "winner": "second"}, VOTES[1] | {"pair_id": 8}]
    done = save_import(db, files.found("v.jsonl", rows), ImportTarget(project.id))
    assert (done.duplicates, done.pairs) == (0, 2)
    assert [row[6] for row in votes(db)] == [1, 2, 2]


def test_prompts_keep_their_part_and_new_ones_are_used_only_when_asked(db, project, files):
    rows = [VOTES[0] | {"prompt": f"p{i}"} for i in range(8)] + [VOTES[0] | {"prompt": "Far"}]
    found = files.found("v.jsonl", rows)
    assert save_import(db, found, ImportTarget(project.id)).prompts == 8
    assert [p.text for p in projects.prompts(db, project.id, "train")] == ["Once"]
    assert [p.text for p in projects.prompts(db, project.id, "eval")] == ["Far"]
    found = files.found("w.jsonl", [row | {"prompt": row["prompt"].replace("p", "q")} for row in rows] + rows[:1])
    assert save_import(db, found, ImportTarget(project.id, use_prompts=True)).prompts == 8
    assert [p.text for p in projects.prompts(db, project.id, "train")] == ["Once", "p0"] + [f"q{i}" for i in range(6)]
    assert [p.text for p in projects.prompts(db, project.id, "eval")] == ["Far", "q6", "q7"]


def test_whose_votes_where_the_file_does_not_say(db, project, files):
    rows = [{"prompt": "Once", "chosen": "a", "rejected": "b"}]
    save_import(db, files.found("v.jsonl", rows), ImportTarget(project.id, source=Source.SIMULATED, annotator="llm"))
    assert votes(db)[0][3] == "llm"
    assert vote_counts(db, project.id)[Source.HUMAN] == dict.fromkeys(Choice, 0)


def test_token_ids_count_only_where_the_same_weights_wrote_them(db, project, files):
    row = {"prompt": "Once", "chosen": "a", "rejected": "b", "annotator": "x", "source": "human", "first_on_left": True,
           "choice": "first", "chosen_ids": [1, 2], "rejected_ids": [3], "checkpoint_chosen": "run/3/4",
           "seed_chosen": 5}  # fmt: skip
    rows = [row | {"model_hash": "abc"}, row | {"prompt": "Far", "model_hash": "other"}]
    save_import(db, files.found("v.jsonl", rows), ImportTarget(project.id))
    with db.read() as conn:
        c = t.completions.c
        found = conn.execute(select(c.token_ids, c.checkpoint, c.seed).order_by(c.id)).all()
    assert found == [
        ([1, 2], "imported/run/3/4", 5),
        ([3], "imported", 0),
        ([], "imported/run/3/4", 5),
        ([], "imported", 0),
    ]


def test_an_error_leaves_nothing_of_what_was_being_written(db, project, files, monkeypatch):
    monkeypatch.setattr(writer._ImportWriter, "_insert_votes", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save_import(db, files.found("v.jsonl", VOTES), ImportTarget(project.id))
    assert projects.count_pairs(db, project.id) == 0
    assert [p.text for p in projects.prompts(db, project.id, "train")] == ["Once"]
    with pytest.raises(StoreError, match="no project 9"):
        save_import(db, files.found("v.jsonl", VOTES), ImportTarget(9))


def test_uuids_are_kept_where_they_are_free(db, project, files):
    row = {"prompt": "Once", "chosen": "a", "rejected": "b", "annotator": "x", "source": "human", "first_on_left": True,
           "choice": "first", "uuid": "mine"}  # fmt: skip
    save_import(db, files.found("v.jsonl", [row, row | {"annotator": "y"}]), ImportTarget(project.id))
    with db.read() as conn:
        first, second = conn.execute(select(t.votes.c.uuid).order_by(t.votes.c.id)).scalars()
    assert first == "mine"
    assert len(second) == 36


def test_the_command(tmp_path, files, capsys):
    home = str(tmp_path / "home")
    path = str(files.rows("v.jsonl", [*VOTES, VOTES[0], VOTES[0] | {"winner": "tie"}]))
    assert main(["import", path, "--home", home, "--preview", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["preview"]
    assert (said["votes"], said["choices"], said["people"]) == (6, {"first": 3, "tie": 2, "second": 1}, 3)
    assert not (tmp_path / "home").exists()
    assert main(["import", path, "--home", home, "--json", "--drop-duplicates"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["imported"], said["skipped"], said["errors"]) == (4, 2, [])
    assert (said["saved"]["votes"], said["saved"]["duplicates"], said["saved"]["dropped"]) == (4, 2, 2)
    assert main(["import", path, "--home", home, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["imported"], said["skipped"], said["saved"]["held"], said["saved"]["duplicates"]) == (2, 4, 4, 2)
    assert main(["import", path, "--home", home]) == 0
    words = capsys.readouterr().out
    assert "Taken in: 0 votes of v.jsonl, on 0 new pairs and 0 new prompts." in words
    assert "Left out, because this project has that already: 6 votes (the same answer of the same person" in words
    assert main(["import", str(tmp_path / "none.csv"), "--home", home, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["kind"] == "DataError"
    assert main(["import", path, "--home", home, "--choices", "x=y"]) == 1
    assert "--choices cannot be read" in capsys.readouterr().err


ONCE = {"prompt": "Once", "chosen": "a", "rejected": "b", "annotator": "ann"}


def test_the_commands_preview_counts_what_the_import_would_meet_and_says_it_as_the_page_does(
    db, project, files, tmp_path, capsys
):
    home = str(tmp_path / "home")
    path = str(files.rows("v.jsonl", [ONCE, ONCE | {"chosen": "b", "rejected": "a"}, ONCE | {"rejected": "a"}]))
    save_import(db, files.found("held.jsonl", [ONCE]), ImportTarget(project.id))

    def preview(*more):
        assert main(["import", path, "--home", home, "--preview", "--json", *more]) == 0
        return json.loads(capsys.readouterr().out)["preview"]

    said = preview()
    assert (said["held"], said["duplicates"], said["dropped"]) == (1, 1, 0)
    assert said["doubts"] == (
        "Look again: 1 vote that this project has already, left out; 1 vote by somebody who has answered about the same two "
        "texts before, in the file or in this project; 1 comparison of a text with itself: nothing can be learnt there."
    )
    assert said == handle_request({"what": path, "home": home, "project": project.id})["preview"]
    assert preview("--project", "1", "--drop-duplicates")["dropped"] == 1
    assert preview("--source", "simulated")["held"] == 0
    for more in (["--new-project", "x"], ["--home", str(tmp_path / "none")]):
        said = preview(*more)
        assert (said["held"], said["duplicates"]) == (0, 1)
    assert not (tmp_path / "none").exists()
    assert len(projects.projects(db)) == len(votes(db)) == 1
    assert main(["import", path, "--home", home, "--preview"]) == 0
    words = capsys.readouterr().out
    assert words.startswith("v.jsonl: 3 rows, 3 votes on 1 prompt (")
    assert "; 1 annotator\n" in words
    assert "\nLook again: 1 vote that this project has already, left out; 1 vote by" in words


def test_a_preview_makes_no_project_where_the_lab_has_none(files, tmp_path):
    path = str(files.rows("v.jsonl", [ONCE]))
    Database.open(tmp_path / "home").close()
    assert main(["import", path, "--home", str(tmp_path / "home"), "--preview"]) == 0
    with Database.open(tmp_path / "home") as db:
        assert projects.projects(db) == []


def test_a_new_project_of_the_files_prompts(tmp_path, files, capsys):
    rows = [{"prompt": f"p{i}", "chosen": "a", "rejected": "b"} for i in range(8)]
    home = tmp_path / "home"
    path = str(files.rows("v.parquet", rows))
    assert main(["import", path, "--home", str(home), "--new-project", "of others", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)["project"]
    with Database.open(home) as db:
        assert projects.get_project(db, made).name == "of others"
        assert len(projects.prompts(db, made, "train")) == 6
        assert (
            vote_counts(db, made)[Source.HUMAN][Choice.FIRST] + vote_counts(db, made)[Source.HUMAN][Choice.SECOND] == 8
        )


def test_a_process_of_its_own_for_the_page(db, project, files, tmp_path):
    path = files.rows("up.jsonl", VOTES)
    there = {"what": str(path), "home": str(tmp_path / "home"), "project": project.id}
    assert {handle_request(there)["preview"][name] for name in ("held", "duplicates")} == {0}
    assert votes(db) == []
    request = {**there, "name": "votes.jsonl", "save": True}
    done = subprocess.run(
        [sys.executable, "-m", "rlhf_lab.importers"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=True,
    )
    said = json.loads(done.stdout)
    assert said["saved"]["votes"] == 4
    assert said["words"].startswith("Taken in: 4 votes of votes.jsonl, on 2 new pairs and 1 new prompt.")
    assert len(votes(db)) == 4
    assert [handle_request(there)["preview"][name] for name in ("held", "duplicates")] == [4, 0]
    assert "error" in handle_request({**there, "what": str(tmp_path / "none")})
    assert "meanings of the votes" in handle_request({**there, "choices": "huh"})["error"]
    unknown = files.rows("unknown.jsonl", [{"question": "?", "good": "a", "bad": "b"}])
    assert handle_request({**there, "what": str(unknown)})["columns"] == ["question", "good", "bad"]
    doubtful = files.rows("doubtful.jsonl", [{"prompt": "?", "first": "a", "second": "b", "winner": 0}])
    assert handle_request({**there, "what": str(doubtful)})["columns"] == ["prompt", "first", "second", "winner"]


def test_a_file_is_read_without_torch(files, db, project, tmp_path):
    path = files.rows("v.parquet", [{"prompt": "p", "chosen": "a", "rejected": "b"}])
    script = (
        "import sys; from rlhf_lab.importers.__main__ import handle_request;"
        f"there = {{'what': {str(path)!r}, 'home': {str(tmp_path / 'home')!r}, 'project': {project.id}}};"
        "assert handle_request(there)['preview']['votes'] == 1;"
        "print('torch' in sys.modules, 'datasets' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"


def test_the_hub_is_read_as_it_comes(monkeypatch, db, project):
    asked, read = [], []

    def load_dataset(name, config, *, split, streaming):
        asked.append((name, config, split, streaming))
        for i in range(1000):
            read.append(i)
            yield {"prompt": f"p{i}", "chosen": "a", "rejected": "b"}

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    found = parse_file(ImportRequest("someone/pairs", split="test", config_name="en", limits=Limits(max_rows=20)))
    assert asked == [("someone/pairs", "en", "test", True)]
    assert (len(found.votes), len(read)) == (20, 22)
    assert "row 21: more than 20 rows" in str(found.errors[0])

    def absent(*_, **__):
        raise FileNotFoundError("Dataset 'someone/none' doesn't exist on the Hub")

    monkeypatch.setattr("datasets.load_dataset", absent)
    with pytest.raises(DataError, match=r"doesn't exist on the Hub\. Check the name"):
        parse_file(ImportRequest("someone/none"))
