"""Rows of (prompt, response) token ids as tensors, and their hidden states.

A forward pass reads row b as [prompt | response | padding], without holes: real tokens never see the padding behind them, so
no mask is needed, and the width is that of the longest row. Position i of the trunk reads token i and predicts token i+1, so
a response of R tokens after a prompt of P is predicted at P-1 … P+R-2 (`predicting`) and has been read at P … P+R-1 (`read`).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf_lab.errors import ModelError
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.generation import pad_left, pad_right
from rlhf_lab.models.memory import in_pieces


class Rows(NamedTuple):
    """A batch of rows: prompts (B, Q), prompt_mask (B, Q), responses (B, R) int64; mask (B, R) bool on response tokens;
    ended (B,) bool where the last token is a stop token in force; lengths (B, 2) int64, tokens of prompt and response, on the
    CPU wherever the others lie: shapes follow from them, and no GPU is waited for to know one."""

    prompts: Tensor
    prompt_mask: Tensor
    responses: Tensor
    mask: Tensor
    ended: Tensor
    lengths: Tensor

    def take(self, index: Tensor) -> "Rows":
        """The rows of `index`, (N,) on the CPU, trimmed to their longest prompt and response."""
        lengths, there = self.lengths[index], index.to(self.ended.device, non_blocking=True)
        width, length = lengths.amax(0).tolist()
        prompts, prompt_mask, responses, mask, ended = (part[there] for part in self[:-1])
        return Rows(
            prompts[:, -width:], prompt_mask[:, -width:], responses[:, :length], mask[:, :length], ended, lengths
        )

    @property
    def real(self) -> tuple[Tensor, Tensor]:
        """Row and column of every response token, (N,) int64 each."""
        row, column = (torch.arange(self.mask.shape[1]) < self.lengths[:, 1:]).nonzero(as_tuple=True)
        device = self.ended.device
        return row.to(device, non_blocking=True), column.to(device, non_blocking=True)


class Hidden(NamedTuple):
    """Hidden states (B, L, H) from the end of the shortest prompt on; prompts: (B,) how many of them are the prompt's, one at the
    least; length: R, the longest response."""

    states: Tensor
    prompts: Tensor
    length: int

    @property
    def predicting(self) -> Tensor:
        """(B, R, H) where each response token is predicted; padding holds other positions' states."""
        return self._at(self.prompts - 1)

    @property
    def read(self) -> Tensor:
        """(B, R, H) where each response token has been read; padding holds other positions' states."""
        return self._at(self.prompts)

    def _at(self, start: Tensor) -> Tensor:
        index = start[:, None] + torch.arange(self.length, device=start.device)
        index = index.clamp_max(self.states.shape[1] - 1)[..., None]
        return self.states.gather(1, index.expand(-1, -1, self.states.shape[2]))


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
    ended = torch.tensor([response[-1] in backbone.eos_ids for response in responses])
    lengths = torch.tensor([[len(one) for one in both] for both in zip(prompts, responses, strict=True)])
    left = pad_left(prompts, backbone.pad_id, backbone.device)
    right = pad_right(responses, backbone.pad_id, backbone.device)
    return Rows(*left, *right, ended.to(backbone.device, non_blocking=True), lengths)


def forward(backbone: Backbone, rows: Rows, *, to_predict: bool = False) -> Hidden:
    """Hidden states of the response under whatever adapter is on.

    to_predict: where `predicting` alone is wanted; the last token of the longest text is then not read, for it predicts none.
    """
    prompts = rows.prompt_mask.sum(1)
    longest, shortest = int(rows.lengths.sum(1).max()), int(rows.lengths[:, 0].min())
    joined = torch.cat([rows.prompts, rows.responses], dim=1)
    start = rows.prompts.shape[1] - prompts
    index = start[:, None] + torch.arange(longest - to_predict, device=joined.device)
    states = backbone.hidden(joined.gather(1, index.clamp_max(joined.shape[1] - 1)), shortest - 1)
    return Hidden(states, prompts - (shortest - 1), rows.mask.shape[1])


def by_length(
    function: Callable[[list[int]], Tensor], lengths: Sequence[int], backbone: Backbone, most: int | None = None
) -> Tensor:
    """Apply `function` (indices -> (n, …)) to batches of rows of similar length; results in the original order.

    A batch has at most the backbone's `token_budget`, padding included (a longer single row still is one), and less where memory
    runs out. most: tokens, where a batch should have fewer than that.
    """
    budget = min(backbone.token_budget, most or backbone.token_budget)

    def some(batch: list[int]) -> list[Tensor]:
        return in_pieces(backbone, len(batch), lambda rows: function(batch[rows]))

    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    batches: list[list[int]] = []
    for i in order:
        if not batches or (len(batches[-1]) + 1) * lengths[i] > budget:
            batches.append([])
        batches[-1].append(i)
    wanted = backbone.most(len(batches))  # asked before the first pass, where all processes are at the same point
    joined = torch.cat([part for batch in batches for part in some(batch)])
    for _ in range(wanted - len(batches)):
        function(batches[0])  # for the others' sake
    result = torch.empty_like(joined)
    result[torch.tensor(order, device=joined.device)] = joined
    return result
