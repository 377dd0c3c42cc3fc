"""Decoder layers whole in C (layer.c), and products with weights laid out for them in squares (products.c).

In bfloat16, where the processor multiplies it by tiles (or by vectors, if that is wanted): `there_are` says so. Sizes of a
layer's weights are multiples of 32 (`fits`). No gradient is recorded; inputs are copied where they are not contiguous.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from rlhf_lab.fused.calls import address
from rlhf_lab.fused.library import layers_by, library

OWN = torch.bfloat16
EDGE, DEEP = 16, 32  # as in products.h
SIDE = 2 * EDGE
SIZE, NUMBER, POINTER = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
#: What each function takes; those that return a size first.
TAKES: dict[str, list[Any]] = {
    "linear_rows": [*[POINTER] * 4, *[SIZE] * 4],
    "lay_update": [*[POINTER] * 6, *[SIZE] * 4, NUMBER],
    "layer_forward": [*[POINTER] * 7, *[SIZE] * 5],
    "layer_back": [*[POINTER] * 9, *[SIZE] * 5],
    "layer_read": [*[POINTER] * 4, *[SIZE] * 2],
    "layer_rest": [*[POINTER] * 5, *[SIZE] * 2],
    "tokens_room": [POINTER, SIZE],
    "layer_room": [POINTER, *[SIZE] * 4],
}
SIZES = ("tokens_room", "layer_room")


def there_are(dtype: torch.dtype = OWN) -> bool:
    """Whether this machine has them, for tensors of a dtype."""
    return bool(layers_by(dtype))


def fits(weight: Tensor) -> bool:
    """Whether they multiply with a weight (out, in), both ways."""
    return weight.dim() == 2 and weight.dtype == OWN and all(size % DEEP == 0 for size in weight.shape)


def laid_out(weight: Tensor) -> Tensor:
    """A copy of a weight (out, in) as products.h describes it, flat; in: a multiple of 32."""
    weight = weight.detach()
    out, inputs = weight.shape
    if out % SIDE:
        weight = torch.cat([weight, weight.new_zeros(-out % SIDE, inputs)])
    return weight.reshape(-1, EDGE, inputs // DEEP, EDGE, 2).permute(0, 2, 3, 1, 4).contiguous().view(-1)


def linear(x: Tensor, weight: Tensor, width: int, bias: Tensor | None = None) -> Tensor:
    """x @ W.T + bias, (..., width). x: (..., in); weight: `laid_out` of W (width, in). Raises ValueError for other sizes."""
    x, depth = x.contiguous(), x.shape[-1]
    if weight.numel() != depth * (width + -width % SIDE):
        raise ValueError(f"a weight of {weight.numel()} numbers is not one of ({width}, {depth}) laid out")
    out = x.new_empty(*x.shape[:-1], width)
    _call(
        "linear_rows",
        _at(x),
        _at(weight),
        _at(bias),
        _at(out),
        x.numel() // depth,
        depth,
        width,
        torch.get_num_threads(),
    )
    return out


class Projection(ctypes.Structure):
    """One weight as layer.c has it."""

    LAYOUTS = ("forward", "back", "narrow", "wide", "narrow_back", "wide_back")
    _fields_ = [*((name, POINTER) for name in LAYOUTS), *((name, SIZE) for name in ("into", "out", "rank", "padded"))]


class _Struct(ctypes.Structure):
    _fields_ = [
        ("of", Projection * 7), ("bias", POINTER), ("norms", POINTER * 2), ("heads", SIZE), ("groups", SIZE), ("of_head", SIZE),
        ("eps", NUMBER * 2), ("sharp", NUMBER), ("scale", NUMBER),
    ]  # fmt: skip


class Laid:
    """A layer's frozen weights, laid out for both ways; made once and shared by whatever is laid over them.

    weights: of q, k, v, o, gate, up and down, (out, in) each. bias: of q, k and v in turn, or None. norms: (H,) each.
    shape: heads, groups, the size of a head, and what the two norms add to the mean square.
    """

    def __init__(
        self, weights: Sequence[Tensor], bias: Tensor | None, norms: tuple[Tensor, Tensor],
        shape: tuple[int, int, int, tuple[float, float]],
    ) -> None:  # fmt: skip
        self.sizes = [(one.shape[1], one.shape[0]) for one in weights]
        self._weights, self._versions = weights, [one._version for one in weights]
        self.layouts = [(laid_out(one), laid_out(one.t())) for one in weights]
        self.bias, self.norms, (self.heads, self.groups, self.of_head, self.eps) = bias, norms, shape

    def follow(self) -> None:
        """Lay out anew what has been changed, where it is."""
        for i, (one, layouts) in enumerate(zip(self._weights, self.layouts, strict=True)):
            if one._version != self._versions[i]:
                for layout, weight in zip(layouts, (one, one.t()), strict=True):
                    layout.copy_(laid_out(weight))
                self._versions[i] = one._version


class Layer:
    """A laid-out layer under an update of these ranks, or none; what layer.c does, as functions of tensors."""

    def __init__(self, laid: Laid, ranks: Sequence[int] = ()) -> None:
        self.laid, self._ranks = laid, list(ranks)
        self._padded = [(rank + DEEP - 1) // DEEP * DEEP for rank in ranks]
        #: The update's layouts, one behind the other; zeros stay behind each rank.
        each = [2 * padded * (into + out) for padded, (into, out) in zip(self._padded, laid.sizes, strict=False)]
        self.update = laid.layouts[0][0].new_zeros(sum(each))
        self._struct = _Struct(
            bias=_at(laid.bias), norms=(POINTER * 2)(*map(_at, laid.norms)), heads=laid.heads, groups=laid.groups,
            of_head=laid.of_head, eps=(NUMBER * 2)(*laid.eps), sharp=laid.of_head**-0.5, scale=1.0,
        )  # fmt: skip
        at = self.update.data_ptr()
        for i, ((forward, back), (into, out)) in enumerate(zip(laid.layouts, laid.sizes, strict=True)):
            one = self._struct.of[i]
            one.forward, one.back, one.into, one.out = _at(forward), _at(back), into, out
            if ranks:
                one.rank, one.padded = ranks[i], self._padded[i]
                for name, width in (("narrow", into), ("wide", out), ("narrow_back", out), ("wide_back", into)):
                    setattr(one, name, at)
                    at += 2 * one.padded * width

    def learn(self, pairs: Sequence[Tensor], scale: float) -> None:
        """Under this update from now on. pairs: A (r, in) and B (out, r) of the seven, in turn."""
        self._struct.scale = scale
        wide = [one.detach().float().contiguous() for one in pairs]
        for a, b, one in zip(wide[::2], wide[1::2], self._struct.of, strict=True):
            layouts = (one.narrow, one.wide, one.narrow_back, one.wide_back)
            _call("lay_update", a.data_ptr(), b.data_ptr(), *layouts, one.into, one.out, one.rank, one.padded, scale)
        increment_version(self.update)

    @property
    def tensors(self) -> list[Tensor]:
        """All that a pass reads besides its input; their versions tell whether they are those of another pass."""
        laid = self.laid
        layouts = [layout for both in laid.layouts for layout in both]
        return [self.update, *layouts, *laid.norms, *([] if laid.bias is None else [laid.bias])]

    def read(self, x: Tensor) -> Tensor:
        """q, k and v of each token, not rotated yet, (N, (heads + 2 groups)·D). x: (N, H)."""
        x = self._rows(x, self.width)
        found = x.new_empty(len(x), (self.laid.heads + 2 * self.laid.groups) * self.laid.of_head)
        room = self._room("tokens_room", x, len(x))
        self._of("layer_read", _at(x), _at(found), _at(room), len(x), torch.get_num_threads())
        return found

    def rest(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The output (N, H). x: (N, H); mixed: what attention gave, (N, heads·D)."""
        x, mixed = self._rows(x, self.width), self._rows(mixed, self.mixed, len(x))
        out, room = torch.empty_like(x), self._room("tokens_room", x, len(x))
        self._of("layer_rest", _at(x), _at(mixed), _at(out), _at(room), len(x), torch.get_num_threads())
        return out

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, first: int, keeps: bool) -> tuple[Tensor, Tensor | None]:
        """The output (B, T - first, H) of texts x (B, T, H); and, if that `keeps`, what attention gave, for `back`.

        cos, sin: (T, D), (1, T, D) or (B, T, D), rotation.py's.
        """
        x, (batch, length, _) = self._rows(x, self.width), x.shape
        cos, sin, turns = self._turns(cos, sin, batch, length)
        out = x.new_empty(batch, length - first, self.width)
        mixed = x.new_empty(batch, length - first, self.mixed) if keeps else None
        sizes, threads = (batch, length), torch.get_num_threads()
        room = self._room("layer_room", x, *sizes, False, threads)
        self._of("layer_forward", *map(_at, (x, cos, sin, out, mixed, room)), *sizes, first, turns, threads)
        return out, mixed

    def back(
        self, slope: Tensor, x: Tensor, mixed: Tensor, cos: Tensor, sin: Tensor, first: int, wants_x: bool
    ) -> tuple[Tensor | None, list[Tensor]]:
        """The slope of x, if it is wanted, and those of A (r, in) and B (out, r) of the seven, in turn, float32; from that of
        the output."""
        x, (batch, length, _) = self._rows(x, self.width), x.shape
        slope, mixed = (
            self._rows(one, size, batch, length - first) for one, size in ((slope, self.width), (mixed, self.mixed))
        )
        cos, sin, turns = self._turns(cos, sin, batch, length)
        ranked = zip(self._ranks, self.laid.sizes, strict=False)
        shapes = [shape for rank, (into, out) in ranked for shape in ((rank, into), (out, rank))]
        counts = [rows * columns for rows, columns in shapes]
        slopes = x.new_empty(batch, sum(counts), dtype=torch.float32)
        dx, sizes, threads = torch.empty_like(x) if wants_x else None, (batch, length), torch.get_num_threads()
        room = self._room("layer_room", x, *sizes, True, threads)
        given = (*map(_at, (x, mixed, slope, cos, sin, dx)), address(slopes, torch.float32), _at(room))
        self._of("layer_back", *given, *sizes, first, turns, threads)
        each = slopes[0].clone().split(counts)  # the other texts' need not stay
        return dx, [one.view(shape) for one, shape in zip(each, shapes, strict=True)]

    @property
    def width(self) -> int:
        """H."""
        return self.laid.sizes[0][0]

    @property
    def mixed(self) -> int:
        """heads·D."""
        return self.laid.heads * self.laid.of_head

    def _of(self, name: str, *arguments: Any) -> Any:
        return _call(name, ctypes.byref(self._struct), *arguments)

    def _room(self, function: str, like: Tensor, *sizes: int) -> Tensor:
        """Working memory, so many bytes as a function says."""
        return like.new_empty(self._of(function, *sizes) // 2)

    def _rows(self, one: Tensor, width: int, *rows: int) -> Tensor:
        """The tensor, contiguous, if its rows are so long and there are so many. Raises ValueError."""
        if one.shape[-1] != width or (rows and one.shape[:-1] != rows):
            raise ValueError(f"a layer was given {tuple(one.shape)} numbers, not {(*rows, width)}")
        return one.contiguous()

    def _turns(self, cos: Tensor, sin: Tensor, batch: int, length: int) -> tuple[Tensor, Tensor, int]:
        """The rotation, contiguous, and how far that of one text is from the next one's. Raises ValueError."""
        own = cos.dim() == 3 and len(cos) > 1
        for one in (cos, sin):
            self._rows(
                one if own or one.dim() == 2 else one[0], self.laid.of_head, *((batch, length) if own else (length,))
            )
        return cos.contiguous(), sin.contiguous(), length * self.laid.of_head if own else 0


def _at(one: Tensor | None) -> int | None:
    return None if one is None else address(one, OWN)


def _call(name: str, *arguments: Any) -> Any:
    function = getattr(library(OWN), name)
    if function.argtypes is None:
        function.argtypes, function.restype = TAKES[name], SIZE if name in SIZES else None
    return function(*arguments)
