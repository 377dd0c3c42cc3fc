"""Keys and values of the tokens read so far, in memory taken once.

Transformers' DynamicLayer copies everything it holds at every token, so a token costs more the longer the text and the
larger the batch: a third of the time of sampling 256 rows of the embedded model.
"""

from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer


class ReservedLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keys and values (B, heads, T, head size) of one layer, with room for `extra` tokens after the first update."""

    def __init__(self, extra: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.extra = extra
        self.room: list[Tensor] = []

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Append the states of new tokens; returns all there are, as views of the room."""
        both = (key_states, value_states)
        used = self.get_seq_length()
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.room = [self._with_room(states) for states in both]
        length = used + key_states.shape[-2]
        if length > self.room[0].shape[-2]:  # more tokens than announced: slower, still right
            self.room = [self._with_room(room[:, :, :used], key_states.shape[-2]) for room in self.room]
        for room, states in zip(self.room, both, strict=True):
            room[:, :, used:length] = states
        return self._view(length)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows; a row may occur several times."""
        length = self.get_seq_length()
        if length:
            self.room = [room[indices] for room in self.room]
            self._view(length)

    def _view(self, length: int) -> tuple[Tensor, Tensor]:
        keys, values = (room[:, :, :length] for room in self.room)
        self.keys, self.values = keys, values
        return keys, values

    def _with_room(self, states: Tensor, more: int = 0) -> Tensor:
        batch, heads, length, size = states.shape
        room = states.new_empty(batch, heads, length + more + self.extra, size)
        room[:, :, :length] = states
        return room


def reserved_cache(config: PreTrainedConfig, extra: int) -> DynamicCache:
    """The cache that transformers makes for this model, its plain layers with room for `extra` tokens after the prompt."""
    cache = DynamicCache(config=config)
    cache.layers = [ReservedLayer(extra) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache
