"""The precision to train in: processors with units for bfloat16 multiply in it more quickly, on others it takes twice as long."""

import time
from typing import Literal

import torch

Precision = Literal["auto", "float32", "bfloat16"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
OPERATIONS = 10**9  # of the product that is measured: some 10 ms
TRIES = 5


def chosen(asked: Precision, hidden: int, intermediate: int) -> tuple[Precision, str]:
    """The precision to train in, and why. "auto": the quicker one here, by a product of the model's size."""
    if asked != "auto":
        return asked, f"{asked}, as asked for"
    took = measured(hidden, intermediate)
    quicker: Precision = "float32" if took["float32"] < took["bfloat16"] else "bfloat16"
    figures = " and ".join(f"{1000 * seconds:.1f} ms in {name}" for name, seconds in took.items())
    return quicker, f"{quicker}: a product of the model's size takes {figures}"


def measured(hidden: int, intermediate: int) -> dict[str, float]:
    """Seconds of a feed-forward layer's product in each precision, the best of five in turns; some tenths of a second in all."""
    rows = max(16, min(4096, OPERATIONS // (2 * hidden * intermediate)))
    best = dict.fromkeys(DTYPES, float("inf"))
    factors = {
        name: (torch.ones(rows, hidden, dtype=dtype), torch.ones(intermediate, hidden, dtype=dtype))
        for name, dtype in DTYPES.items()
    }
    for _ in range(TRIES):
        for name, (x, weight) in factors.items():
            begun = time.perf_counter()
            torch.nn.functional.linear(x, weight)
            best[name] = min(best[name], time.perf_counter() - begun)
    return best
