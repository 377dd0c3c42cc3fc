"""The PPO losses. Expected values: plain Python loops over the response tokens, or worked by hand."""

import math
import statistics
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_lab.core import policy_losses
from rlhf_lab.errors import ConfigError

NAN, INF = float("nan"), float("inf")
JUNK = [NAN, INF, -INF, 1.0, 1e30]  # 1.0 is TRL's INVALID_LOGPROB
LENGTHS = [1, 5, 2, 4]


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def batch(junk=0.0, dtype=torch.float64, seed=0):
    """logprobs, old_logprobs, advantages (4, 5) and mask; many ratios beyond 1 +- 0.2; junk in padding.

    Read as values, old_values and returns they serve the value loss as well.
    """
    generator = torch.Generator().manual_seed(seed)
    old = -1.5 + torch.randn(4, 5, dtype=torch.float64, generator=generator)
    new = old + 0.4 * torch.randn(4, 5, dtype=torch.float64, generator=generator)
    advantages = torch.randn(4, 5, dtype=torch.float64, generator=generator)
    mask = torch.arange(5) < torch.tensor(LENGTHS).unsqueeze(1)
    return *(x.to(dtype).masked_fill(~mask, junk) for x in (new, old, advantages)), mask


def tokens(*tensors, mask):
    """The response tokens as tuples of floats."""
    return list(zip(*(x[mask].double().tolist() for x in tensors), strict=True))


def loop_ppo(rows, cliprange):
    """(loss, clipfrac, approx_kl, ratio_mean) over (logprob, old_logprob, advantage) rows, by Schulman 2017 eq. 7."""
    objective, clipped_count, kl, ratios = 0.0, 0, 0.0, 0.0
    for new, old, advantage in rows:
        ratio = math.exp(new - old)
        bounded = min(max(ratio, 1 - cliprange), 1 + cliprange)
        objective += min(ratio * advantage, bounded * advantage)
        clipped_count += bounded * advantage < ratio * advantage
        kl += 0.5 * (new - old) ** 2
        ratios += ratio
    return -objective / len(rows), clipped_count / len(rows), kl / len(rows), ratios / len(rows)


def loop_value(rows, cliprange):
    """(loss, clipfrac) over (value, old_value, return) rows."""
    total, clipped_count = 0.0, 0
    for value, old, target in rows:
        bounded = min(max(value, old - cliprange), old + cliprange)
        plain, clipped = (value - target) ** 2, (bounded - target) ** 2
        total += 0.5 * max(plain, clipped)
        clipped_count += clipped > plain
    return total / len(rows), clipped_count / len(rows)


# --- policy --------------------------------------------------------------------------------------------------------


def test_ppo_clip_by_hand():
    """Ratios 2, 2, 1/2, 1/2, 1 with advantages 1, -1, 1, -1, 3 and clip 0.2.

    Losses max(-A r, -A clip(r)): max(-2, -1.2), max(2, 1.2), max(-0.5, -0.8), max(0.5, 0.8), -3
    = -1.2, 2, -0.5, 0.8, -3: sum -1.9. The clipped term is larger for the first and the fourth only: clipping has an
    effect only where it makes the objective worse. approx_kl: four of log(2)^2 / 2.
    """
    log2 = math.log(2)
    logprobs = f64([[log2, log2, -log2, -log2, 0.0]]) - 1.0
    old = torch.full((1, 5), -1.0, dtype=torch.float64)
    advantages, mask = f64([[1.0, -1.0, 1.0, -1.0, 3.0]]), torch.ones(1, 5, dtype=torch.bool)
    loss, clipfrac, approx_kl, ratio_mean = policy_losses.ppo_clip(logprobs, old, advantages, mask, cliprange=0.2)
    assert loss.item() == pytest.approx(-1.9 / 5, abs=1e-12)
    assert clipfrac.item() == pytest.approx(2 / 5, abs=1e-12)
    assert approx_kl.item() == pytest.approx(4 * log2**2 / 2 / 5, abs=1e-12)
    assert ratio_mean.item() == pytest.approx(6 / 5, abs=1e-12)


def test_ppo_clip_gradient_by_hand():
    """d loss / d logprob is -A r where the unclipped term counts, 0 where the clipped one does; over 5 tokens."""
    log2 = math.log(2)
    logprobs = f64([[log2, log2, -log2, -log2, 0.0]]).requires_grad_()
    advantages, mask = f64([[1.0, -1.0, 1.0, -1.0, 3.0]]), torch.ones(1, 5, dtype=torch.bool)
    policy_losses.ppo_clip(logprobs, torch.zeros(1, 5).double(), advantages, mask, cliprange=0.2).loss.backward()
    assert logprobs.grad.tolist()[0] == pytest.approx([0.0, 0.4, -0.1, 0.0, -0.6], abs=1e-12)


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("cliprange", [0.2, 0.05])
def test_ppo_clip_equals_loop_whatever_the_padding(junk, dtype, tolerance, cliprange):
    *inputs, mask = batch(junk, dtype)
    got = policy_losses.ppo_clip(*inputs, mask, cliprange=cliprange)
    assert got.loss.dtype == dtype
    assert [x.item() for x in got] == pytest.approx(loop_ppo(tokens(*inputs, mask=mask), cliprange), abs=tolerance)
    assert 0.1 < got.clipfrac < 0.9  # the test sees both cases


def test_without_cliprange_the_surrogate_is_plain():
    *inputs, mask = batch(NAN)
    got = policy_losses.ppo_clip(*inputs, mask, cliprange=None)
    rows = tokens(*inputs, mask=mask)
    assert got.loss.item() == pytest.approx(-statistics.fmean(math.exp(n - o) * a for n, o, a in rows), abs=1e-12)
    assert got.clipfrac.item() == 0.0


def test_first_minibatch():
    """New = old: ratio 1, nothing clipped, approx_kl 0, and the gradient is the policy gradient -A / n."""
    logprobs, _, advantages, mask = batch(NAN)
    old = logprobs.clone()
    got = policy_losses.ppo_clip(logprobs.requires_grad_(), old, advantages, mask, cliprange=0.2)
    assert (got.ratio_mean.item(), got.clipfrac.item(), got.approx_kl.item()) == (1.0, 0.0, 0.0)
    got.loss.backward()
    torch.testing.assert_close(logprobs.grad, -advantages.masked_fill(~mask, 0.0) / mask.sum(), rtol=0, atol=1e-15)


@pytest.mark.parametrize("cliprange", [0.2, None])
@pytest.mark.parametrize("log_ratio", [89.0, 150.0, 1e30])
def test_a_ratio_beyond_the_dtype_has_a_loss_and_a_gradient(log_ratio, cliprange):
    """float32 ends at e^88.7. Advantages 1 (clipped: gradient 0), -1, -1000, 0, and an ordinary token with ratio 1.

    A larger ratio is bounded at e^79.85 = 4.77e34; its gradient is that times -A / 5.
    """
    logprobs = torch.tensor([[log_ratio] * 4 + [-1.0]]).requires_grad_()
    old, mask = torch.tensor([[0.0] * 4 + [-1.0]]), torch.ones(1, 5, dtype=torch.bool)
    got = policy_losses.ppo_clip(
        logprobs, old, torch.tensor([[1.0, -1.0, -1e3, 0.0, 2.0]]), mask, cliprange=cliprange
    )  # fmt: skip
    got.loss.backward()
    largest = math.exp(79.850)
    first = 0.0 if cliprange else -largest / 5
    assert logprobs.grad.tolist()[0] == pytest.approx([first, largest / 5, 200 * largest, 0.0, -0.4], rel=2e-3, abs=0)
    assert got.loss.item() == pytest.approx((1001 if cliprange else 1000) * largest / 5, rel=2e-3)
    assert got.ratio_mean.item() == pytest.approx(0.8 * largest, rel=2e-3)
    clipped_only = policy_losses.ppo_clip(logprobs[:, :1], old[:, :1], torch.ones(1, 1), mask[:, :1], cliprange=0.2)
    assert clipped_only.loss.item() == pytest.approx(-1.2)


def test_an_ordinary_ratio_is_the_plain_exponential_to_the_last_bit():
    """Loss and gradient of float32 ratios from e^-60 to e^60, against the formula without any bound."""
    generator = torch.Generator().manual_seed(1)
    old, advantages = torch.randn(2, 40, 5, generator=generator)
    spread = torch.linspace(0, 20, 40).unsqueeze(1)
    new = (old + spread * torch.randn(40, 5, generator=generator).clamp(-3, 3)).requires_grad_()
    got = policy_losses.ppo_clip(new, old, advantages, torch.ones(40, 5, dtype=torch.bool), cliprange=0.2).loss
    ratio = (new - old).exp()
    plain = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2)).sum() / 200
    assert torch.equal(got, plain)
    assert torch.equal(*(torch.autograd.grad(loss, new)[0] for loss in (got, plain)))


def test_only_the_loss_carries_a_gradient():
    logprobs, old, advantages, mask = batch()
    policy = policy_losses.ppo_clip(logprobs.requires_grad_(), old, advantages, mask, cliprange=0.2)
    value = policy_losses.clipped_value_loss(logprobs, old, advantages, mask, cliprange_value=0.2)
    assert [x.requires_grad for x in policy] == [True, False, False, False]
    assert [x.requires_grad for x in value] == [True, False]


@pytest.mark.parametrize("junk", JUNK)
def test_reductions_by_hand(junk):
    """Rows 1, 2, 6 | 5 | none. Tokens: 14 / 4; each row first: (3 + 5) / 2; sums: (9 + 5) / 2. The empty row is no row."""
    x = f64([[1.0, 2.0, 6.0], [5.0, junk, junk], [junk] * 3]).requires_grad_()
    mask = torch.tensor([[True] * 3, [True, False, False], [False] * 3])
    expected = {
        "token_mean": (3.5, [[0.25] * 3, [0.25, 0.0, 0.0]]),
        "trajectory_mean": (4.0, [[1 / 6] * 3, [0.5, 0.0, 0.0]]),
        "trajectory_sum": (7.0, [[0.5] * 3, [0.5, 0.0, 0.0]]),
    }
    for reduction, (value, slope) in expected.items():
        got = policy_losses.reduce_tokens(x, mask, reduction)
        assert got.item() == value
        (gradient,) = torch.autograd.grad(got, x)
        torch.testing.assert_close(gradient, f64([*slope, [0.0] * 3]), rtol=0, atol=1e-15)
    assert policy_losses.reduce_tokens(x, ~mask & False, "trajectory_mean").item() == 0.0


@pytest.mark.parametrize("reduction", ["token_mean", "trajectory_mean", "trajectory_sum"])
def test_every_reduction_adds_up_over_micro_batches(reduction):
    *inputs, mask = batch(NAN)
    whole = policy_losses.ppo_clip(*inputs, mask, cliprange=0.2, reduction=reduction)
    count = float(mask.sum()) if reduction == "token_mean" else 4.0
    parts = [
        policy_losses.ppo_clip(
            *(x[rows] for x in inputs), mask[rows], cliprange=0.2, reduction=reduction, denominator=count
        )
        for rows in (slice(0, 1), slice(1, 4))
    ]
    for one, *others in zip(whole, *parts, strict=True):
        assert one.item() == pytest.approx(sum(x.item() for x in others), abs=1e-12)


@pytest.mark.parametrize("reduction", ["trajectory_mean", "trajectory_sum"])
def test_ppo_clip_of_trajectories_equals_loop(reduction):
    """Row by row with the token loop; sums are means times lengths; shares and means stay shares and means."""
    *inputs, mask = batch(NAN)
    got = policy_losses.ppo_clip(*inputs, mask, cliprange=0.2, reduction=reduction)
    rows = [loop_ppo(tokens(*(x[i : i + 1] for x in inputs), mask=mask[i : i + 1]), 0.2) for i in range(4)]
    weights = [1.0] * 4 if reduction == "trajectory_mean" else LENGTHS
    assert got.loss.item() == pytest.approx(
        statistics.fmean(w * row[0] for w, row in zip(weights, rows, strict=True)), abs=1e-12
    )
    for i in (1, 2, 3):
        assert got[i].item() == pytest.approx(statistics.fmean(row[i] for row in rows), abs=1e-12)


# --- value ---------------------------------------------------------------------------------------------------------


def test_value_loss_by_hand():
    """Clip 1/2 around the old value, the larger square, then half the mean.

    v = 3, old 1, R = 4: clipped to 1.5; squares 1 and 6.25: 6.25, clipped.
    v = 3, old 1, R = 0: clipped to 1.5; squares 9 and 2.25: 9, not clipped.
    v = 1.25, old 1, R = 2: inside; square 0.5625.
    v = -1, old 1, R = -2: clipped to 0.5; squares 1 and 6.25: 6.25, clipped.
    Half the mean: (6.25 + 9 + 0.5625 + 6.25) / 8 = 22.0625 / 8.
    """
    values, old = f64([[3.0, 3.0], [1.25, -1.0]]), f64([[1.0, 1.0], [1.0, 1.0]])
    returns, mask = f64([[4.0, 0.0], [2.0, -2.0]]), torch.ones(2, 2, dtype=torch.bool)
    got = policy_losses.clipped_value_loss(values.requires_grad_(), old, returns, mask, cliprange_value=0.5)
    assert got.loss.item() == pytest.approx(22.0625 / 8, abs=1e-12)
    assert got.clipfrac.item() == 0.5
    got.loss.backward()  # (v - R) / 4 where not clipped
    assert values.grad.tolist() == [[0.0, 0.75], [-0.1875, 0.0]]


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_value_loss_equals_loop_whatever_the_padding(junk, dtype, tolerance):
    *inputs, mask = batch(junk, dtype)
    got = policy_losses.clipped_value_loss(*inputs, mask, cliprange_value=0.2)
    assert [x.item() for x in got] == pytest.approx(loop_value(tokens(*inputs, mask=mask), 0.2), abs=tolerance)
    assert 0.1 < got.clipfrac < 0.9


def test_without_cliprange_plain_half_squared_error():
    *inputs, mask = batch(NAN)
    got = policy_losses.clipped_value_loss(*inputs, mask, cliprange_value=None)
    rows = tokens(*inputs, mask=mask)
    assert got.loss.item() == pytest.approx(statistics.fmean((v - r) ** 2 / 2 for v, _, r in rows), abs=1e-12)
    assert got.clipfrac.item() == 0.0


# --- accumulation --------------------------------------------------------------------------------------------------


def accumulate(inputs, mask, sizes, denominator):
    """Losses and statistics summed over micro-batches of the given sizes, and the accumulated gradient."""
    leaf = inputs[0].clone().requires_grad_()
    policy_sum, value_sum, entropy_sum = torch.zeros(4).double(), torch.zeros(2).double(), 0.0
    start = 0
    for size in sizes:
        part = slice(start, start + size)
        start += size
        args = (leaf[part], inputs[1][part], inputs[2][part], mask[part])
        policy = policy_losses.ppo_clip(*args, cliprange=0.2, denominator=denominator)
        value = policy_losses.clipped_value_loss(*args, cliprange_value=0.2, denominator=denominator)
        entropy = policy_losses.token_mean(leaf[part], mask[part], denominator)
        (policy.loss + 0.1 * value.loss - 0.01 * entropy).backward()
        policy_sum += torch.stack(policy).detach()
        value_sum += torch.stack(value).detach()
        entropy_sum += entropy.item()
    return [*policy_sum.tolist(), *value_sum.tolist(), entropy_sum], leaf.grad


@pytest.mark.parametrize("sizes", [(4,), (2, 2), (1, 3), (3, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_any_split_gives_the_same_gradient(sizes, as_tensor):
    """The token mean over the whole minibatch: gradients bit-equal, losses and statistics sum to the minibatch's."""
    *inputs, mask = batch(NAN)
    whole, whole_gradient = accumulate(inputs, mask, (4,), None)
    sums, gradient = accumulate(inputs, mask, sizes, mask.sum() if as_tensor else float(mask.sum()))
    assert torch.equal(gradient, whole_gradient)
    assert sums == pytest.approx(whole, abs=1e-12)
    expected = loop_ppo(tokens(*inputs, mask=mask), 0.2) + loop_value(tokens(*inputs, mask=mask), 0.2)
    assert sums[:6] == pytest.approx(expected, abs=1e-12)


def test_a_mean_of_means_would_differ():
    """The control: with responses of different length the split shows, if each part has its own denominator."""
    *inputs, mask = batch()
    whole, _ = accumulate(inputs, mask, (4,), None)
    parts, _ = accumulate(inputs, mask, (1, 1, 1, 1), None)
    assert abs(parts[0] / 4 - whole[0]) > 0.01


@settings(derandomize=True, database=None, deadline=None, max_examples=20)
@given(st.lists(st.integers(1, 5), min_size=2, max_size=6), st.data())
def test_split_property(lengths, data):
    cut = data.draw(st.integers(1, len(lengths) - 1))
    generator = torch.Generator().manual_seed(sum(lengths))
    inputs = list(torch.randn(3, len(lengths), 5, dtype=torch.float64, generator=generator))
    mask = torch.arange(5) < torch.tensor(lengths).unsqueeze(1)
    whole, whole_gradient = accumulate(inputs, mask, (len(lengths),), None)
    sums, gradient = accumulate(inputs, mask, (cut, len(lengths) - cut), sum(lengths))
    assert torch.equal(gradient, whole_gradient)
    assert sums == pytest.approx(whole, abs=1e-12)


@pytest.mark.parametrize("junk", JUNK)
def test_entropy_and_statistics_are_masked(junk):
    """TRL's sentinel of 1.0, NaN or infinity in padding: the token mean and approx_kl see response tokens only."""
    logprobs, old, advantages, mask = batch(junk)
    rows = tokens(logprobs, old, advantages, mask=mask)
    expected = statistics.fmean(entropy for entropy, _, _ in rows)
    assert policy_losses.token_mean(logprobs, mask).item() == pytest.approx(expected, abs=1e-12)
    assert policy_losses.token_mean(logprobs, mask, 1).item() == pytest.approx(expected * 12, abs=1e-12)
    assert policy_losses.token_mean(logprobs, mask, 24).item() == pytest.approx(expected / 2, abs=1e-12)
    got = policy_losses.ppo_clip(logprobs, old.masked_fill(~mask, -3.0), advantages, mask, cliprange=0.2)
    assert got.approx_kl.item() == pytest.approx(statistics.fmean((n - o) ** 2 / 2 for n, o, _ in rows), abs=1e-12)


@pytest.mark.parametrize("junk", JUNK)
def test_junk_in_padding_never_reaches_a_gradient(junk):
    *clean, mask = batch(0.0)
    *dirty, _ = batch(junk)
    _, clean_gradient = accumulate(clean, mask, (4,), None)
    _, dirty_gradient = accumulate(dirty, mask, (4,), None)
    assert torch.equal(dirty_gradient, clean_gradient)
    assert (dirty_gradient[~mask] == 0).all()
    with warnings.catch_warnings():  # the anomaly mode warns that it is on; it raises at a NaN in any inner gradient
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly():
            accumulate(dirty, mask, (4,), None)


def test_empty_micro_batch_adds_nothing():
    nothing, mask = f64([[NAN, INF]]).requires_grad_(), torch.tensor([[False, False]])
    for denominator in (None, 7):
        policy = policy_losses.ppo_clip(nothing, nothing, nothing, mask, cliprange=0.2, denominator=denominator)
        value = policy_losses.clipped_value_loss(
            nothing, nothing, nothing, mask, cliprange_value=0.2, denominator=denominator
        )
        assert [x.item() for x in (*policy, *value)] == [0.0] * 6


def test_gradcheck():
    *inputs, mask = batch()
    inputs = [x.requires_grad_() for x in inputs]
    for cliprange in (0.2, None):
        assert torch.autograd.gradcheck(
            lambda *x, c=cliprange: policy_losses.ppo_clip(*x, mask, cliprange=c).loss, inputs
        )
        assert torch.autograd.gradcheck(
            lambda *x, c=cliprange: policy_losses.clipped_value_loss(*x, mask, cliprange_value=c).loss, inputs
        )


# --- explained variance --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("junk", JUNK)
def test_explained_variance_by_hand(junk):
    """R = 0, 2, 4 (variance 4), V = 5, 6, 7: residuals -5, -4, -3 (variance 1): 1 - 1/4. A constant offset is free."""
    returns, values = f64([[0.0, 2.0], [4.0, junk]]), f64([[5.0, 6.0], [7.0, junk]])
    mask = torch.tensor([[True, True], [True, False]])
    assert policy_losses.explained_variance(values, returns, mask).item() == 0.75
    assert policy_losses.explained_variance(returns, returns, mask).item() == 1.0
    assert policy_losses.explained_variance(torch.zeros_like(values), returns, mask).item() == 0.0
    assert policy_losses.explained_variance(-returns, returns, mask).item() == -3.0


def test_explained_variance_of_tiny_returns_is_not_rounding():
    """The same numbers scaled by 1e-9, in float32, with a variance of 4e-18."""
    returns, values = 1e-9 * torch.tensor([[0.0, 2.0, 4.0]]), 1e-9 * torch.tensor([[5.0, 6.0, 7.0]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    assert policy_losses.explained_variance(values, returns, mask).item() == pytest.approx(0.75, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("constant", [0.0, 0.1, -1e6 / 3])
def test_explained_variance_of_constant_returns_is_zero(dtype, constant):
    """Nothing to explain; the last bit of one of them must not pass for variance."""
    returns = torch.full((1, 7), constant, dtype=dtype)
    values, mask = torch.arange(7, dtype=dtype).unsqueeze(0), torch.ones(1, 7, dtype=torch.bool)
    assert policy_losses.explained_variance(values, returns, mask).item() == 0.0
    returns[0, 3] *= 1 + torch.finfo(dtype).eps
    assert policy_losses.explained_variance(values, returns, mask).item() == 0.0


def test_bad_arguments_are_refused():
    x, mask = f64([[1.0, 2.0]]), torch.ones(1, 2, dtype=torch.bool)
    refused = [
        lambda: policy_losses.ppo_clip(x, x, x, mask.long(), cliprange=0.2),
        lambda: policy_losses.ppo_clip(x, x[:, :1], x, mask, cliprange=0.2),
        lambda: policy_losses.ppo_clip(x, x, x, mask, cliprange=0.0),
        lambda: policy_losses.ppo_clip(x, x, x, mask, cliprange=NAN),
        lambda: policy_losses.ppo_clip(x, x, x, mask, cliprange=0.2, denominator=0),
        lambda: policy_losses.clipped_value_loss(x, x, x[:, :1], mask, cliprange_value=0.2),
        lambda: policy_losses.clipped_value_loss(x, x, x, mask, cliprange_value=-0.2),
        lambda: policy_losses.token_mean(x[:, :1], mask, 3),
        lambda: policy_losses.reduce_tokens(x, mask, "sum"),
        lambda: policy_losses.reduce_tokens(x[0], mask[0], "trajectory_sum"),
        lambda: policy_losses.reduce_tokens(x, mask, "trajectory_sum", 0),
        lambda: policy_losses.explained_variance(x, x[:, :1], mask),
    ]
    for call in refused:
        with pytest.raises(ConfigError):
            call()
