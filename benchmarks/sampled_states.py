"""Texts of the base model with their pooled hidden states, sampled once: what benchmarks/label_efficiency.py works on."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_lab.assets import shipped_prompts, split
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.generation import pad_right
from rlhf_lab.models.rows import Hidden, by_length
from rlhf_lab.trainers.evaluation import Written, write

POOL, HELD, BASE = (
    700,
    400,
    128,
)  # pairs to draw labels from, pairs to be tested on, samples that scores are normalised on


@dataclass(frozen=True)
class Side:
    """Texts of one side of the pairs; states: (N, layers + 1, 4, H) float32, pooled as `POOLINGS` over the response."""

    written: Written
    states: Tensor


POOLINGS = ("mean", "last", "max", "sd")


@dataclass(frozen=True)
class Material:
    """What one prompt set gives: pool and held-out pairs, base samples, and the prompts of the pool."""

    prompts: list[str]
    pool: tuple[Side, Side]
    held: tuple[Side, Side]
    base: Side


def sample_all(backbone: Backbone, prompt_set: str, length: int) -> Material:
    shares = split(shipped_prompts(prompt_set))
    train, unseen = ([text for text, share in shares if share == wanted] for wanted in ("train", "eval"))

    def side(texts: list[str], purpose: str) -> Side:
        written = write(backbone, texts, seed=0, purpose=purpose, max_new_tokens=length)
        return Side(written, states_of(backbone, written))

    pool, held = shuffled(train, POOL), shuffled(unseen, HELD)
    return Material(
        pool,
        (side(pool, "pool first"), side(pool, "pool second")),
        (side(held, "held first"), side(held, "held second")),
        side([train[i % len(train)] for i in range(BASE)], "base"),
    )


def shuffled(texts: list[str], count: int) -> list[str]:
    """`count` texts: all in a random order, then all again in another."""
    generator, found = torch.Generator().manual_seed(1), list[str]()
    while len(found) < count:
        found += [texts[i] for i in torch.randperm(len(texts), generator=generator).tolist()]
    return found[:count]


@torch.no_grad()
def states_of(backbone: Backbone, written: Written) -> Tensor:
    """Pooled hidden states of every layer: embeddings first, the last one as the model's head reads it."""

    def some(index: list[int]) -> Tensor:
        whole = [[*written.prompts[i], *written.tokens[i]] for i in index]
        ids, _ = pad_right(whole, backbone.pad_id, backbone.device)
        layers = backbone.trunk(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
        prompts = torch.tensor([len(written.prompts[i]) for i in index])
        lengths = torch.tensor([len(written.tokens[i]) for i in index])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        return torch.stack([pooled(Hidden(layer, prompts, mask.shape[1]).read.float(), mask) for layer in layers], 1)

    lengths = [len(p) + len(r) for p, r in zip(written.prompts, written.tokens, strict=True)]
    return by_length(some, lengths, backbone).cpu()


def pooled(read: Tensor, mask: Tensor) -> Tensor:
    """(B, 4, H) of hidden states (B, T, H): mean, last, max and sd over the response."""
    count, inside = mask.sum(1, keepdim=True), mask[..., None]
    mean = read.masked_fill(~inside, 0.0).sum(1) / count
    last = read[torch.arange(len(read)), mask.sum(1) - 1]
    highest = read.masked_fill(~inside, -math.inf).amax(1)
    sd = ((read - mean[:, None]).square().masked_fill(~inside, 0.0).sum(1) / count).sqrt()
    return torch.stack([mean, last, highest, sd], 1)
