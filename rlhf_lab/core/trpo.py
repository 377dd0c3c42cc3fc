"""The parts of TRPO: conjugate gradient, Fisher-vector products, the natural step, and a line search.

n is the number of parameters, all of them in one flat vector. Nothing here changes a parameter: the caller evaluates
each fraction of the step.

Source: Schulman et al. 2015 (TRPO), §6 and appendix C.
"""

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf_lab.errors import ConfigError

MatVec = Callable[[Tensor], Tensor]


class CGResult(NamedTuple):
    """Result of `conjugate_gradient`."""

    x: Tensor  # (n,)
    residual: float  # Euclidean norm of b - A x
    iterations: int


class LineSearchStatus(StrEnum):
    """Why the line search ended: accepted, or what was wrong with the smallest step."""

    ACCEPTED = "accepted"
    KL = "the KL is above the limit"
    GAIN = "the objective does not gain enough"
    NOT_FINITE = "the objective or the KL is NaN or infinite"


class LineSearchResult(NamedTuple):
    """Result of `line_search`: take `fraction` of the step (0: keep the parameters)."""

    fraction: float
    gain: float  # of the surrogate objective, at the last fraction tried
    kl: float  # nats, at the last fraction tried
    attempts: int
    status: LineSearchStatus


def conjugate_gradient(matvec: MatVec, b: Tensor, iters: int = 10, tol: float = 1e-10) -> CGResult:
    """Solve A x = b for a symmetric positive definite A given by its matrix-vector products only.

    Args:
        matvec: v (n,) -> A v (n,).
        b: (n,) float.
        iters: maximum number of products, >= 1; n suffice without rounding errors.
        tol: stop when |b - A x| <= tol * |b|; >= 0.

    Returns:
        CGResult. Stops early at a direction of zero or negative curvature (A is then not positive definite: raise the
        damping).

    Raises:
        ConfigError: b not (n,), iters < 1, tol negative.

    Source: Hestenes & Stiefel 1952; Nocedal & Wright 2006 algorithm 5.2.
    """
    if b.dim() != 1 or iters < 1 or not tol >= 0:
        raise ConfigError(f"b is {tuple(b.shape)}, iters {iters}, tol {tol}: pass (n,), at least 1, and 0 or more.")
    x, residual = torch.zeros_like(b), b.clone()
    direction = residual.clone()
    residual_sq = float(residual @ residual)
    limit = tol * tol * residual_sq
    iterations = 0
    while iterations < iters and residual_sq > limit:
        product = matvec(direction)
        curvature = float(direction @ product)
        if not curvature > 0:
            break
        step_size = residual_sq / curvature
        x = x + step_size * direction
        residual = residual - step_size * product
        previous_sq, residual_sq = residual_sq, float(residual @ residual)
        direction = residual + (residual_sq / previous_sq) * direction
        iterations += 1
    return CGResult(x, math.sqrt(residual_sq), iterations)


def fisher_product(kl: Tensor, parameters: Sequence[Tensor], damping: float = 0.0) -> MatVec:
    """v -> (F + damping I) v, F the Hessian of a mean KL at the parameters it was computed from.

    Where the KL is that of the policy to itself (the other side detached), F is the Fisher information: no matrix is
    ever built, only the gradient of grad(KL) . v.

    Args:
        kl: scalar, nats, e.g. the token mean of `full_kl(logits.detach(), logits)`; twice differentiable.
        parameters: n numbers in all; those that the KL does not depend on have products 0.
        damping: >= 0.

    Returns:
        A function (n,) -> (n,), usable any number of times while the graph of kl exists.

    Raises:
        ConfigError: kl not a scalar, no parameters, damping negative.

    Source: Pearlmutter 1994; Schulman et al. 2015 appendix C.1.
    """
    parameters = list(parameters)
    if kl.dim() != 0 or not parameters or not damping >= 0:
        raise ConfigError(f"kl is {tuple(kl.shape)}, damping {damping}: pass a scalar, parameters, and 0 or more.")
    grad_kl = flatten(torch.autograd.grad(kl, parameters, create_graph=True, materialize_grads=True))

    def product(vector: Tensor) -> Tensor:
        if not grad_kl.requires_grad:  # a KL that no parameter enters
            return damping * vector
        hessian_vector = torch.autograd.grad(grad_kl @ vector, parameters, retain_graph=True, materialize_grads=True)
        return flatten(hessian_vector) + damping * vector

    return product


def natural_step(gradient: Tensor, matvec: MatVec, max_kl: float, iters: int = 10, tol: float = 1e-10) -> Tensor:
    """The step up the gradient whose KL, to second order, is max_kl: sqrt(2 max_kl / x.Fx) x with F x = gradient.

    Args:
        gradient: (n,) of the objective, to be increased.
        matvec: Fisher-vector product, see `fisher_product`.
        max_kl: > 0, nats.
        iters, tol: as in `conjugate_gradient`.

    Returns:
        (n,), finite; zeros where the gradient is 0 or the curvature not positive.

    Raises:
        ConfigError: max_kl not positive and finite; as `conjugate_gradient`.
    """
    if not 0 < max_kl < math.inf:
        raise ConfigError(f"max_kl is {max_kl}: choose a positive number of nats (usual: 0.01).")
    x = conjugate_gradient(matvec, gradient, iters, tol).x
    curvature = float(x @ matvec(x))
    if not 0 < curvature < math.inf:
        return torch.zeros_like(x)
    return math.sqrt(2.0 * max_kl / curvature) * x


def line_search(
    evaluate: Callable[[float], tuple[float, float]],
    max_kl: float,
    *,
    expected_gain: float = 0.0,
    accept_ratio: float = 0.1,
    shrink: float = 0.5,
    tries: int = 10,
) -> LineSearchResult:
    """The largest of the fractions 1, shrink, shrink^2, ... that gains enough and stays within the trust region.

    Args:
        evaluate: fraction -> (gain of the surrogate over no step, mean KL(old || new) in nats) with that fraction of
            the step taken. The caller restores the parameters.
        max_kl: > 0, nats: a hard limit, not a factor of the objective.
        expected_gain: first-order gain of the whole step (gradient . step), >= 0.
        accept_ratio: a fraction f is accepted if its gain is positive and at least accept_ratio * f * expected_gain.
        shrink: in (0, 1).
        tries: >= 1.

    Returns:
        LineSearchResult; with fraction 0, status says why the last fraction was rejected.

    Raises:
        ConfigError: an argument out of its range.
    """
    if not (0 < max_kl < math.inf and expected_gain >= 0 and accept_ratio >= 0 and 0 < shrink < 1 and tries >= 1):
        raise ConfigError(
            f"max_kl {max_kl}, expected_gain {expected_gain}, accept_ratio {accept_ratio}, shrink {shrink}, tries {tries}: "
            "max_kl must be positive, shrink between 0 and 1, tries at least 1, the others 0 or more."
        )
    for attempt in range(tries):
        fraction = shrink**attempt
        gain, kl = evaluate(fraction)
        status = _line_search_status(gain, kl, max_kl, accept_ratio * fraction * expected_gain)
        if status is LineSearchStatus.ACCEPTED:
            return LineSearchResult(fraction, gain, kl, attempt + 1, status)
    return LineSearchResult(0.0, gain, kl, tries, status)


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """All elements of the tensors in one vector (n,)."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def unflatten(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The inverse of `flatten`: views of vector (n,) with the shapes of `like`. Raises ConfigError if n differs."""
    sizes = [tensor.numel() for tensor in like]
    if vector.shape != (sum(sizes),):
        raise ConfigError(f"vector is {tuple(vector.shape)}, but there are {sum(sizes)} parameters.")
    return [chunk.view(tensor.shape) for chunk, tensor in zip(torch.split(vector, sizes), like, strict=True)]


def _line_search_status(gain: float, kl: float, max_kl: float, min_gain: float) -> LineSearchStatus:
    if not (math.isfinite(gain) and math.isfinite(kl)):
        return LineSearchStatus.NOT_FINITE
    if kl > max_kl:
        return LineSearchStatus.KL
    return LineSearchStatus.ACCEPTED if gain > 0 and gain >= min_gain else LineSearchStatus.GAIN
