"""Whether this machine's CPU multiplies a model's matrices faster in bfloat16 than in float32: measured once, then cached.

Neither is faster everywhere. bfloat16 took half the time on a Zen 4 (AVX-512 with bf16), and twice the time on a Xeon
whose virtual machine hides the matrix units. A measurement takes less than a second and is kept in the cache folder of
the kernels, so that later starts choose the same dtype.
"""

import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from rlhf_lab.common.atomic import write_file_atomically
from rlhf_lab.kernels.compile import cache_folder
from rlhf_lab.kernels.matmul import PackedWeights, cpu_description, linear

CACHE_FILE = "dtype-speed.json"
#: bfloat16 is chosen if it takes at most this share of float32's time: a smaller gain is not worth its rounding.
MAX_TIME_RATIO = 0.8
TRAINING_ROWS, DECODING_ROWS = 256, 16  # tokens of a forward pass, and rows that are sampled together
ROUNDS = 5
MAX_HEAD_ELEMENTS = 2**25  # of the vocabulary's weight that is measured: 128 MiB in float32, more than a cache holds


@dataclass(frozen=True)
class DtypeSpeed:
    """Milliseconds of one pass of a layer's largest product over TRAINING_ROWS tokens and of the vocabulary's product
    over DECODING_ROWS; the least of ROUNDS.
    """

    float32_ms: float
    bfloat16_ms: float

    @property
    def faster_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.bfloat16_ms <= MAX_TIME_RATIO * self.float32_ms else torch.float32

    def describe(self) -> str:
        return f"measured: {self.float32_ms:.1f} ms in float32, {self.bfloat16_ms:.1f} ms in bfloat16"


def dtype_speed(hidden_size: int, inner_size: int, vocab_size: int) -> DtypeSpeed:
    """The speed of products of these sizes: from the cache, else measured and written to it."""
    sizes = f"{hidden_size}x{inner_size}x{vocab_size}"
    machine = f"{_processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    path, key = cache_folder() / CACHE_FILE, f"{sizes} on {machine}"
    measurements = _read_cache(path)
    if key not in measurements:
        measurements[key] = asdict(measure(hidden_size, inner_size, vocab_size))
        write_file_atomically(path, json.dumps(measurements, indent=1))
    return DtypeSpeed(**measurements[key])


def _read_cache(path: Path) -> dict[str, dict[str, float]]:
    """The measurements so far; empty if the file is missing or damaged."""
    try:
        measurements = json.loads(path.read_text(encoding="utf-8"))
        for measurement in measurements.values():
            DtypeSpeed(**measurement)
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
    return dict(measurements)


@torch.no_grad()
def measure(hidden_size: int, inner_size: int, vocab_size: int) -> DtypeSpeed:
    """Measure both dtypes, alternating, so that other load on the machine slows both."""
    products = {
        dtype: _products(dtype, hidden_size, inner_size, vocab_size) for dtype in (torch.float32, torch.bfloat16)
    }
    best = dict.fromkeys(products, float("inf"))
    for round_ in range(ROUNDS + 1):
        for dtype, run in products.items():
            start = time.perf_counter()
            run()
            if round_:  # the first round packs the weight
                best[dtype] = min(best[dtype], time.perf_counter() - start)
    return DtypeSpeed(*(round(1000 * seconds, 3) for seconds in best.values()))


def _products(dtype: torch.dtype, hidden_size: int, inner_size: int, vocab_size: int) -> Callable[[], None]:
    """A function that multiplies once by a layer's weight and once by the vocabulary's, as training and sampling do."""
    vocab_size = max(1, min(vocab_size, MAX_HEAD_ELEMENTS // hidden_size))
    layer, head = (torch.full((rows, hidden_size), 0.5, dtype=dtype) for rows in (inner_size, vocab_size))
    tokens, rows = (torch.full((count, hidden_size), 0.5, dtype=dtype) for count in (TRAINING_ROWS, DECODING_ROWS))
    packed = PackedWeights()

    def run() -> None:
        linear(tokens, layer)
        with packed:
            linear(rows, head)

    return run


def _processor() -> str:
    lines = [line.partition(":")[2].strip() for line in cpu_description().splitlines() if line.startswith("model name")]
    return lines[0] if lines else platform.processor() or platform.machine()
