"""A run's metrics, samples, token records and manifest as files."""

import csv
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlhf_lab import __version__
from rlhf_lab.common.checkpoint_index import checkpoint_steps
from rlhf_lab.common.paths import run_folder
from rlhf_lab.common.records import TRACKER_KEY, RewardModelRow, Run, Sample
from rlhf_lab.exporters.adapter_zip import add_adapter
from rlhf_lab.exporters.json_io import portable_name, write_json, write_json_lines
from rlhf_lab.exporters.output_folder import AtomicOutput, atomic_output
from rlhf_lab.rewards.terms import TERMS_KEY
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import get_project
from rlhf_lab.store.reward_models import reward_model_of
from rlhf_lab.store.run_metrics import metrics_since, sample_steps, samples_at, token_record_steps, token_records_at
from rlhf_lab.store.runs import events, get_run

_DURATION_METRICS = ("time/rollout", "time/score", "time/update")
_RUN_FIELDS = ("id", "name", "status", "message", "step", "total_steps", "created_at", "updated_at")


def export_run(db: Database, home: Path, run_id: int, out_dir: Path, *, force: bool = False) -> list[Path]:
    """Metrics, samples, token records, manifest and the newest adapter, if any, of a run."""
    run = get_run(db, run_id)
    with atomic_output(out_dir, force=force) as output:
        _add_metrics(output, db, run)
        _add_samples(output, db, run)
        _add_token_records(output, db, run)
        _add_manifest(output, db, run)
        if checkpoint_steps(run_folder(home, run_id)):
            add_adapter(output, db, home, run, None)
    return output.paths


def _add_metrics(output: AtomicOutput, db: Database, run: Run) -> None:
    """CSV: step, then one column per metric; NaN and missing values are empty fields."""
    steps = metrics_since(db, run.id, -1)
    names = sorted({name for _, metrics in steps for name in metrics})
    with output.add(f"run-{run.id}-metrics.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step", *names])
        for step, metrics in steps:
            values = (metrics.get(name, math.nan) for name in names)
            writer.writerow([step, *("" if math.isnan(value) else repr(value) for value in values)])


def _add_samples(output: AtomicOutput, db: Database, run: Run) -> None:
    """JSON Lines: step, prompt, seed, text, score, gold; NaN is null. Step 0 is the base model."""
    rows = ({"step": step} | dataclasses.asdict(sample) for step, sample in _iter_samples(db, run.id))
    write_json_lines(output.add(f"run-{run.id}-samples.jsonl"), rows)


def _add_token_records(output: AtomicOutput, db: Database, run: Run) -> None:
    """JSON Lines: step and the fields of a TokenRecord (docs/FORMATS.md), one recorded response a line; NaN is null."""
    rows = (
        {"step": step} | dataclasses.asdict(record)
        for step in token_record_steps(db, run.id)
        for record in token_records_at(db, run.id, step)
    )
    write_json_lines(output.add(f"run-{run.id}-tokens.jsonl"), rows)


def _iter_samples(db: Database, run_id: int) -> Iterator[tuple[int, Sample]]:
    for step in sample_steps(db, run_id):
        for sample in samples_at(db, run_id, step):
            yield step, sample


def _add_manifest(output: AtomicOutput, db: Database, run: Run) -> None:
    """JSON: the run, its config and environment, the changes during the run, its reward model and that model's labels."""
    project = dataclasses.asdict(get_project(db, run.project_id))
    document = {
        "lab_version": __version__,
        "run": {name: getattr(run, name) for name in _RUN_FIELDS},
        "config": run.config,
        "manifest": _portable_manifest(run.manifest),
        "events": [dataclasses.asdict(event) for event in events(db, run.id)],
        "project": project | {"model": portable_name(project["model"])},
        "reward_model": _reward_model_summary(reward_model_of(db, run.reward_model_id)),
    }
    write_json(output.add(f"run-{run.id}-manifest.json"), document)


def _portable_manifest(manifest: dict[str, Any]) -> dict[str, Any]:
    result = {name: value for name, value in manifest.items() if name != TRACKER_KEY}  # has folders of this machine
    if result.get("judge"):
        result["judge"] = portable_name(str(result["judge"]))
    if result.get(TERMS_KEY):
        result[TERMS_KEY] = [_portable_term(term) for term in result[TERMS_KEY]]
    machine = result.get("machine")
    if isinstance(machine, dict) and "backbone" in machine:
        result["machine"] = machine | {"backbone": portable_name(str(machine["backbone"]))}
    return result


def _portable_term(term: dict[str, Any]) -> dict[str, Any]:
    file = term["options"].get("file")
    return term if file is None else term | {"options": term["options"] | {"file": portable_name(str(file))}}


def _reward_model_summary(row: RewardModelRow | None) -> dict[str, Any] | None:
    return (
        None
        if row is None
        else {
            "id": row.id,
            "created_at": row.created_at,
            "config": row.config,
            "report": row.report,
            "labels": {
                "count": len(row.snapshot.vote_ids),
                "source": row.snapshot.source,
                "digest": row.snapshot.digest,
            },
        }
    )
