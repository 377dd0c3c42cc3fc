"""Evaluates a reward model and a policy on held-out prompts: accuracy, gold score, KL, and best-of-n as a baseline."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import NamedTuple

import torch

from rlhf_lab.common.progress import ProgressCallback, no_progress
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.common.stats import hit, mean_interval, wilson_interval
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.sampling.sampler import sample, uniforms
from rlhf_lab.training.policy.rollout import PolicyModel, sequence_log_ratios

SAMPLING_BATCH_SIZE = 512


class SampledResponses(NamedTuple):
    """Responses by row, as token ids and text; prompts: token ids."""

    prompts: list[list[int]]
    tokens: list[list[int]]
    texts: list[str]


def sample_responses(
    backbone: Backbone, prompts: Sequence[str], *, seed: int, purpose: str, max_new_tokens: int, temperature: float,
    on_progress: ProgressCallback = no_progress,
) -> SampledResponses:  # fmt: skip
    """One response per prompt, with the active adapter. The random numbers of row i depend on (seed, purpose, i) alone."""
    encoded = {prompt: backbone.encode_prompt(prompt) for prompt in dict.fromkeys(prompts)}
    prompt_ids = [encoded[prompt] for prompt in prompts]
    # Equal prompts are adjacent, so that their prefill is computed once.
    order = sorted(range(len(prompt_ids)), key=lambda i: (len(prompt_ids[i]), prompt_ids[i], i))
    tokens: list[list[int]] = [[] for _ in prompt_ids]
    for start in range(0, len(order), SAMPLING_BATCH_SIZE):
        indices = order[start : start + SAMPLING_BATCH_SIZE]
        uniform = uniforms([derive_seed(seed, purpose, i) for i in indices], max_new_tokens)
        responses = sample(
            backbone, [prompt_ids[i] for i in indices], uniform, temperature=temperature, on_progress=on_progress
        ).tokens
        for i, response in zip(indices, responses, strict=True):
            tokens[i] = response
    texts = [backbone.decode(response, after=prompt) for prompt, response in zip(prompt_ids, tokens, strict=True)]
    return SampledResponses(prompt_ids, tokens, texts)


@dataclass(frozen=True)
class Accuracy:
    """Fraction of pairs that are ranked as the judge ranks them, with its 95 % Wilson interval; the judge's ties do not count."""

    value: float
    low: float
    high: float
    pairs: int
    tie_share: float


def ranking_accuracy(
    gold: Sequence[tuple[float, float]], scores: Sequence[tuple[float, float]], max_pairs: int
) -> Accuracy:
    """Accuracy of scores against gold scores on the first `max_pairs` pairs that the judge does not tie."""
    correct, decided, ties = 0.0, 0, 0
    for (gold_a, gold_b), (score_a, score_b) in zip(gold, scores, strict=True):
        if decided == max_pairs:
            break
        if gold_a == gold_b:
            ties += 1
            continue
        decided += 1
        correct += hit(score_a - score_b if gold_a > gold_b else score_b - score_a)
    low, high = wilson_interval(correct, decided)
    return Accuracy(correct / decided if decided else math.nan, low, high, decided, ties / max(1, ties + decided))


class Mean(NamedTuple):
    value: float
    standard_error: float


def mean(values: Sequence[float]) -> Mean:
    """Mean and its standard error (0 for a single value)."""
    x = torch.tensor(values, dtype=torch.float64)
    return Mean(float(x.mean()), float(x.std() / math.sqrt(len(x))) if len(x) > 1 else 0.0)


def gain_over_base(gold: Sequence[float], base: Sequence[Sequence[float]]) -> Mean:
    """Mean over prompts of gold minus the mean of the base's samples for the same prompt.

    gold: one number per prompt; base: one list per prompt. The standard error is that of the paired differences: it includes
    the noise of the base's samples, but not the variation between prompts.
    """
    return mean([value - fmean(base_values) for value, base_values in zip(gold, base, strict=True)])


def best_of_n(n: int, scores: Sequence[Sequence[float]], gold: Sequence[Sequence[float]]) -> Mean:
    """Mean gold of the response with the highest score among n, over disjoint groups of n per prompt.

    scores, gold: one list per prompt, of the same base samples. The standard error is that of the difference to the base's
    mean (each prompt weighted equally). It is estimated from the variance of the prompts' contributions, within groups of
    prompts that have the same number of samples.
    """
    best_gold = best_of_n_gold(n, scores, gold)
    groups = sum(map(len, best_gold)) or math.nan
    contributions = defaultdict(list)
    for best, prompt_gold in zip(best_gold, gold, strict=True):
        contributions[len(prompt_gold)].append(sum(best) / groups - fmean(prompt_gold) / len(gold))
    variance_sum = sum(len(values) * variance(values) for values in contributions.values() if len(values) > 1)
    return Mean(sum(map(sum, best_gold)) / groups, math.sqrt(variance_sum))


def best_of_n_gold(n: int, scores: Sequence[Sequence[float]], gold: Sequence[Sequence[float]]) -> list[list[float]]:
    """Gold of the response with the highest score in each group of n; a list per prompt, empty if it has fewer samples."""
    return [_best_gold_of_each_group(n, *row) for row in zip(scores, gold, strict=True)]


class PairedDifference(NamedTuple):
    """A mean over prompts with its 95 % interval, None for too few prompts."""

    difference: float
    low: float | None
    high: float | None
    prompts: int


def paired_difference(
    prompts: Sequence[str], gold_a: Sequence[Sequence[float]], gold_b: Sequence[Sequence[float]]
) -> PairedDifference:
    """Mean of gold_a minus gold_b, paired by prompt, so that differences between prompts do not widen the interval.

    gold_a, gold_b: a list per row, for its prompt. Rows of one prompt are merged; prompts count if both have samples.
    """
    gold_by_prompt: dict[str, tuple[list[float], list[float]]] = {}
    for prompt, *both in zip(prompts, gold_a, gold_b, strict=True):
        for collected, new_gold in zip(gold_by_prompt.setdefault(prompt, ([], [])), both, strict=True):
            collected.extend(new_gold)
    differences = [fmean(first) - fmean(second) for first, second in gold_by_prompt.values() if first and second]
    low, high = mean_interval(differences) or (None, None)
    return PairedDifference(fmean(differences) if differences else math.nan, low, high, len(differences))


def _best_gold_of_each_group(n: int, scores: Sequence[float], gold: Sequence[float]) -> list[float]:
    """Gold of the best-scored sample in each complete group of n."""
    starts = range(0, len(scores) - n + 1, n)
    return [gold[max(range(start, start + n), key=lambda i: scores[i])] for start in starts]


def best_of_n_kl(n: int) -> float:
    """KL of best-of-n to the base, nats: log n - (n-1)/n, an upper bound (Beirami et al. 2024)."""
    return math.log(n) - (n - 1) / n


def sequence_kl(
    policy: PolicyModel, samples: SampledResponses, temperature: float, on_progress: ProgressCallback = no_progress
) -> Mean:
    """KL of the policy to the reference, nats per sequence, estimated on its own samples (k1)."""
    return mean(sequence_log_ratios(policy, samples.prompts, samples.tokens, temperature, on_progress).tolist())


def distinct_2(texts: Sequence[str]) -> float:
    """Distinct word pairs over all word pairs (Li et al. 2016): low when a policy repeats itself."""
    pairs = [pair for text in texts for pair in zip(text.split(), text.split()[1:], strict=False)]
    return len(set(pairs)) / len(pairs) if pairs else 0.0
