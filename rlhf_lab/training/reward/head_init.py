"""Fits the head of a reward model on frozen features: a convex problem, solved exactly in milliseconds.

A LoRA adapter needs hundreds of labels; a ridge-regularised Bradley-Terry fit on the pooled hidden states of the frozen backbone
ranks texts after a few dozen.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

#: Added to the variance of each direction, in units of the mean variance, so that none is scaled to 0.
VARIANCE_FLOOR = 0.05


class FeatureScaler:
    """A symmetric linear map of features that encodes a prior: directions in which the base model's texts vary matter more.

    A direction of variance v (over M base samples, in units of the mean variance) is scaled by (v + VARIANCE_FLOOR) ** power, and
    all directions by one factor that gives base features unit spread. A ridge penalty on weights of scaled features is a Gaussian
    prior on the head whose variance in that direction is the square of its scale. power 0: all directions alike. Powers of 0.5
    and more would let the few largest directions dominate.
    """

    def __init__(self, reference_features: Tensor, power: float) -> None:
        """reference_features: (M, H) float64 features of the base model's samples, M >= 2."""
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
        """(N, H) -> (N, H). Being symmetric, it also maps weights of scaled features to weights of features."""
        return self._scale_directions(x) * self.normalizer


class PreferenceTargets(NamedTuple):
    """The labels of N pairs. ties: (N,) bool; margins: (N,) float64, of the score difference, ignored on ties; counts: (N,)
    float64, how often each label counts."""

    ties: Tensor
    margins: Tensor | None = None
    counts: Tensor | None = None
    label_smoothing: float = 0.0


def fit_head_weights(differences: Tensor, targets: PreferenceTargets, ridge: float, iterations: int = 100) -> Tensor:
    """Weights (H,) that minimise sum of Bradley-Terry losses + ridge/2 |w|², by Newton's method.

    differences: (N, H) float64, features of chosen minus rejected. A tie's target is 0.5.
    Backtracking line search (Armijo): full steps oscillate where margins start in the flat part of the loss.
    """
    if len(differences) < differences.shape[1]:  # the solution lies in the span of the rows: N unknowns, not H
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
    """The fold of each item: groups are assigned to folds in turn, in order of first appearance."""
    group_order = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    return [group_order[group] % folds for group in groups]
