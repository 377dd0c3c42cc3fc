"""The precision of a model's weights where nobody says which."""

import os

import torch

from rlhf_lab.errors import ModelError

SWITCH = "RLHF_LAB_DTYPE"
NAMED = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def usual(device: torch.device) -> torch.dtype:
    """What the variable RLHF_LAB_DTYPE says; without it bfloat16 on a GPU that has it, float32 elsewhere.

    Which is quicker on a CPU depends on its units and on the model's size, so a person says. Adapters and heads, what is learnt,
    are float32 with either. Raises ModelError for another name.
    """
    said = os.environ.get(SWITCH, "")
    if said and said not in NAMED:
        raise ModelError(f'{SWITCH} is "{said}", which is no precision here: say {" or ".join(NAMED)}, or nothing.')
    has = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return NAMED[said] if said else torch.bfloat16 if has else torch.float32
