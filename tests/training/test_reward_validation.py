"""A LoRA adapter replaces the fitted head only where it predicts held-out labels better."""

import dataclasses
import math

import pytest
import torch
from support import tiny_models
from support.preference_data import QUICK, comparisons, reference_of, train

from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.batch import make_batch
from rlhf_lab.models.features import text_features
from rlhf_lab.training.reward.report import HeldOutPrediction
from rlhf_lab.training.reward.task import RewardTask
from rlhf_lab.training.reward.validation import choose_epochs, compare_with_head, split_labels, validate

LABELS = comparisons(16)


def predictions(*probabilities):
    return [HeldOutPrediction(i, p) for i, p in enumerate(probabilities)]


def chosen(head, adapter, **changes):
    config = RewardConfig(**({"epochs": 2} | changes))
    return choose_epochs({0: predictions(*head), 2: predictions(*adapter)}, LABELS, config)


def test_an_adapter_must_be_better_than_the_head_by_more_than_chance():
    """Gains of log 2 each have no spread. log 4, log 4 and log(0.38 / 0.8): mean 0.676, standard error 1.230 / sqrt(3) = 0.710;
    with log(0.44 / 0.8): 0.725 and 1.146 / sqrt(3) = 0.662.
    """
    assert chosen([0.4, 0.4, 0.4], [0.8, 0.8, 0.8]) == 2
    assert chosen([0.2, 0.2, 0.8], [0.8, 0.8, 0.38]) == 0
    assert chosen([0.2, 0.2, 0.8], [0.8, 0.8, 0.44]) == 2
    assert chosen([0.8, 0.8, 0.8], [0.4, 0.4, 0.4]) == 0
    assert chosen([0.6, 0.6], [0.611, 0.611]) == 0  # log(0.611 / 0.6) = 0.018 each
    assert chosen([0.6, 0.6], [0.613, 0.613]) == 2  # 0.021
    assert chosen([0.4], [0.8]) == 0  # one label says nothing about chance


def test_without_a_fitted_head_or_held_out_labels_nothing_is_compared():
    assert choose_epochs({2: predictions(0.1, 0.1)}, LABELS, RewardConfig(epochs=2, warm_start=False)) == 2
    assert choose_epochs({}, LABELS, RewardConfig(epochs=2)) == 2
    assert compare_with_head({2: predictions(0.1)}, LABELS, 2) is None
    assert compare_with_head({}, LABELS, 0) is None


def test_the_report_compares_head_and_adapter():
    """Label 1 is a tie, which has no accuracy; its loss is the mean of both sides."""
    labels = [LABELS[0], dataclasses.replace(LABELS[1], tie=True), LABELS[2]]
    figures = compare_with_head({0: predictions(0.4, 0.5, 0.8), 2: predictions(0.6, 0.5, 0.7)}, labels, 0)
    assert figures == {
        "used": False, "labels": 2, "head_accuracy": 0.5, "adapter_accuracy": 1.0,
        "head_loss": pytest.approx(-(math.log(0.4) + math.log(0.5) + math.log(0.8)) / 3),
        "adapter_loss": pytest.approx(-(math.log(0.6) + math.log(0.5) + math.log(0.7)) / 3),
    }  # fmt: skip
    assert (
        compare_with_head({0: predictions(0.4), 1: predictions(0.9), 2: predictions(0.1)}, labels, 1)[
            "adapter_accuracy"
        ]
        == 1
    )


def task_of(folder, labels, **changes):
    backbone = tiny_models.load(folder)
    return RewardTask(Adapters(backbone), labels, reference_of(backbone), RewardConfig(**changes))


def test_one_prompt_in_so_many_is_held_out(llama_folder):
    """16 labels of 4 prompts: the third of each three, so prompt 2, is held out; nothing without an adapter to validate."""
    split = split_labels(task_of(llama_folder, LABELS, folds=3))
    assert split.held_out == [8, 9, 10, 11]
    assert split.train == [i for i in range(16) if i not in split.held_out]
    assert split_labels(task_of(llama_folder, LABELS, folds=0)) is None
    assert split_labels(task_of(llama_folder, LABELS, folds=3, epochs=0)) is None
    one_prompt = [dataclasses.replace(label, group=1) for label in LABELS]
    assert split_labels(task_of(llama_folder, one_prompt, folds=3)) is None
    ties = [dataclasses.replace(label, tie=label.group != 2) for label in LABELS]
    assert split_labels(task_of(llama_folder, ties, folds=3)) is None


def test_held_out_labels_are_predicted_by_models_that_did_not_see_them(llama_folder):
    """With the held-out labels the other way round, head and adapter are the same: each probability p becomes 1 - p."""
    other_way_round = [
        dataclasses.replace(
            label, chosen=label.rejected, rejected=label.chosen,
            chosen_ids=label.rejected_ids, rejected_ids=label.chosen_ids,
        )
        if label.group == 2 else label
        for label in LABELS
    ]  # fmt: skip
    results = []
    for labels in (LABELS, other_way_round):
        task = task_of(llama_folder, labels, **(QUICK | {"folds": 3}))
        split = split_labels(task)
        assert split.held_out == [8, 9, 10, 11]
        results.append(validate(task, split, lambda loss: None))
    for epochs in (0, 2):
        plain, reversed_ = ([one.probability for one in result[epochs]] for result in results)
        assert reversed_ == pytest.approx([1 - p for p in plain], abs=1e-5)
        assert min(abs(p - 0.5) for p in plain) > 0.01


def force_epochs(monkeypatch, epochs):
    monkeypatch.setattr("rlhf_lab.training.reward.trainer.choose_epochs", lambda *_: epochs)


def test_an_adapter_that_does_not_help_is_not_trained_on_all_labels(llama_folder, monkeypatch):
    """The model is the head on the frozen backbone; the accuracy is that of leaving out each prompt."""
    force_epochs(monkeypatch, 0)
    model, report = train(llama_folder, LABELS, folds=3)
    head_only, head_only_report = train(llama_folder, LABELS, folds=3, epochs=0)
    assert model.adapter is None
    assert model.adapters.names == ()
    assert (report.epochs, report.loss, report.folds) == (0, [], 4)
    assert tiny_models.same(model.head.state_dict(), head_only.head.state_dict())
    assert report.adapter["used"] is False
    assert dataclasses.replace(report, adapter=None) == head_only_report
    prompts = [model.backbone.encode_prompt(label.prompt) for label in LABELS]
    scores = model.scores(prompts, [list(label.chosen_ids) for label in LABELS])
    assert report.chosen_scores == pytest.approx(scores.tolist(), abs=1e-4)


def test_an_adapter_that_helps_is_trained_on_all_labels(llama_folder, monkeypatch):
    """Its accuracy is that of the labels held out; its scores are normalised by its own scores of the reference."""
    force_epochs(monkeypatch, 2)
    model, report = train(llama_folder, LABELS, folds=3)
    assert model.adapter == "reward training"
    assert (report.epochs, len(report.loss), report.folds) == (2, 8, 1)
    assert report.adapter["used"] is True
    assert report.accuracy == report.adapter["adapter_accuracy"]
    scores = model.scores(*reference_of(model.backbone)).double()
    assert (float(scores.mean()), float(scores.std())) == (pytest.approx(0.0, abs=1e-4), pytest.approx(1.0, abs=1e-4))


def test_a_fitted_head_stays_as_it_is(llama_folder):
    """The adapter is trained on top of it; a head that was not fitted is trained too."""
    model, _ = train(llama_folder)
    alone, _ = train(llama_folder, epochs=0)
    assert torch.equal(model.head.linear.weight, alone.head.linear.weight)
    assert any(
        bool((tensor != 0).any()) for name, tensor in model.adapters.tensors(model.adapter).items() if "lora_B" in name
    )
    random, _ = train(llama_folder, warm_start=False, epochs=1)
    assert not torch.equal(
        random.head.linear.weight, train(llama_folder, warm_start=False, epochs=0)[0].head.linear.weight
    )


@pytest.mark.parametrize("layers", ["all", "last"])
def test_a_score_is_the_product_of_the_trained_head_and_the_features(llama_folder, layers):
    """Of any text, with the adapter in use."""
    model, _ = train(llama_folder, layers=layers)
    prompts, responses = tiny_models.ragged()
    with torch.no_grad(), model.adapters.using(model.adapter):
        features = text_features(model.backbone, make_batch(model.backbone, prompts, responses), model.head.features)
    weight, shift, scale = model.head.linear.weight[0], float(model.head.shift), float(model.head.scale)
    expected = (features @ weight + float(model.head.linear.bias) - shift) / scale
    assert features.shape[1] == 32 * (3 if layers == "all" else 1)
    assert model.scores(prompts, responses).tolist() == pytest.approx(expected.tolist(), abs=1e-4)


def test_settings_of_older_versions_read_the_last_layer():
    """With a prior setting that no longer exists; their other settings are kept."""
    old = {"pooling": "last", "ridge": 80.0, "prior_power": 0.25, "epochs": 7}
    assert RewardConfig.from_dict(old) == RewardConfig(pooling="last", layers="last", epochs=7)
    assert RewardConfig.from_dict({"epochs": 7}).layers == "all"
    assert RewardConfig.from_dict(RewardConfig(ridge=0.3).to_dict()).ridge == 0.3
