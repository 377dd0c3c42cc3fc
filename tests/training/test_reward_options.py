"""Options of the reward training: strength, penalties, ensembles, early stopping, and the report of held-out labels."""

import dataclasses
import json
import math

import pytest
import torch
from support import tiny_models
from support.preference_data import comparisons, contradicting, raw_gap, reference_of, train

from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.errors import NotFiniteError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.training.reward.head_init import HeadFitter
from rlhf_lab.training.reward.task import RewardTask
from rlhf_lab.training.reward.trainer import train_reward

PLAIN = {"warm_start": False, "epochs": 1, "batch_size": 4, "centering": 0.0, "lr": 1e-7}


# --- the loss ---


def test_strength_becomes_a_margin_in_the_loss(llama_folder):
    """Strength 2 at 0.3 per step: 0.6, and a margin given directly; the loss of the first update by hand."""
    labels = comparisons(4)
    strong = [
        dataclasses.replace(labels[0], strength=2),
        dataclasses.replace(labels[1], margin=0.5, strength=1),
        *labels[2:],
    ]
    model, report = train(llama_folder, strong, margin=0.3, **PLAIN)
    gaps = [raw_gap(model, c) for c in labels]
    expected = sum(math.log1p(math.exp(m - gap)) for m, gap in zip((0.6, 0.8, 0, 0), gaps, strict=True)) / 4
    assert report.loss[0] == pytest.approx(expected, abs=1e-4)
    _, without_margin = train(llama_folder, [dataclasses.replace(c, margin=0.0) for c in strong], margin=0.0, **PLAIN)
    assert without_margin.loss[0] == pytest.approx(sum(math.log1p(math.exp(-gap)) for gap in gaps) / 4, abs=1e-4)


def test_strength_is_used_in_the_warm_start(llama_folder):
    """The scores of a pair with a strong label end further apart than without the strength."""
    labels = comparisons()
    strong = [dataclasses.replace(c, strength=2.0 * (i == 0)) for i, c in enumerate(labels)]
    plain, _ = train(llama_folder, labels, epochs=0)
    with_strength, _ = train(llama_folder, strong, epochs=0)
    assert raw_gap(with_strength, labels[0]) > raw_gap(plain, labels[0]) + 1e-4
    ignored, _ = train(llama_folder, strong, epochs=0, margin=0.0)
    assert tiny_models.same(ignored.head.state_dict(), plain.head.state_dict())


def test_penalties_by_hand(llama_folder):
    """Raw scores of the untouched model: centring is the mean square of a pair's sum, L2 the mean square of all scores."""
    labels = comparisons(4)
    model, plain = train(llama_folder, labels, **PLAIN)
    prompts = [model.backbone.encode_prompt(c.prompt) for c in labels]
    raw = [model.raw_scores(prompts, [list(getattr(c, f"{side}_ids")) for c in labels])[0].double().tolist()
           for side in ("chosen", "rejected")]  # fmt: skip
    centring = sum((a + b) ** 2 for a, b in zip(*raw, strict=True)) / 4
    l2 = sum(x * x for side in raw for x in side) / 8
    _, centred = train(llama_folder, labels, **(PLAIN | {"centering": 0.5}))
    _, small = train(llama_folder, labels, **PLAIN, score_l2=0.5)
    assert centred.loss[0] - plain.loss[0] == pytest.approx(0.5 * centring, abs=1e-4)
    assert small.loss[0] - plain.loss[0] == pytest.approx(0.5 * l2, abs=1e-4)
    assert min(centring, l2) > 0.01


# --- ensembles ---


@pytest.mark.parametrize("mode", ["mean", "worst", "uncertainty"])
@pytest.mark.parametrize("epochs", [0, 2])
def test_an_ensemble_learns_and_is_normalised(llama_folder, mode, epochs):
    model, report = train(llama_folder, ensemble=3, ensemble_score=mode, epochs=epochs, folds=3)
    assert report.train_accuracy == 1.0
    assert report.accuracy > 0.8
    scores = model.scores(*reference_of(model.backbone)).double()
    assert float(scores.mean()) == pytest.approx(0.0, abs=1e-4)
    assert float(scores.std()) == pytest.approx(1.0, abs=1e-4)
    members = [head.linear.weight for head in model.head.heads]
    assert not torch.equal(members[0], members[1])
    assert float(model.uncertainty(*reference_of(model.backbone)).mean()) > 0.01


def test_the_heads_of_all_labels_are_fitted_once(llama_folder, monkeypatch):
    """One for each member, for the model, the accuracy and the ridge, and one for the effects of attributes."""
    subsets, fit = [], HeadFitter.fit
    monkeypatch.setattr(HeadFitter, "fit", lambda *args: subsets.append(args[1]) or fit(*args))
    _, report = train(llama_folder, ensemble=3, epochs=0, folds=3)
    assert report.accuracy is not None
    assert report.attribute_effects
    assert subsets == [list(range(report.labels))] * 4


def task_of(folder, labels, **changes):
    backbone = tiny_models.load(folder)
    return RewardTask(Adapters(backbone), labels, reference_of(backbone), RewardConfig(**changes))


def test_each_member_has_a_bootstrap_sample_of_the_labels(llama_folder):
    """As many as the subset has, from the subset only; members differ. A single head uses each label once."""
    labels, subset = comparisons(), [0, 2, 3, 5, 8, 11]
    assert task_of(llama_folder, labels).bootstrap_counts(subset)[0].nonzero().flatten().tolist() == subset
    draws = task_of(llama_folder, labels, ensemble=4).bootstrap_counts(subset)
    assert len(draws) == 4
    for draw in draws:
        assert int(draw.sum()) == 6
        assert set(draw.nonzero().flatten().tolist()) < set(subset)
    assert len({tuple(draw.tolist()) for draw in draws}) == 4


def test_a_bootstrap_sample_of_only_ties_becomes_all_labels(llama_folder):
    labels = [dataclasses.replace(c, tie=i > 0) for i, c in enumerate(comparisons())]
    draws = task_of(llama_folder, labels, ensemble=16).bootstrap_counts(list(range(12)))
    assert all(int(draw[0]) > 0 for draw in draws)
    assert sum(torch.equal(draw, torch.ones_like(draw)) for draw in draws) >= 2


def test_a_members_loss_counts_labels_as_in_its_bootstrap_sample(llama_folder):
    """Label 0 twice, 1 not at all, 2 once; another member has drawn only label 1: the mean of both losses."""
    labels = comparisons(4)
    task = task_of(llama_folder, labels, ensemble=2, warm_start=False, centering=0.0)
    model, _ = train(llama_folder, labels, ensemble=2, **(PLAIN | {"epochs": 0}))
    draws = [torch.tensor([2, 0, 1, 0]), torch.tensor([0, 1, 0, 0])]
    prompts = [model.backbone.encode_prompt(c.prompt) for c in labels]
    gaps = model.raw_scores(prompts, task.chosen) - model.raw_scores(prompts, task.rejected)
    nats = torch.log1p(torch.exp(-gaps.double())).tolist()
    task.backbone, task.adapters = model.backbone, model.adapters
    expected = ((2 * nats[0][0] + nats[0][2]) / 3 + nats[1][1]) / 2
    assert float(task.batch_loss(model, [0, 1, 2], draws)) == pytest.approx(expected, abs=1e-5)
    assert float(task.batch_loss(model, [1, 3], draws)) == pytest.approx(nats[1][1], abs=1e-5)
    assert float(task.batch_loss(model, [3], draws)) == 0.0


def test_a_held_out_probability_is_the_mean_of_the_members(llama_folder):
    """The mean of their probabilities, not the probability of their mean."""
    labels = comparisons(4)
    task = task_of(llama_folder, labels, ensemble=3, warm_start=False)
    model, _ = train(llama_folder, labels, ensemble=3, **(PLAIN | {"epochs": 0}))
    prompts = [model.backbone.encode_prompt(c.prompt) for c in labels]
    gaps = (model.raw_scores(prompts, task.chosen) - model.raw_scores(prompts, task.rejected)).double()
    with torch.no_grad():
        for head in model.head.heads:
            head.linear.weight.mul_(5)
    gaps = (5 * gaps).tolist()
    expected = [sum(1 / (1 + math.exp(-gaps[k][i])) for k in range(3)) / 3 for i in (2, 0)]
    actual = task.predict(model, [2, 0])
    assert [one.index for one in actual] == [2, 0]
    assert [one.probability for one in actual] == pytest.approx(expected, abs=1e-5)
    assert abs(expected[0] - 1 / (1 + math.exp(-sum(gaps[k][2] for k in range(3)) / 3))) > 1e-3


@pytest.mark.parametrize("ensemble", [1, 2])
def test_a_label_that_counts_more_has_the_same_effect_in_any_batch(llama_folder, ensemble):
    """Counts 3, 1, 1, 1, drawn as often: (3 + 1 + 1 + 1) / 4 is the mean, also of a batch of the first alone. Drawn 4, 2, 0 and 0
    times, a batch of the first is as large as 4/3 labels, and the mean is 6 / (4/3 + 2)."""
    labels = comparisons(4)
    labels[0] = dataclasses.replace(labels[0], count=3)
    task = task_of(llama_folder, labels, ensemble=ensemble)
    as_expected, other = torch.tensor([3, 1, 1, 1]), torch.tensor([4, 2, 0, 0])
    draws = [as_expected, other][:ensemble]
    expected = [1.5, 4 / 3 * 6 / (10 / 3)][:ensemble]
    assert task.member_divisors([0], draws) == pytest.approx(expected)
    assert task.member_divisors([1, 2], draws) == pytest.approx([3.0, 2 * 6 / (10 / 3)][:ensemble])


# --- early stopping ---


def test_early_stopping_takes_the_epochs_with_the_lowest_held_out_loss(llama_folder):
    """With contradicting groups what is learned from one is wrong on the other, so the fewest epochs win; with an easy
    rule the most."""
    changes = {"warm_start": False, "epochs": 4, "lr": 1e-2, "early_stopping": True, "folds": 2}
    model, report = train(llama_folder, contradicting(), **changes)
    assert report.epochs == 0
    assert report.loss == []
    assert model.adapter is None
    _, easy = train(llama_folder, comparisons(16), **changes)
    assert easy.epochs == 4
    assert len(easy.loss) == 4 * 4


def test_early_stopping_is_the_same_fit_with_fewer_epochs(llama_folder):
    """The learning rate follows the passes asked for, so k passes are the first k of all; not asked, nothing stops."""
    changes = {"warm_start": False, "epochs": 4, "lr": 1e-2, "folds": 2}
    labels = contradicting()
    _, whole = train(llama_folder, labels, **changes)
    assert (whole.epochs, len(whole.loss)) == (4, 16)
    task = task_of(llama_folder, labels, **changes, batch_size=4, lora_r=2, lora_alpha=4)
    from rlhf_lab.training.reward.task import FitSpec

    _, losses = task.fit(FitSpec(list(range(16)), 2, "all", lambda loss: None))
    assert losses == whole.loss[:8]


def test_without_folds_there_is_no_early_stopping(llama_folder):
    _, report = train(llama_folder, epochs=2, early_stopping=True, folds=0)
    assert report.epochs == 2


# --- the report ---


def test_held_out_probabilities_come_from_models_that_did_not_see_the_prompt(llama_folder):
    """Contradicting groups: every held-out label is predicted wrongly, and all are listed."""
    _, report = train(llama_folder, contradicting(), epochs=0)
    assert report.accuracy is None
    _, report = train(llama_folder, contradicting(), epochs=0, folds=2)
    assert report.accuracy == 0.0
    assert sorted(one["index"] for one in report.disagreements) == list(range(16))
    assert all(one["probability"] < 0.5 for one in report.disagreements)
    assert [observed for _, observed, _ in report.calibration] == [0.0] * 5
    mean = sum(predicted * count for predicted, _, count in report.calibration) / 16
    assert report.expected_calibration_error == pytest.approx(mean, abs=1e-3)


def test_the_report_is_json(llama_folder):
    _, report = train(llama_folder, comparisons(16), folds=3, ensemble=2, epochs=0)
    restored = json.loads(json.dumps(dataclasses.asdict(report), allow_nan=False))
    assert restored["calibration"] == report.calibration
    assert len(report.calibration) == 5
    assert report.agreement is None


def test_two_labels_of_one_pair_are_compared(llama_folder):
    labels = comparisons(8)
    _, report = train(llama_folder, [*labels, labels[3]], epochs=0)
    assert report.agreement == {"share": 1.0, "count": 1}


def test_nan_weights_are_refused_without_any_epoch(llama_folder):
    backbone = tiny_models.load(llama_folder)
    reference = reference_of(backbone)
    with torch.no_grad():
        backbone.model.model.layers[0].mlp.up_proj.weight[0, 0] = float("nan")
    config = RewardConfig(epochs=0, warm_start=False, folds=0)
    with pytest.raises(NotFiniteError, match="not finite"):
        train_reward(Adapters(backbone), comparisons(), reference, config)


@pytest.mark.parametrize(("broken", "name"), [("loss", "loss became nan"), ("gradient", "gradient became inf")])
def test_a_broken_update_is_refused_before_it_reaches_the_weights(llama_folder, broken, name):
    """The third of three: the weights are those after two."""
    gradient, weights, done = RewardTask.batch_backward, [], []

    def breaks(task, model, batch, draws):
        weights.append((model, model.head.linear.weight.detach().clone()))
        whole = gradient(task, model, batch, draws)
        if len(weights) < 3:
            return whole
        if broken == "loss":
            return whole * math.nan
        model.head.linear.weight.grad[0, 0] = math.inf
        return whole

    refused = pytest.raises(NotFiniteError, match=f"reward model's {name} after 2 updates. Lower its learning rate")
    with pytest.MonkeyPatch.context() as change, refused:
        change.setattr(RewardTask, "batch_backward", breaks)
        train(llama_folder, epochs=1, warm_start=False, progress=lambda *messages: done.append(messages[0]))
    model, before = weights[-1]
    assert torch.equal(model.head.linear.weight, before)
    assert done == [1, 2]
