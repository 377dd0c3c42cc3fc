"""Samples of the base model with pooled hidden states, for benchmarks/label_efficiency.py."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rlhf_lab.common.bundled_assets import shipped_prompts, train_eval_split
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.batch import forward_layers, make_batch, map_by_length
from rlhf_lab.models.features import FeatureSpec
from rlhf_lab.training.evaluation import SampledResponses, sample_responses

BASE_SIZE = 128  # samples to normalise scores with
POOLINGS = (FeatureSpec("mean"), FeatureSpec("last"))


@dataclass(frozen=True)
class Side:
    """One side of the pairs. states: (N, layers + 1, 2, H) float32, mean and last state of the response."""

    prompts: list[str]
    samples: SampledResponses
    states: Tensor


@dataclass(frozen=True)
class SampledPairs:
    """Pairs to label (pool), pairs of other prompts to test on (held_out), and samples to normalise with (base)."""

    pool: tuple[Side, Side]
    held_out: tuple[Side, Side]
    base: Side


@dataclass(frozen=True)
class SamplingSettings:
    temperature: float
    max_new_tokens: int
    pool_size: int
    held_out_size: int


def sample_pairs(backbone: Backbone, prompt_set: str, settings: SamplingSettings) -> SampledPairs:
    """prompt_set: the name of a shipped one, or a file with a prompt on each line."""
    is_file = Path(prompt_set).is_file()
    all_prompts = Path(prompt_set).read_text("utf-8").splitlines() if is_file else shipped_prompts(prompt_set)
    split_prompts = train_eval_split(all_prompts)
    train_prompts, eval_prompts = (
        [text for text, split_name in split_prompts if split_name == target_split] for target_split in ("train", "eval")
    )

    def side(texts: list[str], purpose: str) -> Side:
        samples = sample_responses(
            backbone, texts, seed=0, purpose=purpose, max_new_tokens=settings.max_new_tokens,
            temperature=settings.temperature,
        )  # fmt: skip
        return Side(texts, samples, pooled_states(backbone, samples.prompts, samples.tokens))

    pool = repeat_shuffled(train_prompts, settings.pool_size)
    held_out = repeat_shuffled(eval_prompts, settings.held_out_size)
    return SampledPairs(
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
def pooled_states(backbone: Backbone, prompts: Sequence[list[int]], responses: Sequence[list[int]]) -> Tensor:
    """(N, layers + 1, 2, H): embeddings first, the last one after the final norm."""

    def pool_batch(indices: list[int]) -> Tensor:
        batch = make_batch(backbone, [prompts[i] for i in indices], [responses[i] for i in indices])
        return torch.stack(
            [
                torch.stack([spec.pool(hidden.at_token, batch.mask) for spec in POOLINGS], 1)
                for hidden in forward_layers(backbone, batch)
            ],
            1,
        )

    lengths = [len(p) + len(r) for p, r in zip(prompts, responses, strict=True)]
    return map_by_length(pool_batch, lengths, backbone).cpu()
