"""A real pretrained model and real preferences, as with a model from the Hub. Needs RLHF_LAB_REAL."""

import json
import os
from pathlib import Path

import pytest
import torch
from support import tiny_models

from rlhf_lab.common.records import Comparison
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.sampling.sampler import sample
from rlhf_lab.training.policy.trainer import PolicyTask, PolicyTrainer
from rlhf_lab.training.reward.task import ReferenceSamples
from rlhf_lab.training.reward.trainer import train_reward

REAL = Path(os.environ.get("RLHF_LAB_REAL", ""))
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        "RLHF_LAB_REAL" not in os.environ, reason="RLHF_LAB_REAL names no folder of real models and preferences"
    ),
]
# fmt: off
STARTS = ["Once upon a time", "The little dog", "Tim and Sue", "One day a girl", "The sun", "A big bird", "Mom said",
          "Lily"]
COMMON = {"a", "and", "the", "was", "to", "he", "she", "it", "they", "said", "had", "in", "day", "big", "little", "mom",
          "not", "with", "his", "her", "very", "you", "were", "one"}
# fmt: on


@pytest.fixture
def backbone():
    return tiny_models.load(REAL / "models" / "stories260K-hf")


def texts(backbone, length=24):
    prompts = [backbone.encode_prompt(start) for start in STARTS]
    return prompts, sample(backbone, prompts, tiny_models.seeded(len(prompts), length)).tokens


def test_samples_contain_real_words(backbone):
    _, tokens = texts(backbone)
    outputs = [backbone.decode(row) for row in tokens]
    assert len(set(outputs)) == 8
    assert sum(bool(COMMON & set(text.lower().split())) for text in outputs) >= 6


def test_logprobs_equal_the_transformers_model(backbone):
    prompts, _ = texts(backbone, 1)
    sampled = sample(backbone, prompts, tiny_models.seeded(8, 12))
    for prompt, row, logprobs in zip(prompts, sampled.tokens, sampled.logprobs, strict=True):
        assert logprobs == pytest.approx(tiny_models.teacher_forced(backbone, prompt, row).tolist(), abs=1e-3)


def comparisons(backbone, count=12):
    """The shortest PandaLM pairs that fit the model."""
    lines = (REAL / "preferences" / "pandalm" / "pandalm.jsonl").read_text(encoding="utf-8").splitlines()
    made, seen = [], set()
    for i, line in enumerate(sorted(lines, key=len)):
        pair = json.loads(line)
        if pair["prompt"] in seen:
            continue
        seen.add(pair["prompt"])
        ids = [tuple(backbone.encode_response(pair[side])) for side in ("chosen", "rejected")]
        if len(backbone.encode_prompt(pair["prompt"])) + max(map(len, ids)) <= backbone.context_length:
            made.append(Comparison(pair["prompt"], pair["chosen"], pair["rejected"], *ids, group=i))
    assert len(made) >= count
    return made[:count]


def test_reward_model_on_real_preferences_then_two_steps_of_ppo(backbone):
    adapters = Adapters(backbone)
    reference = ReferenceSamples(*texts(backbone))
    config = RewardConfig(epochs=1, folds=2, batch_size=4)
    model, report = train_reward(adapters, comparisons(backbone), reference, config)
    assert report.labels == 12
    assert 0 <= report.accuracy_low <= report.accuracy <= report.accuracy_high + 1e-9 <= 1 + 1e-9
    assert report.train_accuracy > 0.5
    before = tiny_models.weights_hash(backbone)
    settings = PolicyConfig(steps=2, batch_size=4, max_new_tokens=12, epochs=2, sample_count=2)
    trainer = PolicyTrainer(backbone, adapters, PolicyTask(STARTS, model, STARTS[:2]), settings)
    results = [trainer.run_step() for _ in range(2)]
    assert abs(results[0].metrics["objective/kl"]) < 1e-4
    assert results[0].metrics["val/first_ratio_deviation"] < 1e-5
    assert len(results[1].samples) == 2
    assert tiny_models.weights_hash(backbone) == before
    assert torch.isfinite(torch.tensor(list(results[1].metrics.values()))).all()
