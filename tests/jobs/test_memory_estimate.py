"""The estimate of memory, worked by hand for a model of round numbers."""

from pathlib import Path

import pytest
from support.fake_hub import CONFIG

from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.jobs import memory_estimate as module
from rlhf_lab.jobs.memory_estimate import (
    PROCESS_BYTES,
    DecoderDims,
    DeviceMemory,
    FitVerdict,
    decoder_dims,
    detect_device,
    estimate_memory,
)
from rlhf_lab.jobs.model_inspection import ModelFacts

FACTS = ModelFacts("m", "LlamaForCausalLM", CONFIG, 1800, Path())
RUN = PolicyConfig(batch_size=4, micro_batch=2, max_new_tokens=36, lora_r=2)


def sizes(found):
    return {term.name: term.size for term in found.terms}


def test_every_term_on_a_cpu():
    result = estimate_memory(FACTS, DeviceMemory("cpu", "CPU", 10**9), RUN)
    # H 8, I 20, L 2, V 100, K 2 heads of 2 = 4; T = 64 + 36 = 100
    assert sizes(result) == {
        "weights": 1800 * 4,
        "merged copy": (1800 - 800) * 4,
        "adapters": 2 * (2 * 16 + 2 * 12 + 3 * 28) * 2 * 20,  # r · (q, o; k, v; gate, up, down) · layers · 20 bytes
        "activations": 32 * 100 * 2 * (16 * 8 + 5 * 20) * 4,  # both texts of 16 comparisons
        "logits": 2 * 36 * 100 * 12,
        "cache": 4 * 100 * 2 * 2 * 4 * 4,
        "program": PROCESS_BYTES["cpu"],
    }
    assert result.required_bytes == sum(sizes(result).values())


def test_a_gpu_halves_the_numbers_but_not_the_adapters_and_logits():
    cpu, gpu = (sizes(estimate_memory(FACTS, DeviceMemory(kind, "", 10**9), RUN)) for kind in ("cpu", "gpu"))
    for name in ("weights", "merged copy", "activations", "cache"):
        assert gpu[name] * 2 == cpu[name]
    assert (gpu["adapters"], gpu["logits"]) == (cpu["adapters"], cpu["logits"])


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize(("name", "size"), [("float32", 4), ("bfloat16", 2)])
def test_the_dtype_of_the_environment_variable(monkeypatch, kind, name, size):
    monkeypatch.setenv("RLHF_LAB_DTYPE", name)
    assert sizes(estimate_memory(FACTS, DeviceMemory(kind, "", 10**9), RUN))["weights"] == 1800 * size
    coarse = estimate_memory(ModelFacts("m", "X", {}, 1000, None), DeviceMemory(kind, "", 10**10))
    assert sizes(coarse)["weights"] == 1000 * size


@pytest.mark.parametrize(
    ("bits", "tied", "size"),
    [
        ("4bit", True, 800 * 2 + 1000 // 2 + 16 * 4),  # 16 blocks of 64 hold 1,000 weights
        ("4bit", False, 1600 * 2 + 200 // 2 + 4 * 4),
        ("8bit", True, 800 * 2 + 1000 + 144 * 4),  # rows: 2 layers of q, o, down with 8, k, v with 4, gate, up with 20
        ("8bit", False, 1600 * 2 + 200 + 144 * 4),
    ],
)
def test_quantised_weights_are_counted_on_a_gpu(monkeypatch, bits, tied, size):
    facts = ModelFacts("m", "LlamaForCausalLM", CONFIG | {"tie_word_embeddings": tied}, 1800, Path())
    gpu = DeviceMemory("gpu", "GPU", 10**9)
    plain, on_cpu = sizes(estimate_memory(facts, gpu, RUN)), estimate_memory(facts, DeviceMemory("cpu", "", 1), RUN)
    monkeypatch.setenv("RLHF_LAB_QUANTIZE", bits)
    assert sizes(estimate_memory(facts, gpu, RUN)) == {
        name: size if name == "weights" else term for name, term in plain.items() if name != "merged copy"
    }
    assert estimate_memory(facts, DeviceMemory("cpu", "", 1), RUN) == on_cpu


def test_the_formula_of_quantised_weights(monkeypatch):
    monkeypatch.setenv("RLHF_LAB_QUANTIZE", "4bit")
    terms = estimate_memory(FACTS, DeviceMemory("gpu", "GPU", 10**9), RUN).terms
    assert terms[0].formula == "800 × 2 bytes + 1,000 × 4 bits + 16 scales × 4 bytes"


#: 2 layers of 2,048 · (4 · 2,048 + 3 · 4,096) weights and 32,768 · 2,048: 151 million, so that the engine measures its dtype.
LARGE = CONFIG | {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 4096, "vocab_size": 32768}


def test_a_model_whose_dtype_is_measured_has_two_bounds(monkeypatch):
    facts = ModelFacts("m", "LlamaForCausalLM", LARGE, 150_000_000, Path())

    def estimate(free_bytes=10**12):
        return estimate_memory(facts, DeviceMemory("cpu", "CPU", free_bytes), RUN)

    measured = estimate()
    monkeypatch.setenv("RLHF_LAB_DTYPE", "float32")
    assert (measured.terms, measured.required_bytes) == (estimate().terms, estimate().required_bytes)
    monkeypatch.setenv("RLHF_LAB_DTYPE", "bfloat16")
    smaller = estimate()
    assert measured.least_bytes == smaller.required_bytes == smaller.least_bytes < measured.required_bytes
    assert "bfloat16" not in smaller.advice
    monkeypatch.delenv("RLHF_LAB_DTYPE")
    assert f"in bfloat16 it is {measured.least_bytes / 1e9:.1f} GB" in measured.advice
    mean_bytes = (measured.least_bytes + measured.required_bytes) // 2
    assert estimate(mean_bytes).verdict is FitVerdict.TIGHT  # it may be loaded in bfloat16
    assert estimate(measured.least_bytes - 1).verdict is FitVerdict.TOO_LARGE
    gpu = estimate_memory(facts, DeviceMemory("gpu", "GPU", 10**12), RUN)
    assert gpu.least_bytes == gpu.required_bytes


def test_the_formula_is_shown_with_its_numbers():
    result = estimate_memory(FACTS, DeviceMemory("cpu", "CPU", 10**9), RUN)
    messages = {part.name: part.formula for part in result.terms}
    assert messages["weights"] == "1,800 × 4 bytes"
    assert messages["activations"] == "32 rows × 100 tokens × 2 layers × 228 × 4 bytes"


@pytest.mark.parametrize(
    ("share", "verdict"),
    [(0.69, FitVerdict.FITS), (0.71, FitVerdict.TIGHT), (0.99, FitVerdict.TIGHT), (1.01, FitVerdict.TOO_LARGE)],
)
def test_the_verdict(share, verdict):
    need = estimate_memory(FACTS, DeviceMemory("cpu", "CPU", 1), RUN).required_bytes
    result = estimate_memory(FACTS, DeviceMemory("cpu", "CPU", int(need / share)), RUN)
    assert result.verdict is verdict
    assert (verdict is FitVerdict.FITS) == result.advice.startswith("There is enough memory")


def test_sizes_under_alternative_names():
    assert decoder_dims({"n_embd": 12, "n_layer": 3, "n_head": 4, "vocab_size": 7}) == DecoderDims(3, 12, 48, 12, 7)
    assert decoder_dims(CONFIG) == DecoderDims(2, 8, 20, 4, 100)
    assert decoder_dims(CONFIG | {"head_dim": 16}) == DecoderDims(2, 8, 20, 32, 100)
    assert decoder_dims({"n_inner": None, **{"n_embd": 12, "n_layer": 3, "n_head": 4, "vocab_size": 7}}) == DecoderDims(
        3, 12, 48, 12, 7
    )
    assert decoder_dims({"hidden_size": 8}) is None
    assert decoder_dims({"hidden_size": "8", "num_hidden_layers": 2, "vocab_size": 3}) is None


def test_a_model_without_sizes_gets_a_coarse_estimate():
    result = estimate_memory(ModelFacts("m", "X", {}, 1000, None), DeviceMemory("cpu", "CPU", 10**10))
    assert sizes(result) == {"weights": 4000, "the rest": 8000, "program": PROCESS_BYTES["cpu"]}
    assert "rough" in result.advice


def test_a_gpu_is_detected_by_nvidia_smi(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 1024'\n")
    program.chmod(0o755)
    monkeypatch.setattr(module.shutil, "which", lambda name: str(program))
    monkeypatch.setattr(module.importlib.metadata, "version", lambda name: "2.13.0+cu130")
    assert detect_device() == DeviceMemory("gpu", "NVIDIA H200", 2**30)
    monkeypatch.setattr(module.importlib.metadata, "version", lambda name: "2.13.0+cpu")
    assert detect_device().kind == "cpu"
    monkeypatch.setattr(module.importlib.metadata, "version", lambda name: "2.13.0+cu130")
    program.write_text("#!/bin/sh\nexit 9\n")
    result = detect_device()
    assert (result.kind, result.free_bytes > 0) == ("cpu", True)
