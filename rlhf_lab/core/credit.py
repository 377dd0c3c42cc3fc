"""How much of what was earned each token is told: REINFORCE's weights, group advantages, value targets.

B is the batch, T the response length, P prompts with G samples each. The mask is bool, True on response tokens.
"""

import torch
from torch import Tensor

from rlhf_lab.core.advantages import check_masked, gae, rewards_to_go
from rlhf_lab.errors import ConfigError
from rlhf_lab.kinds import Baseline, Credit, Target

GROUP_EPS = 1e-4  # added to the standard deviation of a group; TRL uses the same


def reinforce_weights(
    rewards: Tensor,
    mask: Tensor,
    *,
    gamma: float = 1.0,
    credit: Credit = "to_go",
    baseline: Baseline = "none",
    values: Tensor | None = None,
) -> Tensor:
    """What multiplies grad log pi(a_t | s_t) in REINFORCE: a return, less a baseline.

    Args:
        rewards: (B, T) float; anything in padding.
        mask: (B, T) bool.
        gamma: in [0, 1]. With gamma < 1 these weights alone follow the gradient that practice uses, not that of the
            discounted return; times `time_discount` they are exact.
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
    first = mask & (mask.cumsum(dim=1) == 1)
    totals = to_go.masked_fill(~first, 0.0).sum(dim=1)
    if credit == "total":
        weights = totals.unsqueeze(1).expand_as(to_go)
    elif credit == "to_go":
        weights = to_go
    else:
        raise ConfigError(f"There is no credit {credit!r}. Choose total or to_go.")
    if baseline == "batch_mean":
        weights = weights - totals.sum() / first.sum().clamp(min=1)
    elif baseline == "value":
        if values is None:
            raise ConfigError('baseline is "value", but there are no values. Pass them, (B, T).')
        check_masked(mask, values=values)
        weights = weights - values.detach()
    elif baseline != "none":
        raise ConfigError(f"There is no baseline {baseline!r}. Choose none, batch_mean or value.")
    return weights.masked_fill(~mask, 0.0)


def time_discount(mask: Tensor, gamma: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """gamma^t, t counted from 0 at the first response token: (B, T), 0 on padding.

    The factor that makes rewards-to-go or advantages the gradient of the *discounted* return; practice leaves it out,
    and with gamma 1 it is 1.

    Raises:
        ConfigError: a mask that is not (B, T) bool, gamma outside [0, 1].

    Source: Sutton & Barto 2018 §13.3 (the boxed algorithm); Thomas 2014 "Bias in natural actor-critic algorithms".
    """
    check_masked(mask)
    if mask.dim() != 2 or not 0.0 <= gamma <= 1.0:
        raise ConfigError(f"mask is {tuple(mask.shape)}, gamma {gamma}: pass (B, T) and a number from 0 to 1.")
    since_start = (mask.cumsum(dim=1) - 1).clamp(min=0).to(dtype)
    return torch.pow(torch.as_tensor(gamma, dtype=dtype, device=mask.device), since_start).masked_fill(~mask, 0.0)


def rloo_advantages(scores: Tensor) -> Tensor:
    """Leave-one-out: each sample's score less the mean of the *other* samples for the same prompt.

    Args:
        scores: (P, G) float, G >= 2 samples of each of P prompts (penalties included).

    Returns:
        (P, G), each row sums to 0. Unbiased, since the baseline does not contain the sample itself.

    Raises:
        ConfigError: not (P, G) with G >= 2.

    Source: Kool et al. 2019; Ahmadian et al. 2024 "Back to basics".
    """
    group = _group_size(scores)
    return _centred(scores) * (group / (group - 1))


def grpo_advantages(scores: Tensor, *, scale: bool = True) -> Tensor:
    """Each sample's score less its group's mean, over the group's standard deviation (+ 1e-4).

    Args:
        scores: (P, G) float, G >= 2 samples of each of P prompts.
        scale: False leaves the deviation out: prompts on which all samples are nearly alike are then not blown up.

    Returns:
        (P, G); 0 where all samples of a prompt score alike.

    Raises:
        ConfigError: not (P, G) with G >= 2.

    Source: Shao et al. 2024 (DeepSeekMath) §4.1.2; unscaled: Liu et al. 2025 (Dr. GRPO). Deviation with G - 1, as TRL.
    """
    group = _group_size(scores)
    centred = _centred(scores)
    spread = (centred.square().sum(dim=1, keepdim=True) / (group - 1)).sqrt()
    return centred / (spread + GROUP_EPS) if scale else centred


def _centred(scores: Tensor) -> Tensor:
    """(P, G) less each row's mean; exactly 0 where a row is all alike, as `advantages.centred`."""
    rough = scores - scores.mean(dim=1, keepdim=True)
    return rough - rough.mean(dim=1, keepdim=True)


def over_tokens(per_response: Tensor, mask: Tensor) -> Tensor:
    """(B,) -> (B, T): every response token gets its response's number, padding 0.

    Raises:
        ConfigError: shapes that do not belong together, a mask that is not bool.
    """
    check_masked(mask)
    if mask.dim() != 2 or per_response.shape != mask.shape[:1]:
        raise ConfigError(f"per_response is {tuple(per_response.shape)}, mask {tuple(mask.shape)}: pass (B,), (B, T).")
    return per_response.unsqueeze(1).expand(mask.shape).masked_fill(~mask, 0.0)


def value_targets(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    *,
    gamma: float,
    lam: float,
    target: Target = "gae",
    last_values: Tensor | None = None,
) -> Tensor:
    """What the value function should say at each token: never the reward, always a return.

    Args:
        rewards, values, mask, gamma, lam, last_values: as in `gae`.
        target: "gae": advantages + values, i.e. the lambda-return, which leans on the values; "monte_carlo": the rewards
            that really followed (values and lam are not looked at).

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


def _group_size(scores: Tensor) -> int:
    if scores.dim() != 2 or scores.shape[1] < 2:
        raise ConfigError(
            f"scores is {tuple(scores.shape)}: pass (P, G), at least G = 2 samples a prompt; one has nothing to be "
            "compared with."
        )
    return int(scores.shape[1])
