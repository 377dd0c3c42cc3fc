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
VARIANCE_FLOOR = 0.05


class FeatureScaler:
    """A symmetric map of features that says beforehand which directions matter: those in which the base's texts differ.

    A direction of variance v (of M base samples; in units of the mean variance) is stretched by (v + FLOOR) ** power, and then
    all by one number, so that base features have unit spread: a ridge in stretched features is a gaussian prior on the head
    whose variance is that factor squared. power 0: every direction alike. 0.5 and more would trust the largest few alone.
    """

    def __init__(self, reference_features: Tensor, power: float) -> None:
        """base: (M, H) float64 features of the base model's samples, M >= 2."""
        self.mean = reference_features.mean(0)
        centred = reference_features - self.mean
        _, singular_values, self.directions = torch.linalg.svd(centred, full_matrices=False)
        variance = singular_values.square()
        variance = variance * reference_features.shape[1] / variance.sum().clamp_min(1e-300)
        self.base_scale = float(VARIANCE_FLOOR**power)
        self.extra_scales = (variance + VARIANCE_FLOOR) ** power - self.base_scale
        scaled_std = self._scale_directions(centred).std(0).norm() / math.sqrt(reference_features.shape[1])
        self.normalizer = 1.0 / float(scaled_std) if float(scaled_std) > 0 else 1.0

    def _scale_directions(self, x: Tensor) -> Tensor:
        projections = torch.matmul(x, self.directions.T) * self.extra_scales
        return torch.matmul(projections, self.directions) + self.base_scale * x

    def __call__(self, x: Tensor) -> Tensor:
        """(N, H) -> (N, H). Being symmetric, it also takes weights on stretched features back to weights on features."""
        return self._scale_directions(x) * self.normalizer


class PreferenceTargets(NamedTuple):
    """What was said about N pairs: ties (N,) bool; strengths (N,) margins of the score, ignored on ties; weights (N,) how
    often each label counts. Weights and margins are float64."""

    ties: Tensor
    margins: Tensor | None = None
    counts: Tensor | None = None
    label_smoothing: float = 0.0


def fit_head_weights(differences: Tensor, targets: PreferenceTargets, ridge: float, iterations: int = 100) -> Tensor:
    """Weights (H,) that minimise sum of Bradley-Terry losses + ridge/2 |w|², by Newton's method.

    differences: (N, H) float64, features of chosen minus rejected. A tie's target is 0.5.
    A step that does not lower the loss is halved (Armijo): whole ones jump to and fro for ever where margins begin at flat ends.
    """
    if len(differences) < differences.shape[1]:  # the weights are a combination of the rows: N unknowns, not H
        basis, reduced = torch.linalg.qr(differences.T)
        return torch.mv(basis, fit_head_weights(reduced.T, targets, ridge, iterations))
    weights = differences.new_zeros(differences.shape[1])
    target_probs = differences.new_full((len(differences),), 1.0 - targets.label_smoothing).masked_fill(
        targets.ties, 0.5
    )
    margins = (
        torch.zeros_like(target_probs) if targets.margins is None else targets.margins.masked_fill(targets.ties, 0.0)
    )
    counts = torch.ones_like(target_probs) if targets.counts is None else targets.counts
    eye = torch.eye(differences.shape[1], dtype=differences.dtype)

    def loss(weights: Tensor) -> float:
        logit = differences @ weights - margins
        log_likelihoods = target_probs * logsigmoid(logit) + (1 - target_probs) * logsigmoid(-logit)
        return float(ridge / 2 * weights @ weights - counts @ log_likelihoods)

    for _ in range(iterations):
        probability = torch.sigmoid(differences @ weights - margins)
        gradient = differences.T @ (counts * (probability - target_probs)) + ridge * weights
        weighted_differences = (counts * probability * (1 - probability))[:, None] * differences
        step = torch.linalg.solve(differences.T @ weighted_differences + ridge * eye, gradient)
        loss_before, armijo_decrease = loss(weights), 0.1 * float(gradient @ step)
        tolerance, step_size = 1e-12 * loss_before, 1.0
        while (
            loss(weights - step_size * step) > loss_before - step_size * armijo_decrease + tolerance
            and step_size > 1e-9
        ):
            step_size /= 2
        step = step_size * step
        weights = weights - step
        if float(step.abs().max()) < 1e-10:
            break
    return weights


def assign_folds(groups: Sequence[int], folds: int) -> list[int]:
    """A fold for every item: groups are dealt to the folds in turn, by their first appearance."""
    group_order = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    return [group_order[group] % folds for group in groups]
