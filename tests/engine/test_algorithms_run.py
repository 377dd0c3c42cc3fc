"""Other algorithms as runs of the engine: stopped, resumed, with the reward model as critic and pretraining text."""

import pytest

from rlhf_lab.config import PolicyConfig
from rlhf_lab.jobs import control
from rlhf_lab.records import JobStatus, RunStatus
from rlhf_lab.store.runs import create_run, get_run, latest_reward_model

CHANGES = {
    "ppo": {"value_trunk": "critic", "critic_init": "reward", "ptx_coef": 0.1, "ptx_batch": 2, "scale_scores": True},
    "ppo_penalty": {},
    "grpo": {"group_size": 2},
    "reinforce": {},
}


@pytest.mark.parametrize("algorithm", CHANGES)
def test_a_stopped_run_goes_on_as_if_nothing_had_happened(lab, at, algorithm):
    small = {
        "steps": 4,
        "batch_size": 4,
        "micro_batch": 2,
        "max_new_tokens": 5,
        "lora_r": 2,
        "sample_every": 2,
        "sample_count": 1,
    }
    config = PolicyConfig.of(algorithm, **(small | {"checkpoint_every": 1} | CHANGES[algorithm])).to_dict()
    model = latest_reward_model(lab.db, lab.project.id)
    whole, stopped = (
        create_run(lab.db, lab.project.id, model.id, "r", config=config, manifest={}, total_steps=4).id
        for _ in range(2)
    )
    assert lab.train(whole).status is JobStatus.DONE
    at(2, lambda: control.stop(lab.db, stopped))
    lab.train(stopped)
    assert get_run(lab.db, stopped).status is RunStatus.STOPPED
    lab.next_engine()
    lab.train(stopped)
    assert get_run(lab.db, stopped).status is RunStatus.DONE
    assert lab.curve(stopped) == lab.curve(whole)
    assert [step for step, _ in lab.curve(whole)] == [1, 2, 3, 4]
    assert get_run(lab.db, whole).config["algorithm"] == algorithm
