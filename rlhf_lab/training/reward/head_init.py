"""Fits the head of a reward model on frozen features: a convex problem, solved exactly in milliseconds.

A LoRA adapter needs hundreds of labels; a ridge-regularised Bradley-Terry fit on the pooled hidden states of the frozen backbone
ranks texts after a few dozen. The fit is that of the instant reward model (core/preference_fit.py).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf_lab.core.preference_fit import LayerScaler, PreferenceTargets, choose_ridge, fit_dual, held_out_scores

#: With more labels, a head is fitted to an evenly spaced subset of this size: the time grows with its cube, and the
#: accuracy hardly grows.
MAX_HEAD_LABELS = 4000


class HeadFit(NamedTuple):
    """A head fitted to the comparisons `indices` (n,).

    weights: (F,) float32, of features; bias: makes the mean score of the reference texts 0. scaled_weights: (F,) float64,
    of scaled features. held_out: (n,) float64, score differences by heads fitted without the labels of the same group.
    """

    indices: list[int]
    weights: Tensor
    bias: float
    scaled_weights: Tensor
    held_out: Tensor
    ridge: float


class HeadFitter:
    """Fits heads to any of the comparisons.

    differences: (N, F) float32 features of chosen minus rejected, scaled (`LayerScaler`). gram: (N, N) of them.
    """

    def __init__(
        self, differences: Tensor, reference: Tensor, layers: int, targets: PreferenceTargets, groups: Sequence[int],
        ridge: float,
    ) -> None:  # fmt: skip
        """differences (N, F), reference (M, F) float32: features, in `layers` blocks; ridge: 0 chooses it for each fit."""
        self.scaler = LayerScaler(reference.numpy(), layers)
        self.differences = torch.from_numpy(self.scaler(differences.numpy()))
        self.targets, self.groups, self.ridge = targets, groups, ridge
        self.rows = range(0, len(differences), -(-len(differences) // MAX_HEAD_LABELS))
        rows = self.differences[:: self.rows.step]
        self.gram = torch.mm(rows, rows.T).double().numpy()

    def fit(self, indices: Sequence[int], counts: Tensor) -> HeadFit:
        """counts: (N,) how often each label counts."""
        indices = [i for i in indices if i in self.rows]
        positions = [i // self.rows.step for i in indices]
        gram, groups = self.gram[positions][:, positions], [self.groups[i] for i in indices]
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
        held_out = torch.from_numpy(held_out_scores(gram, fit, groups))
        bias = -float(torch.from_numpy(self.scaler.mean) @ weights)
        return HeadFit(indices, weights, bias, scaled_weights.double(), held_out, ridge)

    def score_differences(self, fit: HeadFit, indices: Sequence[int]) -> Tensor:
        """(n,) float64 score of chosen minus rejected of the comparisons `indices`."""
        return self.differences[list(indices)].double() @ fit.scaled_weights


def assign_folds(groups: Sequence[int], folds: int) -> list[int]:
    """The fold of each item: groups are assigned to folds in turn, in order of first appearance."""
    group_order = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    return [group_order[group] % folds for group in groups]
