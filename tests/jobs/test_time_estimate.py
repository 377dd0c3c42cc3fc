"""Estimated seconds of each stage against sums worked by hand, and their wording.

The model of these tests reads prompts of 10 tokens and writes responses of 10: a text of 20 tokens passes the layers in
0.02 s, and with the vocabulary head over its response in 0.025 s. 128 responses are sampled in 2 s, 4 in 1 s.
"""

from dataclasses import replace

import pytest

from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.jobs import time_estimate
from rlhf_lab.jobs.model_speed import ModelSpeed
from rlhf_lab.jobs.time_estimate import (
    Estimate,
    WorkCount,
    duration_text,
    estimate_completions,
    estimate_pairs,
    estimate_policy,
    estimate_reward,
)

SPEED = ModelSpeed(
    "cpu", head_cost=0.5, forward=[0.001], sampling={"4": [0.1], "128": [0.2]}, prompt_tokens=10, response_tokens=[10]
)
PLAIN = {"batch_size": 4, "epochs": 1, "minibatches": 1, "sample_count": 0, "kl_budget": None}


def test_work_is_counted_in_texts():
    work = WorkCount(SPEED, 64)
    assert work.passes(3) == pytest.approx(0.06)
    assert work.passes(3, 2) == pytest.approx(0.06 + 0.05)
    assert work.sampling(8, 4) == pytest.approx(2.0)
    assert work.sampling(9, 4) == pytest.approx(2.0 + 1 - 3 / 124)  # one more, down the line from 128 to four
    assert work.sampling(128, 128) == pytest.approx(2.0)


# 30 labels, by folds of three, in two epochs. Samples 2 s; features of 60 + 128 texts 3.76 s; validation fit: 20 labels
# × 2 texts × 2 epochs × forward and backward = 160 texts, and 20 held-out texts read: 3.6 s. Last fit 240 texts, then
# 60 + 2 · 128 read: 11.12 s. Five pairs to score: 0.2 s.
@pytest.mark.parametrize(
    ("changes", "low", "high"),
    [
        ({}, 2 + 3.76 + 3.6, 2 + 3.76 + 3.6 + 11.12),
        ({"early_stopping": True}, 2 + 3.76 + 4.0, 2 + 3.76 + 4.0 + 11.12),
        ({"epochs": 0}, 2 + 3.76, 2 + 3.76),
        ({"folds": 0}, 2 + 3.76 + 11.12, 2 + 3.76 + 11.12),
        ({"warm_start": False}, 2 + 3.6 + 11.12, 2 + 3.6 + 11.12),
    ],
)
def test_reward_model(changes, low, high):
    config = RewardConfig(folds=3, epochs=2).replace(**changes)
    assert estimate_reward(SPEED, config, 30, 0, 64) == pytest.approx((low, high))
    assert estimate_reward(SPEED, config, 30, 5, 64) == pytest.approx((low + 0.2, high + 0.2))


def test_reward_model_reads_texts_of_the_projects_length():
    """Texts of 10 + 5 tokens: samples 1 s, and 188 texts of 0.015 s."""
    assert estimate_reward(SPEED, RewardConfig(epochs=0), 30, 0, 5) == pytest.approx((1 + 2.82,) * 2)


def test_reward_model_scores_at_most_400_pairs():
    config = RewardConfig()
    assert estimate_reward(SPEED, config, 30, 4000, 64) == estimate_reward(SPEED, config, 30, 400, 64)


# A step of 4 responses: sampled in 1 s, read with log-probabilities by the policy and the reference in 0.2 s, and forward and
# backward in 0.2 s. A reward model with an adapter scores them in 0.08 s.
STEP, SCORE = 1 + 0.2 + 0.2, 0.08


@pytest.mark.parametrize(
    ("changes", "seconds", "scored"),
    [
        ({"steps": 3}, 3 * STEP, 3),
        ({"steps": 3, "epochs": 2}, 3 * (STEP + 0.2), 3),
        ({"steps": 3, "rollouts": 2}, 3 * 2 * STEP, 6),
        # values with a separate adapter: read before the updates, and forward and backward in them
        ({"steps": 3, "value_trunk": "critic"}, 3 * (STEP + 0.08 + 0.16), 3),
        ({"steps": 1, "ptx_coef": 1.0, "ptx_batch": 4}, STEP + 0.2, 1),
        # the samples on screen before step 1 and after 2, 4 and 5: four responses in 1 s, scored in 0.08 s
        ({"steps": 5, "sample_count": 4, "sample_every": 2}, 5 * STEP + 4 * 1.08, 5),
        # a KL budget: each update measured 0.1 s; 128 responses, four at a time, in 32 s, scored in 2.56 s; after steps 2, 4
        # and 5 32 responses in 8 s, scored in 0.64 s, read by policy and reference in 1.6 s
        (
            {"steps": 5, "kl_budget": 4.0, "checkpoint_every": 2},
            5 * (STEP + 0.1) + 32 + 2.56 + 3 * (8 + 1.6),
            5 + 3 * 8,
        ),
    ],
)
def test_run(changes, seconds, scored):
    """scored: how often a reward model with an adapter scores four responses."""
    config = PolicyConfig(**PLAIN | changes)
    assert estimate_policy(SPEED, config) == pytest.approx((seconds, seconds + scored * SCORE))


def test_a_run_of_sft_that_measures_every_other_step():
    """A step reads 4 texts, forward and backward, in 0.2 s; every other one also samples 4, and both models read them."""
    plain = {"batch_size": 4, "sample_count": 0, "kl_budget": None}
    config = PolicyConfig(algorithm="sft", label_batch=4, sample_every=2, steps=6, **plain)
    low = 6 * (0.2 + 1.2 / 2)
    assert estimate_policy(SPEED, config) == pytest.approx((low, low + 6 * SCORE / 2))


def test_a_run_of_dpo_that_samples_for_edited_answers():
    """A step reads 4 pairs, forward and backward, in 0.4 s. Each of three rounds samples 2 responses to each of 2 edited answers
    in 1 s, and the base reads them in 0.1 s."""
    plain = {"batch_size": 4, "sample_count": 0, "kl_budget": None, "sample_every": 1000}
    config = PolicyConfig(algorithm="dpo", label_batch=4, steps=6, edit_samples=2, rounds=3, **plain)
    without = estimate_policy(SPEED, config)
    assert estimate_policy(SPEED, config, edits=2).low == pytest.approx(without.low + 3 * 1.1)


def test_run_of_a_million_steps_is_estimated_at_once():
    assert estimate_policy(SPEED, PolicyConfig(**PLAIN, steps=1_000_000)).low == pytest.approx(1e6 * STEP)


def test_pairs_and_completions():
    assert estimate_pairs(SPEED, 2, "random", 64) == pytest.approx((1, 1))
    assert estimate_pairs(SPEED, 2, "random", 5) == pytest.approx((0.5, 0.5))
    eight_passes = 8 * 20 * 0.001
    assert estimate_pairs(SPEED, 2, "teaching", 64).low == pytest.approx(
        WorkCount(SPEED, 64).sampling(8, 8) + eight_passes
    )
    assert estimate_completions(SPEED, [4, 128], 64, scored=False) == pytest.approx((3, 3))
    assert estimate_completions(SPEED, [4, 128], 64, scored=True) == pytest.approx((3 + 2.64, 3 + 2.64))
    assert estimate_completions(SPEED, [4], 5, scored=True) == pytest.approx((0.5 + 4 * 0.015, 0.5 + 4 * 0.015))
    assert estimate_completions(SPEED, [4], 64, scored=False, kl_texts=8) == pytest.approx((1 + 16 * 0.025,) * 2)
    assert estimate_completions(SPEED, [], 64, scored=True) is None


def test_what_a_stage_took_before_corrects_the_next_estimate():
    speed = replace(SPEED, stages={"ppo": [1.4, 1.5, 9.0], "reward model": [0.5]})
    assert estimate_policy(speed, PolicyConfig(**PLAIN, steps=2)) == pytest.approx((3 * STEP, 3 * (STEP + SCORE)))
    assert estimate_reward(speed, RewardConfig(epochs=0), 30, 0, 64) == pytest.approx((2.88, 2.88))


@pytest.mark.parametrize("speed", [None, ModelSpeed("cpu"), replace(SPEED, forward=[]), replace(SPEED, sampling={})])
def test_without_measured_rates_there_is_no_estimate(speed):
    assert estimate_reward(speed, RewardConfig(), 30, 0, 64) is None
    assert estimate_policy(speed, PolicyConfig()) is None
    assert estimate_pairs(speed, 2, "random", 64) is None
    assert estimate_completions(speed, [2], 64, scored=False) is None


def test_work_that_is_not_counted_has_no_estimate_before_it_was_measured():
    trpo = PolicyConfig(algorithm="trpo", value_trunk="detached", **PLAIN | {"steps": 2})
    two = PolicyConfig(**PLAIN, steps=2, processes=2)
    selected = estimate_pairs(SPEED, 2, "diversity", 64)
    assert (estimate_policy(SPEED, trpo), estimate_policy(SPEED, two), selected) == (None, None, None)
    assert estimate_reward(SPEED, RewardConfig(processes=2), 30, 0, 64) is None
    stages = {"trpo": [2.0], "ppo, 2 processes": [0.5], "diversity pairs": [4.0], "reward model, 2 processes": [1.0]}
    speed = replace(SPEED, stages=stages)
    assert estimate_policy(speed, trpo).low == pytest.approx(2 * 2 * STEP)
    assert estimate_policy(speed, two).low == pytest.approx(STEP)
    assert estimate_pairs(speed, 2, "diversity", 64).low == pytest.approx(4)
    assert estimate_reward(speed, RewardConfig(processes=2, epochs=0), 30, 0, 64).low == pytest.approx(5.76)


@pytest.mark.parametrize(
    ("low", "high", "sentence"),
    [
        (0.3, 0.3, "Less than a second on this machine."),
        (4.2, 4.2, "About 4 s on this machine."),
        (8, 14, "About 8 to 15 s on this machine."),
        (8, 9.9, "About 9 s on this machine."),
        (61, 61, "About a minute on this machine."),
        (30, 70, "About 30 s to a minute on this machine."),
        (80, 130, "About a minute to 2 minutes on this machine."),
        (240, 241, "About 4 minutes on this machine."),
        (240, 600, "About 4 to 10 minutes on this machine."),
        (0.5, 0.9, "Less than a second on this machine."),
        (0.5, 3, "Up to 3 s on this machine."),
        (9000, 9000, "About 2.5 hours on this machine."),
        (36e6, 36e6, "About 10,000 hours on this machine."),
    ],
)
def test_wording(low, high, sentence):
    assert Estimate(low, high).sentence() == sentence


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.99, "less than a second"),
        (1, "1 s"),
        (9.4, "9 s"),
        (12, "10 s"),
        (18.6, "20 s"),
        (52, "50 s"),
        (53, "a minute"),
        (89, "a minute"),
        (91, "2 minutes"),
        (236, "4 minutes"),
        (9.4 * 60, "9 minutes"),
        (13 * 60, "15 minutes"),
        (52 * 60, "50 minutes"),
        (53 * 60, "an hour"),
        (74 * 60, "an hour"),
        (76 * 60, "1.5 hours"),
        (3.1 * 3600, "3 hours"),
        (123 * 3600, "120 hours"),
    ],
)
def test_a_duration_is_no_more_exact_than_an_estimate_is(seconds, text):
    assert duration_text(seconds) == text


def test_speed_is_that_of_the_machine_with_the_engine(tmp_path, monkeypatch):
    project = type("Project", (), {"model": "m"})()
    loaded = []
    monkeypatch.setattr(time_estimate, "load_speed", lambda home, host, model: loaded.append((host, model)))
    for host in (None, "gpu"):
        row = host and type("Row", (), {"process": type("Process", (), {"host": host})()})()
        monkeypatch.setattr(
            time_estimate.engine_process, "engine_state", lambda _, row=row: type("Status", (), {"row": row})()
        )
        time_estimate.project_speed(tmp_path, None, project)
    assert loaded == [(time_estimate.socket.gethostname(), "m"), ("gpu", "m")]
