"""The rotation of queries and keys by their places in the text (Su et al. 2021, arXiv 2104.09864), for all heads at once."""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class RopeTables(NamedTuple):
    """By how much the T tokens of a text are rotated, (T, D) or (1, T, D) each, or (B, T, D) where texts differ.

    A head x becomes x · cos + swap(x) · sin, where `swap` changes its halves about and sin is negative on the first.
    """

    cos: Tensor
    sin: Tensor

    def last_tokens(self, count: int) -> "RopeTables":
        """Of the last tokens alone."""
        length = self.cos.shape[-2]
        return self if count == length else RopeTables(*(table.narrow(-2, length - count, count) for table in self))


def make_rope(embeddings: tuple[Tensor, Tensor]) -> RopeTables:
    """embeddings: cosines and sines, as transformers makes them."""
    cos, sin = embeddings
    half = cos.shape[-1] // 2
    return RopeTables(cos, torch.cat([-sin[..., :half], sin[..., half:]], -1))


def apply_rope(x: Tensor, rope: RopeTables, *, inverse: bool = False, out: Tensor | None = None) -> Tensor:
    """Rotated heads, (n, B, T, D), contiguous or in `out_dir`. x: the same, any strides.

    back: by the same angles the other way round, which makes slopes of what has been rotated those of what it was.
    """
    out = torch.mul(x, rope.cos, out=x.new_empty(x.shape) if out is None else out)
    (x1, x2), (out1, out2), (sin1, sin2) = (tensor.chunk(2, -1) for tensor in (x, out, rope.sin))
    out1.addcmul_(x2, sin1, value=-1 if inverse else 1)
    out2.addcmul_(x1, sin2, value=-1 if inverse else 1)
    return out


class RopeCache:
    """The rotation by places, for models in which it follows from the place alone; made some places at a time.

    rotary: the model's own module. like: any tensor of the model's dtype and device.
    """

    EXTRA_POSITIONS = 64
    #: Kinds of rotation (transformers' rope_type) that do not look at how long a text is.
    ROPE_TYPES = ("default", "linear", "yarn", "llama3")

    def __init__(self, rotary: Any, like: Tensor) -> None:
        self._rotary, self._like = rotary, like
        self._tables: RopeTables | None = None

    def for_prefix(self, length: int) -> RopeTables:
        """Of the first places of a text, one after the other, (T, D)."""
        return RopeTables(*(table.narrow(0, 0, length) for table in self._tables_up_to(length)))

    def for_positions(self, positions: Tensor, max_length: int) -> RopeTables:
        """Of one token of each row, (B, 1, D). places: (B, 1) int64, below `most`."""
        return RopeTables(*(table[positions] for table in self._tables_up_to(max_length)))

    def _tables_up_to(self, max_length: int) -> RopeTables:
        if self._tables is None or len(self._tables.cos) < max_length:
            positions = torch.arange(max_length + self.EXTRA_POSITIONS, device=self._like.device)[None]
            self._tables = RopeTables(*(table.squeeze(0) for table in make_rope(self._rotary(self._like, positions))))
        return self._tables
