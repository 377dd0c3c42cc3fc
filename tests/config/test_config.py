"""Settings: ranges, choices, names, command lines, records."""

import argparse
import json
import re

import pytest
import torch
from support.reference_formulas import kl_from_logits

from rlhf_lab.common.algorithms import ALGORITHMS
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.config.base import Config, add_arguments, fields_of, from_args
from rlhf_lab.config.policy import LIVE_SETTINGS, PRESETS, PolicyConfig
from rlhf_lab.config.reward import RewardConfig  # fmt: skip
from rlhf_lab.core.advantages import reinforce_weights, value_targets
from rlhf_lab.core.policy_losses import reduce_tokens
from rlhf_lab.core.preference import combine_ensemble_scores
from rlhf_lab.core.reward_scaling import place_scores
from rlhf_lab.errors import ConfigError
from rlhf_lab.training.policy.objectives import REDUCTIONS

BOTH = [PolicyConfig, RewardConfig]
#: Other settings with which both ends of the range of a setting are valid.
SETTINGS_FOR_BOUNDS = {
    "minibatches": {"batch_size": 64},
    "batch_size": {"minibatches": 1},
    "processes": {"batch_size": 256},
    "group_size": {"batch_size": 256},
    "value_warmup": {"value_trunk": "detached"},
    "beta": {"kl_budget": None},
    "penalty_kl_max": {"penalty_kl_min": 0.0},
    "penalty_kl_min": {"penalty_kl_max": 20.0},
    "rounds": {"steps": 1000},
}


@pytest.mark.parametrize("cls", BOTH)
def test_round_trip_through_json(cls):
    config = cls(lr=1e-4, seed=7)
    assert cls.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert cls.from_dict({}) == cls()
    assert config.replace(seed=8) == cls(lr=1e-4, seed=8)


def test_the_kl_budget_is_recommended_and_runs_from_before_it_have_none():
    assert PolicyConfig.from_dict({"beta": 0.11}).kl_budget is None
    assert PolicyConfig.for_algorithm("ppo").kl_budget == 4.0
    assert PolicyConfig.for_algorithm("trpo", kl_budget=None).kl_budget is None
    assert PolicyConfig.for_algorithm("ppo", beta=0.0).kl_budget is None
    assert PolicyConfig.for_algorithm("ppo", kl_controller="adaptive").kl_budget is None
    for changes in ({"beta": 0.0}, {"kl_controller": "adaptive"}):
        with pytest.raises(ConfigError, match=r"kl_budget = 4\.0 adapts beta itself"):
            PolicyConfig(kl_budget=4.0, **changes)


@pytest.mark.parametrize("cls", BOTH)
def test_every_setting_has_a_help_text_and_a_default_in_range(cls):
    for item in fields_of(cls):
        assert len(item.help) >= 10
        assert item.type in {int, float, bool, str}
        assert (item.choices is not None) == (item.type is str)
        if item.type in {int, float}:
            assert item.low is not None
            assert item.low <= (item.low if item.default is None else item.default) <= item.high


@pytest.mark.parametrize("cls", BOTH)
def test_every_range_is_inclusive_and_enforced(cls):
    for item in fields_of(cls):
        if item.low is None:
            continue
        for bound, outside in ((item.low, item.low - 1), (item.high, item.high + 1)):
            other_settings = SETTINGS_FOR_BOUNDS.get(item.name, {}) if cls is PolicyConfig else {}
            algorithm = item.only[0] if item.only else other_settings.get("algorithm", "ppo")
            recorded = cls.recommended({"algorithm": algorithm} | other_settings)
            if cls is PolicyConfig:
                recorded["algorithm"] = algorithm
            cls(**(recorded | other_settings | {item.name: item.type(bound)}))
            with pytest.raises(ConfigError, match=rf"^{item.name} = .* (below the minimum|above the maximum)"):
                cls(**(recorded | other_settings | {item.name: item.type(outside)}))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"steps": 1.5}, "steps = 1.5 is not a int"),
        ({"steps": True}, "steps = True is not a int"),
        ({"lr": "fast"}, "lr = 'fast' is not a float"),
        ({"lr": float("nan")}, "lr = nan is not a finite number"),
        ({"lr": float("inf")}, "lr = inf is not a finite number"),
        ({"lr": None}, "lr must not be empty"),
        ({"algorithm": "magic"}, "algorithm = 'magic' is unknown; choose one of ppo"),
        ({"whiten_rewards": 1}, "whiten_rewards = 1 is not a bool"),
        ({"batch_size": 4, "minibatches": 5}, "minibatches = 5 exceeds batch_size = 4"),
        ({"cliprange": 7.0}, "cliprange = 7.0 is above the maximum 1"),
        ({"stepz": 3, "lrr": 1}, r"unknown setting\(s\) lrr, stepz; known: adam_eps"),
    ],
)
def test_invalid_values_are_refused(values, says):
    with pytest.raises(ConfigError, match=says):
        PolicyConfig.from_dict(values)


def test_integers_pass_for_floats_and_none_for_optional_settings():
    config = PolicyConfig(beta=1, cliprange=None, score_clip=2)
    assert (config.beta, config.cliprange, config.score_clip) == (1, None, 2)


def parse(*words, cls=PolicyConfig, **fixed):
    parser = argparse.ArgumentParser()
    add_arguments(parser, cls)
    return from_args(cls, parser.parse_args(words), **fixed)


def test_command_line():
    assert parse() == PolicyConfig.for_algorithm("ppo")
    assert parse("--lr", "0.001", "--batch-size", "4", "--kl-estimator", "k3") == PolicyConfig.for_algorithm(
        "ppo", lr=0.001, batch_size=4, kl_estimator="k3"
    )
    assert parse("--whiten-rewards").whiten_rewards is True
    assert parse("--no-whiten-advantages").whiten_advantages is False
    assert parse("--no-warm-start", cls=RewardConfig).warm_start is False


def test_options_take_precedence_over_given_defaults_and_those_over_defaults():
    assert parse("--lr", "0.5", lr=0.25, beta=0.75) == PolicyConfig.for_algorithm("ppo", lr=0.5, beta=0.75)
    assert parse("--steps", "7", **PRESETS["gentle"]) == PolicyConfig(
        steps=7,
        beta=0.15,
        epochs=1,
        minibatches=4,
        cliprange=0.05,
        lam=1.0,
        missing_eos_penalty=0.0,
        kl_budget=2.0,
        kl_budget_role="limit",
    )
    assert from_args(RewardConfig, argparse.Namespace(pooling=None, seed=3)) == RewardConfig(seed=3)


def test_none_on_the_command_line_turns_a_limit_off():
    """The help says "none leaves it unclipped"; this differs from leaving the option out."""
    assert parse("--cliprange", "none").cliprange is None
    assert parse("--cliprange", "none", cliprange=0.5).cliprange is None
    assert parse("--cliprange", "0.3").cliprange == 0.3
    assert parse("--target-kl", "0.5").target_kl == 0.5
    with pytest.raises(SystemExit):
        parse("--lr", "none")


def test_command_line_errors(capsys):
    with pytest.raises(ConfigError, match="choose one of mean, last"):
        parse("--pooling", "max", cls=RewardConfig)
    with pytest.raises(SystemExit):
        parse("--steps", "many")
    parser = argparse.ArgumentParser()
    add_arguments(parser, PolicyConfig, skip=("seed",))
    with pytest.raises(SystemExit):
        parser.parse_args(["--seed", "1"])
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    assert "weight of the per-token KL penalty" in capsys.readouterr().out


def test_presets_and_live_settings_are_settings():
    assert all(isinstance(PolicyConfig.from_dict(values), Config) for values in PRESETS.values())
    assert set(LIVE_SETTINGS) <= {item.name for item in fields_of(PolicyConfig)}


def test_derived_seeds():
    """The first 8 bytes of the SHA-256 of "0/rollout/17" without the last bit, the same on every machine and version."""
    assert derive_seed(0, "rollout", 17) == derive_seed(0, "rollout", 17) == 6903048253272643575
    seeds = {derive_seed(seed, purpose, i) for seed in range(3) for purpose in ("a", "b") for i in range(50)}
    assert len(seeds) == 300
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_choices_are_those_of_the_core():
    """The form, the table of algorithms and the core use the same names for choices, and the core implements each."""
    choices = {item.name: item.choices for cls in BOTH for item in fields_of(cls)}
    assert choices["algorithm"] == tuple(ALGORITHMS)
    assert set(choices["loss_mean"]) == set(REDUCTIONS)
    row, mask = torch.tensor([[0.5, -1.0, 0.0]]), torch.tensor([[True, True, False]])
    on = {"gamma": 1.0, "values": row}
    for choice in choices["kl_estimator"]:
        assert kl_from_logits(row[..., None], row[..., None], torch.zeros(1, 3, dtype=torch.int64), choice).shape == (
            1,
            3,
        )
    for choice in choices["score_placement"]:
        assert place_scores(torch.ones(1), mask, choice).sum() == 1
    for choice in choices["credit"]:
        assert reinforce_weights(row, mask, credit=choice, **on).shape == row.shape
    for choice in choices["baseline"]:
        assert reinforce_weights(row, mask, baseline=choice, **on).shape == row.shape
    for choice in choices["value_target"]:
        assert value_targets(row, row, mask, gamma=1.0, lam=0.9, target=choice).shape == row.shape
    for choice in choices["ensemble_score"]:
        assert combine_ensemble_scores(torch.ones(2, 3), choice).shape == (3,)
    for choice in REDUCTIONS.values():
        assert reduce_tokens(row, mask, choice).shape == ()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_has_a_recommended_config(algorithm):
    config = PolicyConfig.for_algorithm(algorithm)
    assert config.algorithm == algorithm
    assert parse("--algorithm", algorithm) == config
    assert parse("--lr", "0.25", "--algorithm", algorithm) == PolicyConfig.for_algorithm(algorithm, lr=0.25)
    assert config.score_clip == (None if config.is_offline or algorithm == "ppo" else 1.5)
    assert (config.missing_eos_penalty == 0.0) == (not config.is_offline or algorithm == "rejection")
    assert PolicyConfig.for_algorithm("ppo") == PolicyConfig(
        kl_budget=4.0, kl_budget_role="limit", epochs=1, minibatches=4, beta=0.15, cliprange=0.05, lam=1.0,
        missing_eos_penalty=0.0,
    )  # fmt: skip
    assert PolicyConfig.for_algorithm(algorithm, batch_size=4) == config.replace(batch_size=4)


def test_an_option_takes_precedence_over_a_recommended_value():
    assert parse("--algorithm", "rloo", "--group-size", "8").group_size == 8
    assert parse("--algorithm", "rloo").group_size == 4
    assert (
        PolicyConfig.for_algorithm("grpo", rollouts=3).responses_per_step,
        PolicyConfig.for_algorithm("grpo").uses_value_function,
    ) == (96, False)
    assert PolicyConfig.for_algorithm("reinforce").uses_value_function
    assert not PolicyConfig.for_algorithm("reinforce", baseline="none").uses_value_function


@pytest.mark.parametrize(
    ("algorithm", "changes", "says"),
    [
        ("grpo", {"group_size": 1}, "compares responses to one prompt, so choose at least 2"),
        ("rloo", {"batch_size": 6}, "batch_size = 6 is not a multiple of group_size = 4"),
        ("ppo", {"minibatches": 9, "batch_size": 4, "rollouts": 2}, "minibatches = 9 exceeds batch_size = 8"),
        ("reinforce", {"epochs": 2}, "epochs = 2, minibatches = 1: reinforce has no probability ratio"),
        ("a2c", {"minibatches": 2}, "epochs = 1, minibatches = 2: a2c has no"),
        ("rloo", {"epochs": 3}, "Set both to 1"),
        ("trpo", {"value_trunk": "shared"}, "value_trunk = shared lets the value loss move the policy"),
        ("ppo", {"value_warmup": 3}, "value_warmup = 3 with value_trunk = shared"),
        ("trpo", {"processes": 2}, "processes = 2: the line search of trpo needs all rows in one process"),
        ("ppo", {"processes": 3, "batch_size": 2, "rollouts": 9, "minibatches": 1},
           "batch_size = 2 in 1 minibatches leaves some of 3 processes without a response"),
        ("ppo", {"processes": 3, "batch_size": 8, "minibatches": 3}, "batch_size = 8 in 3 minibatches leaves some"),
        ("ppo", {"critic_init": "reward"}, "needs value_trunk = critic; it is shared"),
        ("reinforce", {"baseline": "none", "value_trunk": "critic"}, "baseline = none has no value function"),
        ("reinforce", {"baseline": "batch_mean",
           "value_warmup": 1, "value_trunk": "detached"}, "batch_mean has no value function"),
        ("reinforce", {"bootstrap_cut": True}, "bootstrap_cut = True has no meaning for reinforce"),
        ("ppo_penalty", {"loss_mean": "sum"}, "loss_mean = sum has no meaning for ppo_penalty"),
        ("ppo", {"kl_penalty": "loss"}, "kl_estimator = k1 in the loss"),
        ("grpo", {"kl_penalty": "loss", "kl_estimator": "full"}, "kl_estimator = full in the loss"),
        ("ppo", {"kl_controller": "adaptive", "beta": 0}, "so it cannot start from 0"),
        ("ppo", {"kl_controller": "adaptive", "kl_horizon": 6.4}, "kl_horizon = 6.4 is too short for 32 episodes"),
        ("ppo_penalty", {"penalty_kl_min": 0.5}, "penalty_kl_min = 0.5 is not below penalty_kl_max = 0.03"),
        ("reinforce", {"cliprange": None}, "cliprange = None has no meaning for reinforce, only for ppo, grpo. Leave it at 0.2"),
        ("ppo", {"credit": "total"}, "credit = total has no meaning for ppo, only for reinforce"),
        ("rloo", {"vf_coef": 1.0}, "vf_coef = 1.0 has no meaning for rloo"),
        ("grpo", {"score_placement": "spread"}, "score_placement = spread has no meaning for grpo"),
        ("trpo", {"entropy_coef": 0.1}, "entropy_coef = 0.1 has no meaning for trpo"),
        ("a2c", {"target_kl": 0.1}, "target_kl = 0.1 has no meaning for a2c"),
        ("ppo", {"max_kl": 0.1}, "max_kl = 0.1 has no meaning for ppo, only for trpo"),
        ("ppo", {"label_batch": 8}, "label_batch = 8 has no meaning for ppo, only for dpo, sft, rejection"),
        ("sft", {"dpo_loss": "ipo"}, "dpo_loss = ipo has no meaning for sft, only for dpo"),
        ("dpo", {"candidates": 8}, "candidates = 8 has no meaning for dpo, only for rejection"),
        ("dpo", {"group_size": 2}, "group_size = 2 has no meaning for dpo"),
        ("sft", {"beta": 0.5}, "beta = 0.5 has no meaning for sft"),
        ("dpo", {"beta": 0.0}, "beta = 0 leaves dpo without a loss"),
        ("rejection", {"rounds": 5, "steps": 4}, "rounds = 5 exceeds steps = 4"),
        ("dpo", {"processes": 2}, "processes = 2: dpo trains in one process"),
    ],
)  # fmt: skip
def test_conflicting_settings_are_refused(algorithm, changes, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        PolicyConfig.for_algorithm(algorithm, **changes)


@pytest.mark.parametrize("cls", BOTH)
def test_only_names_algorithms(cls):
    assert all(set(item.only or ()) <= set(ALGORITHMS) for item in fields_of(cls))
