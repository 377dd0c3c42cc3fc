"""One reward training: encoded comparisons, and a model fitted to any subset of them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf_lab.config import RewardConfig
from rlhf_lab.core.preference import bradley_terry_loss, centring_penalty, margin_from_strength, score_l2
from rlhf_lab.errors import NotFiniteError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.generation import Tick, no_tick
from rlhf_lab.models.heads import EnsembleHead, RewardHead
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.models.rows import by_length, forward, make_rows
from rlhf_lab.records import Comparison
from rlhf_lab.seeds import derive
from rlhf_lab.trainers.adam import fused
from rlhf_lab.trainers.group import ALONE, Group, Span
from rlhf_lab.trainers.reward_report import HeldOut
from rlhf_lab.trainers.warm_start import Labels, Stretch, fit

#: count(loss of the update that was just done)
Count = Callable[[float], None]
Ids = Sequence[Sequence[int]]


class Reference(NamedTuple):
    """Samples of the base model: what the scores are normalised on. Token ids, row by row."""

    prompts: list[list[int]]
    responses: list[list[int]]


@dataclass(frozen=True)
class Fit:
    """What is fitted: the comparisons by index, the passes over them, a name for the random order, whom to tell.

    at_pass(passes done, model as it is then) is called before the first pass and after each; the model is not normalised.
    """

    subset: list[int]
    epochs: int
    purpose: str
    count: Count
    at_pass: Callable[[int, RewardModel], None] = lambda _passes, _model: None


class RewardTask:
    """One training job: encoded texts, the frozen features, and fitting on any subset of the comparisons.

    Several processes share the rows of every batch and of every measuring pass; each holds the adapter and the heads whole.
    """

    def __init__(
        self, adapters: Adapters, comparisons: Sequence[Comparison], reference: Reference, config: RewardConfig,
        *, adapter: str, tick: Tick = no_tick, group: Group = ALONE,
    ) -> None:  # fmt: skip
        self.backbone, self.adapters, self.config = adapters.backbone, adapters, config
        self.adapter, self.tick, self.group = adapter, tick, group
        self.comparisons, self.reference = comparisons, reference
        backbone = self.backbone
        prompts = {c.prompt: backbone.encode_prompt(c.prompt) for c in comparisons}
        self.prompts = [prompts[c.prompt] for c in comparisons]
        self.chosen = [list(c.chosen_ids) or backbone.encode_response(c.chosen) for c in comparisons]
        self.rejected = [list(c.rejected_ids) or backbone.encode_response(c.rejected) for c in comparisons]
        self.count = torch.tensor([c.count for c in comparisons], dtype=torch.int64)
        self.tie = torch.tensor([c.tie for c in comparisons])
        strength = torch.tensor([c.strength for c in comparisons], dtype=torch.float64)
        self.margin = torch.tensor([c.margin for c in comparisons]) + margin_from_strength(strength, config.margin)
        if config.warm_start:
            chosen = self.features(self.prompts, self.chosen)
            rejected = self.features(self.prompts, self.rejected)
            base = self.features(*reference)
            self.stretch = Stretch(base, config.prior_power)
            self.differences = self.stretch(chosen - rejected)

    @torch.no_grad()
    def features(self, prompts: Ids, responses: Ids) -> Tensor:
        """(N, H) float64 pooled hidden states of the frozen backbone. Raises NotFiniteError."""
        pool = RewardHead(self.backbone.hidden_size, self.config.pooling, 0, self.config.last_weight).pool

        def of(mine: Span) -> Tensor:
            asked, said = prompts[mine], responses[mine]

            def some(index: list[int]) -> Tensor:
                self.tick()
                rows = make_rows(self.backbone, [asked[i] for i in index], [said[i] for i in index])
                with self.adapters.using(None):
                    return pool(forward(self.backbone, rows).read, rows.mask)

            lengths = [len(p) + len(r) for p, r in zip(asked, said, strict=True)]
            return by_length(some, lengths, self.backbone).double().cpu()

        found = self.group.rows(len(prompts), of, dim=0)
        if not bool(found.isfinite().all()):
            raise NotFiniteError(
                "the model's hidden states are not finite numbers, so no reward model can read them. Its weights are damaged: "
                "load another copy."
            )
        return found

    def asked(self, model_says: Callable[[Ids, Ids, Tick], Tensor], prompts: Ids, responses: Ids) -> Tensor:
        """(..., N) what a model says of N texts: `RewardModel.scores` or `raw_scores`, each process asking about its rows."""
        return self.group.rows(len(prompts), lambda mine: model_says(prompts[mine], responses[mine], self.tick))

    def updates(self, labels: int, epochs: int) -> int:
        return epochs * math.ceil(labels / self.config.batch_size)

    def fit(self, what: Fit) -> tuple[RewardModel, list[float]]:
        """A reward model from the comparisons of `what.subset`, not yet normalised, and its losses. Raises NotFiniteError."""
        config, trained = self.config, self.config.epochs > 0
        draws = self.draws(what.subset)
        head = self.new_head(len(draws))
        if config.warm_start:
            for member, draw in zip(head.heads, draws, strict=True):
                self.warm(member, what.subset, draw)
        if trained:
            self.adapters.add(self.adapter, r=config.lora_r, alpha=config.lora_alpha,
                              seed=derive(config.seed, "reward adapter"), trainable=True)  # fmt: skip
        model = RewardModel(self.backbone, self.adapters, self.adapter if trained else None, head)
        losses = self.descend(model, what, draws) if trained else []
        if trained:
            self.adapters.freeze(self.adapter)
        head.requires_grad_(False)
        return model, losses

    def normalise(self, model: RewardModel) -> None:
        """Make its scores mean 0, sd 1 on the base model's own texts. Raises NotFiniteError."""
        raw = self.asked(model.raw_scores, *self.reference)
        if not bool(raw.isfinite().all()):
            raise NotFiniteError(
                "the reward model scores the base model's own texts with numbers that are not finite. Lower its learning "
                "rate (lr) or raise ridge; if that does not help, the model's weights are damaged."
            )
        model.head.normalise(raw.to(self.backbone.device))

    def new_head(self, members: int) -> RewardHead | EnsembleHead:
        config, hidden = self.config, self.backbone.hidden_size
        seeds = [derive(config.seed, "head"), *(derive(config.seed, "head", k) for k in range(1, members))]
        if members == 1:
            return RewardHead(hidden, config.pooling, seeds[0], config.last_weight).to(self.backbone.device)
        mode, coef = config.ensemble_score, config.ensemble_penalty
        head = EnsembleHead(hidden, config.pooling, seeds, mode, coef, config.last_weight)
        return head.to(self.backbone.device)

    def draws(self, subset: list[int]) -> list[Tensor]:
        """How often each comparison counts, (all comparisons,) int64 a member: drawn with replacement (Breiman 1996), so that
        the members of an ensemble differ; `count` times each for a single head, and where a draw holds nothing but ties."""
        all_once = torch.zeros(len(self.comparisons), dtype=torch.int64)
        all_once[subset] = self.count[subset]
        if self.config.ensemble == 1:
            return [all_once]
        pool = torch.tensor(subset).repeat_interleave(self.count[subset])
        found = []
        for k in range(self.config.ensemble):
            generator = torch.Generator().manual_seed(derive(self.config.seed, "labels of a member", k, len(subset)))
            drawn = pool[torch.randint(len(pool), (len(pool),), generator=generator)]
            counts = torch.bincount(drawn, minlength=len(self.comparisons))
            found.append(counts if bool((counts[~self.tie] > 0).any()) else all_once)
        return found

    def warm(self, head: RewardHead, subset: list[int], draw: Tensor) -> None:
        """Fit the head on frozen features; the bias makes the base's mean score 0, as the centring penalty wants it."""
        index = torch.tensor(subset)
        labels = Labels(self.tie[index], self.margin[index], draw[index].double(), self.config.label_smoothing)
        weights = self.stretch(fit(self.differences[index], labels, self.config.ridge)[None])[0]
        with torch.no_grad():
            head.linear.weight.copy_(weights[None])
            head.linear.bias.copy_(-(self.stretch.mean @ weights)[None])

    def descend(self, model: RewardModel, what: Fit, draws: list[Tensor]) -> list[float]:
        """AdamW on adapter and heads; the loss of every update. Raises NotFiniteError before a broken gradient is applied."""
        config, subset = self.config, what.subset
        heads = [p for head in model.head.heads for p in head.linear.parameters()]
        parameters = [*self.adapters.parameters(self.adapter), *heads]
        optimiser = fused(torch.optim.AdamW, parameters, lr=config.lr, weight_decay=config.weight_decay)
        generator = torch.Generator().manual_seed(derive(config.seed, "order", what.purpose))
        total, losses = self.updates(len(subset), config.epochs), list[float]()
        what.at_pass(0, model)
        for done in range(1, what.epochs + 1):
            order = torch.randperm(len(subset), generator=generator).tolist()
            for start in range(0, len(order), config.batch_size):
                self.tick()
                whole = self.gradient(model, [subset[i] for i in order[start : start + config.batch_size]], draws)
                self.group.add_gradients(parameters)
                norm = torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
                self.group.add_up([whole])
                _check_finite({"loss": float(whole), "gradient": float(norm)}, len(losses))
                for group in optimiser.param_groups:
                    group["lr"] = config.lr * (1 - len(losses) / total)
                optimiser.step()
                optimiser.zero_grad()
                losses.append(float(whole))
                what.count(losses[-1])
            what.at_pass(done, model)
        return losses

    def gradient(self, model: RewardModel, batch: list[int], draws: list[Tensor]) -> Tensor:
        """Of one batch; returns its loss. The graph ends here (gradient_step.micro_gradient)."""
        loss = self.loss(model, batch, draws)
        if loss.requires_grad:
            loss.backward()
        return loss.detach().clone()

    def loss(self, model: RewardModel, batch: list[int], draws: list[Tensor]) -> Tensor:
        """The mean over the members of their losses on a batch, each label as often as the member has drawn it.

        Of several processes each has the part of its rows: the batch's loss is their sum.
        """
        index = batch[self.group.slice(len(batch))]
        if index:
            return self.part(model, index, draws, [int(draw[batch].sum()) for draw in draws])
        if self.backbone.shards is None:
            return torch.zeros((), device=self.backbone.device)
        return 0.0 * self.part(model, batch[:1], draws, [1] * len(draws))  # a pass that the others need

    def part(self, model: RewardModel, index: list[int], draws: list[Tensor], counts: list[int]) -> Tensor:
        """What some rows add to the loss of a batch. counts: how many labels of the batch each member has drawn."""
        rows = make_rows(
            self.backbone,
            [self.prompts[i] for i in index] * 2,
            [self.chosen[i] for i in index] + [self.rejected[i] for i in index],
        )
        with self.adapters.using(model.adapter):
            scores = model.head.raw_members(forward(self.backbone, rows).read, rows.mask)
        losses, members = [], sum(count > 0 for count in counts)
        for member, draw, count in zip(scores, draws, counts, strict=True):
            times = torch.repeat_interleave(torch.arange(len(index)), draw[torch.tensor(index)])
            if len(times):
                chosen, rejected = member.chunk(2)
                own = self.pair_loss(chosen[times], rejected[times], torch.tensor(index)[times])
                losses.append(own * (len(times) / count / members))
        return torch.stack(losses).sum() if losses else scores.sum() * 0.0

    def pair_loss(self, chosen: Tensor, rejected: Tensor, which: Tensor) -> Tensor:
        """Bradley-Terry and the penalties; which: (n,) the comparisons that the raw scores (n,) belong to."""
        config = self.config
        loss = bradley_terry_loss(
            chosen, rejected, margin=self.margin[which].to(chosen), tie=self.tie[which].to(chosen.device),
            label_smoothing=config.label_smoothing,
        )  # fmt: skip
        loss = loss + config.centering * centring_penalty(chosen, rejected)
        return loss + config.score_l2 * score_l2(chosen, rejected) if config.score_l2 else loss

    def predict(self, model: RewardModel, held: list[int]) -> list[HeldOut]:
        """The probability of each label of `held`, the mean over the members; normalisation does not touch it."""
        prompts = [self.prompts[i] for i in held]
        chosen = self.asked(model.raw_scores, prompts, [self.chosen[i] for i in held]).double()
        rejected = self.asked(model.raw_scores, prompts, [self.rejected[i] for i in held]).double()
        probabilities = torch.sigmoid(chosen - rejected).mean(dim=0)
        return [HeldOut(i, float(p)) for i, p in zip(held, probabilities, strict=True)]


def _check_finite(found: dict[str, float], updates: int) -> None:
    """Raises NotFiniteError that names the first number that is broken. updates: how many were done before."""
    for name, value in found.items():
        if not math.isfinite(value):
            raise NotFiniteError(
                f"the reward model's {name} became {value} after {updates} updates. "
                "Lower its learning rate (lr); the labels are untouched."
            )
