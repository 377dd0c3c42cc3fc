"""A linear layer with a LoRA update, as one matrix product forward and low-rank gradients backward.

PEFT computes x·Wᵀ + s·(x·Aᵀ)·Bᵀ, three products and their intermediate results at every layer. Here the merged weight
M = W + s·B·A is kept beside W and refreshed when A or B changed, so the forward pass is one product; the backward pass gives
the input's gradient g·M and the two low-rank ones, dA = s·(Bᵀ·gᵀ)·x and dB = s·((A·xᵀ)·g)ᵀ. The full-size gradient of M is never
formed. The mathematics is PEFT's; rounding differs in the last bits. W itself is never changed, so nothing drifts.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

Forward = Callable[[Tensor], Tensor]


class Parts(NamedTuple):
    """One layer of one adapter: the frozen layer W (out, in), A (r, in), B (out, r) and the scale s."""

    base: nn.Linear
    a: nn.Parameter
    b: nn.Parameter
    scale: float


def parts_of(layer: Any, name: str) -> Parts | None:
    """The parts of a PEFT layer, or None where the plain PEFT path has to be taken.

    That is another layer type (GPT-2's transposed one), other variants of LoRA, or half-precision weights: a small update
    added to a bfloat16 weight is rounded away, so there the two stay apart.
    """
    base = layer.get_base_layer()
    if (
        type(base) is not nn.Linear
        or name not in getattr(layer, "lora_A", {})
        or getattr(layer, "use_dora", {}).get(name)
    ):
        return None
    a, b = layer.lora_A[name], layer.lora_B[name]
    same = a.weight.dtype == base.weight.dtype and base.weight.dtype in (torch.float32, torch.float64)
    if not same or a.bias is not None or b.bias is not None:
        return None
    return Parts(base, a.weight, b.weight, float(layer.scaling[name]))


class MergedLayer:
    """The merged weight of one layer, made when a forward pass needs it; it holds one adapter's at a time.

    So a gradient must be taken before another adapter's forward pass through the same layer; torch refuses the other order.
    """

    def __init__(self) -> None:
        self._parts: Parts | None = None
        self._weight: Tensor | None = None
        self._versions = (-1, -1)

    def weight(self, parts: Parts) -> Tensor:
        """W + s·B·A of these parts as they are now; computed only if it is not held already."""
        versions = (parts.a._version, parts.b._version)
        held = self._parts is not None and self._parts.a is parts.a and self._parts.b is parts.b
        if self._weight is not None and held and versions == self._versions:
            return self._weight
        frozen = parts.base.weight
        if self._weight is None or self._weight.device != frozen.device or self._weight.dtype != frozen.dtype:
            self._weight = torch.empty_like(frozen)
        with torch.no_grad():
            torch.addmm(frozen, parts.b, parts.a, alpha=parts.scale, out=self._weight)
        self._parts, self._versions = parts, versions
        return self._weight

    def forward_of(self, parts: Parts) -> Forward:
        """The layer's forward pass; gradients flow to A, B and the input where they are wanted."""

        def forward(x: Tensor) -> Tensor:
            weight = self.weight(parts)
            if not torch.is_grad_enabled():
                return linear(x, weight, parts.base.bias)
            out: Tensor = _Merged.apply(x, parts.a, parts.b, weight, parts.base.bias, parts.scale)  # type: ignore[no-untyped-call]
            return out

        return forward


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
        dx = (rows @ merged).view(x.shape) if ctx.needs_input_grad[0] else None
        # The long dimension (rows) comes last in the rank-r products: four times as fast as with r last (BLAS, measured).
        da = ctx.scale * ((b.t() @ rows.t()) @ inputs) if ctx.needs_input_grad[1] else None
        db = ctx.scale * ((a @ inputs.t()) @ rows).t() if ctx.needs_input_grad[2] else None
        return dx, da, db, None, None, None
