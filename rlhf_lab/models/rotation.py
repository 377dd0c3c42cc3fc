"""The rotation of queries and keys by their places in the text (Su et al. 2021, arXiv 2104.09864), for all heads at once."""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Turn(NamedTuple):
    """By how much the T tokens of a text are rotated, (T, D) or (1, T, D) each, or (B, T, D) where texts differ.

    A head x becomes x · cos + swap(x) · sin, where `swap` changes its halves about and sin is negative on the first.
    """

    cos: Tensor
    sin: Tensor

    def last(self, count: int) -> "Turn":
        """Of the last tokens alone."""
        length = self.cos.shape[-2]
        return self if count == length else Turn(*(part.narrow(-2, length - count, count) for part in self))


def turn_of(embeddings: tuple[Tensor, Tensor]) -> Turn:
    """embeddings: cosines and sines, as transformers makes them."""
    cos, sin = embeddings
    half = cos.shape[-1] // 2
    return Turn(cos, torch.cat([-sin[..., :half], sin[..., half:]], -1))


def turned(x: Tensor, turn: Turn, *, back: bool = False, out: Tensor | None = None) -> Tensor:
    """Rotated heads, (n, B, T, D), contiguous or in `out`. x: the same, any strides.

    back: by the same angles the other way round, which makes slopes of what has been rotated those of what it was.
    """
    out = torch.mul(x, turn.cos, out=x.new_empty(x.shape) if out is None else out)
    (x1, x2), (out1, out2), (sin1, sin2) = (one.chunk(2, -1) for one in (x, out, turn.sin))
    out1.addcmul_(x2, sin1, value=-1 if back else 1)
    out2.addcmul_(x1, sin2, value=-1 if back else 1)
    return out


class Places:
    """The rotation by places, for models in which it follows from the place alone; made some places at a time.

    rotary: the model's own module. like: any tensor of the model's dtype and device.
    """

    AHEAD = 64
    #: Kinds of rotation (transformers' rope_type) that do not look at how long a text is.
    KINDS = ("default", "linear", "yarn", "llama3")

    def __init__(self, rotary: Any, like: Tensor) -> None:
        self._rotary, self._like = rotary, like
        self._made: Turn | None = None

    def begin(self, length: int) -> Turn:
        """Of the first places of a text, one after the other, (T, D)."""
        return Turn(*(part.narrow(0, 0, length) for part in self._upto(length)))

    def at(self, places: Tensor, most: int) -> Turn:
        """Of one token of each row, (B, 1, D). places: (B, 1) int64, below `most`."""
        return Turn(*(part[places] for part in self._upto(most)))

    def _upto(self, most: int) -> Turn:
        if self._made is None or len(self._made.cos) < most:
            places = torch.arange(most + self.AHEAD, device=self._like.device)[None]
            self._made = Turn(*(part.squeeze(0) for part in turn_of(self._rotary(self._like, places))))
        return self._made
