"""Masked statistics and advantage estimators. Expected values: plain Python recursions, or worked by hand."""

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_lab.core import advantages
from rlhf_lab.errors import ConfigError

NAN, INF = float("nan"), float("inf")
JUNK = [NAN, INF, -INF, 1e30]
LENGTHS = [1, 3, 6, 4]


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def batch(junk=0.0, dtype=torch.float64, seed=0):
    """rewards, values (4, 6) with junk in padding, mask, last values (4,)."""
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, 4, 6, dtype=torch.float64, generator=generator).to(dtype)
    mask = torch.arange(6) < torch.tensor(LENGTHS).unsqueeze(1)
    last_values = torch.randn(4, dtype=torch.float64, generator=generator).to(dtype)
    return rewards.masked_fill(~mask, junk), values.masked_fill(~mask, junk), mask, last_values


def loop_gae(rewards, values, gamma, lam, last_value):
    """One response without padding, by the definition: a sum of discounted deltas, no recursion."""
    length = len(rewards)
    following = [*values[1:], last_value]
    deltas = [rewards[t] + gamma * following[t] - values[t] for t in range(length)]
    return [math.fsum((gamma * lam) ** k * deltas[t + k] for k in range(length - t)) for t in range(length)]


def loop_nstep_returns(rewards, values, gamma, n, last_value):
    length = len(rewards)
    following = [*values, last_value]
    return [
        math.fsum(gamma ** (k - t) * rewards[k] for k in range(t, min(t + n, length)))
        + gamma ** (min(t + n, length) - t) * following[min(t + n, length)]
        for t in range(length)
    ]


def expect(got, row_values, tolerance):
    """got (4, 6) equals row_values(row, length) on the response and exactly 0 on padding."""
    for row, length in enumerate(LENGTHS):
        assert got[row, :length].tolist() == pytest.approx(row_values(row, length), abs=tolerance)
        assert got[row, length:].tolist() == [0.0] * (6 - length)


# --- masked statistics ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("junk", JUNK)
def test_masked_mean_and_var_by_hand(junk):
    """1, 2, 6: mean 3, unbiased variance (4 + 1 + 9) / 2 = 7."""
    x = f64([[1.0, junk], [2.0, 6.0]])
    mask = torch.tensor([[True, False], [True, True]])
    assert advantages.masked_mean(x, mask).item() == 3.0
    assert advantages.masked_mean(x, mask, dim=1).tolist() == [1.0, 4.0]
    assert advantages.masked_mean(x, mask, dim=0).tolist() == [1.5, 6.0]
    assert advantages.masked_var(x, mask).item() == 7.0


def test_masked_statistics_of_nothing_and_of_one():
    x, none = f64([[NAN, INF]]), torch.tensor([[False, False]])
    one = torch.tensor([[True, False]])
    assert advantages.masked_mean(x, none).item() == 0.0
    assert advantages.masked_mean(x, none, dim=1).tolist() == [0.0]
    assert advantages.masked_var(x, none).item() == 0.0
    assert advantages.masked_var(f64([[5.0, NAN]]), one).item() == 0.0


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_whitening_is_masked(junk, dtype, tolerance):
    x, _, mask, _ = batch(junk, dtype)
    inside = x[mask].double().tolist()
    mean, scale = statistics.fmean(inside), math.sqrt(statistics.variance(inside) + 1e-8)
    for shift_mean in (True, False):
        kept = 0.0 if shift_mean else mean
        got = advantages.whiten(x, mask, shift_mean)
        assert got[mask].tolist() == pytest.approx([(v - mean) / scale + kept for v in inside], abs=tolerance)
        assert got[~mask].tolist() == [0.0] * int((~mask).sum())


def test_shift_mean_false_keeps_the_mean():
    """2, 4: mean 3, variance 2; whitened -1/sqrt 2 and 1/sqrt 2, around 0 or around 3."""
    x, mask = f64([[2.0, 4.0, NAN]]), torch.tensor([[True, True, False]])
    root = math.sqrt(0.5)
    assert advantages.whiten(x, mask).tolist()[0] == pytest.approx([-root, root, 0.0], abs=1e-8)
    assert advantages.whiten(x, mask, shift_mean=False).tolist()[0] == pytest.approx([3 - root, 3 + root, 0], abs=1e-8)


def test_whitening_one_element_or_a_constant():
    mask = torch.tensor([[True, False]])
    assert advantages.whiten(f64([[5.0, NAN]]), mask).tolist() == [[0.0, 0.0]]
    assert advantages.whiten(f64([[5.0, NAN]]), mask, shift_mean=False).tolist() == [[5.0, 0.0]]
    assert advantages.whiten(f64([[2.0, 2.0]]), torch.tensor([[True, True]])).tolist() == [[0.0, 0.0]]


# --- GAE -----------------------------------------------------------------------------------------------------------


def test_gae_by_hand():
    """gamma 1/2, lambda 1/2; r = (1, 2), V = (4, 8); end terminal.

    delta_2 = 2 - 8 = -6; delta_1 = 1 + 4 - 4 = 1; A_1 = 1 + (1/4)(-6) = -1/2; returns 7/2 and 2. With the value 4 after
    the end: delta_2 = 2 + 2 - 8 = -4, A_1 = 0.
    """
    rewards, values = f64([[1.0, 2.0, NAN]]), f64([[4.0, 8.0, INF]])
    mask = torch.tensor([[True, True, False]])
    got, returns = advantages.gae(rewards, values, mask, gamma=0.5, lam=0.5)
    assert got.tolist() == [[-0.5, -6.0, 0.0]]
    assert returns.tolist() == [[3.5, 2.0, 0.0]]
    got, returns = advantages.gae(rewards, values, mask, gamma=0.5, lam=0.5, last_values=f64([4.0]))
    assert got.tolist() == [[0.0, -4.0, 0.0]]
    assert returns.tolist() == [[4.0, 4.0, 0.0]]


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
@pytest.mark.parametrize("bootstrap", [False, True])
def test_gae_equals_a_loop_per_sample(junk, dtype, tolerance, bootstrap):
    """Padding is ignored; the last response token's next value is 0 unless last_values says otherwise."""
    rewards, values, mask, last_values = batch(junk, dtype)
    got, returns = advantages.gae(
        rewards, values, mask, gamma=0.9, lam=0.8, last_values=last_values if bootstrap else None
    )
    assert got.dtype == returns.dtype == dtype

    def expected(row, length):
        last = last_values[row].item() if bootstrap else 0.0
        return loop_gae(rewards[row, :length].tolist(), values[row, :length].tolist(), 0.9, 0.8, last)

    expect(got, expected, tolerance)


@settings(derandomize=True, database=None, deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=7),
    st.integers(0, 3),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_gae_property(steps, padding, gamma, lam):
    rewards, values = (list(column) for column in zip(*steps, strict=True))
    mask = torch.tensor([[True] * len(steps) + [False] * padding])
    got, _ = advantages.gae(
        f64([rewards + [NAN] * padding]), f64([values + [INF] * padding]), mask, gamma=gamma, lam=lam
    )
    assert got[0].tolist() == pytest.approx(loop_gae(rewards, values, gamma, lam, 0.0) + [0.0] * padding, abs=1e-9)


def test_lambda_one_without_values_gives_rewards_to_go():
    rewards, _, mask, _ = batch(NAN)
    got, returns = advantages.gae(rewards, torch.zeros(4, 6).double(), mask, gamma=0.9, lam=1.0)

    def expected(row, length):
        return [math.fsum(0.9 ** (k - t) * rewards[row, k].item() for k in range(t, length)) for t in range(length)]

    expect(got, expected, 1e-12)
    expect(returns, expected, 1e-12)
    expect(advantages.rewards_to_go(rewards, mask, gamma=0.9), expected, 1e-12)


@pytest.mark.parametrize("junk", JUNK)
def test_returns_use_unwhitened_advantages(junk):
    """returns - values is the raw advantage of the loop; its mean is far from the 0 of whitened ones."""
    rewards, values, mask, _ = batch(junk)
    got, returns = advantages.gae(rewards + 2.0, values, mask, gamma=1.0, lam=0.95)
    whitened = advantages.whiten(got, mask)

    def expected(row, length):
        row_values = values[row, :length].tolist()
        raw = loop_gae((rewards[row, :length] + 2.0).tolist(), row_values, 1.0, 0.95, 0.0)
        return [a + v for a, v in zip(raw, row_values, strict=True)]

    expect(returns, expected, 1e-12)
    assert (whitened + values - returns)[mask].abs().min() > 0.01


@pytest.mark.parametrize("bootstrap", [False, True])
def test_junk_in_padding_never_reaches_a_gradient(bootstrap):
    rewards, values, mask, last_values = batch(NAN)
    clean_rewards, clean_values, _, _ = batch(0.0)
    gradients = []
    for r, v in ((rewards, values), (clean_rewards, clean_values)):
        inputs = [r.clone().requires_grad_(), v.clone().requires_grad_()]
        last = last_values if bootstrap else None
        got, returns = advantages.gae(*inputs, mask, gamma=0.9, lam=0.8, last_values=last)
        whitened = advantages.whiten(got, mask) + advantages.whiten(inputs[0], mask, shift_mean=False)
        nstep_advantages, _ = advantages.nstep(*inputs, mask, gamma=0.9, n=2, last_values=last)
        to_go = advantages.rewards_to_go(inputs[0], mask, gamma=0.9)
        loss = whitened.square().sum() + (returns * nstep_advantages).sum() + advantages.masked_var(to_go, mask)
        loss.backward()
        gradients.append([x.grad for x in inputs])
    for junk_gradient, clean_gradient in zip(*gradients, strict=True):
        assert torch.equal(junk_gradient, clean_gradient)
        assert (junk_gradient[~mask] == 0).all()
        assert (junk_gradient[mask] != 0).all()


def test_gradcheck():
    rewards, values, mask, last_values = batch()
    inputs = tuple(x.clone().requires_grad_() for x in (rewards, values, last_values))
    assert torch.autograd.gradcheck(
        lambda r, v, last: advantages.gae(r, v, mask, gamma=0.9, lam=0.8, last_values=last), inputs
    )
    assert torch.autograd.gradcheck(
        lambda r, v, last: advantages.nstep(r, v, mask, gamma=0.9, n=2, last_values=last), inputs
    )
    assert torch.autograd.gradcheck(lambda r: advantages.rewards_to_go(r, mask, gamma=0.9), inputs[:1])
    assert torch.autograd.gradcheck(lambda r: advantages.whiten(r, mask), inputs[:1])
    assert torch.autograd.gradcheck(lambda r: advantages.whiten(r, mask, shift_mean=False), inputs[:1])
    assert torch.autograd.gradcheck(lambda r: advantages.masked_mean(r, mask, dim=1), inputs[:1])


# --- the other estimators ------------------------------------------------------------------------------------------


def test_nstep_by_hand():
    """gamma 1/2, n 2; r = (1, 2, 4), V = (8, 16, 32).

    R_1 = 1 + 1 + 32/4 = 10; R_2 = 2 + 2 = 4 (the end is terminal); R_3 = 4. With 8 after the end: R_2 = 4 + 8/4 = 6,
    R_3 = 4 + 8/2 = 8.
    """
    rewards, values, mask = f64([[1.0, 2.0, 4.0]]), f64([[8.0, 16.0, 32.0]]), torch.ones(1, 3, dtype=torch.bool)
    got, returns = advantages.nstep(rewards, values, mask, gamma=0.5, n=2)
    assert returns.tolist() == [[10.0, 4.0, 4.0]]
    assert got.tolist() == [[2.0, -12.0, -28.0]]
    _, returns = advantages.nstep(rewards, values, mask, gamma=0.5, n=2, last_values=f64([8.0]))
    assert returns.tolist() == [[10.0, 6.0, 8.0]]


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("n", [1, 2, 3, 6, 100])
@pytest.mark.parametrize("bootstrap", [False, True])
def test_nstep_equals_loop(junk, n, bootstrap):
    rewards, values, mask, last_values = batch(junk)
    got, returns = advantages.nstep(
        rewards, values, mask, gamma=0.9, n=n, last_values=last_values if bootstrap else None
    )

    def expected_returns(row, length):
        last = last_values[row].item() if bootstrap else 0.0
        return loop_nstep_returns(rewards[row, :length].tolist(), values[row, :length].tolist(), 0.9, n, last)

    def expected_advantages(row, length):
        return [r - v for r, v in zip(expected_returns(row, length), values[row, :length].tolist(), strict=True)]

    expect(returns, expected_returns, 1e-12)
    expect(got, expected_advantages, 1e-12)


@pytest.mark.parametrize(("n", "lam"), [(1, 0.0), (6, 1.0)])
def test_nstep_and_gae_meet_at_their_ends(n, lam):
    rewards, values, mask, last_values = batch(NAN)
    by_steps = advantages.nstep(rewards, values, mask, gamma=0.9, n=n, last_values=last_values)
    by_lambda = advantages.gae(rewards, values, mask, gamma=0.9, lam=lam, last_values=last_values)
    torch.testing.assert_close(by_steps, by_lambda, rtol=0, atol=1e-12)


def test_rewards_to_go_by_hand():
    """gamma 1/2, r = (1, 2, 4): 1 + 1 + 1, 2 + 2, 4."""
    rewards, mask = f64([[1.0, 2.0, 4.0, NAN]]), torch.tensor([[True, True, True, False]])
    assert advantages.rewards_to_go(rewards, mask, gamma=0.5).tolist() == [[3.0, 4.0, 4.0, 0.0]]


def test_a_response_may_start_later():
    """Junk to the left of the response is padding too: the results are those of the same response at column 0."""
    rewards, values, last_values = f64([[1.0, 2.0, NAN, NAN]]), f64([[4.0, 8.0, INF, NAN]]), f64([4.0])
    mask = torch.tensor([[True, True, False, False]])
    rewards, values, mask = (
        torch.cat([rewards, rewards.roll(2)]),
        torch.cat([values, values.roll(2)]),
        mask.repeat(2, 1),
    )
    mask[1] = mask[1].roll(2)
    for first, later in (
        *advantages.gae(rewards, values, mask, gamma=0.5, lam=0.5, last_values=last_values.repeat(2)),
        *advantages.nstep(rewards, values, mask, gamma=0.5, n=2, last_values=last_values.repeat(2)),
        advantages.rewards_to_go(rewards, mask, gamma=0.5),
    ):
        assert later.tolist() == first.roll(2).tolist()
        assert later[:2].tolist() == [0.0, 0.0]


def test_a_row_without_response_is_zero():
    nothing, mask = f64([[NAN, INF]]), torch.tensor([[False, False]])
    for result in (
        *advantages.gae(nothing, nothing, mask, gamma=1.0, lam=0.9, last_values=f64([7.0])),
        *advantages.nstep(nothing, nothing, mask, gamma=1.0, n=1, last_values=f64([7.0])),
        advantages.rewards_to_go(nothing, mask, gamma=1.0),
    ):
        assert result.tolist() == [[0.0, 0.0]]


def test_is_last_token():
    mask = torch.tensor([[True, True, False], [True, True, True], [False, False, False], [False, True, True]])
    expected = [[False, True, False], [False, False, True], [False, False, False], [False, False, True]]
    assert advantages.is_last_token(mask).tolist() == expected


def test_bad_arguments_are_refused():
    x, mask = f64([[1.0, 2.0]]), torch.ones(1, 2, dtype=torch.bool)
    refused = [
        lambda: advantages.masked_mean(x, mask.double()),
        lambda: advantages.masked_mean(f64([1.0]), mask),
        lambda: advantages.whiten(x, mask.long()),
        lambda: advantages.gae(x, x, mask, gamma=1.1, lam=0.9),
        lambda: advantages.gae(x, x, mask, gamma=1.0, lam=-0.1),
        lambda: advantages.gae(x, x, mask, gamma=NAN, lam=1.0),
        lambda: advantages.gae(x, f64([[1.0]]), mask, gamma=1.0, lam=1.0),
        lambda: advantages.gae(x, x, mask, gamma=1.0, lam=1.0, last_values=f64([1.0, 2.0])),
        lambda: advantages.gae(x[0], x[0], mask[0], gamma=1.0, lam=1.0),
        lambda: advantages.nstep(x, x, mask, gamma=1.0, n=0),
        lambda: advantages.rewards_to_go(x, mask, gamma=2.0),
    ]
    for call in refused:
        with pytest.raises(ConfigError):
            call()


@pytest.mark.parametrize("constant", [100.1, 1000.1, 12345.678])
def test_a_constant_in_float32_is_whitened_to_zero(constant):
    x, mask = torch.full((3, 4), constant), torch.ones(3, 4, dtype=torch.bool)
    assert advantages.whiten(x, mask).eq(0).all()
    assert advantages.masked_var(x, mask) == 0
