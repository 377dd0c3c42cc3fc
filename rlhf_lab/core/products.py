"""Matrix products with a weight that gets no gradient, by the library that is quicker on this processor.

PyTorch computes float32 products on x86 with MKL, which uses half of the vector width of AMD's Zen 5: 58 to 100 GFLOP/s of one
core where oneDNN, which PyTorch has for other dtypes, reaches 110 to 220. On Zen 4 oneDNN takes 0.85 of MKL's time where a
product is large, and more where it is small. Which of them computes follows from the processor and the shapes alone, so a run
that is resumed there goes on to the last bit.

Both rearrange a weight at every product. Where many products of few rows read the same weights, as in sampling, that is half of
the time: within `Packed` a weight is rearranged once. In bfloat16 our own kernels (fused/products.c) multiply with a weight that
they are to `know`, where the processor has units for it.
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

from rlhf_lab.fused import calls, tiled

ZEN_4 = 25  # AMD's number of the family; Zen 3 has it too, but no AVX-512
#: Multiplications from which on oneDNN is the quicker one: with a weight that it has to rearrange, and without.
FEWEST, FEWEST_PACKED = 4_000_000, 1_000_000
MOST_PACKED = 2**28  # bytes that `Packed` holds; weights beyond are rearranged at every product
LARGEST = 2**25  # bytes of a weight that is rearranged elsewhere: that takes as much memory again, MKL next to none


def is_zen4(processor: str) -> bool:
    """Whether a processor with AVX-512 is AMD's Zen 4 or later.

    processor: as Linux describes it in /proc/cpuinfo, or Windows in `platform.processor()`.
    """
    family = re.search(r"cpu family\s*:\s*(\d+)", processor) or re.search(r"Family (\d+)", processor)
    return "AuthenticAMD" in processor and family is not None and int(family[1]) >= ZEN_4


def _described() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.read_text(errors="replace").split("\n\n")[0] if cpuinfo.exists() else platform.processor()


def _has_onednn() -> bool:
    """Not in every build, and slow where vectors are short."""
    return hasattr(torch.ops.mkldnn, "_linear_pointwise") and torch.backends.cpu.get_cpu_capability() == "AVX512"


def _packs_bfloat16() -> bool:
    """PyTorch computes bfloat16 products with oneDNN by itself then."""
    return _has_onednn() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


#: Whether float32 products on this machine's CPU go to oneDNN, and whether weights in bfloat16 can be packed.
BY_ONEDNN, PACKS_BFLOAT16 = _has_onednn() and is_zen4(_described()), _packs_bfloat16()


class Packed:
    """Weights as oneDNN reads them, each laid out when the first product within the context reads it.

        packed = Packed()
        with packed: ...     # as often as wanted; the layouts are kept between

    It changes nothing where oneDNN is not asked. A weight that has been changed in place is laid out anew, and the layout of one
    that is gone goes too.
    """

    def __init__(self) -> None:
        self._held: dict[int, tuple[weakref.ref[Tensor], int, Tensor]] = {}
        self._outer: list[Token[Packed | None]] = []
        self._room = MOST_PACKED

    def __enter__(self) -> None:
        self._outer.append(_packed.set(self))

    def __exit__(self, *_: object) -> None:
        _packed.reset(self._outer.pop())

    def of(self, weight: Tensor) -> Tensor | None:
        """The weight's layout, opaque; None where there is no room for it."""
        key, held = id(weight), self._held.get(id(weight))
        if held is not None and held[1] == weight._version:
            return held[2]
        if held is None and weight.nbytes > self._room:
            return None
        made: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
        if held is None:
            self._room -= weight.nbytes
        forget = partial(_forget, weakref.ref(self), key, weight.nbytes)
        self._held[key] = weakref.ref(weight, forget), weight._version, made
        return made


def _forget(holder: weakref.ref[Packed], key: int, size: int, _: object) -> None:
    """A weight is gone."""
    packed = holder()
    if packed is not None:
        del packed._held[key]
        packed._room += size


_packed: ContextVar[Packed | None] = ContextVar("packed", default=None)


class Known:
    """A weight as our own kernels read it, laid out for each way when that is first wanted, and anew when it has changed."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weakref.ref(weight)
        self._held: dict[bool, tuple[int, Tensor]] = {}

    def of(self, weight: Tensor) -> Tensor | None:
        """For the weight itself or its transpose; None for whatever else lies there."""
        own = self._weight()
        if own is None or own.data_ptr() != weight.data_ptr():
            return None
        for way in (own, own.mT):
            if (weight.shape, weight.stride()) == (way.shape, way.stride()):
                held = self._held.get(way is own)
                if held is None or held[0] != own._version:
                    held = self._held[way is own] = own._version, tiled.laid_out(weight)
                return held[1]
        return None


_known: dict[int, Known] = {}  # by where the weight lies


def know(weight: Tensor) -> None:
    """Multiply with this weight by our own kernels from now on, where there are some. It takes its memory again for each way.

    What is written to its `data` later is not seen.
    """
    if tiled.there_are(weight.dtype) and weight.device.type == "cpu":
        where = weight.data_ptr()
        known = _known[where] = Known(weight)
        weakref.finalize(weight, _no_longer, where, weakref.ref(known))


def _no_longer(where: int, known: weakref.ref[Known]) -> None:
    """A weight is gone; another one may be known there by now."""
    if _known.get(where) is known():
        _known.pop(where, None)


def _by_ours(x: Tensor, weight: Tensor) -> Callable[[Tensor, Tensor | None], Tensor] | None:
    """x and a bias -> x @ weight.T + bias by our own kernels, or None where they do not compute it."""
    known = _known.get(weight.data_ptr()) if _known and calls.takes(x, weight) else None
    suits = x.shape[-1] == weight.shape[1] and weight.shape[1] % tiled.DEEP == 0
    layout = known.of(weight) if known is not None and suits else None
    return None if layout is None else lambda x, bias: tiled.linear(x, layout, weight.shape[0], bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias, differentiable (as often as wanted) in all three.

    The same library computes it whether or not a gradient is recorded: else the first ratios of an update, of a pass without
    gradient and one with, would not be 1 (they were up to 1.4e-5 off). Only a weight that learns itself goes to PyTorch's own.

    Args:
        x: (..., in), weight: (out, in), bias: (out,) or None, of one floating dtype; any strides.

    Returns:
        (..., out).
    """
    learns = torch.is_grad_enabled() and (weight.requires_grad or (bias is not None and bias.requires_grad))
    way = None if learns else _by_ours(x, weight) or _by_onednn(x, weight)
    if way is None:
        return functional.linear(x, weight, bias)
    if torch.is_grad_enabled() and x.requires_grad:
        return _recorded(x, weight, bias)
    return way(x, bias)


def linear_onto(onto: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """onto + x @ weight.T, no gradient. onto: (rows, out), x: (rows, in), weight: (out, in)."""
    way = _by_onednn(x, weight)
    return torch.addmm(onto, x, weight.t()) if way is None else way(x, None).add_(onto)


class _Recorded(torch.autograd.Function):
    """`linear` with a gradient to x alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        return linear(gradients[0], weight.t()), None, None


_recorded: Callable[[Tensor, Tensor, Tensor | None], Tensor] = _Recorded.apply


def _by_onednn(x: Tensor, weight: Tensor) -> Callable[[Tensor, Tensor | None], Tensor] | None:
    """x and a bias -> x @ weight.T + bias by oneDNN, or None where it is not asked."""
    layout = _layout(x, weight)
    if layout is None:
        return None
    by_onednn: Any = torch.ops.mkldnn._linear_pointwise
    return lambda x, bias: by_onednn(x, layout, bias, "none", [], "")


def _layout(x: Tensor, weight: Tensor) -> Tensor | None:
    """What oneDNN is to multiply x with: the weight, or its packed layout; None where it is not to."""
    asked = BY_ONEDNN if x.dtype == torch.float32 else PACKS_BFLOAT16 and x.dtype == torch.bfloat16
    if not asked or x.device.type != "cpu":
        return None
    multiplications, packed = x.numel() * weight.shape[0], _packed.get()
    if packed is not None and multiplications >= FEWEST_PACKED and _whole(x):
        layout = packed.of(weight)
        if layout is not None:
            return layout
    small = weight.nbytes <= (LARGEST if packed is None else MOST_PACKED)
    suits = small and multiplications >= FEWEST and _whole(x) and _whole(weight)
    return weight if suits and x.dtype == torch.float32 else None


def _whole(one: Tensor) -> bool:
    """Whether rows or columns lie one behind the other: of parts of rows oneDNN copies one number after the other, 25 ms."""
    return one.is_contiguous() or one.mT.is_contiguous()
