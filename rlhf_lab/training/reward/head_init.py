"""Fits the head of a reward model on frozen features: a convex problem, solved exactly in milliseconds.

A LoRA adapter needs hundreds of labels; a ridge-regularised Bradley-Terry fit on the pooled hidden states of the frozen backbone
ranks texts after a few dozen. The fit is that of the instant reward model (core/preference_fit.py).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlhf_lab.core.attribute_effects import (
    AttributeEffects,
    AttributeRegression,
    attribute_effects,
    attribute_gram,
    held_out_attribute_scores,
)
from rlhf_lab.core.preference_fit import LayerScaler, PreferenceTargets, choose_ridge, fit_dual, held_out_scores

#: With more labels, a head is fitted to an evenly spaced subset of this size: the time grows with its cube, and the
#: accuracy hardly grows.
MAX_HEAD_LABELS = 4000


class HeadFit(NamedTuple):
    """A head fitted to the comparisons `indices` (n,).

    weights: (F,) float32, of features; bias: makes the mean score of the reference texts 0. scaled_weights: (F,) float64,
    of scaled features. held_out: (n,) float64, score differences by heads fitted without the labels of the same group.
    effects: of the attributes that are fitted jointly with the features; the scores do not contain them.
    """

    indices: list[int]
    weights: Tensor
    bias: float
    scaled_weights: Tensor
    held_out: Tensor
    ridge: float
    effects: AttributeEffects | None = None


class PairAttributes(NamedTuple):
    """Attributes (A of them) that are fitted jointly with the features, float64: of chosen minus rejected (N, A), and of the
    reference texts (M, A)."""

    differences: Tensor
    reference: Tensor


class HeadFitter:
    """Fits heads to any of the comparisons.

    differences: (N, F) float32 features of chosen minus rejected, scaled (`LayerScaler`), and less their regression on the
    attributes if there are any (core/attribute_effects.py). gram: (N, N) of them. attributes: (N, A) scaled differences.
    """

    def __init__(
        self, differences: Tensor, reference: Tensor, layers: int, targets: PreferenceTargets, groups: Sequence[int],
        ridge: float, attributes: PairAttributes | None = None,
    ) -> None:  # fmt: skip
        """differences (N, F), reference (M, F) float32: features, in `layers` blocks; ridge: 0 chooses it for each fit."""
        self.scaler = LayerScaler(reference.numpy(), layers)
        scaled = self.scaler(differences.numpy())
        self.attributes, self.attribute_sd = np.zeros((len(differences), 0)), np.ones(0)
        self.slopes = np.zeros(
            (0, scaled.shape[1])
        )  # (A, F) of the features by the attributes, over the reference texts
        if attributes is not None:
            regression = AttributeRegression(self.scaler(reference.numpy()), attributes.reference.numpy())
            self.attributes = regression.scaler.differences(attributes.differences.numpy())
            self.attribute_sd, self.slopes = regression.scaler.sd, regression.slopes
            scaled = regression.residual(scaled, self.attributes)
        self.differences = torch.from_numpy(scaled)
        self.targets, self.groups, self.ridge = targets, groups, ridge
        self.rows = range(0, len(differences), -(-len(differences) // MAX_HEAD_LABELS))
        rows = self.differences[:: self.rows.step]
        self.gram = torch.mm(rows, rows.T).double().numpy()

    def fit(self, indices: Sequence[int], counts: Tensor) -> HeadFit:
        """counts: (N,) how often each label counts."""
        indices = [i for i in indices if i in self.rows]
        positions = [i // self.rows.step for i in indices]
        gram, groups = self.gram[positions][:, positions], [self.groups[i] for i in indices]
        attributes = self.attributes[indices]
        gram = gram + attribute_gram(attributes) if attributes.size else gram
        targets = PreferenceTargets(
            self.targets.ties[indices],
            self.targets.margins[indices] if self.targets.margins is not None else None,
            counts[indices].double().numpy(),
            self.targets.label_smoothing,
        )
        ridge = self.ridge or choose_ridge(gram, targets, groups)
        fit = fit_dual(gram, targets, ridge)
        scaled_weights = torch.from_numpy(fit.coefficients).float() @ self.differences[indices]
        weights = scaled_weights * torch.from_numpy(self.scaler.scales)
        held_out = held_out_scores(gram, fit, groups)
        bias = -float(torch.from_numpy(self.scaler.mean) @ weights)
        effects = None
        if attributes.size:
            held_out = held_out - held_out_attribute_scores(gram, fit, attributes, groups)
            effects = attribute_effects(gram, fit, targets, attributes)
        return HeadFit(indices, weights, bias, scaled_weights.double(), torch.from_numpy(held_out), ridge, effects)

    def attribute_scores(self, fit: HeadFit) -> Tensor:
        """(N,) float32: what the attributes add to the log-odds of each comparison in addition to the head; 0 without attributes.

        The head reads whole features. The fit has their residuals, so what the head adds through the attributes is subtracted.
        """
        if fit.effects is None:
            return torch.zeros(len(self.differences))
        beside_head = fit.effects.log_odds - self.slopes @ fit.scaled_weights.numpy()
        return torch.from_numpy(self.attributes @ beside_head).float()

    def score_differences(self, fit: HeadFit, indices: Sequence[int]) -> Tensor:
        """(n,) float64 score of chosen minus rejected of the comparisons `indices`."""
        return self.differences[list(indices)].double() @ fit.scaled_weights


def assign_folds(groups: Sequence[int], folds: int) -> list[int]:
    """The fold of each item: groups are assigned to folds in turn, in order of first appearance."""
    group_order = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    return [group_order[group] % folds for group in groups]
