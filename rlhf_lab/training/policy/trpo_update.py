"""A step of trpo: along the natural gradient of the surrogate as far as the trust region allows, then the value updates.

Schulman et al. 2015. Conjugate gradient, Fisher products and line search are in core/trpo.py; this module applies them to the
policy. The Fisher matrix is estimated from fisher_rows responses and recomputed for every product, so that its graph never
holds more than a micro-batch. The KL limit is checked on all responses, with the exact KL over the vocabulary.
"""

import math

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from rlhf_lab.core.kl import full_kl
from rlhf_lab.core.policy_losses import token_mean
from rlhf_lab.core.trpo import LineSearchResult, fisher_product, flatten, line_search, natural_step, unflatten
from rlhf_lab.kernels.ops import HALF_DTYPES
from rlhf_lab.training.policy.invariants import check_first_ratio
from rlhf_lab.training.policy.kl_budget import ROUNDING_SHARE, kl_minus_rounding
from rlhf_lab.training.policy.metrics import UpdateStats
from rlhf_lab.training.policy.objectives import loss_denominators, policy_loss
from rlhf_lab.training.policy.rollout import Rollout, response_logprobs
from rlhf_lab.training.policy.train_state import TrainState
from rlhf_lab.training.policy.update import value_only_update


def trpo_update(state: TrainState, rollout: Rollout) -> UpdateStats:
    """One natural gradient step of the policy (none if the line search accepts no fraction of it), then the value epochs."""
    stats = UpdateStats(has_clipping=False)
    if state.steps_done >= state.config.value_warmup:
        search = NaturalGradientStep(state, rollout).apply(stats)
        stats.extra_metrics |= {
            "policy/step_kl": search.kl if search.fraction else 0.0,
            "policy/step_fraction": search.fraction,
        }
    value_only_update(state, rollout, stats)
    return stats


class NaturalGradientStep:
    """The natural gradient step on one rollout. It changes the policy adapter only, not the value function."""

    def __init__(self, state: TrainState, rollout: Rollout) -> None:
        self.state, self.rollout, self.config, self.policy = state, rollout, state.config, state.policy
        self.parameters = state.policy.adapters.parameters(state.policy.adapter)
        self.micro_batches = [indices for minibatch in state.minibatches(0, rollout.batch) for indices in minibatch]
        self.denominators = loss_denominators(rollout, self.micro_batches)
        fisher_indices = torch.cat(self.micro_batches).sort().values[: self.config.fisher_rows]
        self.fisher_batches = list(fisher_indices.split(self.config.micro_batch))
        limit = state.kl_control.max_update_kl * self.denominators.responses / self.denominators.tokens
        self.max_kl = min(self.config.max_kl, limit)
        self.fisher_tokens = loss_denominators(rollout, self.fisher_batches).tokens

    def apply(self, stats: UpdateStats) -> LineSearchResult:
        """Update the parameters. Raises SelfCheckError if the ratios before the step are not 1."""
        gradient, loss = self.surrogate_gradient(stats)
        dtype = self.policy.backbone.model.dtype
        check_first_ratio(stats.max_first_ratio_deviation, dtype, self.state.steps_done + 1)
        step = natural_step(gradient, self.fisher_vector_product, self.max_kl, self.config.cg_iters)
        initial = [parameter.detach().clone() for parameter in self.parameters]
        old_states = [self._response_states(indices) for indices in self.micro_batches]
        trial_stats, rounding = stats, 0.0

        def evaluate(fraction: float) -> tuple[float, float]:
            nonlocal trial_stats
            self.set_parameters(initial, step, fraction)
            trial_stats = UpdateStats()
            new_loss, kl = self.evaluate_surrogate(old_states, trial_stats)
            return loss - new_loss, kl_minus_rounding(kl, rounding)

        if dtype in HALF_DTYPES:
            kl = evaluate(ROUNDING_SHARE)[1]
            rounding = kl if math.isfinite(kl) else 0.0
        search = line_search(evaluate, self.max_kl, expected_gain=max(0.0, float(gradient @ step)))
        if not search.fraction:
            self.set_parameters(initial, step, 0.0)
        else:
            stats.current = trial_stats.current
        stats.finish_update(gradient.norm())
        return search

    def surrogate_gradient(self, stats: UpdateStats) -> tuple[Tensor, float]:
        """(n,) ascent direction of the surrogate, that is minus the gradient of its loss, and the loss before the step."""
        total, loss = torch.zeros_like(flatten(self.parameters)), 0.0
        stats.begin_update()
        for indices in self.micro_batches:
            self.state.on_progress()
            micro_batch = self.rollout.select(indices)
            output = self.policy.evaluate(micro_batch.batch, self.config.temperature)
            policy_terms = policy_loss(
                output.logprobs, micro_batch, self.denominators, self.config, self.state.coefficients
            )
            grads = torch.autograd.grad(policy_terms.loss, self.parameters, materialize_grads=True)
            total -= flatten(grads)
            loss += float(policy_terms.loss.detach())
            entropy = token_mean(output.entropy, micro_batch.batch.mask, self.denominators.tokens)
            stats.add_policy(policy_terms, output.logprobs, micro_batch.old_logprobs, micro_batch.batch.mask, entropy)
        return total, loss

    def fisher_vector_product(self, vector: Tensor) -> Tensor:
        """(F + damping I) v, where F is the Fisher information matrix of the policy per token."""
        total = self.config.cg_damping * vector
        for indices in self.fisher_batches:
            self.state.on_progress()
            batch = self.rollout.select(indices).batch
            with sdpa_kernel(SDPBackend.MATH):  # the fused attention cannot be differentiated twice
                logits = self.policy.backbone.logits(self.policy.prediction_states(batch)[batch.response_indices])
                kl = full_kl(logits.detach(), logits, self.config.temperature).sum() / self.fisher_tokens
                total = total + fisher_product(kl, self.parameters)(vector)
        return total

    def set_parameters(self, initial: list[Tensor], step: Tensor, fraction: float) -> None:
        with torch.no_grad():
            for parameter, start, change in zip(self.parameters, initial, unflatten(step, initial), strict=True):
                parameter.copy_(start + fraction * change)

    @torch.no_grad()
    def evaluate_surrogate(self, old_states: list[Tensor], stats: UpdateStats) -> tuple[float, float]:
        """Loss of the surrogate and mean KL(old || new) per token under the current parameters.

        old_states: for each micro-batch (N, H), the hidden states of the old policy at the N response tokens.
        """
        loss = kl = 0.0
        backbone, temperature = self.policy.backbone, self.config.temperature
        for indices, old_batch_states in zip(self.micro_batches, old_states, strict=True):
            self.state.on_progress()
            micro_batch = self.rollout.select(indices)
            mask, hidden = micro_batch.batch.mask, self.policy.prediction_states(micro_batch.batch)
            new_batch_states = hidden[micro_batch.batch.response_indices]
            if not bool(torch.isfinite(new_batch_states).all()):
                return math.nan, math.nan
            logprobs, entropies = response_logprobs(backbone, hidden, micro_batch.batch, temperature)
            policy_terms = policy_loss(logprobs, micro_batch, self.denominators, self.config, self.state.coefficients)
            loss += float(policy_terms.loss)
            token_kl = full_kl(backbone.logits(old_batch_states), backbone.logits(new_batch_states), temperature)
            kl += float(token_kl.sum() / self.denominators.tokens)
            entropy = token_mean(entropies, mask, self.denominators.tokens)
            stats.add_policy(policy_terms, logprobs, micro_batch.old_logprobs, mask, entropy)
        return loss, kl

    @torch.no_grad()
    def _response_states(self, indices: Tensor) -> Tensor:
        batch = self.rollout.select(indices).batch
        return self.policy.prediction_states(batch)[batch.response_indices]
