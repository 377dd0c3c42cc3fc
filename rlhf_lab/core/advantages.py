"""Masked statistics and advantage estimators.

Padding is filled with 0 before any product or sum, so that junk there (NaN, inf) reaches neither a result nor a
gradient: 0 * NaN is NaN, so multiplying by the mask would not do. The mask is bool, True on one unbroken run of
response tokens per row.
"""

import torch
from torch import Tensor

from rlhf_lab.errors import ConfigError

WHITEN_EPS = 1e-8  # added to the variance; TRL and lm-human-preferences use the same


def masked_mean(x: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean of x where mask is True; 0 where the mask selects nothing, so that it adds nothing to a loss.

    Args:
        x: any shape, float.
        mask: bool, same shape.
        dim: the dimension to reduce; None reduces all to a scalar.

    Raises:
        ConfigError: shapes that differ, a mask that is not bool.
    """
    check_masked(mask, x=x)
    x = x.masked_fill(~mask, 0.0)
    if dim is None:
        return x.sum() / mask.sum().clamp(min=1)
    return x.sum(dim=dim) / mask.sum(dim=dim).clamp(min=1)


def masked_var(x: Tensor, mask: Tensor) -> Tensor:
    """Unbiased variance (divided by n - 1) of x where mask is True: a scalar; 0 for fewer than two elements.

    Args:
        x: any shape, float.
        mask: bool, same shape.

    Raises:
        ConfigError: shapes that differ, a mask that is not bool.
    """
    return centred(x, mask).square().sum() / (mask.sum() - 1).clamp(min=1)


def centred(x: Tensor, mask: Tensor) -> Tensor:
    """x less its mean over the mask, 0 outside; exactly 0 where all are alike, which takes a second look: the mean of twelve
    float32 numbers 1000.1 is another number, and a division by their spread would make something of the difference.
    """
    rough = (x - masked_mean(x, mask)).masked_fill(~mask, 0.0)
    return (rough - masked_mean(rough, mask)).masked_fill(~mask, 0.0)


def whiten(x: Tensor, mask: Tensor, shift_mean: bool = True) -> Tensor:
    """(x - mean) / sqrt(var + 1e-8) over the mask, plus the mean again if not shift_mean; 0 outside the mask.

    Args:
        x: any shape, float, e.g. advantages (B, T).
        mask: bool, same shape.
        shift_mean: False keeps the mean and scales only the deviations from it (used for rewards, whose mean matters).

    Returns:
        Shape of x. A single element has no spread: it becomes 0, or stays itself if not shift_mean.

    Raises:
        ConfigError: shapes that differ, a mask that is not bool.

    Source: TRL `masked_whiten`; OpenAI lm-human-preferences `utils.whiten` (there with the biased variance).
    """
    whitened = centred(x, mask) * torch.rsqrt(masked_var(x, mask) + WHITEN_EPS)
    if not shift_mean:
        whitened = (whitened + masked_mean(x, mask)).masked_fill(~mask, 0.0)
    return whitened


def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float, last_values: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation: A_t = sum_l (gamma lam)^l delta_{t+l}, delta_t = r_t + gamma V_{t+1} - V_t.

    Args:
        rewards, values: (B, T) float, units of the score; anything in padding.
        mask: (B, T) bool.
        gamma, lam: in [0, 1].
        last_values: (B,) value after the last response token, to bootstrap responses cut by the length limit (0 for
            those that ended). None: the end is terminal, its next value is 0.

    Returns:
        (advantages, returns), both (B, T), 0 on padding; returns = these unwhitened advantages + values.

    Raises:
        ConfigError: shapes that differ, a mask that is not bool, gamma or lam outside [0, 1].

    Source: Schulman et al. 2016 (GAE) eq. 11-16.
    """
    rewards, values = _prepare(rewards, values, mask, last_values, gamma=gamma, lam=lam)
    deltas = rewards + gamma * _following(values, mask, last_values) - values
    advantages = _discounted_sums(deltas, mask, gamma * lam)
    return advantages, advantages + values


def nstep(
    rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, n: int, last_values: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """n-step returns R_t = r_t + ... + gamma^{n-1} r_{t+n-1} + gamma^n V_{t+n}, and advantages R_t - V_t.

    Arguments, results and errors as `gae`, with n >= 1 in place of lam; sums stop at the end of the response, which is
    terminal or worth last_values. n = 1 is GAE with lam = 0, n >= T is GAE with lam = 1.

    Source: Mnih et al. 2016 (A3C) §4; Sutton & Barto 2018 eq. 7.1.
    """
    if n < 1:
        raise ConfigError(f"n is {n}: an n-step return looks at least one step ahead.")
    rewards, values = _prepare(rewards, values, mask, last_values, gamma=gamma)
    returns = values  # the 0-step return; each round looks one step further
    for _ in range(min(n, mask.shape[1])):
        returns = (rewards + gamma * _following(returns, mask, last_values)).masked_fill(~mask, 0.0)
    return returns - values, returns


def rewards_to_go(rewards: Tensor, mask: Tensor, *, gamma: float, last_values: Tensor | None = None) -> Tensor:
    """G_t = sum_l gamma^l r_{t+l} up to the end of the response; the Monte Carlo target of a value function.

    Args:
        rewards: (B, T) float; anything in padding.
        mask: (B, T) bool.
        gamma: in [0, 1].
        last_values: (B,) what comes after the last response token, see `gae`; None: nothing.

    Returns:
        (B, T), 0 on padding.

    Raises:
        ConfigError: shapes that differ, a mask that is not bool, gamma outside [0, 1].

    Source: Williams 1992; Sutton & Barto 2018 eq. 3.8.
    """
    rewards, _ = _prepare(rewards, rewards, mask, last_values, gamma=gamma)
    if last_values is not None:
        after = (gamma * last_values).unsqueeze(1).expand_as(rewards)
        rewards = rewards + after.masked_fill(~is_last_token(mask), 0.0)
    return _discounted_sums(rewards, mask, gamma)


def is_last_token(mask: Tensor) -> Tensor:
    """(B, T) bool, True on the last True of each row of mask (B, T); all False in a row without any."""
    still_to_come = mask.flip(1).cumsum(dim=1).flip(1)  # this token included
    return mask & (still_to_come == 1)


def check_masked(mask: Tensor, **tensors: Tensor) -> None:
    """Raises ConfigError unless mask is bool and every tensor has its shape."""
    if mask.dtype != torch.bool:
        raise ConfigError(f"mask is {mask.dtype}: pass a bool, True on response tokens.")
    for name, tensor in tensors.items():
        if tensor.shape != mask.shape:
            raise ConfigError(f"{name} is {tuple(tensor.shape)}, mask {tuple(mask.shape)}: they must have one shape.")


def _prepare(
    rewards: Tensor, values: Tensor, mask: Tensor, last_values: Tensor | None, **factors: float
) -> tuple[Tensor, Tensor]:
    """Check the arguments of an estimator; return rewards and values with 0 on padding."""
    check_masked(mask, rewards=rewards, values=values)
    if mask.dim() != 2 or (last_values is not None and last_values.shape != mask.shape[:1]):
        given = None if last_values is None else tuple(last_values.shape)
        raise ConfigError(f"mask is {tuple(mask.shape)}, last_values {given}: pass (B, T), and (B,) or None.")
    for name, factor in factors.items():
        if not 0.0 <= factor <= 1.0:
            raise ConfigError(f"{name} is {factor}: choose a number from 0 to 1.")
    return rewards.masked_fill(~mask, 0.0), values.masked_fill(~mask, 0.0)


def _following(x: Tensor, mask: Tensor, last: Tensor | None) -> Tensor:
    """x one step later, (B, T): x[:, t+1], and last (or 0) at the end of the response."""
    shifted = torch.cat([x[:, 1:], torch.zeros_like(x[:, :1])], dim=1)
    end = torch.zeros_like(x) if last is None else last.unsqueeze(1).expand_as(x)
    return torch.where(is_last_token(mask), end, shifted)


def _discounted_sums(x: Tensor, mask: Tensor, factor: float) -> Tensor:
    """sum_l factor^l x_{t+l} over response tokens, (B, T), 0 on padding."""
    running = torch.zeros_like(x[:, 0])
    columns = []
    for column, outside in zip(x.flip(1).unbind(1), (~mask).flip(1).unbind(1), strict=True):
        running = (column + factor * running).masked_fill(outside, 0.0)
        columns.append(running)
    return torch.stack(columns[::-1], dim=1)
