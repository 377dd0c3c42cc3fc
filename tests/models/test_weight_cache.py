"""The cached weights of a decoder layer for the active adapter: their values, and when they are recomputed."""

from functools import partial

import pytest
import torch

from rlhf_lab.models.fused_llama.layer import LayerWeights
from rlhf_lab.models.fused_llama.weight_cache import (
    CacheByRank,
    ConcatWeightCache,
    MergedWeights,
    split_by_projection,
)
from rlhf_lab.models.lora_linear import LoraWeights, MergedLoraLinear

SIZES = (4, 2, 2)
ROWS = [(4, 3), (2, 3), (2, 3), (3, 4), (5, 3), (5, 3), (3, 5)]


def frozen(dtype=torch.float32):
    tensors = [torch.arange(1.0, 1 + rows * columns).view(rows, columns).to(dtype) for rows, columns in ROWS]
    norms = torch.ones(3, dtype=dtype), torch.ones(3, dtype=dtype)
    return LayerWeights(torch.cat(tensors[:3]), *tensors[3:], norms, None)


def make_lora(weights, ranks=(1,) * 7, scale=2.0):
    """For projection i: A of 10 i + 1, 10 i + 2, … and B of -1."""
    found = []
    for i, (one, rank) in enumerate(zip(split_by_projection(weights, SIZES), ranks, strict=True)):
        base = torch.nn.Linear(one.shape[1], one.shape[0], bias=False)
        base.weight = torch.nn.Parameter(one, requires_grad=False)
        a = torch.arange(1.0, 1 + rank * one.shape[1]).view(rank, -1) + 10 * i
        found.append(
            LoraWeights(base, torch.nn.Parameter(a), torch.nn.Parameter(torch.full((len(one), rank), -1.0)), scale)
        )
    return found


def make_cache(kind, weights):
    if kind is ConcatWeightCache:
        return CacheByRank(partial(ConcatWeightCache, weights, SIZES))
    return MergedWeights(weights, SIZES, [MergedLoraLinear() for _ in ROWS])


def effect(weights, i):
    """W + s B A of projection i, from merged or concatenated weights."""
    weight = split_by_projection(weights, SIZES)[i].float()
    a = weights.lora_a[(0, 0, 0, 1, 2, 2, 3)[i]]
    if a is None:
        return weight
    wide = a.shape[1]
    return weight[:, :wide] + weight[:, wide:] @ a.float()


@pytest.mark.parametrize("ranks", [(1,) * 7, (2, 1, 3, 2, 1, 4, 2)])
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(MergedWeights, torch.float32), (ConcatWeightCache, torch.float32), (ConcatWeightCache, torch.bfloat16)],
)
def test_weights_are_frozen_plus_update(kind, dtype, ranks):
    weights = frozen(dtype)
    parts = make_lora(weights, ranks)
    found = make_cache(kind, weights).weights_for(parts)
    for i, part in enumerate(parts):
        expected = part.base.weight.float() + 2.0 * part.b.detach() @ part.a.detach()
        assert torch.equal(effect(found, i), expected), i
    assert all(torch.equal(one, other) for one, other in zip(weights[:5], frozen(dtype)[:5], strict=True))


def test_layout_of_concatenated_weights():
    found = make_cache(ConcatWeightCache, weights := frozen()).weights_for(make_lora(weights))
    assert found.lora_a[0].tolist() == [[1, 2, 3], [11, 12, 13], [21, 22, 23]]
    assert found.qkv[0].tolist() == [1, 2, 3, -2, 0, 0]  # first row of q
    assert found.qkv[4].tolist() == [1, 2, 3, 0, -2, 0]  # of k
    assert found.qkv[7].tolist() == [4, 5, 6, 0, 0, -2]  # last row of v
    assert found.lora_a[2].tolist() == [[41, 42, 43], [51, 52, 53]]
    assert found.gate[0].tolist() == [1, 2, 3, -2, 0]
    assert found.up[0].tolist() == [1, 2, 3, 0, -2]
    assert found.down[0].tolist() == [1, 2, 3, 4, 5, -2]
    assert found.lora_a[3].tolist() == [[61, 62, 63, 64, 65]]


@pytest.mark.parametrize("kind", [MergedWeights, ConcatWeightCache])
def test_weights_follow_training_and_adapter(kind):
    weights = frozen()
    cache, one, other = make_cache(kind, weights), make_lora(weights), make_lora(weights, scale=-3.0)
    for parts in (one, other, one):
        for i, part in enumerate(parts):
            expected = part.base.weight + part.scale * part.b.detach() @ part.a.detach()
            assert torch.equal(effect(cache.weights_for(parts), i), expected)
    with torch.no_grad():
        one[6].b.add_(1)  # the last factor alone
    assert torch.equal(effect(cache.weights_for(one), 6), one[6].base.weight)


@pytest.mark.parametrize("kind", [MergedWeights, ConcatWeightCache])
def test_weights_keep_their_address_and_are_cached(kind):
    weights = frozen()
    cache, parts = make_cache(kind, weights), make_lora(weights)
    first = cache.weights_for(parts)
    versions = [one._version for one in first[:5]]
    again = cache.weights_for(parts)
    assert all(one is other for one, other in zip(first[:5], again[:5], strict=True))
    assert [one._version for one in again[:5]] == versions


def test_module_merges_bump_only_their_own_version():
    """A merge of q by a module leaves the version of k, whose gradient may be pending, and changes that of the whole tensor."""
    weights = frozen()
    fast = [MergedLoraLinear() for _ in ROWS]
    cache, parts = MergedWeights(weights, SIZES, fast), make_lora(weights)
    whole = cache.weights_for(parts).qkv
    with torch.no_grad():
        for part in parts[:3]:
            part.b.add_(1)
    k = fast[1].merged_weight(parts[1])
    before = k._version, whole._version
    fast[0].merged_weight(parts[0]), fast[2].merged_weight(parts[2])
    assert k._version == before[0]
    assert whole._version > before[1]
    assert cache.weights_for(parts).qkv is whole
    assert torch.equal(whole, torch.cat([part.base.weight for part in parts[:3]]))  # B is 0 now
    o = cache.weights_for(parts).o
    version = o._version
    with torch.no_grad():
        parts[3].b.add_(1)
    fast[3].merged_weight(parts[3])
    assert cache.weights_for(parts).o is o
    assert o._version > version


def test_two_combinations_of_ranks_are_cached():
    weights = frozen()
    cache, narrow, wide, widest = (
        make_cache(ConcatWeightCache, weights), make_lora(weights), make_lora(weights, (2,) * 7), make_lora(weights, (3,) * 7),
    )  # fmt: skip
    tensors = [cache.weights_for(parts).qkv for parts in (narrow, wide, narrow, wide)]
    assert tensors[0] is tensors[2]
    assert tensors[1] is tensors[3]
    cache.weights_for(widest)  # a third takes the place of the first
    assert cache.weights_for(wide).qkv is tensors[1]
    assert cache.weights_for(narrow).qkv is not tensors[0]


def test_out_of_memory_leaves_no_partial_weights(monkeypatch):
    weights = frozen()
    cache, parts = make_cache(ConcatWeightCache, weights), make_lora(weights)
    cat, calls = torch.cat, []

    def fails_once(tensors, *rest):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("can't allocate memory")
        return cat(tensors, *rest)

    monkeypatch.setattr(torch, "cat", fails_once)
    with pytest.raises(RuntimeError, match="allocate"):
        cache.weights_for(parts)
    for i, part in enumerate(parts):
        assert torch.equal(
            effect(cache.weights_for(parts), i), part.base.weight + 2.0 * part.b.detach() @ part.a.detach()
        )


def test_another_rank_gets_its_own_cache():
    weights = frozen()
    cache = make_cache(ConcatWeightCache, weights)
    wide = cache.weights_for(make_lora(weights, (3,) * 7))
    assert wide.qkv.shape == (8, 12)
    narrow = make_lora(weights)
    assert cache.weights_for(narrow).qkv.shape == (8, 6)
    for i, part in enumerate(narrow):
        assert torch.equal(
            effect(cache.weights_for(narrow), i), part.base.weight + 2.0 * part.b.detach() @ part.a.detach()
        )
