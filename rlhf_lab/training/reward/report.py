"""What is known of a reward model, from labels that it did not see: accuracy, calibration, and where it disagrees.

Guo et al. 2017 "On calibration of modern neural networks" (reliability diagram, expected calibration error); bins of equal
counts, because the confidences of a small model lie close together: Nguyen & O'Connor 2015.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from rlhf_lab.common.records import Comparison
from rlhf_lab.common.stats import wilson_interval

CALIBRATION_BINS = 5
MAX_DISAGREEMENTS = 20


@dataclass(frozen=True)
class HeldOutPrediction:
    """A comparison by its index, and the probability of its label under a model that was trained without its prompt."""

    index: int
    probability: float


@dataclass(frozen=True)
class RewardReport:
    """What is known of a reward model. accuracy is cross-validated over decided (non-tie) labels; low, high: 95 % Wilson.

    calibration: [mean predicted, observed share, count] of held-out labels, least confident first: how sure the model was of
    its own choice, and how often that was the label. expected_calibration_error: their distance, weighted by count.
    disagreements: {"index": of the comparison, "probability": of its label}, held out and below 0.5, the worst first.
    agreement: among pairs that were labelled more than once, the share of two labels that say the same, and their number.
    epochs: passes of the final fit; fewer than asked for where it stopped early.
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
    agreement: dict[str, float] | None = None
    epochs: int = 0


def held_out_metrics(held_out: Sequence[HeldOutPrediction], comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """accuracy, its interval, calibration, expected_calibration_error and disagreements, over decided labels."""
    decided = [prediction for prediction in held_out if not comparisons[prediction.index].tie]
    correct = sum(prediction.probability > 0.5 for prediction in decided)
    low, high = wilson_interval(correct, len(decided))
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
    }


def calibration(probabilities: Sequence[float], bins: int = CALIBRATION_BINS) -> list[tuple[float, float, int]]:
    """(mean confidence, share that was right, count) in bins of equal counts (up to one), least confident first.

    probabilities: those of the labels. The model's own choice is right where it is above 0.5, and its confidence is
    max(p, 1 - p). Fewer labels than bins make a bin each.
    """
    hits_by_confidence = defaultdict(list)
    for p in probabilities:
        hits_by_confidence[max(p, 1 - p)].append(p > 0.5)
    # Labels of one confidence count as the share of them that is right, else a bin's edge would part right from wrong.
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
    """Mean of |confidence - share that was right| over labels; None without any."""
    total = sum(count for _, _, count in bins)
    if not total:
        return None
    return math.fsum(count * abs(predicted - observed) for predicted, observed, count in bins) / total


def log_loss(held_out: Sequence[HeldOutPrediction], comparisons: Sequence[Comparison]) -> float:
    """Mean nats a held-out label: -log p, and half of both sides for a tie."""
    total = 0.0
    for prediction in held_out:
        label_nats, other_nats = (
            -math.log(max(p, 1e-12)) for p in (prediction.probability, 1 - prediction.probability)
        )
        total += (label_nats + other_nats) / 2 if comparisons[prediction.index].tie else label_nats
    return total / len(held_out)


def agreement(comparisons: Sequence[Comparison]) -> dict[str, float] | None:
    """{"share", "count"}: of every two labels of the same pair, the share that agree; None where no pair has two.

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
    """Pearson correlation of scores (N,) with the number of tokens; None where either is constant."""
    lengths = scores.new_tensor([float(len(row)) for row in responses])
    centred = [x - x.mean() for x in (scores, lengths)]
    correlation = float((centred[0] * centred[1]).sum() / (centred[0].norm() * centred[1].norm()))
    return correlation if math.isfinite(correlation) else None
