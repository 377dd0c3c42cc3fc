"""Frozen weights in 4 or 8 bits by bitsandbytes, which is not among the requirements: RLHF_LAB_QUANTIZE.

Adapters and heads stay float32, embeddings and vocabulary head keep the model's dtype.
"""

import importlib.util
from typing import Any

import torch

from rlhf_lab.config.dtype import QUANTIZE_VARIABLE, requested_bits
from rlhf_lab.errors import ModelError

PACKAGE = "bitsandbytes"


def requested_quantization(device: torch.device) -> str | None:
    """RLHF_LAB_QUANTIZE; None if it is not set. Raises ModelError for another name, without a GPU or without the package."""
    requested = requested_bits()
    if requested is None:
        return None
    if device.type != "cuda":
        raise ModelError(
            f"{QUANTIZE_VARIABLE}={requested} needs an NVIDIA GPU, and the model would be loaded on the {device.type}. "
            f"Unset {QUANTIZE_VARIABLE}, or choose a smaller model."
        )
    if importlib.util.find_spec(PACKAGE) is None:
        raise ModelError(
            f"{QUANTIZE_VARIABLE}={requested} needs the package {PACKAGE}: pip install {PACKAGE}, or unset it."
        )
    return requested


def loading_options(bits: str, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Arguments of `from_pretrained` to quantise the linear layers directly on the device. bits: one of QUANTIZE_NAMES."""
    from transformers import BitsAndBytesConfig

    config = (
        BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
        if bits == "4bit"
        else BitsAndBytesConfig(load_in_8bit=True)
    )
    return {"quantization_config": config, "device_map": {"": device}}
