"""Comparisons in, reward model out: head by warm start, then LoRA adapter and head together, then normalised.

Bradley-Terry (1952): P(chosen preferred) = sigmoid(score(chosen) - score(rejected)); ties have target 0.5.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from rlhf_lab.config import RewardConfig
from rlhf_lab.errors import LabelError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.generation import Tick, no_tick
from rlhf_lab.models.heads import check_reference
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.records import Comparison
from rlhf_lab.trainers.group import ALONE, Group
from rlhf_lab.trainers.reward_fit import Fit, Reference, RewardTask
from rlhf_lab.trainers.reward_report import (
    HeldOut,
    RewardReport,
    agreement,
    held_out_figures,
    length_correlation,
    log_loss,
)
from rlhf_lab.trainers.warm_start import fold_of

__all__ = ["Progress", "Reference", "RewardReport", "check_labels", "train_reward"]

#: progress(done updates, all updates, loss of the last one, what is being fitted: "fold 2 of 5" or "final")
Progress = Callable[[int, int, float, str], None]


def train_reward(
    adapters: Adapters,
    comparisons: Sequence[Comparison],
    reference: Reference,
    config: RewardConfig,
    *,
    adapter: str = "reward",
    progress: Progress | None = None,
    tick: Tick = no_tick,
    group: Group = ALONE,
) -> tuple[RewardModel, RewardReport]:
    """Train a reward model on comparisons and measure it by cross-validation grouped by prompt.

    With early_stopping the folds also decide the passes of the final fit: the number after which the mean log-loss of all
    held-out labels was least. The report's figures are those of that number, so they are a little kind to it.
    Leaves the adapter `adapter` loaded and frozen. The processes of the group share the work, and all have the same result.
    Raises LabelError for too few or only tied labels, ConfigError for less than 2 reference samples, NotFiniteError.
    """
    check_labels(comparisons)
    check_reference(len(reference.responses))
    task = RewardTask(adapters, comparisons, reference, config, adapter=adapter, tick=tick, group=group)
    folds = min(config.folds, len({c.group for c in comparisons}))
    folds = folds if folds > 1 else 0
    watch = _Watch(progress, task.updates(len(comparisons), config.epochs) * (folds + 1))
    by_passes = _cross_validate(task, folds, watch)
    epochs = config.epochs
    if config.early_stopping and by_passes:
        epochs = min(by_passes, key=lambda passes: (log_loss(by_passes[passes], comparisons), passes))
    watch.stage = "final"
    model, losses = task.fit(Fit(list(range(len(comparisons))), epochs, "all", watch.count))
    task.normalise(model)
    held = by_passes.get(epochs, [])
    return model, RewardReport(**_of_final(task, model, losses), **held_out_figures(held, comparisons), folds=folds,
                               agreement=agreement(comparisons), epochs=epochs)  # fmt: skip


def check_labels(comparisons: Sequence[Comparison]) -> None:
    """Raises LabelError when nothing can be learnt."""
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


class _Watch:
    """Counts the updates of all fits and says what is being fitted."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total = progress, total
        self.done, self.stage = 0, "final"

    def count(self, loss: float) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, max(self.total, self.done), loss, self.stage)


def _cross_validate(task: RewardTask, folds: int, watch: _Watch) -> dict[int, list[HeldOut]]:
    """Held-out predictions of all folds, by the passes the models had had; only the last number without early stopping."""
    assigned = fold_of([c.group for c in task.comparisons], folds) if folds else []
    found: dict[int, list[HeldOut]] = defaultdict(list)
    for fold in sorted(set(assigned)):
        train = [i for i, f in enumerate(assigned) if f != fold]
        held = [i for i, f in enumerate(assigned) if f == fold]
        if all(task.comparisons[i].tie for i in train):
            continue
        watch.stage = f"fold {fold + 1} of {folds}"

        def look(passes: int, model: RewardModel, held: list[int] = held) -> None:
            if task.config.early_stopping and passes < task.config.epochs:
                found[passes] += task.predict(model, held)

        model, _ = task.fit(Fit(train, task.config.epochs, f"fold {fold}", watch.count, look))
        found[task.config.epochs] += task.predict(model, held)
    return found


def _of_final(task: RewardTask, model: RewardModel, losses: list[float]) -> dict[str, Any]:
    """What the model trained on all labels says of them, and of the base's samples."""
    decided = [i for i, c in enumerate(task.comparisons) if not c.tie]
    prompts = [task.prompts[i] for i in decided]
    chosen = task.asked(model.scores, prompts, [task.chosen[i] for i in decided])
    rejected = task.asked(model.scores, prompts, [task.rejected[i] for i in decided])
    reference = task.asked(model.scores, *task.reference).double()
    return {
        "labels": len(task.comparisons),
        "ties": int(task.tie.sum()),
        "train_accuracy": float((chosen > rejected).double().mean()),
        "loss": losses,
        "chosen_scores": [round(float(x), 4) for x in chosen],
        "rejected_scores": [round(float(x), 4) for x in rejected],
        "length_correlation": length_correlation(reference, task.reference.responses),
    }
