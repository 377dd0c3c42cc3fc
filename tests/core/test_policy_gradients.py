"""The losses other than PPO-clip. Expected values: by hand, or plain loops over the response tokens."""

import math
import statistics
import warnings

import pytest
import torch
from support import reference_formulas

from rlhf_lab.core import policy_losses
from rlhf_lab.core.kl import full_kl
from rlhf_lab.errors import ConfigError

NAN, INF = float("nan"), float("inf")
JUNK = [NAN, INF, -INF, 1e30]
LENGTHS = [1, 4, 2]


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def batch(junk=0.0, dtype=torch.float64):
    """logprobs, old_logprobs, advantages (3, 4) and mask."""
    generator = torch.Generator().manual_seed(0)
    old = -1.5 + torch.randn(3, 4, dtype=torch.float64, generator=generator)
    new = old + 0.4 * torch.randn(3, 4, dtype=torch.float64, generator=generator)
    advantages = torch.randn(3, 4, dtype=torch.float64, generator=generator)
    mask = torch.arange(4) < torch.tensor(LENGTHS).unsqueeze(1)
    return *(x.to(dtype).masked_fill(~mask, junk) for x in (new, old, advantages)), mask


def tokens(*tensors, mask):
    return list(zip(*(x[mask].double().tolist() for x in tensors), strict=True))


# --- REINFORCE and A2C ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("junk", JUNK)
def test_reinforce_loss_by_hand(junk):
    """Rows -(2)(-1) - (3)(-2) = 8 and -(-4)(-0.5) = -2: sums 8 and -2, mean 3; tokens 6 / 3; row means 4 and -2: 1.

    The gradient of the sum form is -weight / 2 rows. A product of sums would give (3)(5) = 15 for the first row.
    """
    logprobs = f64([[-1.0, -2.0], [-0.5, junk]]).requires_grad_()
    weights, mask = f64([[2.0, 3.0], [-4.0, junk]]).requires_grad_(), torch.tensor([[True, True], [True, False]])
    loss = policy_losses.reinforce_loss(logprobs, weights, mask)
    loss.backward()
    assert loss.item() == 3.0
    assert logprobs.grad.tolist() == [[-1.0, -1.5], [2.0, 0.0]]
    assert weights.grad is None
    by = {name: policy_losses.reinforce_loss(logprobs, weights, mask, reduction=name).item()
          for name in ("token_mean", "trajectory_mean")}  # fmt: skip
    assert by == {"token_mean": 2.0, "trajectory_mean": 1.0}
    assert policy_losses.reinforce_loss(logprobs, weights, mask, denominator=12).item() == 0.5


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_a2c_equals_loop(junk, dtype, tolerance):
    logprobs, values, returns, mask = batch(junk, dtype)
    got = reference_formulas.a2c_loss(logprobs, values, returns - 1.0, returns, mask, vf_coef=0.25)
    rows = tokens(logprobs, values, returns, mask=mask)
    policy = statistics.fmean(-(target - 1.0) * logprob for logprob, _, target in rows)
    value = statistics.fmean(0.5 * (v - target) ** 2 for _, v, target in rows)
    assert [x.item() for x in got] == pytest.approx([policy + 0.25 * value, policy, value], abs=tolerance)
    assert got.loss.dtype == dtype


def test_a2c_critic_learns_from_the_squared_error_alone():
    """Advantages and returns computed from the values: still no gradient through them."""
    values, mask = f64([[1.0, 3.0]]).requires_grad_(), torch.ones(1, 2, dtype=torch.bool)
    logprobs = f64([[-1.0, -2.0]]).requires_grad_()
    advantages, returns = f64([[5.0, 5.0]]) - values, f64([[5.0, 5.0]]) + 0 * values
    reference_formulas.a2c_loss(logprobs, values, advantages, returns, mask, vf_coef=0.5).loss.backward()
    assert values.grad.tolist() == [[0.5 * -4.0 / 2, 0.5 * -2.0 / 2]]
    assert logprobs.grad.tolist() == [[-2.0, -1.0]]


# --- the KL penalty ------------------------------------------------------------------------------------------------


def test_ppo_penalty_by_hand():
    """Ratios 2 and 1/2, advantages 1 and -2: surrogate -(2 - 1) / 2 = -1/2.

    KL(old || new) by k3, (r - 1) - log r: 1 - log 2 and -1/2 + log 2: mean 1/4; 3 times it is added: 1/4 in all.
    """
    log2 = math.log(2)
    logprobs, old = f64([[log2, -log2]]) - 3.0, f64([[-3.0, -3.0]])
    mask = torch.ones(1, 2, dtype=torch.bool)
    got = policy_losses.ppo_penalty(logprobs.requires_grad_(), old, f64([[1.0, -2.0]]), mask, coef=3.0)
    assert got.loss.item() == pytest.approx(0.25, abs=1e-12)
    assert got.kl.item() == pytest.approx(0.25, abs=1e-12)
    assert got.approx_kl.item() == pytest.approx(log2**2 / 2, abs=1e-12)
    assert got.ratio_mean.item() == pytest.approx(1.25, abs=1e-12)
    got.loss.backward()  # (-A r + 3 (r - 1)) / 2
    assert logprobs.grad.tolist()[0] == pytest.approx([(-2 + 3) / 2, (1 - 1.5) / 2], abs=1e-12)
    assert [x.requires_grad for x in got] == [True, False, False, False]


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_ppo_penalty_equals_loop_whatever_the_padding(junk, dtype, tolerance):
    *inputs, mask = batch(junk, dtype)
    got = policy_losses.ppo_penalty(*inputs, mask, coef=0.7)
    rows = tokens(*inputs, mask=mask)
    kl = statistics.fmean(math.exp(new - old) - 1 - (new - old) for new, old, _ in rows)
    surrogate = statistics.fmean(-math.exp(new - old) * advantage for new, old, advantage in rows)
    assert got.loss.item() == pytest.approx(surrogate + 0.7 * kl, abs=tolerance)
    assert got.kl.item() == pytest.approx(kl, abs=tolerance)


@pytest.mark.parametrize("coef", [0.0, 0.5])
def test_a_penalty_of_a_ratio_beyond_the_dtype_is_a_number(coef):
    """Advantages 2 and -2, log-ratios 100 in float32: slopes of -+2 e^79.85 / 2, to which the penalty adds coef e^79.85 / 2."""
    logprobs, old = torch.full((1, 2), 99.0).requires_grad_(), torch.full((1, 2), -1.0)
    mask = torch.ones(1, 2, dtype=torch.bool)
    got = policy_losses.ppo_penalty(logprobs, old, torch.tensor([[2.0, -2.0]]), mask, coef=coef)
    got.loss.backward()
    largest = math.exp(79.850)
    assert logprobs.grad.tolist()[0] == pytest.approx([largest * (coef - 2) / 2, largest * (coef + 2) / 2], rel=2e-3)
    assert got.loss.item() == pytest.approx(coef * largest, rel=2e-3)


def test_ppo_penalty_takes_the_exact_kl():
    """Its expectation over tokens of the old policy is what k3 estimates; the gradient of the exact one flows."""
    old_logits, logits = f64([[[0.5, -1.0, 0.0]]]), f64([[[0.0, 0.3, -0.4]]]).requires_grad_()
    old, new = old_logits.log_softmax(-1), logits.log_softmax(-1)
    mask, nothing = torch.ones(1, 1, dtype=torch.bool), f64([[0.0]])
    exact = full_kl(old_logits, logits)
    with_exact = policy_losses.ppo_penalty(new[..., 0], old[..., 0], nothing, mask, coef=1.0, kl=exact)
    estimates = [policy_losses.ppo_penalty(new[..., i], old[..., i], nothing, mask, coef=1.0) for i in range(3)]
    mean = sum(old[0, 0, i].exp() * estimate.loss for i, estimate in enumerate(estimates))
    assert with_exact.loss.item() == pytest.approx(mean.item(), abs=1e-12)
    gradients = [torch.autograd.grad(x, logits, retain_graph=True)[0] for x in (with_exact.loss, mean)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradients[0], new.exp() - old.exp(), rtol=0, atol=1e-12)


# --- pretraining text and the sum ----------------------------------------------------------------------------------


def test_ptx_loss_by_hand():
    """Logits log 1, log 3 at every position: word 1 costs log(4/3), word 0 log 4.

    Text 0 1 1 0 padded on the left by one: predicted are 1, 1, 0 (not the first real token, which has nothing before it).
    """
    logits = f64([0.0, math.log(3.0)]).expand(1, 5, 2).clone()
    logits[0, 0] = NAN  # what padding predicts
    logits[0, 4] = f64([100.0, 0.0])  # what comes after the end is not predicted
    tokens_, mask = torch.tensor([[9999, 0, 1, 1, 0]]), torch.tensor([[False, True, True, True, True]])
    loss = policy_losses.ptx_loss(logits.requires_grad_(), tokens_, mask)
    assert loss.item() == pytest.approx((2 * math.log(4 / 3) + math.log(4)) / 3, abs=1e-12)
    assert policy_losses.ptx_loss(logits, tokens_, mask, 6).item() == pytest.approx(loss.item() / 2, abs=1e-12)
    loss.backward()
    assert logits.grad[0, 3].tolist() == pytest.approx([(0.25 - 1) / 3, 0.75 / 3], abs=1e-12)
    assert (logits.grad[0, 0] == 0).all()
    assert (logits.grad[0, 4] == 0).all()


def test_total_loss_signs():
    """1 + 0.5 * 2 - 0.1 * 3 + 4 * 0.25 = 2.7; a policy that is more certain costs more."""
    entropy = f64(3.0).requires_grad_()
    loss = policy_losses.total_loss(
        f64(1.0), value=f64(2.0), entropy=entropy, ptx=f64(0.25), vf_coef=0.5, entropy_coef=0.1, ptx_coef=4.0
    )
    loss.backward()
    assert loss.item() == pytest.approx(2.7, abs=1e-12)
    assert entropy.grad.item() == pytest.approx(-0.1)
    assert policy_losses.total_loss(f64(1.0), value=f64(2.0)).item() == 1.0


def test_a_step_down_the_total_loss_improves_each_objective():
    """One step against the gradient: the better word gains, the value approaches its target, the entropy term opposes."""
    logits, value = f64([[[0.5, 0.0]]]).requires_grad_(), f64([[0.0]]).requires_grad_()
    mask = torch.ones(1, 1, dtype=torch.bool)
    logprobs = logits.log_softmax(-1)
    a2c = reference_formulas.a2c_loss(logprobs[..., 0], value, f64([[1.0]]), f64([[2.0]]), mask, vf_coef=0.5)
    entropy = -(logprobs.exp() * logprobs).sum()
    policy, plain = torch.autograd.grad(a2c.loss, (logits, value), retain_graph=True)
    (with_entropy,) = torch.autograd.grad(
        policy_losses.total_loss(a2c.policy, entropy=entropy, entropy_coef=1.0), logits
    )
    assert policy[0, 0, 0] < 0 < policy[0, 0, 1]
    assert plain.item() == -1.0
    assert with_entropy[0, 0, 0] > policy[0, 0, 0]


# --- junk, gradients, arguments ------------------------------------------------------------------------------------


def every_loss(logprobs, old, advantages, mask, denominator=None):
    return (
        policy_losses.reinforce_loss(logprobs, advantages, mask, reduction="token_mean", denominator=denominator)
        + reference_formulas.a2c_loss(
            logprobs, logprobs * 2, advantages, old, mask, vf_coef=0.3, denominator=denominator
        ).loss
        + policy_losses.ppo_penalty(logprobs, old, advantages, mask, coef=0.5, denominator=denominator).loss
    )


@pytest.mark.parametrize("junk", JUNK)
def test_junk_in_padding_never_reaches_a_gradient(junk):
    gradients = []
    for filling in (0.0, junk):
        logprobs, *rest, mask = batch(filling)
        with (
            warnings.catch_warnings()
        ):  # the anomaly mode warns that it is on; it raises at a NaN in any inner gradient
            warnings.simplefilter("ignore")
            with torch.autograd.detect_anomaly():
                every_loss(logprobs.requires_grad_(), *rest, mask).backward()
        gradients.append(logprobs.grad)
    assert torch.equal(*gradients)
    assert (gradients[1][~mask] == 0).all()


def test_any_split_gives_the_same_gradient():
    *inputs, mask = batch(NAN)
    whole = inputs[0].clone().requires_grad_()
    every_loss(whole, *inputs[1:], mask).backward()
    parts = inputs[0].clone().requires_grad_()
    for rows in (slice(0, 1), slice(1, 3)):
        every_loss(parts[rows], inputs[1][rows], inputs[2][rows], mask[rows], float(mask.sum())).backward()
    torch.testing.assert_close(parts.grad, whole.grad, rtol=0, atol=1e-15)


def test_gradcheck():
    logprobs, old, advantages, mask = batch()
    assert torch.autograd.gradcheck(lambda x: every_loss(x, old, advantages, mask), logprobs.requires_grad_())
    for reduction in ("trajectory_mean", "trajectory_sum"):
        assert torch.autograd.gradcheck(
            lambda x, r=reduction: policy_losses.reinforce_loss(x, advantages, mask, reduction=r), logprobs
        )
    logits = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    words, real = torch.tensor([[0, 3, 1], [2, 2, 0]]), torch.tensor([[True, True, True], [False, True, True]])
    assert torch.autograd.gradcheck(lambda x: policy_losses.ptx_loss(x, words, real), logits)


def test_bad_arguments_are_refused():
    x, mask = f64([[1.0, 2.0]]), torch.ones(1, 2, dtype=torch.bool)
    refused = [
        lambda: policy_losses.reinforce_loss(x, x[:, :1], mask),
        lambda: policy_losses.reinforce_loss(x, x, mask, reduction="mean"),
        lambda: policy_losses.reinforce_loss(x, x, mask, denominator=0),
        lambda: reference_formulas.a2c_loss(x, x, x, x, mask, vf_coef=-0.1),
        lambda: reference_formulas.a2c_loss(x, x, x, x, mask.long(), vf_coef=0.1),
        lambda: policy_losses.ppo_penalty(x, x, x, mask, coef=-1.0),
        lambda: policy_losses.ppo_penalty(x, x, x, mask, coef=NAN),
        lambda: policy_losses.ppo_penalty(x, x, x, mask, coef=1.0, kl=x[:, :1]),
        lambda: policy_losses.ptx_loss(x.unsqueeze(-1), torch.tensor([[0, 0]]), mask[:, :1]),
        lambda: policy_losses.ptx_loss(x.unsqueeze(-1)[:, :1], torch.tensor([[0, 0]]), mask),
        lambda: policy_losses.total_loss(f64(1.0), entropy=f64(1.0), entropy_coef=-0.1),
        lambda: policy_losses.total_loss(f64(1.0), ptx=f64(1.0), ptx_coef=-0.1),
    ]
    for call in refused:
        with pytest.raises(ConfigError):
            call()
