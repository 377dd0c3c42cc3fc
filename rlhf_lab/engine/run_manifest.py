"""The part of a run's manifest that describes its training environment, and notes about changes since its last training."""

import platform
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from rlhf_lab.common.hashing import file_sha256
from rlhf_lab.kernels import matmul
from rlhf_lab.kernels.compile import describe
from rlhf_lab.rewards.terms import OWN, RewardTerm, custom_file
from rlhf_lab.training.policy.trainer import PolicyTrainer

RECORDED_PACKAGES = ("torch", "transformers", "peft", "safetensors", "numpy")


def environment_manifest(trainer: PolicyTrainer) -> dict[str, Any]:
    """The environment on which the results of a run depend, besides its config."""
    backbone = trainer.backbone
    return {
        "packages": {name: version(name) for name in RECORDED_PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": str(backbone.device),
        "dtype": str(backbone.model.dtype).removeprefix("torch."),
        "dtype_reason": backbone.dtype_reason,
        "threads": torch.get_num_threads(),
        "kernels": describe(backbone.model.dtype) if backbone.device.type == "cpu" else "no kernels: not on a CPU",
        "float32_products": "oneDNN" if matmul.USE_ONEDNN else "PyTorch's",
        "backbone": backbone.name,
        "backbone_sha256": backbone.digest,
    }


def custom_function_hashes(terms: Sequence[RewardTerm], home: Path) -> dict[str, str]:
    """SHA-256 of the file of each custom reward function, by its label, without files that cannot be read."""
    hashes = {}
    for term in terms:
        if term.name == OWN:
            with suppress(OSError):  # reported by the process that runs the functions
                hashes[term.label] = file_sha256(custom_file(term, home))
    return hashes


def function_change_note(previous: dict[str, str], current: dict[str, str]) -> str:
    """A line for the run's history if files of custom reward functions have changed since its last training; otherwise "".

    previous, current: results of `custom_function_hashes`; previous is empty at the start of a run.
    """
    changed = [label for label, digest in current.items() if previous.get(label, digest) != digest]
    return f"another version of the reward function {', '.join(changed)} from here on" if changed else ""


def dtype_change_note(previous: dict[str, Any], current: dict[str, Any]) -> str:
    """A line for the run's history if it continues in another dtype, which changes its results; otherwise "".

    previous: the `environment_manifest` of the last training; empty at the start of a run.
    """
    if previous.get("dtype", current["dtype"]) == current["dtype"]:
        return ""
    return f"computed in {current['dtype']} from here on, in {previous['dtype']} before"
