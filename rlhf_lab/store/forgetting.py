"""Who wants to be out of a lab: their name goes from every row that holds it, and with it, if they like, what they said.

What a reward model learnt from stays as rows, by a visitor without a name: it could not be looked at again otherwise.
"""

import secrets
import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func, select, update

from rlhf_lab.errors import LabelError
from rlhf_lab.kinds import OPEN, Source
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database
from rlhf_lab.store.people import NEWCOMER, OPERATOR


@dataclass(frozen=True)
class Forgotten:
    """votes: how many of theirs there were. reports: of reward models that named them, by the model's path below the home."""

    votes: int
    reports: dict[str, dict[str, Any]]


def names(db: Database) -> list[str]:
    """Whom this lab knows by name: who joined, and who voted or judged in a blind test; no judges, no visitors without one."""
    v, b = t.votes.c, t.blind_votes.c
    with db.read() as conn:
        found = set(conn.execute(select(t.people.c.name)).scalars())
        found |= set(conn.execute(select(v.annotator).where(v.source == Source.HUMAN).distinct()).scalars())
        found |= set(conn.execute(select(b.annotator).distinct()).scalars())
    return sorted(name for name in found if not name.startswith(NEWCOMER) and name != OPERATOR)


def known(db: Database, name: str) -> int:
    """How many votes somebody gave, those they took back among them. LabelError: nobody here has this name."""
    _check_known(db, name)
    with db.read() as conn:
        mine = select(func.count()).select_from(t.votes).where(t.votes.c.annotator == name)
        return conn.execute(mine).scalar_one()


def forget(db: Database, name: str, *, votes: bool) -> Forgotten:
    """Put a visitor without a name in somebody's place, in every project. Whoever entered by the name has to enter again.

    votes: also take their votes back, delete the notes on them and what they said in blind tests.

    LabelError: nobody here has this name, or work that is under way was asked for by it.
    """
    _check_known(db, name)
    nobody = f"{NEWCOMER}{secrets.token_hex(6)}"
    v, b = t.votes.c, t.blind_votes.c
    mine = v.annotator == name
    with db.write() as conn:
        conn.execute(delete(t.people).where(t.people.c.name == name))
        conn.execute(delete(t.leases).where(t.leases.c.annotator == name))
        if votes:
            conn.execute(update(t.votes).where(mine, v.undone_at.is_(None)).values(undone_at=time.time()))
            conn.execute(update(t.votes).where(mine).values(note=""))
            conn.execute(delete(t.blind_votes).where(b.annotator == name))
        moved = conn.execute(update(t.votes).where(mine).values(annotator=nobody)).rowcount
        conn.execute(update(t.blind_votes).where(b.annotator == name).values(annotator=nobody))
        conn.execute(update(t.imports).where(t.imports.c.who == name).values(who=""))
        reports = {}
        for model in conn.execute(select(t.reward_models.c.id, t.reward_models.c.path, t.reward_models.c.report)):
            if (told := _without(model.report, name, nobody)) != model.report:
                conn.execute(update(t.reward_models).where(t.reward_models.c.id == model.id).values(report=told))
                reports[model.path] = told
        for job in conn.execute(select(t.jobs.c.id, t.jobs.c.payload, t.jobs.c.status)):
            if (asked := _without(job.payload, name, nobody)) != job.payload:
                if job.status in OPEN:
                    raise LabelError(f"A reward model is asked for that names {name}. Wait until it is there.")
                conn.execute(update(t.jobs).where(t.jobs.c.id == job.id).values(payload=asked))
    return Forgotten(moved, reports)


def _check_known(db: Database, name: str) -> None:
    if name not in names(db):
        raise LabelError(f'Nobody here is called "{name}" (any more).')


def _without(said: dict[str, Any], name: str, nobody: str) -> dict[str, Any]:
    """What a report or a job says of whose labels it learnt from, with another name in one's place."""
    changed: dict[str, Any] = {}
    if isinstance(asked := said.get("annotators"), list):
        changed["annotators"] = [nobody if one == name else one for one in asked]
    if isinstance(weights := said.get("weights"), dict):
        changed["weights"] = {nobody if one == name else one: weight for one, weight in weights.items()}
    return said | changed
