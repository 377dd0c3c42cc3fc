"""What the engine does for a job, except policy runs: sample pairs, train a reward model, complete and explain texts.

The command line's `demo` calls the same functions in its own process.
"""

import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError

from rlhf_lab.config import RewardConfig
from rlhf_lab.engine.lab import REWARD_MODELS, Lab
from rlhf_lab.engine.labels import check_any, prepared
from rlhf_lab.engine.pairs import sample_pairs, score_pairs
from rlhf_lab.engine.texts import complete, explain, reference_samples
from rlhf_lab.errors import TrainingError
from rlhf_lab.kinds import Source
from rlhf_lab.models.generation import Tick, no_tick
from rlhf_lab.models.memory import free_memory, out_of_memory
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.records import Comparison, Job, LabelSnapshot, Project, RewardModelRow
from rlhf_lab.store.comparisons import snapshot
from rlhf_lab.store.projects import get_project
from rlhf_lab.store.runs import add_reward_model
from rlhf_lab.store.scores import add_scores, unjudged_pairs
from rlhf_lab.trainers.reward import RewardReport, train_reward

__all__ = [
    "Progress",
    "complete",
    "explain",
    "no_progress",
    "pairs_job",
    "reference_samples",
    "reward_job",
    "sample_pairs",
    "train_reward_model",
]

#: progress(share done, seconds left or None, what is known so far)
Progress = Callable[[float, float | None, dict[str, Any]], None]
SCORED_PAIRS = 400  # the newest pairs without a person's vote that a new reward model scores beforehand
MOST_POINTS = 300
SLOT = "reward training"


def no_progress(share: float, left: float | None, so_far: dict[str, Any]) -> None:
    return None


class Trained(NamedTuple):
    """A fitted reward model, the config it was trained with, its labels, how many of them were cut, and what it says of the
    texts (completion ids) of the pairs nobody has judged."""

    model: RewardModel
    report: RewardReport
    config: RewardConfig
    pinned: LabelSnapshot
    cut: int
    scores: dict[int, float]


def pairs_job(lab: Lab, project: Project, payload: dict[str, Any], *, tick: Tick = no_tick) -> dict[str, object]:
    """Write the pairs that a SAMPLE_PAIRS job asks for. Result: pair_ids, note (what a person should know of it, or "")."""
    notes: list[str] = []
    pairs = sample_pairs(
        lab, project, int(payload["count"]), checkpoint=str(payload.get("checkpoint", "base")),
        max_new_tokens=payload.get("max_new_tokens"), sampling=str(payload.get("sampling", "random")), note=notes.append,
        tick=tick,
    )  # fmt: skip
    return {"pair_ids": [pair.id for pair in pairs], "note": "; ".join(notes)}


def reward_job(lab: Lab, job: Job, *, progress: Progress = no_progress, tick: Tick = no_tick) -> dict[str, object]:
    """What a TRAIN_REWARD job asks for, and its result. A process that does not lead takes its part, and stores nothing."""
    assert job.project_id is not None
    project, payload = get_project(lab.db, job.project_id), job.payload
    config, source = RewardConfig.from_dict(payload.get("config", {})), Source(payload["source"])
    annotators, weights = payload.get("annotators"), payload.get("weights")
    if not lab.group.leads:
        trained(lab, project, config, source, annotators=annotators, weights=weights)
        return {}
    row = train_reward_model(
        lab, project, config, source, annotators=annotators, weights=weights, progress=progress, tick=tick
    )
    return {"reward_model_id": row.id, "accuracy": row.report["accuracy"]}


def train_reward_model(
    lab: Lab,
    project: Project,
    config: RewardConfig,
    source: Source,
    *,
    annotators: list[str] | None = None,
    weights: dict[str, int] | None = None,
    progress: Progress = no_progress,
    tick: Tick = no_tick,
) -> RewardModelRow:
    """Pin the labels of one source, train on them, and store the result as a new, immutable reward model.

    annotators: only these people's; weights: how often a label of theirs counts, 1 where nothing is said.
    It then scores the pairs nobody has judged yet. Memory too small: half the batch, until one pair does not fit.
    """
    _, adapters = lab.open(project)
    begun = time.monotonic()
    try:
        model, report, config, pinned, cut, scores = trained(
            lab, project, config, source, annotators=annotators, weights=weights, progress=progress, tick=tick
        )
        told = dataclasses.asdict(report) | {"seconds": time.monotonic() - begun, "source": source.value, "cut": cut}
        told |= {"annotators": annotators, "weights": weights or {}} if annotators or weights else {}
        folder = _keep(lab.home, model, config, told)
    finally:
        adapters.remove(SLOT)
    name = folder.relative_to(lab.home).as_posix()
    try:
        row = add_reward_model(lab.db, project.id, name, config=config.to_dict(), report=told, snapshot=pinned)
    except Exception:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    add_scores(lab.db, row.id, scores)
    return row


def trained(
    lab: Lab, project: Project, config: RewardConfig, source: Source, *, annotators: list[str] | None = None,
    weights: dict[str, int] | None = None, progress: Progress = no_progress, tick: Tick = no_tick,
) -> Trained:  # fmt: skip
    """Pin the labels and train on them: what every process of the lab's group does, on the labels of the leading one."""
    backbone, _ = lab.open(project)
    pinned = lab.group.told(snapshot(lab.db, project.id, source, annotators))
    check_any(lab.db, project.id, pinned, annotators)
    labels, cut = prepared(lab.db, pinned, backbone, weights or {})
    model, report, config = _fit(lab, project, labels, config, _Watch(progress, _cut_words(cut)), tick)
    pairs = lab.group.told(unjudged_pairs(lab.db, project.id, SCORED_PAIRS))
    return Trained(model, report, config, pinned, cut, score_pairs(model, pairs, tick))


def _fit(
    lab: Lab, project: Project, labels: list[Comparison], config: RewardConfig, watch: "_Watch", tick: Tick
) -> tuple[RewardModel, RewardReport, RewardConfig]:
    """Train; again with half the batch where memory runs out. Returns the config that was trained with.

    Of several processes only some may lack memory, so there it is an error.
    """
    _, adapters = lab.open(project)
    reference = reference_samples(lab, project, tick)
    while True:
        try:
            model, report = train_reward(
                adapters, labels, reference, config, adapter=SLOT, progress=watch.update, tick=tick, group=lab.group
            )
            return model, report, config
        except RuntimeError as error:
            if not out_of_memory(error) or config.batch_size == 1 or lab.group.size > 1:
                raise
        config = config.replace(batch_size=max(1, min(config.batch_size, len(labels)) // 2))
        watch.restart(f"memory ran out; trained again with batch_size {config.batch_size}")
        free_memory(adapters.backbone)


def _cut_words(cut: int) -> str:
    return f"{cut} labels are longer than the model reads and are cut" if cut else ""


class _Watch:
    """Turns what the trainer says into progress: share, seconds left, and the losses of the fit that goes on."""

    def __init__(self, progress: Progress, note: str = "") -> None:
        self.progress = progress
        self.restart(note)

    def restart(self, note: str) -> None:
        self.begun, self.first, self.stage, self.note = 0.0, 0, "", note
        self.losses: list[float] = []

    def update(self, done: int, total: int, loss: float, stage: str) -> None:
        if stage != self.stage:
            self.stage, self.losses = stage, []
        self.losses.append(loss)
        now = time.monotonic()
        left: float | None = None
        if not self.first:  # what comes before it, the reference's texts above all, is not done once an update
            self.begun, self.first = now, done
        elif done > self.first:
            left = (now - self.begun) / (done - self.first) * (total - done)
        so_far: dict[str, Any] = {"loss": thinned(self.losses, MOST_POINTS), "stage": stage}
        self.progress(done / total, left, so_far | ({"note": self.note} if self.note else {}))


def thinned(values: Sequence[float], most: int) -> list[float]:
    """At most `most` of the values, evenly spaced, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[i * (len(values) - 1) // (most - 1)] for i in range(most)]


def _keep(home: Path, model: RewardModel, config: RewardConfig, told: dict[str, Any]) -> Path:
    """Write a reward model's folder, whole or not at all. Raises TrainingError when the disk is full."""
    folder = home / REWARD_MODELS / f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{time.time_ns() % 10**6:06d}"
    building = folder.with_name(f".building-{folder.name}")
    for left_over in folder.parent.glob(".building-*"):  # one engine, one training: nobody else builds here
        shutil.rmtree(left_over, ignore_errors=True)
    try:
        model.save(building)
        (building / "report.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
        (building / "config.json").write_text(json.dumps(config.to_dict(), indent=1), encoding="utf-8")
        building.rename(folder)
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk as an error of its own
        shutil.rmtree(building, ignore_errors=True)
        raise TrainingError(
            f"the reward model could not be written to {folder.parent} ({error}). Free some disk space and train it again: "
            "the labels are untouched."
        ) from error
    return folder
