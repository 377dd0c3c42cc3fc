"""The controls of the KL and the penalty of ppo_penalty: arithmetic by hand, what they limit, and their saved states."""

import json

import numpy as np
import pytest
import torch

from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.core import policy_losses
from rlhf_lab.core.kl import full_kl
from rlhf_lab.errors import ConfigError, NotFiniteError
from rlhf_lab.training.policy import kl_control
from rlhf_lab.training.policy.kl_control import make_kl_control

INF, NAN = float("inf"), float("nan")


def test_adaptive_kl_by_hand():
    """Target 6, horizon 1000, n 100: KL 6.6 is 10 % too far, so the coefficient grows by 0.1 * 100 / 1000 = 1 %."""
    controller = kl_control.AdaptiveKL(init=0.2, target=6.0, horizon=1000.0)
    assert controller.update(6.6, 100) == pytest.approx(0.202, abs=1e-12)
    assert controller.value == pytest.approx(0.202, abs=1e-12)
    assert controller.update(6.0, 100) == pytest.approx(0.202, abs=1e-12)
    assert controller.update(5.4, 100) == pytest.approx(0.202 * 0.99, abs=1e-12)


@pytest.mark.parametrize(("sequence_kl", "factor"), [(600.0, 1.02), (7.3, 1.02), (0.0, 0.98), (-3.0, 0.98)])
def test_adaptive_kl_clips_the_error(sequence_kl, factor):
    """The error is clipped to 20 % either way: 0.2 * 100 / 1000 = 2 %."""
    assert kl_control.AdaptiveKL(1.0, 6.0, 1000.0).update(sequence_kl, 100) == pytest.approx(factor, abs=1e-12)


def test_controller_unit_is_the_sequence_sum():
    """0.1 nat a token: 60 tokens are on target (6 nats), 66 are 10 % beyond, 120 hit the clip, 30 relax it."""
    expected = {60: 1.0, 66: 1.01, 120: 1.02, 30: 0.98}
    for length, factor in expected.items():
        per_token = torch.full((2, length), 0.1, dtype=torch.float64)
        sequence_kl = per_token.sum(dim=1).mean().item()
        assert kl_control.AdaptiveKL(1.0, 6.0, 1000.0).update(sequence_kl, 100) == pytest.approx(factor, abs=1e-12)


def test_adaptive_kl_takes_any_sensible_n():
    """n = 0 changes nothing; just below 5 * horizon the coefficient is almost 0 but positive."""
    assert kl_control.AdaptiveKL(1.0, 6.0, 100.0).update(60.0, 0) == 1.0
    assert kl_control.AdaptiveKL(1.0, 6.0, 100.0).update(0.0, 499) == pytest.approx(0.002, abs=1e-12)


@pytest.mark.parametrize("coef", [0.0, 0.05])
def test_fixed_kl_stays(coef):
    controller = kl_control.KLControl(coef)
    assert controller.update(1000.0, 32) == controller.value == coef


def test_budget_kl_by_hand():
    """Budget 4. KL 2 makes the average 1, a quarter of the budget: 1/64 of the base, which stays. KL 4.6: average 2.8, rising,
    so the base stays. KL 6.2: average 4.5; base times (4.5 / 4)^0.25. KL 1: average 2.75, falling, which lowers the base."""
    controller = kl_control.KLBudgetWithBeta(init=0.32, budget=4.0)
    assert controller.value == 0.0
    assert controller.update(2.0, 32) == pytest.approx(0.32 / 64, abs=1e-12)
    assert controller.base == 0.32
    assert controller.update(4.6, 32) == pytest.approx(0.32 * 0.7**3, abs=1e-12)
    assert controller.update(6.2, 32) == pytest.approx(0.32 * 1.125**0.25 * 1.125**3, abs=1e-12)
    assert controller.update(1.0, 32) == pytest.approx(0.32 * (1.125 * 0.6875) ** 0.25 * 0.6875**3, abs=1e-12)
    assert controller.average == 2.75


def test_budget_kl_far_beyond_its_budget():
    """Beyond four times the budget the wall is 64 and the base grows by 4^0.25 a step; a negative estimate counts as 0."""
    controller = kl_control.KLBudgetWithBeta(init=1.0, budget=1.0)
    assert controller.update(1000.0, 32) == pytest.approx(64 * 4**0.25, abs=1e-12)
    other = kl_control.KLBudgetWithBeta(init=1.0, budget=1.0)
    assert other.update(-3.0, 32) == other.average == 0.0


@pytest.mark.parametrize(
    ("average", "length"), [(0.0, 1.0), (2.0, 1.0), (3.0, 0.75), (3.5, 0.625), (4.0, 0.5), (9.0, 0.5)]
)
def test_updates_are_half_as_long_at_the_budget(average, length):
    """Budget 4: whole up to 2, then falling in a line to a half at 4."""
    controller = kl_control.KLBudgetWithBeta(init=0.1, budget=4.0)
    controller.average = average
    assert controller.update_length == pytest.approx(length, abs=1e-12)


def test_while_another_coefficient_is_in_use_a_controller_only_measures():
    """Budget 4: KL 10 makes the average 5, then 7.5, 8.75; the base stays 0.1. The adaptive controller keeps its value."""
    budget, adaptive = kl_control.KLBudgetWithBeta(init=0.1, budget=4.0), kl_control.AdaptiveKL(0.2, 6.0, 1000.0)
    for _ in range(3):
        budget.update(10.0, 32, adapt=False)
        adaptive.update(10.0, 32, adapt=False)
    assert (budget.base, budget.average, adaptive.value) == (0.1, 8.75, 0.2)
    assert budget.value == pytest.approx(0.1 * (8.75 / 4) ** 3)
    with pytest.raises(NotFiniteError):
        adaptive.update(NAN, 32, adapt=False)


def test_budget_kl_with_a_floor_by_hand():
    """Budget 4, floor and base 0.32. The average is 2, which adds an eighth of the base; then 4.5, which adds (4.5 / 4)^3 of
    a base that grew by (4.5 / 4)^0.25; then 2.5, from where the base would fall below the floor."""
    controller = kl_control.KLBudgetWithBeta(init=0.32, budget=4.0, floor=0.32)
    assert controller.value == 0.32
    assert controller.update(4.0, 32) == pytest.approx(0.32 + 0.32 / 8, abs=1e-12)
    assert controller.update(7.0, 32) == pytest.approx(0.32 + 0.32 * 1.125**3.25, abs=1e-12)
    assert controller.update(0.5, 32) == pytest.approx(0.32 + 0.32 * 0.625**3, abs=1e-12)


def test_a_budget_that_falls_by_hand():
    """Averages 1, then 1.5 · 0.5 = 0.75: a budget of 0.33 becomes 1.3, then 0.975, and an old one of 0.5 does not rise."""
    control = kl_control.KLBudgetWithBeta(init=0.15, budget=4.0, floor=0.15)
    control.update(2.0, 32)
    control.set_budget(0.33)
    assert control.budget == pytest.approx(1.3)
    control.update(0.5, 32)
    control.set_budget(0.33)
    assert control.budget == pytest.approx(0.975)
    control.set_budget(3.0)
    assert control.budget == 3.0
    low = kl_control.KLBudgetWithBeta(init=0.15, budget=0.5, floor=0.15)
    low.update(2.0, 32)
    low.set_budget(0.33)
    assert low.budget == 0.5


@pytest.mark.parametrize("seed", range(3))
def test_a_budget_that_falls_below_the_kl_does_not_raise_beta(seed):
    """A class run: 40 steps with a budget near 1.3, which a policy as below approaches to 1; then 60 with one that jumps around
    0.33. The KL is measured with an error of a tenth. Beta stays within a factor of 2, and the policy where it is."""
    random, sequence_kl, betas = np.random.default_rng(seed), 0.0, []
    control = kl_control.KLBudgetWithBeta(init=0.15, budget=1.3, floor=0.15)
    for step in range(100):
        control.set_budget((1.3 if step < 40 else 0.33) * random.uniform(0.8, 1.2))
        sequence_kl += 0.1 * (min(0.2 / control.value, 12.0) - sequence_kl)
        betas.append(control.update(sequence_kl * (1 + 0.1 * random.normal()), 32))
    assert max(betas) < 2 * min(betas)
    assert sequence_kl > 0.75


@pytest.mark.parametrize(("strength", "settled"), [(0.2, 1.826), (30.0, 4.0)])
def test_budget_kl_with_a_floor_settles_below_the_budget(strength, settled):
    """A policy as in the next test. A weak reward is balanced by the floor, where strength = KL · 0.1 · (1 + (KL / 4)^3); a
    strong one is stopped at the budget."""
    controller, sequence_kl = kl_control.KLBudgetWithBeta(init=0.1, budget=4.0, floor=0.1), 0.0
    for _ in range(200):
        sequence_kl += 0.1 * (min(strength / controller.value, 12.0) - sequence_kl)
        controller.update(sequence_kl, 32)
    assert sequence_kl == pytest.approx(settled, rel=0.05)


@pytest.mark.parametrize("strength", [1.0, 30.0])
def test_budget_kl_settles_at_the_budget(strength):
    """A policy whose KL moves towards strength / coefficient by a tenth a step: it settles at the budget for any strength."""
    controller, sequence_kl = kl_control.KLBudgetWithBeta(init=0.1, budget=4.0), 0.0
    for _ in range(200):
        sequence_kl += 0.1 * (min(strength / max(controller.value, 1e-9), 12.0) - sequence_kl)
        controller.update(sequence_kl, 32)
    assert sequence_kl == pytest.approx(4.0, rel=0.05)


def test_adaptive_penalty_by_hand():
    """Bounds 1 and 4, factor 3: above it is multiplied, below divided, in between and on the bounds it stays."""
    penalty = kl_control.AdaptivePenalty(0.5, kl_min=1.0, kl_max=4.0, factor=3.0)
    got = [penalty.update(x) for x in (4.5, 4.0, 2.0, 1.0, 0.5, 0.0)]
    assert got == [1.5, 1.5, 1.5, 1.5, 0.5, 0.5 / 3]
    assert penalty.value == 0.5 / 3
    assert kl_control.AdaptivePenalty(1.0, 0.0, 1.0).update(2.0) == 2.0


@pytest.mark.parametrize(("kl", "bound"), [(0.0, 0.5 / 2**20), (1e300, 0.5 * 2**20)])
def test_an_adaptive_penalty_stays_within_a_range_from_which_it_can_return(kl, bound):
    """2,000 halvings would end at 0, and doublings at infinity: no factor changes these."""
    penalty = kl_control.AdaptivePenalty(0.5, kl_min=1.0, kl_max=4.0)
    assert [penalty.update(kl) for _ in range(2000)][-1] == bound
    assert penalty.update(5.0 if kl < 1 else 0.5) == (2 * bound if kl < 1 else bound / 2)


def test_broken_policy_is_reported():
    for broken in (NAN, INF):
        with pytest.raises(NotFiniteError):
            kl_control.AdaptiveKL(0.1, 6.0, 1000.0).update(broken, 10)
        with pytest.raises(NotFiniteError):
            kl_control.AdaptivePenalty(0.1, 0.0, 1.0).update(broken)
        with pytest.raises(NotFiniteError):
            kl_control.KLBudgetWithBeta(0.1, 4.0).update(broken, 10)


@pytest.mark.parametrize(
    "call",
    [
        lambda: kl_control.KLBudgetWithBeta(0.0, 4.0),
        lambda: kl_control.KLBudgetWithBeta(0.1, 0.0),
        lambda: kl_control.KLBudgetWithBeta(0.1, INF),
        lambda: kl_control.KLBudgetWithBeta(0.1, 4.0, floor=-0.1),
        lambda: kl_control.AdaptivePenalty(0.0, 0.0, 1.0),
        lambda: kl_control.AdaptivePenalty(1.0, 1.0, 1.0),
        lambda: kl_control.AdaptivePenalty(1.0, -0.1, 1.0),
        lambda: kl_control.AdaptivePenalty(1.0, 0.0, INF),
        lambda: kl_control.AdaptivePenalty(1.0, 0.0, 1.0, factor=1.0),
        lambda: kl_control.KLControl(-0.1),
        lambda: kl_control.AdaptiveKL(0.0, 6.0, 100.0),
        lambda: kl_control.AdaptiveKL(0.1, -6.0, 100.0),
        lambda: kl_control.AdaptiveKL(0.1, 6.0, 0.0),
        lambda: kl_control.AdaptiveKL(0.1, 6.0, 100.0).update(6.0, 500),
        lambda: kl_control.AdaptiveKL(0.1, 6.0, 100.0).update(6.0, -1),
        lambda: kl_control.KLBudget(0.1, -1.0),
    ],
)
def test_bad_arguments_are_refused(call):
    with pytest.raises(ConfigError):
        call()


def test_the_adaptive_penalty_finds_a_step_within_its_bounds():
    """The same step of a softmax policy is repeated: its KL falls from far above the bounds into them and stays there."""
    old, payoffs = torch.tensor([[[0.0, 0.0, 0.0]]]).double(), torch.tensor([[1.0, 0.0, -1.0]]).double()
    mask, penalty, history = torch.ones(1, 3, dtype=torch.bool), kl_control.AdaptivePenalty(0.1, 0.01, 0.05), []
    for _ in range(10):
        logits = old.clone().requires_grad_()
        for _ in range(100):
            loss = policy_losses.ppo_penalty(
                logits.log_softmax(-1)[0], old.log_softmax(-1)[0], payoffs, mask, coef=penalty.value,
                kl=full_kl(old, logits).expand(1, 3),
            ).loss  # fmt: skip
            logits = (logits - 0.3 * torch.autograd.grad(loss, logits)[0]).detach().requires_grad_()
        history.append((full_kl(old, logits).item(), penalty.value))
        penalty.update(history[-1][0])
    assert history[0][0] > 0.1
    assert all(0.01 <= kl <= 0.05 for kl, _ in history[-5:])
    assert len({beta for _, beta in history[-5:]}) == 1


SAVED = {
    "fixed": ({}, {"beta": 0.2}),
    "adaptive": ({"kl_controller": "adaptive"}, {"beta": 0.25}),
    "target": (
        {"kl_budget": 4.0}, {"beta": 0.05, "kl_budget": [0.4, 2.0], "score_unit": [1.5, 0.5], "best": [5, 0.75]},
    ),
    "limit": (
        {"kl_budget": 4.0, "kl_budget_role": "limit", "beta": 0.25},
        {"beta": 0.3125, "kl_budget": [0.5, 2.0], "score_unit": None, "best": None},
    ),
    "offline": (
        {"kl_budget": 4.0, "algorithm": "sft"},
        {"beta": 0.13, "score_unit": [1.5, 0.5], "best": [5, 0.75], "measured_kl": 3.0, "update_fraction": 0.5},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAVED)
def test_a_state_that_version_0_2_0_saved_loads_and_is_saved_with_the_same_names(name):
    settings, saved = SAVED[name]
    control = make_kl_control(PolicyConfig(**settings))
    control.load(saved)
    assert json.loads(json.dumps(control.numbers())) == saved
    assert control.value == pytest.approx(saved["beta"], abs=1e-12)


@pytest.mark.parametrize("name", SAVED)
def test_a_restarted_control_has_the_beta_of_its_config_and_what_it_measured(name):
    settings, saved = SAVED[name]
    control, config = make_kl_control(PolicyConfig(**settings)), PolicyConfig(**settings)
    control.load(saved)
    control.restart()
    expected = saved | {"beta": config.beta}
    if "kl_budget" in saved:
        average = saved["kl_budget"][1]
        floor = config.beta if config.kl_budget_role == "limit" else 0.0
        expected |= {"kl_budget": [config.beta, average], "beta": floor + config.beta * (average / 4.0) ** 3}
    assert json.loads(json.dumps(control.numbers())) == expected


@pytest.mark.parametrize(
    ("settings", "adapts", "limit", "accepted"),
    [
        ({}, (), INF, 1000.0),
        ({"kl_controller": "adaptive"}, ("beta",), INF, 1000.0),
        ({"kl_budget": 4.0}, ("beta", "lr"), 0.4, 5.2),
        ({"kl_budget": 4.0, "algorithm": "dpo"}, ("lr",), 0.4, 5.2),
        ({"algorithm": "dpo"}, (), INF, 1000.0),
    ],
)
def test_what_a_control_adapts_and_limits(settings, adapts, limit, accepted):
    """Ten steps with a KL of 10: what the description says is what changes, and nothing else. Both agree on a budget."""
    config = PolicyConfig(**settings)
    control, described = make_kl_control(config), config.kl_control
    before = {"beta": control.value, "lr": control.lr_multiplier(1.0, 100)}
    for _ in range(10):
        control.update(10.0, 32)
    after = {"beta": control.value, "lr": control.lr_multiplier(1.0, 100)}
    assert tuple(name for name in before if before[name] != after[name]) == described.adapts == adapts
    assert control.max_update_kl == pytest.approx(limit)
    assert control.accepts(accepted)
    assert control.has_budget == (described.budget is not None) == (not control.accepts(accepted + 0.1))
    assert (described.update_passes > 0) == (described.held_out_responses > 0) == control.has_budget
