"""Each kernel against loops or autograd in float64, with sizes that fill its blocks and sizes that do not."""

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from rlhf_lab.errors import ConfigError
from rlhf_lab.kernels import c_ops

pytestmark = pytest.mark.usefixtures("kernels")


BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


def randn(*shape, seed=0, scale=1.0, dtype=torch.float32):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))) * scale).to(dtype)


def in_double(*tensors):
    return [one.detach().double().requires_grad_() for one in tensors]


def close(actual, expected, most=2e-6, *, dtype=torch.float32):
    """Within `most` of the largest number plus one rounding to the dtype."""
    assert actual.dtype == dtype
    atol = most * max(1.0, float(expected.detach().abs().max()))
    torch.testing.assert_close(
        actual.double(), expected.detach(), rtol=2**-8 if dtype == torch.bfloat16 else 0, atol=atol
    )


WIDTHS = [1, 5, 16, 40, 192]


@pytest.mark.parametrize("width", WIDTHS)
@BOTH
def test_rms_norm_equals_loop(dtype, width):
    x, weight = randn(7, width, dtype=dtype), randn(width, seed=1, dtype=dtype)
    out, inverse = c_ops.rms_norm(x, weight, 1e-3)
    expected = [1 / math.sqrt(sum(v * v for v in row) / width + 1e-3) for row in x.tolist()]
    assert inverse.squeeze(1).tolist() == pytest.approx(expected, rel=1e-6)
    rows = [
        [v * e * w for v, w in zip(row, weight.tolist(), strict=True)]
        for row, e in zip(x.tolist(), expected, strict=True)
    ]
    close(out, torch.tensor(rows, dtype=torch.float64), dtype=dtype)


@pytest.mark.parametrize("width", WIDTHS)
@BOTH
def test_rms_norm_gradient_matches_autograd(dtype, width):
    x, weight, grad_output, residual = (
        randn(*shape, width, seed=i, dtype=dtype) for i, shape in enumerate([[7], [], [7], [7]])
    )
    actual, recomputed = c_ops.rms_norm_backward(grad_output, x, c_ops.rms_norm(x, weight, 1e-3)[1], weight, residual)
    (exact,) = in_double(x)
    expected = exact * (exact.square().mean(-1, keepdim=True) + 1e-3).rsqrt() * weight.double()
    expected.backward(grad_output.double())
    close(actual, residual.double() + exact.grad, dtype=dtype)
    close(recomputed, expected, dtype=dtype)


@pytest.mark.parametrize("count", [1, 15, 16, 33, 20_000])
@BOTH
def test_swiglu_and_gradients_match_autograd(dtype, count):
    gate, up, grad_output = (randn(1, count, seed=seed, scale=4, dtype=dtype) for seed in range(3))
    exact_gate, exact_up = in_double(gate, up)
    exact = exact_gate * torch.sigmoid(exact_gate) * exact_up
    exact.backward(grad_output.double())
    close(c_ops.swiglu(gate, up), exact, dtype=dtype)
    (d_gate, d_up), recomputed = c_ops.swiglu_backward(grad_output, gate, up)
    close(d_gate, exact_gate.grad, dtype=dtype)
    close(d_up, exact_up.grad, dtype=dtype)
    close(recomputed, exact, dtype=dtype)


def test_swiglu_of_large_values(kernels):
    gate = torch.tensor([-1e4, -100.0, -87.0, 0.0, 87.0, 100.0, 1e4])
    ones = torch.ones(7)
    close(c_ops.swiglu(gate, ones), gate.double() * torch.sigmoid(gate.double()), 1e-6)
    (d_gate, _), _ = c_ops.swiglu_backward(ones[None], gate[None], ones[None])
    close(d_gate, torch.tensor([[0, 0, 0, 0.5, 1, 1, 1]]).double(), 1e-6)


def rotated(x, cos, sin):
    """x: (..., D)."""
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


def per_row_rope(size, *shape, dtype=torch.float32):
    angles = randn(*shape, size // 2, seed=5)
    cos, sin = torch.cat([angles.cos(), angles.cos()], -1), torch.cat([-angles.sin(), angles.sin()], -1)
    return cos.to(dtype), sin.to(dtype)


def attention(qkv, cos, sin, batch, heads, groups):
    """In float64, by softmax over each token and those before it."""
    size = qkv.shape[1] // (heads + 2 * groups)
    each = qkv.view(batch, -1, heads + 2 * groups, size).transpose(1, 2)
    cos, sin = (one.double().reshape(-1, 1, *one.shape[-2:]) for one in (cos, sin))
    q, k = rotated(each[:, :heads], cos, sin), rotated(each[:, heads:-groups], cos, sin)
    k, v = (one.repeat_interleave(heads // groups, 1) for one in (k, each[:, -groups:]))
    scores = q @ k.mT / math.sqrt(size)
    causal_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return (scores.masked_fill(~causal_mask, -torch.inf).softmax(-1) @ v).transpose(1, 2).flatten(2)


CASES = [
    {"heads": 1, "groups": 1, "size": 2, "length": 1},
    {"heads": 4, "groups": 4, "size": 8, "length": 5},
    {"heads": 6, "groups": 2, "size": 16, "length": 33},
    {"heads": 4, "groups": 1, "size": 24, "length": 70},
    {"heads": 3, "groups": 3, "size": 64, "length": 40},
]


@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("first", [0, 1, 34])
@pytest.mark.parametrize("case", CASES)
@BOTH
def test_attention_and_gradients_match_autograd(dtype, case, first, per_row):
    """per_row: each text has its own positions."""
    heads, groups, size, length = case.values()
    first = min(first, length - 1)
    qkv = randn(3 * length, (heads + 2 * groups) * size, dtype=dtype)
    grad_output = randn(3 * (length - first), heads * size, seed=1, dtype=dtype)
    cos, sin = per_row_rope(size, *([3] if per_row else []), length, dtype=dtype)
    (exact,) = in_double(qkv)
    expected = attention(exact, cos, sin, 3, heads, groups)[:, first:].flatten(0, 1)
    expected.backward(grad_output.double())
    close(c_ops.causal_attention(qkv, cos, sin, 3, first, heads, groups), expected, dtype=dtype)
    close(c_ops.causal_attention_backward(grad_output, qkv, cos, sin, 3, first, heads, groups), exact.grad, dtype=dtype)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("padded", [False, True])
@BOTH
def test_decode_attention_reads_and_extends_the_cache(dtype, case, padded):
    """Its key and value are appended to the cache, and nothing else is written."""
    heads, groups, size, used = case.values()
    qkv, (cos, sin) = randn(3, (heads + 2 * groups) * size, dtype=dtype), per_row_rope(size, 3, 1, dtype=dtype)
    cache = [randn(3, groups, used + 4, size, seed=seed, dtype=dtype) for seed in (1, 2)]
    before = [one.clone() for one in cache]
    mask = torch.ones(3, used + 1, dtype=torch.bool)
    if padded:
        mask[1, : used // 2], mask[2, :used] = False, False
    actual = c_ops.decode_attention(qkv, cos, sin, mask if padded else None, *cache, used, heads)
    each = qkv.view(3, -1, 1, size).double()
    q, k = (
        rotated(each[:, :heads], cos[:, None], sin[:, None]),
        rotated(each[:, heads:-groups], cos[:, None], sin[:, None]),
    )
    for after, previous, new in zip(cache, before, (k, each[:, -groups:]), strict=True):
        close(after[:, :, used : used + 1], new, dtype=dtype)
        after[:, :, used] = previous[:, :, used]
        assert torch.equal(after, previous)
    keys, values = (
        torch.cat([previous[:, :, :used].double(), new.to(dtype).double()], 2).repeat_interleave(heads // groups, 1)
        for previous, new in zip(before, (k, each[:, -groups:]), strict=True)
    )
    scores = (q @ keys.mT / math.sqrt(size)).masked_fill(~mask[:, None, None], -torch.inf)
    close(actual, (scores.softmax(-1) @ values).flatten(1), dtype=dtype)


@pytest.mark.parametrize("rank", [1, 8, 11, 70])
@pytest.mark.parametrize("part", [False, True])
@BOTH
def test_lora_grads_match_autograd(dtype, rank, part):
    """part: the gradient of the product is a slice of longer rows."""
    x, a, b = randn(45, 32, dtype=dtype), randn(rank, 32, seed=1), randn(48, rank, seed=2)
    grad_output = randn(45, 80, seed=3, dtype=dtype)[:, 16:64] if part else randn(45, 48, seed=3, dtype=dtype)
    assert c_ops.lora_grads_supported(x, grad_output)
    exact_a, exact_b = in_double(a, b)
    (0.5 * x.double() @ exact_a.t() @ exact_b.t()).backward(grad_output.double())
    for actual, exact in zip(c_ops.lora_grads(x, grad_output, a, b, 0.5), (exact_a, exact_b), strict=True):
        close(actual, exact.grad)


@pytest.mark.parametrize("rank", [1, 8, 70])
@BOTH
def test_lora_grads_from_given_low_rank_products(dtype, rank):
    """Columns beside the given slices are not read."""
    x, grad_output, a, b = (
        randn(45, 32, dtype=dtype),
        randn(45, 48, seed=3, dtype=dtype),
        randn(rank, 32),
        randn(48, rank),
    )
    low, low_grad = (randn(45, 2 * rank, seed=seed, dtype=dtype)[:, rank:] for seed in (4, 5))
    d_a, d_b = c_ops.lora_grads(x, grad_output, a, b, 0.5, (low, low_grad))
    close(d_a, low_grad.double().t() @ x.double())
    close(d_b, 0.5 * grad_output.double().t() @ low.double())


def test_lora_grads_of_unaligned_sizes_are_not_supported(kernels):
    assert not c_ops.lora_grads_supported(randn(3, 20), randn(3, 32))
    assert not c_ops.lora_grads_supported(randn(3, 32), randn(3, 20))
    assert not c_ops.lora_grads_supported(randn(32, 3).t(), randn(3, 32))
    assert not c_ops.lora_grads_supported(randn(3, 32), randn(32, 3).t())
    assert not c_ops.lora_grads_supported(randn(3, 32).double(), randn(3, 32).double())


@pytest.mark.parametrize("words", [2, 16, 50, 4096])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("learns", [False, True])
@BOTH
def test_logprobs_and_entropy_match_softmax(dtype, words, temperature, learns):
    logits = (randn(9, words, scale=5) + 1000 * randn(9, 1, seed=1)).to(dtype)
    tokens = torch.arange(9) % words
    if words > 2:
        logits[3, 1], tokens[3] = -torch.inf, 0
    exact = (logits.double() / temperature).log_softmax(-1)
    probs, one_hot = exact.exp(), torch.zeros(9, words).double().scatter(1, tokens[:, None], 1.0)
    rounded = 1e-7 * float(logits[logits.isfinite()].abs().max()) / temperature  # of logits of a thousand in float32
    logprobs, entropies = c_ops.logprobs_and_entropy_inplace(logits, tokens, temperature, learns)
    torch.testing.assert_close(logprobs.double(), exact.gather(1, tokens[:, None]).squeeze(1), rtol=1e-5, atol=rounded)
    expected = -(probs * exact.clamp_min(-1e9)).sum(-1)
    torch.testing.assert_close(entropies.double(), expected, rtol=2e-5, atol=rounded)
    assert float(entropies.min()) >= 0
    if learns:
        close(logits, one_hot - probs, 2e-6 + 2 * rounded, dtype=dtype)


def test_exp_is_accurate_to_the_last_digits(kernels):
    """Down to 10⁻³⁵."""
    logits = -torch.linspace(0, 80, 4001)[None]
    actual = logits.clone()
    c_ops.logprobs_and_entropy_inplace(actual, torch.zeros(1, dtype=torch.int64), 1.0, True)
    exact = logits.double().softmax(-1)
    torch.testing.assert_close(-actual[0, 1:].double(), exact[0, 1:], rtol=3e-7, atol=0)


def test_a_token_outside_the_vocabulary_is_refused(kernels):
    for token in (-1, 8):
        with pytest.raises(ConfigError, match="outside the vocabulary, which has 8 tokens"):
            c_ops.logprobs_and_entropy_inplace(randn(2, 8), torch.tensor([0, token]), 1.0, True)
    assert c_ops.logprobs_and_entropy_inplace(randn(0, 8), torch.zeros(0, dtype=torch.int64), 1.0, True)[0].shape == (
        0,
    )


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
@BOTH
def test_non_finite_values_propagate(dtype, wrong):
    x, ones, (cos, sin) = randn(4, 48, dtype=dtype), torch.ones(4, 48, dtype=dtype), per_row_rope(16, 4, dtype=dtype)
    x[2, 20] = wrong  # part of the key that tokens 2 and 3 attend to
    assert not c_ops.rms_norm(x, ones[0], 1e-6)[0][2].isfinite().all()
    assert not c_ops.swiglu(x, ones).isfinite().all()
    assert not c_ops.causal_attention(x, cos, sin, 1, 0, 1, 1)[2:].isfinite().any()
    assert c_ops.causal_attention(x, cos, sin, 1, 0, 1, 1)[:2].isfinite().all()
    cache = [torch.zeros(4, 1, 2, 16, dtype=dtype) for _ in range(2)]
    mixed = c_ops.decode_attention(x, cos[:, None], sin[:, None], None, *cache, 1, 1)
    assert mixed.isfinite().all(1).tolist() == [True, True, False, True]
    logprobs, entropies = c_ops.logprobs_and_entropy_inplace(x, torch.zeros(4, dtype=torch.int64), 1.0, False)
    assert logprobs.isfinite().tolist() == entropies.isfinite().tolist() == [True, True, False, True]


def test_rounding_to_bfloat16_breaks_ties_to_even(kernels):
    """1 + 2⁻⁸ down to 1, 1 + 3·2⁻⁸ up to 1 + 2⁻⁶; both in scalar and in vector code."""
    step, zeros, ones = 2**-7, torch.zeros(1, 16).bfloat16(), torch.ones(1, 16).bfloat16()
    for low, expected in ((1, 1), (1 + step, 1 + 2 * step)):
        residual, grad_output = ones * low, ones * (step / 2)
        actual, _ = c_ops.rms_norm_backward(grad_output, zeros, torch.ones(1, 1), ones[0], residual)
        assert actual.tolist() == [[expected] * 16]
        cache = zeros.view(1, 1, 1, 16).repeat(1, 1, 2, 1), (ones * low).view(1, 1, 1, 16).repeat(1, 1, 2, 1)
        qkv = torch.cat([zeros, zeros, ones * (low + step)], 1)  # a query that attends to both tokens equally
        assert c_ops.decode_attention(qkv, ones, zeros, None, *cache, 1, 1).tolist() == [[expected] * 16]


@BOTH
def test_results_do_not_depend_on_the_number_of_threads(dtype):
    qkv, (cos, sin) = randn(5 * 80, 96, dtype=dtype), per_row_rope(16, 80, dtype=dtype)
    grad_output, lora_grad_output = randn(5 * 80, 32, seed=1, dtype=dtype), randn(300, 32, dtype=dtype)
    keys, values = (randn(6, 1, 100, 16, seed=seed, dtype=dtype) for seed in (2, 3))
    qkv_next, at = randn(6, 48, dtype=dtype), [one[:, None] for one in per_row_rope(16, 6, dtype=dtype)]
    x, weight, logits = randn(300, 64, dtype=dtype), randn(64, dtype=dtype), randn(40, 500, dtype=dtype)
    tokens, a, b = torch.arange(40), randn(8, 64), randn(32, 8)
    before, actual = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            out, inverse = c_ops.rms_norm(x, weight, 1e-6)
            logits_copy = logits.clone()
            actual.append(
                [
                    out,
                    *c_ops.rms_norm_backward(x, x, inverse, weight, x),
                    c_ops.swiglu(x, x),
                    *c_ops.swiglu_backward(x, x, x),
                    c_ops.causal_attention(qkv, cos, sin, 5, 0, 2, 2),
                    c_ops.causal_attention_backward(grad_output, qkv, cos, sin, 5, 0, 2, 2),
                    c_ops.decode_attention(qkv_next, *at, None, keys.clone(), values.clone(), 90, 1),
                    *c_ops.lora_grads(x, lora_grad_output, a, b, 1.0),
                    *c_ops.logprobs_and_entropy_inplace(logits_copy, tokens, 1.0, True),
                    logits_copy,
                ]
            )
    finally:
        torch.set_num_threads(before)
    for other in actual[1:]:
        for expected, another in zip(actual[0], other, strict=True):
            assert torch.equal(expected, another)


@BOTH
def test_each_thread_has_its_own_workspace(dtype, monkeypatch):
    """With two threads, both parts of the workspace are written."""
    qkv, (cos, sin) = randn(5 * 80, 96, dtype=dtype), per_row_rope(16, 80, dtype=dtype)
    x, logits, at = randn(300, 64, dtype=dtype), randn(40, 500, dtype=dtype), per_row_rope(16, 6, 1, dtype=dtype)
    keys, values = (randn(6, 1, 100, 16, dtype=dtype) for _ in range(2))
    workspaces, original = [], c_ops._workspace

    def recorded_workspace(*args):
        workspaces.append((original(*args).fill_(torch.nan), *args[4:]))
        return workspaces[-1][0]

    monkeypatch.setattr(c_ops, "_workspace", recorded_workspace)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        c_ops.causal_attention(qkv, cos, sin, 5, 0, 2, 2)
        c_ops.causal_attention_backward(qkv[:, :32], qkv, cos, sin, 5, 0, 2, 2)
        c_ops.decode_attention(randn(6, 48, dtype=dtype), *at, None, keys, values, 90, 1)
        if dtype == torch.bfloat16:  # the others need none in float32
            c_ops.lora_grads(x, x, randn(8, 64), randn(64, 8), 1.0)
            c_ops.logprobs_and_entropy_inplace(logits, torch.arange(40), 1.0, True)
    finally:
        torch.set_num_threads(before)
    for workspace, *extra in workspaces:
        parts = workspace[sum(extra) :].view(2, -1)
        assert not parts.isnan().all(1).any()


def test_supported_tensors(kernels):
    assert c_ops.supported(randn(2))
    assert c_ops.supported(randn(2).bfloat16())
    assert not c_ops.supported(randn(2).double())
    assert not c_ops.supported(randn(2).half())
    assert not c_ops.supported(torch.empty(2, device="meta"))
    assert not c_ops.supported(randn(2, 2).to_sparse())
    with FakeTensorMode():
        assert not c_ops.supported(torch.empty(2))
    assert not c_ops.lora_grads_supported(randn(3, 32), randn(3, 32).bfloat16())


@pytest.mark.parametrize(
    "weight", [randn(16).double(), randn(16).bfloat16(), randn(32)[::2]], ids=["double", "half", "strided"]
)
def test_wrong_dtype_or_layout_is_refused(kernels, weight):
    with pytest.raises(ValueError, match="a kernel was given"):
        c_ops.rms_norm(randn(2, 16), weight, 1e-6)


def test_mixed_dtypes_are_refused(kernels):
    half, full, a, b = randn(4, 16).bfloat16(), randn(4, 16), randn(2, 16), randn(16, 2)
    for args in [(half, full, a, b, 1.0), (half, half, a.bfloat16(), b, 1.0), (half, half, a, b, 1.0, (a, b))]:
        with pytest.raises(ValueError, match="a kernel was given"):
            c_ops.lora_grads(*args)
    with pytest.raises(ValueError, match="a kernel was given"):
        c_ops.rms_norm(half, full[0], 1e-6)


def test_non_contiguous_inputs_are_copied(kernels):
    qkv, (cos, sin) = randn(10, 96)[:, ::2], per_row_rope(16, 5)
    actual = (
        c_ops.causal_attention(qkv, cos, sin, 2, 0, 1, 1),
        c_ops.causal_attention_backward(randn(10, 16), qkv, cos, sin, 2, 0, 1, 1),
    )
    qkv = qkv.contiguous()
    assert torch.equal(actual[0], c_ops.causal_attention(qkv, cos, sin, 2, 0, 1, 1))
    assert torch.equal(actual[1], c_ops.causal_attention_backward(randn(10, 16), qkv, cos, sin, 2, 0, 1, 1))
