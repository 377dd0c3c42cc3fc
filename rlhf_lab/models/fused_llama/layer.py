"""A Llama decoder layer with its LoRA adapter as one autograd function with a hand-written gradient.

    h = x + o(attention(rope(q), rope(k), v)),  q, k, v = projections of n1(x)       n(x) = w · x / rms(x)
    y = h + down(silu(gate(n2(h))) · up(n2(h)))

As modules, such a layer is about 50 small operations forward and 100 backward, whose results are all kept for the
gradient. Here q, k and v are one product, the operations between products are one pass each (kernels/ops.py), and cheap
results are recomputed instead of saved. The mathematics is Llama's (Touvron et al. 2023, arXiv 2302.13971) with grouped
queries (Ainslie et al. 2023, arXiv 2305.13245), and LoRA's gradients are those of lora_linear.py; rounding differs in
the last bits.

The LoRA update takes one of two forms. Merged, the weight is W + s·B·A. Concatenated, the weight is [W | s·B] and its
input is [x | x·Aᵀ], still a single product; this form is used where the sum would round the update away
(lora_linear.py). In the backward pass the extra columns are s·g·B, which the gradients of both x and A need.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from rlhf_lab.kernels.amx_layer import AmxLayer
from rlhf_lab.kernels.matmul import linear, linear_add
from rlhf_lab.kernels.ops import (
    LayerDims,
    causal_attention,
    causal_attention_backward,
    causal_mask,
    lora_grads,
    rms_norm,
    rms_norm_backward,
    rms_norm_recompute,
    swiglu,
    swiglu_backward,
)
from rlhf_lab.kernels.rope import RopeTables

#: A and B of q, k, v, o, gate, up and down, alternating; or empty.
LoraTensors = Sequence[Tensor]
QKV_SLICE, O_SLICE, GATE_UP_SLICE, DOWN_SLICE = slice(0, 6), slice(6, 8), slice(8, 12), slice(12, 14)
SAVED_COUNT = 20  # saved tensors before lora_tensors and those of attention


class LayerWeights(NamedTuple):
    """Weights of one layer: qkv ((heads + 2 kv_heads)·D, H), o (H, heads·D), gate and up (I, H), down (H, I), the norms
    (H,) each, and the bias of qkv or None.

    lora_a: A of the projections that share an input (q, k and v; o; gate and up; down), if the LoRA update is
    concatenated: then the weights have extra columns. None four times otherwise.
    """

    qkv: Tensor
    o: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    norms: tuple[Tensor, Tensor]
    bias: Tensor | None
    lora_a: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None] = (None,) * 4


class LoraUpdate(NamedTuple):
    """A LoRA update of frozen weights: the weights are frozen + scale · B·A."""

    frozen: LayerWeights
    scale: float


class SequenceLayout(NamedTuple):
    """Assigns the tokens of B sequences of T tokens to N = prefix + B·(T - prefix) rows: first, once, the `prefix` tokens
    that all sequences share, then the other tokens, sequence by sequence.

    A chat template's system message is such a prefix; computing it once saves a quarter of the tokens of short answers.
    start_pos: the first position that is an output; after the prefix, or 0 if all positions are outputs.
    """

    batch_size: int
    length: int
    start_pos: int = 0
    prefix: int = 0

    def outputs(self, x: Tensor) -> Tensor:
        """The rows from start_pos on, (B·(T - start_pos), C), or all rows for start_pos 0. x: (N, C)."""
        if not self.start_pos:
            return x
        own = x[self.prefix :].view(self.batch_size, self.length - self.prefix, -1)
        return own[:, self.start_pos - self.prefix :].reshape(-1, x.shape[1])

    def pad_outputs(self, outputs: Tensor) -> Tensor:
        """(N, C): what `outputs` returns, and zeros in the other rows."""
        if not self.start_pos:
            return outputs
        own = outputs.view(self.batch_size, self.length - self.start_pos, -1)
        own = functional.pad(own, (0, 0, self.start_pos - self.prefix, 0)).view(-1, own.shape[2])
        return functional.pad(own, (0, 0, self.prefix, 0))

    def expand(self, x: Tensor) -> Tensor:
        """(N, C) -> (B, T, C): every sequence with the prefix."""
        own = x[self.prefix :].view(self.batch_size, self.length - self.prefix, -1)
        return torch.cat([x[: self.prefix].expand(self.batch_size, -1, -1), own], 1) if self.prefix else own

    def collapse(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (N, C): the inverse of `expand`."""
        return torch.cat([x[0, : self.prefix], x[:, self.prefix :].flatten(0, 1)]) if self.prefix else x.flatten(0, 1)

    def reduce(self, grad: Tensor) -> Tensor:
        """(B, T, C) -> (N, C): the gradient of `expand`, in which the sequences' gradients of the prefix are summed."""
        if not self.prefix:
            return grad.flatten(0, 1)
        return torch.cat([grad[:, : self.prefix].sum(0), grad[:, self.prefix :].flatten(0, 1)])


def concat_lora_input(x: Tensor, a: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The input of a projection and x·Aᵀ: (x, None) if its update is merged, else ([x | x·Aᵀ], x·Aᵀ).

    x: (N, in). a: A of all projections that read x, stacked, (Σr, in); None if updates are merged.
    """
    if a is None:
        return x, None
    low_rank = linear(x, a)
    return torch.cat([x, low_rank], 1), low_rank


def split_lora_grad(grad: Tensor, a: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The gradients of x and of x·Aᵀ from that of the input that `concat_lora_input` made; overwrites it."""
    if a is None:
        return grad, None
    x_grad, low_rank_grad = grad.split_with_sizes((a.shape[1], a.shape[0]), 1)
    return x_grad.addmm_(low_rank_grad, a), low_rank_grad


def fused_layer(
    x: Tensor,
    weights: LayerWeights | AmxLayer,
    dims: LayerDims,
    rope: RopeTables,
    update: LoraUpdate,
    lora_tensors: LoraTensors,
    layout: SequenceLayout,
) -> Tensor:
    """The layer's `layout.outputs` for x (N, H) with causal attention.

    weights: including the update, or an `AmxLayer` that includes it, for layouts without a prefix. Gradients flow to x
    and lora_tensors and can be differentiated again, which takes as long as with modules.
    """
    function = _amx_layer if isinstance(weights, AmxLayer) else _fused_layer
    return function(x, weights, dims, rope, update, layout, *lora_tensors)


def unfused_layer(
    x: Tensor, dims: LayerDims, rope: RopeTables, update: LoraUpdate, lora_tensors: LoraTensors
) -> Tensor:
    """`fused_layer` for all positions, in differentiable PyTorch operations, in at least float32."""
    dtype, scale = x.dtype, update.scale
    x, *tensors = (
        tensor.to(torch.promote_types(dtype, torch.float32)) for tensor in (x, *update.frozen[:5], *update.frozen.norms)
    )
    weights, norms = tensors[:5], tensors[5:]
    bias = update.frozen.bias.to(x.dtype) if update.frozen.bias is not None else None
    if lora_tensors:
        updates = [scale * (b @ a) for a, b in zip(lora_tensors[::2], lora_tensors[1::2], strict=True)]
        updates[:3] = [torch.cat(updates[:3])]
        weights = [weight + delta for weight, delta in zip(weights, updates, strict=True)]
    qkv, o, gate, up, down = weights

    def scaled(x: Tensor, norm_index: int) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + dims.eps[norm_index]).rsqrt() * norms[norm_index]

    qkv_heads = functional.linear(scaled(x, 0), qkv, bias).unflatten(-1, (-1, dims.head_size)).permute(2, 0, 1, 3)
    q, k, v = qkv_heads.split((dims.heads, dims.kv_heads, dims.kv_heads))
    q, k = (heads * rope.cos + heads.roll(dims.head_size // 2, -1) * rope.sin for heads in (q, k))
    k, v = (heads.repeat_interleave(dims.heads // dims.kv_heads, 0) for heads in (k, v))
    scores = q @ k.mT * dims.head_size**-0.5 + causal_mask(x.shape[1], x.shape[1], x.dtype)
    residual_mid = x + functional.linear((scores.softmax(-1) @ v).permute(1, 2, 0, 3).flatten(2), o)
    normalized = scaled(residual_mid, 1)
    out: Tensor = residual_mid + functional.linear(functional.silu(normalized @ gate.t()) * (normalized @ up.t()), down)
    return out.to(dtype)


class _FusedLayerFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weights: LayerWeights,
        dims: LayerDims,
        rope: RopeTables,
        update: LoraUpdate,
        layout: SequenceLayout,
        *lora_tensors: Tensor,
    ) -> Tensor:
        normalized, inverse_rms1 = rms_norm(x, weights.norms[0], dims.eps[0])
        lora_input, low_rank1 = concat_lora_input(normalized, weights.lora_a[0])
        attn_output, saved_attention = _attention(linear(lora_input, weights.qkv, weights.bias), rope, layout, dims)
        lora_input, low_rank2 = concat_lora_input(attn_output, weights.lora_a[1])
        residual_mid = linear_add(layout.outputs(x), lora_input, weights.o)
        normalized, inverse_rms2 = rms_norm(residual_mid, weights.norms[1], dims.eps[1])
        lora_input, low_rank3 = concat_lora_input(normalized, weights.lora_a[2])
        gate, up = linear(lora_input, weights.gate), linear(lora_input, weights.up)
        lora_input, low_rank4 = concat_lora_input(swiglu(gate, up), weights.lora_a[3])
        out = linear_add(residual_mid, lora_input, weights.down)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(
                x,
                *weights[:5],
                *weights.lora_a,
                low_rank1,
                low_rank2,
                low_rank3,
                low_rank4,
                inverse_rms1,
                attn_output,
                residual_mid,
                inverse_rms2,
                gate,
                up,
                *lora_tensors,
                *saved_attention,
            )
            ctx.norms, ctx.dims, ctx.rope, ctx.lora_update, ctx.layout = weights.norms, dims, rope, update, layout
            ctx.lora_tensor_count = len(lora_tensors)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        x, lora_tensors = saved[0], saved[SAVED_COUNT : SAVED_COUNT + ctx.lora_tensor_count]
        if torch.is_grad_enabled():
            return _unfused_grads(ctx, x, lora_tensors, gradients[0])
        dx, *lora_grads = _fused_grads(ctx, saved, gradients[0].contiguous())
        return (dx, *[None] * 5, *lora_grads)


_fused_layer: Callable[..., Tensor] = _FusedLayerFunction.apply


class _AmxLayerFunction(torch.autograd.Function):
    """`_FusedLayerFunction` in C (llama_layer.c): saves little, and recomputes the rest in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weights: AmxLayer,
        dims: LayerDims,
        rope: RopeTables,
        update: LoraUpdate,
        layout: SequenceLayout,
        *lora_tensors: Tensor,
    ) -> Tensor:
        needs_grad = any(ctx.needs_input_grad)
        out, attn_output = weights.forward(layout.expand(x), *rope, layout.start_pos, needs_grad)
        if needs_grad:
            # The weights are saved for their version counters: PyTorch refuses the gradient if they have changed.
            ctx.save_for_backward(x, attn_output, *lora_tensors, *weights.weight_tensors)
            ctx.lora_tensor_count = len(lora_tensors)
            ctx.weights, ctx.dims, ctx.rope, ctx.lora_update, ctx.layout = weights, dims, rope, update, layout
        return out.flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, attn_output, *saved = ctx.saved_tensors
        lora_tensors = saved[: ctx.lora_tensor_count]
        if torch.is_grad_enabled():
            return _unfused_grads(ctx, x, lora_tensors, gradients[0])
        layout, grad_output = ctx.layout, gradients[0].view(attn_output.shape[0], attn_output.shape[1], -1)
        dx, lora_grads = ctx.weights.backward(
            grad_output, layout.expand(x), attn_output, *ctx.rope, layout.start_pos, ctx.needs_input_grad[0]
        )
        return (
            None if dx is None else dx.flatten(0, 1),
            *[None] * 5,
            *(grad.to(lora_tensor.dtype) for grad, lora_tensor in zip(lora_grads, lora_tensors, strict=True)),
        )


_amx_layer: Callable[..., Tensor] = _AmxLayerFunction.apply


def _unfused_grads(ctx: Any, x: Tensor, lora_tensors: LoraTensors, grad_output: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients in differentiable form, for double backward (TRPO's curvature)."""
    inputs = (x, *[None] * 5, *lora_tensors)
    differentiated = [
        tensor for tensor, needed in zip(inputs, ctx.needs_input_grad, strict=True) if tensor is not None and needed
    ]
    out = unfused_layer(ctx.layout.expand(x), ctx.dims, ctx.rope, ctx.lora_update, lora_tensors)
    out = ctx.layout.outputs(ctx.layout.collapse(out))
    grads = iter(torch.autograd.grad(out, differentiated, grad_output, create_graph=True))
    return tuple(next(grads) if needed else None for needed in ctx.needs_input_grad)


def _fused_grads(ctx: Any, saved: Sequence[Tensor], dy: Tensor) -> list[Tensor | None]:
    """The gradients of x and of lora_tensors from that of the output, in reverse order of computation."""
    (x, qkv, o, *mlp_weights), lora_a, low_ranks = saved[:6], saved[6:10], saved[10:14]
    (inverse_rms1, attn_output, residual_mid, inverse_rms2, gate, up), attention_start = (
        saved[14:SAVED_COUNT],
        SAVED_COUNT + ctx.lora_tensor_count,
    )
    lora_tensors, saved_attention = saved[SAVED_COUNT:attention_start], saved[attention_start:]
    dims, norms, scale, layout = ctx.dims, ctx.norms, ctx.lora_update.scale, ctx.layout

    d_gated, low_rank_grad = split_lora_grad(linear(dy, mlp_weights[2].t()), lora_a[3])
    gate_up_grads, normalized = swiglu_backward(d_gated, gate, up)
    down_lora_grads = lora_grads(lora_tensors[DOWN_SLICE], scale, normalized, [dy], low_ranks[3], low_rank_grad)
    del d_gated, normalized
    d_normalized, low_rank_grad = split_lora_grad(
        linear_add(linear(gate_up_grads[0], mlp_weights[0].t()), gate_up_grads[1], mlp_weights[1].t()), lora_a[2]
    )
    d_residual_mid, normalized = rms_norm_backward(d_normalized, residual_mid, inverse_rms2, norms[1], dy)
    gate_up_lora_grads = lora_grads(
        lora_tensors[GATE_UP_SLICE], scale, normalized, gate_up_grads, low_ranks[2], low_rank_grad
    )
    del d_normalized, gate_up_grads, normalized

    d_attn_output, low_rank_grad = split_lora_grad(linear(d_residual_mid, o.t()), lora_a[1])
    o_lora_grads = lora_grads(lora_tensors[O_SLICE], scale, attn_output, [d_residual_mid], low_ranks[1], low_rank_grad)
    d_qkv = _attention_backward(d_attn_output, saved_attention, ctx.rope, layout, dims)
    qkv_grads: Sequence[Tensor] | Tensor = d_qkv.split(
        [n * dims.head_size for n in (dims.heads, dims.kv_heads, dims.kv_heads)], 1
    )
    if dims.heads == dims.kv_heads:
        qkv_grads = d_qkv.view(len(x), 3, -1).transpose(0, 1)
    dx, low_rank_grad = None, None
    if ctx.needs_input_grad[0]:
        d_normalized, low_rank_grad = split_lora_grad(linear(d_qkv, qkv.t()), lora_a[0])
        residual_grad = layout.pad_outputs(d_residual_mid)
        dx, normalized = rms_norm_backward(d_normalized, x, inverse_rms1, norms[0], residual_grad)
    else:
        normalized = rms_norm_recompute(x, inverse_rms1, norms[0])
        if lora_a[0] is not None:
            low_rank_grad = linear(d_qkv, qkv[:, x.shape[-1] :].t())
    qkv_lora_grads = lora_grads(lora_tensors[QKV_SLICE], scale, normalized, qkv_grads, low_ranks[0], low_rank_grad)
    return [
        dx,
        *qkv_lora_grads,
        *o_lora_grads,
        *gate_up_lora_grads,
        *down_lora_grads,
    ]


def _attention(
    qkv: Tensor, rope: RopeTables, layout: SequenceLayout, dims: LayerDims
) -> tuple[Tensor, Sequence[Tensor]]:
    """`causal_attention` of the rows that `layout.outputs` returns, and what `_attention_backward` needs. qkv: (N, ·)."""
    own_start = max(layout.start_pos, layout.prefix)
    attn_output, saved = causal_attention(layout.expand(qkv).flatten(0, 1), rope, layout.batch_size, own_start, dims)
    if layout.start_pos or not layout.prefix:
        return attn_output, saved
    prefix_output, prefix_saved = causal_attention(qkv[: layout.prefix], rope.first_tokens(layout.prefix), 1, 0, dims)
    return torch.cat([prefix_output, attn_output]), (*saved, *prefix_saved)


def _attention_backward(
    grad_output: Tensor, saved: Sequence[Tensor], rope: RopeTables, layout: SequenceLayout, dims: LayerDims
) -> Tensor:
    """The gradient of qkv, (N, ·). saved: the second result of `_attention`."""
    prefix, own_start = layout.prefix, max(layout.start_pos, layout.prefix)
    has_prefix_output = prefix > 0 and not layout.start_pos
    own_saved = saved[: len(saved) // 2] if has_prefix_output else saved
    own_grad = grad_output[prefix:] if has_prefix_output else grad_output
    d_qkv = causal_attention_backward(own_grad, own_saved, rope, layout.batch_size, own_start, dims)
    d_qkv = layout.reduce(d_qkv.view(layout.batch_size, layout.length, -1))
    if has_prefix_output:
        d_qkv[:prefix] += causal_attention_backward(
            grad_output[:prefix], saved[len(own_saved) :], rope.first_tokens(prefix), 1, 0, dims
        )
    return d_qkv
