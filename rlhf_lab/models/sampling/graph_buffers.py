"""The buffers of fixed shape on which a sampling step works: what cuda_graphs.py records."""

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.kv_cache import FixedCacheLayer
from rlhf_lab.models.sampling.sampling_state import SamplingState, raise_if_not_finite

log = logging.getLogger("rlhf_lab.graphs")

MAX_GRAPHS = 16  # least recently used ones are dropped

Action = Callable[[], None]
#: (step, restore) -> a function that replays the step; `restore` undoes a step.
Recorder = Callable[[Action, Action], Action]
#: Keys and values (B, heads, L, head size) of each layer.
KeyValueStates = Sequence[tuple[Tensor, Tensor]]


def padded_row_count(rows: int) -> int:
    """The smallest of 1, 2, 3, 4, 6, 8, 12, 16, 24, … that is at least `rows`."""
    power = 1 << (rows - 1).bit_length()
    return power * 3 // 4 if 3 * power // 4 >= rows and power >= 4 else power


class GraphBuffers:
    """Buffers for `max_rows` rows of `max_columns` tokens, prompt and response, and the graphs that sample one token of
    each row.

    state: all rows; a step on fewer rows uses the first ones. write_index, t: (1,) int64, the cache column of the next
    token, and the index of the response token sampled next.
    """

    def __init__(
        self, max_rows: int, max_columns: int, template: SamplingState, kv_states: KeyValueStates, record: Recorder
    ) -> None:
        self.max_rows, self.max_columns, self.record = max_rows, max_columns, record
        int_zeros = template.input_ids.new_zeros
        self.state = SamplingState(
            response_index=int_zeros(max_rows),
            input_ids=int_zeros(max_rows, 1),
            positions=int_zeros(max_rows, 1),
            mask=int_zeros(max_rows, max_columns),
            active=int_zeros(max_rows).bool(),
            uniform=template.uniform.new_zeros(max_rows + 1, max_columns),
            logprobs=template.logprobs.new_zeros(max_rows + 1, max_columns),
            tokens=int_zeros(max_rows + 1, max_columns),
            all_finite=template.all_finite.clone(),
            temperature=template.temperature.clone(),
            eos_ids=template.eos_ids,
        )
        self.write_index, self.t = int_zeros(1), int_zeros(1)
        self.kv_states = [
            tuple(x.new_zeros(max_rows, x.shape[1], max_columns, x.shape[3]) for x in key_value)
            for key_value in kv_states
        ]
        self.active_rows = max_rows
        self.generation: object = None
        self.graphs: dict[Hashable, Action] = {}

    def fits(self, row_count: int, column_count: int) -> bool:
        """Whether the buffers are large enough, but not so long that most of each step would be spent on masked columns."""
        return row_count <= self.max_rows and column_count <= self.max_columns <= 4 * column_count

    def merged_size(self, row_count: int, column_count: int) -> tuple[int, int]:
        """A size for both the given and the present rows and columns, unless it is too large; else the given size.

        Too large: more than twice the memory of the larger one, or more than 4 times the given columns.
        """
        merged = max(row_count, self.max_rows), max(column_count, self.max_columns)
        is_small_enough = (
            merged[0] * merged[1] <= 2 * max(row_count * column_count, self.max_rows * self.max_columns)
            and merged[1] <= 4 * column_count
        )
        return merged if is_small_enough else (row_count, column_count)

    def load(self, prefill: SamplingState, kv_states: KeyValueStates) -> None:
        """Copy the prefill's state and cache into the buffers; padding rows repeat the last row."""
        count, width = prefill.mask.shape
        buffers, self.active_rows = self.state, padded_row_count(count)
        row_index = torch.arange(self.active_rows, device=prefill.response_index.device)
        is_padding, row_index = row_index >= count, row_index.clamp_max(count - 1)
        self._copy_rows(prefill, row_index)
        buffers.response_index[: self.active_rows].masked_fill_(is_padding, self.max_rows)
        buffers.active[: self.active_rows].logical_and_(~is_padding)
        buffers.mask[:, width:].zero_()
        response_count, length = prefill.tokens.shape
        for buffer, value in (
            (buffers.uniform, prefill.uniform),
            (buffers.logprobs, prefill.logprobs),
            (buffers.tokens, prefill.tokens),
        ):
            buffer[:response_count, :length] = value
        for buffer, value in ((buffers.all_finite, prefill.all_finite), (buffers.temperature, prefill.temperature)):
            buffer.copy_(value)
        for layer, prefill_layer in zip(self.kv_states, kv_states, strict=True):
            for buffer, value in zip(layer, prefill_layer, strict=True):
                buffer[: self.active_rows, :, width:].zero_()  # masked, but 0 · NaN is NaN
                buffer[: self.active_rows, :, :width] = value[row_index]
        self.length = length
        self.write_index.fill_(width)
        self.t.fill_(1)

    def decode(self, backbone: Backbone, replay: Action, on_progress: Action, check_every: int) -> None:
        """Sample the remaining tokens. `on_progress` may use other weights, so they are refreshed after it."""
        for t in range(1, self.length):
            if t % check_every == 0:
                active = self.active_view().count_active()
                if not active:
                    return
                if 2 * padded_row_count(active) <= self.active_rows:
                    self._compact(padded_row_count(active))
                on_progress()
                backbone.weight_version.refresh()
                replay = self.recorded_step(backbone, raise_on_failure=False)
            replay()
        raise_if_not_finite(self.state.all_finite)

    def recorded_step(self, backbone: Backbone, *, raise_on_failure: bool = True) -> Action:
        """The recorded step for the active rows and the weights in use.

        raise_on_failure: False runs a step that cannot be recorded without a graph.
        """
        weight_version = backbone.weight_version
        if weight_version.generation is not self.generation:
            self.generation, self.graphs = weight_version.generation, {}
        key = (weight_version.key, self.active_rows)
        if key not in self.graphs:
            step = self._make_step(backbone)
            try:
                weight_version.refresh()
                self.graphs[key] = self.record(step, self._make_restore())
            except Exception as error:
                if raise_on_failure:
                    raise
                log.warning(
                    "%d rows are written without CUDA graphs (%s: %s)", self.active_rows, type(error).__name__, error
                )
                self.graphs[key] = step
            if len(self.graphs) > MAX_GRAPHS:
                del self.graphs[next(iter(self.graphs))]
        self.graphs[key] = self.graphs.pop(key)
        return self.graphs[key]

    def active_view(self) -> SamplingState:
        """The active rows, as views of the buffers."""
        buffers, row_count = self.state, self.active_rows
        return SamplingState(
            buffers.response_index[:row_count],
            buffers.input_ids[:row_count],
            buffers.positions[:row_count],
            buffers.mask[:row_count],
            buffers.active[:row_count],
            buffers.uniform,
            buffers.logprobs,
            buffers.tokens,
            buffers.all_finite,
            buffers.temperature,
            buffers.eos_ids,
        )

    def _make_step(self, backbone: Backbone) -> Action:
        """Samples one token per active row: allocates nothing that outlives the step, reads nothing back."""
        state, write_index, t = self.active_view(), self.write_index, self.t
        layers: list[Any] = [
            FixedCacheLayer(keys[: self.active_rows], values[: self.active_rows], write_index)
            for keys, values in self.kv_states
        ]
        trunk, logits_of, cache = backbone.trunk, backbone.logits, Cache(layers=layers)

        @torch.no_grad()
        def step() -> None:
            state.mask.index_fill_(1, write_index, 1)
            output = trunk(
                input_ids=state.input_ids, attention_mask=state.mask, position_ids=state.positions, past_key_values=cache,
                use_cache=True,
            )  # fmt: skip
            state.sample_step(logits_of(output.last_hidden_state[:, -1]), t)
            write_index.add_(1)
            t.add_(1)

        return step

    def _make_restore(self) -> Action:
        """Saves everything that a step changes (except the unused end of the cache), and returns a function that
        restores it.
        """
        buffers = self.state
        mutable = (
            buffers.input_ids,
            buffers.positions,
            buffers.mask,
            buffers.active,
            buffers.logprobs,
            buffers.tokens,
            buffers.all_finite,
            self.write_index,
            self.t,
        )
        snapshot = [tensor.clone() for tensor in mutable]

        def restore() -> None:
            for tensor, value in zip(mutable, snapshot, strict=True):
                tensor.copy_(value)

        return restore

    def _compact(self, row_count: int) -> None:
        """Move the active rows into the first `row_count` rows of the buffers, padded with finished ones."""
        order = (~self.active_view().active).to(torch.int8).argsort(stable=True)[:row_count]
        self._copy_rows(self.active_view(), order)
        for layer in self.kv_states:
            for tensor in layer:
                tensor[:row_count] = tensor[order]
        self.active_rows = row_count

    def _copy_rows(self, source: SamplingState, index: Tensor) -> None:
        """Copy the rows `index` of `source` into the first rows of the buffers."""
        buffers, count, width = self.state, len(index), source.mask.shape[1]
        buffers.response_index[:count] = source.response_index[index]
        buffers.input_ids[:count], buffers.positions[:count] = source.input_ids[index], source.positions[index]
        buffers.mask[:count, :width] = source.mask[index]
        buffers.active[:count] = source.active[index]
