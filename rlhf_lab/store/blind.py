"""Blind tests: two models wrote to the same prompts, and people say whose texts they like without knowing whose they are."""

import time
from collections.abc import Mapping

from sqlalchemy import insert, select

from rlhf_lab.errors import StoreError
from rlhf_lab.kinds import Choice
from rlhf_lab.records import BlindTest
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, insert_row

MAX_LISTED = 30


def add_test(db: Database, project_id: int, first_job: int, second_job: int) -> BlindTest:
    """A test of the texts that two jobs write."""
    now = time.time()
    values = {"project_id": project_id, "first_job": first_job, "second_job": second_job, "created_at": now}
    with db.write() as conn:
        return BlindTest(insert_row(conn, t.blind_tests, values), project_id, first_job, second_job, now)


def blind_tests(db: Database, project_id: int) -> list[BlindTest]:
    """The project's newest tests, newest first."""
    b = t.blind_tests.c
    query = select(t.blind_tests).where(b.project_id == project_id).order_by(b.id.desc()).limit(MAX_LISTED)
    with db.read() as conn:
        return [BlindTest(**row._mapping) for row in conn.execute(query)]


def give(db: Database, test_id: int, annotator: str, choices: Mapping[int, Choice]) -> None:
    """One person's answers by the place of the pair. The first answer to a pair counts; another one changes nothing.

    StoreError: there is no such test.
    """
    v = t.blind_votes.c
    with db.write() as conn:
        if conn.execute(select(t.blind_tests.c.id).where(t.blind_tests.c.id == test_id)).first() is None:
            raise StoreError(f"There is no blind test {test_id}. Reload the page.")
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
