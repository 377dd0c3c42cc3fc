"""Erases a person: their name is removed from all rows, and their answers if that is requested.

Votes on which a reward model was trained are kept under the name of an anonymous visitor, because the model's labels refer to
them.
"""

import secrets
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import delete, func, or_, select, update

from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, Source
from rlhf_lab.common.records import REQUESTER_KEY
from rlhf_lab.errors import LabelError
from rlhf_lab.store import tables as t
from rlhf_lab.store.annotators import OPERATOR_NAME, VISITOR_PREFIX
from rlhf_lab.store.database import Database, in_chunks
from rlhf_lab.store.edited_answers import edits_by

ERASED_TEXT = "(erased)"


#: Writes the changed report of a reward model, whose path below the home is given, to its file.
ReportWriter = Callable[[str, dict[str, Any]], None]


def known_names(db: Database) -> list[str]:
    """The sorted names of all people who joined, voted, or answered a blind test or tournament.

    Without simulated judges and visitors without a name.
    """
    v, b, a = t.votes.c, t.blind_votes.c, t.tournament_answers.c
    with db.read() as conn:
        annotators = set(conn.execute(select(t.people.c.name)).scalars())
        annotators |= set(conn.execute(select(v.annotator).where(v.source == Source.HUMAN).distinct()).scalars())
        for answered in (b.annotator, a.annotator):
            annotators |= set(conn.execute(select(answered).distinct()).scalars())
    return sorted(name for name in annotators if not name.startswith(VISITOR_PREFIX) and name != OPERATOR_NAME)


def count_person_votes(db: Database, name: str) -> int:
    """How many votes a person cast, including undone ones. Raises LabelError if no one in the lab has this name."""
    _check_name_known(db, name)
    query = select(func.count()).select_from(t.votes).where(t.votes.c.annotator == name)
    return db.fetch(query).scalar_one()


def erase_person_rows(db: Database, name: str, *, votes: bool, write_report: ReportWriter = lambda *_: None) -> int:
    """Replace a person's name by that of an anonymous visitor, in all projects; returns how many votes they had. Sessions under
    the name end. If a report cannot be written, or the process ends, the rows are not changed, so it can be repeated.

    votes: also undo their votes, and delete the notes on these, the texts that they edited, and their answers in blind tests and
    tournaments. Votes of others on a deleted text are undone, so that nothing is trained on what stands in its place. Raises
    LabelError if no one in the lab has this name, or if an unfinished job names the person.
    """
    _check_name_known(db, name)
    placeholder = f"{VISITOR_PREFIX}{secrets.token_hex(6)}"
    v, b, a = t.votes.c, t.blind_votes.c, t.tournament_answers.c
    by_person = v.annotator == name
    with db.write() as conn:
        conn.execute(delete(t.people).where(t.people.c.name == name))
        for table in (t.leases, t.project_people):
            conn.execute(delete(table).where(table.c.annotator == name))
        conn.execute(delete(t.tournament_answers).where(a.annotator == name, a.choice.is_(None)))
        if votes:
            texts = [row.first_id for row in conn.execute(edits_by(name))]
            for ids in in_chunks(texts):
                has_text = or_(t.pairs.c.first_id.in_(ids), t.pairs.c.second_id.in_(ids))
                on_text = v.pair_id.in_(select(t.pairs.c.id).where(has_text))
                conn.execute(update(t.votes).where(on_text, v.undone_at.is_(None)).values(undone_at=time.time()))
                conn.execute(update(t.pairs).where(has_text).values(taken_back_at=time.time()))
                conn.execute(update(t.completions).where(t.completions.c.id.in_(ids)).values(text=ERASED_TEXT))
                conn.execute(delete(t.features).where(t.features.c.completion_id.in_(ids)))
            conn.execute(update(t.votes).where(by_person, v.undone_at.is_(None)).values(undone_at=time.time()))
            conn.execute(update(t.votes).where(by_person).values(note=""))
            conn.execute(delete(t.blind_votes).where(b.annotator == name))
            conn.execute(delete(t.tournament_answers).where(a.annotator == name))
        vote_count = conn.execute(update(t.votes).where(by_person).values(annotator=placeholder)).rowcount
        conn.execute(update(t.blind_votes).where(b.annotator == name).values(annotator=placeholder))
        conn.execute(update(t.tournament_answers).where(a.annotator == name).values(annotator=placeholder))
        conn.execute(update(t.imports).where(t.imports.c.who == name).values(who=""))
        reports = {}
        for model in conn.execute(select(t.reward_models.c.id, t.reward_models.c.path, t.reward_models.c.report)):
            if (new_report := _replace_name(model.report, name, placeholder)) != model.report:
                conn.execute(update(t.reward_models).where(t.reward_models.c.id == model.id).values(report=new_report))
                reports[model.path] = new_report
        for job in conn.execute(select(t.jobs.c.id, t.jobs.c.payload, t.jobs.c.status)):
            # Unfinished jobs can lose their requester, because the engine does not read it.
            payload = {key: value for key, value in job.payload.items() if (key, value) != (REQUESTER_KEY, name)}
            new_payload = _replace_name(payload, name, placeholder)
            if new_payload != job.payload:
                if new_payload != payload and job.status in UNFINISHED_JOB_STATUSES:
                    raise LabelError(
                        f"A reward model that names {name} is waiting to be trained. Wait until it is done."
                    )
                conn.execute(update(t.jobs).where(t.jobs.c.id == job.id).values(payload=new_payload))
        for path, new_report in reports.items():
            write_report(path, new_report)
    return vote_count


def _check_name_known(db: Database, name: str) -> None:
    if name not in known_names(db):
        raise LabelError(f'Nobody in this lab is called "{name}" (any more).')


def _replace_name(record: dict[str, Any], name: str, placeholder: str) -> dict[str, Any]:
    """A report or a job's payload, with the name replaced by the placeholder."""
    changed: dict[str, Any] = {}
    if isinstance(annotators := record.get("annotators"), list):
        changed["annotators"] = [placeholder if annotator == name else annotator for annotator in annotators]
    if isinstance(weights := record.get("weights"), dict):
        changed["weights"] = {placeholder if key == name else key: weight for key, weight in weights.items()}
    return record | changed
