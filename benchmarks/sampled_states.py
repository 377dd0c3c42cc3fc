"""Samples of the base model with pooled hidden states, for benchmarks/label_efficiency.py."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_lab.common.bundled_assets import shipped_prompts, train_eval_split
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.batch import HiddenStates, map_by_length, pad_right
from rlhf_lab.training.evaluation import SampledResponses, sample_responses

POOL_SIZE = 700  # pairs to label
HELD_OUT_SIZE = 400  # pairs to test on
BASE_SIZE = 128  # samples to normalise scores with
POOLINGS = ("mean", "last", "max", "sd")


@dataclass(frozen=True)
class Side:
    """One side of the pairs. states: (N, layers + 1, 4, H) float32, pooled as `POOLINGS` over the response."""

    prompts: list[str]
    samples: SampledResponses
    states: Tensor


@dataclass(frozen=True)
class PromptSetSamples:
    """The samples of one prompt set. prompts: of the pool."""

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
        samples = sample_responses(backbone, texts, seed=0, purpose=purpose, max_new_tokens=length, temperature=1.0)
        return Side(texts, samples, pooled_states(backbone, samples))

    pool, held_out = repeat_shuffled(train_prompts, POOL_SIZE), repeat_shuffled(eval_prompts, HELD_OUT_SIZE)
    return PromptSetSamples(
        pool,
        (side(pool, "pool first"), side(pool, "pool second")),
        (side(held_out, "held first"), side(held_out, "held second")),
        side([train_prompts[i % len(train_prompts)] for i in range(BASE_SIZE)], "base"),
    )


def repeat_shuffled(texts: list[str], count: int) -> list[str]:
    """`count` texts: all in a random order, then all in another order, and so on."""
    generator, result = torch.Generator().manual_seed(1), list[str]()
    while len(result) < count:
        result += [texts[i] for i in torch.randperm(len(texts), generator=generator).tolist()]
    return result[:count]


@torch.no_grad()
def pooled_states(backbone: Backbone, samples: SampledResponses) -> Tensor:
    """Pooled hidden states of every layer: embeddings first, the last one after the final norm."""

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
    """(B, 4, H): hidden states (B, T, H) pooled as POOLINGS over the response. mask: (B, T) bool."""
    counts, valid = mask.sum(1, keepdim=True), mask[..., None]
    mean = hidden.masked_fill(~valid, 0.0).sum(1) / counts
    last = hidden[torch.arange(len(hidden)), mask.sum(1) - 1]
    highest = hidden.masked_fill(~valid, -math.inf).amax(1)
    sd = ((hidden - mean[:, None]).square().masked_fill(~valid, 0.0).sum(1) / counts).sqrt()
    return torch.stack([mean, last, highest, sd], 1)
