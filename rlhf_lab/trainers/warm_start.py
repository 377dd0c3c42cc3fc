"""The head of a reward model fitted on frozen features: a convex problem, solved exactly in milliseconds.

Few labels decide a live demo. A LoRA adapter trained from nothing needs hundreds of them; a ridge-regularised
Bradley-Terry fit on the pooled hidden states of the frozen backbone already ranks texts after a few dozen.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

#: Directions in which the base model's texts do not differ at all still count as if they had this share of the mean variance.
FLOOR = 0.05


class Stretch:
    """A symmetric map of features that says beforehand which directions matter: those in which the base's texts differ.

    A direction of variance v (of M base samples; in units of the mean variance) is stretched by (v + FLOOR) ** power, and then
    all by one number, so that base features have unit spread: a ridge in stretched features is a gaussian prior on the head
    whose variance is that factor squared. power 0: every direction alike. 0.5 and more would trust the largest few alone.
    """

    def __init__(self, base: Tensor, power: float) -> None:
        """base: (M, H) float64 features of the base model's samples, M >= 2."""
        self.mean = base.mean(0)
        centred = base - self.mean
        _, singular, self.directions = torch.linalg.svd(centred, full_matrices=False)
        variance = singular.square()
        variance = variance * base.shape[1] / variance.sum().clamp_min(1e-300)
        self.rest = float(FLOOR**power)
        self.more = (variance + FLOOR) ** power - self.rest
        spread = self._stretch(centred).std(0).norm() / math.sqrt(base.shape[1])
        self.unit = 1.0 / float(spread) if float(spread) > 0 else 1.0

    def _stretch(self, x: Tensor) -> Tensor:
        along = torch.matmul(x, self.directions.T) * self.more
        return torch.matmul(along, self.directions) + self.rest * x

    def __call__(self, x: Tensor) -> Tensor:
        """(N, H) -> (N, H). Being symmetric, it also takes weights on stretched features back to weights on features."""
        return self._stretch(x) * self.unit


class Labels(NamedTuple):
    """What was said about N pairs: ties (N,) bool; strengths (N,) margins of the score, ignored on ties; weights (N,) how
    often each label counts. Weights and margins are float64."""

    ties: Tensor
    margins: Tensor | None = None
    weights: Tensor | None = None
    smoothing: float = 0.0


def fit(differences: Tensor, labels: Labels, ridge: float, iterations: int = 100) -> Tensor:
    """Weights (H,) that minimise sum of Bradley-Terry losses + ridge/2 |w|², by Newton's method.

    differences: (N, H) float64, features of chosen minus rejected. A tie's target is 0.5.
    A step that does not lower the loss is halved (Armijo): whole ones jump to and fro for ever where margins begin at flat ends.
    """
    if len(differences) < differences.shape[1]:  # the weights are a combination of the rows: N unknowns, not H
        basis, rows = torch.linalg.qr(differences.T)
        return torch.mv(basis, fit(rows.T, labels, ridge, iterations))
    weights = differences.new_zeros(differences.shape[1])
    target = differences.new_full((len(differences),), 1.0 - labels.smoothing).masked_fill(labels.ties, 0.5)
    margins = torch.zeros_like(target) if labels.margins is None else labels.margins.masked_fill(labels.ties, 0.0)
    counts = torch.ones_like(target) if labels.weights is None else labels.weights
    eye = torch.eye(differences.shape[1], dtype=differences.dtype)

    def loss(weights: Tensor) -> float:
        logit = differences @ weights - margins
        nats = target * logsigmoid(logit) + (1 - target) * logsigmoid(-logit)
        return float(ridge / 2 * weights @ weights - counts @ nats)

    for _ in range(iterations):
        probability = torch.sigmoid(differences @ weights - margins)
        gradient = differences.T @ (counts * (probability - target)) + ridge * weights
        curvature = (counts * probability * (1 - probability))[:, None] * differences
        step = torch.linalg.solve(differences.T @ curvature + ridge * eye, gradient)
        before, wanted = loss(weights), 0.1 * float(gradient @ step)
        rounding, share = 1e-12 * before, 1.0
        while loss(weights - share * step) > before - share * wanted + rounding and share > 1e-9:
            share /= 2
        step = share * step
        weights = weights - step
        if float(step.abs().max()) < 1e-10:
            break
    return weights


def fold_of(groups: Sequence[int], folds: int) -> list[int]:
    """A fold for every item: groups are dealt to the folds in turn, by their first appearance."""
    order = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    return [order[group] % folds for group in groups]
