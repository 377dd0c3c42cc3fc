"""The settings of the two trainings; what a setting is stands in `settings`."""

from dataclasses import dataclass

from rlhf_lab.policy_config import ALGORITHMS, KNOBS, PRESETS, PolicyConfig
from rlhf_lab.settings import Config, Setting, add_arguments, fields_of, from_args, setting

__all__ = [
    "ALGORITHMS",
    "KNOBS",
    "PRESETS",
    "Config",
    "PolicyConfig",
    "RewardConfig",
    "Setting",
    "add_arguments",
    "fields_of",
    "from_args",
    "setting",
]


@dataclass(frozen=True)
class RewardConfig(Config):
    """How a reward model learns from comparisons."""

    pooling: str = setting(
        "mean",
        "which hidden states the head reads: the mean over the response, or its last token",
        choices=("mean", "last"),
    )
    lora_r: int = setting(8, "rank of the LoRA adapter", 1, 256)
    lora_alpha: int = setting(16, "LoRA scale: the update is multiplied by lora_alpha / lora_r", 1, 1024)
    epochs: int = setting(2, "passes over the labels for the adapter; 0 trains the head alone", 0, 200)
    batch_size: int = setting(16, "comparisons per update", 1, 1024)
    lr: float = setting(3e-4, "learning rate of the adapter and the head", 1e-7, 1.0)
    weight_decay: float = setting(0.01, "AdamW weight decay", 0.0, 1.0)
    max_grad_norm: float = setting(1.0, "gradient clipping by global norm", 1e-3, 1e3)
    warm_start: bool = setting(True, "fit the head on frozen features first (a convex problem), then train the adapter")
    ridge: float = setting(
        300.0, "strength of the head's prior in the warm start; features are scaled to unit spread", 1e-3, 1e6
    )
    label_smoothing: float = setting(0.0, "share of each label given to the other side", 0.0, 0.49)
    centering: float = setting(0.01, "weight of the penalty on the squared sum of a pair's scores", 0.0, 1.0)
    folds: int = setting(5, "folds of the cross-validation, grouped by prompt; 0 skips it", 0, 20)
    seed: int = setting(0, "seed of the adapter, the batches and the folds", 0, 2**31 - 1)
