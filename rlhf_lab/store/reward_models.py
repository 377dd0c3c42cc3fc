"""Trained reward models: their files, their reports, and the labels that they were trained on."""

import time
from typing import Any

from sqlalchemy import Select, func, select

from rlhf_lab.common.enums import Source
from rlhf_lab.common.records import LabelSnapshot, RewardModelRow
from rlhf_lab.errors import StoreError
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import AnyRow, Database, insert_row


def add_reward_model(
    db: Database,
    project_id: int,
    path: str,
    *,
    config: dict[str, Any],
    report: dict[str, Any],
    snapshot: LabelSnapshot,
) -> RewardModelRow:
    """Add a trained reward model. The row is never changed: retraining adds another one."""
    created_at = time.time()
    values = {
        "project_id": project_id,
        "path": path,
        "config": config,
        "report": report,
        "vote_ids": list(snapshot.vote_ids),
        "labels_digest": snapshot.digest,
        "source": snapshot.source,
        "vote_weights": list(snapshot.weights),
        "created_at": created_at,
    }
    with db.write() as conn:
        reward_model_id = insert_row(conn, t.reward_models, values)
    return RewardModelRow(reward_model_id, project_id, path, config, report, snapshot, created_at)


def reward_models(db: Database, project_id: int) -> list[RewardModelRow]:
    """The reward models of a project, newest first."""
    return [_reward_model_from_row(row) for row in db.fetch(_newest_reward_models(project_id))]


def count_reward_models(db: Database, project_id: int) -> int:
    query = select(func.count()).select_from(t.reward_models).where(t.reward_models.c.project_id == project_id)
    return db.fetch(query).scalar_one()


def get_reward_model(db: Database, reward_model_id: int) -> RewardModelRow:
    row = db.fetch(select(t.reward_models).where(t.reward_models.c.id == reward_model_id)).one_or_none()
    if row is None:
        raise StoreError(f"There is no reward model {reward_model_id}. Train one first.")
    return _reward_model_from_row(row)


def reward_model_of(db: Database, reward_model_id: int | None) -> RewardModelRow | None:
    """The reward model of a run; None for a run whose reward consists of other terms only."""
    return None if reward_model_id is None else get_reward_model(db, reward_model_id)


def latest_reward_model(db: Database, project_id: int, source: Source | None = None) -> RewardModelRow | None:
    """The newest reward model of a project, or None. source: of its labels; None means any."""
    query = _newest_reward_models(project_id).limit(1)
    if source is not None:
        query = query.where(t.reward_models.c.source == source)
    row = db.fetch(query).one_or_none()
    return None if row is None else _reward_model_from_row(row)


def _newest_reward_models(project_id: int) -> Select[*tuple[Any, ...]]:
    in_project = t.reward_models.c.project_id == project_id
    return select(t.reward_models).where(in_project).order_by(t.reward_models.c.id.desc())


def _reward_model_from_row(row: AnyRow) -> RewardModelRow:
    return RewardModelRow(
        id=row.id,
        project_id=row.project_id,
        path=row.path,
        config=row.config,
        report=row.report,
        snapshot=LabelSnapshot(tuple(row.vote_ids), row.labels_digest, row.source, tuple(row.vote_weights)),
        created_at=row.created_at,
    )
