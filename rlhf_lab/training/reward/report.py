"""The quality of a reward model on held-out labels: accuracy, calibration, and disagreements.

Guo et al. 2017 "On calibration of modern neural networks" (reliability diagram, expected calibration error); bins of equal
counts, because the confidences of a small model are close together: Nguyen & O'Connor 2015.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from rlhf_lab.common.records import Comparison
from rlhf_lab.common.stats import held_out_interval, hit

CALIBRATION_BINS = 5
MAX_DISAGREEMENTS = 20
MAX_DIFFERENCES = 100
MAX_CERTAINTY = 1 - 1e-4  # of a difference


@dataclass(frozen=True)
class HeldOutPrediction:
    """The index of a comparison, and the probability of its label under a model that was trained without its prompt."""

    index: int
    probability: float


@dataclass(frozen=True)
class AttributeEffect:
    """name: in ATTRIBUTES. log_odds: what its `step` adds to the log-odds of being preferred; low, high: 95 % interval."""

    name: str
    log_odds: float
    low: float
    high: float


@dataclass(frozen=True)
class RewardReport:
    """accuracy: over decided (non-tie) labels that were held out, `folds` times; accuracy_low, accuracy_high: the 95 % interval
    of the expected accuracy on new prompts of a model trained on as many labels. A fitted head holds out every group of labels
    once, an adapter some groups (`held_out_interval`).

    adapter: the fitted head and the adapter on the same held-out labels ("labels", "head_accuracy", "adapter_accuracy",
    "head_loss", "adapter_loss" in nats per label), and whether the adapter is "used"; None if they were not compared.

    calibration: [mean confidence, accuracy, count] of each bin of held-out labels, least confident first.
    expected_calibration_error: mean difference of confidence and accuracy, weighted by count.
    disagreements: {"index": of the comparison, "probability": of its label}, held out and below 0.5, the worst first.
    differences: of the scores of the first held-out labels, chosen minus rejected: the log-odds of `probability`.
    agreement: among pairs that were labelled more than once, the fraction of equal labels and the number of label pairs.
    epochs: of the final fit; fewer than configured with early stopping, or if the adapter does not help. indistinguishable:
    labels that were left out because the model reads the same tokens for both texts. `labels` and `ties` count neither these
    nor labels of weight or count 0. attribute_effects: on the labels, of the attributes in which labelled texts differ.
    """

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
    calibration: list[list[float]] = field(default_factory=list)
    expected_calibration_error: float | None = None
    disagreements: list[dict[str, float]] = field(default_factory=list)
    differences: list[float] = field(default_factory=list)
    agreement: dict[str, float] | None = None
    epochs: int = 0
    indistinguishable: int = 0
    adapter: dict[str, Any] | None = None
    attribute_effects: list[AttributeEffect] = field(default_factory=list)


def held_out_metrics(
    held_out: Sequence[HeldOutPrediction], comparisons: Sequence[Comparison], *, cross_validated: bool = False
) -> dict[str, Any]:
    """accuracy, its interval, calibration, expected_calibration_error, disagreements and differences, over decided labels.

    cross_validated: whether each group was predicted by a model of its own, trained on the others, not all by one model.
    """
    decided = [prediction for prediction in held_out if not comparisons[prediction.index].tie]
    correct = sum(hit(prediction.probability - 0.5) for prediction in decided)
    hits = [(comparisons[prediction.index].group, hit(prediction.probability - 0.5)) for prediction in decided]
    low, high = held_out_interval(hits, cross_validated=cross_validated)
    bins = calibration([prediction.probability for prediction in decided])
    wrong = sorted(
        (prediction for prediction in decided if prediction.probability < 0.5),
        key=lambda prediction: (prediction.probability, prediction.index),
    )
    return {
        "accuracy": correct / len(decided) if decided else None,
        "accuracy_low": low,
        "accuracy_high": high,
        "calibration": [[round(predicted, 4), round(observed, 4), count] for predicted, observed, count in bins],
        "expected_calibration_error": expected_calibration_error(bins),
        "disagreements": [
            {"index": prediction.index, "probability": round(prediction.probability, 4)}
            for prediction in wrong[:MAX_DISAGREEMENTS]
        ],
        "differences": [round(log_odds(prediction.probability), 3) for prediction in decided[:MAX_DIFFERENCES]],
    }


def log_odds(probability: float) -> float:
    """In nats; at most about 9 from 0."""
    p = min(max(probability, 1 - MAX_CERTAINTY), MAX_CERTAINTY)
    return math.log(p / (1 - p))


def calibration(probabilities: Sequence[float], bins: int = CALIBRATION_BINS) -> list[tuple[float, float, int]]:
    """(mean confidence, accuracy, count) in bins of equal counts (up to one), least confident first.

    probabilities: p of each label. The model is right where p > 0.5, half right at 0.5, with confidence max(p, 1 - p). With
    fewer labels than bins each label is a bin.
    """
    hits_by_confidence = defaultdict(list)
    for p in probabilities:
        hits_by_confidence[max(p, 1 - p)].append(hit(p - 0.5))
    # Labels of equal confidence share their accuracy; otherwise a bin edge could separate right from wrong ones.
    ordered = [(level, sum(hits) / len(hits)) for level, hits in sorted(hits_by_confidence.items()) for _ in hits]
    bins = min(bins, len(ordered))
    edges = [i * len(ordered) // bins for i in range(bins + 1)] if bins else []
    result = []
    for start, end in itertools.pairwise(edges):
        bin_items = ordered[start:end]
        predicted = math.fsum(confidence for confidence, _ in bin_items) / len(bin_items)
        result.append((predicted, math.fsum(share for _, share in bin_items) / len(bin_items), len(bin_items)))
    return result


def expected_calibration_error(bins: Sequence[tuple[float, float, int]]) -> float | None:
    """Mean of |confidence - accuracy| over labels; None without any."""
    total = sum(count for _, _, count in bins)
    if not total:
        return None
    return math.fsum(count * abs(predicted - observed) for predicted, observed, count in bins) / total


def log_losses(held_out: Sequence[HeldOutPrediction], comparisons: Sequence[Comparison]) -> list[float]:
    """Nats of each held-out label: -log p, and for a tie the mean of both sides."""
    losses = []
    for prediction in held_out:
        bradley_terry_nll, other_nats = (
            -math.log(max(p, 1e-12)) for p in (prediction.probability, 1 - prediction.probability)
        )
        losses.append((bradley_terry_nll + other_nats) / 2 if comparisons[prediction.index].tie else bradley_terry_nll)
    return losses


def agreement(comparisons: Sequence[Comparison]) -> dict[str, float] | None:
    """{"share", "count"}: of every two labels of the same pair, the fraction that agree; None if no pair has two.

    A pair is its prompt and its two texts in either order. Two ties agree; a tie and a decision do not.
    """
    answers_by_pair = defaultdict(list)
    for c in comparisons:
        sides = (c.prompt, c.chosen, c.chosen_ids), (c.prompt, c.rejected, c.rejected_ids)
        answers_by_pair[frozenset(sides)].append(None if c.tie else sides[0])
    agreed = count = 0
    for answers in answers_by_pair.values():
        for i, first in enumerate(answers):
            for second in answers[:i]:
                count, agreed = count + 1, agreed + (first == second)
    return {"share": agreed / count, "count": count} if count else None


def length_correlation(scores: Tensor, responses: Sequence[Sequence[int]]) -> float | None:
    """Pearson correlation of scores (N,) with response lengths in tokens; None if either is constant."""
    lengths = scores.new_tensor([float(len(row)) for row in responses])
    if not len(scores) or any(bool((x == x[0]).all()) for x in (scores, lengths)):
        return None
    centred = [x - x.mean() for x in (scores, lengths)]
    return float((centred[0] * centred[1]).sum() / (centred[0].norm() * centred[1].norm()))
