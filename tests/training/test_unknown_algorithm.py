"""A member of the enumeration whose parts are not implemented: no place that chooses by algorithm computes another one's."""

import dataclasses

import pytest
import torch
from support import tiny_models

from rlhf_lab.common.enums import ONLINE_ALGORITHMS
from rlhf_lab.config.policy import ALGORITHMS, PolicyConfig
from rlhf_lab.errors import ConfigError, TrainingError
from rlhf_lab.models.batch import Batch
from rlhf_lab.training.policy.objectives import LOSSES, AdaptiveCoefficients, LossDenominators, policy_loss
from rlhf_lab.training.policy.rewards_and_advantages import compute_advantages
from rlhf_lab.training.policy.rollout import EvaluatedBatch, MicroBatch
from rlhf_lab.ui.screens.token_view import LOSS_DESCRIPTIONS, equations_for

NUMBERS, MASK = torch.zeros(2, 2), torch.ones(2, 2, dtype=torch.bool)
LENGTHS = torch.tensor([[1, 2], [1, 2]])
BATCH = Batch(torch.zeros(2, 1), torch.ones(2, 1), NUMBERS, MASK, torch.tensor([True, True]), LENGTHS)


def added_to_the_enumeration(like):
    """The config of an algorithm "drgrpo", which has the settings of another one, as if it were in the same tuples."""
    config = dataclasses.replace(PolicyConfig.for_algorithm(like, **({"group_size": 2} if like == "grpo" else {})))
    object.__setattr__(config, "algorithm", "drgrpo")
    return config


@pytest.mark.parametrize("like", ["grpo", "ppo"])
def test_advantages(like):
    evaluated = EvaluatedBatch(BATCH, torch.zeros(2), NUMBERS, NUMBERS, NUMBERS, NUMBERS)
    with pytest.raises(TrainingError, match=r"drgrpo has no advantages\. CONTRIBUTING"):
        compute_advantages(evaluated, NUMBERS, None, added_to_the_enumeration(like))


def test_policy_loss():
    part = MicroBatch(BATCH, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
    with pytest.raises(TrainingError, match="drgrpo has no policy loss"):
        policy_loss(
            NUMBERS, part, LossDenominators(4, 2), added_to_the_enumeration("grpo"), AdaptiveCoefficients(0.0, 0.0)
        )


def test_equations_of_the_token_view(monkeypatch):
    with pytest.raises(ConfigError, match="drgrpo has no equations of advantages"):
        equations_for(added_to_the_enumeration("grpo"), [])
    monkeypatch.setattr("rlhf_lab.ui.screens.token_view._advantage_equations", lambda config: [])
    with pytest.raises(ConfigError, match="drgrpo has no equation of the loss"):
        equations_for(added_to_the_enumeration("grpo"), [])


def test_offline_updates(llama_folder):
    trainer = tiny_models.learner(llama_folder, "sft")
    object.__setattr__(trainer.state.config, "algorithm", "drgrpo")
    with pytest.raises(TrainingError, match="drgrpo has no update"):
        trainer.update_on_texts()


def test_recommended_settings(monkeypatch):
    others = {name: values for name, values in ALGORITHMS.items() if name != "grpo"}
    monkeypatch.setattr("rlhf_lab.config.policy.ALGORITHMS", others)
    with pytest.raises(ConfigError, match="algorithm = 'grpo' is unknown; choose one of ppo, ppo_penalty"):
        PolicyConfig.for_algorithm("grpo")


def test_tables_have_every_online_algorithm():
    assert set(LOSSES) == set(LOSS_DESCRIPTIONS) == set(ONLINE_ALGORITHMS)
