"""A low-rank update of a weight within a layer whose gradient is written by hand, in one of two ways.

Merged, the weight is W + s·B·A. Where that sum would round the update away (lora_linear.py) it stays beside: the weight is
[W | s·B] and what it multiplies is [x | x·Aᵀ], one product all the same. On the way back the columns behind x's are s·g·B, which
the slopes of x and of A need both.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rlhf_lab.core.products import linear


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
    if isinstance(slopes, Tensor) and len(a) > 1 and len(set(ranks)) == 1:
        alike = [(torch.stack([*b]), slopes)]
    else:
        alike = [(one[None], slope[None]) for one, slope in zip(b, slopes, strict=True)]
    # The long dimension (rows) comes last in the rank-r products: four times as fast as with r last (BLAS, measured).
    if low is None or low_slope is None:
        below = (torch.cat([*a]) if len(a) > 1 else a[0]).mm(x.t())
        back = [_products(one.mT, slope.mT).flatten(0, 1) for one, slope in alike]
        da = (torch.cat(back) if len(back) > 1 else back[0]).mm(x).mul_(scale)
    else:
        below = low.t()
        da = low_slope.t().mm(x).to(a[0].dtype)
    db: list[Tensor] = []
    for (one, slope), part in zip(alike, below.split([one.shape[0] * one.shape[2] for one, _ in alike]), strict=True):
        made = _products(part.unflatten(0, (len(one), -1)), slope).mT.to(one.dtype)
        db += torch.mul(made, scale, out=torch.empty_like(one)).unbind()
    return [slope for both in zip(da.split(ranks), db, strict=True) for slope in both]


def _products(few: Tensor, many: Tensor) -> Tensor:
    """few (n, r, K) @ many (n, K, M): as batched ones they take two thirds of the time."""
    return torch.bmm(few, many) if len(few) > 1 else few[0].mm(many[0])[None]
