"""Recorded and replayed steps of fixed shapes give the same samples as the ordinary steps. Here they are recorded on a CPU."""

import contextlib
import dataclasses
import gc
import logging
import math
import warnings
from types import SimpleNamespace

import pytest
import torch
from support import tiny_models
from support.graph_recorders import Tape, Tapes, played
from torch.utils._pytree import tree_leaves

from rlhf_lab.errors import NotFiniteError
from rlhf_lab.kernels import c_ops
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.fused_llama import patch
from rlhf_lab.models.kv_cache import reserved_cache
from rlhf_lab.models.oom import free_memory
from rlhf_lab.models.sampling import graph_buffers as decoder_module
from rlhf_lab.models.sampling.cuda_graphs import GRAPHS_ENV, CudaRecorder, GraphedSampler, graphed_sampler_of
from rlhf_lab.models.sampling.graph_buffers import GraphBuffers, padded_row_count
from rlhf_lab.models.sampling.sampler import PROGRESS_EVERY, sample
from rlhf_lab.models.sampling.sampling_state import SamplingState
from rlhf_lab.models.vocabulary_head import make_vocabulary_head

KINDS = ("llama", "gpt2", "qwen2")
LENGTH = 38
pytestmark = pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False but the target module is `Conv1D`")


def sample_rows(backbone, record=None, rows=10, temperature=1.2, tick=lambda: None):
    """Samples for prompts of 1 to 7 tokens, some twice; with the graphs of a recorder, or without as on a CPU."""
    prompts = tiny_models.ragged(rows=rows)[0]
    prompts[3] = prompts[1]
    if record is None:
        graphs, backbone.cuda_graphs = backbone.cuda_graphs, None
    elif backbone.cuda_graphs is None:
        backbone.cuda_graphs = GraphedSampler(record)
    uniform = tiny_models.seeded(rows, LENGTH)
    try:
        return sample(backbone, prompts, uniform, temperature=temperature, on_progress=tick)
    finally:
        if record is None:
            backbone.cuda_graphs = graphs


def assert_same(actual, expected, tolerance=1e-9):
    assert actual.tokens == expected.tokens
    for ours, theirs in zip(actual.logprobs, expected.logprobs, strict=True):
        assert ours == pytest.approx(theirs, abs=tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["bare", "off", "adapter", "merged"])
def test_same_tokens_as_without_graphs(saved, kind, mode):
    backbone, tapes = tiny_models.load(saved[kind], torch.float64), Tapes()
    if mode != "bare":
        adapters = tiny_models.adapters_of(backbone, "policy")
        with adapters.using(None if mode == "off" else "policy", merged=mode == "merged"):
            expected, actual = sample_rows(backbone), sample_rows(backbone, tapes)
    else:
        expected, actual = sample_rows(backbone), sample_rows(backbone, tapes)
    assert_same(actual, expected)
    assert len({len(row) for row in actual.tokens}) > 1
    assert len(tapes.all) >= 1
    assert not backbone.cuda_graphs.disabled


@pytest.mark.parametrize("kind", KINDS)
def test_an_unrecorded_step_gives_the_same_tokens(saved, kind):
    backbone = tiny_models.load(saved[kind], torch.float64)
    assert_same(sample_rows(backbone, played), sample_rows(backbone))
    assert backbone.cuda_graphs.buffers is not None


def learn(backbone, adapters, name, seed=1):
    """An optimiser step that is large enough to change the samples."""
    optimiser = torch.optim.Adam(adapters.parameters(name), lr=0.05)
    ids = torch.tensor([tiny_models.ids("the cat sat . the very old king")])
    with adapters.using(name):
        hidden = backbone.hidden(ids).float()
        (hidden * torch.randn(hidden.shape, generator=torch.Generator().manual_seed(seed))).sum().backward()
    optimiser.step()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("merged", [False, True])
def test_graphs_follow_an_optimiser_step(saved, kind, merged):
    """Graphs recorded before the step are replayed after it: the tape reads the same memory, which holds the new weights."""
    backbone, tapes = tiny_models.load(saved[kind], torch.float64), Tapes()
    adapters = tiny_models.adapters_of(backbone, "policy", "reward")
    with adapters.using("policy", merged=merged):
        before = sample_rows(backbone, tapes)
    with adapters.using("policy", merged=merged):  # further sizes, because the texts end differently
        recorded = len(tapes.all)
        assert_same(sample_rows(backbone, tapes), before)
    assert len(tapes.all) == recorded
    for seed in range(2):
        learn(backbone, adapters, "policy", seed)
        with adapters.using("reward", merged=merged):
            backbone.hidden(torch.tensor([[9, 10]]))
        with adapters.using("policy", merged=merged):
            sizes = dict(backbone.cuda_graphs.buffers.graphs)
            expected, actual = sample_rows(backbone), sample_rows(backbone, tapes)
            assert all(backbone.cuda_graphs.buffers.graphs[key] is graph for key, graph in sizes.items())
        assert_same(actual, expected)
        assert actual.tokens != before.tokens


def test_half_precision_follows_an_optimiser_step(saved, monkeypatch):
    """In bfloat16 A and B are converted copies, which also keep their addresses. With modules, as on a GPU."""
    monkeypatch.setattr(patch, "SUPPORTED_LAYERS", ())
    monkeypatch.setattr(c_ops, "supported", lambda *_: False)  # as below
    backbone, tapes = tiny_models.load(saved["llama"], torch.bfloat16), Tapes()
    adapters = tiny_models.adapters_of(backbone, "policy")
    with adapters.using("policy", merged=True):
        before = sample_rows(backbone, tapes)
    learn(backbone, adapters, "policy")
    with adapters.using("policy", merged=True):
        actual = sample_rows(backbone, tapes)
        backbone.cuda_graphs = None
        expected = sample_rows(backbone, played)  # the same operations, called again
    assert actual == expected
    assert actual.tokens != before.tokens


def test_recorded_steps_do_not_sync_or_depend_on_values(saved, monkeypatch):
    monkeypatch.setattr(
        c_ops, "supported", lambda *_: False
    )  # the C kernels run on a CPU only, and operation recorders do not see them
    for kind in KINDS:
        backbone, tapes = tiny_models.load(saved[kind]), Tapes()
        with tiny_models.adapters_of(backbone, "policy").using("policy", merged=True):
            sample_rows(backbone, tapes)
        assert [tape.waits for tape in tapes.all] == [[]] * len(tapes.all)


@pytest.mark.parametrize("on_gpu", [True, False])
def test_a_token_without_graph_does_not_sync(saved, on_gpu):
    """On a GPU the mask is created without reading values; elsewhere transformers reads them and may omit the mask."""
    backbone = tiny_models.load(saved["llama"])
    cache = reserved_cache(backbone.model.config, 8, on_gpu=on_gpu)
    with torch.no_grad():
        for width, tape in ((3, None), (4, Tape())):
            ids = torch.full((2, width if tape is None else 1), 9)
            positions = torch.arange(width)[-ids.shape[1] :].expand(2, -1)
            inputs = {"attention_mask": torch.ones(2, width, dtype=torch.int64), "position_ids": positions}
            with tape or torch.no_grad():
                backbone.trunk(input_ids=ids, past_key_values=cache, use_cache=True, **inputs)
    assert (tape.waits == []) == on_gpu


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_allocates_nothing_on_the_cpu(saved, kind):
    """A copy from the CPU cannot be recorded. The device "meta" holds shapes only, and every tensor shows its device."""
    backbone, meta = tiny_models.load(saved[kind]), torch.device("meta")
    config = backbone.model.to(meta).config
    backbone.vocabulary_head = make_vocabulary_head(backbone.model, backbone.tokenizer.get_vocab().values())
    adapters = Adapters(backbone)
    adapters.add("policy", r=4, alpha=8, seed=0, trainable=True)

    def zeros(*shape, dtype=torch.int64):
        return torch.zeros(shape, dtype=dtype, device=meta)

    numbers = [zeros(4, 8, dtype=torch.float64), zeros(4, 8, dtype=torch.float64), zeros(4, 8)]
    writing = SamplingState(
        zeros(4), zeros(4, 1), zeros(4, 1), zeros(4, 3), zeros(4, dtype=torch.bool), *numbers,
        zeros(dtype=torch.bool), zeros(dtype=torch.float64), zeros(2),
    )  # fmt: skip
    heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    states = [(zeros(4, heads, 3, 32 // config.num_attention_heads, dtype=torch.float32),) * 2] * 2
    decoder = GraphBuffers(4, 64, writing, states, played)
    with adapters.using("policy", merged=True):
        decoder.load(writing, states)
        backbone.weight_version.refresh()
        with Tape() as tape:
            decoder._make_step(backbone)()
    tensors = [x for _, args, given, out in tape.operations for x in tree_leaves((args, given, out))]
    assert {x.device for x in tensors if isinstance(x, torch.Tensor)} == {meta}
    assert len(tape.operations) > 100


@pytest.fixture
def cuda(monkeypatch):
    """Replaces torch.cuda; records the calls in order."""
    done, names = [], iter(["rehearsal", "capture", "rehearsal 2", "capture 2"])
    now = ["main"]

    class Stream:
        def __init__(self, name=None):
            self.name = name or next(names)

        def wait_stream(self, other):
            done.append(f"{self.name} waits for {other.name}")

    class Graph:
        def replay(self):
            done.append("replay")

    @contextlib.contextmanager
    def use_stream(stream):
        now[0] = stream.name
        try:
            yield
        finally:
            now[0] = "main"

    @contextlib.contextmanager
    def graph(graph, pool, stream, capture_error_mode):
        """As in torch: a failed recording leaves the thread on its stream."""
        done.append(f"recording into {pool} on {stream.name}")
        now[0] = stream.name
        yield
        now[0] = "main"

    def set_stream(stream):
        now[0] = stream.name

    def set_sync_debug_mode(mode):
        """As in torch, which warns the first time; in these tests warnings are errors."""
        warnings.warn("Synchronization debug mode is a prototype feature", UserWarning, stacklevel=2)
        done.append(f"wait {mode}")

    pools = iter(["pool 1", "pool 2", "pool 3"])
    fakes = {
        "device": lambda device: contextlib.nullcontext(), "stream": use_stream, "graph": graph, "Stream": Stream,
        "current_stream": lambda: Stream(now[0]), "set_stream": set_stream, "graph_pool_handle": lambda: next(pools),
        "CUDAGraph": Graph, "get_sync_debug_mode": lambda: 0, "set_sync_debug_mode": set_sync_debug_mode,
    }  # fmt: skip
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return SimpleNamespace(done=done, now=now)


def test_capture_calls_to_cuda(cuda):
    """Two warm-up steps on another stream, waited for before and after, the second without a sync; then one recording."""
    recorder = CudaRecorder(torch.device("cuda"))
    recorder(lambda: cuda.done.append(f"step on {cuda.now[0]}"), lambda: cuda.done.append("restore"))()
    assert cuda.done == [
        "rehearsal waits for main",
        "wait default", "step on rehearsal", "wait 0", "restore", "wait error", "step on rehearsal", "wait 0", "restore",
        "main waits for rehearsal", "recording into pool 1 on capture", "step on capture", "replay",
    ]  # fmt: skip


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_failed_capture_restores_the_stream(cuda, fails_at):
    calls, restored = [], []

    def step():
        calls.append(cuda.now[0])
        if len(calls) == fails_at:
            raise RuntimeError("it waits for the GPU")

    with pytest.raises(RuntimeError, match="waits"):
        CudaRecorder(torch.device("cuda"))(step, lambda: restored.append(True))
    assert torch.cuda.current_stream().name == "main"
    assert len(restored) == min(fails_at, 2)
    assert cuda.done[-1] in ("wait 0", "recording into pool 1 on capture")


def test_pool_is_replaced_after_its_last_graph(cuda):
    """Each recorder has its own stream; graphs share a memory pool until the last one is freed."""
    recorder, other = CudaRecorder(torch.device("cuda")), CudaRecorder(torch.device("cuda"))
    first = recorder(lambda: None, lambda: None)
    second = recorder(lambda: None, lambda: None)
    del first
    third = recorder(lambda: None, lambda: None)
    del second, third
    gc.collect()
    recorder(lambda: None, lambda: None)
    other(lambda: None, lambda: None)
    assert [line for line in cuda.done if "recording" in line] == [
        *["recording into pool 1 on capture"] * 3, "recording into pool 2 on capture", "recording into pool 3 on capture 2",
    ]  # fmt: skip


def test_out_of_memory_retries_with_fewer_rows(saved):
    """Smaller batches are tried, with graphs; training frees the buffers of sampling first."""
    backbone = tiny_models.load(saved["llama"], torch.float64)
    rows = []

    def record(step, restore):
        rows.append(backbone.cuda_graphs.buffers.max_rows if backbone.cuda_graphs.buffers else None)
        if len(rows) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return played(step, restore)

    assert_same(sample_rows(backbone, record), sample_rows(backbone))
    assert not backbone.cuda_graphs.disabled
    assert backbone.batch_splits == 2
    assert backbone.cuda_graphs.buffers is not None
    free_memory(backbone)
    assert backbone.cuda_graphs.buffers is None


def test_least_recently_used_graph_is_dropped_first(saved, monkeypatch):
    monkeypatch.setattr(decoder_module, "MAX_GRAPHS", 2)
    backbone, tapes = tiny_models.load(saved["llama"], torch.float64), Tapes()
    sizes = lambda: [size for _, size in backbone.cuda_graphs.buffers.graphs]  # noqa: E731
    for rows, expected in ((12, [12]), (8, [12, 8]), (12, [8, 12]), (6, [12, 6])):
        monkeypatch.setattr(decoder_module.GraphBuffers, "decode", lambda *args: None)
        sample_rows(backbone, tapes, rows=rows)
        assert sizes() == expected


def test_other_work_between_tokens_changes_nothing(saved):
    """The callback between tokens may sample on the same backbone, use other adapters, and add one."""
    backbone, tapes = tiny_models.load(saved["llama"], torch.float64), Tapes()
    adapters = tiny_models.adapters_of(backbone, "policy", "reward")
    other_samples = []

    def tick():
        with adapters.using("reward", merged=True):
            other_samples.append(sample(backbone, [[9, 10, 11]], tiny_models.seeded(1, 20)).tokens)
        if len(other_samples) == 2:
            adapters.add("late", r=2, alpha=4, seed=0, trainable=False)

    with adapters.using("policy", merged=True):
        expected = sample_rows(backbone)
        actual = sample_rows(backbone, tapes, tick=tick)
    assert_same(actual, expected)
    assert len(other_samples) == (LENGTH - 1) // PROGRESS_EVERY == 2
    assert other_samples[0] == other_samples[1]


def test_graphs_belong_to_an_adapter(saved):
    """Alternating between two adapters and none, each sampling replays its own graphs."""
    backbone, tapes = tiny_models.load(saved["gpt2"], torch.float64), Tapes()
    adapters = tiny_models.adapters_of(backbone, "a", "b")
    texts = []
    for name in ("a", "b", None, "a", "b", None):
        with adapters.using(name):
            actual = sample_rows(backbone, tapes)
            assert_same(actual, sample_rows(backbone))
        texts.append(actual.tokens)
    assert texts[:3] == texts[3:]
    assert texts[0] != texts[1] != texts[2]


def test_a_new_adapter_discards_graphs(saved):
    """It recreates the layers, so the addresses of their inputs change."""
    backbone, tapes = tiny_models.load(saved["llama"], torch.float64), Tapes()
    adapters = tiny_models.adapters_of(backbone, "policy")
    with adapters.using("policy"):
        sample_rows(backbone, tapes)
    adapters.add("late", r=2, alpha=4, seed=0, trainable=False)
    recorded = len(tapes.all)
    learn(backbone, adapters, "policy")
    with adapters.using("policy"):
        assert_same(sample_rows(backbone, tapes), sample_rows(backbone))
    assert len(tapes.all) > recorded


def test_a_row_does_not_depend_on_other_rows(saved):
    backbone = tiny_models.load(saved["gpt2"], torch.float64)
    together = sample_rows(backbone, Tapes(), rows=11)
    prompts = tiny_models.ragged(rows=11)[0]
    prompts[3] = prompts[1]
    for i in (0, 3, 10):
        uniform = tiny_models.seeded(11, LENGTH)[i : i + 1]
        alone = sample(backbone, [prompts[i]], uniform, temperature=1.2)
        assert alone.tokens == [together.tokens[i]]
        assert alone.logprobs[0] == pytest.approx(together.logprobs[i], abs=1e-9)


def ending_early(backbone):
    """Nine rows that end with their third token and one that continues: a uniform number of 0 picks EOS, id 0."""
    uniform = torch.full((10, LENGTH), 0.97, dtype=torch.float64)
    uniform[:-1, 2] = 0.0
    return [[9 + i] for i in range(10)], uniform


def test_active_rows_are_compacted(saved):
    backbone, tapes = tiny_models.load(saved["gpt2"], torch.float64), Tapes()
    prompts, uniform = ending_early(backbone)
    expected = sample(backbone, prompts, uniform)
    backbone.cuda_graphs = GraphedSampler(tapes)
    assert_same(sample(backbone, prompts, uniform), expected)
    assert [len(row) for row in expected.tokens] == [3] * 9 + [LENGTH]
    assert [size for _, size in backbone.cuda_graphs.buffers.graphs] == [12, 1]


def test_later_capture_failure_runs_the_step_without_graph(saved, caplog):
    backbone, tapes = tiny_models.load(saved["gpt2"], torch.float64), Tapes()
    prompts, uniform = ending_early(backbone)
    expected = sample(backbone, prompts, uniform)

    def record(step, restore):
        if tapes.all:
            raise RuntimeError("out of luck")
        return tapes(step, restore)

    backbone.cuda_graphs = GraphedSampler(record)
    for _ in range(2):
        assert_same(sample(backbone, prompts, uniform), expected)
    assert [message for message in caplog.messages if "out of luck" in message] == [
        "1 rows are written without CUDA graphs (RuntimeError: out of luck)"
    ]


@pytest.mark.parametrize("after_a_step", [False, True])
def test_models_that_cannot_be_recorded_sample_without_graphs(saved, caplog, after_a_step):
    backbone = tiny_models.load(saved["llama"], torch.float64)

    def refuse(step, restore):
        if after_a_step:
            step()  # the failure comes after something was written
        raise RuntimeError("operation not permitted when stream is capturing")

    caplog.clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert_same(sample_rows(backbone, refuse), sample_rows(backbone), tolerance=0)
    assert len(caplog.messages) == 1
    assert "without CUDA graphs, which is slower (RuntimeError: operation not permitted" in caplog.messages[0]
    assert backbone.cuda_graphs.buffers is None


def test_sliding_windows_are_not_recorded(saved, caplog):
    backbone, tapes = tiny_models.load(saved["gemma3"], torch.float64), Tapes()
    assert_same(sample_rows(backbone, tapes), sample_rows(backbone), tolerance=0)
    assert not tapes.all
    assert len(caplog.messages) == 1
    assert "of a kind that cannot be recorded" in caplog.messages[0]


def test_non_finite_weights_are_refused_and_leave_nothing_behind(saved):
    backbone, tapes = tiny_models.load(saved["llama"], torch.float64), Tapes()
    expected = sample_rows(backbone, tapes)
    weight = backbone.model.get_input_embeddings().weight
    original = weight.clone()
    with torch.no_grad():
        weight[9:] = math.nan
        with pytest.raises(NotFiniteError):
            sample_rows(backbone, tapes)
        weight.copy_(original)
    assert_same(sample_rows(backbone, tapes), expected, tolerance=0)


def test_progress_callback_may_stop(saved):
    backbone, tapes = tiny_models.load(saved["llama"], torch.float64), Tapes()

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sample_rows(backbone, tapes, tick=stop)
    assert_same(sample_rows(backbone, tapes), sample_rows(backbone))
    assert backbone.cuda_graphs.buffers is not None


def test_sizes_by_hand():
    rows = [1, 2, 3, 4, 5, 7, 8, 9, 13, 17, 33, 64, 65]
    assert [padded_row_count(n) for n in rows] == [1, 2, 3, 4, 6, 8, 8, 12, 16, 24, 48, 64, 96]


def test_buffers_are_reused_and_grow_where_that_is_cheap(saved):
    backbone, tapes = tiny_models.load(saved["llama"], torch.float64), Tapes()
    sample_rows(backbone, tapes)
    first = backbone.cuda_graphs.buffers
    assert (first.max_rows, first.max_columns) == (12, 64)
    sample_rows(backbone, tapes, rows=4)
    assert backbone.cuda_graphs.buffers is first
    sample_rows(backbone, tapes, rows=13)
    assert (backbone.cuda_graphs.buffers.max_rows, backbone.cuda_graphs.buffers.max_columns) == (16, 64)
    assert first.fits(12, 64)
    assert not first.fits(12, 128)
    assert not first.fits(16, 64)
    assert first.merged_size(4, 128) == (12, 128)
    assert first.merged_size(4, 1024) == (4, 1024)  # 12 x 1024 would be three times as much


def test_few_graphs_are_kept(saved, monkeypatch):
    monkeypatch.setattr(decoder_module, "MAX_GRAPHS", 2)
    backbone, tapes = tiny_models.load(saved["llama"], torch.float64), Tapes()
    for rows in (12, 8, 6, 4):
        sample_rows(backbone, tapes, rows=rows)
    assert len(backbone.cuda_graphs.buffers.graphs) <= 2
    assert_same(sample_rows(backbone, tapes, rows=12), sample_rows(backbone, rows=12))


def test_graphs_only_on_a_gpu_and_if_enabled(saved, monkeypatch):
    backbone = tiny_models.load(saved["llama"])
    assert graphed_sampler_of(backbone) is None
    monkeypatch.setenv(GRAPHS_ENV, "0")
    assert graphed_sampler_of(dataclasses.replace(backbone, device=torch.device("cuda"))) is None
    monkeypatch.delenv(GRAPHS_ENV)
    on_gpu = dataclasses.replace(backbone, device=torch.device("cuda"))
    graphs = graphed_sampler_of(on_gpu)
    assert isinstance(graphs, GraphedSampler)
    assert graphed_sampler_of(on_gpu) is graphs
    graphs.busy = True
    assert graphed_sampler_of(on_gpu) is None
