"""How much memory a model needs, estimated before it is loaded. No torch.

Symbols: P parameters of b bytes (4 in float32, 2 in bfloat16), L layers of hidden size H and inner size I, vocabulary size V.
A step has N rollouts of T tokens, R of them in the response. B is the micro-batch size; C is the number of texts in an update
of the reward model (two per comparison). r is the adapters' rank; a token's key or value has K numbers.

    weights        P · b
      in 8 bits    E · b + (P − E) + 4 · rows             E parameters of embeddings and vocabulary head keep their dtype
      in 4 bits    E · b + (P − E) · (1/2 + 4/64)         a float32 for each row of a matrix, or each 64 weights
    merged copy    (P − V·H) · b                          the layers with an adapter merged in; none of quantised weights
    adapters       5 · 4 · r · Σ(in + out)                policy: weights, gradients, two moments; reward model: weights
    activations    max(B, C) · T · L · (16·H + 5·I) · b   stored for the backward pass
    logits         B · R · V · 3 · 4                      logits, log-probabilities and their gradient in float32
    cache          N · T · L · 2 · K · b                  keys and values of all rollouts
    program        measured: Python, torch and its buffers

For a large model on a CPU the engine measures which dtype is faster (models/dtype_choice.py). Before that, the terms assume
float32, and `least_bytes` is their sum in bfloat16.
"""

import importlib.metadata
import shutil
import subprocess
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rlhf_lab.config.dtype import possible_dtypes, requested_bits
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.jobs.container_memory import available_bytes
from rlhf_lab.jobs.model_inspection import ModelFacts

PROMPT_TOKENS = 64
PROCESS_BYTES = {"cpu": 650_000_000, "gpu": 900_000_000}
FITS_BELOW, TIGHT_BELOW = 0.7, 1.0  # fractions of the free memory
ITEMSIZES = {"float32": 4, "bfloat16": 2}


class FitVerdict(StrEnum):
    FITS = "fits"
    TIGHT = "tight"
    TOO_LARGE = "does not fit"


@dataclass(frozen=True)
class DeviceMemory:
    """The device that the engine would use. kind: cpu or gpu."""

    kind: str
    name: str
    free_bytes: int


@dataclass(frozen=True)
class MemoryTerm:
    """A term of the sum, in bytes. formula: with this model's numbers."""

    name: str
    size: int
    formula: str


@dataclass(frozen=True)
class MemoryEstimate:
    """required_bytes: the sum of the terms. least_bytes: the same sum if the engine chooses the smaller dtype."""

    device: DeviceMemory
    terms: tuple[MemoryTerm, ...]
    required_bytes: int
    least_bytes: int
    verdict: FitVerdict
    advice: str


@dataclass(frozen=True)
class DecoderDims:
    """The sizes of a decoder. kv: elements per token in the keys of a layer, and the same number in its values."""

    layers: int
    hidden: int
    inner: int
    kv: int
    vocab: int

    @property
    def linear_rows(self) -> int:
        """Sum of the output sizes of a layer's linear modules: q, o, down; k, v; gate, up."""
        return self.layers * (3 * self.hidden + 2 * self.kv + 2 * self.inner)


def detect_device() -> DeviceMemory:
    """The GPU, if torch can use one, otherwise the main memory that is available now."""
    return _detect_gpu() or DeviceMemory("cpu", "CPU", available_bytes())


def _detect_gpu() -> DeviceMemory | None:
    """Uses nvidia-smi, because importing torch would cost the page seconds and memory."""
    tool = shutil.which("nvidia-smi")
    try:
        if tool is None or "+cpu" in importlib.metadata.version("torch"):
            return None
        query = [tool, "--query-gpu=name,memory.free", "--format=csv,noheader,nounits"]
        output = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
        name, free_mib = output.splitlines()[0].rsplit(",", 1)
        return DeviceMemory("gpu", name.strip(), int(float(free_mib) * 2**20))
    except (OSError, subprocess.SubprocessError, importlib.metadata.PackageNotFoundError, ValueError, IndexError):
        return None


def decoder_dims(config: dict[str, Any]) -> DecoderDims | None:
    """The sizes in a config.json, under any of their usual names; None if one is missing."""

    def first_positive(*names: str) -> int:
        return next((value for name in names if isinstance(value := config.get(name), int) and value > 0), 0)

    hidden, layers = first_positive("hidden_size", "n_embd", "d_model"), first_positive("num_hidden_layers", "n_layer")
    vocab = first_positive("vocab_size")
    if not (hidden and layers and vocab):
        return None
    heads = first_positive("num_attention_heads", "n_head") or 1
    head_dim = first_positive("head_dim") or hidden // heads
    inner = first_positive("intermediate_size", "n_inner", "ffn_dim") or 4 * hidden
    return DecoderDims(layers, hidden, inner, head_dim * (first_positive("num_key_value_heads") or heads), vocab)


def estimate_memory(facts: ModelFacts, device: DeviceMemory, config: PolicyConfig | None = None) -> MemoryEstimate:
    """The memory that reward training and a policy run need. config: of the run (default: the preset).

    Raises ModelError for an unknown RLHF_LAB_DTYPE or RLHF_LAB_QUANTIZE.
    """
    policy_config = config or PolicyConfig()
    dims = decoder_dims(facts.config)
    itemsizes = [ITEMSIZES[dtype] for dtype in possible_dtypes(facts.config, gpu=device.kind == "gpu")]

    def terms_of(itemsize: int) -> list[MemoryTerm]:
        if dims:
            bits = requested_bits() if device.kind == "gpu" else None  # loading on a CPU is refused
            terms = _memory_terms(facts.parameters, dims, itemsize, policy_config)
            return _quantised(terms, facts, dims, itemsize, bits) if bits else terms
        return _coarse_terms(facts.parameters, itemsize)

    program = MemoryTerm("program", PROCESS_BYTES[device.kind], "measured")
    terms, least_terms = ((*terms_of(itemsize), program) for itemsize in (max(itemsizes), min(itemsizes)))
    required_bytes, least_bytes = (sum(term.size for term in some) for some in (terms, least_terms))
    free_bytes = max(1, device.free_bytes)
    verdict = FitVerdict.TOO_LARGE
    if required_bytes <= FITS_BELOW * free_bytes:
        verdict = FitVerdict.FITS
    elif least_bytes <= TIGHT_BELOW * free_bytes:
        verdict = FitVerdict.TIGHT
    advice = _advice(verdict, dims, policy_config)
    if least_bytes < required_bytes:
        advice += (
            f" The sizes are those of float32; in bfloat16 it is {least_bytes / 1e9:.1f} GB. The engine measures "
            "which of the two is faster on this machine and uses that one, unless RLHF_LAB_DTYPE is set."
        )
    return MemoryEstimate(device, terms, required_bytes, least_bytes, verdict, advice)


def _memory_terms(parameters: int, dims: DecoderDims, itemsize: int, policy_config: PolicyConfig) -> list[MemoryTerm]:
    micro_batch = min(policy_config.micro_batch, policy_config.batch_size)
    max_rows = max(micro_batch, 2 * RewardConfig().batch_size)
    response_tokens, tokens = policy_config.max_new_tokens, PROMPT_TOKENS + policy_config.max_new_tokens
    layer_parameters = max(0, parameters - dims.vocab * dims.hidden)
    in_plus_out_dims = 2 * (dims.hidden + dims.hidden) + 2 * (dims.hidden + dims.kv) + 3 * (dims.hidden + dims.inner)
    adapter_parameters = policy_config.lora_r * in_plus_out_dims * dims.layers
    activation_width = 16 * dims.hidden + 5 * dims.inner
    return [
        MemoryTerm("weights", parameters * itemsize, f"{parameters:,} × {itemsize} bytes"),
        MemoryTerm("merged copy", layer_parameters * itemsize, f"{layer_parameters:,} × {itemsize} bytes"),
        MemoryTerm(
            "adapters", adapter_parameters * 20, f"{adapter_parameters:,} × 5 × 4 bytes, rank {policy_config.lora_r}"
        ),
        MemoryTerm(
            "activations",
            max_rows * tokens * dims.layers * activation_width * itemsize,
            f"{max_rows} rows × {tokens} tokens × {dims.layers} layers × {activation_width:,} × {itemsize} bytes",
        ),
        MemoryTerm(
            "logits",
            micro_batch * response_tokens * dims.vocab * 12,
            f"{micro_batch} rows × {response_tokens} tokens × {dims.vocab:,} × 3 × 4 bytes",
        ),
        MemoryTerm(
            "cache",
            policy_config.batch_size * tokens * dims.layers * 2 * dims.kv * itemsize,
            f"{policy_config.batch_size} rollouts × {tokens} tokens × {dims.layers} layers × 2 × {dims.kv} × "
            f"{itemsize} bytes",
        ),
    ]


def _quantised(
    terms: list[MemoryTerm], facts: ModelFacts, dims: DecoderDims, itemsize: int, bits: str
) -> list[MemoryTerm]:
    """The terms for a model quantised by bitsandbytes, whose weights are never merged.

    Norms and biases are counted as quantised, too.
    """
    tables = 1 if facts.config.get("tie_word_embeddings", True) else 2
    embedded = tables * dims.vocab * dims.hidden
    linear = max(0, facts.parameters - embedded)
    size, scales = (-(-linear // 2), -(-linear // 64)) if bits == "4bit" else (linear, dims.linear_rows)
    formula = f"{embedded:,} × {itemsize} bytes + {linear:,} × {bits[0]} bits + {scales:,} scales × 4 bytes"
    weights = MemoryTerm("weights", embedded * itemsize + size + 4 * scales, formula)
    return [weights, *(term for term in terms if term.name not in ("weights", "merged copy"))]


def _coarse_terms(parameters: int, itemsize: int) -> list[MemoryTerm]:
    return [
        MemoryTerm("weights", parameters * itemsize, f"{parameters:,} × {itemsize} bytes"),
        MemoryTerm(
            "the rest", 2 * parameters * itemsize, "twice the weights: its config.json does not state its sizes"
        ),
    ]


def _advice(verdict: FitVerdict, dims: DecoderDims | None, policy_config: PolicyConfig) -> str:
    smaller = "a smaller batch_size of the reward model, micro_batch or max_new_tokens needs less"
    if verdict is FitVerdict.FITS:
        return (
            "There is enough memory for a run with the preset."
            if dims
            else "According to a rough estimate there is enough memory."
        )
    if verdict is FitVerdict.TIGHT:
        return f"It may work; close other programs. In the settings, {smaller}."
    return f"The engine would very likely run out of memory. Choose a smaller model or a larger machine; {smaller}."
