"""The default dtype of a model's weights."""

import pytest
import torch

from rlhf_lab.config.dtype import DTYPE_VARIABLE, default_dtype
from rlhf_lab.errors import ModelError
from rlhf_lab.models.backbone import load_backbone


def test_bfloat16_is_the_default_only_on_a_gpu():
    assert default_dtype(gpu=True) == "bfloat16"
    assert default_dtype(gpu=False) == "float32"


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_the_environment_variable_sets_the_dtype(monkeypatch, gpu, name):
    monkeypatch.setenv(DTYPE_VARIABLE, name)
    assert default_dtype(gpu=gpu) == name


def test_an_empty_environment_variable_counts_as_unset(monkeypatch):
    monkeypatch.setenv(DTYPE_VARIABLE, "")
    assert default_dtype(gpu=False) == "float32"


@pytest.mark.parametrize("name", ["half", "BFLOAT16", "torch.bfloat16"])
def test_an_unknown_dtype_is_refused(monkeypatch, name):
    monkeypatch.setenv(DTYPE_VARIABLE, name)
    with pytest.raises(ModelError, match=f'RLHF_LAB_DTYPE is "{name}".*set it to float32 or bfloat16'):
        default_dtype(gpu=False)


def test_a_model_is_loaded_in_the_default_dtype_unless_another_is_given(monkeypatch, llama_folder):
    folder = str(llama_folder)
    assert load_backbone(folder, device="cpu").model.dtype == torch.float32
    monkeypatch.setenv(DTYPE_VARIABLE, "bfloat16")
    assert load_backbone(folder, device="cpu").model.dtype == torch.bfloat16
    assert load_backbone(folder, device="cpu", dtype=torch.float32).model.dtype == torch.float32
