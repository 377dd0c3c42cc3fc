"""Frozen weights in 4 and 8 bits: invalid uses, and training adapters on them if bitsandbytes is installed."""

import importlib.util

import pytest
import torch
from support import tiny_models

from rlhf_lab.config.dtype import QUANTIZE_NAMES, QUANTIZE_VARIABLE
from rlhf_lab.errors import ModelError
from rlhf_lab.models import backbone as backbone_module
from rlhf_lab.models.backbone import load_backbone
from rlhf_lab.models.batch import make_batch
from rlhf_lab.models.heads import ValueHead
from rlhf_lab.models.quantization import requested_quantization
from rlhf_lab.models.sampling.sampler import sample
from rlhf_lab.training.policy.rollout import PolicyModel

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_nothing_is_quantised_unless_requested(monkeypatch):
    monkeypatch.delenv(QUANTIZE_VARIABLE, raising=False)
    assert requested_quantization(GPU) is None


@pytest.mark.parametrize(("requested", "device", "installed", "words"), [
    ("3bit", GPU, True, '"3bit", which is not supported: set it to 4bit or 8bit'),
    ("4bit", CPU, True, "=4bit needs an NVIDIA GPU, and the model would be loaded on the cpu"),
    ("8bit", GPU, False, "=8bit needs the package bitsandbytes: pip install bitsandbytes"),
])  # fmt: skip
def test_what_cannot_be_quantised_is_an_error(monkeypatch, requested, device, installed, words):
    monkeypatch.setenv(QUANTIZE_VARIABLE, requested)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if installed else None)
    with pytest.raises(ModelError, match=words):
        requested_quantization(device)


def test_a_backbone_is_not_loaded_unquantised_instead(llama_folder, monkeypatch):
    monkeypatch.setenv(QUANTIZE_VARIABLE, "4bit")
    with pytest.raises(ModelError, match="needs an NVIDIA GPU"):
        load_backbone(str(llama_folder), device="cpu")


def test_quantised_weights_are_not_merged(llama_folder, monkeypatch):
    """A merged copy would have the size of the unquantised weights, and rounding it again would lose the update."""
    backbone = tiny_models.load(llama_folder)
    adapters = tiny_models.adapters_of(backbone, "policy")
    with adapters.using("policy", merged=True):
        assert adapters._active.merged
    backbone.model.is_quantized = True
    with adapters.using("policy", merged=True):
        assert not adapters._active.merged


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("bits", QUANTIZE_NAMES)
def test_an_adapter_trains_on_quantised_weights(tmp_path, monkeypatch, bits):
    """On a CPU bitsandbytes computes the same but slowly, so the lab does not offer it there."""
    monkeypatch.setitem(tiny_models.SIZES, "hidden", 64)  # its blocks
    folder = tiny_models.save_llama(tmp_path, intermediate_size=128)
    monkeypatch.setattr(backbone_module, "requested_quantization", lambda device: bits)
    backbone = load_backbone(str(folder), device="cuda" if torch.cuda.is_available() else "cpu", dtype=torch.bfloat16)
    assert backbone.is_quantized
    assert backbone.trunk.layers[0].mlp.up_proj.weight.dtype == {"4bit": torch.uint8, "8bit": torch.int8}[bits]
    assert f"quantised to {bits}" in backbone.dtype_reason
    adapters = tiny_models.adapters_of(backbone, "policy")
    prompts, _ = tiny_models.ragged(rows=4)
    with adapters.using("policy", merged=True):
        sampled = sample(backbone, prompts, tiny_models.seeded(4, 8))
    batch = make_batch(backbone, prompts, sampled.tokens)
    policy = PolicyModel(backbone, adapters, "policy", ValueHead(64).to(backbone.device))
    logprobs = policy.evaluate(batch, 1.0).logprobs
    for row, expected in zip(sampled.logprobs, logprobs.tolist(), strict=True):
        assert row == pytest.approx(expected[: len(row)], abs=0.2)
    assert float((logprobs - policy.reference_logprobs(batch, 1.0)).abs().max()) > 0.05
    logprobs.sum().backward()
    gradients = [parameter.grad for parameter in adapters.parameters("policy")]
    assert all(gradient is not None and bool(gradient.isfinite().all()) for gradient in gradients)
    assert all(float(gradient.abs().sum()) > 0 for gradient in gradients)
