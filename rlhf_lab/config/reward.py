"""Settings of reward model training, with their ranges."""

from dataclasses import dataclass
from typing import Any, Literal, Self

from rlhf_lab.common.enums import EnsembleCombination
from rlhf_lab.config.base import Config, setting
from rlhf_lab.config.policy import SHARDING_NEEDS_PROCESSES
from rlhf_lab.errors import ConfigError

REFERENCE_SAMPLES = 128  # samples of the base model on which scores are normalised
MAX_SCORED_PAIRS = 400  # number of the newest unlabelled pairs that a new reward model scores


@dataclass(frozen=True)
class RewardConfig(Config):
    """Settings of a reward model that is trained on comparisons."""

    pooling: Literal["mean", "last"] = setting(
        "mean",
        "which hidden states the head reads: the mean over the response, or its last token",
        group="model",
    )
    layers: Literal["all", "last"] = setting(
        "all", "which layers the head reads: the embeddings and every layer, or the last layer alone", group="model"
    )
    last_weight: float = setting(
        0.1, "with pooling mean: what the last token weighs besides, for its state has read the whole text; 0: all tokens alike",
        0.0, 1.0, group="model",
    )  # fmt: skip
    lora_r: int = setting(8, "rank of the LoRA adapter", 1, 256, group="model")
    lora_alpha: int = setting(16, "LoRA scale: the update is multiplied by lora_alpha / lora_r", 1, 1024, group="model")
    ensemble: int = setting(
        1,
        "heads, each learning from its own draw of the labels; 2 or more also say how sure they are",
        1,
        16,
        group="model",
    )
    ensemble_score: EnsembleCombination = setting(
        "mean",
        "one score out of those of the heads: their mean, the worst of them, or the mean less what they differ by",
        group="model",
    )
    ensemble_penalty: float = setting(
        1.0, "with uncertainty: what a unit of variance among the heads takes off the mean", 0.0, 100.0, group="model"
    )
    epochs: int = setting(
        2,
        "passes over the labels for the adapter; 0 trains the head alone, and so does an adapter that does not help",
        0,
        200,
        group="optimisation",
    )
    early_stopping: bool = setting(
        False,
        "stop after the number of passes (0 to epochs) with the least loss on the labels that are held out",
        group="optimisation",
    )
    batch_size: int = setting(16, "comparisons per update", 1, 1024, group="optimisation")
    lr: float = setting(3e-4, "learning rate of the adapter and the head", 1e-7, 1.0, group="optimisation")
    weight_decay: float = setting(0.01, "AdamW weight decay", 0.0, 1.0, group="optimisation")
    max_grad_norm: float = setting(1.0, "gradient clipping by global norm", 1e-3, 1e3, group="optimisation")
    warm_start: bool = setting(
        True, "fit the head on frozen features (a convex problem), then train the adapter", group="optimisation"
    )
    ridge: float = setting(
        0.0, "strength of the head's prior in the warm start, for features of unit spread; 0: the one (0.03 to 3) with the least "
        "loss on labels that are left out in turn", 0.0, 1e6, group="optimisation",
    )  # fmt: skip
    label_smoothing: float = setting(0.0, "share of each label given to the other side", 0.0, 0.49, group="labels")
    margin: float = setting(
        1.0, "distance wanted between two scores for each step of surer (slightly 0, clearly 1, much 2); 0: all alike",
        0.0, 100.0, group="labels",
    )  # fmt: skip
    centering: float = setting(
        0.01, "weight of the penalty on the squared sum of a pair's scores", 0.0, 1.0, group="labels"
    )
    score_l2: float = setting(
        0.0,
        "weight of the penalty on the squares of all scores, which keeps them from growing",
        0.0,
        1.0,
        group="labels",
    )
    processes: int = setting(
        1,
        "processes that share the pairs of a batch (one a GPU); the result is that of one",
        1,
        64,
        group="optimisation",
    )
    shard_backbone: bool = setting(
        False,
        "each process holds a part of the frozen weights, for models that do not fit one GPU; slower",
        group="optimisation",
    )
    folds: int = setting(
        3, "the labels of one prompt in so many are held out, to see what the adapter is worth; 0 skips this", 0, 20,
        group="labels",
    )  # fmt: skip
    seed: int = setting(0, "seed of the adapter, the batches and the folds", 0, 2**31 - 1, group="labels")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shard_backbone and self.processes < 2:
            raise ConfigError(SHARDING_NEEDS_PROCESSES)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Create a config from a mapping. Also accepts those of older versions, whose heads read only the last layer."""
        if "prior_power" in values:
            retired = ("prior_power", "ridge")
            values = {"layers": "last"} | {name: value for name, value in values.items() if name not in retired}
        return super().from_dict(values)
