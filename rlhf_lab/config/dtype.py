"""The dtype and quantisation of a model's frozen weights, as requested by the user or chosen for the device. No torch."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from rlhf_lab.errors import ModelError

DTYPE_VARIABLE = "RLHF_LAB_DTYPE"
DTYPE_NAMES = ("float32", "bfloat16")
QUANTIZE_VARIABLE = "RLHF_LAB_QUANTIZE"
QUANTIZE_NAMES = ("4bit", "8bit")
#: Model families with fused layers (models/fused_llama) in both dtypes.
MEASURED_FAMILIES = ("llama", "mistral", "qwen2")
MIN_MEASURED_WEIGHTS = 2**25


def requested_dtype() -> str | None:
    """RLHF_LAB_DTYPE, or None if it is not set. Raises ModelError for an invalid value."""
    return _requested(DTYPE_VARIABLE, DTYPE_NAMES)


def requested_bits() -> str | None:
    """RLHF_LAB_QUANTIZE, or None if it is not set. Raises ModelError for an invalid value."""
    return _requested(QUANTIZE_VARIABLE, QUANTIZE_NAMES)


def _requested(variable: str, names: Sequence[str]) -> str | None:
    requested = os.environ.get(variable, "")
    if requested and requested not in names:
        raise ModelError(
            f'{variable} is "{requested}", which is not supported: set it to {" or ".join(names)}, or unset it.'
        )
    return requested or None


def default_dtype(*, gpu: bool) -> str:
    """RLHF_LAB_DTYPE if set; otherwise bfloat16 on a GPU and float32 on a CPU.

    For a large model on a CPU, the engine then measures whether bfloat16 is faster (models/dtype_choice.py). Trained adapters and
    heads are always float32. Raises ModelError for an invalid value of the variable.
    """
    return requested_dtype() or DTYPE_NAMES[gpu]


def measures_dtype(setting: Callable[[str], Any]) -> bool:
    """Whether the engine measures which dtype is faster for a model on a CPU. setting: returns values of its config.json."""
    sizes = [setting(name) for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")]
    if setting("model_type") not in MEASURED_FAMILIES or not all(isinstance(size, int) for size in sizes):
        return False
    hidden, inner, layers, vocabulary = (int(size or 0) for size in sizes)
    weights = layers * hidden * (4 * hidden + 3 * inner) + vocabulary * hidden  # fewer with grouped-query attention
    return weights >= MIN_MEASURED_WEIGHTS


def possible_dtypes(config: dict[str, Any], *, gpu: bool) -> tuple[str, ...]:
    """The dtypes that the engine may choose for a model with this config.json. Raises ModelError like `default_dtype`."""
    if not gpu and requested_dtype() is None and measures_dtype(config.get):
        return DTYPE_NAMES
    return (default_dtype(gpu=gpu),)
