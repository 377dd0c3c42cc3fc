"""Attention for training in bfloat16 on a CPU.

PyTorch's fused attention converts bfloat16 in its backward pass there: forward and backward of 16 sequences of 56
tokens and 6 heads took 18 ms, plain batched products 3.5 ms (2 cores, AVX-512 bf16). float32 and single tokens use the
fused attention.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from rlhf_lab.kernels.ops import attention_weights

ATTENTION_NAME = "plain_bfloat16"
MAX_PLAIN_LENGTH = 512  # tokens; beyond this the (T, T) weights cost more than the fused kernel's conversions


def register_attention() -> str:
    """Register the attention with transformers; returns its name for `attn_implementation`."""
    AttentionInterface.register(ATTENTION_NAME, attention_forward)
    AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
    return ATTENTION_NAME


def attention_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Transformers' attention interface: query (B, heads, T, D), key and value (B, kv_heads, T, D) -> (B, T, heads, D)."""
    length = query.shape[2]
    use_plain = (
        query.dtype == torch.bfloat16 and attention_mask is None
        and 1 < length == key.shape[2] <= MAX_PLAIN_LENGTH and not options.get("dropout") and not options.get("sliding_window")
        and options.get("is_causal", True) is not False and getattr(module, "is_causal", True)
    )  # fmt: skip
    if not use_plain:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
    scaling = options.get("scaling")
    scale = float(scaling) if scaling is not None else query.shape[3] ** -0.5
    q, k, v = (x.reshape(-1, length, x.shape[3]) for x in (query, key, value))
    return _causal_attention(q, k, v, scale).view(query.shape).transpose(1, 2), None


class _CausalAttention(torch.autograd.Function):
    """softmax(scale · q kᵀ + mask) v of (N, T, D) each, and its gradients as batched products; saves the (T, T)
    weights.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        weights = attention_weights(q, k, scale)
        ctx.save_for_backward(q, k, v, weights)
        ctx.scale = scale
        return weights @ v

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights = ctx.saved_tensors
        (g,) = gradients
        if torch.is_grad_enabled():  # double backward (TRPO's curvature): the weights depend on q and k
            weights = attention_weights(q, k, ctx.scale)
        d_weights = g @ v.transpose(1, 2)
        d_scores = torch._softmax_backward_data(d_weights, weights, -1, weights.dtype).mul_(ctx.scale)
        d_value = weights.transpose(1, 2) @ g
        return d_scores @ k, d_scores.transpose(1, 2) @ q, d_value, None


_causal_attention: Callable[[Tensor, Tensor, Tensor, float], Tensor] = _CausalAttention.apply
