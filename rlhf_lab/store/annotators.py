"""The people of a lab: those who joined, and statistics about their votes."""

import re
import time
from collections import Counter
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, delete, func, select, union

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.person_names import latin_spelling, lookalike_keys, mixed_scripts, normalize_name
from rlhf_lab.common.records import AnnotatorActivity, Person
from rlhf_lab.errors import LabelError
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, insert_row
from rlhf_lab.store.vote_table import CHOICES, VoteTable, code, current_votes

MAX_PERSON_NAME_CHARS = 60
MAX_LAB_PEOPLE = 5_000
IDLE_S = 600.0  # after which a full lab forgets people who did nothing
#: Prefix of the generated names of visitors who gave no name.
VISITOR_PREFIX = "visitor-"
#: Prefixes that a person's name must not have. They mark judges, programs, visitors without a name, and accounts.
RESERVED_PREFIXES = ("judge:", "api:", VISITOR_PREFIX, "@")
#: "@" and the name of an account, with the characters that the Hub allows. Other letters could make two names look alike.
ACCOUNT_PATTERN = re.compile(r"@[A-Za-z0-9._-]+")
NUMBERED_NAME = re.compile(r"(.+) (?:[2-9]|[1-9]\d+)")
#: Name of the person who entered by the operator's link.
OPERATOR_NAME = "operator"


def latest_annotators(db: Database, project_id: int, count: int) -> list[str]:
    """The `count` people who voted most recently in a project, newest first."""
    votes = current_votes(db, project_id)
    by_people = votes.source == code(Source.HUMAN)
    newest = np.zeros(len(votes.names), np.int64)
    np.maximum.at(newest, votes.annotator[by_people], votes.vote_id[by_people])
    return [votes.names[i] for i in np.argsort(-newest)[:count] if newest[i]]


def annotator_stats(db: Database, project_id: int) -> list[AnnotatorActivity]:
    """Statistics about each person of a project, most labels first. Two votes agree if their choices are equal, ties included.

    A vote on a pair that an expert decided is compared only with the decision. Decisions are not counted as labels of the expert.
    """
    votes = current_votes(db, project_id)
    return votes.cached("annotator stats", lambda: _annotator_stats(votes))


def _annotator_stats(votes: VoteTable) -> list[AnnotatorActivity]:
    """Compute the statistics. (pair, choice) and (annotator, pair) are each encoded as one number, to count with bincount."""
    labels = np.flatnonzero(votes.labels_of(Source.HUMAN))
    is_repeat = votes.live & votes.repeat & (votes.source == code(Source.HUMAN)) & (votes.choice != code(Choice.SKIP))
    choice_cells = len(CHOICES) * votes.pair + votes.choice
    cell_counts = np.bincount(choice_cells[labels], minlength=len(CHOICES) * len(votes.pair_id))
    pair_counts = cell_counts.reshape(-1, len(CHOICES)).sum(1)
    decisions = np.full(len(votes.pair_id), -1)
    is_decision = votes.answers_of(Source.HUMAN) & votes.adjudication
    decisions[votes.pair[is_decision]] = votes.choice[is_decision]
    decision, own_choice = decisions[votes.pair[labels]], votes.choice[labels]
    own_cells = len(votes.pair_id) * votes.annotator + votes.pair
    order = labels[np.argsort(own_cells[labels])]
    repeats = np.flatnonzero(is_repeat)
    repeats = repeats[np.isin(own_cells[repeats], own_cells[order])]
    first = order[np.searchsorted(own_cells[order], own_cells[repeats])]

    def per_person(rows: NDArray[np.int64], values: NDArray[Any] | None = None) -> list[int]:
        sums: list[int] = np.bincount(votes.annotator[rows], values, len(votes.names)).astype(np.int64).tolist()
        return sums

    columns = (
        per_person(labels), per_person(repeats), per_person(repeats[votes.choice[repeats] == votes.choice[first]]),
        per_person(labels, np.where(decision < 0, pair_counts[votes.pair[labels]] - 1, 1)),
        per_person(labels, np.where(decision < 0, cell_counts[choice_cells[labels]] - 1, own_choice == decision)),
    )  # fmt: skip
    active = np.unique(votes.annotator[np.concatenate([labels, np.flatnonzero(is_repeat)])])
    stats = [AnnotatorActivity(votes.names[i], *(column[i] for column in columns)) for i in active]
    return sorted(stats, key=lambda item: (-item.labels, item.annotator))


def add_person(db: Database, name: str, reserved_names: Collection[str] = ()) -> Person:
    """Add a person. If a person or a vote already has a name that looks the same, a number is added, as in "Ann 2".

    reserved_names: further names that are taken. See `rlhf_lab.common.person_names` for names that look the same. Raises
    LabelError if the name is empty, too long, unprintable, reserved or mixes alphabets, or if the lab is full.
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


def names_without_numbers(db: Database, project_id: int, present: Collection[str]) -> dict[str, str]:
    """Numbered names, as in "Ann 2", whose number only sets them apart from people of other classes, and the same without it.

    The current class is everyone who voted in the project or joined since it was created, and `present`. If two of them have
    names that look alike without numbers, both keep theirs.
    """
    p, v = t.people.c, t.votes.c
    made_at = select(t.projects.c.created_at).where(t.projects.c.id == project_id).scalar_subquery()
    here = {*present, *db.fetch(select(p.name).where(p.joined_at >= made_at)).scalars()}
    votes = current_votes(db, project_id)
    here.update(votes.names[i] for i in np.unique(votes.annotator[votes.source == code(Source.HUMAN)]))
    bases = {name: match[1] for name in here if (match := NUMBERED_NAME.fullmatch(name))}
    if not bases:
        return {}
    taken_names = {*db.fetch(select(p.name)).scalars(), *db.fetch(select(v.annotator).distinct()).scalars()}
    taken_keys = set[str]().union(*map(lookalike_keys, taken_names))
    key_counts = Counter(key for name in here for key in lookalike_keys(bases.get(name, name)))
    return {
        name: base
        for name, base in bases.items()
        if not taken_keys.isdisjoint(keys := lookalike_keys(base)) and all(key_counts[key] == 1 for key in keys)
    }


def _usable_name(name: str) -> str:
    """The name in the form that is stored. Raises LabelError."""
    if unprintable := next((character for character in " ".join(name.split()) if not character.isprintable()), ""):
        raise LabelError(f"The name contains an invisible character (U+{ord(unprintable):04X}). Type the name again.")
    name = normalize_name(name)
    if (
        not 1 <= len(name) <= MAX_PERSON_NAME_CHARS
        or not name.isprintable()
        or latin_spelling(name).casefold().startswith(RESERVED_PREFIXES)
    ):
        raise LabelError(f"Choose a name of 1 to {MAX_PERSON_NAME_CHARS} characters. Other people will see it.")
    if scripts := mixed_scripts(name):
        raise LabelError(
            f"A word of the name mixes letters of several alphabets ({', '.join(scripts)}), so it could be mistaken "
            "for another name. Write each word in one alphabet."
        )
    return name


def get_or_add_account(db: Database, name: str) -> Person:
    """The person with this account of an OAuth provider. Their name is "@name", which no one else can have.

    Raises LabelError if the name is missing or too long, or if the lab is full.
    """
    name = f"@{name.strip()}"
    if not len(name) <= MAX_PERSON_NAME_CHARS or not ACCOUNT_PATTERN.fullmatch(name):
        raise LabelError("The account has no usable name. Log in with the join code.")
    with db.write() as conn:
        existing = conn.execute(select(t.people).where(t.people.c.name == name)).first()
        if existing is not None:
            return Person(existing.id, existing.name, existing.joined_at)
        return _insert_person(conn, name)


def joined_at(db: Database, name: str) -> float | None:
    """When the person of this name joined (seconds since 1970); None if there is no such person."""
    return db.fetch(select(t.people.c.joined_at).where(t.people.c.name == name)).scalar()


def _insert_person(conn: Connection, name: str) -> Person:
    now, count = time.time(), select(func.count()).select_from(t.people)
    if conn.execute(count).scalar_one() >= MAX_LAB_PEOPLE:
        _remove_idle_people(conn, now)
        if conn.execute(count).scalar_one() >= MAX_LAB_PEOPLE:
            raise LabelError(
                "This lab has reached its maximum number of people. Ask the operator to start it with a new home."
            )
    return Person(insert_row(conn, t.people, {"name": name, "joined_at": now}), name, now)


def _remove_idle_people(conn: Connection, now: float) -> None:
    """Make room: people who joined IDLE_S ago, have done nothing since and hold no pair have to join again."""
    tables = (t.votes, t.leases, t.project_people, t.blind_votes, t.tournament_answers)
    active = union(*(select(table.c.annotator) for table in tables))
    conn.execute(delete(t.people).where(t.people.c.joined_at < now - IDLE_S, t.people.c.name.not_in(active)))
