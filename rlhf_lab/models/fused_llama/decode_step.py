"""One new token per row through fused decoder layers, with the earlier tokens in a cache.

A layer computes little for a single token; most of the time is the overhead of calling operations. Therefore whatever is
the same for all tokens is computed once, and operations are merged where possible.
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
    """The trunk's forward pass of one new token per row; valid until the weights or the adapter change.

    layers: weights and dimensions of each. has_padding: some row's mask contains zeros.
    """

    def __init__(
        self,
        trunk: Any,
        layers: Sequence[tuple[LayerWeights | AmxLayer, LayerDims]],
        rope_cache: RopeCache,
        has_padding: bool,
    ) -> None:
        self._embed, self._norm = trunk.embed_tokens, trunk.norm
        self._rope_cache, self._has_padding = rope_cache, has_padding
        self._layers = [LayerDecodeStep(weights, dims) for weights, dims in layers]

    def __call__(self, input_ids: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """Hidden states (B, H) after the last norm.

        input_ids, positions: (B, 1); mask: (B, L), of all tokens so far including this one; cache: of the earlier
        tokens, with one layer per layer of the model.
        """
        attention_mask = mask[:, None, None].bool() if self._has_padding else None
        rope = self._rope_cache.for_positions(positions, mask.shape[1])
        x = self._embed(input_ids).squeeze(1)
        for layer, cache_layer in zip(self._layers, cache.layers, strict=True):
            x = layer(x, rope, attention_mask, cache_layer)
        return rms_norm(x, self._norm.weight, self._norm.variance_epsilon)[0]


def qkv_projection(x: Tensor, weights: LayerWeights | AmxLayer, dims: LayerDims) -> Tensor:
    """q, k and v before RoPE, (N, (heads + 2 kv_heads)·D). x: (N, H), the layer's input; no gradient."""
    if isinstance(weights, AmxLayer):
        return weights.qkv_projection(x)
    normalized, _ = rms_norm(x, weights.norms[0], dims.eps[0])
    return linear(concat_lora_input(normalized, weights.lora_a[0])[0], weights.qkv, weights.bias)


def post_attention(x: Tensor, attn_output: Tensor, weights: LayerWeights | AmxLayer, dims: LayerDims) -> Tensor:
    """The layer's output (N, H). x: the layer's input; attn_output: (N, heads·D); no gradient."""
    if isinstance(weights, AmxLayer):
        return weights.post_attention(x, attn_output)
    residual_mid = linear_add(x, concat_lora_input(attn_output, weights.lora_a[1])[0], weights.o)
    normalized, _ = rms_norm(residual_mid, weights.norms[1], dims.eps[1])
    normalized, _ = concat_lora_input(normalized, weights.lora_a[2])
    gated = swiglu(linear(normalized, weights.gate), linear(normalized, weights.up))
    return linear_add(residual_mid, concat_lora_input(gated, weights.lora_a[3])[0], weights.down)


class LayerDecodeStep:
    """One layer of a `DecodeStep`."""

    def __init__(self, weights: LayerWeights | AmxLayer, dims: LayerDims) -> None:
        self._weights, self._dims = weights, dims

    def __call__(self, x: Tensor, rope: RopeTables, attention_mask: Tensor | None, cache_layer: Any) -> Tensor:
        """(B, H) -> (B, H). attention_mask: (B, 1, 1, L) bool, which tokens a row attends to; None: all. cache_layer:
        of this layer.
        """
        qkv = qkv_projection(x, self._weights, self._dims)
        if isinstance(cache_layer, ReservedCacheLayer):
            attn_output = decode_attention(qkv, rope, attention_mask, *cache_layer.reserve_token(), self._dims)
        else:
            attn_output = decode_attention_with(qkv, rope, attention_mask, cache_layer.update, self._dims)
        return post_attention(x, attn_output, self._weights, self._dims)
