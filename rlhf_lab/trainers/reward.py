"""Comparisons in, reward model out: head by warm start, then LoRA adapter and head together, then normalised.

Bradley-Terry (1952): P(chosen preferred) = sigmoid(score(chosen) - score(rejected)); ties have target 0.5.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlhf_lab.config import RewardConfig
from rlhf_lab.core.preference import bradley_terry_loss
from rlhf_lab.errors import LabelError, NotFiniteError
from rlhf_lab.intervals import wilson_interval
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.generation import Tick, no_tick
from rlhf_lab.models.heads import RewardHead
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.models.rows import by_length, forward, make_rows
from rlhf_lab.records import Comparison
from rlhf_lab.seeds import derive
from rlhf_lab.trainers.warm_start import fit, fold_of

#: progress(done updates, all updates, loss of the last one, what is being fitted: "fold 2 of 5" or "final")
Progress = Callable[[int, int, float, str], None]


class Reference(NamedTuple):
    """Samples of the base model: what the scores are normalised on. Token ids, row by row."""

    prompts: list[list[int]]
    responses: list[list[int]]


@dataclass(frozen=True)
class RewardReport:
    """What is known of a reward model. accuracy is cross-validated over decided (non-tie) labels; low, high: 95 % Wilson."""

    labels: int
    ties: int
    folds: int
    accuracy: float | None
    accuracy_low: float
    accuracy_high: float
    train_accuracy: float
    loss: list[float] = field(default_factory=list)
    chosen_scores: list[float] = field(default_factory=list)
    rejected_scores: list[float] = field(default_factory=list)
    length_correlation: float | None = None


def train_reward(
    backbone: Backbone,
    adapters: Adapters,
    comparisons: Sequence[Comparison],
    reference: Reference,
    config: RewardConfig,
    *,
    adapter: str = "reward",
    progress: Progress | None = None,
    tick: Tick = no_tick,
) -> tuple[RewardModel, RewardReport]:
    """Train a reward model on comparisons and measure it by cross-validation grouped by prompt.

    Leaves the adapter `adapter` loaded and frozen. Raises LabelError for too few or only tied labels, NotFiniteError.
    """
    check_labels(comparisons)
    task = _Task(backbone, adapters, comparisons, reference, config, adapter, tick)
    folds = min(config.folds, len({c.group for c in comparisons}))
    assigned = fold_of(task.groups, folds) if folds > 1 else []
    total = task.updates(len(comparisons)) * (folds + 1 if folds > 1 else 1)
    done, stage = 0, "final"

    def count(loss: float) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, max(total, done), loss, stage)

    right = decided = 0
    for fold in sorted(set(assigned)):
        train = [i for i, f in enumerate(assigned) if f != fold]
        held = [i for i, f in enumerate(assigned) if f == fold]
        if all(comparisons[i].tie for i in train):
            continue
        stage = f"fold {fold + 1} of {folds}"
        model, _ = task.fit(train, count, f"fold {fold}")
        hits = task.judge(model, held)
        right, decided = right + sum(hits), decided + len(hits)
    stage = "final"
    model, losses = task.fit(list(range(len(comparisons))), count, "all")
    low, high = wilson_interval(right, decided)
    report = task.report(model, losses)
    return model, RewardReport(
        **report,
        folds=folds if folds > 1 else 0,
        accuracy=right / decided if decided else None,
        accuracy_low=low,
        accuracy_high=high,
    )


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


class _Task:
    """One training job: encoded texts, the frozen features, and fitting on any subset of the comparisons."""

    def __init__(
        self, backbone: Backbone, adapters: Adapters, comparisons: Sequence[Comparison], reference: Reference,
        config: RewardConfig, adapter: str, tick: Tick,
    ) -> None:  # fmt: skip
        self.backbone, self.adapters, self.config = backbone, adapters, config
        self.adapter, self.tick = adapter, tick
        self.comparisons, self.reference = comparisons, reference
        self.groups = [c.group for c in comparisons]
        prompts = {c.prompt: backbone.encode_prompt(c.prompt) for c in comparisons}
        self.prompts = [prompts[c.prompt] for c in comparisons]
        self.chosen = [list(c.chosen_ids) or backbone.encode_response(c.chosen) for c in comparisons]
        self.rejected = [list(c.rejected_ids) or backbone.encode_response(c.rejected) for c in comparisons]
        self.tie = torch.tensor([c.tie for c in comparisons])
        self.margin = torch.tensor([c.margin for c in comparisons])
        if config.warm_start:
            chosen = self.features(self.prompts, self.chosen)
            rejected = self.features(self.prompts, self.rejected)
            base = self.features(*reference)
            self.spread = base.std(0).norm() / math.sqrt(base.shape[1])
            self.base_mean = base.mean(0)
            self.differences = (chosen - rejected) / self.spread

    @torch.no_grad()
    def features(self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> Tensor:
        """(N, H) float64 pooled hidden states of the frozen backbone."""
        pool = RewardHead(self.backbone.hidden_size, self.config.pooling, seed=0).pool

        def some(index: list[int]) -> Tensor:
            self.tick()
            rows = make_rows(self.backbone, [prompts[i] for i in index], [responses[i] for i in index])
            with self.adapters.using(None):
                return pool(forward(self.backbone, rows).read, rows.mask)

        lengths = [len(p) + len(r) for p, r in zip(prompts, responses, strict=True)]
        return by_length(some, lengths, self.backbone.token_budget).double().cpu()

    def updates(self, labels: int) -> int:
        return self.config.epochs * math.ceil(labels / self.config.batch_size)

    def fit(self, subset: list[int], count: Callable[[float], None], purpose: str) -> tuple[RewardModel, list[float]]:
        """A reward model from the comparisons of `subset`; and its losses."""
        config = self.config
        head = RewardHead(self.backbone.hidden_size, config.pooling, derive(config.seed, "head")).to(
            self.backbone.device
        )
        if config.warm_start:
            self.warm(head, subset)
        if config.epochs:
            self.adapters.add(self.adapter, r=config.lora_r, alpha=config.lora_alpha,
                              seed=derive(config.seed, "reward adapter"), trainable=True)  # fmt: skip
        model = RewardModel(self.backbone, self.adapters, self.adapter if config.epochs else None, head)
        losses = self.descend(model, subset, count, purpose) if config.epochs else []
        if config.epochs:
            self.adapters.freeze(self.adapter)
        head.requires_grad_(False)
        scores = model.scores(*self.reference, tick=self.tick).double()
        with torch.no_grad():
            head.shift.copy_(scores.mean() * head.scale + head.shift)
            head.scale.copy_(scores.std().clamp_min(1e-6) * head.scale)
        return model, losses

    def warm(self, head: RewardHead, subset: list[int]) -> None:
        """Fit the head on frozen features; the bias makes the base's mean score 0, as the centring penalty wants it."""
        index = torch.tensor(subset)
        weights = fit(self.differences[index], self.tie[index], self.config.ridge) / self.spread
        with torch.no_grad():
            head.linear.weight.copy_(weights[None])
            head.linear.bias.copy_(-(self.base_mean @ weights)[None])

    def descend(
        self, model: RewardModel, subset: list[int], count: Callable[[float], None], purpose: str
    ) -> list[float]:
        """AdamW on adapter and head; the loss of every update."""
        config = self.config
        parameters = [*self.adapters.parameters(self.adapter), *model.head.linear.parameters()]
        optimiser = torch.optim.AdamW(parameters, lr=config.lr, weight_decay=config.weight_decay)
        generator = torch.Generator().manual_seed(derive(config.seed, "order", purpose))
        total, losses = self.updates(len(subset)), list[float]()
        for _ in range(config.epochs):
            order = torch.randperm(len(subset), generator=generator).tolist()
            for start in range(0, len(order), config.batch_size):
                self.tick()
                loss = self.loss(model, [subset[i] for i in order[start : start + config.batch_size]])
                loss.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
                for group in optimiser.param_groups:
                    group["lr"] = config.lr * (1 - len(losses) / total)
                optimiser.step()
                optimiser.zero_grad()
                losses.append(float(loss.detach()))
                if not math.isfinite(losses[-1]):
                    raise NotFiniteError(
                        f"the reward model's loss became {losses[-1]} after {len(losses)} updates. "
                        "Lower its learning rate (lr); the labels are untouched."
                    )
                count(losses[-1])
        return losses

    def loss(self, model: RewardModel, index: list[int]) -> Tensor:
        rows = make_rows(
            self.backbone,
            [self.prompts[i] for i in index] * 2,
            [self.chosen[i] for i in index] + [self.rejected[i] for i in index],
        )
        with self.adapters.using(model.adapter):
            scores = model.head.raw(forward(self.backbone, rows).read, rows.mask)
        chosen, rejected = scores.chunk(2)
        where = torch.tensor(index)
        loss = bradley_terry_loss(
            chosen, rejected, margin=self.margin[where].to(scores), tie=self.tie[where].to(scores.device),
            label_smoothing=self.config.label_smoothing,
        )  # fmt: skip
        return loss + self.config.centering * (chosen + rejected).square().mean()

    def judge(self, model: RewardModel, held: list[int]) -> list[bool]:
        """For each decided comparison of `held`, whether the model ranks it as the label does."""
        index = [i for i in held if not self.comparisons[i].tie]
        prompts = [self.prompts[i] for i in index]
        chosen = model.scores(prompts, [self.chosen[i] for i in index], self.tick) if index else torch.zeros(0)
        rejected = model.scores(prompts, [self.rejected[i] for i in index], self.tick) if index else torch.zeros(0)
        return [bool(hit) for hit in chosen > rejected]

    def report(self, model: RewardModel, losses: list[float]) -> dict[str, Any]:
        decided = [i for i, c in enumerate(self.comparisons) if not c.tie]
        prompts = [self.prompts[i] for i in decided]
        chosen = model.scores(prompts, [self.chosen[i] for i in decided], self.tick)
        rejected = model.scores(prompts, [self.rejected[i] for i in decided], self.tick)
        scores = model.scores(*self.reference, tick=self.tick).double()
        lengths = torch.tensor([float(len(row)) for row in self.reference.responses], dtype=torch.float64)
        correlation = torch.corrcoef(torch.stack([scores, lengths]))[0, 1]
        return {
            "labels": len(self.comparisons),
            "ties": int(self.tie.sum()),
            "train_accuracy": float((chosen > rejected).double().mean()),
            "loss": losses,
            "chosen_scores": [round(float(x), 4) for x in chosen],
            "rejected_scores": [round(float(x), 4) for x in rejected],
            "length_correlation": float(correlation) if math.isfinite(float(correlation)) else None,
        }
