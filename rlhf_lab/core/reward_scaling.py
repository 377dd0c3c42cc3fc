"""From a response's score to its reward: scaling, clipping, a penalty, and placement on tokens, in this order.

B is the batch, T the response length; scores are in units of the reward model (standard deviations of the base
samples).
"""

import math

import torch
from torch import Tensor

from rlhf_lab.common.enums import ScorePlacement
from rlhf_lab.core.advantages import check_masked, is_last_token
from rlhf_lab.errors import ConfigError, NotFiniteError


def missing_eos_penalty(scores: Tensor, ended: Tensor, penalty: float) -> Tensor:
    """scores minus the penalty for responses that did not end with a stop token.

    Args:
        scores: (B,) float.
        ended: (B,) bool, True where a stop token was sampled.
        penalty: >= 0, units of the score.

    Returns:
        (B,), differentiable in scores.

    Raises:
        ConfigError: shapes that differ, ended not bool, a negative penalty.

    Source: TRL `missing_eos_penalty`; Stiennon et al. 2020 trained on truncated texts with a fixed low reward instead.
    """
    check_masked(ended, scores=scores)
    if not 0 <= penalty < math.inf:
        raise ConfigError(f"The penalty for a missing end is {penalty}: below 0 it would pay. Choose 0 or more.")
    return scores - penalty * (~ended).to(scores.dtype)


def normalise_scores(
    scores: Tensor, *, mean: float = 0.0, scale: float = 1.0, clip: float | None = None
) -> Tensor:  # fmt: skip
    """clamp((scores - mean) / scale, -clip, clip).

    Args:
        scores: (B,) float.
        mean: subtracted; 0 to scale only.
        scale: > 0, e.g. `RunningMoments.sd`.
        clip: > 0, in units of scale; None: not clipped.

    Raises:
        ConfigError: scale or clip not positive and finite, mean not finite.

    Source: TRL 0.7 `use_score_scaling`, `use_score_norm`, `score_clip`; Zheng et al. 2023 ("Secrets of RLHF") §5.3.
    """
    if not (0 < scale < math.inf and math.isfinite(mean)):
        raise ConfigError(f"mean is {mean}, scale {scale}: scores are divided by scale. Choose a positive number.")
    if clip is not None and not 0 < clip < math.inf:
        raise ConfigError(f"clip is {clip}: choose a positive number, or None for no clipping.")
    normalised = (scores - mean) / scale
    return normalised if clip is None else normalised.clamp(-clip, clip)


def place_scores(scores: Tensor, mask: Tensor, placement: ScorePlacement = "last") -> Tensor:
    """Place each response's score on its tokens: on the last one, or in equal parts on all.

    Args:
        scores: (B,) float.
        mask: (B, T) bool, True on response tokens.
        placement: "last" (the reward is given for the finished text) or "spread" (every token has its share).

    Returns:
        (B, T), 0 on padding; each row sums to its score, or to 0 if it has no token.

    Raises:
        ConfigError: shapes that do not belong together, a mask that is not bool, no such placement.
    """
    check_masked(mask)
    if mask.dim() != 2 or scores.shape != mask.shape[:1]:
        raise ConfigError(f"scores is {tuple(scores.shape)}, mask {tuple(mask.shape)}: pass (B,) and (B, T).")
    if placement == "last":
        return scores.unsqueeze(1).expand(mask.shape).masked_fill(~is_last_token(mask), 0.0)
    if placement == "spread":
        shares = scores / mask.sum(dim=1).clamp(min=1)
        return shares.unsqueeze(1).expand(mask.shape).masked_fill(~mask, 0.0)
    raise ConfigError(f"There is no placement {placement!r} of the score. Choose last or spread.")


class RunningMoments:
    """Mean and standard deviation of all scores so far. State: `count`, `mean`, `m2` (sum of squared deviations).

    Source: Chan, Golub & LeVeque 1983 eq. 2.1 (merging two samples; no cancellation as with a sum of squares).
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.m2 = 0.0

    def update(self, scores: Tensor) -> float:
        """Add a batch (B,) of scores; returns the standard deviation so far.

        Raises:
            NotFiniteError: a score is NaN or infinite.
        """
        if not bool(torch.isfinite(scores).all()):
            raise NotFiniteError("A score is NaN or infinite: the reward model broke. Train it again.")
        if scores.numel() == 0:
            return self.sd
        scores = scores.detach().double()
        count, mean = scores.numel(), float(scores.mean())
        total, delta = self.count + count, mean - self.mean
        self.m2 += float((scores - mean).square().sum()) + delta * delta * self.count * count / total
        self.mean += delta * count / total
        self.count = total
        return self.sd

    @property
    def sd(self) -> float:
        """Unbiased standard deviation; 1 before there are two different scores."""
        if self.count < 2 or self.m2 <= 0.0:
            return 1.0
        return math.sqrt(self.m2 / (self.count - 1))
