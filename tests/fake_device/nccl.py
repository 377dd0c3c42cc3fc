"""Processes that train together on devices that are not the CPU (device.py), where no GPU is at hand: their messages go by gloo,
and only what NCCL could send is let through."""

import importlib
import io
import pickle

import device
import torch
import torch.distributed as dist

from rlhf_lab.training.distributed import Distributed


def pretend():
    """From now on in this process, for whatever imports `load_backbone` later."""
    importlib.import_module("plugin")
    reduce, gather = dist.all_reduce, dist.all_gather_object

    def all_reduce(tensor, *how):
        assert isinstance(tensor, device.There), "NCCL adds up tensors of GPUs alone"
        reduce(tensor.held, *how)

    def all_gather_object(found, mine):
        Sent(io.BytesIO()).dump(mine)
        gather(found, mine)

    dist.all_reduce, dist.all_gather_object = all_reduce, all_gather_object
    Distributed.device = property(lambda group: torch.device(device.NAME))
    device.Everywhere().__enter__()


class Sent(pickle.Pickler):
    """Refuses tensors of a GPU: in another process they come out on the GPU of the one that sent them."""

    def reducer_override(self, thing):
        assert not isinstance(thing, device.There), "a tensor of a GPU is sent as an object"
        return NotImplemented
