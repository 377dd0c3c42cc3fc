"""Sampling on a GPU with CUDA graphs: the forward pass and sampling of a token are recorded once and replayed for every
token.

A GPU computes a token of a small model faster than Python launches its operations; a replay is a single launch. A graph
reads and writes fixed addresses, so everything that a step uses is in buffers of fixed shape (graph_buffers.py). Weights
may change in place between replays; if their addresses change, which `Backbone.weight_version` shows, the step is
recorded again.

The number of rows is rounded up to one of a few sizes; padding rows repeat the last one and write no output. When rows
finish, the active ones are compacted into half the size or less. Whatever cannot be recorded is sampled without graphs,
after one log line.
"""

import logging
import os
import warnings
import weakref
from typing import Any

import torch
from transformers import DynamicCache

from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.kv_cache import filled_states
from rlhf_lab.models.memory_errors import is_out_of_memory
from rlhf_lab.models.sampling.graph_buffers import Action, GraphBuffers, Recorder, padded_row_count
from rlhf_lab.models.sampling.sampling_state import SamplingState

log = logging.getLogger("rlhf_lab.graphs")

GRAPHS_ENV = "RLHF_LAB_GRAPHS"  # 0: never
MIN_GRAPH_TOKENS = 8  # fewer are not worth recording
COLUMN_MULTIPLE = 64  # the length of the buffers is a multiple of it


def set_sync_debug_mode(mode: int | str) -> None:
    """`torch.cuda.set_sync_debug_mode` without its warning that it is a prototype: some programs turn warnings into errors."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode")
        torch.cuda.set_sync_debug_mode(mode)


class CudaRecorder:
    """Records steps as CUDA graphs, on its own stream: when a capture ends, PyTorch takes back the workspaces of the
    stream it was captured on.

    All graphs share one memory pool: they run one after another and keep nothing in it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.warmup_stream: Any = None
        self.capture_stream: Any = None
        self.pool: Any = None
        self.graphs = weakref.WeakSet[Any]()  # a pool is freed with the last graph captured into it

    def __call__(self, step: Action, restore: Action) -> Action:
        """Run the step for warm-up on a side stream, as CUDA requires, then capture it; capturing computes nothing.

        Raises whatever the step raises, and RuntimeError if it waits for the GPU; the thread's stream is restored then.
        """
        with torch.cuda.device(self.device):
            self.warmup_stream = self.warmup_stream or torch.cuda.Stream()
            self.capture_stream = self.capture_stream or torch.cuda.Stream()
            previous_stream = torch.cuda.current_stream()
            self.warmup_stream.wait_stream(previous_stream)
            with torch.cuda.stream(self.warmup_stream):
                for sync_mode in ("default", "error"):  # the first run may wait for the GPU: it initialises
                    previous_mode = torch.cuda.get_sync_debug_mode()
                    set_sync_debug_mode(sync_mode)
                    try:
                        step()
                    finally:
                        set_sync_debug_mode(previous_mode)
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
            torch.cuda.set_stream(previous_stream)  # PyTorch stays on the capture stream when a capture fails
            raise
        self.graphs.add(graph)
        return graph.replay


def graphed_sampler_of(backbone: Backbone) -> "GraphedSampler | None":
    """The backbone's graphs on a GPU. None on other devices, if graphs are disabled or impossible (sharded weights),
    and while they are in use.
    """
    if backbone.shards is not None:
        return None
    if backbone.cuda_graphs is None and backbone.device.type == "cuda" and os.environ.get(GRAPHS_ENV) != "0":
        backbone.cuda_graphs = GraphedSampler(CudaRecorder(backbone.device))
    sampler: GraphedSampler | None = backbone.cuda_graphs
    return sampler if sampler is not None and sampler.ready else None


class GraphedSampler:
    """The graph buffers of one backbone, kept between samplings. Sampling nested within another does not use them."""

    def __init__(self, record: Recorder) -> None:
        self.record = record
        self.buffers: GraphBuffers | None = None
        self.busy = self.disabled = False

    @property
    def ready(self) -> bool:
        return not (self.busy or self.disabled)

    def free(self) -> None:
        """Free buffers and graphs; the next sampling creates them again."""
        self.buffers = None

    def decode(
        self, backbone: Backbone, state: SamplingState, cache: DynamicCache, on_progress: Action, check_every: int
    ) -> bool:
        """Sample all but the first tokens into `state`, checking for finished rows and calling `on_progress` every
        check_every tokens.

        Returns False if that is not possible here; `state` and `cache` are then unchanged.

        Raises NotFiniteError, and PyTorch's error when memory runs out.
        """
        if state.tokens.shape[1] < MIN_GRAPH_TOKENS:
            return False
        self.busy = True
        try:
            try:
                buffers, replay = self._prepare(backbone, state, cache)
            except Exception as error:  # anything that model, cache or driver may raise
                if is_out_of_memory(error):
                    self.buffers = None
                    raise  # fewer rows may fit (oom.run_in_chunks)
                self._disable(error)
                return False
            cache.layers.clear()  # copied into the buffers: free the memory
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
            self.buffers = None  # free its memory first
        if self.buffers is None:
            self.buffers = GraphBuffers(row_count, column_count, state, kv_states, self.record)
        self.buffers.load(state, kv_states)
        return self.buffers, self.buffers.recorded_step(backbone)

    def _disable(self, error: Exception) -> None:
        self.disabled, self.buffers = True, None
        log.warning("tokens are written without CUDA graphs, which is slower (%s: %s)", type(error).__name__, error)
