"""The distance to the reference: per-token estimates, the exact KL, shaped rewards, and the coefficient's controllers.

Sign, everywhere: `kl = logprobs - ref_logprobs` (policy minus reference) and it enters the reward as `-kl_coef * kl`.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from rlhf_lab.core.advantages import check_masked, is_last_token
from rlhf_lab.core.logprobs import check_temperature, in_row_chunks, scale_logits
from rlhf_lab.errors import ConfigError, NotFiniteError

Estimator = Literal["k1", "k2", "k3"]

MAX_PROPORTIONAL_ERROR = 0.2  # Ziegler et al. 2019 §2.2


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, estimator: Estimator = "k1") -> Tensor:
    """Per-token estimate of KL(policy || reference) from tokens sampled by the policy; d = logprobs - ref_logprobs.

    k1 = d: unbiased, may be negative per token.  k2 = d^2 / 2: biased, low variance.
    k3 = exp(-d) - 1 + d: unbiased, never negative (grows like exp(-d) where the reference likes the token far more).

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
    difference = logprobs - ref_logprobs
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return 0.5 * difference.square()
    if estimator == "k3":
        return torch.expm1(-difference) + difference
    raise ConfigError(f"There is no KL estimator {estimator!r}. Choose k1, k2 or k3.")


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

    return in_row_chunks(compute, logits, ref_logits)[0]


def shape_rewards(scores: Tensor, kl: Tensor, mask: Tensor, kl_coef: Tensor | float) -> Tensor:
    """Per-token rewards: -kl_coef * kl on every response token, and the score once, on the last one.

    Args:
        scores: (B,) float, one per response, already normalised and clipped.
        kl: (B, T) float, nats, e.g. `kl_estimate`; anything in padding.
        mask: (B, T) bool, True on response tokens.
        kl_coef: >= 0, reward per nat.

    Returns:
        (B, T), units of the score, 0 on padding; each row sums to score - kl_coef * sum(kl). A row without response
        tokens is 0 throughout.

    Raises:
        ConfigError: shapes that differ, a mask that is not bool, a negative coefficient.

    Source: Ziegler et al. 2019 eq. 2; Ouyang et al. 2022 eq. 2 (without the ptx term).
    """
    check_masked(mask, kl=kl)
    if mask.dim() != 2 or scores.shape != mask.shape[:1]:
        raise ConfigError(f"scores is {tuple(scores.shape)}, mask {tuple(mask.shape)}: pass (B,) and (B, T).")
    if not isinstance(kl_coef, Tensor) and not (kl_coef >= 0 and math.isfinite(kl_coef)):
        raise ConfigError(f"kl_coef is {kl_coef}: below 0 it would pay for leaving the reference. Choose 0 or more.")
    penalty = -kl_coef * kl.masked_fill(~mask, 0.0)
    return penalty + scores.unsqueeze(1).expand_as(kl).masked_fill(~is_last_token(mask), 0.0)


class FixedKL:
    """A coefficient that stays; the same face as AdaptiveKL. State: `value`, a float."""

    def __init__(self, coef: float) -> None:
        """coef: >= 0. Raises ConfigError otherwise."""
        if not (coef >= 0 and math.isfinite(coef)):
            raise ConfigError(f"The KL coefficient is {coef}: choose 0 or more.")
        self.value = float(coef)

    def update(self, sequence_kl: float, n: int) -> float:  # noqa: ARG002  same face as AdaptiveKL
        """Returns the coefficient, unchanged."""
        return self.value


class AdaptiveKL:
    """Steers the coefficient so that the KL per sequence approaches a target. State: `value`, a float.

    Source: Ziegler et al. 2019 §2.2: e = clip(KL / target - 1, -0.2, 0.2); coef <- coef * (1 + e * n / horizon)
    (n / horizon as in lm-human-preferences; the paper fixes it at 0.1).
    """

    def __init__(self, init: float, target: float, horizon: float) -> None:
        """init: the first coefficient; target: nats per *sequence* (sum over its tokens); horizon: in sequences.

        Raises:
            ConfigError: any of them not positive and finite.
        """
        for name, setting in {"init": init, "target": target, "horizon": horizon}.items():
            if not (setting > 0 and math.isfinite(setting)):
                raise ConfigError(f"{name} is {setting}: the adaptive KL controller needs a positive number.")
        self.value = float(init)
        self.target = float(target)
        self.horizon = float(horizon)

    def update(self, sequence_kl: float, n: int) -> float:
        """Take in one step's measurement and return the new coefficient.

        Args:
            sequence_kl: mean over sequences of the KL *summed* over each one's tokens, nats (`objective/kl`).
            n: how many sequences the step used, below 5 * horizon (beyond it the coefficient could turn negative).

        Raises:
            NotFiniteError: sequence_kl is NaN or infinite.
            ConfigError: n out of range.
        """
        if not math.isfinite(sequence_kl):
            raise NotFiniteError(
                f"The KL to the reference is {sequence_kl}: the policy broke. Lower the learning rate."
            )
        if not 0 <= n * MAX_PROPORTIONAL_ERROR < self.horizon:
            raise ConfigError(f"n is {n}, horizon {self.horizon}: choose a horizon well above the sequences in a step.")
        error = min(max(float(sequence_kl) / self.target - 1.0, -MAX_PROPORTIONAL_ERROR), MAX_PROPORTIONAL_ERROR)
        self.value *= 1.0 + error * n / self.horizon
        return self.value
