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
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from rlhf_lab.core.products import Packed
from rlhf_lab.errors import ModelError
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.draw import Writing, refuse_not_finite
from rlhf_lab.models.graphed import graphs_of
from rlhf_lab.models.kv_cache import reserved_cache
from rlhf_lab.models.memory import in_pieces

#: Called between pieces of work; may serve other work, may raise to stop.
Tick = Callable[[], None]
#: ids (B, 1), positions (B, 1), mask (B, L) of the tokens read so far, the cache of those before -> states (B, H).
Step = Callable[[Tensor, Tensor, Tensor, DynamicCache], Tensor]
TICK_EVERY = 16
#: Tokens between two looks at which rows have ended, by the type of device: a GPU has to be waited for at each.
LOOK_EVERY = {"cuda": TICK_EVERY}
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
    ids, lengths = _padded(rows, pad_id, "left")
    mask = torch.arange(ids.shape[1]) >= ids.shape[1] - lengths
    return ids.to(device, non_blocking=True), mask.long().to(device, non_blocking=True)


def pad_right(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(B, L) ids and bool mask of ragged rows, left-aligned. The mask comes from the lengths: pad may equal EOS."""
    ids, lengths = _padded(rows, pad_id, "right")
    mask = torch.arange(ids.shape[1]) < lengths
    return ids.to(device, non_blocking=True), mask.to(device, non_blocking=True)


def _padded(rows: Sequence[Sequence[int]], pad_id: int, side: str) -> tuple[Tensor, Tensor]:
    """(B, L) ids, L at least 1, and (B, 1) lengths."""
    each = [torch.tensor(row, dtype=torch.int64) for row in rows]
    ids = pad_sequence(each, batch_first=True, padding_value=pad_id, padding_side=side)
    if not ids.shape[1]:
        ids = torch.full((len(rows), 1), pad_id)
    return ids, torch.tensor([len(row) for row in rows])[:, None]


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

    A prompt that occurs several times is read once. `tick` is called every TICK_EVERY tokens. Where memory runs out it goes on
    with fewer rows at once.
    Raises ModelError when prompt and response do not fit the model's context, NotFiniteError for logits that are not finite.
    """
    length = uniform.shape[1]
    longest = max(len(prompt) for prompt in prompts)
    if longest + length > backbone.context:
        raise ModelError(
            f"a prompt of {longest} tokens and a response of {length} do not fit the model's context of "
            f"{backbone.context}. Shorten the prompt or lower max_new_tokens."
        )
    parts = in_pieces(
        backbone, len(prompts), lambda rows: _sample(backbone, prompts[rows], uniform[rows], temperature, tick)
    )
    return Sampled([row for part in parts for row in part.tokens], [row for part in parts for row in part.logprobs])


def _sample(
    backbone: Backbone, prompts: Sequence[Sequence[int]], uniform: Tensor, temperature: float, tick: Tick
) -> Sampled:
    length, graphs = uniform.shape[1], graphs_of(backbone)
    writing, cache = _read(backbone, prompts, uniform.to(backbone.device), temperature, 0 if graphs else length)
    if graphs is None or not graphs.write(backbone, writing, cache, tick, TICK_EVERY):
        _write(backbone, writing, cache, tick)
    tokens_of = [[token for token in row if token >= 0] for row in writing.tokens.tolist()]
    return Sampled(tokens_of, [p[: len(row)] for p, row in zip(writing.logprobs.tolist(), tokens_of, strict=True)])


def _read(
    backbone: Backbone, prompts: Sequence[Sequence[int]], uniform: Tensor, temperature: float, extra: int
) -> tuple[Writing, DynamicCache]:
    """Read the prompts and draw the first token of each row. uniform: (B, T). extra: tokens the cache is to have room for."""
    device, count = backbone.device, len(prompts)
    unlike, which = _unlike(prompts)
    ids, mask = pad_left(unlike, backbone.pad_id, device)
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    cache = reserved_cache(backbone.model.config, extra, on_gpu=device.type == "cuda")
    output = backbone.trunk(
        input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
    )
    logits, positions = backbone.logits(output.last_hidden_state[:, -1]), positions[:, -1:]
    if len(unlike) < count:
        index = torch.tensor(which, device=device)
        cache.batch_select_indices(index)
        logits, mask, positions = logits[index], mask[index], positions[index]
    writing = Writing(
        rows=torch.arange(count, device=device), ids=torch.empty((count, 1), dtype=torch.int64, device=device),
        positions=positions.clone(), mask=mask, alive=torch.ones(count, dtype=torch.bool, device=device), uniform=uniform,
        logprobs=torch.zeros_like(uniform), tokens=torch.full_like(uniform, -1, dtype=torch.int64),
        finite=torch.ones((), dtype=torch.bool, device=device),
        temperature=torch.tensor(temperature, dtype=torch.float64, device=device),
        eos=torch.tensor(backbone.eos_ids, device=device),
    )  # fmt: skip
    writing.take(logits, 0)
    return writing, cache


def _write(backbone: Backbone, writing: Writing, cache: DynamicCache, tick: Tick) -> None:
    """Draw the other tokens, one forward pass each."""
    length, every = writing.tokens.shape[1], LOOK_EVERY.get(backbone.device.type, 1)
    packed, step, padded = Packed(), None, not bool(writing.mask.all())
    for t in range(1, length):
        if t % every == 0:
            living = writing.living()
            if not backbone.most(living):
                return
            if 0 < living <= (1 - DROP_SHARE) * len(writing.rows):
                keep = writing.alive.nonzero().squeeze(1)
                cache.batch_select_indices(keep)
                writing.keep(keep)
        if t % TICK_EVERY == 0:
            tick()
            step = None
        writing.mask = torch.cat([writing.mask, writing.mask.new_ones(len(writing.rows), 1)], dim=1)
        with packed:
            step = step or _step(backbone, padded)
            logits = backbone.logits(step(writing.ids, writing.positions, writing.mask, cache))
        writing.take(logits, t)
    refuse_not_finite(writing.finite)


def _step(backbone: Backbone, padded: bool) -> Step:
    """States of a token more of each row, under the adapter in use. padded: some prompts are shorter than others."""

    def by_trunk(ids: Tensor, positions: Tensor, mask: Tensor, cache: DynamicCache) -> Tensor:
        output = backbone.trunk(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )
        states: Tensor = output.last_hidden_state[:, -1]
        return states

    return backbone.whole.next_token(backbone.trunk, padded) or by_trunk
