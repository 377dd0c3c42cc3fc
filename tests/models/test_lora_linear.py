"""The merged LoRA layer against the forward and backward pass of PEFT."""

import pytest
import torch
from support import tiny_models
from torch.nn import functional

from rlhf_lab.kernels import matmul
from rlhf_lab.models import adapters as adapters_module
from rlhf_lab.models.lora_linear import LoraWeights, MergedLoraLinear, lora_weights_of

IDS = torch.tensor(
    [tiny_models.ids("the cat sat . the very old king"), tiny_models.ids("so ran . the moon the cat sat")]
)


def run_model(folder, name="a", dtype=torch.float64):
    """Hidden states, and the gradients of a loss that weighs every state differently."""
    backbone = tiny_models.load(folder, dtype)
    adapters = tiny_models.adapters_of(backbone, "a", "b")
    with adapters.using(name):
        hidden = backbone.hidden(IDS)
        (hidden * torch.linspace(-1, 1, hidden.numel(), dtype=dtype).view_as(hidden)).sum().backward()
    return hidden.detach(), [p.grad for p in adapters.parameters(name)], adapters, backbone


def test_states_and_gradients_equal_pefts(llama_folder, monkeypatch):
    ours, our_gradients, *_ = run_model(llama_folder)
    monkeypatch.setattr(adapters_module, "lora_weights_of", lambda *_: None)
    pefts, their_gradients, adapters, _ = run_model(llama_folder)
    assert "forward" not in adapters._layers[0].__dict__ or adapters._active.name is None
    torch.testing.assert_close(ours, pefts, rtol=1e-10, atol=1e-10)
    assert len(our_gradients) == len(their_gradients) > 0
    for mine, theirs in zip(our_gradients, their_gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-10)


def test_the_merged_weight_follows_an_optimiser_step(llama_folder):
    backbone = tiny_models.load(llama_folder, torch.float64)
    adapters = tiny_models.adapters_of(backbone, "a")
    optimiser = torch.optim.Adam(adapters.parameters("a"), lr=0.1)
    with adapters.using("a"):
        before = backbone.hidden(IDS)
        before.square().sum().backward()
        optimiser.step()
        after = backbone.hidden(IDS).detach()
    fresh = tiny_models.adapters_of(tiny_models.load(llama_folder, torch.float64), "a")
    fresh.load_tensors("a", adapters.tensors("a"))
    with fresh.using("a"):
        torch.testing.assert_close(after, fresh.backbone.hidden(IDS).detach(), rtol=1e-12, atol=1e-12)
    assert float((after - before).detach().abs().max()) > 1e-3


def test_switching_adapters_before_backward_is_allowed(llama_folder):
    """The weights restored on leaving a context are computed at their next use, not immediately."""
    backbone = tiny_models.load(llama_folder, torch.float64)
    adapters = tiny_models.adapters_of(backbone, "a", "b")
    with adapters.using("b"):
        backbone.hidden(IDS)
        with adapters.using("a"):
            loss = backbone.hidden(IDS).square().sum()
        loss.backward()
    assert all(p.grad is not None for p in adapters.parameters("a"))
    assert all(p.grad is None for p in adapters.parameters("b"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])  # by modules, by whole layers
def test_backward_after_another_adapters_forward_is_refused(llama_folder, dtype):
    backbone = tiny_models.load(llama_folder, dtype)
    adapters = tiny_models.adapters_of(backbone, "a", "b")
    with adapters.using("a"):
        loss = backbone.hidden(IDS).square().sum()
    with adapters.using("b"):
        backbone.hidden(IDS)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_other_layer_types_use_peft(llama_folder, gpt2_folder):
    adapters = tiny_models.adapters_of(tiny_models.load(gpt2_folder), "a")
    assert all(lora_weights_of(layer, "a") is None for layer in adapters._layers)
    adapters = tiny_models.adapters_of(tiny_models.load(llama_folder), "a")
    assert all(lora_weights_of(layer, "a") is not None for layer in adapters._layers)
    assert lora_weights_of(adapters._layers[0], "nobody") is None


def test_by_hand():
    base = torch.nn.Linear(2, 2, bias=True, dtype=torch.float64)
    with torch.no_grad():
        base.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        base.bias.copy_(torch.tensor([0.5, 0.0]))
    base.requires_grad_(False)
    a = torch.nn.Parameter(torch.tensor([[1.0, 2.0]], dtype=torch.float64))
    b = torch.nn.Parameter(torch.tensor([[3.0], [0.0]], dtype=torch.float64))
    x = torch.tensor([[1.0, 1.0]], dtype=torch.float64, requires_grad=True)
    y = MergedLoraLinear().make_forward(LoraWeights(base, a, b, 2.0))(x)
    assert y.tolist() == [[1.0 + 2 * 3 * 3 + 0.5, 1.0]]  # x + s·B·(A·x) + bias
    y[0, 0].backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[7.0, 12.0]]  # first row of W + s·B·A
    assert a.grad.tolist() == [[6.0, 6.0]]  # s·Bᵀ·g·xᵀ
    assert b.grad.tolist() == [[6.0], [0.0]]  # s·g·(A·x)


def half_layer(scale=2.0):
    generator = torch.Generator().manual_seed(3)
    base = torch.nn.Linear(12, 10, bias=True)
    with torch.no_grad():
        for parameter in base.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    base.requires_grad_(False)
    a = torch.nn.Parameter(torch.randn(3, 12, generator=generator))
    b = torch.nn.Parameter(torch.randn(10, 3, generator=generator))
    x = torch.randn(2, 5, 12, generator=generator)
    return LoraWeights(base.to(torch.bfloat16), a, b, scale), x.to(torch.bfloat16).requires_grad_()


def test_half_precision_is_the_same_function_rounded():
    parts, x = half_layer()
    out = MergedLoraLinear().make_forward(parts)(x)
    wide = x.detach().float().requires_grad_()
    expected = wide @ (parts.base.weight.float() + 2.0 * parts.b @ parts.a).t() + parts.base.bias.float()
    weight = torch.linspace(-1, 1, out.numel()).view(out.shape)
    found = torch.autograd.grad((out.float() * weight).sum(), (x, parts.a, parts.b))
    expected_grads = torch.autograd.grad((expected * weight).sum(), (wide, parts.a, parts.b))
    assert [g.dtype for g in found] == [torch.bfloat16, torch.float32, torch.float32]
    for mine, theirs in zip((out, *found), (expected, *expected_grads), strict=True):
        assert (mine.float() - theirs).abs().max() < 0.02 * theirs.abs().max()


def test_half_precision_keeps_updates_below_rounding():
    """Rows of 1, -1, 1 … take nothing from equal inputs: what comes out is the update, 2 · 12 · 100 · 3 · 1e-4."""
    parts, x = half_layer()
    with torch.no_grad():
        parts.base.weight.copy_(torch.tensor([1.0, -1.0]).repeat(10, 6))
        parts.base.bias.zero_()
        parts.a.fill_(1.0)
        parts.b.fill_(1e-4)
        x.fill_(100.0)
        out = MergedLoraLinear().make_forward(parts)(x)
    assert out.float().flatten().tolist() == pytest.approx([0.72] * 100, rel=0.01)
    merged = parts.base.weight.float() + 2.0 * parts.b @ parts.a
    assert torch.equal(merged.to(torch.bfloat16), parts.base.weight)  # 1.0006 is 1 in bfloat16


def test_a_model_moved_to_another_dtype_is_merged_again():
    base = torch.nn.Linear(4, 3)
    a, b = (
        torch.nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(1))) for shape in ((2, 4), (3, 2))
    )
    fast, parts = MergedLoraLinear(), LoraWeights(base, a, b, 2.0)
    fast.merged_weight(parts)
    base.double()
    a.data, b.data = a.data.double(), b.data.double()
    torch.testing.assert_close(fast.merged_weight(parts), base.weight + 2.0 * b @ a, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("adapter", ["policy", None])
def test_the_output_of_a_layer_may_be_changed_in_place(llama_folder, monkeypatch, adapter):
    """Gemma 3n multiplies a projection in place, which oneDNN returns as a view."""

    def view_of_product(x, weight):
        return lambda x, bias: functional.linear(x.flatten(0, -2), weight, bias).view(*x.shape[:-1], -1)

    monkeypatch.setattr(matmul, "_onednn_matmul", view_of_product)
    adapters = tiny_models.adapters_of(tiny_models.load(llama_folder), "policy")
    layer = adapters.backbone.trunk.layers[0].mlp.down_proj
    x = torch.randn(2, 3, 48, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with adapters.using(adapter):
        expected = (2 * layer(x)).square().sum()
        changed = layer(x)
        changed *= 2
    torch.testing.assert_close(changed.square().sum(), expected)
    torch.testing.assert_close(torch.autograd.grad(changed.square().sum(), x), torch.autograd.grad(expected, x))
