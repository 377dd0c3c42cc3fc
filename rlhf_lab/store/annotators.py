"""The people of a lab: who joined, and what each of them voted."""

import time
from collections import defaultdict
from collections.abc import Collection

from sqlalchemy import Connection, func, select

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import AnnotatorActivity, Person
from rlhf_lab.errors import LabelError
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, insert_row
from rlhf_lab.store.votes import live_votes_query

MAX_PERSON_NAME_CHARS = 60
MAX_LAB_PEOPLE = 5_000
#: Begins the names of visitors who gave none.
VISITOR_PREFIX = "visitor-"
#: Prefixes that a person's name must not have: judges, programs, visitors without a name, accounts.
RESERVED_PREFIXES = ("judge:", "api:", VISITOR_PREFIX, "@")
#: Who entered by the operator's link.
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
    """What each person of a project voted, most labels first. Two votes agree when their choices are equal, ties included."""
    v = t.votes.c
    query = live_votes_query(project_id, Source.HUMAN, v.annotator, v.pair_id, v.choice, v.repeat)
    choices: dict[str, dict[int, Choice]] = defaultdict(dict)
    repeat_choices: dict[str, dict[int, Choice]] = defaultdict(dict)
    choices_by_pair: dict[int, list[Choice]] = defaultdict(list)
    with db.read() as conn:
        for row in conn.execute(query.where(v.choice != Choice.SKIP)):
            (repeat_choices if row.repeat else choices)[row.annotator][row.pair_id] = row.choice
            if not row.repeat:
                choices_by_pair[row.pair_id].append(row.choice)
    stats = []
    for annotator in choices | repeat_choices:
        own, repeats = choices[annotator], repeat_choices[annotator]
        repeats_agree = [own[pair] is choice for pair, choice in repeats.items() if pair in own]
        others = sum(len(choices_by_pair[pair]) - 1 for pair in own)
        others_agree = sum(choices_by_pair[pair].count(choice) - 1 for pair, choice in own.items())
        stats.append(
            AnnotatorActivity(annotator, len(own), len(repeats_agree), sum(repeats_agree), others, others_agree)
        )
    return sorted(stats, key=lambda item: (-item.labels, item.annotator))


def add_person(db: Database, name: str, reserved_names: Collection[str] = ()) -> Person:
    """Add a person. A name that a person or a vote has already gets a number: "Ann 2". Names that differ only in upper and
    lower case count as equal (of ASCII letters on SQLite).

    reserved_names: further names that are not free.

    LabelError: no name, one that is too long, unprintable or reserved, or a lab that is full.
    """
    name = " ".join(name.split())
    if unprintable := next((character for character in name if not character.isprintable()), ""):
        raise LabelError(
            f"The name holds a character that cannot be seen (U+{ord(unprintable):04X}). Type the name anew."
        )
    if not name or len(name) > MAX_PERSON_NAME_CHARS or name.startswith(RESERVED_PREFIXES):
        raise LabelError(f"Choose a name of 1 to {MAX_PERSON_NAME_CHARS} characters that others will know you by.")
    p, v = t.people.c, t.votes.c
    with db.write() as conn:
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
    """The person with an account of an OAuth provider, called "@name": the same at every sign-in; nobody else can have that name.

    LabelError: no name or one that is too long, or a lab that is full.
    """
    name = f"@{name.strip()}"
    if not 1 < len(name) <= MAX_PERSON_NAME_CHARS or not name.isprintable():
        raise LabelError("The account has no name that can be used here. Enter with the join code.")
    with db.write() as conn:
        existing = conn.execute(select(t.people).where(t.people.c.name == name)).first()
        if existing is not None:
            return Person(existing.id, existing.name, existing.joined_at)
        return _insert_person(conn, name)


def joined_at(db: Database, name: str) -> float | None:
    """When the person of this name joined; None: there is none (any more)."""
    with db.read() as conn:
        return conn.execute(select(t.people.c.joined_at).where(t.people.c.name == name)).scalar()


def _insert_person(conn: Connection, name: str) -> Person:
    if conn.execute(select(func.count()).select_from(t.people)).scalar_one() >= MAX_LAB_PEOPLE:
        raise LabelError("This lab has as many people as it can hold. Ask its operator to begin a new home.")
    now = time.time()
    return Person(insert_row(conn, t.people, {"name": name, "joined_at": now}), name, now)
