"""A project's labelling settings."""

from dataclasses import dataclass
from typing import Literal, get_args

from rlhf_lab.config.base import Config, setting
from rlhf_lab.errors import ConfigError

MAX_GUIDELINE_LENGTH = 4000
#: How pairs are selected among sampled ones. The `reason` of a pair begins with the method.
SamplingMethod = Literal["random", "teaching", "information", "uncertainty", "diversity"]
SAMPLING_METHODS: tuple[SamplingMethod, ...] = get_args(SamplingMethod)
#: Responses to each prompt among which "teaching" selects two.
TEACHING_RESPONSES = 4
#: The consequence for people whose accuracy on gold pairs is below the bound.
GoldRule = Literal["none", "inform", "down_weight", "pause"]


def is_actively_selected(reason: str) -> bool:
    """Whether a pair with this `reason` was selected because it is harder than most."""
    return reason.split(":", maxsplit=1)[0] in ("information", "uncertainty", "diversity")


@dataclass(frozen=True)
class LabellingConfig(Config):
    """How the people of a project label."""

    overlap: int = setting(
        1,
        "number of people who should vote on each pair; a pair gets more votes only when nothing else is left to label",
        1,
        100,
    )
    repeats: float = setting(
        0.0, "share of pairs shown a second time with the sides swapped, to measure self-consistency",
        0.0, 0.5,
    )  # fmt: skip
    hold_s: int = setting(180, "seconds for which a pair shown to one person is not shown to others", 5, 3600)
    sampling: SamplingMethod = setting(
        "random",
        "which pairs are shown: random ones; two of four answers to each prompt, complete, similar in length, different "
        "in content and later with high scores; or, of four times as many pairs, those expected to teach the reward "
        "model the most, those for which it is least sure, or those least similar to the existing pairs",
    )
    texts: Literal["base", "policy"] = setting(
        "base", "which model writes the texts: the base model, or the newest checkpoint of a run"
    )
    gold_rate: float = setting(
        0.0, "share of gold pairs (pairs with a known answer) among the pairs shown; 0: none",
        0.0, 0.5, group="gold",
    )  # fmt: skip
    gold_rule: GoldRule = setting(
        "none", "what happens to a person whose accuracy on gold pairs is below the bound", group="gold"
    )
    gold_bound: float = setting(0.7, "the bound: lowest acceptable accuracy on gold pairs", 0.0, 1.0, group="gold")
    gold_answers: int = setting(
        10, "number of gold pairs that a person must answer before the rule can apply", 5, 1000, group="gold"
    )
    gold_weight: float = setting(
        0.5,
        "weight of each vote of a person below the bound, if the rule makes their votes count less; other votes have "
        "weight 1",
        0.05,
        1.0,
        group="gold",
    )
    gold_training: bool = setting(
        False,
        "also train reward models on votes on gold pairs; otherwise these votes only measure people",
        group="gold",
    )
    markdown: bool = setting(
        False, "render **bold**, lists and `code` in the texts as Markdown (no links, no pictures)"
    )
    guideline: str = setting("", "instructions for labellers, shown above each pair")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.guideline) > MAX_GUIDELINE_LENGTH:
            raise ConfigError(
                f"The guideline has {len(self.guideline):,} characters; shorten it to {MAX_GUIDELINE_LENGTH:,}."
            )


#: The settings of a new project. One without stored settings, as from earlier versions, has the defaults.
NEW_PROJECT_LABELLING = LabellingConfig(sampling="teaching")
