"""Linear heads on the trunk's hidden states: the reward model's score and the policy's value."""

import torch
from torch import Tensor, nn


class RewardHead(nn.Module):
    """A score per response: a linear map of the mean (or the last) of its hidden states, then normalised.

    raw = w · pool(h) + b;  score = (raw - shift) / scale, where shift and scale make reference samples mean 0, sd 1.
    Initialised as w ~ N(0, 1/(H+1)), b = 0 (Ziegler et al. 2019; Huang et al. 2024, detail 2).
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, hidden_size: int, pooling: str, seed: int) -> None:
        super().__init__()
        self.pooling = pooling
        self.linear = _linear(hidden_size)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            self.linear.weight.copy_(torch.randn(1, hidden_size, generator=generator) / (hidden_size + 1) ** 0.5)
            self.linear.bias.zero_()
        self.register_buffer("shift", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(B, H) from hidden states (B, T, H) of the response and its bool mask (B, T); padding is ignored."""
        hidden = hidden.float().masked_fill(~mask[..., None], 0.0)
        lengths = mask.sum(1).clamp_min(1)
        if self.pooling == "last":
            return hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1]
        return hidden.sum(1) / lengths[:, None]

    def raw(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(B,) scores before normalisation."""
        return self.linear(self.pool(hidden, mask)).squeeze(-1)  # type: ignore[no-any-return]

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(B,) normalised scores of hidden states (B, T, H) under a bool mask (B, T)."""
        return (self.raw(hidden, mask) - self.shift) / self.scale

    def per_token(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(B, T) shares of the score; with mean pooling their masked mean is the score. Zero on padding."""
        raw = self.linear(hidden.float()).squeeze(-1)
        return ((raw - self.shift) / self.scale).masked_fill(~mask, 0.0)  # type: ignore[no-any-return]


class ValueHead(nn.Module):
    """V(s) of each position: linear on the policy trunk's hidden states, zero at the start."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = _linear(hidden_size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., H) -> (...)."""
        return self.linear(hidden.to(self.linear.weight.dtype)).squeeze(-1)  # type: ignore[no-any-return]


def _linear(hidden_size: int) -> nn.Linear:
    """Unfilled: the usual initialisation would draw from the global generator, which is not ours to move."""
    linear: nn.Linear = nn.utils.skip_init(nn.Linear, hidden_size, 1)  # type: ignore[no-untyped-call]
    return linear
