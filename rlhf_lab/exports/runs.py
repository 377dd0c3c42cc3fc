"""A run's numbers, texts and story as files."""

import csv
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlhf_lab import __version__
from rlhf_lab.checkpoints import checkpoints
from rlhf_lab.exports.adapters import add_adapter
from rlhf_lab.exports.event_file import EventFile
from rlhf_lab.exports.staging import Stage, staging
from rlhf_lab.exports.words import portable, write_json, write_lines
from rlhf_lab.home import run_folder
from rlhf_lab.records import RewardModelRow, Run, Sample
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import get_project
from rlhf_lab.store.runs import events, get_reward_model, get_run
from rlhf_lab.store.steps import metrics_since, sample_steps, samples_at

_SPENT = ("time/rollout", "time/score", "time/update")


def export_run(db: Database, home: Path, run_id: int, out: Path, *, force: bool = False) -> list[Path]:
    """Everything of a run: metrics, samples, manifest, TensorBoard, and its newest adapter where there is one."""
    run = get_run(db, run_id)
    with staging(out, force=force) as stage:
        for add in (_add_metrics, _add_samples, _add_manifest, _add_tensorboard):
            add(stage, db, run)
        if checkpoints(run_folder(home, run_id)):
            add_adapter(stage, db, home, run, None)
    return stage.paths


def export_metrics(db: Database, run_id: int, out: Path, *, force: bool = False) -> Path:
    """CSV: step, then a column a metric by name; NaN and what a step has not is an empty field."""
    run = get_run(db, run_id)
    with staging(out, force=force) as stage:
        _add_metrics(stage, db, run)
    return stage.paths[0]


def export_samples(db: Database, run_id: int, out: Path, *, force: bool = False) -> Path:
    """JSON Lines: step, prompt, seed, text, score, gold; NaN is null. Step 0 is the base model."""
    run = get_run(db, run_id)
    with staging(out, force=force) as stage:
        _add_samples(stage, db, run)
    return stage.paths[0]


def export_manifest(db: Database, run_id: int, out: Path, *, force: bool = False) -> Path:
    """JSON: the run, its config, the machine, what people changed on the way, its reward model and the labels behind it."""
    run = get_run(db, run_id)
    with staging(out, force=force) as stage:
        _add_manifest(stage, db, run)
    return stage.paths[0]


def export_tensorboard(db: Database, run_id: int, out: Path, *, force: bool = False) -> Path:
    """An event file: every metric a scalar, every sample a text. `tensorboard --logdir OUT/tensorboard` shows it."""
    run = get_run(db, run_id)
    with staging(out, force=force) as stage:
        _add_tensorboard(stage, db, run)
    return stage.paths[0]


def _add_metrics(stage: Stage, db: Database, run: Run) -> None:
    steps = metrics_since(db, run.id, -1)
    names = sorted({name for _, metrics in steps for name in metrics})
    with stage.add(f"run-{run.id}-metrics.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step", *names])
        for step, metrics in steps:
            writer.writerow([step, *(_cell(metrics.get(name, math.nan)) for name in names)])


def _cell(value: float) -> str:
    return "" if math.isnan(value) else repr(value)


def _add_samples(stage: Stage, db: Database, run: Run) -> None:
    rows = ({"step": step} | dataclasses.asdict(sample) for step, sample in _samples(db, run.id))
    write_lines(stage.add(f"run-{run.id}-samples.jsonl"), rows)


def _samples(db: Database, run_id: int) -> Iterator[tuple[int, Sample]]:
    for step in sample_steps(db, run_id):
        for sample in samples_at(db, run_id, step):
            yield step, sample


def _add_manifest(stage: Stage, db: Database, run: Run) -> None:
    project = dataclasses.asdict(get_project(db, run.project_id))
    about = {
        "lab_version": __version__,
        "run": {name: getattr(run, name) for name in _OF_A_RUN},
        "config": run.config,
        "manifest": _portable_manifest(run.manifest),
        "events": [dataclasses.asdict(event) for event in events(db, run.id)],
        "project": project | {"model": portable(project["model"])},
        "reward_model": reward_model_facts(get_reward_model(db, run.reward_model_id)),
    }
    write_json(stage.add(f"run-{run.id}-manifest.json"), about)


_OF_A_RUN = ("id", "name", "status", "message", "step", "total_steps", "created_at", "updated_at")


def _portable_manifest(manifest: dict[str, Any]) -> dict[str, Any]:
    found = dict(manifest)
    if found.get("judge"):
        found["judge"] = portable(str(found["judge"]))
    machine = found.get("machine")
    if isinstance(machine, dict) and "backbone" in machine:
        found["machine"] = machine | {"backbone": portable(str(machine["backbone"]))}
    return found


def reward_model_facts(row: RewardModelRow) -> dict[str, Any]:
    return {
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


def _add_tensorboard(stage: Stage, db: Database, run: Run) -> None:
    """A step's wall time is the run's beginning plus what the steps until then took: pauses are not in it.

    The name is the run's own, so that a later export replaces the file: TensorBoard would show two as one tangled curve.
    """
    begun = run.created_at
    metrics, written = dict(metrics_since(db, run.id, -1)), _by_step(db, run.id)
    path = stage.add(f"tensorboard/run-{run.id}/events.out.tfevents.{int(begun)}.run-{run.id}")
    with path.open("wb") as file:
        now = begun
        told = EventFile(file, now)
        for step in sorted(metrics | written):
            found = metrics.get(step, {})
            now += sum(spent for name in _SPENT if math.isfinite(spent := found.get(name, 0.0)))
            if found:
                told.scalars(step, now, found)
            if step in written:
                told.texts(step, now, {f"samples/{i}": markdown(sample) for i, sample in enumerate(written[step])})


def _by_step(db: Database, run_id: int) -> dict[int, list[Sample]]:
    found: dict[int, list[Sample]] = {}
    for step, sample in _samples(db, run_id):
        found.setdefault(step, []).append(sample)
    return found


def markdown(sample: Sample) -> str:
    """Prompt and text as indented blocks, so that neither is read as Markdown or HTML."""
    gold = "" if sample.gold is None else f", gold {sample.gold:.3f}"
    return f"{_block(sample.prompt)}\n\n→ score {sample.score:.3f}{gold}, seed {sample.seed}\n\n{_block(sample.text)}"


def _block(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])
