"""The operator's decisions about people of a project: who is an expert, and since when their gold answers count."""

import time
from typing import Any

from sqlalchemy import insert, select, update

from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database


def experts(db: Database, project_id: int) -> list[str]:
    """The names of a project's experts, who decide disputed pairs and choose gold pairs."""
    p = t.project_people.c
    query = select(p.annotator).where(p.project_id == project_id, p.is_expert.is_(True)).order_by(p.annotator)
    return list(db.fetch(query).scalars())


def set_expert(db: Database, project_id: int, annotator: str, is_expert: bool) -> None:
    _set(db, project_id, annotator, is_expert=is_expert)


def end_pause(db: Database, project_id: int, annotator: str) -> None:
    """Reset a person's gold figures: earlier gold answers no longer count."""
    _set(db, project_id, annotator, gold_since=time.time())


def _set(db: Database, project_id: int, annotator: str, **values: Any) -> None:
    p = t.project_people.c
    with db.write() as conn:
        changed = update(t.project_people).where(p.project_id == project_id, p.annotator == annotator).values(**values)
        if conn.execute(changed).rowcount == 0:
            conn.execute(insert(t.project_people).values(project_id=project_id, annotator=annotator, **values))
