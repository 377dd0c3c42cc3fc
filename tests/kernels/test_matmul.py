"""Products with a frozen weight: the same numbers with either library, and which one is called."""

import gc
import weakref

import pytest
import torch

from rlhf_lab.core.logprobs import head_logprobs
from rlhf_lab.kernels import matmul
from rlhf_lab.kernels.ops import HEAD_KERNEL
from rlhf_lab.models.lora_linear import _MergedLinear

ZEN_5 = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\n"
ONEDNN = torch.backends.mkldnn.is_available()


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        (ZEN_5, True),
        (ZEN_5.replace("26", "25"), True),
        (ZEN_5.replace("26", "23"), False),
        (ZEN_5.replace("AuthenticAMD", "GenuineIntel"), False),
        ("AMD64 Family 26 Model 68 Stepping 0, AuthenticAMD", True),
        ("AMD64 Family 25 Model 97 Stepping 2, AuthenticAMD", True),
        ("AMD64 Family 23 Model 113 Stepping 0, AuthenticAMD", False),
        ("Intel64 Family 6 Model 143 Stepping 8, GenuineIntel", False),
        ("arm", False),
        ("", False),
    ],
)
def test_is_zen4(processor, expected):
    assert matmul.is_zen4(processor) is expected


def small(monkeypatch):
    """oneDNN computes products of 200 multiplications and more, with packed weights of 60 and more."""
    monkeypatch.setattr(matmul, "USE_ONEDNN", True)
    monkeypatch.setattr(matmul, "MIN_MULTIPLICATIONS", 200)
    monkeypatch.setattr(matmul, "MIN_MULTIPLICATIONS_PACKED", 60)


def record_onednn_calls(monkeypatch):
    """Records (shape of the input, whether the weight is packed) of each oneDNN product, and the packed weights.

    A packed weight has an additional number after its last row, which a real layout would not have.
    """
    calls = {"products": [], "packed": []}

    def reorder(weight):
        calls["packed"].append(tuple(weight.shape))
        return torch.cat([weight.flatten(), torch.tensor([float(len(weight))]).to(weight)])

    def linear(x, weight, bias, *_):
        calls["products"].append((tuple(x.shape), weight.dim() == 1))
        plain = weight if weight.dim() == 2 else weight[:-1].view(int(weight[-1]), -1)
        return torch.nn.functional.linear(x, plain, bias)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", linear, raising=False)
    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", reorder, raising=False)
    return calls


def test_onednn_is_used_where_it_is_faster(monkeypatch):
    small(monkeypatch)
    calls = record_onednn_calls(monkeypatch)
    many, few, weight = random(10, 4), random(9, 4), random(5, 4)
    plain = [((10, 4), False)]
    monkeypatch.setattr(matmul, "CAN_PACK_BFLOAT16", True)
    with torch.no_grad():
        matmul.linear(many, weight)
        assert calls["products"] == plain
        matmul.linear(few, weight)  # 180 multiplications
        matmul.linear(many.double(), weight.double())
        matmul.linear(many.bfloat16(), weight.bfloat16())
        wide = random(12, 9)
        matmul.linear(wide[:, :4], weight)  # slices of rows, which oneDNN copies number by number
        matmul.linear(random(50, 4), wide[:, 5:])
        assert calls["products"] == plain
        matmul.linear(random(4, 12).t(), weight)
        assert calls["products"] == [*plain, ((12, 4), False)]
        monkeypatch.setattr(matmul, "USE_ONEDNN", False)
        with matmul.PackedWeights():
            matmul.linear(many, weight)
        calls["products"].clear()
        monkeypatch.setattr(matmul, "USE_ONEDNN", True)
        monkeypatch.setattr(matmul, "MAX_REPACKED_BYTES", 5 * 4 * 4)
        matmul.linear(many, weight)
        matmul.linear(many, random(6, 4))  # a weight that would take as much memory again
    with matmul.PackedWeights():
        out = matmul.linear(many, weight.requires_grad_())
    assert out.requires_grad
    assert calls["products"] == plain
    assert not calls["packed"]


def test_a_weight_is_packed_once_until_it_changes(monkeypatch):
    small(monkeypatch)
    calls = record_onednn_calls(monkeypatch)
    few, weight, other = random(3, 4), random(5, 4), random(6, 4)
    packed = matmul.PackedWeights()

    def product(weight):
        torch.testing.assert_close(matmul.linear(few, weight), few @ weight.t())

    with torch.no_grad():
        for _ in range(3):
            with packed:
                product(weight)
        assert calls["packed"] == [(5, 4)]
        with packed:
            product(other)
            product(weight.mul_(2))
            product(weight)
            matmul.linear(few[:2], weight)  # 40 multiplications
            matmul.linear(random(3, 9)[:, :4], weight)  # parts of rows
        assert calls["packed"] == [(5, 4), (6, 4), (5, 4)]
        assert calls["products"] == [((3, 4), True)] * 6
        product(weight)  # outside, and too small for a weight that is not packed
        assert len(calls["products"]) == 6


def test_nested_contexts_pack_separately(monkeypatch):
    """Another sampling during this one has its own packed weights, and this one continues with its own."""
    small(monkeypatch)
    calls = record_onednn_calls(monkeypatch)
    few, weight = random(3, 4), random(5, 4)
    outer, inner = matmul.PackedWeights(), matmul.PackedWeights()
    with torch.no_grad():
        with outer:
            matmul.linear(few, weight)
            with inner:
                matmul.linear(few, weight)
            matmul.linear(few, weight)
            with outer:  # entered again from within
                matmul.linear(few, weight)
            matmul.linear(few, weight)
        matmul.linear(few, weight)
    assert calls["packed"] == [(5, 4), (5, 4)]
    assert len(calls["products"]) == 5


def test_weights_beyond_the_capacity_are_not_packed(monkeypatch):
    small(monkeypatch)
    calls = record_onednn_calls(monkeypatch)
    monkeypatch.setattr(matmul, "MAX_PACKED_BYTES", 2 * 5 * 4 * 4)
    few, weights = random(3, 4), [random(5, 4, seed=i) for i in range(3)]
    with torch.no_grad(), matmul.PackedWeights():
        for weight in [*weights, *weights]:
            matmul.linear(few, weight)
            matmul.linear(few, weight.mul_(2))  # packed again in its own space
    assert len(calls["packed"]) == 2 * 3  # each at the first use and after each change
    assert calls["products"] == [((3, 4), True)] * 8
    with torch.no_grad(), matmul.PackedWeights():
        matmul.linear(few, weights[0])
        matmul.linear(random(10, 4), weights[0])
        matmul.linear(few, weights[1])
        matmul.linear(random(10, 4), weights[2])  # no space left, but large enough for oneDNN unpacked
        matmul.linear(random(10, 4), random(11, 4))  # larger than the whole capacity
    assert [packed for _, packed in calls["products"][8:]] == [True, True, True, False]


def test_a_freed_weight_releases_its_packed_bytes(monkeypatch):
    small(monkeypatch)
    calls = record_onednn_calls(monkeypatch)
    monkeypatch.setattr(matmul, "MAX_PACKED_BYTES", 2 * 5 * 4 * 4)
    few, weights = random(3, 4), [random(5, 4, seed=i) for i in range(3)]
    with torch.no_grad(), (packed := matmul.PackedWeights()):
        for _ in range(3):
            weights = [random(5, 4, seed=i) for i in range(2)]  # the previous weights are freed
            for weight in weights:
                matmul.linear(few, weight)
    assert len(calls["packed"]) == 6
    assert len(packed._layouts) == 2
    reference = weakref.ref(packed)
    gc.disable()
    try:
        del packed
        assert reference() is None
    finally:
        gc.enable()


def test_bfloat16_is_packed_where_onednn_supports_it(monkeypatch):
    small(monkeypatch)
    calls = record_onednn_calls(monkeypatch)
    x, weight = random(10, 4).bfloat16(), random(5, 4).bfloat16()
    monkeypatch.setattr(matmul, "USE_ONEDNN", False)
    for supported in (False, True):
        monkeypatch.setattr(matmul, "CAN_PACK_BFLOAT16", supported)
        with torch.no_grad(), matmul.PackedWeights():
            matmul.linear(x, weight)
            matmul.linear(x.half(), weight.half())
            matmul.linear(x.float(), weight.float())
    assert calls == {"products": [((10, 4), True)], "packed": [(5, 4)]}


@pytest.mark.skipif(not ONEDNN, reason="PyTorch has no oneDNN here")
@pytest.mark.parametrize("rows", [1, 12, 200])
def test_packed_weights_give_the_same_results(monkeypatch, rows):
    small(monkeypatch)
    x, weight, bias = random(2, rows, 24), random(40, 24, seed=1), random(40, seed=2)
    half = [one.bfloat16() for one in (x, weight, bias)]
    with torch.no_grad(), matmul.PackedWeights():
        first, second = matmul.linear(x, weight, bias), matmul.linear(x, weight, bias)
        halved = matmul.linear(*half)
    exact = x.double() @ weight.double().t() + bias
    torch.testing.assert_close(first.double(), exact, rtol=1e-5, atol=1e-5)
    assert torch.equal(first, second)
    exact = half[0].double() @ half[1].double().t() + half[2].double()
    torch.testing.assert_close(halved.double(), exact, rtol=2**-7, atol=2**-5)


@pytest.mark.skipif(not ONEDNN, reason="PyTorch has no oneDNN here")
@pytest.mark.parametrize("rows", [12, 37, 200])
def test_onednn_gives_the_same_results(monkeypatch, rows):
    small(monkeypatch)
    x, weight, bias, g = random(2, rows, 24), random(40, 24, seed=1), random(40, seed=2), random(rows, 40, seed=3)
    with torch.no_grad():
        pairs = [
            (matmul.linear(x, weight, bias), x.double() @ weight.double().t() + bias),
            (matmul.linear(x[0], weight), x[0].double() @ weight.double().t()),
            (matmul.linear(g, weight.t()), g.double() @ weight.double()),  # an input's gradient
            (matmul.linear(weight[:3], x[0]), weight[:3].double() @ x[0].double().t()),  # few rows, many columns
            (matmul.linear(random(3, rows), g.t()), random(3, rows).double() @ g.double()),
            (matmul.linear_add(g, x[0], weight), g.double() + x[0].double() @ weight.double().t()),
        ]
    for ours, exact in pairs:
        assert ours.shape == exact.shape
        torch.testing.assert_close(ours.double(), exact.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not ONEDNN, reason="PyTorch has no oneDNN here")
def test_gradients_of_merged_layer_and_lm_head_are_the_same_by_onednn(monkeypatch):
    """Values and gradients in float32 by oneDNN against autograd in float64."""
    small(monkeypatch)

    def run_model(dtype, by_onednn):
        monkeypatch.setattr(matmul, "USE_ONEDNN", by_onednn)
        x, w, a, b = (
            t.to(dtype) for t in (random(50, 24), random(40, 24, seed=1), random(3, 24, seed=2), random(40, 3, seed=3))
        )
        for t in (x, a, b):
            t.requires_grad_()
        merged = w + 0.5 * b @ a
        hidden = _MergedLinear.apply(x, a, b, merged.detach(), None, 0.5) if by_onednn else x @ merged.t()
        tokens = torch.arange(50) % 30
        head = random(30, 40, seed=4).to(dtype) / 6
        if by_onednn:
            logprobs = head_logprobs(hidden, head, None, tokens, kernel=HEAD_KERNEL)[0]
        else:
            logprobs = (hidden @ head.t()).log_softmax(-1)[torch.arange(50), tokens]
        (logprobs * torch.linspace(-1, 1, 50, dtype=dtype)).sum().backward()
        return [t.double() for t in (hidden.detach(), logprobs.detach(), x.grad, a.grad, b.grad)]

    for ours, exact in zip(run_model(torch.float32, True), run_model(torch.float64, False), strict=True):
        torch.testing.assert_close(ours, exact, rtol=2e-5, atol=1e-4)


@pytest.mark.skipif(not ONEDNN, reason="this build has no oneDNN")
def test_products_with_and_without_gradient_are_identical(monkeypatch):
    """Bit for bit; first and second derivatives equal PyTorch's."""
    x, weight, bias = random(64, 520), random(80, 520, seed=1), random(80, seed=2)
    monkeypatch.setattr(matmul, "USE_ONEDNN", True)
    monkeypatch.setattr(matmul, "MIN_MULTIPLICATIONS", 1)
    with torch.no_grad():
        plain = matmul.linear(x, weight, bias)
    recorded = matmul.linear(x.requires_grad_(), weight, bias)
    assert torch.equal(recorded, plain)
    pytorch = torch.nn.functional.linear(x, weight, bias)
    actual, expected = (torch.autograd.grad(out.square().sum(), x, create_graph=True)[0] for out in (recorded, pytorch))
    rounding = 2e-6 * expected.detach().abs().max().item()  # sums of numbers of this size, in another order
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=rounding)
    second = [torch.autograd.grad((one * x).sum(), x)[0] for one in (actual, expected)]
    torch.testing.assert_close(*second, rtol=1e-5, atol=rounding)
