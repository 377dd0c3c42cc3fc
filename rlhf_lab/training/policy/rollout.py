"""The policy model, its log-probabilities, entropies and values on a batch of responses, and the records of a rollout."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from rlhf_lab.common.progress import ProgressCallback, no_progress
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.core.kl import full_kl
from rlhf_lab.core.logprobs import head_logprobs, logprobs_and_entropy, logprobs_with_detached_entropy
from rlhf_lab.kernels.ops import HEAD_KERNEL
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.batch import Batch, forward, make_batch, map_by_length
from rlhf_lab.models.heads import ValueHead
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.training.distributed import SINGLE_PROCESS, Distributed
from rlhf_lab.training.policy.weighted_reward import WeightedReward


class Scorer(Protocol):
    """Anything that scores responses: prompts and responses as token ids -> (N,) float32 on the CPU."""

    def scores(
        self,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        on_progress: ProgressCallback = no_progress,
    ) -> Tensor: ...


MAX_LOGITS = 2**30  # per forward pass of `score_responses` and `sequence_log_ratios`: 4 GiB in float32
#: The adapter of a value function with its own trunk.
CRITIC_ADAPTER = "critic"


@dataclass(frozen=True)
class PolicyModel:
    """The trained parts: an adapter of the backbone and a value head.

    value_trunk: the input of the head. "shared": the policy's hidden states, and the value loss trains the adapter too;
    "detached": the same states without that gradient; "critic": the states of a separate adapter, CRITIC_ADAPTER.
    reference: the frozen adapter of the reference policy; None: the reference is the backbone without an adapter.
    """

    backbone: Backbone
    adapters: Adapters
    adapter: str
    value_head: ValueHead
    value_trunk: str = "shared"
    reference: str | None = None

    def evaluate(self, batch: Batch, temperature: float, entropy_requires_grad: bool = False) -> "PolicyOutput":
        """Log-probabilities, entropies and values of the responses, through the adapter.

        entropy_requires_grad: without a gradient the entropy costs a third. With value_trunk "critic" the values are 0 here;
        `compute_values` computes them.
        """
        hidden = self.prediction_states(batch)
        logprobs, entropy = response_logprobs(self.backbone, hidden, batch, temperature, entropy_requires_grad)
        if self.value_trunk == "critic":
            return PolicyOutput(logprobs, entropy, torch.zeros(batch.mask.shape, device=batch.mask.device))
        value_input = hidden.detach() if self.value_trunk == "detached" else hidden
        return PolicyOutput(logprobs, entropy, self._values(value_input, batch))

    def prediction_states(self, batch: Batch) -> Tensor:
        """(B, R, H) hidden states of the policy at the positions that predict the response tokens."""
        with self.adapters.using(self.adapter):
            return forward(self.backbone, batch, predict_only=True).before_token

    def compute_values(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(B, R) values, from a separate forward pass, and (B,) the value of the state after the last token.

        The gradient reaches the head, and the critic's adapter if there is one, but never the policy's adapter.
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
        """(B, R) log-probabilities under the frozen reference."""
        return response_logprobs(self.backbone, self.reference_states(batch), batch, temperature)[0]

    @torch.no_grad()
    def reference_states(self, batch: Batch) -> Tensor:
        """(B, R, H) hidden states of the reference at the positions that predict the response tokens."""
        with self.adapters.using(self.reference):
            return forward(self.backbone, batch, predict_only=True).before_token


class PolicyOutput(NamedTuple):
    """(B, R) each, 0 on padding: log-probability (nats) of each response token, entropy (nats), value."""

    logprobs: Tensor
    entropy: Tensor
    values: Tensor


class ScoredResponses(NamedTuple):
    """(N,) float32 scores of N responses, and (N, R) float32 log-probabilities under the reference, 0 on padding; None if
    they were not computed with the scores. terms: (N,) values of each term of a WeightedReward by label; empty otherwise.
    """

    scores: Tensor
    ref_logprobs: Tensor | None = None
    terms: Mapping[str, Tensor] = MappingProxyType({})

    def term_metrics(self) -> dict[str, float]:
        """The mean of each term, by the name of its curve."""
        return {f"objective/reward/{label}": float(values.mean()) for label, values in self.terms.items()}


class EvaluatedBatch(NamedTuple):
    """Model outputs for B responses of at most R tokens. (B, R) float32 unless said otherwise; 0 on padding.

    scores: (B,) raw, of the reward model. sampler_logprobs: computed while sampling, with the KV cache; equal to old_logprobs
    where they are unknown. full_kl: exact KL to the reference, for kl_estimator "full". final_state_values: (B,) value of the
    state after the last token, for bootstrap_cut.
    """

    batch: Batch
    scores: Tensor
    old_logprobs: Tensor
    ref_logprobs: Tensor
    sampler_logprobs: Tensor
    values: Tensor
    full_kl: Tensor | None = None
    final_state_values: Tensor | None = None

    def with_sampler_logprobs(self, rows: Sequence[Sequence[float]]) -> "EvaluatedBatch":
        length = self.old_logprobs.shape[1]
        padded = torch.tensor([[*row, *[0.0] * (length - len(row))] for row in rows], dtype=self.old_logprobs.dtype)
        return self._replace(sampler_logprobs=padded.to(self.old_logprobs.device, non_blocking=True))


class Rollout(NamedTuple):
    """A batch of B responses of at most R tokens. (B, R) float32 unless said otherwise; 0 on padding.

    scores: (B,) raw, of the reward model; shaped_scores: (B,) scaled, clipped and penalised. rewards: -beta·kl per token plus the
    shaped score. advantages: as the loss uses them; raw_advantages: before whitening; returns: the targets of the values.
    sampler_logprobs: see EvaluatedBatch. score_clip_fraction: (), fraction of the scores that the clip changed; None without a
    clip. bootstrap_values: (B,), the value after the last token of a truncated response, else 0; None without bootstrap_cut.
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
        """Some rows (indices: on the CPU) with what the losses need of them."""
        batch, device_indices = self.batch.select(indices), indices.to(self.scores.device, non_blocking=True)
        columns = (self.old_logprobs, self.ref_logprobs, self.advantages, self.values, self.returns)
        return MicroBatch(batch, *(column[device_indices, : batch.mask.shape[1]] for column in columns))


class MicroBatch(NamedTuple):
    """Some rows of a rollout, trimmed to the longest of them. See Rollout."""

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
    response_indices, head = batch.response_indices, backbone.vocabulary_head
    states, tokens, weight = hidden[response_indices], batch.responses[response_indices], head.linear_weight
    if weight is not None and not entropy_requires_grad:
        logprobs, entropy = head_logprobs(
            states, weight, head.bias, tokens, temperature=temperature / head.scale, kernel=HEAD_KERNEL
        )
    else:
        logprobs_fn = logprobs_and_entropy if entropy_requires_grad else logprobs_with_detached_entropy
        logprobs, entropy = logprobs_fn(backbone.logits(states), tokens, temperature=temperature)
    zeros = torch.zeros(batch.mask.shape, dtype=logprobs.dtype, device=logprobs.device)
    # Not a masked scatter, whose backward pass synchronises with the GPU.
    return zeros.index_put(response_indices, logprobs), zeros.index_put(response_indices, entropy)


@torch.no_grad()
def score_responses(
    policy: PolicyModel,
    scorer: Scorer,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    config: PolicyConfig,
    on_progress: ProgressCallback,
    distributed: Distributed = SINGLE_PROCESS,
) -> ScoredResponses:
    """Score responses. A reward head that reads the reference's states shares its forward pass with the reference.

    The reference's log-probabilities then come with the scores. Each process scores its share. Results are on the CPU.
    """
    if isinstance(scorer, WeightedReward):
        model = ScoredResponses(torch.zeros(len(prompts)))
        if scorer.reward_model is not None:
            model = score_responses(
                policy, scorer.reward_model, prompts, responses, config, on_progress, distributed
            )  # fmt: skip
        function_scores = distributed.map_rows(
            len(prompts), lambda rows: scorer.function_scores(prompts[rows], responses[rows], on_progress), dim=0
        )
        scores, terms = scorer.combine(model.scores if scorer.reward_model else None, function_scores)
        return ScoredResponses(scores, model.ref_logprobs, terms)
    reward_model, width = reference_reader(policy, scorer), max(map(len, responses))
    if reward_model is None or config.kl_estimator == "full":  # "full" needs the reference's states
        return ScoredResponses(
            distributed.map_rows(len(prompts), lambda rows: scorer.scores(prompts[rows], responses[rows], on_progress))
        )

    def score_batch(_: list[int], batch: Batch) -> Tensor:
        on_progress()
        scores, states = reward_model.score_batch_and_states(batch)
        logprobs = response_logprobs(policy.backbone, states, batch, config.temperature)[0]
        return torch.cat([scores[:, None], functional.pad(logprobs, (0, width - logprobs.shape[1]))], dim=1)

    def local_columns(rows: slice) -> Tensor:
        return map_responses(policy.backbone, score_batch, prompts[rows], responses[rows]).float().cpu()

    columns = distributed.map_rows(len(prompts), local_columns, dim=0)
    return ScoredResponses(columns[:, 0], columns[:, 1:])


@torch.no_grad()
def sequence_log_ratios(
    policy: PolicyModel,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    temperature: float,
    on_progress: ProgressCallback,
    ref_logprobs: Tensor | None = None,
) -> Tensor:
    """(N,) float64 log-ratio of policy and reference, summed per response. On the policy's samples: k1 of the KL, nats.

    ref_logprobs: see ScoredResponses.
    """

    def batch_log_ratios(indices: list[int], batch: Batch) -> Tensor:
        on_progress()
        logprobs = policy.evaluate(batch, temperature).logprobs
        if ref_logprobs is None:
            log_ratio = logprobs - policy.reference_logprobs(batch, temperature)
        else:
            log_ratio = logprobs - ref_logprobs[indices, : logprobs.shape[1]].to(logprobs)
        return log_ratio.sum(1)

    return map_responses(policy.backbone, batch_log_ratios, prompts, responses).double()


def reference_reader(policy: PolicyModel, scorer: Scorer) -> RewardModel | None:
    """The scorer if it is a reward model that reads the states of the policy's reference; else None."""
    if type(scorer) is RewardModel and scorer.adapter == policy.reference and scorer.backbone is policy.backbone:
        return scorer
    return None


def needs_scoring_pass(policy: PolicyModel, scorer: Scorer | None, config: PolicyConfig) -> bool:
    """Whether `score_responses` makes a forward pass that is for the scores alone."""
    if isinstance(scorer, WeightedReward):
        scorer = scorer.reward_model
    return scorer is not None and (config.kl_estimator == "full" or reference_reader(policy, scorer) is None)


def map_responses(
    backbone: Backbone,
    fn: Callable[[list[int], Batch], Tensor],
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
) -> Tensor:
    """`map_by_length` of fn(indices, batch), for batches whose logits of all tokens fit MAX_LOGITS."""

    def run(indices: list[int]) -> Tensor:
        return fn(indices, make_batch(backbone, [prompts[i] for i in indices], [responses[i] for i in indices]))

    lengths = [len(prompt) + len(response) for prompt, response in zip(prompts, responses, strict=True)]
    max_tokens = max(1, MAX_LOGITS // backbone.vocabulary_head.size)
    return map_by_length(run, lengths, backbone, max_tokens)


@torch.no_grad()
def evaluate_batch(
    policy: PolicyModel,
    batch: Batch,
    scored: ScoredResponses,
    micro_batches: Iterable[Tensor],
    config: PolicyConfig,
    on_progress: ProgressCallback,
    distributed: Distributed = SINGLE_PROCESS,
) -> EvaluatedBatch:
    """Evaluate the policy, the value function and, unless `scored` has its log-probabilities, the reference on a batch.

    micro_batches: row indices. The old log-probabilities come from the same forward pass as in training, on the same
    micro-batches as in the first epoch, so that the first ratios are exactly 1. Each process passes its own micro-batches.
    """
    old_logprobs = torch.zeros(batch.mask.shape, device=batch.mask.device)
    ref_logprobs, values, full_kls = (torch.zeros_like(old_logprobs) for _ in range(3))
    final_state_values = torch.zeros(len(scored.scores), device=old_logprobs.device)
    temperature, needs_full_kl = config.temperature, config.kl_estimator == "full"
    needs_value_pass = policy.value_trunk == "critic" or config.bootstrap_cut
    for indices in micro_batches:
        on_progress()
        micro_batch, device_indices = batch.select(indices), indices.to(old_logprobs.device, non_blocking=True)
        rows = device_indices, slice(micro_batch.mask.shape[1])
        output = policy.evaluate(micro_batch, temperature)
        old_logprobs[rows] = output.logprobs.to(old_logprobs)
        values[rows] = output.values.to(old_logprobs)
        if scored.ref_logprobs is None:
            states = policy.reference_states(micro_batch)
            reference_logprobs, _ = response_logprobs(policy.backbone, states, micro_batch, temperature)
            ref_logprobs[rows] = reference_logprobs.to(old_logprobs)
        if needs_full_kl:
            full_kls[rows] = full_reference_kl(policy, micro_batch, states, temperature).to(old_logprobs)
        if needs_value_pass:
            own_values, last_values = policy.compute_values(micro_batch)
            values[rows], final_state_values[device_indices] = own_values.to(values), last_values.to(values)
    distributed.all_reduce_([old_logprobs, ref_logprobs, values, full_kls, final_state_values])
    if scored.ref_logprobs is not None:
        ref_logprobs = scored.ref_logprobs.to(old_logprobs, non_blocking=True)
    return EvaluatedBatch(
        batch, scored.scores, old_logprobs, ref_logprobs, sampler_logprobs=old_logprobs, values=values,
        full_kl=full_kls if needs_full_kl else None, final_state_values=final_state_values if config.bootstrap_cut else None,
    )  # fmt: skip


def full_reference_kl(policy: PolicyModel, batch: Batch, reference_states: Tensor, temperature: float) -> Tensor:
    """(B, R) KL(policy || reference) over the whole vocabulary, 0 on padding. reference_states: (B, R, H)."""
    response_indices = batch.response_indices
    logits = policy.backbone.logits(policy.prediction_states(batch)[response_indices])
    kl = full_kl(logits, policy.backbone.logits(reference_states[response_indices]), temperature)
    return torch.zeros(batch.mask.shape, dtype=kl.dtype, device=kl.device).index_put(response_indices, kl)
