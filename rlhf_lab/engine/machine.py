"""What a run depends on besides its config."""

import platform
from importlib.metadata import version
from typing import Any

import torch

from rlhf_lab.core import products
from rlhf_lab.fused.library import described
from rlhf_lab.trainers.policy import PolicyTrainer

PACKAGES = ("torch", "transformers", "peft", "safetensors", "numpy")


def machine(trainer: PolicyTrainer) -> dict[str, Any]:
    """What a run depends on besides its config, for the manifest."""
    backbone = trainer.backbone
    return {
        "packages": {name: version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": str(backbone.device),
        "dtype": str(backbone.model.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "kernels": described(backbone.model.dtype) if backbone.device.type == "cpu" else "no kernels: not on a CPU",
        "float32_products": "oneDNN" if products.BY_ONEDNN else "PyTorch's",
        "backbone": backbone.name,
        "backbone_sha256": backbone.digest,
    }


def moved(before: dict[str, Any], now: dict[str, Any]) -> str:
    """What a run's history says where it goes on in another precision, in which its figures differ; empty where it does not.

    before: what `machine` said when it was trained last; empty at its beginning.
    """
    if before.get("dtype", now["dtype"]) == now["dtype"]:
        return ""
    return f"computed in {now['dtype']} from here on, in {before['dtype']} before"
