"""The dtype of a model that is loaded without a given one."""

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, Qwen2Config

from rlhf_lab.common.bundled_assets import embedded_model_folder
from rlhf_lab.config import dtype
from rlhf_lab.config.dtype import DTYPE_VARIABLE
from rlhf_lab.errors import ModelError
from rlhf_lab.kernels.dtype_speed import DtypeSpeed
from rlhf_lab.models import dtype_choice
from rlhf_lab.models.backbone import load_backbone
from rlhf_lab.models.dtype_choice import choose_dtype

CPU = torch.device("cpu")
#: SmolLM2-135M: 30 layers of 4 x 576² + 3 x 576 x 1536 weights (about: grouped queries have fewer), and 49,152 x 576.
SMOL = SimpleNamespace(
    model_type="llama", hidden_size=576, intermediate_size=1536, num_hidden_layers=30, vocab_size=49152
)


@pytest.fixture
def measured(monkeypatch):
    """The sizes of each measurement; bfloat16 is the faster one."""
    sizes = []
    monkeypatch.setattr(dtype_choice, "dtype_speed", lambda *args: sizes.append(args) or DtypeSpeed(16.5, 8.4))
    return sizes


def changed(**sizes):
    return SimpleNamespace(**(vars(SMOL) | sizes))


def test_a_large_model_on_a_cpu_gets_the_faster_dtype(measured, monkeypatch):
    choice = choose_dtype(SMOL, CPU)
    assert choice == (torch.bfloat16, "measured: 16.5 ms in float32, 8.4 ms in bfloat16")
    assert measured == [(576, 1536, 49152)]
    monkeypatch.setattr(dtype_choice, "dtype_speed", lambda *_: DtypeSpeed(10.0, 9.0))
    assert choose_dtype(SMOL, CPU) == (torch.float32, "measured: 10.0 ms in float32, 9.0 ms in bfloat16")


def test_the_embedded_model_is_float32_without_a_measurement(measured):
    config = AutoConfig.from_pretrained(embedded_model_folder())
    assert choose_dtype(config, CPU) == (torch.float32, "default on a CPU")
    assert not measured


def test_measured_are_models_of_33_million_weights_and_more(measured):
    one_layer = 64 * (4 * 64 + 3 * 256)  # 65,536 weights
    layers = 2**25 // one_layer
    choose_dtype(changed(hidden_size=64, intermediate_size=256, num_hidden_layers=layers - 1, vocab_size=1023), CPU)
    assert not measured
    choose_dtype(changed(hidden_size=64, intermediate_size=256, num_hidden_layers=layers - 1, vocab_size=1024), CPU)
    assert measured == [(64, 256, 1024)]


def test_families_without_fused_layers_are_float32(measured):
    assert choose_dtype(changed(model_type="gpt_neox"), CPU).dtype == torch.float32
    assert choose_dtype(Qwen2Config(), CPU).dtype == torch.bfloat16
    assert len(measured) == 1


def test_processes_that_train_together_do_not_measure(measured, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert choose_dtype(SMOL, CPU) == (torch.float32, "default on a CPU")
    assert not measured


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_the_environment_variable_decides(measured, monkeypatch, device, name):
    monkeypatch.setenv(DTYPE_VARIABLE, name)
    assert choose_dtype(SMOL, torch.device(device)) == (getattr(torch, name), DTYPE_VARIABLE)
    assert not measured


def test_an_unknown_name_is_refused(monkeypatch):
    monkeypatch.setenv(DTYPE_VARIABLE, "half")
    with pytest.raises(ModelError, match='RLHF_LAB_DTYPE is "half"'):
        choose_dtype(SMOL, CPU)


@pytest.mark.parametrize(("supported", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_a_gpu_gets_bfloat16_where_it_has_it(measured, monkeypatch, supported, dtype):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: supported)
    assert choose_dtype(SMOL, torch.device("cuda")) == (dtype, "default on a GPU")
    assert not measured


def test_a_backbone_knows_why_it_has_its_dtype(llama_folder, monkeypatch):
    assert load_backbone(str(llama_folder), device="cpu").dtype_reason == "default on a CPU"
    assert load_backbone(str(llama_folder), device="cpu", dtype=torch.float32).dtype_reason == "requested by the caller"
    monkeypatch.setattr(dtype, "MIN_MEASURED_WEIGHTS", 0)
    monkeypatch.setattr(dtype_choice, "dtype_speed", lambda *_: DtypeSpeed(2.0, 1.0))
    backbone = load_backbone(str(llama_folder), device="cpu")
    assert backbone.model.dtype == torch.bfloat16
    assert backbone.dtype_reason == "measured: 2.0 ms in float32, 1.0 ms in bfloat16"
