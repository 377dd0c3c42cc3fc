"""The report's figures by hand, from probabilities that are given."""

import math

import pytest
import torch
from support import tiny_models  # noqa: F401  one thread

from rlhf_lab.common.records import Comparison
from rlhf_lab.common.stats import clustered_interval, wilson_interval
from rlhf_lab.training.reward.report import (
    HeldOutPrediction,
    agreement,
    calibration,
    expected_calibration_error,
    held_out_metrics,
    length_correlation,
    log_losses,
)


def label(prompt="p", chosen="a", rejected="b", tie=False, group=0):
    return Comparison(prompt, chosen, rejected, (1,), (2,), tie=tie, group=group)


def predictions(*probabilities):
    return [HeldOutPrediction(i, p) for i, p in enumerate(probabilities)]


def test_calibration_by_hand():
    """Confidences .6 (wrong), .7, .8 | .9 (wrong), .95, 1: two bins of three."""
    bins = calibration([0.7, 0.4, 0.8, 1.0, 0.1, 0.95], bins=2)
    assert [count for _, _, count in bins] == [3, 3]
    assert bins[0][:2] == pytest.approx((0.7, 2 / 3))
    assert bins[1][:2] == pytest.approx((0.95, 2 / 3))
    assert expected_calibration_error(bins) == pytest.approx((abs(0.7 - 2 / 3) + abs(0.95 - 2 / 3)) / 2)


def test_equal_confidences_share_their_accuracy():
    """60 of 100 labels of confidence .6 are right: calibrated. Wrong ones first, the bins would say 0, 0, 1, 1, 1."""
    bins = calibration([0.6] * 60 + [0.4] * 40)
    assert bins == [(pytest.approx(0.6), pytest.approx(0.6), 20)] * 5
    assert expected_calibration_error(bins) == pytest.approx(0.0, abs=1e-12)


def test_bins_differ_by_one_at_most_and_none_is_empty():
    assert [count for _, _, count in calibration([0.6] * 13)] == [2, 3, 2, 3, 3]
    assert [count for _, _, count in calibration([0.6, 0.3])] == [1, 1]
    assert calibration([]) == []
    assert expected_calibration_error([]) is None


def test_calibration_error_weighs_bins_by_their_counts():
    assert expected_calibration_error([(0.6, 0.5, 1), (0.9, 0.5, 3)]) == pytest.approx((0.1 + 3 * 0.4) / 4)


def test_a_probability_of_one_half_is_half_right():
    """p = 0.5 exactly: no choice was made."""
    assert calibration([0.5]) == [(0.5, 0.5, 1)]
    assert held_out_metrics(predictions(0.5, 0.6), [label()] * 2)["accuracy"] == 0.75


def test_disagreements_are_the_worst_first_and_no_ties():
    labels = [label(), label(tie=True), label(), label(), label()]
    actual = held_out_metrics(predictions(0.4, 0.01, 0.9, 0.123456, 0.49), labels)
    assert actual["disagreements"] == [
        {"index": 3, "probability": 0.1235},
        {"index": 0, "probability": 0.4},
        {"index": 4, "probability": 0.49},
    ]
    assert actual["accuracy"] == 0.25
    assert sum(count for _, _, count in actual["calibration"]) == 4


def test_accuracy_interval_is_clustered_by_prompt():
    """Twelve prompts with three labels each that are all right or all wrong, and a tie: an interval as of one label each."""
    tripled = [label(group=group) for group in range(12) for _ in range(3)] + [label(group=99, tie=True)]
    actual = held_out_metrics(predictions(*[0.9] * 27, *[0.1] * 9, 0.9), tripled)
    assert actual["accuracy"] == 0.75
    assert (actual["accuracy_low"], actual["accuracy_high"]) == clustered_interval([(1, 1)] * 9 + [(0, 1)] * 3)
    low, high = wilson_interval(27, 36)
    assert actual["accuracy_low"] < low < high < actual["accuracy_high"]


def test_at_most_twenty_disagreements():
    actual = held_out_metrics(predictions(*[i / 100 for i in range(30, 0, -1)]), [label()] * 30)
    assert [one["index"] for one in actual["disagreements"]] == list(range(29, 9, -1))


def test_metrics_without_held_out_labels():
    actual = held_out_metrics([], [label()])
    assert (actual["accuracy"], actual["accuracy_low"], actual["accuracy_high"]) == (None, 0.0, 1.0)
    assert (actual["calibration"], actual["expected_calibration_error"], actual["disagreements"]) == ([], None, [])


def test_log_losses_by_hand():
    """-log .8; a tie at .5 is -log .5, and at .9 half of -log .9 and -log .1."""
    labels = [label(), label(tie=True), label(tie=True)]
    expected = [-math.log(0.8), -math.log(0.5), -(math.log(0.9) + math.log(0.1)) / 2]
    assert log_losses(predictions(0.8, 0.5, 0.9), labels) == pytest.approx(expected)
    assert all(math.isfinite(nats) for nats in log_losses(predictions(0.0, 1.0, 0.0), labels))


def flipped(c):
    return Comparison(c.prompt, c.rejected, c.chosen, c.rejected_ids, c.chosen_ids, tie=c.tie)


def test_agreement_of_two_labels_of_one_pair():
    one, tie = label(), label(tie=True)
    assert agreement([one, label(chosen="c"), label(prompt="q")]) is None
    assert agreement([one, one]) == {"share": 1.0, "count": 1}
    assert agreement([one, flipped(one)]) == {"share": 0.0, "count": 1}
    assert agreement([tie, flipped(tie)]) == {"share": 1.0, "count": 1}
    assert agreement([one, tie]) == {"share": 0.0, "count": 1}
    # three labels of one pair are three couples, of which one agrees; the fourth label is of another pair
    assert agreement([one, flipped(one), one, label(prompt="q")]) == {"share": pytest.approx(1 / 3), "count": 3}


def test_correlation_with_length_by_hand():
    """Scores 1, 2, 4 and lengths 3, 1, 2: deviations (-4, -1, 5)/3 and (1, -1, 0): -3/3 over sqrt(42)/3 sqrt(2)."""
    rows = [[0] * 3, [0], [0] * 2]
    actual = length_correlation(torch.tensor([1.0, 2.0, 4.0]).double(), rows)
    assert actual == pytest.approx(-3 / math.sqrt(84))
    assert length_correlation(torch.ones(3).double(), rows) is None
    constant = torch.full((12,), 0.1, dtype=torch.float64)  # its mean is not exactly 0.1
    assert length_correlation(constant, [[0] * n for n in range(1, 13)]) is None
    assert length_correlation(torch.tensor([1.0, 2.0]).double(), [[0], [0]]) is None
