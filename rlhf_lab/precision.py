"""The precision of a model's weights where nobody says which: the part that needs no torch."""

import os

from rlhf_lab.errors import ModelError

SWITCH = "RLHF_LAB_DTYPE"
NAMES = ("float32", "bfloat16")


def usual(*, gpu: bool) -> str:
    """What the variable RLHF_LAB_DTYPE says; without it bfloat16 on a GPU (that has it), float32 elsewhere.

    Which is quicker on a CPU depends on its units and on the model's size, so a person says. Adapters and heads, what is learnt,
    are float32 with either. Raises ModelError for another name.
    """
    said = os.environ.get(SWITCH, "")
    if said and said not in NAMES:
        raise ModelError(f'{SWITCH} is "{said}", which is no precision here: say {" or ".join(NAMES)}, or nothing.')
    return said or NAMES[gpu]
