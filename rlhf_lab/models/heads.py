"""Linear heads on the trunk's hidden states: the reward model's score (one head or several) and the policy's value."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from rlhf_lab.common.enums import EnsembleCombination
from rlhf_lab.core.advantages import is_last_token
from rlhf_lab.core.preference import combine_ensemble_scores
from rlhf_lab.errors import ConfigError


class RewardHead(nn.Module):
    """A score per response: a linear map of the pooled hidden states, then normalised.

    raw = w · pool(h) + b;  score = (raw - shift) / scale, where shift and scale make reference samples mean 0, sd 1.
    pool(h) = (1 - a) mean(h) + a h_last, with a = last_weight for pooling "mean" and 1 for "last": the mean learns the
    value of single words from few labels, and the last state has read the whole text.
    Initialised as w ~ N(0, 1/(H+1)), b = 0 (Ziegler et al. 2019; Huang et al. 2024, detail 2).
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, hidden_size: int, pooling: str, seed: int, last_weight: float = 0.0) -> None:
        super().__init__()
        self.pooling, self.last_weight = pooling, last_weight
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
        return (self.token_weights(mask)[..., None] * hidden).sum(1)

    def token_weights(self, mask: Tensor) -> Tensor:
        """(B, T) weight of each token's hidden state in the pooled one; a row sums to 1 (0 without tokens)."""
        last_weight = 1.0 if self.pooling == "last" else self.last_weight
        lengths = mask.sum(1, keepdim=True).clamp_min(1)
        return (1 - last_weight) / lengths * mask + last_weight * is_last_token(mask)

    def raw(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(B,) scores before normalisation."""
        raw: Tensor = self.linear(self.pool(hidden, mask)).squeeze(-1)
        return raw

    def raw_members(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(1, B): `raw` in the form of an ensemble of one."""
        return self.raw(hidden, mask)[None]

    @property
    def heads(self) -> "list[RewardHead]":
        """The members, seen as an ensemble of one."""
        return [self]

    def linear_map(self) -> tuple[Tensor, Tensor]:
        """Weight (1, H) and bias (1,) from a pooled hidden state to the normalised score."""
        return self.linear.weight / self.scale, (self.linear.bias - self.shift) / self.scale

    @torch.no_grad()
    def normalise(self, raw: Tensor) -> None:
        """Make the scores of reference samples mean 0, sd 1; raw: (1, N), their `raw_members`."""
        _normalise(self, raw[0])

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(B,) normalised scores of hidden states (B, T, H) under a bool mask (B, T)."""
        return (self.raw(hidden, mask) - self.shift) / self.scale

    def per_token(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(B, T) contributions whose masked mean is the score. Zero on padding."""
        raw = torch.matmul(hidden.float(), self.linear.weight[0]) * self.token_weights(mask) * mask.sum(1, keepdim=True)
        return ((raw + self.linear.bias - self.shift) / self.scale).masked_fill(~mask, 0.0)


class EnsembleHead(nn.Module):
    """Several reward heads on the same hidden states, combined into one score: mean, worst, or mean - coef * variance.

    Each member is normalised separately so that none dominates, and so is the combined score.
    """

    shift: Tensor
    scale: Tensor

    def __init__(
        self, hidden_size: int, pooling: str, seeds: Sequence[int], mode: EnsembleCombination = "mean", coef: float = 1.0,
        last_weight: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.pooling, self.last_weight, self.mode, self.coef = pooling, last_weight, mode, coef
        self.members = nn.ModuleList(RewardHead(hidden_size, pooling, seed, last_weight) for seed in seeds)
        self.register_buffer("shift", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    @property
    def heads(self) -> list[RewardHead]:
        return cast("list[RewardHead]", list(self.members))

    def raw_members(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(K, B) scores of each member before normalisation."""
        return torch.stack([head.raw(hidden, mask) for head in self.heads])

    def normalised_members(self, raw: Tensor) -> Tensor:
        """(K, B) normalised scores of each member from their raw ones."""
        return torch.stack([(row - head.shift) / head.scale for row, head in zip(raw, self.heads, strict=True)])

    def linear_map(self) -> tuple[Tensor, Tensor]:
        """As for a single head, of the members' mean, without the disagreement term."""
        weights, biases = zip(*(head.linear_map() for head in self.heads), strict=True)
        weight, bias = torch.stack(weights).mean(dim=0), torch.stack(biases).mean(dim=0)
        return weight / self.scale, (bias - self.shift) / self.scale

    @torch.no_grad()
    def normalise(self, raw: Tensor) -> None:
        """Make each member's scores, then the combined ones, mean 0 and sd 1 on reference samples; raw: (K, N)."""
        for head, row in zip(self.heads, raw, strict=True):
            _normalise(head, row)
        _normalise(self, combine_ensemble_scores(self.normalised_members(raw), self.mode, self.coef))

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(B,) normalised scores of hidden states (B, T, H) under a bool mask (B, T)."""
        scores = combine_ensemble_scores(self.normalised_members(self.raw_members(hidden, mask)), self.mode, self.coef)
        return (scores - self.shift) / self.scale

    def per_token(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(B, T) contributions whose masked mean is the score. Zero on padding.

        worst: those of the worst member for the text. uncertainty: the members' mean, with the penalty spread evenly.
        """
        shares = torch.stack([head.per_token(hidden, mask) for head in self.heads])
        members = self.normalised_members(self.raw_members(hidden, mask))
        if self.mode == "worst":
            combined = shares[members.argmin(dim=0), torch.arange(len(mask), device=mask.device)]
        else:
            combined = (
                shares.mean(dim=0)
                + (combine_ensemble_scores(members, self.mode, self.coef) - members.mean(dim=0))[:, None]
            )
        return ((combined - self.shift) / self.scale).masked_fill(~mask, 0.0)


def _normalise(head: "RewardHead | EnsembleHead", raw: Tensor) -> None:
    """Set the head's shift and scale from its raw scores of reference samples, in double precision. Raises ConfigError."""
    check_reference_count(len(raw))
    raw = raw.double()
    head.shift.copy_(raw.mean())
    head.scale.copy_(raw.std().clamp_min(1e-6))


def check_reference_count(sample_count: int) -> None:
    """Raises ConfigError if there are too few reference samples for a standard deviation."""
    if sample_count < 2:
        raise ConfigError(
            f"a reward model's scores are scaled by how they spread over the base model's texts, and there are {sample_count}. "
            "Give at least 2."
        )


class ValueHead(nn.Module):
    """V(s) of each position: linear in the policy trunk's hidden states, initialised to zero."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = _linear(hidden_size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., H) -> (...)."""
        values: Tensor = self.linear(hidden.to(self.linear.weight.dtype)).squeeze(-1)
        return values


def _linear(hidden_size: int) -> nn.Linear:
    """Uninitialised: the usual initialisation would advance the global generator."""
    linear: nn.Linear = nn.Linear(hidden_size, 1, device="meta").to_empty(device="cpu")
    return linear
