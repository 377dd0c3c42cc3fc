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
        "kernels": described(),
        "float32_products": "oneDNN" if products.BY_ONEDNN else "PyTorch's",
        "backbone": backbone.name,
        "backbone_sha256": backbone.digest,
    }
