"""A fake NCCL for processes on the fake device: messages go through gloo, restricted to what NCCL can send."""

import importlib
import io
import pickle

import device
import torch
import torch.distributed as dist

from rlhf_lab.training.distributed import Distributed


def install():
    """Install it in this process, before anything imports `load_backbone`."""
    importlib.import_module("plugin")
    gloo_all_reduce, gloo_all_gather_object = dist.all_reduce, dist.all_gather_object

    def all_reduce(tensor, *args):
        assert isinstance(tensor, device.DeviceTensor), "NCCL reduces GPU tensors only"
        gloo_all_reduce(tensor.cpu_tensor, *args)

    def all_gather_object(gathered, obj):
        CheckedPickler(io.BytesIO()).dump(obj)
        gloo_all_gather_object(gathered, obj)

    dist.all_reduce, dist.all_gather_object = all_reduce, all_gather_object
    Distributed.device = property(lambda _: torch.device(device.NAME))
    device.DeviceMode().__enter__()


class CheckedPickler(pickle.Pickler):
    """Refuses GPU tensors: in the receiving process they would be on the sender's GPU."""

    def reducer_override(self, obj):
        assert not isinstance(obj, device.DeviceTensor), "a GPU tensor is sent as an object"
        return NotImplemented
