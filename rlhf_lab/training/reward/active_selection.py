"""Active selection of pairs to label: the most informative, the most uncertain or the most diverse of some candidates, or the two
of some responses to a prompt that teach the most.

Informative: the warm start is a Bayesian fit with a Gaussian prior on the head's weights and a Bradley-Terry likelihood. Its
Laplace approximation gives each pair a probability p of the first text winning and a variance v of the difference of the scores.
v p (1 - p) is, to first order, the expected information gain of the label (Houlsby et al. 2011; MacKay 1992): small where the
model is sure, and small near labelled pairs. Pairs are selected greedily, each as if those before it were labelled.
"""

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlhf_lab.common.progress import ProgressCallback, no_progress
from rlhf_lab.common.records import Comparison
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.core.preference_fit import Float32, LayerScaler
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.heads import EnsembleHead
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.training.reward.task import ReferenceSamples, RewardTask

CANDIDATES_PER_PAIR = 4  # candidates sampled for each pair that is kept


class Candidate(NamedTuple):
    """An unlabelled pair as token ids."""

    prompt: list[int]
    first: list[int]
    second: list[int]


def select_most_informative(
    adapters: Adapters, comparisons: Sequence[Comparison], reference: ReferenceSamples, candidates: Sequence[Candidate],
    count: int, config: RewardConfig, *, on_progress: ProgressCallback = no_progress,
) -> list[int]:  # fmt: skip
    """The indices of up to `count` candidates, the most informative first, given the labels so far (at least one).

    Uses the frozen backbone only: no adapter is trained or needed. Attributes that the scores ignore are kept here, because
    people's choices depend on them too. Raises NotFiniteError, ModelError.
    """
    config = config.replace(warm_start=True, **dict.fromkeys(config.ignored, "as_labelled"))
    task = RewardTask(adapters, comparisons, reference, config, on_progress=on_progress)
    assert task.frozen is not None
    fitter, prompts = task.frozen.fitter, [candidate.prompt for candidate in candidates]
    first = task.features(prompts, [candidate.first for candidate in candidates])
    second = task.features(prompts, [candidate.second for candidate in candidates])
    differences = torch.from_numpy(fitter.scaler((first - second).numpy()))
    fit = fitter.fit(range(len(comparisons)), task.counts * task.weights)
    targets = LabelTargets(task.ties[fit.indices], task.margins[fit.indices], (task.counts * task.weights)[fit.indices])
    labelled = fitter.differences[fit.indices]
    return greedy_selection(labelled.double(), differences.double(), fit.scaled_weights, fit.ridge, count, targets)


class LabelTargets(NamedTuple):
    """The labels of N pairs: ties (N,) bool; margins (N,) float64, ignored on ties; counts (N,) float64."""

    ties: Tensor
    margins: Tensor
    counts: Tensor


def greedy_selection(
    labelled: Tensor,
    candidates: Tensor,
    weights: Tensor,
    ridge: float,
    count: int,
    targets: LabelTargets | None = None,
) -> list[int]:
    """The indices of up to `count` rows of `candidates`, the most informative first.

    labelled (N, H), candidates (C, H): float64 differences of scaled features; weights (H,), ridge, targets: of the fit to
    the labelled ones. targets None: no margins, and each label counts once.
    """
    weighted_features = _label_curvature(labelled @ weights, targets).sqrt()[:, None] * labelled
    cross_products = candidates @ weighted_features.T
    gram = (
        ridge * torch.eye(len(weighted_features), dtype=weighted_features.dtype)
        + weighted_features @ weighted_features.T
    )
    covariance = (candidates @ candidates.T - cross_products @ torch.linalg.solve(gram, cross_products.T)) / ridge
    information = _bernoulli_variance(candidates @ weights)
    available, chosen = torch.ones(len(candidates), dtype=torch.bool), list[int]()
    for _ in range(min(count, len(candidates))):
        gain = (covariance.diagonal() * information).masked_fill(~available, -1.0)
        best = int(gain.argmax())
        chosen.append(best)
        available[best] = False
        row = covariance[best].clone()
        covariance -= torch.outer(row, row) * information[best] / (1.0 + information[best] * row[best])
    return chosen


def _label_curvature(logits: Tensor, targets: LabelTargets | None) -> Tensor:
    """(N,) second derivative of each label's loss with respect to its logit: its weight in the posterior precision."""
    if targets is None:
        return _bernoulli_variance(logits)
    return targets.counts * _bernoulli_variance(logits - targets.margins.masked_fill(targets.ties, 0.0))


def _bernoulli_variance(logits: Tensor) -> Tensor:
    """p (1 - p), the variance of a label with this logit."""
    p = torch.sigmoid(logits)
    return p * (1.0 - p)


def select_most_uncertain(
    model: RewardModel, prompts: Sequence[Sequence[int]], firsts: Sequence[Sequence[int]], seconds: Sequence[Sequence[int]],
    count: int, on_progress: ProgressCallback = no_progress,
) -> list[int]:  # fmt: skip
    """The indices of the `count` pairs that a reward model is most uncertain about, ascending.

    Uncertainty of an ensemble: the standard deviation of its members' score differences; of a single head: minus the absolute
    score difference.
    """
    scores = model.raw_scores([*prompts, *prompts], [*firsts, *seconds], on_progress)
    gaps = scores[:, : len(prompts)] - scores[:, len(prompts) :]
    uncertainty = gaps.std(dim=0, correction=0) if gaps.shape[0] > 1 else -gaps[0].abs()
    order = sorted(range(len(prompts)), key=lambda i: (-float(uncertainty[i]), i))
    return sorted(order[:count])


def uncertainty_kind(model: RewardModel) -> str:
    """The measure that `select_most_uncertain` uses with this reward model: "ensemble" or "gap"."""
    return "ensemble" if isinstance(model.head, EnsembleHead) else "gap"


def select_teaching_pair(
    responses: Sequence[Sequence[int]], ended: Sequence[bool], features: Float32, layers: int, scores: Sequence[float] | None
) -> tuple[int, int]:  # fmt: skip
    """The indices of two responses to one prompt whose comparison is expected to teach the most.

    Of the pairs of different responses: those of two complete ones, if there are any; of these, the half with the smallest
    difference of log length, so that length does not decide; of these, the half with the highest sums of scores, because a
    comparison of two bad responses teaches little; of these, the pair that is farthest apart in features. Halves are rounded up.
    responses: token ids, at least two of which differ; ended: whether a response ended by itself; features: (N, layers * H), of
    which each layer contributes equally; scores: None if nothing is known of them yet.
    """
    pairs = [(i, j) for i, j in combinations(range(len(responses)), 2) if responses[i] != responses[j]]
    pairs = [(i, j) for i, j in pairs if ended[i] and ended[j]] or pairs
    lengths = [math.log(len(response)) for response in responses]
    pairs = _lower_half(pairs, lambda i, j: abs(lengths[i] - lengths[j]))
    if scores is not None:
        pairs = _lower_half(pairs, lambda i, j: -scores[i] - scores[j])
    scaled = LayerScaler(features, layers)(features)
    return max(pairs, key=lambda pair: float(np.square(scaled[pair[0]] - scaled[pair[1]]).sum()))


def _lower_half(pairs: list[tuple[int, int]], key: Callable[[int, int], float]) -> list[tuple[int, int]]:
    return sorted(pairs, key=lambda pair: key(*pair))[: (len(pairs) + 1) // 2]


def select_most_diverse(
    candidates: Sequence[frozenset[str]], existing: Sequence[frozenset[str]], count: int
) -> list[int]:
    """The indices of `count` candidates, ascending, chosen greedily to be farthest from the existing and selected ones.

    Distance: the Jaccard distance of the word sets.
    """
    nearest = [min((jaccard_distance(candidate, other) for other in existing), default=1.0) for candidate in candidates]
    selected: list[int] = []
    for _ in range(min(count, len(candidates))):
        best = max((i for i in range(len(candidates)) if i not in selected), key=lambda i: (nearest[i], -i))
        selected.append(best)
        nearest = [
            min(current, jaccard_distance(candidate, candidates[best]))
            for current, candidate in zip(nearest, candidates, strict=True)
        ]
    return sorted(selected)


def word_set(*texts: str) -> frozenset[str]:
    return frozenset(word.strip(".,;:!?\"'()").lower() for text in texts for word in text.split()) - {""}


def jaccard_distance(a: frozenset[str], b: frozenset[str]) -> float:
    union = a | b
    return len(a ^ b) / len(union) if union else 0.0
