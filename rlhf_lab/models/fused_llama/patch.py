"""Replaces the forward pass of a model's decoder layers by one function each (layer.py), with or without an adapter.

Supported are layers of Llama, Mistral and Qwen2 in float32 or bfloat16 on a CPU, where a third of the time or more is
spent between the matrix products. The weights of q, k and v move into one tensor, and the model's own become views of
it.
"""

import logging
import math
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers import __version__ as VERSION
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_layers import GradientCheckpointingLayer

from rlhf_lab.kernels.amx_layer import AmxLayer, create_amx_layer
from rlhf_lab.kernels.ops import HALF_DTYPES, MAX_LENGTH_PER_HEAD_SIZE, LayerDims, max_attention_length, split_heads
from rlhf_lab.kernels.rope import RopeCache, RopeTables, apply_rope, make_rope
from rlhf_lab.models.fused_llama.decode_step import DecodeStep, post_attention, qkv_projection
from rlhf_lab.models.fused_llama.layer import LayerWeights, LoraUpdate, SequenceLayout, fused_layer
from rlhf_lab.models.fused_llama.weight_cache import (
    AmxWeightCache,
    CacheByRank,
    ConcatWeightCache,
    MergedWeights,
    split_by_projection,
)
from rlhf_lab.models.lora_linear import LoraWeights, MergedLoraLinear

log = logging.getLogger("rlhf_lab.models")

SUPPORTED_LAYERS = ("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer")
VERIFIED_TOKENS = 5
MIN_SHARED_PREFIX = 16  # tokens: a shorter prefix saves less than the copies of its keys and values cost
#: Options that only the unfused modules support.
UNSUPPORTED_OPTIONS = ("is_causal", "sliding_window", "output_attentions")
#: Trunks that only embed, rotate (RoPE), run their layers and normalise.
SUPPORTED_TRUNKS = ("LlamaModel", "MistralModel", "Qwen2Model")
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class FusedLayers:
    """The fused decoder layers of one model; none without a model."""

    def __init__(self, model: nn.Module | None = None) -> None:
        modules = list(model.modules()) if model is not None else []
        self._layers = [FusedLayer(module) for module in modules if is_supported(module)]
        layers = [module for module in modules if isinstance(module, GradientCheckpointingLayer)]
        self._cover_all_layers = bool(layers) and len(self._layers) == len(layers)
        self._rope_cache: RopeCache | None = None
        self._merged_linears: Mapping[Any, MergedLoraLinear] = {}
        self.set_adapter({})

    @property
    def available(self) -> bool:
        return bool(self._layers)

    def disable(self) -> None:
        """Use the modules from now on."""
        for fused in self._layers:
            fused.disable()

    def hidden_states(self, trunk: Any, input_ids: Tensor, start_pos: int) -> Tensor | None:
        """Hidden states (B, L - start_pos, H) of whole sequences, input_ids (B, L), from position start_pos on.

        Skips what transformers does around its layers in every pass, hooks of trunk and layers included, and what the
        last layer would compute for the first positions.

        None: the trunk itself must be used, because it does more than embed, rotate, run fused layers and normalise.
        """
        layers = self.layer_states(trunk, input_ids, start_pos)
        return None if layers is None else deque(layers, maxlen=1)[0]

    def layer_states(self, trunk: Any, input_ids: Tensor, start_pos: int) -> Iterator[Tensor] | None:
        """The embeddings, then each layer's output, the last one normalised: `hidden_states` of every layer, one after
        the other.
        """
        rope_cache = self._rope_cache_of(trunk)
        if rope_cache is None or input_ids.shape[1] > min(fused.max_length for fused in self._layers):
            return None
        batch_size, length = input_ids.shape
        shares_prefix = not any(fused.amx_layer for fused in self._layers)
        prefix = shared_prefix_length(input_ids, start_pos) if shares_prefix else 0
        all_tokens = SequenceLayout(batch_size, length, prefix=prefix)
        token_ids = all_tokens.collapse(input_ids[..., None]).squeeze(1)
        return self._run_layers(trunk, token_ids, rope_cache.for_prefix(length), all_tokens, start_pos)

    def _run_layers(
        self, trunk: Any, token_ids: Tensor, rope: RopeTables, all_tokens: SequenceLayout, start_pos: int
    ) -> Iterator[Tensor]:
        """token_ids: (N,) in the order of the layout."""
        layout = all_tokens._replace(start_pos=start_pos)
        x, last_layer = trunk.embed_tokens(token_ids), self._layers[-1]
        for fused in self._layers:
            yield layout.outputs(x).view(layout.batch_size, -1, x.shape[1])
            x = fused.forward_sequence(x, rope, layout if fused is last_layer else all_tokens)
        yield trunk.norm(x).view(layout.batch_size, -1, x.shape[1])

    def decode_step(self, trunk: Any, has_padding: bool) -> DecodeStep | None:
        """The trunk's pass of one new token per row; valid until the weights or the adapter change. None: as in
        `hidden_states`, or with sliding-window attention.

        has_padding: some row's mask contains zeros.
        """
        rope_cache = self._rope_cache_of(trunk)
        if rope_cache is None or getattr(trunk.config, "sliding_window", None):
            return None
        return DecodeStep(
            trunk, [(fused.current_weights(), fused.dims) for fused in self._layers], rope_cache, has_padding
        )

    def _rope_cache_of(self, trunk: Any) -> RopeCache | None:
        """The rope tables of a trunk that only embeds, rotates, runs fused layers and normalises; else None."""
        is_supported_trunk = type(trunk).__name__ in SUPPORTED_TRUNKS and self._cover_all_layers
        if not is_supported_trunk or not all(fused.enabled and fused.is_applicable() for fused in self._layers):
            return None
        if getattr(trunk.rotary_emb, "rope_type", None) not in RopeCache.ROPE_TYPES:
            return None
        if self._rope_cache is None:
            self._rope_cache = RopeCache(trunk.rotary_emb, trunk.embed_tokens.weight)
        return self._rope_cache

    def set_weight_cache(self, merged_linears: Mapping[Any, MergedLoraLinear]) -> None:
        """Use these for the weights of the adapters' layers from now on."""
        self._merged_linears = merged_linears
        for fused in self._layers:
            fused.weight_cache = None

    def set_adapter(self, lora_weights: Mapping[Any, LoraWeights | None]) -> None:
        """Compute with this adapter from now on, given its weights by layer; empty: without an adapter."""
        for fused in self._layers:
            if not lora_weights:
                fused.module.__dict__["forward"] = fused.make_forward(())
                continue
            linears = projections(fused.module)
            layer_lora = [lora for lora in map(lora_weights.get, linears) if lora is not None]
            if len(layer_lora) == len(linears) and len({lora.scale for lora in layer_lora}) == 1:
                fused.weight_cache = fused.weight_cache or fused.make_weight_cache(
                    [self._merged_linears[linear] for linear in linears]
                )
                fused.module.__dict__["forward"] = fused.make_forward(layer_lora)
            else:
                fused.disable()


class FusedLayer:
    """One decoder layer, computed as one function. The module's own forward pass is used instead if the module is trained
    or was moved to another device or dtype, and for anything that `fused_layer` does not support. A copy of the model
    would still use the weights of this one.
    """

    def __init__(self, module: Any) -> None:
        self._module = weakref.ref(module)  # the module refers to this object
        self.linears = projections(module)
        attention, norms = module.self_attn, (module.input_layernorm, module.post_attention_layernorm)
        heads, kv_heads = (self.linears[i].out_features // attention.head_dim for i in (0, 1))
        first_eps, second_eps = (float(norm.variance_epsilon) for norm in norms)
        self.dims = LayerDims(heads, kv_heads, attention.head_dim, (first_eps, second_eps))
        self.attention = attention
        biases = [linear.bias.detach() for linear in self.linears[:3] if linear.bias is not None]
        weights = [linear.weight.detach() for linear in self.linears]
        scales = (norms[0].weight.detach(), norms[1].weight.detach())
        o, gate, up, down = weights[3:]
        self.frozen = LayerWeights(
            torch.cat(weights[:3]), o, gate, up, down, scales, torch.cat(biases) if biases else None
        )
        self.qkv_sizes = [linear.out_features for linear in self.linears[:3]]
        for linear, weight_view in zip(self.linears, split_by_projection(self.frozen, self.qkv_sizes), strict=True):
            linear.weight.data = weight_view
        if self.frozen.bias is not None:
            for linear, weight_view in zip(self.linears, self.frozen.bias.split(self.qkv_sizes), strict=False):
                linear.bias.data = weight_view
        #: The longest sequence, in tokens, for which this replaces the module.
        self.max_length = min(max_attention_length(self.frozen.qkv, self.dims.head_size), sliding_window_of(attention))
        #: The frozen layer in C, if available.
        self.amx_layer = create_amx_layer(
            [linear.weight for linear in self.linears], self.frozen.bias, scales, self.dims
        )
        self.weight_cache: MergedWeights | CacheByRank | None = None
        self.lora_weights: Sequence[LoraWeights] = ()
        self.lora_tensors: Sequence[Tensor] = ()
        self.lora_update = LoraUpdate(self.frozen, 1.0)
        self.enabled = False  # whether the module's forward is from `make_forward`

    @property
    def module(self) -> Any:
        return self._module()

    def make_weight_cache(self, merged_linears: Sequence[MergedLoraLinear]) -> MergedWeights | CacheByRank:
        """The cache of this layer's weights under an adapter. merged_linears: of the seven projections."""
        if self.amx_layer is not None:
            return CacheByRank(partial(AmxWeightCache, self.amx_layer.tiled_weights))
        if self.frozen.qkv.dtype in HALF_DTYPES:
            return CacheByRank(partial(ConcatWeightCache, self.frozen, self.qkv_sizes))
        return MergedWeights(self.frozen, self.qkv_sizes, merged_linears)

    def make_forward(self, lora_weights: Sequence[LoraWeights]) -> Callable[..., Tensor]:
        """The layer's forward pass with this adapter; empty: without one."""
        self.lora_weights, self.enabled = lora_weights, True
        self.lora_tensors = [tensor for lora in lora_weights for tensor in (lora.a, lora.b)]
        self.lora_update = LoraUpdate(self.frozen, lora_weights[0].scale if lora_weights else 1.0)

        def forward(
            hidden_states: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None,
            past_key_values: Any = None, use_cache: bool | None = False, position_embeddings: Any = None, **options: Any,
        ) -> Tensor:  # fmt: skip
            x, mask, has_cache = hidden_states, attention_mask, past_key_values is not None
            applicable = self.is_applicable(x) and all(options.get(name) is None for name in UNSUPPORTED_OPTIONS)
            if applicable and (
                not torch.is_grad_enabled() if has_cache else mask is None and x.shape[1] <= self.max_length
            ):
                rope = make_rope(position_embeddings)
                if has_cache:
                    return self.forward_cached(x, self.current_weights(), rope, mask, past_key_values)
                return self.forward_sequence(x.flatten(0, 1), rope, SequenceLayout(*x.shape[:2])).view(x.shape)
            module = self.module
            out: Tensor = type(module).forward(
                module, x, attention_mask=mask, position_ids=position_ids, past_key_values=past_key_values,
                use_cache=use_cache, position_embeddings=position_embeddings, **options,
            )  # fmt: skip
            return out

        return forward

    def forward_sequence(self, x: Tensor, rope: RopeTables, layout: SequenceLayout) -> Tensor:
        """`fused_layer` with the adapter in use."""
        lora_tensors = self.lora_tensors if torch.is_grad_enabled() else ()
        return fused_layer(x, self.current_weights(), self.dims, rope, self.lora_update, lora_tensors, layout)

    def disable(self) -> None:
        """Use the module from now on."""
        self.module.__dict__.pop("forward", None)
        self.enabled = False

    def current_weights(self) -> LayerWeights | AmxLayer:
        """The weights with the update of the adapter in use."""
        if self.amx_layer is not None:
            self.amx_layer.tiled_weights.refresh()
        return (
            self.weight_cache.weights_for(self.lora_weights)
            if self.weight_cache is not None and self.lora_weights
            else self.amx_layer or self.frozen
        )

    def is_applicable(self, x: Tensor | None = None) -> bool:
        """Whether this replaces the module. x: the input; None: a tensor of the module's dtype and device."""
        x = self.module.input_layernorm.weight if x is None else x
        moved = (x.dtype, x.device) != (self.frozen.qkv.dtype, self.frozen.qkv.device)
        return (
            not moved and not self.module.training and not any(linear.weight.requires_grad for linear in self.linears)
        )

    def forward_cached(
        self, x: Tensor, weights: LayerWeights | AmxLayer, rope: RopeTables, mask: Tensor | None, cache: Any
    ) -> Tensor:
        """The layer with earlier tokens in a cache; no gradient."""
        dims, attention, flat_x = self.dims, self.attention, x.reshape(-1, x.shape[-1])
        heads = split_heads(qkv_projection(flat_x, weights, dims), len(x), dims.head_size)
        q, k = apply_rope(heads[: -dims.kv_heads], rope).transpose(0, 1).split((dims.heads, dims.kv_heads), 1)
        k, v = cache.update(k, heads[-dims.kv_heads :].transpose(0, 1), attention.layer_idx)
        q, k, v = (tensor.float() for tensor in (q, k, v))  # twice as fast as one token's attention in bfloat16
        attn_output = sdpa_attention_forward(attention, q, k, v, mask, scaling=dims.head_size**-0.5)[0].to(x.dtype)
        return post_attention(flat_x, attn_output.reshape(len(flat_x), -1), weights, dims).view(x.shape)


@torch.no_grad()
def patch_model(model: Any) -> FusedLayers:
    """Fuse the layers of a model just loaded, if they reproduce its modules' results on a few tokens; else log a
    warning and leave it.
    """
    fused, trunk = FusedLayers(model), model.base_model
    if not fused.available:
        return fused
    input_ids = torch.arange(VERIFIED_TOKENS)[None] % len(trunk.embed_tokens.weight)
    fused.disable()
    expected = trunk(input_ids=input_ids, use_cache=False).last_hidden_state.float()
    fused.set_adapter({})
    tolerance = 0.1 if model.dtype in HALF_DTYPES else 1e-3
    if all(
        _relative_error(actual, expected[:, -actual.shape[1] :]) <= tolerance
        for actual in _all_paths(fused, trunk, input_ids)
    ):
        return fused
    log.warning(
        "fused layers gave other results than the model's modules, so the modules are used (transformers %s)", VERSION
    )
    fused.disable()
    return FusedLayers()


def shared_prefix_length(input_ids: Tensor, max_length: int) -> int:
    """How many of the first max_length tokens all rows of input_ids (B, L) share; 0 if less than MIN_SHARED_PREFIX."""
    if len(input_ids) == 1 or max_length < MIN_SHARED_PREFIX:
        return 0
    is_shared = (input_ids[1:, :max_length] == input_ids[0, :max_length]).all(0)
    length = int(is_shared.long().cumprod(0).sum())
    return length if length >= MIN_SHARED_PREFIX else 0


def _relative_error(actual: Tensor, expected: Tensor) -> float:
    """The error relative to the norm of the expected tensor."""
    return float((actual - expected).norm() / expected.norm())


def _all_paths(fused: FusedLayers, trunk: Any, input_ids: Tensor) -> Iterator[Tensor]:
    """Hidden states of a sequence (1, T) by the trunk with fused layers, by `hidden_states`, and of its last token by
    `decode_step`.
    """
    yield trunk(input_ids=input_ids, use_cache=False).last_hidden_state.float()
    hidden, step = fused.hidden_states(trunk, input_ids, 0), fused.decode_step(trunk, has_padding=False)
    if hidden is not None:
        yield hidden.float()
    if step is not None:
        cache, mask = DynamicCache(config=trunk.config), torch.ones_like(input_ids)
        trunk(input_ids=input_ids[:, :-1], past_key_values=cache, use_cache=True)
        yield step(input_ids[:, -1:], mask.sum(1, keepdim=True) - 1, mask, cache)[None].float()


def projections(module: Any) -> list[Any]:
    """The seven linear layers of a decoder layer as they are in the model: wrapped by PEFT once there is an adapter."""
    return [getattr(module.self_attn if i < 4 else module.mlp, name) for i, name in enumerate(PROJECTIONS)]


def sliding_window_of(attention: Any) -> float:
    """The sliding window in tokens; infinite without one."""
    if hasattr(attention, "sliding_window"):
        return attention.sliding_window or math.inf
    return getattr(attention.config, "sliding_window", None) or math.inf


def is_supported(module: Any) -> bool:
    """Whether a module is a decoder layer of a known class that computes exactly what `fused_layer` does."""
    if type(module).__name__ not in SUPPORTED_LAYERS or not type(module).__module__.startswith("transformers."):
        return False
    attention, config, linears = module.self_attn, module.self_attn.config, projections(module)
    if sliding_window_of(attention) < MAX_LENGTH_PER_HEAD_SIZE * attention.head_dim:
        return False
    if config.hidden_act != "silu" or not getattr(config, "is_causal", True) or not attention.is_causal:
        return False
    if any(type(tensor) is not nn.Linear for tensor in linears):
        return False
    has_bias = [tensor.bias is not None for tensor in linears]
    weights = [tensor.weight for tensor in (*linears, module.input_layernorm, module.post_attention_layernorm)]
    supported_weights = all(
        tensor.dtype == weights[0].dtype
        and tensor.dtype in (torch.float32, torch.bfloat16)
        and tensor.device.type == "cpu"
        for tensor in weights
    )
    return supported_weights and not any(has_bias[3:]) and len(set(has_bias[:3])) == 1
