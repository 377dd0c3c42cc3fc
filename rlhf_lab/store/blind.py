"""Blind tests: two models wrote to the same prompts, and people say whose texts they like without knowing whose they are."""

import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from rlhf_lab.errors import StoreError
from rlhf_lab.kinds import OPEN, Choice, JobStatus
from rlhf_lab.records import BlindTest
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, insert_row

#: What a person called a test: a word of what its first job was asked.
NAME = "name"


def add_test(db: Database, project_id: int, first_job: int, second_job: int) -> BlindTest:
    """A test of the texts that two jobs write."""
    now = time.time()
    values = {"project_id": project_id, "first_job": first_job, "second_job": second_job, "created_at": now}
    with db.write() as conn:
        return BlindTest(insert_row(conn, t.blind_tests, values), project_id, first_job, second_job, now)


def blind_tests(db: Database, project_id: int) -> list[BlindTest]:
    """The project's tests, newest first."""
    b = t.blind_tests.c
    query = select(t.blind_tests).where(b.project_id == project_id).order_by(b.id.desc())
    with db.read() as conn:
        return [BlindTest(**row._mapping) for row in conn.execute(query)]


def asked(db: Database, project_id: int) -> dict[int, tuple[dict[str, Any], dict[str, Any]]]:
    """What the two jobs of each of the project's tests were asked, by the test's id; newest first."""
    b, one, other = t.blind_tests.c, t.jobs.alias(), t.jobs.alias()
    query = select(b.id, one.c.payload, other.c.payload).where(b.project_id == project_id).order_by(b.id.desc())
    query = query.join(one, one.c.id == b.first_job).join(other, other.c.id == b.second_job)
    with db.read() as conn:
        return {test_id: (first, second) for test_id, first, second in conn.execute(query)}


def rename_test(db: Database, test_id: int, name: str) -> None:
    """Call a test something else. StoreError: there is none."""
    j, b = t.jobs.c, t.blind_tests.c
    query = select(j.id, j.payload).join(t.blind_tests, b.first_job == j.id).where(b.id == test_id)
    with db.write() as conn:
        first = conn.execute(query).one_or_none()
        if first is None:
            raise no_such_test(test_id)
        conn.execute(update(t.jobs).where(j.id == first.id).values(payload={**first.payload, NAME: name}))


def delete_test(db: Database, test_id: int) -> dict[str, int]:
    """Delete a test, what people said of it and the texts; returns how many answers each of them had given.

    A job of it that still waits or is at work is cancelled: the engine must find it. StoreError: there is no such test.
    """
    j = t.jobs.c
    with db.write() as conn:
        test = conn.execute(select(t.blind_tests).where(t.blind_tests.c.id == test_id)).one_or_none()
        if test is None:
            raise no_such_test(test_id)
        lost = _given(conn, test_id)
        conn.execute(delete(t.blind_tests).where(t.blind_tests.c.id == test_id))
        mine = j.id.in_((test.first_job, test.second_job))
        cancelled = {"status": JobStatus.CANCELLED, "eta_s": None, "updated_at": time.time()}
        conn.execute(delete(t.jobs).where(mine, j.status.not_in(OPEN)))
        conn.execute(update(t.jobs).where(mine).values(**cancelled))
    return lost


def given(db: Database, test_id: int) -> dict[str, int]:
    """How many answers each person has given; a skipped pair is none."""
    with db.read() as conn:
        return _given(conn, test_id)


def _given(conn: Connection, test_id: int) -> dict[str, int]:
    v = t.blind_votes.c
    query = select(v.annotator, func.count().label("answers")).where(v.test_id == test_id, v.choice != Choice.SKIP)
    return {row.annotator: row.answers for row in conn.execute(query.group_by(v.annotator))}


def no_such_test(test_id: int) -> StoreError:
    return StoreError(f"There is no blind test {test_id}. Reload the page.")


def give(db: Database, test_id: int, annotator: str, choices: Mapping[int, Choice]) -> None:
    """One person's answers by the place of the pair. The first answer to a pair counts; another one changes nothing.

    StoreError: there is no such test.
    """
    v = t.blind_votes.c
    with db.write() as conn:
        if conn.execute(select(t.blind_tests.c.id).where(t.blind_tests.c.id == test_id)).first() is None:
            raise no_such_test(test_id)
        known = set(conn.execute(select(v.position).where(v.test_id == test_id, v.annotator == annotator)).scalars())
        key = {"test_id": test_id, "annotator": annotator, "created_at": time.time()}
        new = [{**key, "position": at, "choice": choice} for at, choice in choices.items() if at not in known]
        if new:
            conn.execute(insert(t.blind_votes), new)


def answers(db: Database, test_id: int) -> dict[str, dict[int, Choice]]:
    """Every person's answers by the place of the pair."""
    v = t.blind_votes.c
    query = select(v.annotator, v.position, v.choice).where(v.test_id == test_id).order_by(v.annotator, v.position)
    found: dict[str, dict[int, Choice]] = {}
    with db.read() as conn:
        for annotator, position, choice in conn.execute(query):
            found.setdefault(annotator, {})[position] = Choice(choice)
    return found
