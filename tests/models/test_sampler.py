"""Sampling: the distribution of tokens, and what must not affect it."""

import math

import pytest
import torch
from support import tiny_models

from rlhf_lab.errors import ModelError, NotFiniteError
from rlhf_lab.models.batch import pad_left, pad_right
from rlhf_lab.models.sampling import sampler
from rlhf_lab.models.sampling.sampler import PROGRESS_EVERY, sample, uniforms
from rlhf_lab.models.sampling.sampling_state import SamplingState, raise_if_not_finite, sample_token

CPU = torch.device("cpu")


def test_sample_token_by_hand():
    """Probabilities 1/4, 0, 1/2, 1/4: u below 1/4 draws 0, below 3/4 draws 2, else 3; an impossible token never."""
    logits = torch.tensor([1.0, 0.0, 2.0, 1.0], dtype=torch.float64).log().expand(6, 4)
    tokens, logprobs, finite = sample_token(
        logits, torch.tensor([0.0, 0.2499, 0.2501, 0.7499, 0.7501, 1 - 2**-53]).double(), 1.0
    )
    assert tokens.tolist() == [0, 0, 2, 2, 3, 3]
    assert bool(finite)
    quarter, half = math.log(1 / 4), math.log(1 / 2)
    assert logprobs.tolist() == pytest.approx([quarter, quarter, half, half, quarter, quarter], abs=1e-12)


def test_an_impossible_token_is_not_sampled_at_u_0():
    """Uniforms may be exactly 0, where a token of probability 0 and the first possible one meet."""
    logits = torch.tensor([[-500.0, 0.0, 0.0]], dtype=torch.float64) * 1e6
    assert sample_token(logits, torch.zeros(1).double(), 1.0)[0].tolist() == [1]


def test_sample_token_at_a_temperature_by_hand():
    """Odds 1 : 4 at temperature 2 are 1 : 2."""
    logits = torch.tensor([[1.0, 4.0]]).double().log().expand(2, 2)
    tokens, logprobs, _ = sample_token(logits, torch.tensor([0.333, 0.334]).double(), 2.0)
    assert tokens.tolist() == [0, 1]
    assert logprobs.tolist() == pytest.approx([math.log(1 / 3), math.log(2 / 3)], abs=1e-12)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_refused(value):
    finite = sample_token(torch.tensor([[0.0, 1.0, 2.0], [0.0, value, 1.0]]), torch.tensor([0.5, 0.5]).double(), 1.0)[2]
    with pytest.raises(NotFiniteError, match="logits are not finite"):
        raise_if_not_finite(finite)


def test_nan_weights_are_refused(llama_folder):
    backbone = tiny_models.load(llama_folder)
    with torch.no_grad():
        backbone.model.get_output_embeddings().weight[7] = math.nan
    with pytest.raises(NotFiniteError):
        sample(backbone, [[9]], tiny_models.seeded(1, 2))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_frequencies_are_the_softmax(tmp_path, temperature):
    """On a grid of N uniforms every token is drawn N p times, within one; sampling filters of the model folder are ignored."""
    filters = {"do_sample": True, "top_k": 2, "top_p": 0.3, "temperature": 0.01, "repetition_penalty": 9.0}
    filters |= {"min_p": 0.5, "suppress_tokens": [10, 11], "min_new_tokens": 3, "bad_words_ids": [[12]]}
    tiny_models.set_generation_config(tiny_models.save_llama(tmp_path), **filters)
    backbone, count = tiny_models.load(tmp_path), 2000
    prompt = tiny_models.ids("the cat sat")
    grid = ((torch.arange(count).double() + 0.5) / count)[:, None]
    tokens = [row[0] for row in sample(backbone, [prompt] * count, grid, temperature=temperature).tokens]
    expected = torch.softmax(tiny_models.all_logits(backbone, prompt, [0])[0] / temperature, dim=-1) * count
    found = torch.bincount(torch.tensor(tokens), minlength=len(tiny_models.WORDS))
    assert float((found - expected).abs().max()) < 1.01
    assert int((found > 0).sum()) > 20


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_sampler_logprobs_equal_teacher_forcing(folders, kind):
    """The cached, left-padded decode with rows dropping out, against plain forwards of each row at the temperature."""
    backbone = tiny_models.load(folders[kind], torch.float64)
    prompts, _ = tiny_models.ragged(rows=8)
    sampled = sample(backbone, prompts, tiny_models.seeded(8, 30), temperature=1.7)
    assert len({len(row) for row in sampled.tokens}) > 2
    for prompt, tokens, logprobs in zip(prompts, *sampled, strict=True):
        expected = tiny_models.teacher_forced(backbone, prompt, tokens, temperature=1.7)
        assert logprobs == pytest.approx(expected.tolist(), abs=1e-9)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_row_does_not_depend_on_its_batch(folders, kind):
    backbone = tiny_models.load(folders[kind], torch.float64)
    prompts, _ = tiny_models.ragged(rows=6)
    uniform = tiny_models.seeded(6, 10)
    together = sample(backbone, prompts, uniform)
    for i, prompt in enumerate(prompts):
        alone = sample(backbone, [prompt], uniform[i : i + 1])
        assert alone.tokens == [together.tokens[i]]
        assert alone.logprobs[0] == pytest.approx(together.logprobs[i], abs=1e-10)


def test_uniforms_depend_on_their_seed_only():
    rows = uniforms([7, 8], 5)
    assert rows.dtype == torch.float64
    assert rows.shape == (2, 5)
    assert torch.equal(rows[1], uniforms([8], 5)[0])
    assert torch.equal(rows[:, :3], uniforms([7, 8], 3))
    assert not torch.equal(rows[0], rows[1])
    assert bool(((rows >= 0) & (rows < 1)).all())


def test_eos_is_kept_as_the_last_id_and_ends_the_row(gpt2_folder):
    """A uniform just below 1/p picks EOS (id 0, the first in the cumulative sum): first for row 0, third for row 1."""
    backbone = tiny_models.load(gpt2_folder)
    uniform = torch.full((3, 4), 0.9, dtype=torch.float64)
    uniform[0, 0] = uniform[1, 2] = 0.0
    tokens = sample(backbone, [[9], [10, 11], [12]], uniform).tokens
    assert tokens[0] == [tiny_models.EOS]
    assert (len(tokens[1]), tokens[1][-1]) == (3, tiny_models.EOS)
    assert len(tokens[2]) == 4
    assert tiny_models.EOS not in [*tokens[1][:-1], *tokens[2]]


def test_another_stop_token_ends_a_row_too(tmp_path):
    tiny_models.set_generation_config(
        tiny_models.save_llama(tmp_path), eos_token_id=[tiny_models.STOP, tiny_models.UNK]
    )
    backbone = tiny_models.load(tmp_path)
    with torch.no_grad():
        backbone.model.get_output_embeddings().weight.zero_()  # every token is as likely: id = floor(55 u)
    uniform = (
        torch.tensor([[20.5, tiny_models.STOP + 0.5, 9.5], [9.5, 9.5, 9.5], [tiny_models.UNK + 0.5, 9.5, 9.5]]).double()
        / 55
    )
    assert sample(backbone, [[9]] * 3, uniform).tokens == [[20, tiny_models.STOP], [9, 9, 9], [tiny_models.UNK]]


def test_length_is_the_number_of_uniforms_and_the_context_is_a_limit(llama_folder):
    backbone = tiny_models.load(llama_folder)
    assert len(sample(backbone, [[9] * 45], torch.full((1, 3), 0.99).double()).tokens[0]) == 3
    with pytest.raises(ModelError, match=r"prompt of 45 tokens and a response of 4 .* context of 48"):
        sample(backbone, [[9], [9] * 45], torch.full((2, 4), 0.99).double())


def test_sampling_leaves_the_global_generator_and_the_weights_alone(llama_folder):
    backbone = tiny_models.load(llama_folder)
    before, weights = torch.random.get_rng_state(), tiny_models.weights_hash(backbone)
    first = sample(backbone, [[9], [10]], tiny_models.seeded(2, 6))
    torch.rand(3)
    assert sample(backbone, [[9], [10]], tiny_models.seeded(2, 6)) == first
    torch.random.set_rng_state(before)
    sample(backbone, [[9], [10]], tiny_models.seeded(2, 6))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert tiny_models.weights_hash(backbone) == weights


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_check_interval_does_not_change_samples(folders, kind, monkeypatch):
    """As on a GPU: rows that have ended are continued for some steps, without synchronising in between."""
    backbone, checks = tiny_models.load(folders[kind], torch.float64), []
    prompts, _ = tiny_models.ragged(rows=8)
    expected = sample(backbone, prompts, tiny_models.seeded(8, 36))
    original = SamplingState.count_active
    monkeypatch.setattr(
        SamplingState, "count_active", lambda self: checks.append(len(self.response_index)) or original(self)
    )
    monkeypatch.setitem(sampler.CHECK_ENDED_EVERY, "cpu", PROGRESS_EVERY)
    found = sample(backbone, prompts, tiny_models.seeded(8, 36))
    assert found.tokens == expected.tokens
    for mine, theirs in zip(found.logprobs, expected.logprobs, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-10)
    assert len(checks) == 2


def test_on_progress_is_called_and_may_stop(llama_folder):
    backbone, calls = tiny_models.load(llama_folder), []
    uniform = torch.full((1, 2 * PROGRESS_EVERY + 1), 0.97, dtype=torch.float64)
    assert len(sample(backbone, [[9]], uniform, on_progress=lambda: calls.append(1)).tokens[0]) == uniform.shape[1]
    assert len(calls) == 2

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sample(backbone, [[9]], uniform, on_progress=stop)


def test_padding_by_hand():
    left, left_mask = pad_left([[5], [6, 7, 8]], 2, CPU)
    assert (left.tolist(), left_mask.tolist()) == ([[2, 2, 5], [6, 7, 8]], [[0, 0, 1], [1, 1, 1]])
    right, right_mask = pad_right([[2], [6, 2, 8]], 2, CPU)
    assert right.tolist() == [[2, 2, 2], [6, 2, 8]]
    assert right_mask.tolist() == [[True, False, False], [True, True, True]]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_repeated_prompts_are_read_once(folders, kind):
    """Four rows with two alternating prompts of different lengths: each row as in a separate batch."""
    backbone, seen = tiny_models.load(folders[kind], torch.float64), []
    long, short, uniform = tiny_models.ids("the old king saw"), tiny_models.ids("moon"), tiny_models.seeded(4, 8)
    prompts = [long, short, list(long), short]
    hook = backbone.trunk.register_forward_pre_hook(
        lambda _, args, given: seen.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    together = sample(backbone, prompts, uniform)
    hook.remove()
    assert seen[0] == (2, 4)
    for i, prompt in enumerate(prompts):
        alone = sample(backbone, [prompt], uniform[i : i + 1])
        assert alone.tokens == [together.tokens[i]]
        assert alone.logprobs[0] == pytest.approx(together.logprobs[i], abs=1e-10)
    assert together.tokens[0] != together.tokens[2]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_shared_prefix_is_read_once(folders, kind, monkeypatch):
    """For three prompts and a repeated one; the same samples as without sharing."""
    system = [5 + i for i in range(17)]
    prompts = [[*system, 30, 31, 32], [*system, 33], [*system, 30, 34], [*system, 33]]
    backbone, read = tiny_models.load(folders[kind]), []
    backbone.trunk.register_forward_hook(
        lambda _, inputs, options, __: read.append(tuple(options["input_ids"].shape)), with_kwargs=True
    )
    uniform = tiny_models.seeded(4, 6)
    ours = sample(backbone, prompts, uniform)
    assert read[:2] == [(1, 17), (3, 3)]
    read.clear()
    monkeypatch.setattr(sampler, "MIN_SHARED_PREFIX", 18)
    expected = sample(backbone, prompts, uniform)
    assert read[0] == (3, 20)
    assert ours.tokens == expected.tokens
    for row, other in zip(ours.logprobs, expected.logprobs, strict=True):
        assert row == pytest.approx(other, abs=1e-4)


@pytest.mark.parametrize(
    ("prompts", "length"),
    [
        ([[7] * 18 + [1], [7] * 18 + [2], [7] * 17 + [3, 4]], 17),
        ([[7] * 17, [7] * 20], 16),  # one token of the shortest prompt remains to be read
        ([[7] * 16, [7] * 20], 0),
        ([[7] * 15 + [1, 7], [7] * 15 + [2, 7]], 0),
        ([[7] * 20], 0),
    ],
)
def test_what_prompts_begin_with(prompts, length):
    assert sampler._shared_prefix(prompts) == [7] * length
