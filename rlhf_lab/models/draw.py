"""One token of each row: drawn from the logits, and noted."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_lab.errors import NotFiniteError


def draw(logits: Tensor, uniform: Tensor, temperature: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(B,) token ids from (B, V) logits and (B,) uniforms by inversion of the cumulative softmax(logits / temperature);
    their (B,) log-probabilities, nats; and whether the logits were finite, () bool (the rest is worthless if not).
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    probabilities = torch.softmax(wide / temperature, dim=-1)
    cumulative = probabilities.cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    index = torch.searchsorted(cumulative, uniform[:, None] * total, right=True).clamp_max(logits.shape[1] - 1)
    return index.squeeze(1), probabilities.gather(1, index).double().log().squeeze(1), torch.isfinite(total).all()


def refuse_not_finite(finite: Tensor) -> None:
    """Raises NotFiniteError where the logits were not. finite: () bool, as `draw` returns it."""
    if not bool(finite):
        raise NotFiniteError(
            "the model's logits are not finite, so nothing can be sampled. "
            "Lower the learning rate or load the model in float32."
        )


@dataclass
class Writing:
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

    rows: Tensor
    ids: Tensor
    positions: Tensor
    mask: Tensor
    alive: Tensor
    uniform: Tensor
    logprobs: Tensor
    tokens: Tensor
    finite: Tensor
    temperature: Tensor
    eos: Tensor

    def take(self, logits: Tensor, t: int | Tensor) -> None:
        """Draw response token t, an int or (1,) int64, of every row from (B, V) logits."""
        tokens, logprobs, finite = draw(logits, self.uniform[self.rows, t], self.temperature)
        self.tokens[self.rows, t] = tokens.masked_fill(~self.alive, -1)
        self.logprobs[self.rows, t] = logprobs
        self.alive.logical_and_((tokens[:, None] != self.eos).all(1))
        self.finite.logical_and_(finite)
        self.ids.copy_(tokens[:, None])
        self.positions.add_(1)

    def living(self) -> int:
        """How many rows go on. Waits for the device. Raises NotFiniteError."""
        refuse_not_finite(self.finite)
        return int(self.alive.sum())

    def keep(self, index: Tensor) -> None:
        """Carry these rows alone."""
        self.rows, self.ids, self.positions = self.rows[index], self.ids[index], self.positions[index]
        self.mask, self.alive = self.mask[index], self.alive[index]
