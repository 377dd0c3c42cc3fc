"""LoRA adapters on one frozen backbone (PEFT's layers and format), switched by a context manager.

    adapters = Adapters(backbone)
    adapters.add("policy", r=8, alpha=16, seed=0, trainable=True)
    with adapters.using("policy"): ...        # forward passes use the adapter
    with adapters.using(None): ...            # the reference policy: no adapter
    with adapters.using("policy", merged=True): ...   # sampling: plain matrix products on merged weights
    with adapters.using(reward_model.adapter): ...    # scores: RewardModel does this itself

Contexts can be nested. Leaving one restores the previous state, also after an exception, so a job that samples in the
middle of a training step does not disturb it.
"""

import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlhf_lab.common.model_files import ADAPTER_FILE
from rlhf_lab.errors import ModelError
from rlhf_lab.models.backbone import Backbone, WeightVersion
from rlhf_lab.models.lora_linear import Forward, LoraWeights, MergedLoraLinear, frozen_forward, lora_weights_of

#: Types whose layer "out_proj" PEFT refuses to adapt, because the kernels of the state space read its weight themselves.
MODEL_TYPES_WITH_SCAN_KERNELS = ("falcon_h1", "nemotron_h")
#: Fields of PEFT's LoraConfig that say which layers an adapter changes, with which ranks and scales.
LAYOUT_FIELDS = (
    "r", "lora_alpha", "use_rslora", "target_modules", "exclude_modules", "rank_pattern", "alpha_pattern",
    "layers_to_transform", "layers_pattern", "target_parameters", "fan_in_fan_out",
)  # fmt: skip
#: Fields that do not matter for a trained adapter: where it comes from, and how it was trained and stored.
UNUSED_FIELDS = (
    "task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
    "lora_dropout", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "megatron_config", "megatron_core",
    "runtime_config", "qalora_group_size",
)  # fmt: skip
#: Initial weights of adapters that fit the model as it is; others, such as PiSSA's, belong to changed weights.
INITIALISATIONS = (True, False, "gaussian", "eva", "orthogonal")
DOES_NOT_FIT = "does not fit this backbone (other layers or another rank). Load the model it was trained on."
MERGE_REMEDY = "Merge it with PEFT's merge_and_unload, save the model with its tokenizer, and load that folder."


class _ActiveAdapter(NamedTuple):
    name: str | None
    merged: bool


def _refresh_layers(layers: Sequence[tuple[MergedLoraLinear, LoraWeights]]) -> None:
    for layer, lora in layers:
        layer.refresh(lora)


class Adapters:
    """The adapters of one backbone. Only adapters added as trainable ever require gradients."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self._peft: PeftModel | None = None
        self._trainable: dict[str, bool] = {}
        self._active = _ActiveAdapter(None, False)
        self._replaced_weights: list[tuple[nn.Linear, nn.Parameter]] = []
        self._merged_copies: dict[nn.Linear, nn.Parameter] = {}
        self._generation = object()
        self._layers: list[Any] = []
        self._merged_linears: list[MergedLoraLinear] = []
        self._lora_weights: dict[str, list[LoraWeights | None]] = {}
        self._forwards: dict[str | None, list[Forward | None]] = {None: []}  # per layer; None: PEFT's own
        self._parameters: dict[str, list[tuple[str, nn.Parameter]]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._trainable)

    def add(self, name: str, *, r: int, alpha: int, seed: int, trainable: bool) -> None:
        """A new adapter (B = 0, so no effect yet) on every linear layer of the trunk; replaces one of the same name.

        The initial A is drawn from `seed` without changing the global generator.
        """
        layout = {"r": r, "lora_alpha": alpha, "target_modules": "all-linear"}
        self._add(name, layout | {"exclude_modules": self._unadaptable_layers()}, seed=seed, trainable=trainable)

    def _add(self, name: str, layout: dict[str, Any], *, seed: int, trainable: bool) -> None:
        """`add` with a layout: the fields of LAYOUT_FIELDS that differ from PEFT's defaults."""
        config = LoraConfig(
            **layout, lora_dropout=0.0, task_type="CAUSAL_LM", base_model_name_or_path=self.backbone.name
        )
        self.remove(name)
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(seed)
            if self._peft is None:
                self._peft = get_peft_model(self.backbone.model, config, adapter_name=name)
                self._peft.eval()
            else:
                self._peft.add_adapter(name, config)
        self._trainable[name] = trainable
        self._peft.eval()
        self._index_layers()

    def _unadaptable_layers(self) -> list[str] | None:
        is_read_by_kernels = self.backbone.model.config.model_type in MODEL_TYPES_WITH_SCAN_KERNELS
        return ["out_proj"] if is_read_by_kernels else None

    def copy(self, source: str, name: str, *, trainable: bool) -> None:
        """A new adapter with the tensors, layers, ranks and scales of another."""
        assert self._peft is not None
        self._add(name, _layout_of(self._peft.peft_config[source]), seed=0, trainable=trainable)
        self.load_tensors(name, self.tensors(source))

    def remove(self, name: str) -> None:
        if name not in self._trainable:
            return
        if self._active.name == name:
            raise ModelError(f'the adapter "{name}" is in use and cannot be removed now.')
        assert self._peft is not None
        del self._trainable[name]
        if self._trainable:
            self._peft.set_adapter(next(iter(self._trainable)))  # PEFT warns when an active adapter is deleted
            self._peft.delete_adapter(name)
        else:
            self.backbone.model = self._peft.unload()
            self.backbone.model.requires_grad_(False)
            self._peft = None
        self._index_layers()

    def _index_layers(self) -> None:
        """Collect layers and parameters after adapters were added or removed: walking the modules is slow."""
        modules = self._peft.modules() if self._peft is not None else ()
        named = list(self._peft.named_parameters()) if self._peft is not None else []
        for layer in self._layers:
            layer.__dict__.pop("forward", None)
        self._layers = [module for module in modules if isinstance(module, LoraLayer)]
        self._merged_linears = [MergedLoraLinear() for _ in self._layers]
        self.backbone.fused_layers.set_weight_cache(dict(zip(self._layers, self._merged_linears, strict=True)))
        self._merged_copies, self._generation = {}, object()
        self._lora_weights = {name: [lora_weights_of(layer, name) for layer in self._layers] for name in self.names}
        keep_merged = self.backbone.shards is None
        disabled: list[Forward | None] = [
            frozen_forward(layer.get_base_layer(), keep_merged=keep_merged) for layer in self._layers
        ]
        self._forwards = {None: disabled} | {
            name: [
                (lora and merged_linear.make_forward(lora, keep_merged=keep_merged)) if name in layer.r else frozen
                for layer, merged_linear, lora, frozen in zip(
                    self._layers, self._merged_linears, lora_weights, disabled, strict=True
                )
            ]
            for name, lora_weights in self._lora_weights.items()
        }
        self._parameters = {
            name: [(key, value) for key, value in named if key.endswith(f".{name}.weight")] for name in self.names
        }
        self._apply(self._active)

    def freeze(self, name: str) -> None:
        """Stop training the adapter: its parameters no longer require gradients."""
        self._trainable[name] = False
        self._apply(self._active)

    def parameters(self, name: str) -> list[nn.Parameter]:
        """The parameters of one adapter, in a fixed order."""
        return [value for _, value in self._parameters[name]]

    @contextmanager
    def using(self, name: str | None, *, merged: bool = False) -> Iterator[None]:
        """Forward passes inside use the adapter `name` (None: no adapter).

        merged: for sampling, without gradients. Layers that compute with W + s·B·A anyway (lora_linear.py) are
        unaffected; the others temporarily use merged copies. The frozen weights are never changed, so no rounding errors
        accumulate.
        Sharded and quantised weights are never copied or merged.
        """
        if name is not None and name not in self._trainable:
            raise ModelError(f'no adapter named "{name}" is loaded; there are: {", ".join(self.names) or "none"}.')
        previous = self._active
        try:
            can_merge = self.backbone.shards is None and not self.backbone.is_quantized
            self._apply(_ActiveAdapter(name, merged and can_merge))  # may run out of memory
            yield
        finally:
            self._apply(
                previous if previous.name is None or previous.name in self._trainable else _ActiveAdapter(None, False)
            )

    def _apply(self, state: _ActiveAdapter) -> None:
        for module, original in self._replaced_weights:
            module.weight = original
        self._replaced_weights = []
        self._active = state
        lora_weights = self._lora_weights[state.name] if state.name is not None else [None] * len(self._layers)
        for layer, forward in zip(self._layers, self._forwards[state.name], strict=True):
            if forward is None:
                self._apply_peft(layer, str(state.name), state.merged)
            else:
                layer.__dict__["forward"] = forward
        self.backbone.fused_layers.set_adapter(
            dict(zip(self._layers, lora_weights, strict=True)) if state.name is not None else {}
        )
        in_use = [
            (merged_linear, lora)
            for merged_linear, lora in zip(self._merged_linears, lora_weights, strict=True)
            if lora is not None
        ]
        self.backbone.weight_version = WeightVersion(self._generation, state, partial(_refresh_layers, in_use))
        for name, trainable in self._trainable.items():
            for parameter in self.parameters(name):
                if parameter.requires_grad is not trainable:
                    parameter.requires_grad_(trainable)

    def _apply_peft(self, layer: Any, name: str, merged: bool) -> None:
        """PEFT's own forward pass, for layers that `lora_linear` does not support. Experts have no weight to merge into."""
        layer.__dict__.pop("forward", None)
        base: Any = layer.get_base_layer()
        merged = merged and hasattr(base, "weight")
        if not merged:
            layer.set_adapter([name])
        layer.enable_adapters(not merged)
        if merged:
            self._replaced_weights.append((base, base.weight))
            if base not in self._merged_copies:
                self._merged_copies[base] = nn.Parameter(torch.empty_like(base.weight), requires_grad=False)
            with torch.no_grad():
                self._merged_copies[base].copy_(base.weight + layer.get_delta_weight(name).to(base.weight.dtype))
            base.weight = self._merged_copies[base]

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Copies of the adapter's tensors under PEFT's names, on their device."""
        state = get_peft_model_state_dict(self._peft, adapter_name=name, save_embedding_layers=False)
        return {key: value.detach().clone().contiguous() for key, value in state.items()}

    def load_tensors(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Overwrite the adapter with the result of `tensors`. Raises ModelError if it does not fit."""
        assert self._peft is not None
        expected = {key: value.shape for key, value in self.tensors(name).items()}
        actual = {key: value.shape for key, value in tensors.items()}
        if expected != actual:
            raise ModelError(f"the saved adapter {DOES_NOT_FIT}")
        set_peft_model_state_dict(self._peft, tensors, adapter_name=name)
        self._apply(self._active)

    def save(self, name: str, folder: Path, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Write adapter_config.json and adapter_model.safetensors, which PEFT can load.

        tensors: a result of `tensors` of this adapter; None: the present one.
        """
        assert self._peft is not None
        folder.mkdir(parents=True, exist_ok=True)
        self._peft.peft_config[name].save_pretrained(str(folder))
        tensors = self.tensors(name) if tensors is None else tensors
        save_file({key: value.cpu() for key, value in tensors.items()}, folder / ADAPTER_FILE)

    def load(self, name: str, folder: Path, *, trainable: bool = False) -> None:
        """Add the LoRA adapter saved in `folder`, by this package or by PEFT, as `name`; it may adapt some layers only.

        Raises ModelError if it is missing or does not fit, or if it changes more than linear layers of the trunk.
        """
        if not (folder / ADAPTER_FILE).is_file():
            raise ModelError(f"{folder} holds no {ADAPTER_FILE}; the adapter was deleted or never finished.")
        try:
            config = LoraConfig.from_pretrained(str(folder))
            tensors = load_file(folder / ADAPTER_FILE)
        except (OSError, ValueError, SafetensorError) as error:
            raise ModelError(f"the adapter in {folder} cannot be read ({error}). Train it again.") from error
        if problems := _unsupported_fields(config):
            raise ModelError(f"the adapter in {folder} has {problems}, which is not supported. {MERGE_REMEDY}")
        try:
            self._add(name, _layout_of(config), seed=0, trainable=trainable)
        except ValueError as error:  # no layer has one of its names
            raise ModelError(f"the adapter in {folder} {DOES_NOT_FIT}") from error
        try:
            self._check_layers(name, folder)
            self.load_tensors(name, tensors)
        except ModelError:
            self.remove(name)
            raise

    def _check_layers(self, name: str, folder: Path) -> None:
        """Raises ModelError if the adapter changes the vocabulary head or the embeddings: the lab computes these itself."""
        in_trunk = set(self.backbone.trunk.modules())
        for layer in self._layers:
            if name in layer.r and (layer not in in_trunk or isinstance(layer.get_base_layer(), nn.Embedding)):
                raise ModelError(
                    f"the adapter in {folder} also adapts the vocabulary head or the embeddings, which is not supported. "
                    + MERGE_REMEDY
                )


def _layout_of(config: object) -> dict[str, Any]:
    return {name: getattr(config, name) for name in LAYOUT_FIELDS}


def _unsupported_fields(config: Any) -> str:
    """The fields of PEFT's config by which an adapter would compute something that `_add` does not; "" if there are none."""
    if not isinstance(config, LoraConfig):
        return f"the type {type(config).__name__}"
    found = []
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        default = item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
        known = INITIALISATIONS if item.name == "init_lora_weights" else (default, None)
        if item.name not in (*LAYOUT_FIELDS, *UNUSED_FIELDS) and value not in known:
            found.append(f"{item.name} = {value!r:.80}")
    return ", ".join(found)
