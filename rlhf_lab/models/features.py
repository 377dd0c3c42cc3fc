"""The input of a reward head: hidden states of the last layer or of all layers, pooled over the response."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from rlhf_lab.core.advantages import is_last_token
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.batch import Batch, HiddenStates, forward, forward_layers


class FeatureSpec(NamedTuple):
    """How features (B, F) are made from hidden states (B, T, H) of the responses.

    layers: "last" reads the last layer, F = H; "all" concatenates the embeddings and every layer, in this order.
    pool(h) = (1 - a) mean(h) + a h_last, with a = last_weight for pooling "mean" and 1 for "last": the mean learns the
    value of single words from few labels, and the last state has read the whole text.
    """

    pooling: str
    last_weight: float = 0.0
    layers: Literal["last", "all"] = "last"

    def size(self, backbone: Backbone) -> int:
        """F."""
        return backbone.hidden_size * (backbone.state_count if self.layers == "all" else 1)

    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(B, H) from hidden states (B, T, H) of the response and its bool mask (B, T); padding is ignored."""
        hidden = hidden.float().masked_fill(~mask[..., None], 0.0)
        return (self.token_weights(mask)[..., None] * hidden).sum(1)

    def token_weights(self, mask: Tensor) -> Tensor:
        """(B, T) weight of each token's hidden state in the pooled one; a row sums to 1 (0 without tokens)."""
        last_weight = 1.0 if self.pooling == "last" else self.last_weight
        lengths = mask.sum(1, keepdim=True).clamp_min(1)
        return (1 - last_weight) / lengths * mask + last_weight * is_last_token(mask)


def text_features(backbone: Backbone, batch: Batch, spec: FeatureSpec) -> Tensor:
    """(B, F) float32 features of the responses with the adapter in use."""
    return features_and_states(backbone, batch, spec)[0]


def features_and_states(backbone: Backbone, batch: Batch, spec: FeatureSpec) -> tuple[Tensor, HiddenStates]:
    """`text_features`, and the hidden states of the last layer from the same pass."""
    layers = forward_layers(backbone, batch) if spec.layers == "all" else [forward(backbone, batch)]
    pooled = []
    for hidden in layers:
        pooled.append(spec.pool(hidden.at_token, batch.mask))
    return torch.cat(pooled, dim=1), hidden


def token_states(backbone: Backbone, batch: Batch, spec: FeatureSpec) -> Tensor:
    """(B, T, F) hidden states that `text_features` pools; padding contains states of other positions."""
    if spec.layers == "last":
        return forward(backbone, batch).at_token
    return torch.cat([hidden.at_token for hidden in forward_layers(backbone, batch)], dim=2)
