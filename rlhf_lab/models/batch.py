"""Batches of (prompt, response) token ids, and their hidden states.

A forward pass reads row b as [prompt | response | padding] without gaps: attention is causal, so no mask is needed, and
the width is that of the longest row. Position i of the trunk reads token i and predicts token i+1, so a response of R
tokens after a prompt of P tokens is predicted at P-1 … P+R-2 (`before_token`) and read at P … P+R-1 (`at_token`).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlhf_lab.errors import ModelError
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.oom import run_in_chunks


class Batch(NamedTuple):
    """Prompts (B, Q), prompt_mask (B, Q), responses (B, R) int64; mask (B, R) bool on response tokens; ended (B,) bool,
    whether the last token is a stop token; lengths (B, 2) int64, tokens of prompt and response, always on the CPU, so
    that shapes are known without waiting for a GPU.
    """

    prompts: Tensor
    prompt_mask: Tensor
    responses: Tensor
    mask: Tensor
    ended: Tensor
    lengths: Tensor

    def select(self, indices: Tensor) -> "Batch":
        """The rows of `indices`, (N,) on the CPU, trimmed to their longest prompt and response."""
        lengths, device_indices = self.lengths[indices], indices.to(self.ended.device, non_blocking=True)
        width, length = lengths.amax(0).tolist()
        prompts, prompt_mask, responses, mask, ended = (tensor[device_indices] for tensor in self[:-1])
        return Batch(
            prompts[:, -width:], prompt_mask[:, -width:], responses[:, :length], mask[:, :length], ended, lengths
        )

    def token_ids(self) -> tuple[list[list[int]], list[list[int]]]:
        """The token ids of the prompts and of the responses, row by row."""
        prompts, responses = self.prompts.tolist(), self.responses.tolist()
        lengths = self.lengths.tolist()
        return (
            [row[len(row) - length :] for row, (length, _) in zip(prompts, lengths, strict=True)],
            [row[:length] for row, (_, length) in zip(responses, lengths, strict=True)],
        )

    @property
    def response_indices(self) -> tuple[Tensor, Tensor]:
        """Row and column of every response token, (N,) int64 each."""
        row, column = (torch.arange(self.mask.shape[1]) < self.lengths[:, 1:]).nonzero(as_tuple=True)
        device = self.ended.device
        return row.to(device, non_blocking=True), column.to(device, non_blocking=True)


class HiddenStates(NamedTuple):
    """Hidden states (B, L, H), starting at the last token of the shortest prompt. prompt_lengths: (B,), how many of a row's
    states belong to its prompt, at least one. response_length: R, the length of the longest response.
    """

    states: Tensor
    prompt_lengths: Tensor
    response_length: int

    @property
    def before_token(self) -> Tensor:
        """(B, R, H) where each response token is predicted; padding contains states of other positions."""
        return self._gather_from(self.prompt_lengths - 1)

    @property
    def at_token(self) -> Tensor:
        """(B, R, H) where each response token is read; padding contains states of other positions."""
        return self._gather_from(self.prompt_lengths)

    def _gather_from(self, start: Tensor) -> Tensor:
        positions = start[:, None] + torch.arange(self.response_length, device=start.device)
        positions = positions.clamp_max(self.states.shape[1] - 1)[..., None]
        return self.states.gather(1, positions.expand(-1, -1, self.states.shape[2]))


def pad_left(sequences: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(B, L) ids and mask of ragged rows, right-aligned."""
    ids, lengths = _pad(sequences, pad_id, "left")
    mask = torch.arange(ids.shape[1]) >= ids.shape[1] - lengths
    return ids.to(device, non_blocking=True), mask.long().to(device, non_blocking=True)


def pad_right(sequences: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(B, L) ids and bool mask of ragged rows, left-aligned. The mask follows from the lengths: pad may equal EOS."""
    ids, lengths = _pad(sequences, pad_id, "right")
    mask = torch.arange(ids.shape[1]) < lengths
    return ids.to(device, non_blocking=True), mask.to(device, non_blocking=True)


def _pad(sequences: Sequence[Sequence[int]], pad_id: int, side: str) -> tuple[Tensor, Tensor]:
    """(B, L) ids, L at least 1, and (B, 1) lengths."""
    tensors = [torch.tensor(row, dtype=torch.int64) for row in sequences]
    ids = pad_sequence(tensors, batch_first=True, padding_value=pad_id, padding_side=side)
    if not ids.shape[1]:
        ids = torch.full((len(sequences), 1), pad_id)
    return ids, torch.tensor([len(row) for row in sequences])[:, None]


def make_batch(backbone: Backbone, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> Batch:
    """Pad ragged rows. Raises ModelError if one is empty or does not fit the model's context."""
    for prompt, response in zip(prompts, responses, strict=True):
        if not prompt:
            raise ModelError("a prompt has no tokens, so nothing predicts the response; use Backbone.encode_prompt.")
        if not response:
            raise ModelError("a response has no tokens, not even a stop token; it cannot be scored.")
        if len(prompt) + len(response) > backbone.context_length:
            raise ModelError(
                f"a text of {len(prompt) + len(response)} tokens does not fit the model's context of "
                f"{backbone.context_length}. Shorten the prompt or the response."
            )
    ended = torch.tensor([response[-1] in backbone.eos_ids for response in responses])
    lengths = torch.tensor([[len(ids) for ids in pair] for pair in zip(prompts, responses, strict=True)])
    left = pad_left(prompts, backbone.pad_id, backbone.device)
    right = pad_right(responses, backbone.pad_id, backbone.device)
    return Batch(*left, *right, ended.to(backbone.device, non_blocking=True), lengths)


def forward(backbone: Backbone, batch: Batch, *, predict_only: bool = False) -> HiddenStates:
    """Hidden states of the responses with the adapter in use.

    predict_only: if only `before_token` is needed; the last token of the longest sequence is then not read, since it
    predicts nothing.
    """
    input_ids, prompt_lengths, start_pos = _joined_rows(batch, predict_only)
    return HiddenStates(backbone.hidden(input_ids, start_pos), prompt_lengths, batch.mask.shape[1])


def forward_layers(backbone: Backbone, batch: Batch) -> Iterator[HiddenStates]:
    """`forward` of the embeddings and of every layer, one after the other: see `Backbone.layer_states`."""
    input_ids, prompt_lengths, start_pos = _joined_rows(batch)
    for states in backbone.layer_states(input_ids, start_pos):
        yield HiddenStates(states, prompt_lengths, batch.mask.shape[1])


def _joined_rows(batch: Batch, predict_only: bool = False) -> tuple[Tensor, Tensor, int]:
    """Rows of prompt, response and padding (B, L); `HiddenStates.prompt_lengths`; the first position whose states are
    needed.
    """
    prompt_lengths = batch.prompt_mask.sum(1)
    longest, shortest = int(batch.lengths.sum(1).max()), int(batch.lengths[:, 0].min())
    joined = torch.cat([batch.prompts, batch.responses], dim=1)
    start = batch.prompts.shape[1] - prompt_lengths
    columns = start[:, None] + torch.arange(longest - predict_only, device=joined.device)
    input_ids = joined.gather(1, columns.clamp_max(joined.shape[1] - 1))
    return input_ids, prompt_lengths - (shortest - 1), shortest - 1


def map_by_length(
    fn: Callable[[list[int]], Tensor], lengths: Sequence[int], backbone: Backbone, max_tokens: int | None = None
) -> Tensor:
    """Apply `fn` (indices -> (n, …)) to batches of rows of similar length; results in the original order.

    A batch has at most `token_budget` tokens of the backbone, padding included (or a single longer row), and fewer if
    memory runs out.
    max_tokens: a lower limit.
    """
    budget = backbone.token_budget if max_tokens is None else min(backbone.token_budget, max_tokens)

    def run_batch(indices: list[int]) -> list[Tensor]:
        return run_in_chunks(backbone, len(indices), lambda chunk: fn(indices[chunk]))

    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    index_batches: list[list[int]] = []
    for i in order:
        if not index_batches or (len(index_batches[-1]) + 1) * lengths[i] > budget:
            index_batches.append([])
        index_batches[-1].append(i)
    pass_count = backbone.sync_pass_count(len(index_batches))  # before the first pass: all processes must call it
    joined = torch.cat([result_chunk for indices in index_batches for result_chunk in run_batch(indices)])
    for _ in range(pass_count - len(index_batches)):
        fn(index_batches[0])  # other processes need this one's shards
    result = torch.empty_like(joined)
    result[torch.tensor(order, device=joined.device)] = joined
    return result
