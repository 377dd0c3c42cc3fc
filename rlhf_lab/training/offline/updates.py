"""The updates of the offline methods: one optimizer step on some label pairs, or on some texts."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf_lab.common.records import Comparison
from rlhf_lab.common.stats import hit
from rlhf_lab.core.direct_preference import direct_preference_loss
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.batch import Batch, make_batch
from rlhf_lab.training.label_tokens import response_tokens
from rlhf_lab.training.policy.rollout import PolicyModel, map_responses, response_logprobs
from rlhf_lab.training.policy.train_state import ChosenText, TrainState
from rlhf_lab.training.policy.update import apply_gradient


class LabelPair(NamedTuple):
    """Token ids of a label. tie: neither response was preferred; which one is `chosen` is then arbitrary. weight: >= 0, the
    factor of the label's loss. is_edit: a person wrote `chosen` as an edit of `rejected`."""

    prompt: list[int]
    chosen: list[int]
    rejected: list[int]
    tie: bool
    weight: float = 1.0
    is_edit: bool = False

    @property
    def tokens(self) -> int:
        return len(self.prompt) + max(len(self.chosen), len(self.rejected))


def encode_labels(backbone: Backbone, labels: Sequence[Comparison]) -> tuple[list[LabelPair], int]:
    """Labels as token ids, each repeated by its count, with its weight; and the number of labels left out.

    Left out are labels whose two responses have the same tokens (`response_tokens`).
    """
    pairs, left_out = [], 0
    for label in labels:
        chosen, rejected = response_tokens(backbone, label)
        if chosen == rejected:
            left_out += 1
            continue
        pair = LabelPair(backbone.encode_prompt(label.prompt), chosen, rejected, label.tie, label.weight, label.is_edit)
        pairs += [pair] * label.count
    return pairs, left_out


@torch.no_grad()
def reference_sums(state: TrainState, pairs: Sequence[LabelPair]) -> Tensor:
    """(N, 2) float32 log-probabilities of each pair's chosen and rejected response under the reference, summed over tokens."""
    policy, temperature = state.policy, state.config.temperature

    def sums(_: list[int], batch: Batch) -> Tensor:
        state.on_progress()
        return policy.reference_logprobs(batch, temperature).sum(1)

    responses = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    prompts = 2 * [pair.prompt for pair in pairs]
    return map_responses(policy.backbone, sums, prompts, responses).view(2, -1).T


def preference_update(state: TrainState, pairs: Sequence[LabelPair], reference: Tensor) -> dict[str, float]:
    """One update by direct preference optimization; returns the metrics, measured before the update.

    reference: (N, 2), see `reference_sums`. The loss is the mean over the N pairs of their weighted losses; it is not divided by
    the weights of these pairs, so that a weight has the same effect beside any other labels. The reward metrics are unweighted
    means over the decided pairs, and are left out if there are none.
    """
    config, beta = state.config, state.current_value("beta")
    losses, margins, rewards = [], [], []
    for indices in _micro_batches([pair.tokens for pair in pairs], max(1, config.micro_batch // 2)):
        state.on_progress()
        chunk = [pairs[i] for i in indices]
        loss, log_ratios = _preference_backward(state, chunk, reference[indices], len(pairs))
        losses.append(loss)
        decided = beta * log_ratios[[not pair.tie for pair in chunk]]
        rewards.append(decided)
        margins.append(decided[:, 0] - decided[:, 1])
    total, margin, reward = torch.stack(losses).sum(), torch.cat(margins).double(), torch.cat(rewards).double()
    grad_norm = apply_gradient(state, lambda: _non_finite("loss/dpo_avg", total))
    metrics = {"loss/dpo_avg": float(total), "objective/kl_coef": beta, "grad_norm": float(grad_norm)}
    if len(margin):
        metrics |= {
            "rewards/chosen": float(reward[:, 0].mean()),
            "rewards/rejected": float(reward[:, 1].mean()),
            "rewards/margins": float(margin.mean()),
            "rewards/accuracies": float(hit(margin).mean()),
        }
    return metrics


def _preference_backward(
    state: TrainState, pairs: Sequence[LabelPair], reference: Tensor, pair_count: int
) -> tuple[Tensor, Tensor]:
    """Accumulate the gradient of a micro-batch; returns its share of the loss and its (N, 2) log-ratios, detached.

    pair_count: of the whole update. A separate function, so that its graph is freed before the next forward pass.
    """
    config = state.config
    responses = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    batch = make_batch(state.policy.backbone, 2 * [pair.prompt for pair in pairs], responses)
    logprobs = _response_sums(state.policy, batch, config.temperature)
    log_ratios = logprobs.view(2, -1).T - reference
    tie = torch.tensor([pair.tie for pair in pairs], device=log_ratios.device)
    losses = []
    for weight in sorted({pair.weight for pair in pairs}):  # a mean over each group of equal weights
        rows = [i for i, pair in enumerate(pairs) if pair.weight == weight]
        mean_loss = direct_preference_loss(
            *log_ratios[rows].unbind(1), beta=state.current_value("beta"), kind=config.dpo_loss,
            label_smoothing=config.label_smoothing, tie=tie[rows],
        )  # fmt: skip
        losses.append(mean_loss * (weight * len(rows) / pair_count))
    loss = torch.stack(losses).sum()
    loss.backward()
    return loss.detach(), log_ratios.detach()


def sft_update(
    state: TrainState, texts: Sequence[ChosenText], weights: Sequence[float] | None = None
) -> dict[str, float]:
    """One update by supervised fine-tuning: the mean over all response tokens of their weighted cross-entropy; returns the
    metrics.

    weights: >= 0, one per text; a text's weight applies to each of its tokens. None: all 1.
    """
    weights, losses = [1.0] * len(texts) if weights is None else weights, []
    token_count = sum(len(text.response) for text in texts)
    lengths = [len(text.prompt) + len(text.response) for text in texts]
    for indices in _micro_batches(lengths, state.config.micro_batch):
        state.on_progress()
        chunk, chunk_weights = [texts[i] for i in indices], [weights[i] for i in indices]
        losses.append(_sft_backward(state, chunk, chunk_weights, token_count))
    total = torch.stack(losses).sum()
    grad_norm = apply_gradient(state, lambda: _non_finite("loss/sft_avg", total))
    return {"loss/sft_avg": float(total), "grad_norm": float(grad_norm)}


def _sft_backward(state: TrainState, texts: Sequence[ChosenText], weights: Sequence[float], token_count: int) -> Tensor:
    """Accumulate the gradient of a micro-batch; returns its share of the loss. token_count: of the whole update."""
    batch = make_batch(state.policy.backbone, [text.prompt for text in texts], [text.response for text in texts])
    sums = _response_sums(state.policy, batch, state.config.temperature)
    loss = -(sums * torch.tensor(weights, dtype=sums.dtype, device=sums.device)).sum() / token_count
    loss.backward()
    return loss.detach()


def _response_sums(policy: PolicyModel, batch: Batch, temperature: float) -> Tensor:
    """(B,) log-probability of each response under the policy, summed over its tokens; differentiable."""
    return response_logprobs(policy.backbone, policy.prediction_states(batch), batch, temperature)[0].sum(1)


def _micro_batches(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """The indices of rows of similar length, at most `size` together."""
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def _non_finite(name: str, loss: Tensor) -> list[str]:
    return [] if bool(torch.isfinite(loss)) else [name]
