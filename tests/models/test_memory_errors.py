"""Errors that mean that memory ran out, by PyTorch's classes and by what libraries write."""

import pytest
import torch
from support import tiny_models

from rlhf_lab.errors import ModelError
from rlhf_lab.models import backbone
from rlhf_lab.models.memory_errors import is_out_of_memory


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("could not create a primitive"),
        RuntimeError("std::bad_alloc"),
        OSError(12, "Cannot allocate memory"),
    ],
    ids=str,
)
def test_out_of_memory(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize("text", ["shapes differ", "could not create a primitive descriptor for a matmul primitive"])
def test_other_errors(text):
    assert not is_out_of_memory(RuntimeError(text))


@pytest.mark.parametrize("loader", ["AutoModelForCausalLM", "AutoTokenizer"])
def test_a_model_that_does_not_fit_is_not_called_incomplete(llama_folder, monkeypatch, loader):
    def fail(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes")

    monkeypatch.setattr(getattr(backbone, loader), "from_pretrained", fail)
    with pytest.raises(ModelError, match="memory is too small for this model") as raised:
        tiny_models.load(llama_folder)
    assert "complete transformers checkpoint" not in str(raised.value)
    assert "save_pretrained" not in str(raised.value)
