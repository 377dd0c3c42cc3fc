"""Recorders for models/sampling/cuda_graphs.py that need no GPU, and the operations that a graph must not contain."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: Operations that make Python wait for a GPU, or whose output shape depends on values there.
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal.default", "_to_cpu")


def played(step, restore):
    """Runs the step twice and restores, like the warm-up on a GPU; the replay is the step itself."""
    for _ in range(2):
        step()
        restore()
    return step


class Tape(TorchDispatchMode):
    """Records every operation with the tensors it read and wrote."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, out))
        return out

    @property
    def waits(self):
        """The operations that would wait for a GPU."""
        return [str(func) for func, *_ in self.operations if any(name in str(func) for name in WAITS)]

    def replay(self):
        """Like a CUDA graph: the same operations on the same memory, independent of the current Python objects."""
        with torch.no_grad():
            for func, args, kwargs, out in self.operations:
                outputs = func(*args, **kwargs)
                for recorded, new in zip(tree_leaves(out), tree_leaves(outputs), strict=True):
                    if isinstance(recorded, torch.Tensor) and recorded.data_ptr() != new.data_ptr():
                        recorded.copy_(new)


class Tapes:
    """A recorder that keeps its tapes."""

    def __init__(self):
        self.all = []

    def __call__(self, step, restore):
        played(step, restore)
        tape = Tape()
        with tape:
            step()
        restore()
        self.all.append(tape)
        return tape.replay
