"""A device that is not the CPU, on machines that have no other: its numbers lie on the CPU, and it behaves as a GPU does where
programs go wrong. Tensors of the two cannot be mixed (a number without dimensions may stand beside others, and indices of the CPU
may choose rows), the generator of one gives no random numbers to the other, and what a GPU would be waited for is noted.

Made of torch's interface for devices written in Python, which is experimental and registers once for good in a process: only for
processes that do nothing else (tests/training/test_fake_device.py starts one).
"""

import contextlib
import traceback

import torch
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

NAME, PLACE = "elsewhere", "elsewhere:0"
#: Operations whose answer is a number for Python, or has a shape that depends on numbers.
LOOKS = (
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
INDEXED = ("index", "index_put", "index_put_", "_index_put_impl_")

_listening: list[list[tuple[str, str]]] = []


@contextlib.contextmanager
def noted():
    """What a GPU would be waited for within, as a list of (operation, line of the package)."""
    _listening.append([])
    try:
        yield _listening[-1]
    finally:
        _listening.pop()


def note(what):
    if _listening:
        frames = [one for one in traceback.extract_stack() if "/rlhf_lab/" in one.filename]
        _listening[-1].append(
            (what, f"{frames[-1].filename.split('/rlhf_lab/')[1]}: {frames[-1].line}" if frames else "")
        )


class There(torch.Tensor):
    """A tensor of the device; `held` has its numbers."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held):
        made = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype, device=PLACE
        )
        made.held = held
        return made

    def __init__(self, held):
        pass

    def __repr__(self):
        return f"There({self.held})"

    def tolist(self):
        note("tolist")
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


class Everywhere(TorchDispatchMode):
    """Within it, tensors can be made there."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


def held(x):
    return x.held if isinstance(x, There) else x


def put(x):
    return There(x) if isinstance(x, torch.Tensor) else x


def run(func, args, kwargs):
    """An operation as the device does it."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    there = [x for x in tensors if isinstance(x, There)]
    device = kwargs.get("device")
    meant = device is not None and torch.device(device).type == NAME
    if not there and not meant:
        return func(*args, **kwargs)
    name = func._schema.name.removeprefix("aten::")
    if name == "copy_":
        return copied(func, args, kwargs)
    if name == "_to_copy":
        stays = meant or device is None
        if not (there and stays) and not (stays and kwargs.get("non_blocking")):
            note("moved")
    else:
        stays = name != "_local_scalar_dense"
        check(func, name, args, kwargs, tensors)
    if device is not None:
        kwargs = kwargs | {"device": "cpu"}
    found = func(*tree_map(held, args), **tree_map(held, kwargs))
    if not stays:
        return found
    found = tree_map(put, found)
    return return_and_correct_aliasing(func, args, kwargs, found) if there else found


def copied(func, args, kwargs):
    """copy_: from either side to either."""
    into, source, *rest = args
    stays = isinstance(into, There) and (isinstance(source, There) or (rest and rest[0]) or kwargs.get("non_blocking"))
    if not stays:
        note("moved")
    func(held(into), held(source), *rest, **kwargs)
    return into


def check(func, name, args, kwargs, tensors):
    """Raises RuntimeError where a GPU does; notes what waits for one."""
    others = [x for x in tensors if not isinstance(x, There)]
    if kwargs.get("generator") is not None:
        raise RuntimeError(f"{func}: a generator of the CPU for numbers elsewhere")
    if name in INDEXED and isinstance(args[0], There):
        indices = [x for x in args[1] if x is not None]
        if any(x.dtype == torch.bool or not isinstance(x, There) for x in indices):
            note(name)
        others = [x for x in others if not any(x is index for index in indices)]
    if len(others) < len(tensors) and any(x.dim() or torch.Tag.pointwise not in func.tags for x in others):
        places = ", ".join(f"{tuple(x.shape)} on {x.device.type}" for x in tensors)
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, but found {places}")
    if name in LOOKS or (name == "repeat_interleave" and kwargs.get("output_size") is None):
        note(name)


backend_registration._setup_privateuseone_for_python_backend(NAME)
torch.__future__.set_overwrite_module_params_on_conversion(True)  # a module's new numbers come as new parameters
torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=NAME) is made on the CPU and moved
#: What the mode does not see, such as operations asked for below it.
LIBRARY = torch.library.Library("_", "IMPL")
LIBRARY.fallback(lambda func, *args, **kwargs: run(func, args, kwargs), "PrivateUse1")
