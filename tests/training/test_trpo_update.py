"""Trust region: the constraint holds, the curvature is that of the KL, value updates do not change the policy."""

import math

import pytest
import torch
from support import tiny_models

from rlhf_lab.core.kl import full_kl
from rlhf_lab.models.fused_llama import patch
from rlhf_lab.models.lora_linear import _MergedLinear, _UnmergedLinear
from rlhf_lab.training.policy.metrics import UpdateStats
from rlhf_lab.training.policy.trpo_update import NaturalGradientStep


def exact_kl_of(trainer, rollout, before):
    """Token mean of KL(old || new) over the vocabulary, a row at a time. before: (R, V) logits of the old policy by row."""
    total = 0.0
    for i, old in enumerate(before):
        rows = rollout.select(torch.tensor([i])).batch
        with torch.no_grad():
            new = trainer.backbone.logits(trainer.state.policy.prediction_states(rows)[rows.mask])
        total += float(full_kl(old, new, trainer.state.config.temperature).sum())
    return total / int(rollout.batch.mask.sum())


def surrogate_of(trainer, rollout):
    """Token mean of -A r, a row and a token at a time."""
    total, (prompts, responses) = 0.0, tiny_models.ragged(rows=6)
    for i, response in enumerate(responses):
        with trainer.adapters.using("policy"):
            new = tiny_models.teacher_forced(
                trainer.backbone, prompts[i // 2 * 2], response, trainer.state.config.temperature
            )
        for t in range(len(response)):
            total -= float(rollout.advantages[i, t]) * math.exp(float(new[t]) - float(rollout.old_logprobs[i, t]))
    return total / sum(len(response) for response in responses)


@pytest.mark.parametrize(("max_kl", "temperature"), [(0.002, 1.0), (0.05, 1.0), (0.01, 0.6)])
def test_trpo_holds_its_constraint_and_gains(llama_folder, max_kl, temperature):
    trainer = tiny_models.midway(
        llama_folder, "trpo", torch.float64, max_kl=max_kl, fisher_rows=6, vf_coef=0.0, temperature=temperature
    )
    rollout = tiny_models.rollout(trainer)
    before = []
    for i in range(6):
        rows = rollout.select(torch.tensor([i])).batch
        with torch.no_grad():
            before.append(trainer.backbone.logits(trainer.state.policy.prediction_states(rows)[rows.mask]))
    stats = trainer.update(rollout, 1e-3)
    kl = exact_kl_of(trainer, rollout, before)
    assert stats.extra_metrics["policy/step_kl"] == pytest.approx(kl, rel=1e-6)
    assert 0.2 * max_kl < kl <= max_kl
    assert stats.extra_metrics["policy/step_fraction"] in (1.0, 0.5, 0.25)
    now = UpdateStats()
    natural = NaturalGradientStep(trainer.state, rollout)
    loss, _ = natural.evaluate_surrogate([natural._response_states(part) for part in natural.micro_batches], now)
    assert loss < -1e-3  # whitened advantages: 0 before the step
    assert stats.mean("policy") == pytest.approx(loss, rel=1e-6)
    assert loss == pytest.approx(surrogate_of(trainer, rollout), rel=1e-4)


@pytest.mark.parametrize("rows", [6, 3])
def test_trpo_curvature_is_the_hessian_of_the_kl(gpt2_folder, rows):
    """Of all rows or the first few, against differences of the KL's own gradient, which is 0 where the policies meet."""
    settings = {"fisher_rows": rows, "cg_damping": 0.0, "micro_batch": 4, "temperature": 0.8}
    trainer = tiny_models.midway(gpt2_folder, "trpo", torch.float64, **settings)
    check_curvature(trainer, step=1e-5, tolerance=1e-6)


def test_trpo_curvature_through_merged_layers(llama_folder):
    """Llama's norms compute in float32, so the differences are coarse."""
    trainer = tiny_models.midway(llama_folder, "trpo", torch.float64, fisher_rows=6, cg_damping=0.0, micro_batch=4)
    check_curvature(trainer, step=3e-4, tolerance=2e-3)


def test_a_merged_layer_can_be_differentiated_twice():
    """Its product M = W + s B A depends on A and B, also in the gradient of the input."""
    generator = torch.Generator().manual_seed(0)
    x, a, b, w = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((3, 4), (2, 4), (5, 2), (5, 4))
    )

    def product(x, a, b):
        return _MergedLinear.apply(x, a, b, (w + 0.5 * b @ a).detach(), None, 0.5)

    assert torch.autograd.gradgradcheck(product, [tensor.requires_grad_() for tensor in (x, a, b)])


def test_a_half_precision_layer_can_be_differentiated_twice():
    """Its converted A and s B, and their product with the input, depend on A, B and the input."""
    generator = torch.Generator().manual_seed(0)
    x, a, b = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((3, 4), (2, 4), (5, 2)))
    base = torch.nn.Linear(4, 5, dtype=torch.float64).requires_grad_(False)

    def product(x, a, b):
        return _UnmergedLinear.apply(x, a, b, a.detach(), 0.5 * b.detach(), base, 0.5)

    assert torch.autograd.gradgradcheck(product, [tensor.requires_grad_() for tensor in (x, a, b)])


@pytest.mark.parametrize(("kind", "whole"), [("llama", True), ("llama", False), ("gpt2", False)])
def test_trpo_curvature_in_half_precision_is_that_of_float32(folders, kind, whole, monkeypatch):
    """With fused layers and with modules."""
    if not whole:
        monkeypatch.setattr(patch, "SUPPORTED_LAYERS", ())
    actual = []
    for dtype in (torch.float32, torch.bfloat16):
        trainer = tiny_models.midway(folders[kind], "trpo", dtype, fisher_rows=6, cg_damping=0.0)
        natural = NaturalGradientStep(trainer.state, tiny_models.rollout(trainer))
        generator = torch.Generator().manual_seed(3)
        vector = torch.randn(sum(p.numel() for p in natural.parameters), generator=generator)
        actual.append(natural.fisher_vector_product(vector))
    assert torch.cosine_similarity(*actual, dim=0) > 0.98
    assert float(actual[1].norm() / actual[0].norm()) == pytest.approx(1.0, abs=0.15)


def check_curvature(trainer, step, tolerance):
    rollout = tiny_models.rollout(trainer)
    natural = NaturalGradientStep(trainer.state, rollout)
    parameters = natural.parameters
    generator = torch.Generator().manual_seed(3)
    vector = torch.randn(sum(p.numel() for p in parameters), generator=generator, dtype=torch.float64)
    actual = natural.fisher_vector_product(vector)
    rows = rollout.batch.select(torch.arange(trainer.state.config.fisher_rows))
    count = int(rows.mask.sum())
    with torch.no_grad():
        old = trainer.backbone.logits(trainer.state.policy.prediction_states(rows)[rows.mask])
    before = [p.detach().clone() for p in parameters]

    def kl_gradient(size):
        natural.set_parameters(before, vector, size)
        new = trainer.backbone.logits(trainer.state.policy.prediction_states(rows)[rows.mask])
        return torch.cat(
            [
                g.flatten()
                for g in torch.autograd.grad(
                    full_kl(old, new, trainer.state.config.temperature).sum() / count, parameters
                )
            ]
        )

    expected = (kl_gradient(step) - kl_gradient(-step)) / (2 * step)
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance * float(expected.abs().max()))
    assert float(expected.norm()) > 1e-2


def test_trpo_computes_one_fisher_product_per_iteration_and_one_more(llama_folder, monkeypatch):
    """A product for each iteration, and one for the length of the step."""
    requested, curvature = [], NaturalGradientStep.fisher_vector_product
    monkeypatch.setattr(
        NaturalGradientStep,
        "fisher_vector_product",
        lambda self, vector: requested.append(0) or curvature(self, vector),
    )
    trainer = tiny_models.midway(llama_folder, "trpo", cg_iters=2)
    trainer.update(tiny_models.rollout(trainer), 1e-3)
    assert len(requested) == 3


@pytest.mark.parametrize("trunk", ["detached", "critic"])
def test_the_gradient_norm_of_trpo_is_the_surrogates(llama_folder, trunk):
    """Value updates, whose parameters are not part of the step, do not count."""
    trainer = tiny_models.midway(llama_folder, "trpo", value_trunk=trunk, vf_coef=10.0)
    rollout = tiny_models.rollout(trainer)
    gradient, _ = NaturalGradientStep(trainer.state, rollout).surrogate_gradient(UpdateStats())
    stats = trainer.update(rollout, 1e-3)
    assert stats.update_count > 1
    assert stats.mean("grad_norm") == pytest.approx(float(gradient.norm()), rel=1e-5)


def test_trpo_keeps_the_policy_if_no_step_is_accepted(llama_folder):
    """Advantages of 0: there is no direction that gains."""
    trainer = tiny_models.midway(llama_folder, "trpo")
    rollout = tiny_models.rollout(trainer)
    policy = trainer.adapters.tensors("policy")
    stats = trainer.update(rollout._replace(advantages=torch.zeros_like(rollout.advantages)), 1e-2)
    assert tiny_models.same(trainer.adapters.tensors("policy"), policy)
    assert (stats.extra_metrics["policy/step_kl"], stats.extra_metrics["policy/step_fraction"]) == (0.0, 0.0)
    assert stats.has("value")


@pytest.mark.parametrize("trunk", ["detached", "critic"])
def test_value_updates_of_trpo_do_not_change_the_policy(llama_folder, trunk):
    trainer = tiny_models.midway(llama_folder, "trpo", value_trunk=trunk, value_warmup=5)
    before, head = trainer.adapters.tensors("policy"), trainer.state.policy.value_head.linear.weight.detach().clone()
    metrics = trainer.run_step().metrics
    assert tiny_models.same(trainer.adapters.tensors("policy"), before)
    assert not torch.equal(trainer.state.policy.value_head.linear.weight, head)
    assert metrics["loss/value_avg"] > 0


def test_trpo_curvature_is_damped(gpt2_folder):
    """On a direction of zeros but for one weight: F v + 0.3 v against F v."""
    actual = []
    for damping in (0.0, 0.3):
        trainer = tiny_models.midway(gpt2_folder, "trpo", torch.float64, cg_damping=damping)
        natural = NaturalGradientStep(trainer.state, tiny_models.rollout(trainer))
        vector = torch.zeros(sum(p.numel() for p in natural.parameters), dtype=torch.float64)
        vector[7] = 2.0
        actual.append(natural.fisher_vector_product(vector))
    torch.testing.assert_close(actual[1] - actual[0], 0.3 * vector)


@pytest.mark.parametrize("answer", [(math.nan, math.nan), (5.0, 0.0), (-1e-6, 0.0)])
def test_trpo_reverts_a_rejected_step(llama_folder, monkeypatch, answer):
    """No fraction is accepted: NaN, no gain, or (from 0) far less than the expected gain."""
    monkeypatch.setattr(NaturalGradientStep, "evaluate_surrogate", lambda *_: answer)
    trainer = tiny_models.midway(llama_folder, "trpo", max_kl=0.05)
    rollout, before = tiny_models.rollout(trainer), trainer.adapters.tensors("policy")
    stats = trainer.update(rollout, 1e-3)
    assert tiny_models.same(trainer.adapters.tensors("policy"), before)
    assert (stats.extra_metrics["policy/step_kl"], stats.extra_metrics["policy/step_fraction"]) == (0.0, 0.0)


def test_trpo_halves_a_step_that_goes_too_far(llama_folder, monkeypatch):
    """Measured: 0.08, 0.04 and 0.02 nats for the whole step, a half and a quarter; with a limit of 0.03 a quarter is taken."""
    answers = iter([(-9.0, 0.08), (-9.0, 0.04), (-9.0, 0.02)])
    monkeypatch.setattr(NaturalGradientStep, "evaluate_surrogate", lambda *_: next(answers))
    trainer = tiny_models.midway(llama_folder, "trpo", max_kl=0.03)
    rollout, before = tiny_models.rollout(trainer), trainer.adapters.tensors("policy")
    stats = trainer.update(rollout, 1e-3)
    assert (stats.extra_metrics["policy/step_kl"], stats.extra_metrics["policy/step_fraction"]) == (0.02, 0.25)
    assert not tiny_models.same(trainer.adapters.tensors("policy"), before)
