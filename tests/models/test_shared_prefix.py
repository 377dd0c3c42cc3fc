"""Tokens that all rows of a batch begin with are computed once, with the same result as once per row."""

import pytest
import torch
from support import tiny_models

from rlhf_lab.models.batch import forward, forward_layers, make_batch
from rlhf_lab.models.fused_llama import patch
from rlhf_lab.models.fused_llama.patch import MIN_SHARED_PREFIX, shared_prefix_length

SYSTEM = tiny_models.ids("the old cat sat and the big dog ran and a red bird sang the happy girl not the king")[:18]
PROMPTS = [[*SYSTEM, *tiny_models.ids("the sun")], [*SYSTEM, *tiny_models.ids("a small frog saw")], [*SYSTEM, 7, 9]]
RESPONSES = [tiny_models.ids("the cat ran"), [tiny_models.EOS], tiny_models.ids("so big and red")]


@pytest.mark.parametrize(
    ("rows", "max_length", "expected"),
    [
        ([[5] * 16 + [1], [5] * 16 + [2]], 17, 16),
        ([[5] * 20, [5] * 20], 17, 17),  # no longer than max_length
        ([[5] * 20, [5] * 20], 15, 0),  # too short to be worth it
        ([[5] * 15 + [1, 5, 5], [5] * 15 + [2, 5, 5]], 18, 0),  # equal tokens after a difference do not count
        ([[5] * 20], 20, 0),
        ([[5] * 20, [5] * 20, [6] + [5] * 19], 20, 0),
    ],
)
def test_the_length_of_a_shared_prefix(rows, max_length, expected):
    assert MIN_SHARED_PREFIX == 16
    assert shared_prefix_length(torch.tensor(rows), max_length) == expected


def outputs(backbone, adapters):
    """Hidden states of the policy, their gradients, and the states of every layer."""
    batch = make_batch(backbone, PROMPTS, RESPONSES)
    parameters = adapters.parameters("policy")
    with adapters.using("policy"):
        states = forward(backbone, batch).before_token
        masked = states.float().masked_fill(~batch.mask[..., None], 0.0)
        # Not the sum of squares: that of normalised states is constant, so its gradient is rounding alone.
        weights = torch.linspace(-1, 1, masked.numel()).view_as(masked)
        grads = torch.autograd.grad((masked * weights).sum(), parameters)
        with torch.no_grad():
            layers = [
                hidden.at_token.float().masked_fill(~batch.mask[..., None], 0.0)
                for hidden in forward_layers(backbone, batch)
            ]
    return [masked.detach(), *grads, *layers]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.06)])
def test_states_and_gradients_are_those_of_rows_computed_one_by_one(llama_folder, monkeypatch, dtype, tolerance):
    backbone = tiny_models.load(llama_folder, dtype)
    adapters = tiny_models.adapters_of(backbone, "policy")
    embedded_tokens = []
    backbone.trunk.embed_tokens.register_forward_hook(lambda _, inputs, __: embedded_tokens.append(inputs[0].numel()))
    ours = outputs(backbone, adapters)
    rows, width = len(PROMPTS), max(len(p) + len(r) for p, r in zip(PROMPTS, RESPONSES, strict=True))
    assert embedded_tokens == [18 + rows * (width - 18)] * 2
    monkeypatch.setattr(patch, "MIN_SHARED_PREFIX", 1000)
    expected = outputs(backbone, adapters)
    assert embedded_tokens[2:] == [rows * width] * 2
    assert any(bool(grad.any()) for grad in expected[1:3])
    for actual, reference in zip(ours, expected, strict=True):
        torch.testing.assert_close(actual, reference, rtol=0, atol=tolerance * float(reference.abs().max()) + 1e-8)
