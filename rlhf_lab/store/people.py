"""People who entered with the join code or an account: one name each, and nobody else's."""

import time
from collections.abc import Collection

from sqlalchemy import Connection, func, insert, select

from rlhf_lab.errors import LabelError
from rlhf_lab.labelling import Person
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database

MAX_NAME = 60
MOST_PEOPLE = 5_000
#: How the names of those begin who came without one.
NEWCOMER = "visitor-"
#: What names of people never begin with: judges, programs, visitors without a name, accounts.
NOT_NAMES = ("judge:", "api:", NEWCOMER, "@")
#: Who came by the operator's link.
OPERATOR = "operator"


def join(db: Database, name: str, taken: Collection[str] = ()) -> Person:
    """A new person. A name that is taken, by somebody or on a vote, gets a number behind it: "Ann 2". So does one that differs
    in capitals alone, which nobody tells apart when it is read out (SQLite knows those of ASCII).

    taken: names that are somebody's besides.

    LabelError: no name, one that is too long, not to be seen or a judge's, or a lab that is full.
    """
    name = " ".join(name.split())
    unseen = next((letter for letter in name if not letter.isprintable()), "")
    if unseen:
        raise LabelError(f"The name holds a character that cannot be seen (U+{ord(unseen):04X}). Type the name anew.")
    if not name or len(name) > MAX_NAME or name.startswith(NOT_NAMES):
        raise LabelError(f"Choose a name of 1 to {MAX_NAME} characters that others will know you by.")
    p, v = t.people.c, t.votes.c
    with db.write() as conn:
        _require_room(conn)
        number, free = 1, name
        others = {one.casefold() for one in (OPERATOR, *taken)}
        while (
            free.casefold() in others
            or conn.execute(select(p.id).where(func.lower(p.name) == func.lower(free))).scalar() is not None
            or conn.execute(select(v.id).where(v.annotator == free).limit(1)).scalar() is not None
        ):
            number += 1
            free = f"{name} {number}"
        return _made(conn, free)


def account(db: Database, name: str) -> Person:
    """The person behind an account elsewhere, called "@name": the same at every sign-in, and nobody joins under that name.

    LabelError: no name or one that is too long, or a lab that is full.
    """
    name = f"@{name.strip()}"
    if not 1 < len(name) <= MAX_NAME or not name.isprintable():
        raise LabelError("The account has no name that can be used here. Enter with the join code.")
    with db.write() as conn:
        known = conn.execute(select(t.people).where(t.people.c.name == name)).first()
        if known is not None:
            return Person(known.id, known.name, known.joined_at)
        _require_room(conn)
        return _made(conn, name)


def joined_at(db: Database, name: str) -> float | None:
    """When somebody joined by a name; None where nobody of that name is here (any more)."""
    with db.read() as conn:
        return conn.execute(select(t.people.c.joined_at).where(t.people.c.name == name)).scalar()


def _require_room(conn: Connection) -> None:
    if conn.execute(select(func.count()).select_from(t.people)).scalar_one() >= MOST_PEOPLE:
        raise LabelError("This lab has as many people as it can hold. Ask its operator to begin a new home.")


def _made(conn: Connection, name: str) -> Person:
    now = time.time()
    made = conn.execute(insert(t.people).values(name=name, joined_at=now).returning(t.people.c.id)).scalar_one()
    return Person(made, name, now)
