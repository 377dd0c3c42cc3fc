"""The estimators against a world in which every path, value and gradient is known exactly (tests/support/gridworld.py).

Expectations are sums over all 2,000 paths times their probability, so "unbiased" is an equality, not a statistic.
"""

import math

import pytest
import torch
from support import gridworld as world
from support.reference_formulas import (
    effective_sample_size,
    importance_mean,
    importance_variance,
    time_discount,
    trajectory_log_ratio,
)

from rlhf_lab.core.advantages import gae, nstep, reinforce_weights, rewards_to_go, truncation_values
from rlhf_lab.core.policy_losses import (
    ppo_clip,
    reinforce_loss,
)

PATHS = world.all_paths()
POLICY = world.some_policy()
CHANCE = world.probability(POLICY, PATHS)
MASK, REWARDS = PATHS.mask, PATHS.rewards
GAMMAS = [1.0, 0.9]


def along_v(gamma):
    """V_t(s_t) along every path, exact."""
    return world.along(world.values_of(POLICY, gamma)[0][:-1], PATHS)


def expected(per_token, chance=CHANCE):
    """E[sum_t x_t] over all paths: (N, T) -> scalar."""
    return (chance * per_token.masked_fill(~MASK, 0.0).sum(dim=1)).sum()


def expected_gradient(weights, chance=CHANCE):
    """E[sum_t weight_t grad log pi_t], through `reinforce_loss`: the loss is a mean over N rows and linear in weights."""
    leaf = POLICY.clone().requires_grad_()
    share = (chance * len(chance)).unsqueeze(1)
    reinforce_loss(world.logprobs_of(leaf, PATHS), weights * share, MASK).backward()
    return -leaf.grad


def variance(weights):
    """Trace of the covariance of one path's gradient estimate, by the formula of the score, not by autograd."""
    scores = world.scores_of(POLICY, PATHS) * (weights * MASK)[:, :, None, None]
    estimates = scores.sum(dim=1).flatten(1)
    mean = (CHANCE[:, None] * estimates).sum(dim=0)
    return (CHANCE * estimates.square().sum(dim=1)).sum().item() - mean.square().sum().item()


def close(actual, expected, tolerance=1e-10):
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


# --- the world itself ----------------------------------------------------------------------------------------------


def test_the_world_adds_up():
    """Probabilities sum to 1; from the start with a uniform policy a move right succeeds with 0.7 + ... = 1/4 in all."""
    assert CHANCE.sum().item() == pytest.approx(1.0, abs=1e-12)
    assert world.outcomes(world.START, 1) == pytest.approx({0: 0.2, 1: 0.7, 3: 0.1})  # into two walls, right, down
    next_to_meat = world.values_of(torch.zeros(6, 4, dtype=torch.float64), 1.0)[0]
    assert next_to_meat[world.HORIZON - 1, 1].item() == pytest.approx((100 - 1) / 4)  # right: meat, down: broom


@pytest.mark.parametrize("gamma", GAMMAS)
def test_dynamic_programming_and_enumeration_agree(gamma):
    discounted = REWARDS * torch.tensor([gamma**t for t in range(world.HORIZON)], dtype=torch.float64)
    assert expected(discounted).item() == pytest.approx(world.values_of(POLICY, gamma)[0][0, world.START].item())


# --- returns, Q, V, A ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", GAMMAS)
def test_rewards_to_go_is_q_on_average_and_not_path_by_path(gamma):
    to_go = rewards_to_go(REWARDS, MASK, gamma=gamma)
    q = world.values_of(POLICY, gamma)[1]
    for t in range(world.HORIZON):
        for cell in set(range(world.CELLS)) - world.OVER:
            for action in range(world.ACTIONS):
                here = MASK[:, t] & (PATHS.cells[:, t] == cell) & (PATHS.actions[:, t] == action)
                if here.any():
                    mean = (CHANCE[here] * to_go[here, t]).sum() / CHANCE[here].sum()
                    assert mean.item() == pytest.approx(q[t, cell, action].item(), abs=1e-9)
    q_along = q[torch.arange(world.HORIZON), PATHS.cells, PATHS.actions]
    assert (to_go - q_along)[MASK].abs().max() > 50.0


def test_advantage_is_against_the_policy_not_against_uniform_choice():
    v, q = world.values_of(POLICY, 1.0)
    advantage = q - v[:-1].unsqueeze(-1)
    close((POLICY.softmax(dim=1) * advantage).sum(dim=-1), torch.zeros(world.HORIZON, world.CELLS).double())
    assert advantage[0, world.START].mean().abs() > 0.3


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_gae_with_the_true_values_is_the_advantage_on_average(gamma, lam):
    """For any lambda; with wrong values only for lambda 1, where the value is only a baseline."""
    v, q = world.values_of(POLICY, gamma)
    true = (q - v[:-1].unsqueeze(-1))[torch.arange(world.HORIZON), PATHS.cells, PATHS.actions]
    first = PATHS.actions[:, 0]
    for values, unbiased in ((along_v(gamma), True), (along_v(gamma) * 0.5, lam == 1.0)):
        got, returns = gae(REWARDS, values, MASK, gamma=gamma, lam=lam)
        for action in range(world.ACTIONS):
            weight = CHANCE[first == action] / CHANCE[first == action].sum()
            baseline = values[0, 0] - along_v(gamma)[0, 0]
            bias = (weight * got[first == action, 0]).sum() + baseline - true[first == action, 0][0]
            assert (abs(bias.item()) < 1e-9) == unbiased
        assert (abs(((CHANCE * returns[:, 0]).sum() - v[0, 0]).item()) < 1e-9) == unbiased


@pytest.mark.parametrize("n", [1, 2, 3])
def test_nstep_targets_are_the_value_on_average(n):
    _, returns = nstep(REWARDS, along_v(0.9), MASK, gamma=0.9, n=n)
    assert (CHANCE * returns[:, 0]).sum().item() == pytest.approx(along_v(0.9)[0, 0].item(), abs=1e-9)


def test_few_steps_are_biased_and_many_steps_vary():
    """Values that are wrong by half: the bias of the first return falls with n, its variance grows."""
    true, wrong = along_v(1.0), 0.5 * along_v(1.0)
    biases, variances = [], []
    for n in (1, 2, 3):
        _, returns = nstep(REWARDS, wrong, MASK, gamma=1.0, n=n)
        mean = (CHANCE * returns[:, 0]).sum().item()
        biases.append(abs(mean - true[0, 0].item()))
        variances.append((CHANCE * returns[:, 0].square()).sum().item() - mean**2)
    assert biases[0] > biases[1] > biases[2]
    assert biases[2] == pytest.approx(0.0, abs=1e-9)
    assert variances[0] < variances[1] < variances[2]


def test_gae_is_the_weighted_mean_of_the_nstep_advantages():
    """(1 - lam) (A1 + lam A2 + lam^2 A3 + ...), the last one with all the remaining weight; V arbitrary."""
    values = torch.randn(MASK.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    lam = 0.6
    got, _ = gae(REWARDS, values, MASK, gamma=0.9, lam=lam)
    one, two, three = (nstep(REWARDS, values, MASK, gamma=0.9, n=n)[0] for n in (1, 2, 3))
    close(got, (1 - lam) * (one + lam * two) + lam**2 * three)


def test_a_cut_response_is_worth_its_last_value():
    """Every path is cut after two moves: with V of the last cell, returns are right on average; without it, they are not."""
    v = world.values_of(POLICY, 1.0)[0]
    last_cells, short = PATHS.cells[:, 2], MASK.clone()
    short[:, 2] = False
    ended = ~MASK[:, 2]
    last = truncation_values(v[2][last_cells].masked_fill(ended, float("nan")), ended)
    _, bootstrapped = gae(REWARDS, along_v(1.0), short, gamma=1.0, lam=0.7, last_values=last)
    _, truncated = gae(REWARDS, along_v(1.0), short, gamma=1.0, lam=0.7)
    assert (CHANCE * bootstrapped[:, 0]).sum().item() == pytest.approx(v[0, 0].item(), abs=1e-9)
    assert abs((CHANCE * truncated[:, 0]).sum().item() - v[0, 0].item()) > 1.0


# --- the policy gradient -------------------------------------------------------------------------------------------

BASELINES = {
    "total": lambda gamma: reinforce_weights(REWARDS, MASK, gamma=gamma, credit="total"),
    "to_go": lambda gamma: reinforce_weights(REWARDS, MASK, gamma=gamma) * discount(gamma),
    "constant": lambda gamma: reinforce_weights(REWARDS, MASK, gamma=gamma, credit="total", baseline="batch_mean"),
    "value": lambda gamma: (
        reinforce_weights(REWARDS, MASK, gamma=gamma, baseline="value", values=along_v(gamma)) * discount(gamma)
    ),
    "gae 0": lambda gamma: gae(REWARDS, along_v(gamma), MASK, gamma=gamma, lam=0.0)[0] * discount(gamma),
    "gae 0.95": lambda gamma: gae(REWARDS, along_v(gamma), MASK, gamma=gamma, lam=0.95)[0] * discount(gamma),
    "2-step": lambda gamma: nstep(REWARDS, along_v(gamma), MASK, gamma=gamma, n=2)[0] * discount(gamma),
}


def discount(gamma):
    return time_discount(MASK, gamma, torch.float64)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("weights", list(BASELINES))
def test_every_weighting_gives_the_exact_gradient(weights, gamma):
    """Total return, rewards-to-go (the past cancels), any baseline, GAE and n-step with the true values."""
    close(expected_gradient(BASELINES[weights](gamma)), world.exact_gradient(POLICY, gamma))


def test_every_baseline_lowers_the_variance():
    """By enumeration: first without past rewards, then with a state's value, then with fewer random rewards."""
    variances = {name: variance(weights(1.0)) for name, weights in BASELINES.items()}
    assert (
        variances["total"]
        > variances["to_go"]
        > variances["value"]
        > variances["gae 0.95"]
        > variances["2-step"]
        > variances["gae 0"]
    )
    assert variances["total"] > variances["constant"]


def test_a_baseline_that_depends_on_the_action_is_biased():
    """A baseline may depend on the state only, not on the action or anything later."""
    q = world.values_of(POLICY, 1.0)[1][torch.arange(world.HORIZON), PATHS.cells, PATHS.actions]
    weights = reinforce_weights(REWARDS, MASK, baseline="value", values=q)
    close(expected_gradient(weights), torch.zeros_like(POLICY))


def test_discounted_rewards_to_go_alone_follow_another_gradient():
    """gamma^(t' - t) without the factor gamma^t, as in practice and in one of the texts."""
    without = expected_gradient(reinforce_weights(REWARDS, MASK, gamma=0.5))
    exact = world.exact_gradient(POLICY, 0.5)
    assert (without - exact).abs().max() > 0.5
    close(expected_gradient(reinforce_weights(REWARDS, MASK, gamma=0.5) * discount(0.5)), exact)


def test_product_of_sums_is_not_the_sum_of_products():
    """(sum_t grad log pi_t) times (sum of the rewards to go): not the gradient."""
    to_go = rewards_to_go(REWARDS, MASK, gamma=1.0)
    product = to_go.sum(dim=1, keepdim=True).expand_as(to_go)
    assert (expected_gradient(product) - world.exact_gradient(POLICY, 1.0)).abs().max() > 1.0


def test_dividing_by_the_length_changes_the_direction():
    """Trajectory by trajectory, the token mean is no multiple of the gradient, since lengths depend on the policy."""
    leaf = POLICY.clone().requires_grad_()
    weights = reinforce_weights(REWARDS, MASK) * (CHANCE * len(CHANCE)).unsqueeze(1)
    reinforce_loss(world.logprobs_of(leaf, PATHS), weights, MASK, reduction="trajectory_mean").backward()
    exact = world.exact_gradient(POLICY, 1.0)
    multiple = (-leaf.grad * exact).sum() / exact.square().sum()  # the nearest multiple of the gradient
    assert (-leaf.grad - multiple * exact).norm() > 0.03 * (multiple * exact).norm()
    by_length = reinforce_weights(REWARDS, MASK) / MASK.sum(dim=1, keepdim=True)
    close(-leaf.grad, expected_gradient(by_length))


def test_a_seeded_sample_meets_the_exact_gradient():
    """20,000 sampled paths, weights V-baselined: every component within 4.5 standard errors, and the error is small."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(CHANCE, 20_000, replacement=True, generator=generator)
    weights = BASELINES["value"](1.0)
    estimates = (world.scores_of(POLICY, PATHS) * (weights * MASK)[:, :, None, None]).sum(dim=1)[drawn]
    error = estimates.std(dim=0) / math.sqrt(len(drawn))
    assert ((estimates.mean(dim=0) - world.exact_gradient(POLICY, 1.0)).abs() <= 4.5 * error + 1e-12).all()
    assert error.max() < 0.2


# --- importance sampling -------------------------------------------------------------------------------------------

NEW = POLICY + 0.3 * world.some_policy(1)


def test_trajectory_ratios_carry_over_means_and_gradients():
    """E_old[w R] = E_new[R] and E_old[w R grad log pi] = the new policy's gradient, with w of the whole trajectory."""
    new, old = world.logprobs_of(NEW, PATHS), world.logprobs_of(POLICY, PATHS)
    ratios = trajectory_log_ratio(new, old, MASK).exp()
    close(ratios * CHANCE, world.probability(NEW, PATHS), 1e-12)
    totals = REWARDS.sum(dim=1)
    assert (CHANCE * ratios * totals).sum().item() == pytest.approx(
        world.values_of(NEW, 1.0)[0][0, world.START].item(), abs=1e-9
    )
    leaf = NEW.clone().requires_grad_()
    weights = reinforce_weights(REWARDS, MASK) * (ratios * CHANCE * len(CHANCE)).unsqueeze(1)
    reinforce_loss(world.logprobs_of(leaf, PATHS), weights, MASK).backward()
    close(-leaf.grad, world.exact_gradient(NEW, 1.0))


def surrogate_gradient(at):
    """Gradient of the unclipped surrogate at a policy, the paths sampled from POLICY, with its exact advantages."""
    leaf = at.clone().requires_grad_()
    v, q = world.values_of(POLICY, 1.0)
    advantages = (q - v[:-1].unsqueeze(-1))[torch.arange(world.HORIZON), PATHS.cells, PATHS.actions]
    share = (CHANCE * len(CHANCE)).unsqueeze(1)
    old = world.logprobs_of(POLICY, PATHS)
    ppo_clip(
        world.logprobs_of(leaf, PATHS), old, advantages * share, MASK, cliprange=None, reduction="trajectory_sum"
    ).loss.backward()
    return -leaf.grad


def test_the_per_token_ratio_is_exact_only_where_the_policies_meet():
    """It ignores the change of the state distribution and uses the old policy's advantages."""
    close(surrogate_gradient(POLICY), world.exact_gradient(POLICY, 1.0))
    assert (surrogate_gradient(NEW) - world.exact_gradient(NEW, 1.0)).abs().max() > 0.1


def test_importance_sampling_keeps_the_mean_and_not_the_variance():
    """The variance formula against the definition, over all paths; it grows with the distance of the policies."""
    totals = REWARDS.sum(dim=1)
    p, q = world.probability(NEW, PATHS), CHANCE
    ratios = p / q
    mean = (q * ratios * totals).sum()
    by_definition = (q * (ratios * totals - mean).square()).sum()
    assert importance_variance(totals, p, q).item() == pytest.approx(by_definition.item(), rel=1e-10)
    on_policy = importance_variance(totals, p, p).item()
    assert on_policy == pytest.approx((p * (totals - mean).square()).sum().item(), rel=1e-10)
    distant = world.probability(POLICY + 2 * (NEW - POLICY), PATHS)
    assert abs(by_definition.item() - on_policy) > 1.0
    assert importance_variance(torch.ones_like(p), distant, q) > importance_variance(torch.ones_like(p), p, q) > 1e-3


def test_sampled_paths_give_the_new_mean_and_the_predicted_spread():
    """20,000 paths of the old policy: the estimate of the new one's return within 4.5 of its standard errors."""
    drawn = torch.multinomial(CHANCE, 20_000, replacement=True, generator=torch.Generator().manual_seed(3))
    ratios = (world.probability(NEW, PATHS) / CHANCE)[drawn]
    totals, everything = REWARDS.sum(dim=1)[drawn], torch.ones(len(drawn), dtype=torch.bool)
    exact = world.values_of(NEW, 1.0)[0][0, world.START].item()
    error = math.sqrt(
        importance_variance(REWARDS.sum(dim=1), world.probability(NEW, PATHS), CHANCE).item() / len(drawn)
    )
    assert abs(importance_mean(totals, ratios, everything).item() - exact) < 4.5 * error
    assert abs(importance_mean(totals, ratios, everything, normalise=True).item() - exact) < 4.5 * error
    assert 0.1 < error < 0.5
    spread = importance_variance(torch.ones_like(CHANCE), world.probability(NEW, PATHS), CHANCE).item()
    assert effective_sample_size(ratios, everything).item() == pytest.approx(len(drawn) / (1 + spread), rel=0.02)
