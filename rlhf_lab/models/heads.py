"""Linear heads: the reward model's score (one head or several) of a text's features, and the policy's value of a state."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from rlhf_lab.common.enums import EnsembleCombination
from rlhf_lab.core.preference import combine_ensemble_scores
from rlhf_lab.errors import ConfigError, ModelError
from rlhf_lab.models.features import FeatureSpec


class RewardHead(nn.Module):
    """A score per response: a linear map of its features (models/features.py), then normalised.

    raw = w · features + b;  score = (raw - shift) / scale, where shift and scale make reference samples mean 0, sd 1.
    Initialised as w ~ N(0, 1/(F+1)), b = 0 (Ziegler et al. 2019; Huang et al. 2024, detail 2).
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, feature_size: int, features: FeatureSpec, seed: int) -> None:
        super().__init__()
        self.features = features
        self.linear = _linear(feature_size)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            self.linear.weight.copy_(torch.randn(1, feature_size, generator=generator) / (feature_size + 1) ** 0.5)
            self.linear.bias.zero_()
        self.register_buffer("shift", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def raw(self, features: Tensor) -> Tensor:
        """(B,) scores before normalisation of features (B, F)."""
        raw: Tensor = self.linear(features).squeeze(-1)
        return raw

    def raw_members(self, features: Tensor) -> Tensor:
        """(1, B): `raw` in the form of an ensemble of one."""
        return self.raw(features)[None]

    @property
    def heads(self) -> "list[RewardHead]":
        """The members, seen as an ensemble of one."""
        return [self]

    def linear_map(self) -> tuple[Tensor, Tensor]:
        """Weight (1, H) and bias (1,) from a state of the last layer to the normalised score.

        Raises ModelError for a head that reads other layers too.
        """
        if self.features.layers != "last":
            raise ModelError(
                "critic_init = reward copies the reward model's head to the states of the last layer, and this head reads all "
                "layers. Choose critic_init = fresh, or train a reward model with layers = last."
            )
        return self.linear.weight / self.scale, (self.linear.bias - self.shift) / self.scale

    @torch.no_grad()
    def normalise(self, raw: Tensor) -> None:
        """Make the scores of reference samples mean 0, sd 1; raw: (1, N), their `raw_members`."""
        _normalise(self, raw[0])

    def normalised(self, raw: Tensor) -> Tensor:
        """(B,) normalised scores; raw: (1, B), the `raw_members`."""
        return (raw[0] - self.shift) / self.scale

    def forward(self, features: Tensor) -> Tensor:
        """(B,) normalised scores of features (B, F)."""
        return self.normalised(self.raw_members(features))

    def per_token(self, states: Tensor, mask: Tensor) -> Tensor:
        """(B, T) contributions whose masked mean is the score, from the states (B, T, F) that the features pool under a
        bool mask (B, T). Zero on padding.
        """
        token_shares = self.features.token_weights(mask) * mask.sum(1, keepdim=True)
        raw = torch.matmul(states.float(), self.linear.weight[0]) * token_shares
        return ((raw + self.linear.bias - self.shift) / self.scale).masked_fill(~mask, 0.0)


class EnsembleHead(nn.Module):
    """Several reward heads on the same features, combined into one score: mean, worst, or mean - coef * variance.

    Each member is normalised separately so that none dominates, and so is the combined score.
    """

    shift: Tensor
    scale: Tensor

    def __init__(
        self,
        feature_size: int,
        features: FeatureSpec,
        seeds: Sequence[int],
        mode: EnsembleCombination = "mean",
        coef: float = 1.0,
    ) -> None:
        super().__init__()
        self.features, self.mode, self.coef = features, mode, coef
        self.members = nn.ModuleList(RewardHead(feature_size, features, seed) for seed in seeds)
        self.register_buffer("shift", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    @property
    def heads(self) -> list[RewardHead]:
        return cast("list[RewardHead]", list(self.members))

    def raw_members(self, features: Tensor) -> Tensor:
        """(K, B) scores of each member before normalisation of features (B, F)."""
        return torch.stack([head.raw(features) for head in self.heads])

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

    def normalised(self, raw: Tensor) -> Tensor:
        """(B,) normalised scores; raw: (K, B), the `raw_members`."""
        scores = combine_ensemble_scores(self.normalised_members(raw), self.mode, self.coef)
        return (scores - self.shift) / self.scale

    def forward(self, features: Tensor) -> Tensor:
        """(B,) normalised scores of features (B, F)."""
        return self.normalised(self.raw_members(features))

    def per_token(self, states: Tensor, mask: Tensor) -> Tensor:
        """(B, T) contributions whose masked mean is the score, as for a single head.

        worst: those of the worst member for the text. uncertainty: the members' mean, with the penalty spread evenly.
        """
        shares = torch.stack([head.per_token(states, mask) for head in self.heads])
        members = self.normalised_members(self.raw_members(self.features.pool(states, mask)))
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
            "a reward model's scores are scaled by their standard deviation on reference texts of the base model, of which "
            f"there are {sample_count}. Give at least 2."
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
