"""A decoder layer of the Llama kind, its adapter included, as one function with a gradient written by hand.

    h = x + o(attention(rotated q, rotated k, v)),  q, k, v of n1(x)         n(x) = w · x / rms(x)
    y = h + down(silu(gate(n2(h))) · up(n2(h)))

Of modules, such a layer is some 50 small operations forward and 100 backward, and all their results stay until the gradient.
Here q, k and v are one product, norms, rotation, gate and sums are done where the numbers lie, and what is quick to find again is
not kept. The mathematics is Llama's (Touvron et al. 2023, arXiv 2302.13971)
with grouped keys (Ainslie et al. 2023, arXiv 2305.13245), and LoRA's gradients are those of lora_linear.py; rounding differs in
the last bits.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from rlhf_lab.core.products import linear, linear_onto
from rlhf_lab.models.attention import ahead, looks
from rlhf_lab.models.lora_linear import HALF
from rlhf_lab.models.low_rank import narrowed, slopes_of, widened
from rlhf_lab.models.rotation import Turn, turned

#: A and B of q, k, v, o, gate, up and down, in turn; or none.
Pairs = Sequence[Tensor]
OF_QKV, OF_O, OF_GATE_UP, OF_DOWN = slice(0, 6), slice(6, 8), slice(8, 12), slice(12, 14)
KEPT = 24  # tensors kept for the gradient, before the pairs


class Shape(NamedTuple):
    """Heads, groups of keys and values, the size D of a head, and what the two norms add to the mean square."""

    heads: int
    groups: int
    size: int
    eps: tuple[float, float]


class Weights(NamedTuple):
    """Of one layer: qkv ((heads + 2 groups)·D, H), o (H, heads·D), gate and up (I, H), down (H, I), the norms (H,) each, and the
    bias of qkv or None.

    beside: A of what reads the same input, for q, k and v, o, gate and up, and down, where updates stay beside the weights
    (low_rank.py), which then have further columns; else None four times."""

    qkv: Tensor
    o: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    norms: tuple[Tensor, Tensor]
    bias: Tensor | None
    beside: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None] = (None,) * 4


class Update(NamedTuple):
    """LoRA's: the weights are frozen + scale · B·A."""

    frozen: Weights
    scale: float


def layer(
    x: Tensor, weights: Weights, shape: Shape, turn: Turn, update: Update, pairs: Pairs, first: int = 0
) -> Tensor:  # fmt: skip
    """The layer's output (B, T - first, H) of x (B, T, H), where position t sees those up to t; of the first ones there is none.

    weights: with the update in them. Gradients flow to x and to the pairs, and may be differentiated again, which takes as long
    as with modules.
    """
    return _layer(x, weights, shape, turn, update, first, *pairs)


def plain_layer(x: Tensor, shape: Shape, turn: Turn, update: Update, pairs: Pairs) -> Tensor:
    """`layer` of all positions in operations that torch differentiates, in float32 at the least."""
    dtype, scale = x.dtype, update.scale
    x, *rest = (
        one.to(torch.promote_types(dtype, torch.float32)) for one in (x, *update.frozen[:5], *update.frozen.norms)
    )
    weights, norms = rest[:5], rest[5:]
    bias = update.frozen.bias.to(x.dtype) if update.frozen.bias is not None else None
    if pairs:
        updates = [scale * (b @ a) for a, b in zip(pairs[::2], pairs[1::2], strict=True)]
        updates[:3] = [torch.cat(updates[:3])]
        weights = [weight + change for weight, change in zip(weights, updates, strict=True)]
    qkv, o, gate, up, down = weights

    def scaled(x: Tensor, which: int) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + shape.eps[which]).rsqrt() * norms[which]

    read = functional.linear(scaled(x, 0), qkv, bias).unflatten(-1, (-1, shape.size)).permute(2, 0, 1, 3)
    q, k, v = read.split((shape.heads, shape.groups, shape.groups))
    q, k = (part * turn.cos + part.roll(shape.size // 2, -1) * turn.sin for part in (q, k))
    k, v = (part.repeat_interleave(shape.heads // shape.groups, 0) for part in (k, v))
    scores = q @ k.mT * shape.size**-0.5 + ahead(x.shape[1], x.shape[1], x.dtype)
    middle = x + functional.linear((scores.softmax(-1) @ v).permute(1, 2, 0, 3).flatten(2), o)
    inner = scaled(middle, 1)
    out: Tensor = middle + functional.linear(functional.silu(inner @ gate.t()) * (inner @ up.t()), down)
    return out.to(dtype)


def norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """w · x / rms(x) of each row, and 1 / sqrt(mean square + eps), (N, 1), in float32 at the least. x: (N, H)."""
    wide = x.float() if x.dtype in HALF else x
    size = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    inverse = torch.addcmul(_number(eps, wide.dtype), size, size, value=1 / x.shape[-1]).rsqrt_()
    return (wide * inverse).mul_(weight).to(x.dtype), inverse


@functools.lru_cache(maxsize=16)
def _number(value: float, dtype: torch.dtype) -> Tensor:
    return torch.tensor(value, dtype=dtype)


def normed(x: Tensor, inverse: Tensor, weight: Tensor) -> Tensor:
    """The same once more."""
    return (x.to(inverse.dtype) * inverse).mul_(weight).to(x.dtype)


def by_head(x: Tensor, batch: int, size: int) -> Tensor:
    """(B·T, n·D) as (n, B, T, D); no copy."""
    return x.view(batch, -1, x.shape[-1] // size, size).permute(2, 0, 1, 3)


def _spread(x: Tensor, heads: int) -> Tensor:
    """(groups, B, T, D) -> (heads·B, T, D): the keys or values of a group for each head that reads them."""
    groups, batch, length, size = x.shape
    if groups == heads:
        return x.view(-1, length, size)
    return x[:, None].expand(-1, heads // groups, -1, -1, -1).reshape(heads * batch, length, size)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weights: Weights, shape: Shape, turn: Turn, update: Update, first: int, *pairs: Tensor
    ) -> Tensor:
        batch, length, _ = x.shape
        rows = x.reshape(-1, x.shape[-1])
        inner, inverse1 = norm(rows, weights.norms[0], shape.eps[0])
        wide, low1 = widened(inner, weights.beside[0])
        read = by_head(linear(wide, weights.qkv, weights.bias), batch, shape.size)
        q, k = turned(read[: -shape.groups], turn).split_with_sizes((shape.heads, shape.groups))
        v = read[-shape.groups :].contiguous()
        if first:  # copies, so that what is not asked for does not stay
            q, k = q[:, :, first:].clone(memory_format=torch.contiguous_format), k.clone()
        q = q.view(-1, length - first, shape.size)
        del read
        seen = looks(q, _spread(k, shape.heads), shape.size**-0.5)
        mixed = torch.bmm(seen, _spread(v, shape.heads)).view(-1, batch, length - first, shape.size)
        mixed = mixed.permute(1, 2, 0, 3).reshape(batch * (length - first), -1)
        wide, low2 = widened(mixed, weights.beside[1])
        middle = linear_onto(x[:, first:].reshape(len(mixed), -1), wide, weights.o)
        inner, inverse2 = norm(middle, weights.norms[1], shape.eps[1])
        wide, low3 = widened(inner, weights.beside[2])
        gate, up = linear(wide, weights.gate), linear(wide, weights.up)
        wide, low4 = widened(functional.silu(gate).mul_(up), weights.beside[3])
        out = linear_onto(middle, wide, weights.down)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(
                x, *weights[:5], *weights.beside, low1, low2, low3, low4, inverse1, q, k, v, seen, mixed, middle, inverse2,
                gate, up, *pairs,
            )  # fmt: skip
            ctx.norms, ctx.shape, ctx.turn, ctx.update, ctx.first = weights.norms, shape, turn, update, first
        return out.view(batch, length - first, -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        kept = ctx.saved_tensors
        x, pairs = kept[0], kept[KEPT:]
        if torch.is_grad_enabled():  # to be differentiated again: trpo's curvature
            inputs = (x, *[None] * 5, *pairs)
            wanted = [
                one for one, needed in zip(inputs, ctx.needs_input_grad, strict=True) if one is not None and needed
            ]
            out = plain_layer(x, ctx.shape, ctx.turn, ctx.update, pairs)[:, ctx.first :]
            found = iter(torch.autograd.grad(out, wanted, gradients[0], create_graph=True))
            return tuple(next(found) if needed else None for needed in ctx.needs_input_grad)
        dx, *slopes = _slopes(ctx, kept, gradients[0].reshape(-1, x.shape[-1]))
        return (dx, *[None] * 5, *slopes)


_layer: Callable[..., Tensor] = _Layer.apply


def _slopes(ctx: Any, kept: Sequence[Tensor], dy: Tensor) -> list[Tensor | None]:
    """The slopes of x and of the pairs from that of the output, (B·(T - first), H); from the last product to the first."""
    (x, qkv, o, *of_mlp), a, lows, pairs = kept[:6], kept[6:10], kept[10:14], kept[KEPT:]
    inverse1, q, k, v, seen, mixed, middle, inverse2, gate, up = kept[14:KEPT]
    shape, turn, norms, scale, first = ctx.shape, ctx.turn, ctx.norms, ctx.update.scale, ctx.first
    (batch, length, _), rows = x.shape, x.reshape(-1, x.shape[-1])

    d_inner, low = narrowed(linear(dy, of_mlp[2].t()), a[3])
    d_gate, open_gate = both_slopes = gate.new_empty(2, *gate.shape)
    torch.ops.aten.silu.out(gate, out=open_gate)
    of_down = slopes_of(pairs[OF_DOWN], scale, open_gate * up, [dy], lows[3], low)
    d_up = open_gate.mul_(d_inner)
    torch.ops.aten.silu_backward.grad_input(d_inner.mul_(up), gate, grad_input=d_gate)
    del d_inner
    d_normed, low = narrowed(linear_onto(linear(d_gate, of_mlp[0].t()), d_up, of_mlp[1].t()), a[2])
    of_gate_up = slopes_of(pairs[OF_GATE_UP], scale, normed(middle, inverse2, norms[1]), both_slopes, lows[2], low)
    d_middle = _normed_back(d_normed, middle, inverse2, norms[1], dy)
    del both_slopes, open_gate, d_gate, d_up

    d_mixed, low = narrowed(linear(d_middle, o.t()), a[1])
    of_o = slopes_of(pairs[OF_O], scale, mixed, [d_middle], lows[1], low)
    d_mixed = by_head(d_mixed, batch, shape.size).reshape(q.shape)
    d_seen = torch.bmm(d_mixed, _spread(v, shape.heads).mT)
    d_scores = torch._softmax_backward_data(d_seen, seen, -1, seen.dtype)
    d_read = dy.new_empty(len(rows), len(qkv))
    to = by_head(d_read, batch, shape.size)
    to_q, to_k, to_v = to[: shape.heads], to[shape.heads : -shape.groups], to[-shape.groups :]
    if first:
        to_q[:, :, :first] = 0
    sharp, last = shape.size**-0.5, length - first
    d_q = _times(sharp, d_scores, _spread(k, shape.heads)).view(-1, batch, last, shape.size)
    turned(d_q, turn.last(last), back=True, out=to_q[:, :, first:])
    turned(_gathered(_times(sharp, d_scores.mT, q), k), turn, back=True, out=to_k)
    to_v.copy_(_gathered(torch.bmm(seen.mT, d_mixed), v))
    del d_mixed, d_seen, d_scores, d_q
    each: Sequence[Tensor] | Tensor = d_read.split(
        [n * shape.size for n in (shape.heads, shape.groups, shape.groups)], 1
    )
    if shape.heads == shape.groups:
        each = d_read.view(len(rows), 3, -1).transpose(0, 1)
    dx, low = None, None
    if ctx.needs_input_grad[0]:
        d_normed, low = narrowed(linear(d_read, qkv.t()), a[0])
        around = functional.pad(d_middle.view(batch, length - first, -1), (0, 0, first, 0)) if first else d_middle
        dx = _normed_back(d_normed, rows, inverse1, norms[0], around.view(rows.shape)).view(x.shape)
    elif a[0] is not None:
        low = linear(d_read, qkv[:, x.shape[-1] :].t())
    of_qkv = slopes_of(pairs[OF_QKV], scale, normed(rows, inverse1, norms[0]), each, lows[0], low)
    return [dx, *of_qkv, *of_o, *of_gate_up, *of_down]


def _normed_back(slope: Tensor, x: Tensor, inverse: Tensor, weight: Tensor, around: Tensor) -> Tensor:
    """The slope of x from that of `normed`, which is used up, and that which came around the norm."""
    dtype = around.dtype
    slope, x, around = (one.to(inverse.dtype) for one in (slope, x, around))
    slope.mul_(weight)
    share = (slope * x).sum(-1, keepdim=True).mul_(inverse.pow(3))
    return torch.addcmul(around, slope, inverse).addcmul_(x, share, value=-1 / x.shape[-1]).to(dtype)


def _times(factor: float, a: Tensor, b: Tensor) -> Tensor:
    """factor · a @ b."""
    return torch.baddbmm(_number(0.0, b.dtype), a, b, beta=0, alpha=factor)


def _gathered(slope: Tensor, like: Tensor) -> Tensor:
    """(heads·B, T, D) -> (groups, B, T, D): the slopes of a group's heads added up."""
    slope = slope.view(like.shape[0], -1, *like.shape[1:])
    return slope.squeeze(1) if slope.shape[1] == 1 else slope.sum(1)
