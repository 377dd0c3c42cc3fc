"""An algorithm without a record raises in every place that depends on the algorithm; no place computes another one's."""

import dataclasses

import pytest
import torch
from support import algorithm_names, tiny_models

from rlhf_lab.common.algorithms import ALGORITHMS, AlgorithmSpec, algorithms_where, spec_of
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import ConfigError, TrainingError
from rlhf_lab.models.batch import Batch
from rlhf_lab.training.policy.objectives import AdaptiveCoefficients, LossDenominators, policy_loss
from rlhf_lab.training.policy.rewards_and_advantages import compute_advantages
from rlhf_lab.training.policy.rollout import EvaluatedBatch, MicroBatch
from rlhf_lab.ui.train.token_view import LOSSES, equations_for

NUMBERS, MASK = torch.zeros(2, 2), torch.ones(2, 2, dtype=torch.bool)
LENGTHS = torch.tensor([[1, 2], [1, 2]])
BATCH = Batch(torch.zeros(2, 1), torch.ones(2, 1), NUMBERS, MASK, torch.tensor([True, True]), LENGTHS)
EVALUATED = EvaluatedBatch(BATCH, torch.zeros(2), NUMBERS, NUMBERS, NUMBERS, NUMBERS)
PART = MicroBatch(BATCH, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
UNKNOWN = r"algorithm = 'drgrpo' is unknown; choose one of ppo, ppo_penalty"


def unknown(algorithm="grpo"):
    """The config of an algorithm "drgrpo", which has the settings of another one."""
    config = dataclasses.replace(PolicyConfig.for_algorithm(algorithm))
    object.__setattr__(config, "algorithm", "drgrpo")
    return config


@pytest.mark.parametrize(
    "depends_on_the_algorithm",
    [
        lambda: compute_advantages(EVALUATED, NUMBERS, None, unknown()),
        lambda: policy_loss(NUMBERS, PART, LossDenominators(4, 2), unknown(), AdaptiveCoefficients(0.0, 0.0)),
        lambda: equations_for(unknown(), []),
        lambda: PolicyConfig.for_algorithm("drgrpo"),
        lambda: spec_of("drgrpo"),
    ],
)
def test_an_algorithm_without_a_record(depends_on_the_algorithm):
    with pytest.raises(ConfigError, match=UNKNOWN):
        depends_on_the_algorithm()


def test_an_update_of_an_offline_algorithm_without_a_record(llama_folder):
    trainer = tiny_models.learner(llama_folder, "sft")
    object.__setattr__(trainer.state.config, "algorithm", "drgrpo")
    with pytest.raises(ConfigError, match=UNKNOWN):
        trainer.update_on_texts()


@pytest.mark.parametrize("algorithm", ["ppo", "ppo_penalty", "reinforce"])  # one of each loss
def test_fixed_texts_are_not_learned_by_a_loss_of_rollouts(llama_folder, algorithm):
    trainer = tiny_models.learner(llama_folder, "sft")
    object.__setattr__(trainer.state.config, "algorithm", algorithm)
    with pytest.raises(TrainingError, match=f"{algorithm} learns from rollouts, not from fixed texts"):
        trainer.update_on_texts()


@pytest.mark.parametrize("algorithm", algorithm_names.OFFLINE_ALGORITHMS)
def test_fixed_texts_have_no_advantages_and_no_policy_loss(algorithm):
    config = PolicyConfig.for_algorithm(algorithm)
    with pytest.raises(TrainingError, match=f"{algorithm} learns from fixed texts"):
        compute_advantages(EVALUATED, NUMBERS, None, config)
    with pytest.raises(TrainingError, match=f"{algorithm} learns from fixed texts"):
        policy_loss(NUMBERS, PART, LossDenominators(4, 2), config, AdaptiveCoefficients(0.0, 0.0))


def test_records_say_what_the_algorithms_are():
    """Against lists that were written by hand."""
    assert tuple(ALGORITHMS) == algorithm_names.ONLINE_ALGORITHMS + algorithm_names.OFFLINE_ALGORITHMS
    properties = {
        "ONLINE": lambda spec: not spec.is_offline,
        "OFFLINE": lambda spec: spec.is_offline,
        "VALUE": lambda spec: spec.value_function != "never",
        "SINGLE_PASS": lambda spec: spec.is_single_pass,
        "GROUP": lambda spec: spec.is_grouped,
        "CLIPPED": lambda spec: spec.clips,
        "FIRST_ORDER": lambda spec: not spec.is_offline and spec.update == "gradient",
        "REPEATED_UPDATE": lambda spec: spec.repeats_updates,
        "LABEL": lambda spec: spec.learns_from == "labels",
        "BETA": lambda spec: spec.has_beta,
    }
    for name, condition in properties.items():
        assert algorithms_where(condition) == getattr(algorithm_names, f"{name}_ALGORITHMS"), name


def test_the_token_view_describes_losses_that_exist():
    assert set(LOSSES) <= {spec.loss for spec in ALGORITHMS.values() if not spec.is_offline}


def test_the_token_view_names_a_new_kind_of_advantage_and_of_loss(monkeypatch):
    """Until it has equations for them."""
    spec = AlgorithmSpec(advantage="best_of_group", loss="squared_advantage")
    monkeypatch.setitem(ALGORITHMS, "drgrpo", spec)
    shown = {item.name: item for item in equations_for(unknown("rloo"), [])}
    assert shown["advantage"].symbols == "best of group"
    assert (shown["loss"].equation, shown["loss"].symbols) == ("", "squared advantage")


def test_defaults_of_a_record():
    """An algorithm that learns from rollouts by gradient, without values, groups or clipping."""
    spec = AlgorithmSpec(advantage="returns", loss="ratio")
    assert (spec.is_offline, spec.is_grouped, spec.repeats_updates, spec.is_single_pass, spec.has_beta) == (
        False, False, True, False, True,
    )  # fmt: skip
