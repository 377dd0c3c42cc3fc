"""Writing tokens on a GPU with CUDA graphs: a forward pass and the drawing of a token, recorded once and replayed a token.

A token of a small model takes a GPU less time than Python needs to ask for it; a replay asks once. A graph reads and writes
fixed places in memory, so everything a step touches lies in buffers of fixed shapes (graph_buffers.py). Weights may get new numbers
between replays, at the same places; `Backbone.weight_version` says when the places change, and the step is then recorded anew.

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
from rlhf_lab.models.kv_cache import filled_states
from rlhf_lab.models.oom import is_out_of_memory
from rlhf_lab.models.sampling.graph_buffers import Action, GraphBuffers, Recorder, padded_row_count
from rlhf_lab.models.sampling.sampling_state import SamplingState

log = logging.getLogger("rlhf_lab.graphs")

GRAPHS_ENV = "RLHF_LAB_GRAPHS"  # 0: never
MIN_GRAPH_TOKENS = 8  # tokens; fewer are not worth a recording
COLUMN_MULTIPLE = 64  # the room of a row is a multiple of it


class CudaRecorder:
    """Records steps as CUDA graphs, on a stream of its own: when a graph ends, torch takes back what products use on the stream
    it was recorded on. All share one pool: they run one after the other and keep nothing in it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.warmup_stream: Any = None  # streams
        self.capture_stream: Any = None
        self.pool: Any = None
        self.graphs = weakref.WeakSet[Any]()  # a pool ends with the last graph that was recorded into it

    def __call__(self, step: Action, restore: Action) -> Action:
        """Rehearses the step beside the stream of all else, as CUDA asks, and records it; recording computes nothing.

        Raises whatever the step raises, and RuntimeError where it waits for the GPU; then the thread is where it was before.
        """
        with torch.cuda.device(self.device):
            self.warmup_stream = self.warmup_stream or torch.cuda.Stream()
            self.capture_stream = self.capture_stream or torch.cuda.Stream()
            previous_stream = torch.cuda.current_stream()
            self.warmup_stream.wait_stream(previous_stream)
            with torch.cuda.stream(self.warmup_stream):
                for sync_mode in ("default", "error"):  # the first one may: it sets things up
                    previous_mode = torch.cuda.get_sync_debug_mode()
                    torch.cuda.set_sync_debug_mode(sync_mode)
                    try:
                        step()
                    finally:
                        torch.cuda.set_sync_debug_mode(previous_mode)
                        restore()
            previous_stream.wait_stream(self.warmup_stream)
            return self._capture(step, previous_stream)

    def _capture(self, step: Action, previous_stream: Any) -> Action:
        graph = torch.cuda.CUDAGraph()
        if not self.graphs:
            self.pool = torch.cuda.graph_pool_handle()
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.capture_stream, capture_error_mode="thread_local"):
                step()
        except BaseException:
            torch.cuda.set_stream(previous_stream)  # torch leaves a thread on the stream of a recording that failed
            raise
        self.graphs.add(graph)
        return graph.replay


def graphed_sampler_of(backbone: Backbone) -> "GraphedSampler | None":
    """The graphs of a backbone on a GPU; None elsewhere, where they are turned off or cannot be (a step that gathers weights
    of other processes), and while they are in use."""
    if backbone.shards is not None:
        return None
    if backbone.cuda_graphs is None and backbone.device.type == "cuda" and os.environ.get(GRAPHS_ENV) != "0":
        backbone.cuda_graphs = GraphedSampler(CudaRecorder(backbone.device))
    sampler: GraphedSampler | None = backbone.cuda_graphs
    return sampler if sampler is not None and sampler.ready else None


class GraphedSampler:
    """The decoder of one backbone, kept between samplings. One sampling at a time: work done within another goes without."""

    def __init__(self, record: Recorder) -> None:
        self.record = record
        self.buffers: GraphBuffers | None = None
        self.busy = self.disabled = False

    @property
    def ready(self) -> bool:
        return not (self.busy or self.disabled)

    def free(self) -> None:
        """Let go of buffers and recordings; the next sampling makes them anew."""
        self.buffers = None

    def decode(
        self, backbone: Backbone, state: SamplingState, cache: DynamicCache, on_progress: Action, check_every: int
    ) -> bool:
        """Draw all but the first tokens into `state`, looking at the rows every so many tokens, where `on_progress` is called.

        False where that cannot be done here: then `state` and `cache` are as they were.

        Raises NotFiniteError, and what torch raises where memory runs out.
        """
        if state.tokens.shape[1] < MIN_GRAPH_TOKENS:
            return False
        self.busy = True
        try:
            try:
                buffers, replay = self._prepare(backbone, state, cache)
            except Exception as error:  # whatever a model, a cache or a driver has against it
                if is_out_of_memory(error):
                    self.buffers = None
                    raise  # fewer rows may do (memory.in_pieces)
                self._disable(error)
                return False
            cache.layers.clear()  # copied: the memory is free for the steps
            buffers.decode(backbone, replay, on_progress, check_every)
            count, length = state.tokens.shape
            state.tokens.copy_(buffers.state.tokens[:count, :length])
            state.logprobs.copy_(buffers.state.logprobs[:count, :length])
            return True
        finally:
            self.busy = False

    def _prepare(self, backbone: Backbone, state: SamplingState, cache: DynamicCache) -> "tuple[GraphBuffers, Action]":
        kv_states = filled_states(cache)
        if not getattr(backbone.model, "_can_compile_fullgraph", False) or not kv_states:
            raise ValueError("its cache or its attention is of a kind that cannot be recorded")
        column_count = state.mask.shape[1] + state.tokens.shape[1]
        row_count, column_count = (
            padded_row_count(len(state.response_index)),
            -(-column_count // COLUMN_MULTIPLE) * COLUMN_MULTIPLE,
        )
        if self.buffers is not None and not self.buffers.fits(row_count, column_count):
            row_count, column_count = self.buffers.merged_size(row_count, column_count)
            self.buffers = None  # its memory first
        if self.buffers is None:
            self.buffers = GraphBuffers(row_count, column_count, state, kv_states, self.record)
        self.buffers.load(state, kv_states)
        return self.buffers, self.buffers.recorded_step(backbone)

    def _disable(self, error: Exception) -> None:
        self.disabled, self.buffers = True, None
        log.warning("tokens are written without CUDA graphs, which is slower (%s: %s)", type(error).__name__, error)
