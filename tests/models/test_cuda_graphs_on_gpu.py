"""CUDA graphs on a GPU: replays equal the steps called token by token, before and after an optimiser step."""

import pytest
import torch
from support import tiny_models
from support.graph_recorders import played

from rlhf_lab.models.backbone import load_backbone
from rlhf_lab.models.sampling.cuda_graphs import GRAPHS_ENV, CudaRecorder, GraphedSampler
from rlhf_lab.models.sampling.sampler import sample

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: CUDA graphs cannot be recorded here"),
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False but the target module is `Conv1D`"),
]
KINDS = ("llama", "gpt2", "qwen2")
LENGTH = 38


def sample_rows(backbone, graphs):
    """Ten prompts of 1 to 7 tokens, one of them twice."""
    prompts = tiny_models.ragged(rows=10)[0]
    prompts[3] = prompts[1]
    backbone.cuda_graphs = graphs
    return sample(backbone, prompts, tiny_models.seeded(10, LENGTH), temperature=1.2)


def learn(backbone, adapters):
    optimiser = torch.optim.Adam(adapters.parameters("policy"), lr=0.05)
    ids = torch.tensor([tiny_models.ids("the cat sat . the very old king")], device="cuda")
    with adapters.using("policy"):
        hidden = backbone.hidden(ids).float()
        weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1)).to("cuda")
        (hidden * weights).sum().backward()
    optimiser.step()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["off", "merged", "adapter"])
def test_replays_equal_eager_before_and_after_an_optimiser_step(saved, kind, mode, monkeypatch):
    """float64: ordinary steps use other kernels, so log-probabilities are equal up to rounding and tokens are identical."""
    backbone = load_backbone(str(saved[kind]), device="cuda", dtype=torch.float64)
    adapters = tiny_models.adapters_of(backbone, "policy")
    graphs = GraphedSampler(CudaRecorder(backbone.device))
    results = []
    for _ in range(2):
        with adapters.using(None if mode == "off" else "policy", merged=mode == "merged"):
            monkeypatch.setenv(GRAPHS_ENV, "0")
            eager = sample_rows(backbone, None)
            monkeypatch.delenv(GRAPHS_ENV)
            replayed = sample_rows(backbone, graphs)
        assert not graphs.disabled
        assert replayed.tokens == eager.tokens
        for ours, expected in zip(replayed.logprobs, eager.logprobs, strict=True):
            assert ours == pytest.approx(expected, abs=1e-8)
        results.append(replayed.tokens)
        learn(backbone, adapters)
    assert (results[0] != results[1]) == (mode != "off")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_replays_equal_single_steps(saved, kind, dtype):
    """In the dtypes of training, against the same kernels: bit-identical, before and after an optimiser step."""
    backbone = load_backbone(str(saved[kind]), device="cuda", dtype=dtype)
    adapters = tiny_models.adapters_of(backbone, "policy")
    graphs = GraphedSampler(CudaRecorder(backbone.device))
    for _ in range(2):
        with adapters.using("policy", merged=True):
            assert sample_rows(backbone, graphs) == sample_rows(backbone, GraphedSampler(played))
        learn(backbone, adapters)
    assert not graphs.disabled


def test_no_sync_between_two_checks(saved):
    """torch raises an error at every synchronisation during the steps."""
    backbone = load_backbone(str(saved["llama"]), device="cuda")
    graphs = GraphedSampler(CudaRecorder(backbone.device))
    sample_rows(backbone, graphs)
    decoder = graphs.buffers
    step = decoder._make_step(backbone)
    decoder.write_index.fill_(10)
    decoder.t.fill_(1)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
        decoder.recorded_step(backbone)()
    finally:
        torch.cuda.set_sync_debug_mode("default")
