"""A linear layer with a LoRA update, as one matrix product forward and low-rank gradients backward.

PEFT computes x·Wᵀ + s·(x·Aᵀ)·Bᵀ, three products and their intermediate results at every layer. Here the merged weight
M = W + s·B·A is kept beside W and refreshed when A or B changed, so the forward pass is one product; the backward pass gives
the input's gradient g·M and the two low-rank ones, dA = s·(Bᵀ·gᵀ)·x and dB = s·((A·xᵀ)·g)ᵀ. The full-size gradient of M is never
formed. The mathematics is PEFT's; rounding differs in the last bits. W itself is never changed, so nothing drifts.

In half precision a small update added to a weight would be rounded away, so there the update stays apart: y = x·Wᵀ + s·(x·Aᵀ)·Bᵀ
with A and B kept in float32 and multiplied in the weight's precision, their products shared by the forward and backward pass.
The same is done where the weight is here only for the moment (models/sharding.py), so that no whole copy of it stays.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from rlhf_lab.core.products import linear

Forward = Callable[[Tensor], Tensor]
HALF = (torch.bfloat16, torch.float16)


class Parts(NamedTuple):
    """One layer of one adapter: the frozen layer W (out, in), A (r, in), B (out, r) and the scale s."""

    base: nn.Linear
    a: nn.Parameter
    b: nn.Parameter
    scale: float


def parts_of(layer: Any, name: str) -> Parts | None:
    """The parts of a PEFT layer, or None where the plain PEFT path has to be taken.

    That is another layer type (GPT-2's transposed one) or another variant of LoRA.
    """
    base = layer.get_base_layer()
    if (
        type(base) is not nn.Linear
        or name not in getattr(layer, "lora_A", {})
        or getattr(layer, "use_dora", {}).get(name)
    ):
        return None
    a, b = layer.lora_A[name], layer.lora_B[name]
    known = base.weight.dtype in HALF or a.weight.dtype == base.weight.dtype in (torch.float32, torch.float64)
    if not known or a.bias is not None or b.bias is not None:
        return None
    return Parts(base, a.weight, b.weight, float(layer.scaling[name]))


class Room(NamedTuple):
    """Where a merged weight is kept; within: the tensor it is a part of, if that is to count a merging as a change of its own."""

    weight: Tensor
    within: Tensor | None = None


class FastLayer:
    """How one layer computes under an adapter; it holds what one adapter needs, made when a forward pass needs it.

    So a gradient must be taken before another adapter's forward pass through the same layer; torch refuses the other order.
    """

    def __init__(self) -> None:
        self._parts: Parts | None = None
        self._room: Room | None = None
        self._versions = (-1, -1)
        self._halves: dict[nn.Parameter, tuple[Tensor, Tensor]] = {}
        self._halved: dict[nn.Parameter, tuple[int, int]] = {}

    def weight(self, parts: Parts, room: Room | None = None) -> Tensor:
        """W + s·B·A of these parts as they are now; computed only if it is not held already. room: where it is to be kept."""
        if room is not None and self._room is not room:
            self._room, self._parts = room, None
        frozen = parts.base.weight
        if self._room is None or self._room.weight.device != frozen.device or self._room.weight.dtype != frozen.dtype:
            self._room, self._parts = Room(torch.empty_like(frozen)), None
        if self._is_held(parts):
            return self._room.weight
        weight, within = self._room
        with torch.no_grad():
            torch.addmm(frozen, parts.b, parts.a, alpha=parts.scale, out=weight)
        if within is not None:
            increment_version(within)
        self._hold(parts)
        return weight

    def halves(self, parts: Parts) -> tuple[Tensor, Tensor]:
        """A and s·B in the precision of W; converted only if they are not held already, each adapter's in its own storage."""
        versions = (parts.a._version, parts.b._version)
        if parts.a not in self._halves:
            like = parts.base.weight
            self._halves[parts.a] = (like.new_empty(parts.a.shape), like.new_empty(parts.b.shape))
        a, b = self._halves[parts.a]
        if self._halved.get(parts.a) != versions:
            for held, new in zip(
                (a, b), _halved(parts.a.detach(), parts.b.detach(), parts.scale, a.dtype), strict=True
            ):
                held.copy_(new)
            self._halved[parts.a] = versions
        return a, b

    def refresh(self, parts: Parts) -> None:
        """Bring what a forward pass through these parts reads up to date; it stays where it is in memory."""
        if parts.base.weight.dtype in HALF:
            self.halves(parts)
        else:
            self.weight(parts)

    def _is_held(self, parts: Parts) -> bool:
        held = self._parts is not None and self._parts.a is parts.a and self._parts.b is parts.b
        return held and self._versions == (parts.a._version, parts.b._version)

    def _hold(self, parts: Parts) -> None:
        self._parts, self._versions = parts, (parts.a._version, parts.b._version)

    def forward_of(self, parts: Parts, *, keep: bool = True) -> Forward:
        """The layer's forward pass; gradients flow to A, B and the input where they are wanted.

        keep: a merged copy of the weight may be kept; without it the update stays apart.
        """

        def merged(x: Tensor) -> Tensor:
            weight = self.weight(parts)
            if not torch.is_grad_enabled():
                return linear(x, weight, parts.base.bias)
            return _merged(x, parts.a, parts.b, weight, parts.base.bias, parts.scale)

        def apart(x: Tensor) -> Tensor:
            a, b = self.halves(parts)
            if not torch.is_grad_enabled():
                return _apart(x, a, b, parts.base)[0]
            return _apart_recorded(x, parts.a, parts.b, a, b, parts.base, parts.scale)

        return apart if parts.base.weight.dtype in HALF or not keep else merged


def frozen(base: nn.Module, *, keep: bool = True) -> Forward:
    """The forward pass of a layer with its adapter off, by the library that computes it under one: else an adapter that says
    nothing yet would change the last bits, and with them the KL to the reference.

    keep: as in `FastLayer.forward_of`; without it the layer's weight may lie elsewhere between passes.
    """
    if type(base) is not nn.Linear or not keep:
        forward: Forward = base.forward
        return forward
    return lambda x: linear(x, base.weight, base.bias)


def _halved(a: Tensor, b: Tensor, scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A and s·B in the precision of W."""
    return a.to(dtype), (scale * b).to(dtype)


def _apart(x: Tensor, a: Tensor, b: Tensor, base: nn.Linear) -> tuple[Tensor, Tensor]:
    """y = x·Wᵀ + bias + (x·aᵀ)·bᵀ, and a·xᵀ (r, rows)."""
    low = a @ x.reshape(-1, x.shape[-1]).t()  # the long dimension last, as below
    out = linear(x, base.weight, base.bias)
    out.view(-1, out.shape[-1]).addmm_(low.t(), b.t())
    return out, low


class _Merged(torch.autograd.Function):
    """y = x·Mᵀ + bias with M = W + s·B·A; gradients to x, A and B only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor, b: Tensor, merged: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        ctx.save_for_backward(x, a, b, merged)
        ctx.scale = scale
        return linear(x, merged, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, a, b, merged = ctx.saved_tensors
        (g,) = gradients
        if torch.is_grad_enabled():  # differentiated again (trpo's curvature): M depends on A and B
            update = ctx.scale * (b @ a)
            merged = merged + (update - update.detach())
        rows, inputs = g.reshape(-1, g.shape[-1]), x.reshape(-1, x.shape[-1])
        dx = linear(rows, merged.t()).view(x.shape) if ctx.needs_input_grad[0] else None
        # The long dimension (rows) comes last in the rank-r products: four times as fast as with r last (BLAS, measured).
        da = ctx.scale * linear(linear(b.t(), rows), inputs.t()) if ctx.needs_input_grad[1] else None
        db = ctx.scale * linear(linear(a, inputs), rows.t()).t() if ctx.needs_input_grad[2] else None
        return dx, da, db, None, None, None


_merged: Callable[..., Tensor] = _Merged.apply


class _Apart(torch.autograd.Function):
    """y = x·Wᵀ + bias + (x·aᵀ)·bᵀ in half precision with a = A and b = s·B converted; gradients to x, A and B only."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, wide_a: Tensor, wide_b: Tensor, a: Tensor, b: Tensor, base: nn.Linear, scale: float
    ) -> Tensor:
        out, low = _apart(x, a, b, base)
        ctx.save_for_backward(x, wide_a, wide_b, a, b, low, base.weight)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, wide_a, wide_b, a, b, low, weight = ctx.saved_tensors
        rows, inputs = gradients[0].reshape(-1, weight.shape[0]), x.reshape(-1, x.shape[-1])
        if torch.is_grad_enabled():  # differentiated again (trpo's curvature): these depend on A, B and the input
            a, b = _halved(wide_a, wide_b, ctx.scale, weight.dtype)
            low = a @ inputs.t()
        low_g = b.t() @ rows.t()
        dx = (rows @ weight).addmm_(low_g.t(), a).view(x.shape) if ctx.needs_input_grad[0] else None
        da = (low_g @ inputs).to(wide_a.dtype) if ctx.needs_input_grad[1] else None
        db = ctx.scale * (low @ rows).t().to(wide_b.dtype) if ctx.needs_input_grad[2] else None
        return dx, da, db, None, None, None, None


_apart_recorded: Callable[..., Tensor] = _Apart.apply
