"""Rows of (prompt, response) token ids as tensors, and their hidden states.

A row is laid out as [left padding | prompt | response | right padding]. Position i of the trunk reads token i and predicts
token i+1, so a response of R tokens after a prompt of width Q is predicted at Q-1 … Q+R-2 (`predicting`) and has been read
at Q … Q+R-1 (`read`).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf_lab.errors import ModelError
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.generation import pad_left, pad_right


class Rows(NamedTuple):
    """A batch of rows: prompts (B, Q), prompt_mask (B, Q), responses (B, R) int64; mask (B, R) bool on response tokens;
    ended (B,) bool where the last token is a stop token in force."""

    prompts: Tensor
    prompt_mask: Tensor
    responses: Tensor
    mask: Tensor
    ended: Tensor

    def take(self, index: Tensor) -> "Rows":
        """The rows of `index`, trimmed to their longest prompt and response."""
        prompts, prompt_mask, responses, mask, ended = (part[index] for part in self)
        width = int(prompt_mask.sum(1).max())
        length = int(mask.sum(1).max())
        return Rows(prompts[:, -width:], prompt_mask[:, -width:], responses[:, :length], mask[:, :length], ended)


class Hidden(NamedTuple):
    """Hidden states (B, R, H) where each response token is predicted, and where it has been read."""

    predicting: Tensor
    read: Tensor


def make_rows(backbone: Backbone, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> Rows:
    """Pad ragged rows. Raises ModelError when one does not fit the model's context or is empty."""
    for prompt, response in zip(prompts, responses, strict=True):
        if not prompt:
            raise ModelError("a prompt has no tokens, so nothing predicts the response; use Backbone.encode_prompt.")
        if not response:
            raise ModelError("a response has no tokens, not even an end; it cannot be scored.")
        if len(prompt) + len(response) > backbone.context:
            raise ModelError(
                f"a text of {len(prompt) + len(response)} tokens does not fit the model's context of "
                f"{backbone.context}. Shorten the prompt or the response."
            )
    ended = torch.tensor([response[-1] in backbone.eos_ids for response in responses], device=backbone.device)
    left = pad_left(prompts, backbone.pad_id, backbone.device)
    right = pad_right(responses, backbone.pad_id, backbone.device)
    return Rows(*left, *right, ended)


def forward(backbone: Backbone, rows: Rows) -> Hidden:
    """Hidden states of the response under whatever adapter is on."""
    ids = torch.cat([rows.prompts, rows.responses], dim=1)
    attention = torch.cat([rows.prompt_mask, rows.mask.long()], dim=1)
    hidden = backbone.hidden(ids, attention)
    width = rows.prompts.shape[1]
    return Hidden(hidden[:, width - 1 : -1], hidden[:, width:])


def by_length(function: Callable[[list[int]], Tensor], lengths: Sequence[int], batch: int) -> Tensor:
    """Apply `function` (indices -> (n, …)) to batches of rows of similar length; results in the original order."""
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    parts = [function(order[i : i + batch]) for i in range(0, len(order), batch)]
    joined = torch.cat(parts)
    result = torch.empty_like(joined)
    result[torch.tensor(order, device=joined.device)] = joined
    return result
