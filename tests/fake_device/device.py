"""A fake device for machines without a GPU: its data is on the CPU, but incorrect programs fail on it as on a GPU.

Tensors of the two devices cannot be mixed (except tensors without dimensions in pointwise operations, and CPU tensors as
indices), a CPU generator gives no random numbers for the device, and synchronisations with it are recorded.

Uses PyTorch's experimental interface for devices written in Python. A device stays registered in its process, so only
separate processes import this module (tests/training/test_fake_device.py starts them).
"""

import contextlib
import traceback

import torch
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

NAME, INDEXED_NAME = "fakedevice", "fakedevice:0"
#: Operations that return a Python number, or a tensor whose shape depends on the data.
SYNCHRONISING = (
    "_local_scalar_dense",
    "is_nonzero",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_consecutive",
    "equal",
    "bincount",
    "masked_scatter_backward",
)
INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")

_recorders: list[list[tuple[str, str]]] = []


@contextlib.contextmanager
def recorded_synchronisations():
    """Yields the list of (operation, line of the package) that synchronise with the device within the block."""
    _recorders.append([])
    try:
        yield _recorders[-1]
    finally:
        _recorders.pop()


def record_synchronisation(operation):
    if _recorders:
        frames = [frame for frame in traceback.extract_stack() if "/rlhf_lab/" in frame.filename]
        _recorders[-1].append(
            (operation, f"{frames[-1].filename.split('/rlhf_lab/')[1]}: {frames[-1].line}" if frames else "")
        )


class DeviceTensor(torch.Tensor):
    """A tensor of the device; `cpu_tensor` stores its data."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, cpu_tensor):
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            cpu_tensor.shape,
            strides=cpu_tensor.stride(),
            storage_offset=cpu_tensor.storage_offset(),
            dtype=cpu_tensor.dtype,
            device=INDEXED_NAME,
        )  # fmt: skip
        tensor.cpu_tensor = cpu_tensor
        return tensor

    def __init__(self, cpu_tensor):
        pass

    def __repr__(self):
        return f"DeviceTensor({self.cpu_tensor})"

    def tolist(self):
        record_synchronisation("tolist")
        return self.cpu_tensor.tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


class DeviceMode(TorchDispatchMode):
    """Lets tensors be created on the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


# Operations get and return tensors, numbers and lists of them; torch.utils._pytree takes twice the time of all the rest here.


def tensors_in(x):
    """All tensors in an argument."""
    if isinstance(x, torch.Tensor):
        return [x]
    return [tensor for item in x for tensor in tensors_in(item)] if type(x) in (tuple, list) else []


def map_tensors(function, x):
    """The argument or result with `function` applied to each of its tensors."""
    if isinstance(x, torch.Tensor):
        return function(x)
    return type(x)(map_tensors(function, item) for item in x) if type(x) in (tuple, list) else x


def to_cpu(x):
    return map_tensors(lambda tensor: tensor.cpu_tensor if isinstance(tensor, DeviceTensor) else tensor, x)


def run(func, args, kwargs):
    """Run an operation as the device does."""
    tensors = tensors_in([*args, *kwargs.values()])
    device_tensors = [x for x in tensors if isinstance(x, DeviceTensor)]
    device = kwargs.get("device")
    targets_device = device is not None and torch.device(device).type == NAME
    if not device_tensors and not targets_device:
        return func(*args, **kwargs)
    name = func._schema.name.removeprefix("aten::")
    if name == "copy_":
        return copy(func, args, kwargs)
    if name == "_to_copy":
        stays_on_device = targets_device or device is None
        if not (device_tensors and stays_on_device) and not (stays_on_device and kwargs.get("non_blocking")):
            record_synchronisation("moved")
    else:
        stays_on_device = name != "_local_scalar_dense"
        check(func, name, args, kwargs, tensors)
    if device is not None:
        kwargs = kwargs | {"device": "cpu"}
    result = func(*map(to_cpu, args), **{name: to_cpu(value) for name, value in kwargs.items()})
    if not stays_on_device:
        return result
    result = map_tensors(DeviceTensor, result)
    return return_and_correct_aliasing(func, args, kwargs, result) if device_tensors else result


def copy(func, args, kwargs):
    """copy_ between the devices, in either direction."""
    target, source, *rest = args
    stays_on_device = isinstance(target, DeviceTensor) and (
        isinstance(source, DeviceTensor) or (rest and rest[0]) or kwargs.get("non_blocking")
    )
    if not stays_on_device:
        record_synchronisation("moved")
    func(to_cpu(target), to_cpu(source), *rest, **kwargs)
    return target


def check(func, name, args, kwargs, tensors):
    """Raises RuntimeError where a GPU does; records operations that synchronise."""
    others = [x for x in tensors if not isinstance(x, DeviceTensor)]
    if kwargs.get("generator") is not None:
        raise RuntimeError(f"{func}: a CPU generator for another device")
    if name in INDEXING and isinstance(args[0], DeviceTensor):
        indices = [x for x in args[1] if x is not None]
        if any(x.dtype == torch.bool or not isinstance(x, DeviceTensor) for x in indices):
            record_synchronisation(name)
        others = [x for x in others if not any(x is index for index in indices)]
    if len(others) < len(tensors) and any(x.dim() or torch.Tag.pointwise not in func.tags for x in others):
        places = ", ".join(f"{tuple(x.shape)} on {x.device.type}" for x in tensors)
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, but found {places}")
    if name in SYNCHRONISING or (name == "repeat_interleave" and kwargs.get("output_size") is None):
        record_synchronisation(name)


backend_registration._setup_privateuseone_for_python_backend(NAME)
torch.__future__.set_overwrite_module_params_on_conversion(True)  # moving a module replaces its parameters
torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=NAME) is made on the CPU and moved
#: For operations that the mode does not see, such as those of C++ code.
LIBRARY = torch.library.Library("_", "IMPL")
LIBRARY.fallback(lambda func, *args, **kwargs: run(func, args, kwargs), "PrivateUse1")
