"""`people`: lists whom the lab knows, says what would go, and takes somebody out only when erasure so."""

import json
import uuid
from pathlib import Path

import pytest

from rlhf_lab.cli.main import main
from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import NewCompletion, Vote
from rlhf_lab.store import projects, votes
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

    def say(*words: str) -> tuple[int, dict]:
        status = main(["people", *words, "--home", str(tmp_path), "--json"])
        (line,) = capsys.readouterr().out.strip().splitlines()
        return status, json.loads(line)

    return say


def firsts(home: Path) -> int:
    with Database.open(home) as db:
        return votes.vote_counts(db, 1)[Source.HUMAN][Choice.FIRST]


@pytest.mark.parametrize(("votes", "left"), [(False, 2), (True, 1)])
def test_a_person_is_erased_only_with_yes(call, tmp_path: Path, votes: bool, left: int) -> None:
    options = ["--take-out", "Ann", *(["--votes"] if votes else [])]
    erasure = {"name": "Ann", "votes": 1, "votes_taken_back": votes}
    assert call(*options) == (0, erasure | {"taken_out": False})
    assert call() == (0, {"people": ["Ann", "Bob"]})
    assert firsts(tmp_path) == 2
    assert call(*options, "--yes") == (0, erasure | {"taken_out": True})
    assert call() == (0, {"people": ["Bob"]})
    assert firsts(tmp_path) == left


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--take-out", "Cid"], 'Nobody here is called "Cid"'),
        (["--take-out", "Cid", "--yes"], 'Nobody here is called "Cid"'),
        (["--votes"], "--take-out NAME: say whom"),
        (["--yes"], "--take-out NAME: say whom"),
    ],
)
def test_invalid_erasures_are_refused(call, words: list[str], why: str) -> None:
    status, reply = call(*words)
    assert status == 1
    assert why in reply["error"]
    assert call() == (0, {"people": ["Ann", "Bob"]})
