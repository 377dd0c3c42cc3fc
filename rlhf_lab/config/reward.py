"""Settings of reward model training, with their ranges."""

from dataclasses import dataclass
from typing import Any, Literal, Self

from rlhf_lab.common.enums import EnsembleCombination
from rlhf_lab.common.text_attributes import ATTRIBUTES
from rlhf_lab.config.base import Config, setting
from rlhf_lab.config.policy import SHARDING_NEEDS_PROCESSES
from rlhf_lab.errors import ConfigError

REFERENCE_SAMPLES = 128  # samples of the base model on which scores are normalised
#: As many if attributes are ignored: with 128, the slopes leave correlations of up to 0.2 with them (docs/LEARNING.md).
SLOPE_SAMPLES = 384
MAX_SCORED_PAIRS = 400  # number of the newest unlabelled pairs that a new reward model scores


AttributeUse = Literal["as_labelled", "ignore"]


def _use_help(attribute: str) -> str:
    return f"as_labelled: the scores depend on {attribute} as the labels do; ignore: they have no linear relation to it"


@dataclass(frozen=True)
class RewardConfig(Config):
    """Settings of a reward model that is trained on comparisons."""

    pooling: Literal["mean", "last"] = setting(
        "mean",
        "which hidden states the head reads: their mean over the response, or that of the last token",
        group="model",
    )
    layers: Literal["all", "last"] = setting(
        "all", "which layers the head reads: the embeddings and every layer, or only the last layer", group="model"
    )
    last_weight: float = setting(
        0.1, "with pooling mean: weight of the last token's state, which has read the whole text; the mean has "
        "weight 1 minus this; 0: only the mean",
        0.0, 1.0, group="model",
    )  # fmt: skip
    lora_r: int = setting(8, "rank of the LoRA adapter", 1, 256, group="model")
    lora_alpha: int = setting(16, "LoRA scale: the update is multiplied by lora_alpha / lora_r", 1, 1024, group="model")
    ensemble: int = setting(
        1,
        "number of heads, each trained on its own bootstrap sample of the labels; 2 or more also estimate the "
        "uncertainty",
        1,
        16,
        group="model",
    )
    ensemble_score: EnsembleCombination = setting(
        "mean",
        "how the heads' scores are combined: mean, minimum (worst), or mean minus a multiple of the variance "
        "(uncertainty)",
        group="model",
    )
    ensemble_penalty: float = setting(
        1.0, "for ensemble_score uncertainty: the factor by which the variance is multiplied", 0.0, 100.0, group="model"
    )
    epochs: int = setting(
        2,
        "passes over the labels that train the adapter; with 0, or if the adapter does not help, only the head is used",
        0,
        200,
        group="optimisation",
    )
    early_stopping: bool = setting(
        False,
        "use the number of passes (0 to epochs) with the lowest loss on held-out labels",
        group="optimisation",
    )
    batch_size: int = setting(16, "comparisons per update", 1, 1024, group="optimisation")
    lr: float = setting(3e-4, "learning rate of the adapter and the head", 1e-7, 1.0, group="optimisation")
    weight_decay: float = setting(0.01, "AdamW weight decay", 0.0, 1.0, group="optimisation")
    max_grad_norm: float = setting(1.0, "gradient clipping by global norm", 1e-3, 1e3, group="optimisation")
    warm_start: bool = setting(
        True, "first fit the head on frozen features (a convex problem), then train the adapter", group="optimisation"
    )
    ridge: float = setting(
        0.0, "L2 penalty on the head's weights in the warm start, for features of total variance 1; 0 chooses it "
        "from 0.01 to 3 by cross-validation", 0.0, 1e6, group="optimisation",
    )  # fmt: skip
    label_smoothing: float = setting(0.0, "fraction of the labels assumed to be wrong", 0.0, 0.49, group="labels")
    margin: float = setting(
        1.0, "score difference demanded per level of a label's strength (slightly 0, clearly 1, much 2); 0 ignores "
        "the strength",
        0.0, 100.0, group="labels",
    )  # fmt: skip
    centering: float = setting(
        0.01, "weight of the penalty on the square of the sum of a pair's two scores", 0.0, 1.0, group="labels"
    )
    score_l2: float = setting(
        0.0,
        "weight of the penalty on the squares of all scores, which keeps them small",
        0.0,
        1.0,
        group="labels",
    )
    processes: int = setting(
        1,
        "processes that share the pairs of a batch (one per GPU); the result is the same as with one",
        1,
        64,
        group="optimisation",
    )
    shard_backbone: bool = setting(
        False,
        "distribute the frozen weights over the processes, for models that do not fit on one GPU; slower",
        group="optimisation",
    )
    folds: int = setting(
        3, "hold out the labels of one in this many prompts, to measure whether the adapter helps; 0 holds out none",
        0, 20,
        group="labels",
    )  # fmt: skip
    length: AttributeUse = setting("as_labelled", _use_help("the length of a text"), group="attributes")
    cut: AttributeUse = setting("as_labelled", _use_help("whether a text was cut off"), group="attributes")
    lists: AttributeUse = setting("as_labelled", _use_help("the share of list items and headings"), group="attributes")
    exclamations: AttributeUse = setting(
        "as_labelled", _use_help("the number of exclamation marks and emoji"), group="attributes"
    )
    copied: AttributeUse = setting(
        "as_labelled", _use_help("the share of words copied from the prompt"), group="attributes"
    )
    seed: int = setting(0, "random seed of the adapter, the heads and the batches", 0, 2**31 - 1, group="labels")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shard_backbone and self.processes < 2:
            raise ConfigError(SHARDING_NEEDS_PROCESSES)

    @property
    def ignored(self) -> tuple[str, ...]:
        """The names of the attributes that the reward model ignores."""
        return tuple(name for name in ATTRIBUTES if getattr(self, name) == "ignore")

    @property
    def reference_samples(self) -> int:
        """How many texts of the base model the scores are normalised on."""
        return SLOPE_SAMPLES if self.ignored else REFERENCE_SAMPLES

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Create a config from a mapping. Also accepts those of older versions, whose heads read only the last layer."""
        if "prior_power" in values:
            retired = ("prior_power", "ridge")
            values = {"layers": "last"} | {name: value for name, value in values.items() if name not in retired}
        return super().from_dict(values)
