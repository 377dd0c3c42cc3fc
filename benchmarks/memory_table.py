"""Which models fit a machine's memory, by the lab's estimate and from the shapes in their config.json alone.

    python benchmarks/memory_table.py             # 16 GB on a CPU, as a free Space has
    python benchmarks/memory_table.py --gb 32

Nothing is downloaded or loaded. `tests/test_docs.py` compares the table with the one in docs/SPACES.md.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.jobs.memory_estimate import DeviceMemory, estimate_memory
from rlhf_lab.jobs.model_inspection import ModelFacts

#: Name: layers, hidden size, inner size, heads, heads of keys and values, vocabulary; tied embeddings; family.
SHAPES: dict[str, tuple[int, int, int, int, int, int, bool, str]] = {
    "SmolLM2-135M": (30, 576, 1536, 9, 3, 49152, True, "llama"),
    "SmolLM2-360M": (32, 960, 2560, 15, 5, 49152, True, "llama"),
    "Qwen2.5-0.5B": (24, 896, 4864, 14, 2, 151936, True, "qwen2"),
    "Llama 3.2 1B": (16, 2048, 8192, 32, 8, 128256, True, "llama"),
    "Qwen2.5-1.5B": (28, 1536, 8960, 12, 2, 151936, True, "qwen2"),
    "Llama 3.2 3B": (28, 3072, 8192, 24, 8, 128256, True, "llama"),
}


def model_facts(name: str) -> ModelFacts:
    layers, hidden, inner, heads, kv_heads, vocab, is_tied, family = SHAPES[name]
    head_dim = 64 if hidden // heads == 64 else 128
    kv = kv_heads * head_dim
    biases = hidden + 2 * kv if family == "qwen2" else 0
    layer = 2 * hidden * heads * head_dim + 2 * hidden * kv + 3 * hidden * inner + 2 * hidden + biases
    parameters = layers * layer + hidden + vocab * hidden * (1 if is_tied else 2)
    config: dict[str, Any] = {
        "model_type": family, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim, "vocab_size": vocab,
    }  # fmt: skip
    return ModelFacts(name, "", config, parameters, None)


def table(gigabytes: float) -> str:
    """A Markdown table of both bounds, with the presets of a run."""
    device = DeviceMemory("cpu", "CPU", int(gigabytes * 1e9))
    lines = [
        f"| model | parameters | needs, bfloat16 to float32 | in {gigabytes:g} GB free |",
        "|---|---|---|---|",
    ]
    for name in SHAPES:
        facts = model_facts(name)
        memory = estimate_memory(facts, device, PolicyConfig())
        bounds = f"{memory.least_bytes / 1e9:.1f} to {memory.required_bytes / 1e9:.1f} GB"
        lines.append(f"| {name} | {facts.parameters / 1e6:,.0f} million | {bounds} | {memory.verdict} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=16.0, help="free memory in GB (10^9 bytes; default 16)")
    print(table(parser.parse_args().gb))
