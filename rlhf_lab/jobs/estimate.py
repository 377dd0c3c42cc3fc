"""How much memory a model needs here, before it is loaded: a formula that is shown beside its result. No torch.

    estimate(facts, machine()) -> Estimate(parts, need, free, verdict)

With P parameters, b bytes a number (4 on a CPU and 2 on a GPU, unless RLHF_LAB_DTYPE says so), L layers of width H and inner
width I, V vocabulary entries, N rollouts a step of T tokens, of which R are the response's; B of them are in a micro-batch, and C
texts in an update of the reward model, which takes both texts of a batch of comparisons at once:

    weights        P · b
    merged copy    (P − V·H) · b                   the layers once more, with an adapter added in
    adapters       5 · 4 · r · Σ(in + out)         policy: weights, gradients, two moments; reward model: weights
    activations    max(B, C) · T · L · (16·H + 5·I) · b   kept for the backward pass
    logits         B · R · V · 3 · 4               logits, log-probabilities and their gradient in float32
    cache          N · T · L · 2 · K · b           keys and values of N rollouts, K numbers a token
    program        measured: Python, torch and its buffers
"""

import importlib.metadata
import shutil
import subprocess
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import psutil

from rlhf_lab.config import PolicyConfig, RewardConfig
from rlhf_lab.jobs.examine import ModelFacts
from rlhf_lab.precision import usual

PROMPT_TOKENS = 64
PROGRAM = {"cpu": 650_000_000, "gpu": 900_000_000}
FITS_BELOW, TIGHT_BELOW = 0.7, 1.0  # shares of what is free
MB = 1e6


class Verdict(StrEnum):
    FITS = "fits"
    TIGHT = "tight"
    TOO_LARGE = "does not fit"


@dataclass(frozen=True)
class Machine:
    """Where the engine would put the model. kind: cpu or gpu."""

    kind: str
    name: str
    free: int


@dataclass(frozen=True)
class Part:
    """A term of the sum; formula: with this model's numbers in it."""

    name: str
    size: int
    formula: str


@dataclass(frozen=True)
class Estimate:
    machine: Machine
    parts: tuple[Part, ...]
    need: int
    verdict: Verdict
    advice: str


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder; kv: numbers a token leaves in each of the two caches of a layer."""

    layers: int
    hidden: int
    inner: int
    kv: int
    vocab: int


def machine() -> Machine:
    """The GPU, where torch can use one, otherwise the main memory that is available now."""
    return _gpu() or Machine("cpu", "CPU", int(psutil.virtual_memory().available))


def _gpu() -> Machine | None:
    """By nvidia-smi: asking torch would cost the page seconds and memory."""
    tool = shutil.which("nvidia-smi")
    try:
        if tool is None or "+cpu" in importlib.metadata.version("torch"):
            return None
        query = [tool, "--query-gpu=name,memory.free", "--format=csv,noheader,nounits"]
        said = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
        name, free = said.splitlines()[0].rsplit(",", 1)
        return Machine("gpu", name.strip(), int(float(free) * 2**20))
    except (OSError, subprocess.SubprocessError, importlib.metadata.PackageNotFoundError, ValueError, IndexError):
        return None


def shape_of(config: dict[str, Any]) -> Shape | None:
    """The sizes that a config.json states under one of their usual names; None where one is missing."""

    def first(*names: str) -> int:
        return next((value for name in names if isinstance(value := config.get(name), int) and value > 0), 0)

    hidden, layers, vocab = (
        first("hidden_size", "n_embd", "d_model"),
        first("num_hidden_layers", "n_layer"),
        first("vocab_size"),
    )
    if not (hidden and layers and vocab):
        return None
    heads = first("num_attention_heads", "n_head") or 1
    each = first("head_dim") or hidden // heads
    inner = first("intermediate_size", "n_inner", "ffn_dim") or 4 * hidden
    return Shape(layers, hidden, inner, each * (first("num_key_value_heads") or heads), vocab)


def estimate(facts: ModelFacts, where: Machine, config: PolicyConfig | None = None) -> Estimate:
    """What a reward model and a PPO run need with the model on this machine. config: of the run, the preset by default.

    Raises ModelError for a precision that is none.
    """
    run = config or PolicyConfig()
    shape = shape_of(facts.config)
    parts = [*(_parts(facts.parameters, shape, where, run) if shape else _coarse(facts.parameters, where))]
    parts.append(Part("program", PROGRAM[where.kind], "measured"))
    need = sum(part.size for part in parts)
    share = need / max(1, where.free)
    verdict = Verdict.FITS if share <= FITS_BELOW else Verdict.TIGHT if share <= TIGHT_BELOW else Verdict.TOO_LARGE
    return Estimate(where, tuple(parts), need, verdict, _advice(verdict, shape, run))


def _parts(parameters: int, shape: Shape, where: Machine, run: PolicyConfig) -> list[Part]:
    b = _bytes(where)
    n = min(run.micro_batch, run.batch_size)
    most = max(n, 2 * RewardConfig().batch_size)
    new, tokens = run.max_new_tokens, PROMPT_TOKENS + run.max_new_tokens
    layers = max(0, parameters - shape.vocab * shape.hidden)
    sides = 2 * (shape.hidden + shape.hidden) + 2 * (shape.hidden + shape.kv) + 3 * (shape.hidden + shape.inner)
    adapter = run.lora_r * sides * shape.layers
    wide = 16 * shape.hidden + 5 * shape.inner
    return [
        Part("weights", parameters * b, f"{parameters:,} × {b} bytes"),
        Part("merged copy", layers * b, f"{layers:,} × {b} bytes"),
        Part("adapters", adapter * 20, f"{adapter:,} × 5 × 4 bytes, rank {run.lora_r}"),
        Part("activations", most * tokens * shape.layers * wide * b,
             f"{most} rows × {tokens} tokens × {shape.layers} layers × {wide:,} × {b} bytes"),
        Part("logits", n * new * shape.vocab * 12, f"{n} rows × {new} tokens × {shape.vocab:,} × 3 × 4 bytes"),
        Part("cache", run.batch_size * tokens * shape.layers * 2 * shape.kv * b,
             f"{run.batch_size} rollouts × {tokens} tokens × {shape.layers} layers × 2 × {shape.kv} × {b} bytes"),
    ]  # fmt: skip


def _bytes(where: Machine) -> int:
    """Of one of the model's numbers."""
    return 2 if usual(gpu=where.kind == "gpu") == "bfloat16" else 4


def _coarse(parameters: int, where: Machine) -> list[Part]:
    b = _bytes(where)
    return [
        Part("weights", parameters * b, f"{parameters:,} × {b} bytes"),
        Part("the rest", 2 * parameters * b, "twice the weights: its config.json does not state its sizes"),
    ]


def _advice(verdict: Verdict, shape: Shape | None, run: PolicyConfig) -> str:
    smaller = "a smaller batch_size of the reward model, micro_batch or max_new_tokens needs less"
    if verdict is Verdict.FITS:
        return "There is room for a run with the preset." if shape else "By a coarse rule there is room."
    if verdict is Verdict.TIGHT:
        return f"It may work; close what else uses memory. In the settings, {smaller}."
    return f"The engine would very likely run out of memory. Choose a smaller model or a larger machine; {smaller}."
