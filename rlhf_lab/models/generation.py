"""Batched sampling with a KV cache, driven by uniform numbers made beforehand.

A token is drawn by inverting the cumulative distribution at one uniform number per row and position. So sampling is a pure
function of (weights, prompts, uniforms): no generator is touched, what one row does cannot change another row's draws, and
a small change of the policy changes few words of a sample with the same uniforms ("same seed, before and now").
No top-k, top-p, repetition penalty or other setting of the model's generation_config is applied.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf_lab.errors import ModelError, NotFiniteError
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.kv_cache import reserved_cache

#: Called between pieces of work; may serve other work, may raise to stop.
Tick = Callable[[], None]
TICK_EVERY = 16
#: Finished rows are dropped once they are this share of the rows: dropping copies the cache, keeping computes for nothing.
DROP_SHARE = 1 / 8


class Sampled(NamedTuple):
    """Responses as token ids (EOS last where one was drawn), and the log-probability (nats) of each token when drawn."""

    tokens: list[list[int]]
    logprobs: list[list[float]]


def no_tick() -> None:
    return None


def uniforms(seeds: Sequence[int], length: int) -> Tensor:
    """(B, length) float64 in [0, 1): row b depends on seeds[b] alone."""
    rows = [torch.rand(length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in seeds]
    return torch.stack(rows)


def pad_left(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(B, L) ids and mask of ragged rows, right-aligned."""
    width = max(len(row) for row in rows)
    ids = torch.full((len(rows), width), pad_id, dtype=torch.int64)
    mask = torch.zeros((len(rows), width), dtype=torch.int64)
    for i, row in enumerate(rows):
        ids[i, width - len(row) :] = torch.tensor(row)
        mask[i, width - len(row) :] = 1
    return ids.to(device), mask.to(device)


def pad_right(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(B, L) ids and bool mask of ragged rows, left-aligned. The mask comes from the lengths: pad may equal EOS."""
    width = max(1, max(len(row) for row in rows))
    ids = torch.full((len(rows), width), pad_id, dtype=torch.int64)
    mask = torch.zeros((len(rows), width), dtype=torch.bool)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row, dtype=torch.int64)
        mask[i, : len(row)] = True
    return ids.to(device), mask.to(device)


def draw(logits: Tensor, uniform: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """(B,) token ids from (B, V) logits and (B,) uniforms by inversion of the cumulative softmax(logits / temperature);
    and their (B,) log-probabilities, nats.

    Raises NotFiniteError when the logits hold NaN or infinity.
    """
    probabilities = torch.softmax(logits.double() / temperature, dim=-1)
    cumulative = probabilities.cumsum(dim=-1)
    total = cumulative[:, -1:]
    if not bool(torch.isfinite(total).all()):
        raise NotFiniteError(
            "the model's logits are not finite, so nothing can be sampled. "
            "Lower the learning rate or load the model in float32."
        )
    index = torch.searchsorted(cumulative, uniform[:, None] * total, right=True).clamp_max(logits.shape[1] - 1)
    return index.squeeze(1), probabilities.gather(1, index).log().squeeze(1)


def _unlike(prompts: Sequence[Sequence[int]]) -> tuple[list[Sequence[int]], list[int]]:
    """The prompts without repetitions, in the order of their first appearance, and which of them each prompt is."""
    numbers: dict[tuple[int, ...], int] = {}
    which = [numbers.setdefault(tuple(prompt), len(numbers)) for prompt in prompts]
    return list(numbers), which


@torch.no_grad()
def sample(
    backbone: Backbone,
    prompts: Sequence[Sequence[int]],
    uniform: Tensor,
    *,
    temperature: float = 1.0,
    tick: Tick = no_tick,
) -> Sampled:
    """Continue each prompt until EOS (kept as the last id) or until `uniform` (B, T) has no more columns.

    A prompt that occurs several times is read once.
    Raises ModelError when prompt and response do not fit the model's context.
    """
    length = uniform.shape[1]
    longest = max(len(prompt) for prompt in prompts)
    if longest + length > backbone.context:
        raise ModelError(
            f"a prompt of {longest} tokens and a response of {length} do not fit the model's context of "
            f"{backbone.context}. Shorten the prompt or lower max_new_tokens."
        )
    uniform = uniform.to(backbone.device)
    eos = torch.tensor(backbone.eos_ids, device=backbone.device)
    unlike, which = _unlike(prompts)
    ids, mask = pad_left(unlike, backbone.pad_id, backbone.device)
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    cache = reserved_cache(backbone.model.config, length)
    rows = torch.arange(len(prompts), device=backbone.device)
    alive = torch.ones(len(prompts), dtype=torch.bool, device=backbone.device)
    logprobs = torch.zeros((len(prompts), length), dtype=torch.float64, device=backbone.device)
    written = torch.full((len(prompts), length), -1, dtype=torch.int64, device=backbone.device)
    for t in range(length):
        output = backbone.trunk(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )
        logits = backbone.logits(output.last_hidden_state[:, -1])
        if t == 0 and len(unlike) < len(prompts):
            index = torch.tensor(which, device=backbone.device)
            cache.batch_select_indices(index)
            logits, mask, positions = logits[index], mask[index], positions[index]
        tokens, logprob = draw(logits, uniform[rows, t], temperature)
        written[rows, t] = tokens.masked_fill(~alive, -1)
        logprobs[rows, t] = logprob
        alive = alive & ~torch.isin(tokens, eos)
        living = int(alive.sum())
        if not living:
            break
        mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
        positions = positions[:, -1:] + 1
        ids = tokens[:, None]
        if living <= (1 - DROP_SHARE) * len(rows):
            keep = alive.nonzero().squeeze(1)
            cache.batch_select_indices(keep)
            rows, ids, mask, positions, alive = rows[keep], ids[keep], mask[keep], positions[keep], alive[keep]
        if t % TICK_EVERY == TICK_EVERY - 1:
            tick()
    tokens_of = [[token for token in row if token >= 0] for row in written.tolist()]
    return Sampled(tokens_of, [p[: len(row)] for p, row in zip(logprobs.tolist(), tokens_of, strict=True)])
