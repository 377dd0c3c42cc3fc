"""KL estimates and shaped rewards. Expected values: plain Python, or worked by hand."""

import math

import pytest
import torch
from support import reference_formulas

from rlhf_lab.core import kl
from rlhf_lab.errors import ConfigError

NAN, INF = float("nan"), float("inf")
LOGITS, REF_LOGITS = [0.3, -1.2, 0.8, 2.0, -0.4], [1.0, -0.5, 0.1, 0.9, 0.6]


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def softmax(logits, temperature=1.0):
    weights = [math.exp(x / temperature) for x in logits]
    return [w / math.fsum(weights) for w in weights]


def exact_kl(logits, ref_logits, temperature=1.0):
    p, q = softmax(logits, temperature), softmax(ref_logits, temperature)
    return math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_estimates_by_hand(dtype, tolerance):
    """Policy 1/2, reference 1/4: d = log 2, k1 = log 2, k2 = log(2)^2 / 2, k3 = 1/2 - 1 + log 2. Then the reverse."""
    logprobs = torch.tensor([[math.log(0.5), math.log(0.25)]], dtype=dtype)
    ref_logprobs = torch.tensor([[math.log(0.25), math.log(0.5)]], dtype=dtype)
    log2 = math.log(2)
    expected = {"k1": [log2, -log2], "k2": [log2**2 / 2] * 2, "k3": [log2 - 0.5, 1 - log2]}
    for estimator, values in expected.items():
        got = kl.kl_estimate(logprobs, ref_logprobs, estimator)
        assert got.tolist()[0] == pytest.approx(values, abs=tolerance)
    assert torch.equal(kl.kl_estimate(logprobs, ref_logprobs), kl.kl_estimate(logprobs, ref_logprobs, "k1"))


def test_k1_may_be_negative_k3_never():
    difference = torch.arange(-50, 51, dtype=torch.float64) / 10
    zero = torch.zeros(101, dtype=torch.float64)
    assert (kl.kl_estimate(difference, zero, "k1") < 0).sum() == 50
    assert (kl.kl_estimate(difference, zero, "k3") >= 0).all()
    assert (kl.kl_estimate(difference, zero, "k2") >= 0).all()


def test_k3_is_accurate_for_small_differences():
    """Around d = 1e-4 in float32, k3 = d^2/2 - d^3/6 + ...: 1 - d rounds at 6e-8, twelve times the value itself."""
    small = torch.tensor([1e-4, -1e-4])
    got = kl.kl_estimate(small, torch.zeros(2), "k3")
    assert got.tolist() == pytest.approx([4.9998e-9, 5.0002e-9], rel=1e-2)


def test_gradient_of_each_estimator_as_a_loss():
    """Summed over the vocabulary with the policy's probabilities held fixed: 0, the gradient of one KL, that of the other."""
    logits, ref_logits = f64([LOGITS]).requires_grad_(), f64([REF_LOGITS])
    new, ref = logits.log_softmax(-1), ref_logits.log_softmax(-1)
    found = {}
    for estimator in ("k1", "k2", "k3"):
        loss = (new.detach().exp() * kl.kl_estimate(new, ref, estimator)).sum()
        (found[estimator],) = torch.autograd.grad(loss, logits, retain_graph=True)
    (forth,) = torch.autograd.grad(kl.full_kl(logits, ref_logits).sum(), logits)
    (reverse,) = torch.autograd.grad(kl.full_kl(ref_logits, logits).sum(), logits)
    assert (forth - reverse).abs().max() > 0.05
    for estimator, expected in {"k1": torch.zeros_like(forth), "k2": forth, "k3": reverse}.items():
        torch.testing.assert_close(found[estimator], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("gap", [89.0, 150.0])
def test_k3_stays_finite_with_a_gradient(gap):
    """The reference's probability is e^gap times larger, beyond float32: k3 and its gradient are bounded at e^79.85."""
    logprobs = torch.tensor([[-1.0 - gap]]).requires_grad_()
    got = kl.kl_estimate(logprobs, torch.tensor([[-1.0]]), "k3")
    (0.0 * got).sum().backward()
    assert logprobs.grad.item() == 0.0
    (gradient,) = torch.autograd.grad(kl.kl_estimate(logprobs, torch.tensor([[-1.0]]), "k3").sum(), logprobs)
    assert got.item() == pytest.approx(math.exp(79.850), rel=2e-3)
    assert gradient.item() == pytest.approx(-math.exp(79.850), rel=2e-3)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_expectation_is_the_exact_kl(estimator):
    """Summed over the vocabulary with the policy's probabilities, k1 and k3 are the exact KL: they are unbiased."""
    p, q = softmax(LOGITS), softmax(REF_LOGITS)
    estimates = kl.kl_estimate(f64([math.log(x) for x in p]), f64([math.log(x) for x in q]), estimator)
    mean = math.fsum(a * b for a, b in zip(p, estimates.tolist(), strict=True))
    assert mean == pytest.approx(exact_kl(LOGITS, REF_LOGITS), abs=1e-12)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_monte_carlo_agrees_with_full_kl(estimator):
    n = 100_000
    p, q = f64(softmax(LOGITS)), f64(softmax(REF_LOGITS))
    tokens = torch.multinomial(p, n, replacement=True, generator=torch.Generator().manual_seed(3))
    estimates = kl.kl_estimate(p.log()[tokens], q.log()[tokens], estimator)
    standard_error = (estimates.std() / math.sqrt(n)).item()
    exact = kl.full_kl(f64([[LOGITS]]), f64([[REF_LOGITS]])).item()
    assert abs(estimates.mean().item() - exact) < 4 * standard_error
    assert 10 * standard_error < exact  # the test is sensitive enough


def test_as_a_reward_only_k1_has_the_gradient_of_the_kl():
    """The policy gradient of E[k] in the logits, p_a (k_a - E[k]), as a share of the gradient of the exact KL: all of
    it for k1. k2 and k3 are d^2 / 2 near the reference, the exact KL is the same for every token: next to nothing is
    left."""
    reference = f64(REF_LOGITS)
    logits = (reference + 0.1 * f64(LOGITS)).requires_grad_()
    exact = torch.autograd.grad(kl.full_kl(logits[None, None], reference[None, None]).sum(), logits)[0]
    p, shares = logits.detach().softmax(0), {}
    for estimator in ("k1", "k2", "k3", "full"):
        penalty = reference_formulas.kl_from_logits(
            logits.detach().expand(5, 5), reference.expand(5, 5), torch.arange(5), estimator
        )  # of each token
        learned = p * (penalty - (p * penalty).sum())
        shares[estimator] = float(learned @ exact / (exact @ exact))
    assert shares["k1"] == pytest.approx(1.0, abs=1e-9)
    assert abs(shares["k2"]) < 0.1
    assert abs(shares["k3"]) < 0.1
    assert shares["full"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_full_kl_equals_loop(dtype, tolerance, temperature):
    logits = torch.tensor([[LOGITS, REF_LOGITS], [REF_LOGITS, LOGITS]], dtype=dtype)
    ref_logits = torch.tensor([[REF_LOGITS, REF_LOGITS], [LOGITS, REF_LOGITS]], dtype=dtype)
    forward = exact_kl(LOGITS, REF_LOGITS, temperature)
    backward = exact_kl(REF_LOGITS, LOGITS, temperature)
    got = kl.full_kl(logits, ref_logits, temperature)
    assert got.tolist()[0] == pytest.approx([forward, 0.0], abs=tolerance)
    assert got.tolist()[1] == pytest.approx([backward, forward], abs=tolerance)
    assert kl.full_kl(logits[0], ref_logits[0], temperature).tolist() == got[0].tolist()  # packed rows (N, V)
    assert abs(forward - backward) > 0.01  # the direction matters here


def test_full_kl_with_impossible_tokens():
    """Policy (1/2, 1/2, 0), reference uniform: KL = log(3/2); both without the token: 0. No NaN in the gradient."""
    logits = f64([[[0.0, 0.0, -INF], [0.0, 0.0, -INF]]]).requires_grad_()
    got = kl.full_kl(logits, f64([[[0.0, 0.0, 0.0], [0.0, 0.0, -INF]]]))
    assert got.tolist()[0] == pytest.approx([math.log(1.5), 0.0], abs=1e-12)
    got.sum().backward()
    assert logits.grad.isfinite().all()


def test_full_kl_gradcheck_and_fisher():
    """Twice differentiable; at policy = reference the gradient is 0 and the Hessian is Fisher: diag(p) - p p^T."""
    logits, ref_logits = f64([[LOGITS]]).requires_grad_(), f64([[REF_LOGITS]])
    assert torch.autograd.gradcheck(lambda x: kl.full_kl(x, ref_logits, 0.7), (logits,))
    hessian = torch.autograd.functional.hessian(lambda x: kl.full_kl(x, f64([[LOGITS]])).sum(), f64([[LOGITS]]))
    p = f64(softmax(LOGITS))
    torch.testing.assert_close(hessian.reshape(5, 5), torch.diag(p) - torch.outer(p, p), rtol=0, atol=1e-12)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_estimate_gradcheck(estimator):
    logprobs, ref_logprobs = f64([[-0.5, -2.0]]).requires_grad_(), f64([[-1.0, -1.5]]).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: kl.kl_estimate(a, b, estimator), (logprobs, ref_logprobs))


def test_shaped_rewards_by_hand():
    """beta = 1/2: the KL costs on every token, the score comes once, on the last response token; padding is 0."""
    kl_per_token = f64([[0.5, -0.25, 1.0], [2.0, NAN, INF], [0.5, 1.5, -INF]])
    mask = torch.tensor([[True, True, True], [True, False, False], [True, True, False]])
    got = kl.shape_rewards(f64([3.0, -1.0, 2.0]), kl_per_token, mask, 0.5)
    assert got.tolist() == [[-0.25, 0.125, 2.5], [-2.0, 0.0, 0.0], [-0.25, 1.25, 0.0]]


@pytest.mark.parametrize("junk", [NAN, INF, 1e30])
def test_score_is_added_once(junk):
    """Each row sums to score - beta * sum(kl), for any padding and any length."""
    generator = torch.Generator().manual_seed(5)
    lengths = [1, 2, 5, 7]
    kl_per_token = torch.randn(4, 7, dtype=torch.float64, generator=generator)
    scores = torch.randn(4, dtype=torch.float64, generator=generator)
    mask = torch.arange(7) < torch.tensor(lengths).unsqueeze(1)
    got = kl.shape_rewards(scores, kl_per_token.masked_fill(~mask, junk), mask, 0.15)
    for row, length in enumerate(lengths):
        expected = scores[row].item() - 0.15 * math.fsum(kl_per_token[row, :length].tolist())
        assert math.fsum(got[row].tolist()) == pytest.approx(expected, abs=1e-12)


def test_score_in_equal_parts_by_hand():
    """beta = 1/2, the score 3 on three tokens is 1 each; the sum of the row stays."""
    mask = torch.tensor([[True, True, True, False], [False, True, True, False]])
    kl_per_token = f64([[0.5, -0.25, 1.0, NAN], [NAN, 2.0, 0.0, INF]])
    got = kl.shape_rewards(f64([3.0, -1.0]), kl_per_token, mask, 0.5, placement="spread")
    assert got.tolist() == [[0.75, 1.125, 0.5, 0.0], [0.0, -1.5, -0.5, 0.0]]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_every_estimator_from_logits(temperature):
    """The sampled ones from the tokens' log-probabilities, "full" for any tokens; shifting all logits changes nothing."""
    logits, ref_logits = f64([[LOGITS, REF_LOGITS]]), f64([[REF_LOGITS, LOGITS]])
    tokens = torch.tensor([[1, 3]])
    p, q = (softmax([x / temperature for x in row]) for row in (LOGITS, REF_LOGITS))
    differences = [math.log(p[1] / q[1]), math.log(q[3] / p[3])]
    expected = {
        "k1": differences,
        "k2": [d * d / 2 for d in differences],
        "k3": [math.exp(-d) - 1 + d for d in differences],
        "full": [
            math.fsum(a * math.log(a / b) for a, b in zip(x, y, strict=True) if a > 0) for x, y in ((p, q), (q, p))
        ],
    }
    for estimator, expected_kl in expected.items():
        for shift in (0.0, 7.0):
            got = reference_formulas.kl_from_logits(logits + shift, ref_logits, tokens, estimator, temperature)
            assert got.tolist()[0] == pytest.approx(expected_kl, abs=1e-12)


def test_the_full_estimator_is_the_expectation_of_the_unbiased_ones():
    logits, ref_logits = f64([[LOGITS]]), f64([[REF_LOGITS]])
    exact = reference_formulas.kl_from_logits(logits, ref_logits, torch.tensor([[0]]), "full").item()
    for estimator in ("k1", "k3"):
        mean = math.fsum(
            chance * reference_formulas.kl_from_logits(logits, ref_logits, torch.tensor([[word]]), estimator).item()
            for word, chance in enumerate(softmax(LOGITS))
            if chance > 0
        )
        assert mean == pytest.approx(exact, abs=1e-12)


def test_shaped_rewards_gradient_and_empty_row():
    """Rows: two tokens; none, which gets no reward (not even its score)."""
    mask = torch.tensor([[True, True, False], [False, False, False]])
    scores = f64([1.0, NAN])
    kl_per_token = f64([[0.1, 0.2, NAN], [NAN, INF, -INF]]).requires_grad_()
    got = kl.shape_rewards(scores, kl_per_token, mask, torch.tensor(0.5, dtype=torch.float64))
    assert got[1].tolist() == [0.0, 0.0, 0.0]
    got.sum().backward()
    assert kl_per_token.grad.tolist() == [[-0.5, -0.5, 0.0], [0.0, 0.0, 0.0]]
    scores, good_kl = f64([1.0, 2.0]).requires_grad_(), f64([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]).requires_grad_()
    assert torch.autograd.gradcheck(lambda s, k: kl.shape_rewards(s, k, mask, 0.5), (scores, good_kl))


@pytest.mark.parametrize(
    ("measured", "factor"),
    [(0.1, 1.0), (0.16, 0.625**0.25), (0.05, 2**0.25), (100.0, 0.5), (1e-9, 1.3), (0.0, 1.0), (NAN, 0.5), (INF, 0.5)],
)
def test_lr_factor(measured, factor):
    """The fourth root of target / measured, between a half and 1.3; nothing measured changes nothing."""
    assert kl.lr_factor(measured, 0.1) == pytest.approx(factor, abs=1e-12)


def test_without_a_penalty_only_the_score_remains():
    mask = torch.ones(1, 2, dtype=torch.bool)
    assert kl.shape_rewards(f64([3.0]), f64([[0.5, 0.5]]), mask, 0.0).tolist() == [[0.0, 3.0]]


def test_bad_arguments_are_refused():
    two, three, mask = f64([[0.0, 0.0]]), f64([[0.0, 0.0, 0.0]]), torch.ones(1, 2, dtype=torch.bool)
    refused = [
        lambda: kl.kl_estimate(two, two, "k4"),
        lambda: kl.kl_estimate(two, three),
        lambda: kl.full_kl(two, three),
        lambda: kl.full_kl(two, two, 0.0),
        lambda: kl.shape_rewards(f64([1.0]), three, mask, 0.1),
        lambda: kl.shape_rewards(f64([1.0, 2.0]), two, mask, 0.1),
        lambda: kl.shape_rewards(f64([1.0]), two, mask.long(), 0.1),
        lambda: kl.shape_rewards(f64([1.0]), two, mask, -0.1),
        lambda: kl.shape_rewards(f64([1.0]), two, mask, 0.1, placement="middle"),
        lambda: kl.kl_estimate(two, two, "full"),
        lambda: reference_formulas.kl_from_logits(two, two, torch.tensor([[0, 0]])),
        lambda: reference_formulas.kl_from_logits(two, two, torch.tensor([0]), "k4"),
    ]
    for call in refused:
        with pytest.raises(ConfigError):
            call()
