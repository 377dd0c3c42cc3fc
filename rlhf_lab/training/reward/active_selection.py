"""Which pairs to ask about next: those whose answers would tell the most about the head of the reward model.

The warm start is a Bayesian fit: a gaussian prior on the head's weights and a Bradley-Terry likelihood. Its Laplace approximation
gives each pair a probability p of the first text winning and a variance v of the difference of the scores. v p (1 - p) is, to
first order, how much the answer is expected to tell (Houlsby et al. 2011; MacKay 1992): little where the model is sure, and
little where it has asked already. Pairs are chosen one after the other, each as if those before it were answered.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf_lab.common.progress import ProgressCallback, no_progress
from rlhf_lab.common.records import Comparison
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.heads import EnsembleHead
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.training.reward.head_init import PreferenceTargets, fit_head_weights
from rlhf_lab.training.reward.task import ReferenceSamples, RewardTask


class Candidate(NamedTuple):
    """A pair nobody has judged, as token ids."""

    prompt: list[int]
    first: list[int]
    second: list[int]


def select_most_informative(
    adapters: Adapters, comparisons: Sequence[Comparison], reference: ReferenceSamples, candidates: Sequence[Candidate],
    count: int, config: RewardConfig, *, on_progress: ProgressCallback = no_progress,
) -> list[int]:  # fmt: skip
    """The indices of up to `count` candidates to ask about, the most telling first, given the labels so far (at least one).

    Reads texts with the frozen backbone only: no adapter is trained or needed. Raises NotFiniteError, ModelError.
    """
    config = config.replace(warm_start=True)
    task = RewardTask(adapters, comparisons, reference, config, adapter="", on_progress=on_progress)
    prompts = [candidate.prompt for candidate in candidates]
    first, second = (
        task.features(prompts, side) for side in zip(*((c.first, c.second) for c in candidates), strict=True)
    )
    targets = PreferenceTargets(task.ties, task.margins, task.counts.double(), config.label_smoothing)
    weights = fit_head_weights(task.differences, targets, config.ridge)
    return greedy_selection(
        task.differences, task.feature_scaler(first - second), weights, config.ridge, count, targets
    )


def greedy_selection(
    labelled: Tensor,
    candidates: Tensor,
    weights: Tensor,
    ridge: float,
    count: int,
    targets: PreferenceTargets | None = None,
) -> list[int]:
    """Up to `count` rows of `candidates`, most telling first.

    labelled (N, H), candidates (C, H): float64 differences of features, as `head_init.fit_head_weights` takes them; weights (H,): its answer.
    labels: the margins and how often each label counts, as in that fit; None: no margins, each once.
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


def _label_curvature(logits: Tensor, targets: PreferenceTargets | None) -> Tensor:
    """(N,) the curvature of each label's loss in its logit: what the labels so far add to the precision."""
    if targets is None:
        return _bernoulli_variance(logits)
    if targets.margins is not None:
        logits = logits - targets.margins.masked_fill(targets.ties, 0.0)
    return _bernoulli_variance(logits) if targets.counts is None else targets.counts * _bernoulli_variance(logits)


def _bernoulli_variance(logits: Tensor) -> Tensor:
    """p (1 - p): how much a label at this logit says about the weights."""
    p = torch.sigmoid(logits)
    return p * (1.0 - p)


CANDIDATES_PER_PAIR = 4  # pairs written for each pair kept


def select_most_uncertain(
    model: RewardModel, prompts: Sequence[Sequence[int]], firsts: Sequence[Sequence[int]], seconds: Sequence[Sequence[int]],
    count: int, on_progress: ProgressCallback = no_progress,
) -> list[int]:  # fmt: skip
    """Places of the `keep` pairs that a reward model is least sure of, in order of place.

    An ensemble: where its members disagree most on the difference of the two scores (their sd). A single head: where that
    difference is smallest.
    """
    scores = model.raw_scores([*prompts, *prompts], [*firsts, *seconds], on_progress)
    gaps = scores[:, : len(prompts)] - scores[:, len(prompts) :]
    uncertainty = gaps.std(dim=0, correction=0) if gaps.shape[0] > 1 else -gaps[0].abs()
    order = sorted(range(len(prompts)), key=lambda i: (-float(uncertainty[i]), i))
    return sorted(order[:count])


def uncertainty_kind(model: RewardModel) -> str:
    """What `select_most_uncertain` goes by with this reward model, in a word."""
    return "ensemble" if isinstance(model.head, EnsembleHead) else "gap"


def select_most_diverse(
    candidates: Sequence[frozenset[str]], existing: Sequence[frozenset[str]], count: int
) -> list[int]:
    """Places of `keep` candidates, each the farthest from what is known and from those taken before it, in order of place.

    Distance: the share of the words of two that only one of them has.
    """
    nearest = [min((jaccard_distance(candidate, other) for other in existing), default=1.0) for candidate in candidates]
    selected: list[int] = []
    while len(selected) < min(count, len(candidates)):
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
