"""The precision of a model's weights where nobody says which."""

import pytest
import torch

from rlhf_lab.errors import ModelError
from rlhf_lab.models.backbone import load_backbone
from rlhf_lab.models.precision import SWITCH, usual

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.delenv(SWITCH, raising=False)


@pytest.mark.parametrize("has", [True, False])
def test_a_gpu_that_has_bfloat16_takes_it_and_nothing_else_does(monkeypatch, has):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has)
    assert usual(GPU) == (torch.bfloat16 if has else torch.float32)
    assert usual(CPU) == torch.float32


@pytest.mark.parametrize("device", [CPU, GPU])
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_the_variable_says_which(monkeypatch, device, name):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    monkeypatch.setenv(SWITCH, name)
    assert usual(device) == getattr(torch, name)


def test_nothing_said_is_as_if_the_variable_were_not_there(monkeypatch):
    monkeypatch.setenv(SWITCH, "")
    assert usual(CPU) == torch.float32


@pytest.mark.parametrize("name", ["half", "BFLOAT16", "torch.bfloat16"])
def test_what_is_no_precision_is_refused(monkeypatch, name):
    monkeypatch.setenv(SWITCH, name)
    with pytest.raises(ModelError, match=f'RLHF_LAB_DTYPE is "{name}".*say float32 or bfloat16'):
        usual(CPU)


def test_a_model_is_loaded_in_it_unless_it_is_asked_for_in_another(monkeypatch, llama_folder):
    monkeypatch.setenv(SWITCH, "bfloat16")
    folder = str(llama_folder)
    assert load_backbone(folder, device="cpu").model.dtype == torch.bfloat16
    assert load_backbone(folder, device="cpu", dtype=torch.float32).model.dtype == torch.float32
