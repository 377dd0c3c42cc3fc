"""The parts of TRPO on quadratics and on small softmax policies. Expected values: by hand, or dense linear algebra."""

import pytest
import torch

from rlhf_lab.core import trpo
from rlhf_lab.core.kl import full_kl
from rlhf_lab.core.trpo import LineSearchStatus
from rlhf_lab.errors import ConfigError

NAN, INF = float("nan"), float("inf")


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def spd(n, seed=0):
    """A symmetric positive definite matrix (n, n)."""
    root = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return root @ root.T + 0.5 * torch.eye(n, dtype=torch.float64)


# --- conjugate gradient --------------------------------------------------------------------------------------------


def test_conjugate_gradient_by_hand():
    """A = [[2, 0], [0, 4]], b = (2, 8): x = (1, 2). First step b.b / b.Ab = 68 / 264 along b; the second ends it."""
    matrix, b = f64([[2.0, 0.0], [0.0, 4.0]]), f64([2.0, 8.0])
    one = trpo.conjugate_gradient(lambda v: matrix @ v, b, iters=1)
    assert one.x.tolist() == pytest.approx([2 * 68 / 264, 8 * 68 / 264], abs=1e-12)
    assert one.residual == pytest.approx((b - matrix @ one.x).norm().item(), abs=1e-12)
    two = trpo.conjugate_gradient(lambda v: matrix @ v, b, iters=2)
    assert two.x.tolist() == pytest.approx([1.0, 2.0], abs=1e-12)
    assert (one.iterations, two.iterations) == (1, 2)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-3)])
def test_conjugate_gradient_solves_in_n_steps(dtype, tolerance):
    matrix = spd(6).to(dtype)
    b = torch.randn(6, dtype=dtype, generator=torch.Generator().manual_seed(1))
    got = trpo.conjugate_gradient(lambda v: matrix @ v, b, iters=6)
    torch.testing.assert_close(got.x, torch.linalg.solve(matrix, b), rtol=tolerance, atol=tolerance)
    assert got.x.dtype == dtype


def test_conjugate_gradient_stops_at_the_tolerance():
    """Eigenvalues 1 and 5, b all ones: after one step (length 6 / 18) the residual is 2/3 of b, after two it is 0."""
    diagonal, b = f64([1.0, 1.0, 1.0, 5.0, 5.0, 5.0]), torch.ones(6, dtype=torch.float64)
    for tol, expected_calls in ((0.7, 1), (0.6, 2), (1e-6, 2), (1.0, 0)):
        calls = []
        got = trpo.conjugate_gradient(lambda v, c=calls: c.append(1) or diagonal * v, b, iters=50, tol=tol)
        assert got.iterations == len(calls) == expected_calls
        assert (b - diagonal * got.x).norm() <= tol * b.norm()


def test_conjugate_gradient_stops_at_negative_curvature():
    matrix = torch.diag(f64([1.0, -5.0]))
    got = trpo.conjugate_gradient(lambda v: matrix @ v, f64([1.0, 1.0]))
    assert (got.iterations, got.x.tolist()) == (0, [0.0, 0.0])


# --- Fisher-vector products ----------------------------------------------------------------------------------------


def small_policy(seed=0):
    """Two states, three words: logits = weight (3, 2) . features + bias (3,), and the chance of each state."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(3, 2, dtype=torch.float64, generator=generator).requires_grad_()
    bias = torch.randn(3, dtype=torch.float64, generator=generator).requires_grad_()
    return [weight, bias], f64([[1.0, 0.5], [-0.3, 2.0]]), f64([0.25, 0.75])


def logits_of(parameters, features):
    return (features @ parameters[0].T + parameters[1]).unsqueeze(0)


def mean_kl(parameters, old_logits, features, chance):
    return (full_kl(old_logits, logits_of(parameters, features))[0] * chance).sum()


def dense_fisher(parameters, features, chance):
    """E[grad log pi grad log pi^T], summed over states and words, one score function at a time."""
    logprobs = logits_of(parameters, features).log_softmax(-1)[0]
    fisher = torch.zeros(9, 9, dtype=torch.float64)
    for state in range(2):
        for word in range(3):
            score = torch.autograd.grad(logprobs[state, word], parameters, retain_graph=True)
            flat = torch.cat([part.reshape(-1) for part in score])
            fisher += chance[state] * logprobs[state, word].exp().detach() * torch.outer(flat, flat)
    return fisher


@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_fisher_product_equals_the_dense_matrix(damping):
    parameters, features, chance = small_policy()
    kl = mean_kl(parameters, logits_of(parameters, features).detach(), features, chance)
    product = trpo.fisher_product(kl, parameters, damping)
    fisher = dense_fisher(parameters, features, chance) + damping * torch.eye(9, dtype=torch.float64)
    columns = torch.stack([product(unit) for unit in torch.eye(9, dtype=torch.float64)])
    torch.testing.assert_close(columns, fisher, rtol=0, atol=1e-12)


def test_unused_parameters_have_no_curvature():
    parameters, features, chance = small_policy()
    unused = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    kl = mean_kl(parameters, logits_of(parameters, features).detach(), features, chance)
    product = trpo.fisher_product(kl, [*parameters, unused], 0.5)
    assert product(torch.ones(11, dtype=torch.float64))[9:].tolist() == [0.5, 0.5]
    alone = trpo.fisher_product((0 * unused).sum(), [unused], 0.5)
    assert alone(f64([2.0, 4.0])).tolist() == [1.0, 2.0]


# --- the step ------------------------------------------------------------------------------------------------------


def test_natural_step_by_hand():
    """F = diag(1, 4), g = (2, 4): F^-1 g = (2, 1), x.Fx = 8; for KL 1 the length is sqrt(2 / 8) = 1/2."""
    fisher = torch.diag(f64([1.0, 4.0]))
    step = trpo.natural_step(f64([2.0, 4.0]), lambda v: fisher @ v, max_kl=1.0)
    assert step.tolist() == pytest.approx([1.0, 0.5], abs=1e-12)
    assert (0.5 * step @ fisher @ step).item() == pytest.approx(1.0, abs=1e-12)
    assert trpo.natural_step(f64([0.0, 0.0]), lambda v: fisher @ v, 1.0).tolist() == [0.0, 0.0]
    assert trpo.natural_step(f64([1.0, 1.0]), lambda v: -v, 1.0).tolist() == [0.0, 0.0]


def test_natural_step_of_a_policy_has_the_requested_kl():
    """The true KL after the step is max_kl up to third order: a tenth of the KL, a third of the relative error."""
    parameters, features, chance = small_policy()
    old = logits_of(parameters, features).detach()
    gradient = torch.randn(9, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    errors = []
    for max_kl in (1e-3, 1e-4, 1e-5):
        kl = mean_kl(parameters, old, features, chance)
        product = trpo.fisher_product(kl, parameters, damping=1e-8)  # nine numbers, four of them do nothing
        projected = dense_fisher(parameters, features, chance) @ gradient  # a gradient that a policy can have
        step = trpo.natural_step(projected, product, max_kl)
        moved = [p + d for p, d in zip(parameters, trpo.unflatten(step, parameters), strict=True)]
        errors.append(abs(mean_kl(moved, old, features, chance).item() / max_kl - 1))
        assert (step @ projected).item() > 0
    assert errors[0] < 0.1
    assert errors[1] < 0.5 * errors[0]
    assert errors[2] < 0.5 * errors[1]


def test_a_whole_trpo_update_improves_within_the_limit():
    """Reward for word 0 in both states: step, search, and the policy is better by no more KL than allowed."""
    parameters, features, chance = small_policy()
    old = logits_of(parameters, features).detach()
    payoffs = f64([1.0, 0.0, 0.0])

    def objective(values):
        return (chance * (logits_of(values, features).softmax(-1)[0] @ payoffs)).sum()

    start = objective(parameters)
    gradient = trpo.flatten(torch.autograd.grad(start, parameters))
    product = trpo.fisher_product(mean_kl(parameters, old, features, chance), parameters, 1e-6)
    step = trpo.natural_step(gradient, product, max_kl=0.05)

    def evaluate(fraction):
        parts = trpo.unflatten(fraction * step, parameters)
        moved = [p.detach() + d for p, d in zip(parameters, parts, strict=True)]
        return (objective(moved) - start).item(), mean_kl(moved, old, features, chance).item()

    found = trpo.line_search(evaluate, 0.05, expected_gain=(gradient @ step).item())
    assert found.status is LineSearchStatus.ACCEPTED
    assert found.gain > 0.01
    assert 0.005 < found.kl <= 0.05


# --- the line search -----------------------------------------------------------------------------------------------


def test_line_search_takes_the_first_fraction_that_keeps_the_limit():
    """KL = fraction^2, limit 0.3: 1 and 0.5 give 1 and 0.25."""
    found = trpo.line_search(lambda f: (f, f * f), 0.3)
    assert found == (0.5, 0.5, 0.25, 2, LineSearchStatus.ACCEPTED)


def test_line_search_requires_a_share_of_the_expected_gain():
    """gain = f - f^2: 0, 0.25, 0.1875, ... against 0.6 f: only 0.25 f and less reach it (0.1875 >= 0.15)."""
    found = trpo.line_search(lambda f: (f - f * f, 0.0), 1.0, expected_gain=1.0, accept_ratio=0.6)
    assert found == (0.25, 0.1875, 0.0, 3, LineSearchStatus.ACCEPTED)


@pytest.mark.parametrize(
    ("evaluate", "reason"),
    [
        (lambda f: (1.0, 0.5), LineSearchStatus.KL),
        (lambda f: (-1.0, 0.0), LineSearchStatus.GAIN),
        (lambda f: (0.0, 0.0), LineSearchStatus.GAIN),
        (lambda f: (NAN, 0.0), LineSearchStatus.NOT_FINITE),
        (lambda f: (1.0, INF), LineSearchStatus.NOT_FINITE),
    ],
)
def test_line_search_reports_why_it_failed(evaluate, reason):
    found = trpo.line_search(evaluate, 0.1, tries=3)
    assert (found.fraction, found.attempts, found.status) == (0.0, 3, reason)


def test_flatten_and_back():
    parts = [f64([[1.0, 2.0], [3.0, 4.0]]), f64([5.0]), f64(6.0)]
    flat = trpo.flatten(parts)
    assert flat.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    for part, restored in zip(parts, trpo.unflatten(flat, parts), strict=True):
        assert torch.equal(part, restored)


def test_bad_arguments_are_refused():
    x = f64([1.0, 2.0])
    leaf = x.clone().requires_grad_()
    refused = [
        lambda: trpo.conjugate_gradient(lambda v: v, x.unsqueeze(0)),
        lambda: trpo.conjugate_gradient(lambda v: v, x, iters=0),
        lambda: trpo.conjugate_gradient(lambda v: v, x, tol=-1.0),
        lambda: trpo.fisher_product(leaf.square(), [leaf]),
        lambda: trpo.fisher_product(leaf.sum(), []),
        lambda: trpo.fisher_product(leaf.sum(), [leaf], -0.1),
        lambda: trpo.natural_step(x, lambda v: v, 0.0),
        lambda: trpo.line_search(lambda f: (f, f), 0.0),
        lambda: trpo.line_search(lambda f: (f, f), 0.1, shrink=1.0),
        lambda: trpo.line_search(lambda f: (f, f), 0.1, tries=0),
        lambda: trpo.unflatten(x, [f64([1.0])]),
    ]
    for call in refused:
        with pytest.raises(ConfigError):
            call()
