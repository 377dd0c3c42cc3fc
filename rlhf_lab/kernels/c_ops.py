"""The compiled kernels as functions of tensors: float32 or bfloat16, on the CPU, without gradients.

`supported` says whether they can compute on a tensor. All tensors of a call have one dtype unless stated otherwise, and
results are rounded to it once, at the end. Results are new tensors; inputs are copied only if they are not contiguous.
ops.py calls them.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from rlhf_lab.errors import ConfigError
from rlhf_lab.kernels.compile import load_kernels

C_INT64, C_FLOAT, C_INT = ctypes.c_int64, ctypes.c_float, ctypes.c_int
SAME_DTYPE = "the first tensor's dtype"
FLOAT32, INT64, BOOL = torch.float32, torch.int64, torch.bool
VECTOR_WIDTH = 16  # VEC_WIDTH in simd.h
PLAIN_TENSOR_TYPES = (Tensor, torch.nn.Parameter)  # types whose data_ptr is their data
#: Argument types of each kernel, tensors by dtype; the number of threads follows as the last argument.
SIGNATURES: dict[str, list[Any]] = {
    "rms_norm": [*[SAME_DTYPE] * 3, FLOAT32, C_INT64, C_INT64, C_FLOAT],
    "rms_norm_backward": [SAME_DTYPE, SAME_DTYPE, FLOAT32, *[SAME_DTYPE] * 4, C_INT64, C_INT64],
    "swiglu": [*[SAME_DTYPE] * 3, C_INT64],
    "swiglu_backward": [*[SAME_DTYPE] * 6, C_INT64],
    "causal_attention": [*[SAME_DTYPE] * 4, FLOAT32, *[C_INT64] * 7, C_FLOAT],
    "causal_attention_backward": [*[SAME_DTYPE] * 5, FLOAT32, *[C_INT64] * 7, C_FLOAT],
    "decode_attention": [*[SAME_DTYPE] * 3, BOOL, *[SAME_DTYPE] * 3, FLOAT32, *[C_INT64] * 6, C_FLOAT],
    "lora_grads": [*[SAME_DTYPE] * 2, *[FLOAT32] * 2, *[SAME_DTYPE] * 2, *[FLOAT32] * 3, *[C_INT64] * 7, C_FLOAT],
    "logprobs_and_entropy": [SAME_DTYPE, INT64, *[FLOAT32] * 3, C_INT64, C_INT64, C_FLOAT, C_INT],
}


def supported(x: Tensor, *others: Tensor) -> bool:
    """Whether there are kernels for tensors like this one.

    others: further tensors of the call; False if their dtypes differ (autocast, a layer in float32).
    """
    if any(other.dtype != x.dtype for other in others):
        return False
    is_plain_cpu = type(x) in PLAIN_TENSOR_TYPES and x.device.type == "cpu" and x.layout == torch.strided
    return is_plain_cpu and load_kernels(x.dtype) is not None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """weight · x / rms(x) of each row, and 1 / sqrt(mean square + eps), (N, 1) float32. x: (N, H), weight: (H,)."""
    x = x.contiguous()
    out, inverse_rms = torch.empty_like(x), _empty_float32(len(x), 1)
    _call_kernel("rms_norm", x, weight, out, inverse_rms, *x.shape, eps)
    return out, inverse_rms


def rms_norm_backward(
    grad_output: Tensor, x: Tensor, inverse_rms: Tensor, weight: Tensor, residual_grad: Tensor
) -> tuple[Tensor, Tensor]:
    """residual_grad + the gradient of x, and the output of `rms_norm` recomputed. All (N, H), but weight (H,) and
    inverse_rms (N, 1) float32.
    """
    x = x.contiguous()
    out, recomputed = torch.empty_like(x), torch.empty_like(x)
    _call_kernel(
        "rms_norm_backward",
        grad_output.contiguous(),
        x,
        inverse_rms,
        weight,
        residual_grad.contiguous(),
        out,
        recomputed,
        *x.shape,
    )
    return out, recomputed


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up, any shape."""
    gate, up = gate.contiguous(), up.contiguous()
    out = torch.empty_like(gate)
    _call_kernel("swiglu", gate, up, out, gate.numel())
    return out


def swiglu_backward(grad_output: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of gate and up, (2, N, I), and the output of `swiglu` recomputed. All arguments (N, I)."""
    gate, up = gate.contiguous(), up.contiguous()
    grads, recomputed = gate.new_empty(2, *gate.shape), torch.empty_like(gate)
    _call_kernel("swiglu_backward", grad_output.contiguous(), gate, up, grads[0], grads[1], recomputed, gate.numel())
    return grads, recomputed


def causal_attention(
    qkv: Tensor, cos: Tensor, sin: Tensor, batch_size: int, start_pos: int, heads: int, kv_heads: int
) -> Tensor:
    """Causal attention of the tokens from start_pos on, (B·(T - start_pos), heads·D).

    qkv: (B·T, (heads + 2 kv_heads)·D): q, k and v of each token before RoPE. cos, sin: (T, D), (1, T, D) or (B, T, D),
    see rope.py. Allocates no tensor of T² elements.
    """
    qkv, (length, head_size, rope_stride) = qkv.contiguous(), _attention_sizes(qkv, cos, batch_size, heads, kv_heads)
    attn_output = qkv.new_empty(batch_size * (length - start_pos), heads * head_size)
    workspace = _workspace("attention_workspace_size", qkv, length, head_size)
    _call_kernel(
        "causal_attention", qkv, cos.contiguous(), sin.contiguous(), attn_output, workspace,
        batch_size, length, start_pos, heads, kv_heads, head_size, rope_stride, head_size**-0.5,
    )  # fmt: skip
    return attn_output


def causal_attention_backward(
    grad_output: Tensor,
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    batch_size: int,
    start_pos: int,
    heads: int,
    kv_heads: int,
) -> Tensor:
    """The gradient of qkv. grad_output: of the result of `causal_attention`."""
    qkv, (length, head_size, rope_stride) = qkv.contiguous(), _attention_sizes(qkv, cos, batch_size, heads, kv_heads)
    d_qkv, workspace = torch.empty_like(qkv), _workspace("attention_workspace_size", qkv, length, head_size)
    _call_kernel(
        "causal_attention_backward", grad_output.contiguous(), qkv, cos.contiguous(), sin.contiguous(), d_qkv, workspace,
        batch_size, length, start_pos, heads, kv_heads, head_size, rope_stride, head_size**-0.5,
    )  # fmt: skip
    return d_qkv


def decode_attention(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    attention_mask: Tensor | None,
    keys: Tensor,
    values: Tensor,
    cached_length: int,
    heads: int,
) -> Tensor:
    """Attention of one new token per row, (B, heads·D); writes its key and value into column `cached_length`.

    qkv: (B, (heads + 2 kv_heads)·D). cos, sin: (B, 1, D), see rope.py. attention_mask: bool, B·(cached_length + 1)
    elements, which tokens a row attends to; None: all. keys, values: (B, kv_heads, capacity, D), contiguous, capacity >
    cached_length.
    """
    batch_size, kv_heads, capacity, head_size = keys.shape
    flat_mask = None if attention_mask is None else attention_mask.reshape(batch_size, cached_length + 1).contiguous()
    attn_output = qkv.new_empty(batch_size, heads * head_size)
    workspace = _workspace("decode_attention_workspace_size", qkv, cached_length, head_size)
    _call_kernel(
        "decode_attention", qkv, cos.contiguous(), sin.contiguous(), flat_mask, keys, values, attn_output, workspace,
        batch_size, cached_length, capacity, heads, kv_heads, head_size, head_size**-0.5,
    )  # fmt: skip
    return attn_output


def lora_grads_supported(x: Tensor, grad_output: Tensor) -> bool:
    """Whether `lora_grads` can compute on these."""
    is_aligned = x.shape[1] % VECTOR_WIDTH == 0 and grad_output.shape[1] % VECTOR_WIDTH == 0
    return (
        is_aligned
        and x.is_contiguous()
        and grad_output.stride(1) == 1
        and grad_output.dtype == x.dtype
        and supported(x)
    )


def lora_grads(
    x: Tensor, grad_output: Tensor, a: Tensor, b: Tensor, scale: float, low_rank: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """dA = scale · (g·B)ᵀ·x and dB = scale · gᵀ·(x·Aᵀ), in float32.

    x: (N, in), grad_output: g (N, out), rows may be strided, a: (r, in), b: (out, r), both float32.
    low_rank: x·Aᵀ and scale · g·B, (N, r) each, rows may be strided; None: computed here, in float32.
    """
    (row_count, in_features), (out_features, rank) = x.shape, b.shape
    d_a, d_b = _empty_float32(rank, in_features), _empty_float32(out_features, rank)
    workspace = _workspace("lora_workspace_size", x, row_count, rank, (2 * row_count + out_features) * rank)
    low_rank_x, low_rank_grad = low_rank or (None, None)
    _call_kernel(
        "lora_grads",
        x,
        _strided_pointer(grad_output, x),
        a.contiguous(),
        b.contiguous(),
        _strided_pointer(low_rank_x, x),
        _strided_pointer(low_rank_grad, x),
        d_a,
        d_b,
        workspace,
        row_count,
        in_features,
        out_features,
        rank,
        grad_output.stride(0),
        *(0 if tensor is None else tensor.stride(0) for tensor in (low_rank_x, low_rank_grad)),
        scale,
    )
    return d_a, d_b


def logprobs_and_entropy_inplace(
    logits: Tensor, tokens: Tensor, temperature: float, needs_grad: bool
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the tokens under softmax(logits / temperature) and its entropy, (N,) float32 each, nats.

    logits: (N, V), overwritten: with onehot(token) - p if needs_grad. tokens: (N,) int64.
    Raises ConfigError for a token outside the vocabulary.
    """
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < logits.shape[1]:
        raise ConfigError(f"a token id is outside the vocabulary, which has {logits.shape[1]} tokens.")
    tokens, workspace = tokens.long().contiguous(), _workspace("logprobs_workspace_size", logits, logits.shape[1], 1)
    logprobs, entropies = _empty_float32(len(tokens)), _empty_float32(len(tokens))
    _call_kernel(
        "logprobs_and_entropy", logits, tokens, logprobs, entropies, workspace, *logits.shape, temperature, needs_grad
    )
    return logprobs, entropies


def _attention_sizes(qkv: Tensor, cos: Tensor, batch_size: int, heads: int, kv_heads: int) -> tuple[int, int, int]:
    """Tokens per sequence, head size, and distance between the rope tables of two sequences."""
    length, head_size = len(qkv) // batch_size, qkv.shape[1] // (heads + 2 * kv_heads)
    return length, head_size, length * head_size if cos.dim() == 3 and len(cos) > 1 else 0


def _empty_float32(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32)


def _workspace(function: str, like: Tensor, length: int, width: int, extra: int = 0) -> Tensor:
    """Working memory for all threads, as many elements per thread as `function` returns, plus `extra`."""
    size_function = getattr(load_kernels(like.dtype), function)
    if size_function.argtypes is None:
        size_function.argtypes, size_function.restype = [C_INT64, C_INT64], C_INT64
    return _empty_float32(torch.get_num_threads() * size_function(length, width) + extra)


def _call_kernel(name: str, *arguments: Any) -> None:
    signature, dtype = SIGNATURES[name], arguments[0].dtype
    function = getattr(load_kernels(dtype), name)
    if function.argtypes is None:
        pointers = (SAME_DTYPE, FLOAT32, INT64, BOOL)
        function.argtypes = [
            *(ctypes.c_void_p if arg_type in pointers else arg_type for arg_type in signature),
            C_INT64,
        ]
        function.restype = None
    c_arguments = [
        data_pointer(argument, dtype if arg_type is SAME_DTYPE else arg_type)
        if isinstance(argument, Tensor)
        else argument
        for argument, arg_type in zip(arguments, signature, strict=True)
    ]
    function(*c_arguments, torch.get_num_threads())


def data_pointer(tensor: Tensor, dtype: torch.dtype, *, strided: bool = False) -> int:
    """Address of a tensor's data. strided: rows need not be adjacent. Raises ValueError for a dtype or layout that a
    kernel would misread.
    """
    if tensor.dtype != dtype or not (tensor.stride(1) == 1 if strided else tensor.is_contiguous()):
        raise ValueError(
            f"a kernel was given {tuple(tensor.shape)} numbers of {tensor.dtype} with strides {tensor.stride()}"
        )
    return tensor.data_ptr()


def _strided_pointer(tensor: Tensor | None, like: Tensor) -> int | None:
    return None if tensor is None else data_pointer(tensor, like.dtype, strided=True)
