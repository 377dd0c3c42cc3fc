"""Runs of other algorithms: stopped, resumed, with a critic from the reward model, and with pretraining texts."""

import json
from dataclasses import asdict

import pytest

from rlhf_lab.common.enums import JobStatus, RunStatus
from rlhf_lab.common.paths import ptx_texts_file
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.engine.run_task import PTX_CORPUS_TEXTS
from rlhf_lab.jobs import run_control
from rlhf_lab.store.label_snapshots import current_labels
from rlhf_lab.store.reward_models import latest_reward_model
from rlhf_lab.store.runs import create_run, get_run
from rlhf_lab.training.policy.ptx import PtxObjective

#: One of each kind that the engine treats differently; `test_resuming_is_exact` of tests/training has every algorithm.
CHANGES = {
    "ppo": {"value_trunk": "critic", "critic_init": "reward", "ptx_coef": 0.1, "ptx_batch": 2, "scale_scores": True},
    "grpo": {"group_size": 2},
    "dpo": {"label_batch": 4},
    "sft": {"label_batch": 4},
    "rejection": {"label_batch": 4, "candidates": 2, "rounds": 1},
}
LABELS_ALONE = "sft"  # runs without a reward model


@pytest.mark.parametrize("algorithm", CHANGES)
def test_a_stopped_run_resumes_exactly(lab, at, algorithm):
    small = {
        "steps": 4,
        "batch_size": 4,
        "micro_batch": 2,
        "max_new_tokens": 5,
        "lora_r": 2,
        "sample_every": 2,
        "sample_count": 1,
    }
    config = PolicyConfig.for_algorithm(algorithm, **(small | {"checkpoint_every": 1} | CHANGES[algorithm])).to_dict()
    if "critic_init" in CHANGES[algorithm]:  # it copies a head that reads the last layer
        assert lab.train_reward(layers="last").status is JobStatus.DONE
    if algorithm == LABELS_ALONE:
        model_id, manifest = None, {"labels": asdict(current_labels(lab.db, lab.project.id))}
    else:
        model_id, manifest = latest_reward_model(lab.db, lab.project.id).id, {}
    whole, stopped = (
        create_run(lab.db, lab.project.id, model_id, "r", config=config, manifest=manifest, total_steps=4).id
        for _ in range(2)
    )
    assert lab.train(whole).status is JobStatus.DONE
    at(2, lambda: run_control.stop(lab.db, stopped))
    lab.train(stopped)
    assert get_run(lab.db, stopped).status is RunStatus.STOPPED
    lab.next_engine()
    lab.train(stopped)
    assert get_run(lab.db, stopped).status is RunStatus.DONE
    assert lab.curve(stopped) == lab.curve(whole)
    assert [step for step, _ in lab.curve(whole)] == [1, 2, 3, 4]
    assert get_run(lab.db, whole).config["algorithm"] == algorithm
    last = lab.curve(whole)[-1][1]
    assert ("objective/kl" in last, "objective/scores" in last) == (True, algorithm != LABELS_ALONE)


def test_a_runs_own_pretraining_texts_are_used(lab, monkeypatch):
    mixed = []

    class Noted(PtxObjective):
        def __init__(self, policy, texts, *rest):
            mixed.append(list(texts))
            super().__init__(policy, texts, *rest)

    monkeypatch.setattr("rlhf_lab.training.policy.trainer.PtxObjective", Noted)
    small = PolicyConfig(steps=1, batch_size=2, micro_batch=2, max_new_tokens=4, lora_r=2, ptx_coef=0.1, ptx_batch=2)
    model = latest_reward_model(lab.db, lab.project.id)
    manifest = {"ptx_texts": {"source": "mine.txt", "count": 2}}
    own, other, gone = (
        create_run(
            lab.db, lab.project.id, model.id, "r", config=small.to_dict(), manifest=run_manifest, total_steps=1
        ).id
        for run_manifest in (manifest, {}, manifest)
    )
    file = ptx_texts_file(lab.folder, own)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(["the cat sat", "the dog ran"]))
    assert lab.train(own).status is JobStatus.DONE
    assert mixed[-1] == ["the cat sat", "the dog ran"]
    assert lab.train(other).status is JobStatus.DONE
    assert len(mixed[-1]) == PTX_CORPUS_TEXTS
    assert lab.train(gone).status is JobStatus.FAILED
    assert "Restore" in get_run(lab.db, gone).message
