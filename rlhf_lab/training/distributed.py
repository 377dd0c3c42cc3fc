"""The processes that train one model together: who does which part of a step, and how the parts become one again.

Every process holds the same adapters, heads and state; a step's rows are shared out, and what each found is added up before
anything depends on it. So the mathematics is that of one process, whatever the number. One process alone pays nothing.
"""

import importlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from rlhf_lab.errors import TrainingError

T = TypeVar("T")
RowSlice = slice  # the rows of one process; `Distributed.shard_slice` hides the name
COLLECTIVE_TIMEOUT = timedelta(
    days=7
)  # a paused run keeps the others waiting; one that has died is noticed by the launcher
SHUTDOWN_TIMEOUT_S = 20.0  # for the others to leave as well, should that be waited for


@dataclass(frozen=True)
class Distributed:
    """This process is number `rank` of `world_size`. Every method but `shard` and `shard_slice` must be called by all of them."""

    rank: int = 0
    world_size: int = 1

    @property
    def is_main_process(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        """Where tensors must be to be added up."""
        return torch.device("cuda" if self.world_size > 1 and dist.get_backend() == "nccl" else "cpu")

    def shard(self, items: Sequence[T]) -> list[T]:
        """The parts that fall to this process."""
        return list(items[self.rank :: self.world_size])

    def shard_slice(self, count: int) -> RowSlice:
        """The rows of `count` that fall to this process; the slices of all stand in the order of the ranks."""
        return slice(count * self.rank // self.world_size, count * (self.rank + 1) // self.world_size)

    def all_gather(self, items: list[T]) -> list[T]:
        """What each found for its slice, in order."""
        if self.world_size == 1:
            return items
        gathered: list[Any] = [None] * self.world_size
        dist.all_gather_object(gathered, items)
        return [item for shard in gathered for item in shard]

    def map_rows(self, count: int, fn: Callable[[RowSlice], Tensor], dim: int = -1) -> Tensor:
        """What `assign_slot` says of `count` >= 1 rows, which stand along `dim`: each process asks it about its slice.

        One without a row asks about the first and keeps its answer to itself: all ask, which a dealt-out backbone needs.
        """
        if self.world_size == 1:
            return fn(RowSlice(0, count))
        local_slice = self.shard_slice(count)
        local_result = fn(local_slice if local_slice.start < local_slice.stop else RowSlice(0, 1))
        return torch.cat(self.all_gather([local_result] if local_slice.start < local_slice.stop else []), dim=dim)

    def all_reduce_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the processes. One message a dtype."""
        if self.world_size == 1:
            return
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            same_dtype = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.flatten() for tensor in same_dtype])
            dist.all_reduce(flat)
            for tensor, total in zip(same_dtype, flat.split([tensor.numel() for tensor in same_dtype]), strict=True):
                tensor.copy_(total.view_as(tensor))

    def all_reduce_grads(self, parameters: Sequence[Tensor]) -> None:
        """The sum of the processes' gradients on each. A parameter without one anywhere stays so: an optimiser skips it."""
        if self.world_size == 1:
            return
        grad_counts = torch.tensor([float(parameter.grad is not None) for parameter in parameters], device=self.device)
        self.all_reduce_([grad_counts])
        with_grad = [parameter for parameter, count in zip(parameters, grad_counts.tolist(), strict=True) if count]
        for parameter in with_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.all_reduce_([parameter.grad for parameter in with_grad if parameter.grad is not None])

    def broadcast(self, obj: T) -> T:
        """What the leading process says."""
        if self.world_size == 1:
            return obj
        objects = [obj]
        dist.broadcast_object_list(objects, src=0)
        return objects[0]


SINGLE_PROCESS = Distributed()


def is_lost_peer_error(error: BaseException) -> bool:
    """Whether a collective failed because another process is gone."""
    message = str(error).lower()
    return isinstance(error, RuntimeError) and any(
        name in message for name in ("gloo", "nccl", "connection closed by peer")
    )


def init_from_env() -> Distributed:
    """The group this process was launched into by `accelerate launch` (or torchrun); alone without either.

    gloo on CPUs, NCCL on GPUs, one GPU a process. Raises TrainingError where the processes cannot find each other.
    """
    if not dist.is_torchelastic_launched():
        return SINGLE_PROCESS
    if not dist.is_initialized():
        # Its functions take the group of all as a default, that of the moment they are defined. Imported later, as transformers
        # does, they would hold the group for good, and its threads with it, in spite of `shutdown`.
        importlib.import_module("torch.distributed.nn")
        use_cuda = torch.cuda.is_available()
        try:
            if use_cuda:
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            dist.init_process_group("nccl" if use_cuda else "gloo", timeout=COLLECTIVE_TIMEOUT)
        except (RuntimeError, ValueError) as error:
            raise TrainingError(
                f"the processes of this run could not join: {error}. Start it again with one process."
            ) from error
    return Distributed(dist.get_rank(), dist.get_world_size())


def shutdown() -> None:
    """End the group, in each process when it has nothing more to say: a thread of its that is still about would abort the
    process at its end. One that another process keeps waiting, or that has met an error, goes all the same."""
    if dist.is_initialized():
        thread = threading.Thread(target=dist.destroy_process_group, daemon=True)
        thread.start()
        thread.join(SHUTDOWN_TIMEOUT_S)
