"""One reward training: encoded comparisons, and a model fitted to any subset of them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf_lab.common.progress import ProgressCallback, no_progress
from rlhf_lab.common.records import Comparison
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.core.preference import bradley_terry_loss, centring_penalty, margin_from_strength, score_l2
from rlhf_lab.errors import NotFiniteError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.batch import forward, make_batch, map_by_length
from rlhf_lab.models.heads import EnsembleHead, RewardHead
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.training.distributed import SINGLE_PROCESS, Distributed, RowSlice
from rlhf_lab.training.optimizers import make_fused_adam
from rlhf_lab.training.reward.head_init import FeatureScaler, PreferenceTargets, fit_head_weights
from rlhf_lab.training.reward.report import HeldOutPrediction

#: count(loss of the update that was just done)
LossCallback = Callable[[float], None]
TokenIds = Sequence[Sequence[int]]


class ReferenceSamples(NamedTuple):
    """Samples of the base model: what the scores are normalised on. Token ids, row by row."""

    prompts: list[list[int]]
    responses: list[list[int]]


@dataclass(frozen=True)
class FitSpec:
    """What is fitted: the comparisons by index, the passes over them, a name for the random order, whom to tell.

    at_pass(passes done, model as it is then) is called before the first pass and after each; the model is not normalised.
    """

    subset: list[int]
    epochs: int
    order_name: str
    on_loss: LossCallback
    on_epoch: Callable[[int, RewardModel], None] = lambda _passes, _model: None


class RewardTask:
    """One training job: encoded texts, the frozen features, and fitting on any subset of the comparisons.

    Several processes share the rows of every batch and of every measuring pass; each holds the adapter and the heads whole.
    """

    def __init__(
        self, adapters: Adapters, comparisons: Sequence[Comparison], reference: ReferenceSamples, config: RewardConfig,
        *, adapter: str, on_progress: ProgressCallback = no_progress, distributed: Distributed = SINGLE_PROCESS,
    ) -> None:  # fmt: skip
        self.backbone, self.adapters, self.config = adapters.backbone, adapters, config
        self.adapter, self.on_progress, self.distributed = adapter, on_progress, distributed
        self.comparisons, self.reference = comparisons, reference
        backbone = self.backbone
        prompts = {c.prompt: backbone.encode_prompt(c.prompt) for c in comparisons}
        self.prompts = [prompts[c.prompt] for c in comparisons]
        self.chosen = [list(c.chosen_ids) or backbone.encode_response(c.chosen) for c in comparisons]
        self.rejected = [list(c.rejected_ids) or backbone.encode_response(c.rejected) for c in comparisons]
        self.counts = torch.tensor([c.count for c in comparisons], dtype=torch.int64)
        self.ties = torch.tensor([c.tie for c in comparisons])
        strength = torch.tensor([c.strength for c in comparisons], dtype=torch.float64)
        self.margins = torch.tensor([c.margin for c in comparisons]) + margin_from_strength(strength, config.margin)
        if config.warm_start:
            chosen = self.features(self.prompts, self.chosen)
            rejected = self.features(self.prompts, self.rejected)
            reference_features = self.features(*reference)
            self.feature_scaler = FeatureScaler(reference_features, config.prior_power)
            self.differences = self.feature_scaler(chosen - rejected)

    @torch.no_grad()
    def features(self, prompts: TokenIds, responses: TokenIds) -> Tensor:
        """(N, H) float64 pooled hidden states of the frozen backbone. Raises NotFiniteError."""
        pool = RewardHead(self.backbone.hidden_size, self.config.pooling, 0, self.config.last_weight).pool

        def local_features(local_slice: RowSlice) -> Tensor:
            local_prompts, local_responses = prompts[local_slice], responses[local_slice]

            def batch_features(indices: list[int]) -> Tensor:
                self.on_progress()
                batch = make_batch(
                    self.backbone, [local_prompts[i] for i in indices], [local_responses[i] for i in indices]
                )
                with self.adapters.using(None):
                    return pool(forward(self.backbone, batch).at_token, batch.mask)

            lengths = [len(p) + len(r) for p, r in zip(local_prompts, local_responses, strict=True)]
            return map_by_length(batch_features, lengths, self.backbone).double().cpu()

        features = self.distributed.map_rows(len(prompts), local_features, dim=0)
        if not bool(features.isfinite().all()):
            raise NotFiniteError(
                "the model's hidden states are not finite numbers, so no reward model can read them. Its weights are damaged: "
                "load another copy."
            )
        return features

    def score_all(
        self, score_fn: Callable[[TokenIds, TokenIds, ProgressCallback], Tensor], prompts: TokenIds, responses: TokenIds
    ) -> Tensor:
        """(..., N) what a model says of N texts: `RewardModel.scores` or `raw_scores`, each process asking about its rows."""
        return self.distributed.map_rows(
            len(prompts), lambda local_slice: score_fn(prompts[local_slice], responses[local_slice], self.on_progress)
        )

    def update_count(self, label_count: int, epochs: int) -> int:
        return epochs * math.ceil(label_count / self.config.batch_size)

    def fit(self, spec: FitSpec) -> tuple[RewardModel, list[float]]:
        """A reward model from the comparisons of `what.subset`, not yet normalised, and its losses. Raises NotFiniteError."""
        config, trains_adapter = self.config, self.config.epochs > 0
        member_counts = self.bootstrap_counts(spec.subset)
        head = self.new_head(len(member_counts))
        if config.warm_start:
            for member, label_counts in zip(head.heads, member_counts, strict=True):
                self.init_head(member, spec.subset, label_counts)
        if trains_adapter:
            self.adapters.add(self.adapter, r=config.lora_r, alpha=config.lora_alpha,
                              seed=derive_seed(config.seed, "reward adapter"), trainable=True)  # fmt: skip
        model = RewardModel(self.backbone, self.adapters, self.adapter if trains_adapter else None, head)
        losses = self.train_lora(model, spec, member_counts) if trains_adapter else []
        if trains_adapter:
            self.adapters.freeze(self.adapter)
        head.requires_grad_(False)
        return model, losses

    def normalise(self, model: RewardModel) -> None:
        """Make its scores mean 0, sd 1 on the base model's own texts. Raises NotFiniteError."""
        raw = self.score_all(model.raw_scores, *self.reference)
        if not bool(raw.isfinite().all()):
            raise NotFiniteError(
                "the reward model scores the base model's own texts with numbers that are not finite. Lower its learning "
                "rate (lr) or raise ridge; if that does not help, the model's weights are damaged."
            )
        model.head.normalise(raw.to(self.backbone.device))

    def new_head(self, members: int) -> RewardHead | EnsembleHead:
        config, hidden = self.config, self.backbone.hidden_size
        seeds = [derive_seed(config.seed, "head"), *(derive_seed(config.seed, "head", k) for k in range(1, members))]
        if members == 1:
            return RewardHead(hidden, config.pooling, seeds[0], config.last_weight).to(self.backbone.device)
        mode, coef = config.ensemble_score, config.ensemble_penalty
        head = EnsembleHead(hidden, config.pooling, seeds, mode, coef, config.last_weight)
        return head.to(self.backbone.device)

    def bootstrap_counts(self, subset: list[int]) -> list[Tensor]:
        """How often each comparison counts, (all comparisons,) int64 a member: drawn with replacement (Breiman 1996), so that
        the members of an ensemble differ; `on_loss` times each for a single head, and where a draw holds nothing but ties."""
        base_counts = torch.zeros(len(self.comparisons), dtype=torch.int64)
        base_counts[subset] = self.counts[subset]
        if self.config.ensemble == 1:
            return [base_counts]
        pool = torch.tensor(subset).repeat_interleave(self.counts[subset])
        member_counts = []
        for k in range(self.config.ensemble):
            generator = torch.Generator().manual_seed(
                derive_seed(self.config.seed, "labels of a member", k, len(subset))
            )
            resampled = pool[torch.randint(len(pool), (len(pool),), generator=generator)]
            counts = torch.bincount(resampled, minlength=len(self.comparisons))
            member_counts.append(counts if bool((counts[~self.ties] > 0).any()) else base_counts)
        return member_counts

    def init_head(self, head: RewardHead, subset: list[int], label_counts: Tensor) -> None:
        """Fit the head on frozen features; the bias makes the base's mean score 0, as the centring penalty wants it."""
        indices = torch.tensor(subset)
        targets = PreferenceTargets(
            self.ties[indices], self.margins[indices], label_counts[indices].double(), self.config.label_smoothing
        )
        weights = self.feature_scaler(fit_head_weights(self.differences[indices], targets, self.config.ridge)[None])[0]
        with torch.no_grad():
            head.linear.weight.copy_(weights[None])
            head.linear.bias.copy_(-(self.feature_scaler.mean @ weights)[None])

    def train_lora(self, model: RewardModel, spec: FitSpec, member_counts: list[Tensor]) -> list[float]:
        """AdamW on adapter and heads; the loss of every update. Raises NotFiniteError before a broken gradient is applied."""
        config, subset = self.config, spec.subset
        heads = [p for head in model.head.heads for p in head.linear.parameters()]
        parameters = [*self.adapters.parameters(self.adapter), *heads]
        optimizer = make_fused_adam(torch.optim.AdamW, parameters, lr=config.lr, weight_decay=config.weight_decay)
        generator = torch.Generator().manual_seed(derive_seed(config.seed, "order", spec.order_name))
        total_updates, losses = self.update_count(len(subset), config.epochs), list[float]()
        spec.on_epoch(0, model)
        for epoch in range(1, spec.epochs + 1):
            order = torch.randperm(len(subset), generator=generator).tolist()
            for start in range(0, len(order), config.batch_size):
                self.on_progress()
                loss = self.batch_backward(
                    model, [subset[i] for i in order[start : start + config.batch_size]], member_counts
                )
                self.distributed.all_reduce_grads(parameters)
                grad_norm = torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
                self.distributed.all_reduce_([loss])
                _check_finite({"loss": float(loss), "gradient": float(grad_norm)}, len(losses))
                for param_group in optimizer.param_groups:
                    param_group["lr"] = config.lr * (1 - len(losses) / total_updates)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(float(loss))
                spec.on_loss(losses[-1])
            spec.on_epoch(epoch, model)
        return losses

    def batch_backward(self, model: RewardModel, batch: list[int], member_counts: list[Tensor]) -> Tensor:
        """Of one batch; returns its loss. The graph ends here (gradient_step.micro_gradient)."""
        loss = self.batch_loss(model, batch, member_counts)
        if loss.requires_grad:
            loss.backward()
        return loss.detach().clone()

    def batch_loss(self, model: RewardModel, batch: list[int], member_counts: list[Tensor]) -> Tensor:
        """The mean over the members of their losses on a batch, each label as often as the member has drawn it.

        Of several processes each has the part of its rows: the batch's loss is their sum.
        """
        local_indices = batch[self.distributed.shard_slice(len(batch))]
        if local_indices:
            return self.partial_loss(
                model, local_indices, member_counts, [int(label_counts[batch].sum()) for label_counts in member_counts]
            )
        if self.backbone.shards is None:
            return torch.zeros((), device=self.backbone.device)
        return 0.0 * self.partial_loss(
            model, batch[:1], member_counts, [1] * len(member_counts)
        )  # a pass that the others need

    def partial_loss(
        self, model: RewardModel, indices: list[int], member_counts: list[Tensor], batch_counts: list[int]
    ) -> Tensor:
        """What some rows add to the loss of a batch. counts: how many labels of the batch each member has drawn."""
        batch = make_batch(
            self.backbone,
            [self.prompts[i] for i in indices] * 2,
            [self.chosen[i] for i in indices] + [self.rejected[i] for i in indices],
        )
        with self.adapters.using(model.adapter):
            scores = model.head.raw_members(forward(self.backbone, batch).at_token, batch.mask)
        losses, active_members = [], sum(batch_count > 0 for batch_count in batch_counts)
        for member, label_counts, batch_count in zip(scores, member_counts, batch_counts, strict=True):
            repeats = torch.repeat_interleave(torch.arange(len(indices)), label_counts[torch.tensor(indices)])
            if len(repeats):
                chosen, rejected = member.chunk(2)
                member_loss = self.pair_loss(chosen[repeats], rejected[repeats], torch.tensor(indices)[repeats])
                losses.append(member_loss * (len(repeats) / batch_count / active_members))
        return torch.stack(losses).sum() if losses else scores.sum() * 0.0

    def pair_loss(self, chosen: Tensor, rejected: Tensor, indices: Tensor) -> Tensor:
        """Bradley-Terry and the penalties; which: (n,) the comparisons that the raw scores (n,) belong to."""
        config = self.config
        loss = bradley_terry_loss(
            chosen, rejected, margin=self.margins[indices].to(chosen), tie=self.ties[indices].to(chosen.device),
            label_smoothing=config.label_smoothing,
        )  # fmt: skip
        loss = loss + config.centering * centring_penalty(chosen, rejected)
        return loss + config.score_l2 * score_l2(chosen, rejected) if config.score_l2 else loss

    def predict(self, model: RewardModel, indices: list[int]) -> list[HeldOutPrediction]:
        """The probability of each label of `held`, the mean over the members; normalisation does not touch it."""
        prompts = [self.prompts[i] for i in indices]
        chosen = self.score_all(model.raw_scores, prompts, [self.chosen[i] for i in indices]).double()
        rejected = self.score_all(model.raw_scores, prompts, [self.rejected[i] for i in indices]).double()
        probabilities = torch.sigmoid(chosen - rejected).mean(dim=0)
        return [HeldOutPrediction(i, float(p)) for i, p in zip(indices, probabilities, strict=True)]


def _check_finite(values: dict[str, float], updates_done: int) -> None:
    """Raises NotFiniteError that names the first number that is broken. updates: how many were done before."""
    for name, value in values.items():
        if not math.isfinite(value):
            raise NotFiniteError(
                f"the reward model's {name} became {value} after {updates_done} updates. "
                "Lower its learning rate (lr); the labels are untouched."
            )
