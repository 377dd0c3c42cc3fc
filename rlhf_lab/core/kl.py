"""KL to the reference policy: per-token estimates, exact KL, shaped rewards, and controllers of the coefficients.

Sign, everywhere: `kl = logprobs - ref_logprobs` (policy minus reference) and it enters the reward as `-kl_coef * kl`.
"""

import math

import torch
from torch import Tensor

from rlhf_lab.common.enums import KLEstimator, ScorePlacement
from rlhf_lab.core.advantages import check_masked
from rlhf_lab.core.logprobs import apply_in_row_chunks, check_temperature, finite_exponent
from rlhf_lab.core.reward_scaling import place_scores
from rlhf_lab.errors import ConfigError, NotFiniteError
from rlhf_lab.kernels.ops import scale_logits

MIN_LR_FACTOR, MAX_LR_FACTOR = 0.5, 1.3  # of one step
MAX_PROPORTIONAL_ERROR = 0.2  # Ziegler et al. 2019 §2.2


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, estimator: KLEstimator = "k1") -> Tensor:
    """Per-token estimate of KL(policy || reference) from tokens sampled by the policy; d = logprobs - ref_logprobs.

    k1 = d: unbiased, may be negative per token.  k2 = d^2 / 2: biased, low variance.
    k3 = exp(-d) - 1 + d: unbiased, never negative (grows like exp(-d) where the reference likes the token far more,
    up to e^80 in float32, see `finite_exponent`).

    As a loss term on the policy's own samples, the gradient of k1 is 0 on average, that of k2 is the gradient of
    KL(policy || reference), and that of k3 the gradient of KL(reference || policy).

    Args:
        logprobs, ref_logprobs: (B, T) float, nats, at the same temperature.
        estimator: "k1", "k2" or "k3".

    Returns:
        (B, T), nats. Padding is not masked here: `shape_rewards` and `masked_mean` do that.

    Raises:
        ConfigError: unknown estimator, shapes that differ.

    Source: Schulman 2020, "Approximating KL divergence", http://joschu.net/blog/kl-approx.html
    """
    if logprobs.shape != ref_logprobs.shape:
        raise ConfigError(
            f"logprobs is {tuple(logprobs.shape)}, ref_logprobs {tuple(ref_logprobs.shape)}: make them agree."
        )
    log_ratio = logprobs - ref_logprobs
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return 0.5 * log_ratio.square()
    if estimator == "k3":
        return torch.expm1(finite_exponent(-log_ratio)) + log_ratio
    raise ConfigError(
        f"There is no KL estimator {estimator!r} on sampled tokens. Choose k1, k2 or k3 (full: see full_kl)."
    )


def full_kl(logits: Tensor, ref_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Exact KL(policy || reference) at every position, over the whole vocabulary.

    Args:
        logits, ref_logits: (B, T, V) float; both are divided by the temperature.
        temperature: > 0.

    Returns:
        (B, T), nats, >= 0 up to rounding; differentiable (twice, for Fisher-vector products). Tokens of probability
        0 under the policy (-inf logits) add 0.

    Raises:
        ConfigError: shapes that differ, temperature not positive and finite.
    """
    check_temperature(temperature)
    if logits.dim() < 2 or logits.shape != ref_logits.shape:
        raise ConfigError(
            f"logits is {tuple(logits.shape)}, ref_logits {tuple(ref_logits.shape)}: pass (B, T, V) twice."
        )

    def compute(logits: Tensor, ref_logits: Tensor) -> tuple[Tensor]:
        logprobs = scale_logits(logits, temperature).log_softmax(dim=-1)
        ref_logprobs = scale_logits(ref_logits, temperature).log_softmax(dim=-1)
        probs = logprobs.exp()
        return ((probs * (logprobs - ref_logprobs).masked_fill(probs == 0, 0.0)).sum(dim=-1),)

    return apply_in_row_chunks(compute, logits, ref_logits)[0]


def lr_factor(kl: float, target: float) -> float:
    """The factor by which to multiply a learning rate after an update of this KL(old || new), to approach the target.

    The KL of an update grows with the square of its length, so (target / kl)^(1/2) would correct the whole error at once.
    (target / kl)^(1/4) averages the noise of single updates. The limits let one step lower the rate more than raise it.

    Args:
        kl, target: nats, kl >= 0, target > 0. A KL that is not finite counts as far too large. For a KL of 0, which
            carries no information, the factor is 1.
    """
    if kl == 0.0:
        return 1.0
    ratio = (target / kl) ** 0.25 if math.isfinite(kl) else 0.0
    return min(max(ratio, MIN_LR_FACTOR), MAX_LR_FACTOR)


def shape_rewards(
    scores: Tensor, kl: Tensor, mask: Tensor, kl_coef: Tensor | float, placement: ScorePlacement = "last"
) -> Tensor:
    """Per-token rewards: -kl_coef * kl on every response token, and the score once, on the last one.

    Args:
        scores: (B,) float, one per response, already normalised and clipped.
        kl: (B, T) float, nats, e.g. `kl_estimate`; padding is ignored. As a reward, only k1 has the gradient of the
            KL. Near the reference k2, k3 and the exact KL hardly differ between tokens, so the policy learns little
            from them.
        mask: (B, T) bool, True on response tokens.
        kl_coef: >= 0, reward per nat.
        placement: "last", or "spread": the score in equal parts on all tokens of the response.

    Returns:
        (B, T), units of the score, 0 on padding; each row sums to score - kl_coef * sum(kl). A row without response
        tokens is 0 throughout.

    Raises:
        ConfigError: shapes that differ, a mask that is not bool, a negative coefficient, no such placement.

    Source: Ziegler et al. 2019 eq. 2; Ouyang et al. 2022 eq. 2 (without the ptx term).
    """
    check_masked(mask, kl=kl)
    if not isinstance(kl_coef, Tensor) and not (kl_coef >= 0 and math.isfinite(kl_coef)):
        raise ConfigError(f"kl_coef is {kl_coef}: below 0 it would pay for leaving the reference. Choose 0 or more.")
    penalty = -kl_coef * kl.masked_fill(~mask, 0.0)
    return penalty + place_scores(scores, mask, placement)


class FixedKL:
    """A constant coefficient; the same interface as AdaptiveKL. State: `value`, a float."""

    def __init__(self, coef: float) -> None:
        """coef: >= 0. Raises ConfigError otherwise."""
        if not (coef >= 0 and math.isfinite(coef)):
            raise ConfigError(f"The KL coefficient is {coef}: choose 0 or more.")
        self.value = float(coef)

    def check_batch_size(self, n: int) -> None:
        """Any number of sequences is allowed."""

    def update(self, sequence_kl: float, n: int, *, adapt: bool = True) -> float:  # noqa: ARG002  as AdaptiveKL
        """Returns the coefficient, unchanged."""
        return self.value


class AdaptiveKL:
    """Steers the coefficient so that the KL per sequence approaches a target. State: `value`, a float.

    Source: Ziegler et al. 2019 §2.2: e = clip(KL / target - 1, -0.2, 0.2); coef <- coef * (1 + e * n / horizon)
    (n / horizon as in lm-human-preferences; the paper fixes it at 0.1).
    """

    def __init__(self, init: float, target: float, horizon: float) -> None:
        """init: the initial coefficient; target: nats per *sequence* (sum over its tokens); horizon: in sequences.

        Raises:
            ConfigError: any of them not positive and finite.
        """
        for name, setting in {"init": init, "target": target, "horizon": horizon}.items():
            if not (setting > 0 and math.isfinite(setting)):
                raise ConfigError(f"{name} is {setting}: the adaptive KL controller needs a positive number.")
        self.value = float(init)
        self.target = float(target)
        self.horizon = float(horizon)

    def check_batch_size(self, n: int) -> None:
        """Raises ConfigError for more sequences per step than `update` accepts. Call it before training."""
        if not 0 <= n * MAX_PROPORTIONAL_ERROR < self.horizon:
            raise ConfigError(f"n is {n}, horizon {self.horizon}: choose a horizon well above the sequences in a step.")

    def update(self, sequence_kl: float, n: int, *, adapt: bool = True) -> float:
        """Update with the KL of one step; returns the new coefficient.

        Args:
            sequence_kl: mean over sequences of the KL *summed* over each one's tokens, nats (`objective/kl`).
            n: number of sequences of the step, below 5 * horizon (beyond it the coefficient could turn negative).
            adapt: False while another coefficient is in use: the KL then says nothing about this one, which stays.

        Raises:
            NotFiniteError: sequence_kl is NaN or infinite.
            ConfigError: n out of range.
        """
        if not math.isfinite(sequence_kl):
            raise NotFiniteError(
                f"The KL to the reference is {sequence_kl}: the policy broke. Lower the learning rate."
            )
        self.check_batch_size(n)
        if not adapt:
            return self.value
        error = min(max(float(sequence_kl) / self.target - 1.0, -MAX_PROPORTIONAL_ERROR), MAX_PROPORTIONAL_ERROR)
        self.value *= 1.0 + error * n / self.horizon
        return self.value


class BudgetKL:
    """Keeps the KL per sequence within a budget. State: `base` and `average`; the coefficient is `value`.

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
        for name, setting in {"init": init, "budget": budget}.items():
            if not (setting > 0 and math.isfinite(setting)):
                raise ConfigError(f"{name} is {setting}: holding a KL budget needs a positive number.")
        self.base, self.budget, self.floor, self.average = float(init), float(budget), float(floor), 0.0

    @property
    def value(self) -> float:
        return self.floor + self.base * self._wall()

    @property
    def update_length(self) -> float:
        """Factor of the learning rate: 1 up to half of the budget, then falling linearly to SETTLED_LENGTH at the budget.

        With updates of constant length the KL would oscillate around the budget, because the coefficient lags behind it.
        """
        closeness = min(1.0, max(0.0, 2.0 * self.average / self.budget - 1.0))
        return 1.0 + closeness * (self.SETTLED_LENGTH - 1.0)

    def _wall(self) -> float:
        return float(min(self.average / self.budget, self.MAX_RATIO) ** self.EXPONENT)

    def check_batch_size(self, n: int) -> None:
        """Any number of sequences is allowed."""

    def update(self, sequence_kl: float, n: int, *, adapt: bool = True) -> float:  # noqa: ARG002  as AdaptiveKL
        """Update with the KL of one step (`objective/kl`); returns the new coefficient. Raises NotFiniteError.

        adapt: False while another coefficient is in use: the average follows the KL, and base stays.
        """
        if not math.isfinite(sequence_kl):
            raise NotFiniteError(
                f"The KL to the reference is {sequence_kl}: the policy broke. Start again with a lower lr."
            )
        change = self.NEW_SHARE * (max(0.0, sequence_kl) - self.average)
        self.average += change
        error = math.log(min(self.average / self.budget, self.MAX_RATIO)) if self.average else 0.0
        is_on_its_way = error < 0 and change > 0
        if adapt and self.average > self.budget / 2 and not is_on_its_way:
            self.base = max(self.floor, self.base * math.exp(self.GAIN * error))
        return self.value


class AdaptivePenalty:
    """The coefficient of KL(old || new) in `ppo_penalty`, kept between two bounds of that KL. State: `value`, a float.

    Above kl_max it is multiplied by factor, below kl_min divided by it.
    Source: Schulman et al. 2017 §4, there with factor 2 and the bounds target * 1.5 and target / 1.5.
    """

    def __init__(self, beta: float, kl_min: float, kl_max: float, factor: float = 2.0) -> None:
        """beta: the initial coefficient, loss per nat; kl_min, kl_max: nats per token; factor: > 1.

        Raises:
            ConfigError: beta not positive and finite, bounds not 0 <= kl_min < kl_max, factor not above 1.
        """
        if not (beta > 0 and math.isfinite(beta)):
            raise ConfigError(f"beta is {beta}: a penalty that adapts by a factor needs a positive start.")
        if not 0 <= kl_min < kl_max < math.inf:
            raise ConfigError(f"kl_min is {kl_min}, kl_max {kl_max}: choose 0 <= kl_min < kl_max.")
        if not 1 < factor < math.inf:
            raise ConfigError(f"factor is {factor}: choose a number above 1 (usual: 2).")
        self.value = float(beta)
        self.kl_min, self.kl_max, self.factor = float(kl_min), float(kl_max), float(factor)

    def update(self, kl: float) -> float:
        """Update with the KL(old || new) at the end of a step (token mean, nats); returns the new coefficient.

        Raises:
            NotFiniteError: kl is NaN or infinite.
        """
        if not math.isfinite(kl):
            raise NotFiniteError(f"The KL of a step is {kl}: the policy broke. Lower the learning rate.")
        if kl > self.kl_max:
            self.value *= self.factor
        elif kl < self.kl_min:
            self.value /= self.factor
        return self.value
