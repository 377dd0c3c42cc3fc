"""The people of a lab: who joined, and what each of them voted."""

import re
import time
from collections import defaultdict
from collections.abc import Collection

from sqlalchemy import Connection, func, select

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.person_names import latin_spelling, lookalike_keys, mixed_scripts, normalize_name
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
#: "@" and the name of an account as the Hub allows it; with other letters one could look like another.
ACCOUNT_PATTERN = re.compile(r"@[A-Za-z0-9._-]+")
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
    """What each person of a project voted, most labels first. Two votes agree when their choices are equal, ties included.

    A vote on a pair that an expert decided is compared with the decision alone; decisions are no labels of their own.
    """
    v = t.votes.c
    query = live_votes_query(project_id, Source.HUMAN, v.annotator, v.pair_id, v.choice, v.repeat, v.adjudication)
    choices: dict[str, dict[int, Choice]] = defaultdict(dict)
    repeat_choices: dict[str, dict[int, Choice]] = defaultdict(dict)
    choices_by_pair: dict[int, list[Choice]] = defaultdict(list)
    decisions: dict[int, Choice] = {}
    with db.read() as conn:
        for row in conn.execute(query.where(v.choice != Choice.SKIP)):
            if row.adjudication:
                decisions[row.pair_id] = row.choice
                continue
            (repeat_choices if row.repeat else choices)[row.annotator][row.pair_id] = row.choice
            if not row.repeat:
                choices_by_pair[row.pair_id].append(row.choice)
    stats = []
    for annotator in choices | repeat_choices:
        own, repeats = choices[annotator], repeat_choices[annotator]
        repeats_agree = [own[pair] is choice for pair, choice in repeats.items() if pair in own]
        others = sum(1 if pair in decisions else len(choices_by_pair[pair]) - 1 for pair in own)
        others_agree = sum(
            decisions[pair] is choice if pair in decisions else choices_by_pair[pair].count(choice) - 1
            for pair, choice in own.items()
        )
        stats.append(
            AnnotatorActivity(annotator, len(own), len(repeats_agree), sum(repeats_agree), others, others_agree)
        )
    return sorted(stats, key=lambda item: (-item.labels, item.annotator))


def add_person(db: Database, name: str, reserved_names: Collection[str] = ()) -> Person:
    """Add a person. A name that looks like one that a person or a vote has already gets a number: "Ann 2"
    (`rlhf_lab.common.person_names`).

    reserved_names: further names that are not free.

    LabelError: no name, one that is too long, unprintable, reserved or of several alphabets, or a lab that is full.
    """
    name = _usable_name(name)
    with db.write() as conn:
        taken_names = {OPERATOR_NAME, *reserved_names, *conn.execute(select(t.people.c.name)).scalars()}
        taken_names.update(conn.execute(select(t.votes.c.annotator).distinct()).scalars())
        taken_keys = set[str]().union(*map(lookalike_keys, taken_names))
        number, candidate = 1, name
        while not taken_keys.isdisjoint(lookalike_keys(candidate)):
            number += 1
            candidate = f"{name[: MAX_PERSON_NAME_CHARS - len(f' {number}')]} {number}"
        return _insert_person(conn, candidate)


def _usable_name(name: str) -> str:
    """The name as it is kept. Raises LabelError."""
    if unprintable := next((character for character in " ".join(name.split()) if not character.isprintable()), ""):
        raise LabelError(
            f"The name holds a character that cannot be seen (U+{ord(unprintable):04X}). Type the name anew."
        )
    name = normalize_name(name)
    if (
        not 1 <= len(name) <= MAX_PERSON_NAME_CHARS
        or not name.isprintable()
        or latin_spelling(name).casefold().startswith(RESERVED_PREFIXES)
    ):
        raise LabelError(f"Choose a name of 1 to {MAX_PERSON_NAME_CHARS} characters that others will know you by.")
    if scripts := mixed_scripts(name):
        raise LabelError(
            f"A word of the name mixes letters of several alphabets ({', '.join(scripts)}), so it could be taken for another "
            "name. Write each word in one alphabet."
        )
    return name


def get_or_add_account(db: Database, name: str) -> Person:
    """The person with an account of an OAuth provider, called "@name": the same at every sign-in; nobody else can have that name.

    LabelError: no name or one that is too long, or a lab that is full.
    """
    name = f"@{name.strip()}"
    if not len(name) <= MAX_PERSON_NAME_CHARS or not ACCOUNT_PATTERN.fullmatch(name):
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
