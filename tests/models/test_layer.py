"""A fused decoder layer: its output against loops over positions, its gradients against finite differences."""

import math

import pytest
import torch
from support.tiny_models import whole_layer

from rlhf_lab.kernels import c_ops, compile
from rlhf_lab.kernels.ops import LayerDims
from rlhf_lab.kernels.rope import RopeTables
from rlhf_lab.models.fused_llama.layer import LayerWeights, LoraUpdate, SequenceLayout, fused_layer, unfused_layer

WIDTH, INNER, RANK, SCALE = 6, 5, 2, 0.5


def make_inputs(heads=4, groups=2, size=4, bias=True, length=3, batch=2):
    """x, frozen weights, shape, angles (T, D / 2) and the LoRA tensors of seven projections, all random in float64."""
    generator = torch.Generator().manual_seed(heads + 10 * groups + length)

    def randn(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    rows = [(heads * size, WIDTH), (groups * size, WIDTH), (groups * size, WIDTH), (WIDTH, heads * size)]
    rows += [(INNER, WIDTH), (INNER, WIDTH), (WIDTH, INNER)]
    each = [randn(*shape) for shape in rows]
    qkv = torch.cat(each[:3])
    frozen = LayerWeights(qkv, *each[3:], (randn(WIDTH), randn(WIDTH)), randn(len(qkv)) if bias else None)
    lora_tensors = [0.3 * randn(*shape) for out, into in rows for shape in ((RANK, into), (out, RANK))]
    return (
        randn(batch, length, WIDTH),
        frozen,
        LayerDims(heads, groups, size, (1e-3, 2e-3)),
        randn(length, size // 2),
        lora_tensors,
    )


def make_tables(angles):
    cos, sin = angles.cos(), angles.sin()
    return RopeTables(torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1))


def merged(frozen, lora_tensors):
    """W + s B A of each projection; those of q, k and v in one tensor."""
    with torch.no_grad():
        updates = [SCALE * b @ a for a, b in zip(lora_tensors[::2], lora_tensors[1::2], strict=True)]
        joined = (torch.cat(updates[:3]), *updates[3:])
        return frozen._replace(
            **{name: getattr(frozen, name) + update for name, update in zip(LayerWeights._fields, joined, strict=False)}
        )


def concatenated(frozen, lora_tensors):
    """[W | s B] of each weight tensor, and the A of projections with the same input concatenated."""
    a, b = lora_tensors[::2], [SCALE * one for one in lora_tensors[1::2]]
    none, (gate, up) = torch.zeros_like, b[4:6]
    with torch.no_grad():
        return frozen._replace(
            qkv=torch.cat([frozen.qkv, torch.block_diag(*b[:3])], 1), o=torch.cat([frozen.o, b[3]], 1),
            gate=torch.cat([frozen.gate, gate, none(up)], 1), up=torch.cat([frozen.up, none(gate), up], 1),
            down=torch.cat([frozen.down, b[6]], 1), lora_a=(torch.cat(a[:3]), a[3], torch.cat(a[4:6]), a[6]),
        )  # fmt: skip


def fused(x, frozen, shape, angles, *lora_tensors, combine=merged, first=0):
    weights = combine(frozen, lora_tensors) if lora_tensors else frozen
    return whole_layer(x, weights, shape, make_tables(angles), LoraUpdate(frozen, SCALE), lora_tensors, first)


BOTH = pytest.mark.parametrize("combine", [merged, concatenated])


def by_loops(x, weights, shape, angles):
    """The layer's output, one number at a time."""
    heads, groups, size, (eps1, eps2) = shape
    out = []

    def norm(row, weight, eps):
        inverse = 1 / math.sqrt(sum(v * v for v in row) / len(row) + eps)
        return [v * inverse * w for v, w in zip(row, weight.tolist(), strict=True)]

    def times(matrix, row):
        return [sum(m * v for m, v in zip(line, row, strict=True)) for line in matrix.tolist()]

    def rotate(vector, at):
        half, turned = size // 2, [0.0] * size
        for j, angle in enumerate(angles[at].tolist()):
            first, second = vector[j], vector[j + half]
            turned[j] = first * math.cos(angle) - second * math.sin(angle)
            turned[j + half] = second * math.cos(angle) + first * math.sin(angle)
        return turned

    for text in x.tolist():
        read = [times(weights.qkv, norm(row, weights.norms[0], eps1)) for row in text]
        if weights.bias is not None:
            read = [[v + b for v, b in zip(row, weights.bias.tolist(), strict=True)] for row in read]
        cut = [[row[i * size : (i + 1) * size] for i in range(heads + 2 * groups)] for row in read]
        rows = []
        for t, row in enumerate(text):
            mixed = []
            for head in range(heads):
                group = head // (heads // groups)
                q = rotate(cut[t][head], t)
                scores = [
                    sum(a * b for a, b in zip(q, rotate(cut[s][heads + group], s), strict=True)) / math.sqrt(size)
                    for s in range(t + 1)
                ]
                shares = [math.exp(score - max(scores)) for score in scores]
                values = [cut[s][heads + groups + group] for s in range(t + 1)]
                mixed += [sum(a * v[d] for a, v in zip(shares, values, strict=True)) / sum(shares) for d in range(size)]
            middle = [v + u for v, u in zip(row, times(weights.o, mixed), strict=True)]
            gate, up = (times(w, norm(middle, weights.norms[1], eps2)) for w in (weights.gate, weights.up))
            inner = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up, strict=True)]
            rows.append([v + u for v, u in zip(middle, times(weights.down, inner), strict=True)])
        out.append(rows)
    return torch.tensor(out, dtype=torch.float64)


CASES = [
    {},
    {"groups": 4, "bias": False},
    {"groups": 1, "length": 5, "batch": 1},
    {"heads": 1, "groups": 1, "size": 2, "length": 1},
]


@BOTH
@pytest.mark.parametrize("case", CASES)
def test_fused_layer_equals_loops(case, combine):
    x, frozen, shape, angles, lora_tensors = make_inputs(**case)
    expected = by_loops(x, merged(frozen, lora_tensors), shape, angles)
    torch.testing.assert_close(
        fused(x, frozen, shape, angles, *lora_tensors, combine=combine), expected, rtol=1e-12, atol=1e-12
    )
    unfused = unfused_layer(x, shape, make_tables(angles), LoraUpdate(frozen, SCALE), lora_tensors)
    torch.testing.assert_close(unfused, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        fused(x, frozen, shape, angles), by_loops(x, frozen, shape, angles), rtol=1e-12, atol=1e-12
    )


@BOTH
@pytest.mark.parametrize("case", CASES)
def test_fused_layer_gradients_match_finite_differences(case, combine):
    x, frozen, shape, angles, lora_tensors = make_inputs(**case)
    inputs = [tensor.requires_grad_() for tensor in (x, *lora_tensors)]
    assert torch.autograd.gradcheck(
        lambda x, *lora_tensors: fused(x, frozen, shape, angles, *lora_tensors, combine=combine), inputs, atol=1e-7
    )


@BOTH
@pytest.mark.parametrize("case", [{}, {"groups": 4, "bias": False}, {"groups": 1, "length": 5}])
@pytest.mark.parametrize("first", [1, 2])
def test_start_pos_gives_the_same_results_and_gradients(case, first, combine):
    """First and second derivatives: earlier positions get gradients through the attention of later ones."""
    x, frozen, shape, angles, lora_tensors = make_inputs(**case)
    inputs = [tensor.requires_grad_() for tensor in (x, *lora_tensors)]
    out, complete = (
        fused(*make_inputs(**case)[:4], *lora_tensors, combine=combine, first=start) for start in (first, 0)
    )
    torch.testing.assert_close(out, complete[:, first:], rtol=1e-12, atol=1e-12)

    def layer(x, *lora_tensors):
        return fused(x, frozen, shape, angles, *lora_tensors, combine=combine, first=first)

    assert torch.autograd.gradcheck(layer, inputs, atol=1e-7)
    weight = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape)
    found = []
    for output in (layer(*inputs), fused(x, frozen, shape, angles, *lora_tensors, combine=combine)[:, first:]):
        first_grads = torch.autograd.grad((output * weight).sum(), inputs, create_graph=True)
        second_grads = torch.autograd.grad(sum(one.square().sum() for one in first_grads), inputs)
        found.append([*first_grads, *second_grads])
    for ours, other in zip(*found, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-10, atol=1e-10)


@BOTH
def test_without_x_gradient_the_lora_gradients_are_the_same(combine):
    x, frozen, shape, angles, lora_tensors = make_inputs()
    for tensor in lora_tensors:
        tensor.requires_grad_()
    weight = torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    alone = torch.autograd.grad(
        (fused(x, frozen, shape, angles, *lora_tensors, combine=combine) * weight).sum(), lora_tensors
    )
    x.requires_grad_()
    both = torch.autograd.grad(
        (fused(x, frozen, shape, angles, *lora_tensors, combine=combine) * weight).sum(), [x, *lora_tensors]
    )
    for one, other in zip(alone, both[1:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_x_gradient_without_lora_matches_finite_differences():
    x, frozen, shape, angles, _ = make_inputs()
    assert torch.autograd.gradcheck(lambda x: fused(x, frozen, shape, angles), [x.requires_grad_()], atol=1e-7)


@BOTH
def test_double_backward(combine):
    """As needed for the curvature of trpo: the weights depend on the LoRA tensors, also in the gradients."""
    x, frozen, shape, angles, lora_tensors = make_inputs(heads=2, groups=1, size=2, length=2, batch=1)
    for tensors in ([x.requires_grad_(), *lora_tensors], [x.detach(), *lora_tensors]):
        inputs = [tensors[0], *(tensor.requires_grad_() for tensor in lora_tensors)]
        assert torch.autograd.gradgradcheck(
            lambda x, *lora_tensors: fused(x, frozen, shape, angles, *lora_tensors, combine=combine),
            inputs,
            atol=1e-6,
            fast_mode=True,
        )


@BOTH
def test_inputs_are_not_modified(combine):
    x, frozen, shape, angles, lora_tensors = make_inputs()
    trainable = [x.requires_grad_(), *(tensor.requires_grad_() for tensor in lora_tensors)]
    before = [tensor.detach().clone() for tensor in (*trainable, *frozen[:5], *frozen.norms, frozen.bias)]
    fused(x, frozen, shape, angles, *lora_tensors, combine=combine).square().sum().backward()
    after = (*trainable, *frozen[:5], *frozen.norms, frozen.bias)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_double_backward_with_partly_trainable_lora_and_positions_per_row():
    x, frozen, shape, _, lora_tensors = make_inputs(heads=2, groups=1, size=2, length=2, batch=2)
    angles = torch.linspace(0, 3, 4, dtype=torch.float64).view(2, 2, 1)  # (B, T, D / 2)
    learning = [tensor.requires_grad_() for tensor in lora_tensors[4:7]]

    def layer(x, *learning):
        return fused(x, frozen, shape, angles, *lora_tensors[:4], *learning, *lora_tensors[7:])

    assert torch.autograd.gradcheck(layer, [x.requires_grad_(), *learning], atol=1e-7)
    assert torch.autograd.gradgradcheck(layer, [x, *learning], atol=1e-6, fast_mode=True)


@BOTH
def test_ranks_may_differ(combine):
    x, frozen, shape, angles, lora_tensors = make_inputs()
    lora_tensors = [*lora_tensors]
    for i, rank in enumerate((1, 3, 2, 2, 4, 1, 3)):  # random factors of other ranks
        generator = torch.Generator().manual_seed(i)
        for j, one in (
            (2 * i, (rank, lora_tensors[2 * i].shape[1])),
            (2 * i + 1, (len(lora_tensors[2 * i + 1]), rank)),
        ):
            lora_tensors[j] = 0.3 * torch.randn(one, generator=generator, dtype=torch.float64)
    expected = by_loops(x, merged(frozen, lora_tensors), shape, angles)
    inputs = [tensor.requires_grad_() for tensor in (x, *lora_tensors)]
    torch.testing.assert_close(
        fused(x, frozen, shape, angles, *lora_tensors, combine=combine), expected, rtol=1e-12, atol=1e-12
    )
    assert torch.autograd.gradcheck(
        lambda x, *lora_tensors: fused(x, frozen, shape, angles, *lora_tensors, combine=combine), inputs, atol=1e-7
    )


def test_double_backward_in_bfloat16_matches_float64():
    """For the curvature of trpo: the second derivative of a layer in half precision is computed in float32."""
    x, frozen, shape, angles, lora_tensors = make_inputs()
    found = []
    for dtype in (torch.float64, torch.bfloat16):
        half = [
            one.to(torch.bfloat16).to(dtype)
            for one in (x, *frozen[:5], *frozen.norms, frozen.bias, *make_tables(angles))
        ]
        hidden, weights = half[0], LayerWeights(*half[1:6], (half[6], half[7]), half[8])
        learning = [
            one.to(torch.float64 if dtype == torch.float64 else torch.float32).requires_grad_() for one in lora_tensors
        ]
        narrow = [one.detach().to(dtype) for one in learning]
        out = whole_layer(
            hidden, concatenated(weights, narrow), shape, RopeTables(*half[9:]), LoraUpdate(weights, SCALE), learning
        )
        weight = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape)
        first = torch.autograd.grad((out.double() * weight).sum(), learning, create_graph=True)
        once = sum((one.double() ** 2).sum() for one in first)
        found.append([one.detach().double() for one in (out, *first, *torch.autograd.grad(once, learning))])
    for exact, ours in zip(*found, strict=True):
        assert float((ours - exact).norm() / exact.norm()) < 0.02


@BOTH
def test_queries_before_start_pos_are_not_saved(combine):
    """Saved tensors have no larger storage than their elements."""
    x, frozen, shape, angles, lora_tensors = make_inputs()
    saved = []

    def note(one):
        saved.append(one)
        return one

    with torch.autograd.graph.saved_tensors_hooks(note, lambda one: one):
        fused(x, frozen, shape, angles, *[one.requires_grad_() for one in lora_tensors], combine=combine, first=2)
    heads = [one for one in saved if one.dim() >= 3 and one.shape[-1] == shape.head_size]  # q, k and v
    assert len(heads) == 3
    for one in heads:
        assert one.untyped_storage().nbytes() == one.nbytes


def to_float32(one):
    """A tensor, or a (named) tuple of them, in float32."""
    if isinstance(one, torch.Tensor):
        return one.detach().float()
    if isinstance(one, tuple):
        return type(one)(*map(to_float32, one)) if hasattr(one, "_fields") else tuple(map(to_float32, one))
    return one


@pytest.mark.skipif(compile.load_kernels() is None, reason="no C compiler here")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("sizes", [(6, 5), (16, 32)], ids=["odd", "even"])
@pytest.mark.parametrize("learns", ["words and pairs", "lora_tensors"])
def test_with_kernels_results_and_gradients_match_float64(case, first, sizes, learns, monkeypatch):
    """even: the gradients of the LoRA tensors are computed by a kernel too."""
    monkeypatch.setattr("test_layer.WIDTH", sizes[0])
    monkeypatch.setattr("test_layer.INNER", sizes[1])
    x, frozen, shape, angles, lora_tensors = make_inputs(**case)
    frozen = LayerWeights(*(one / sizes[0] ** 0.5 for one in frozen[:5]), *frozen[5:])  # so that numbers stay near 1
    first = min(first, x.shape[1] - 1)
    weight = torch.linspace(-1, 1, x[:, first:].numel(), dtype=torch.float64).view(x[:, first:].shape)
    found, calls = [], []
    monkeypatch.setattr(
        c_ops, "_call_kernel", lambda name, *args, call=c_ops._call_kernel: (calls.append(name), call(name, *args))
    )
    for convert in (lambda one: one, to_float32):
        inputs = [convert(one).requires_grad_() for one in (x, *lora_tensors)]
        inputs[0].requires_grad_(learns == "words and pairs")
        weights, update = convert(merged(frozen, lora_tensors)), LoraUpdate(convert(frozen), SCALE)
        out = whole_layer(inputs[0], weights, shape, convert(make_tables(angles)), update, inputs[1:], first)
        (out * convert(weight)).sum().backward()
        found.append([out, *(one.grad for one in inputs if one.requires_grad)])
    for expected, ours in zip(*found, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(
            ours.double(), expected, rtol=0, atol=2e-6 * max(1.0, float(expected.detach().abs().max()))
        )
    call_counts = {
        "rms_norm": 2,
        "causal_attention": 1,
        "swiglu": 1,
        "swiglu_backward": 1,
        "causal_attention_backward": 1,
    }
    call_counts["rms_norm_backward"] = 1 + (learns == "words and pairs")
    qkv, o = ((width * shape.head_size) % 16 == 0 for width in (shape.kv_heads, shape.heads))
    call_counts["lora_grads"] = 3 * qkv + o + 3 if sizes == (16, 32) else 0
    assert {name: calls.count(name) for name in call_counts} == call_counts


def with_shared_prefix(x, prefix):
    """Sequences whose first tokens are those of the first sequence."""
    return torch.cat([x[:1, :prefix].expand(len(x), -1, -1), x[:, prefix:]], 1)


SHARED = pytest.mark.parametrize(("prefix", "first"), [(1, 0), (3, 0), (3, 3), (2, 4)])


@BOTH
@SHARED
@pytest.mark.parametrize("with_kernels", [False, True])
def test_a_shared_prefix_is_computed_once_with_the_same_results(prefix, first, combine, with_kernels):
    """Kernels compute in float32, PyTorch's operations in float64."""
    x, frozen, shape, angles, lora_tensors = make_inputs(batch=3, length=6)
    convert = to_float32 if with_kernels else lambda one: one
    layout, found = SequenceLayout(3, 6, first, prefix), []
    x, weights = convert(with_shared_prefix(x, prefix)), convert(combine(frozen, lora_tensors))
    tables, update = convert(make_tables(angles)), LoraUpdate(convert(frozen), SCALE)
    for shared in (False, True):
        inputs = [
            one.clone().requires_grad_() for one in (layout.collapse(x) if shared else x, *map(convert, lora_tensors))
        ]
        args = (inputs[0], weights, shape, tables, update, inputs[1:])
        if shared:
            assert len(inputs[0]) == prefix + 3 * (6 - prefix)
            out = fused_layer(*args, layout)
            out = out.view(3, -1, x.shape[2]) if first else layout.expand(out)
        else:
            out = whole_layer(*args, first)
        (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)).sum().backward()
        dx, *lora_grads = [one.grad for one in inputs]
        found.append([out.detach(), dx if shared else layout.reduce(dx), *lora_grads])
    for expected, ours in zip(*found, strict=True):
        tolerance = 1e-5 * float(expected.abs().max()) if with_kernels else 1e-11
        torch.testing.assert_close(ours, expected, rtol=0, atol=tolerance)


@SHARED
def test_a_shared_prefix_can_be_differentiated_twice(prefix, first):
    x, frozen, shape, angles, lora_tensors = make_inputs(batch=2, length=5)
    layout, found = SequenceLayout(2, 5, first, prefix), []
    x = with_shared_prefix(x, prefix)
    for shared in (False, True):
        learning = [one.detach().requires_grad_() for one in lora_tensors]
        args = (merged(frozen, learning), shape, make_tables(angles), LoraUpdate(frozen, SCALE), learning)
        if shared:
            out = fused_layer(layout.collapse(x), *args, layout)
            out = out.view(2, -1, x.shape[2]) if first else layout.expand(out)
        else:
            out = whole_layer(x, *args, first)
        grads = torch.autograd.grad(out.square().sum(), learning, create_graph=True)
        found.append(torch.autograd.grad(sum(one.square().sum() for one in grads), learning))
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-9)
