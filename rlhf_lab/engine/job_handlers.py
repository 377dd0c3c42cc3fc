"""The jobs that sample pairs and train reward models. Other jobs: policy_run.py, completions.py.

The command `demo` and the benchmarks call the same functions in their own processes.
"""

import dataclasses
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from safetensors import SafetensorError

from rlhf_lab.common.atomic import atomic_folder
from rlhf_lab.common.curves import downsample_values
from rlhf_lab.common.enums import Source
from rlhf_lab.common.paths import REWARD_MODELS_FOLDER
from rlhf_lab.common.progress import FractionCallback, ProgressCallback, ignore_fraction, no_progress
from rlhf_lab.common.records import Comparison, Job, LabelSnapshot, Project, RewardModelRow
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.config.reward import MAX_SCORED_PAIRS, RewardConfig
from rlhf_lab.engine.completions import reference_samples
from rlhf_lab.engine.job_progress import EtaEstimator, JobProgress, JobProgressCallback, no_job_progress
from rlhf_lab.engine.label_preparation import check_has_labels, label_note, prepare_labels
from rlhf_lab.engine.model_cache import ModelCache
from rlhf_lab.engine.pair_sampling import PairRequest, sample_pairs, score_pairs
from rlhf_lab.engine.text_features import NEW_TEXTS_BUDGET_S, NEW_TEXTS_SHARE, FeatureBackfill
from rlhf_lab.errors import TrainingError
from rlhf_lab.jobs.retraining import THEN_RUN
from rlhf_lab.jobs.run_control import start_run
from rlhf_lab.jobs.time_estimate import (
    EARLY_PAIRS,
    WorkCount,
    count_pair_sampling,
    count_reward,
    pairs_stage,
    reward_stage,
)
from rlhf_lab.models.memory_errors import is_out_of_memory
from rlhf_lab.models.oom import free_memory
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.store.label_snapshots import labels_with_gold, snapshot_labels
from rlhf_lab.store.projects import count_pairs, get_project
from rlhf_lab.store.reward_models import add_reward_model, latest_reward_model
from rlhf_lab.store.reward_scores import add_scores, unjudged_pairs
from rlhf_lab.store.runs import runs
from rlhf_lab.training.reward.report import RewardReport
from rlhf_lab.training.reward.task import REWARD_TRAINING_ADAPTER
from rlhf_lab.training.reward.trainer import train_reward

JOB_KEY = "job"  # in a report: the id of the job that trained the reward model; a text, because it is not a figure
MAX_LOSS_POINTS = 300
UNMEASURED_SAMPLING_SHARE = 0.3  # fraction of a reward model's job spent on sampling, if the machine's speed is unknown


def pairs_job(
    model_cache: ModelCache, project: Project, payload: dict[str, Any], *,
    on_progress: ProgressCallback = no_progress, on_fraction: FractionCallback = ignore_fraction,
) -> dict[str, object]:  # fmt: skip
    """Sample the pairs of a SAMPLE_PAIRS job. Result: pair_ids, and note (a message for the user, or "")."""
    request = PairRequest(
        count=int(payload["count"]),
        checkpoint=str(payload.get("checkpoint", "base")),
        max_new_tokens=payload.get("max_new_tokens"),
        sampling=str(payload.get("sampling", "random")),
        stored_first=0 if count_pairs(model_cache.db, project.id) else EARLY_PAIRS,
    )
    notes: list[str] = []
    model_cache.load_project(project)
    start_time = time.monotonic()
    pairs = sample_pairs(
        model_cache, project, request, on_note=notes.append, on_progress=on_progress, on_fraction=on_fraction
    )
    speed, seconds = model_cache.speed, time.monotonic() - start_time
    if pairs and pairs[0].reason != "random" and speed.is_measured:
        sampling = pairs[0].reason.partition(":")[0]
        counted = count_pair_sampling(WorkCount(speed, project.max_new_tokens), request.count, sampling)
        speed.record_stage(pairs_stage(sampling), seconds, counted)
    FeatureBackfill(model_cache).run_for(project.id, max(NEW_TEXTS_BUDGET_S, NEW_TEXTS_SHARE * seconds))
    model_cache.save_speed()
    return {"pair_ids": [pair.id for pair in pairs], "note": "; ".join(notes)}


@dataclass(frozen=True)
class RewardRequest:
    """The labels and settings for training a reward model.

    annotators: use only their labels; None means those of all. weights: how often each annotator's labels count, by default once.
    """

    config: RewardConfig
    source: Source
    annotators: list[str] | None = None
    weights: dict[str, int] | None = None

    @classmethod
    def from_payload(cls, payload: dict[str, Any]) -> Self:
        config = RewardConfig.from_dict(payload.get("config", {}))
        return cls(config, Source(payload["source"]), payload.get("annotators"), payload.get("weights"))


def reward_job(
    model_cache: ModelCache,
    job: Job,
    *,
    report_progress: JobProgressCallback = no_job_progress,
    on_progress: ProgressCallback = no_progress,
) -> dict[str, object]:
    """Train the reward model of a TRAIN_REWARD job, and queue the run that is to follow, if any.

    Result: the reward model's id and accuracy. Only the main process stores anything. A job that is repeated because its
    engine ended adds neither the reward model nor the run again.
    """
    assert job.project_id is not None
    project, request = get_project(model_cache.db, job.project_id), RewardRequest.from_payload(job.payload)
    if not model_cache.distributed.is_main_process:
        fit_reward_model(model_cache, project, request)
        return {}
    row = latest_reward_model(model_cache.db, project.id)
    if row is None or row.report.get(JOB_KEY) != str(job.id):
        row = train_reward_model(
            model_cache, project, request, report_progress=report_progress, on_progress=on_progress, job_id=job.id
        )
    has_run = any(run.reward_model_id == row.id for run in runs(model_cache.db, project.id))
    if (run := job.payload.get(THEN_RUN)) and not has_run:
        config = PolicyConfig.from_dict(run["config"])
        start_run(model_cache.db, model_cache.home, project.id, config, row.id, name=run["name"])
    return {"reward_model_id": row.id, "accuracy": row.report["accuracy"], "note": row.report["note"]}


def train_reward_model(
    model_cache: ModelCache,
    project: Project,
    request: RewardRequest,
    *,
    report_progress: JobProgressCallback = no_job_progress,
    on_progress: ProgressCallback = no_progress,
    job_id: int | None = None,
) -> RewardModelRow:
    """Train a reward model, store it, and let it score the unlabelled pairs. See `fit_reward_model`. job_id: for the report."""
    _, adapters = model_cache.load_project(project)
    start_time, known_references = model_cache.working_time(), len(model_cache.references)
    try:
        fitted = fit_reward_model(
            model_cache, project, request, report_progress=report_progress, on_progress=on_progress
        )
        report = (
            dataclasses.asdict(fitted.report)
            | fitted.labels_with_gold
            | {
                "seconds": model_cache.working_time() - start_time,
                "source": request.source.value,
                "cut": fitted.truncated_count,
                "note": "; ".join(
                    filter(
                        None,
                        [label_note(fitted.truncated_count, fitted.report.indistinguishable), fitted.grouping_note],
                    )
                ),
            }
        )
        if job_id is not None:
            report |= {JOB_KEY: str(job_id)}
        if request.annotators or request.weights:
            report |= {"annotators": request.annotators, "weights": request.weights or {}}
        folder = _save_reward_model(model_cache.home, fitted.model, fitted.config, report)
    finally:
        adapters.remove(REWARD_TRAINING_ADAPTER)
    if len(model_cache.references) > known_references:  # an estimate includes the sampling of the reference texts
        _record_reward_time(model_cache, project, fitted, report["seconds"])
    name, config = folder.relative_to(model_cache.home).as_posix(), fitted.config.to_dict()
    try:
        report_progress(JobProgress(1.0, 0.0))  # raises if the job was cancelled while the files were written
        row = add_reward_model(
            model_cache.db, project.id, name, config=config, report=report, snapshot=fitted.label_snapshot
        )
    except Exception:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    add_scores(model_cache.db, row.id, fitted.scores)
    return row


class FittedReward(NamedTuple):
    """A fitted reward model, the config it was trained with, its labels and how many of them were truncated.

    scores: completion id -> score, for the newest unlabelled pairs.
    """

    model: RewardModel
    report: RewardReport
    config: RewardConfig
    label_snapshot: LabelSnapshot
    labels_with_gold: dict[str, int]
    truncated_count: int
    grouping_note: str
    scores: dict[int, float]


def fit_reward_model(
    model_cache: ModelCache,
    project: Project,
    request: RewardRequest,
    *,
    report_progress: JobProgressCallback = no_job_progress,
    on_progress: ProgressCallback = no_progress,
) -> FittedReward:
    """Take a snapshot of the labels and train on it. Every process does this, with the snapshot of the main process.

    If memory runs out, the batch size is halved, down to a single pair.
    """
    backbone, _ = model_cache.load_project(project)
    distributed = model_cache.distributed
    label_snapshot = distributed.broadcast(
        snapshot_labels(model_cache.db, project.id, request.source, request.annotators)
    )
    with_gold = labels_with_gold(model_cache.db, project.id, request.source, request.annotators)
    check_has_labels(model_cache.db, project.id, label_snapshot, request.annotators)
    labels, truncated_count, grouping_note = prepare_labels(
        model_cache.db, label_snapshot, backbone, request.weights or {}
    )
    work = WorkCount(model_cache.speed, project.max_new_tokens)
    sampling_share = _sampling_share(work, request.config, len(labels))
    reporter = _FitProgressReporter(
        report_progress, request.config.reference_samples, label_note(truncated_count), sampling_share
    )
    model, report, config = _fit_with_oom_retry(model_cache, project, labels, request.config, reporter, on_progress)
    pairs = distributed.broadcast(unjudged_pairs(model_cache.db, project.id, MAX_SCORED_PAIRS))
    scores = score_pairs(model, pairs, on_progress)
    reporter.report_end()
    return FittedReward(model, report, config, label_snapshot, with_gold, truncated_count, grouping_note, scores)


def _record_reward_time(model_cache: ModelCache, project: Project, fitted: FittedReward, seconds: float) -> None:
    """Record how long the training took, for the estimate of the next one."""
    speed = model_cache.speed
    if speed.is_measured:
        work = WorkCount(speed, project.max_new_tokens)
        counted = count_reward(work, fitted.config, fitted.report.labels, len(fitted.scores) // 2)
        stage = reward_stage(model_cache.distributed.world_size)
        speed.record_stage(stage, seconds, counted.high if fitted.model.adapter else counted.low)
    model_cache.save_speed()


def _fit_with_oom_retry(
    model_cache: ModelCache,
    project: Project,
    labels: list[Comparison],
    config: RewardConfig,
    reporter: "_FitProgressReporter",
    on_progress: ProgressCallback,
) -> tuple[RewardModel, RewardReport, RewardConfig]:
    """Train, and retry with half the batch size if memory runs out. Also returns the config of the successful attempt.

    With several processes it is an error if memory runs out, because that may happen in some of them only.
    """
    _, adapters = model_cache.load_project(project)
    reference = reference_samples(model_cache, project, on_progress, reporter.on_tokens, config.reference_samples)
    reporter.report_reading()
    while True:
        try:
            model, report = train_reward(
                adapters, labels, reference, config, on_update=reporter.on_update, on_progress=on_progress,
                distributed=model_cache.distributed,
            )  # fmt: skip
            return model, report, config
        except RuntimeError as error:
            if not is_out_of_memory(error) or config.batch_size == 1 or model_cache.distributed.world_size > 1:
                raise
        config = config.replace(batch_size=max(1, min(config.batch_size, len(labels)) // 2))
        reporter.restart(f"out of memory; restarted with batch_size {config.batch_size}")
        free_memory(adapters.backbone)


def _sampling_share(work: WorkCount, config: RewardConfig, labels: int) -> float:
    """The estimated fraction of a reward model's job spent on sampling reference texts, if an adapter is trained."""
    if not work.speed.is_measured:
        return UNMEASURED_SAMPLING_SHARE
    sampling = work.sampling(config.reference_samples, config.reference_samples)
    return sampling / count_reward(work, config, labels, 0).high


class _FitProgressReporter:
    """Converts sampled tokens and the trainer's updates into job progress.

    Reports the fraction done, the seconds left, the current stage, and the losses of the current fit. reference_texts: how
    many are sampled. sampling_share: fraction of the job that is spent on this.
    """

    def __init__(
        self, report_progress: JobProgressCallback, reference_texts: int, note: str = "", sampling_share: float = 0.0
    ) -> None:
        self.report_progress, self.sampling_share = report_progress, sampling_share
        self.reference_texts = reference_texts
        self.restart(note)

    def restart(self, note: str) -> None:
        self.stage, self.note = "", note
        self.losses: list[float] = []
        self.eta: EtaEstimator | None = None

    def on_tokens(self, sampled: int, longest: int) -> None:
        stage = f"sampling {self.reference_texts} reference texts, token {sampled} of {longest}"
        self._report(self.sampling_share * sampled / longest, None, stage)

    def report_reading(self) -> None:
        """Report that the reference texts are sampled and the first fit has not made an update yet."""
        self._report(self.sampling_share, None, "")

    def on_update(self, updates_done: int, total_updates: int, loss: float, stage: str) -> None:
        if stage != self.stage:
            self.stage, self.losses = stage, []
        self.losses.append(loss)
        if self.eta is None:  # measured from the first update on: the work before it is not repeated
            self.eta = EtaEstimator(updates_done)
        fraction = self.sampling_share + (1 - self.sampling_share) * updates_done / total_updates
        self._report(fraction, self.eta.eta_s(updates_done, total_updates), stage)

    def report_end(self) -> None:
        """Report that nothing is left but to store the reward model. Raises if the job was cancelled, so that none is stored."""
        self._report(1.0, 0.0, self.stage)

    def _report(self, fraction: float, eta_s: float | None, stage: str) -> None:
        partial_result = {"loss": downsample_values(self.losses, MAX_LOSS_POINTS), "stage": stage}
        if self.note:
            partial_result["note"] = self.note
        self.report_progress(JobProgress(fraction, eta_s, partial_result))


def _save_reward_model(home: Path, model: RewardModel, config: RewardConfig, report: dict[str, Any]) -> Path:
    """Write a reward model's folder atomically. Raises TrainingError if it cannot be written."""
    timestamp = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{time.time_ns() % 10**6:06d}"
    folder = home / REWARD_MODELS_FOLDER / timestamp
    try:
        with atomic_folder(folder) as temp_folder:
            model.save(temp_folder)
            (temp_folder / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
            (temp_folder / "config.json").write_text(json.dumps(config.to_dict(), indent=1), encoding="utf-8")
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk as an error of its own
        raise TrainingError(
            f"the reward model could not be written to {folder.parent} ({getattr(error, 'strerror', error) or error}). "
            "Free some disk space and train it again: the labels are untouched."
        ) from error
    return folder
