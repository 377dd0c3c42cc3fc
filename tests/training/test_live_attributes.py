"""Live runs whose scores ignore attributes of the texts: slopes of every head, and what a resumed run repeats."""

import numpy as np
import pytest
import torch
from support import tiny_models

from rlhf_lab.common.text_attributes import ATTRIBUTES
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.attribute_correction import token_attributes
from rlhf_lab.models.features import FeatureSpec
from rlhf_lab.training.checkpoints import load_latest, save_checkpoint
from rlhf_lab.training.policy.live_reward import LIVE_WINDOW_STEPS, LiveReward
from rlhf_lab.training.policy.trainer import PolicyTask, PolicyTrainer

SETTINGS = tiny_models.SMALL | {
    "live": True, "kl_budget": 50.0, "steps": 12, "checkpoint_every": 2, "lr": 5e-3, "kl_controller": "fixed",
}  # fmt: skip


def live_trainer(folder):
    backbone = tiny_models.load(folder)
    adapters = Adapters(backbone)
    live = LiveReward(backbone, adapters, FeatureSpec("mean", 0.1, "all"))
    prompts = tiny_models.PROMPTS
    task = PolicyTask(prompts, live.model, eval_prompts=prompts[:2], live=live)
    trainer = PolicyTrainer(backbone, adapters, task, PolicyConfig(**SETTINGS))
    trainer.measure_score_unit()
    return trainer


def weights(live, seed):
    return np.random.default_rng(seed).normal(size=live.reference.shape[1] - len(ATTRIBUTES)).astype(np.float32)


def set_head(trainer, version, ignored):
    trainer.set_head(version, 6 + version, weights(trainer.state.live, version), 50.0, ignored)


def correlation(live, texts, name):
    """Of the scores of texts and their attribute."""
    column = texts[:, list(ATTRIBUTES).index(name)].double()
    return float(torch.corrcoef(torch.stack([live.scores_of(texts).double(), column]))[0, 1])


def test_scores_have_no_relation_to_the_attribute_and_the_same_unit(llama_folder):
    """Of the reference's responses, for every head; the model that scores a step gives the same scores."""
    trainer = live_trainer(llama_folder)
    live = trainer.state.live
    lengths = live.reference[:, 0] - live.reference[:, 0].mean()
    rewards_length = (live.reference[:, len(ATTRIBUTES) :].T @ lengths).numpy()
    trainer.set_head(1, 7, rewards_length, 50.0)
    assert correlation(live, live.reference, "length") > 0.3
    for version, head in ((2, rewards_length), (3, weights(live, 6))):
        trainer.set_head(version, 8, head, 50.0, ("length", "cut"))
        for name in ("length", "cut"):
            assert correlation(live, live.reference, name) == pytest.approx(0.0, abs=1e-5)
        scores = live.scores_of(live.reference).double()
        assert float(scores.mean()) == pytest.approx(0.0, abs=1e-5)
        assert float(scores.std()) == pytest.approx(1.0, abs=1e-4)
    prompts = [live.model.backbone.encode_prompt(tiny_models.PROMPTS[i % 5]) for i in range(6)]
    responses = tiny_models.ragged(seed=3, rows=6)[1]
    assert live.model.scores(prompts, responses) == pytest.approx(
        live.scores_of(live.read(prompts, responses)), abs=1e-5
    )


def test_rows_of_texts_are_their_attributes_and_features(llama_folder):
    live = live_trainer(llama_folder).state.live
    prompts, responses = tiny_models.ragged(seed=4, rows=5)
    rows = live.read(prompts, responses)
    attributes = token_attributes(live.model.backbone, prompts, responses, tuple(ATTRIBUTES))
    assert rows[:, : len(ATTRIBUTES)] == pytest.approx(attributes.float())
    assert rows[:, len(ATTRIBUTES) :] == pytest.approx(live.model.features(prompts, responses))


def test_slopes_follow_the_responses_of_the_last_five_steps(llama_folder):
    """Of a head in force, at the steps that make a checkpoint; and of a new one at once. Mean and unit are the reference's."""
    trainer = live_trainer(llama_folder)
    live = trainer.state.live
    set_head(trainer, 1, ("length",))
    first = live.model.correction
    for _ in range(5):
        trainer.run_step()
    assert (
        live.model.correction.slopes.tolist() == first.slopes.tolist()
    )  # fewer than five steps at the last checkpoint
    trainer.run_step()
    assert sorted(live.window) == [2, 3, 4, 5, 6]
    texts = torch.cat([live.window[step] for step in range(2, 7)])
    assert correlation(live, texts, "length") == pytest.approx(0.0, abs=1e-5)
    assert live.model.correction.slopes.tolist() != first.slopes.tolist()
    assert (live.model.correction.mean.tolist(), live.model.correction.unit) == (first.mean.tolist(), first.unit)
    trainer.run_step()
    set_head(trainer, 2, ("length",))
    texts = torch.cat(list(live.window.values()))
    assert len(live.window) == LIVE_WINDOW_STEPS
    assert correlation(live, texts, "length") == pytest.approx(0.0, abs=1e-5)


def test_a_choice_can_change_between_heads(llama_folder):
    """Counted as labelled again, no responses are kept, so that old ones do not count when the choice changes back."""
    trainer = live_trainer(llama_folder)
    live = trainer.state.live
    set_head(trainer, 1, ("length",))
    trainer.run_step()
    assert list(live.window) == [1]
    set_head(trainer, 2, ())
    assert (live.model.correction, live.window) == (None, {})
    trainer.run_step()
    assert live.window == {}


def curve(trainer, first, last):
    """Heads arrive before steps 1, 4 and 7."""
    results = []
    for step in range(first, last + 1):
        heads = {1: (1, ("length",)), 4: (2, ("length", "cut")), 7: (3, ("length",))}
        if step in heads:
            set_head(trainer, *heads[step])
        results.append(tiny_models.numbers(trainer.run_step().metrics))
    return results


@pytest.mark.parametrize("stopped", [3, 7])
def test_resuming_is_exact(llama_folder, tmp_path, stopped):
    whole = live_trainer(llama_folder)
    expected = curve(whole, 1, 10)
    part = live_trainer(llama_folder)
    actual = curve(part, 1, stopped)
    save_checkpoint(tmp_path, part.adapters, "policy", *part.state.state_dict())
    resumed = live_trainer(llama_folder)
    resumed.state.load_state_dict(*load_latest(tmp_path))
    assert actual + curve(resumed, stopped + 1, 10) == expected
    assert tiny_models.same(resumed.state.state_dict()[0], whole.state.state_dict()[0])
    assert resumed.state.live.model.correction.to_json() == whole.state.live.model.correction.to_json()
