"""Masks, log-probabilities and entropy. Expected values: plain Python over the vocabulary, or worked by hand."""

import math

import pytest
import torch
from support import reference_formulas

from rlhf_lab.core import logprobs
from rlhf_lab.errors import ConfigError
from rlhf_lab.kernels.ops import HEAD_KERNEL

EOS, PAD = 2, 0


def random_logits(*shape, dtype=torch.float64, seed=0):
    return 3 * torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def loop_logprobs(logits, tokens, temperature):
    """log softmax at the token, and the entropy, by the definition."""
    rows, entropies = [], []
    for row, row_tokens in zip(logits.tolist(), tokens.tolist(), strict=True):
        rows.append([])
        entropies.append([])
        for position, token in zip(row, row_tokens, strict=True):
            weights = [math.exp(x / temperature) for x in position]
            probs = [w / math.fsum(weights) for w in weights]
            rows[-1].append(math.log(probs[token]))
            entropies[-1].append(-math.fsum(p * math.log(p) for p in probs if p > 0))
    return torch.tensor(rows, dtype=torch.float64), torch.tensor(entropies, dtype=torch.float64)


def test_mask_ends_with_the_first_eos():
    """The first EOS is part of the mask; everything after it is not, including a second EOS and ordinary tokens."""
    responses = torch.tensor([[5, 6, EOS, PAD, PAD], [5, EOS, 7, EOS, 8], [5, 6, 7, 8, 9], [5, 6, 7, 8, EOS]])
    assert reference_formulas.response_mask(responses, EOS).tolist() == [
        [True, True, True, False, False],
        [True, True, False, False, False],
        [True, True, True, True, True],
        [True, True, True, True, True],
    ]


def test_pad_may_equal_eos_and_eos_may_come_first():
    responses = torch.tensor([[5, EOS, EOS, EOS], [EOS, EOS, EOS, EOS], [EOS, 5, 6, 7]])
    assert reference_formulas.response_mask(responses, EOS).tolist() == [
        [True, True, False, False],
        [True, False, False, False],
        [True, False, False, False],
    ]


def test_pad_inside_a_response_does_not_end_it():
    assert reference_formulas.response_mask(torch.tensor([[5, PAD, 6, EOS]]), EOS).tolist() == [
        [True, True, True, True]
    ]


def test_several_stop_tokens():
    responses = torch.tensor([[5, 9, 6, EOS], [5, EOS, 9, 6]], dtype=torch.int32)
    expected = [[True, True, False, False], [True, True, False, False]]
    assert reference_formulas.response_mask(responses, [EOS, 9]).tolist() == expected
    assert reference_formulas.response_mask(responses, (9, EOS)).tolist() == expected


@pytest.mark.parametrize(
    ("responses", "eos"),
    [(torch.tensor([1, 2]), 2), (torch.tensor([[1.0, 2.0]]), 2), (torch.tensor([[1, 2]]), [])],
)
def test_response_mask_refuses_bad_arguments(responses, eos):
    with pytest.raises(ConfigError):
        reference_formulas.response_mask(responses, eos)


def test_logprob_and_entropy_by_hand():
    """Weights 1 : 3 give log(3/4) for the second token and entropy log 4 - (3/4) log 3."""
    logits = torch.tensor([[[0.0, math.log(3.0)]]], dtype=torch.float64)
    tokens = torch.tensor([[1]])
    logprob, entropy = logprobs.logprobs_and_entropy(logits, tokens)
    assert logprob.item() == pytest.approx(math.log(0.75), abs=1e-12)
    assert entropy.item() == pytest.approx(math.log(4) - 0.75 * math.log(3), abs=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
@pytest.mark.parametrize("grad", [False, True])
def test_temperature_divides_the_logits(dtype, tolerance, temperature, grad):
    logits = random_logits(3, 4, 7, dtype=dtype).requires_grad_(grad)
    tokens = torch.tensor([[0, 6, 2, 2], [1, 1, 5, 3], [4, 0, 6, 6]])
    expected, expected_entropy = loop_logprobs(logits, tokens, temperature)
    alone = logprobs.token_logprobs(logits, tokens, temperature=temperature)
    both, entropy = logprobs.logprobs_and_entropy(logits, tokens, temperature=temperature)
    sampled, figure = logprobs.logprobs_with_detached_entropy(logits, tokens, temperature=temperature)
    assert {x.dtype for x in (alone, both, entropy, sampled, figure)} == {dtype}
    pairs = ((alone, expected), (both, expected), (entropy, expected_entropy), (sampled, both), (figure, entropy))
    for got, want in pairs:
        torch.testing.assert_close(got.double(), want.double(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_detached_entropy_logprobs_have_the_same_gradient_and_none_for_the_entropy(temperature):
    """Against autograd through the plain formula, with a different weight for every token and one logit of -inf."""
    logits, tokens = random_logits(4, 9), torch.tensor([0, 8, 3, 3])
    logits[1, 2] = -math.inf
    weights, grads = torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64), []
    for function in (logprobs.logprobs_with_detached_entropy, logprobs.logprobs_and_entropy):
        x = logits.clone().requires_grad_()
        logprob, entropy = function(x, tokens, temperature=temperature)
        assert bool(torch.isfinite(entropy).all())
        assert entropy.requires_grad is (function is logprobs.logprobs_and_entropy)
        (logprob * weights).sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(grads[0], grads[1], rtol=0, atol=1e-14)
    assert float(grads[0].abs().max()) > 0.1


def test_a_constant_added_to_all_logits_changes_nothing():
    """Nor are the logits changed. They are multiples of 1/16, which float32 represents exactly next to 3,000."""
    logits = (random_logits(3, 7) * 16).round().div(16).float()
    tokens = torch.tensor([0, 6, 3])
    expected = logprobs.logprobs_and_entropy(logits.double(), tokens)
    for offset in (0.0, 3000.0, -3000.0):
        given = logits + offset
        before = given.clone().requires_grad_()
        for found, exact in zip(logprobs.logprobs_with_detached_entropy(before, tokens), expected, strict=True):
            torch.testing.assert_close(found.double(), exact, rtol=0, atol=2e-6)
        assert torch.equal(before.detach(), given)


def test_detached_entropy_logprobs_by_hand():
    """Odds 1 : 3 at temperature 2 are 1 : sqrt 3; the slope of the second token's log-probability is p(first) / 2."""
    logits = torch.tensor([[0.0, math.log(3.0)]], dtype=torch.float64, requires_grad=True)
    logprob, entropy = logprobs.logprobs_with_detached_entropy(logits, torch.tensor([1]), temperature=2.0)
    first = 1 / (1 + math.sqrt(3))
    assert logprob.item() == pytest.approx(math.log(1 - first), abs=1e-12)
    assert entropy.item() == pytest.approx(-first * math.log(first) - (1 - first) * math.log(1 - first), abs=1e-12)
    logprob.sum().backward()
    assert logits.grad[0].tolist() == pytest.approx([-first / 2, first / 2], abs=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("elements", [1, 19, 10_000])
@pytest.mark.parametrize("with_bias", [False, True])
def test_head_logprobs_are_those_of_its_logits(temperature, elements, with_bias, monkeypatch):
    """Values, entropy and gradient against autograd through the plain formula, for any chunk size."""
    monkeypatch.setattr(logprobs, "CACHE_CHUNK_ELEMENTS", elements)
    hidden, weight, tokens = random_logits(4, 6), random_logits(9, 6), torch.tensor([0, 8, 3, 3])
    bias = random_logits(1, 9)[0] if with_bias else None
    if bias is not None:
        bias[2] = -math.inf  # impossible: of probability, entropy and slope 0
    weights, found = torch.tensor([1.0, -2.0, 0.5, 0.25], dtype=torch.float64), []
    for through_head in (True, False):
        x = hidden.clone().requires_grad_()
        if through_head:
            logprob, entropy = logprobs.head_logprobs(x, weight, bias, tokens, temperature=temperature)
            assert not entropy.requires_grad
        else:
            logits = x @ weight.T + (0 if bias is None else bias)
            logprob, entropy = logprobs.logprobs_and_entropy(logits, tokens, temperature=temperature)
        (logprob * weights).sum().backward()
        found.append((logprob.detach(), entropy.detach(), x.grad))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-13)
    assert float(found[0][2].abs().max()) > 0.1
    with torch.no_grad():
        again = logprobs.head_logprobs(hidden, weight, bias, tokens, temperature=temperature)
    torch.testing.assert_close(again, found[0][:2], rtol=0, atol=0)


def test_head_logprobs_by_hand():
    """Odds 1 : 3 at temperature 2 are 1 : sqrt 3; the slope of the second token's log-probability is p(first) / 2."""
    hidden = torch.tensor([[1.0]], dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([[0.0], [math.log(3.0)]], dtype=torch.float64)
    logprob, entropy = logprobs.head_logprobs(hidden, weight, None, torch.tensor([1]), temperature=2.0)
    first = 1 / (1 + math.sqrt(3))
    assert logprob.item() == pytest.approx(math.log(1 - first), abs=1e-12)
    assert entropy.item() == pytest.approx(-first * math.log(first) - (1 - first) * math.log(1 - first), abs=1e-12)
    logprob.sum().backward()
    assert hidden.grad.item() == pytest.approx(first / 2 * math.log(3.0), abs=1e-12)


@pytest.mark.parametrize("kernel", [logprobs.TORCH_KERNEL, HEAD_KERNEL], ids=["torch", "compiled"])
def test_head_logprobs_of_a_near_certain_token_in_half_precision(kernel):
    """p = 0.9995 rounds to 1 in bfloat16: the gradient is (1 - p) times the difference of the weights, not 0.
    Compiled: if there is a compiler.
    """
    hidden = torch.tensor([[7.625]], dtype=torch.bfloat16, requires_grad=True)
    weight = torch.tensor([[1.0], [0.0]], dtype=torch.bfloat16)
    logprob, _ = logprobs.head_logprobs(hidden, weight, None, torch.tensor([0]), kernel=kernel)
    assert logprob.dtype == torch.float32
    logprob.sum().backward()
    assert hidden.grad.item() == pytest.approx(1 / (1 + math.exp(7.625)), rel=2**-8)


def test_head_logprobs_refuses_mismatched_shapes():
    with pytest.raises(ConfigError, match="hidden is"):
        logprobs.head_logprobs(random_logits(2, 3), random_logits(5, 4), None, torch.tensor([0, 1]))
    with pytest.raises(ConfigError, match="temperature"):
        logprobs.head_logprobs(random_logits(1, 3), random_logits(5, 3), None, torch.tensor([0]), temperature=0.0)


def test_chunks_change_nothing(monkeypatch):
    """Without gradient the work is done in chunks; any chunk size, dividing the batch or not, gives the same result."""
    logits, tokens = random_logits(5, 3, 11), torch.randint(11, (5, 3), generator=torch.Generator().manual_seed(1))
    expected, expected_entropy = loop_logprobs(logits, tokens, 1.0)
    for chunk_elements in (1, 66, 70, 10_000):
        monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", chunk_elements)
        logprob, entropy = logprobs.logprobs_and_entropy(logits, tokens)
        torch.testing.assert_close(logprob, expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(entropy, expected_entropy, rtol=0, atol=1e-12)
        sampled, figure = logprobs.logprobs_with_detached_entropy(logits, tokens)
        torch.testing.assert_close((sampled, figure), (logprob, entropy), rtol=0, atol=1e-12)


def test_chunks_bound_what_is_worked_on(monkeypatch):
    """66 elements are two rows of 33: no call sees more than two of the five rows."""
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 66)
    row_counts = []

    def count_rows(x):
        row_counts.append(len(x))
        return (x,)

    x = random_logits(5, 3, 11)
    assert torch.equal(logprobs.apply_in_row_chunks(count_rows, x)[0], x)
    assert row_counts == [2, 2, 1]
    logprobs.apply_in_row_chunks(count_rows, x.clone().requires_grad_())
    assert row_counts == [2, 2, 1, 5]
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 1)
    logprobs.apply_in_row_chunks(count_rows, x)
    assert row_counts == [2, 2, 1, 5, 1, 1, 1, 1, 1]


def test_packed_rows_and_empty_batch():
    """(N, V) logits of masked positions only work as well; so does an empty batch."""
    logits, tokens = random_logits(4, 6), torch.tensor([0, 5, 3, 3])
    expected, _ = loop_logprobs(logits.unsqueeze(0), tokens.unsqueeze(0), 1.0)
    torch.testing.assert_close(logprobs.token_logprobs(logits, tokens), expected[0], rtol=0, atol=1e-12)
    assert logprobs.token_logprobs(logits[:0], tokens[:0]).shape == (0,)


def test_large_and_minus_infinite_logits():
    """A shift of all logits changes nothing; a token of -inf has probability 0 and adds no entropy and no NaN slope."""
    logits = torch.tensor([[[1000.0, 1000.0, -math.inf]]], requires_grad=True)
    logprob, entropy = logprobs.logprobs_and_entropy(logits, torch.tensor([[0]]))
    assert logprob.item() == pytest.approx(-math.log(2), abs=1e-6)
    assert entropy.item() == pytest.approx(math.log(2), abs=1e-6)
    (2 * entropy + logprob).sum().backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[[0.5, -0.5, 0.0]]]))


def test_half_precision_is_computed_in_float32():
    logits = random_logits(2, 2, 5).to(torch.bfloat16)
    tokens = torch.tensor([[0, 1], [2, 3]])
    expected, expected_entropy = loop_logprobs(logits.double(), tokens, 0.7)
    logprob, entropy = logprobs.logprobs_and_entropy(logits, tokens, temperature=0.7)
    torch.testing.assert_close(logprob, expected.float(), rtol=0, atol=2e-6)
    torch.testing.assert_close(entropy, expected_entropy.float(), rtol=0, atol=2e-6)
    torch.testing.assert_close(
        logprobs.token_logprobs(logits, tokens, temperature=0.7), expected.float(), rtol=0, atol=2e-6
    )


def test_gradcheck():
    logits = random_logits(2, 3, 4).requires_grad_()
    tokens = torch.tensor([[0, 1, 3], [2, 2, 0]])
    assert torch.autograd.gradcheck(lambda x: logprobs.token_logprobs(x, tokens, temperature=0.8), (logits,))
    assert torch.autograd.gradcheck(lambda x: logprobs.logprobs_and_entropy(x, tokens, temperature=0.8), (logits,))
    assert torch.autograd.gradgradcheck(lambda x: logprobs.token_logprobs(x, tokens), (logits,))


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_temperature_must_be_positive(temperature):
    with pytest.raises(ConfigError):
        logprobs.token_logprobs(random_logits(1, 2, 3), torch.tensor([[0, 1]]), temperature=temperature)


@pytest.mark.parametrize("function", ["token_logprobs", "logprobs_and_entropy", "logprobs_with_detached_entropy"])
def test_unshifted_logits_are_refused(function):
    with pytest.raises(ConfigError, match="shifted"):
        getattr(logprobs, function)(random_logits(1, 3, 3), torch.tensor([[0, 1]]))


@pytest.mark.parametrize("offset", [0.0, 300.0, 1e4])
def test_a_log_probability_does_not_depend_on_what_all_logits_have_in_common(offset):
    """Offsets that float32 adds without rounding: quarters."""
    logits = torch.tensor([[[0.25, 1.5, -2.0, 3.75]]])
    tokens = torch.tensor([[1]])
    expected = 1.5 - math.log(sum(math.exp(x) for x in (0.25, 1.5, -2.0, 3.75)))
    assert logprobs.token_logprobs(logits + offset, tokens).item() == pytest.approx(expected, abs=5e-7)
