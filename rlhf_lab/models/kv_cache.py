"""Keys and values of the tokens read so far, in memory taken once: a cache that grows into its room, and one of fixed width.

Transformers' DynamicLayer copies everything it holds at every token, so a token costs more the longer the text and the
larger the batch: a third of the time of sampling 256 rows of the embedded model.
"""

from typing import Any

from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedConfig
from transformers.cache_utils import CacheLayerMixin, DynamicLayer


class ReservedLayer(DynamicLayer):
    """Keys and values (B, heads, T, head size) of one layer, with room for `extra` tokens after the first update.

    on_gpu: transformers then always makes a mask for a single token. It looks first whether one is needed otherwise, and a GPU
    has to be waited for until it knows.
    """

    def __init__(self, extra: int, on_gpu: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # transformers annotates its layers only in part
        self.extra = extra
        self.is_compileable = on_gpu
        self.room: list[Tensor] = []

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Append the states of new tokens; returns all there are, as views of the room."""
        both, new = (key_states, value_states), key_states.shape[2]
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.room = [self._with_room(states) for states in both]
        used = self._make_room(new)
        for room, states in zip(self.room, both, strict=True):
            room.narrow(2, used, new).copy_(states)
        return self._view(used + new)

    def one_more(self) -> tuple[Tensor, Tensor, int]:
        """The room of keys and of values, and the column where the caller writes those of a token more, which counts as read.
        There have to be some already."""
        used = self._make_room(1)
        self._view(used + 1)
        keys, values = self.room
        return keys, values, used

    def _make_room(self, new: int) -> int:
        """How many tokens there are, once there is room for `new` more: where more come than announced, slower, still right."""
        used = self.get_seq_length()
        if used + new > self.room[0].shape[2]:
            self.room = [self._with_room(room[:, :, :used], new) for room in self.room]
        return used

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows; a row may occur several times."""
        used = self.get_seq_length()
        if used:
            self.room = [room[indices] for room in self.room]
            self._view(used)

    def _view(self, length: int) -> tuple[Tensor, Tensor]:
        keys, values = (room.narrow(2, 0, length) for room in self.room)
        self.keys, self.values = keys, values
        return keys, values

    def _with_room(self, states: Tensor, more: int = 0) -> Tensor:
        batch, heads, length, size = states.shape
        room = states.new_empty(batch, heads, length + more + self.extra, size)
        room[:, :, :length] = states
        return room


class FixedLayer(CacheLayerMixin):
    """Keys and values (B, heads, room, head size) of one layer in tensors given to it; new states go to column `at`, (1,) int64.

    Every column is returned: what has not been written yet is for the attention mask to hide. Shapes and places in memory
    never change, and nothing is read from the GPU, so that a CUDA graph may hold it.
    """

    is_compileable = True

    def __init__(self, keys: Tensor, values: Tensor, at: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # transformers annotates its layers only in part
        self.keys, self.values, self.room, self.at, self.is_initialized = keys, values, (keys, values), at, True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing is left to be made."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write the states of one token; returns the whole room."""
        for room, states in zip(self.room, (key_states, value_states), strict=True):
            room.index_copy_(2, self.at, states)
        return self.room

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002
        return self.room[0].shape[2], 0

    def get_seq_length(self) -> Any:
        return self.at

    def get_max_length(self) -> int:
        return self.room[0].shape[2]


def reserved_cache(config: PreTrainedConfig, extra: int, *, on_gpu: bool = False) -> DynamicCache:
    """The cache that transformers makes for this model, its plain layers with room for `extra` tokens after the prompt."""
    cache = DynamicCache(config=config)
    cache.layers = [ReservedLayer(extra, on_gpu) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def states_of(cache: Cache) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of every layer, as far as they are filled; empty where a layer does not simply keep every token."""
    layers = [layer for layer in cache.layers if type(layer) is ReservedLayer]
    if len(layers) < len(cache.layers):
        return []
    return [(layer.keys, layer.values) for layer in layers if layer.keys is not None and layer.values is not None]
