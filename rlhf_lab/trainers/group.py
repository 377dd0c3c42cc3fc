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
Span = slice  # the rows of one process; `Group.slice` hides the name
PATIENCE = timedelta(days=7)  # a paused run keeps the others waiting; one that has died is noticed by the launcher
LEAVING_S = 20.0  # for the others to leave as well, should that be waited for


@dataclass(frozen=True)
class Group:
    """This process is number `rank` of `size`. Every method but `own` and `slice` must be called by all of them."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        """Where tensors must be to be added up."""
        return torch.device("cuda" if self.size > 1 and dist.get_backend() == "nccl" else "cpu")

    def own(self, parts: Sequence[T]) -> list[T]:
        """The parts that fall to this process."""
        return list(parts[self.rank :: self.size])

    def slice(self, count: int) -> Span:
        """The rows of `count` that fall to this process; the slices of all stand in the order of the ranks."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def joined(self, mine: list[T]) -> list[T]:
        """What each found for its slice, in order."""
        if self.size == 1:
            return mine
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, mine)
        return [item for part in found for item in part]

    def rows(self, count: int, find: Callable[[Span], Tensor], dim: int = -1) -> Tensor:
        """What `find` says of `count` >= 1 rows, which stand along `dim`: each process asks it about its slice.

        One without a row asks about the first and keeps its answer to itself: all ask, which a dealt-out backbone needs.
        """
        if self.size == 1:
            return find(Span(0, count))
        mine = self.slice(count)
        found = find(mine if mine.start < mine.stop else Span(0, 1))
        return torch.cat(self.joined([found] if mine.start < mine.stop else []), dim=dim)

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the processes. One message a dtype."""
        if self.size == 1:
            return
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            some = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.flatten() for tensor in some])
            dist.all_reduce(flat)
            for tensor, total in zip(some, flat.split([tensor.numel() for tensor in some]), strict=True):
                tensor.copy_(total.view_as(tensor))

    def add_gradients(self, parameters: Sequence[Tensor]) -> None:
        """The sum of the processes' gradients on each. A parameter without one anywhere stays so: an optimiser skips it."""
        if self.size == 1:
            return
        known = torch.tensor([float(parameter.grad is not None) for parameter in parameters], device=self.device)
        self.add_up([known])
        learnt = [parameter for parameter, count in zip(parameters, known.tolist(), strict=True) if count]
        for parameter in learnt:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.add_up([parameter.grad for parameter in learnt if parameter.grad is not None])

    def told(self, thing: T) -> T:
        """What the leading process says."""
        if self.size == 1:
            return thing
        said = [thing]
        dist.broadcast_object_list(said, src=0)
        return said[0]


ALONE = Group()


def lost_contact(error: BaseException) -> bool:
    """Whether a collective failed because another process is gone."""
    words = str(error).lower()
    return isinstance(error, RuntimeError) and any(
        name in words for name in ("gloo", "nccl", "connection closed by peer")
    )


def launched() -> Group:
    """The group this process was launched into by `accelerate launch` (or torchrun); alone without either.

    gloo on CPUs, NCCL on GPUs, one GPU a process. Raises TrainingError where the processes cannot find each other.
    """
    if not dist.is_torchelastic_launched():
        return ALONE
    if not dist.is_initialized():
        # Its functions take the group of all as a default, that of the moment they are defined. Imported later, as transformers
        # does, they would hold the group for good, and its threads with it, in spite of `leave`.
        importlib.import_module("torch.distributed.nn")
        cuda = torch.cuda.is_available()
        try:
            if cuda:
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            dist.init_process_group("nccl" if cuda else "gloo", timeout=PATIENCE)
        except (RuntimeError, ValueError) as error:
            raise TrainingError(
                f"the processes of this run could not join: {error}. Start it again with one process."
            ) from error
    return Group(dist.get_rank(), dist.get_world_size())


def leave() -> None:
    """End the group, in each process when it has nothing more to say: a thread of its that is still about would abort the
    process at its end. One that another process keeps waiting, or that has met an error, goes all the same."""
    if dist.is_initialized():
        ending = threading.Thread(target=dist.destroy_process_group, daemon=True)
        ending.start()
        ending.join(LEAVING_S)
