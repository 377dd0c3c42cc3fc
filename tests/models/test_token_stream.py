"""Sampling in slices, and top-p."""

import math

import pytest
import torch
from support import tiny_models

from rlhf_lab.models.sampling.sampler import TokenStream, sample, uniforms
from rlhf_lab.models.sampling.sampling_state import nucleus_logits


def test_a_stream_in_slices_gives_the_tokens_of_sample(llama_folder):
    backbone = tiny_models.load(llama_folder)
    prompt, uniform = backbone.encode_prompt("the king"), uniforms([5], 20)
    expected = sample(backbone, [prompt], uniform, temperature=1.3).tokens[0]
    assert len(expected) > 4
    stream, slices = TokenStream(backbone, prompt, uniform, temperature=1.3), []
    while not stream.advance(iter([False, False, True]).__next__):
        slices.append(len(stream.tokens))
        assert stream.tokens == expected[: len(stream.tokens)]
    assert stream.tokens == expected
    assert slices == list(range(3, len(expected), 2))


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.4, [1]), (0.5, [1]), (0.51, [1, 3]), (0.8, [1, 3]), (0.81, [0, 1, 3]), (1.0, [0, 1, 2, 3])]
)
def test_the_nucleus_is_the_fewest_likely_tokens_that_reach_top_p(top_p, kept):
    probabilities = torch.tensor([[0.125, 0.5, 0.075, 0.3]], dtype=torch.float64)
    logits = nucleus_logits(probabilities.log(), 1.0, top_p)
    assert logits.isfinite().nonzero()[:, 1].tolist() == kept
    assert logits[0, 1].item() == pytest.approx(math.log(0.5))


def test_the_nucleus_is_that_of_the_temperature():
    logits = torch.tensor([[0.0, math.log(3.0)]])  # probabilities 1/4, 3/4; at temperature 2: 0.366, 0.634
    assert nucleus_logits(logits, 1.0, 0.7).isfinite().tolist() == [[False, True]]
    assert nucleus_logits(logits, 2.0, 0.7).isfinite().tolist() == [[True, True]]


def test_with_a_small_top_p_every_token_is_the_likeliest(llama_folder):
    backbone = tiny_models.load(llama_folder)
    prompt = backbone.encode_prompt("the king")
    streams = [TokenStream(backbone, prompt, uniforms([seed], 12), temperature=2.0, top_p=0.01) for seed in (1, 2)]
    for stream in streams:
        stream.advance(lambda: False)
    likeliest = sample(backbone, [prompt], torch.full((1, 12), 0.5, dtype=torch.float64), temperature=1e-4).tokens[0]
    assert streams[0].tokens == streams[1].tokens == likeliest
