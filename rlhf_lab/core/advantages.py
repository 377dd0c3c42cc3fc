"""Masked statistics, advantage estimators, REINFORCE weights, group advantages and value targets.

Padding is filled with 0 before any product or sum, so that junk there (NaN, inf) reaches neither a result nor a
gradient: 0 * NaN is NaN, so multiplying by the mask would not do. The mask is bool, True on one contiguous run of
response tokens per row.
"""

import torch
from torch import Tensor

from rlhf_lab.common.enums import Baseline, CreditAssignment, ValueTarget
from rlhf_lab.errors import ConfigError

WHITEN_EPS = 1e-8  # added to the variance; TRL and lm-human-preferences use the same
GROUP_EPS = 1e-4  # added to the standard deviation of a group; TRL uses the same


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
    """x minus its mean over the mask, 0 outside.

    The mean is subtracted twice so that equal values give exactly 0: the mean of twelve float32 values 1000.1 is not
    1000.1, and a division by the standard deviation would blow up the difference.
    """
    deviations = (x - masked_mean(x, mask)).masked_fill(~mask, 0.0)
    return (deviations - masked_mean(deviations, mask)).masked_fill(~mask, 0.0)


def whiten(x: Tensor, mask: Tensor, shift_mean: bool = True) -> Tensor:
    """(x - mean) / sqrt(var + 1e-8) over the mask, plus the mean again if not shift_mean; 0 outside the mask.

    Args:
        x: any shape, float, e.g. advantages (B, T).
        mask: bool, same shape.
        shift_mean: False keeps the mean and scales only the deviations from it (used for rewards, whose mean matters).

    Returns:
        Shape of x. A single element becomes 0, or is unchanged if not shift_mean.

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
    deltas = rewards + gamma * _next_step_values(values, mask, last_values) - values
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
        returns = (rewards + gamma * _next_step_values(returns, mask, last_values)).masked_fill(~mask, 0.0)
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
        bootstrap = (gamma * last_values).unsqueeze(1).expand_as(rewards)
        rewards = rewards + bootstrap.masked_fill(~is_last_token(mask), 0.0)
    return _discounted_sums(rewards, mask, gamma)


def reinforce_weights(
    rewards: Tensor,
    mask: Tensor,
    *,
    gamma: float = 1.0,
    credit: CreditAssignment = "to_go",
    baseline: Baseline = "none",
    values: Tensor | None = None,
) -> Tensor:
    """The factors of grad log pi(a_t | s_t) in REINFORCE: a return minus a baseline.

    Args:
        rewards: (B, T) float; anything in padding.
        mask: (B, T) bool.
        gamma: in [0, 1]. With gamma < 1 they give the gradient used in practice, not that of the discounted return,
            which needs a further factor gamma^t.
        credit: "total": every token gets R = sum_k gamma^k r_k; "to_go": token t gets sum_{k>=t} gamma^{k-t} r_k.
        baseline: "none"; "batch_mean": the mean of R over the batch (it contains the row itself, so gradients shrink by
            (B - 1) / B); "value": values.
        values: (B, T), for baseline "value" only; gradients do not flow through them.

    Returns:
        (B, T), units of the reward, 0 on padding.

    Raises:
        ConfigError: shapes that differ, a mask that is not bool, gamma outside [0, 1], no such credit or baseline,
            values missing.

    Source: Williams 1992; Sutton & Barto 2018 §13.3-13.4.
    """
    to_go = rewards_to_go(rewards, mask, gamma=gamma)
    is_first_token = mask & (mask.cumsum(dim=1) == 1)
    trajectory_returns = to_go.masked_fill(~is_first_token, 0.0).sum(dim=1)
    if credit == "total":
        weights = trajectory_returns.unsqueeze(1).expand_as(to_go)
    elif credit == "to_go":
        weights = to_go
    else:
        raise ConfigError(f"There is no credit {credit!r}. Choose total or to_go.")
    if baseline == "batch_mean":
        weights = weights - trajectory_returns.sum() / is_first_token.sum().clamp(min=1)
    elif baseline == "value":
        if values is None:
            raise ConfigError('baseline is "value", but there are no values. Pass them, (B, T).')
        check_masked(mask, values=values)
        weights = weights - values.detach()
    elif baseline != "none":
        raise ConfigError(f"There is no baseline {baseline!r}. Choose none, batch_mean or value.")
    return weights.masked_fill(~mask, 0.0)


def rloo_advantages(scores: Tensor) -> Tensor:
    """Leave-one-out: each sample's score minus the mean of the *other* samples for the same prompt.

    Args:
        scores: (P, G) float, G >= 2 samples of each of P prompts (penalties included).

    Returns:
        (P, G), each row sums to 0. Unbiased, since the baseline does not contain the sample itself.

    Raises:
        ConfigError: not (P, G) with G >= 2.

    Source: Kool et al. 2019; Ahmadian et al. 2024 "Back to basics".
    """
    group_size = _group_size(scores)
    return _centre_groups(scores) * (group_size / (group_size - 1))


def grpo_advantages(scores: Tensor, *, scale: bool = True) -> Tensor:
    """Each sample's score minus its group's mean, divided by the group's standard deviation (+ 1e-4).

    Args:
        scores: (P, G) float, G >= 2 samples of each of P prompts.
        scale: False does not divide by the deviation, so small differences within a group are not amplified.

    Returns:
        (P, G); 0 where all samples of a prompt have the same score.

    Raises:
        ConfigError: not (P, G) with G >= 2.

    Source: Shao et al. 2024 (DeepSeekMath) §4.1.2; unscaled: Liu et al. 2025 (Dr. GRPO). Deviation with G - 1, as TRL.
    """
    group_size = _group_size(scores)
    centred = _centre_groups(scores)
    sd = (centred.square().sum(dim=1, keepdim=True) / (group_size - 1)).sqrt()
    return centred / (sd + GROUP_EPS) if scale else centred


def value_targets(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    *,
    gamma: float,
    lam: float,
    target: ValueTarget = "gae",
    last_values: Tensor | None = None,
) -> Tensor:
    """Regression targets of the value function: returns, not rewards.

    Args:
        rewards, values, mask, gamma, lam, last_values: as in `gae`.
        target: "gae": advantages + values, i.e. the lambda-return, which depends on the predicted values;
            "monte_carlo": the rewards to go (values and lam are ignored).

    Returns:
        (B, T), 0 on padding, without gradient.

    Raises:
        ConfigError: as `gae`; no such target.
    """
    if target == "gae":
        return gae(rewards, values, mask, gamma=gamma, lam=lam, last_values=last_values)[1].detach()
    if target == "monte_carlo":
        return rewards_to_go(rewards, mask, gamma=gamma, last_values=last_values).detach()
    raise ConfigError(f"There is no value target {target!r}. Choose gae or monte_carlo.")


def truncation_values(next_values: Tensor, ended: Tensor) -> Tensor:
    """`last_values` for `gae`: the value after the last token where the length limit cut a response, 0 where it ended.

    Args:
        next_values: (B,) float, value of the state after the last token; anything where the response ended.
        ended: (B,) bool, True where the stop token was sampled.

    Raises:
        ConfigError: shapes that differ, ended not bool.

    Source: Pardo et al. 2018 "Time limits in reinforcement learning" (partial-episode bootstrapping).
    """
    check_masked(ended, next_values=next_values)
    return next_values.masked_fill(ended, 0.0)


def broadcast_to_tokens(per_response: Tensor, mask: Tensor) -> Tensor:
    """(B,) -> (B, T): every response token gets the value of its response, padding 0.

    Raises:
        ConfigError: shapes that do not belong together, a mask that is not bool.
    """
    check_masked(mask)
    if mask.dim() != 2 or per_response.shape != mask.shape[:1]:
        raise ConfigError(f"per_response is {tuple(per_response.shape)}, mask {tuple(mask.shape)}: pass (B,), (B, T).")
    return per_response.unsqueeze(1).expand(mask.shape).masked_fill(~mask, 0.0)


def is_last_token(mask: Tensor) -> Tensor:
    """(B, T) bool, True on the last True of each row of mask (B, T); all False in a row without any."""
    remaining = mask.flip(1).cumsum(dim=1).flip(1)  # this token included
    return mask & (remaining == 1)


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
        last_shape = None if last_values is None else tuple(last_values.shape)
        raise ConfigError(f"mask is {tuple(mask.shape)}, last_values {last_shape}: pass (B, T), and (B,) or None.")
    for name, factor in factors.items():
        if not 0.0 <= factor <= 1.0:
            raise ConfigError(f"{name} is {factor}: choose a number from 0 to 1.")
    return rewards.masked_fill(~mask, 0.0), values.masked_fill(~mask, 0.0)


def _next_step_values(x: Tensor, mask: Tensor, last_values: Tensor | None) -> Tensor:
    """x one step later, (B, T): x[:, t+1], and last_values (or 0) at the end of the response."""
    shifted = torch.cat([x[:, 1:], torch.zeros_like(x[:, :1])], dim=1)
    end = torch.zeros_like(x) if last_values is None else last_values.unsqueeze(1).expand_as(x)
    return torch.where(is_last_token(mask), end, shifted)


def _discounted_sums(x: Tensor, mask: Tensor, factor: float) -> Tensor:
    """sum_l factor^l x_{t+l} over response tokens, (B, T), 0 on padding."""
    running = torch.zeros_like(x[:, 0])
    columns = []
    for column, is_padding in zip(x.flip(1).unbind(1), (~mask).flip(1).unbind(1), strict=True):
        running = (column + factor * running).masked_fill(is_padding, 0.0)
        columns.append(running)
    return torch.stack(columns[::-1], dim=1)


def _centre_groups(scores: Tensor) -> Tensor:
    """(P, G) minus each row's mean; exactly 0 for equal values, as in `centred`."""
    deviations = scores - scores.mean(dim=1, keepdim=True)
    return deviations - deviations.mean(dim=1, keepdim=True)


def _group_size(scores: Tensor) -> int:
    if scores.dim() != 2 or scores.shape[1] < 2:
        raise ConfigError(
            f"scores is {tuple(scores.shape)}: pass (P, G), at least G = 2 samples a prompt; one has nothing to be "
            "compared with."
        )
    return int(scores.shape[1])
