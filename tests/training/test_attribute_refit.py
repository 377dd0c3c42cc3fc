"""Reward models that ignore attributes, from their labels to the runs that they score."""

import dataclasses

import pytest
import torch
from support import tiny_models
from support.preference_data import comparisons, reference_of, train

from rlhf_lab.common.records import Comparison
from rlhf_lab.models.attribute_correction import AttributeCorrection, fitted_slopes, token_attributes
from rlhf_lab.models.features import FeatureSpec
from rlhf_lab.models.heads import RewardHead
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.models.sampling.sampler import sample
from rlhf_lab.training.checkpoints import load_latest, save_checkpoint
from rlhf_lab.training.policy import attribute_refit
from rlhf_lab.training.policy.attribute_refit import AttributeRefit, copy_scorer
from rlhf_lab.training.policy.weighted_reward import WeightedReward

PROMPTS = tuple(tiny_models.PROMPTS)


def length_labels(count=24):
    """Labels that prefer the longer text, whatever it says."""
    generator, labels = torch.Generator().manual_seed(1), []
    for i in range(count):
        texts = []
        for words in (3 + i % 5, 1 + i % 3):
            ids = torch.randint(5, 35, (words,), generator=generator).tolist()
            texts.append((" ".join(tiny_models.WORDS[j] for j in ids), (*ids, tiny_models.EOS)))
        (chosen, chosen_ids), (rejected, rejected_ids) = texts
        labels.append(Comparison(PROMPTS[i % 5], chosen, rejected, chosen_ids, rejected_ids, group=i))
    return labels


def length_correlation(model, count=80):
    """Of scores and lengths of other samples of the base than the reference texts."""
    prompts = [model.backbone.encode_prompt(PROMPTS[i % 5]) for i in range(count)]
    responses = sample(model.backbone, prompts, tiny_models.seeded(count, 6, first=500)).tokens
    lengths = token_attributes(model.backbone, prompts, responses, ("length",))[:, 0]
    return float(torch.corrcoef(torch.stack([model.scores(prompts, responses).double(), lengths]))[0, 1])


@pytest.mark.parametrize("changes", [{"epochs": 0}, {"epochs": 3}, {"epochs": 0, "ensemble": 3}, {"warm_start": False}])
def test_an_ignored_length_leaves_the_scores(llama_folder, changes):
    """Of labels that prefer the longer text nothing is left, and the report says what they prefer."""
    labels = length_labels()
    rewarded, report = train(llama_folder, labels, **changes)
    ignored, without = train(llama_folder, labels, length="ignore", **changes)
    reference = reference_of(ignored.backbone)
    scores = ignored.scores(*reference).double()
    lengths = token_attributes(ignored.backbone, *reference, ("length",))[:, 0]
    assert float(torch.corrcoef(torch.stack([scores, lengths]))[0, 1]) == pytest.approx(0.0, abs=1e-4)
    assert float(scores.std()) == pytest.approx(1.0, abs=1e-4)
    if changes.get("warm_start", True):
        assert length_correlation(rewarded) > 0.3
        assert abs(length_correlation(ignored)) < length_correlation(rewarded) - 0.2
        for one in (report, without):
            effect = next(effect for effect in one.attribute_effects if effect.name == "length")
            assert effect.low <= effect.log_odds <= effect.high < 0.0  # of half the length
    assert without.train_accuracy < report.train_accuracy


def test_without_ignored_attributes_nothing_changes(llama_folder):
    model, report = train(llama_folder, comparisons(), epochs=0)
    assert model.correction is None
    assert report.accuracy is None or 0.0 <= report.accuracy <= 1.0


def test_held_out_labels_are_predicted_by_the_score_that_is_left(llama_folder):
    """Where only the length decides, a score without it is right by chance; with it, nearly always."""
    labels = length_labels()
    for changes in ({"epochs": 0, "folds": 3}, {"epochs": 2, "folds": 3, "warm_start": False}):
        assert train(llama_folder, labels, length="ignore", **changes)[1].accuracy < 0.8
    assert train(llama_folder, labels, epochs=0, folds=3)[1].accuracy > 0.8


def neutral_scorer(backbone, adapters):
    head = RewardHead(backbone.hidden_size, FeatureSpec("mean", 0.3), 7).requires_grad_(False)
    model = RewardModel(backbone, adapters, None, head)
    texts = tiny_models.ragged(rows=20, longest=9)
    attributes = token_attributes(backbone, *texts, ("length",))
    return dataclasses.replace(model, correction=AttributeCorrection.fit(("length",), model.scores(*texts), attributes))


def run_trainer(folder, weighted=False, **changes):
    trainer = tiny_models.trainer(folder, steps=8, checkpoint_every=2, lr=5e-3, **changes)
    scorer = neutral_scorer(trainer.backbone, trainer.adapters)
    if weighted:
        scorer = WeightedReward(trainer.backbone, scorer, None, {"reward_model": 2.0})
    trainer.set_scorer(scorer)
    return trainer, scorer


def test_slopes_are_refitted_to_the_responses_of_the_last_steps(llama_folder, monkeypatch):
    """Every second step; the reward model that the trainer was given stays as it was."""
    monkeypatch.setattr(attribute_refit, "WINDOW_STEPS", 5)
    trainer, scorer = run_trainer(llama_folder)
    first, refit = scorer.correction, trainer.state.attribute_refit
    trainer.run_step()
    assert torch.equal(refit.correction.slopes, first.slopes)
    for _ in range(7):
        trainer.run_step()
    assert sorted(set(refit.rows[:, 0].tolist())) == [4.0, 5.0, 6.0, 7.0, 8.0]
    assert len(refit.rows) == 5 * trainer.state.config.batch_size
    assert torch.equal(refit.correction.slopes, fitted_slopes(refit.rows[:, 1], refit.rows[:, 2:]))
    assert not torch.equal(refit.correction.slopes, first.slopes)
    assert (refit.correction.unit, refit.correction.mean.tolist()) == (first.unit, first.mean.tolist())
    assert scorer.correction is first


def test_an_attribute_that_does_not_vary_in_the_window_keeps_its_slope(llama_folder):
    """Otherwise its reward would come back as soon as the policy has unlearned it."""
    _, scorer = run_trainer(llama_folder)
    slopes = torch.tensor([0.7, -0.4], dtype=torch.float64)
    correction = AttributeCorrection(("length", "cut"), torch.zeros(2, dtype=torch.float64), slopes, 1.0)
    refit = AttributeRefit(dataclasses.replace(scorer, correction=correction), correction)
    refit.rows = torch.tensor([[1.0, 2.0, 1.0, 0.0], [1.0, 4.0, 2.0, 0.0], [1.0, 6.0, 3.0, 0.0]], dtype=torch.float64)
    refit.refit()
    assert refit.correction.slopes.tolist() == pytest.approx([2.0, -0.4])


def curve(trainer, steps):
    return [tiny_models.numbers(result.metrics) for result in tiny_models.run(trainer, steps)]


@pytest.mark.parametrize("weighted", [False, True])
def test_resuming_is_exact(llama_folder, tmp_path, weighted):
    """After a step without a refit, so that the responses of earlier steps are needed for the next one."""
    whole, _ = run_trainer(llama_folder, weighted)
    expected = curve(whole, 8)
    part, _ = run_trainer(llama_folder, weighted)
    actual = curve(part, 3)
    save_checkpoint(tmp_path, part.adapters, "policy", *part.state.state_dict())
    resumed, _ = run_trainer(llama_folder, weighted)
    resumed.state.load_state_dict(*load_latest(tmp_path))
    assert actual + curve(resumed, 5) == expected
    assert tiny_models.same(resumed.state.state_dict()[0], whole.state.state_dict()[0])


@pytest.mark.parametrize(
    "change",
    [{"names": ["lists"]}, {"unit": 2.0}, {"mean": [0.5]}, {"slopes": [0.25]}],
    ids=lambda change: next(iter(change)),
)
def test_a_state_of_another_reward_model_leaves_the_slopes(llama_folder, change):
    """After a switch between two models that ignore the same attributes, too: slopes of one are none of the other."""
    part, scorer = run_trainer(llama_folder)
    curve(part, 2)
    tensors, numbers = part.state.state_dict()
    assert numbers["ignored_attributes"] == scorer.correction.to_json()
    resumed, _ = run_trainer(llama_folder)
    other = AttributeCorrection.from_json(scorer.correction.to_json() | change)
    resumed.set_scorer(dataclasses.replace(scorer, correction=other))
    resumed.state.load_state_dict(tensors, numbers)
    refit = resumed.state.attribute_refit
    assert torch.equal(refit.correction.slopes, other.slopes)
    assert len(refit.rows) == 0


def test_head_scores_are_those_before_the_correction(llama_folder):
    _, scorer = run_trainer(llama_folder)
    refit = AttributeRefit(scorer, scorer.correction)
    prompts, responses = tiny_models.ragged(seed=3, rows=6)
    refit.add(1, prompts, responses, scorer.scores(prompts, responses))
    plain = dataclasses.replace(scorer, correction=None)
    assert refit.rows[:, 1].tolist() == pytest.approx(plain.scores(prompts, responses).tolist(), abs=1e-5)


def test_other_scorers_are_left_alone(llama_folder):
    backbone = tiny_models.load(llama_folder)
    for scorer in (None, tiny_models.CountToken(3), WeightedReward(backbone, None, None, {})):
        assert copy_scorer(scorer) == (scorer, None)
