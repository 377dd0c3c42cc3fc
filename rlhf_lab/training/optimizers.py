"""Adam in one pass over all tensors: 1.5 ms instead of 4.7 for the 86 tensors of an adapter (2 cores)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import increment_version


def make_fused_adam(
    optimizer_class: type[torch.optim.Adam], parameters: Sequence[nn.Parameter], **options: Any
) -> torch.optim.Adam:
    """A fused Adam or AdamW over float32 parameters, with the options of `optimizer_class`.

    torch's fused step changes a tensor without increasing its version counter, by which the cache of merged adapter weights
    (models/lora_linear.py) notices changes. The hook increases it.
    """
    optimizer = optimizer_class(parameters, fused=True, **options)
    optimizer.register_step_post_hook(
        lambda *_: increment_version([parameter for parameter in parameters if parameter.grad is not None])
    )
    return optimizer


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
