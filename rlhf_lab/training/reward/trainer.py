"""Trains a reward model on comparisons: a warm start of the head, then LoRA adapter and head together, then normalisation.

Bradley-Terry (1952): P(chosen preferred) = sigmoid(score(chosen) - score(rejected)); ties have target 0.5.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from rlhf_lab.common.progress import ProgressCallback, no_progress
from rlhf_lab.common.records import Comparison
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.errors import LabelError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.heads import check_reference_count
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.training.distributed import SINGLE_PROCESS, Distributed
from rlhf_lab.training.reward.head_init import assign_folds
from rlhf_lab.training.reward.report import (
    HeldOutPrediction,
    RewardReport,
    agreement,
    held_out_metrics,
    length_correlation,
    log_loss,
)
from rlhf_lab.training.reward.task import FitSpec, ReferenceSamples, RewardTask

#: on_update(updates done, total updates, loss of the last one, current fit: "fold 2 of 5" or "final")
FitUpdateCallback = Callable[[int, int, float, str], None]


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
    """Train a reward model on comparisons and evaluate it by cross-validation grouped by prompt.

    With early_stopping the folds also choose the epochs of the final fit: those with the lowest mean log-loss on all held-out
    labels. The report's metrics are those after the same epochs, and so are slightly optimistic. Leaves the adapter
    REWARD_TRAINING_ADAPTER loaded and frozen. Several processes share the work, and all return the same result. Comparisons
    whose texts have the same tokens are left out.
    Raises LabelError for too few or only tied labels, ConfigError for less than 2 reference samples, NotFiniteError.
    """
    check_labels(comparisons)
    check_reference_count(len(reference.responses))
    task = RewardTask(adapters, comparisons, reference, config, on_progress=on_progress, distributed=distributed)
    indices = task.distinguishable
    if not indices:
        raise LabelError(
            f"all {len(comparisons)} labels are of two texts that have the same tokens for this model, because they are equal as "
            "far as it reads. Label texts that differ earlier, or choose a model with a longer context."
        )
    check_labels([comparisons[i] for i in indices])
    folds = min(config.folds, len({comparisons[i].group for i in indices}))
    folds = folds if folds > 1 else 0
    counter = _UpdateCounter(on_update, task.update_count(len(indices), config.epochs) * (folds + 1))
    predictions_by_epoch = _cross_validate(task, folds, counter)
    epochs = config.epochs
    if config.early_stopping and predictions_by_epoch:
        losses_by_epoch = {epoch: log_loss(held_out, comparisons) for epoch, held_out in predictions_by_epoch.items()}
        epochs = min(losses_by_epoch, key=lambda epoch: (losses_by_epoch[epoch], epoch))
    counter.stage = "final"
    model, losses = task.fit(FitSpec(indices, epochs, "all", counter.count_update))
    task.normalise(model)
    held_out = predictions_by_epoch.get(epochs, [])
    metrics = _final_fit_metrics(task, model, losses) | held_out_metrics(held_out, comparisons)
    return model, RewardReport(
        **metrics, folds=folds, agreement=agreement(comparisons), epochs=epochs,
        indistinguishable=len(comparisons) - len(indices),
    )  # fmt: skip


def check_labels(comparisons: Sequence[Comparison]) -> None:
    """Raises LabelError unless at least 2 labels are decided, and their margins are finite."""
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
        margin = 0.0 if comparison.tie else comparison.margin  # ties have none
        for name, value in (("margin", margin), ("strength", comparison.strength)):
            if not math.isfinite(value):
                raise LabelError(
                    f"label {index} has the {name} {value}: no two scores can differ by that much. Give it a finite number."
                )


class _UpdateCounter:
    """Counts the updates of all fits and knows the current one."""

    def __init__(self, on_update: FitUpdateCallback | None, total_updates: int) -> None:
        self.on_update, self.total_updates = on_update, total_updates
        self.updates_done, self.stage = 0, "final"

    def count_update(self, loss: float) -> None:
        self.updates_done += 1
        if self.on_update is not None:
            self.on_update(self.updates_done, max(self.total_updates, self.updates_done), loss, self.stage)


def _cross_validate(task: RewardTask, folds: int, counter: _UpdateCounter) -> dict[int, list[HeldOutPrediction]]:
    """Held-out predictions of all folds by epochs trained; only for the last epoch without early stopping."""
    indices = task.distinguishable
    fold_of_label = assign_folds([task.comparisons[i].group for i in indices], folds) if folds else []
    predictions: dict[int, list[HeldOutPrediction]] = defaultdict(list)
    for fold in sorted(set(fold_of_label)):
        train_indices = [i for i, f in zip(indices, fold_of_label, strict=True) if f != fold]
        held_out_indices = [i for i, f in zip(indices, fold_of_label, strict=True) if f == fold]
        if all(task.comparisons[i].tie for i in train_indices):
            continue
        counter.stage = f"fold {fold + 1} of {folds}"

        def on_epoch(epochs_done: int, model: RewardModel, held_out_indices: list[int] = held_out_indices) -> None:
            if task.config.early_stopping and epochs_done < task.config.epochs:
                predictions[epochs_done] += task.predict(model, held_out_indices)

        model, _ = task.fit(FitSpec(train_indices, task.config.epochs, f"fold {fold}", counter.count_update, on_epoch))
        predictions[task.config.epochs] += task.predict(model, held_out_indices)
    return predictions


def _final_fit_metrics(task: RewardTask, model: RewardModel, losses: list[float]) -> dict[str, Any]:
    """The report fields that the final model gives, on its own labels and on the reference samples."""
    decided = [i for i in task.distinguishable if not task.comparisons[i].tie]
    prompts = [task.prompts[i] for i in decided]
    chosen = task.score_all(model.scores, prompts, [task.chosen[i] for i in decided])
    rejected = task.score_all(model.scores, prompts, [task.rejected[i] for i in decided])
    reference = task.score_all(model.scores, *task.reference).double()
    return {
        "labels": len(task.distinguishable),
        "ties": int(task.ties[task.distinguishable].sum()),
        "train_accuracy": float((chosen > rejected).double().mean()),
        "loss": losses,
        "chosen_scores": [round(float(x), 4) for x in chosen],
        "rejected_scores": [round(float(x), 4) for x in rejected],
        "length_correlation": length_correlation(reference, task.reference.responses),
    }
