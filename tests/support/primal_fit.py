"""The fit of the head by Newton's method in the primal, in torch: the reference for core/preference_fit.py."""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def primal_weights(
    differences: Tensor, ties: Tensor, margins: Tensor, counts: Tensor, *, label_smoothing: float, ridge: float
) -> Tensor:
    """Weights (H,) that minimise sum of Bradley-Terry losses + ridge/2 |w|²; differences (N, H) float64."""
    weights = differences.new_zeros(differences.shape[1])
    target_probs = differences.new_full((len(differences),), 1.0 - label_smoothing).masked_fill(ties, 0.5)
    margins = margins.masked_fill(ties, 0.0)
    eye = torch.eye(differences.shape[1], dtype=differences.dtype)

    def loss(weights: Tensor) -> float:
        logit = differences @ weights - margins
        log_likelihoods = target_probs * logsigmoid(logit) + (1 - target_probs) * logsigmoid(-logit)
        return float(ridge / 2 * weights @ weights - counts @ log_likelihoods)

    for _ in range(100):
        probability = torch.sigmoid(differences @ weights - margins)
        gradient = differences.T @ (counts * (probability - target_probs)) + ridge * weights
        weighted_differences = (counts * probability * (1 - probability))[:, None] * differences
        step = torch.linalg.solve(differences.T @ weighted_differences + ridge * eye, gradient)
        step_size = 1.0
        while loss(weights - step_size * step) > loss(weights) + 1e-12 and step_size > 1e-9:
            step_size /= 2
        weights = weights - step_size * step
    return weights
