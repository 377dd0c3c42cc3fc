"""KL to the reference policy: per-token estimates, exact KL, and shaped rewards.

Sign, everywhere: `kl = logprobs - ref_logprobs` (policy minus reference) and it enters the reward as `-kl_coef * kl`.
"""

import math

import torch
from torch import Tensor

from rlhf_lab.common.enums import KLEstimator, ScorePlacement
from rlhf_lab.core.advantages import check_masked
from rlhf_lab.core.logprobs import apply_in_row_chunks, check_temperature, finite_exponent, scale_logits
from rlhf_lab.core.reward_scaling import place_scores
from rlhf_lab.errors import ConfigError

MIN_LR_FACTOR, MAX_LR_FACTOR = 0.5, 1.3  # of one step


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
