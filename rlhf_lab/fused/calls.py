"""The compiled kernels as functions of tensors: float32 or bfloat16, on the CPU, no gradient recorded.

`takes` says whether they compute on a tensor. All tensors of a call are of one dtype unless said otherwise, and what is computed
is rounded to it once, at the end. Results are new tensors; inputs are copied only where they are not contiguous.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from rlhf_lab.errors import ConfigError
from rlhf_lab.fused.library import library

SIZE, NUMBER, FLAG = ctypes.c_int64, ctypes.c_float, ctypes.c_int
OWN = "numbers of the first tensor's dtype"
FLOATS, PLACES, BOOLS = torch.float32, torch.int64, torch.bool
WIDE = 16  # as in common.h
PLAIN = (Tensor, torch.nn.Parameter)  # kinds whose numbers lie where they say
#: What each function is given, tensors by the dtype of their numbers, with the number of threads as the last.
TAKES: dict[str, list[Any]] = {
    "norm": [OWN, OWN, OWN, FLOATS, SIZE, SIZE, NUMBER],
    "norm_back": [OWN, OWN, FLOATS, OWN, OWN, OWN, OWN, SIZE, SIZE],
    "swiglu": [OWN, OWN, OWN, SIZE],
    "swiglu_back": [OWN, OWN, OWN, OWN, OWN, OWN, SIZE],
    "attend": [OWN, OWN, OWN, OWN, FLOATS, *[SIZE] * 7, NUMBER],
    "attend_back": [OWN, OWN, OWN, OWN, OWN, FLOATS, *[SIZE] * 7, NUMBER],
    "attend_next": [OWN, OWN, OWN, BOOLS, OWN, OWN, OWN, FLOATS, *[SIZE] * 6, NUMBER],
    "lora_slopes": [OWN, OWN, FLOATS, FLOATS, OWN, OWN, FLOATS, FLOATS, FLOATS, *[SIZE] * 7, NUMBER],
    "head_figures": [OWN, PLACES, FLOATS, FLOATS, FLOATS, SIZE, SIZE, NUMBER, FLAG],
}


def takes(x: Tensor, *others: Tensor) -> bool:
    """Whether there are kernels and they compute on tensors like this one.

    others: of the same call, which may be of another dtype where somebody's program mixes them (autocast, a layer in float32).
    """
    if any(one.dtype != x.dtype for one in others):
        return False
    known = type(x) in PLAIN and x.device.type == "cpu" and x.layout == torch.strided
    return known and library(x.dtype) is not None


def norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """weight · x / rms(x) of each row, and 1 / sqrt(mean square + eps), (N, 1) float32. x: (N, H), weight: (H,)."""
    x = x.contiguous()
    out, inverse = torch.empty_like(x), _floats(len(x), 1)
    _call("norm", x, weight, out, inverse, *x.shape, eps)
    return out, inverse


def norm_back(slope: Tensor, x: Tensor, inverse: Tensor, weight: Tensor, around: Tensor) -> tuple[Tensor, Tensor]:
    """around + the slope of x, from that of what `norm` gave; and what it gave once more. All (N, H), but weight (H,) and
    inverse (N, 1) float32."""
    x = x.contiguous()
    out, again = torch.empty_like(x), torch.empty_like(x)
    _call("norm_back", slope.contiguous(), x, inverse, weight, around.contiguous(), out, again, *x.shape)
    return out, again


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up, of any shape."""
    gate, up = gate.contiguous(), up.contiguous()
    out = torch.empty_like(gate)
    _call("swiglu", gate, up, out, gate.numel())
    return out


def swiglu_back(slope: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """The slopes of gate and up, (2, N, I), from that of what `swiglu` gave; and what it gave once more. All (N, I)."""
    gate, up = gate.contiguous(), up.contiguous()
    both, out = gate.new_empty(2, *gate.shape), torch.empty_like(gate)
    _call("swiglu_back", slope.contiguous(), gate, up, both[0], both[1], out, gate.numel())
    return both, out


def attend(read: Tensor, cos: Tensor, sin: Tensor, batch: int, first: int, heads: int, groups: int) -> Tensor:
    """Causal attention of the tokens from `first` on, (B·(T - first), heads·D).

    read: (B·T, (heads + 2 groups)·D): q, k and v of each token, not rotated yet. cos, sin: (T, D), (1, T, D) or (B, T, D),
    rotation.py's. No tensor of T² numbers is made.
    """
    read, (length, size, turns) = read.contiguous(), _sizes(read, cos, batch, heads, groups)
    mixed = read.new_empty(batch * (length - first), heads * size)
    room = _room("attend_room", read, length, size)
    _call(
        "attend", read, cos.contiguous(), sin.contiguous(), mixed, room,
        batch, length, first, heads, groups, size, turns, size**-0.5,
    )  # fmt: skip
    return mixed


def attend_back(
    slope: Tensor, read: Tensor, cos: Tensor, sin: Tensor, batch: int, first: int, heads: int, groups: int
) -> Tensor:
    """The slope of read from that of what `attend` gave."""
    read, (length, size, turns) = read.contiguous(), _sizes(read, cos, batch, heads, groups)
    d_read, room = torch.empty_like(read), _room("attend_room", read, length, size)
    _call(
        "attend_back", slope.contiguous(), read, cos.contiguous(), sin.contiguous(), d_read, room,
        batch, length, first, heads, groups, size, turns, size**-0.5,
    )  # fmt: skip
    return d_read


def attend_next(
    read: Tensor, cos: Tensor, sin: Tensor, seen: Tensor | None, keys: Tensor, values: Tensor, used: int, heads: int
) -> Tensor:
    """Attention of one token more of each row, (B, heads·D), whose key and value are written behind the `used` ones.

    read: (B, (heads + 2 groups)·D). cos, sin: (B, 1, D), rotation.py's. seen: bool, of (B, used + 1) numbers, which tokens a
    row looks at; None: all. keys, values: (B, groups, room, D), contiguous, room > used.
    """
    batch, groups, places, size = keys.shape
    looked = None if seen is None else seen.reshape(batch, used + 1).contiguous()
    mixed = read.new_empty(batch, heads * size)
    room = _room("attend_next_room", read, used, size)
    _call(
        "attend_next", read, cos.contiguous(), sin.contiguous(), looked, keys, values, mixed, room,
        batch, used, places, heads, groups, size, size**-0.5,
    )  # fmt: skip
    return mixed


def takes_slopes(x: Tensor, slope: Tensor) -> bool:
    """Whether `lora_slopes` computes on these."""
    even = x.shape[1] % WIDE == 0 and slope.shape[1] % WIDE == 0
    return even and x.is_contiguous() and slope.stride(1) == 1 and slope.dtype == x.dtype and takes(x)


def lora_slopes(
    x: Tensor, slope: Tensor, a: Tensor, b: Tensor, scale: float, known: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """dA = scale · (g·B)ᵀ·x and dB = scale · gᵀ·(x·Aᵀ), in float32.

    x: (N, in), slope: g (N, out), whose rows may be parts of longer ones, a: (r, in), b: (out, r), both float32.
    known: x·Aᵀ and scale · g·B, (N, r) each, whose rows may be parts of longer ones; None: they are found here, in float32.
    """
    (rows, read), (written, rank) = x.shape, b.shape
    d_a, d_b = _floats(rank, read), _floats(written, rank)
    room = _room("lora_room", x, rows, rank, (2 * rows + written) * rank)
    low, low_slope = known or (None, None)
    _call(
        "lora_slopes", x, _parts(slope, x), a.contiguous(), b.contiguous(), _parts(low, x), _parts(low_slope, x), d_a, d_b, room,
        rows, read, written, rank, slope.stride(0), *(0 if one is None else one.stride(0) for one in (low, low_slope)), scale,
    )  # fmt: skip
    return d_a, d_b


def head_figures(logits: Tensor, tokens: Tensor, temperature: float, learns: bool) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the tokens under softmax(logits / temperature) and its entropies, (N,) float32 each, nats.

    logits: (N, V), used up; where something learns they become onehot(token) - p. tokens: (N,) int64.
    Raises ConfigError for a token that is no word.
    """
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < logits.shape[1]:
        raise ConfigError(f"a token is not one of the {logits.shape[1]} words.")
    tokens, room = tokens.long().contiguous(), _room("head_room", logits, logits.shape[1], 1)
    logprobs, entropies = _floats(len(tokens)), _floats(len(tokens))
    _call("head_figures", logits, tokens, logprobs, entropies, room, *logits.shape, temperature, learns)
    return logprobs, entropies


def _sizes(read: Tensor, cos: Tensor, batch: int, heads: int, groups: int) -> tuple[int, int, int]:
    """Tokens of a text, the size of a head, and how far the rotation of one text is from the next one's."""
    length, size = len(read) // batch, read.shape[1] // (heads + 2 * groups)
    return length, size, length * size if cos.dim() == 3 and len(cos) > 1 else 0


def _floats(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32)


def _room(function: str, of: Tensor, length: int, size: int, beside: int = 0) -> Tensor:
    """Working memory of all threads for a call on numbers like these, and so many numbers more."""
    of_one = getattr(library(of.dtype), function)
    if of_one.argtypes is None:
        of_one.argtypes, of_one.restype = [SIZE, SIZE], SIZE
    return _floats(torch.get_num_threads() * of_one(length, size) + beside)


def _call(name: str, *arguments: Any) -> None:
    kinds, own = TAKES[name], arguments[0].dtype
    function = getattr(library(own), name)
    if function.argtypes is None:
        pointers = (OWN, FLOATS, PLACES, BOOLS)
        function.argtypes = [*(ctypes.c_void_p if kind in pointers else kind for kind in kinds), SIZE]
        function.restype = None
    given = [
        address(one, own if kind is OWN else kind) if isinstance(one, Tensor) else one
        for one, kind in zip(arguments, kinds, strict=True)
    ]
    function(*given, torch.get_num_threads())


def address(one: Tensor, dtype: torch.dtype, *, parts: bool = False) -> int:
    """Where a tensor's numbers begin; parts: its rows may be parts of longer ones. Raises ValueError for what a kernel would read
    wrongly."""
    if one.dtype != dtype or not (one.stride(1) == 1 if parts else one.is_contiguous()):
        raise ValueError(f"a kernel was given {tuple(one.shape)} numbers of {one.dtype} with strides {one.stride()}")
    return one.data_ptr()


def _parts(one: Tensor | None, like: Tensor) -> int | None:
    return None if one is None else address(one, like.dtype, parts=True)
