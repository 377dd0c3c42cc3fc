"""The preallocated cache equals the cache of transformers, whatever is appended and whichever rows are selected."""

import pytest
import torch
from support import tiny_models
from transformers import DynamicCache, Gemma3TextConfig
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from rlhf_lab.models.kv_cache import ReservedCacheLayer, reserved_cache
from rlhf_lab.models.sampling import sampler


def states(batch, length, seed):
    return torch.randn(2, batch, 3, length, 4, generator=torch.Generator().manual_seed(seed)).unbind(0)


@pytest.mark.parametrize("extra", [0, 2, 50])  # too little reserved space is slower, but correct
def test_reserved_layer_equals_dynamic_layer(extra):
    plain, reserved = DynamicLayer(), ReservedCacheLayer(extra)
    for step, (length, keep) in enumerate([(5, None), (1, [0, 0, 1, 1]), (1, [3, 1]), (3, [1]), (1, None)]):
        batch = 2 if plain.keys is None else plain.keys.shape[0]
        keys, values = states(batch, length, step)
        for actual, expected in zip(reserved.update(keys, values), plain.update(keys, values), strict=True):
            assert torch.equal(actual, expected)
        assert reserved.get_seq_length() == plain.get_seq_length()
        assert reserved.get_mask_sizes(1) == plain.get_mask_sizes(1)
        if keep is not None:
            for layer in (plain, reserved):
                layer.batch_select_indices(torch.tensor(keep))
            assert torch.equal(reserved.keys, plain.keys)
            assert torch.equal(reserved.values, plain.values)


def test_cropped_or_reset_tokens_do_not_reappear():
    plain, reserved = DynamicLayer(), ReservedCacheLayer(3)
    for change in (lambda layer: None, lambda layer: layer.crop(-2), lambda layer: layer.reset()):
        for step, length in enumerate((4, 1)):
            if step:
                change(plain)
                change(reserved)
            keys, values = states(2, length, step)
            for actual, expected in zip(reserved.update(keys, values), plain.update(keys, values), strict=True):
                assert torch.equal(actual, expected)


def test_tokens_are_written_in_place_without_copies():
    layer = ReservedCacheLayer(4)
    layer.update(*states(2, 3, 0))
    address = layer.buffers[0].data_ptr()
    for step in range(4):
        layer.update(*states(2, 1, step))
    assert layer.buffers[0].data_ptr() == address
    assert layer.keys.data_ptr() == address


def test_sliding_window_layers_are_transformers_own():
    config = Gemma3TextConfig(num_hidden_layers=6, sliding_window=4)
    kinds = [type(layer) for layer in reserved_cache(config, 8).layers]
    assert kinds == [DynamicSlidingWindowLayer] * 5 + [ReservedCacheLayer]


def test_reserve_token():
    """Also beyond the reserved length; earlier tokens stay."""
    layer, states = ReservedCacheLayer(1), torch.arange(24.0).view(1, 2, 3, 4)
    layer.update(states, states + 1)
    for used in (3, 4, 5):
        keys, values, at = layer.reserve_token()
        assert at == used == layer.get_seq_length() - 1
        assert keys.shape[2] > used
        assert torch.equal(keys[:, :, :3], states)
        assert torch.equal(values[:, :, :3], states + 1)


@pytest.mark.parametrize("folder", ["llama_folder", "gpt2_folder"])
def test_samples_equal_those_with_dynamic_cache(folder, request, monkeypatch):
    backbone = tiny_models.load(request.getfixturevalue(folder), torch.float64)
    prompts = [[5, 6, 7], [8], [5, 6, 7], [9, 10], [8], [5], [6], [7, 7], [11]]
    uniform = tiny_models.seeded(len(prompts), 24)
    reserved = sampler.sample(backbone, prompts, uniform)
    monkeypatch.setattr(sampler, "reserved_cache", lambda config, _, **__: DynamicCache(config=config))
    monkeypatch.setattr(sampler, "DROP_FRACTION", 0.0)
    plain = sampler.sample(backbone, prompts, uniform)
    assert plain.tokens == reserved.tokens
    for expected, actual in zip(plain.logprobs, reserved.logprobs, strict=True):
        assert actual == pytest.approx(expected, abs=1e-12)
    assert len({len(row) for row in reserved.tokens}) > 2  # rows ended at different times
