"""The dtype of a model's frozen weights where the user chooses it or the device decides, without torch."""

import os

from rlhf_lab.errors import ModelError

DTYPE_VARIABLE = "RLHF_LAB_DTYPE"
DTYPE_NAMES = ("float32", "bfloat16")


def requested_dtype() -> str | None:
    """RLHF_LAB_DTYPE; None if it is not set. Raises ModelError for another name."""
    requested = os.environ.get(DTYPE_VARIABLE, "")
    if requested and requested not in DTYPE_NAMES:
        raise ModelError(
            f'{DTYPE_VARIABLE} is "{requested}", which is no precision here: say {" or ".join(DTYPE_NAMES)}, or nothing.'
        )
    return requested or None


def default_dtype(*, gpu: bool) -> str:
    """RLHF_LAB_DTYPE if set; otherwise bfloat16 on a GPU and float32 on a CPU, where the engine then measures whether
    bfloat16 is faster for a large model (models/dtype_choice.py).

    Trained adapters and heads are float32 in both cases. Raises ModelError for another name.
    """
    return requested_dtype() or DTYPE_NAMES[gpu]
