"""Adam in one pass over all tensors: 1.5 ms instead of 4.7 for the 86 of an adapter (2 cores)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import increment_version


def make_fused_adam(
    optimizer_class: type[torch.optim.Adam], parameters: Sequence[nn.Parameter], **options: Any
) -> torch.optim.Adam:
    """torch's `kind`, Adam or AdamW, of these parameters in float32; options as it takes them.

    torch's fused step changes a tensor without counting that as a change, by which whoever keeps the merged weights of an
    adapter knows that they are of before (models/lora_linear.py). Here it is counted.
    """
    optimizer = optimizer_class(parameters, fused=True, **options)
    optimizer.register_step_post_hook(
        lambda *_: increment_version([parameter for parameter in parameters if parameter.grad is not None])
    )
    return optimizer
