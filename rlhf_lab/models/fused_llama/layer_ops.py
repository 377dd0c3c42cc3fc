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

from rlhf_lab.kernels import ops
from rlhf_lab.models.fused_llama.attention import attention_weights
from rlhf_lab.models.fused_llama.rope import RopeTables, apply_rope
from rlhf_lab.models.lora_linear import HALF_DTYPES


class LayerDims(NamedTuple):
    """Heads, groups of keys and values, the size D of a head, and what the two norms add to the mean square."""

    heads: int
    kv_heads: int
    head_size: int
    eps: tuple[float, float]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """w · x / rms(x) of each row, and 1 / sqrt(mean square + eps), (N, 1), in float32 at the least. x: (N, H)."""
    if ops.supported(x, weight):
        return ops.rms_norm(x, weight, eps)
    x_wide = x.float() if x.dtype in HALF_DTYPES else x
    l2_norm = torch.linalg.vector_norm(x_wide, dim=-1, keepdim=True)
    inverse_rms = torch.addcmul(_scalar(eps, x_wide.dtype), l2_norm, l2_norm, value=1 / x.shape[-1]).rsqrt_()
    return (x_wide * inverse_rms).mul_(weight).to(x.dtype), inverse_rms


@functools.lru_cache(maxsize=16)
def _scalar(value: float, dtype: torch.dtype) -> Tensor:
    return torch.tensor(value, dtype=dtype)


def rms_norm_recompute(x: Tensor, inverse_rms: Tensor, weight: Tensor) -> Tensor:
    """What `rms_norm` gave, once more. inverse: what it gave beside."""
    return (x.to(inverse_rms.dtype) * inverse_rms).mul_(weight).to(x.dtype)


def rms_norm_backward(
    grad_output: Tensor, x: Tensor, inverse_rms: Tensor, weight: Tensor, residual_grad: Tensor
) -> tuple[Tensor, Tensor]:
    """What came around the norm + the slope of x from that of `rms_norm`'s result, which is used up; and that result again."""
    if ops.supported(x, weight, grad_output, residual_grad):
        return ops.rms_norm_backward(grad_output, x, inverse_rms, weight, residual_grad)
    dtype, recomputed = residual_grad.dtype, rms_norm_recompute(x, inverse_rms, weight)
    grad_output, x, residual_grad = (tensor.to(inverse_rms.dtype) for tensor in (grad_output, x, residual_grad))
    grad_output.mul_(weight)
    coefficient = (grad_output * x).sum(-1, keepdim=True).mul_(inverse_rms.pow(3))
    return torch.addcmul(residual_grad, grad_output, inverse_rms).addcmul_(x, coefficient, value=-1 / x.shape[-1]).to(
        dtype
    ), recomputed


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up."""
    return ops.swiglu(gate, up) if ops.supported(gate, up) else functional.silu(gate).mul_(up)


def swiglu_backward(grad_output: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """The slopes of gate and up, (2, N, I), from that of `swiglu`'s result (N, I), which is used up; and that result again."""
    if ops.supported(gate, up, grad_output):
        return ops.swiglu_backward(grad_output, gate, up)
    d_gate, silu_gate = grads = gate.new_empty(2, *gate.shape)
    torch.ops.aten.silu.out(gate, out=silu_gate)
    recomputed = silu_gate * up
    silu_gate.mul_(grad_output)
    torch.ops.aten.silu_backward.grad_input(grad_output.mul_(up), gate, grad_input=d_gate)
    return grads, recomputed


def split_heads(x: Tensor, batch_size: int, head_size: int) -> Tensor:
    """(B·T, n·D) as (n, B, T, D); no copy."""
    return x.view(batch_size, -1, x.shape[-1] // head_size, head_size).permute(2, 0, 1, 3)


def causal_attention(
    qkv: Tensor, rope: RopeTables, batch_size: int, start_pos: int, dims: LayerDims
) -> tuple[Tensor, Sequence[Tensor]]:
    """Causal attention of the tokens from `first` on, (B·(T - first), heads·D); and what `causal_attention_backward` has to be given.

    read: (B·T, (heads + 2 groups)·D), q, k and v of each token, not rotated yet.
    """
    if ops.supported(qkv, rope.cos):
        return ops.causal_attention(qkv, rope.cos, rope.sin, batch_size, start_pos, dims.heads, dims.kv_heads), (qkv,)
    heads = split_heads(qkv, batch_size, dims.head_size)
    q, k = apply_rope(heads[: -dims.kv_heads], rope).split_with_sizes((dims.heads, dims.kv_heads))
    v, query_count = heads[-dims.kv_heads :].contiguous(), k.shape[2] - start_pos
    if start_pos:  # copies, so that what is not asked for does not stay
        q, k = q[:, :, start_pos:].clone(memory_format=torch.contiguous_format), k.clone()
    q = q.view(-1, query_count, dims.head_size)
    attn_weights = attention_weights(q, _repeat_kv_heads(k, dims.heads), dims.head_size**-0.5)
    attn_output = torch.bmm(attn_weights, _repeat_kv_heads(v, dims.heads)).view(
        -1, batch_size, query_count, dims.head_size
    )
    return attn_output.permute(1, 2, 0, 3).reshape(batch_size * query_count, -1), (q, k, v, attn_weights)


def causal_attention_backward(
    grad_output: Tensor, saved: Sequence[Tensor], rope: RopeTables, batch_size: int, start_pos: int, dims: LayerDims
) -> Tensor:
    """The slope of `read` from that of what `causal_attention` gave."""
    if len(saved) == 1:
        return ops.causal_attention_backward(
            grad_output, saved[0], rope.cos, rope.sin, batch_size, start_pos, dims.heads, dims.kv_heads
        )
    q, k, v, attn_weights = saved
    d_attn_output = split_heads(grad_output, batch_size, dims.head_size).reshape(q.shape)
    d_attn_weights = torch.bmm(d_attn_output, _repeat_kv_heads(v, dims.heads).mT)
    d_scores = torch._softmax_backward_data(d_attn_weights, attn_weights, -1, attn_weights.dtype)
    softmax_scale, query_count, length = dims.head_size**-0.5, q.shape[1], k.shape[2]
    d_qkv = grad_output.new_empty(batch_size * length, (dims.heads + 2 * dims.kv_heads) * dims.head_size)
    out_heads = split_heads(d_qkv, batch_size, dims.head_size)
    out_q, out_k, out_v = out_heads[: dims.heads], out_heads[dims.heads : -dims.kv_heads], out_heads[-dims.kv_heads :]
    if start_pos:
        out_q[:, :, :start_pos] = 0
    d_q = _scaled_bmm(softmax_scale, d_scores, _repeat_kv_heads(k, dims.heads)).view(
        -1, batch_size, query_count, dims.head_size
    )
    apply_rope(d_q, rope.last_tokens(query_count), inverse=True, out=out_q[:, :, start_pos:])
    apply_rope(_sum_grads_per_kv_head(_scaled_bmm(softmax_scale, d_scores.mT, q), k), rope, inverse=True, out=out_k)
    out_v.copy_(_sum_grads_per_kv_head(torch.bmm(attn_weights.mT, d_attn_output), v))
    return d_qkv


def _repeat_kv_heads(x: Tensor, heads: int) -> Tensor:
    """(groups, B, T, D) -> (heads·B, T, D): the keys or values of a group for each head that reads them."""
    kv_heads, batch_size, length, head_size = x.shape
    if kv_heads == heads:
        return x.view(-1, length, head_size)
    return x[:, None].expand(-1, heads // kv_heads, -1, -1, -1).reshape(heads * batch_size, length, head_size)


def _scaled_bmm(factor: float, a: Tensor, b: Tensor) -> Tensor:
    """factor · a @ b."""
    return torch.baddbmm(_scalar(0.0, b.dtype), a, b, beta=0, alpha=factor)


def _sum_grads_per_kv_head(grad: Tensor, like: Tensor) -> Tensor:
    """(heads·B, T, D) -> (groups, B, T, D): the slopes of a group's heads added up."""
    grad = grad.view(like.shape[0], -1, *like.shape[1:])
    return grad.squeeze(1) if grad.shape[1] == 1 else grad.sum(1)
