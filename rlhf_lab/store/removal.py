"""The end of a project: everything that belongs to it, in one transaction."""

from dataclasses import dataclass

from sqlalchemy import delete, select

from rlhf_lab.errors import StoreError
from rlhf_lab.kinds import GOING, OPEN
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import CURRENT, no_such_project


@dataclass(frozen=True)
class Removed:
    """What files a project leaves behind: the ids of its runs and the paths of its reward models, below the home."""

    runs: list[int]
    reward_models: list[str]


def delete_project(db: Database, project_id: int) -> Removed:
    """Delete a project's rows: prompts, texts, pairs, votes, reward models, runs, jobs. Its files are left to the caller.

    StoreError: there is none, it is the one that is open, or something of it is still going on.
    """
    project = t.projects.c.id == project_id
    texts = select(t.completions.c.id).join(t.prompts, t.prompts.c.id == t.completions.c.prompt_id)
    texts = texts.where(t.prompts.c.project_id == project_id)
    pairs = select(t.pairs.c.id).where(t.pairs.c.project_id == project_id)
    with db.write() as conn:
        if conn.execute(select(t.projects.c.id).where(project)).first() is None:
            raise no_such_project(project_id)
        if conn.execute(CURRENT).one().id == project_id:
            raise StoreError("This project is open. Open another one, then delete this one.")
        work = select(t.jobs.c.id).where(t.jobs.c.project_id == project_id, t.jobs.c.status.in_(OPEN))
        going = select(t.runs.c.id).where(t.runs.c.project_id == project_id, t.runs.c.status.in_(GOING))
        if conn.execute(work).first() is not None or conn.execute(going).first() is not None:
            raise StoreError(
                f"Something of project {project_id} is still going on: stop its runs, or wait a moment, and delete it then."
            )
        left = Removed(
            list(conn.execute(select(t.runs.c.id).where(t.runs.c.project_id == project_id)).scalars()),
            list(
                conn.execute(select(t.reward_models.c.path).where(t.reward_models.c.project_id == project_id)).scalars()
            ),
        )
        for table in (t.blind_tests, t.jobs, t.runs, t.reward_models, t.labelling, t.imports):
            conn.execute(delete(table).where(table.c.project_id == project_id))
        for table in (t.votes, t.leases):
            conn.execute(delete(table).where(table.c.pair_id.in_(pairs)))
        conn.execute(delete(t.pairs).where(t.pairs.c.project_id == project_id))
        conn.execute(delete(t.completions).where(t.completions.c.id.in_(texts)))
        conn.execute(delete(t.prompts).where(t.prompts.c.project_id == project_id))
        conn.execute(delete(t.projects).where(project))
    return left
