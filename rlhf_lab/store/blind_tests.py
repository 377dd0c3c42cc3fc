"""Blind tests: people compare the texts of two models for the same prompts without knowing which model wrote which."""

import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, Choice, JobStatus
from rlhf_lab.common.records import BlindTest
from rlhf_lab.errors import StoreError
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, insert_row

#: Keys of a test's name, and of whether it has ended, in the payload of its first job.
NAME_KEY, ENDED_KEY = "name", "ended"


def add_test(db: Database, project_id: int, first_job: int, second_job: int) -> BlindTest:
    """Add a test that compares the texts sampled by two jobs."""
    now = time.time()
    values = {"project_id": project_id, "first_job": first_job, "second_job": second_job, "created_at": now}
    with db.write() as conn:
        return BlindTest(insert_row(conn, t.blind_tests, values), project_id, first_job, second_job, now)


def blind_tests(db: Database, project_id: int) -> list[BlindTest]:
    """The project's tests, newest first."""
    b = t.blind_tests.c
    query = select(t.blind_tests).where(b.project_id == project_id).order_by(b.id.desc())
    return [BlindTest(**row._mapping) for row in db.fetch(query)]


def has_open_test(db: Database, project_id: int) -> bool:
    """Whether the project has a blind test that has not ended. One whose texts could not be written cannot be judged."""
    b, first, second = t.blind_tests.c, t.jobs.alias(), t.jobs.alias()
    failed = (JobStatus.FAILED, JobStatus.CANCELLED)
    query = select(first.c.payload).where(first.c.status.not_in(failed), second.c.status.not_in(failed))
    query = query.join_from(t.blind_tests, first, first.c.id == b.first_job).join(second, second.c.id == b.second_job)
    return any(not payload.get(ENDED_KEY) for payload in db.fetch(query.where(b.project_id == project_id)).scalars())


def job_payloads_by_test(db: Database, project_id: int) -> dict[int, tuple[dict[str, Any], dict[str, Any]]]:
    """test id -> the payloads of its two jobs, newest test first."""
    b, first_job_row, second_job_row = t.blind_tests.c, t.jobs.alias(), t.jobs.alias()
    query = (
        select(b.id, first_job_row.c.payload, second_job_row.c.payload)
        .where(b.project_id == project_id)
        .order_by(b.id.desc())
    )
    query = query.join(first_job_row, first_job_row.c.id == b.first_job).join(
        second_job_row, second_job_row.c.id == b.second_job
    )
    return {test_id: (first_payload, second_payload) for test_id, first_payload, second_payload in db.fetch(query)}


def rename_test(db: Database, test_id: int, name: str) -> None:
    """Rename a test. Raises StoreError if there is no such test."""
    _change_payload(db, test_id, {NAME_KEY: name})


def end_test(db: Database, test_id: int) -> None:
    """Accept no more answers to a test. Raises StoreError if there is no such test."""
    _change_payload(db, test_id, {ENDED_KEY: True})


def _change_payload(db: Database, test_id: int, changes: Mapping[str, Any]) -> None:
    j, b = t.jobs.c, t.blind_tests.c
    query = select(j.id, j.payload).join(t.blind_tests, b.first_job == j.id).where(b.id == test_id)
    with db.write() as conn:
        job = conn.execute(query).one_or_none()
        if job is None:
            raise no_such_test(test_id)
        conn.execute(update(t.jobs).where(j.id == job.id).values(payload={**job.payload, **changes}))


def delete_test(db: Database, test_id: int) -> dict[str, int]:
    """Delete a test, its answers and texts; returns how many answers each person had given.

    An unfinished job of the test is cancelled and not deleted, because the engine may be working on it. Raises StoreError if
    there is no such test.
    """
    j = t.jobs.c
    with db.write() as conn:
        test = conn.execute(select(t.blind_tests).where(t.blind_tests.c.id == test_id)).one_or_none()
        if test is None:
            raise no_such_test(test_id)
        lost_answers = _answer_counts(conn, test_id)
        conn.execute(delete(t.blind_tests).where(t.blind_tests.c.id == test_id))
        test_jobs = j.id.in_((test.first_job, test.second_job))
        cancelled = {"status": JobStatus.CANCELLED, "eta_s": None, "updated_at": time.time()}
        conn.execute(delete(t.jobs).where(test_jobs, j.status.not_in(UNFINISHED_JOB_STATUSES)))
        conn.execute(update(t.jobs).where(test_jobs).values(**cancelled))
    return lost_answers


def answer_counts(db: Database, test_id: int) -> dict[str, int]:
    """How many answers each person has given, without skips."""
    with db.read() as conn:
        return _answer_counts(conn, test_id)


def _answer_counts(conn: Connection, test_id: int) -> dict[str, int]:
    v = t.blind_votes.c
    query = select(v.annotator, func.count().label("answers")).where(v.test_id == test_id, v.choice != Choice.SKIP)
    return {row.annotator: row.answers for row in conn.execute(query.group_by(v.annotator))}


def no_such_test(test_id: int) -> StoreError:
    return StoreError(f"There is no blind test {test_id}. Reload the page.")


def add_answers(db: Database, test_id: int, annotator: str, choices: Mapping[int, Choice]) -> int:
    """Store a person's answers, by the position of the pair; returns how many. A pair that the person has already answered is
    left unchanged.

    Raises StoreError if there is no such test.
    """
    v = t.blind_votes.c
    with db.write() as conn:
        if conn.execute(select(t.blind_tests.c.id).where(t.blind_tests.c.id == test_id)).first() is None:
            raise no_such_test(test_id)
        answered = set(conn.execute(select(v.position).where(v.test_id == test_id, v.annotator == annotator)).scalars())
        key = {"test_id": test_id, "annotator": annotator, "created_at": time.time()}
        rows = [
            {**key, "position": position, "choice": choice}
            for position, choice in choices.items()
            if position not in answered
        ]
        if rows:
            conn.execute(insert(t.blind_votes), rows)
        return len(rows)


def answers(db: Database, test_id: int) -> dict[str, dict[int, Choice]]:
    """annotator -> position of the pair -> choice."""
    v = t.blind_votes.c
    query = select(v.annotator, v.position, v.choice).where(v.test_id == test_id).order_by(v.annotator, v.position)
    by_annotator: dict[str, dict[int, Choice]] = {}
    for annotator, position, choice in db.fetch(query):
        by_annotator.setdefault(annotator, {})[position] = Choice(choice)
    return by_annotator
