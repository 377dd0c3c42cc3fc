"""Log-probabilities of the sampled tokens, and entropy.

The log-probability of a token is `logit[token] - logsumexp(logits)`, with the largest logit subtracted from both.
Without gradients the work is done in chunks of rows, so peak memory stays at a few megabytes whatever the batch.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlhf_lab.errors import ConfigError
from rlhf_lab.kernels import ops
from rlhf_lab.kernels.matmul import linear

CHUNK_ELEMENTS = 2**22  # logits per chunk without gradients: 16 MiB in float32


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
        return (ops.scale_logits(logits, temperature).log_softmax(dim=-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1),)

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
        all_logprobs = ops.scale_logits(logits, temperature).log_softmax(dim=-1)
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
        scaled = ops.scale_logits(logits, temperature)
        logprobs, entropy, probs = ops.logprobs_entropy_probs(scaled.clone() if scaled is logits else scaled, tokens)
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


def head_logprobs(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, *, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """`logprobs_with_detached_entropy` of the logits hidden @ weight.T + bias, where the vocabulary head is frozen.

    No tensor of the logits' size is saved for the gradient: d logprob / d hidden = (onehot - p) @ weight / temperature
    is computed in the forward pass, in place of the logits.

    Args:
        hidden: (N, H) float, where each token is predicted.
        weight: (V, H), bias: (V,) or None; both of hidden's dtype, and neither gets a gradient.
        tokens: (N,) int64 ids in [0, V).
        temperature: > 0, the one the tokens were sampled at.

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
    return _head_logprobs(hidden, weight, bias, tokens, temperature)


class _HeadLogprobs(torch.autograd.Function):
    """One buffer of the size of the logits, overwritten with onehot - p."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        logits = linear(hidden, weight, bias)
        needs_grad = ctx.needs_input_grad[0]
        logprobs, entropy = ops.logprobs_and_entropy_inplace(logits, tokens, temperature, needs_grad)
        if needs_grad:
            ctx.save_for_backward(linear(logits, weight.t()))
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (grad_hidden,) = ctx.saved_tensors
        return (
            (grad_hidden * (gradients[0] / ctx.temperature).unsqueeze(-1)).to(grad_hidden.dtype),
            None,
            None,
            None,
            None,
        )


_head_logprobs: Callable[[Tensor, Tensor, Tensor | None, Tensor, float], tuple[Tensor, Tensor]] = _HeadLogprobs.apply


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
    max_elements = CHUNK_ELEMENTS if tensors[0].device.type == "cpu" else ops.GPU_CHUNK_ELEMENTS
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
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004  nothing is kept
        return x.clamp(max=0.9 * math.log(torch.finfo(x.dtype).max))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # noqa: ARG004
        return gradients[0]


_clamp_with_identity_grad: Callable[[Tensor], Tensor] = _ClampWithIdentityGrad.apply
