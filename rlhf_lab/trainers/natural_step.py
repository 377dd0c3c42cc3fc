"""A step of trpo: up the natural gradient of the surrogate, as far as the trust region allows; then the values.

Schulman et al. 2015. The pieces (conjugate gradient, Fisher products, line search) are in core/trust_region; here they meet
the policy. The curvature is taken from fisher_rows responses and recomputed at every product, so that its graph never holds
more than a micro-batch. The limit itself is checked on all responses, with the exact KL over the vocabulary.
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from rlhf_lab.core.kl import full_kl
from rlhf_lab.core.policy_losses import token_mean
from rlhf_lab.core.trust_region import Search, fisher_product, flatten, line_search, natural_step, unflatten
from rlhf_lab.trainers.gradient_step import learn_values
from rlhf_lab.trainers.metrics import UpdateStats
from rlhf_lab.trainers.objectives import policy_loss, whole_of
from rlhf_lab.trainers.rollout import Rollout, response_logprobs

if TYPE_CHECKING:
    from rlhf_lab.trainers.policy import PolicyTrainer


def update(trainer: "PolicyTrainer", rollout: Rollout) -> UpdateStats:
    """One natural step of the policy (none where no fraction of it is allowed), then the epochs of the values."""
    stats = UpdateStats(clips=False)
    if trainer.steps_done >= trainer.config.value_warmup:
        search = NaturalStep(trainer, rollout).take(stats)
        stats.figures |= {
            "policy/step_kl": search.kl if search.fraction else 0.0,
            "policy/step_fraction": search.fraction,
        }
    learn_values(trainer, rollout, stats)
    return stats


class NaturalStep:
    """The step of one rollout. The parameters are the policy adapter's; the values' stay."""

    def __init__(self, trainer: "PolicyTrainer", rollout: Rollout) -> None:
        self.trainer, self.rollout, self.config, self.policy = trainer, rollout, trainer.config, trainer.policy
        self.parameters = trainer.adapters.parameters(trainer.policy.adapter)
        self.parts = [part for minibatch in trainer.minibatches(0, rollout.rows) for part in minibatch]
        self.whole = whole_of(rollout, self.parts)
        chosen = torch.cat(self.parts).sort().values[: self.config.fisher_rows]
        self.sample = list(chosen.split(self.config.micro_batch))
        self.sample_tokens = whole_of(rollout, self.sample).tokens

    def take(self, stats: UpdateStats) -> Search:
        """Move the parameters. Raises SelfCheckError where the ratios before it are not 1."""
        gradient, loss = self.gradient(stats)
        self.trainer.check_first_ratio(stats.first_ratio_deviation)
        step = natural_step(gradient, self.curvature, self.config.max_kl, self.config.cg_iters)
        before = [parameter.detach().clone() for parameter in self.parameters]
        states = [self._states(part) for part in self.parts]
        tried = stats

        def evaluate(fraction: float) -> tuple[float, float]:
            nonlocal tried
            self.move(before, step, fraction)
            tried = UpdateStats()
            new_loss, kl = self.judge(states, tried)
            return loss - new_loss, kl

        search = line_search(evaluate, self.config.max_kl, expected_gain=max(0.0, float(gradient @ step)))
        if not search.fraction:
            self.move(before, step, 0.0)
        else:
            stats.current = tried.current
        stats.finish_update(gradient.norm())
        return search

    def gradient(self, stats: UpdateStats) -> tuple[Tensor, float]:
        """(n,) gradient of the surrogate, to be increased, and its loss before the step."""
        total, loss = torch.zeros_like(flatten(self.parameters)), 0.0
        stats.begin_update()
        for index in self.parts:
            self.trainer.tick()
            part = self.rollout.take(index)
            now = self.policy.evaluate(part.rows, self.config.temperature)
            policy = policy_loss(now.logprobs, part, self.whole, self.config, self.trainer.weights)
            slopes = torch.autograd.grad(policy.loss, self.parameters, materialize_grads=True)
            total -= flatten(slopes)
            loss += float(policy.loss.detach())
            entropy = token_mean(now.entropy, part.rows.mask, self.whole.tokens)
            stats.add_policy(policy, now.logprobs, part.old_logprobs, part.rows.mask, entropy)
        return total, loss

    def curvature(self, vector: Tensor) -> Tensor:
        """(F + damping I) v; F is the Fisher information of the policy per token."""
        total = self.config.cg_damping * vector
        for index in self.sample:
            self.trainer.tick()
            rows = self.rollout.take(index).rows
            with sdpa_kernel(SDPBackend.MATH):  # the fused attention cannot be differentiated twice
                logits = self.policy.backbone.logits(self.policy.predicting(rows)[rows.real])
                kl = full_kl(logits.detach(), logits, self.config.temperature).sum() / self.sample_tokens
                total = total + fisher_product(kl, self.parameters)(vector)
        return total

    def move(self, before: list[Tensor], step: Tensor, fraction: float) -> None:
        with torch.no_grad():
            for parameter, start, change in zip(self.parameters, before, unflatten(step, before), strict=True):
                parameter.copy_(start + fraction * change)

    @torch.no_grad()
    def judge(self, states: list[Tensor], stats: UpdateStats) -> tuple[float, float]:
        """Loss of the surrogate and mean KL(old || new) per token, now. states: (N, H) of the old policy, part by part."""
        loss = kl = 0.0
        backbone, temperature = self.policy.backbone, self.config.temperature
        for index, old in zip(self.parts, states, strict=True):
            self.trainer.tick()
            part = self.rollout.take(index)
            mask, hidden = part.rows.mask, self.policy.predicting(part.rows)
            now = hidden[part.rows.real]
            if not bool(torch.isfinite(now).all()):
                return math.nan, math.nan
            logprobs, entropies = response_logprobs(backbone, hidden, part.rows, temperature)
            policy = policy_loss(logprobs, part, self.whole, self.config, self.trainer.weights)
            loss += float(policy.loss)
            distance = full_kl(backbone.logits(old), backbone.logits(now), temperature)
            kl += float(distance.sum() / self.whole.tokens)
            entropy = token_mean(entropies, mask, self.whole.tokens)
            stats.add_policy(policy, logprobs, part.old_logprobs, mask, entropy)
        return loss, kl

    @torch.no_grad()
    def _states(self, index: Tensor) -> Tensor:
        rows = self.rollout.take(index).rows
        return self.policy.predicting(rows)[rows.real]
