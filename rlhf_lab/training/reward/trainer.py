"""Trains a reward model on comparisons: a head fitted on frozen features, a LoRA adapter where it helps, then normalisation.

Bradley-Terry (1952): P(chosen preferred) = sigmoid(score(chosen) - score(rejected)); ties have target 0.5.
"""

import math
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any

from rlhf_lab.common.progress import ProgressCallback, no_progress
from rlhf_lab.common.records import Comparison
from rlhf_lab.common.stats import hit
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.errors import LabelError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.heads import check_reference_count
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.training.distributed import SINGLE_PROCESS, Distributed
from rlhf_lab.training.label_tokens import same_tokens_error
from rlhf_lab.training.reward.report import (
    HeldOutPrediction,
    RewardReport,
    agreement,
    held_out_metrics,
    length_correlation,
)
from rlhf_lab.training.reward.task import FitSpec, ReferenceSamples, RewardTask
from rlhf_lab.training.reward.validation import Split, choose_epochs, compare_with_head, split_labels, validate

#: on_update(updates done, total updates, loss of the last one, current fit: "validation" or "final")
FitUpdateCallback = Callable[[int, int, float, str], None]
MAX_MARGIN = 1e15  # float32 holds it, also multiplied by RewardConfig.margin


def train_reward(
    adapters: Adapters,
    comparisons: Sequence[Comparison],
    reference: ReferenceSamples,
    config: RewardConfig,
    *,
    on_update: FitUpdateCallback | None = None,
    on_progress: ProgressCallback = no_progress,
    distributed: Distributed = SINGLE_PROCESS,
) -> tuple[RewardModel, RewardReport]:
    """Train a reward model on comparisons and evaluate it on labels of prompts that it did not see.

    A fitted head (warm_start) is evaluated by leaving out one prompt after the other. An adapter is evaluated by one more fit,
    which leaves out the labels of one in `folds` prompts; it is trained on all labels only if it predicts the left-out ones
    better than the head alone. With early_stopping the left-out labels also determine the number of epochs, so the report's
    metrics, which are measured on them after that many epochs, are slightly optimistic. A trained adapter is loaded and frozen
    as REWARD_TRAINING_ADAPTER. Several processes share the work, and all return the same result. Comparisons whose texts have
    the same tokens, and those of weight or count 0, are left out of everything.
    Raises LabelError for too few or only tied labels, ConfigError for less than 2 reference samples, NotFiniteError.
    """
    check_labels(comparisons)
    check_reference_count(len(reference.responses))
    counted = [i for i, c in enumerate(comparisons) if c.count * c.weight > 0]
    comparisons = [comparisons[i] for i in counted]
    task = RewardTask(adapters, comparisons, reference, config, on_progress=on_progress, distributed=distributed)
    indices = task.distinguishable
    if not indices:
        raise same_tokens_error(len(comparisons))
    check_labels([comparisons[i] for i in indices])
    split = split_labels(task)
    counter = _UpdateCounter(on_update, _update_count(task, split))
    counter.stage = "validation"
    predictions_by_epoch = validate(task, split, counter.count_update) if split is not None else {}
    epochs = choose_epochs(predictions_by_epoch, comparisons, config)
    counter.stage = "final"
    model, losses = task.fit(FitSpec(indices, epochs, "all", counter.count_update))
    task.normalise(model)
    if epochs == 0 and config.warm_start:
        held_out, folds = _predict_by_left_out_prompts(task)
    else:
        held_out, folds = predictions_by_epoch.get(epochs, []), 1 if predictions_by_epoch else 0
    held_out_report = held_out_metrics(held_out, comparisons, cross_validated=folds > 1)
    for disagreement in held_out_report["disagreements"]:
        disagreement["index"] = counted[disagreement["index"]]
    return model, RewardReport(
        **_final_fit_metrics(task, model, losses), **held_out_report, folds=folds,
        agreement=agreement(comparisons), epochs=epochs,
        indistinguishable=len(comparisons) - len(indices),
        adapter=compare_with_head(predictions_by_epoch, comparisons, epochs),
        attribute_effects=task.attribute_effects(),
    )  # fmt: skip


def check_labels(comparisons: Sequence[Comparison]) -> None:
    """Raises LabelError unless at least 2 decided labels have a weight and a count above 0, and all margins, strengths, counts
    and weights are usable numbers."""
    decided = sum(not c.tie for c in comparisons)
    if not comparisons:
        raise LabelError(
            "there are no labels yet: a reward model needs at least 2 decided pairs. Label some pairs first."
        )
    if not decided:
        raise LabelError(
            f"all {len(comparisons)} labels are ties: nothing says what is better. Label pairs that differ."
        )
    if decided < 2:
        raise LabelError("there is one decided label; a reward model needs at least 2. Label some more pairs.")
    for index, comparison in enumerate(comparisons):
        lowest = -math.inf if comparison.tie else -MAX_MARGIN  # the margin of a tie is not used
        ranges = {"margin": (lowest, -lowest), "strength": (0, MAX_MARGIN), "count": (0, math.inf), "weight": (0, 1)}
        for name, (low, high) in ranges.items():
            value: Any = getattr(comparison, name)
            is_number = isinstance(value, Integral if name == "count" else Real)
            if not is_number or not low <= value <= high:
                kind = "whole number" if name == "count" else "number"
                allowed = f"from {low:g} to {high:g}" if math.isfinite(high) else f"of {low:g} or more"
                raise LabelError(f"label {index} has the {name} {value}. Give it a {kind} {allowed}.")
    counted = sum(c.count * c.weight > 0 for c in comparisons if not c.tie)
    if not counted:
        raise LabelError(
            "all decided labels have the weight or the count 0, so nothing says what is better. Give one a higher weight."
        )
    if counted < 2:
        raise LabelError(
            "only one decided label has a weight and a count above 0; a reward model needs at least 2. Give another one a higher "
            "weight, or label some more pairs."
        )


class _UpdateCounter:
    """Counts the updates of all fits, and stores which fit is current."""

    def __init__(self, on_update: FitUpdateCallback | None, total_updates: int) -> None:
        self.on_update, self.total_updates = on_update, total_updates
        self.updates_done, self.stage = 0, "final"

    def count_update(self, loss: float) -> None:
        self.updates_done += 1
        if self.on_update is not None:
            self.on_update(self.updates_done, max(self.total_updates, self.updates_done), loss, self.stage)


def _update_count(task: RewardTask, split: Split | None) -> int:
    """The number of updates of all fits, if the adapter is used."""
    epochs = task.config.epochs
    validation = task.update_count(len(split.train), epochs) if split is not None else 0
    return validation + task.update_count(len(task.distinguishable), epochs)


def _predict_by_left_out_prompts(task: RewardTask) -> tuple[list[HeldOutPrediction], int]:
    """Predictions of the fitted head, and the number of prompts left out in turn; none with folds 0, or if a single prompt has
    decided labels: ties of others do not say which of its texts is better."""
    labels = [task.comparisons[i] for i in task.distinguishable]
    if len({label.group for label in labels if not label.tie}) < 2 or not task.config.folds:
        return [], 0
    return task.predict_held_out(), len({label.group for label in labels})


def _final_fit_metrics(task: RewardTask, model: RewardModel, losses: list[float]) -> dict[str, Any]:
    """The fields of the report that describe the final model, on its training labels and on the reference samples."""
    decided = [i for i in task.distinguishable if not task.comparisons[i].tie]
    chosen, rejected, reference = task.final_scores(model, decided)
    return {
        "labels": len(task.distinguishable),
        "ties": int(task.ties[task.distinguishable].sum()),
        "train_accuracy": float(hit(chosen - rejected).double().mean()),
        "loss": losses,
        "chosen_scores": [round(float(x), 4) for x in chosen],
        "rejected_scores": [round(float(x), 4) for x in rejected],
        "length_correlation": length_correlation(reference.double(), task.reference.responses),
    }
