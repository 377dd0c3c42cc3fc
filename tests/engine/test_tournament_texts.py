"""The TOURNAMENT job: what each contestant wrote, its scores and its KL."""

import pytest
import torch

from rlhf_lab.common.enums import JobKind, JobStatus
from rlhf_lab.store.reward_models import latest_reward_model

PROMPTS = ["the cat", "moon"]


def play(lab, contestants, **changes):
    payload = {
        "contestants": contestants,
        "prompts": PROMPTS,
        "seed": 3,
        "max_new_tokens": 6,
        "reward_model_id": latest_reward_model(lab.db, lab.project.id).id,
    }
    return lab.do(lab.submit(JobKind.TOURNAMENT, **payload | changes))


def log_ratio(lab, slot, prompt, tokens):
    """log π - log π_base of one text, computed alone, in float64 from the logits."""
    backbone, adapters = lab.worker.model_cache.load_project(lab.project)
    ids = torch.tensor([backbone.encode_prompt(prompt) + tokens])
    sums = []
    for adapter in (slot, None):
        with adapters.using(adapter), torch.no_grad():
            logits = backbone.model(ids).logits[0].double() / lab.project.temperature
        positions = range(ids.shape[1] - len(tokens) - 1, ids.shape[1] - 1)
        sums.append(sum(float(logits[p].log_softmax(-1)[ids[0, p + 1]]) for p in positions))
    return sums[0] - sums[1]


def test_every_contestant_answers_the_same_prompts(lab):
    run_id = lab.run(steps=2, checkpoint_every=2, lr=0.05)
    lab.train(run_id)
    model, checkpoint = latest_reward_model(lab.db, lab.project.id), f"run/{run_id}/2"
    job = play(lab, ["base", "base/best/3", checkpoint])
    assert job.status is JobStatus.DONE, job.error
    base, best, policy = job.result["contestants"]
    assert job.result["prompts"] == PROMPTS
    assert [row["model"] for row in (base, best, policy)] == ["base", "base/best/3", checkpoint]
    assert base["kl"] == [0.0, 0.0]
    assert best["kl"] == [pytest.approx(1.0986123 - 2 / 3)] * 2  # log 3 - 2/3

    ask = {"seed": 3, "max_new_tokens": 6, "reward_model_id": model.id}
    three = [prompt for prompt in PROMPTS for _ in range(3)]
    drawn = lab.do(lab.submit(JobKind.COMPLETE, prompts=three, checkpoint="base", **ask)).result
    assert best["scores"] == [max(drawn["scores"][:3]), max(drawn["scores"][3:])]
    assert best["texts"] == [drawn["texts"][drawn["scores"].index(score)].strip() for score in best["scores"]]

    written = lab.do(lab.submit(JobKind.COMPLETE, prompts=PROMPTS, checkpoint=checkpoint, **ask)).result
    slot = lab.worker.model_cache.load_checkpoint(checkpoint, "test")
    expected = [log_ratio(lab, slot, p, ids) for p, ids in zip(PROMPTS, written["tokens"], strict=True)]
    assert policy["texts"] == [text.strip() for text in written["texts"]]
    assert policy["kl"] == pytest.approx(expected, abs=1e-4)
    assert max(map(abs, expected)) > 0.01


def test_best_of_n_needs_a_reward_model(lab):
    job = play(lab, ["base", "base/best/2"], reward_model_id=None)
    assert job.status is JobStatus.FAILED
    assert "Choose one, or leave best of n out" in job.error
