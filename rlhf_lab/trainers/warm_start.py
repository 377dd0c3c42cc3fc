"""The head of a reward model fitted on frozen features: a convex problem, solved exactly in milliseconds.

Few labels decide a live demo. A LoRA adapter trained from nothing needs hundreds of them; a ridge-regularised
Bradley-Terry fit on the pooled hidden states of the frozen backbone already ranks texts after a few dozen.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

RIDGES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


def fit(differences: Tensor, ties: Tensor, ridge: float, iterations: int = 30) -> Tensor:
    """Weights (H,) that minimise sum of Bradley-Terry losses + ridge/2 |w|², by Newton's method.

    differences: (N, H) float64, features of chosen minus rejected. ties: (N,) bool, whose target is 0.5.
    """
    weights = differences.new_zeros(differences.shape[1])
    target = torch.where(ties, 0.5, 1.0).to(differences)
    eye = torch.eye(differences.shape[1], dtype=differences.dtype)
    for _ in range(iterations):
        probability = torch.sigmoid(differences @ weights)
        gradient = differences.T @ (probability - target) + ridge * weights
        curvature = (probability * (1 - probability))[:, None] * differences
        step = torch.linalg.solve(differences.T @ curvature + ridge * eye, gradient)
        weights = weights - step
        if float(step.abs().max()) < 1e-10:
            break
    return weights


def choose_ridge(differences: Tensor, ties: Tensor, groups: Sequence[int], folds: int) -> float:
    """The ridge of RIDGES with the least cross-validated log-loss; folds never split a group."""
    assigned = fold_of(groups, max(2, folds))
    losses = dict.fromkeys(RIDGES, 0.0)
    for fold in sorted(set(assigned)):
        held = torch.tensor([f == fold for f in assigned])
        if bool(held.all()):
            return RIDGES[len(RIDGES) // 2]
        target = torch.where(ties[held], 0.5, 1.0).to(differences)
        for ridge in RIDGES:
            margin = differences[held] @ fit(differences[~held], ties[~held], ridge)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(margin, target, reduction="sum")
            losses[ridge] += float(loss)
    return min(losses, key=lambda ridge: losses[ridge])


def fold_of(groups: Sequence[int], folds: int) -> list[int]:
    """A fold for every item: groups are dealt to the folds in turn, by their first appearance."""
    order = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    return [order[group] % folds for group in groups]
