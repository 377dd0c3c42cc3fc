"""Decides whether a LoRA adapter is used: whether it predicts labels of unseen prompts better than the fitted head alone."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from rlhf_lab.common.records import Comparison
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.training.reward.head_init import assign_folds
from rlhf_lab.training.reward.report import HeldOutPrediction, held_out_metrics, log_losses
from rlhf_lab.training.reward.task import REWARD_TRAINING_ADAPTER, FitSpec, RewardTask

#: Nats per label. A smaller gain is not worth a slower model whose accuracy is measured on the held-out labels only.
MIN_GAIN = 0.02
#: Predictions of the held-out labels, by the number of epochs that the adapter was trained; 0: the fitted head.
PredictionsByEpoch = Mapping[int, list[HeldOutPrediction]]


class Split(NamedTuple):
    """Indices of the comparisons on which an adapter is trained and validated."""

    train: list[int]
    held_out: list[int]


def split_labels(task: RewardTask) -> Split | None:
    """Hold out one in `folds` prompts. None if there is nothing to compare."""
    indices, config = task.distinguishable, task.config
    groups = [task.comparisons[i].group for i in indices]
    folds = min(config.folds, len(set(groups)))
    if folds < 2 or (config.epochs == 0 and config.warm_start):
        return None
    fold_of_label = assign_folds(groups, folds)
    train = [i for i, fold in zip(indices, fold_of_label, strict=True) if fold != folds - 1]
    held_out = [i for i, fold in zip(indices, fold_of_label, strict=True) if fold == folds - 1]
    return None if all(task.comparisons[i].tie for i in train) else Split(train, held_out)


def validate(task: RewardTask, split: Split, on_loss: Callable[[float], None]) -> dict[int, list[HeldOutPrediction]]:
    """Predictions of the held-out labels after 0 (the fitted head) and all epochs; with early stopping after each epoch."""
    config = task.config
    predictions: dict[int, list[HeldOutPrediction]] = {}
    if config.warm_start:
        predictions[0] = task.predict_by_heads(split.train, split.held_out)

    def on_epoch(epochs_done: int, model: RewardModel) -> None:
        if epochs_done not in predictions and (config.early_stopping or epochs_done == config.epochs):
            predictions[epochs_done] = task.predict(model, split.held_out)

    model, _ = task.fit(FitSpec(split.train, config.epochs, "validation", on_loss, on_epoch))
    if config.epochs == 0:
        on_epoch(0, model)
    task.adapters.remove(REWARD_TRAINING_ADAPTER)
    return predictions


def choose_epochs(
    predictions_by_epoch: PredictionsByEpoch, comparisons: Sequence[Comparison], config: RewardConfig
) -> int:
    """The number of epochs with the lowest mean log-loss on held-out labels; without such labels, that of the config.

    With warm_start, 0 (the fitted head alone) unless the adapter is better by more than MIN_GAIN and the standard error of the
    mean difference.
    """
    if not predictions_by_epoch:
        return config.epochs
    losses = {epoch: log_losses(held_out, comparisons) for epoch, held_out in predictions_by_epoch.items()}
    best = min(losses, key=lambda epoch: (fmean(losses[epoch]), epoch))
    if best == 0 or not config.warm_start:
        return best
    gains = [head - adapter for head, adapter in zip(losses[0], losses[best], strict=True)]
    standard_error = stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.inf
    return best if fmean(gains) > max(standard_error, MIN_GAIN) else 0


def compare_with_head(
    predictions_by_epoch: PredictionsByEpoch, comparisons: Sequence[Comparison], epochs: int
) -> dict[str, Any] | None:
    """Compare fitted head and adapter on the same held-out labels; None if that is not possible.

    epochs: the chosen number; for 0 the adapter is not used, and is compared after all its epochs.
    """
    trained = epochs or max(predictions_by_epoch, default=0)
    if trained not in predictions_by_epoch or 0 not in predictions_by_epoch or trained == 0:
        return None
    head, adapter = predictions_by_epoch[0], predictions_by_epoch[trained]
    return {
        "used": epochs > 0,
        "labels": sum(not comparisons[prediction.index].tie for prediction in head),
        "head_accuracy": held_out_metrics(head, comparisons)["accuracy"],
        "adapter_accuracy": held_out_metrics(adapter, comparisons)["accuracy"],
        "head_loss": fmean(log_losses(head, comparisons)),
        "adapter_loss": fmean(log_losses(adapter, comparisons)),
    }
