"""Batched sampling with a KV cache, driven by uniform numbers generated in advance.

A token is sampled by inverting the cumulative distribution at one uniform number per row and position. So sampling is a
pure function of (weights, prompts, uniforms): it uses no generator, rows do not influence each other, and a small
change of the policy changes few tokens of a sample with the same uniforms ("same seed, before and now").
Top-k, repetition penalty and other settings of the model's generation_config are not applied, and top-p only by
`TokenStream`, on request.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache
from transformers.cache_utils import DynamicIndexedLayer, DynamicSlidingWindowLayer

from rlhf_lab.common.progress import ProgressCallback, no_progress
from rlhf_lab.errors import ModelError
from rlhf_lab.kernels.matmul import PackedWeights
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.batch import pad_left
from rlhf_lab.models.fused_llama import MIN_SHARED_PREFIX
from rlhf_lab.models.kv_cache import ReservedCacheLayer, reserved_cache
from rlhf_lab.models.oom import run_in_chunks
from rlhf_lab.models.sampling.cuda_graphs import graphed_sampler_of
from rlhf_lab.models.sampling.sampling_state import SamplingState, raise_if_not_finite

PROGRESS_EVERY = 16
#: Tokens between two checks for finished rows, by device type: each check waits for the GPU. Elsewhere 1.
CHECK_ENDED_EVERY = {"cuda": PROGRESS_EVERY}
#: Finished rows are dropped once they are this share of the rows: dropping copies the cache, keeping them wastes
#: computation.
DROP_FRACTION = 1 / 8
#: Layers of a cache from which rows can be selected.
SELECTABLE_LAYERS = (ReservedCacheLayer, DynamicSlidingWindowLayer, DynamicIndexedLayer)


class Sampled(NamedTuple):
    """Responses as token ids (EOS last if it was sampled), and the log-probability (nats) of each token when it was
    sampled.
    """

    tokens: list[list[int]]
    logprobs: list[list[float]]


def uniforms(seeds: Sequence[int], length: int) -> Tensor:
    """(B, length) float64 in [0, 1): row b depends on seeds[b] only."""
    rows = [torch.rand(length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in seeds]
    return torch.stack(rows)


def _deduplicate(prompts: Sequence[Sequence[int]]) -> tuple[list[Sequence[int]], list[int]]:
    """The distinct prompts in order of first appearance, and the index of each prompt among them."""
    index_of: dict[tuple[int, ...], int] = {}
    inverse = [index_of.setdefault(tuple(prompt), len(index_of)) for prompt in prompts]
    return list(index_of), inverse


def _can_select_rows(cache: DynamicCache) -> bool:
    """Whether each layer keeps keys and values and nothing else. From layers that also have a state of the text so far, or
    only that, transformers selects some of the tensors or none.
    """
    return type(cache) is DynamicCache and all(type(layer) in SELECTABLE_LAYERS for layer in cache.layers)


def _shared_prefix(prompts: Sequence[Sequence[int]]) -> list[int]:
    """The tokens that all prompts begin with, such as a chat template's system message; at least one token of each prompt
    is left over. Empty for a single prompt, and if there are fewer than MIN_SHARED_PREFIX.
    """
    ordered = sorted(map(list, prompts))
    first, last = ordered[0], ordered[-1]
    length = next(
        (i for i, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]),
        min(len(first), len(last)) - 1,
    )
    return first[:length] if len(prompts) > 1 and length >= MIN_SHARED_PREFIX else []


@torch.no_grad()
def sample(
    backbone: Backbone,
    prompts: Sequence[Sequence[int]],
    uniform: Tensor,
    *,
    temperature: float = 1.0,
    on_progress: ProgressCallback = no_progress,
) -> Sampled:
    """Continue each prompt until EOS (kept as the last id) or until `uniform` (B, T) has no more columns.

    A prompt that occurs several times is read once. `on_progress` is called every PROGRESS_EVERY tokens. If memory runs
    out, sampling continues with fewer rows at a time.
    Raises ModelError if prompt and response do not fit the model's context, NotFiniteError if logits are not finite.
    """
    length = uniform.shape[1]
    longest_prompt = max(len(prompt) for prompt in prompts)
    if longest_prompt + length > backbone.context_length:
        raise ModelError(
            f"a prompt of {longest_prompt} tokens and a response of {length} do not fit the model's context of "
            f"{backbone.context_length}. Shorten the prompt or lower max_new_tokens."
        )
    samples = run_in_chunks(
        backbone,
        len(prompts),
        lambda chunk: _sample(backbone, prompts[chunk], uniform[chunk], temperature, on_progress),
    )
    return Sampled(
        [row for sampled in samples for row in sampled.tokens], [row for sampled in samples for row in sampled.logprobs]
    )


def _sample(
    backbone: Backbone,
    prompts: Sequence[Sequence[int]],
    uniform: Tensor,
    temperature: float,
    on_progress: ProgressCallback,
) -> Sampled:
    length, graphed = uniform.shape[1], graphed_sampler_of(backbone)
    state, cache = _prefill(backbone, prompts, uniform.to(backbone.device), temperature, 0 if graphed else length)
    if graphed is None or not graphed.decode(backbone, state, cache, on_progress, PROGRESS_EVERY):
        _decode(backbone, state, cache, on_progress)
    responses = [[token for token in row if token >= 0] for row in state.tokens.tolist()]
    return Sampled(responses, [p[: len(row)] for p, row in zip(state.logprobs.tolist(), responses, strict=True)])


def _prefill(
    backbone: Backbone,
    prompts: Sequence[Sequence[int]],
    uniform: Tensor,
    temperature: float,
    extra_tokens: int,
    top_p: float = 1.0,
) -> tuple[SamplingState, DynamicCache]:
    """Read the prompts (a shared prefix is read once) and sample the first token of each row.

    uniform: (B, T). extra_tokens: capacity to reserve in the cache.
    """
    device, count = backbone.device, len(prompts)
    cache = reserved_cache(backbone.model.config, extra_tokens, on_gpu=device.type == "cuda")
    unique_prompts, inverse = _deduplicate(prompts) if _can_select_rows(cache) else (list(prompts), [])
    can_share = (
        backbone.shards is None
        and backbone.allows_inner_padding
        and all(type(layer) is ReservedCacheLayer for layer in cache.layers)
    )
    prefix = _shared_prefix(unique_prompts) if can_share else []
    if prefix:
        ids = torch.tensor([prefix], device=device)
        backbone.trunk(input_ids=ids, past_key_values=cache, use_cache=True)
        cache.batch_select_indices(torch.zeros(len(unique_prompts), dtype=torch.int64, device=device))
    ids, mask = pad_left([prompt[len(prefix) :] for prompt in unique_prompts], backbone.pad_id, device)
    mask = functional.pad(mask, (len(prefix), 0), value=1)
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    output = backbone.trunk(
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions[:, len(prefix) :],
        past_key_values=cache,
        use_cache=True,
    )
    logits, positions = backbone.logits(output.last_hidden_state[:, -1]), positions[:, -1:]
    if len(unique_prompts) < count:
        index = torch.tensor(inverse, device=device)
        cache.batch_select_indices(index)
        logits, mask, positions = logits[index], mask[index], positions[index]
    state = SamplingState(
        response_index=torch.arange(count, device=device), input_ids=torch.empty((count, 1), dtype=torch.int64, device=device),
        positions=positions.clone(), mask=mask, active=torch.ones(count, dtype=torch.bool, device=device), uniform=uniform,
        logprobs=torch.zeros_like(uniform), tokens=torch.full_like(uniform, -1, dtype=torch.int64),
        all_finite=torch.ones((), dtype=torch.bool, device=device),
        temperature=torch.tensor(temperature, dtype=torch.float64, device=device),
        eos_ids=torch.tensor(backbone.eos_ids, device=device), top_p=top_p,
    )  # fmt: skip
    state.sample_step(logits, 0)
    return state, cache


def _decode(backbone: Backbone, state: SamplingState, cache: DynamicCache, on_progress: ProgressCallback) -> None:
    """Sample the remaining tokens, one forward pass each."""
    length, check_every = state.tokens.shape[1], CHECK_ENDED_EVERY.get(backbone.device.type, 1)
    packed_weights, step, has_padding = PackedWeights(), None, not bool(state.mask.all())
    for t in range(1, length):
        if t % check_every == 0:
            active = state.count_active()
            if not backbone.sync_pass_count(active):
                return
            if 0 < active <= (1 - DROP_FRACTION) * len(state.response_index) and _can_select_rows(cache):
                kept_rows = state.active.nonzero().squeeze(1)
                cache.batch_select_indices(kept_rows)
                state.select(kept_rows)
        if t % PROGRESS_EVERY == 0:
            on_progress()
            step = None
        state.mask = torch.cat([state.mask, state.mask.new_ones(len(state.response_index), 1)], dim=1)
        with packed_weights:
            step = step or backbone.decode_step(has_padding)
            logits = backbone.logits(step(state.input_ids, state.positions, state.mask, cache))
        state.sample_step(logits, t)
    raise_if_not_finite(state.all_finite)


class TokenStream:
    """One response that is sampled in slices, its KV cache kept in between.

    The adapter that was in use when the stream was created must be in use in every slice; between slices, others may be.
    If top_p is 1, the tokens are those that `sample` returns for the same uniforms. Raises NotFiniteError as `sample` does.
    """

    @torch.no_grad()
    def __init__(
        self, backbone: Backbone, prompt: Sequence[int], uniform: Tensor, *, temperature: float, top_p: float = 1.0
    ) -> None:
        """Reads the prompt and samples the first token. uniform: (1, T)."""
        self._backbone, self._length = backbone, uniform.shape[1]
        self._state, self._cache = _prefill(
            backbone, [prompt], uniform.to(backbone.device), temperature, self._length, top_p
        )
        self._count, self._packed_weights = 1, PackedWeights()

    @property
    def tokens(self) -> list[int]:
        """The token ids so far; EOS last if it was sampled."""
        return [int(token) for token in self._state.tokens[0, : self._count].tolist()]

    @torch.no_grad()
    def advance(self, should_pause: Callable[[], bool]) -> bool:
        """Sample until the response is complete, or `should_pause`, which is called before each token, returns true.

        Returns whether it is complete.
        """
        state, step = self._state, self._backbone.decode_step(has_padding=False)
        while self._count < self._length and state.count_active():
            if should_pause():
                return False
            state.mask = torch.cat([state.mask, state.mask.new_ones(1, 1)], dim=1)
            with self._packed_weights:
                logits = self._backbone.logits(step(state.input_ids, state.positions, state.mask, self._cache))
            state.sample_step(logits, self._count)
            self._count += 1
        raise_if_not_finite(state.all_finite)
        return True
