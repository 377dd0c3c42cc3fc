"""The dtype of a model's frozen weights where the user chooses it or the device decides, and their quantisation. No torch."""

import os
from collections.abc import Callable
from typing import Any

from rlhf_lab.errors import ModelError

DTYPE_VARIABLE = "RLHF_LAB_DTYPE"
DTYPE_NAMES = ("float32", "bfloat16")
QUANTIZE_VARIABLE = "RLHF_LAB_QUANTIZE"
QUANTIZE_NAMES = ("4bit", "8bit")
#: Families whose layers are computed as one function each (models/fused_llama), in both dtypes.
MEASURED_FAMILIES = ("llama", "mistral", "qwen2")
MIN_MEASURED_WEIGHTS = 2**25


def requested_dtype() -> str | None:
    """RLHF_LAB_DTYPE; None if it is not set. Raises ModelError for another name."""
    requested = os.environ.get(DTYPE_VARIABLE, "")
    if requested and requested not in DTYPE_NAMES:
        raise ModelError(
            f'{DTYPE_VARIABLE} is "{requested}", which is no precision here: say {" or ".join(DTYPE_NAMES)}, or nothing.'
        )
    return requested or None


def requested_bits() -> str | None:
    """RLHF_LAB_QUANTIZE; None if it is not set. Raises ModelError for another name."""
    requested = os.environ.get(QUANTIZE_VARIABLE, "")
    if requested and requested not in QUANTIZE_NAMES:
        raise ModelError(
            f'{QUANTIZE_VARIABLE} is "{requested}", which is no way to quantise: say {" or ".join(QUANTIZE_NAMES)}, or '
            "unset it."
        )
    return requested or None


def default_dtype(*, gpu: bool) -> str:
    """RLHF_LAB_DTYPE if set; otherwise bfloat16 on a GPU and float32 on a CPU, where the engine then measures whether
    bfloat16 is faster for a large model (models/dtype_choice.py).

    Trained adapters and heads are float32 in both cases. Raises ModelError for another name.
    """
    return requested_dtype() or DTYPE_NAMES[gpu]


def measures_dtype(setting: Callable[[str], Any]) -> bool:
    """Whether the engine measures on a CPU which dtype is faster for a model, given the settings of its config.json."""
    sizes = [setting(name) for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")]
    if setting("model_type") not in MEASURED_FAMILIES or not all(isinstance(size, int) for size in sizes):
        return False
    hidden, inner, layers, vocabulary = (int(size or 0) for size in sizes)
    weights = layers * hidden * (4 * hidden + 3 * inner) + vocabulary * hidden  # about: grouped queries have fewer
    return weights >= MIN_MEASURED_WEIGHTS


def possible_dtypes(config: dict[str, Any], *, gpu: bool) -> tuple[str, ...]:
    """The dtypes of which the engine chooses one for a model with this config.json. Raises ModelError as `default_dtype`."""
    if not gpu and requested_dtype() is None and measures_dtype(config.get):
        return DTYPE_NAMES
    return (default_dtype(gpu=gpu),)
