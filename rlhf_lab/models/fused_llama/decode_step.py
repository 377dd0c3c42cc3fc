"""A token more of each row through whole decoder layers, where those before it lie in a cache.

A layer computes little of a single token: most of the time goes into asking for it. So here nothing is asked for twice that holds
for all tokens, and nothing in two operations that one does.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rlhf_lab.kernels import ops
from rlhf_lab.kernels.amx_layer import AmxLayer
from rlhf_lab.kernels.matmul import linear, linear_add
from rlhf_lab.models.fused_llama.layer import LayerWeights
from rlhf_lab.models.fused_llama.layer_ops import LayerDims, rms_norm, swiglu
from rlhf_lab.models.fused_llama.lora_ops import concat_lora_input
from rlhf_lab.models.fused_llama.rope import RopeCache, RopeTables
from rlhf_lab.models.sampling.kv_cache import ReservedCacheLayer


class DecodeStep:
    """What a trunk's layers make of a token more of each row; good while nothing but tokens changes.

    layers: weights and shape of each. padded: some row's mask is 0 somewhere.
    """

    def __init__(
        self,
        trunk: Any,
        layers: Sequence[tuple[LayerWeights | AmxLayer, LayerDims]],
        rope_cache: RopeCache,
        has_padding: bool,
    ) -> None:
        self._embed, self._norm, self._rope_cache, self._has_padding = (
            trunk.embed_tokens,
            trunk.norm,
            rope_cache,
            has_padding,
        )
        self._layers = [LayerDecodeStep(weights, dims) for weights, dims in layers]

    def __call__(self, input_ids: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """The states (B, H) behind the last norm. ids, positions: (B, 1); mask: (B, L), of all tokens read so far, this one among
        them; cache: what those before it left, with one layer for each of the model's."""
        attention_mask = mask[:, None, None].bool() if self._has_padding else None
        rope = self._rope_cache.for_positions(positions, mask.shape[1])
        x = self._embed(input_ids).squeeze(1)
        for layer, cache_layer in zip(self._layers, cache.layers, strict=True):
            x = layer(x, rope, attention_mask, cache_layer)
        return rms_norm(x, self._norm.weight, self._norm.variance_epsilon)[0]


def qkv_projection(x: Tensor, weights: LayerWeights | AmxLayer, dims: LayerDims) -> Tensor:
    """q, k and v, (N, (heads + 2 groups)·D), not rotated yet. x: (N, H), what comes into the layer; no gradient."""
    if isinstance(weights, AmxLayer):
        return weights.qkv_projection(x)
    normalized, _ = rms_norm(x, weights.norms[0], dims.eps[0])
    return linear(concat_lora_input(normalized, weights.lora_a[0])[0], weights.qkv, weights.bias)


def post_attention(x: Tensor, attn_output: Tensor, weights: LayerWeights | AmxLayer, dims: LayerDims) -> Tensor:
    """The layer's output (N, H). mixed: (N, heads·D), what its heads made of the values; no gradient."""
    if isinstance(weights, AmxLayer):
        return weights.post_attention(x, attn_output)
    residual_mid = linear_add(x, concat_lora_input(attn_output, weights.lora_a[1])[0], weights.o)
    normalized, _ = rms_norm(residual_mid, weights.norms[1], dims.eps[1])
    normalized, _ = concat_lora_input(normalized, weights.lora_a[2])
    gated = swiglu(linear(normalized, weights.gate), linear(normalized, weights.up))
    return linear_add(residual_mid, concat_lora_input(gated, weights.lora_a[3])[0], weights.down)


class LayerDecodeStep:
    """One whole layer, asked for one token of each row at a time."""

    def __init__(self, weights: LayerWeights | AmxLayer, dims: LayerDims) -> None:
        self._weights, self._dims, rotated_heads = weights, dims, dims.heads + dims.kv_heads
        self._split = [dims.heads, dims.kv_heads, dims.kv_heads]
        columns = torch.arange(rotated_heads * dims.head_size)
        #: Which number of q and k is the one that each is rotated with.
        self._swapped_index = columns.view(rotated_heads, 2, -1).flip(1).flatten()

    def __call__(self, x: Tensor, rope: RopeTables, attention_mask: Tensor | None, cache_layer: Any) -> Tensor:
        """(B, H) -> (B, H). seen: (B, 1, 1, L) bool, which tokens a row looks at; None: all. past: the cache's layer."""
        qkv = qkv_projection(x, self._weights, self._dims)
        if isinstance(cache_layer, ReservedCacheLayer) and ops.supported(qkv, rope.cos):
            keys, values, cached_length = cache_layer.reserve_token()
            attn_output = ops.decode_attention(
                qkv, *rope, attention_mask, keys, values, cached_length, self._dims.heads
            )
        else:
            attn_output = self._attention(qkv, rope, attention_mask, cache_layer)
        return post_attention(x, attn_output, self._weights, self._dims)

    def _attention(self, qkv: Tensor, rope: RopeTables, attention_mask: Tensor | None, cache_layer: Any) -> Tensor:
        """What each row's heads make of the values, (B, heads·D), by PyTorch's operations. flat: q, k and v, not rotated yet."""
        dims, batch_size = self._dims, qkv.shape[0]
        swapped = qkv.index_select(1, self._swapped_index).view(batch_size, -1, dims.head_size)
        heads = qkv.view(batch_size, -1, dims.head_size)
        heads.narrow(1, 0, swapped.shape[1]).mul_(rope.cos).addcmul_(swapped, rope.sin)
        q, k, v = heads.unsqueeze(2).split_with_sizes(self._split, 1)
        k, v = cache_layer.update(k, v)
        if qkv.dtype == torch.bfloat16:  # of which a token's attention takes torch twice as long
            q, k, v = q.float(), k.float(), v.float()
        q = q.reshape(batch_size, dims.kv_heads, -1, dims.head_size)
        attn_output = functional.scaled_dot_product_attention(q, k, v, attention_mask, scale=dims.head_size**-0.5)
        return attn_output.reshape(batch_size, -1).to(qkv.dtype)
