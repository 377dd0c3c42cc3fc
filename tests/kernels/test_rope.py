"""The rotation of queries and keys against transformers, and its inverse."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from rlhf_lab.kernels.rope import RopeCache, RopeTables, apply_rope, make_rope

ROPES = {
    "default": {"rope_type": "default", "rope_theta": 100.0},
    "linear": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0},
    "yarn": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16},
    "llama3": {
        "rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
}  # fmt: skip
SIZE = 8


def rotary(kind="default"):
    config = LlamaConfig(
        hidden_size=4 * SIZE, num_attention_heads=4, max_position_embeddings=64, rope_parameters=ROPES[kind]
    )
    return LlamaRotaryEmbedding(config)


def heads(batch, length, n=3, seed=0):
    """(n, B, T, D), not contiguous."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, n, SIZE, generator=generator).permute(2, 0, 1, 3)


def transformers_rope(x, kind, positions):
    """positions: (B, T)."""
    cos, sin = rotary(kind)(x, positions)
    return apply_rotary_pos_emb(x.transpose(0, 1), x.transpose(0, 1), cos, sin)[0].transpose(0, 1)


def test_by_hand():
    """One head of four numbers, turned by a right angle in the first plane and by half a turn in the second."""
    cos, sin = torch.tensor([[0.0, -1.0, 0.0, -1.0]]), torch.tensor([[1.0, 0.0, 1.0, 0.0]])
    x = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 1, 4)
    turn = make_rope((cos, sin))
    assert apply_rope(x, turn).flatten().tolist() == [-3.0, -2.0, 1.0, -4.0]
    assert apply_rope(x, turn, inverse=True).flatten().tolist() == [3.0, -2.0, -1.0, -4.0]


@pytest.mark.parametrize("kind", ROPES)
def test_apply_rope_matches_transformers(kind):
    x, places = heads(2, 7), RopeCache(rotary(kind), torch.zeros(1))
    assert kind in RopeCache.ROPE_TYPES
    expected = transformers_rope(x, kind, torch.arange(7)[None])
    torch.testing.assert_close(apply_rope(x, places.for_prefix(7)), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        apply_rope(x[:, :, 4:], places.for_prefix(7).last_tokens(3)), expected[:, :, 4:], rtol=1e-6, atol=1e-6
    )


def test_positions_per_row():
    x, at = heads(3, 1), torch.tensor([[5], [0], [11]])
    found = apply_rope(x, RopeCache(rotary(), torch.zeros(1)).for_positions(at, 12))
    torch.testing.assert_close(found, transformers_rope(x, "default", at), rtol=1e-6, atol=1e-6)


def test_tables_are_computed_once_and_extended():
    calls, rope = [], rotary()
    places = RopeCache(lambda like, at: calls.append(at.shape[1]) or rope(like, at), torch.zeros(1))
    short, extra = places.for_prefix(3), RopeCache.EXTRA_POSITIONS
    for length in (2, 3 + extra, 1):
        places.for_prefix(length)
    assert calls == [3 + extra]
    long = places.for_prefix(4 + extra)
    places.for_positions(torch.tensor([[4 + 2 * extra - 1]]), 4 + 2 * extra)
    assert calls == [3 + extra, 4 + 2 * extra]
    assert len(long.cos) == 4 + extra
    assert torch.equal(long.cos[:3], short.cos)


def test_inverse_rotation_gives_the_gradient():
    """Equal to autograd; written into a slice of a tensor, whose other elements stay."""
    x, turn = heads(2, 5).double().requires_grad_(), RopeCache(rotary(), torch.zeros(1)).for_prefix(5)
    turn = RopeTables(*(part.double() for part in turn))
    grad_output = heads(2, 5, seed=1).double()
    swapped = torch.cat([x[..., SIZE // 2 :], x[..., : SIZE // 2]], -1)
    (expected,) = torch.autograd.grad((x * turn.cos + swapped * turn.sin).flatten() @ grad_output.flatten(), x)
    target = torch.full((2, 5, 4, SIZE), 7.0, dtype=torch.float64).permute(2, 0, 1, 3)
    apply_rope(grad_output, turn, inverse=True, out=target[:3])
    torch.testing.assert_close(target[:3], expected, rtol=1e-12, atol=1e-12)
    assert bool((target[3] == 7.0).all())
