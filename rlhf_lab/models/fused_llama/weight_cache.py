"""The weights of a decoder layer with the LoRA update of the adapter in use."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rlhf_lab.kernels.amx_layer import AmxLayer, TiledWeights
from rlhf_lab.models.fused_llama.layer import LayerWeights
from rlhf_lab.models.lora_linear import LoraWeights, MergeBuffer, MergedLoraLinear

MAX_RANK_SETS = 2  # each with a copy of the weights: the policy's and the reward model's


def split_by_projection(weights: LayerWeights, sizes: Sequence[int]) -> list[Tensor]:
    """Views of the weights of q, k, v, o, gate, up and down. sizes: rows of q, k and v."""
    return [*weights.qkv.split([*sizes]), *weights[1:5]]


class MergedWeights:
    """W + s·B·A of the adapter used last."""

    def __init__(self, frozen: LayerWeights, sizes: Sequence[int], merged_linears: Sequence[MergedLoraLinear]) -> None:
        qkv, o, gate, up, down = map(torch.empty_like, frozen[:5])
        self._weights = frozen._replace(qkv=qkv, o=o, gate=gate, up=up, down=down)
        # .data of q, k and v: their modules merge one by one, which must not bump the version of a tensor saved for the
        # gradient.
        qkv_buffers = [MergeBuffer(view.data, qkv) for view in qkv.split([*sizes])]
        self._merge_targets = [
            *zip(merged_linears, [*qkv_buffers, *map(MergeBuffer, (o, gate, up, down))], strict=True)
        ]

    def weights_for(self, lora_weights: Sequence[LoraWeights]) -> LayerWeights:
        """The weights for these LoRA tensors, computed only if they have changed."""
        for (merged_linear, buffer), lora in zip(self._merge_targets, lora_weights, strict=True):
            merged_linear.merged_weight(lora, buffer)
        return self._weights


class CacheByRank:
    """Weights with concatenated or tiled updates, one cache per combination of ranks."""

    def __init__(self, make_cache: Callable[[tuple[int, ...]], "WeightCache"]) -> None:
        self._make_cache = make_cache
        self._caches: dict[tuple[int, ...], WeightCache] = {}

    def weights_for(self, lora_weights: Sequence[LoraWeights]) -> LayerWeights | AmxLayer:
        """The weights for these LoRA tensors, converted only if they have changed."""
        ranks = tuple(len(lora.a) for lora in lora_weights)
        if ranks not in self._caches:
            if len(self._caches) == MAX_RANK_SETS:
                del self._caches[next(iter(self._caches))]
            self._caches[ranks] = self._make_cache(ranks)
        return self._caches[ranks].weights_for(lora_weights)


class WeightCache(ABC):
    """Weights with the update of the adapter used last."""

    weights: LayerWeights | AmxLayer

    def __init__(self) -> None:
        self._sources: list[tuple[Tensor, int]] = []

    def weights_for(self, lora_weights: Sequence[LoraWeights]) -> LayerWeights | AmxLayer:
        """The weights for these LoRA tensors, loaded only if they have changed."""
        tensors = [tensor for lora in lora_weights for tensor in (lora.a, lora.b)]
        if [(id(source), version) for source, version in self._sources] != [
            (id(source), source._version) for source in tensors
        ]:
            self._sources = []
            self.load(lora_weights)
            self._sources = [(source, source._version) for source in tensors]
        return self.weights

    @abstractmethod
    def load(self, lora_weights: Sequence[LoraWeights]) -> None:
        """Write the update into `weights`."""


class AmxWeightCache(WeightCache):
    """A layer in C with updates of these ranks."""

    def __init__(self, tiled_weights: TiledWeights, ranks: tuple[int, ...]) -> None:
        super().__init__()
        self.weights: AmxLayer = AmxLayer(tiled_weights, ranks)

    def load(self, lora_weights: Sequence[LoraWeights]) -> None:
        self.weights.set_lora([tensor for lora in lora_weights for tensor in (lora.a, lora.b)], lora_weights[0].scale)


class ConcatWeightCache(WeightCache):
    """[W | s·B] and A, see layer.py, for updates of these ranks."""

    def __init__(self, frozen: LayerWeights, sizes: Sequence[int], ranks: tuple[int, ...]) -> None:
        q, k, v, o, gate, up, down = ranks

        def with_lora_columns(weight: Tensor, rank: int) -> Tensor:
            return torch.cat([weight, weight.new_zeros(len(weight), rank)], 1)

        def empty_lora_a(weight: Tensor, rank: int) -> Tensor:
            return weight.new_empty(rank, weight.shape[1])

        lora_a = (
            empty_lora_a(frozen.qkv, q + k + v),
            empty_lora_a(frozen.o, o),
            empty_lora_a(frozen.gate, gate + up),
            empty_lora_a(frozen.down, down),
        )
        super().__init__()
        self.weights: LayerWeights = frozen._replace(
            qkv=with_lora_columns(frozen.qkv, q + k + v),
            o=with_lora_columns(frozen.o, o),
            gate=with_lora_columns(frozen.gate, gate + up),
            up=with_lora_columns(frozen.up, gate + up),
            down=with_lora_columns(frozen.down, down),
            lora_a=lora_a,
        )
        a_views = [*lora_a[0].split([q, k, v]), lora_a[1], *lora_a[2].split([gate, up]), lora_a[3]]
        b_offsets = (0, q, q + k, 0, 0, gate, 0)  # first column of B, after those of W
        b_views = [
            extended[:, a.shape[1] + offset :][:, :rank]
            for extended, a, offset, rank in zip(
                split_by_projection(self.weights, sizes), a_views, b_offsets, ranks, strict=True
            )
        ]
        self._lora_views = [*zip(a_views, b_views, strict=True)]

    def load(self, lora_weights: Sequence[LoraWeights]) -> None:
        for (a, b), lora in zip(self._lora_views, lora_weights, strict=True):
            a.copy_(lora.a.detach())
            b.copy_(lora.scale * lora.b.detach())
