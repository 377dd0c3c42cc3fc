"""What lies between the matrix products of a decoder layer, forward and on the way back: norms, the gated unit and attention.

Each in one pass by a compiled kernel (rlhf_lab/fused) where there are some and they take the numbers, else by PyTorch's
operations. Rounding differs in the last bits; a process goes one way throughout, with a gradient or without.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from rlhf_lab.fused import calls
from rlhf_lab.models.attention import looks
from rlhf_lab.models.lora_linear import HALF
from rlhf_lab.models.rotation import Turn, turned


class Shape(NamedTuple):
    """Heads, groups of keys and values, the size D of a head, and what the two norms add to the mean square."""

    heads: int
    groups: int
    size: int
    eps: tuple[float, float]


def norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """w · x / rms(x) of each row, and 1 / sqrt(mean square + eps), (N, 1), in float32 at the least. x: (N, H)."""
    if calls.takes(x, weight):
        return calls.norm(x, weight, eps)
    wide = x.float() if x.dtype in HALF else x
    size = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    inverse = torch.addcmul(_number(eps, wide.dtype), size, size, value=1 / x.shape[-1]).rsqrt_()
    return (wide * inverse).mul_(weight).to(x.dtype), inverse


@functools.lru_cache(maxsize=16)
def _number(value: float, dtype: torch.dtype) -> Tensor:
    return torch.tensor(value, dtype=dtype)


def normed(x: Tensor, inverse: Tensor, weight: Tensor) -> Tensor:
    """What `norm` gave, once more. inverse: what it gave beside."""
    return (x.to(inverse.dtype) * inverse).mul_(weight).to(x.dtype)


def norm_back(slope: Tensor, x: Tensor, inverse: Tensor, weight: Tensor, around: Tensor) -> tuple[Tensor, Tensor]:
    """What came around the norm + the slope of x from that of `norm`'s result, which is used up; and that result again."""
    if calls.takes(x, weight, slope, around):
        return calls.norm_back(slope, x, inverse, weight, around)
    dtype, again = around.dtype, normed(x, inverse, weight)
    slope, x, around = (one.to(inverse.dtype) for one in (slope, x, around))
    slope.mul_(weight)
    share = (slope * x).sum(-1, keepdim=True).mul_(inverse.pow(3))
    return torch.addcmul(around, slope, inverse).addcmul_(x, share, value=-1 / x.shape[-1]).to(dtype), again


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up."""
    return calls.swiglu(gate, up) if calls.takes(gate, up) else functional.silu(gate).mul_(up)


def swiglu_back(slope: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """The slopes of gate and up, (2, N, I), from that of `swiglu`'s result (N, I), which is used up; and that result again."""
    if calls.takes(gate, up, slope):
        return calls.swiglu_back(slope, gate, up)
    d_gate, opened = both = gate.new_empty(2, *gate.shape)
    torch.ops.aten.silu.out(gate, out=opened)
    again = opened * up
    opened.mul_(slope)
    torch.ops.aten.silu_backward.grad_input(slope.mul_(up), gate, grad_input=d_gate)
    return both, again


def by_head(x: Tensor, batch: int, size: int) -> Tensor:
    """(B·T, n·D) as (n, B, T, D); no copy."""
    return x.view(batch, -1, x.shape[-1] // size, size).permute(2, 0, 1, 3)


def attend(read: Tensor, turn: Turn, batch: int, first: int, shape: Shape) -> tuple[Tensor, Sequence[Tensor]]:
    """Causal attention of the tokens from `first` on, (B·(T - first), heads·D); and what `attend_back` has to be given.

    read: (B·T, (heads + 2 groups)·D), q, k and v of each token, not rotated yet.
    """
    if calls.takes(read, turn.cos):
        return calls.attend(read, turn.cos, turn.sin, batch, first, shape.heads, shape.groups), (read,)
    heads = by_head(read, batch, shape.size)
    q, k = turned(heads[: -shape.groups], turn).split_with_sizes((shape.heads, shape.groups))
    v, queries = heads[-shape.groups :].contiguous(), k.shape[2] - first
    if first:  # copies, so that what is not asked for does not stay
        q, k = q[:, :, first:].clone(memory_format=torch.contiguous_format), k.clone()
    q = q.view(-1, queries, shape.size)
    seen = looks(q, _spread(k, shape.heads), shape.size**-0.5)
    mixed = torch.bmm(seen, _spread(v, shape.heads)).view(-1, batch, queries, shape.size)
    return mixed.permute(1, 2, 0, 3).reshape(batch * queries, -1), (q, k, v, seen)


def attend_back(slope: Tensor, kept: Sequence[Tensor], turn: Turn, batch: int, first: int, shape: Shape) -> Tensor:
    """The slope of `read` from that of what `attend` gave."""
    if len(kept) == 1:
        return calls.attend_back(slope, kept[0], turn.cos, turn.sin, batch, first, shape.heads, shape.groups)
    q, k, v, seen = kept
    d_mixed = by_head(slope, batch, shape.size).reshape(q.shape)
    d_seen = torch.bmm(d_mixed, _spread(v, shape.heads).mT)
    d_scores = torch._softmax_backward_data(d_seen, seen, -1, seen.dtype)
    sharp, queries, length = shape.size**-0.5, q.shape[1], k.shape[2]
    d_read = slope.new_empty(batch * length, (shape.heads + 2 * shape.groups) * shape.size)
    to = by_head(d_read, batch, shape.size)
    to_q, to_k, to_v = to[: shape.heads], to[shape.heads : -shape.groups], to[-shape.groups :]
    if first:
        to_q[:, :, :first] = 0
    d_q = _times(sharp, d_scores, _spread(k, shape.heads)).view(-1, batch, queries, shape.size)
    turned(d_q, turn.last(queries), back=True, out=to_q[:, :, first:])
    turned(_gathered(_times(sharp, d_scores.mT, q), k), turn, back=True, out=to_k)
    to_v.copy_(_gathered(torch.bmm(seen.mT, d_mixed), v))
    return d_read


def _spread(x: Tensor, heads: int) -> Tensor:
    """(groups, B, T, D) -> (heads·B, T, D): the keys or values of a group for each head that reads them."""
    groups, batch, length, size = x.shape
    if groups == heads:
        return x.view(-1, length, size)
    return x[:, None].expand(-1, heads // groups, -1, -1, -1).reshape(heads * batch, length, size)


def _times(factor: float, a: Tensor, b: Tensor) -> Tensor:
    """factor · a @ b."""
    return torch.baddbmm(_number(0.0, b.dtype), a, b, beta=0, alpha=factor)


def _gathered(slope: Tensor, like: Tensor) -> Tensor:
    """(heads·B, T, D) -> (groups, B, T, D): the slopes of a group's heads added up."""
    slope = slope.view(like.shape[0], -1, *like.shape[1:])
    return slope.squeeze(1) if slope.shape[1] == 1 else slope.sum(1)
