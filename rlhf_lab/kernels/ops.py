"""The operations between the matrix products of a decoder layer and after the vocabulary head: norms, SwiGLU,
attention, log-probs.

Each runs as a compiled kernel (c_ops.py) if there is one for the tensors, else as PyTorch operations. The two differ in
rounding only. A process uses the same one throughout, with or without gradients.
Symbols: B batch size, T tokens of a sequence, N = B·T, H hidden size, I intermediate size, D head size, V vocabulary
size.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from rlhf_lab.core import logprobs
from rlhf_lab.kernels import c_ops
from rlhf_lab.kernels.matmul import linear
from rlhf_lab.kernels.rope import RopeTables, apply_rope

HALF_DTYPES = (torch.bfloat16, torch.float16)
#: For each element of a head, the longest sequence for which PyTorch's batched products beat its fused attention, which
#: keeps no (T, T) weights. A compiled kernel is faster at any length.
MAX_LENGTH_PER_HEAD_SIZE = 6


class LayerDims(NamedTuple):
    """Number of heads, number of key-value heads, head size D, and the epsilons of the two norms."""

    heads: int
    kv_heads: int
    head_size: int
    eps: tuple[float, float]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """weight · x / rms(x) of each row of x (N, H), and 1 / sqrt(mean square + eps), (N, 1), in at least float32."""
    if c_ops.supported(x, weight):
        return c_ops.rms_norm(x, weight, eps)
    x_wide = x.float() if x.dtype in HALF_DTYPES else x
    l2_norm = torch.linalg.vector_norm(x_wide, dim=-1, keepdim=True)
    inverse_rms = torch.addcmul(_scalar(eps, x_wide.dtype), l2_norm, l2_norm, value=1 / x.shape[-1]).rsqrt_()
    return (x_wide * inverse_rms).mul_(weight).to(x.dtype), inverse_rms


@functools.lru_cache(maxsize=16)
def _scalar(value: float, dtype: torch.dtype) -> Tensor:
    return torch.tensor(value, dtype=dtype)


def rms_norm_recompute(x: Tensor, inverse_rms: Tensor, weight: Tensor) -> Tensor:
    """The first result of `rms_norm` from its second one, `inverse_rms`."""
    return (x.to(inverse_rms.dtype) * inverse_rms).mul_(weight).to(x.dtype)


def rms_norm_backward(
    grad_output: Tensor, x: Tensor, inverse_rms: Tensor, weight: Tensor, residual_grad: Tensor
) -> tuple[Tensor, Tensor]:
    """residual_grad + the gradient of x, both (N, H), and the output of `rms_norm` recomputed. grad_output is
    overwritten.
    """
    if c_ops.supported(x, weight, grad_output, residual_grad):
        return c_ops.rms_norm_backward(grad_output, x, inverse_rms, weight, residual_grad)
    dtype, recomputed = residual_grad.dtype, rms_norm_recompute(x, inverse_rms, weight)
    grad_output, x, residual_grad = (tensor.to(inverse_rms.dtype) for tensor in (grad_output, x, residual_grad))
    grad_output.mul_(weight)
    coefficient = (grad_output * x).sum(-1, keepdim=True).mul_(inverse_rms.pow(3))
    return torch.addcmul(residual_grad, grad_output, inverse_rms).addcmul_(x, coefficient, value=-1 / x.shape[-1]).to(
        dtype
    ), recomputed


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up."""
    return c_ops.swiglu(gate, up) if c_ops.supported(gate, up) else functional.silu(gate).mul_(up)


def swiglu_backward(grad_output: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of gate and up, (2, N, I), and the output of `swiglu` recomputed. grad_output (N, I) is
    overwritten.
    """
    if c_ops.supported(gate, up, grad_output):
        return c_ops.swiglu_backward(grad_output, gate, up)
    d_gate, silu_gate = grads = gate.new_empty(2, *gate.shape)
    torch.ops.aten.silu.out(gate, out=silu_gate)
    recomputed = silu_gate * up
    silu_gate.mul_(grad_output)
    torch.ops.aten.silu_backward.grad_input(grad_output.mul_(up), gate, grad_input=d_gate)
    return grads, recomputed


def split_heads(x: Tensor, batch_size: int, head_size: int) -> Tensor:
    """(B·T, n·D) viewed as (n, B, T, D)."""
    return x.view(batch_size, -1, x.shape[-1] // head_size, head_size).permute(2, 0, 1, 3)


def causal_attention(
    qkv: Tensor, rope: RopeTables, batch_size: int, start_pos: int, dims: LayerDims
) -> tuple[Tensor, Sequence[Tensor]]:
    """Causal attention of the tokens from start_pos on, (B·(T - start_pos), heads·D), and what
    `causal_attention_backward` needs.

    qkv: (B·T, (heads + 2 kv_heads)·D), q, k and v of each token before RoPE.
    """
    if c_ops.supported(qkv, rope.cos):
        return c_ops.causal_attention(qkv, rope.cos, rope.sin, batch_size, start_pos, dims.heads, dims.kv_heads), (qkv,)
    heads = split_heads(qkv, batch_size, dims.head_size)
    q, k = apply_rope(heads[: -dims.kv_heads], rope).split_with_sizes((dims.heads, dims.kv_heads))
    v, query_count = heads[-dims.kv_heads :].contiguous(), k.shape[2] - start_pos
    if start_pos:  # copies, so that unused queries are not kept in memory
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
    """The gradient of qkv. saved: the second result of `causal_attention`."""
    if len(saved) == 1:
        return c_ops.causal_attention_backward(
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


@functools.lru_cache(maxsize=8)
def causal_mask(key_length: int, query_length: int, dtype: torch.dtype) -> Tensor:
    """(1, S, T): -inf where one of the last S of T tokens would attend to a later one. S: query_length, T: key_length."""
    return torch.full((1, key_length, key_length), -torch.inf, dtype=dtype).triu(1)[:, key_length - query_length :]


def attention_weights(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """(N, S, T): the causal attention weights of the last S of T tokens. q: (N, S, D), k: (N, T, D)."""
    scores = torch.baddbmm(causal_mask(k.shape[1], q.shape[1], q.dtype), q, k.mT, alpha=scale)
    softmax_dtype = torch.promote_types(q.dtype, torch.float32)  # softmax in bfloat16 takes three times as long
    return scores.softmax(-1, dtype=softmax_dtype).to(q.dtype)


def _repeat_kv_heads(x: Tensor, heads: int) -> Tensor:
    """(kv_heads, B, T, D) -> (heads·B, T, D): each key-value head repeated for the heads that share it."""
    kv_heads, batch_size, length, head_size = x.shape
    if kv_heads == heads:
        return x.view(-1, length, head_size)
    return x[:, None].expand(-1, heads // kv_heads, -1, -1, -1).reshape(heads * batch_size, length, head_size)


def _scaled_bmm(factor: float, a: Tensor, b: Tensor) -> Tensor:
    """factor · a @ b."""
    return torch.baddbmm(_scalar(0.0, b.dtype), a, b, beta=0, alpha=factor)


def _sum_grads_per_kv_head(grad: Tensor, like: Tensor) -> Tensor:
    """(heads·B, T, D) -> (kv_heads, B, T, D): the gradients summed over the heads that share a key-value head."""
    grad = grad.view(like.shape[0], -1, *like.shape[1:])
    return grad.squeeze(1) if grad.shape[1] == 1 else grad.sum(1)


def decode_attention(
    qkv: Tensor,
    rope: RopeTables,
    attention_mask: Tensor | None,
    keys: Tensor,
    values: Tensor,
    cached_length: int,
    dims: LayerDims,
) -> Tensor:
    """Attention of one new token per row, (B, heads·D); writes its key and value into column `cached_length`.

    qkv: (B, (heads + 2 kv_heads)·D), before RoPE, overwritten. rope: (B, 1, D). attention_mask: (B, 1, 1, cached_length +
    1) bool, which tokens a row attends to; None: all. keys, values: (B, kv_heads, capacity, D), contiguous, capacity >
    cached_length.
    """
    if c_ops.supported(qkv, rope.cos):
        return c_ops.decode_attention(qkv, *rope, attention_mask, keys, values, cached_length, dims.heads)

    def update(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        for buffer, states in ((keys, k), (values, v)):
            buffer.narrow(2, cached_length, 1).copy_(states)
        return keys.narrow(2, 0, cached_length + 1), values.narrow(2, 0, cached_length + 1)

    return decode_attention_with(qkv, rope, attention_mask, update, dims)


def decode_attention_with(
    qkv: Tensor,
    rope: RopeTables,
    attention_mask: Tensor | None,
    update: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    dims: LayerDims,
) -> Tensor:
    """`decode_attention` with any cache. update: takes the new key and value (B, kv_heads, 1, D), returns all of them."""
    batch_size, rotated_heads = qkv.shape[0], dims.heads + dims.kv_heads
    swapped = qkv.index_select(1, _swapped_index(rotated_heads, dims.head_size)).view(batch_size, -1, dims.head_size)
    heads = qkv.view(batch_size, -1, dims.head_size)
    heads.narrow(1, 0, rotated_heads).mul_(rope.cos).addcmul_(swapped, rope.sin)
    q, k, v = heads.unsqueeze(2).split_with_sizes([dims.heads, dims.kv_heads, dims.kv_heads], 1)
    k, v = update(k, v)
    if qkv.dtype == torch.bfloat16:  # PyTorch takes twice as long for one token's attention in bfloat16
        q, k, v = q.float(), k.float(), v.float()
    q = q.reshape(batch_size, dims.kv_heads, -1, dims.head_size)
    attn_output = functional.scaled_dot_product_attention(q, k, v, attention_mask, scale=dims.head_size**-0.5)
    return attn_output.reshape(batch_size, -1).to(qkv.dtype)


@functools.lru_cache(maxsize=16)
def _swapped_index(heads: int, head_size: int) -> Tensor:
    """For each element of the heads, the one that RoPE combines it with."""
    return torch.arange(heads * head_size).view(heads, 2, -1).flip(1).flatten()


def max_attention_length(like: Tensor, head_size: int) -> float:
    """The longest sequence that `causal_attention` computes faster than PyTorch's fused attention, on tensors like this
    one.
    """
    return math.inf if c_ops.supported(like) else MAX_LENGTH_PER_HEAD_SIZE * head_size


def lora_grads(
    lora_tensors: Sequence[Tensor],
    scale: float,
    x: Tensor,
    grad_outputs: Sequence[Tensor] | Tensor,
    low_rank: Tensor | None,
    low_rank_grad: Tensor | None,
) -> list[Tensor]:
    """dA = s·(g·B)ᵀ·x and dB = s·gᵀ·(x·Aᵀ), alternating, for several weights that read the same input.

    lora_tensors: their A (r, in) and B (out, r), alternating; empty without trainable tensors. x: (N, in).
    grad_outputs: g (N, out) of each; one tensor if their sizes are equal. low_rank, low_rank_grad: from
    `concat_lora_input` and `split_lora_grad`, or None.
    """
    if not lora_tensors:
        return []
    a, b = lora_tensors[::2], lora_tensors[1::2]
    ranks = [tensor.shape[0] for tensor in a]
    if all(c_ops.lora_grads_supported(x, grad) for grad in grad_outputs) and all(
        tensor.dtype == torch.float32 for tensor in lora_tensors
    ):
        precomputed: list[tuple[Tensor, Tensor] | None] = [None] * len(a)
        if low_rank is not None and low_rank_grad is not None:
            precomputed = [*zip(low_rank.split(ranks, 1), low_rank_grad.split(ranks, 1), strict=True)]
        kernel_grads = (
            c_ops.lora_grads(x, g, a, b, scale, low_ranks)
            for a, b, g, low_ranks in zip(a, b, grad_outputs, precomputed, strict=True)
        )
        return [grad for pair in kernel_grads for grad in pair]
    # The long dimension (rows) is the last one of the rank-r products: measured four times as fast as with r last.
    if low_rank is None or low_rank_grad is None:
        transposed_grads = grad_outputs.mT if isinstance(grad_outputs, Tensor) else [grad.t() for grad in grad_outputs]
        low_rank_t = _concat(a).mm(x.t())
        da = _concat(_matmuls([tensor.t() for tensor in b], transposed_grads)).mm(x).mul_(scale)
    else:
        low_rank_t = low_rank.t()
        da = low_rank_grad.t().mm(x).to(a[0].dtype)
    db = [
        # with the strides of B, or autograd would copy it
        torch.mul(product.t().to(tensor.dtype), scale, out=torch.empty_like(tensor))
        for tensor, product in zip(b, _matmuls(low_rank_t.split(ranks), grad_outputs), strict=True)
    ]
    return [grad for pair in zip(da.split(ranks), db, strict=True) for grad in pair]


def _matmuls(left: Sequence[Tensor], right: Sequence[Tensor] | Tensor) -> list[Tensor]:
    """left[i] (r, K) @ right[i] (K, M). Equal sizes are batched, which takes two thirds of the time."""
    if isinstance(right, Tensor) and len(left) > 1 and len({a.shape for a in left}) == 1:
        return [*torch.bmm(torch.stack([*left]), right)]
    return [a.mm(b) for a, b in zip(left, right, strict=True)]


def _concat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([*tensors]) if len(tensors) > 1 else tensors[0]


def logprobs_and_entropy_inplace(
    logits: Tensor, tokens: Tensor, temperature: float, needs_grad: bool
) -> tuple[Tensor, Tensor]:
    """See `logprobs.logprobs_and_entropy_inplace`."""
    compute = c_ops.logprobs_and_entropy_inplace if c_ops.supported(logits) else logprobs.logprobs_and_entropy_inplace
    return compute(logits, tokens, temperature, needs_grad)


#: For `logprobs.head_logprobs`.
HEAD_KERNEL = logprobs.HeadKernel(linear, logprobs_and_entropy_inplace)
