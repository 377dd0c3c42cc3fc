"""The numbers of a step, under TRL's names (docs/METRICS.md says what each means)."""

import resource
import sys
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlhf_lab.core.advantages import masked_mean, masked_var
from rlhf_lab.core.logprobs import finite_exponent
from rlhf_lab.core.policy_losses import PolicyLoss, ValueLoss, explained_variance
from rlhf_lab.training.distributed import Distributed
from rlhf_lab.training.policy.rollout import Rollout


@dataclass
class UpdateStats:
    """Collects tensors during the updates of a step and reads their values once, at the end, so that a GPU is not stalled.

    Losses and fractions are sums over micro-batches of values already divided by the minibatch's token count.
    extra_metrics: metrics of one algorithm, by name. has_clipping: whether the algorithm clips the ratio and reports clipfrac.
    """

    has_clipping: bool = True
    history: list[dict[str, Tensor]] = field(default_factory=list)
    current: dict[str, Tensor] = field(default_factory=dict)
    extra_metrics: dict[str, float] = field(default_factory=dict)
    first_ratio_deviation: Tensor | None = None
    update_count: int = 0
    skipped_count: int = 0

    def begin_update(self) -> None:
        self.current = {}

    def all_reduce(self, distributed: Distributed) -> None:
        """Sum the current update's values over all processes."""
        if distributed.world_size == 1:
            return
        names = sorted(dict.fromkeys(distributed.all_gather(list(self.current))))
        zero = torch.zeros(())
        sums = {name: self.current.get(name, zero).to(distributed.device, torch.float64, copy=True) for name in names}
        distributed.all_reduce_(list(sums.values()))
        self.current = sums
        if not self.update_count and not self.skipped_count:
            self.first_ratio_deviation = torch.tensor(max(distributed.all_gather([self.max_first_ratio_deviation])))

    def add_policy(
        self, policy_terms: PolicyLoss, logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, entropy: Tensor
    ) -> None:  # fmt: skip
        """Add one micro-batch of the policy. logprobs, old_logprobs, mask: (B, R); entropy: scalar."""
        with torch.no_grad():
            ratio = finite_exponent(logprobs - old_logprobs).exp().masked_fill(~mask, 1.0)  # as the loss computes it
            if not self.update_count and not self.skipped_count:  # every micro-batch of the first minibatch
                max_deviation, previous = (ratio - 1).abs().max(), self.first_ratio_deviation
                self.first_ratio_deviation = (
                    max_deviation if previous is None else torch.maximum(previous, max_deviation)
                )
            terms = {
                "policy": policy_terms.loss,
                "clipfrac": policy_terms.clipfrac,
                "approxkl": policy_terms.approx_kl,
                "entropy": entropy,
                "ratio": policy_terms.ratio_mean,
                "ratio_square": ratio.double().square().masked_fill(~mask, 0.0).sum(),
                "ratio_sum": ratio.double().masked_fill(~mask, 0.0).sum(),
                "tokens": mask.sum(),
            }
            self.add(**terms)

    def add_value(self, value_terms: ValueLoss) -> None:
        """Add one micro-batch of the value function."""
        self.add(value=value_terms.loss, value_clipfrac=value_terms.clipfrac)

    def add(self, **terms: Tensor) -> None:
        for name, term in terms.items():
            self.current[name] = self.current.get(name, 0.0) + term.detach()

    @property
    def max_first_ratio_deviation(self) -> float:
        """Largest |ratio - 1| before the first update; 0 if the policy was not updated."""
        return 0.0 if self.first_ratio_deviation is None else float(self.first_ratio_deviation)

    @property
    def mean_ratio(self) -> float:
        return float(self.current["ratio"])

    def skip(self) -> None:
        self.skipped_count += 1

    def finish_update(self, grad_norm: Tensor) -> None:
        if "ratio" in self.current:  # a policy update; value-only updates report no gradient norm
            self.current["grad_norm"] = grad_norm.detach()
            # ess / n = (sum r)^2 / (n sum r^2), and `ratio` is (sum r) / n
            self.current["ess"] = (
                self.current["ratio"].double().square() * self.current["tokens"] / self.current["ratio_square"]
            )
        self.history.append(self.current)
        self.update_count += 1

    def approx_kl_since(self, first_update: int) -> float:
        """Mean over the updates from index `first_update` on; 0 if there are none."""
        values = [row["approxkl"].double() for row in self.history[first_update:]]
        return float(torch.stack(values).mean()) if values else 0.0

    def non_finite_losses(self) -> list[str]:
        """The metric names of the current update's losses that are NaN or infinite."""
        losses = {f"loss/{name}_avg": self.current.get(name) for name in ("policy", "value", "ptx")}
        return [name for name, loss in losses.items() if loss is not None and not bool(torch.isfinite(loss))]

    def ratio_variance(self) -> float:
        """Variance of the ratios of all updates together: the mean of their squares minus the square of their mean."""
        tokens = self.mean("tokens")  # tokens per update; dividing by it turns a mean over updates into one over tokens
        squares, mean = self.mean("ratio_square") / tokens, self.mean("ratio_sum") / tokens
        return max(0.0, squares - mean**2)

    def has(self, name: str) -> bool:
        """Whether any update has this value."""
        return any(name in row for row in self.history)

    def mean(self, name: str) -> float:
        """Mean over the updates that have it, NaN if one of them is; 0 if none has it."""
        values = [row[name].double() for row in self.history if name in row]
        return float(torch.stack(values).mean()) if values else 0.0


def step_metrics(rollout: Rollout, stats: UpdateStats, *, beta: float, lr: float, episode: int) -> dict[str, float]:
    """The metrics of one step except its times."""
    mask = rollout.batch.mask
    sequence_kl = rollout.kl.sum(1).mean()
    non_score = -beta * sequence_kl
    sampler_gap = (rollout.sampler_logprobs - rollout.old_logprobs).abs().masked_fill(~mask, 0.0)
    return {
        "objective/kl": float(sequence_kl),
        "objective/kl_coef": beta,
        "objective/scores": float(rollout.scores.mean()),
        "objective/scores_sd": float(rollout.scores.std()) if len(rollout.scores) > 1 else 0.0,
        **(
            {}
            if rollout.score_clip_fraction is None
            else {"objective/score_clipfrac": float(rollout.score_clip_fraction)}
        ),
        "objective/non_score_reward": float(non_score),
        "objective/rlhf_reward": float(rollout.shaped_scores.mean() + non_score),
        "objective/entropy": float(-(rollout.old_logprobs * mask).sum(1).mean()),
        "val/first_ratio_deviation": stats.max_first_ratio_deviation,
        "val/advantage_sd": float(masked_var(rollout.advantages, mask).sqrt()),
        "val/sampler_gap": float(sampler_gap.max()),
        "val/stop_token_rate": float(rollout.batch.ended.double().mean()),
        "val/skipped_updates": float(stats.skipped_count),
        "tokens/response_len": float(mask.sum(1).double().mean()),
        "lr": lr,
        "episode": float(episode),
        "memory/peak": peak_memory(rollout.scores.device),
        **stats.extra_metrics,
        **(update_metrics(stats) if stats.has("ratio") else {}),
        **(value_metrics(rollout, stats) if stats.has("value") else {}),
        **({"loss/ptx_avg": stats.mean("ptx")} if stats.has("ptx") else {}),
    }


def update_metrics(stats: UpdateStats) -> dict[str, float]:
    """The metrics of the policy updates, if there were any."""
    return {
        "policy/approxkl_avg": stats.mean("approxkl"),
        **({"policy/clipfrac_avg": stats.mean("clipfrac")} if stats.has_clipping else {}),
        "policy/entropy_avg": stats.mean("entropy"),
        "loss/policy_avg": stats.mean("policy"),
        "val/ratio": stats.mean("ratio"),
        "val/ratio_var": stats.ratio_variance(),
        "val/ess": stats.mean("ess"),
        "grad_norm": stats.mean("grad_norm"),
    }


def value_metrics(rollout: Rollout, stats: UpdateStats) -> dict[str, float]:
    """The metrics of the value function, if one is trained."""
    mask = rollout.batch.mask
    return {
        "loss/value_avg": stats.mean("value"),
        "val/clipfrac_avg": stats.mean("value_clipfrac"),
        "val/explained_variance": float(explained_variance(rollout.values, rollout.returns, mask)),
        "val/value": float(masked_mean(rollout.values, mask)),
    }


def reset_peak_memory(device: torch.device) -> None:
    """Start measuring a GPU's peak memory, at the start of a step."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> float:
    """Peak memory in MiB: of the GPU since `reset_peak_memory`, or without a GPU of this process since its start."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
