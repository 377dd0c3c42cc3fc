"""The state of a batch of responses while it is sampled."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_lab.errors import NotFiniteError


def sample_token(logits: Tensor, uniform: Tensor, temperature: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sample by inverting the cumulative softmax(logits / temperature), given (B, V) logits and (B,) uniforms.

    Returns (B,) token ids, their (B,) log-probabilities in nats, and whether the logits were finite, () bool (if not,
    the rest is meaningless).
    """
    wide_logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    probabilities = torch.softmax(wide_logits / temperature, dim=-1)
    cumulative = probabilities.cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    index = torch.searchsorted(cumulative, uniform[:, None] * total, right=True).clamp_max(logits.shape[1] - 1)
    return index.squeeze(1), probabilities.gather(1, index).double().log().squeeze(1), torch.isfinite(total).all()


def nucleus_logits(logits: Tensor, temperature: float | Tensor, top_p: float) -> Tensor:
    """(B, V) logits, -inf outside of the nucleus: the smallest set of most likely tokens whose probabilities sum to at least
    top_p (Holtzman et al. 2020).
    """
    scaled_logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).div(temperature)
    sorted_probabilities, order = torch.softmax(scaled_logits, dim=-1).sort(descending=True, stable=True)
    before = sorted_probabilities.cumsum(dim=-1, dtype=torch.float64) - sorted_probabilities
    outside = torch.empty_like(before, dtype=torch.bool).scatter_(1, order, before >= top_p)
    return logits.masked_fill(outside, float("-inf"))


def raise_if_not_finite(all_finite: Tensor) -> None:
    """Raises NotFiniteError unless all_finite, () bool, is true."""
    if not bool(all_finite):
        raise NotFiniteError(
            "the model's logits are not finite, so nothing can be sampled. "
            "Lower the learning rate or load the model in float32."
        )


@dataclass
class SamplingState:
    """B rows in progress (finished ones included) of N responses of at most T tokens.

    Changed in place wherever shapes allow, so that a CUDA graph can contain the tensors. Reads nothing back from the
    device.

    Attributes:
        response_index: (B,) int64, the response of each row.
        input_ids, positions: (B, 1) int64, the next input token and its position.
        mask: (B, L) int64, 1 on the row's tokens so far.
        active: (B,) bool, no stop token yet.
        uniform, logprobs: (N, T) float64. tokens: (N, T) int64, -1 after the end.
        all_finite: () bool, every logit so far. temperature: () float64. eos_ids: (E,) int64, the stop tokens.
        top_p: below 1, tokens are sampled from the nucleus alone.
    """

    response_index: Tensor
    input_ids: Tensor
    positions: Tensor
    mask: Tensor
    active: Tensor
    uniform: Tensor
    logprobs: Tensor
    tokens: Tensor
    all_finite: Tensor
    temperature: Tensor
    eos_ids: Tensor
    top_p: float = 1.0

    def sample_step(self, logits: Tensor, t: int | Tensor) -> None:
        """Sample response token t, an int or (1,) int64, of every row from (B, V) logits."""
        if self.top_p < 1:
            logits = nucleus_logits(logits, self.temperature, self.top_p)
        tokens, logprobs, is_finite = sample_token(logits, self.uniform[self.response_index, t], self.temperature)
        self.tokens[self.response_index, t] = tokens.masked_fill(~self.active, -1)
        self.logprobs[self.response_index, t] = logprobs
        self.active.logical_and_((tokens[:, None] != self.eos_ids).all(1))
        self.all_finite.logical_and_(is_finite)
        self.input_ids.copy_(tokens[:, None])
        self.positions.add_(1)

    def count_active(self) -> int:
        """The number of unfinished rows. Waits for the device. Raises NotFiniteError."""
        raise_if_not_finite(self.all_finite)
        return int(self.active.sum())

    def select(self, index: Tensor) -> None:
        """Keep only these rows."""
        self.response_index, self.input_ids = self.response_index[index], self.input_ids[index]
        self.positions = self.positions[index]
        self.mask, self.active = self.mask[index], self.active[index]
