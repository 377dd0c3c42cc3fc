"""The records of each step of a run: metrics, samples, and the tokens of a few rollout rows."""

import dataclasses
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Table, delete, func, insert, select

from rlhf_lab.common.curves import Point, downsample
from rlhf_lab.common.enums import RunStatus
from rlhf_lab.common.records import MADE_ELSEWHERE, Sample, StepResult, TokenRecord
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, insert_row
from rlhf_lab.store.runs import update_run

ROWS_PER_INSERT = 10_000


def record_step(db: Database, run_id: int, result: StepResult) -> None:
    """Store the records of one step in one transaction. After a resume, an earlier record of the step is replaced.

    Raises StoreError if there is no such run.
    """
    rows: dict[Table, list[dict[str, Any]]] = {
        t.metrics: [{"name": name, "value": nan_to_null(value)} for name, value in result.metrics.items()],
        t.token_records: [
            {"position": i, "record": dataclasses.asdict(record)} for i, record in enumerate(result.tokens)
        ],
        t.samples: [
            {
                "position": i,
                "prompt": sample.prompt,
                "seed": sample.seed,
                "text": sample.text,
                "score": nan_to_null(sample.score),
                "gold": nan_to_null(sample.gold),
                "cut": sample.cut,
            }
            for i, sample in enumerate(result.samples)
        ],
    }
    with db.write() as conn:
        update_run(conn, run_id, step=result.step)
        for table, values in rows.items():
            # A range, because for step = ? newer SQLite versions (3.46, 3.53) ignore the index and read all rows of the run.
            conn.execute(delete(table).where(table.c.run_id == run_id, table.c.step.between(result.step, result.step)))
            if values:
                conn.execute(insert(table), [{"run_id": run_id, "step": result.step, **value} for value in values])


def add_outside_run(
    db: Database, project_id: int, name: str, source: Mapping[str, Any], steps: Mapping[int, Mapping[str, float]]
) -> int:
    """Store the metrics of a run that was made elsewhere, in one transaction; returns its id.

    source: `file` and `sha256` of the metrics. steps: not empty.
    """
    now, last = time.time(), max(steps)
    run = {
        "project_id": project_id, "name": name, "status": RunStatus.DONE, "config": {}, "step": last, "total_steps": last,
        "manifest": {MADE_ELSEWHERE: dict(source)}, "message": "", "created_at": now, "updated_at": now,
    }  # fmt: skip
    rows = (
        {"name": metric, "step": step, "value": nan_to_null(value)}
        for step, metrics in steps.items()
        for metric, value in metrics.items()
    )
    with db.write() as conn:
        run_id = insert_row(conn, t.runs, run)
        while chunk := [{"run_id": run_id, **row} for row in itertools.islice(rows, ROWS_PER_INSERT)]:
            conn.execute(insert(t.metrics), chunk)
    return run_id


def delete_steps_after(db: Database, run_id: int, step: int) -> None:
    """Delete all later steps, because the run resumes from an older checkpoint.

    Events are kept: those applied after `step` are replayed, each at its applied_step.
    """
    with db.write() as conn:
        update_run(conn, run_id, step=step)
        for table in (t.metrics, t.samples, t.token_records):
            conn.execute(delete(table).where(table.c.run_id == run_id, table.c.step > step))


def metrics_since(db: Database, run_id: int, after_step: int) -> list[tuple[int, dict[str, float]]]:
    """All metrics of all steps after `after_step` (-1: from the beginning), in order of steps."""
    m = t.metrics.c
    query = select(m.step, m.name, m.value).where(m.run_id == run_id, m.step > after_step).order_by(m.step, m.name)
    steps: dict[int, dict[str, float]] = {}
    for step, name, value in db.fetch(query):
        steps.setdefault(step, {})[name] = null_to_nan(value)
    return list(steps.items())


def metric_at(db: Database, run_id: int, step: int, name: str) -> float | None:
    """A metric of one step, or None if it was not recorded."""
    m = t.metrics.c
    query = select(m.value).where(m.run_id == run_id, m.step == step, m.name == name)
    values = list(db.fetch(query).scalars())
    return null_to_nan(values[0]) if values else None


def metric_series(
    db: Database, run_id: int, names: Sequence[str], after_step: int = -1, max_points: int = 1000
) -> dict[str, list[Point]]:
    """One curve per name after `after_step`, downsampled to max_points (at least 4) such that peaks and the end are kept."""
    m = t.metrics.c
    curves: dict[str, list[Point]] = {name: [] for name in names}
    query = (
        select(m.name, m.step, m.value)
        .where(m.run_id == run_id, m.name.in_(names), m.step > after_step)
        .order_by(m.name, m.step)
    )
    for name, step, value in db.fetch(query):
        curves[name].append((step, null_to_nan(value)))
    return {name: downsample(points, max_points) for name, points in curves.items()}


def metric_names(db: Database, run_id: int, *, of_all_steps: bool = False) -> list[str]:
    """The sorted names of the metrics recorded at the first or newest step; offline methods do not measure all at each step.

    of_all_steps: reads all rows of the run.
    """
    m = t.metrics.c
    if of_all_steps:
        with db.read() as conn:
            return list(conn.execute(select(m.name).where(m.run_id == run_id).distinct().order_by(m.name)).scalars())
    first, newest = (select(end(m.step)).where(m.run_id == run_id).scalar_subquery() for end in (func.min, func.max))
    query = select(m.name).where(m.run_id == run_id, m.step.in_((first, newest))).distinct().order_by(m.name)
    return list(db.fetch(query).scalars())


def sample_steps(db: Database, run_id: int) -> list[int]:
    """The steps that have samples, in order."""
    return _steps_of(db, run_id, t.samples)


def samples_at(db: Database, run_id: int, step: int) -> list[Sample]:
    """The samples of one step, in the order they were recorded."""
    s = t.samples.c
    columns = (s.prompt, s.seed, s.text, s.score, s.gold, s.cut)
    query = select(*columns).where(s.run_id == run_id, s.step == step).order_by(s.position)
    return [
        Sample(row.prompt, row.seed, row.text, null_to_nan(row.score), row.gold, row.cut) for row in db.fetch(query)
    ]


def token_record_steps(db: Database, run_id: int) -> list[int]:
    """The steps with recorded rollout rows, in order."""
    return _steps_of(db, run_id, t.token_records)


def _steps_of(db: Database, run_id: int, table: Table) -> list[int]:
    step = table.c.step
    return list(db.fetch(select(step).where(table.c.run_id == run_id).distinct().order_by(step)).scalars())


def token_records_at(db: Database, run_id: int, step: int) -> list[TokenRecord]:
    """The recorded rollout rows of one step, in order."""
    r = t.token_records.c
    query = select(r.record).where(r.run_id == run_id, r.step == step).order_by(r.position)
    return [TokenRecord.from_stored(record) for record in db.fetch(query).scalars()]


def nan_to_null(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(value)


def null_to_nan(value: float | None) -> float:
    return math.nan if value is None else value
