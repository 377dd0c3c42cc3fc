"""Small configurations of a model's family: few layers, but one of every kind, few tokens, narrow, with short windows.

There is no list of families. Fields are recognised by their names, which the configurations of transformers share, and a
configuration counts only if its class accepts it and a model can be made of it.
"""

import copy
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig

log = logging.getLogger("rlhf_lab.models")

VOCABULARY_SIZE, TOKEN_COUNT = 72, 64  # rows of the embedding matrix, and tokens: the last rows have no token
MAX_WINDOW, MAX_CHUNK, MAX_EXPERTS, MAX_INNER_SIZE, MAX_HEADS, MAX_HEAD_SIZE = 4, 8, 8, 64, 4, 32
LAYER_COUNTS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 24)
#: Of the largest model that is tried: 1.2 GB in float32.
MAX_PARAMETERS = 300_000_000
_LAYER_COUNT_FIELDS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers", "depth")
_HEAD_COUNT = re.compile(r"(^|_)n(um)?_(\w+_)?heads?$")
_HEAD_COUNTS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KEY_HEAD_COUNTS = ("num_key_value_heads", "num_kv_heads")
_WIDTH = re.compile(r"hidden_size$|n_embd$|d_model$|embedding_size$|word_embed_proj_dim$|d_ssm$|d_inner$|lru_width$")
_INNER_SIZE = re.compile(r"intermediate|ffn_dim|ffn_hidden|n_inner|inner_dim|d_ff$")
_EXPERT_COUNT = re.compile(r"^(moe_)?(n|num)_(local_|routed_)?experts$")
_EXPERT_GROUPS = ("n_group", "topk_group")

Fields = dict[str, Any]
Narrow = Callable[[Fields], None]


class _LayerSummary(NamedTuple):
    """The kinds of layers that a model has, and the number of its parameters."""

    kinds: frozenset[object]
    parameters: int


def small_configs(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    """Small configurations of the same family, of which causal LMs of at most MAX_PARAMETERS can be made.

    The narrowest first, then wider ones, in case a width that was reduced is the reason why a model does not work.
    Raises ImportError if transformers needs another package for this family.
    """
    total = int(config.get_text_config().num_hidden_layers)
    for narrow in (_narrow_all, _narrow_evenly, _keep_widths):
        complete = _summarize(_reduced(config, total, narrow))
        if complete is None:
            continue
        for count in [*(count for count in LAYER_COUNTS if count < total), total]:
            small = _reduced(config, count, narrow)
            summary = _summarize(small)
            if small is not None and summary is not None and summary.kinds == complete.kinds:
                if summary.parameters <= MAX_PARAMETERS:
                    yield small
                break


def _reduced(config: PreTrainedConfig, layer_count: int, narrow: Narrow) -> PreTrainedConfig | None:
    """The configuration with fewer layers, tokens and widths; None if its class does not accept these."""
    fields = copy.deepcopy(config.to_dict())
    name = next((key for key, sub in fields.items() if _is_text_config(config, key, sub)), None)
    text = fields if name is None else fields[name]
    _reduce_layers(text, layer_count)
    for key, sub in fields.items():
        if key in config.sub_configs and key != name and isinstance(sub, dict) and _layer_count_field(sub):
            _reduce_layers(sub, 2)
    _reduce_vocabulary(fields)
    if text is not fields:
        _reduce_vocabulary(text)
    _reduce_lengths(text)
    narrow(text)
    try:
        return type(config).from_dict(fields)
    except Exception as error:
        log.debug("no configuration of %s with %d layers: %s", config.model_type, layer_count, error)
        return None


def _is_text_config(config: PreTrainedConfig, key: str, sub: object) -> bool:
    text = config.get_text_config()
    return text is not config and isinstance(sub, dict) and getattr(config, key, None) is text


def _layer_count_field(fields: Fields) -> str | None:
    return next((name for name in _LAYER_COUNT_FIELDS if isinstance(fields.get(name), int)), None)


def _reduce_layers(fields: Fields, count: int) -> None:
    """Keep the first `count` layers, and what the fields say about each of them. Counts of layers shrink in proportion."""
    count_field = _layer_count_field(fields)
    if count_field is None or fields[count_field] <= count:
        return
    total, fields[count_field] = fields[count_field], count
    for name, value in fields.items():
        if isinstance(value, list | str) and _is_per_layer(name, value, total):
            fields[name] = value[:count]
        elif isinstance(value, list) and ("layer" in name or "idx" in name or "indices" in name):
            fields[name] = [item for item in value if not isinstance(item, int) or item < count]
        elif isinstance(value, int) and name.endswith("_layers") and name != count_field and 0 < value <= total:
            fields[name] = max(1, value * count // total)


def _is_per_layer(name: str, value: list[object] | str, layer_count: int) -> bool:
    """Whether a field has one item for each layer; lists of layers may have more."""
    return len(value) == layer_count or (isinstance(value, list) and "layer" in name and len(value) > layer_count)


def _reduce_vocabulary(fields: Fields) -> None:
    for name, value in fields.items():
        if "vocab_size" in name and isinstance(value, int):
            fields[name] = min(value, VOCABULARY_SIZE)
        elif name.endswith(("_token_id", "_token_index")):
            is_end = name == "eos_token_id"
            is_outside = isinstance(value, list) or (isinstance(value, int) and value >= TOKEN_COUNT)
            fields[name] = 0 if is_end else VOCABULARY_SIZE - 1 if is_outside else value


def _reduce_lengths(fields: Fields) -> None:
    """Windows and chunks shorter than the texts of the trial, and few experts."""
    routed = [value for name, value in fields.items() if "per_tok" in name and isinstance(value, int)]
    for name, value in fields.items():
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        if re.search(r"window(_size)?$", name):
            fields[name] = min(value, MAX_WINDOW)
        elif re.search(r"(chunk|block)_size$", name):
            fields[name] = min(value, MAX_CHUNK)
        elif _EXPERT_COUNT.search(name):
            fields[name] = min(value, max(MAX_EXPERTS, 2 * max(routed, default=1)))
        elif name in _EXPERT_GROUPS:
            fields[name] = 1


def _narrow_all(fields: Fields) -> None:
    """Few and small heads, some of which share keys if those of the model do, and small inner sizes."""
    _narrow_evenly(fields)
    for name, value in fields.items():
        limit = MAX_HEAD_SIZE if name.endswith("head_dim") else MAX_INNER_SIZE if _INNER_SIZE.search(name) else None
        sizes = value if isinstance(value, list) else [value]
        if limit is not None and all(type(size) is int for size in sizes):
            small = [min(size, limit) for size in sizes]
            fields[name] = small if isinstance(value, list) else small[0]


def _narrow_evenly(fields: Fields) -> None:
    """Shrink the number of heads, and all widths, in the same proportion: a head keeps its size."""
    heads = next((fields[name] for name in _HEAD_COUNTS if fields.get(name)), 1)
    few = min(heads, MAX_HEADS)
    for name, value in fields.items():
        if type(value) is not int:
            continue
        if name in _KEY_HEAD_COUNTS and value < heads:
            fields[name] = 2 if value > 1 and few % 2 == 0 else 1
        elif (_HEAD_COUNT.search(name) or _WIDTH.search(name) or _INNER_SIZE.search(name)) and value * few % heads == 0:
            fields[name] = value * few // heads


def _keep_widths(fields: Fields) -> None:
    """Nothing."""


def _summarize(config: PreTrainedConfig | None) -> _LayerSummary | None:
    """The layers of a model, made without memory for its weights; None if none can be made. Raises ImportError."""
    if config is None:
        return None
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except ImportError:
        raise
    except Exception as error:
        log.debug("no model of %s: %s: %s", config.model_type, type(error).__name__, error)
        return None
    text = config.get_text_config()
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == text.num_hidden_layers]
    layers = max(lists, key=lambda modules: sum(p.numel() for p in modules.parameters()), default=nn.ModuleList())
    settings = {
        (name, str(item))
        for name, value in text.to_dict().items()
        if isinstance(value, list) and _is_per_layer(name, value, text.num_hidden_layers)
        for item in value[: text.num_hidden_layers]
    }
    kinds = frozenset(settings | {_fingerprint(layer) for layer in layers})
    return _LayerSummary(kinds, sum(p.numel() for p in model.parameters()))


def _fingerprint(layer: nn.Module) -> tuple[object, ...]:
    """Classes, shapes of weights and switches of a layer: equal for layers of the same kind."""
    shapes = tuple((name, tuple(weight.shape)) for name, weight in layer.named_parameters())
    switches = tuple(
        (name, key, value)
        for name, module in layer.named_modules()
        for key, value in sorted(vars(module).items())
        if not key.startswith("_") and key != "training" and (value is None or isinstance(value, bool | str))
    )
    return (tuple(type(module).__name__ for module in layer.modules()), shapes, switches)
