"""Blind tests in the store."""

import pytest

from rlhf_lab.common.enums import Choice, JobKind, JobStatus
from rlhf_lab.common.records import Project
from rlhf_lab.errors import StoreError
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.store import blind_tests
from rlhf_lab.store.database import Database


@pytest.fixture
def created_tests(db: Database, project: Project) -> list:
    jobs = [queue.submit(db, JobKind.COMPLETE, project.id, {}).id for _ in range(62)]
    return [blind_tests.add_test(db, project.id, *jobs[2 * i : 2 * i + 2]) for i in range(31)]


def test_all_tests_of_a_project_newest_first(db: Database, project: Project, created_tests: list) -> None:
    assert blind_tests.blind_tests(db, project.id) == created_tests[::-1]
    assert list(blind_tests.job_payloads_by_test(db, project.id)) == [test.id for test in created_tests[::-1]]
    assert blind_tests.blind_tests(db, project.id + 1) == []


def test_the_first_answer_to_a_pair_counts(db: Database, created_tests: list) -> None:
    one, other = created_tests[:2]
    blind_tests.add_answers(db, one.id, "ann", {0: Choice.FIRST, 2: Choice.TIE})
    blind_tests.add_answers(db, one.id, "ann", {0: Choice.SECOND, 1: Choice.SECOND})
    blind_tests.add_answers(db, one.id, "bob", {0: Choice.SKIP})
    blind_tests.add_answers(db, one.id, "bob", {})
    assert blind_tests.answers(db, one.id) == {
        "ann": {0: Choice.FIRST, 1: Choice.SECOND, 2: Choice.TIE}, "bob": {0: Choice.SKIP}
    }  # fmt: skip
    assert blind_tests.answers(db, other.id) == {}


def test_a_name_is_stored_in_the_payload_of_the_first_job(db: Database, project: Project, created_tests: list) -> None:
    first, second = (queue.submit(db, JobKind.COMPLETE, project.id, {"prompts": [side]}) for side in "ab")
    test = blind_tests.add_test(db, project.id, first.id, second.id)
    blind_tests.rename_test(db, test.id, "before")
    blind_tests.rename_test(db, test.id, "after")
    assert blind_tests.job_payloads_by_test(db, project.id)[test.id] == (
        {"prompts": ["a"], "name": "after"},
        {"prompts": ["b"]},
    )
    assert all(
        blind_tests.NAME_KEY not in both[0]
        for test_id, both in blind_tests.job_payloads_by_test(db, project.id).items()
        if test_id != test.id
    )


def test_a_deleted_test_takes_its_answers_and_texts_and_nothing_else(
    db: Database, project: Project, created_tests: list
) -> None:
    one, other = created_tests[:2]
    queue.claim(db, [JobKind.COMPLETE], engine_process.record_heartbeat(db, "x"))
    queue.finish(db, one.first_job, {"texts": ["a", "b", "c"]})
    for test in (one, other):
        blind_tests.add_answers(db, test.id, "ann", {0: Choice.FIRST, 1: Choice.SKIP, 2: Choice.TIE})
        blind_tests.add_answers(db, test.id, "bob", {0: Choice.SECOND})
        blind_tests.add_answers(db, test.id, "eve", {0: Choice.SKIP})
    assert blind_tests.answer_counts(db, one.id) == blind_tests.delete_test(db, one.id) == {"ann": 2, "bob": 1}
    assert blind_tests.blind_tests(db, project.id) == created_tests[:0:-1]
    assert blind_tests.answers(db, one.id) == {}
    assert blind_tests.answer_counts(db, other.id) == {"ann": 2, "bob": 1}
    with pytest.raises(StoreError, match="no job"):
        queue.get_job(db, one.first_job)
    assert (
        queue.get_job(db, one.second_job).status is JobStatus.CANCELLED
    )  # it was queued: the engine may be about to take it
    assert {queue.get_job(db, job).status for job in (other.first_job, other.second_job)} == {JobStatus.QUEUED}


def test_an_unknown_test_is_refused(db: Database, created_tests: list) -> None:
    for action in (
        lambda: blind_tests.add_answers(db, 999, "ann", {0: Choice.FIRST}),
        lambda: blind_tests.rename_test(db, 999, "x"),
        lambda: blind_tests.delete_test(db, 999),
    ):
        with pytest.raises(StoreError, match="no blind test 999"):
            action()
