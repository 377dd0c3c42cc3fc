"""A frozen backbone sharded over processes: each holds a part of every weight, and a layer is complete only while it
computes.

PyTorch's `fully_shard` gathers a layer's weights before its forward and backward pass and frees them afterwards.
Adapters and heads are added later and not sharded. A pass needs all processes at the same time, so all must make the
same number of passes: a process with less work repeats a pass (`FsdpShards.max_over_ranks`).
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY


class FsdpShards:
    """The processes that hold one backbone together. All of them must call every method."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.mesh = init_device_mesh(device.type, (dist.get_world_size(),))

    def load(self, load_model: Callable[[], Any]) -> Any:
        """Shard the model that `load_model` loads on the CPU.

        One process after another, so that a machine holds one complete model at a time, and a device its shard and one
        layer.
        """
        model: Any = None
        for rank in range(dist.get_world_size()):
            if rank == dist.get_rank():
                model = self.shard(load_model())
            dist.barrier()
        return model

    def shard(self, model: Any) -> Any:
        """Keep this process's shard of every layer, of the rest of the trunk, and of the language-model head."""
        model.requires_grad_(False)
        head = model.get_output_embeddings()
        if head.weight is model.get_input_embeddings().weight:  # used outside the trunk, so sharded separately
            head.weight = nn.Parameter(head.weight.clone(), requires_grad=False)
        trunk = model.base_model
        for module in (*transformer_layers(trunk), trunk, head):
            fully_shard(module, mesh=self.mesh, reshard_after_forward=True)
        # `fully_shard` changes the trunk's class, and transformers looks up by class which hidden states it can return.
        _CAN_RECORD_REGISTRY[trunk] = trunk._can_record_outputs
        return model

    def max_over_ranks(self, count: int) -> int:
        """The largest count of all processes."""
        maximum = torch.tensor(count, device=self.device)
        dist.all_reduce(maximum, dist.ReduceOp.MAX)
        return int(maximum)


def transformer_layers(trunk: nn.Module) -> Iterator[nn.Module]:
    """The trunk's layers, in order."""
    return iter(next(module for module in trunk.modules() if isinstance(module, nn.ModuleList)))
