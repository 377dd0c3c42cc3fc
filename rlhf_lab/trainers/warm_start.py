"""The head of a reward model fitted on frozen features: a convex problem, solved exactly in milliseconds.

Few labels decide a live demo. A LoRA adapter trained from nothing needs hundreds of them; a ridge-regularised
Bradley-Terry fit on the pooled hidden states of the frozen backbone already ranks texts after a few dozen.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Labels(NamedTuple):
    """What was said about N pairs: ties (N,) bool; strengths (N,) margins of the score, ignored on ties; weights (N,) how
    often each label counts. Weights and margins are float64."""

    ties: Tensor
    margins: Tensor | None = None
    weights: Tensor | None = None
    smoothing: float = 0.0


def fit(differences: Tensor, labels: Labels, ridge: float, iterations: int = 30) -> Tensor:
    """Weights (H,) that minimise sum of Bradley-Terry losses + ridge/2 |w|², by Newton's method.

    differences: (N, H) float64, features of chosen minus rejected. A tie's target is 0.5.
    """
    weights = differences.new_zeros(differences.shape[1])
    target = differences.new_full((len(differences),), 1.0 - labels.smoothing).masked_fill(labels.ties, 0.5)
    margins = torch.zeros_like(target) if labels.margins is None else labels.margins.masked_fill(labels.ties, 0.0)
    counts = torch.ones_like(target) if labels.weights is None else labels.weights
    eye = torch.eye(differences.shape[1], dtype=differences.dtype)
    for _ in range(iterations):
        probability = torch.sigmoid(differences @ weights - margins)
        gradient = differences.T @ (counts * (probability - target)) + ridge * weights
        curvature = (counts * probability * (1 - probability))[:, None] * differences
        step = torch.linalg.solve(differences.T @ curvature + ridge * eye, gradient)
        weights = weights - step
        if float(step.abs().max()) < 1e-10:
            break
    return weights


def fold_of(groups: Sequence[int], folds: int) -> list[int]:
    """A fold for every item: groups are dealt to the folds in turn, by their first appearance."""
    order = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    return [order[group] % folds for group in groups]
