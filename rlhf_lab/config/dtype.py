"""The precision of a model's weights where nobody says which: the part that needs no torch."""

import os

from rlhf_lab.errors import ModelError

DTYPE_VARIABLE = "RLHF_LAB_DTYPE"
DTYPE_NAMES = ("float32", "bfloat16")


def default_dtype(*, gpu: bool) -> str:
    """What the variable RLHF_LAB_DTYPE says; without it bfloat16 on a GPU (that has it), float32 elsewhere.

    Which is quicker on a CPU depends on its units and on the model's size, so a person says. Adapters and heads, what is learnt,
    are float32 with either. Raises ModelError for another name.
    """
    requested = os.environ.get(DTYPE_VARIABLE, "")
    if requested and requested not in DTYPE_NAMES:
        raise ModelError(
            f'{DTYPE_VARIABLE} is "{requested}", which is no precision here: say {" or ".join(DTYPE_NAMES)}, or nothing.'
        )
    return requested or DTYPE_NAMES[gpu]
