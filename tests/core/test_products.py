"""Products with a frozen weight: the same numbers by either library, and which of them is asked."""

import pytest
import torch

from rlhf_lab.core import products
from rlhf_lab.core.logprobs import head_logprobs
from rlhf_lab.models.lora_linear import _Merged

ZEN_5 = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\n"
ONEDNN = torch.backends.mkldnn.is_available()


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        (ZEN_5, True),
        (ZEN_5.replace("26", "25"), False),
        (ZEN_5.replace("AuthenticAMD", "GenuineIntel"), False),
        ("AMD64 Family 26 Model 68 Stepping 0, AuthenticAMD", True),
        ("AMD64 Family 25 Model 97 Stepping 2, AuthenticAMD", False),
        ("Intel64 Family 6 Model 143 Stepping 8, GenuineIntel", False),
        ("arm", False),
        ("", False),
    ],
)
def test_the_processor_is_told_from_its_description(processor, expected):
    assert products.is_zen5(processor) is expected


def test_the_other_library_is_asked_where_it_is_quicker_and_may_be(monkeypatch):
    asked = []

    def linear(x, weight, bias, *_):
        asked.append(tuple(x.shape))
        return torch.nn.functional.linear(x, weight, bias)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", linear, raising=False)
    monkeypatch.setattr(products, "BY_ONEDNN", True)
    many, few, weight = random(12, 4), random(11, 4), random(5, 4)
    with torch.no_grad():
        products.linear(many, weight)
        assert asked == [(12, 4)]
        products.linear(few, weight)
        products.linear(many.double(), weight.double())
        products.linear(many.bfloat16(), weight.bfloat16())
        products.linear(weight, many)  # few rows read, many written
        assert asked == [(12, 4), (5, 4)]
        wide = random(12, 9)
        products.linear(wide[:, :4], weight)  # a part of each row: it copies such numbers one by one
        products.linear(random(5, 4), wide[:, 5:])
        assert asked == [(12, 4), (5, 4)]
        products.linear(random(4, 12).t(), weight)
        assert asked == [(12, 4), (5, 4), (12, 4)]
        monkeypatch.setattr(products, "BY_ONEDNN", False)
        products.linear(many, weight)
    monkeypatch.setattr(products, "BY_ONEDNN", True)
    out = products.linear(many, weight.requires_grad_())
    assert out.requires_grad
    assert asked == [(12, 4), (5, 4), (12, 4)]


@pytest.mark.skipif(not ONEDNN, reason="PyTorch has no oneDNN here")
@pytest.mark.parametrize("rows", [12, 37, 200])
def test_both_give_the_same_numbers(monkeypatch, rows):
    monkeypatch.setattr(products, "BY_ONEDNN", True)
    x, weight, bias, g = random(2, rows, 24), random(40, 24, seed=1), random(40, seed=2), random(rows, 40, seed=3)
    with torch.no_grad():
        pairs = [
            (products.linear(x, weight, bias), x.double() @ weight.double().t() + bias),
            (products.linear(x[0], weight), x[0].double() @ weight.double().t()),
            (products.linear(g, weight.t()), g.double() @ weight.double()),  # an input's gradient
            (products.linear(weight[:3], x[0]), weight[:3].double() @ x[0].double().t()),  # few rows, many columns
            (products.linear(random(3, rows), g.t()), random(3, rows).double() @ g.double()),
            (products.linear_onto(g, x[0], weight), g.double() + x[0].double() @ weight.double().t()),
        ]
    for ours, exact in pairs:
        assert ours.shape == exact.shape
        torch.testing.assert_close(ours.double(), exact.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not ONEDNN, reason="PyTorch has no oneDNN here")
def test_a_merged_layer_and_the_vocabulary_head_learn_the_same_by_it(monkeypatch):
    """Values and gradients in float32 by oneDNN beside autograd's in float64."""

    def outcome(dtype, by_onednn):
        monkeypatch.setattr(products, "BY_ONEDNN", by_onednn)
        x, w, a, b = (
            t.to(dtype) for t in (random(50, 24), random(40, 24, seed=1), random(3, 24, seed=2), random(40, 3, seed=3))
        )
        for t in (x, a, b):
            t.requires_grad_()
        merged = w + 0.5 * b @ a
        hidden = _Merged.apply(x, a, b, merged.detach(), None, 0.5) if by_onednn else x @ merged.t()
        tokens = torch.arange(50) % 30
        head = random(30, 40, seed=4).to(dtype) / 6
        if by_onednn:
            logprobs = head_logprobs(hidden, head, None, tokens)[0]
        else:
            logprobs = (hidden @ head.t()).log_softmax(-1)[torch.arange(50), tokens]
        (logprobs * torch.linspace(-1, 1, 50, dtype=dtype)).sum().backward()
        return [t.double() for t in (hidden.detach(), logprobs.detach(), x.grad, a.grad, b.grad)]

    for ours, exact in zip(outcome(torch.float32, True), outcome(torch.float64, False), strict=True):
        torch.testing.assert_close(ours, exact, rtol=2e-5, atol=1e-4)
