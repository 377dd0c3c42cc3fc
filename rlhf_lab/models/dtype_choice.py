"""Chooses the dtype of a model that is loaded without one.

On a CPU, bfloat16 is chosen only if the machine multiplies faster in it, which is measured (kernels/dtype_speed.py).
Small models always use float32: overhead takes most of their time anyway, and the dtype of the embedded model does not
depend on the machine.
"""

from typing import Any, NamedTuple

import torch

from rlhf_lab.config.dtype import DTYPE_VARIABLE, measures_dtype, requested_dtype
from rlhf_lab.kernels.dtype_speed import dtype_speed


class DtypeChoice(NamedTuple):
    """reason: why this dtype was chosen, for the run's record."""

    dtype: torch.dtype
    reason: str


def choose_dtype(config: Any, device: torch.device) -> DtypeChoice:
    """The dtype for a model with this transformers config on a device. Raises ModelError for an unknown RLHF_LAB_DTYPE."""
    requested = requested_dtype()
    if requested is not None:
        return DtypeChoice(getattr(torch, requested), DTYPE_VARIABLE)
    if device.type == "cuda":
        has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
        return DtypeChoice(torch.bfloat16 if has_bfloat16 else torch.float32, "default on a GPU")
    if device.type == "cpu" and _is_measured(config):
        speed = dtype_speed(config.hidden_size, config.intermediate_size, config.vocab_size)
        return DtypeChoice(speed.faster_dtype, speed.describe())
    return DtypeChoice(torch.float32, "default on a CPU")


def _is_measured(config: Any) -> bool:
    """Whether to measure. Processes that train together do not, because each could choose another dtype."""
    is_distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return not is_distributed and measures_dtype(lambda name: getattr(config, name, None))
