"""Erasing a person: no row contains their name any more, the data of others stays, and reward models stay usable."""

import json
from pathlib import Path

import pytest
from sqlalchemy import select

from rlhf_lab.common.enums import Choice, JobKind, Source
from rlhf_lab.common.records import NewCompletion, Project, Vote
from rlhf_lab.errors import LabelError, StoreError
from rlhf_lab.jobs import person_erasure, queue
from rlhf_lab.jobs.person_erasure import erase_person_data
from rlhf_lab.store import blind_tests, label_snapshots, pair_leases, projects, reward_models, votes
from rlhf_lab.store import tables as t
from rlhf_lab.store.annotators import add_person
from rlhf_lab.store.database import Database
from rlhf_lab.store.erasure import known_names


@pytest.fixture
def lab(db: Database, home: Path, project: Project) -> int:
    """Ann and Bob, who joined, voted on a pair and judged in a blind test; a reward model that counts Ann twice. Its id."""
    prompt = projects.prompts(db, project.id, "train")[0]
    created = projects.add_completions(db, [NewCompletion(prompt.id, f"text {n}", (n,), "base", n) for n in range(4)])
    pairs = projects.add_pairs(
        db, project.id, [(created[0].id, created[1].id, "x"), (created[2].id, created[3].id, "x")]
    )
    for name in ("Ann", "Bob"):
        add_person(db, name)
        vote = Vote(
            f"uuid {len(name)}{ord(name[0])}", pairs[0].id, name, Source.HUMAN, Choice.FIRST, True, note=f"says {name}"
        )
        votes.cast_vote(db, vote)
    simulated = Vote("judge", pairs[0].id, "judge:vivid", Source.SIMULATED, Choice.TIE, True)
    votes.cast_vote(db, simulated)
    pair_leases.lease_pair(db, project.id, "Ann")
    messages = {"annotators": ["Ann", "Bob"], "weights": {"Ann": 2}}
    job = queue.submit(db, JobKind.TRAIN_REWARD, project.id, {"source": "human"} | messages)
    model = reward_models.add_reward_model(
        db,
        project.id,
        "reward_models/m",
        config={},
        report=messages,
        snapshot=label_snapshots.snapshot_labels(db, project.id, Source.HUMAN),
    )
    (home / model.path).mkdir(parents=True)
    (home / model.path / "report.json").write_text(json.dumps(messages))
    test = blind_tests.add_test(db, project.id, job.id, job.id)
    for name in ("Ann", "Bob"):
        blind_tests.add_answers(db, test.id, name, {0: Choice.FIRST})
    with db.write() as conn:
        conn.execute(t.jobs.update().values(status="done"))
        values = {"project_id": project.id, "name": "f", "who": "Ann", "use_prompts": False, "created_at": 1.0}
        conn.execute(t.imports.insert().values(**values))
    return model.id


def everything(db: Database, home: Path) -> str:
    """All data of the store and the reports."""
    with db.read() as conn:
        rows = [str(list(conn.execute(select(table)))) for table in t.metadata.sorted_tables]
    return "\n".join(rows + [file.read_text() for file in home.glob("reward_models/*/report.json")])


@pytest.mark.parametrize("votes", [False, True])
def test_an_erased_name_is_gone_from_every_table_and_others_stay(
    db: Database, home: Path, lab: int, votes: bool
) -> None:
    assert "Ann" in everything(db, home)
    assert known_names(db) == ["Ann", "Bob"]
    assert erase_person_data(db, home, "Ann", votes=votes) == 1
    leased = everything(db, home)
    assert ("'Ann'" in leased, '"Ann"' in leased, "says Ann" in leased) == (False, False, not votes)
    assert known_names(db) == ["Bob"]
    assert "says Bob" in leased


def test_votes_of_an_erased_person_stay_anonymous(db: Database, home: Path, project: Project, lab: int) -> None:
    erase_person_data(db, home, "Ann", votes=False)
    assert votes.vote_counts(db, project.id)[Source.HUMAN][Choice.FIRST] == 2
    anonymous, bob = sorted(votes.voters(db, project.id, Source.HUMAN), reverse=True)
    assert (anonymous.startswith("visitor-"), bob) == (True, "Bob")
    assert set(blind_tests.answers(db, 1)) == {anonymous, "Bob"}
    model = reward_models.get_reward_model(db, lab)
    assert model.report == {"annotators": [anonymous, "Bob"], "weights": {anonymous: 2}}
    assert json.loads((home / model.path / "report.json").read_text()) == model.report


class Killed(BaseException):
    pass


@pytest.mark.parametrize("failure", [OSError("no space"), Killed()])
def test_erasure_can_be_repeated_after_a_file_failed(
    db: Database, home: Path, lab: int, failure: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise failure

    before = everything(db, home)
    with monkeypatch.context() as change:
        change.setattr(person_erasure, "write_file_atomically", fail)
        with pytest.raises((StoreError, Killed)):
            erase_person_data(db, home, "Ann", votes=True)
    assert everything(db, home) == before
    assert erase_person_data(db, home, "Ann", votes=True) == 1
    assert '"Ann"' not in everything(db, home)


def test_erased_votes_are_undone_and_reward_models_can_still_be_read(
    db: Database, home: Path, project: Project, lab: int
) -> None:
    erase_person_data(db, home, "Ann", votes=True)
    assert votes.voters(db, project.id, Source.HUMAN) == ["Bob"]
    assert votes.vote_counts(db, project.id)[Source.SIMULATED][Choice.TIE] == 1
    assert set(blind_tests.answers(db, 1)) == {"Bob"}
    assert len(label_snapshots.load_comparisons(db, reward_models.get_reward_model(db, lab).snapshot)) == 2


def test_unknown_names_and_judges_cannot_be_erased(db: Database, home: Path, lab: int) -> None:
    before = everything(db, home)
    for name in ("ann", "", "judge:vivid", "operator"):
        with pytest.raises(LabelError, match="Nobody in this lab is called"):
            erase_person_data(db, home, name, votes=True)
    assert everything(db, home) == before


def test_an_unfinished_job_that_names_a_person_prevents_the_erasure(
    db: Database, home: Path, project: Project, lab: int
) -> None:
    queue.submit(db, JobKind.TRAIN_REWARD, project.id, {"source": "human", "annotators": ["Ann"]})
    before = everything(db, home)
    with pytest.raises(LabelError, match="names Ann"):
        erase_person_data(db, home, "Ann", votes=False)
    assert everything(db, home) == before
    assert erase_person_data(db, home, "Bob", votes=False) == 1


def on_disk(home: Path) -> bytes:
    """The database's file and its log, byte by byte."""
    return b"".join(file.read_bytes() for file in (home / "lab.db", home / "lab.db-wal") if file.exists())


def test_an_erased_name_is_in_no_byte_of_the_file(tmp_path: Path) -> None:
    """Rows that are deleted or changed leave their old bytes in a SQLite file, and copies in its log."""
    with Database.open(tmp_path) as db:
        add_person(db, "Annegret")
        add_person(db, "Bob")
        assert b"Annegret" in on_disk(tmp_path)
        erase_person_data(db, tmp_path, "Annegret", votes=True)
        assert b"Annegret" not in on_disk(tmp_path)
        assert b"Bob" in on_disk(tmp_path)
        assert known_names(db) == ["Bob"]
