"""Evaluation of a reward model and a policy. Expected values: by hand, and exact enumeration of a small model."""

import math
import random
import statistics

import pytest
import torch
from support import tiny_models

from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.models.heads import ValueHead
from rlhf_lab.models.sampling.sampler import sample
from rlhf_lab.training.evaluation import (
    SampledResponses,
    best_of_n,
    best_of_n_gold,
    best_of_n_kl,
    distinct_2,
    gain_over_base,
    mean,
    paired_difference,
    ranking_accuracy,
    sample_responses,
    sequence_kl,
)
from rlhf_lab.training.policy import rollout
from rlhf_lab.training.policy.rollout import PolicyModel


def test_ranking_accuracy_by_hand():
    """Pairs: right, tie of the judge, wrong, right, undecided by the model (half), and one beyond the limit."""
    gold = [(1, 0), (2, 2), (0, 1), (0, 3), (4, 5), (1, 0)]
    scores = [(9, 1), (1, 0), (1, 0), (-1, 2), (3, 3), (1, 0)]
    actual = ranking_accuracy(gold, scores, max_pairs=4)
    assert (actual.value, actual.pairs, actual.tie_share) == (0.625, 4, 0.2)
    assert (actual.low, actual.high) == (pytest.approx(0.2194, abs=1e-4), pytest.approx(0.9081, abs=1e-4))
    everything = ranking_accuracy(gold, scores, max_pairs=99)
    assert (everything.value, everything.pairs, everything.tie_share) == (0.7, 5, 1 / 6)


def test_ranking_accuracy_with_only_ties():
    actual = ranking_accuracy([(1, 1)], [(0, 1)], 5)
    assert math.isnan(actual.value)
    assert (actual.low, actual.high, actual.pairs, actual.tie_share) == (0.0, 1.0, 0, 1.0)


def test_mean_by_hand():
    """1, 2, 6: mean 3, variance (4 + 1 + 9) / 2 = 7, standard error sqrt(7 / 3)."""
    assert mean([1.0, 2.0, 6.0]) == pytest.approx((3.0, math.sqrt(7 / 3)))
    assert mean([4.0]) == (4.0, 0.0)


def test_gain_over_base_by_hand():
    """5 - 3 and 1 - 4: mean -1/2, sd of the two differences 5 / sqrt 2, standard error 5/2."""
    assert gain_over_base([5.0, 1.0], [[2.0, 4.0], [4.0]]) == pytest.approx((-0.5, 2.5))


def test_best_of_n_by_hand():
    """Groups of 2 a prompt, the odd sample out is left: the reward model picks 20, 30 and 7."""
    scores = [[0.1, 0.9, 0.5, 0.4, 99.0], [1.0, -1.0]]
    gold = [[10.0, 20.0, 30.0, 40.0, 50.0], [7.0, 8.0]]
    assert best_of_n(2, scores, gold).value == pytest.approx(19.0)
    assert best_of_n(1, scores, gold).value == pytest.approx((10 + 20 + 30 + 40 + 50 + 7 + 8) / 7)


def test_standard_error_of_best_of_n_by_hand():
    """Six groups of 2 of four prompts: 3 + 5, 2 + 4, 1, 6 are picked, 21 / 6; the prompts' means are 4, 2, 1/2 and 7/2.

    They add 8/6 - 4/4 = 1/3, 6/6 - 2/4 = 1/2 (four samples each), 1/6 - 1/8 = 1/24, 6/6 - 7/8 = 1/8 (two) to the distance:
    variance (1/6)^2 + (1/12)^2.
    """
    scores = [[0, 1, 1, 0], [1, 0, 1, 0], [1, 0], [0, 1]]
    gold = [[1, 3, 5, 7], [2, 0, 4, 2], [1, 0], [1, 6]]
    assert best_of_n(2, scores, gold) == pytest.approx((3.5, math.sqrt(5 / 144)))


@pytest.mark.parametrize("n", [4, 8])
def test_standard_error_of_best_of_n_is_that_of_its_gain(n):
    """Prompts of different difficulty, half with 8 samples and half with 4; a reward model that is right half of the time."""
    rng = random.Random(n)
    distances, errors = [], []
    for _ in range(400):
        gold = [
            [difficulty + rng.gauss(0, 1) for _ in range(size)]
            for size in [8] * 15 + [4] * 15
            for difficulty in [rng.gauss(0, 1)]
        ]
        scores = [[x + rng.gauss(0, 1) for x in row] for row in gold]
        actual = best_of_n(n, scores, gold)
        distances.append(actual.value - statistics.fmean(map(statistics.fmean, gold)))
        errors.append(actual.standard_error)
    assert statistics.fmean(errors) == pytest.approx(statistics.stdev(distances), rel=0.1)


def test_best_of_n_gold_by_hand():
    scores = [[0.1, 0.9, 0.5, 0.4, 99.0], [1.0, -1.0], [1.0]]
    gold = [[10.0, 20.0, 30.0, 40.0, 50.0], [7.0, 8.0], [9.0]]
    assert best_of_n_gold(2, scores, gold) == [[20.0, 30.0], [7.0], []]


def test_paired_difference_by_hand():
    """Six prompts, one twice, one with texts of one alone: 2 - 1, 5 - 3, 4 - 1, (1 + 3) / 2 - 6, 0 - 0 make 1, 2, 3, -4, 0.

    Mean 2/5; squares 0.36 + 2.56 + 6.76 + 19.36 + 0.16 = 29.2; sd sqrt(7.3); t(4) = 2.7764.
    """
    prompts = ["a", "b", "c", "d", "d", "e", "f"]
    one = [[2.0], [5.0], [4.0], [1.0], [3.0], [0.0], []]
    other = [[1.0], [2.0, 4.0], [0.0, 2.0, 1.0], [6.0], [], [0.0], [9.0]]
    actual = paired_difference(prompts, one, other)
    half_width = 2.7764 * math.sqrt(7.3 / 5)
    assert (actual.difference, actual.prompts) == (pytest.approx(0.4), 5)
    assert (actual.low, actual.high) == pytest.approx((0.4 - half_width, 0.4 + half_width), rel=4e-3)
    reversed_difference = paired_difference(prompts, other, one)
    assert (reversed_difference.difference, reversed_difference.low, reversed_difference.high) == pytest.approx(
        (-0.4, -actual.high, -actual.low)
    )
    assert paired_difference(prompts[:4], one[:4], other[:4])[1:] == (None, None, 4)
    assert math.isnan(paired_difference(["a"], [[1.0]], [[]]).difference)


def test_paired_difference_ignores_prompt_difficulty():
    """Difficulty of sd 5, texts of sd 1: by prompts the interval is sqrt(1 + 25) times narrower than unpaired."""
    rng = random.Random(0)
    difficulty = [rng.gauss(0, 5) for _ in range(400)]
    one, other = ([[easy + by + rng.gauss(0, 1)] for easy in difficulty] for by in (0.5, 0.0))
    actual = paired_difference([str(i) for i in range(400)], one, other)
    assert (actual.high - actual.low) / 2 == pytest.approx(1.96 * math.sqrt(2 / 400), rel=0.1)
    assert actual.low < 0.5 < actual.high


def test_best_of_n_kl_values():
    assert best_of_n_kl(1) == 0.0
    assert best_of_n_kl(2) == pytest.approx(0.1931471805599453)
    assert best_of_n_kl(4) == pytest.approx(0.6362943611198906)


def test_distinct_2_by_hand():
    """a b, b a, a b | b a, a c: 3 different pairs of 5; pairs do not run across texts."""
    assert distinct_2(["a b a b", "b a c"]) == 0.6
    assert distinct_2(["word", ""]) == 0.0


def policy_of(folder, dtype=torch.float64, scale=0.05):
    backbone = tiny_models.load(folder, dtype)
    adapters = tiny_models.adapters_of(backbone, "policy")
    return PolicyModel(backbone, adapters, "policy", ValueHead(backbone.hidden_size))


def test_sequence_kl_against_exact_enumeration(llama_folder):
    """All responses of at most two tokens: KL of the first + sum over first tokens (not EOS) of p KL of the second."""
    policy = policy_of(llama_folder)
    backbone, prompt, size = policy.backbone, tiny_models.ids("the cat"), len(tiny_models.WORDS)

    def tables():
        first = tiny_models.all_logits(backbone, prompt, [0])[0].log_softmax(-1)
        batch = torch.tensor([[*prompt, token] for token in range(size)])
        with torch.no_grad():
            second = backbone.model(input_ids=batch).logits[:, -1].log_softmax(-1)
        return first, second

    with policy.adapters.using("policy"):
        p1, p2 = tables()
    q1, q2 = tables()
    of_second = (p2.exp() * (p2 - q2)).sum(-1)
    of_second[tiny_models.EOS] = 0.0
    exact = float((p1.exp() * (p1 - q1)).sum() + (p1.exp() * of_second).sum())
    count = 3000
    with policy.adapters.using("policy", merged=True):
        tokens = sample(backbone, [prompt] * count, tiny_models.seeded(count, 2)).tokens
    actual = sequence_kl(policy, SampledResponses([prompt] * count, tokens, []), temperature=1.0)
    assert exact > 0.2
    assert actual.standard_error < exact / 10
    assert abs(actual.value - exact) < 4 * actual.standard_error
    every = [[a, b] for a in range(1, 4) for b in range(3)] + [[tiny_models.EOS]]
    by_hand = [p1[r[0]] - q1[r[0]] + ((p2 - q2)[r[0], r[1]] if len(r) > 1 else 0.0) for r in every]
    literal = sequence_kl(policy, SampledResponses([prompt] * len(every), every, []), temperature=1.0)
    assert literal.value == pytest.approx(float(sum(by_hand)) / len(every), abs=1e-9)


def test_sequence_kl_uses_the_temperature_and_is_zero_for_the_base(llama_folder, monkeypatch):
    policy = policy_of(llama_folder)
    prompts, responses = tiny_models.ragged()
    sampled = SampledResponses(prompts, responses, [])
    expected = 0.0
    for prompt, response in zip(prompts, responses, strict=True):
        with policy.adapters.using("policy"):
            expected += float(tiny_models.teacher_forced(policy.backbone, prompt, response, 0.5).sum())
        expected -= float(tiny_models.teacher_forced(policy.backbone, prompt, response, 0.5).sum())
    assert sequence_kl(policy, sampled, 0.5).value == pytest.approx(expected / 5, abs=1e-9)
    passes = []
    monkeypatch.setattr(
        rollout, "MAX_LOGITS", 12 * len(tiny_models.WORDS)
    )  # a vocabulary of logits for each of 12 tokens
    assert sequence_kl(policy, sampled, 0.5, lambda: passes.append(True)).value == pytest.approx(expected / 5, abs=1e-9)
    assert len(passes) > 1
    policy.adapters.add("policy", r=4, alpha=8, seed=0, trainable=False)
    assert sequence_kl(policy, sampled, 0.5) == (0.0, 0.0)


def test_sample_responses_seeds_each_row_by_its_index(llama_folder):
    """Row i depends on (seed, purpose, i) and its prompt alone, and comes back in the order of the prompts."""
    backbone = tiny_models.load(llama_folder, torch.float64)
    prompts = ["the king and the frog", "moon", "the cat", "moon"]
    sampled = sample_responses(backbone, prompts, seed=3, purpose="test", max_new_tokens=8, temperature=0.8)
    assert sampled.prompts == [tiny_models.ids(prompt) for prompt in prompts]
    for i, prompt in enumerate(sampled.prompts):
        uniform = tiny_models.uniforms([derive_seed(3, "test", i)], 8)
        assert sample(backbone, [prompt], uniform, temperature=0.8).tokens == [sampled.tokens[i]]
        assert prompts[i] + sampled.texts[i] == backbone.decode([*prompt, *sampled.tokens[i]])
    assert sampled.tokens[1] != sampled.tokens[3]
    assert (
        sample_responses(backbone, prompts, seed=3, purpose="other", max_new_tokens=8, temperature=0.8).tokens
        != sampled.tokens
    )
