"""Attention in bfloat16 on a CPU: matrix products give the values of the fused kernel, which is used in unsupported cases."""

import pytest
import torch
from support import tiny_models
from torch.nn.functional import scaled_dot_product_attention as fused

from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.batch import forward, make_batch
from rlhf_lab.models.fused_llama import attention


def states(dtype, heads=4, groups=4, length=7):
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, heads, length, 6), (2, groups, length, 6), (2, groups, length, 6)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def test_values_and_gradients_match_sdpa():
    q, k, v = states(torch.float64)
    out = attention._CausalAttention.apply(*(x.flatten(0, 1) for x in (q, k, v)), 0.3).view_as(q)
    expected = fused(q, k, v, is_causal=True, scale=0.3)
    assert torch.allclose(out, expected, atol=1e-12)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = torch.autograd.grad((out * weight).sum(), (q, k, v))
    for mine, theirs in zip(found, torch.autograd.grad((expected * weight).sum(), (q, k, v)), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-12)


def test_double_backward():
    """As needed for the curvature of trpo: attention weights depend on queries and keys, also in the gradients."""
    inputs = [x.detach().flatten(0, 1).requires_grad_() for x in states(torch.float64, heads=1, groups=1, length=3)]
    assert torch.autograd.gradgradcheck(lambda q, k, v: attention._CausalAttention.apply(q, k, v, 0.3), inputs)


class Layer(torch.nn.Module):
    is_causal = True


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_grouped_heads_in_bfloat16(groups):
    q, k, v = states(torch.bfloat16, groups=groups)
    out, _ = attention.attention_forward(Layer(), q, k, v, None, scaling=0.4)
    wide = [x.detach().double() for x in (q, k, v)]
    expected = fused(*wide, is_causal=True, scale=0.4, enable_gqa=True).transpose(1, 2)
    assert out.dtype == torch.bfloat16
    assert torch.allclose(out.double(), expected, atol=0.03)


@pytest.mark.parametrize("case", ["float32", "mask", "one token", "window", "dropout"])
def test_unsupported_cases_use_sdpa(case, monkeypatch):
    calls = []
    monkeypatch.setattr(attention, "sdpa_attention_forward", lambda *args, **options: calls.append((args, options)))
    q, k, v = states(torch.float32 if case == "float32" else torch.bfloat16, length=1 if case == "one token" else 7)
    mask = torch.ones(2, 1, 7, 7, dtype=torch.bool) if case == "mask" else None
    options = {"window": {"sliding_window": 4}, "dropout": {"dropout": 0.1}}.get(case, {})
    attention.attention_forward(Layer(), q, k, v, mask, scaling=0.4, **options)
    assert len(calls) == 1


def test_a_bfloat16_model_on_a_cpu_is_close_to_the_float32_one(llama_folder):
    rows = [[[5, 6, 7, 8]], [[9, 10, 11]]]
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        backbone = tiny_models.load(llama_folder, dtype)
        Adapters(backbone)
        assert (backbone.model.config._attn_implementation == attention.ATTENTION_NAME) == (dtype == torch.bfloat16)
        found.append(forward(backbone, make_batch(backbone, *rows)).at_token.float())
    assert torch.allclose(*found, atol=0.15)
    assert not torch.equal(*found)
