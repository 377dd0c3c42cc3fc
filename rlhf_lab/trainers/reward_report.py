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

from rlhf_lab.intervals import wilson_interval
from rlhf_lab.records import Comparison

BINS = 5
MOST_DISAGREEMENTS = 20


@dataclass(frozen=True)
class HeldOut:
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


def held_out_figures(held: Sequence[HeldOut], comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """accuracy, its interval, calibration, expected_calibration_error and disagreements, over decided labels."""
    decided = [one for one in held if not comparisons[one.index].tie]
    right = sum(one.probability > 0.5 for one in decided)
    low, high = wilson_interval(right, len(decided))
    bins = calibration([one.probability for one in decided])
    wrong = sorted((one for one in decided if one.probability < 0.5), key=lambda one: (one.probability, one.index))
    return {
        "accuracy": right / len(decided) if decided else None,
        "accuracy_low": low,
        "accuracy_high": high,
        "calibration": [[round(predicted, 4), round(observed, 4), count] for predicted, observed, count in bins],
        "expected_calibration_error": calibration_error(bins),
        "disagreements": [
            {"index": one.index, "probability": round(one.probability, 4)} for one in wrong[:MOST_DISAGREEMENTS]
        ],
    }


def calibration(probabilities: Sequence[float], bins: int = BINS) -> list[tuple[float, float, int]]:
    """(mean confidence, share that was right, count) in bins of equal counts (up to one), least confident first.

    probabilities: those of the labels. The model's own choice is right where it is above 0.5, and its confidence is
    max(p, 1 - p). Fewer labels than bins make a bin each.
    """
    alike = defaultdict(list)
    for p in probabilities:
        alike[max(p, 1 - p)].append(p > 0.5)
    # Labels of one confidence count as the share of them that is right, else a bin's edge would part right from wrong.
    ordered = [(one, sum(hits) / len(hits)) for one, hits in sorted(alike.items()) for _ in hits]
    bins = min(bins, len(ordered))
    edges = [i * len(ordered) // bins for i in range(bins + 1)] if bins else []
    found = []
    for start, end in itertools.pairwise(edges):
        some = ordered[start:end]
        predicted = math.fsum(confidence for confidence, _ in some) / len(some)
        found.append((predicted, math.fsum(share for _, share in some) / len(some), len(some)))
    return found


def calibration_error(bins: Sequence[tuple[float, float, int]]) -> float | None:
    """Mean of |confidence - share that was right| over labels; None without any."""
    total = sum(count for _, _, count in bins)
    if not total:
        return None
    return math.fsum(count * abs(predicted - observed) for predicted, observed, count in bins) / total


def log_loss(held: Sequence[HeldOut], comparisons: Sequence[Comparison]) -> float:
    """Mean nats a held-out label: -log p, and half of both sides for a tie."""
    total = 0.0
    for one in held:
        won, lost = (-math.log(max(p, 1e-12)) for p in (one.probability, 1 - one.probability))
        total += (won + lost) / 2 if comparisons[one.index].tie else won
    return total / len(held)


def agreement(comparisons: Sequence[Comparison]) -> dict[str, float] | None:
    """{"share", "count"}: of every two labels of the same pair, the share that agree; None where no pair has two.

    A pair is its prompt and its two texts in either order. Two ties agree; a tie and a decision do not.
    """
    said = defaultdict(list)
    for c in comparisons:
        sides = (c.prompt, c.chosen, c.chosen_ids), (c.prompt, c.rejected, c.rejected_ids)
        said[frozenset(sides)].append(None if c.tie else sides[0])
    same = count = 0
    for answers in said.values():
        for i, first in enumerate(answers):
            for second in answers[:i]:
                count, same = count + 1, same + (first == second)
    return {"share": same / count, "count": count} if count else None


def length_correlation(scores: Tensor, responses: Sequence[Sequence[int]]) -> float | None:
    """Pearson correlation of scores (N,) with the number of tokens; None where either is constant."""
    lengths = scores.new_tensor([float(len(row)) for row in responses])
    pair = [x - x.mean() for x in (scores, lengths)]
    found = float((pair[0] * pair[1]).sum() / (pair[0].norm() * pair[1].norm()))
    return found if math.isfinite(found) else None
