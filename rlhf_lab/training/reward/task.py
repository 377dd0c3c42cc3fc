"""The training job of a reward model: encoded comparisons, and models fitted to subsets of them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf_lab.common.progress import ProgressCallback, no_progress
from rlhf_lab.common.records import Comparison
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.common.text_attributes import ATTRIBUTES
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.core.attribute_effects import MIN_DIFFERENCE, MIN_RIDGE
from rlhf_lab.core.preference import bradley_terry_loss, centring_penalty, margin_from_strength, score_l2
from rlhf_lab.core.preference_fit import PreferenceTargets
from rlhf_lab.errors import NotFiniteError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.attribute_correction import AttributeCorrection, fitted_slopes, token_attributes
from rlhf_lab.models.batch import make_batch, map_by_length
from rlhf_lab.models.features import FeatureSpec, text_features
from rlhf_lab.models.heads import EnsembleHead, RewardHead
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.training.distributed import SINGLE_PROCESS, Distributed
from rlhf_lab.training.label_tokens import response_tokens
from rlhf_lab.training.optimizers import make_fused_adam, set_lr
from rlhf_lab.training.reward.head_init import HeadFit, HeadFitter, PairAttributes
from rlhf_lab.training.reward.report import AttributeEffect, HeldOutPrediction

#: The adapter that is trained; loaded reward models have other names.
REWARD_TRAINING_ADAPTER = "reward training"
TokenIds = Sequence[Sequence[int]]


class ReferenceSamples(NamedTuple):
    """Samples of the base model, on which scores are normalised. Token ids, row by row."""

    prompts: list[list[int]]
    responses: list[list[int]]


@dataclass(frozen=True)
class FrozenFeatures:
    """Features of the frozen backbone, float32: of chosen and rejected texts (N, F) and of reference samples (M, F), in `layers`
    blocks."""

    chosen: Tensor
    rejected: Tensor
    reference: Tensor
    layers: int
    fitter: HeadFitter


@dataclass(frozen=True)
class FitSpec:
    """What is fitted. subset: the indices of the comparisons. order_name: part of the seed of the random order.

    on_loss(loss): called after each update. on_epoch(epochs done, current model): called before the first epoch and after each;
    the model is not normalised.
    """

    subset: list[int]
    epochs: int
    order_name: str
    on_loss: Callable[[float], None]
    on_epoch: Callable[[int, RewardModel], None] = lambda _passes, _model: None


class RewardTask:
    """One training job: encoded texts, frozen features, and fits on any subset of the comparisons.

    distinguishable: the indices of the comparisons whose two texts have different tokens; only these can be learned from.
    Several processes share the rows of every batch and every evaluation; each holds the whole adapter and all heads.
    """

    def __init__(
        self, adapters: Adapters, comparisons: Sequence[Comparison], reference: ReferenceSamples, config: RewardConfig,
        *, on_progress: ProgressCallback = no_progress, distributed: Distributed = SINGLE_PROCESS,
    ) -> None:  # fmt: skip
        self.backbone, self.adapters, self.config = adapters.backbone, adapters, config
        self.on_progress, self.distributed = on_progress, distributed
        self.comparisons, self.reference = comparisons, reference
        self.feature_spec = FeatureSpec(config.pooling, config.last_weight, config.layers)
        backbone = self.backbone
        prompts = {c.prompt: backbone.encode_prompt(c.prompt) for c in comparisons}
        self.prompts = [prompts[c.prompt] for c in comparisons]
        texts = [response_tokens(backbone, c) for c in comparisons]
        self.chosen, self.rejected = [chosen for chosen, _ in texts], [rejected for _, rejected in texts]
        pairs = zip(self.chosen, self.rejected, strict=True)
        self.distinguishable = [i for i, (chosen, rejected) in enumerate(pairs) if chosen != rejected]
        self.counts = torch.tensor([c.count for c in comparisons], dtype=torch.int64)
        self.weights = torch.tensor([c.weight for c in comparisons], dtype=torch.float64)
        self.ties = torch.tensor([c.tie for c in comparisons])
        strength = torch.tensor([c.strength for c in comparisons], dtype=torch.float64)
        self.margins = torch.tensor([c.margin for c in comparisons]) + margin_from_strength(strength, config.margin)
        self.attributes = self.pair_attributes(config.ignored) if config.ignored else None
        self.attribute_scores = torch.zeros(config.ensemble, len(comparisons))  # of the present fit, by member
        self.frozen = self._frozen_features() if config.warm_start else None
        self._fitted: tuple[list[int], list[HeadFit]] = [], []  # the subset of the last `fit_heads`, and the heads

    def pair_attributes(self, names: Sequence[str]) -> PairAttributes:
        """The named attributes of the labelled texts and of the reference texts."""
        texts = self.label_texts(list(range(len(self.comparisons))))
        chosen, rejected, reference = (token_attributes(self.backbone, *rows, names) for rows in texts)
        return PairAttributes(chosen - rejected, reference)

    def _frozen_features(self) -> "FrozenFeatures":
        chosen = self.features(self.prompts, self.chosen)
        rejected = self.features(self.prompts, self.rejected)
        reference = self.features(*self.reference)
        targets = PreferenceTargets(
            self.ties.numpy(), self.margins.double().numpy(), label_smoothing=self.config.label_smoothing
        )
        layers = reference.shape[1] // self.backbone.hidden_size
        groups = [comparison.group for comparison in self.comparisons]
        fitter = HeadFitter(chosen - rejected, reference, layers, targets, groups, self.config.ridge, self.attributes)
        return FrozenFeatures(chosen, rejected, reference, layers, fitter)

    @torch.no_grad()
    def features(self, prompts: TokenIds, responses: TokenIds) -> Tensor:
        """(N, F) float32 features of the frozen backbone. Raises NotFiniteError."""

        def local_features(local_slice: slice) -> Tensor:
            local_prompts, local_responses = prompts[local_slice], responses[local_slice]

            def batch_features(indices: list[int]) -> Tensor:
                self.on_progress()
                batch = make_batch(
                    self.backbone, [local_prompts[i] for i in indices], [local_responses[i] for i in indices]
                )
                with self.adapters.using(None):
                    return text_features(self.backbone, batch, self.feature_spec)

            lengths = [len(p) + len(r) for p, r in zip(local_prompts, local_responses, strict=True)]
            return map_by_length(batch_features, lengths, self.backbone).cpu()

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
        """(..., N) scores of N texts by `RewardModel.scores` or `raw_scores`, each process scoring its rows."""
        return self.distributed.map_rows(
            len(prompts), lambda local_slice: score_fn(prompts[local_slice], responses[local_slice], self.on_progress)
        )

    def update_count(self, label_count: int, epochs: int) -> int:
        return epochs * math.ceil(label_count / self.config.batch_size)

    def fit(self, spec: FitSpec) -> tuple[RewardModel, list[float]]:
        """A reward model trained on the comparisons `spec.subset`, not yet normalised, and its losses; with an adapter if
        there are epochs. Raises NotFiniteError.
        """
        config, trains_adapter = self.config, spec.epochs > 0
        member_counts = self.bootstrap_counts(spec.subset)
        head = self.new_head(len(member_counts))
        if self.frozen is not None:
            for k, (member, fit) in enumerate(zip(head.heads, self.fit_heads(spec.subset), strict=True)):
                self.attribute_scores[k] = self.frozen.fitter.attribute_scores(fit)
                with torch.no_grad():
                    member.linear.weight.copy_(fit.weights[None])
                    member.linear.bias.fill_(fit.bias)
        if trains_adapter:
            self.adapters.add(REWARD_TRAINING_ADAPTER, r=config.lora_r, alpha=config.lora_alpha,
                              seed=derive_seed(config.seed, "reward adapter"), trainable=True)  # fmt: skip
        model = RewardModel(self.backbone, self.adapters, REWARD_TRAINING_ADAPTER if trains_adapter else None, head)
        losses = self.train_lora(model, spec, member_counts) if trains_adapter else []
        if trains_adapter:
            self.adapters.freeze(REWARD_TRAINING_ADAPTER)
        head.requires_grad_(False)
        return model, losses

    def attribute_effects(self) -> list[AttributeEffect]:
        """The effects of all attributes on the labels, in a head that is fitted jointly with them; [] without frozen features."""
        if self.frozen is None:
            return []
        names, frozen = tuple(ATTRIBUTES), self.frozen
        attributes = self.pair_attributes(names)
        ridge = max(MIN_RIDGE, self.fit_heads(self.distinguishable)[0].ridge)
        fitter = HeadFitter(
            frozen.chosen - frozen.rejected, frozen.reference, frozen.layers, frozen.fitter.targets, frozen.fitter.groups,
            ridge, attributes,
        )  # fmt: skip
        fit = fitter.fit(self.distinguishable, self.counts * self.weights)
        assert fit.effects is not None
        labelled = torch.from_numpy(fitter.attributes[fit.indices])
        is_known = (labelled.square().mean(0).sqrt() > MIN_DIFFERENCE).tolist()
        effects = []
        for i, name in enumerate(names):
            if is_known[i]:
                scale = ATTRIBUTES[name].step / fitter.attribute_sd[i]
                low, log_odds, high = sorted(float(values[i] * scale) for values in fit.effects)
                effects.append(AttributeEffect(name, log_odds, low, high))
        return effects

    def fit_heads(self, subset: list[int]) -> list[HeadFit]:
        """A head of each member, fitted on frozen features to the comparisons `subset`; needs `warm_start`. The heads of the last
        subset are kept, because a training needs them for its final model, its accuracy and the effects of attributes."""
        assert self.frozen is not None
        if self._fitted[0] != subset:
            fits = [
                self.frozen.fitter.fit(subset, label_counts * self.weights)
                for label_counts in self.bootstrap_counts(subset)
            ]
            self._fitted = list(subset), fits
        return self._fitted[1]

    def normalise(self, model: RewardModel) -> None:
        """Normalise its scores to mean 0 and sd 1 on the base model's samples, without the ignored attributes if there are any.
        Raises NotFiniteError.
        """
        if self.frozen is not None and model.adapter is None:
            raw = model.head.raw_members(self.frozen.reference.to(self.backbone.device))
        else:
            raw = self.score_all(model.raw_scores, *self.reference)
        if not bool(raw.isfinite().all()):
            raise NotFiniteError(
                "the reward model scores the base model's own texts with numbers that are not finite. Lower its learning "
                "rate (lr) or raise ridge; if that does not help, the model's weights are damaged."
            )
        raw = raw.to(self.backbone.device)
        model.head.normalise(raw)
        if self.attributes is not None:
            scores = model.head.normalised(raw)
            model.correction = AttributeCorrection.fit(self.config.ignored, scores, self.attributes.reference)

    def final_scores(self, model: RewardModel, indices: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Normalised scores of the chosen and rejected texts of `indices` (n,), and of the base model's samples (M,)."""
        if self.frozen is not None and model.adapter is None:
            device, frozen = self.backbone.device, self.frozen
            features = (frozen.chosen[indices], frozen.rejected[indices], frozen.reference)
            scores = [model.head(part.to(device)).cpu() for part in features]
            if model.correction is not None:
                texts = self.label_texts(indices)
                scores = [model.corrected(part, *rows) for part, rows in zip(scores, texts, strict=True)]
            chosen, rejected, reference = scores
            return chosen, rejected, reference
        chosen, rejected, reference = (self.score_all(model.scores, *texts) for texts in self.label_texts(indices))
        return chosen, rejected, reference

    def label_texts(self, indices: list[int]) -> list[tuple[TokenIds, TokenIds]]:
        """Prompts and responses: the chosen texts of `indices`, the rejected ones, and the base model's samples."""
        prompts = [self.prompts[i] for i in indices]
        chosen, rejected = ([texts[i] for i in indices] for texts in (self.chosen, self.rejected))
        return [(prompts, chosen), (prompts, rejected), self.reference]

    def new_head(self, members: int) -> RewardHead | EnsembleHead:
        config, size = self.config, self.feature_spec.size(self.backbone)
        seeds = [derive_seed(config.seed, "head"), *(derive_seed(config.seed, "head", k) for k in range(1, members))]
        if members == 1:
            return RewardHead(size, self.feature_spec, seeds[0]).to(self.backbone.device)
        head = EnsembleHead(size, self.feature_spec, seeds, config.ensemble_score, config.ensemble_penalty)
        return head.to(self.backbone.device)

    def bootstrap_counts(self, subset: list[int]) -> list[Tensor]:
        """How often each comparison counts, for each member (all comparisons,) int64.

        Bootstrap samples (Breiman 1996), so that the members of an ensemble differ; the labels' own counts for a single head, and
        where a sample contains only ties.
        """
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

    def train_lora(self, model: RewardModel, spec: FitSpec, member_counts: list[Tensor]) -> list[float]:
        """AdamW on the adapter, and on heads that were not fitted; the loss of every update.

        Raises NotFiniteError before a broken gradient is applied.
        """
        config, subset = self.config, spec.subset
        heads = [p for head in model.head.heads for p in head.linear.parameters()] if self.frozen is None else []
        parameters = [*self.adapters.parameters(REWARD_TRAINING_ADAPTER), *heads]
        optimizer = make_fused_adam(torch.optim.AdamW, parameters, lr=config.lr, weight_decay=config.weight_decay)
        generator = torch.Generator().manual_seed(derive_seed(config.seed, "order", spec.order_name))
        total_updates, losses = self.update_count(len(subset), config.epochs), list[float]()
        spec.on_epoch(0, model)
        for epoch in range(1, spec.epochs + 1):
            order = torch.randperm(len(subset), generator=generator).tolist()
            for start in range(0, len(order), config.batch_size):
                self.on_progress()
                batch = [subset[i] for i in order[start : start + config.batch_size]]
                loss = self.batch_backward(model, batch, member_counts)
                self.distributed.all_reduce_grads(parameters)
                grad_norm = torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
                self.distributed.all_reduce_([loss])
                _check_finite({"loss": float(loss), "gradient": float(grad_norm)}, len(losses))
                set_lr(optimizer, config.lr * (1 - len(losses) / total_updates))
                optimizer.step()
                optimizer.zero_grad()
                losses.append(float(loss))
                spec.on_loss(losses[-1])
            spec.on_epoch(epoch, model)
        return losses

    def batch_backward(self, model: RewardModel, batch: list[int], member_counts: list[Tensor]) -> Tensor:
        """Accumulate the gradient of one batch; returns its loss. Frees its graph on return (see policy/update.py)."""
        loss = self.batch_loss(model, batch, member_counts)
        if loss.requires_grad:
            loss.backward()
        return loss.detach().clone()

    def batch_loss(self, model: RewardModel, batch: list[int], member_counts: list[Tensor]) -> Tensor:
        """The mean over the members of their losses on a batch (`member_divisors`).

        With several processes each returns the loss of its rows; the loss of the batch is their sum.
        """
        local_indices = batch[self.distributed.shard_slice(len(batch))]
        if local_indices:
            return self.partial_loss(model, local_indices, member_counts, self.member_divisors(batch, member_counts))
        if self.backbone.shards is None:
            return torch.zeros((), device=self.backbone.device)
        # A sharded backbone needs a forward pass of every process.
        return 0.0 * self.partial_loss(model, batch[:1], member_counts, [1.0] * len(member_counts))

    def member_divisors(self, batch: list[int], member_counts: list[Tensor]) -> list[float]:
        """For each member, the divisor of the sum of a batch's losses, each times its count and weight: the size of the batch
        times the mean of these factors over all labels. So a factor has the same effect in any batch, also alone.

        A bootstrap sample is a list of drawn labels, in which the batch is as large as it was drawn often. A label that counts
        three times and was drawn three times was drawn as often as expected, and adds 1 to the size.
        """
        divisors = []
        for label_counts in member_counts:
            draws = label_counts / self.counts.double()
            mean = float((label_counts * self.weights).sum() / draws.sum())
            divisors.append(float(draws[batch].sum()) * mean)
        return divisors

    def partial_loss(
        self, model: RewardModel, indices: list[int], member_counts: list[Tensor], divisors: list[float]
    ) -> Tensor:
        """The share of some rows in the loss of a batch. divisors: `member_divisors` of the whole batch."""
        batch = make_batch(
            self.backbone,
            [self.prompts[i] for i in indices] * 2,
            [self.chosen[i] for i in indices] + [self.rejected[i] for i in indices],
        )
        with self.adapters.using(model.adapter):
            scores = model.head.raw_members(text_features(self.backbone, batch, self.feature_spec))
        losses, active_members = [], sum(divisor > 0 for divisor in divisors)
        members = zip(scores, member_counts, divisors, self.attribute_scores, strict=True)
        for member, label_counts, divisor, attribute_scores in members:
            repeats = torch.repeat_interleave(torch.arange(len(indices)), label_counts[torch.tensor(indices)])
            weights = self.weights[torch.tensor(indices)[repeats]]
            chosen, rejected = member.chunk(2)
            for weight in weights[weights > 0].unique().tolist():  # a mean over each group of equal weights
                rows = repeats[weights == weight]
                label_indices = torch.tensor(indices)[rows]
                attributes = attribute_scores[label_indices]
                member_loss = self.pair_loss(chosen[rows], rejected[rows], label_indices, attributes)
                losses.append(member_loss * (weight * len(rows) / divisor / active_members))
        return torch.stack(losses).sum() if losses else scores.sum() * 0.0

    def pair_loss(self, chosen: Tensor, rejected: Tensor, indices: Tensor, attribute_scores: Tensor) -> Tensor:
        """Bradley-Terry and the penalties. chosen, rejected: (n,) raw scores of the comparisons `indices` (n,). attribute_scores:
        (n,) what ignored attributes add to the log-odds."""
        config = self.config
        loss = bradley_terry_loss(
            chosen + attribute_scores.to(chosen), rejected, margin=self.margins[indices].to(chosen),
            tie=self.ties[indices].to(chosen.device), label_smoothing=config.label_smoothing,
        )  # fmt: skip
        loss = loss + config.centering * centring_penalty(chosen, rejected)
        return loss + config.score_l2 * score_l2(chosen, rejected) if config.score_l2 else loss

    def predict_held_out(self) -> list[HeldOutPrediction]:
        """The probability of each label by fitted heads that did not see the labels of its prompt, averaged over the members."""
        indices = self.distinguishable
        fits = self.fit_heads(indices)
        probabilities = torch.stack([torch.sigmoid(fit.held_out) for fit in fits]).mean(dim=0)
        return [HeldOutPrediction(i, float(p)) for i, p in zip(fits[0].indices, probabilities, strict=True)]

    def predict_by_heads(self, train_indices: list[int], indices: list[int]) -> list[HeldOutPrediction]:
        """The probability of the labels at `indices` by heads fitted to those at `train_indices`, averaged over the members."""
        assert self.frozen is not None
        differences = [self.frozen.fitter.score_differences(fit, indices) for fit in self.fit_heads(train_indices)]
        probabilities = torch.sigmoid(torch.stack(differences)).mean(dim=0)
        return [HeldOutPrediction(i, float(p)) for i, p in zip(indices, probabilities, strict=True)]

    def predict(self, model: RewardModel, indices: list[int]) -> list[HeldOutPrediction]:
        """The probability of the labels at `indices`, averaged over the members; it does not depend on normalisation."""
        prompts = [self.prompts[i] for i in indices]
        chosen = self.score_all(model.raw_scores, prompts, [self.chosen[i] for i in indices]).double()
        rejected = self.score_all(model.raw_scores, prompts, [self.rejected[i] for i in indices]).double()
        differences = chosen - rejected
        if self.attributes is not None:
            reference = self.score_all(model.raw_scores, *self.reference)
            slopes = torch.stack([fitted_slopes(row, self.attributes.reference) for row in reference])
            differences -= slopes @ self.attributes.differences[indices].T
        probabilities = torch.sigmoid(differences).mean(dim=0)
        return [HeldOutPrediction(i, float(p)) for i, p in zip(indices, probabilities, strict=True)]


def _check_finite(values: dict[str, float], updates_done: int) -> None:
    """Raises NotFiniteError that names the first value that is not finite."""
    for name, value in values.items():
        if not math.isfinite(value):
            raise NotFiniteError(
                f"the reward model's {name} became {value} after {updates_done} updates. "
                "Lower its learning rate (lr); the labels are untouched."
            )
