"""A ridge-regularised Bradley-Terry fit on frozen features in numpy, fast enough to be repeated after every vote.

The weights lie in the span of the N feature differences (chosen - rejected): w = differences^T a. A text has thousands of
features and N is a few hundred, so everything is computed from the Gram matrix of the differences, (N, N). The
coefficients a are found by Newton's method, as in the Laplace approximation of Gaussian processes (Rasmussen & Williams
2006, algorithm 3.1).
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Float32 = NDArray[np.float32]

#: Ridges to choose from. Features are scaled so that texts have a mean square distance of 1 from their mean.
RIDGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
MIN_CURVATURE = 1e-12  # lower bound, for labels in the flat part of the loss
MAX_NEWTON_STEPS = 100
ROUNDING = (
    1e-9  # left-out score differences below it, or below this share of the largest one of the fit, are equal scores
)
_CHUNK_ROWS = 64  # converted from half to single precision at a time


class PreferenceTargets(NamedTuple):
    """The labels of N pairs. ties: (N,) bool; margins: (N,), of the score difference, ignored on ties; counts: (N,), how often
    each label counts."""

    ties: NDArray[np.bool_]
    margins: Float64 | None = None
    counts: Float64 | None = None
    label_smoothing: float = 0.0


class DualFit(NamedTuple):
    """A fitted head: its weights are differences^T coefficients.

    scores: (N,), score of chosen minus score of rejected. gradient, curvature: (N,), first and second derivative of the loss of
    each label in its score difference.
    """

    coefficients: Float64
    scores: Float64
    gradient: Float64
    curvature: Float64
    ridge: float


def fit_dual(gram: Float64, targets: PreferenceTargets, ridge: float, start: Float64 | None = None) -> DualFit:
    """Minimise sum of Bradley-Terry losses + ridge/2 |w|² by Newton's method with a line search (Armijo).

    gram: (N, N) of the differences chosen - rejected. A tie's target is 0.5. start: (N,) coefficients to begin with.
    """
    count = len(gram)
    target_probs, margins, counts = _full_targets(targets)

    def loss(coefficients: Float64, scores: Float64) -> float:
        return float(ridge / 2 * coefficients @ scores) + bradley_terry_nll(scores, targets)

    coefficients = np.zeros(count) if start is None else start
    scores = gram @ coefficients
    for _ in range(MAX_NEWTON_STEPS):
        gradient, curvature = _derivatives(scores - margins, target_probs, counts)
        target = curvature * scores - gradient
        root = np.sqrt(curvature)
        solved = np.linalg.solve(scaled_system(gram, root, ridge), root * (gram @ target))
        step = (target - root * solved) / ridge - coefficients
        score_step = gram @ step
        loss_before, step_size = loss(coefficients, scores), 1.0
        armijo_decrease = -0.1 * float((gradient + ridge * coefficients) @ score_step)
        tolerance = 1e-12 * abs(loss_before)
        while (
            loss(coefficients + step_size * step, scores + step_size * score_step)
            > loss_before - step_size * armijo_decrease + tolerance
            and step_size > 1e-9
        ):
            step_size /= 2
        coefficients, scores = coefficients + step_size * step, scores + step_size * score_step
        if step_size * float(np.abs(score_step).max(initial=0.0)) < 1e-8:
            break
    return DualFit(coefficients, scores, *_derivatives(scores - margins, target_probs, counts), ridge)


def bradley_terry_nll(scores: Float64, targets: PreferenceTargets) -> float:
    """The sum of the Bradley-Terry losses at these score differences (N,), in nats."""
    target_probs, margins, counts = _full_targets(targets)
    logits = scores - margins
    nats = target_probs * np.logaddexp(0.0, -logits) + (1 - target_probs) * np.logaddexp(0.0, logits)
    return float(counts @ nats)


def held_out_scores(gram: Float64, fit: DualFit, groups: Sequence[Hashable]) -> Float64:
    """(N,) score differences, each by a head that was fitted without the labels of its group (one Newton step from the full fit).

    With H the Hessian without group b, w_b = w + H⁻¹ X_bᵀ g_b. In terms of the inverse C of ridge·I + W^½ K W^½ (K: gram, W:
    curvature) the score differences of the group become s_b + W_b^-½ ((ridge·C_bb)⁻¹ - I) W_b^-½ g_b. For a linear model
    this is exact (Cook 1977); for logistic regression: Pregibon 1981. Differences that are only rounding are 0: equal scores.
    """
    root = np.sqrt(fit.curvature)
    inverse = fit.ridge * np.linalg.inv(scaled_system(gram, root, fit.ridge))
    scaled_gradient = fit.gradient / root
    result = np.empty_like(fit.scores)
    for indices in indices_by_group(groups):
        block = scaled_gradient[indices]
        result[indices] = (
            fit.scores[indices] + (np.linalg.solve(inverse[np.ix_(indices, indices)], block) - block) / root[indices]
        )
    result[np.abs(result) < ROUNDING * max(1.0, float(np.abs(fit.scores).max(initial=0.0)))] = 0.0
    return result


def label_influences(gram: Float64, fit: DualFit, products: Float64) -> Float64:
    """(N,) by how much each label raises the score of a text: its score less that by a head that was fitted without the label.

    products: (N,), differences (chosen - rejected) times the features of the text. As in `held_out_scores`, with one Newton step
    from the full fit: without label i the coefficients a become a - M⁻¹_:i a_i / M⁻¹_ii, where M = K + ridge W⁻¹.
    """
    root = np.sqrt(fit.curvature)
    inverse = np.outer(root, root) * np.linalg.inv(scaled_system(gram, root, fit.ridge))
    influences: Float64 = (inverse @ products) * fit.coefficients / np.diag(inverse)
    return influences


def score_variance(gram: Float64, fit: DualFit, products: Float64, square_norm: Float64 | float) -> Float64:
    """The posterior variance of the score of a text, in the Laplace approximation (Rasmussen & Williams 2006, equation 3.24).

    products: (N, ...), as for `label_influences`. square_norm: (...), of the text's features. What no label says anything about
    keeps the prior's variance, square_norm / ridge. Returns (...).
    """
    scaled = (np.sqrt(fit.curvature) * products.T).T
    explained = (scaled * np.linalg.solve(scaled_system(gram, np.sqrt(fit.curvature), fit.ridge), scaled)).sum(0)
    variance: Float64 = np.maximum(0.0, square_norm - explained) / fit.ridge
    return variance


def log_loss(scores: Float64, targets: PreferenceTargets) -> float:
    """Mean nats per label: -log sigmoid(score difference), and for a tie the mean of both sides."""
    nats = np.where(targets.ties, (np.logaddexp(0, -scores) + np.logaddexp(0, scores)) / 2, np.logaddexp(0, -scores))
    return float(np.average(nats, weights=targets.counts))


def choose_ridge(
    gram: Float64, targets: PreferenceTargets, groups: Sequence[Hashable], ridges: Sequence[float] = RIDGES
) -> float:
    """The ridge with the lowest leave-one-group-out log-loss; if several are equal, the largest."""
    losses: dict[float, float] = {}
    start = None
    for ridge in sorted(ridges, reverse=True):
        fit = fit_dual(gram, targets, ridge, start)
        losses[ridge], start = log_loss(held_out_scores(gram, fit, groups), targets), fit.coefficients
    return min(losses, key=lambda ridge: losses[ridge])


class LayerScaler:
    """Scales features so that every layer of the model contributes equally to the variance, and the mean square distance of
    texts from their mean is 1.

    The features of a text are `layers` blocks of equal width. A layer in which all texts are equal is multiplied by 0.
    """

    def __init__(self, reference: Float32, layers: int) -> None:
        """reference: (M, D) features of M >= 2 texts."""
        self.mean = reference.mean(0)
        variance = (reference - self.mean).reshape(len(reference), layers, -1).var(0).sum(1)
        scales = np.divide(1.0, np.sqrt(layers * variance), out=np.zeros(layers), where=variance > 0)
        self.scales = np.repeat(scales, reference.shape[1] // layers).astype(np.float32)

    def __call__(self, features: Float32) -> Float32:
        """(…, D) scaled features; differences of texts need no centring."""
        return features * self.scales


class PairGram:
    """The scaled feature differences (first - second) of pairs, and their Gram matrix, which grows pair by pair."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.index_by_pair: dict[int, int] = {}
        self._rows = np.empty((0, width), np.float16)
        self._gram = np.empty((0, 0))

    def __len__(self) -> int:
        return len(self.index_by_pair)

    def add(self, pair_ids: Sequence[int], differences: Float32) -> None:
        """Add new pairs. differences: (n, D)."""
        start, end = len(self), len(self) + len(pair_ids)
        if end > len(self._rows):
            capacity = max(end, 3 * len(self._rows) // 2, 32)
            rows, gram = np.empty((capacity, self.width), np.float16), np.empty((capacity, capacity))
            rows[:start], gram[:start, :start] = self._rows[:start], self._gram[:start, :start]
            self._rows, self._gram = rows, gram
        root_width = np.float32(np.sqrt(self.width))  # features of size 1 instead of 1 / sqrt(D): half precision is
        self._rows[start:end] = differences * root_width  # coarse for small numbers
        self.index_by_pair.update({pair_id: start + i for i, pair_id in enumerate(pair_ids)})
        products: Float32 = self._dot(self._rows[start:end].astype(np.float32).T)
        self._gram[:end, start:end] = products
        self._gram[start:end, :end] = products.T

    def gram(self, pair_ids: Sequence[int], signs: Float64) -> Float64:
        """(N, N) Gram matrix of N labels, each of a pair. signs: (N,), 1 if first was chosen, -1 if second was."""
        indices = [self.index_by_pair[pair_id] for pair_id in pair_ids]
        result: Float64 = self._gram[np.ix_(indices, indices)] * np.outer(signs, signs)
        return result

    def products(self, pair_ids: Sequence[int], signs: Float64, features: Float32) -> Float64:
        """(N,) differences of N labels times the scaled features (D,) of a text. signs: as for `gram`."""
        products = self._dot(features[:, None] * np.float32(np.sqrt(self.width)))[:, 0]
        result: Float64 = products[[self.index_by_pair[pair_id] for pair_id in pair_ids]] * signs
        return result

    def weights(self, pair_ids: Sequence[int], signed_coefficients: Float64) -> Float32:
        """(D,) weights of scaled features. signed_coefficients: (N,), those of a fit times the signs of the labels."""
        by_row = np.zeros(len(self), np.float32)
        np.add.at(by_row, [self.index_by_pair[pair_id] for pair_id in pair_ids], signed_coefficients)
        total = np.zeros(self.width, np.float32)
        for chunk in self._chunks():
            total += by_row[chunk] @ self._rows[chunk].astype(np.float32)
        result: Float32 = total / np.float32(np.sqrt(self.width))
        return result

    def _dot(self, vectors: Float32) -> Float32:
        """(n, k) products of all rows with vectors (D, k), in the units of the differences."""
        parts = [self._rows[chunk].astype(np.float32) @ vectors for chunk in self._chunks()]
        return (np.concatenate(parts) / self.width).astype(np.float32, copy=False)

    def _chunks(self) -> list[slice]:
        return [slice(i, min(i + _CHUNK_ROWS, len(self))) for i in range(0, len(self), _CHUNK_ROWS)]


def _full_targets(targets: PreferenceTargets) -> tuple[Float64, Float64, Float64]:
    """(N,) target probabilities, margins (0 for ties) and counts."""
    ties, zeros = targets.ties, np.zeros(len(targets.ties))
    target_probs = np.where(ties, 0.5, 1.0 - targets.label_smoothing)
    margins = zeros if targets.margins is None else np.where(ties, 0.0, targets.margins)
    return target_probs, margins, zeros + 1.0 if targets.counts is None else targets.counts


def _derivatives(logits: Float64, target_probs: Float64, counts: Float64) -> tuple[Float64, Float64]:
    """First and second derivative of each label's loss in its score difference."""
    probs = 0.5 * (1.0 + np.tanh(0.5 * logits))  # sigmoid without overflow
    return counts * (probs - target_probs), np.maximum(counts * probs * (1 - probs), MIN_CURVATURE)


def scaled_system(gram: Float64, root: Float64, ridge: float) -> Float64:
    """ridge·I + W^½ K W^½, which is well conditioned whatever the Gram matrix K."""
    system = gram * np.outer(root, root)
    system[np.diag_indices_from(system)] += ridge
    return system


def indices_by_group(groups: Sequence[Hashable]) -> list[list[int]]:
    """The indices of each group."""
    by_group: dict[Hashable, list[int]] = {}
    for i, group in enumerate(groups):
        by_group.setdefault(group, []).append(i)
    return list(by_group.values())
