"""Settings: ranges, choices, names, command lines, records."""

import argparse
import json

import pytest

from rlhf_lab.config import (
    KNOBS,
    PRESETS,
    Config,
    PolicyConfig,
    RewardConfig,
    add_arguments,
    fields_of,
    from_args,
)  # fmt: skip
from rlhf_lab.errors import ConfigError
from rlhf_lab.seeds import derive

BOTH = [PolicyConfig, RewardConfig]


@pytest.mark.parametrize("cls", BOTH)
def test_round_trip_through_json(cls):
    config = cls(lr=1e-4, seed=7)
    assert cls.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert cls.from_dict({}) == cls()
    assert config.replace(seed=8) == cls(lr=1e-4, seed=8)


@pytest.mark.parametrize("cls", BOTH)
def test_every_setting_says_what_it_is_and_its_default_is_in_range(cls):
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
            beside = {"minibatches": {"batch_size": 64}, "batch_size": {"minibatches": 1}}.get(item.name, {})
            cls(**{item.name: item.type(bound)}, **(beside if cls is PolicyConfig else {}))
            with pytest.raises(ConfigError, match=rf"^{item.name} = .* (below its least|above its greatest) value"):
                cls(**{item.name: item.type(outside)})


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
        ({"stepz": 3, "lrr": 1}, r"unknown setting\(s\) lrr, stepz; known: adam_eps"),
    ],
)
def test_values_that_are_refused(values, says):
    with pytest.raises(ConfigError, match=says):
        PolicyConfig.from_dict(values)


def test_whole_numbers_pass_for_floats_and_none_where_it_may_stand():
    config = PolicyConfig(beta=1, cliprange=None, score_clip=2)
    assert (config.beta, config.cliprange, config.score_clip) == (1, None, 2)


def parse(*words, cls=PolicyConfig, **fixed):
    parser = argparse.ArgumentParser()
    add_arguments(parser, cls)
    return from_args(cls, parser.parse_args(words), **fixed)


def test_command_line():
    assert parse() == PolicyConfig()
    assert parse("--lr", "0.001", "--batch-size", "4", "--kl-estimator", "k3") == PolicyConfig(
        lr=0.001, batch_size=4, kl_estimator="k3"
    )
    assert parse("--whiten-rewards").whiten_rewards is True
    assert parse("--no-whiten-advantages").whiten_advantages is False
    assert parse("--no-warm-start", cls=RewardConfig).warm_start is False


def test_command_line_over_fixed_over_default():
    assert parse("--lr", "0.5", lr=0.25, beta=0.75) == PolicyConfig(lr=0.5, beta=0.75)
    assert parse("--steps", "7", **PRESETS["gentle"]) == PolicyConfig(steps=7, lr=1e-4, beta=0.2, epochs=2)
    assert from_args(RewardConfig, argparse.Namespace(pooling=None, seed=3)) == RewardConfig(seed=3)


def test_none_on_the_command_line_turns_a_limit_off():
    """The help says "none leaves it unclipped", so it must: it is another thing than not giving the option."""
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


def test_presets_and_knobs_are_settings():
    assert all(isinstance(PolicyConfig.from_dict(values), Config) for values in PRESETS.values())
    assert set(KNOBS) <= {item.name for item in fields_of(PolicyConfig)}


def test_derived_seeds():
    """SHA-256 of "0/rollout/17", its first 8 bytes, without the last bit: the same on every machine, for ever."""
    assert derive(0, "rollout", 17) == derive(0, "rollout", 17) == 6903048253272643575
    seeds = {derive(seed, purpose, i) for seed in range(3) for purpose in ("a", "b") for i in range(50)}
    assert len(seeds) == 300
    assert all(0 <= seed < 2**63 for seed in seeds)
