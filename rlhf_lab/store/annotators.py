"""A project's labelling settings, what people did, and who they are."""

import time
from collections.abc import Collection

from sqlalchemy import Connection, func, insert, select

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import AnnotatorActivity, Person
from rlhf_lab.errors import LabelError
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database

MAX_PERSON_NAME_CHARS = 60
MAX_LAB_PEOPLE = 5_000
#: How the names of those begin who came without one.
VISITOR_PREFIX = "visitor-"
#: What names of people never begin with: judges, programs, visitors without a name, accounts.
RESERVED_PREFIXES = ("judge:", "api:", VISITOR_PREFIX, "@")
#: Who came by the operator's link.
OPERATOR_NAME = "operator"


def latest_annotators(db: Database, project_id: int, count: int) -> list[str]:
    """The people who voted last in a project, newest first."""
    v = t.votes.c
    query = (
        select(v.annotator)
        .join(t.pairs, t.pairs.c.id == v.pair_id)
        .where(t.pairs.c.project_id == project_id, v.source == Source.HUMAN)
        .group_by(v.annotator)
        .order_by(func.max(v.id).desc())
        .limit(count)
    )
    with db.read() as conn:
        return list(conn.execute(query).scalars())


def annotator_stats(db: Database, project_id: int) -> list[AnnotatorActivity]:
    """What each person of a project did, most labels first. Two votes are alike when they chose the same, ties among them."""
    v = t.votes.c
    query = (
        select(v.annotator, v.pair_id, v.choice, v.repeat)
        .join(t.pairs, t.pairs.c.id == v.pair_id)
        .where(t.pairs.c.project_id == project_id, v.source == Source.HUMAN, v.undone_at.is_(None))
        .where(v.choice != Choice.SKIP)
    )
    first_choices: dict[str, dict[int, Choice]] = {}
    repeat_choices: dict[str, dict[int, Choice]] = {}
    choices_by_pair: dict[int, dict[str, Choice]] = {}
    with db.read() as conn:
        for row in conn.execute(query):
            first_choices.setdefault(row.annotator, {})
            (repeat_choices if row.repeat else first_choices).setdefault(row.annotator, {})[row.pair_id] = row.choice
            if not row.repeat:
                choices_by_pair.setdefault(row.pair_id, {})[row.annotator] = row.choice
    stats = []
    for annotator, choices in first_choices.items():
        repeats = [
            (choices[pair], choice) for pair, choice in repeat_choices.get(annotator, {}).items() if pair in choices
        ]
        agreements = [
            choice is other
            for pair, choice in choices.items()
            for other_annotator, other in choices_by_pair[pair].items()
            if other_annotator != annotator
        ]
        same_count = sum(a is b for a, b in repeats)
        stats.append(
            AnnotatorActivity(annotator, len(choices), len(repeats), same_count, len(agreements), sum(agreements))
        )
    return sorted(stats, key=lambda item: (-item.labels, item.annotator))


def add_person(db: Database, name: str, reserved_names: Collection[str] = ()) -> Person:
    """A new person. A name that is taken, by somebody or on a vote, gets a number behind it: "Ann 2". So does one that differs
    in capitals alone, which nobody tells apart when it is read out (SQLite knows those of ASCII).

    taken: names that are somebody's besides.

    LabelError: no name, one that is too long, not to be seen or a judge's, or a lab that is full.
    """
    name = " ".join(name.split())
    unprintable = next((character for character in name if not character.isprintable()), "")
    if unprintable:
        raise LabelError(
            f"The name holds a character that cannot be seen (U+{ord(unprintable):04X}). Type the name anew."
        )
    if not name or len(name) > MAX_PERSON_NAME_CHARS or name.startswith(RESERVED_PREFIXES):
        raise LabelError(f"Choose a name of 1 to {MAX_PERSON_NAME_CHARS} characters that others will know you by.")
    p, v = t.people.c, t.votes.c
    with db.write() as conn:
        _check_capacity(conn)
        number, candidate = 1, name
        reserved = {reserved_name.casefold() for reserved_name in (OPERATOR_NAME, *reserved_names)}
        while (
            candidate.casefold() in reserved
            or conn.execute(select(p.id).where(func.lower(p.name) == func.lower(candidate))).scalar() is not None
            or conn.execute(select(v.id).where(v.annotator == candidate).limit(1)).scalar() is not None
        ):
            number += 1
            candidate = f"{name} {number}"
        return _insert_person(conn, candidate)


def get_or_add_account(db: Database, name: str) -> Person:
    """The person behind an account elsewhere, called "@name": the same at every sign-in, and nobody joins under that name.

    LabelError: no name or one that is too long, or a lab that is full.
    """
    name = f"@{name.strip()}"
    if not 1 < len(name) <= MAX_PERSON_NAME_CHARS or not name.isprintable():
        raise LabelError("The account has no name that can be used here. Enter with the join code.")
    with db.write() as conn:
        existing = conn.execute(select(t.people).where(t.people.c.name == name)).first()
        if existing is not None:
            return Person(existing.id, existing.name, existing.joined_at)
        _check_capacity(conn)
        return _insert_person(conn, name)


def joined_at(db: Database, name: str) -> float | None:
    """When somebody joined by a name; None where nobody of that name is here (any more)."""
    with db.read() as conn:
        return conn.execute(select(t.people.c.joined_at).where(t.people.c.name == name)).scalar()


def _check_capacity(conn: Connection) -> None:
    if conn.execute(select(func.count()).select_from(t.people)).scalar_one() >= MAX_LAB_PEOPLE:
        raise LabelError("This lab has as many people as it can hold. Ask its operator to begin a new home.")


def _insert_person(conn: Connection, name: str) -> Person:
    now = time.time()
    person_id = conn.execute(insert(t.people).values(name=name, joined_at=now).returning(t.people.c.id)).scalar_one()
    return Person(person_id, name, now)
