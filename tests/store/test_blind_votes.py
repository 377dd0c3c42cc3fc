"""Blind tests in the store."""

import pytest

from rlhf_lab.errors import StoreError
from rlhf_lab.jobs import queue
from rlhf_lab.kinds import Choice, JobKind
from rlhf_lab.records import Project
from rlhf_lab.store import blind
from rlhf_lab.store.database import Database


@pytest.fixture
def made(db: Database, project: Project) -> list:
    jobs = [queue.submit(db, JobKind.COMPLETE, project.id, {}).id for _ in range(2)]
    return [blind.add_test(db, project.id, *jobs) for _ in range(31)]


def test_all_tests_of_a_project_newest_first(db: Database, project: Project, made: list) -> None:
    assert blind.blind_tests(db, project.id) == made[::-1]
    assert list(blind.asked(db, project.id)) == [test.id for test in made[::-1]]
    assert blind.blind_tests(db, project.id + 1) == []


def test_the_first_answer_to_a_pair_counts(db: Database, made: list) -> None:
    one, other = made[:2]
    blind.give(db, one.id, "ann", {0: Choice.FIRST, 2: Choice.TIE})
    blind.give(db, one.id, "ann", {0: Choice.SECOND, 1: Choice.SECOND})
    blind.give(db, one.id, "bob", {0: Choice.SKIP})
    blind.give(db, one.id, "bob", {})
    assert blind.answers(db, one.id) == {
        "ann": {0: Choice.FIRST, 1: Choice.SECOND, 2: Choice.TIE}, "bob": {0: Choice.SKIP}
    }  # fmt: skip
    assert blind.answers(db, other.id) == {}


def test_no_such_test(db: Database, made: list) -> None:
    with pytest.raises(StoreError, match="no blind test 999"):
        blind.give(db, 999, "ann", {0: Choice.FIRST})
