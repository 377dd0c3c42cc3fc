"""Log-probabilities of the sampled tokens, and entropy.

The log-probability of a token is `logit[token] - logsumexp(logits)`, with the largest logit subtracted from both.
Without gradients the work is done in chunks of rows, so peak memory stays at a few megabytes whatever the batch.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from rlhf_lab.errors import ConfigError

CHUNK_ELEMENTS = 2**22  # logits per chunk without gradients: 16 MiB in float32
CACHE_CHUNK_ELEMENTS = 2**18  # logits that fit a processor's cache: 1 MiB in float32
GPU_CHUNK_ELEMENTS = 2**26  # on a GPU, where launching a chunk costs as much as computing it: 256 MiB in float32


def token_logprobs(logits: Tensor, tokens: Tensor, *, temperature: float = 1.0) -> Tensor:
    """log softmax(logits / temperature) at the given tokens.

    Args:
        logits: (B, T, V) float; logits[:, t] must be the prediction *for* tokens[:, t] (the caller shifts by one).
            Also (N, V). float16 and bfloat16 are computed in float32.
        tokens: (B, T) int64 ids in [0, V). Also (N,).
        temperature: > 0, the one the tokens were sampled at.

    Returns:
        (B, T), nats, <= 0; differentiable (twice) in logits.

    Raises:
        ConfigError: temperature not positive and finite, shapes that do not belong together.
    """
    _check_logits(logits, tokens.shape, temperature)

    def compute(logits: Tensor, tokens: Tensor) -> tuple[Tensor]:
        return (scale_logits(logits, temperature).log_softmax(dim=-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1),)

    return apply_in_row_chunks(compute, logits, tokens)[0]


def logprobs_and_entropy(logits: Tensor, tokens: Tensor, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """`token_logprobs` and the entropy of softmax(logits / temperature), in one pass.

    Args:
        logits, tokens, temperature: as in `token_logprobs`. A logit of -inf has probability and entropy 0.

    Returns:
        (logprobs, entropy), each (B, T), nats; entropy in [0, log V]. Both differentiable in logits.

    Raises:
        ConfigError: as `token_logprobs`.
    """
    _check_logits(logits, tokens.shape, temperature)

    def compute(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        all_logprobs = scale_logits(logits, temperature).log_softmax(dim=-1)
        logprobs = all_logprobs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        probs = all_logprobs.exp()
        entropy = -(probs * all_logprobs.masked_fill(probs == 0, 0.0)).sum(dim=-1)  # 0 log 0 = 0, never 0 * -inf
        return logprobs, entropy

    logprobs, entropy = apply_in_row_chunks(compute, logits, tokens)
    return logprobs, entropy


def logprobs_with_detached_entropy(
    logits: Tensor, tokens: Tensor, *, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """`logprobs_and_entropy` at a third of its cost, if the entropy is only reported and not trained on.

    Args:
        logits, tokens, temperature: as in `token_logprobs`. A logit of -inf has probability and entropy 0.

    Returns:
        (logprobs, entropy), each (B, T), nats. logprobs are differentiable (once) in logits; entropy has no gradient.

    Raises:
        ConfigError: as `token_logprobs`.
    """
    _check_logits(logits, tokens.shape, temperature)

    def compute(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return _logprobs_detached_entropy(logits, tokens, temperature)

    logprobs, entropy = apply_in_row_chunks(compute, logits, tokens)
    return logprobs, entropy


class _LogprobsDetachedEntropy(torch.autograd.Function):
    """Keeps one tensor of the logits' size, the probabilities: d logprob / d logits = (onehot - p) / temperature."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        scaled = scale_logits(logits, temperature)
        logprobs, entropy, probs = logprobs_entropy_probs(scaled.clone() if scaled is logits else scaled, tokens)
        ctx.save_for_backward(probs, tokens)
        ctx.temperature, ctx.dtype = temperature, logits.dtype
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        probs, tokens = ctx.saved_tensors
        g = (gradients[0] / ctx.temperature).unsqueeze(-1)
        dlogits = (probs * -g).scatter_add_(-1, tokens.unsqueeze(-1), g)
        return dlogits.to(ctx.dtype), None, None


_logprobs_detached_entropy: Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]] = _LogprobsDetachedEntropy.apply


def logprobs_and_entropy_inplace(
    logits: Tensor, tokens: Tensor, temperature: float, needs_grad: bool
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the tokens under softmax(logits / temperature) and its entropy, (N,) each, nats.

    logits: (N, V), overwritten: with onehot(token) - p if needs_grad. tokens: (N,) int64. Works on a few rows at a
    time, in the cache.
    """
    max_elements = CACHE_CHUNK_ELEMENTS if logits.device.type == "cpu" else GPU_CHUNK_ELEMENTS
    results = []
    chunk_rows = max(1, max_elements // logits.shape[1])
    for start in range(0, max(1, len(tokens)), chunk_rows):
        chunk, chunk_tokens = logits[start : start + chunk_rows], tokens[start : start + chunk_rows]
        *stats, probs = logprobs_entropy_probs(scale_logits(chunk, temperature), chunk_tokens)
        results.append(stats)
        if needs_grad:
            chunk.copy_(probs.neg_().scatter_add_(-1, chunk_tokens.unsqueeze(-1), torch.ones_like(probs[:, :1])))
    logprobs, entropy = (torch.cat(tensors) for tensors in zip(*results, strict=True))
    return logprobs, entropy


def logprobs_entropy_probs(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of the tokens and entropy (...), and all probabilities (..., V), without gradient.

    logits: float32 or float64, already divided by the temperature; overwritten. After subtracting the maximum,
    logsumexp is log(1 / max p).
    """
    logits.sub_(logits.amax(-1, keepdim=True))
    probs = logits.softmax(dim=-1)
    log_sum = probs.amax(-1).log_().neg_()
    logprobs = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - log_sum
    logits.clamp_min_(torch.finfo(logits.dtype).min)  # 0 log 0 = 0, never 0 * -inf
    return logprobs, log_sum - torch.linalg.vecdot(probs, logits), probs


def scale_logits(logits: Tensor, temperature: float) -> Tensor:
    """logits / temperature, half precision converted to float32; the same tensor if there is nothing to do."""
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    return logits if temperature == 1.0 else logits / temperature


class HeadKernel(NamedTuple):
    """The operations of `head_logprobs`.

    linear: (x, weight, bias or None) -> x @ weight.T + bias, for a weight of any strides.
    logprobs_and_entropy_inplace: as the function of this name.
    """

    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    logprobs_and_entropy_inplace: Callable[[Tensor, Tensor, float, bool], tuple[Tensor, Tensor]]


TORCH_KERNEL = HeadKernel(functional.linear, logprobs_and_entropy_inplace)


def head_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tokens: Tensor,
    *,
    temperature: float = 1.0,
    kernel: HeadKernel = TORCH_KERNEL,
) -> tuple[Tensor, Tensor]:
    """`logprobs_with_detached_entropy` of the logits hidden @ weight.T + bias, where the vocabulary head is frozen.

    No tensor of the logits' size is saved for the gradient: d logprob / d hidden = (onehot - p) @ weight / temperature
    is computed in the forward pass, in place of the logits.

    Args:
        hidden: (N, H) float, where each token is predicted.
        weight: (V, H), bias: (V,) or None; both of hidden's dtype, and neither gets a gradient.
        tokens: (N,) int64 ids in [0, V).
        temperature: > 0, the one the tokens were sampled at.
        kernel: how to compute it; training passes `kernels.ops.HEAD_KERNEL`.

    Returns:
        (logprobs, entropy), each (N,), nats, float32 for half precision. logprobs are differentiable (once) in hidden;
        entropy has no gradient.

    Raises:
        ConfigError: temperature not positive and finite, shapes that do not belong together.
    """
    check_temperature(temperature)
    if hidden.dim() != 2 or hidden.shape[:-1] != tokens.shape or weight.shape[1:] != hidden.shape[1:]:
        raise ConfigError(
            f"hidden is {tuple(hidden.shape)}, weight {tuple(weight.shape)}, tokens {tuple(tokens.shape)}: "
            "pass (N, H), (V, H) and (N,)."
        )
    return _head_logprobs(hidden, weight, bias, tokens, temperature, kernel)


class _HeadLogprobs(torch.autograd.Function):
    """One buffer of the size of the logits, overwritten with onehot - p."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tokens: Tensor,
        temperature: float,
        kernel: HeadKernel,
    ) -> tuple[Tensor, Tensor]:
        logits = kernel.linear(hidden, weight, bias)
        needs_grad = ctx.needs_input_grad[0]
        logprobs, entropy = kernel.logprobs_and_entropy_inplace(logits, tokens, temperature, needs_grad)
        if needs_grad:
            ctx.save_for_backward(kernel.linear(logits, weight.t(), None))
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (grad_hidden,) = ctx.saved_tensors
        grad = (grad_hidden * (gradients[0] / ctx.temperature).unsqueeze(-1)).to(grad_hidden.dtype)
        return grad, None, None, None, None, None


_head_logprobs: Callable[[Tensor, Tensor, Tensor | None, Tensor, float, HeadKernel], tuple[Tensor, Tensor]] = (
    _HeadLogprobs.apply
)


def check_temperature(temperature: float) -> None:
    """Raises ConfigError unless temperature is positive and finite."""
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ConfigError(
            f"temperature is {temperature}: logits are divided by it. Choose a positive number (usual: 1.0)."
        )


def apply_in_row_chunks(function: Callable[..., tuple[Tensor, ...]], *tensors: Tensor) -> tuple[Tensor, ...]:
    """function(*tensors), a few rows of dimension 0 at a time without gradients, else all at once.

    The function must process rows independently. Chunks have about CHUNK_ELEMENTS elements of the first tensor, or
    GPU_CHUNK_ELEMENTS on a GPU.
    """
    row_count = tensors[0].shape[0]
    max_elements = CHUNK_ELEMENTS if tensors[0].device.type == "cpu" else GPU_CHUNK_ELEMENTS
    chunk_rows = max(1, max_elements * row_count // max(1, tensors[0].numel()))
    needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if needs_grad or row_count <= chunk_rows:
        return function(*tensors)
    results = [
        function(*(tensor[start : start + chunk_rows] for tensor in tensors))
        for start in range(0, row_count, chunk_rows)
    ]
    return tuple(torch.cat(outputs) for outputs in zip(*results, strict=True))


def _check_logits(logits: Tensor, tokens_shape: torch.Size, temperature: float) -> None:
    check_temperature(temperature)
    if logits.dim() < 2 or logits.shape[:-1] != tokens_shape:
        raise ConfigError(
            f"logits is {tuple(logits.shape)}, tokens {tuple(tokens_shape)}: "
            "pass (B, T, V) and (B, T), the logits already shifted onto the token they predict."
        )


def finite_exponent(x: Tensor) -> Tensor:
    """x clamped to 0.9 of the largest exponent of its dtype: 79.8 in float32, 638 in float64.

    The exponential of the result is finite, and so is its product with an advantage (0 times infinity would be NaN).
    The gradient stays 1 above the limit, so that a loss still pulls the ratio back.

    Args:
        x: any shape, float, e.g. log-ratios in nats; NaN stays NaN.

    Returns:
        Shape of x, differentiable; bit-identical to x below the limit.
    """
    return _clamp_with_identity_grad(x)


class _ClampWithIdentityGrad(torch.autograd.Function):
    """`clamp` with the gradient of the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004  nothing is saved
        return x.clamp(max=0.9 * math.log(torch.finfo(x.dtype).max))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # noqa: ARG004
        return gradients[0]


_clamp_with_identity_grad: Callable[[Tensor], Tensor] = _ClampWithIdentityGrad.apply
