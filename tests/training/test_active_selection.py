"""Selection of informative pairs: against the explicit posterior, and on texts."""

import dataclasses
import math

import torch
from support import tiny_models
from support.preference_data import comparisons, reference_of

from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.core.preference import margin_from_strength
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.training.reward.active_selection import Candidate, LabelTargets, greedy_selection, select_most_informative


def problem(seed=0, labelled=5, candidates=9, width=4):
    generator = torch.Generator().manual_seed(seed)

    def rows(count):
        return torch.randn(count, width, generator=generator, dtype=torch.float64)

    return rows(labelled), rows(candidates), rows(1)[0]


def by_inverse(labelled, candidates, weights, ridge, count, margins=None, times=None):
    """Recomputes the precision matrix, ridge I + sum of p (1 - p) x x', for each choice; chosen pairs count as labelled."""
    rows, chosen = labelled.tolist(), []
    margins, times = list(margins or [0.0] * len(rows)), list(times or [1] * len(rows))
    for _ in range(count):
        precision = ridge * torch.eye(len(weights)).double()
        for row, margin, repeats in zip(rows, margins, times, strict=True):
            x = torch.tensor(row).double()
            p = 1 / (1 + math.exp(margin - float(x @ weights)))
            precision += repeats * p * (1 - p) * torch.outer(x, x)
        covariance, gains = torch.linalg.inv(precision), []
        for i, x in enumerate(candidates):
            p = 1 / (1 + math.exp(-float(x @ weights)))
            gains.append(-1.0 if i in chosen else float(x @ covariance @ x) * p * (1 - p))
        chosen.append(max(range(len(gains)), key=gains.__getitem__))
        rows.append(candidates[chosen[-1]].tolist())
        margins.append(0.0)
        times.append(1)
    return chosen


def test_greedy_selection_equals_the_explicit_posterior():
    for seed in range(6):
        labelled, candidates, weights = problem(seed)
        for ridge in (0.5, 20.0):
            assert greedy_selection(labelled, candidates, weights, ridge, 6) == by_inverse(
                labelled, candidates, weights, ridge, 6
            )


def test_margins_and_repeated_labels_are_part_of_the_posterior():
    """As in the fit: a label at its margin is as uncertain as one at 0, five equal labels count five times, ties have
    no margin."""
    margins, times = [0.0, 3.0, 1.0, 0.0, 2.0], [1, 5, 1, 9, 2]
    targets = LabelTargets(
        torch.tensor([True] + [False] * 4), torch.tensor([4.0, *margins[1:]]).double(), torch.tensor(times).double()
    )
    different = 0
    for seed in range(6):
        labelled, candidates, weights = problem(seed)
        actual = greedy_selection(labelled, candidates, weights, 0.5, 6, targets)
        assert actual == by_inverse(labelled, candidates, weights, 0.5, 6, margins, times)
        different += actual != greedy_selection(labelled, candidates, weights, 0.5, 6)
    assert different > 0


def test_certain_and_labelled_directions_are_not_selected():
    """Axis 0 has nine labels; on axis 1 the model is certain of the long pair but not of the short one."""
    labelled = torch.tensor([[3.0, 0.0]] * 9).double()
    candidates = torch.tensor([[3.0, 0.0], [0.0, 9.0], [0.0, 2.0]]).double()
    assert greedy_selection(labelled, candidates, torch.tensor([0.0, 1.0]).double(), 1.0, 1) == [2]
    assert greedy_selection(labelled, candidates, torch.zeros(2).double(), 1.0, 1) == [1]


def test_duplicates_are_not_selected_together():
    """Two equal pairs and a less informative third: after one of the two, the third is more informative than the other."""
    candidates = torch.tensor([[4.0, 0.0], [4.0, 0.01], [0.0, 2.0]]).double()
    assert greedy_selection(torch.zeros(1, 2).double(), candidates, torch.zeros(2).double(), 1.0, 2)[1] == 2
    assert sorted(greedy_selection(torch.zeros(1, 2).double(), candidates, torch.zeros(2).double(), 1.0, 99)) == [
        0,
        1,
        2,
    ]


def test_texts_unlike_the_labelled_ones_are_selected(llama_folder):
    """A pair like the labelled ones is less informative than one with other words; the model is not changed."""
    backbone = tiny_models.load(llama_folder)
    adapters, before = Adapters(backbone), tiny_models.weights_hash(backbone)
    labels = comparisons(12)
    prompt = backbone.encode_prompt(labels[0].prompt)
    same = Candidate(prompt, list(labels[0].chosen_ids), list(labels[0].rejected_ids))
    other = Candidate(
        prompt,
        [*tiny_models.ids("king king star ship"), tiny_models.EOS],
        [*tiny_models.ids("frog broke ! so"), tiny_models.EOS],
    )
    chosen = select_most_informative(
        adapters, labels, reference_of(backbone), [same, other, same], 2, RewardConfig(ridge=1.0)
    )
    assert chosen[0] == 1
    assert len(set(chosen)) == 2
    assert adapters.names == ()
    assert tiny_models.weights_hash(backbone) == before


def test_selection_uses_margins_counts_and_ties_of_the_labels(llama_folder, monkeypatch):
    """The arguments of greedy_selection: strength 2 with margin 0.5 is 1, one label counts three times, one is a tie."""
    arguments = {}

    def record_arguments(labelled, candidates, weights, ridge, count, targets):
        arguments.update(
            labelled=labelled, candidates=candidates, weights=weights, ridge=ridge, count=count, targets=targets
        )
        return [0]

    monkeypatch.setattr("rlhf_lab.training.reward.active_selection.greedy_selection", record_arguments)
    backbone = tiny_models.load(llama_folder)
    labels = comparisons(4)
    labels[0] = dataclasses.replace(labels[0], strength=2.0)
    labels[1] = dataclasses.replace(labels[1], count=3)
    labels[2] = dataclasses.replace(labels[2], tie=True)
    one = Candidate(backbone.encode_prompt(labels[3].prompt), list(labels[3].chosen_ids), list(labels[3].rejected_ids))
    config = RewardConfig(ridge=7.0, margin=0.5)
    assert select_most_informative(Adapters(backbone), labels, reference_of(backbone), [one, one], 1, config) == [0]
    assert arguments["targets"].ties.tolist() == [False, False, True, False]
    strengths = torch.tensor([label.strength for label in labels]).double()
    assert arguments["targets"].margins.tolist() == margin_from_strength(strengths, 0.5).tolist()
    assert arguments["targets"].margins[0] > arguments["targets"].margins[3]
    assert arguments["targets"].counts.tolist() == [1.0, 3.0, 1.0, 1.0]
    assert (arguments["ridge"], arguments["count"], arguments["labelled"].shape) == (7.0, 1, (4, 96))
    for candidate in arguments["candidates"]:  # the same texts, scaled alike
        torch.testing.assert_close(candidate, arguments["labelled"][3], rtol=1e-4, atol=1e-6)
    ignoring = config.replace(length="ignore")
    assert select_most_informative(Adapters(backbone), labels, reference_of(backbone), [one], 1, ignoring) == [0]
    torch.testing.assert_close(arguments["candidates"][0], arguments["labelled"][3], rtol=1e-4, atol=1e-6)
