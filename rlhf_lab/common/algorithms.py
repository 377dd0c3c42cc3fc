"""The algorithms: what each learns from, its advantages and loss, and the settings that are recommended for it.

Everything that depends on the algorithm reads its AlgorithmSpec. CONTRIBUTING.md says how to add one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rlhf_lab.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class AlgorithmSpec:
    """What an algorithm is made of.

    Attributes:
        learns_from: rollouts of the current policy and their rewards; labels; or the best of several samples.
        advantage: how rewards become advantages; None for algorithms without rewards.
        loss: what the loss is made of: the probability ratio, the ratio and a KL penalty to the old policy, log-probabilities
            times advantages, log-ratios of label pairs, or the log-probability of texts.
        update: a step along the gradient of the loss, or a natural-gradient step.
        value_function: always trained, if it is the baseline, or never.
        clips: whether the probability ratio is clipped.
        note: what to know before choosing it, for the page.
        recommended: settings where they differ from those for all algorithms (measured, docs/DECISIONS.md).
    """

    learns_from: Literal["rollouts", "labels", "best_samples"] = "rollouts"
    advantage: Literal["temporal_difference", "returns", "rloo", "grpo"] | None = None
    loss: Literal["ratio", "ratio_and_penalty", "log_probability", "direct_preference", "likelihood"]
    update: Literal["gradient", "natural_gradient"] = "gradient"
    value_function: Literal["always", "as_baseline", "never"] = "never"
    clips: bool = False
    note: str = ""
    recommended: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_offline(self) -> bool:
        """Whether it learns from fixed texts, not from rollouts."""
        return self.learns_from != "rollouts"

    @property
    def is_grouped(self) -> bool:
        """Whether it compares several responses to one prompt with each other."""
        return self.advantage in ("rloo", "grpo")

    @property
    def repeats_updates(self) -> bool:
        """Whether a probability ratio allows several gradient steps on the same rollouts."""
        return self.update == "gradient" and self.loss in ("ratio", "ratio_and_penalty")

    @property
    def is_single_pass(self) -> bool:
        """Whether it uses each rollout for one update, because its loss has no ratio."""
        return self.loss == "log_probability"

    @property
    def has_beta(self) -> bool:
        """Whether its rewards or its loss contain beta."""
        return not self.is_offline or self.loss == "direct_preference"


ALGORITHMS: Mapping[str, AlgorithmSpec] = {
    "ppo": AlgorithmSpec(
        advantage="temporal_difference",
        loss="ratio",
        value_function="always",
        clips=True,
        recommended={
            "epochs": 1, "minibatches": 4, "beta": 0.15, "kl_budget_role": "limit", "score_clip": None, "cliprange": 0.05,
            "lam": 1.0,
        },
    ),
    "ppo_penalty": AlgorithmSpec(
        advantage="temporal_difference", loss="ratio_and_penalty", value_function="always"
    ),
    "trpo": AlgorithmSpec(
        advantage="temporal_difference", loss="ratio", update="natural_gradient", value_function="always",
        recommended={"value_trunk": "detached"},
    ),
    "a2c": AlgorithmSpec(
        advantage="temporal_difference", loss="log_probability", value_function="always",
        recommended={"lr": 5e-3, "epochs": 1, "minibatches": 1},
    ),
    "reinforce": AlgorithmSpec(
        advantage="returns", loss="log_probability", value_function="as_baseline",
        recommended={"lr": 5e-3, "epochs": 1, "minibatches": 1},
    ),
    "rloo": AlgorithmSpec(
        advantage="rloo", loss="log_probability",
        recommended={"lr": 5e-3, "epochs": 1, "minibatches": 1, "group_size": 4, "whiten_advantages": False},
    ),
    "grpo": AlgorithmSpec(
        advantage="grpo", loss="ratio", clips=True,
        recommended={"group_size": 4, "whiten_advantages": False, "loss_mean": "trajectory"},
    ),
    "dpo": AlgorithmSpec(
        learns_from="labels", loss="direct_preference",
        note="A tie counts half for each text. The strength of a preference is ignored.",
        recommended={"lr": 2e-3, "beta": 0.3, "sample_every": 2},
    ),
    "sft": AlgorithmSpec(
        learns_from="labels", loss="likelihood",
        note="It imitates the preferred texts. Ties and the strength of a preference are ignored.",
        recommended={"lr": 3e-3, "sample_every": 2},
    ),
    "rejection": AlgorithmSpec(
        learns_from="best_samples", loss="likelihood",
        note="rejection writes several texts for each prompt, keeps the one with the best score, and imitates it. It does "
        "not use the labels directly.",
        recommended={"lr": 3e-3, "sample_every": 2},
    ),
}  # fmt: skip


DEFAULT_ALGORITHM = "ppo"


def algorithm_of(config: Mapping[str, Any]) -> str:
    """The algorithm by the record of a run's config, or by some settings; a missing setting has its default."""
    return str(config.get("algorithm", DEFAULT_ALGORITHM))


def spec_of(algorithm: str) -> AlgorithmSpec:
    """Raises ConfigError for an unknown algorithm."""
    if algorithm not in ALGORITHMS:
        raise ConfigError(f"algorithm = {algorithm!r} is unknown; choose one of {', '.join(ALGORITHMS)}")
    return ALGORITHMS[algorithm]


def algorithms_where(condition: Callable[[AlgorithmSpec], bool]) -> tuple[str, ...]:
    """The names of the algorithms for which the condition holds."""
    return tuple(name for name, spec in ALGORITHMS.items() if condition(spec))
