"""The buffers in which tokens are written by a step of fixed shapes, one token a row: what graphed.py records."""

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.draw import Writing, refuse_not_finite
from rlhf_lab.models.kv_cache import FixedLayer

log = logging.getLogger("rlhf_lab.graphs")

MOST_GRAPHS = 16  # kept at once, those used last

Call = Callable[[], None]
#: (step, restore) -> what runs the step; `restore` undoes a step.
Record = Callable[[Call, Call], Call]
#: Keys and values (B, heads, L, head size) of each layer.
States = Sequence[tuple[Tensor, Tensor]]


def size_of(rows: int) -> int:
    """The smallest of 1, 2, 3, 4, 6, 8, 12, 16, 24, … that holds the rows."""
    power = 1 << (rows - 1).bit_length()
    return power * 3 // 4 if 3 * power // 4 >= rows and power >= 4 else power


class Decoder:
    """Buffers for `size` rows of `columns` tokens, prompt and response, and the graphs that add a token to each row.

    writing: over all buffers; a step over fewer rows works on the first of them. at, t: (1,) int64, the column of the cache
    that the next token goes to, and which token of the response is drawn next.
    """

    def __init__(self, size: int, columns: int, like: Writing, states: States, record: Record) -> None:
        self.size, self.columns, self.record = size, columns, record
        ids = like.ids.new_zeros
        self.writing = Writing(
            rows=ids(size), ids=ids(size, 1), positions=ids(size, 1), mask=ids(size, columns), alive=ids(size).bool(),
            uniform=like.uniform.new_zeros(size + 1, columns), logprobs=like.logprobs.new_zeros(size + 1, columns),
            tokens=ids(size + 1, columns), finite=like.finite.clone(), temperature=like.temperature.clone(),
            eos=like.eos,
        )  # fmt: skip
        self.at, self.t = ids(1), ids(1)
        self.states = [tuple(x.new_zeros(size, x.shape[1], columns, x.shape[3]) for x in both) for both in states]
        self.used = size
        self.made: object = None
        self.graphs: dict[Hashable, Call] = {}

    def suits(self, size: int, columns: int) -> bool:
        """Whether there is room, and not so much that most of every step went into looking at nothing."""
        return size <= self.size and columns <= self.columns <= 4 * columns

    def together(self, size: int, columns: int) -> tuple[int, int]:
        """The size of a decoder for these and for its own rows, where that takes no more than twice the memory of either."""
        both = max(size, self.size), max(columns, self.columns)
        fits = both[0] * both[1] <= 2 * max(size * columns, self.size * self.columns) and both[1] <= 4 * columns
        return both if fits else (size, columns)

    def begin(self, given: Writing, states: States) -> None:
        """Copy what has been read, and the first tokens drawn, into the buffers; the size is filled up with the last row."""
        count, width = given.mask.shape
        own, self.used = self.writing, size_of(count)
        index = torch.arange(self.used, device=given.rows.device)
        spare, index = index >= count, index.clamp_max(count - 1)
        self._place(given, index)
        own.rows[: self.used].masked_fill_(spare, self.size)
        own.alive[: self.used].logical_and_(~spare)
        own.mask[:, width:].zero_()
        responses, length = given.tokens.shape
        for mine, theirs in ((own.uniform, given.uniform), (own.logprobs, given.logprobs), (own.tokens, given.tokens)):
            mine[:responses, :length] = theirs
        for mine, theirs in ((own.finite, given.finite), (own.temperature, given.temperature)):
            mine.copy_(theirs)
        for layer, read in zip(self.states, states, strict=True):
            for mine, theirs in zip(layer, read, strict=True):
                mine[: self.used, :, width:].zero_()  # hidden by the mask, but 0 times NaN is NaN
                mine[: self.used, :, :width] = theirs[index]
        self.length = length
        self.at.fill_(width)
        self.t.fill_(1)

    def write(self, backbone: Backbone, run: Call, tick: Call, every: int) -> None:
        """Draw the other tokens. Work done in `tick` may have used the weights otherwise, so they are made current after it."""
        for t in range(1, self.length):
            if t % every == 0:
                living = self.part().living()
                if not living:
                    return
                if 2 * size_of(living) <= self.used:
                    self._move_up(size_of(living))
                tick()
                backbone.wiring.refresh()
                run = self.recorded(backbone, insist=False)
            run()
        refuse_not_finite(self.writing.finite)

    def recorded(self, backbone: Backbone, *, insist: bool = True) -> Call:
        """What adds a token to the rows in use with the weights in use. insist: else a step that cannot be
        recorded runs as it is."""
        wiring = backbone.wiring
        if wiring.made is not self.made:
            self.made, self.graphs = wiring.made, {}
        key = (wiring.state, self.used)
        if key not in self.graphs:
            step = self._step(backbone)
            try:
                wiring.refresh()
                self.graphs[key] = self.record(step, self._restoring())
            except Exception as error:
                if insist:
                    raise
                log.warning("%d rows are written without CUDA graphs (%s: %s)", self.used, type(error).__name__, error)
                self.graphs[key] = step
            if len(self.graphs) > MOST_GRAPHS:
                del self.graphs[next(iter(self.graphs))]
        self.graphs[key] = self.graphs.pop(key)
        return self.graphs[key]

    def part(self) -> Writing:
        """The rows in use, as views of the buffers."""
        own, used = self.writing, self.used
        return Writing(
            own.rows[:used], own.ids[:used], own.positions[:used], own.mask[:used], own.alive[:used], own.uniform,
            own.logprobs, own.tokens, own.finite, own.temperature, own.eos,
        )  # fmt: skip

    def _step(self, backbone: Backbone) -> Call:
        """One token for the rows in use: nothing is allocated that outlives it, nothing is read back."""
        rows, at, t = self.part(), self.at, self.t
        layers: list[Any] = [FixedLayer(keys[: self.used], values[: self.used], at) for keys, values in self.states]
        trunk, logits_of, cache = backbone.trunk, backbone.logits, Cache(layers=layers)

        @torch.no_grad()
        def step() -> None:
            rows.mask.index_fill_(1, at, 1)
            output = trunk(
                input_ids=rows.ids, attention_mask=rows.mask, position_ids=rows.positions, past_key_values=cache,
                use_cache=True,
            )  # fmt: skip
            rows.take(logits_of(output.last_hidden_state[:, -1]), t)
            at.add_(1)
            t.add_(1)

        return step

    def _restoring(self) -> Call:
        """Takes note of everything a step changes (but the cache behind its end, which nobody sees); puts it back when called."""
        own = self.writing
        changed = (own.ids, own.positions, own.mask, own.alive, own.logprobs, own.tokens, own.finite, self.at, self.t)
        before = [tensor.clone() for tensor in changed]

        def restore() -> None:
            for tensor, value in zip(changed, before, strict=True):
                tensor.copy_(value)

        return restore

    def _move_up(self, size: int) -> None:
        """Carry the living rows alone, in the first `size` rows of the buffers, filled up with some that have ended."""
        order = (~self.part().alive).to(torch.int8).argsort(stable=True)[:size]
        self._place(self.part(), order)
        for layer in self.states:
            for tensor in layer:
                tensor[:size] = tensor[order]
        self.used = size

    def _place(self, given: Writing, index: Tensor) -> None:
        """The rows `index` of what is given become the first rows of the buffers."""
        own, count, width = self.writing, len(index), given.mask.shape[1]
        own.rows[:count] = given.rows[index]
        own.ids[:count], own.positions[:count] = given.ids[index], given.positions[index]
        own.mask[:count, :width] = given.mask[index]
        own.alive[:count] = given.alive[index]
