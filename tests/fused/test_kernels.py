"""Each kernel against loops or autograd in float64, with sizes that fill its blocks and sizes that do not."""

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from rlhf_lab.errors import ConfigError
from rlhf_lab.fused import calls

pytestmark = pytest.mark.usefixtures("kernels")


def some(*shape, seed=0, scale=1.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))) * scale


def wide(*tensors):
    return [one.detach().double().requires_grad_() for one in tensors]


def close(found, expected, most=2e-6):
    """Within `most` of the largest number."""
    assert found.dtype == torch.float32
    torch.testing.assert_close(
        found.double(), expected.detach(), rtol=0, atol=most * max(1.0, float(expected.detach().abs().max()))
    )


WIDTHS = [1, 5, 16, 40, 192]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_norm_is_that_of_a_loop(kernels, width):
    x, weight = some(7, width), some(width, seed=1)
    out, inverse = calls.norm(x, weight, 1e-3)
    for row, said, size in zip(x.tolist(), out.tolist(), inverse.squeeze(1).tolist(), strict=True):
        expected = 1 / math.sqrt(sum(v * v for v in row) / width + 1e-3)
        assert size == pytest.approx(expected, rel=1e-6)
        assert said == pytest.approx([v * expected * w for v, w in zip(row, weight.tolist(), strict=True)], abs=4e-6)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_norms_slope_is_autograds(kernels, width):
    x, weight, slope, around = some(7, width), some(width, seed=1), some(7, width, seed=2), some(7, width, seed=3)
    out, inverse = calls.norm(x, weight, 1e-3)
    found, again = calls.norm_back(slope, x, inverse, weight, around)
    (exact,) = wide(x)
    (exact * (exact.square().mean(-1, keepdim=True) + 1e-3).rsqrt() * weight.double()).backward(slope.double())
    close(found, around.double() + exact.grad)
    torch.testing.assert_close(again, out, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("count", [1, 15, 16, 33, 20_000])
def test_the_gated_unit_and_its_slopes_are_autograds(kernels, count):
    gate, up, slope = (some(1, count, seed=seed, scale=4) for seed in range(3))
    exact_gate, exact_up = wide(gate, up)
    exact = exact_gate * torch.sigmoid(exact_gate) * exact_up
    exact.backward(slope.double())
    close(calls.swiglu(gate, up), exact)
    (d_gate, d_up), again = calls.swiglu_back(slope, gate, up)
    close(d_gate, exact_gate.grad)
    close(d_up, exact_up.grad)
    close(again, exact)


def test_the_gated_unit_of_large_numbers(kernels):
    gate = torch.tensor([-1e4, -100.0, -87.0, 0.0, 87.0, 100.0, 1e4])
    ones = torch.ones(7)
    close(calls.swiglu(gate, ones), gate.double() * torch.sigmoid(gate.double()), 1e-6)
    (d_gate, _), _ = calls.swiglu_back(ones[None], gate[None], ones[None])
    close(d_gate, torch.tensor([[0, 0, 0, 0.5, 1, 1, 1]]).double(), 1e-6)


def rotated(x, cos, sin):
    """x: (..., D)."""
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


def turns(size, *shape):
    angles = some(*shape, size // 2, seed=5)
    return torch.cat([angles.cos(), angles.cos()], -1), torch.cat([-angles.sin(), angles.sin()], -1)


def attention(read, cos, sin, batch, heads, groups):
    """In float64, by softmax over each token's past."""
    size = read.shape[1] // (heads + 2 * groups)
    each = read.view(batch, -1, heads + 2 * groups, size).transpose(1, 2)
    cos, sin = (one.double().reshape(-1, 1, *one.shape[-2:]) for one in (cos, sin))
    q, k = rotated(each[:, :heads], cos, sin), rotated(each[:, heads:-groups], cos, sin)
    k, v = (one.repeat_interleave(heads // groups, 1) for one in (k, each[:, -groups:]))
    scores = q @ k.mT / math.sqrt(size)
    past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return (scores.masked_fill(~past, -torch.inf).softmax(-1) @ v).transpose(1, 2).flatten(2)


CASES = [
    {"heads": 1, "groups": 1, "size": 2, "length": 1},
    {"heads": 4, "groups": 4, "size": 8, "length": 5},
    {"heads": 6, "groups": 2, "size": 16, "length": 33},
    {"heads": 4, "groups": 1, "size": 24, "length": 70},
    {"heads": 3, "groups": 3, "size": 64, "length": 40},
]


@pytest.mark.parametrize("each_its_own", [False, True])
@pytest.mark.parametrize("first", [0, 1, 34])
@pytest.mark.parametrize("case", CASES)
def test_attention_and_its_slopes_are_autograds(kernels, case, first, each_its_own):
    """each_its_own: texts are rotated by places of their own."""
    heads, groups, size, length = case.values()
    first = min(first, length - 1)
    read, slope = some(3 * length, (heads + 2 * groups) * size), some(3 * (length - first), heads * size, seed=1)
    cos, sin = turns(size, *([3] if each_its_own else []), length)
    (exact,) = wide(read)
    expected = attention(exact, cos, sin, 3, heads, groups)[:, first:].flatten(0, 1)
    expected.backward(slope.double())
    close(calls.attend(read, cos, sin, 3, first, heads, groups), expected)
    close(calls.attend_back(slope, read, cos, sin, 3, first, heads, groups), exact.grad)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("padded", [False, True])
def test_one_token_more_looks_at_what_lies_in_the_cache(kernels, case, padded):
    """Its key and value are written behind the others, and nothing else is."""
    heads, groups, size, used = case.values()
    read, (cos, sin) = some(3, (heads + 2 * groups) * size), turns(size, 3, 1)
    room = [some(3, groups, used + 4, size, seed=seed) for seed in (1, 2)]
    before = [one.clone() for one in room]
    seen = torch.ones(3, used + 1, dtype=torch.bool)
    if padded:
        seen[1, : used // 2], seen[2, :used] = False, False
    found = calls.attend_next(read, cos, sin, seen if padded else None, *room, used, heads)
    each = read.view(3, -1, 1, size).double()
    q, k = (
        rotated(each[:, :heads], cos[:, None], sin[:, None]),
        rotated(each[:, heads:-groups], cos[:, None], sin[:, None]),
    )
    for now, was, new in zip(room, before, (k, each[:, -groups:]), strict=True):
        close(now[:, :, used : used + 1], new)
        now[:, :, used] = was[:, :, used]
        assert torch.equal(now, was)
    keys, values = (
        torch.cat([was[:, :, :used].double(), new], 2).repeat_interleave(heads // groups, 1)
        for was, new in zip(before, (k, each[:, -groups:]), strict=True)
    )
    scores = (q @ keys.mT / math.sqrt(size)).masked_fill(~seen[:, None, None], -torch.inf)
    close(found, (scores.softmax(-1) @ values).flatten(1))


@pytest.mark.parametrize("rank", [1, 8, 11, 70])
@pytest.mark.parametrize("part", [False, True])
def test_slopes_of_a_low_rank_update_are_autograds(kernels, rank, part):
    """part: the slope of the product is a part of longer rows."""
    x, a, b = some(45, 32), some(rank, 32, seed=1), some(48, rank, seed=2)
    slope = some(45, 80, seed=3)[:, 16:64] if part else some(45, 48, seed=3)
    assert calls.takes_slopes(x, slope)
    exact_a, exact_b = wide(a, b)
    (0.5 * x.double() @ exact_a.t() @ exact_b.t()).backward(slope.double())
    for found, exact in zip(calls.lora_slopes(x, slope, a, b, 0.5), (exact_a, exact_b), strict=True):
        close(found, exact.grad)


def test_slopes_that_do_not_fill_its_blocks_are_left_to_others(kernels):
    assert not calls.takes_slopes(some(3, 20), some(3, 32))
    assert not calls.takes_slopes(some(3, 32), some(3, 20))
    assert not calls.takes_slopes(some(32, 3).t(), some(3, 32))
    assert not calls.takes_slopes(some(3, 32), some(32, 3).t())
    assert not calls.takes_slopes(some(3, 32).double(), some(3, 32).double())


@pytest.mark.parametrize("words", [2, 16, 50, 4096])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("learns", [False, True])
def test_what_a_head_says_is_what_softmax_says(kernels, words, temperature, learns):
    logits, tokens = some(9, words, scale=5) + 1000 * some(9, 1, seed=1), torch.arange(9) % words
    if words > 2:
        logits[3, 1], tokens[3] = -torch.inf, 0
    exact = (logits.double() / temperature).log_softmax(-1)
    probs, own = exact.exp(), torch.zeros(9, words).double().scatter(1, tokens[:, None], 1.0)
    rounded = 1e-7 * float(logits[logits.isfinite()].abs().max()) / temperature  # of logits of a thousand in float32
    logprobs, entropies = calls.head_figures(logits, tokens, temperature, learns)
    torch.testing.assert_close(logprobs.double(), exact.gather(1, tokens[:, None]).squeeze(1), rtol=1e-5, atol=rounded)
    expected = -(probs * exact.clamp_min(-1e9)).sum(-1)
    torch.testing.assert_close(entropies.double(), expected, rtol=2e-5, atol=rounded)
    assert float(entropies.min()) >= 0
    if learns:
        torch.testing.assert_close(logits.double(), own - probs, rtol=0, atol=2e-6 + 2 * rounded)


def test_a_probability_is_right_to_its_last_digits(kernels):
    """Down to 10⁻³⁵."""
    logits = -torch.linspace(0, 80, 4001)[None]
    found = logits.clone()
    calls.head_figures(found, torch.zeros(1, dtype=torch.int64), 1.0, True)
    exact = logits.double().softmax(-1)
    torch.testing.assert_close(-found[0, 1:].double(), exact[0, 1:], rtol=3e-7, atol=0)


def test_a_token_that_is_no_word_is_refused(kernels):
    for token in (-1, 8):
        with pytest.raises(ConfigError, match="not one of the 8 words"):
            calls.head_figures(some(2, 8), torch.tensor([0, token]), 1.0, True)
    assert calls.head_figures(some(0, 8), torch.zeros(0, dtype=torch.int64), 1.0, True)[0].shape == (0,)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_what_is_not_finite_is_not_hidden(kernels, wrong):
    x = some(4, 48)
    x[2, 20] = wrong  # a part of the key that tokens 2 and 3 look at
    cos, sin = turns(16, 4)
    assert not calls.norm(x, torch.ones(48), 1e-6)[0][2].isfinite().all()
    assert not calls.swiglu(x, torch.zeros(4, 48) + 1).isfinite().all()
    assert not calls.attend(x, cos, sin, 1, 0, 1, 1)[2:].isfinite().any()
    assert calls.attend(x, cos, sin, 1, 0, 1, 1)[:2].isfinite().all()
    logprobs, entropies = calls.head_figures(x, torch.zeros(4, dtype=torch.int64), 1.0, False)
    assert logprobs.isfinite().tolist() == entropies.isfinite().tolist() == [True, True, False, True]


def test_any_number_of_threads_gives_the_same_numbers(kernels):
    read, (cos, sin), slope = some(5 * 40, 96), turns(16, 40), some(5 * 40, 32, seed=1)
    x, weight, logits = some(300, 64), some(64), some(40, 500)
    tokens, a, b = torch.arange(40), some(8, 64), some(32, 8)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            out, inverse = calls.norm(x, weight, 1e-6)
            said = logits.clone()
            found.append([
                out, *calls.norm_back(x, x, inverse, weight, x), calls.swiglu(x, x), *calls.swiglu_back(x, x, x),
                calls.attend(read, cos, sin, 5, 0, 2, 2), calls.attend_back(slope, read, cos, sin, 5, 0, 2, 2),
                *calls.lora_slopes(x, some(300, 32), a, b, 1.0), *calls.head_figures(said, tokens, 1.0, True), said,
            ])  # fmt: skip
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        for mine, theirs in zip(found[0], other, strict=True):
            assert torch.equal(mine, theirs)


def test_what_they_do_not_take(kernels):
    assert calls.takes(some(2))
    assert not calls.takes(some(2).double())
    assert not calls.takes(some(2).bfloat16())
    assert not calls.takes(torch.empty(2, device="meta"))
    assert not calls.takes(some(2, 2).to_sparse())
    with FakeTensorMode():
        assert not calls.takes(torch.empty(2))
    assert not calls.takes_slopes(some(3, 32), some(3, 32).bfloat16())


@pytest.mark.parametrize(
    "weight", [some(16).double(), some(16).bfloat16(), some(32)[::2]], ids=["double", "half", "strided"]
)
def test_numbers_that_would_be_read_wrongly_are_refused(kernels, weight):
    with pytest.raises(ValueError, match="a kernel was given"):
        calls.norm(some(2, 16), weight, 1e-6)


def test_numbers_that_lie_apart_are_gathered_first(kernels):
    read, (cos, sin) = some(10, 96)[:, ::2], turns(16, 5)
    found = calls.attend(read, cos, sin, 2, 0, 1, 1), calls.attend_back(some(10, 16), read, cos, sin, 2, 0, 1, 1)
    read = read.contiguous()
    assert torch.equal(found[0], calls.attend(read, cos, sin, 2, 0, 1, 1))
    assert torch.equal(found[1], calls.attend_back(some(10, 16), read, cos, sin, 2, 0, 1, 1))
