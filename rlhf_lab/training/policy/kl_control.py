"""How a run controls its KL to the reference: beta, the factor of the learning rate, and the limit of an update.

`make_kl_control` makes the control of a config. The trainer asks the control and never the config; `update` tells it the KL of a
step, and `numbers` and `load` are its part of a checkpoint.
"""

import math
from typing import Any, NamedTuple

from rlhf_lab.config.kl_control import KL_BUDGET_TOLERANCE
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import ConfigError, NotFiniteError

MAX_PROPORTIONAL_ERROR = 0.2  # Ziegler et al. 2019 §2.2
WARMUP_STEPS = 4  # over which the learning rate rises, with a KL budget: Adam's first updates are its largest
#: By which factor a penalty may change in all: from its bounds it returns within 20 doublings.
MAX_PENALTY_CHANGE = 2.0**20
#: As fractions of the budget: the target KL of a step's updates (before the learning-rate schedule), and the limit.
TARGET_SHARE, LIMIT_SHARE = 1 / 40, 1 / 10


class BestCheckpoint(NamedTuple):
    """The checkpoint to keep, by the score on held-out prompts within the KL budget. peak: the highest score of any so far."""

    step: int
    peak: float


class ScoreUnit(NamedTuple):
    """Mean and standard deviation of a scorer's scores on the reference's own responses."""

    mean: float
    sd: float


def updated_best(best: BestCheckpoint | None, step: int, score: float, standard_error: float) -> BestCheckpoint:
    """The best checkpoint, given the score of a new one within the budget.

    The newest is the best unless its score is more than a standard error below the peak: scores of a few dozen responses
    are too uncertain to choose the highest one, and training usually improves a policy until it breaks.
    """
    if best is None or score >= best.peak - standard_error:
        return BestCheckpoint(step, max(score, best.peak if best else score))
    return best


class KLControl:
    """A constant beta: the base of the other controls.

    Attributes:
        base: beta where nothing is added to it, see `value`.
        average: of the measured KL; 0 without a budget.
        budget: nats per sequence; infinite without one. Updates and the scores of the reference are then not measured.
        update_fraction: the fraction of the last measured update that the limit left.
        score_unit, best: measured with a budget, and None before that.
    """

    budget = math.inf
    average = 0.0
    update_fraction = 1.0
    score_unit: ScoreUnit | None = None
    best: BestCheckpoint | None = None

    def __init__(self, beta: float) -> None:
        """beta: >= 0. Raises ConfigError otherwise."""
        if not (beta >= 0 and math.isfinite(beta)):
            raise ConfigError(f"The KL coefficient is {beta}: choose 0 or more.")
        self.base = self.initial = float(beta)

    @property
    def value(self) -> float:
        """beta."""
        return self.base

    @property
    def has_budget(self) -> bool:
        return self.budget < math.inf

    @property
    def max_update_kl(self) -> float:
        """The limit of KL(old || new) of a step, nats per sequence."""
        return LIMIT_SHARE * self.budget

    @property
    def target_update_kl(self) -> float:
        """The KL(old || new) of a step that the learning rate aims at before its schedule, nats per sequence."""
        return TARGET_SHARE * self.budget

    def accepts(self, kl: float) -> bool:
        """Whether a KL counts as within the budget."""
        return kl <= KL_BUDGET_TOLERANCE * self.budget

    def set_budget(self, budget: float) -> None:
        """Change the budget of a control that has one. budget: nats per sequence, > 0.

        A budget that falls below the KL that was reached stays at KL_BUDGET_TOLERANCE times the average KL: forced back, the
        policy would lose what it has learned. Without this factor the budget would follow the lowest of many measured averages,
        whose errors alone would then raise beta from step to step.
        """
        self.budget = max(budget, min(KL_BUDGET_TOLERANCE * self.average, self.budget))

    def check_batch_size(self, n: int) -> None:
        """Raises ConfigError for more sequences per step than `update` accepts. Call it before training."""

    def update(self, sequence_kl: float, n: int, *, adapt: bool = True) -> float:  # noqa: ARG002  of the interface
        """Update with the KL of one step; returns beta of the next one.

        Args:
            sequence_kl: mean over sequences of the KL *summed* over each one's tokens, nats (`objective/kl`).
            n: number of sequences of the step.
            adapt: False while another coefficient is in use: the KL then says nothing about this one, which stays.

        Raises:
            NotFiniteError: sequence_kl is NaN or infinite and the control depends on it.
            ConfigError: n out of range.
        """
        return self.value

    def lr_multiplier(self, schedule: float, step: int) -> float:  # noqa: ARG002  of the interface
        """The factor of the learning rate after `step` steps. schedule: the schedule's own factor."""
        return schedule

    def restart(self) -> None:
        """Give beta its value of the run's start. Averages of the KL stay."""
        self.base = self.initial

    def numbers(self) -> dict[str, Any]:
        """The state for a checkpoint. Names of earlier versions stay, so that their checkpoints load."""
        return {"beta": self.value}

    def load(self, numbers: dict[str, Any]) -> None:
        """Restore what `numbers` returned; values that earlier versions did not save have those of a run's start."""
        self.base = float(numbers["beta"])


class AdaptiveKL(KLControl):
    """Steers beta so that the KL per sequence approaches a target.

    Source: Ziegler et al. 2019 §2.2: e = clip(KL / target - 1, -0.2, 0.2); coef <- coef * (1 + e * n / horizon)
    (n / horizon as in lm-human-preferences; the paper fixes it at 0.1).
    """

    def __init__(self, init: float, target: float, horizon: float) -> None:
        """init: the initial coefficient; target: nats per *sequence* (sum over its tokens); horizon: in sequences.

        Raises:
            ConfigError: any of them not positive and finite.
        """
        _check_positive("the adaptive KL controller", init=init, target=target, horizon=horizon)
        super().__init__(init)
        self.target, self.horizon = float(target), float(horizon)

    def check_batch_size(self, n: int) -> None:
        if not 0 <= n * MAX_PROPORTIONAL_ERROR < self.horizon:
            raise ConfigError(f"n is {n}, horizon {self.horizon}: choose a horizon well above the sequences in a step.")

    def update(self, sequence_kl: float, n: int, *, adapt: bool = True) -> float:
        """n: below 5 * horizon; beyond it the coefficient could turn negative."""
        _check_finite(sequence_kl)
        self.check_batch_size(n)
        if adapt:
            error = min(max(float(sequence_kl) / self.target - 1.0, -MAX_PROPORTIONAL_ERROR), MAX_PROPORTIONAL_ERROR)
            self.base *= 1.0 + error * n / self.horizon
        return self.value


class KLBudget(KLControl):
    """Keeps the KL per sequence within a budget by the learning rate and by a limit of updates; beta is constant.

    So do offline methods. measured_kl: the last KL that was measured; at the budget the learning rate is 0.
    """

    def __init__(self, beta: float, budget: float) -> None:
        """budget: nats per sequence. Raises ConfigError unless it is positive and finite."""
        super().__init__(beta)
        _check_positive("holding a KL budget", budget=budget)
        self.budget, self.measured_kl = float(budget), 0.0

    def update(self, sequence_kl: float, n: int, *, adapt: bool = True) -> float:  # noqa: ARG002  of the interface
        _check_finite(sequence_kl)
        self.measured_kl = sequence_kl
        return self.value

    @property
    def update_length(self) -> float:
        """Factor of the learning rate."""
        return max(0.0, 1.0 - max(0.0, self.measured_kl) / self.budget)  # k1 of a few samples may be negative

    def lr_multiplier(self, schedule: float, step: int) -> float:
        # The KL of an update follows the schedule, and lr is its square root.
        return math.sqrt(schedule) * min(1.0, (step + 1) / WARMUP_STEPS) * self.update_length

    def numbers(self) -> dict[str, Any]:
        return super().numbers() | {"score_unit": self.score_unit, "best": self.best} | self._kl_numbers()

    def _kl_numbers(self) -> dict[str, Any]:
        return {"measured_kl": self.measured_kl, "update_fraction": self.update_fraction}

    def load(self, numbers: dict[str, Any]) -> None:
        super().load(numbers)
        unit, best = numbers.get("score_unit"), numbers.get("best")
        self.score_unit = ScoreUnit(*map(float, unit)) if unit else None
        self.best = BestCheckpoint(int(best[0]), float(best[1])) if best else None
        self.measured_kl = float(numbers.get("measured_kl", 0.0))
        self.update_fraction = float(numbers.get("update_fraction", 1.0))


class KLBudgetWithBeta(KLBudget):
    """Keeps the KL per sequence within a budget by beta, too. State: `base` and `average`.

    value = floor + base * (average / budget)^3, where average is an exponential average of the measured KL: a few dozen
    sequences measure it with an error of a tenth. Because of the cube, the second part is small far below the budget and
    large above it. base is its integral term, which holds the KL at the budget for any scale of the scores. It does not
    change below half of the budget, or while the KL rises towards the budget, and it never falls below floor.

    With floor 0 the KL rises to the budget and stays there. With a floor it stays where this penalty balances the scores, if
    that is below the budget.
    """

    EXPONENT = 3.0
    NEW_SHARE = 0.5  # of the newest KL in the average
    GAIN = 0.25  # of log(average / budget), per step
    MAX_RATIO = 4.0  # of average to budget, beyond which the coefficient grows through base only
    SETTLED_LENGTH = 0.5  # `update_length` at the budget and above

    def __init__(self, init: float, budget: float, *, floor: float = 0.0) -> None:
        """init: the initial value of base; budget: nats per sequence; floor: the coefficient at a KL of 0, at least 0.

        Raises:
            ConfigError: init or budget is not positive and finite, floor is negative or not finite.
        """
        if not 0.0 <= floor < math.inf:
            raise ConfigError(f"floor is {floor}: a KL penalty needs a number that is not negative.")
        _check_positive("holding a KL budget", init=init)
        self.floor, self.average = float(floor), 0.0
        super().__init__(init, budget)

    @property
    def value(self) -> float:
        return self.floor + self.base * self._barrier()

    @property
    def update_length(self) -> float:
        """1 up to half of the budget, then falling linearly to SETTLED_LENGTH at the budget.

        With updates of constant length the KL would oscillate around the budget, because the coefficient lags behind it.
        """
        closeness = min(1.0, max(0.0, 2.0 * self.average / self.budget - 1.0))
        return 1.0 + closeness * (self.SETTLED_LENGTH - 1.0)

    def _barrier(self) -> float:
        return float(min(self.average / self.budget, self.MAX_RATIO) ** self.EXPONENT)

    def update(self, sequence_kl: float, n: int, *, adapt: bool = True) -> float:  # noqa: ARG002  of the interface
        """adapt: without it the average follows the KL, and base stays."""
        _check_finite(sequence_kl)
        change = self.NEW_SHARE * (max(0.0, sequence_kl) - self.average)
        self.average += change
        error = math.log(min(self.average / self.budget, self.MAX_RATIO)) if self.average else 0.0
        is_on_its_way = error < 0 and change > 0
        if adapt and self.average > self.budget / 2 and not is_on_its_way:
            self.base = max(self.floor, self.base * math.exp(self.GAIN * error))
        return self.value

    def _kl_numbers(self) -> dict[str, Any]:
        return {"kl_budget": [self.base, self.average]}

    def load(self, numbers: dict[str, Any]) -> None:
        super().load(numbers)
        base, average = numbers.get("kl_budget", (numbers["beta"], 0.0))  # before there was a budget: only beta
        self.base, self.average = float(base), float(average)


class AdaptivePenalty:
    """The coefficient of KL(old || new) in `ppo_penalty`, kept between two bounds of that KL. State: `value`, a float.

    Above kl_max it is multiplied by factor, below kl_min divided by it, up to MAX_PENALTY_CHANGE times the initial value or its
    inverse: otherwise it would become 0 or infinite.
    Source: Schulman et al. 2017 §4, there with factor 2 and the bounds target * 1.5 and target / 1.5.
    """

    def __init__(self, beta: float, kl_min: float, kl_max: float, factor: float = 2.0) -> None:
        """beta: the initial coefficient, loss per nat; kl_min, kl_max: nats per token; factor: > 1.

        Raises:
            ConfigError: beta not positive and finite, bounds not 0 <= kl_min < kl_max, factor not above 1.
        """
        _check_positive("a penalty that adapts by a factor", beta=beta)
        if not 0 <= kl_min < kl_max < math.inf:
            raise ConfigError(f"kl_min is {kl_min}, kl_max {kl_max}: choose 0 <= kl_min < kl_max.")
        if not 1 < factor < math.inf:
            raise ConfigError(f"factor is {factor}: choose a number above 1 (usual: 2).")
        self.value = self.initial = float(beta)
        self.kl_min, self.kl_max, self.factor = float(kl_min), float(kl_max), float(factor)

    def update(self, kl: float) -> float:
        """Update with the KL(old || new) at the end of a step (token mean, nats); returns the new coefficient.

        Raises:
            NotFiniteError: kl is NaN or infinite.
        """
        _check_finite(kl)
        if kl > self.kl_max:
            self.value *= self.factor
        elif kl < self.kl_min:
            self.value /= self.factor
        self.value = min(max(self.value, self.initial / MAX_PENALTY_CHANGE), self.initial * MAX_PENALTY_CHANGE)
        return self.value


def make_kl_control(config: PolicyConfig) -> KLControl:
    """The control that the settings ask for, at a run's start."""
    spec = config.kl_control
    if spec.budget is not None and config.is_offline:
        return KLBudget(config.beta, spec.budget)
    if spec.budget is not None:
        return KLBudgetWithBeta(
            config.beta, spec.budget, floor=config.beta if config.kl_budget_role == "limit" else 0.0
        )
    if spec.adapts:
        return AdaptiveKL(config.beta, config.kl_target, config.kl_horizon)
    return KLControl(config.beta)


def _check_positive(name: str, **values: float) -> None:
    for setting, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"{setting} is {value}: {name} needs a positive number.")


def _check_finite(kl: float) -> None:
    if not math.isfinite(kl):
        raise NotFiniteError(f"The KL of a step is {kl}: training has diverged. Start a new run with a lower lr.")
