"""The compiled kernels as functions of tensors: float32, on the CPU, no gradient recorded.

`takes` says whether they compute on a tensor. Results are new tensors; inputs are copied only where they are not contiguous.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from rlhf_lab.errors import ConfigError
from rlhf_lab.fused.library import library

POINTER, SIZE, NUMBER, FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
WIDE = 16  # as in common.h
KNOWN = (torch.float32, torch.int64, torch.bool)
PLAIN = (Tensor, torch.nn.Parameter)  # kinds whose numbers lie where they say
#: What each function is given, with the number of threads as the last.
TAKES: dict[str, list[Any]] = {
    "norm": [POINTER] * 4 + [SIZE] * 2 + [NUMBER],
    "norm_back": [POINTER] * 7 + [SIZE] * 2,
    "swiglu": [POINTER] * 3 + [SIZE],
    "swiglu_back": [POINTER] * 6 + [SIZE],
    "attend": [POINTER] * 5 + [SIZE] * 7 + [NUMBER],
    "attend_back": [POINTER] * 6 + [SIZE] * 7 + [NUMBER],
    "attend_next": [POINTER] * 8 + [SIZE] * 6 + [NUMBER],
    "lora_slopes": [POINTER] * 7 + [SIZE] * 5 + [NUMBER],
    "head_figures": [POINTER] * 4 + [SIZE] * 2 + [NUMBER, FLAG],
}


def takes(x: Tensor) -> bool:
    """Whether there are kernels and they compute on tensors like this one."""
    known = type(x) in PLAIN and x.dtype == torch.float32 and x.device.type == "cpu" and x.layout == torch.strided
    return known and library() is not None


def norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """weight · x / rms(x) of each row, and 1 / sqrt(mean square + eps), (N, 1). x: (N, H), weight: (H,)."""
    x = x.contiguous()
    out, inverse = torch.empty_like(x), x.new_empty(len(x), 1)
    _call("norm", x, weight, out, inverse, *x.shape, eps)
    return out, inverse


def norm_back(slope: Tensor, x: Tensor, inverse: Tensor, weight: Tensor, around: Tensor) -> tuple[Tensor, Tensor]:
    """around + the slope of x, from that of what `norm` gave; and what it gave once more. All (N, H), but weight (H,) and
    inverse (N, 1)."""
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
    room = _room("attend_room", length, size, read)
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
    d_read, room = torch.empty_like(read), _room("attend_room", length, size, read)
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
    room = _room("attend_next_room", used, size, read)
    _call(
        "attend_next", read, cos.contiguous(), sin.contiguous(), looked, keys, values, mixed, room,
        batch, used, places, heads, groups, size, size**-0.5,
    )  # fmt: skip
    return mixed


def takes_slopes(x: Tensor, slope: Tensor) -> bool:
    """Whether `lora_slopes` computes on these."""
    even = x.shape[1] % WIDE == 0 and slope.shape[1] % WIDE == 0
    return even and x.is_contiguous() and slope.stride(1) == 1 and slope.dtype == x.dtype and takes(x)


def lora_slopes(x: Tensor, slope: Tensor, a: Tensor, b: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """dA = scale · (g·B)ᵀ·x and dB = scale · gᵀ·(x·Aᵀ).

    x: (N, in), slope: g (N, out), whose rows may be parts of longer ones, a: (r, in), b: (out, r).
    """
    a, b = a.contiguous(), b.contiguous()
    (rows, read), rank, d_a, d_b = x.shape, len(a), torch.empty_like(a), torch.empty_like(b)
    room = x.new_empty((2 * rows + len(b)) * rank)
    _call(
        "lora_slopes", x, slope.data_ptr(), a, b, d_a, d_b, room, rows, read, len(b), rank, slope.stride(0), scale,
    )  # fmt: skip
    return d_a, d_b


def head_figures(logits: Tensor, tokens: Tensor, temperature: float, learns: bool) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the tokens under softmax(logits / temperature) and its entropies, (N,) each, nats.

    logits: (N, V), used up; where something learns they become onehot(token) - p. tokens: (N,) int64.
    Raises ConfigError for a token that is no word.
    """
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < logits.shape[1]:
        raise ConfigError(f"a token is not one of the {logits.shape[1]} words.")
    logprobs, entropies = logits.new_empty(len(tokens)), logits.new_empty(len(tokens))
    _call("head_figures", logits, tokens.long().contiguous(), logprobs, entropies, *logits.shape, temperature, learns)
    return logprobs, entropies


def _sizes(read: Tensor, cos: Tensor, batch: int, heads: int, groups: int) -> tuple[int, int, int]:
    """Tokens of a text, the size of a head, and how far the rotation of one text is from the next one's."""
    length, size = len(read) // batch, read.shape[1] // (heads + 2 * groups)
    return length, size, length * size if cos.dim() == 3 and len(cos) > 1 else 0


def _room(function: str, length: int, size: int, like: Tensor) -> Tensor:
    """Working memory of all threads."""
    of_one = getattr(_library(), function)
    if of_one.argtypes is None:
        of_one.argtypes, of_one.restype = [SIZE, SIZE], SIZE
    return like.new_empty(torch.get_num_threads() * of_one(length, size))


def _library() -> Any:
    kernels = library()
    assert kernels is not None
    return kernels


def _call(name: str, *arguments: Any) -> None:
    function = getattr(_library(), name)
    if function.argtypes is None:
        function.argtypes, function.restype = [*TAKES[name], SIZE], None
    given = [_address(one) if isinstance(one, Tensor) else one for one in arguments]
    function(*given, torch.get_num_threads())


def _address(one: Tensor) -> int:
    """Where a tensor's numbers begin. Raises ValueError for what a kernel would read wrongly."""
    if one.dtype not in KNOWN or not one.is_contiguous():
        raise ValueError(f"a kernel was given {tuple(one.shape)} numbers of {one.dtype} with strides {one.stride()}")
    return one.data_ptr()
