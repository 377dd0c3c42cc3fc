"""Preference learning: the Bradley-Terry loss, regularisers of the scores, and ensembles.

Sources: Bradley & Terry 1952; Christiano et al. 2017 (ties are target 0.5); Touvron et al. 2023 (Llama 2) eq. 2
(margin).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhf_lab.common.enums import EnsembleCombination
from rlhf_lab.errors import ConfigError


def bradley_terry_loss(
    chosen: Tensor,
    rejected: Tensor,
    *,
    margin: Tensor | float | None = None,
    label_smoothing: float = 0.0,
    tie: Tensor | None = None,
) -> Tensor:
    """Mean of -log sigmoid(chosen - rejected - margin): the binary cross-entropy of "chosen wins".

    Args:
        chosen: (N,) float, scores of the preferred texts; N >= 1.
        rejected: (N,) float, scores of the others.
        margin: (N,) or a number, in units of the score: how far apart the pair should be. Ignored on ties.
        label_smoothing: the share of votes assumed wrong, in [0, 0.5): the target becomes 1 - label_smoothing for
            the same logit `chosen - rejected - margin`. Ties keep their target.
        tie: (N,) bool, True where the annotator saw no difference: the target is 0.5.

    Returns:
        Scalar, nats per pair, differentiable in chosen, rejected and margin.

    Raises:
        ConfigError: no pairs, shapes that differ, a tie that is not bool, label_smoothing out of range, a number as
            margin that is not finite.

    Source: Bradley & Terry 1952; margin from Llama 2 (Touvron et al. 2023) eq. 2; ties from Christiano et al. 2017
    §2.2.2; smoothing as in conservative DPO (Mitchell 2023).
    """
    if not 0.0 <= label_smoothing < 0.5:
        raise ConfigError(
            f"label_smoothing is {label_smoothing}: at 0.5 or more the votes say nothing or the opposite. "
            "Choose a number from 0 up to, not including, 0.5."
        )
    tie = _check_not_empty(chosen, rejected, tie)
    logit = chosen - rejected
    if margin is not None:
        if not isinstance(margin, Tensor):
            if not math.isfinite(margin):
                raise ConfigError(f"margin is {margin}: no score can be that far apart. Choose a finite number.")
            margin = torch.full_like(logit, margin)
        if margin.shape != logit.shape:
            raise ConfigError(f"margin is {tuple(margin.shape)}: pass a number, or one per pair {tuple(logit.shape)}.")
        logit = logit - margin.masked_fill(tie, 0.0)
    target = torch.full_like(logit, 1.0 - label_smoothing).masked_fill(tie, 0.5)
    return -(target * F.logsigmoid(logit) + (1.0 - target) * F.logsigmoid(-logit)).mean()


def margin_from_strength(strength: Tensor, scale: float) -> Tensor:
    """scale * strength: how far apart the scores of a pair should be, given the annotator's confidence.

    Args:
        strength: (N,) number >= 0: 0 for "slightly", then 1, 2, ... with increasing confidence.
        scale: >= 0, units of the score per step.

    Returns:
        (N,) float, for `bradley_terry_loss(margin=...)`, which ignores it on ties.

    Raises:
        ConfigError: a strength or scale that is negative, NaN or infinite.

    Source: Touvron et al. 2023 (Llama 2) §3.2.2, table 27 (there a table of margins, 0 at the weakest).
    """
    if not 0 <= scale < math.inf or not bool(((strength >= 0) & (strength < math.inf)).all()):
        raise ConfigError(
            f"scale is {scale}, or a strength is below 0 or not finite: a margin is a finite number of 0 or more. "
            "Choose such a number."
        )
    dtype = strength.dtype if strength.is_floating_point() else torch.get_default_dtype()
    return strength.to(dtype) * scale


def centring_penalty(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Mean of (chosen + rejected)^2: keeps the mean of each pair near 0, which the loss does not determine.

    Args:
        chosen, rejected: (N,) float scores, N >= 1.

    Returns:
        Scalar, score^2, differentiable. Does not depend on the difference within a pair.

    Raises:
        ConfigError: shapes that differ, no pairs.

    Source: Eisenstein et al. 2023 "Helping or herding?" (their regulariser); TRL `center_rewards_coefficient`.
    """
    _check_not_empty(chosen, rejected)
    return (chosen + rejected).square().mean()


def score_l2(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Mean of the squares of all scores: bounds both the mean and the difference of each pair.

    Args, returns and errors as `centring_penalty`.
    """
    _check_not_empty(chosen, rejected)
    return 0.5 * (chosen.square() + rejected.square()).mean()


def combine_ensemble_scores(scores: Tensor, mode: EnsembleCombination = "mean", coef: float = 1.0) -> Tensor:
    """Combine the scores of several reward models into one per text.

    Args:
        scores: (K, N) float, K >= 1 models, all on one scale.
        mode: "mean"; "worst": the minimum; "uncertainty": mean - coef * variance (divided by K), so that the policy
            avoids texts on which the models disagree.
        coef: >= 0, per unit of the score.

    Returns:
        (N,).

    Raises:
        ConfigError: scores not (K, N), no model, no such mode, a negative coefficient.

    Source: Coste et al. 2024 "Reward model ensembles help mitigate overoptimization".
    """
    if scores.dim() != 2 or scores.shape[0] < 1:
        raise ConfigError(f"scores is {tuple(scores.shape)}: pass (K, N), a row for each of K >= 1 reward models.")
    if not 0 <= coef < math.inf:
        raise ConfigError(f"coef is {coef}: below 0 it would seek what the models disagree on. Choose 0 or more.")
    if mode == "mean":
        return scores.mean(dim=0)
    if mode == "worst":
        return scores.min(dim=0).values
    if mode == "uncertainty":
        return scores.mean(dim=0) - coef * scores.var(dim=0, correction=0)
    raise ConfigError(f"There is no mode {mode!r}. Choose mean, worst or uncertainty.")


def _check_pairs(chosen: Tensor, rejected: Tensor, tie: Tensor | None) -> Tensor:
    """Check shapes and dtype; returns tie, all False if it was None."""
    if tie is None:
        tie = torch.zeros(chosen.shape, dtype=torch.bool, device=chosen.device)
    if chosen.dim() != 1 or rejected.shape != chosen.shape or tie.shape != chosen.shape or tie.dtype != torch.bool:
        raise ConfigError(
            f"chosen is {tuple(chosen.shape)}, rejected {tuple(rejected.shape)}, tie {tuple(tie.shape)} {tie.dtype}: "
            "all must be (N,) with one entry per pair, and tie a bool."
        )
    return tie


def _check_not_empty(chosen: Tensor, rejected: Tensor, tie: Tensor | None = None) -> Tensor:
    """`_check_pairs`, and raises if there are no pairs."""
    tie = _check_pairs(chosen, rejected, tie)
    if chosen.numel() == 0:
        raise ConfigError("There are no pairs, so there is no loss. Pass at least one pair.")
    return tie
