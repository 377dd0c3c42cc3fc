"""A low-rank update of a weight within a layer whose gradient is written by hand, in one of two ways.

Merged, the weight is W + s·B·A. Where that sum would round the update away (lora_linear.py) it stays beside: the weight is
[W | s·B] and what it multiplies is [x | x·Aᵀ], one product all the same. On the way back the columns behind x's are s·g·B, which
the slopes of x and of A need both.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rlhf_lab.kernels import ops
from rlhf_lab.kernels.matmul import linear


def concat_lora_input(x: Tensor, a: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """What a weight multiplies in the place of x (N, in): x itself where its update is merged, else [x | low]; and low = x·Aᵀ.

    a: A of every weight that reads x, one below the other, (Σr, in), where updates are beside.
    """
    if a is None:
        return x, None
    low_rank = linear(x, a)
    return torch.cat([x, low_rank], 1), low_rank


def split_lora_grad(grad: Tensor, a: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The slopes of x and of low from that of what `concat_lora_input` made of x, which is used up."""
    if a is None:
        return grad, None
    x_grad, low_rank_grad = grad.split_with_sizes((a.shape[1], a.shape[0]), 1)
    return x_grad.addmm_(low_rank_grad, a), low_rank_grad


def lora_grads(
    lora_tensors: Sequence[Tensor],
    scale: float,
    x: Tensor,
    grad_outputs: Sequence[Tensor] | Tensor,
    low_rank: Tensor | None,
    low_rank_grad: Tensor | None,
) -> list[Tensor]:
    """dA = s·(g·B)ᵀ·x and dB = s·gᵀ·(x·Aᵀ), in turn, of weights that read the same input.

    pairs: their A (r, in) and B (out, r), in turn; none where nothing learns. x: (N, in). slopes: g (N, out) of each, one tensor
    where their sizes are the same. low, low_slope: of `concat_lora_input` and `split_lora_grad`.
    """
    if not lora_tensors:
        return []
    a, b = lora_tensors[::2], lora_tensors[1::2]
    ranks = [tensor.shape[0] for tensor in a]
    if all(ops.lora_grads_supported(x, grad) for grad in grad_outputs) and all(
        tensor.dtype == torch.float32 for tensor in lora_tensors
    ):
        precomputed: list[tuple[Tensor, Tensor] | None] = [None] * len(a)
        if low_rank is not None and low_rank_grad is not None:
            precomputed = [*zip(low_rank.split(ranks, 1), low_rank_grad.split(ranks, 1), strict=True)]
        kernel_grads = (
            ops.lora_grads(x, g, a, b, scale, low_ranks)
            for a, b, g, low_ranks in zip(a, b, grad_outputs, precomputed, strict=True)
        )
        return [grad for pair in kernel_grads for grad in pair]
    # The long dimension (rows) comes last in the rank-r products: four times as fast as with r last (BLAS, measured).
    if low_rank is None or low_rank_grad is None:
        transposed_grads = grad_outputs.mT if isinstance(grad_outputs, Tensor) else [grad.t() for grad in grad_outputs]
        low_rank_t = _concat(a).mm(x.t())
        da = _concat(_matmuls([tensor.t() for tensor in b], transposed_grads)).mm(x).mul_(scale)
    else:
        low_rank_t = low_rank.t()
        da = low_rank_grad.t().mm(x).to(a[0].dtype)
    db = [
        torch.mul(
            product.t().to(tensor.dtype), scale, out=torch.empty_like(tensor)
        )  # as B lies, or autograd would copy it
        for tensor, product in zip(b, _matmuls(low_rank_t.split(ranks), grad_outputs), strict=True)
    ]
    return [grad for pair in zip(da.split(ranks), db, strict=True) for grad in pair]


def _matmuls(left: Sequence[Tensor], right: Sequence[Tensor] | Tensor) -> list[Tensor]:
    """few (r, K) @ many (K, M) of each; where the sizes are the same, as batched ones, which take two thirds of the time."""
    if isinstance(right, Tensor) and len(left) > 1 and len({a.shape for a in left}) == 1:
        return [*torch.bmm(torch.stack([*left]), right)]
    return [a.mm(b) for a, b in zip(left, right, strict=True)]


def _concat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([*tensors]) if len(tensors) > 1 else tensors[0]
