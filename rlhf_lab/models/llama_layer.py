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
from rlhf_lab.models.attention import ahead

#: A and B of q, k, v, o, gate, up and down, in turn; or none.
Pairs = Sequence[Tensor]
OF_QKV, OF_O, OF_GATE_UP, OF_DOWN = slice(0, 6), slice(6, 8), slice(8, 12), slice(12, 14)


class Shape(NamedTuple):
    """Heads, groups of keys and values, the size D of a head, and what the two norms add to the mean square."""

    heads: int
    groups: int
    size: int
    eps: tuple[float, float]


class Weights(NamedTuple):
    """Of one layer: qkv ((heads + 2 groups)·D, H), o (H, heads·D), gate and up (I, H), down (H, I), the norms (H,) each, and the
    bias of qkv or None."""

    qkv: Tensor
    o: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    norms: tuple[Tensor, Tensor]
    bias: Tensor | None


class Turn(NamedTuple):
    """The rotation of q and k, (T or B·T, (heads + groups)·D) each: x · cos + swap(x) · sin, where `swap` changes the halves of
    each head about and sin is negative on the first."""

    cos: Tensor
    sin: Tensor


class Update(NamedTuple):
    """LoRA's: the weights are frozen + scale · B·A."""

    frozen: Weights
    scale: float


def layer(x: Tensor, weights: Weights, shape: Shape, turn: Turn, update: Update, pairs: Pairs) -> Tensor:
    """The layer's output (B, T, H) of x (B, T, H), where position t sees those up to t.

    weights: with the update in them. Gradients flow to x and to the pairs, and may be differentiated again, which takes as long
    as with modules.
    """
    return _layer(x, weights, shape, turn, update, *pairs)


def plain_layer(x: Tensor, shape: Shape, turn: Turn, update: Update, pairs: Pairs) -> Tensor:
    """`layer` in operations that torch differentiates."""
    frozen, scale = update
    weights: list[Tensor] = [*frozen[:5]]
    if pairs:
        updates = [scale * (b @ a) for a, b in zip(pairs[::2], pairs[1::2], strict=True)]
        updates[:3] = [torch.cat(updates[:3])]
        weights = [weight + change for weight, change in zip(weights, updates, strict=True)]
    qkv, o, gate, up, down = weights

    def norm(x: Tensor, which: int) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + shape.eps[which]).rsqrt() * frozen.norms[which]

    both = turn.sin.shape[1]
    read = functional.linear(norm(x, 0), qkv, frozen.bias)
    swapped = read[..., :both].unflatten(-1, (-1, 2, shape.size // 2)).flip(-2).flatten(-3)
    cos, sin = (part.view(-1, x.shape[1], both) for part in turn)
    rotated = read[..., :both] * cos + swapped * sin
    heads = torch.cat([rotated, read[..., both:]], -1).unflatten(-1, (-1, shape.size)).transpose(1, 2)
    q, k, v = heads.split((shape.heads, shape.groups, shape.groups), 1)
    k, v = (part.repeat_interleave(shape.heads // shape.groups, 1) for part in (k, v))
    scores = q @ k.transpose(2, 3) * shape.size**-0.5 + ahead(x.shape[1], x.dtype)
    middle = x + functional.linear((scores.softmax(-1) @ v).transpose(1, 2).flatten(2), o)
    inner = norm(middle, 1)
    out: Tensor = middle + functional.linear(functional.silu(inner @ gate.t()) * (inner @ up.t()), down)
    return out


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """(N, 1): 1 / sqrt(mean square + eps) of each row."""
    size: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return size.square_().div_(x.shape[-1]).add_(eps).rsqrt_()


def normed(x: Tensor, inverse: Tensor, weight: Tensor) -> Tensor:
    return (x * inverse).mul_(weight)


def turned(x: Tensor, turn: Turn, size: int) -> Tensor:
    """Rotated q and k, (B, T, (heads + groups)·D). x: the same as (B·T, …), any strides."""
    out: Tensor = _swap(x, size).view(-1, *turn.sin.shape)
    out.mul_(turn.sin).addcmul_(x.view(out.shape), turn.cos)
    return out


def by_head(x: Tensor, batch: int, size: int) -> Tensor:
    """(B·T, n·D), or in three dimensions, as (B, n, T, D); no copy."""
    return x.view(batch, -1, x.shape[-1] // size, size).transpose(1, 2)


def _swap(x: Tensor, size: int) -> Tensor:
    """The two halves of each head changed about, (N, n·D); a copy."""
    return x.reshape(x.shape[0], -1, 2, size // 2).flip(2).view(x.shape)


def _spread(x: Tensor, heads: int) -> Tensor:
    """(B, groups, T, D) -> (B·heads, T, D): the keys or values of a group for each head that reads them."""
    batch, groups, length, size = x.shape
    return x[:, :, None].expand(-1, -1, heads // groups, -1, -1).reshape(batch * heads, length, size)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weights: Weights, shape: Shape, turn: Turn, update: Update, *pairs: Tensor
    ) -> Tensor:
        batch, length, _ = x.shape
        rows, both = x.reshape(-1, x.shape[-1]), turn.sin.shape[1]
        inverse1 = inverse_rms(rows, shape.eps[0])
        read = linear(normed(rows, inverse1, weights.norms[0]), weights.qkv, weights.bias)
        rotated = by_head(turned(read[:, :both], turn, shape.size), batch, shape.size)
        q = rotated[:, : shape.heads].reshape(-1, length, shape.size)
        k = rotated[:, shape.heads :].contiguous()
        v = by_head(read[:, both:], batch, shape.size).contiguous()
        del read, rotated
        keys = _spread(k, shape.heads).transpose(1, 2)
        seen = torch.baddbmm(ahead(length, q.dtype), q, keys, alpha=shape.size**-0.5).softmax(-1)
        mixed = (seen @ _spread(v, shape.heads)).view(batch, -1, length, shape.size).transpose(1, 2)
        mixed = mixed.reshape(len(rows), -1)
        middle = linear_onto(rows, mixed, weights.o)
        inverse2 = inverse_rms(middle, shape.eps[1])
        inner = normed(middle, inverse2, weights.norms[1])
        gate, up = linear(inner, weights.gate), linear(inner, weights.up)
        out = linear_onto(middle, functional.silu(gate).mul_(up), weights.down)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(
                x, *pairs, *weights[:5], inverse1, q, k, v, seen, mixed, middle, inverse2, gate, up
            )  # fmt: skip
            ctx.norms, ctx.shape, ctx.turn, ctx.update = weights.norms, shape, turn, update
        return out.view(x.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, *rest = ctx.saved_tensors
        pairs = rest[:-15]
        if torch.is_grad_enabled():  # to be differentiated again: trpo's curvature
            inputs = (x, *[None] * 4, *pairs)
            wanted = [
                one for one, needed in zip(inputs, ctx.needs_input_grad, strict=True) if one is not None and needed
            ]
            out = plain_layer(x, ctx.shape, ctx.turn, ctx.update, pairs)
            found = iter(torch.autograd.grad(out, wanted, gradients[0], create_graph=True))
            return tuple(next(found) if needed else None for needed in ctx.needs_input_grad)
        dx, *slopes = _slopes(ctx, x, pairs, rest[-15:], gradients[0].reshape(-1, x.shape[-1]))
        return (dx, *[None] * 4, *slopes)


_layer: Callable[..., Tensor] = _Layer.apply


def _slopes(ctx: Any, x: Tensor, pairs: Pairs, saved: Sequence[Tensor], dy: Tensor) -> list[Tensor | None]:
    """The slopes of x and of the pairs from that of the output, (B·T, H); from the last product to the first."""
    qkv, o, *of_mlp, inverse1, q, k, v, seen, mixed, middle, inverse2, gate, up = saved
    shape, turn, norms = ctx.shape, ctx.turn, ctx.norms
    (batch, length, _), rows, both = x.shape, x.reshape(-1, x.shape[-1]), turn.sin.shape[1]
    learn = functools.partial(_low_rank, scale=ctx.update.scale)

    d_inner, open_gate = linear(dy, of_mlp[2].t()), functional.silu(gate)
    of_down = learn([dy], open_gate * up, pairs[OF_DOWN])
    d_up, d_gate = open_gate.mul_(d_inner), torch.ops.aten.silu_backward(d_inner.mul_(up), gate)
    del d_inner
    of_gate_up = learn([d_gate, d_up], normed(middle, inverse2, norms[1]), pairs[OF_GATE_UP])
    d_normed = linear_onto(linear(d_gate, of_mlp[0].t()), d_up, of_mlp[1].t())
    d_middle = _normed_back(d_normed, middle, inverse2, norms[1], dy)
    del open_gate, d_gate, d_up

    of_o = learn([d_middle], mixed, pairs[OF_O])
    d_mixed = by_head(linear(d_middle, o.t()), batch, shape.size).reshape(q.shape)
    d_seen = d_mixed @ _spread(v, shape.heads).transpose(1, 2)
    d_scores = torch._softmax_backward_data(d_seen, seen, -1, seen.dtype)
    d_rotated, d_read = dy.new_empty(len(rows), both), dy.new_empty(len(rows), len(qkv))
    to_qk, to_v = by_head(d_rotated, batch, shape.size), d_read.view(batch, length, -1, shape.size).transpose(1, 2)
    sharp = shape.size**-0.5
    to_qk[:, : shape.heads] = _times(sharp, d_scores, _spread(k, shape.heads)).view(batch, -1, length, shape.size)
    to_qk[:, shape.heads :] = _gathered(_times(sharp, d_scores.transpose(1, 2), q), k)
    to_v[:, shape.heads + shape.groups :] = _gathered(seen.transpose(1, 2) @ d_mixed, v)
    del d_mixed, d_seen, d_scores
    _turned_back(d_rotated, turn, shape.size, d_read[:, :both])
    each = d_read.split([n * shape.size for n in (shape.heads, shape.groups, shape.groups)], 1)
    of_qkv = learn(each, normed(rows, inverse1, norms[0]), pairs[OF_QKV])
    dx = None
    if ctx.needs_input_grad[0]:
        dx = _normed_back(linear(d_read, qkv.t()), rows, inverse1, norms[0], d_middle).view(x.shape)
    return [dx, *of_qkv, *of_o, *of_gate_up, *of_down]


def _low_rank(slopes: Sequence[Tensor], inputs: Tensor, pairs: Pairs, *, scale: float) -> list[Tensor]:
    """dA and dB, in turn, of layers that read the same input. slopes: (N, out) each; inputs: (N, in); pairs: A, B of each."""
    if not pairs:
        return []
    a, b = pairs[::2], pairs[1::2]
    ranks = [len(one) for one in a]
    ahead = torch.cat([linear(one.t(), slope) for one, slope in zip(b, slopes, strict=True)])
    below = linear(torch.cat([*a]), inputs).split(ranks)
    da = linear(ahead, inputs.t()).mul_(scale).split(ranks)
    db = (linear(low, slope.t()).mul_(scale).t() for low, slope in zip(below, slopes, strict=True))
    return [slope for both in zip(da, db, strict=True) for slope in both]


def _normed_back(slope: Tensor, x: Tensor, inverse: Tensor, weight: Tensor, around: Tensor) -> Tensor:
    """The slope of x from that of `normed`, which is used up, and that which came around the norm."""
    slope.mul_(weight)
    share = (slope * x).sum(-1, keepdim=True).mul_(inverse.pow(3)).div_(-x.shape[-1])
    return torch.addcmul(around, slope, inverse).addcmul_(x, share)


def _turned_back(slope: Tensor, turn: Turn, size: int, out: Tensor) -> None:
    """The slope of what was turned, into `out`."""
    shape = (-1, *turn.sin.shape)
    torch.mul(slope.view(shape), turn.cos, out=out.view(shape))
    out.view(shape).addcmul_(_swap(slope, size).view(shape), turn.sin, value=-1)  # sin swapped is -sin


def _times(factor: float, a: Tensor, b: Tensor) -> Tensor:
    """factor · a @ b."""
    return torch.baddbmm(b.new_empty(1, 1, 1), a, b, beta=0, alpha=factor)


def _gathered(slope: Tensor, like: Tensor) -> Tensor:
    """(B·heads, T, D) -> (B, groups, T, D): the slopes of a group's heads added up."""
    batch, groups, length, size = like.shape
    slope = slope.view(batch, groups, -1, length, size)
    return slope.squeeze(2) if slope.shape[2] == 1 else slope.sum(2)
