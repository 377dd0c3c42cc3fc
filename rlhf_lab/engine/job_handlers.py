"""What the engine does for a job, except policy runs: sample pairs, train a reward model, complete and explain texts.

The command line's `demo` calls the same functions in its own process.
"""

import dataclasses
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError

from rlhf_lab.common.curves import downsample_values
from rlhf_lab.common.enums import Source
from rlhf_lab.common.progress import ProgressCallback, no_progress
from rlhf_lab.common.records import Comparison, Job, LabelSnapshot, Project, RewardModelRow
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.engine.completions import complete, explain, reference_samples
from rlhf_lab.engine.label_preparation import check_has_labels, prepare_labels
from rlhf_lab.engine.model_cache import REWARD_MODELS_FOLDER, ModelCache
from rlhf_lab.engine.pair_sampling import sample_pairs, score_pairs
from rlhf_lab.errors import TrainingError
from rlhf_lab.models.oom import free_memory, is_out_of_memory
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.store.label_snapshots import snapshot_labels
from rlhf_lab.store.projects import get_project
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.reward_scores import add_scores, unjudged_pairs
from rlhf_lab.training.reward.report import RewardReport
from rlhf_lab.training.reward.trainer import train_reward

__all__ = [
    "JobProgressCallback",
    "complete",
    "explain",
    "no_job_progress",
    "pairs_job",
    "reference_samples",
    "reward_job",
    "sample_pairs",
    "train_reward_model",
]

#: progress(share done, seconds left or None, what is known so far)
JobProgressCallback = Callable[[float, float | None, dict[str, Any]], None]
MAX_SCORED_PAIRS = 400  # the newest pairs without a person's vote that a new reward model scores beforehand
MAX_LOSS_POINTS = 300
REWARD_SLOT = "reward training"


def no_job_progress(fraction: float, eta_s: float | None, partial_result: dict[str, Any]) -> None:
    return None


class TrainedReward(NamedTuple):
    """A fitted reward model, the config it was trained with, its labels, how many of them were cut, and what it says of the
    texts (completion ids) of the pairs nobody has judged."""

    model: RewardModel
    report: RewardReport
    config: RewardConfig
    label_snapshot: LabelSnapshot
    truncated_count: int
    scores: dict[int, float]


def pairs_job(
    model_cache: ModelCache, project: Project, payload: dict[str, Any], *, on_progress: ProgressCallback = no_progress
) -> dict[str, object]:
    """Write the pairs that a SAMPLE_PAIRS job asks for. Result: pair_ids, note (what a person should know of it, or "")."""
    notes: list[str] = []
    pairs = sample_pairs(
        model_cache, project, int(payload["count"]), checkpoint=str(payload.get("checkpoint", "base")),
        max_new_tokens=payload.get("max_new_tokens"), sampling=str(payload.get("sampling", "random")), on_note=notes.append,
        on_progress=on_progress,
    )  # fmt: skip
    return {"pair_ids": [pair.id for pair in pairs], "note": "; ".join(notes)}


def reward_job(
    model_cache: ModelCache,
    job: Job,
    *,
    report_progress: JobProgressCallback = no_job_progress,
    on_progress: ProgressCallback = no_progress,
) -> dict[str, object]:
    """What a TRAIN_REWARD job asks for, and its result. A process that does not lead takes its part, and stores nothing."""
    assert job.project_id is not None
    project, payload = get_project(model_cache.db, job.project_id), job.payload
    config, source = RewardConfig.from_dict(payload.get("config", {})), Source(payload["source"])
    annotators, weights = payload.get("annotators"), payload.get("weights")
    if not model_cache.distributed.is_main_process:
        fit_reward_model(model_cache, project, config, source, annotators=annotators, weights=weights)
        return {}
    row = train_reward_model(
        model_cache,
        project,
        config,
        source,
        annotators=annotators,
        weights=weights,
        report_progress=report_progress,
        on_progress=on_progress,
    )
    return {"reward_model_id": row.id, "accuracy": row.report["accuracy"]}


def train_reward_model(
    model_cache: ModelCache,
    project: Project,
    config: RewardConfig,
    source: Source,
    *,
    annotators: list[str] | None = None,
    weights: dict[str, int] | None = None,
    report_progress: JobProgressCallback = no_job_progress,
    on_progress: ProgressCallback = no_progress,
) -> RewardModelRow:
    """Pin the labels of one source, train on them, and store the result as a new, immutable reward model.

    annotators: only these people's; weights: how often a label of theirs counts, 1 where nothing is said.
    It then scores the pairs nobody has judged yet. Memory too small: half the batch, until one pair does not fit.
    """
    _, adapters = model_cache.load_project(project)
    start_time = time.monotonic()
    try:
        model, report, config, label_snapshot, truncated_count, scores = fit_reward_model(
            model_cache,
            project,
            config,
            source,
            annotators=annotators,
            weights=weights,
            report_progress=report_progress,
            on_progress=on_progress,
        )
        report_data = dataclasses.asdict(report) | {
            "seconds": time.monotonic() - start_time,
            "source": source.value,
            "cut": truncated_count,
        }
        report_data |= {"annotators": annotators, "weights": weights or {}} if annotators or weights else {}
        folder = _save_reward_model(model_cache.home, model, config, report_data)
    finally:
        adapters.remove(REWARD_SLOT)
    name = folder.relative_to(model_cache.home).as_posix()
    try:
        row = add_reward_model(
            model_cache.db, project.id, name, config=config.to_dict(), report=report_data, snapshot=label_snapshot
        )
    except Exception:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    add_scores(model_cache.db, row.id, scores)
    return row


def fit_reward_model(
    model_cache: ModelCache,
    project: Project,
    config: RewardConfig,
    source: Source,
    *,
    annotators: list[str] | None = None,
    weights: dict[str, int] | None = None,
    report_progress: JobProgressCallback = no_job_progress,
    on_progress: ProgressCallback = no_progress,
) -> TrainedReward:
    """Pin the labels and train on them: what every process of the lab's group does, on the labels of the leading one."""
    backbone, _ = model_cache.load_project(project)
    label_snapshot = model_cache.distributed.broadcast(snapshot_labels(model_cache.db, project.id, source, annotators))
    check_has_labels(model_cache.db, project.id, label_snapshot, annotators)
    labels, truncated_count = prepare_labels(model_cache.db, label_snapshot, backbone, weights or {})
    model, report, config = _fit_with_oom_retry(
        model_cache,
        project,
        labels,
        config,
        _FitProgressReporter(report_progress, _truncation_note(truncated_count)),
        on_progress,
    )
    pairs = model_cache.distributed.broadcast(unjudged_pairs(model_cache.db, project.id, MAX_SCORED_PAIRS))
    return TrainedReward(model, report, config, label_snapshot, truncated_count, score_pairs(model, pairs, on_progress))


def _fit_with_oom_retry(
    model_cache: ModelCache,
    project: Project,
    labels: list[Comparison],
    config: RewardConfig,
    reporter: "_FitProgressReporter",
    on_progress: ProgressCallback,
) -> tuple[RewardModel, RewardReport, RewardConfig]:
    """Train; again with half the batch where memory runs out. Returns the config that was trained with.

    Of several processes only some may lack memory, so there it is an error.
    """
    _, adapters = model_cache.load_project(project)
    reference = reference_samples(model_cache, project, on_progress)
    while True:
        try:
            model, report = train_reward(
                adapters,
                labels,
                reference,
                config,
                adapter=REWARD_SLOT,
                on_update=reporter.on_update,
                on_progress=on_progress,
                distributed=model_cache.distributed,
            )
            return model, report, config
        except RuntimeError as error:
            if not is_out_of_memory(error) or config.batch_size == 1 or model_cache.distributed.world_size > 1:
                raise
        config = config.replace(batch_size=max(1, min(config.batch_size, len(labels)) // 2))
        reporter.restart(f"memory ran out; trained again with batch_size {config.batch_size}")
        free_memory(adapters.backbone)


def _truncation_note(truncated_count: int) -> str:
    return f"{truncated_count} labels are longer than the model reads and are cut" if truncated_count else ""


class _FitProgressReporter:
    """Turns what the trainer says into progress: share, seconds left, and the losses of the fit that goes on."""

    def __init__(self, report_progress: JobProgressCallback, note: str = "") -> None:
        self.report_progress = report_progress
        self.restart(note)

    def restart(self, note: str) -> None:
        self.start_time, self.start_update, self.stage, self.note = 0.0, 0, "", note
        self.losses: list[float] = []

    def on_update(self, updates_done: int, total_updates: int, loss: float, stage: str) -> None:
        if stage != self.stage:
            self.stage, self.losses = stage, []
        self.losses.append(loss)
        now = time.monotonic()
        eta_s: float | None = None
        if not self.start_update:  # what comes before it, the reference's texts above all, is not done once an update
            self.start_time, self.start_update = now, updates_done
        elif updates_done > self.start_update:
            eta_s = (now - self.start_time) / (updates_done - self.start_update) * (total_updates - updates_done)
        partial_result: dict[str, Any] = {"loss": downsample_values(self.losses, MAX_LOSS_POINTS), "stage": stage}
        self.report_progress(
            updates_done / total_updates, eta_s, partial_result | ({"note": self.note} if self.note else {})
        )


def _save_reward_model(home: Path, model: RewardModel, config: RewardConfig, report_data: dict[str, Any]) -> Path:
    """Write a reward model's folder, whole or not at all. Raises TrainingError when the disk is full."""
    folder = (
        home / REWARD_MODELS_FOLDER / f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{time.time_ns() % 10**6:06d}"
    )
    temp_folder = folder.with_name(f".building-{folder.name}")
    for stale_folder in folder.parent.glob(".building-*"):  # one engine, one training: nobody else builds here
        shutil.rmtree(stale_folder, ignore_errors=True)
    try:
        model.save(temp_folder)
        (temp_folder / "report.json").write_text(json.dumps(report_data, indent=1), encoding="utf-8")
        (temp_folder / "config.json").write_text(json.dumps(config.to_dict(), indent=1), encoding="utf-8")
        temp_folder.rename(folder)
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk as an error of its own
        shutil.rmtree(temp_folder, ignore_errors=True)
        raise TrainingError(
            f"the reward model could not be written to {folder.parent} ({error}). Free some disk space and train it again: "
            "the labels are untouched."
        ) from error
    return folder
