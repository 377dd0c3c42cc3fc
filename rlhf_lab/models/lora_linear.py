"""A linear layer with a LoRA update, as one matrix product forward and low-rank gradients backward.

PEFT computes x·Wᵀ + s·(x·Aᵀ)·Bᵀ, three products and their intermediate results per layer. Here the merged weight M = W
+ s·B·A is kept next to W and refreshed when A or B changed, so the forward pass is one product; the backward pass gives
the input's gradient g·M and the two low-rank ones, dA = s·(Bᵀ·gᵀ)·x and dB = s·((A·xᵀ)·g)ᵀ. The full-size gradient of M
is never formed. The mathematics is PEFT's; rounding differs in the last bits. W itself is never changed, so no rounding
errors accumulate.

In half precision, adding a small update to a weight would round it away, so there the update is not merged: y = x·Wᵀ +
s·(x·Aᵀ)·Bᵀ with A and B in float32, converted to the weight's dtype for the products, which forward and backward pass
share. The same is done for sharded weights (models/fsdp.py), of which no complete copy may be kept.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from rlhf_lab.kernels.matmul import linear, own_output
from rlhf_lab.kernels.ops import HALF_DTYPES

Forward = Callable[[Tensor], Tensor]


class LoraWeights(NamedTuple):
    """One layer of one adapter: the frozen layer W (out, in), A (r, in), B (out, r) and the scale s."""

    base: nn.Linear
    a: nn.Parameter
    b: nn.Parameter
    scale: float


def lora_weights_of(layer: Any, name: str) -> LoraWeights | None:
    """The LoRA weights of a PEFT layer, or None if PEFT's own forward pass must be used.

    That is for another layer type (GPT-2's transposed one) or another variant of LoRA.
    """
    base = layer.get_base_layer()
    if (
        type(base) is not nn.Linear
        or name not in getattr(layer, "lora_A", {})
        or getattr(layer, "use_dora", {}).get(name)
    ):
        return None
    a, b = layer.lora_A[name], layer.lora_B[name]
    supported_dtype = base.weight.dtype in HALF_DTYPES or a.weight.dtype == base.weight.dtype in (
        torch.float32,
        torch.float64,
    )
    if not supported_dtype or a.bias is not None or b.bias is not None:
        return None
    return LoraWeights(base, a.weight, b.weight, float(layer.scaling[name]))


class MergeBuffer(NamedTuple):
    """Where a merged weight is stored. parent: the tensor that it is a view of, whose version each merge increments."""

    weight: Tensor
    parent: Tensor | None = None


class MergedLoraLinear:
    """Computes one layer with an adapter. Holds the merged weight of one adapter, computed when a forward pass needs it.

    A gradient must therefore be computed before another adapter's forward pass through the same layer; in the other
    order PyTorch raises an error.
    """

    def __init__(self) -> None:
        self._merged_lora: LoraWeights | None = None
        self._buffer: MergeBuffer | None = None
        self._versions = (-1, -1)
        self._half_tensors: dict[nn.Parameter, tuple[Tensor, Tensor]] = {}
        self._half_versions: dict[nn.Parameter, tuple[int, int]] = {}

    def merged_weight(self, lora: LoraWeights, buffer: MergeBuffer | None = None) -> Tensor:
        """The current W + s·B·A, computed only if it is not cached. buffer: where to store it."""
        if buffer is not None and self._buffer is not buffer:
            self._buffer, self._merged_lora = buffer, None
        frozen = lora.base.weight
        if (
            self._buffer is None
            or self._buffer.weight.device != frozen.device
            or self._buffer.weight.dtype != frozen.dtype
        ):
            self._buffer, self._merged_lora = MergeBuffer(torch.empty_like(frozen)), None
        if self._is_cached(lora):
            return self._buffer.weight
        weight, parent = self._buffer
        with torch.no_grad():
            torch.addmm(frozen, lora.b, lora.a, alpha=lora.scale, out=weight)
        if parent is not None:
            increment_version(parent)
        self._mark_cached(lora)
        return weight

    def half_tensors(self, lora: LoraWeights) -> tuple[Tensor, Tensor]:
        """A and s·B in W's dtype, converted only if not cached; each adapter has its own storage."""
        versions = (lora.a._version, lora.b._version)
        if lora.a not in self._half_tensors:
            base_weight = lora.base.weight
            self._half_tensors[lora.a] = (base_weight.new_empty(lora.a.shape), base_weight.new_empty(lora.b.shape))
        a, b = self._half_tensors[lora.a]
        if self._half_versions.get(lora.a) != versions:
            for target, value in zip(
                (a, b), _to_half(lora.a.detach(), lora.b.detach(), lora.scale, a.dtype), strict=True
            ):
                target.copy_(value)
            self._half_versions[lora.a] = versions
        return a, b

    def refresh(self, lora: LoraWeights) -> None:
        """Update in place the tensors that a forward pass with this adapter reads."""
        if lora.base.weight.dtype in HALF_DTYPES:
            self.half_tensors(lora)
        else:
            self.merged_weight(lora)

    def _is_cached(self, lora: LoraWeights) -> bool:
        is_same = self._merged_lora is not None and self._merged_lora.a is lora.a and self._merged_lora.b is lora.b
        return is_same and self._versions == (lora.a._version, lora.b._version)

    def _mark_cached(self, lora: LoraWeights) -> None:
        self._merged_lora, self._versions = lora, (lora.a._version, lora.b._version)

    def make_forward(self, lora: LoraWeights, *, keep_merged: bool = True) -> Forward:
        """The layer's forward pass; gradients flow to A, B and the input as needed.

        keep_merged: a merged copy of the weight may be kept; without it the update is not merged.
        """

        def merged_forward(x: Tensor) -> Tensor:
            weight = self.merged_weight(lora)
            if not torch.is_grad_enabled():
                return linear(x, weight, lora.base.bias)
            return _merged_linear(x, lora.a, lora.b, weight, lora.base.bias, lora.scale)

        def unmerged_forward(x: Tensor) -> Tensor:
            a, b = self.half_tensors(lora)
            if not torch.is_grad_enabled():
                return _unmerged_linear(x, a, b, lora.base)[0]
            return _unmerged_linear_autograd(x, lora.a, lora.b, a, b, lora.base, lora.scale)

        return unmerged_forward if lora.base.weight.dtype in HALF_DTYPES or not keep_merged else merged_forward


def frozen_forward(base: nn.Module, *, keep_merged: bool = True) -> Forward:
    """The forward pass of a layer without an adapter, by the same library as with one. Otherwise even an adapter with
    B = 0 would change the last bits, and with them the KL to the reference.

    keep_merged: as in `MergedLoraLinear.make_forward`; without it the layer's weight may move between passes.
    """
    if type(base) is not nn.Linear or not keep_merged:
        forward: Forward = base.forward
        return forward
    return lambda x: linear(x, base.weight, base.bias)


def _to_half(a: Tensor, b: Tensor, scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A and s·B in W's dtype."""
    return a.to(dtype), (scale * b).to(dtype)


def _unmerged_linear(x: Tensor, a: Tensor, b: Tensor, base: nn.Linear) -> tuple[Tensor, Tensor]:
    """y = x·Wᵀ + bias + (x·aᵀ)·bᵀ, and a·xᵀ (r, rows)."""
    low_rank = a @ x.reshape(-1, x.shape[-1]).t()  # the long dimension last, as below
    out = linear(x, base.weight, base.bias)
    out.view(-1, out.shape[-1]).addmm_(low_rank.t(), b.t())
    return out, low_rank


class _MergedLinear(torch.autograd.Function):
    """y = x·Mᵀ + bias with M = W + s·B·A; gradients for x, A and B only."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, a: Tensor, b: Tensor, merged_weight: Tensor, bias: Tensor | None, scale: float
    ) -> Tensor:
        ctx.save_for_backward(x, a, b, merged_weight)
        ctx.scale = scale
        return own_output(linear(x, merged_weight, bias))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, a, b, merged_weight = ctx.saved_tensors
        (g,) = gradients
        if torch.is_grad_enabled():  # double backward (TRPO's curvature): M depends on A and B
            update = ctx.scale * (b @ a)
            merged_weight = merged_weight + (update - update.detach())
        flat_grad, flat_x = g.reshape(-1, g.shape[-1]), x.reshape(-1, x.shape[-1])
        dx = linear(flat_grad, merged_weight.t()).view(x.shape) if ctx.needs_input_grad[0] else None
        # The long dimension (rows) is the last one of the rank-r products: measured four times as fast as with r last.
        da = ctx.scale * linear(linear(b.t(), flat_grad), flat_x.t()) if ctx.needs_input_grad[1] else None
        db = ctx.scale * linear(linear(a, flat_x), flat_grad.t()).t() if ctx.needs_input_grad[2] else None
        return dx, da, db, None, None, None


_merged_linear: Callable[..., Tensor] = _MergedLinear.apply


class _UnmergedLinear(torch.autograd.Function):
    """y = x·Wᵀ + bias + (x·aᵀ)·bᵀ in half precision with a = A and b = s·B converted; gradients for x, A and B only."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, full_a: Tensor, full_b: Tensor, a: Tensor, b: Tensor, base: nn.Linear, scale: float
    ) -> Tensor:
        out, low_rank = _unmerged_linear(x, a, b, base)
        ctx.save_for_backward(x, full_a, full_b, a, b, low_rank, base.weight)
        ctx.scale = scale
        return own_output(out)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, full_a, full_b, a, b, low_rank, weight = ctx.saved_tensors
        flat_grad, flat_x = gradients[0].reshape(-1, weight.shape[0]), x.reshape(-1, x.shape[-1])
        if torch.is_grad_enabled():  # double backward (TRPO's curvature): these depend on A, B and the input
            a, b = _to_half(full_a, full_b, ctx.scale, weight.dtype)
            low_rank = a @ flat_x.t()
        low_rank_grad = b.t() @ flat_grad.t()
        dx = (flat_grad @ weight).addmm_(low_rank_grad.t(), a).view(x.shape) if ctx.needs_input_grad[0] else None
        da = (low_rank_grad @ flat_x).to(full_a.dtype) if ctx.needs_input_grad[1] else None
        db = ctx.scale * (low_rank @ flat_grad).t().to(full_b.dtype) if ctx.needs_input_grad[2] else None
        return dx, da, db, None, None, None, None


_unmerged_linear_autograd: Callable[..., Tensor] = _UnmergedLinear.apply
