"""Whole decoder layers in C (llama_layer.c) and matrix products with tiled weights (amx_matmul.c).

bfloat16 only, on processors with AMX tiles, or AVX-512 bf16 if requested: see `available`. Both sizes of a layer's
weights must be multiples of 32 (`supports_weight`). No gradient is recorded. Inputs that are not contiguous are copied.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from rlhf_lab.kernels.c_ops import data_pointer
from rlhf_lab.kernels.compile import layer_backend, load_kernels

DTYPE = torch.bfloat16
TILE_WIDTH, TILE_DEPTH = 16, 32  # as in amx_matmul.h
BLOCK_WIDTH = 2 * TILE_WIDTH
C_INT64, C_FLOAT, C_POINTER = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
#: Argument types of the C functions.
SIGNATURES: dict[str, list[Any]] = {
    "tiled_linear": [*[C_POINTER] * 4, *[C_INT64] * 4],
    "tile_lora": [*[C_POINTER] * 6, *[C_INT64] * 4, C_FLOAT],
    "layer_forward": [*[C_POINTER] * 7, *[C_INT64] * 5],
    "layer_backward": [*[C_POINTER] * 9, *[C_INT64] * 5],
    "layer_qkv_projection": [*[C_POINTER] * 4, *[C_INT64] * 2],
    "layer_post_attention": [*[C_POINTER] * 5, *[C_INT64] * 2],
    "token_workspace_bytes": [C_POINTER, C_INT64],
    "layer_workspace_bytes": [C_POINTER, *[C_INT64] * 4],
}
SIZE_FUNCTIONS = ("token_workspace_bytes", "layer_workspace_bytes")


def available(dtype: torch.dtype = DTYPE) -> bool:
    """Whether this machine supports these functions for tensors of a dtype."""
    return bool(layer_backend(dtype))


def supports_weight(weight: Tensor) -> bool:
    """Whether these functions can multiply with a weight (out, in) and its transpose."""
    return weight.dim() == 2 and weight.dtype == DTYPE and all(size % TILE_DEPTH == 0 for size in weight.shape)


def tile_layout(weight: Tensor) -> Tensor:
    """A copy of a weight (out, in) in the layout of amx_matmul.h, flat. in: a multiple of 32."""
    weight = weight.detach()
    out_features, in_features = weight.shape
    if out_features % BLOCK_WIDTH:
        weight = torch.cat([weight, weight.new_zeros(-out_features % BLOCK_WIDTH, in_features)])
    return (
        weight.reshape(-1, TILE_WIDTH, in_features // TILE_DEPTH, TILE_WIDTH, 2)
        .permute(0, 2, 3, 1, 4)
        .contiguous()
        .view(-1)
    )


def tiled_linear(x: Tensor, tiled_weight: Tensor, out_features: int, bias: Tensor | None = None) -> Tensor:
    """x @ W.T + bias, (..., out_features). x: (..., in); tiled_weight: `tile_layout` of W. Raises ValueError for other
    sizes.
    """
    x, in_features = x.contiguous(), x.shape[-1]
    if tiled_weight.numel() != in_features * (out_features + -out_features % BLOCK_WIDTH):
        raise ValueError(
            f"a weight of {tiled_weight.numel()} numbers is not one of ({out_features}, {in_features}) laid out"
        )
    out = x.new_empty(*x.shape[:-1], out_features)
    rows, threads = x.numel() // in_features, torch.get_num_threads()
    _call_kernel("tiled_linear", x, tiled_weight, bias, out, rows, in_features, out_features, threads)
    return out


class ProjectionStruct(ctypes.Structure):
    """`projection` of llama_layer.c."""

    LAYOUTS = ("weight", "weight_t", "lora_a", "lora_b", "lora_b_t", "lora_a_t")
    _fields_ = [
        *((name, C_POINTER) for name in LAYOUTS),
        *((name, C_INT64) for name in ("in_features", "out_features", "rank", "padded_rank")),
    ]


class _LayerStruct(ctypes.Structure):
    _fields_ = [
        ("projections", ProjectionStruct * 7),
        ("bias", C_POINTER),
        ("norms", C_POINTER * 2),
        ("heads", C_INT64),
        ("kv_heads", C_INT64),
        ("head_size", C_INT64),
        ("eps", C_FLOAT * 2),
        ("softmax_scale", C_FLOAT),
        ("scale", C_FLOAT),
    ]


class TiledWeights:
    """A layer's frozen weights, tiled for forward and backward; shared by all adapters.

    weights: of q, k, v, o, gate, up and down, (out, in) each. bias: of q, k and v concatenated, or None. norms: (H,)
    each.
    dims: heads, kv_heads, head size, and the epsilons of the two norms.
    """

    def __init__(
        self, weights: Sequence[Tensor], bias: Tensor | None, norms: tuple[Tensor, Tensor],
        dims: tuple[int, int, int, tuple[float, float]],
    ) -> None:  # fmt: skip
        self.in_out_sizes = [(weight.shape[1], weight.shape[0]) for weight in weights]
        self._weights, self._versions = weights, [weight._version for weight in weights]
        self.layouts = [(tile_layout(weight), tile_layout(weight.t())) for weight in weights]
        self.bias, self.norms, (self.heads, self.kv_heads, self.head_size, self.eps) = bias, norms, dims

    def refresh(self) -> None:
        """Tile again, in place, the weights that have changed."""
        for i, (source, layouts) in enumerate(zip(self._weights, self.layouts, strict=True)):
            if source._version != self._versions[i]:
                for layout, matrix in zip(layouts, (source, source.t()), strict=True):
                    layout.copy_(tile_layout(matrix))
                self._versions[i] = source._version


class AmxLayer:
    """The functions of llama_layer.c on tensors, for a layer with LoRA updates of these ranks, or none."""

    def __init__(self, tiled_weights: TiledWeights, ranks: Sequence[int] = ()) -> None:
        self.tiled_weights, self._ranks = tiled_weights, list(ranks)
        self._padded_ranks = [(rank + TILE_DEPTH - 1) // TILE_DEPTH * TILE_DEPTH for rank in ranks]
        #: The tiled LoRA tensors, concatenated; elements beyond each rank stay zero.
        buffer_sizes = [
            2 * padded_rank * (in_features + out_features)
            for padded_rank, (in_features, out_features) in zip(
                self._padded_ranks, tiled_weights.in_out_sizes, strict=False
            )
        ]
        self.lora_buffer = tiled_weights.layouts[0][0].new_zeros(sum(buffer_sizes))
        self._struct = _LayerStruct(
            bias=_pointer(tiled_weights.bias),
            norms=(C_POINTER * 2)(*map(_pointer, tiled_weights.norms)),
            heads=tiled_weights.heads,
            kv_heads=tiled_weights.kv_heads,
            head_size=tiled_weights.head_size,
            eps=(C_FLOAT * 2)(*tiled_weights.eps),
            softmax_scale=tiled_weights.head_size**-0.5,
            scale=1.0,
        )
        pointer = self.lora_buffer.data_ptr()
        for i, ((forward, backward), (in_features, out_features)) in enumerate(
            zip(tiled_weights.layouts, tiled_weights.in_out_sizes, strict=True)
        ):
            projection = self._struct.projections[i]
            projection.weight, projection.weight_t = _pointer(forward), _pointer(backward)
            projection.in_features, projection.out_features = in_features, out_features
            if ranks:
                projection.rank, projection.padded_rank = ranks[i], self._padded_ranks[i]
                widths = (in_features, out_features, out_features, in_features)
                for name, width in zip(ProjectionStruct.LAYOUTS[2:], widths, strict=True):
                    setattr(projection, name, pointer)
                    pointer += 2 * projection.padded_rank * width

    def set_lora(self, lora_tensors: Sequence[Tensor], scale: float) -> None:
        """Use this update from now on. lora_tensors: A (r, in) and B (out, r) of the seven projections, alternating."""
        self._struct.scale = scale
        lora_f32 = [item.detach().float().contiguous() for item in lora_tensors]
        for a, b, item in zip(lora_f32[::2], lora_f32[1::2], self._struct.projections, strict=True):
            layouts = (item.lora_a, item.lora_b, item.lora_b_t, item.lora_a_t)
            sizes = (item.in_features, item.out_features, item.rank, item.padded_rank)
            _call_kernel("tile_lora", a.data_ptr(), b.data_ptr(), *layouts, *sizes, scale)
        increment_version(self.lora_buffer)

    @property
    def weight_tensors(self) -> list[Tensor]:
        """All tensors that a pass reads besides its input; their version counters show whether they have changed."""
        tiled_weights = self.tiled_weights
        layouts = [layout for pair in tiled_weights.layouts for layout in pair]
        return [
            self.lora_buffer,
            *layouts,
            *tiled_weights.norms,
            *([] if tiled_weights.bias is None else [tiled_weights.bias]),
        ]

    def qkv_projection(self, x: Tensor) -> Tensor:
        """q, k and v of each token before RoPE, (N, (heads + 2 kv_heads)·D). x: (N, H)."""
        x = self._checked(x, self.hidden_size)
        qkv = x.new_empty(
            len(x), (self.tiled_weights.heads + 2 * self.tiled_weights.kv_heads) * self.tiled_weights.head_size
        )
        workspace = self._workspace("token_workspace_bytes", x, len(x))
        self._call_layer("layer_qkv_projection", x, qkv, workspace, len(x), torch.get_num_threads())
        return qkv

    def post_attention(self, x: Tensor, attn_output: Tensor) -> Tensor:
        """The layer's output (N, H). x: the layer's input (N, H); attn_output: (N, heads·D)."""
        x, attn_output = self._checked(x, self.hidden_size), self._checked(attn_output, self.attn_output_size, len(x))
        out, workspace = torch.empty_like(x), self._workspace("token_workspace_bytes", x, len(x))
        self._call_layer("layer_post_attention", x, attn_output, out, workspace, len(x), torch.get_num_threads())
        return out

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, start_pos: int, save_attn_output: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The output (B, T - start_pos, H) for x (B, T, H), and with save_attn_output the attention output that
        `backward` needs.

        cos, sin: (T, D), (1, T, D) or (B, T, D), see rope.py.
        """
        x, (batch_size, length, _) = self._checked(x, self.hidden_size), x.shape
        cos, sin, rope_stride = self._checked_rope(cos, sin, batch_size, length)
        out = x.new_empty(batch_size, length - start_pos, self.hidden_size)
        attn_output = x.new_empty(batch_size, length - start_pos, self.attn_output_size) if save_attn_output else None
        sizes, threads = (batch_size, length), torch.get_num_threads()
        workspace = self._workspace("layer_workspace_bytes", x, *sizes, False, threads)
        tensors = (x, cos, sin, out, attn_output, workspace)
        self._call_layer("layer_forward", *tensors, *sizes, start_pos, rope_stride, threads)
        return out, attn_output

    def backward(
        self,
        grad_output: Tensor,
        x: Tensor,
        attn_output: Tensor,
        cos: Tensor,
        sin: Tensor,
        start_pos: int,
        needs_x_grad: bool,
    ) -> tuple[Tensor | None, list[Tensor]]:
        """The gradient of x, if needed, and those of A (r, in) and B (out, r) of the seven projections, alternating,
        float32.
        """
        x, (batch_size, length, _) = self._checked(x, self.hidden_size), x.shape
        grad_output, attn_output = (
            self._checked(tensor, size, batch_size, length - start_pos)
            for tensor, size in ((grad_output, self.hidden_size), (attn_output, self.attn_output_size))
        )
        cos, sin, rope_stride = self._checked_rope(cos, sin, batch_size, length)
        rank_sizes = zip(self._ranks, self.tiled_weights.in_out_sizes, strict=False)
        shapes = [
            shape
            for rank, (in_features, out_features) in rank_sizes
            for shape in ((rank, in_features), (out_features, rank))
        ]
        counts = [rows * columns for rows, columns in shapes]
        grads = x.new_empty(batch_size, sum(counts), dtype=torch.float32)
        dx, sizes = torch.empty_like(x) if needs_x_grad else None, (batch_size, length)
        threads = torch.get_num_threads()
        workspace = self._workspace("layer_workspace_bytes", x, *sizes, True, threads)
        tensors = (x, attn_output, grad_output, cos, sin, dx, data_pointer(grads, torch.float32), workspace)
        self._call_layer("layer_backward", *tensors, *sizes, start_pos, rope_stride, threads)
        flat_grads = grads[0].clone().split(counts)  # a copy, so that the gradients of the other sequences can be freed
        return dx, [tensor.view(shape) for tensor, shape in zip(flat_grads, shapes, strict=True)]

    @property
    def hidden_size(self) -> int:
        """H."""
        return self.tiled_weights.in_out_sizes[0][0]

    @property
    def attn_output_size(self) -> int:
        """heads·D."""
        return self.tiled_weights.heads * self.tiled_weights.head_size

    def _call_layer(self, name: str, *arguments: Any) -> Any:
        return _call_kernel(name, ctypes.byref(self._struct), *arguments)

    def _workspace(self, size_function: str, like: Tensor, *sizes: int) -> Tensor:
        """Working memory of as many bytes as `size_function` returns."""
        return like.new_empty(self._call_layer(size_function, *sizes) // 2)

    def _checked(self, tensor: Tensor, width: int, *leading_shape: int) -> Tensor:
        """The tensor, contiguous. Raises ValueError unless its shape is (*leading_shape, width)."""
        if tensor.shape[-1] != width or (leading_shape and tensor.shape[:-1] != leading_shape):
            raise ValueError(f"a layer was given {tuple(tensor.shape)} numbers, not {(*leading_shape, width)}")
        return tensor.contiguous()

    def _checked_rope(self, cos: Tensor, sin: Tensor, batch_size: int, length: int) -> tuple[Tensor, Tensor, int]:
        """The rope tables, contiguous, and the distance between those of two sequences. Raises ValueError."""
        per_text = cos.dim() == 3 and len(cos) > 1
        for table in (cos, sin):
            self._checked(
                table if per_text or table.dim() == 2 else table[0],
                self.tiled_weights.head_size,
                *((batch_size, length) if per_text else (length,)),
            )
        return cos.contiguous(), sin.contiguous(), length * self.tiled_weights.head_size if per_text else 0


def create_amx_layer(
    weights: Sequence[Tensor], bias: Tensor | None, norms: tuple[Tensor, Tensor],
    dims: tuple[int, int, int, tuple[float, float]],
) -> AmxLayer | None:  # fmt: skip
    """The layer with these frozen weights (see `TiledWeights`); None if the machine or the sizes do not allow it."""
    if not available(weights[0].dtype) or not all(map(supports_weight, weights)):
        return None
    return AmxLayer(TiledWeights(weights, bias, norms, dims))


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else data_pointer(tensor, DTYPE)


def _call_kernel(name: str, *arguments: Any) -> Any:
    function = getattr(load_kernels(DTYPE), name)
    if function.argtypes is None:
        function.argtypes, function.restype = SIGNATURES[name], C_INT64 if name in SIZE_FUNCTIONS else None
    return function(*(data_pointer(value, DTYPE) if isinstance(value, Tensor) else value for value in arguments))
