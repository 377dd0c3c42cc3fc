"""Writing tokens on a GPU with CUDA graphs: a forward pass and the drawing of a token, recorded once and replayed a token.

A token of a small model takes a GPU less time than Python needs to ask for it; a replay asks once. A graph reads and writes
fixed places in memory, so everything a step touches lies in buffers of fixed shapes (decoder.py). Weights may get new numbers
between replays, at the same places; `Backbone.wiring` says when the places change, and the step is then recorded anew.

The number of rows is one of a few sizes; rows that fill it up repeat the last one and are written nowhere. As rows end, those
that go on move up into half the size or less. Whatever cannot be recorded is written the ordinary way, after one line of log.
"""

import logging
import os
import weakref
from typing import Any

import torch
from transformers import DynamicCache

from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.decoder import Call, Decoder, Record, size_of
from rlhf_lab.models.draw import Writing
from rlhf_lab.models.kv_cache import states_of
from rlhf_lab.models.memory import out_of_memory

log = logging.getLogger("rlhf_lab.graphs")

SWITCH = "RLHF_LAB_GRAPHS"  # 0: never
SHORTEST = 8  # tokens; fewer are not worth a recording
COLUMNS = 64  # the room of a row is a multiple of it


class CudaRecorder:
    """Records steps as CUDA graphs, on a stream of its own: when a graph ends, torch takes back what products use on the stream
    it was recorded on. All share one pool: they run one after the other and keep nothing in it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rehearsal: Any = None  # streams
        self.capture: Any = None
        self.pool: Any = None
        self.graphs = weakref.WeakSet[Any]()  # a pool ends with the last graph that was recorded into it

    def __call__(self, step: Call, restore: Call) -> Call:
        """Rehearses the step beside the stream of all else, as CUDA asks, and records it; recording computes nothing.

        Raises whatever the step raises, and RuntimeError where it waits for the GPU; then the thread is where it was before.
        """
        with torch.cuda.device(self.device):
            self.rehearsal = self.rehearsal or torch.cuda.Stream()
            self.capture = self.capture or torch.cuda.Stream()
            before = torch.cuda.current_stream()
            self.rehearsal.wait_stream(before)
            with torch.cuda.stream(self.rehearsal):
                for waiting in ("default", "error"):  # the first one may: it sets things up
                    mode = torch.cuda.get_sync_debug_mode()
                    torch.cuda.set_sync_debug_mode(waiting)
                    try:
                        step()
                    finally:
                        torch.cuda.set_sync_debug_mode(mode)
                        restore()
            before.wait_stream(self.rehearsal)
            return self._recorded(step, before)

    def _recorded(self, step: Call, before: Any) -> Call:
        graph = torch.cuda.CUDAGraph()
        if not self.graphs:
            self.pool = torch.cuda.graph_pool_handle()
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.capture, capture_error_mode="thread_local"):
                step()
        except BaseException:
            torch.cuda.set_stream(before)  # torch leaves a thread on the stream of a recording that failed
            raise
        self.graphs.add(graph)
        return graph.replay


def graphs_of(backbone: Backbone) -> "Graphs | None":
    """The graphs of a backbone on a GPU; None elsewhere, where they are turned off or cannot be (a step that gathers weights
    of other processes), and while they are in use."""
    if backbone.shards is not None:
        return None
    if backbone.graphs is None and backbone.device.type == "cuda" and os.environ.get(SWITCH) != "0":
        backbone.graphs = Graphs(CudaRecorder(backbone.device))
    graphs: Graphs | None = backbone.graphs
    return graphs if graphs is not None and graphs.ready else None


class Graphs:
    """The decoder of one backbone, kept between samplings. One sampling at a time: work done within another goes without."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.decoder: Decoder | None = None
        self.busy = self.given_up = False

    @property
    def ready(self) -> bool:
        return not (self.busy or self.given_up)

    def free(self) -> None:
        """Let go of buffers and recordings; the next sampling makes them anew."""
        self.decoder = None

    def write(self, backbone: Backbone, writing: Writing, cache: DynamicCache, tick: Call, every: int) -> bool:
        """Draw all but the first tokens into `writing`, looking at the rows every so many tokens, where `tick` is called.

        False where that cannot be done here: then `writing` and `cache` are as they were.

        Raises NotFiniteError, and what torch raises where memory runs out.
        """
        if writing.tokens.shape[1] < SHORTEST:
            return False
        self.busy = True
        try:
            try:
                decoder, run = self._begin(backbone, writing, cache)
            except Exception as error:  # whatever a model, a cache or a driver has against it
                if out_of_memory(error):
                    self.decoder = None
                    raise  # fewer rows may do (memory.in_pieces)
                self._give_up(error)
                return False
            cache.layers.clear()  # copied: the memory is free for the steps
            decoder.write(backbone, run, tick, every)
            count, length = writing.tokens.shape
            writing.tokens.copy_(decoder.writing.tokens[:count, :length])
            writing.logprobs.copy_(decoder.writing.logprobs[:count, :length])
            return True
        finally:
            self.busy = False

    def _begin(self, backbone: Backbone, writing: Writing, cache: DynamicCache) -> "tuple[Decoder, Call]":
        states = states_of(cache)
        if not getattr(backbone.model, "_can_compile_fullgraph", False) or not states:
            raise ValueError("its cache or its attention is of a kind that cannot be recorded")
        columns = writing.mask.shape[1] + writing.tokens.shape[1]
        size, columns = size_of(len(writing.rows)), -(-columns // COLUMNS) * COLUMNS
        if self.decoder is not None and not self.decoder.suits(size, columns):
            size, columns = self.decoder.together(size, columns)
            self.decoder = None  # its memory first
        if self.decoder is None:
            self.decoder = Decoder(size, columns, writing, states, self.record)
        self.decoder.begin(writing, states)
        return self.decoder, self.decoder.recorded(backbone)

    def _give_up(self, error: Exception) -> None:
        self.given_up, self.decoder = True, None
        log.warning("tokens are written without CUDA graphs, which is slower (%s: %s)", type(error).__name__, error)
