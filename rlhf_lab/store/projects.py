"""Projects with their settings, prompts, completions and pairs."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    RowMapping,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from rlhf_lab.common.enums import ACTIVE_RUN_STATUSES, UNFINISHED_JOB_STATUSES
from rlhf_lab.common.program_names import lab_command
from rlhf_lab.common.records import (
    DEFAULT_MAX_NEW_TOKENS,
    NO_CHAT_SETTINGS,
    ChatSettings,
    Completion,
    NewCompletion,
    Pair,
    Project,
    Prompt,
)
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.errors import LabelError, NotFoundError, StoreError
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, in_chunks, insert_row

FIRST_COMPLETION = t.completions.alias("first")
#: `opened_at` of a project that was created without opening it; NULL means that its creation opened it.
NOT_OPENED = 0.0
SECOND_COMPLETION = t.completions.alias("second")
CURRENT_PROJECT_QUERY = (
    select(t.projects)
    .order_by(func.coalesce(t.projects.c.opened_at, t.projects.c.created_at).desc(), t.projects.c.id.desc())
    .limit(1)
)

_PAIRS_QUERY = (
    select(
        t.pairs.c.id, t.pairs.c.project_id, t.pairs.c.reason, t.prompts.c.text, t.prompts.c.split, FIRST_COMPLETION,
        SECOND_COMPLETION,
    )
    .join(FIRST_COMPLETION, FIRST_COMPLETION.c.id == t.pairs.c.first_id)
    .join(SECOND_COMPLETION, SECOND_COMPLETION.c.id == t.pairs.c.second_id)
    .join(t.prompts, t.prompts.c.id == FIRST_COMPLETION.c.prompt_id)
    .where(t.pairs.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(t.pairs.c.id)
)  # fmt: skip  # built once: see pair_leases
_LABELLING_QUERY = select(t.labelling.c.settings).where(t.labelling.c.project_id == bindparam("project_id"))


def live_pair_of(project_id: int) -> ColumnElement[bool]:
    """Condition for pairs of the project whose import was not undone."""
    return and_(t.pairs.c.project_id == project_id, t.pairs.c.taken_back_at.is_(None))


def create_project(  # noqa: PLR0913  one argument for each column that a caller chooses
    db: Database,
    name: str,
    model: str,
    model_hash: str,
    prompt_set: str,
    seed: int,
    prompts: list[tuple[str, str]],
    chat: ChatSettings = NO_CHAT_SETTINGS,
    *,
    opens: bool = True,
    temperature: float = 1.0,
    max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS,
    labelling: LabellingConfig | None = None,
) -> Project:
    """Create a project. prompts: (text, split), where split is "train" or "eval".

    opens: whether it becomes the current project; the first one of a home always does. labelling: None for the defaults.

    Of equal texts only the first is stored, because a prompt in both splits would leak evaluation data into training.
    """
    values: dict[str, Any] = {
        "name": name,
        "model": model,
        "model_hash": model_hash,
        "prompt_set": prompt_set,
        "seed": seed,
        "created_at": time.time(),
        "system_prompt": chat.system_prompt,
        "template_arguments": dict(chat.template_arguments),
        "temperature": temperature,
        "max_new_tokens": max_new_tokens,
    }
    splits: dict[str, str] = {}
    for text, split in prompts:
        splits.setdefault(text, split)
    with db.write() as conn:
        if not opens and conn.execute(select(t.projects.c.id).limit(1)).one_or_none() is not None:
            values["opened_at"] = NOT_OPENED
        project_id = insert_row(conn, t.projects, values)
        rows = [{"project_id": project_id, "text": text, "split": split} for text, split in splits.items()]
        if rows:
            conn.execute(insert(t.prompts), rows)
        if labelling is not None:
            conn.execute(insert(t.labelling).values(project_id=project_id, settings=labelling.to_dict()))
    return Project(id=project_id, **values)


def projects(db: Database) -> list[Project]:
    """Oldest first."""
    return [Project(**row._mapping) for row in db.fetch(select(t.projects).order_by(t.projects.c.id))]


def get_project(db: Database, project_id: int) -> Project:
    row = db.fetch(select(t.projects).where(t.projects.c.id == project_id)).one_or_none()
    if row is None:
        raise no_such_project(project_id)
    return Project(**row._mapping)


def current_project(db: Database) -> Project | None:
    """The project that was opened or created last, or None if there is none."""
    row = db.fetch(CURRENT_PROJECT_QUERY).one_or_none()
    return None if row is None else Project(**row._mapping)


def open_project(db: Database, project_id: int) -> None:
    """Make a project the current one, even if the clock was set back. Raises StoreError if there is no such project."""
    p = t.projects.c
    with db.write() as conn:
        latest = conn.execute(select(func.max(func.coalesce(p.opened_at, p.created_at)))).scalar() or 0.0
        now = max(time.time(), latest + 1e-3)
        if conn.execute(update(t.projects).where(p.id == project_id).values(opened_at=now)).rowcount == 0:
            raise no_such_project(project_id)


def rename_project(db: Database, project_id: int, name: str) -> None:
    """Rename a project. Raises StoreError if there is no such project."""
    _update_project(db, project_id, name=name)


def set_temperature(db: Database, project_id: int, temperature: float) -> None:
    """Change the temperature of texts that are sampled from now on. Raises StoreError if there is no such project."""
    _update_project(db, project_id, temperature=temperature)


def set_max_new_tokens(db: Database, project_id: int, max_new_tokens: int) -> None:
    """Change the longest length of texts that are sampled from now on. Raises StoreError if there is no such project."""
    _update_project(db, project_id, max_new_tokens=max_new_tokens)


def set_answer_settings(db: Database, project_id: int, max_new_tokens: int, system_prompt: str) -> None:
    """Change how texts are sampled from now on. The features of earlier texts, which depend on it, are computed again.

    Raises StoreError if there is no such project.
    """
    completions = select(t.completions.c.id).join(t.prompts, t.prompts.c.id == t.completions.c.prompt_id)
    completions = completions.where(t.prompts.c.project_id == project_id)
    with db.write() as conn:
        _update_project_row(conn, project_id, max_new_tokens=max_new_tokens, system_prompt=system_prompt)
        conn.execute(delete(t.features).where(t.features.c.completion_id.in_(completions)))


def replace_unlabelled_pairs(db: Database, project_id: int) -> int:
    """Withdraw the sampled pairs that nobody has labelled or has on screen, so that others are sampled; returns how many."""
    p, v, leases = t.pairs.c, t.votes.c, t.leases.c
    voted = select(v.id).where(v.pair_id == p.id, v.undone_at.is_(None)).exists()
    on_screen = select(leases.pair_id).where(leases.pair_id == p.id, leases.expires_at > time.time()).exists()
    unlabelled = and_(live_pair_of(project_id), p.import_id.is_(None), p.gold.is_(None), ~voted, ~on_screen)
    with db.write() as conn:
        return conn.execute(update(t.pairs).where(unlabelled).values(taken_back_at=time.time())).rowcount


def _update_project(db: Database, project_id: int, **values: Any) -> None:
    with db.write() as conn:
        _update_project_row(conn, project_id, **values)


def _update_project_row(conn: Connection, project_id: int, **values: Any) -> None:
    if conn.execute(update(t.projects).where(t.projects.c.id == project_id).values(values)).rowcount == 0:
        raise no_such_project(project_id)


def no_such_project(project_id: int) -> StoreError:
    return StoreError(f"There is no project {project_id}. `{lab_command()} doctor` shows the projects.")


def get_labelling_config(db: Database, project_id: int) -> LabellingConfig:
    """The labelling settings of a project; the defaults if none were set."""
    settings = db.fetch(_LABELLING_QUERY, {"project_id": project_id}).scalar()
    return LabellingConfig() if settings is None else LabellingConfig.from_dict(settings)


def set_labelling_config(db: Database, project_id: int, config: LabellingConfig) -> None:
    """Store the labelling settings of a project. Raises StoreError if there is no such project."""
    get_project(db, project_id)
    with db.write() as conn:
        conn.execute(delete(t.labelling).where(t.labelling.c.project_id == project_id))
        conn.execute(insert(t.labelling).values(project_id=project_id, settings=config.to_dict()))


def prompts(db: Database, project_id: int, split: str, *, include_labels_only: bool = False) -> list[Prompt]:
    """The prompts of a split for which texts are sampled, in order. include_labels_only: also those with
    imported labels only."""
    p = t.prompts.c
    condition = and_(p.project_id == project_id, p.split == split)
    condition = condition if include_labels_only else and_(condition, p.labels_only.is_(False))
    rows = db.fetch(select(p.id, p.project_id, p.text, p.split).where(condition).order_by(p.id))
    return [Prompt(*row) for row in rows]


def add_completions(db: Database, new_completions: Sequence[NewCompletion]) -> list[Completion]:
    rows: list[dict[str, Any]] = [
        {
            "prompt_id": item.prompt_id,
            "text": item.text,
            "token_ids": tuple(item.token_ids),
            "checkpoint": item.checkpoint,
            "seed": item.seed,
        }
        for item in new_completions
    ]
    if not rows:
        return []
    statement = insert(t.completions).returning(t.completions.c.id, sort_by_parameter_order=True)
    with db.write() as conn:
        now = time.time()
        ids = conn.execute(statement, [row | {"created_at": now} for row in rows]).scalars().all()
    return [Completion(**row, id=completion_id) for row, completion_id in zip(rows, ids, strict=True)]


def add_pairs(db: Database, project_id: int, new_pairs: Sequence[tuple[int, int, str]]) -> list[Pair]:
    """Add pairs of (first completion, second completion, reason).

    An existing pair of the two completions, in either order, is returned unchanged, so that an interrupted sampling job can be
    repeated. Raises LabelError unless the two are different completions of one prompt of this project.
    """
    with db.write() as conn:
        completion_ids = sorted({completion_id for pair in new_pairs for completion_id in pair[:2]})
        prompt_ids = _prompts_of(conn, project_id, completion_ids)
        pair_ids = _pairs_of(conn, completion_ids)
        rows: dict[frozenset[int], dict[str, Any]] = {}
        now = time.time()
        for first_id, second_id, reason in new_pairs:
            both = frozenset((first_id, second_id))
            if both in pair_ids or both in rows:
                continue
            prompt_id = prompt_ids.get(first_id)
            if first_id == second_id or prompt_id is None or prompt_id != prompt_ids.get(second_id):
                raise LabelError(
                    f"Completions {first_id} and {second_id} cannot be a pair: a pair is two different completions "
                    f"of one prompt of project {project_id}."
                )
            values = {"project_id": project_id, "first_id": first_id, "second_id": second_id, "reason": reason}
            rows[both] = values | {"created_at": now}
        if rows:
            statement = insert(t.pairs).returning(t.pairs.c.id, sort_by_parameter_order=True)
            pair_ids |= zip(rows, conn.execute(statement, list(rows.values())).scalars(), strict=True)
        ids = [pair_ids[frozenset(pair[:2])] for pair in new_pairs]
        pairs_by_id = {pair.id: pair for pair in load_pairs(conn, ids)}
    return [pairs_by_id[pair_id] for pair_id in ids]


def _prompts_of(conn: Connection, project_id: int, completion_ids: Sequence[int]) -> dict[int, int]:
    """{completion id: prompt id}; completions of other projects are left out."""
    c = t.completions.c
    query = select(c.id, c.prompt_id).join(t.prompts, t.prompts.c.id == c.prompt_id)
    query = query.where(t.prompts.c.project_id == project_id)
    return {
        completion_id: prompt_id
        for ids in in_chunks(completion_ids)
        for completion_id, prompt_id in conn.execute(query.where(c.id.in_(ids)))
    }


def _pairs_of(conn: Connection, completion_ids: Sequence[int]) -> dict[frozenset[int], int]:
    """{both completions: pair id} of the pairs whose first completion is given."""
    c = t.pairs.c
    query = select(c.first_id, c.second_id, c.id)
    return {
        frozenset((first_id, second_id)): pair_id
        for ids in in_chunks(completion_ids)
        for first_id, second_id, pair_id in conn.execute(query.where(c.first_id.in_(ids)))
    }


def count_pairs(db: Database, project_id: int) -> int:
    return db.fetch(select(func.count()).select_from(t.pairs).where(live_pair_of(project_id))).scalar_one()


def next_pair_index(db: Database, project_id: int) -> int:
    """The number of pairs, those that were replaced included: they keep their random numbers."""
    p = t.pairs.c
    query = select(func.count()).select_from(t.pairs)
    query = query.where(p.project_id == project_id, or_(p.taken_back_at.is_(None), p.import_id.is_(None)))
    return db.fetch(query).scalar_one()


def newest_pairs(db: Database, project_id: int, count: int, *conditions: ColumnElement[bool]) -> list[Pair]:
    """The newest `count` pairs of a project that meet the conditions, in ascending order of id."""
    query = select(t.pairs.c.id).where(live_pair_of(project_id), *conditions).order_by(t.pairs.c.id.desc()).limit(count)
    with db.read() as conn:
        return load_pairs(conn, list(conn.execute(query).scalars()))


def get_pair(db: Database, pair_id: int) -> Pair:
    with db.read() as conn:
        pairs = load_pairs(conn, [pair_id])
    if not pairs:
        raise NotFoundError(f"There is no pair {pair_id}.")
    return pairs[0]


def load_pairs(conn: Connection, ids: Sequence[int]) -> list[Pair]:
    """The pairs with these ids, in the order of ids; unknown ids are left out."""
    return [
        _pair_from_row(row._mapping)
        for chunk in in_chunks(sorted(set(ids)))
        for row in conn.execute(_PAIRS_QUERY, {"ids": chunk})
    ]


def _pair_from_row(row: RowMapping) -> Pair:
    return Pair(
        id=row[t.pairs.c.id],
        project_id=row[t.pairs.c.project_id],
        prompt=Prompt(
            id=row[FIRST_COMPLETION.c.prompt_id],
            project_id=row[t.pairs.c.project_id],
            text=row[t.prompts.c.text],
            split=row[t.prompts.c.split],
        ),
        first=_completion_from_row(row, FIRST_COMPLETION),
        second=_completion_from_row(row, SECOND_COMPLETION),
        reason=row[t.pairs.c.reason],
    )


def _completion_from_row(row: RowMapping, side: FromClause) -> Completion:
    return Completion(
        id=row[side.c.id],
        prompt_id=row[side.c.prompt_id],
        text=row[side.c.text],
        token_ids=tuple(row[side.c.token_ids]),
        checkpoint=row[side.c.checkpoint],
        seed=row[side.c.seed],
    )


@dataclass(frozen=True)
class RemovedProjectFiles:
    """Identifies the files of a deleted project: the ids of its runs, and the paths of its reward models below the home."""

    run_ids: list[int]
    reward_model_paths: list[str]


def delete_project(db: Database, project_id: int) -> RemovedProjectFiles:
    """Delete a project's rows: prompts, texts, pairs, votes, reward models, runs, jobs. The caller deletes its files.

    Raises StoreError if there is no such project, if it is open, or if one of its jobs or runs is active.
    """
    is_project = t.projects.c.id == project_id
    completion_ids = select(t.completions.c.id).join(t.prompts, t.prompts.c.id == t.completions.c.prompt_id)
    completion_ids = completion_ids.where(t.prompts.c.project_id == project_id)
    pair_ids = select(t.pairs.c.id).where(t.pairs.c.project_id == project_id)
    with db.write() as conn:
        if conn.execute(select(t.projects.c.id).where(is_project)).first() is None:
            raise no_such_project(project_id)
        if conn.execute(CURRENT_PROJECT_QUERY).one().id == project_id:
            raise StoreError("This project is open. Open another one, then delete this one.")
        open_jobs = select(t.jobs.c.id).where(
            t.jobs.c.project_id == project_id, t.jobs.c.status.in_(UNFINISHED_JOB_STATUSES)
        )
        active_runs = select(t.runs.c.id).where(
            t.runs.c.project_id == project_id, t.runs.c.status.in_(ACTIVE_RUN_STATUSES)
        )
        if conn.execute(open_jobs).first() is not None or conn.execute(active_runs).first() is not None:
            raise StoreError(
                f"Project {project_id} still has work in progress: stop its runs, or wait a moment, then delete it."
            )
        removed = RemovedProjectFiles(
            list(conn.execute(select(t.runs.c.id).where(t.runs.c.project_id == project_id)).scalars()),
            list(
                conn.execute(select(t.reward_models.c.path).where(t.reward_models.c.project_id == project_id)).scalars()
            ),
        )
        settings = (t.labelling, t.project_people)
        for table in (t.blind_tests, t.tournaments, t.jobs, t.runs, t.reward_models, *settings, t.imports):
            conn.execute(delete(table).where(table.c.project_id == project_id))
        for table in (t.votes, t.leases):
            conn.execute(delete(table).where(table.c.pair_id.in_(pair_ids)))
        conn.execute(delete(t.pairs).where(t.pairs.c.project_id == project_id))
        conn.execute(delete(t.completions).where(t.completions.c.id.in_(completion_ids)))
        conn.execute(delete(t.prompts).where(t.prompts.c.project_id == project_id))
        conn.execute(delete(t.projects).where(is_project))
    return removed
