"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864), for all heads at once."""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class RopeTables(NamedTuple):
    """Cosines and sines of T tokens, (T, D) or (1, T, D) each, or (B, T, D) if positions differ by row.

    A head x becomes x · cos + swap(x) · sin, where `swap` exchanges its halves and sin is negated on the first half.
    """

    cos: Tensor
    sin: Tensor

    def first_tokens(self, count: int) -> "RopeTables":
        """The tables of the first `count` tokens."""
        return RopeTables(*(table.narrow(-2, 0, count) for table in self))

    def last_tokens(self, count: int) -> "RopeTables":
        """The tables of the last `count` tokens."""
        length = self.cos.shape[-2]
        return self if count == length else RopeTables(*(table.narrow(-2, length - count, count) for table in self))


def make_rope(embeddings: tuple[Tensor, Tensor]) -> RopeTables:
    """embeddings: cosines and sines as transformers computes them."""
    cos, sin = embeddings
    half = cos.shape[-1] // 2
    return RopeTables(cos, torch.cat([-sin[..., :half], sin[..., half:]], -1))


def apply_rope(x: Tensor, rope: RopeTables, *, inverse: bool = False, out: Tensor | None = None) -> Tensor:
    """Rotated heads, (n, B, T, D), contiguous or in `out`. x: the same shape, any strides.

    inverse: rotate back, which turns gradients of rotated heads into gradients of the originals.
    """
    out = torch.mul(x, rope.cos, out=x.new_empty(x.shape) if out is None else out)
    (x1, x2), (out1, out2), (sin1, sin2) = (tensor.chunk(2, -1) for tensor in (x, out, rope.sin))
    out1.addcmul_(x2, sin1, value=-1 if inverse else 1)
    out2.addcmul_(x1, sin2, value=-1 if inverse else 1)
    return out


class RopeCache:
    """Tables of models whose rotation depends on the position only, computed for some positions in advance.

    rotary: the model's rotary module. like: any tensor of the model's dtype and device.
    """

    EXTRA_POSITIONS = 64
    #: transformers' rope types that do not depend on the sequence length.
    ROPE_TYPES = ("default", "linear", "yarn", "llama3")

    def __init__(self, rotary: Any, like: Tensor) -> None:
        self._rotary, self._like = rotary, like
        self._tables: RopeTables | None = None

    def for_prefix(self, length: int) -> RopeTables:
        """Positions 0 to length - 1, (T, D)."""
        return RopeTables(*(table.narrow(0, 0, length) for table in self._tables_up_to(length)))

    def for_positions(self, positions: Tensor, max_length: int) -> RopeTables:
        """One position per row, (B, 1, D). positions: (B, 1) int64, below max_length."""
        return RopeTables(*(table[positions] for table in self._tables_up_to(max_length)))

    def _tables_up_to(self, max_length: int) -> RopeTables:
        if self._tables is None or len(self._tables.cos) < max_length:
            positions = torch.arange(max_length + self.EXTRA_POSITIONS, device=self._like.device)[None]
            self._tables = RopeTables(*(table.squeeze(0) for table in make_rope(self._rotary(self._like, positions))))
        return self._tables
