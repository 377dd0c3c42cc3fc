"""A decoder layer of the Llama kind, its adapter included, as one function with a gradient written by hand.

    h = x + o(attention(rotated q, rotated k, v)),  q, k, v of n1(x)         n(x) = w · x / rms(x)
    y = h + down(silu(gate(n2(h))) · up(n2(h)))

Of modules, such a layer is some 50 small operations forward and 100 backward, and all their results stay until the gradient.
Here q, k and v are one product, what lies between products is done in one pass each (between.py), and what is quick to find
again is not kept. The mathematics is Llama's (Touvron et al. 2023, arXiv 2302.13971) with grouped keys (Ainslie et al. 2023,
arXiv 2305.13245), and LoRA's gradients are those of lora_linear.py; rounding differs in the last bits.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from rlhf_lab.core.products import linear, linear_onto
from rlhf_lab.fused.tiled import Layer
from rlhf_lab.models.attention import ahead
from rlhf_lab.models.between import Shape, attend, attend_back, norm, norm_back, normed, swiglu, swiglu_back
from rlhf_lab.models.low_rank import narrowed, slopes_of, widened
from rlhf_lab.models.rotation import Turn

#: A and B of q, k, v, o, gate, up and down, in turn; or none.
Pairs = Sequence[Tensor]
OF_QKV, OF_O, OF_GATE_UP, OF_DOWN = slice(0, 6), slice(6, 8), slice(8, 12), slice(12, 14)
KEPT = 20  # tensors kept for the gradient, before the pairs and what attention keeps


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
    x: Tensor, weights: Weights | Layer, shape: Shape, turn: Turn, update: Update, pairs: Pairs, first: int = 0
) -> Tensor:  # fmt: skip
    """The layer's output (B, T - first, H) of x (B, T, H), where position t sees those up to t; of the first ones there is none.

    weights: with the update in them, or a layer in C under it. Gradients flow to x and to the pairs, and may be differentiated
    again, which takes as long as with modules.
    """
    way = _in_c if isinstance(weights, Layer) else _layer
    return way(x, weights, shape, turn, update, first, *pairs)


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


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weights: Weights, shape: Shape, turn: Turn, update: Update, first: int, *pairs: Tensor
    ) -> Tensor:
        batch, length, _ = x.shape
        rows = x.reshape(-1, x.shape[-1])
        inner, inverse1 = norm(rows, weights.norms[0], shape.eps[0])
        wide, low1 = widened(inner, weights.beside[0])
        mixed, of_heads = attend(linear(wide, weights.qkv, weights.bias), turn, batch, first, shape)
        wide, low2 = widened(mixed, weights.beside[1])
        middle = linear_onto(x[:, first:].reshape(len(mixed), -1), wide, weights.o)
        inner, inverse2 = norm(middle, weights.norms[1], shape.eps[1])
        wide, low3 = widened(inner, weights.beside[2])
        gate, up = linear(wide, weights.gate), linear(wide, weights.up)
        wide, low4 = widened(swiglu(gate, up), weights.beside[3])
        out = linear_onto(middle, wide, weights.down)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(
                x, *weights[:5], *weights.beside, low1, low2, low3, low4, inverse1, mixed, middle, inverse2, gate, up, *pairs,
                *of_heads,
            )  # fmt: skip
            ctx.norms, ctx.shape, ctx.turn, ctx.update, ctx.first = weights.norms, shape, turn, update, first
            ctx.learns = len(pairs)
        return out.view(batch, length - first, -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        kept = ctx.saved_tensors
        x, pairs = kept[0], kept[KEPT : KEPT + ctx.learns]
        if torch.is_grad_enabled():
            return _plain_slopes(ctx, x, pairs, gradients[0])
        dx, *slopes = _slopes(ctx, kept, gradients[0].reshape(-1, x.shape[-1]))
        return (dx, *[None] * 5, *slopes)


_layer: Callable[..., Tensor] = _Layer.apply


class _InC(torch.autograd.Function):
    """As `_Layer`, by layer.c: little is kept, and on the way back all of it is found again."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weights: Layer, shape: Shape, turn: Turn, update: Update, first: int, *pairs: Tensor
    ) -> Tensor:
        learns = any(ctx.needs_input_grad)
        out, mixed = weights.forward(x, *turn, first, learns)
        if learns:
            # The weights for their versions alone: torch refuses a gradient if they are not what they were.
            ctx.save_for_backward(x, mixed, *pairs, *weights.tensors)
            ctx.learns = len(pairs)
            ctx.weights, ctx.shape, ctx.turn, ctx.update, ctx.first = weights, shape, turn, update, first
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, mixed, *others = ctx.saved_tensors
        pairs = others[: ctx.learns]
        if torch.is_grad_enabled():
            return _plain_slopes(ctx, x, pairs, gradients[0])
        dx, slopes = ctx.weights.back(gradients[0], x, mixed, *ctx.turn, ctx.first, ctx.needs_input_grad[0])
        return (dx, *[None] * 5, *(one.to(pair.dtype) for one, pair in zip(slopes, pairs, strict=True)))


_in_c: Callable[..., Tensor] = _InC.apply


def _plain_slopes(ctx: Any, x: Tensor, pairs: Pairs, slope: Tensor) -> tuple[Tensor | None, ...]:
    """What `backward` gives, to be differentiated again: trpo's curvature."""
    inputs = (x, *[None] * 5, *pairs)
    wanted = [one for one, needed in zip(inputs, ctx.needs_input_grad, strict=True) if one is not None and needed]
    out = plain_layer(x, ctx.shape, ctx.turn, ctx.update, pairs)[:, ctx.first :]
    found = iter(torch.autograd.grad(out, wanted, slope, create_graph=True))
    return tuple(next(found) if needed else None for needed in ctx.needs_input_grad)


def _slopes(ctx: Any, kept: Sequence[Tensor], dy: Tensor) -> list[Tensor | None]:
    """The slopes of x and of the pairs from that of the output, (B·(T - first), H); from the last product to the first."""
    (x, qkv, o, *of_mlp), a, lows = kept[:6], kept[6:10], kept[10:14]
    (inverse1, mixed, middle, inverse2, gate, up), behind = kept[14:KEPT], KEPT + ctx.learns
    pairs, of_heads = kept[KEPT:behind], kept[behind:]
    shape, norms, scale, first = ctx.shape, ctx.norms, ctx.update.scale, ctx.first
    (batch, length, _), rows = x.shape, x.reshape(-1, x.shape[-1])

    d_inner, low = narrowed(linear(dy, of_mlp[2].t()), a[3])
    both_slopes, inner = swiglu_back(d_inner, gate, up)
    of_down = slopes_of(pairs[OF_DOWN], scale, inner, [dy], lows[3], low)
    del d_inner, inner
    d_normed, low = narrowed(linear_onto(linear(both_slopes[0], of_mlp[0].t()), both_slopes[1], of_mlp[1].t()), a[2])
    d_middle, inner = norm_back(d_normed, middle, inverse2, norms[1], dy)
    of_gate_up = slopes_of(pairs[OF_GATE_UP], scale, inner, both_slopes, lows[2], low)
    del d_normed, both_slopes, inner

    d_mixed, low = narrowed(linear(d_middle, o.t()), a[1])
    of_o = slopes_of(pairs[OF_O], scale, mixed, [d_middle], lows[1], low)
    d_read = attend_back(d_mixed, of_heads, ctx.turn, batch, first, shape)
    each: Sequence[Tensor] | Tensor = d_read.split(
        [n * shape.size for n in (shape.heads, shape.groups, shape.groups)], 1
    )
    if shape.heads == shape.groups:
        each = d_read.view(len(rows), 3, -1).transpose(0, 1)
    dx, low = None, None
    if ctx.needs_input_grad[0]:
        d_normed, low = narrowed(linear(d_read, qkv.t()), a[0])
        around = functional.pad(d_middle.view(batch, length - first, -1), (0, 0, first, 0)) if first else d_middle
        dx, inner = norm_back(d_normed, rows, inverse1, norms[0], around.view(rows.shape))
    else:
        inner = normed(rows, inverse1, norms[0])
        if a[0] is not None:
            low = linear(d_read, qkv[:, x.shape[-1] :].t())
    of_qkv = slopes_of(pairs[OF_QKV], scale, inner, each, lows[0], low)
    return [None if dx is None else dx.view(x.shape), *of_qkv, *of_o, *of_gate_up, *of_down]
