"""Key-value caches in preallocated memory: one that grows within its capacity, and one of fixed size.

Transformers' DynamicLayer copies its whole content for every token, so a token takes longer for longer sequences and
larger batches: a third of the time of sampling 256 rows from the embedded model.
"""

from typing import Any

from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedConfig
from transformers.cache_utils import CacheLayerMixin, DynamicLayer


class ReservedCacheLayer(DynamicLayer):
    """Keys and values (B, heads, T, head size) of one layer, with room for `extra_tokens` tokens after the first
    update.

    on_gpu: makes transformers always build a mask for single tokens. Otherwise it first checks whether one is needed,
    which waits for the GPU.
    """

    def __init__(self, extra_tokens: int, on_gpu: bool = False) -> None:
        DynamicLayer.__init__(self)
        self.extra_tokens = extra_tokens
        self.is_compileable = on_gpu
        self.buffers: list[Tensor] = []

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Append the states of new tokens; returns all states, as views of the buffers."""
        key_value, new_tokens = (key_states, value_states), key_states.shape[2]
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.buffers = [self._allocate(states) for states in key_value]
        length = self._ensure_capacity(new_tokens)
        for buffer, states in zip(self.buffers, key_value, strict=True):
            buffer.narrow(2, length, new_tokens).copy_(states)
        return self._view(length + new_tokens)

    def reserve_token(self) -> tuple[Tensor, Tensor, int]:
        """The key and value buffers, and the column where the caller writes the next token, which counts as cached.

        The cache must not be empty.
        """
        length = self._ensure_capacity(1)
        self._view(length + 1)
        keys, values = self.buffers
        return keys, values, length

    def _ensure_capacity(self, new_tokens: int) -> int:
        """The cached length, after making room for new_tokens more. Growing beyond the reserved capacity copies."""
        length = self.get_seq_length()
        if length + new_tokens > self.buffers[0].shape[2]:
            self.buffers = [self._allocate(buffer[:, :, :length], new_tokens) for buffer in self.buffers]
        return length

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows; a row may be repeated."""
        length = self.get_seq_length()
        if length:
            self.buffers = [buffer[indices] for buffer in self.buffers]
            self._view(length)

    def _view(self, length: int) -> tuple[Tensor, Tensor]:
        keys, values = (buffer.narrow(2, 0, length) for buffer in self.buffers)
        self.keys, self.values = keys, values
        return keys, values

    def _allocate(self, states: Tensor, new_tokens: int = 0) -> Tensor:
        batch, heads, length, head_size = states.shape
        buffer = states.new_empty(batch, heads, length + new_tokens + self.extra_tokens, head_size)
        buffer[:, :, :length] = states
        return buffer


class FixedCacheLayer(CacheLayerMixin):
    """Keys and values (B, heads, capacity, head size) of one layer in the tensors given; new states go to column
    `write_index`, (1,) int64.

    All columns are returned: the attention mask must hide those not written yet. Shapes and addresses never change and
    nothing is read from the GPU, so a CUDA graph can contain it.
    """

    is_compileable = True

    def __init__(self, keys: Tensor, values: Tensor, write_index: Tensor) -> None:
        CacheLayerMixin.__init__(self)
        self.keys, self.values, self.buffers = keys, values, (keys, values)
        self.write_index, self.is_initialized = write_index, True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to initialise."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write the states of one token; returns the whole buffers."""
        for buffer, states in zip(self.buffers, (key_states, value_states), strict=True):
            buffer.index_copy_(2, self.write_index, states)
        return self.buffers

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002
        return self.buffers[0].shape[2], 0

    def get_seq_length(self) -> Any:
        return self.write_index

    def get_max_length(self) -> int:
        return self.buffers[0].shape[2]


def reserved_cache(config: PreTrainedConfig, extra_tokens: int, *, on_gpu: bool = False) -> DynamicCache:
    """The cache that transformers creates for this model, its plain layers with room for `extra_tokens` tokens after
    the prompt.
    """
    cache = DynamicCache(config=config)
    cache.layers = [
        ReservedCacheLayer(extra_tokens, on_gpu) if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    return cache


def filled_states(cache: Cache) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of every layer so far; empty if a layer does not simply keep every token."""
    layers = [layer for layer in cache.layers if type(layer) is ReservedCacheLayer]
    if len(layers) < len(cache.layers):
        return []
    return [(layer.keys, layer.values) for layer in layers if layer.keys is not None and layer.values is not None]
