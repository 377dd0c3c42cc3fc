"""Matrix products with weights that need no gradient, by the library that is fastest on this processor.

On x86, PyTorch computes float32 products with MKL, which uses half of the vector width of AMD's Zen 5: 58 to 100
GFLOP/s per core, where oneDNN, which PyTorch uses for other dtypes, reaches 110 to 220. On Zen 4, oneDNN takes 0.85 of
MKL's time for large products and more for small ones. The choice depends on the processor and the shapes only, so a
resumed run is bit-identical.

Both libraries repack the weight for every product. When many products with few rows read the same weights, as in
sampling, this takes half of the time; inside `PackedWeights` a weight is packed once. In bfloat16, our own kernels
(csrc/amx_matmul.c) multiply with weights passed to `register_weight`, if the processor supports it.
"""

import platform
import re
import weakref
from collections.abc import Callable
from contextvars import ContextVar, Token
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rlhf_lab.kernels import amx_layer, c_ops

ZEN4_FAMILY = 25  # AMD's number of the family; Zen 3 has it too, but no AVX-512
#: Multiplications from which oneDNN is faster: with a weight that it must repack, and with a packed one.
MIN_MULTIPLICATIONS, MIN_MULTIPLICATIONS_PACKED = 4_000_000, 1_000_000
MAX_PACKED_BYTES = 2**29  # capacity of `PackedWeights`; further weights are repacked for every product
#: Largest weight that oneDNN repacks for every product: that needs its memory a second time, and MKL needs almost none.
MAX_REPACKED_BYTES = 2**25


def is_zen4(processor: str) -> bool:
    """Whether a processor with AVX-512 is AMD's Zen 4 or later.

    processor: its description in /proc/cpuinfo on Linux, or `platform.processor()` on Windows.
    """
    family = re.search(r"cpu family\s*:\s*(\d+)", processor) or re.search(r"Family (\d+)", processor)
    return "AuthenticAMD" in processor and family is not None and int(family[1]) >= ZEN4_FAMILY


def cpu_description() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.read_text(errors="replace").split("\n\n")[0] if cpuinfo.exists() else platform.processor()


def _has_onednn() -> bool:
    """Whether oneDNN is worth using: not every build has it, and it is slow on processors with short vectors."""
    return hasattr(torch.ops.mkldnn, "_linear_pointwise") and torch.backends.cpu.get_cpu_capability() == "AVX512"


def _can_pack_bfloat16() -> bool:
    """Whether PyTorch computes bfloat16 products with oneDNN anyway, so that weights can be packed for them."""
    return _has_onednn() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


#: Whether float32 products on this machine's CPU go to oneDNN, and whether weights in bfloat16 can be packed.
USE_ONEDNN, CAN_PACK_BFLOAT16 = _has_onednn() and is_zen4(cpu_description()), _can_pack_bfloat16()


class PackedWeights:
    """Weights in oneDNN's layout, each packed by the first product inside the context that reads it.

        packed = PackedWeights()
        with packed: ...     # may be entered repeatedly; the packed weights are kept in between

    It has no effect where oneDNN is not used. A weight that was changed in place is packed again, and the packed copy
    of a freed weight is freed.
    """

    def __init__(self) -> None:
        self._layouts: dict[int, tuple[weakref.ref[Tensor], int, Tensor]] = {}
        self._context_tokens: list[Token[PackedWeights | None]] = []
        self._free_bytes = MAX_PACKED_BYTES

    def __enter__(self) -> None:
        self._context_tokens.append(_active_packed_weights.set(self))

    def __exit__(self, *_: object) -> None:
        _active_packed_weights.reset(self._context_tokens.pop())

    def layout_of(self, weight: Tensor) -> Tensor | None:
        """The packed weight, opaque; None if there is no room for it."""
        key, cached = id(weight), self._layouts.get(id(weight))
        if cached is not None and cached[1] == weight._version:
            return cached[2]
        if cached is None and weight.nbytes > self._free_bytes:
            return None
        layout: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
        if cached is None:
            self._free_bytes -= weight.nbytes
        on_weight_freed = partial(_drop_layout, weakref.ref(self), key, weight.nbytes)
        self._layouts[key] = weakref.ref(weight, on_weight_freed), weight._version, layout
        return layout


def _drop_layout(packed_ref: weakref.ref[PackedWeights], key: int, size: int, _: object) -> None:
    """Called when a weight is freed."""
    packed = packed_ref()
    if packed is not None:
        del packed._layouts[key]
        packed._free_bytes += size


_active_packed_weights: ContextVar[PackedWeights | None] = ContextVar("packed", default=None)


class AmxWeight:
    """A weight in the layout of our own kernels: tiled for each orientation on first use, and again after a change."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weakref.ref(weight)
        self._layouts: dict[bool, tuple[int, Tensor]] = {}

    def layout_of(self, weight: Tensor) -> Tensor | None:
        """The layout for the weight itself or its transpose; None for any other tensor at the same address."""
        registered = self._weight()
        if registered is None or registered.data_ptr() != weight.data_ptr():
            return None
        for candidate in (registered, registered.mT):
            if (weight.shape, weight.stride()) == (candidate.shape, candidate.stride()):
                cached = self._layouts.get(candidate is registered)
                if cached is None or cached[0] != registered._version:
                    cached = self._layouts[candidate is registered] = registered._version, amx_layer.tile_layout(weight)
                return cached[1]
        return None


_registered_weights: dict[int, AmxWeight] = {}  # by address


def register_weight(weight: Tensor) -> None:
    """Use our own kernels for products with this weight from now on, if they are available.

    Needs the weight's memory once more per orientation. Later writes to its `.data` are not noticed.
    """
    if amx_layer.available(weight.dtype) and weight.device.type == "cpu":
        address = weight.data_ptr()
        entry = _registered_weights[address] = AmxWeight(weight)
        weakref.finalize(weight, _unregister_weight, address, weakref.ref(entry))


def _unregister_weight(address: int, entry_ref: weakref.ref[AmxWeight]) -> None:
    """Called when a weight is freed. Another weight may be registered at the same address by then."""
    if _registered_weights.get(address) is entry_ref():
        _registered_weights.pop(address, None)


def _amx_matmul(x: Tensor, weight: Tensor) -> Callable[[Tensor, Tensor | None], Tensor] | None:
    """A function (x, bias) -> x @ weight.T + bias of our own kernels, or None if they do not apply."""
    registered = (
        _registered_weights.get(weight.data_ptr()) if _registered_weights and c_ops.supported(x, weight) else None
    )
    sizes_match = x.shape[-1] == weight.shape[1] and weight.shape[1] % amx_layer.TILE_DEPTH == 0
    layout = registered.layout_of(weight) if registered is not None and sizes_match else None
    return None if layout is None else lambda x, bias: amx_layer.tiled_linear(x, layout, weight.shape[0], bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias, differentiable (any number of times) in all three.

    The same library computes it with and without gradients. Otherwise the first ratios of an update, between a pass
    without gradient and one with, would not be 1 (they were off by up to 1.4e-5). Only a weight that needs a gradient
    itself goes to PyTorch.

    Args:
        x: (..., in), weight: (out, in), bias: (out,) or None, of one floating dtype; any strides.

    Returns:
        (..., out).
    """
    weight_needs_grad = torch.is_grad_enabled() and (weight.requires_grad or (bias is not None and bias.requires_grad))
    matmul = None if weight_needs_grad else _amx_matmul(x, weight) or _onednn_matmul(x, weight)
    if matmul is None:
        return functional.linear(x, weight, bias)
    if torch.is_grad_enabled() and x.requires_grad:
        return _linear_autograd(x, weight, bias)
    return matmul(x, bias)


def linear_add(addend: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """addend + x @ weight.T, without gradient. addend: (rows, out), x: (rows, in), weight: (out, in)."""
    matmul = _onednn_matmul(x, weight)
    return torch.addmm(addend, x, weight.t()) if matmul is None else matmul(x, None).add_(addend)


def own_output(output: Tensor) -> Tensor:
    """The same memory as a tensor that is not a view: autograd forbids to change a view that a custom function returns in
    place, as Gemma 3n does.
    """
    owned: Tensor = torch.ops.aten._unsafe_view(output, output.shape)
    return owned


class _LinearFunction(torch.autograd.Function):
    """`linear` with a gradient for x only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return own_output(linear(x, weight, bias))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        return linear(gradients[0], weight.t()), None, None


_linear_autograd: Callable[[Tensor, Tensor, Tensor | None], Tensor] = _LinearFunction.apply


def _onednn_matmul(x: Tensor, weight: Tensor) -> Callable[[Tensor, Tensor | None], Tensor] | None:
    """A function (x, bias) -> x @ weight.T + bias by oneDNN, or None if oneDNN is not used."""
    layout = _onednn_weight(x, weight)
    if layout is None:
        return None
    onednn_linear: Any = torch.ops.mkldnn._linear_pointwise
    return lambda x, bias: onednn_linear(x, layout, bias, "none", [], "")


def _onednn_weight(x: Tensor, weight: Tensor) -> Tensor | None:
    """The weight, or its packed layout, if oneDNN is to multiply it with x; else None."""
    uses_onednn = USE_ONEDNN if x.dtype == torch.float32 else CAN_PACK_BFLOAT16 and x.dtype == torch.bfloat16
    if not uses_onednn or x.device.type != "cpu":
        return None
    multiplications, packed = x.numel() * weight.shape[0], _active_packed_weights.get()
    if packed is not None and multiplications >= MIN_MULTIPLICATIONS_PACKED and _is_dense_matrix(x):
        layout = packed.layout_of(weight)
        if layout is not None:
            return layout
    fits_in_memory = weight.nbytes <= (MAX_REPACKED_BYTES if packed is None else MAX_PACKED_BYTES)
    is_worthwhile = (
        fits_in_memory and multiplications >= MIN_MULTIPLICATIONS and _is_dense_matrix(x) and _is_dense_matrix(weight)
    )
    return weight if is_worthwhile and x.dtype == torch.float32 else None


def _is_dense_matrix(matrix: Tensor) -> bool:
    """Whether rows or columns are contiguous. oneDNN copies other layouts element by element, which took 25 ms."""
    return matrix.is_contiguous() or matrix.mT.is_contiguous()
