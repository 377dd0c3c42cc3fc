"""Which decoder layers of a model are computed as one function (llama_layer.py), and how under an adapter.

That is those of Llama, Mistral and Qwen2 in float32 or bfloat16 on a CPU, where a third of the time and more goes into what lies
between the matrix products. The weights of q, k and v are laid into one tensor, of which the model's own become views.
"""

import logging
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers import __version__ as VERSION
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_layers import GradientCheckpointingLayer

from rlhf_lab.fused import calls, tiled
from rlhf_lab.models.between import Shape, by_head
from rlhf_lab.models.layer_weights import ByRanks, Columns, Merged, Updates, by_projection
from rlhf_lab.models.llama_layer import Update, Weights, layer
from rlhf_lab.models.lora_linear import HALF, FastLayer, Parts
from rlhf_lab.models.next_token import NextToken, read, rest
from rlhf_lab.models.rotation import Places, Turn, turn_of, turned

log = logging.getLogger("rlhf_lab.models")

KNOWN = ("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer")
#: Tokens, for each number of a head's size: beyond this torch's attention, which keeps no (T, T) weights, is quicker than its
#: batched products, though not than a compiled kernel.
LONGEST = 6
TRIED = 5  # tokens
#: What a model may be asked for that its modules alone do.
ASKED = ("is_causal", "sliding_window", "output_attentions")
#: Models that do nothing beside their layers but embed, rotate and scale.
TRUNKS = ("LlamaModel", "MistralModel", "Qwen2Model")
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class WholeLayers:
    """The decoder layers of one model that are computed as one function each; none for no model."""

    def __init__(self, model: nn.Module | None = None) -> None:
        modules = list(model.modules()) if model is not None else []
        self._layers = [WholeLayer(module) for module in modules if suits(module)]
        layers = [module for module in modules if isinstance(module, GradientCheckpointingLayer)]
        self._are_all = bool(layers) and len(self._layers) == len(layers)
        self._places: Places | None = None
        self._fast: Mapping[Any, FastLayer] = {}
        self.use({})

    @property
    def there_are(self) -> bool:
        return bool(self._layers)

    def leave(self) -> None:
        """From now on the modules compute."""
        for whole in self._layers:
            whole.leave()

    def states(self, trunk: Any, ids: Tensor, first: int) -> Tensor | None:
        """The trunk's states (B, L - first, H) of whole texts, ids (B, L), from `first` on. What transformers does around
        its layers at every pass is left out, hooks of trunk and layers too, and so is what the last layer would make of the first
        positions.

        None: the trunk itself has to be asked, for it does more than embed, rotate, compute whole layers and scale.
        """
        places = self._places_of(trunk)
        if places is None or ids.shape[1] > min(whole.longest for whole in self._layers):
            return None
        x, turn, last = trunk.embed_tokens(ids), places.begin(ids.shape[1]), self._layers[-1]
        for whole in self._layers:
            x = whole.of_text(x, turn, first if whole is last else 0)
        states: Tensor = trunk.norm(x)
        return states

    def next_token(self, trunk: Any, padded: bool) -> NextToken | None:
        """What gives the trunk's states of a token more of each row; good while nothing but tokens changes. None: as of `states`,
        or because tokens far back are not to be seen.

        padded: some row's mask is 0 somewhere.
        """
        places = self._places_of(trunk)
        if places is None or getattr(trunk.config, "sliding_window", None):
            return None
        return NextToken(trunk, [(whole.weights(), whole.shape) for whole in self._layers], places, padded)

    def _places_of(self, trunk: Any) -> Places | None:
        """The rotation of a trunk that does nothing but embed, rotate, compute whole layers and scale; else None."""
        plain = type(trunk).__name__ in TRUNKS and self._are_all
        if not plain or not all(whole.computes and whole.is_usual() for whole in self._layers):
            return None
        if getattr(trunk.rotary_emb, "rope_type", None) not in Places.KINDS:
            return None
        if self._places is None:
            self._places = Places(trunk.rotary_emb, trunk.embed_tokens.weight)
        return self._places

    def hold(self, fast: Mapping[Any, FastLayer]) -> None:
        """From now on these keep the weights of the adapters' layers."""
        self._fast = fast
        for whole in self._layers:
            whole.kept = None

    def use(self, parts: Mapping[Any, Parts | None]) -> None:
        """From now on compute under these parts of the adapters' layers; empty: frozen."""
        for whole in self._layers:
            if not parts:
                whole.module.__dict__["forward"] = whole.forward_of(())
                continue
            linears = projections(whole.module)
            own = [part for part in map(parts.get, linears) if part is not None]
            if len(own) == len(linears) and len({part.scale for part in own}) == 1:
                whole.kept = whole.kept or whole.keeping([self._fast[one] for one in linears])
                whole.module.__dict__["forward"] = whole.forward_of(own)
            else:
                whole.leave()


class WholeLayer:
    """One decoder layer, computed as one function; by the module where that is trained itself, or was moved to another device or
    precision, and for what `layer` does not do. A copy of the model would go on with the weights of this one."""

    def __init__(self, module: Any) -> None:
        self._module = weakref.ref(module)  # the module holds what is made here
        self.linears = projections(module)
        attention, norms = module.self_attn, (module.input_layernorm, module.post_attention_layernorm)
        heads, groups = (self.linears[i].out_features // attention.head_dim for i in (0, 1))
        first, second = (float(norm.variance_epsilon) for norm in norms)
        self.shape = Shape(heads, groups, attention.head_dim, (first, second))
        self.attention = attention
        biases = [one.bias.detach() for one in self.linears[:3] if one.bias is not None]
        weights = [one.weight.detach() for one in self.linears]
        scales = (norms[0].weight.detach(), norms[1].weight.detach())
        o, gate, up, down = weights[3:]
        self.frozen = Weights(torch.cat(weights[:3]), o, gate, up, down, scales, torch.cat(biases) if biases else None)
        self.sizes = [one.out_features for one in self.linears[:3]]
        for one, view in zip(self.linears, by_projection(self.frozen, self.sizes), strict=True):
            one.weight.data = view
        if self.frozen.bias is not None:
            for one, view in zip(self.linears, self.frozen.bias.split(self.sizes), strict=False):
                one.bias.data = view
        #: Tokens of the longest text that is computed as one: all that a window shows, by kernels; else as torch is quicker.
        by_kernels = calls.takes(self.frozen.qkv)
        self.longest = min(math.inf if by_kernels else LONGEST * self.shape.size, window_of(attention))
        #: The frozen layer in C, where that computes it.
        self.in_c: tiled.Layer | None = None
        if tiled.there_are(self.frozen.qkv.dtype) and all(tiled.fits(one.weight) for one in self.linears):
            weights = [one.weight for one in self.linears]
            self.in_c = tiled.Layer(tiled.Laid(weights, self.frozen.bias, scales, self.shape))
        self.kept: Merged | ByRanks | None = None
        self.parts: Sequence[Parts] = ()
        self.pairs: Sequence[Tensor] = ()
        self.update = Update(self.frozen, 1.0)
        self.computes = False  # what `forward_of` made last is the module's forward pass

    @property
    def module(self) -> Any:
        return self._module()

    def keeping(self, fast: Sequence[FastLayer]) -> Merged | ByRanks:
        """What keeps the weights under an adapter. fast: of the seven projections."""
        if self.in_c is not None:
            return ByRanks(partial(Updates, self.in_c.laid))
        if self.frozen.qkv.dtype in HALF:
            return ByRanks(partial(Columns, self.frozen, self.sizes))
        return Merged(self.frozen, self.sizes, fast)

    def forward_of(self, parts: Sequence[Parts]) -> Callable[..., Tensor]:
        """The layer's forward pass under these parts; none: frozen."""
        self.parts, self.computes = parts, True
        self.pairs = [tensor for part in parts for tensor in (part.a, part.b)]
        self.update = Update(self.frozen, parts[0].scale if parts else 1.0)

        def forward(
            hidden_states: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None,
            past_key_values: Any = None, use_cache: bool | None = False, position_embeddings: Any = None, **options: Any,
        ) -> Tensor:  # fmt: skip
            x, mask, cached = hidden_states, attention_mask, past_key_values is not None
            usual = self.is_usual(x) and all(options.get(name) is None for name in ASKED)
            if usual and (not torch.is_grad_enabled() if cached else mask is None and x.shape[1] <= self.longest):
                turn = turn_of(position_embeddings)
                if cached:
                    return self.cached(x, self.weights(), turn, mask, past_key_values)
                return self.of_text(x, turn)
            module = self.module
            out: Tensor = type(module).forward(
                module, x, attention_mask=mask, position_ids=position_ids, past_key_values=past_key_values,
                use_cache=use_cache, position_embeddings=position_embeddings, **options,
            )  # fmt: skip
            return out

        return forward

    def of_text(self, x: Tensor, turn: Turn, first: int = 0) -> Tensor:
        """As `layer`, under the parts in use."""
        pairs = self.pairs if torch.is_grad_enabled() else ()
        return layer(x, self.weights(), self.shape, turn, self.update, pairs, first)

    def leave(self) -> None:
        """From now on the module computes."""
        self.module.__dict__.pop("forward", None)
        self.computes = False

    def weights(self) -> Weights | tiled.Layer:
        """Those in use, with the update in them."""
        if self.in_c is not None:
            self.in_c.laid.follow()
        return self.kept.of(self.parts) if self.kept is not None and self.parts else self.in_c or self.frozen

    def is_usual(self, x: Tensor | None = None) -> bool:
        """Whether this computes, and not the module. x: the input, or the module's own dtype and device."""
        x = self.module.input_layernorm.weight if x is None else x
        moved = (x.dtype, x.device) != (self.frozen.qkv.dtype, self.frozen.qkv.device)
        return not moved and not self.module.training and not any(one.weight.requires_grad for one in self.linears)

    def cached(self, x: Tensor, weights: Weights | tiled.Layer, turn: Turn, mask: Tensor | None, cache: Any) -> Tensor:
        """The layer where earlier tokens lie in a cache; no gradient."""
        shape, attention, rows = self.shape, self.attention, x.reshape(-1, x.shape[-1])
        heads = by_head(read(rows, weights, shape), len(x), shape.size)
        q, k = turned(heads[: -shape.groups], turn).transpose(0, 1).split((shape.heads, shape.groups), 1)
        k, v = cache.update(k, heads[-shape.groups :].transpose(0, 1), attention.layer_idx)
        q, k, v = (one.float() for one in (q, k, v))  # of bfloat16 a token's attention takes torch twice as long
        mixed = sdpa_attention_forward(attention, q, k, v, mask, scaling=shape.size**-0.5)[0].to(x.dtype)
        return rest(rows, mixed.reshape(len(rows), -1), weights, shape).view(x.shape)


@torch.no_grad()
def tried(model: Any) -> WholeLayers:
    """The whole layers of a model just loaded, if they say of a few tokens what its modules say; else none, and a line of log."""
    whole, trunk = WholeLayers(model), model.base_model
    if not whole.there_are:
        return whole
    ids = torch.arange(TRIED)[None] % len(trunk.embed_tokens.weight)
    whole.leave()
    expected = trunk(input_ids=ids, use_cache=False).last_hidden_state.float()
    whole.use({})
    most = 0.1 if model.dtype in HALF else 1e-3
    if all(_differ(found, expected[:, -found.shape[1] :]) <= most for found in _all_ways(whole, trunk, ids)):
        return whole
    log.warning(
        "its modules compute the model: as one function each, layers did not say the same (transformers %s)", VERSION
    )
    whole.leave()
    return WholeLayers()


def _differ(found: Tensor, expected: Tensor) -> float:
    """By what share of what was expected."""
    return float((found - expected).norm() / expected.norm())


def _all_ways(whole: WholeLayers, trunk: Any, ids: Tensor) -> Iterator[Tensor]:
    """What whole layers make of a text (1, T): asked by the trunk, asked directly, and of its last token behind the others."""
    yield trunk(input_ids=ids, use_cache=False).last_hidden_state.float()
    states, step = whole.states(trunk, ids, 0), whole.next_token(trunk, padded=False)
    if states is not None:
        yield states.float()
    if step is not None:
        cache, mask = DynamicCache(config=trunk.config), torch.ones_like(ids)
        trunk(input_ids=ids[:, :-1], past_key_values=cache, use_cache=True)
        yield step(ids[:, -1:], mask.sum(1, keepdim=True) - 1, mask, cache)[None].float()


def projections(module: Any) -> list[Any]:
    """The seven linear layers of a decoder layer as they are in the model: an adapter's, once there is one."""
    return [getattr(module.self_attn if i < 4 else module.mlp, name) for i, name in enumerate(PROJECTIONS)]


def window_of(attention: Any) -> float:
    """How many tokens back one looks."""
    if hasattr(attention, "sliding_window"):
        return attention.sliding_window or math.inf
    return getattr(attention.config, "sliding_window", None) or math.inf


def suits(module: Any) -> bool:
    """Whether a module is a decoder layer of a known kind that does nothing but what `llama_layer` does."""
    if type(module).__name__ not in KNOWN or not type(module).__module__.startswith("transformers."):
        return False
    attention, config, linears = module.self_attn, module.self_attn.config, projections(module)
    if window_of(attention) < LONGEST * attention.head_dim:
        return False
    if config.hidden_act != "silu" or not getattr(config, "is_causal", True) or not attention.is_causal:
        return False
    if any(type(one) is not nn.Linear for one in linears):
        return False
    biased = [one.bias is not None for one in linears]
    weights = [one.weight for one in (*linears, module.input_layernorm, module.post_attention_layernorm)]
    here = all(
        one.dtype == weights[0].dtype and one.dtype in (torch.float32, torch.bfloat16) and one.device.type == "cpu"
        for one in weights
    )
    return here and not any(biased[3:]) and len(set(biased[:3])) == 1
