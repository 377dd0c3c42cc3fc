"""Data-parallel training: divides the rows of a step among processes and combines their results.

Every process holds the same adapters, heads and state; gradients and statistics are summed over the processes before anything
depends on them, so the mathematics does not depend on the number of processes. A single process has no overhead.
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
COLLECTIVE_TIMEOUT = timedelta(days=7)  # processes also wait while a run is paused; the launcher detects dead ones
SHUTDOWN_TIMEOUT_S = 20.0  # how long a process waits for the others when it leaves the group


@dataclass(frozen=True)
class Distributed:
    """Process `rank` of `world_size`. All methods but `shard` and `shard_slice` are collective: all processes must call them."""

    rank: int = 0
    world_size: int = 1

    @property
    def is_main_process(self) -> bool:
        """Whether this is the process that writes files and rows."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        """The device of tensors in collective operations."""
        return torch.device("cuda" if self.world_size > 1 and dist.get_backend() == "nccl" else "cpu")

    def shard(self, items: Sequence[T]) -> list[T]:
        """The items of this process."""
        return list(items[self.rank :: self.world_size])

    def shard_slice(self, count: int) -> slice:
        """The rows of `count` for this process; the slices of all processes are contiguous, in the order of the ranks."""
        return slice(count * self.rank // self.world_size, count * (self.rank + 1) // self.world_size)

    def all_gather(self, items: list[T]) -> list[T]:
        """The items of all processes, in the order of the ranks."""
        if self.world_size == 1:
            return items
        gathered: list[Any] = [None] * self.world_size
        dist.all_gather_object(gathered, items)
        return [item for shard in gathered for item in shard]

    def gather_rows(self, count: int, fn: Callable[[slice], list[T]]) -> list[T]:
        """The items of `fn` of `count` >= 1 rows: each process computes those of its slice.

        A process without rows computes the first row and discards it, because a sharded backbone needs all processes in each
        forward pass.
        """
        rows = self.shard_slice(count)
        has_rows = rows.start < rows.stop
        items = fn(rows if has_rows else slice(0, 1))
        return self.all_gather(items if has_rows else [])

    def map_rows(self, count: int, fn: Callable[[slice], Tensor], dim: int = -1) -> Tensor:
        """`gather_rows` for a tensor, concatenated along `dim`."""
        if self.world_size == 1:
            return fn(slice(0, count))
        return torch.cat(self.gather_rows(count, lambda rows: [fn(rows)]), dim=dim)

    def all_reduce_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the processes. One message per dtype."""
        if self.world_size == 1:
            return
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            same_dtype = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.flatten() for tensor in same_dtype])
            dist.all_reduce(flat)
            for tensor, total in zip(same_dtype, flat.split([tensor.numel() for tensor in same_dtype]), strict=True):
                tensor.copy_(total.view_as(tensor))

    def all_reduce_grads(self, parameters: Sequence[Tensor]) -> None:
        """Sum the gradients over the processes. A parameter that has a gradient in no process keeps None: Adam skips it."""
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
        """The object of the main process."""
        if self.world_size == 1:
            return obj
        objects = [obj]
        dist.broadcast_object_list(objects, src=0)
        return objects[0]


SINGLE_PROCESS = Distributed()


def is_lost_peer_error(error: BaseException) -> bool:
    """Whether a collective operation failed because another process died."""
    message = str(error).lower()
    return isinstance(error, RuntimeError) and any(
        name in message for name in ("gloo", "nccl", "connection closed by peer")
    )


def init_from_env() -> Distributed:
    """The process group that `accelerate launch` (or torchrun) started this process in; SINGLE_PROCESS without either.

    gloo on CPUs, NCCL on GPUs, one GPU per process. Raises TrainingError if the processes cannot connect.
    """
    if not dist.is_torchelastic_launched():
        return SINGLE_PROCESS
    if not dist.is_initialized():
        # Import it before the group exists. The default arguments of its functions are evaluated on import: later, as by
        # transformers, they would keep a reference to the group, and its threads would survive `shutdown`.
        importlib.import_module("torch.distributed.nn")
        use_cuda = torch.cuda.is_available()
        try:
            if use_cuda:
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            dist.init_process_group("nccl" if use_cuda else "gloo", timeout=COLLECTIVE_TIMEOUT)
        except (RuntimeError, ValueError) as error:
            raise TrainingError(
                f"the processes of this run could not connect to each other: {error}. Start it again with one process."
            ) from error
    return Distributed(dist.get_rank(), dist.get_world_size())


def shutdown() -> None:
    """Leave the process group: a group thread that is still running would abort the process at exit.

    Waits for the other processes at most SHUTDOWN_TIMEOUT_S seconds, in case one of them has failed.
    """
    if dist.is_initialized():
        thread = threading.Thread(target=dist.destroy_process_group, daemon=True)
        thread.start()
        thread.join(SHUTDOWN_TIMEOUT_S)
