"""`people`: lists the people of a lab, says what an erasure would remove, and erases a person only with --yes."""

import json
import uuid
from pathlib import Path

import pytest

from rlhf_lab.cli.main import main
from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import NewCompletion, Vote
from rlhf_lab.store import gold_pairs, projects, votes
from rlhf_lab.store.annotators import add_person
from rlhf_lab.store.database import Database


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A lab that Ann and Bob joined, where both voted on one pair."""
    with Database.open(tmp_path) as db:
        project = projects.create_project(db, "p", "embedded", "", "tales", 0, [("Once", "train"), ("Far", "eval")])
        prompt = projects.prompts(db, project.id, "train")[0]
        both = projects.add_completions(db, [NewCompletion(prompt.id, f"text {n}", (n,), "base", n) for n in range(2)])
        (pair,) = projects.add_pairs(db, project.id, [(both[0].id, both[1].id, "x")])
        for name in ("Ann", "Bob"):
            add_person(db, name)
            votes.cast_vote(db, Vote(str(uuid.uuid4()), pair.id, name, Source.HUMAN, Choice.FIRST, True))

    def run_command(*words: str) -> tuple[int, dict]:
        status = main(["people", *words, "--home", str(tmp_path), "--json"])
        (line,) = capsys.readouterr().out.strip().splitlines()
        return status, json.loads(line)

    return run_command


def count_first_choices(home: Path) -> int:
    with Database.open(home) as db:
        return votes.vote_counts(db, 1)[Source.HUMAN][Choice.FIRST]


@pytest.mark.parametrize(("votes", "remaining"), [(False, 2), (True, 1)])
def test_a_person_is_erased_only_with_yes(call, tmp_path: Path, votes: bool, remaining: int) -> None:
    options = ["--erase", "Ann", *(["--votes"] if votes else [])]
    erasure = {"name": "Ann", "votes": 1, "votes_taken_back": votes}
    assert call(*options) == (0, erasure | {"taken_out": False})
    assert call() == (0, {"people": ["Ann", "Bob"], "experts": [], "gold": []})
    assert count_first_choices(tmp_path) == 2
    assert call(*options, "--yes") == (0, erasure | {"taken_out": True})
    assert call() == (0, {"people": ["Bob"], "experts": [], "gold": []})
    assert count_first_choices(tmp_path) == remaining


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--erase", "Cid"], 'Nobody in this lab is called "Cid"'),
        (["--erase", "Cid", "--yes"], 'Nobody in this lab is called "Cid"'),
        (["--votes"], "need --erase NAME"),
        (["--yes"], "need --erase NAME"),
    ],
)
def test_invalid_erasures_are_refused(call, words: list[str], message: str) -> None:
    status, reply = call(*words)
    assert status == 1
    assert message in reply["error"]
    assert call() == (0, {"people": ["Ann", "Bob"], "experts": [], "gold": []})


def test_accuracy_on_gold_pairs_and_experts_are_listed(call, tmp_path: Path) -> None:
    with Database.open(tmp_path) as db:
        (pair,) = projects.newest_pairs(db, 1, 1)
        vote = votes.live_votes_query(1, Source.HUMAN)
        with db.read() as conn:
            vote_id = next(row.id for row in conn.execute(vote) if row.annotator == "Ann")
        gold_pairs.mark_gold(db, 1, "Ann", vote_id, True)
        votes.cast_vote(db, Vote("c", pair.id, "Cid", Source.HUMAN, Choice.SECOND, True))
    status, reply = call("--expert", "Bob")
    assert (status, reply["experts"]) == (0, ["Bob"])
    (row,) = reply["gold"]
    assert (row["name"], row["right"], row["answers"], row["low"], row["below_bound"]) == ("Cid", 0, 1, 0.0, False)
    assert row["high"] == pytest.approx(3.8416 / 4.8416)  # Wilson's upper bound for 0 of 1
    assert call("--no-expert", "Bob")[1]["experts"] == []
    assert call("--end-pause", "Cid")[1]["gold"] == []
    assert 'Nobody in this lab is called "Zoe"' in call("--expert", "Zoe")[1]["error"]
