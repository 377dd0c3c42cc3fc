"""Prompts in, a scored batch of rollouts out: everything PPO needs to know before it updates anything."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from rlhf_lab.config import PolicyConfig
from rlhf_lab.core.advantages import gae, whiten
from rlhf_lab.core.kl import kl_estimate, shape_rewards
from rlhf_lab.core.logprobs import logprobs_and_entropy, sampled_logprobs
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.generation import Tick, no_tick
from rlhf_lab.models.heads import ValueHead
from rlhf_lab.models.rows import Rows, forward


class Scorer(Protocol):
    """Anything that scores responses: prompts and responses as token ids -> (N,) float32 on the CPU."""

    def scores(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], tick: Tick = no_tick
    ) -> Tensor: ...


@dataclass(frozen=True)
class Policy:
    """The trained parts: an adapter of the backbone and a value head on its hidden states."""

    backbone: Backbone
    adapters: Adapters
    adapter: str
    value_head: ValueHead

    def evaluate(
        self, rows: Rows, temperature: float, detach_value: bool = False, learn_entropy: bool = False
    ) -> "Evaluation":
        """Log-probabilities, entropies and values of the responses, through the adapter.

        learn_entropy: the entropy carries a gradient; without it, it is a figure and costs a third.
        """
        with self.adapters.using(self.adapter):
            hidden = forward(self.backbone, rows).predicting
        logprobs, entropy = response_logprobs(self.backbone, hidden, rows, temperature, learn_entropy)
        values = self.value_head(hidden.detach() if detach_value else hidden).masked_fill(~rows.mask, 0.0)
        return Evaluation(logprobs, entropy, values)

    @torch.no_grad()
    def reference_logprobs(self, rows: Rows, temperature: float) -> Tensor:
        """(B, R) log-probabilities under the frozen reference: the backbone with every adapter off."""
        with self.adapters.using(None):
            hidden = forward(self.backbone, rows).predicting
        return response_logprobs(self.backbone, hidden, rows, temperature)[0]


class Evaluation(NamedTuple):
    """(B, R) each, 0 on padding: log-probability (nats) of each response token, entropy (nats), value."""

    logprobs: Tensor
    entropy: Tensor
    values: Tensor


class Rollout(NamedTuple):
    """A batch of B responses of at most R tokens. (B, R) float32 unless said otherwise; 0 on padding.

    scores: (B,) as the reward model gave them. rewards: -beta·kl per token, plus the score on the last token.
    advantages: as the loss uses them; returns: unwhitened advantages + values. sampler_logprobs: from the cached decode.
    """

    rows: Rows
    scores: Tensor
    old_logprobs: Tensor
    ref_logprobs: Tensor
    sampler_logprobs: Tensor
    values: Tensor
    kl: Tensor
    rewards: Tensor
    advantages: Tensor
    returns: Tensor


def response_logprobs(
    backbone: Backbone, hidden: Tensor, rows: Rows, temperature: float, learn_entropy: bool = False
) -> tuple[Tensor, Tensor]:
    """(B, R) log-probabilities and entropies; the vocabulary head runs on real response positions only."""
    logits = backbone.logits(hidden[rows.mask])
    both = logprobs_and_entropy if learn_entropy else sampled_logprobs
    logprobs, entropy = both(logits, rows.responses[rows.mask], temperature=temperature)
    empty = torch.zeros(rows.mask.shape, dtype=logprobs.dtype, device=logprobs.device)
    return empty.masked_scatter(rows.mask, logprobs), empty.masked_scatter(rows.mask, entropy)


def shaped(
    rows: Rows,
    scores: Tensor,
    logprobs: tuple[Tensor, Tensor, Tensor],
    values: Tensor,
    beta: float,
    config: PolicyConfig,
) -> Rollout:
    """Put a rollout together from its parts. logprobs: (old, reference, sampler), each (B, R)."""
    old, ref, sampler = logprobs
    kl = kl_estimate(old, ref, config.kl_estimator).masked_fill(~rows.mask, 0.0)  # type: ignore[arg-type]
    used = scores if config.score_clip is None else scores.clamp(-config.score_clip, config.score_clip)
    used = used - config.missing_eos_penalty * (~rows.ended).to(scores)
    rewards = shape_rewards(used, kl, rows.mask, beta)
    if config.whiten_rewards:
        rewards = whiten(rewards, rows.mask, shift_mean=False)
    advantages, returns = gae(rewards, values, rows.mask, gamma=config.gamma, lam=config.lam)
    if config.whiten_advantages:
        advantages = whiten(advantages, rows.mask)
    return Rollout(rows, scores, old, ref, sampler, values, kl, rewards, advantages, returns)
