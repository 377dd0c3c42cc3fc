"""A low-rank update of a weight within a layer whose gradient is written by hand, in one of two ways.

Merged, the weight is W + s·B·A. Where that sum would round the update away (lora_linear.py) it stays beside: the weight is
[W | s·B] and what it multiplies is [x | x·Aᵀ], one product all the same. On the way back the columns behind x's are s·g·B, which
the slopes of x and of A need both.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rlhf_lab.core.products import linear
from rlhf_lab.fused import calls


def widened(x: Tensor, a: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """What a weight multiplies in the place of x (N, in): x itself where its update is merged, else [x | low]; and low = x·Aᵀ.

    a: A of every weight that reads x, one below the other, (Σr, in), where updates are beside.
    """
    if a is None:
        return x, None
    low = linear(x, a)
    return torch.cat([x, low], 1), low


def narrowed(slope: Tensor, a: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The slopes of x and of low from that of what `widened` made of x, which is used up."""
    if a is None:
        return slope, None
    own, low = slope.split_with_sizes((a.shape[1], a.shape[0]), 1)
    return own.addmm_(low, a), low


def slopes_of(
    pairs: Sequence[Tensor],
    scale: float,
    x: Tensor,
    slopes: Sequence[Tensor] | Tensor,
    low: Tensor | None,
    low_slope: Tensor | None,
) -> list[Tensor]:
    """dA = s·(g·B)ᵀ·x and dB = s·gᵀ·(x·Aᵀ), in turn, of weights that read the same input.

    pairs: their A (r, in) and B (out, r), in turn; none where nothing learns. x: (N, in). slopes: g (N, out) of each, one tensor
    where their sizes are the same. low, low_slope: of `widened` and `narrowed`.
    """
    if not pairs:
        return []
    a, b = pairs[::2], pairs[1::2]
    ranks = [one.shape[0] for one in a]
    if all(calls.takes_slopes(x, slope) for slope in slopes) and all(one.dtype == torch.float32 for one in pairs):
        known: list[tuple[Tensor, Tensor] | None] = [None] * len(a)
        if low is not None and low_slope is not None:
            known = [*zip(low.split(ranks, 1), low_slope.split(ranks, 1), strict=True)]
        each = (calls.lora_slopes(x, g, a, b, scale, lows) for a, b, g, lows in zip(a, b, slopes, known, strict=True))
        return [slope for both in each for slope in both]
    # The long dimension (rows) comes last in the rank-r products: four times as fast as with r last (BLAS, measured).
    if low is None or low_slope is None:
        by_column = slopes.mT if isinstance(slopes, Tensor) else [slope.t() for slope in slopes]
        below = _joined(a).mm(x.t())
        da = _joined(_products([one.t() for one in b], by_column)).mm(x).mul_(scale)
    else:
        below = low.t()
        da = low_slope.t().mm(x).to(a[0].dtype)
    db = [
        torch.mul(found.t().to(one.dtype), scale, out=torch.empty_like(one))  # as B lies, or autograd would copy it
        for one, found in zip(b, _products(below.split(ranks), slopes), strict=True)
    ]
    return [slope for both in zip(da.split(ranks), db, strict=True) for slope in both]


def _products(few: Sequence[Tensor], many: Sequence[Tensor] | Tensor) -> list[Tensor]:
    """few (r, K) @ many (K, M) of each; where the sizes are the same, as batched ones, which take two thirds of the time."""
    if isinstance(many, Tensor) and len(few) > 1 and len({one.shape for one in few}) == 1:
        return [*torch.bmm(torch.stack([*few]), many)]
    return [one.mm(other) for one, other in zip(few, many, strict=True)]


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([*parts]) if len(parts) > 1 else parts[0]
