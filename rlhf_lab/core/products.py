"""Matrix products with a weight that gets no gradient, by the library that is quicker on this processor.

PyTorch computes float32 products on x86 with MKL, which uses half of the vector width of AMD's Zen 5: 58 to 100 GFLOP/s of one
core where oneDNN, which PyTorch has for other dtypes, reaches 110 to 220. On Zen 4 they were equal. Which of them computes
follows from the processor alone, so a run that is resumed there goes on to the last bit.
"""

import platform
import re
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

ZEN_5 = 26  # AMD's number of the family
FEWEST_ROWS = 12  # of the input or of the weight; below, a product is over before oneDNN has begun


def is_zen5(processor: str) -> bool:
    """Whether a processor with AVX-512 is of AMD's family 26 or later.

    processor: as Linux describes it in /proc/cpuinfo, or Windows in `platform.processor()`.
    """
    family = re.search(r"cpu family\s*:\s*(\d+)", processor) or re.search(r"Family (\d+)", processor)
    return "AuthenticAMD" in processor and family is not None and int(family[1]) >= ZEN_5


def _described() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.read_text(errors="replace").split("\n\n")[0] if cpuinfo.exists() else platform.processor()


def _onednn_is_quicker() -> bool:
    has_it = hasattr(torch.ops.mkldnn, "_linear_pointwise")  # not in every build
    return has_it and torch.backends.cpu.get_cpu_capability() == "AVX512" and is_zen5(_described())


#: Whether float32 products on this machine's CPU go to oneDNN.
BY_ONEDNN = _onednn_is_quicker()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias.

    Where gradients are recorded it is PyTorch's own, differentiable in all three; within an autograd function it may be either.

    Args:
        x: (..., in), weight: (out, in), bias: (out,) or None, of one floating dtype; any strides.

    Returns:
        (..., out).
    """
    if not BY_ONEDNN or torch.is_grad_enabled() or not _suits_onednn(x, weight):
        return functional.linear(x, weight, bias)
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def _suits_onednn(x: Tensor, weight: Tensor) -> bool:
    if x.dtype != torch.float32 or x.device.type != "cpu":
        return False
    few = max(x.numel(), weight.numel()) < FEWEST_ROWS * x.shape[-1]
    return not few and all(one.is_contiguous() or one.mT.is_contiguous() for one in (x, weight))  # others cost it 25 ms


def linear_onto(onto: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """onto + x @ weight.T, with `linear`'s library. onto: (rows, out), x: (rows, in), weight: (out, in)."""
    return linear(x, weight).add_(onto) if BY_ONEDNN else torch.addmm(onto, x, weight.t())
