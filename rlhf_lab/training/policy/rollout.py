"""The policy on a batch of responses: log-probabilities, entropies, values; and the records of a rollout."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from rlhf_lab.common.progress import ProgressCallback, no_progress
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.core.kl import full_kl
from rlhf_lab.core.logprobs import head_logprobs, logprobs_and_entropy, logprobs_with_detached_entropy
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.batch import Batch, forward
from rlhf_lab.models.heads import ValueHead
from rlhf_lab.training.distributed import SINGLE_PROCESS, Distributed


class Scorer(Protocol):
    """Anything that scores responses: prompts and responses as token ids -> (N,) float32 on the CPU."""

    def scores(
        self,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        on_progress: ProgressCallback = no_progress,
    ) -> Tensor: ...


#: The adapter that values read where they have one of their own.
CRITIC_ADAPTER = "critic"


@dataclass(frozen=True)
class PolicyModel:
    """The trained parts: an adapter of the backbone and a value head.

    trunk: what the head reads. "shared": the policy's hidden states, and the value loss trains the adapter too; "detached":
    the same states, without that; "critic": the states of an adapter of its own, named CRITIC.
    """

    backbone: Backbone
    adapters: Adapters
    adapter: str
    value_head: ValueHead
    value_trunk: str = "shared"

    def evaluate(self, batch: Batch, temperature: float, entropy_requires_grad: bool = False) -> "PolicyOutput":
        """Log-probabilities, entropies and values of the responses, through the adapter.

        learn_entropy: the entropy carries a gradient; without it, it is a figure and costs a third. Values are 0 where they
        have an adapter of their own: `compute_values` is then the pass that finds them.
        """
        hidden = self.prediction_states(batch)
        logprobs, entropy = response_logprobs(self.backbone, hidden, batch, temperature, entropy_requires_grad)
        if self.value_trunk == "critic":
            return PolicyOutput(logprobs, entropy, torch.zeros(batch.mask.shape, device=batch.mask.device))
        return PolicyOutput(
            logprobs, entropy, self._values(hidden.detach() if self.value_trunk == "detached" else hidden, batch)
        )

    def prediction_states(self, batch: Batch) -> Tensor:
        """(B, R, H) hidden states of the policy where each response token is predicted."""
        with self.adapters.using(self.adapter):
            return forward(self.backbone, batch, predict_only=True).before_token

    def compute_values(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(B, R) values by a forward pass of their own, and (B,) the value of the state after the last token.

        Only the head learns from it, and the critic's adapter where there is one: never the policy.
        """
        has_own_trunk = self.value_trunk == "critic"
        with (
            self.adapters.using(CRITIC_ADAPTER if has_own_trunk else self.adapter),
            torch.set_grad_enabled(has_own_trunk and torch.is_grad_enabled()),
        ):
            hidden = forward(self.backbone, batch)
        last_index = (batch.mask.sum(1) - 1)[:, None, None].expand(-1, 1, hidden.states.shape[2])
        final_state_values = self.value_head(hidden.at_token.gather(1, last_index)).squeeze(1)
        return self._values(hidden.before_token, batch), final_state_values

    def _values(self, hidden: Tensor, batch: Batch) -> Tensor:
        values: Tensor = self.value_head(hidden)
        return values.masked_fill(~batch.mask, 0.0)

    @torch.no_grad()
    def reference_logprobs(self, batch: Batch, temperature: float) -> Tensor:
        """(B, R) log-probabilities under the frozen reference: the backbone with every adapter off."""
        return response_logprobs(self.backbone, self.reference_states(batch), batch, temperature)[0]

    @torch.no_grad()
    def reference_states(self, batch: Batch) -> Tensor:
        """(B, R, H) hidden states of the reference where each response token is predicted."""
        with self.adapters.using(None):
            return forward(self.backbone, batch, predict_only=True).before_token


class PolicyOutput(NamedTuple):
    """(B, R) each, 0 on padding: log-probability (nats) of each response token, entropy (nats), value."""

    logprobs: Tensor
    entropy: Tensor
    values: Tensor


class EvaluatedBatch(NamedTuple):
    """What the models say of B responses of at most R tokens, before it is made into rewards. (B, R) float32; 0 on padding.

    scores: (B,) as the reward model gave them. sampler_logprobs: from the cached decode. full_kl: exact KL to the reference,
    where asked for. after: (B,) value of the state after the last token, where asked for.
    """

    batch: Batch
    scores: Tensor
    old_logprobs: Tensor
    ref_logprobs: Tensor
    sampler_logprobs: Tensor
    values: Tensor
    full_kl: Tensor | None = None
    final_state_values: Tensor | None = None


class Rollout(NamedTuple):
    """A batch of B responses of at most R tokens. (B, R) float32 unless said otherwise; 0 on padding.

    scores: (B,) as the reward model gave them; earned: (B,) what a response is rewarded with, scaled, clipped and penalised.
    rewards: -beta·kl per token, plus what is earned. advantages: as the loss uses them, raw_advantages: before whitening;
    returns: what the values should be. sampler_logprobs: from the cached decode. clipped: (), share of the scores that the clip
    changed; None without one. after: (B,), what the state behind the last token counts as; None: nothing.
    """

    batch: Batch
    scores: Tensor
    shaped_scores: Tensor
    old_logprobs: Tensor
    ref_logprobs: Tensor
    sampler_logprobs: Tensor
    values: Tensor
    kl: Tensor
    rewards: Tensor
    raw_advantages: Tensor
    advantages: Tensor
    returns: Tensor
    score_clip_fraction: Tensor | None = None
    bootstrap_values: Tensor | None = None

    def select(self, indices: Tensor) -> "MicroBatch":
        """The rows of `part` (indices, on the CPU), as the loss wants them."""
        batch, device_indices = self.batch.select(indices), indices.to(self.scores.device, non_blocking=True)
        columns = (self.old_logprobs, self.ref_logprobs, self.advantages, self.values, self.returns)
        return MicroBatch(batch, *(column[device_indices, : batch.mask.shape[1]] for column in columns))


class MicroBatch(NamedTuple):
    """Some rows of a rollout, trimmed to the longest of them; see Rollout."""

    batch: Batch
    old_logprobs: Tensor
    ref_logprobs: Tensor
    advantages: Tensor
    values: Tensor
    returns: Tensor


def response_logprobs(
    backbone: Backbone, hidden: Tensor, batch: Batch, temperature: float, entropy_requires_grad: bool = False
) -> tuple[Tensor, Tensor]:
    """(B, R) log-probabilities and entropies; the vocabulary head runs on real response positions only."""
    response_indices, head = batch.response_indices, backbone.frozen_lm_head
    states, tokens = hidden[response_indices], batch.responses[response_indices]
    if head is not None and not entropy_requires_grad:
        logprobs, entropy = head_logprobs(states, head.weight, head.bias, tokens, temperature=temperature)
    else:
        logprobs_fn = logprobs_and_entropy if entropy_requires_grad else logprobs_with_detached_entropy
        logprobs, entropy = logprobs_fn(backbone.logits(states), tokens, temperature=temperature)
    zeros = torch.zeros(batch.mask.shape, dtype=logprobs.dtype, device=logprobs.device)
    return zeros.index_put(response_indices, logprobs), zeros.index_put(
        response_indices, entropy
    )  # a masked scatter's slope waits for a GPU


pass


@torch.no_grad()
def evaluate_batch(
    policy: PolicyModel,
    batch: Batch,
    scores: Tensor,
    sampler_logprobs: Sequence[Sequence[float]] | None,
    micro_batches: Iterable[Tensor],
    config: PolicyConfig,
    on_progress: ProgressCallback,
    distributed: Distributed = SINGLE_PROCESS,
) -> EvaluatedBatch:
    """Measure the rows, part by part (row indices).

    The old log-probabilities come from the forward pass that training uses, on the very micro-batches of the first epoch
    (`parts`; of several processes each has its own), so that the first ratios are exactly 1. sampler_logprobs: None where
    somebody else wrote the responses.
    """
    old_logprobs = torch.zeros(batch.mask.shape, device=batch.mask.device)
    ref_logprobs, values, sampler, full_kls = (torch.zeros_like(old_logprobs) for _ in range(4))
    final_state_values = torch.zeros(len(scores), device=old_logprobs.device)
    needs_full_kl, needs_value_pass = (
        config.kl_estimator == "full",
        policy.value_trunk == "critic" or config.bootstrap_cut,
    )
    for indices in micro_batches:
        on_progress()
        micro_batch, device_indices = batch.select(indices), indices.to(old_logprobs.device, non_blocking=True)
        length = micro_batch.mask.shape[1]
        evaluated = policy.evaluate(micro_batch, config.temperature)
        states = policy.reference_states(micro_batch)
        old_logprobs[device_indices, :length] = evaluated.logprobs.to(old_logprobs)
        ref_logprobs[device_indices, :length] = response_logprobs(
            policy.backbone, states, micro_batch, config.temperature
        )[0].to(old_logprobs)
        values[device_indices, :length] = evaluated.values.to(old_logprobs)
        if needs_full_kl:
            full_kls[device_indices, :length] = full_reference_kl(policy, micro_batch, states, config.temperature).to(
                old_logprobs
            )
        if needs_value_pass:
            own_values, final_state_values[device_indices] = (
                x.to(old_logprobs) for x in policy.compute_values(micro_batch)
            )
            values[device_indices, :length] = own_values
    distributed.all_reduce_([old_logprobs, ref_logprobs, values, full_kls, final_state_values])
    if sampler_logprobs is None:
        sampler = old_logprobs
    else:
        length = old_logprobs.shape[1]
        padded = [[*row_logprobs, *[0.0] * (length - len(row_logprobs))] for row_logprobs in sampler_logprobs]
        sampler = torch.tensor(padded, dtype=sampler.dtype).to(old_logprobs.device, non_blocking=True)
    return EvaluatedBatch(
        batch, scores, old_logprobs, ref_logprobs, sampler, values,
        full_kl=full_kls if needs_full_kl else None, final_state_values=final_state_values if config.bootstrap_cut else None,
    )  # fmt: skip


def full_reference_kl(policy: PolicyModel, batch: Batch, reference_states: Tensor, temperature: float) -> Tensor:
    """(B, R) KL(policy || reference) over the whole vocabulary, 0 on padding. reference: (B, R, H) hidden states."""
    response_indices = batch.response_indices
    logits = policy.backbone.logits(policy.prediction_states(batch)[response_indices])
    kl = full_kl(logits, policy.backbone.logits(reference_states[response_indices]), temperature)
    return torch.zeros(batch.mask.shape, dtype=kl.dtype, device=kl.device).index_put(response_indices, kl)
