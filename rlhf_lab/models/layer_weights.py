"""The weights of a decoder layer with an adapter's updates, kept in one place for whichever adapter computes."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rlhf_lab.fused.tiled import Laid, Layer
from rlhf_lab.models.llama_layer import Weights
from rlhf_lab.models.lora_linear import FastLayer, Parts, Room

MOST_RANKS = 2  # sets of ranks, a copy of the weights each: the policy's and the reward model's


def by_projection(weights: Weights, sizes: Sequence[int]) -> list[Tensor]:
    """The weights of q, k, v, o, gate, up and down, as views. sizes: rows of the first three."""
    return [*weights.qkv.split([*sizes]), *weights[1:5]]


class Merged:
    """W + s·B·A of the adapter that computed last."""

    def __init__(self, frozen: Weights, sizes: Sequence[int], fast: Sequence[FastLayer]) -> None:
        qkv, o, gate, up, down = map(torch.empty_like, frozen[:5])
        self._weights = frozen._replace(qkv=qkv, o=o, gate=gate, up=up, down=down)
        # q, k and v as .data: modules merge one after the other, and what waits for its gradient must not see that as a change.
        of_qkv = [Room(part.data, qkv) for part in qkv.split([*sizes])]
        self._rooms = [*zip(fast, [*of_qkv, *map(Room, (o, gate, up, down))], strict=True)]

    def of(self, parts: Sequence[Parts]) -> Weights:
        """Under these parts as they are now; computed only if they are not held already."""
        for (fast, room), part in zip(self._rooms, parts, strict=True):
            fast.weight(part, room)
        return self._weights


class ByRanks:
    """Updates that stay beside the weights, of the adapter that computed last among those of its ranks."""

    def __init__(self, make: Callable[[tuple[int, ...]], "Held"]) -> None:
        self._make = make
        self._held: dict[tuple[int, ...], Held] = {}

    def of(self, parts: Sequence[Parts]) -> Weights | Layer:
        """Under these parts as they are now; converted only if they are not held already."""
        ranks = tuple(len(part.a) for part in parts)
        if ranks not in self._held:
            if len(self._held) == MOST_RANKS:
                del self._held[next(iter(self._held))]
            self._held[ranks] = self._make(ranks)
        return self._held[ranks].of(parts)


class Held:
    """What holds the updates of one adapter in its own way."""

    weights: Weights | Layer

    def __init__(self) -> None:
        self._from: list[tuple[Tensor, int]] = []

    def of(self, parts: Sequence[Parts]) -> Weights | Layer:
        """Under these parts as they are now."""
        now = [tensor for part in parts for tensor in (part.a, part.b)]
        if [(id(one), version) for one, version in self._from] != [(id(one), one._version) for one in now]:
            self._from = []
            self.hold(parts)
            self._from = [(one, one._version) for one in now]
        return self.weights

    def hold(self, parts: Sequence[Parts]) -> None:
        raise NotImplementedError


class Updates(Held):
    """A layer in C under updates of these ranks."""

    def __init__(self, laid: Laid, ranks: tuple[int, ...]) -> None:
        super().__init__()
        self.weights: Layer = Layer(laid, ranks)

    def hold(self, parts: Sequence[Parts]) -> None:
        self.weights.learn([tensor for part in parts for tensor in (part.a, part.b)], parts[0].scale)


class Columns(Held):
    """[W | s·B] and A, as low_rank.py has them, of updates of these ranks."""

    def __init__(self, frozen: Weights, sizes: Sequence[int], ranks: tuple[int, ...]) -> None:
        q, k, v, o, gate, up, down = ranks

        def wide(weight: Tensor, rank: int) -> Tensor:
            return torch.cat([weight, weight.new_zeros(len(weight), rank)], 1)

        def lows(weight: Tensor, rank: int) -> Tensor:
            return weight.new_empty(rank, weight.shape[1])

        beside = (
            lows(frozen.qkv, q + k + v), lows(frozen.o, o), lows(frozen.gate, gate + up), lows(frozen.down, down),
        )  # fmt: skip
        super().__init__()
        self.weights: Weights = frozen._replace(
            qkv=wide(frozen.qkv, q + k + v), o=wide(frozen.o, o), gate=wide(frozen.gate, gate + up),
            up=wide(frozen.up, gate + up), down=wide(frozen.down, down), beside=beside,
        )  # fmt: skip
        of_a = [*beside[0].split([q, k, v]), beside[1], *beside[2].split([gate, up]), beside[3]]
        first = (0, q, q + k, 0, 0, gate, 0)  # where B's columns begin, behind those of W
        of_b = [
            one[:, a.shape[1] + column :][:, :rank]
            for one, a, column, rank in zip(by_projection(self.weights, sizes), of_a, first, ranks, strict=True)
        ]
        self._rooms = [*zip(of_a, of_b, strict=True)]

    def hold(self, parts: Sequence[Parts]) -> None:
        for (a, b), part in zip(self._rooms, parts, strict=True):
            a.copy_(part.a.detach())
            b.copy_(part.scale * part.b.detach())
