"""What a run depends on besides its config."""

import platform
from importlib.metadata import version
from typing import Any

import torch

from rlhf_lab.kernels import matmul
from rlhf_lab.kernels.compile import describe
from rlhf_lab.training.policy.trainer import PolicyTrainer

RECORDED_PACKAGES = ("torch", "transformers", "peft", "safetensors", "numpy")


def environment_manifest(trainer: PolicyTrainer) -> dict[str, Any]:
    """What a run depends on besides its config, for the manifest."""
    backbone = trainer.backbone
    return {
        "packages": {name: version(name) for name in RECORDED_PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": str(backbone.device),
        "dtype": str(backbone.model.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "kernels": describe(backbone.model.dtype) if backbone.device.type == "cpu" else "no kernels: not on a CPU",
        "float32_products": "oneDNN" if matmul.USE_ONEDNN else "PyTorch's",
        "backbone": backbone.name,
        "backbone_sha256": backbone.digest,
    }


def dtype_change_note(previous: dict[str, Any], current: dict[str, Any]) -> str:
    """What a run's history says where it goes on in another precision, in which its figures differ; empty where it does not.

    before: what `environment_manifest` said when it was trained last; empty at its beginning.
    """
    if previous.get("dtype", current["dtype"]) == current["dtype"]:
        return ""
    return f"computed in {current['dtype']} from here on, in {previous['dtype']} before"
