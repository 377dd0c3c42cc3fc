"""Whole layers in C against float64, and products with weights laid out, in sizes that fill their blocks and sizes that do not."""

import pytest
import torch

from rlhf_lab.fused import layers
from rlhf_lab.models.between import Shape
from rlhf_lab.models.llama_layer import Update, Weights, layer, plain_layer
from rlhf_lab.models.rotation import Turn

HALF = torch.bfloat16
SCALE = 0.5
SIZES = {"width": 64, "inner": 96, "heads": 4, "groups": 2, "size": 16}


@pytest.fixture(autouse=True)
def products(kernels):
    if not layers.there_are():
        pytest.skip("this processor does not multiply bfloat16")


def some(*shape, seed=0, scale=1.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))) * scale).to(HALF)


def near(found, expected, most):
    """The error by its share of the size of all numbers."""
    found, expected = found.detach().double(), expected.detach().double()
    assert float((found - expected).norm()) <= most * float(expected.norm()), float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 32, 33, 48, 70, 300])
@pytest.mark.parametrize(("depth", "width"), [(32, 32), (64, 16), (96, 50), (192, 96), (32, 4097)])
@pytest.mark.parametrize("bias", [False, True])
def test_products_are_those_of_float64(rows, depth, width, bias):
    """Sums in float32 and one rounding: each number is the nearest one of bfloat16, or the next."""
    x, weight, add = some(rows, depth), some(width, depth, seed=1), some(width, seed=2) if bias else None
    exact = x.double() @ weight.double().t() + (0 if add is None else add.double())
    found = layers.linear(x, layers.laid_out(weight), width, add)
    assert found.shape == (rows, width)
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=1e-5 * float(exact.abs().max()))


def made(batch, length, ranks, bias=True, width=64, inner=96, heads=4, groups=2, size=16, turns=False, seed=0):
    """x, frozen weights, shape, turn and pairs, in bfloat16 but for the pairs."""
    rows = [(heads * size, width), (groups * size, width), (groups * size, width), (width, heads * size)]
    rows += [(inner, width), (inner, width), (width, inner)]
    each = [some(*shape, seed=i + seed, scale=shape[1] ** -0.5) for i, shape in enumerate(rows)]
    qkv = torch.cat(each[:3])
    norms = (1 + some(width, seed=20, scale=0.2), 1 + some(width, seed=21, scale=0.2))
    frozen = Weights(qkv, *each[3:], norms, some(len(qkv), seed=22, scale=0.3) if bias else None)
    pairs = [
        some(*shape, seed=30 + i, scale=shape[1] ** -0.5).float()
        for i, ((out, into), rank) in enumerate(zip(rows, ranks, strict=False))
        for shape in ((rank, into), (out, rank))
    ]
    angles = some(*([batch] if turns else []), length, size // 2, seed=40).float()
    cos, sin = angles.cos(), angles.sin()
    turn = Turn(torch.cat([cos, cos], -1).to(HALF), torch.cat([-sin, sin], -1).to(HALF))
    return some(batch, length, width, seed=50), frozen, Shape(heads, groups, size, (1e-3, 2e-3)), turn, pairs


def in_c(frozen, shape, pairs):
    sizes = [shape.heads * shape.size, *[shape.groups * shape.size] * 2]
    each = [*frozen.qkv.split(sizes), *frozen[1:5]]
    found = layers.Layer(layers.Laid(each, frozen.bias, frozen.norms, shape), [len(a) for a in pairs[::2]])
    if pairs:
        found.learn(pairs, SCALE)
    return found


def exactly(x, frozen, shape, turn, pairs, first):
    """The output and all slopes in float64, of the same weights; SLOPE is what comes back."""
    wide = [one.double() for one in (x, *pairs)]
    wide = [one.requires_grad_() for one in wide]
    held = Weights(
        *(one.double() for one in frozen[:5]), tuple(one.double() for one in frozen.norms),
        None if frozen.bias is None else frozen.bias.double(),
    )  # fmt: skip
    out = plain_layer(wide[0], shape, Turn(*(one.double() for one in turn)), Update(held, SCALE), wide[1:])[:, first:]
    slope = some(*out.shape, seed=60)
    return out, slope, torch.autograd.grad(out, wide, slope.double())


CASES = [
    {"batch": 1, "length": 1, "ranks": (4,) * 7},
    {"batch": 3, "length": 5, "ranks": (1, 2, 3, 4, 5, 6, 7), "first": 2},
    {"batch": 5, "length": 33, "ranks": (8,) * 7, "turns": True},
    {"batch": 2, "length": 40, "ranks": (), "first": 39},
    {"batch": 7, "length": 19, "ranks": (40,) * 7, "bias": False, "groups": 4, "first": 1},
    {"batch": 2, "length": 70, "ranks": (16,) * 7, "groups": 2, "heads": 2, "size": 32, "width": 32, "inner": 32},
]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("learns", ["words and pairs", "pairs"])
def test_a_layer_and_its_slopes_are_those_of_float64(case, threads, learns):
    """Within what roundings to bfloat16 between its products take."""
    case, before = dict(case), torch.get_num_threads()
    first = case.pop("first", 0)
    x, frozen, shape, turn, pairs = made(**case)
    out, slope, exact = exactly(x, frozen, shape, turn, pairs, first)
    inputs = [x.clone().requires_grad_(learns != "pairs"), *(one.clone().requires_grad_() for one in pairs)]
    torch.set_num_threads(threads)
    try:
        found = layer(inputs[0], in_c(frozen, shape, pairs), shape, turn, Update(frozen, SCALE), inputs[1:], first)
        near(found, out, 0.01)
        if found.requires_grad:
            found.backward(slope)
    finally:
        torch.set_num_threads(before)
    for mine, expected in zip(inputs, exact, strict=True):
        if mine.requires_grad:
            assert mine.grad.dtype == mine.dtype
            near(mine.grad, expected, 0.02)
