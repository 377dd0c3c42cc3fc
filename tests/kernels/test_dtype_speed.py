"""The faster dtype of a machine is measured once; then the result in the cache file is used."""

import json

import pytest
import torch

from rlhf_lab.kernels import dtype_speed
from rlhf_lab.kernels.dtype_speed import CACHE_FILE, DtypeSpeed

SIZES = (64, 96, 1000)


@pytest.fixture
def cache_file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "rlhf-lab" / "kernels" / CACHE_FILE


@pytest.fixture
def measured(monkeypatch):
    """The sizes that were measured; every measurement gives 10 and 6 ms."""
    sizes = []
    monkeypatch.setattr(dtype_speed, "measure", lambda *args: sizes.append(args) or DtypeSpeed(10.0, 6.0))
    return sizes


@pytest.mark.parametrize(
    ("bfloat16_ms", "dtype"),
    [(7.9, torch.bfloat16), (8.0, torch.bfloat16), (8.1, torch.float32), (20.0, torch.float32)],
)
def test_bfloat16_must_save_a_fifth_of_the_time(bfloat16_ms, dtype):
    assert DtypeSpeed(10.0, bfloat16_ms).faster_dtype == dtype


def test_sizes_are_measured_once(cache_file, measured):
    for _ in range(2):
        assert dtype_speed.dtype_speed(*SIZES) == DtypeSpeed(10.0, 6.0)
    assert measured == [SIZES]
    dtype_speed.dtype_speed(64, 96, 2000)
    assert len(json.loads(cache_file.read_text())) == 2
    dtype_speed.dtype_speed(*SIZES)
    assert measured == [SIZES, (64, 96, 2000)]


def test_another_number_of_threads_is_measured_for_itself(cache_file, measured, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    dtype_speed.dtype_speed(*SIZES)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    dtype_speed.dtype_speed(*SIZES)
    assert len(measured) == 2


@pytest.mark.parametrize("content", ["", "[1]", '{"64x96x1000": 3}', '{"64x96x1000": {"float32_ms": 1}}', "\x00{"])
def test_a_damaged_cache_file_is_measured_again(cache_file, measured, content):
    cache_file.parent.mkdir(parents=True)
    cache_file.write_text(content)
    assert dtype_speed.dtype_speed(*SIZES) == DtypeSpeed(10.0, 6.0)
    assert list(json.loads(cache_file.read_text()).values()) == [{"float32_ms": 10.0, "bfloat16_ms": 6.0}]


def test_the_least_of_five_rounds_counts_and_the_first_round_does_not(monkeypatch):
    clock = [0.0]
    seconds = {
        torch.float32: iter([0.001, 0.9, 0.03, 0.02, 0.5, 0.04]), torch.bfloat16: iter([0.001, 0.07, 0.8, 0.9, 0.6, 0.05]),
    }  # fmt: skip

    def products(dtype, *sizes):
        assert sizes == SIZES

        def run():
            clock[0] += next(seconds[dtype])

        return run

    monkeypatch.setattr(dtype_speed, "_products", products)
    monkeypatch.setattr(dtype_speed.time, "perf_counter", lambda: clock[0])
    assert dtype_speed.measure(*SIZES) == DtypeSpeed(20.0, 50.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_have_the_sizes_of_training_and_of_sampling(monkeypatch, dtype):
    shapes = []
    monkeypatch.setattr(dtype_speed, "MAX_HEAD_ELEMENTS", 64 * 500)
    monkeypatch.setattr(
        dtype_speed, "linear", lambda x, weight: shapes.append((x.dtype, tuple(x.shape), tuple(weight.shape)))
    )
    dtype_speed._products(dtype, *SIZES)()
    assert shapes == [(dtype, (256, 64), (96, 64)), (dtype, (16, 64), (500, 64))]


def test_a_measurement_ends_with_times_above_zero():
    speed = dtype_speed.measure(*SIZES)
    assert speed.float32_ms > 0
    assert speed.bfloat16_ms > 0
    assert speed.describe().startswith("measured: ")
