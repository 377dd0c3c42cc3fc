"""Several processes train a reward model like one: the same losses, report and scores."""

import pytest
from support import tiny_models
from support.preference_data import flat
from support.subprocesses import launch, run_here

#: A last batch of one pair, which one process has nothing of; folds, ties, held-out pairs by the pass; an ensemble whose members
#: draw their labels; a fit of the head alone; more pairs held out than there are processes, and fewer.
CASES = [
    {"labels": 9, "folds": 2, "early_stopping": True},
    {"labels": 12, "folds": 3, "ensemble": 3, "ensemble_score": "uncertainty", "pooling": "last"},
    {"labels": 12, "folds": 5, "epochs": 0},
    {"labels": 5, "folds": 2, "batch_size": 1, "warm_start": False, "score_l2": 0.1},
]

CHILD = """
import dataclasses
from unittest.mock import patch
from support import preference_data, tiny_models
from rlhf_lab.models.backbone import load_backbone
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.errors import LabelError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.training.reward import report as reward_report, trainer
from rlhf_lab.training.reward.trainer import train_reward

def train(labels, changes, sharded=False):
    backbone = load_backbone(given["folder"], device="cpu", dtype=torch.float64, sharded=sharded)
    adapters = Adapters(backbone)
    config, reference = RewardConfig(**(preference_data.QUICK | changes)), preference_data.reference_of(backbone)
    # The report's numbers as they were computed: of two that differ in their last digit, the rounded ones may differ by 0.0001.
    exact = {"create": True, "new": lambda number, digits: number}
    with patch.object(reward_report, "round", **exact), patch.object(trainer, "round", **exact):
        return train_reward(adapters, labels, reference, config, distributed=distributed)

def result(case, sharded):
    labels = preference_data.comparisons(case["labels"])
    labels[2] = dataclasses.replace(labels[2], tie=True)
    model, report = train(labels, {name: value for name, value in case.items() if name != "labels"}, sharded)
    scores = model.scores(*tiny_models.ragged()).tolist()
    weights = [float(p.detach().double().sum()) for head in model.head.heads for p in head.parameters()]
    weights += [float(p.detach().double().sum()) for p in model.adapters.parameters(model.adapter)] if model.adapter else []
    return [dataclasses.asdict(report), scores, distributed.all_gather([weights])]

refused = []
tie = dataclasses.replace(preference_data.comparisons(1)[0], tie=True)
for labels in ([], preference_data.comparisons(1), [tie] * 3):
    try:
        train(labels, {}, given["sharded"] and distributed.world_size > 1)
    except LabelError as error:
        refused.append(distributed.all_gather([str(error)]))
results = {"whole": [result(case, False) for case in given["cases"]]}
if distributed.world_size > 1 and given["sharded"]:
    results["sharded"] = [result(case, True) for case in given["cases"]]
answer([results, refused])
"""


@pytest.fixture(scope="module", params=["CPU", pytest.param("fake_device", marks=pytest.mark.slow)])
def both(request, tmp_path_factory):
    """The results of one process and of two."""
    folder = tmp_path_factory.mktemp("group")
    model = tiny_models.save_llama(folder / "model")
    fake_device = request.param == "fake_device"
    given = {"folder": str(model), "cases": CASES, "fake_device": fake_device, "sharded": not fake_device}
    return [run_here(CHILD, given), launch(folder, CHILD, given, processes=2)]


@pytest.mark.parametrize("weights", ["whole", "sharded"])
@pytest.mark.parametrize("case", range(len(CASES)), ids=[str(case) for case in CASES])
def test_two_processes_give_the_model_of_one(both, weights, case, request):
    """weights: whether each process holds all weights of the base model or a part of them."""
    (alone, _), (together, _) = both
    if weights == "sharded" and "fake_device" in request.node.callspec.params.values():
        pytest.skip("no sharding on the fake device")
    (report, scores, _), (actual, actual_scores, sums) = alone["whole"][case], together[weights][case]
    assert report["loss"] or report["adapter"] or CASES[case].get("epochs") == 0  # an adapter was trained, used or not
    assert actual.keys() == report.keys()
    for name, value in report.items():  # the head and the adapter are float32
        assert flat(actual[name]) == pytest.approx(flat(value), rel=1e-5, abs=1e-5), name
    assert actual_scores == pytest.approx(scores, rel=1e-5, abs=1e-5)
    assert sums[0] == sums[1]  # both hold the same model, bit for bit


def test_insufficient_labels_are_refused_by_all_processes(both):
    (_, alone), (_, together) = both
    assert [words[0] for words in alone] == [words[0] for words in together]
    assert all(first == second for first, second in together)
    for words, (message, _) in zip(("no labels yet", "one decided label", "3 labels are ties"), together, strict=True):
        assert words in message
