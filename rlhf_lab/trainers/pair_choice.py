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

from rlhf_lab.config import RewardConfig
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.generation import Tick, no_tick
from rlhf_lab.records import Comparison
from rlhf_lab.trainers.reward_fit import Reference, RewardTask
from rlhf_lab.trainers.warm_start import Labels, fit


class Candidate(NamedTuple):
    """A pair nobody has judged, as token ids."""

    prompt: list[int]
    first: list[int]
    second: list[int]


def most_telling(
    adapters: Adapters, comparisons: Sequence[Comparison], reference: Reference, candidates: Sequence[Candidate],
    count: int, config: RewardConfig, *, tick: Tick = no_tick,
) -> list[int]:  # fmt: skip
    """The indices of up to `count` candidates to ask about, the most telling first, given the labels so far (at least one).

    Reads texts with the frozen backbone only: no adapter is trained or needed. Raises NotFiniteError, ModelError.
    """
    config = config.replace(warm_start=True)
    task = RewardTask(adapters, comparisons, reference, config, adapter="", tick=tick)
    prompts = [one.prompt for one in candidates]
    first, second = (
        task.features(prompts, side) for side in zip(*((c.first, c.second) for c in candidates), strict=True)
    )
    labels = Labels(task.tie, task.margin, task.count.double(), config.label_smoothing)
    weights = fit(task.differences, labels, config.ridge)
    return greedy(task.differences, task.stretch(first - second), weights, config.ridge, count, labels)


def greedy(
    labelled: Tensor, candidates: Tensor, weights: Tensor, ridge: float, count: int, labels: Labels | None = None
) -> list[int]:
    """Up to `count` rows of `candidates`, most telling first.

    labelled (N, H), candidates (C, H): float64 differences of features, as `warm_start.fit` takes them; weights (H,): its answer.
    labels: the margins and how often each label counts, as in that fit; None: no margins, each once.
    """
    told = _told(labelled @ weights, labels).sqrt()[:, None] * labelled
    across = candidates @ told.T
    inner = ridge * torch.eye(len(told), dtype=told.dtype) + told @ told.T
    covariance = (candidates @ candidates.T - across @ torch.linalg.solve(inner, across.T)) / ridge
    information = _certainty(candidates @ weights)
    left, chosen = torch.ones(len(candidates), dtype=torch.bool), list[int]()
    for _ in range(min(count, len(candidates))):
        gain = (covariance.diagonal() * information).masked_fill(~left, -1.0)
        best = int(gain.argmax())
        chosen.append(best)
        left[best] = False
        row = covariance[best].clone()
        covariance -= torch.outer(row, row) * information[best] / (1.0 + information[best] * row[best])
    return chosen


def _told(logit: Tensor, labels: Labels | None) -> Tensor:
    """(N,) the curvature of each label's loss in its logit: what the labels so far add to the precision."""
    if labels is None:
        return _certainty(logit)
    if labels.margins is not None:
        logit = logit - labels.margins.masked_fill(labels.ties, 0.0)
    return _certainty(logit) if labels.weights is None else labels.weights * _certainty(logit)


def _certainty(logit: Tensor) -> Tensor:
    """p (1 - p): how much a label at this logit says about the weights."""
    p = torch.sigmoid(logit)
    return p * (1.0 - p)
