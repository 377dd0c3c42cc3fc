"""The part of a run's manifest that describes the environment it is trained in."""

import platform
from importlib.metadata import version
from typing import Any

import torch

from rlhf_lab.kernels import matmul
from rlhf_lab.kernels.compile import describe
from rlhf_lab.training.policy.trainer import PolicyTrainer

RECORDED_PACKAGES = ("torch", "transformers", "peft", "safetensors", "numpy")


def environment_manifest(trainer: PolicyTrainer) -> dict[str, Any]:
    """What the numbers of a run depend on besides its config."""
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


def dtype_change_note(previous: dict[str, Any], current: dict[str, Any]) -> str:
    """A line for the run's history if it continues in another dtype, which changes its numbers; else "".

    previous: the `environment_manifest` of the last training; empty at the start of a run.
    """
    if previous.get("dtype", current["dtype"]) == current["dtype"]:
        return ""
    return f"computed in {current['dtype']} from here on, in {previous['dtype']} before"
