"""A token more of each row through whole decoder layers, where those before it lie in a cache.

A layer computes little of a single token: most of the time goes into asking for it. So here nothing is asked for twice that holds
for all tokens, and nothing in two operations that one does.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from rlhf_lab.kernels.amx_layer import AmxLayer
from rlhf_lab.kernels.matmul import linear, linear_add
from rlhf_lab.kernels.ops import LayerDims, decode_attention, decode_attention_with, rms_norm, swiglu
from rlhf_lab.kernels.rope import RopeCache, RopeTables
from rlhf_lab.models.fused_llama.layer import LayerWeights, concat_lora_input
from rlhf_lab.models.kv_cache import ReservedCacheLayer


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
        self._weights, self._dims = weights, dims

    def __call__(self, x: Tensor, rope: RopeTables, attention_mask: Tensor | None, cache_layer: Any) -> Tensor:
        """(B, H) -> (B, H). seen: (B, 1, 1, L) bool, which tokens a row looks at; None: all. past: the cache's layer."""
        qkv = qkv_projection(x, self._weights, self._dims)
        if isinstance(cache_layer, ReservedCacheLayer):
            attn_output = decode_attention(qkv, rope, attention_mask, *cache_layer.reserve_token(), self._dims)
        else:
            attn_output = decode_attention_with(qkv, rope, attention_mask, cache_layer.update, self._dims)
        return post_attention(x, attn_output, self._weights, self._dims)
