"""A low-rank update, merged into a weight or concatenated: its product and gradients against autograd, in float64."""

import pytest
import torch

from rlhf_lab.kernels.ops import lora_grads
from rlhf_lab.models.fused_llama.layer import concat_lora_input, split_lora_grad

SCALE = 0.5


def make_inputs():
    """x, two weights applied to it, A and B of each (ranks 2 and 3), and the gradients of both products."""
    generator = torch.Generator().manual_seed(0)

    def randn(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return (
        randn(7, 4),
        [randn(5, 4), randn(6, 4)],
        [randn(2, 4), randn(5, 2), randn(3, 4), randn(6, 3)],
        [randn(7, 5), randn(7, 6)],
    )


def by_autograd(x, weights, lora_tensors, grad_outputs):
    """Both products, the gradient of x, and those of the LoRA tensors."""
    inputs = [one.clone().requires_grad_() for one in (x, *lora_tensors)]
    x, a1, b1, a2, b2 = inputs
    out = [x @ (w + SCALE * b @ a).t() for w, a, b in ((weights[0], a1, b1), (weights[1], a2, b2))]
    return out, torch.autograd.grad(out, inputs, grad_outputs)


@pytest.mark.parametrize("concatenated", [False, True])
def test_lora_products_and_gradients_match_autograd(concatenated):
    x, weights, lora_tensors, grad_outputs = make_inputs()
    out, (dx, *of_pairs) = by_autograd(x, weights, lora_tensors, grad_outputs)
    a1, b1, a2, b2 = lora_tensors
    a = torch.cat([a1, a2]) if concatenated else None
    if concatenated:
        none = torch.zeros
        weights = [
            torch.cat([weights[0], SCALE * b1, none(5, 3)], 1), torch.cat([weights[1], none(6, 2), SCALE * b2], 1),
        ]  # fmt: skip
    else:
        weights = [weights[0] + SCALE * b1 @ a1, weights[1] + SCALE * b2 @ a2]
    in_double, low = concat_lora_input(x, a)
    for weight, expected in zip(weights, out, strict=True):
        torch.testing.assert_close(in_double @ weight.t(), expected, rtol=1e-12, atol=1e-12)
    found, low_grad = split_lora_grad(grad_outputs[0] @ weights[0] + grad_outputs[1] @ weights[1], a)
    torch.testing.assert_close(found, dx, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(lora_grads(lora_tensors, SCALE, x, grad_outputs, low, low_grad), of_pairs, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("equal_shapes", [False, True])
def test_gradients_have_the_strides_of_their_parameters(equal_shapes):
    """Autograd then uses the tensor as the gradient without a copy."""
    x, _, lora_tensors, grad_outputs = make_inputs()
    if equal_shapes:
        lora_tensors, grad_outputs = (
            [*lora_tensors[:2], *lora_tensors[:2]],
            torch.stack([grad_outputs[0], grad_outputs[0]]),
        )
    for pair, grad in zip(lora_tensors, lora_grads(lora_tensors, SCALE, x, grad_outputs, None, None), strict=True):
        assert grad.stride() == pair.stride()


@pytest.mark.parametrize("ranks", [(2, 2), (1, 2)])
@pytest.mark.parametrize("concatenated", [False, True])
def test_batched_gradients_equal_those_of_each_weight(ranks, concatenated):
    """The computation is batched if the ranks are equal; the inputs are slices of rows, as for q, k and v."""
    x, _, _, _ = make_inputs()
    generator = torch.Generator().manual_seed(1)
    lora_tensors = [
        torch.randn(shape, generator=generator, dtype=torch.float64) for r in ranks for shape in ((r, 4), (5, r))
    ]
    rows = torch.randn(7, 10, generator=generator, dtype=torch.float64)
    a1, b1, a2, b2 = lora_tensors
    low = x @ torch.cat([a1, a2]).t() if concatenated else None
    low_grad = SCALE * torch.cat([rows[:, :5] @ b1, rows[:, 5:] @ b2], 1) if concatenated else None
    _, (_, *expected) = by_autograd(x, [torch.zeros(5, 4).double()] * 2, lora_tensors, [*rows.split(5, 1)])
    grad_outputs = rows.view(7, 2, 5).transpose(0, 1)
    for ours, theirs in zip(lora_grads(lora_tensors, SCALE, x, grad_outputs, low, low_grad), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_no_gradients_without_trainable_tensors():
    x, _, _, grad_outputs = make_inputs()
    assert lora_grads([], SCALE, x, grad_outputs, None, None) == []


def test_half_precision_gradients_have_the_dtype_of_the_parameters():
    """A and B of 1, x of 3, g of 2 in one row: dA = s · 2 · 3, dB the same."""
    lora_tensors = [torch.ones(1, 2, requires_grad=True), torch.ones(1, 1, requires_grad=True)]
    x, grad = torch.full((1, 2), 3.0, dtype=torch.bfloat16), torch.full((1, 1), 2.0, dtype=torch.bfloat16)
    with torch.no_grad():
        _, low = concat_lora_input(x, torch.ones(1, 2, dtype=torch.bfloat16))
        weight = torch.tensor([[1.0, 1.0, SCALE]], dtype=torch.bfloat16)
        dx, low_grad = split_lora_grad(grad @ weight, torch.ones(1, 2, dtype=torch.bfloat16))
        found = lora_grads(lora_tensors, SCALE, x, [grad], low, low_grad)
    assert dx.tolist() == [[3.0, 3.0]]  # 2 · (1 + s)
    assert [one.dtype for one in found] == [torch.float32, torch.float32]
    assert [one.tolist() for one in found] == [[[3.0, 3.0]], [[6.0]]]  # dB = s · 2 · (3 + 3)


@pytest.mark.parametrize("of_pairs", [torch.float32, torch.bfloat16])
def test_half_precision_with_kernels(of_pairs):
    """The gradients of each weight come from its columns of the given products; the values of A and B are not read."""
    generator = torch.Generator().manual_seed(0)

    def randn(*shape):
        return torch.randn(shape, generator=generator).bfloat16()

    x, grad_outputs, low, low_grad = randn(40, 16), [randn(40, 32), randn(40, 16)], randn(40, 5), randn(40, 5)
    lora_tensors = [randn(*shape).to(of_pairs) for shape in ((2, 16), (32, 2), (3, 16), (16, 3))]
    found = lora_grads(lora_tensors, SCALE, x, grad_outputs, low, low_grad)
    of_a = (low_grad.double().t() @ x.double()).split([2, 3])
    of_b = [SCALE * g.double().t() @ one for g, one in zip(grad_outputs, low.double().split([2, 3], 1), strict=True)]
    for ours, exact in zip(found, (of_a[0], of_b[0], of_a[1], of_b[1]), strict=True):
        assert ours.dtype == of_pairs
        torch.testing.assert_close(ours.double(), exact, rtol=2**-7, atol=2**-7 * float(exact.abs().max()))
