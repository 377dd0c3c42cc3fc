"""Texts of the base model with their pooled hidden states, sampled once: what benchmarks/label_efficiency.py works on."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_lab.common.bundled_assets import shipped_prompts, train_eval_split
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.batch import HiddenStates, map_by_length, pad_right
from rlhf_lab.training.evaluation import SampledResponses, sample_responses

POOL_SIZE, HELD_OUT_SIZE, BASE_SIZE = (
    700,
    400,
    128,
)  # pairs to draw labels from, pairs to be tested on, samples that scores are normalised on


@dataclass(frozen=True)
class Side:
    """Texts of one side of the pairs; states: (N, layers + 1, 4, H) float32, pooled as `POOLINGS` over the response."""

    samples: SampledResponses
    states: Tensor


POOLINGS = ("mean", "last", "max", "sd")


@dataclass(frozen=True)
class PromptSetSamples:
    """What one prompt set gives: pool and held-out pairs, base samples, and the prompts of the pool."""

    prompts: list[str]
    pool: tuple[Side, Side]
    held_out: tuple[Side, Side]
    base: Side


def sample_prompt_set(backbone: Backbone, prompt_set: str, length: int) -> PromptSetSamples:
    split_prompts = train_eval_split(shipped_prompts(prompt_set))
    train_prompts, eval_prompts = (
        [text for text, split_name in split_prompts if split_name == target_split] for target_split in ("train", "eval")
    )

    def side(texts: list[str], purpose: str) -> Side:
        samples = sample_responses(backbone, texts, seed=0, purpose=purpose, max_new_tokens=length)
        return Side(samples, pooled_states(backbone, samples))

    pool, held_out = repeat_shuffled(train_prompts, POOL_SIZE), repeat_shuffled(eval_prompts, HELD_OUT_SIZE)
    return PromptSetSamples(
        pool,
        (side(pool, "pool first"), side(pool, "pool second")),
        (side(held_out, "held first"), side(held_out, "held second")),
        side([train_prompts[i % len(train_prompts)] for i in range(BASE_SIZE)], "base"),
    )


def repeat_shuffled(texts: list[str], count: int) -> list[str]:
    """`count` texts: all in a random order, then all again in another."""
    generator, result = torch.Generator().manual_seed(1), list[str]()
    while len(result) < count:
        result += [texts[i] for i in torch.randperm(len(texts), generator=generator).tolist()]
    return result[:count]


@torch.no_grad()
def pooled_states(backbone: Backbone, samples: SampledResponses) -> Tensor:
    """Pooled hidden states of every layer: embeddings first, the last one as the model's head reads it."""

    def pool_batch(indices: list[int]) -> Tensor:
        sequences = [[*samples.prompts[i], *samples.tokens[i]] for i in indices]
        ids, _ = pad_right(sequences, backbone.pad_id, backbone.device)
        layers = backbone.trunk(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
        prompts = torch.tensor([len(samples.prompts[i]) for i in indices])
        lengths = torch.tensor([len(samples.tokens[i]) for i in indices])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        return torch.stack(
            [pool_hidden(HiddenStates(layer, prompts, mask.shape[1]).at_token.float(), mask) for layer in layers], 1
        )

    lengths = [len(p) + len(r) for p, r in zip(samples.prompts, samples.tokens, strict=True)]
    return map_by_length(pool_batch, lengths, backbone).cpu()


def pool_hidden(hidden: Tensor, mask: Tensor) -> Tensor:
    """(B, 4, H) of hidden states (B, T, H): mean, last, max and sd over the response."""
    counts, valid = mask.sum(1, keepdim=True), mask[..., None]
    mean = hidden.masked_fill(~valid, 0.0).sum(1) / counts
    last = hidden[torch.arange(len(hidden)), mask.sum(1) - 1]
    highest = hidden.masked_fill(~valid, -math.inf).amax(1)
    sd = ((hidden - mean[:, None]).square().masked_fill(~valid, 0.0).sum(1) / counts).sqrt()
    return torch.stack([mean, last, highest, sd], 1)
