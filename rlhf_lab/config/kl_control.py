"""How a run controls its KL to the reference, by its settings: what it adapts, what that costs, and the texts of captions;
which of these settings contradict each other, and which are recommended.

The controls themselves are in training/policy/kl_control.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_lab.common.algorithms import algorithm_of, spec_of

#: The KL of a run fluctuates around its budget. It counts as within the budget up to this multiple of it.
KL_BUDGET_TOLERANCE = 1.3
#: With a KL budget: number of responses of the reference from which the unit of the scores is measured, and number of responses
#: of the policy to held-out prompts at checkpoints.
UNIT_RESPONSES, HELD_OUT_RESPONSES = 128, 32


@dataclass(frozen=True)
class KLControlSpec:
    """The control of a run's KL.

    Attributes:
        adapts: the live settings that the control changes: none (beta stays), beta (towards kl_target or a budget), lr (to keep a
            budget).
        budget: nats per response; None without one.
        update_passes: passes over the responses of a step that measure the KL of its updates.
        unit_responses, held_out_responses: responses sampled once, and at every checkpoint, to measure scores.
        less_kl, less_kl_now, less_kl_or_stop, more_kl: advice to a person who wants a lower or higher KL.
    """

    adapts: tuple[str, ...] = ()
    budget: float | None = None
    update_passes: int = 0
    unit_responses: int = 0
    held_out_responses: int = 0
    less_kl: str = "raise beta"
    less_kl_now: str = "raise beta or lower lr"
    less_kl_or_stop: str = "raise beta or stop"
    more_kl: str = "raise lr or lower beta"

    @property
    def settings_adapted_to_budget(self) -> tuple[str, ...]:
        """The live settings that it changes to keep the budget; none without a budget."""
        return () if self.budget is None else self.adapts

    def is_at_budget(self, kl: float) -> bool:
        """Whether a KL has reached the budget, or is above it."""
        return self.budget is not None and kl > self.budget / KL_BUDGET_TOLERANCE


FIXED_BETA = KLControlSpec()
#: Settings with which a run does not change beta.
FIXED_BETA_SETTINGS: dict[str, Any] = {"kl_budget": None, "kl_controller": "fixed"}
RECOMMENDED_BUDGET = 4.0


def kl_control_of(config: Mapping[str, Any]) -> KLControlSpec:
    """The control by the record of a run's config; a missing setting has its default."""
    budget, is_offline = config.get("kl_budget"), spec_of(algorithm_of(config)).is_offline
    if budget is not None:
        lower = "stop, or start with a lower kl_budget"
        return KLControlSpec(
            ("lr",) if is_offline else ("beta", "lr"), budget,
            update_passes=1, unit_responses=UNIT_RESPONSES, held_out_responses=HELD_OUT_RESPONSES,
            less_kl="start with a lower kl_budget", less_kl_now=lower, less_kl_or_stop=lower,
            more_kl="use more steps, or more responses a step",
        )  # fmt: skip
    if config.get("kl_controller") == "adaptive" and not is_offline:
        return KLControlSpec(("beta",))
    return FIXED_BETA


def recommended_budget(values: Mapping[str, Any]) -> float | None:
    """The budget for some settings: none where they have no penalty, or let the KL approach kl_target."""
    return None if values.get("beta") == 0 or values.get("kl_controller") == "adaptive" else RECOMMENDED_BUDGET


def kl_conflicts(config: Mapping[str, Any], responses_per_step: int) -> list[tuple[bool, str]]:
    """(whether it applies, the error message) for each conflict between the settings of the KL's control."""
    beta, budget, horizon = config["beta"], config["kl_budget"], config["kl_horizon"]
    approaches_target = config["kl_controller"] == "adaptive"
    return [
        (
            approaches_target and not beta > 0,
            "The adaptive controller multiplies beta, so it cannot start from 0. Choose a positive beta or "
            "kl_controller = fixed",
        ),
        (
            approaches_target and responses_per_step * 0.2 >= horizon,
            f"kl_horizon = {horizon:g} is too short for {responses_per_step} episodes a step. "
            f"Choose at least {responses_per_step}",
        ),
        (
            budget is not None and (approaches_target or not beta > 0),
            f"kl_budget = {budget} adapts beta itself and needs a positive starting value. Choose kl_controller = fixed "
            "and a positive beta, or kl_budget = none",
        ),
    ]
