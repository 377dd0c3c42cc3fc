"""Direct preference optimization: a policy learns from pairs without a reward model.

Its implicit reward of a response is beta · log(policy / reference), summed over the response's tokens: the reward for
which the policy is optimal under a KL penalty of strength beta. Sources: Rafailov et al. 2023 (DPO); Azar et al. 2024
(IPO); Mitchell 2023 (label smoothing).
"""

import math

import torch
from torch import Tensor

from rlhf_lab.common.enums import DirectLoss
from rlhf_lab.core.preference import bradley_terry_loss
from rlhf_lab.errors import ConfigError


def direct_preference_loss(
    chosen_log_ratios: Tensor,
    rejected_log_ratios: Tensor,
    *,
    beta: float,
    kind: DirectLoss = "sigmoid",
    label_smoothing: float = 0.0,
    tie: Tensor | None = None,
) -> Tensor:
    """Mean loss of pairs, a function of the difference h = chosen_log_ratio - rejected_log_ratio.

    sigmoid: -log sigmoid(beta · h), the Bradley-Terry loss of the implicit rewards. ipo: (h - 1 / (2 · beta))², whose
    minimum is at a finite h, so h does not grow without bound. label_smoothing is the fraction of labels that are assumed
    to be reversed; for a tie this fraction is 0.5, so a tie pulls h to 0.

    Args:
        chosen_log_ratios: (N,) float, log-probability under the policy minus that under the reference, summed over the
            response's tokens, nats; N >= 1. ipo takes sums too, as in its paper, so that beta has the same unit in both
            losses. (Other implementations take means per token, which need a far larger beta.)
        rejected_log_ratios: (N,) float, the same for the other responses.
        beta: > 0, the strength of the KL penalty against the reference, reward per nat.
        kind: "sigmoid" or "ipo".
        label_smoothing: in [0, 0.5).
        tie: (N,) bool, True where neither response was preferred.

    Returns:
        Scalar, differentiable in the log-ratios.

    Raises:
        ConfigError: beta not positive and finite, an unknown kind; and as `bradley_terry_loss`.
    """
    if not 0.0 < beta < math.inf:
        raise ConfigError(f"beta is {beta}: the implicit reward is beta times a log-ratio. Choose a positive number.")
    sigmoid_loss = bradley_terry_loss(
        beta * chosen_log_ratios, beta * rejected_log_ratios, label_smoothing=label_smoothing, tie=tie
    )
    if kind == "sigmoid":
        return sigmoid_loss
    if kind != "ipo":
        raise ConfigError(f"There is no loss {kind!r}. Choose sigmoid or ipo.")
    difference = chosen_log_ratios - rejected_log_ratios
    flipped = torch.full_like(difference, label_smoothing)
    if tie is not None:
        flipped = flipped.masked_fill(tie, 0.5)
    target = 1.0 / (2.0 * beta)
    return ((1.0 - flipped) * (difference - target).square() + flipped * (difference + target).square()).mean()
