"""The policy on a batch of responses: log-probabilities, entropies, values; and the records of a rollout."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from rlhf_lab.core.logprobs import head_logprobs, logprobs_and_entropy, sampled_logprobs
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


#: The adapter that values read where they have one of their own.
CRITIC = "critic"


@dataclass(frozen=True)
class Policy:
    """The trained parts: an adapter of the backbone and a value head.

    trunk: what the head reads. "shared": the policy's hidden states, and the value loss trains the adapter too; "detached":
    the same states, without that; "critic": the states of an adapter of its own, named CRITIC.
    """

    backbone: Backbone
    adapters: Adapters
    adapter: str
    value_head: ValueHead
    trunk: str = "shared"

    def evaluate(self, rows: Rows, temperature: float, learn_entropy: bool = False) -> "Evaluation":
        """Log-probabilities, entropies and values of the responses, through the adapter.

        learn_entropy: the entropy carries a gradient; without it, it is a figure and costs a third. Values are 0 where they
        have an adapter of their own: `values_of` is then the pass that finds them.
        """
        hidden = self.predicting(rows)
        logprobs, entropy = response_logprobs(self.backbone, hidden, rows, temperature, learn_entropy)
        if self.trunk == "critic":
            return Evaluation(logprobs, entropy, torch.zeros(rows.mask.shape, device=rows.mask.device))
        return Evaluation(
            logprobs, entropy, self._values(hidden.detach() if self.trunk == "detached" else hidden, rows)
        )

    def predicting(self, rows: Rows) -> Tensor:
        """(B, R, H) hidden states of the policy where each response token is predicted."""
        with self.adapters.using(self.adapter):
            return forward(self.backbone, rows, to_predict=True).predicting

    def values_of(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """(B, R) values by a forward pass of their own, and (B,) the value of the state after the last token.

        Only the head learns from it, and the critic's adapter where there is one: never the policy.
        """
        own = self.trunk == "critic"
        with (
            self.adapters.using(CRITIC if own else self.adapter),
            torch.set_grad_enabled(own and torch.is_grad_enabled()),
        ):
            hidden = forward(self.backbone, rows)
        last = (rows.mask.sum(1) - 1)[:, None, None].expand(-1, 1, hidden.states.shape[2])
        after = self.value_head(hidden.read.gather(1, last)).squeeze(1)
        return self._values(hidden.predicting, rows), after

    def _values(self, hidden: Tensor, rows: Rows) -> Tensor:
        values: Tensor = self.value_head(hidden)
        return values.masked_fill(~rows.mask, 0.0)

    @torch.no_grad()
    def reference_logprobs(self, rows: Rows, temperature: float) -> Tensor:
        """(B, R) log-probabilities under the frozen reference: the backbone with every adapter off."""
        return response_logprobs(self.backbone, self.reference_states(rows), rows, temperature)[0]

    @torch.no_grad()
    def reference_states(self, rows: Rows) -> Tensor:
        """(B, R, H) hidden states of the reference where each response token is predicted."""
        with self.adapters.using(None):
            return forward(self.backbone, rows, to_predict=True).predicting


class Evaluation(NamedTuple):
    """(B, R) each, 0 on padding: log-probability (nats) of each response token, entropy (nats), value."""

    logprobs: Tensor
    entropy: Tensor
    values: Tensor


class Measured(NamedTuple):
    """What the models say of B responses of at most R tokens, before it is made into rewards. (B, R) float32; 0 on padding.

    scores: (B,) as the reward model gave them. sampler_logprobs: from the cached decode. full_kl: exact KL to the reference,
    where asked for. after: (B,) value of the state after the last token, where asked for.
    """

    rows: Rows
    scores: Tensor
    old_logprobs: Tensor
    ref_logprobs: Tensor
    sampler_logprobs: Tensor
    values: Tensor
    full_kl: Tensor | None = None
    after: Tensor | None = None


class Rollout(NamedTuple):
    """A batch of B responses of at most R tokens. (B, R) float32 unless said otherwise; 0 on padding.

    scores: (B,) as the reward model gave them; earned: (B,) what a response is rewarded with, scaled, clipped and penalised.
    rewards: -beta·kl per token, plus what is earned. advantages: as the loss uses them, raw_advantages: before whitening;
    returns: what the values should be. sampler_logprobs: from the cached decode. clipped: (), share of the scores that the clip
    changed; None without one. after: (B,), what the state behind the last token counts as; None: nothing.
    """

    rows: Rows
    scores: Tensor
    earned: Tensor
    old_logprobs: Tensor
    ref_logprobs: Tensor
    sampler_logprobs: Tensor
    values: Tensor
    kl: Tensor
    rewards: Tensor
    raw_advantages: Tensor
    advantages: Tensor
    returns: Tensor
    clipped: Tensor | None = None
    after: Tensor | None = None

    def take(self, part: Tensor) -> "Part":
        """The rows of `part` (indices, on the CPU), as the loss wants them."""
        rows, index = self.rows.take(part), part.to(self.scores.device, non_blocking=True)
        columns = (self.old_logprobs, self.ref_logprobs, self.advantages, self.values, self.returns)
        return Part(rows, *(column[index, : rows.mask.shape[1]] for column in columns))


class Part(NamedTuple):
    """Some rows of a rollout, trimmed to the longest of them; see Rollout."""

    rows: Rows
    old_logprobs: Tensor
    ref_logprobs: Tensor
    advantages: Tensor
    values: Tensor
    returns: Tensor


def response_logprobs(
    backbone: Backbone, hidden: Tensor, rows: Rows, temperature: float, learn_entropy: bool = False
) -> tuple[Tensor, Tensor]:
    """(B, R) log-probabilities and entropies; the vocabulary head runs on real response positions only."""
    real, head = rows.real, backbone.plain_head
    states, tokens = hidden[real], rows.responses[real]
    if head is not None and not learn_entropy:
        logprobs, entropy = head_logprobs(states, head.weight, head.bias, tokens, temperature=temperature)
    else:
        both = logprobs_and_entropy if learn_entropy else sampled_logprobs
        logprobs, entropy = both(backbone.logits(states), tokens, temperature=temperature)
    empty = torch.zeros(rows.mask.shape, dtype=logprobs.dtype, device=logprobs.device)
    return empty.index_put(real, logprobs), empty.index_put(real, entropy)  # a masked scatter's slope waits for a GPU
