"""Tournaments: people compare texts of several models in pairs, blind. The texts are in the result of the tournament's job.

A pair on a person's screen is a row without a choice; it is leased to them for LEASE_S seconds.
"""

import time
from collections.abc import Callable, Sequence

from sqlalchemy import ColumnElement, Connection, and_, delete, select, update

from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, Choice, JobStatus
from rlhf_lab.common.records import PairKey, Tournament, TournamentAnswer
from rlhf_lab.errors import StaleVoteError, StoreError
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, insert_row

LEASE_S = 600.0

#: (answers, time before which leases have expired) -> the next pair of a person, or None.
PairChooser = Callable[[Sequence[TournamentAnswer], float], PairKey | None]


def add_tournament(db: Database, project_id: int, job_id: int) -> Tournament:
    now = time.time()
    values = {"project_id": project_id, "job_id": job_id, "created_at": now}
    with db.write() as conn:
        return Tournament(insert_row(conn, t.tournaments, values), project_id, job_id, now)


def tournaments(db: Database, project_id: int) -> list[Tournament]:
    """The project's tournaments, newest first."""
    c = t.tournaments.c
    query = select(t.tournaments).where(c.project_id == project_id).order_by(c.id.desc())
    return [Tournament(**row._mapping) for row in db.fetch(query)]


def delete_tournament(db: Database, tournament_id: int) -> None:
    """Delete a tournament with its answers and texts.

    An unfinished job is cancelled and not deleted, because the engine may be working on it. Raises StoreError if there is no such
    tournament.
    """
    j = t.jobs.c
    with db.write() as conn:
        job_id = _job_id(conn, tournament_id)
        conn.execute(delete(t.tournaments).where(t.tournaments.c.id == tournament_id))
        conn.execute(delete(t.jobs).where(j.id == job_id, j.status.not_in(UNFINISHED_JOB_STATUSES)))
        cancelled = {"status": JobStatus.CANCELLED, "eta_s": None, "updated_at": time.time()}
        conn.execute(update(t.jobs).where(j.id == job_id).values(**cancelled))


def tournament_answers(db: Database, tournament_id: int) -> list[TournamentAnswer]:
    """All answers and leased pairs, in chronological order."""
    with db.read() as conn:
        return _answers(conn, tournament_id)


def lease_tournament_pair(
    db: Database, tournament_id: int, annotator: str, choose: PairChooser, *, now: float | None = None
) -> PairKey | None:
    """The pair on this person's screen; if there is none, the one that `choose` returns is leased to them. One transaction.

    Raises StoreError if there is no such tournament.
    """
    now = time.time() if now is None else now
    with db.write() as conn:
        _job_id(conn, tournament_id)
        answers = _answers(conn, tournament_id)
        key = next((answer.key for answer in answers if answer.annotator == annotator and answer.choice is None), None)
        if key is not None:
            conn.execute(
                update(t.tournament_answers).where(_is_row(tournament_id, annotator, key)).values(created_at=now)
            )
            return key
        key = choose(answers, now - LEASE_S)
        if key is not None:
            values = {"tournament_id": tournament_id, "annotator": annotator, "created_at": now, **key._asdict()}
            conn.execute(t.tournament_answers.insert().values(**values))
        return key


def answer_tournament_pair(db: Database, tournament_id: int, annotator: str, key: PairKey, choice: Choice) -> None:
    """Store an answer to the pair on this person's screen. Raises StaleVoteError if that is another pair or already answered."""
    open_row = (_is_row(tournament_id, annotator, key), t.tournament_answers.c.choice.is_(None))
    with db.write() as conn:
        change = update(t.tournament_answers).where(*open_row).values(choice=choice, created_at=time.time())
        if conn.execute(change).rowcount != 1:
            raise StaleVoteError(
                "That pair has already been judged, or the tournament was deleted. Nothing was recorded."
            )


def withdraw_tournament_pair(db: Database, tournament_id: int, annotator: str, key: PairKey) -> None:
    """Take a pair without an answer from this person's screen."""
    with db.write() as conn:
        conn.execute(
            delete(t.tournament_answers).where(
                _is_row(tournament_id, annotator, key), t.tournament_answers.c.choice.is_(None)
            )
        )


def _is_row(tournament_id: int, annotator: str, key: PairKey) -> ColumnElement[bool]:
    c = t.tournament_answers.c
    is_persons = and_(c.tournament_id == tournament_id, c.annotator == annotator)
    return and_(is_persons, c.position == key.position, c.first == key.first, c.second == key.second)


def _answers(conn: Connection, tournament_id: int) -> list[TournamentAnswer]:
    c = t.tournament_answers.c
    query = select(c.annotator, c.position, c.first, c.second, c.choice, c.created_at)
    query = query.where(c.tournament_id == tournament_id).order_by(c.created_at)
    return [TournamentAnswer(**row._mapping) for row in conn.execute(query)]


def _job_id(conn: Connection, tournament_id: int) -> int:
    job_id = conn.execute(select(t.tournaments.c.job_id).where(t.tournaments.c.id == tournament_id)).scalar()
    if job_id is None:
        raise StoreError(f"There is no tournament {tournament_id}. Reload the page.")
    return int(job_id)
