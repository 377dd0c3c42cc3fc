"""If memory runs out in passes without a gradient, the same rows are computed in smaller batches."""

import pytest
import torch

from rlhf_lab.models.backbone import load_backbone
from rlhf_lab.models.batch import map_by_length
from rlhf_lab.models.sampling import sampler
from rlhf_lab.models.sampling.sampler import sample, uniforms

FULL = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")


@pytest.fixture
def backbone(llama_folder):
    return load_backbone(str(llama_folder), device="cpu", dtype=torch.float64)


@pytest.fixture
def limit_rows(monkeypatch):
    """limit_rows(most): prefill of more rows runs out of memory; returns the list of the row counts of all calls."""
    row_counts, read = [], sampler._prefill

    def plan(most):
        def limited(backbone, prompts, *more):
            row_counts.append(len(prompts))
            if len(prompts) > most:
                raise FULL
            return read(backbone, prompts, *more)

        monkeypatch.setattr(sampler, "_prefill", limited)
        return row_counts

    return plan


def test_sampling_continues_with_fewer_rows_and_the_same_result(backbone, limit_rows):
    prompts = [backbone.encode_prompt(text) for text in ("the cat", "moon", "a good bird", "the", "bird")]
    uniform = uniforms(range(5), 6)
    whole = sample(backbone, prompts, uniform)
    row_counts = limit_rows(2)
    pieces = sample(backbone, prompts, uniform)
    assert row_counts == [5, 3, 2, 2, 1]
    assert pieces.tokens == whole.tokens
    for mine, theirs in zip(pieces.logprobs, whole.logprobs, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-12)
    assert sample(backbone, prompts, uniform).tokens == whole.tokens
    assert row_counts[5:] == [2, 2, 1]  # sizes that did not fit are not tried again


def test_a_row_that_does_not_fit_alone_is_an_error(backbone, limit_rows):
    row_counts = limit_rows(0)
    with pytest.raises(RuntimeError, match="can't allocate"):
        sample(backbone, [backbone.encode_prompt("the cat")] * 4, uniforms(range(4), 3))
    assert row_counts == [4, 2, 1]


def test_another_error_is_not_tried_again(backbone, monkeypatch):
    row_counts = []

    def broken(*_):
        row_counts.append(1)
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(sampler, "_prefill", broken)
    with pytest.raises(RuntimeError, match="shapes differ"):
        sample(backbone, [backbone.encode_prompt("the cat")] * 4, uniforms(range(4), 3))
    assert row_counts == [1]


def test_out_of_memory_with_sharded_weights_is_an_error(backbone, limit_rows):
    row_counts = limit_rows(2)
    backbone.shards = object()
    with pytest.raises(RuntimeError, match="can't allocate"):
        sample(backbone, [backbone.encode_prompt("the cat")] * 4, uniforms(range(4), 3))
    assert row_counts == [4]


def test_scoring_continues_with_fewer_rows_in_order(backbone):
    row_counts = []

    def function(index):
        row_counts.append(len(index))
        if len(index) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return torch.tensor(index) * 10.0

    assert map_by_length(function, [3, 1, 5, 2, 4], backbone).tolist() == [0.0, 10.0, 20.0, 30.0, 40.0]
    assert row_counts == [5, 3, 2, 2, 1]
