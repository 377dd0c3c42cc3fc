"""What a reward model and a policy are worth, on prompts neither has seen: accuracy, gold, KL, and best-of-n beside them."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import NamedTuple

import torch

from rlhf_lab.intervals import mean_interval, wilson_interval
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.generation import Tick, no_tick, sample, uniforms
from rlhf_lab.models.rows import by_length, make_rows
from rlhf_lab.seeds import derive
from rlhf_lab.trainers.rollout import Policy

BATCH = 512
MOST_LOGITS = 2**30  # of one pass: 4 GiB in float32


class Written(NamedTuple):
    """Responses by row: token ids and text; `prompts` are the token ids they continue."""

    prompts: list[list[int]]
    tokens: list[list[int]]
    texts: list[str]


def write(
    backbone: Backbone, prompts: Sequence[str], *, seed: int, purpose: str, max_new_tokens: int, temperature: float = 1.0,
    tick: Tick = no_tick,
) -> Written:  # fmt: skip
    """One response a prompt, through whatever adapter is on. Row i draws from (seed, purpose, i) alone."""
    encoded = {prompt: backbone.encode_prompt(prompt) for prompt in dict.fromkeys(prompts)}
    ids = [encoded[prompt] for prompt in prompts]
    order = sorted(range(len(ids)), key=lambda i: (len(ids[i]), ids[i], i))  # equal prompts side by side: read once
    tokens: list[list[int]] = [[] for _ in ids]
    for start in range(0, len(order), BATCH):
        index = order[start : start + BATCH]
        uniform = uniforms([derive(seed, purpose, i) for i in index], max_new_tokens)
        rows = sample(backbone, [ids[i] for i in index], uniform, temperature=temperature, tick=tick).tokens
        for i, row in zip(index, rows, strict=True):
            tokens[i] = row
    return Written(ids, tokens, [backbone.decode(row) for row in tokens])


@dataclass(frozen=True)
class Accuracy:
    """Share of decided pairs ranked as the judge ranks them, with a 95 % Wilson interval; ties of the judge are left out."""

    value: float
    low: float
    high: float
    pairs: int
    tie_share: float


def ranking_accuracy(
    gold: Sequence[tuple[float, float]], scores: Sequence[tuple[float, float]], wanted: int
) -> Accuracy:
    """Compare two orders of the same pairs, using the first `wanted` pairs that the judge does not tie exactly."""
    hits = decided = ties = 0
    for (gold_a, gold_b), (score_a, score_b) in zip(gold, scores, strict=True):
        if decided == wanted:
            break
        if gold_a == gold_b:
            ties += 1
            continue
        decided += 1
        hits += (gold_a > gold_b) == (score_a > score_b) and score_a != score_b
    low, high = wilson_interval(hits, decided)
    return Accuracy(hits / decided if decided else math.nan, low, high, decided, ties / max(1, ties + decided))


class Mean(NamedTuple):
    value: float
    standard_error: float


def mean(values: Sequence[float]) -> Mean:
    """Mean and its standard error (0 for a single value)."""
    x = torch.tensor(values, dtype=torch.float64)
    return Mean(float(x.mean()), float(x.std() / math.sqrt(len(x))) if len(x) > 1 else 0.0)


def above_base(gold: Sequence[float], base: Sequence[Sequence[float]]) -> Mean:
    """How far gold lies above the mean of the base's samples for the same prompt, over prompts.

    gold: one number a prompt; base: one list a prompt. The standard error is that of the differences: it has the base's own
    noise in it, and not what makes one prompt easier than another.
    """
    return mean([one - fmean(row) for one, row in zip(gold, base, strict=True)])


def best_of(n: int, scores: Sequence[Sequence[float]], gold: Sequence[Sequence[float]]) -> Mean:
    """Mean gold of the response that the reward model likes best among n, over disjoint groups of n per prompt.

    scores, gold: one list a prompt, of the same base samples. The standard error is that of its distance to the base's mean,
    in which every prompt counts once: from what each prompt adds to that distance, among those with as many samples.
    """
    chosen = picked(n, scores, gold)
    groups = sum(map(len, chosen)) or math.nan
    added = defaultdict(list)
    for mine, row in zip(chosen, gold, strict=True):
        added[len(row)].append(sum(mine) / groups - fmean(row) / len(gold))
    spread = sum(len(some) * variance(some) for some in added.values() if len(some) > 1)
    return Mean(sum(map(sum, chosen)) / groups, math.sqrt(spread))


def picked(n: int, scores: Sequence[Sequence[float]], gold: Sequence[Sequence[float]]) -> list[list[float]]:
    """Gold of the response that the reward model likes best of each group of n; a list a prompt, empty where it has fewer."""
    return [_choices(n, *row) for row in zip(scores, gold, strict=True)]


class Difference(NamedTuple):
    """A mean over prompts with its 95 % interval, None of too few prompts."""

    difference: float
    low: float | None
    high: float | None
    prompts: int


def difference(prompts: Sequence[str], one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> Difference:
    """How far one's gold lies above the other's, prompt by prompt: what makes a prompt easy for both is not in the interval.

    one, other: a list a row, the texts to its prompt. Rows of one prompt are put together; prompts count where both have texts.
    """
    found: dict[str, tuple[list[float], list[float]]] = {}
    for prompt, *both in zip(prompts, one, other, strict=True):
        for known, more in zip(found.setdefault(prompt, ([], [])), both, strict=True):
            known.extend(more)
    apart = [fmean(first) - fmean(second) for first, second in found.values() if first and second]
    low, high = mean_interval(apart) or (None, None)
    return Difference(fmean(apart) if apart else math.nan, low, high, len(apart))


def _choices(n: int, scores: Sequence[float], gold: Sequence[float]) -> list[float]:
    """Gold of the best-scored sample of each whole group of n."""
    starts = range(0, len(scores) - n + 1, n)
    return [gold[max(range(start, start + n), key=lambda i: scores[i])] for start in starts]


def best_of_kl(n: int) -> float:
    """KL of best-of-n to the base, nats: log n - (n-1)/n, an upper bound (Beirami et al. 2024)."""
    return math.log(n) - (n - 1) / n


@torch.no_grad()
def sequence_kl(policy: Policy, written: Written, temperature: float, tick: Tick = no_tick) -> Mean:
    """KL of the policy to the reference, nats a sequence, estimated on its own fresh samples (k1)."""

    def some(index: list[int]) -> torch.Tensor:
        tick()
        rows = make_rows(policy.backbone, [written.prompts[i] for i in index], [written.tokens[i] for i in index])
        difference = policy.evaluate(rows, temperature).logprobs - policy.reference_logprobs(rows, temperature)
        return difference.sum(1)

    lengths = [len(p) + len(t) for p, t in zip(written.prompts, written.tokens, strict=True)]
    most = max(1, MOST_LOGITS // len(policy.backbone.model.get_output_embeddings().weight))
    return mean(by_length(some, lengths, policy.backbone, most).double().tolist())


def distinct_2(texts: Sequence[str]) -> float:
    """Distinct word pairs over all word pairs (Li et al. 2016): falls when a policy says the same thing everywhere."""
    pairs = [pair for text in texts for pair in zip(text.split(), text.split()[1:], strict=False)]
    return len(set(pairs)) / len(pairs) if pairs else 0.0
