"""One token of each row: drawn from the logits, and noted."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_lab.errors import NotFiniteError


def sample_token(logits: Tensor, uniform: Tensor, temperature: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(B,) token ids from (B, V) logits and (B,) uniforms by inversion of the cumulative softmax(logits / temperature);
    their (B,) log-probabilities, nats; and whether the logits were finite, () bool (the rest is worthless if not).
    """
    wide_logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    probabilities = torch.softmax(wide_logits / temperature, dim=-1)
    cumulative = probabilities.cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    index = torch.searchsorted(cumulative, uniform[:, None] * total, right=True).clamp_max(logits.shape[1] - 1)
    return index.squeeze(1), probabilities.gather(1, index).double().log().squeeze(1), torch.isfinite(total).all()


def raise_if_not_finite(all_finite: Tensor) -> None:
    """Raises NotFiniteError where the logits were not. finite: () bool, as `sample_token` returns it."""
    if not bool(all_finite):
        raise NotFiniteError(
            "the model's logits are not finite, so nothing can be sampled. "
            "Lower the learning rate or load the model in float32."
        )


@dataclass
class SamplingState:
    """Responses while they are written: B rows are carried (finished ones among them), of N responses of at most T tokens.

    Changed in place wherever shapes allow, so that a CUDA graph can hold the tensors; reads nothing back from the device.

    Attributes:
        rows: (B,) int64, which response each row is.
        ids, positions: (B, 1) int64, the token read next and its place in the row's text.
        mask: (B, L) int64, 1 on the row's tokens read so far.
        alive: (B,) bool, no stop token yet.
        uniform, logprobs: (N, T) float64. tokens: (N, T) int64, -1 behind the end.
        finite: () bool, every logit so far. temperature: () float64. eos: (E,) int64, the stop tokens.
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

    def sample_step(self, logits: Tensor, t: int | Tensor) -> None:
        """Draw response token t, an int or (1,) int64, of every row from (B, V) logits."""
        tokens, logprobs, is_finite = sample_token(logits, self.uniform[self.response_index, t], self.temperature)
        self.tokens[self.response_index, t] = tokens.masked_fill(~self.active, -1)
        self.logprobs[self.response_index, t] = logprobs
        self.active.logical_and_((tokens[:, None] != self.eos_ids).all(1))
        self.all_finite.logical_and_(is_finite)
        self.input_ids.copy_(tokens[:, None])
        self.positions.add_(1)

    def count_active(self) -> int:
        """How many rows go on. Waits for the device. Raises NotFiniteError."""
        raise_if_not_finite(self.all_finite)
        return int(self.active.sum())

    def select(self, index: Tensor) -> None:
        """Carry these rows alone."""
        self.response_index, self.input_ids, self.positions = (
            self.response_index[index],
            self.input_ids[index],
            self.positions[index],
        )
        self.mask, self.active = self.mask[index], self.active[index]
