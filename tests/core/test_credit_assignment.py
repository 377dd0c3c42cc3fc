"""Weights, group advantages and value targets. Expected values: by hand, plain loops, or sums over all outcomes."""

import itertools
import math
import statistics

import pytest
import torch
from support import reference_formulas

from rlhf_lab.core import advantages
from rlhf_lab.errors import ConfigError

NAN, INF = float("nan"), float("inf")
JUNK = [NAN, INF, 7.0]
MASK = torch.tensor([[True, True, True, False], [False, True, True, False], [False] * 4])


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def rewards(junk):
    """Responses (1, 2, 4) and (8, 16); the second one starts a column later."""
    return f64([[1.0, 2.0, 4.0, junk], [junk, 8.0, 16.0, junk], [junk] * 4])


# --- REINFORCE -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("junk", JUNK)
def test_weights_by_hand(junk):
    """gamma 1/2: returns from the start 1 + 1 + 1 = 3 and 8 + 8 = 16; to go 3, 4, 4 and 16, 16; their mean 9.5."""
    total = advantages.reinforce_weights(rewards(junk), MASK, gamma=0.5, credit="total")
    assert total.tolist() == [[3.0, 3.0, 3.0, 0.0], [0.0, 16.0, 16.0, 0.0], [0.0] * 4]
    to_go = advantages.reinforce_weights(rewards(junk), MASK, gamma=0.5)
    assert to_go.tolist() == [[3.0, 4.0, 4.0, 0.0], [0.0, 16.0, 16.0, 0.0], [0.0] * 4]
    centred = advantages.reinforce_weights(rewards(junk), MASK, gamma=0.5, baseline="batch_mean")
    assert centred.tolist() == [[-6.5, -5.5, -5.5, 0.0], [0.0, 6.5, 6.5, 0.0], [0.0] * 4]
    values = f64([[1.0, 1.0, 2.0, junk], [junk, 6.0, 7.0, junk], [junk] * 4]).requires_grad_()
    less = advantages.reinforce_weights(rewards(junk), MASK, gamma=0.5, baseline="value", values=values)
    assert less.tolist() == [[2.0, 3.0, 2.0, 0.0], [0.0, 10.0, 9.0, 0.0], [0.0] * 4]
    assert not less.requires_grad


def test_time_discount_counts_from_the_start_of_the_response():
    got = reference_formulas.time_discount(MASK, 0.5, torch.float64)
    assert got.tolist() == [[1.0, 0.5, 0.25, 0.0], [0.0, 1.0, 0.5, 0.0], [0.0] * 4]
    assert reference_formulas.time_discount(MASK, 1.0).tolist() == MASK.float().tolist()
    assert reference_formulas.time_discount(MASK, 0.0).tolist() == [
        [1.0, 0.0, 0.0, 0.0],
        [0.0, 1.0, 0.0, 0.0],
        [0.0] * 4,
    ]


# --- groups --------------------------------------------------------------------------------------------------------


def test_group_advantages_by_hand():
    """1, 2, 6: the others' means are 4, 3.5, 1.5; the mean 3, deviation sqrt((4 + 1 + 9) / 2) = sqrt 7."""
    scores = f64([[1.0, 2.0, 6.0], [5.0, 5.0, 5.0]])
    rloo = advantages.rloo_advantages(scores)
    assert rloo[0].tolist() == pytest.approx([-3.0, -1.5, 4.5], abs=1e-12)
    assert rloo[1].tolist() == [0.0, 0.0, 0.0]
    assert advantages.grpo_advantages(scores, scale=False).tolist() == [[-2.0, -1.0, 3.0], [0.0, 0.0, 0.0]]
    grpo = advantages.grpo_advantages(scores)
    scale = math.sqrt(7.0) + 1e-4
    assert grpo[0].tolist() == pytest.approx([-2 / scale, -1 / scale, 3 / scale], abs=1e-12)
    assert grpo[1].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_group_advantages_equal_loop(dtype, tolerance):
    scores = torch.randn(3, 5, dtype=dtype, generator=torch.Generator().manual_seed(0))
    rloo, grpo = advantages.rloo_advantages(scores), advantages.grpo_advantages(scores)
    assert rloo.dtype == grpo.dtype == dtype
    for row, group in enumerate(scores.double().tolist()):
        others = [statistics.fmean(group[:i] + group[i + 1 :]) for i in range(5)]
        assert rloo[row].tolist() == pytest.approx([s - o for s, o in zip(group, others, strict=True)], abs=tolerance)
        mean, sd = statistics.fmean(group), statistics.stdev(group) + 1e-4
        assert grpo[row].tolist() == pytest.approx([(s - mean) / sd for s in group], abs=tolerance)


def test_leave_one_out_is_unbiased_and_the_batch_mean_shrinks():
    """A one-token world with three words: E over all groups of 3, against d/d logits of the expected reward.

    A mean that includes the sample itself reduces the gradient by a third: the factor is (B - 1) / B.
    """
    logits, payoffs = f64([0.3, -0.5, 1.0]), f64([1.0, 4.0, -2.0])
    probs = logits.softmax(0)
    exact = probs * (payoffs - probs @ payoffs)
    by_rloo, by_mean = torch.zeros(3).double(), torch.zeros(3).double()
    for words in itertools.product(range(3), repeat=3):
        chance = math.prod(probs[w].item() for w in words)
        scores, score_functions = payoffs[list(words)], torch.eye(3).double()[list(words)] - probs
        by_rloo += chance * (advantages.rloo_advantages(scores.view(1, 3)).view(3, 1) * score_functions).mean(0)
        weights = advantages.reinforce_weights(
            scores.view(3, 1), torch.ones(3, 1, dtype=torch.bool), baseline="batch_mean"
        )
        by_mean += chance * (weights * score_functions).mean(0)
    torch.testing.assert_close(by_rloo, exact, rtol=0, atol=1e-12)
    torch.testing.assert_close(by_mean, exact * 2 / 3, rtol=0, atol=1e-12)


def test_broadcast_to_tokens():
    got = advantages.broadcast_to_tokens(f64([1.5, -2.0, NAN]), MASK)
    assert got.tolist() == [[1.5, 1.5, 1.5, 0.0], [0.0, -2.0, -2.0, 0.0], [0.0] * 4]


# --- values --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("junk", JUNK)
def test_value_targets_by_hand(junk):
    """gamma 1/2, lam 1/2, r = (1, 2), V = (4, 8): lambda-returns 3.5, 2 (see test_gae_by_hand); what followed: 2, 2.

    Cut off before something worth 4: 4, 4 and 1 + 1 + 1 = 3, 2 + 2 = 4.
    """
    r, v = f64([[1.0, 2.0, junk]]), f64([[4.0, 8.0, junk]]).requires_grad_()
    mask = torch.tensor([[True, True, False]])
    by_gae = advantages.value_targets(r, v, mask, gamma=0.5, lam=0.5)
    assert by_gae.tolist() == [[3.5, 2.0, 0.0]]
    assert not by_gae.requires_grad
    followed = advantages.value_targets(r, v, mask, gamma=0.5, lam=0.5, target="monte_carlo")
    assert followed.tolist() == [[2.0, 2.0, 0.0]]
    cut = f64([4.0])
    by_gae = advantages.value_targets(r, v, mask, gamma=0.5, lam=0.5, last_values=cut)
    assert by_gae.tolist() == [[4.0, 4.0, 0.0]]
    followed = advantages.value_targets(r, v, mask, gamma=0.5, lam=0.5, target="monte_carlo", last_values=cut)
    assert followed.tolist() == [[3.0, 4.0, 0.0]]


def test_monte_carlo_is_the_lambda_return_with_lambda_one():
    generator = torch.Generator().manual_seed(0)
    r, v, last = (torch.randn(3, 4, dtype=torch.float64, generator=generator) for _ in range(3))
    args = {"gamma": 0.9, "lam": 1.0, "last_values": last[:, 0]}
    by_gae = advantages.value_targets(r, v, MASK, **args)
    torch.testing.assert_close(
        by_gae, advantages.value_targets(r, v, MASK, target="monte_carlo", **args), rtol=0, atol=1e-12
    )
    to_go = advantages.rewards_to_go(r, MASK, gamma=0.9, last_values=last[:, 0])
    torch.testing.assert_close(by_gae, to_go, rtol=0, atol=1e-12)


def test_truncation_values_only_where_the_limit_cut():
    got = advantages.truncation_values(f64([3.0, NAN, -1.0]), torch.tensor([False, True, False]))
    assert got.tolist() == [3.0, 0.0, -1.0]


def test_junk_in_padding_never_reaches_a_gradient():
    leaf = rewards(NAN).requires_grad_()
    for kind, baseline in itertools.product(("total", "to_go"), ("none", "batch_mean")):
        (gradient,) = torch.autograd.grad(
            advantages.reinforce_weights(leaf, MASK, gamma=0.9, credit=kind, baseline=baseline).square().sum(), leaf
        )
        assert gradient.isfinite().all()
        assert (gradient[~MASK] == 0).all()
        assert (gradient[MASK] != 0).all()


def test_gradcheck():
    r, v = rewards(0.0).requires_grad_(), rewards(1.0)
    for kind, baseline in itertools.product(("total", "to_go"), ("none", "batch_mean", "value")):
        assert torch.autograd.gradcheck(
            lambda x, k=kind, b=baseline: advantages.reinforce_weights(
                x, MASK, gamma=0.9, credit=k, baseline=b, values=v
            ),
            r,
        )
    scores = f64([[1.0, 2.0, 6.0], [0.5, 5.0, -1.0]]).requires_grad_()
    assert torch.autograd.gradcheck(advantages.rloo_advantages, scores)
    assert torch.autograd.gradcheck(advantages.grpo_advantages, scores)
    assert torch.autograd.gradcheck(
        lambda x: advantages.broadcast_to_tokens(x, MASK), f64([1.0, 2.0, 3.0]).requires_grad_()
    )


def test_bad_arguments_are_refused():
    r = rewards(0.0)
    refused = [
        lambda: advantages.reinforce_weights(r, MASK, credit="future"),
        lambda: advantages.reinforce_weights(r, MASK, baseline="median"),
        lambda: advantages.reinforce_weights(r, MASK, baseline="value"),
        lambda: advantages.reinforce_weights(r, MASK, baseline="value", values=r[:1]),
        lambda: advantages.reinforce_weights(r, MASK, gamma=1.5),
        lambda: advantages.reinforce_weights(r, MASK.long()),
        lambda: reference_formulas.time_discount(MASK, 1.5),
        lambda: reference_formulas.time_discount(MASK[0], 0.5),
        lambda: advantages.rloo_advantages(f64([[1.0], [2.0]])),
        lambda: advantages.grpo_advantages(f64([1.0, 2.0])),
        lambda: advantages.broadcast_to_tokens(f64([1.0]), MASK),
        lambda: advantages.value_targets(r, r, MASK, gamma=1.0, lam=1.0, target="rewards"),
        lambda: advantages.truncation_values(f64([1.0]), torch.tensor([1])),
    ]
    for call in refused:
        with pytest.raises(ConfigError):
            call()


@pytest.mark.parametrize("constant", [10.1, 1000.1, 12345.678])
@pytest.mark.parametrize("group", [3, 6, 7, 12])
def test_a_group_of_equal_scores_has_no_advantage(constant, group):
    """In float32, where the mean of many equal numbers may differ from the number."""
    scores = torch.full((2, group), constant)
    for found in (
        advantages.grpo_advantages(scores),
        advantages.grpo_advantages(scores, scale=False),
        advantages.rloo_advantages(scores),
    ):
        assert found.eq(0).all()
