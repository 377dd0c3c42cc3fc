"""What the screen Learn computes in the browser, against functions of core, linear algebra and worlds worked out by hand."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from support.reference_formulas import effective_sample_size

from rlhf_lab.core.advantages import gae
from rlhf_lab.core.kl import shape_rewards
from rlhf_lab.core.logprobs import logprobs_and_entropy
from rlhf_lab.core.policy_losses import clipped_value_loss, ppo_clip
from rlhf_lab.core.preference import bradley_terry_loss

SCRIPTS = Path(__file__).parents[2] / "rlhf_lab" / "ui" / "learn"
REQUIRED = os.environ.get("RLHF_LAB_REQUIRE_NODE") == "1"
#: Cells 0 1 / 2 3: the cat and the meat above, the broom and the bathtub below.
SMALL = {
    "rows": 2,
    "columns": 2,
    "start": 0,
    "meat": 1,
    "broom": 2,
    "bathtub": 3,
    "broomCost": 1,
    "slip": 0.0,
    "gamma": 0.5,
}
LARGE = {
    "rows": 3,
    "columns": 4,
    "start": 8,
    "meat": 3,
    "broom": 5,
    "bathtub": 7,
    "broomCost": 1,
    "slip": 0.25,
    "gamma": 0.9,
}
UNIFORM = [[0.25] * 4] * 4
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
RANDOM = np.random.default_rng(0)


def evaluate(expression, **values):
    """The result of an expression over the functions of world.js (w) and formulas.js (f) and these values."""
    if not REQUIRED and not shutil.which("node"):
        pytest.skip("Node is not installed")
    script = f"""
      const [w, f] = await Promise.all(['world.js', 'formulas.js'].map((name) => import('{SCRIPTS.as_uri()}/' + name)));
      const {{ {", ".join(values)} }} = {json.dumps(values)};
      console.log(JSON.stringify({expression}));
    """
    done = subprocess.run(
        ["node", "--input-type=module", "-e", script], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def close(actual, expected, tolerance=1e-6):
    np.testing.assert_allclose(np.array(actual, float), np.array(expected, float), rtol=tolerance, atol=tolerance)


# ---- the world


def test_values_of_a_small_world_by_hand():
    """At random: V(0) = (2 · V(0)/2 + 100 − 1 + V(2)/2) / 4 and V(2) = (V(0)/2 − 10 + 2 · (−1 + V(2)/2)) / 4."""
    values, best, q = evaluate(
        "[w.valuesOf(world, policy), w.bestValues(world), w.actionValues(world, w.bestValues(world), 2)]",
        world=SMALL, policy=UNIFORM,
    )  # fmt: skip
    close(values, [1164 / 35, 0, 54 / 35, 0])
    close(best, [100, 0, 50, 0])
    close(q, [50, -10, -1 + 25, -1 + 25])


def transitions(world):
    """(C, 4, C) probabilities of the next cell; (C,) the reward of entering a cell."""
    cells, slip = world["rows"] * world["columns"], world["slip"]
    chances = np.zeros((cells, 4, cells))
    for cell in set(range(cells)) - {world["meat"], world["bathtub"]}:
        row, column = divmod(cell, world["columns"])
        for move, (down, right) in enumerate(MOVES):
            inside = 0 <= row + down < world["rows"] and 0 <= column + right < world["columns"]
            target = (row + down) * world["columns"] + column + right if inside else cell
            chances[cell, :, target] += slip / 3
            chances[cell, move, target] += 1 - slip - slip / 3
    rewards = np.zeros(cells)
    rewards[[world["meat"], world["bathtub"], world["broom"]]] = 100, -10, -1
    return chances, rewards


def solve(world, policy):
    """V by linear algebra: V = (I − γ P)⁻¹ r."""
    chances, rewards = transitions(world)
    mixed = np.einsum("ca,cax->cx", policy, chances)
    return np.linalg.solve(np.eye(len(rewards)) - world["gamma"] * mixed, mixed @ rewards)


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


LOGITS = RANDOM.normal(size=(12, 4))
POLICY = softmax(LOGITS)


def test_values_equal_linear_algebra():
    close(evaluate("w.valuesOf(world, policy)", world=LARGE, policy=POLICY.tolist()), solve(LARGE, POLICY))


def test_the_best_policy_is_the_best_of_many_and_greedy_for_its_own_values():
    best = np.array(evaluate("w.bestValues(world)", world=LARGE))
    greedy = np.array(evaluate("w.somePolicy(world, 0)", world=LARGE))
    close(solve(LARGE, greedy), best)
    for _ in range(20):
        assert (solve(LARGE, softmax(3 * RANDOM.normal(size=(12, 4)))) <= best + 1e-9).all()
    close(evaluate("w.somePolicy(world, 1)", world=LARGE), np.full((12, 4), 0.25))


def numerical_gradient():
    """Of V(start) by the logits of the start cell, from differences."""
    gradient = []
    for action in range(4):
        values = []
        for change in (-1e-5, 1e-5):
            logits = LOGITS.copy()
            logits[LARGE["start"], action] += change
            values.append(solve(LARGE, softmax(logits))[LARGE["start"]])
        gradient.append((values[1] - values[0]) / 2e-5)
    return np.array(gradient)


def test_the_exact_gradient_is_that_of_the_value_and_samples_agree_with_every_weight():
    exact = numerical_gradient()
    result = evaluate(
        """(() => {
          const found = w.walks(world, policy, 2000, 7);
          const sample = (weights) => found.map((steps) => w.gradientSample(world, policy, steps, weights(steps)));
          const g = world.gamma;
          return {
            exact: w.exactGradient(world, policy),
            returns: found.map((steps) => w.totalReturn(steps, g)),
            whole: sample((steps) => () => w.totalReturn(steps, g)),
            later: sample((steps) => { const to = w.rewardsToGo(steps, g); return (t) => g ** t * to[t]; }),
            baseline: sample((steps) => { const to = w.rewardsToGo(steps, g); return (t) => g ** t * (to[t] - 30); }),
          };
        })()""",
        world=LARGE, policy=POLICY.tolist(),
    )  # fmt: skip
    close(result["exact"], exact, 1e-4)
    means = {name: np.array(result[name])[:, 4 * LARGE["start"] :][:, :4] for name in ("whole", "later", "baseline")}
    for samples in means.values():
        error = samples.std(axis=0) / np.sqrt(len(samples))
        assert (abs(samples.mean(axis=0) - exact) < 4.5 * error).all()
    assert means["later"].std() < means["whole"].std()
    returns = np.array(result["returns"])
    assert abs(returns.mean() - solve(LARGE, POLICY)[LARGE["start"]]) < 4.5 * returns.std() / np.sqrt(len(returns))


def test_weighted_walks_of_one_policy_give_the_mean_of_another():
    other = softmax(LOGITS + 0.3 * RANDOM.normal(size=(12, 4)))
    rows = evaluate(
        "w.walks(world, old, 2000, 3).map((steps) => [w.walkRatio(steps, policy, old), w.totalReturn(steps, world.gamma)])",
        world=LARGE, old=POLICY.tolist(), policy=other.tolist(),
    )  # fmt: skip
    weights, returns = np.array(rows).T
    error = (weights * returns).std() / np.sqrt(len(rows))
    assert abs((weights * returns).mean() - solve(LARGE, other)[LARGE["start"]]) < 4.5 * error
    assert abs(weights.mean() - 1) < 4.5 * weights.std() / np.sqrt(len(rows))


def test_rewards_to_go_and_return_by_hand():
    steps = [{"cell": 0, "action": 0, "reward": reward} for reward in (0, -1, 100)]
    assert evaluate("[w.rewardsToGo(steps, 0.5), w.totalReturn(steps, 0.5)]", steps=steps) == [[24.5, 49, 100], 24.5]


# ---- the formulas


def row(values):
    return torch.tensor([values], dtype=torch.float64)


def test_the_clipped_objective_is_that_of_core():
    ratios, advantages = RANDOM.uniform(0.5, 1.6, 40), RANDOM.normal(size=40)
    objectives, clipped = evaluate(
        "[ratios.map((x, i) => f.clippedObjective(x, advantages[i], 0.2)), "
        "ratios.map((x, i) => f.isClipped(x, advantages[i], 0.2))]",
        ratios=ratios.tolist(), advantages=advantages.tolist(),
    )  # fmt: skip
    for ratio, advantage, objective, is_clipped in zip(ratios, advantages, objectives, clipped, strict=True):
        logprobs = torch.tensor([[np.log(ratio)]], dtype=torch.float64, requires_grad=True)
        loss = ppo_clip(logprobs, row([0.0]), row([advantage]), torch.tensor([[True]]), cliprange=0.2).loss
        loss.backward()
        assert objective == pytest.approx(-loss.item())
        assert is_clipped == (logprobs.grad.item() == 0)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.0), (0.99, 1.0)])
def test_advantages_are_those_of_core(gamma, lam):
    rewards, values = RANDOM.normal(size=9), RANDOM.normal(size=9)
    deltas = rewards + gamma * np.append(values[1:], 0) - values
    mask = torch.ones(1, 9, dtype=torch.bool)
    expected, _ = gae(row(rewards.tolist()), row(values.tolist()), mask, gamma=gamma, lam=lam)
    close(evaluate("f.gae(deltas, gamma, lam)", deltas=deltas.tolist(), gamma=gamma, lam=lam), expected[0].tolist())


def test_the_larger_value_loss_is_that_of_core():
    cases = RANDOM.normal(size=(30, 3)).tolist()
    losses = evaluate("cases.map(([v, old, to]) => Object.values(f.valueLosses(v, old, to, 0.2)))", cases=cases)
    for (value, old, target), pair in zip(cases, losses, strict=True):
        expected = clipped_value_loss(
            row([value]), row([old]), row([target]), torch.tensor([[True]]), cliprange_value=0.2
        ).loss
        assert max(pair) == pytest.approx(expected.item())


def test_pair_loss_rewards_and_entropy_are_those_of_core():
    differences = RANDOM.normal(size=8) * 3
    losses, chances = evaluate("[d.map(f.pairLoss), d.map(f.winProbability)]", d=differences.tolist())
    for difference, loss, chance in zip(differences, losses, chances, strict=True):
        expected = bradley_terry_loss(torch.tensor([difference]), torch.zeros(1, dtype=torch.float64))
        assert loss == pytest.approx(expected.item())
        assert chance == pytest.approx(np.exp(-loss))
    kl = RANDOM.normal(size=6)
    scores, mask = torch.tensor([1.5], dtype=torch.float64), torch.ones(1, 6, dtype=torch.bool)
    shaped = shape_rewards(scores, row(kl.tolist()), mask, 0.3)
    close(evaluate("f.shapedRewards(kl, 1.5, 0.3)", kl=kl.tolist()), shaped[0].tolist())
    logits = RANDOM.normal(size=7)
    nats = logprobs_and_entropy(row([(logits / 0.7).tolist()]), torch.zeros(1, 1, dtype=torch.int64))[1]
    close(evaluate("f.entropy(f.probabilitiesAt(logits, 0.7))", logits=logits.tolist()), nats.item())
    weights = RANDOM.uniform(0, 3, 20)
    expected = effective_sample_size(row(weights.tolist()), torch.ones(1, 20, dtype=torch.bool))
    close(evaluate("f.effectiveSampleSize(weights)", weights=weights.tolist()), expected.item())
