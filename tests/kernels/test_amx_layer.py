"""Fused layers in C against float64, and products with weights in tiles, in sizes that fill the blocks and others.

With all instructions for bfloat16 products of this machine: tiles, vectors or both.
"""

import pytest
import torch
from support import tiny_models

from rlhf_lab.kernels import amx_layer, compile
from rlhf_lab.kernels.ops import LayerDims
from rlhf_lab.kernels.rope import RopeTables
from rlhf_lab.models.fused_llama.layer import LayerWeights, LoraUpdate, unfused_layer

if not tiny_models.layer_backends():
    pytest.skip("no C compiler here, or nothing that multiplies bfloat16", allow_module_level=True)

HALF = torch.bfloat16
SCALE = 0.5
UNITS = pytest.mark.parametrize("units", tiny_models.layer_backends())


def randn(*shape, seed=0, scale=1.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))) * scale).to(HALF)


def assert_close(actual, expected, most):
    """The norm of the error is at most this share of the norm of the expected values."""
    actual, expected = actual.detach().double(), expected.detach().double()
    error, size = float((actual - expected).norm()), float(expected.norm())
    assert error <= most * size, error / size


@UNITS
def test_uses_the_best_matmul_of_the_processor(units, monkeypatch):
    """With any compiler; compilers name their targets differently."""
    tiny_models.use_layer_backend(units, monkeypatch)
    assert compile.layer_backend(HALF) == units
    assert compile.describe(HALF).endswith(f", layers by {units}")


# --- products ---


@UNITS
@pytest.mark.parametrize("rows", [1, 16, 17, 33, 70, 300])
@pytest.mark.parametrize(("depth", "width"), [(32, 32), (64, 16), (96, 50), (192, 96), (32, 4097), (512, 512)])
@pytest.mark.parametrize("bias", [False, True])
def test_tiled_linear_matches_float64(units, rows, depth, width, bias, monkeypatch):
    """Sums in float32 and one rounding: each number is the nearest one of bfloat16, or the next."""
    tiny_models.use_layer_backend(units, monkeypatch)
    x, weight, add = randn(rows, depth), randn(width, depth, seed=1), randn(width, seed=2) if bias else None
    exact = x.double() @ weight.double().t() + (0 if add is None else add.double())
    actual = amx_layer.tiled_linear(x, amx_layer.tile_layout(weight), width, add)
    assert actual.shape == (rows, width)
    torch.testing.assert_close(actual.double(), exact, rtol=2**-8, atol=1e-5 * float(exact.abs().max()))


@UNITS
def test_tiled_linear_keeps_small_terms_of_a_long_sum(units, monkeypatch):
    """256 and then 2,047 ones: bfloat16 itself would stay at 256."""
    tiny_models.use_layer_backend(units, monkeypatch)
    x, weight = torch.ones(40, 2048, dtype=HALF), torch.ones(32, 2048, dtype=HALF)
    weight[:, 0] = 256
    assert amx_layer.tiled_linear(x, amx_layer.tile_layout(weight), 32).unique().tolist() == [
        2304
    ]  # 2,303, rounded once


@UNITS
def test_non_finite_inputs_affect_only_their_row(units, monkeypatch):
    tiny_models.use_layer_backend(units, monkeypatch)
    x, weight = randn(40, 64), amx_layer.tile_layout(randn(32, 64, seed=1))
    x[7, 3] = torch.nan
    assert amx_layer.tiled_linear(x, weight, 32).isfinite().all(1).tolist() == [row != 7 for row in range(40)]


@UNITS
def test_wrong_sizes_raise(units, monkeypatch):
    """Of a weight, of texts, of the attention output and of the rotation."""
    tiny_models.use_layer_backend(units, monkeypatch)
    with pytest.raises(ValueError, match="not one of \\(32, 96\\) laid out"):
        amx_layer.tiled_linear(randn(2, 96), amx_layer.tile_layout(randn(32, 64)), 32)
    x, frozen, shape, rope, lora_tensors = make_inputs(2, 6, (3,) * 7)
    whole, rows, mixed = amx_layer_of(frozen, shape, lora_tensors), x[0], randn(2, 6, 64)
    short, wide, other = (
        RopeTables(*(one[:3] for one in rope)),
        x.repeat(1, 1, 2),
        RopeTables(*(one[None].repeat(3, 1, 1) for one in rope)),
    )
    for wrong in (
        lambda: whole.qkv_projection(wide[0]),
        lambda: whole.post_attention(rows, wide[0]),
        lambda: whole.post_attention(rows, mixed[0, :3]),
        lambda: whole.forward(wide, *rope, 0, save_attn_output=False),
        lambda: whole.forward(x, *short, 0, save_attn_output=False),
        lambda: whole.forward(x, *other, 0, save_attn_output=False),
        lambda: whole.backward(x[:, 1:], x, mixed, *rope, 0, needs_x_grad=True),
        lambda: whole.backward(x, x, mixed[:, 1:], *rope, 0, needs_x_grad=True),
    ):
        with pytest.raises(ValueError, match="a layer was given"):
            wrong()


@UNITS
def test_lora_grads_are_float32_whatever_the_default_dtype(units, monkeypatch):
    tiny_models.use_layer_backend(units, monkeypatch)
    torch.set_default_dtype(HALF)
    try:
        x, frozen, shape, rope, lora_tensors = make_inputs(3, 6, (3,) * 7)
        whole = amx_layer_of(frozen, shape, lora_tensors)
        _, grads = whole.backward(
            x, x, whole.forward(x, *rope, 0, save_attn_output=True)[1], *rope, 0, needs_x_grad=False
        )
    finally:
        torch.set_default_dtype(torch.float32)
    assert {one.dtype for one in grads} == {torch.float32}


def test_supports_weight():
    assert amx_layer.supports_weight(randn(32, 64))
    assert not amx_layer.supports_weight(randn(48, 64))
    assert not amx_layer.supports_weight(randn(64, 48))
    assert not amx_layer.supports_weight(randn(32, 64).float())


# --- layers ---


def make_inputs(
    batch, length, ranks, bias=True, width=64, inner=96, heads=4, groups=2, size=16, per_row_rope=False, seed=0
):
    """x, frozen weights, shape, rope tables and LoRA tensors; bfloat16 but for the LoRA tensors.

    per_row_rope: positions per text.
    """
    rows = [(heads * size, width), (groups * size, width), (groups * size, width), (width, heads * size)]
    rows += [(inner, width), (inner, width), (width, inner)]
    each = [randn(*shape, seed=i + seed, scale=shape[1] ** -0.5) for i, shape in enumerate(rows)]
    qkv = torch.cat(each[:3])
    norms = (1 + randn(width, seed=20, scale=0.2), 1 + randn(width, seed=21, scale=0.2))
    frozen = LayerWeights(qkv, *each[3:], norms, randn(len(qkv), seed=22, scale=0.3) if bias else None)
    lora_tensors = [
        randn(*shape, seed=30 + i, scale=shape[1] ** -0.5).float()
        for i, ((out, into), rank) in enumerate(zip(rows, ranks, strict=False))
        for shape in ((rank, into), (out, rank))
    ]
    angles = randn(*([batch] if per_row_rope else []), length, size // 2, seed=40).float()
    cos, sin = angles.cos(), angles.sin()
    rope = RopeTables(torch.cat([cos, cos], -1).to(HALF), torch.cat([-sin, sin], -1).to(HALF))
    return (
        randn(batch, length, width, seed=50),
        frozen,
        LayerDims(heads, groups, size, (1e-3, 2e-3)),
        rope,
        lora_tensors,
    )


def amx_layer_of(frozen, shape, lora_tensors, scale=SCALE):
    sizes = [shape.heads * shape.head_size, *[shape.kv_heads * shape.head_size] * 2]
    each = [*frozen.qkv.split(sizes), *frozen[1:5]]
    actual = amx_layer.AmxLayer(
        amx_layer.TiledWeights(each, frozen.bias, frozen.norms, shape), [len(a) for a in lora_tensors[::2]]
    )
    if lora_tensors:
        actual.set_lora(lora_tensors, scale)
    return actual


def in_float64(x, frozen, shape, rope, lora_tensors, first):
    """The output, its gradient, and the gradients of x and the LoRA tensors, in float64, with the same weights."""
    wide = [one.double().requires_grad_() for one in (x, *lora_tensors)]
    frozen_float64 = LayerWeights(
        *(one.double() for one in frozen[:5]), tuple(one.double() for one in frozen.norms),
        None if frozen.bias is None else frozen.bias.double(),
    )  # fmt: skip
    out = unfused_layer(
        wide[0], shape, RopeTables(*(one.double() for one in rope)), LoraUpdate(frozen_float64, SCALE), wide[1:]
    )[:, first:]
    grad_output = randn(*out.shape, seed=60)
    return out, grad_output, torch.autograd.grad(out, wide, grad_output.double())


CASES = [
    {"batch": 1, "length": 1, "ranks": (4,) * 7},
    {"batch": 3, "length": 5, "ranks": (1, 2, 3, 4, 5, 6, 7), "first": 2},
    {"batch": 5, "length": 33, "ranks": (8,) * 7, "per_row_rope": True},
    {"batch": 2, "length": 40, "ranks": (), "first": 39},
    {"batch": 7, "length": 19, "ranks": (40,) * 7, "bias": False, "groups": 4, "first": 1},
    {"batch": 2, "length": 70, "ranks": (16,) * 7, "heads": 2, "size": 32, "width": 32, "inner": 32},
    {"batch": 40, "length": 9, "ranks": (8,) * 7, "first": 3, "per_row_rope": True},
]


@UNITS
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("learns", ["words and pairs", "lora_tensors"])
def test_layer_and_gradients_match_float64(units, case, learns, monkeypatch):
    """Up to rounding to bfloat16 between the products."""
    tiny_models.use_layer_backend(units, monkeypatch)
    case = dict(case)
    first = case.pop("first", 0)
    x, frozen, shape, rope, lora_tensors = make_inputs(**case)
    out, grad_output, exact = in_float64(x, frozen, shape, rope, lora_tensors, first)
    inputs = [
        x.clone().requires_grad_(learns != "lora_tensors"),
        *(one.clone().requires_grad_() for one in lora_tensors),
    ]
    actual = tiny_models.whole_layer(
        inputs[0], amx_layer_of(frozen, shape, lora_tensors), shape, rope, LoraUpdate(frozen, SCALE), inputs[1:], first
    )
    assert actual.dtype == HALF
    assert_close(actual, out, 0.01)
    if actual.requires_grad:
        actual.backward(grad_output)
    for ours, expected in zip(inputs, exact, strict=True):
        if ours.requires_grad:
            assert ours.grad.dtype == ours.dtype
            assert_close(ours.grad, expected, 0.02)


@UNITS
@pytest.mark.parametrize("case", [CASES[1], CASES[2], CASES[6]])
def test_results_do_not_depend_on_the_number_of_threads(units, case, monkeypatch):
    """Also with fewer texts than threads, with and without a gradient."""
    tiny_models.use_layer_backend(units, monkeypatch)
    case, before, actual = dict(case), torch.get_num_threads(), []
    first = case.pop("first", 0)
    x, frozen, shape, rope, lora_tensors = make_inputs(**case)
    whole, grad_output = (
        amx_layer_of(frozen, shape, lora_tensors),
        randn(len(x), x.shape[1] - first, x.shape[2], seed=60),
    )
    rows = x.view(-1, x.shape[-1])
    try:
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            out, mixed = whole.forward(x, *rope, first, save_attn_output=True)
            dx, grads = whole.backward(grad_output, x, mixed, *rope, first, needs_x_grad=True)
            read = whole.qkv_projection(rows)
            actual.append(
                [
                    out,
                    mixed,
                    whole.forward(x, *rope, first, save_attn_output=False)[0],
                    dx,
                    *grads,
                    read,
                    whole.post_attention(rows, read[:, : shape.heads * shape.head_size]),
                    amx_layer.tiled_linear(rows, amx_layer.tile_layout(frozen.gate), 96),
                ]
            )
    finally:
        torch.set_num_threads(before)
    assert torch.equal(actual[0][0], actual[0][2])
    for others in actual[1:]:
        assert all(torch.equal(one, other) for one, other in zip(actual[0], others, strict=True))


@UNITS
def test_a_sequence_does_not_depend_on_its_batch(units, monkeypatch):
    tiny_models.use_layer_backend(units, monkeypatch)
    x, frozen, shape, rope, lora_tensors = make_inputs(9, 21, (8,) * 7)
    whole = amx_layer_of(frozen, shape, lora_tensors)
    together = whole.forward(x, *rope, 4, save_attn_output=False)[0]
    for i, text in enumerate(x):
        assert torch.equal(whole.forward(text[None], *rope, 4, save_attn_output=False)[0], together[i : i + 1])


@UNITS
def test_set_lora_replaces_the_previous_update(units, monkeypatch):
    tiny_models.use_layer_backend(units, monkeypatch)
    x, frozen, shape, rope, lora_tensors = make_inputs(2, 6, (3,) * 7)
    _, _, _, _, others = make_inputs(2, 6, (3,) * 7, seed=9)
    whole = amx_layer_of(frozen, shape, [7 * one for one in others], scale=-2.0)
    version = whole.lora_buffer._version
    whole.set_lora(lora_tensors, SCALE)
    assert whole.lora_buffer._version > version, "a gradient that waits would be taken with other weights"
    assert torch.equal(
        whole.forward(x, *rope, 0, save_attn_output=False)[0],
        amx_layer_of(frozen, shape, lora_tensors).forward(x, *rope, 0, save_attn_output=False)[0],
    )


@UNITS
def test_double_backward(units, monkeypatch):
    """As needed for the curvature of trpo."""
    tiny_models.use_layer_backend(units, monkeypatch)
    x, frozen, shape, rope, lora_tensors = make_inputs(2, 6, (3,) * 7)
    actual = []
    for weights in (amx_layer_of(frozen, shape, lora_tensors), None):
        inputs = [one.clone().requires_grad_() for one in lora_tensors]
        update = LoraUpdate(frozen, SCALE)
        out = (
            unfused_layer(x, shape, rope, update, inputs)
            if weights is None
            else tiny_models.whole_layer(x, weights, shape, rope, update, inputs)
        )
        first = torch.autograd.grad(out.float().square().sum(), inputs, create_graph=True)
        actual.append(torch.autograd.grad(sum((one**2).sum() for one in first), inputs))
    for ours, expected in zip(*actual, strict=True):
        assert_close(ours, expected, 0.03)


def test_amx_is_not_used_without_permission(monkeypatch):
    monkeypatch.delenv(compile.KERNELS_ENV, raising=False)
    monkeypatch.setattr(compile.torch.cpu, "get_capabilities", lambda: {"amx_bf16": True, "avx512_bf16": True})
    monkeypatch.setattr(compile.torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    actual = []
    for may in (True, False):
        monkeypatch.setattr(compile, "_request_amx_permission", lambda may=may: may)
        actual.append(compile.matmul_flag_sets(HALF))
    assert [len(one) for one in actual] == [3, 2]
    assert "-mamx-bf16" in actual[0][0]
    assert all("-mamx-bf16" not in options for options in actual[1])
    assert compile.matmul_flag_sets(torch.float32) == [()]
    monkeypatch.setattr(compile, "_request_amx_permission", lambda: pytest.fail("asked for though nobody needs them"))
    assert compile.matmul_flag_sets(torch.float32) == [()]
    monkeypatch.setattr(compile.torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    assert len(compile.matmul_flag_sets(HALF)) == 2
    monkeypatch.setattr(compile.torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert compile.matmul_flag_sets(HALF) == [()]


def test_amx_is_not_requested_if_vectors_are_selected(monkeypatch):
    monkeypatch.setattr(compile.ctypes, "CDLL", lambda _: pytest.fail("asked for"))
    monkeypatch.setenv(compile.KERNELS_ENV, compile.USE_VECTORS)
    assert not compile._request_amx_permission()


def test_layers_use_vectors_only_if_selected(monkeypatch):
    if "vectors" not in tiny_models.layer_backends():
        pytest.skip("no vectors of bfloat16 here")
    tiny_models.use_layer_backend("vectors", monkeypatch)
    assert amx_layer.available()
    assert not amx_layer.available(torch.float32)
    tiny_models.use_layer_backend("tiles", monkeypatch)
    monkeypatch.setattr(compile, "_request_amx_permission", lambda: False)
    assert compile.load_kernels(HALF) is not None
    assert not amx_layer.available()
    assert "layers by" not in compile.describe(HALF)
