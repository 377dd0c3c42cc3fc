"""A token more of each row through whole decoder layers, where those before it lie in a cache.

A layer computes little of a single token: most of the time goes into asking for it. So here nothing is asked for twice that holds
for all tokens, and nothing in two operations that one does.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rlhf_lab.core.products import linear, linear_onto
from rlhf_lab.fused import calls
from rlhf_lab.fused.tiled import Layer
from rlhf_lab.models.between import Shape, norm, swiglu
from rlhf_lab.models.kv_cache import ReservedLayer
from rlhf_lab.models.llama_layer import Weights
from rlhf_lab.models.low_rank import widened
from rlhf_lab.models.rotation import Places, Turn


class NextToken:
    """What a trunk's layers make of a token more of each row; good while nothing but tokens changes.

    layers: weights and shape of each. padded: some row's mask is 0 somewhere.
    """

    def __init__(
        self, trunk: Any, layers: Sequence[tuple[Weights | Layer, Shape]], places: Places, padded: bool
    ) -> None:
        self._embed, self._norm, self._places, self._padded = trunk.embed_tokens, trunk.norm, places, padded
        self._layers = [OneMore(weights, shape) for weights, shape in layers]

    def __call__(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """The states (B, H) behind the last norm. ids, positions: (B, 1); mask: (B, L), of all tokens read so far, this one among
        them; cache: what those before it left, with one layer for each of the model's."""
        seen = mask[:, None, None].bool() if self._padded else None
        turn = self._places.at(positions, mask.shape[1])
        x = self._embed(ids).squeeze(1)
        for layer, past in zip(self._layers, cache.layers, strict=True):
            x = layer(x, turn, seen, past)
        return norm(x, self._norm.weight, self._norm.variance_epsilon)[0]


def read(x: Tensor, weights: Weights | Layer, shape: Shape) -> Tensor:
    """q, k and v, (N, (heads + 2 groups)·D), not rotated yet. x: (N, H), what comes into the layer; no gradient."""
    if isinstance(weights, Layer):
        return weights.read(x)
    inner, _ = norm(x, weights.norms[0], shape.eps[0])
    return linear(widened(inner, weights.beside[0])[0], weights.qkv, weights.bias)


def rest(x: Tensor, mixed: Tensor, weights: Weights | Layer, shape: Shape) -> Tensor:
    """The layer's output (N, H). mixed: (N, heads·D), what its heads made of the values; no gradient."""
    if isinstance(weights, Layer):
        return weights.rest(x, mixed)
    middle = linear_onto(x, widened(mixed, weights.beside[1])[0], weights.o)
    inner, _ = norm(middle, weights.norms[1], shape.eps[1])
    inner, _ = widened(inner, weights.beside[2])
    opened = swiglu(linear(inner, weights.gate), linear(inner, weights.up))
    return linear_onto(middle, widened(opened, weights.beside[3])[0], weights.down)


class OneMore:
    """One whole layer, asked for one token of each row at a time."""

    def __init__(self, weights: Weights | Layer, shape: Shape) -> None:
        self._weights, self._shape, rotated = weights, shape, shape.heads + shape.groups
        self._split = [shape.heads, shape.groups, shape.groups]
        places = torch.arange(rotated * shape.size)
        #: Which number of q and k is the one that each is rotated with.
        self._swapped = places.view(rotated, 2, -1).flip(1).flatten()

    def __call__(self, x: Tensor, turn: Turn, seen: Tensor | None, past: Any) -> Tensor:
        """(B, H) -> (B, H). seen: (B, 1, 1, L) bool, which tokens a row looks at; None: all. past: the cache's layer."""
        flat = read(x, self._weights, self._shape)
        if isinstance(past, ReservedLayer) and calls.takes(flat, turn.cos):
            keys, values, used = past.one_more()
            mixed = calls.attend_next(flat, *turn, seen, keys, values, used, self._shape.heads)
        else:
            mixed = self._attended(flat, turn, seen, past)
        return rest(x, mixed, self._weights, self._shape)

    def _attended(self, flat: Tensor, turn: Turn, seen: Tensor | None, past: Any) -> Tensor:
        """What each row's heads make of the values, (B, heads·D), by PyTorch's operations. flat: q, k and v, not rotated yet."""
        shape, batch = self._shape, flat.shape[0]
        swapped = flat.index_select(1, self._swapped).view(batch, -1, shape.size)
        heads = flat.view(batch, -1, shape.size)
        heads.narrow(1, 0, swapped.shape[1]).mul_(turn.cos).addcmul_(swapped, turn.sin)
        q, k, v = heads.unsqueeze(2).split_with_sizes(self._split, 1)
        k, v = past.update(k, v)
        if flat.dtype == torch.bfloat16:  # of which a token's attention takes torch twice as long
            q, k, v = q.float(), k.float(), v.float()
        q = q.reshape(batch, shape.groups, -1, shape.size)
        mixed = functional.scaled_dot_product_attention(q, k, v, seen, scale=shape.size**-0.5)
        return mixed.reshape(batch, -1).to(flat.dtype)
