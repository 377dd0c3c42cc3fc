"""A frozen backbone dealt out over processes: each holds a part of every weight, a layer is whole only while it computes.

PyTorch's `fully_shard` gathers a layer's weights before its forward and backward pass and lets them go behind it. What is laid
over the backbone (adapters, heads) comes later and stays whole in every process. A pass needs all processes at the same time, so
all must make equally many: whoever has less to do goes on with the others (`FsdpShards.max_over_ranks`).
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class FsdpShards:
    """The processes that hold one backbone together. Every method must be called by all of them."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.mesh = init_device_mesh(device.type, (dist.get_world_size(),))

    def load(self, load_model: Callable[[], Any]) -> Any:
        """The model that `whole` loads on the CPU, dealt out. One process after the other, so that a machine holds one whole
        model at a time, and a device its part and one layer."""
        model: Any = None
        for rank in range(dist.get_world_size()):
            if rank == dist.get_rank():
                model = self.shard(load_model())
            dist.barrier()
        return model

    def shard(self, model: Any) -> Any:
        """Keep this process's part of every weight: of each layer, of what the trunk has besides, and of the vocabulary head."""
        model.requires_grad_(False)
        head = model.get_output_embeddings()
        if head.weight is model.get_input_embeddings().weight:  # read apart from the trunk, so gathered apart
            head.weight = nn.Parameter(head.weight.clone(), requires_grad=False)
        trunk = model.base_model
        for module in (*transformer_layers(trunk), trunk, head):
            fully_shard(module, mesh=self.mesh, reshard_after_forward=True)
        return model

    def max_over_ranks(self, count: int) -> int:
        """The largest count that a process names."""
        maximum = torch.tensor(count, device=self.device)
        dist.all_reduce(maximum, dist.ReduceOp.MAX)
        return int(maximum)


def transformer_layers(trunk: nn.Module) -> Iterator[nn.Module]:
    """The layers that the trunk runs through one after the other."""
    return iter(next(module for module in trunk.modules() if isinstance(module, nn.ModuleList)))
