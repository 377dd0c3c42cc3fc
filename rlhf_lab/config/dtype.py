"""The default dtype of a model's frozen weights, without torch."""

import os

from rlhf_lab.errors import ModelError

DTYPE_VARIABLE = "RLHF_LAB_DTYPE"
DTYPE_NAMES = ("float32", "bfloat16")


def default_dtype(*, gpu: bool) -> str:
    """RLHF_LAB_DTYPE if set; otherwise bfloat16 on a GPU and float32 on a CPU.

    Which is faster on a CPU depends on its units and the model's size, hence the variable. Trained adapters and heads are float32
    in both cases. Raises ModelError for another name.
    """
    requested = os.environ.get(DTYPE_VARIABLE, "")
    if requested and requested not in DTYPE_NAMES:
        raise ModelError(
            f'{DTYPE_VARIABLE} is "{requested}", which is no precision here: say {" or ".join(DTYPE_NAMES)}, or nothing.'
        )
    return requested or DTYPE_NAMES[gpu]
