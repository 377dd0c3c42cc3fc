"""Checks that every run makes at each step; an error says what it means and what to do."""

import math
from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import ConfigError, NotFiniteError, SelfCheckError

RATIO_TOLERANCE = 1e-5
MAX_SCORE = 1e15  # the squares of its gradients still fit in float32
START_KL_TOLERANCE = 1e-4


def check_first_ratio(max_deviation: float, dtype: torch.dtype, step: int) -> None:
    """Raises SelfCheckError unless the ratios before the first update are 1. step: the current one, from 1."""
    if dtype in (torch.float32, torch.float64) and not max_deviation < RATIO_TOLERANCE:
        raise SelfCheckError(
            f"the probability ratios before the first update of step {step} differ from 1 by {max_deviation:.2g} "
            f"(allowed: {RATIO_TOLERANCE:g}): the log-probabilities cannot be trusted on this machine. "
            "The last checkpoint is kept; try another thread count or device, and report this."
        )


def check_finite(metrics: dict[str, float], step: int) -> None:
    """Raises NotFiniteError that names the metrics that are not finite."""
    broken = [name for name, value in metrics.items() if not math.isfinite(value)]
    if broken:
        raise_not_finite(broken, step)


def to_score_tensor(scores: Sequence[float] | Tensor) -> Tensor:
    """Scores of a caller as (N,) float64. Raises ConfigError for anything but a list of numbers."""
    try:
        if isinstance(scores, Tensor) and scores.is_complex():
            raise TypeError("complex numbers")
        tensor = torch.as_tensor(scores, dtype=torch.float64).detach()
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ConfigError(
            f"the scores are not all numbers ({error}). Pass a list with one number for each response."
        ) from error
    if tensor.dim() != 1:
        raise ConfigError(
            f"the scores have the shape {tuple(tensor.shape)}. Pass a list with one number for each response."
        )
    return tensor


def check_scores(scores: Tensor, step: int) -> None:
    """Raises NotFiniteError for scores (N,) that are not finite or too large.

    Called before any update, so the cause is the scorer and not the policy.
    """
    bad = [index for index, score in enumerate(scores.tolist()) if not abs(score) <= MAX_SCORE]
    if bad:
        kind = "finite number" if not torch.isfinite(scores).all() else f"number between ±{MAX_SCORE:g}"
        phrase = f"is not a {kind}" if len(bad) == 1 else f"are not {kind.replace('number', 'numbers')}"
        raise NotFiniteError(
            f"objective/scores: {len(bad)} of {len(scores)} scores {phrase}: score {bad[0]} is {float(scores[bad[0]])} at step "
            f"{step}. The reward model or reward function returned this; nothing was trained on it. Correct the function, or "
            "train the reward model again."
        )


def raise_not_finite(broken: list[str], step: int) -> NoReturn:
    raise NotFiniteError(
        f"{', '.join(broken)} became NaN or infinite at step {step}. The step was discarded and the last "
        "checkpoint is kept. Lower the learning rate or raise beta, then resume."
    )


def check_metrics(metrics: dict[str, float], dtype: torch.dtype, step: int) -> None:
    """Raises NotFiniteError for metrics that are not finite, SelfCheckError for a KL other than 0 at the first step."""
    check_finite(metrics, step)
    kl = metrics["objective/kl"]
    if step == 1 and abs(kl) > START_KL_TOLERANCE and dtype == torch.float32:
        raise SelfCheckError(
            f"the KL to the reference is {kl:.2g} before anything was learned; it must be 0. "
            "The reference or the adapter is wrong. Please report this."
        )


def check_process_count(processes: int, config: PolicyConfig) -> None:
    """Raises ConfigError if the work cannot be divided among the processes. Their number may differ from the config's."""
    config.replace(processes=processes, shard_backbone=config.shard_backbone and processes > 1)
