"""Rates that the engine measures, and the file that stores them."""

import json
import math
import stat

import pytest

from rlhf_lab.common.paths import SPEED_FILE
from rlhf_lab.jobs.model_speed import (
    MAX_MEASUREMENTS,
    MAX_ROW_COUNTS,
    ModelSpeed,
    load_speed,
    save_speed,
    speed_changed_at,
)


def test_mean_length_counts_cut_responses_up_to_the_new_limit():
    speed = ModelSpeed("cpu", response_tokens=[20, None])
    assert [speed.mean_response_tokens(limit) for limit in (64, 30, 10)] == [42, 25, 10]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (4, 0.1 * 10),
        (28, 0.5 * 10),
        (16, 0.3 * 10),  # half-way between the two
        (56, 1.0 * 10),  # twice as many rows as the greatest
        (1, 0.05 * 10),  # down the same line
    ],
)
def test_sampling_seconds_by_the_number_of_rows(rows, expected):
    speed = ModelSpeed("cpu", sampling={"28": [0.5], "4": [0.1]}, response_tokens=[10])
    assert speed.sampling_seconds(rows, 64) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"4": [0.1]}, 0.05),  # the root of a quarter of the rows
        ({"4": [0.1], "8": [0.3]}, 0.025),  # the line would be below zero: a quarter, in proportion to the rows
        ({"4": [0.1], "8": [0.05]}, 0.1),  # no more than four rows take
    ],
)
def test_one_row_where_more_were_measured(sampling, expected):
    assert ModelSpeed("cpu", sampling=sampling, response_tokens=[1]).sampling_seconds(1, 64) == pytest.approx(expected)


def test_rates_are_per_token():
    speed = ModelSpeed("cpu")
    assert not speed.is_measured
    speed.record_forward(3.0, 600)
    speed.record_sampling(2.0, [[1] * 30, [1] * 10])  # two responses of 20 tokens in the mean
    speed.record_texts([[1] * 7, [1] * 9], [[1] * 30, [1] * 10], 30)
    assert (speed.forward, speed.sampling) == ([0.005], {"2": [0.1]})
    assert (speed.prompt_tokens, speed.response_tokens) == (8, [None, 10])
    assert speed.is_measured


def test_nothing_is_recorded_for_no_tokens():
    speed = ModelSpeed("cpu")
    speed.record_forward(1.0, 0)
    speed.record_sampling(1.0, [[], []])
    speed.record_stage("ppo", 1.0, 0.0)
    assert speed == ModelSpeed("cpu")


def test_newest_measurements_count_and_one_slow_one_does_not():
    speed = ModelSpeed("cpu", response_tokens=[1])
    for seconds in (100, 100, 1, 1, 50, 1, 1):
        speed.record_sampling(seconds, [[1]])
        speed.record_stage("ppo", seconds, 2.0)
    assert len(speed.sampling["1"]) == MAX_MEASUREMENTS
    assert (speed.sampling_seconds(1, 64), speed.correction("ppo"), speed.correction("trpo")) == (1, 0.5, None)
    for rows in range(2, 20):
        speed.record_sampling(1.0, [[1]] * rows)
    assert list(speed.sampling) == [str(rows) for rows in range(20 - MAX_ROW_COUNTS, 20)]


def test_file_keeps_each_machine_and_model_apart(tmp_path):
    one, other = ModelSpeed("cpu", forward=[0.1], response_tokens=[3, None]), ModelSpeed("cpu", forward=[0.2])
    assert speed_changed_at(tmp_path) == 0
    for host, model, speed in (("a", "x", other), ("a", "y", other), ("b", "x", other), ("a", "x", one)):
        save_speed(tmp_path, host, model, speed)
    assert load_speed(tmp_path, "a", "x") == one
    assert load_speed(tmp_path, "a", "y") == load_speed(tmp_path, "b", "x") == other
    assert load_speed(tmp_path, "b", "y") is None
    assert stat.S_IMODE((tmp_path / SPEED_FILE).stat().st_mode) == 0o600
    assert speed_changed_at(tmp_path) > 0


def test_stages_that_another_process_of_a_training_measured_are_kept(tmp_path):
    save_speed(tmp_path, "a", "x", ModelSpeed("cpu", stages={"ppo, 2 processes": [1.5], "ppo": [9.0]}))
    save_speed(tmp_path, "a", "x", ModelSpeed("cpu", stages={"ppo": [1.0]}))
    assert load_speed(tmp_path, "a", "x").stages == {"ppo, 2 processes": [1.5], "ppo": [1.0]}
    save_speed(tmp_path, "a", "x", ModelSpeed("cuda"))
    assert load_speed(tmp_path, "a", "x").stages == {}


@pytest.mark.parametrize("content", ["{", "[]", '{"a": []}', '{"a": {"x": {"colour": 1}}}', '{"a": {"x": null}}'])
def test_damaged_file_counts_as_nothing_measured(tmp_path, content):
    (tmp_path / SPEED_FILE).write_text(content)
    assert load_speed(tmp_path, "a", "x") is None
    save_speed(tmp_path, "a", "x", ModelSpeed("cpu", forward=[0.1]))
    assert load_speed(tmp_path, "a", "x").forward == [0.1]
    assert isinstance(json.loads((tmp_path / SPEED_FILE).read_text()), dict)


def test_file_that_cannot_be_written_fails_no_job(tmp_path):
    save_speed(tmp_path / "gone", "a", "x", ModelSpeed("cpu"))
    assert load_speed(tmp_path / "gone", "a", "x") is None


def test_load_time():
    speed = ModelSpeed("cpu")
    assert speed.load_seconds == 0
    for seconds in (9.0, 4.0, 5.0):
        speed.record_load(seconds)
    assert math.isclose(speed.load_seconds, 5.0)
