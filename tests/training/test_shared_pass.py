"""Scores and the reference's log-probabilities from one forward pass, where the reward head reads the reference's states."""

import pytest
import torch
from support import tiny_models

from rlhf_lab.common.progress import no_progress
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.features import FeatureSpec
from rlhf_lab.models.heads import EnsembleHead, RewardHead
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.models.sampling.sampler import Sampled
from rlhf_lab.training.policy.rollout import score_responses, sequence_log_ratios
from rlhf_lab.training.policy.trainer import PolicyTask, PolicyTrainer

ALL = FeatureSpec("mean", 0.25, "all")


def head_of(backbone, spec, members=1):
    size = spec.size(backbone)
    head = RewardHead(size, spec, 3) if members == 1 else EnsembleHead(size, spec, list(range(members)))
    return head.requires_grad_(False)


def trainer_on(folder, spec=ALL, members=1, steps_done=1, **changes):
    """On a head without an adapter; after the first step the policy has left the reference."""
    backbone = tiny_models.load(folder)
    adapters = Adapters(backbone)
    scorer = RewardModel(backbone, adapters, None, head_of(backbone, spec, members))
    config = PolicyConfig(**(tiny_models.SMALL | {"temperature": 0.7} | changes))
    trainer = PolicyTrainer(backbone, adapters, PolicyTask(tiny_models.PROMPTS, scorer), config)
    if steps_done:
        tiny_models.disturb(adapters, "policy", scale=0.05)
    trainer.state.steps_done = steps_done
    return trainer


def score(trainer, prompts, responses, scorer=None):
    state = trainer.state
    return score_responses(state.policy, scorer or trainer.scorer, prompts, responses, state.config, no_progress)


@pytest.mark.parametrize(("spec", "members"), [(ALL, 1), (ALL, 3), (FeatureSpec("last"), 1)])
def test_both_equal_those_of_passes_of_their_own(folders, spec, members):
    """Ragged rows: each response token under the frozen model, one row at a time, and 0 on padding."""
    for folder in folders.values():
        trainer = trainer_on(folder, spec, members)
        prompts, responses = tiny_models.ragged()
        scored = score(trainer, prompts, responses)
        expected = trainer.scorer.scores(prompts, responses)
        assert scored.scores.tolist() == pytest.approx(expected.tolist(), abs=1e-5)
        assert scored.ref_logprobs.shape == (len(prompts), max(map(len, responses)))
        for row, prompt, response in zip(scored.ref_logprobs, prompts, responses, strict=True):
            with trainer.adapters.using(None):
                logprobs = tiny_models.teacher_forced(trainer.backbone, prompt, response, 0.7).tolist()
            padding = [0.0] * (len(row) - len(response))
            assert row.tolist() == pytest.approx([*logprobs, *padding], abs=1e-4)


def test_a_step_is_the_same_with_and_without_sharing(llama_folder):
    """Without: the caller's scores."""
    prompts, responses = tiny_models.ragged(rows=6)
    shared, apart = (trainer_on(llama_folder) for _ in range(2))
    sampled = Sampled(responses, [[0.0] * len(row) for row in responses])
    scores = apart.scorer.scores(prompts, responses)
    actual = shared.train_on_samples(prompts, sampled).metrics
    expected = apart.step(prompts, responses, scores).metrics
    assert actual["objective/kl"] == pytest.approx(expected["objective/kl"], rel=1e-4)
    assert abs(actual["objective/kl"]) > 1e-3
    assert actual["objective/scores"] == pytest.approx(expected["objective/scores"], abs=1e-5)
    actual_weights, expected_weights = (tiny_models.weights(trainer) for trainer in (shared, apart))
    for name, weight in expected_weights.items():
        torch.testing.assert_close(actual_weights[name], weight, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("steps_done", [0, 1])
def test_the_reference_is_not_read_twice(llama_folder, steps_done):
    """One pass for the scores and the reference, one for the old log-probabilities, and one for each of two epochs.

    In the first step the reference is read as the policy is: its KL has to be 0, which is a self-check.
    """
    trainer = trainer_on(llama_folder, steps_done=steps_done, minibatches=1, micro_batch=6, token_rows=0)
    passes, layer_states = [], trainer.backbone.fused_layers.layer_states

    def counted(trunk, input_ids, start_pos):
        passes.append((trainer.adapters._active.name, len(input_ids)))
        return layer_states(trunk, input_ids, start_pos)

    trainer.backbone.fused_layers.layer_states = counted
    prompts, responses = tiny_models.ragged(rows=6)
    trainer.train_on_samples(prompts, Sampled(responses, [[0.0] * len(row) for row in responses]))
    reference = [] if steps_done else [(None, 6)]
    assert passes == [(None, 6), ("policy", 6), *reference, ("policy", 6), ("policy", 6)]


def test_held_out_kl_from_the_shared_pass(llama_folder):
    trainer = trainer_on(llama_folder)
    prompts, responses = tiny_models.ragged()
    ref_logprobs = score(trainer, prompts, responses).ref_logprobs
    actual, expected = (
        sequence_log_ratios(trainer.state.policy, prompts, responses, 0.7, no_progress, known)
        for known in (ref_logprobs, None)
    )
    assert float(expected.abs().max()) > 1e-3
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-5)


def test_other_scorers_share_nothing(llama_folder):
    """An adapter, another backbone, a subclass with its own scores, and the exact KL, which needs the reference's states."""

    class Halved(RewardModel):
        def scores(self, *args):
            return super().scores(*args) / 2

    trainer = trainer_on(llama_folder)
    prompts, responses = tiny_models.ragged()
    backbone, adapters, head = trainer.backbone, trainer.adapters, trainer.scorer.head
    adapters.add("reward", r=2, alpha=2, seed=1, trainable=False)
    other = tiny_models.load(llama_folder)
    scorers = (
        RewardModel(backbone, adapters, "reward", head),
        RewardModel(other, Adapters(other), None, head),
        Halved(backbone, adapters, None, head),
        tiny_models.CountToken(tiny_models.ID["cat"]),
    )
    for scorer in scorers:
        scored = score(trainer, prompts, responses, scorer)
        assert scored.ref_logprobs is None
        assert scored.scores.tolist() == pytest.approx(scorer.scores(prompts, responses).tolist(), abs=1e-6)
    exact = trainer_on(llama_folder, kl_estimator="full")
    assert score(exact, prompts, responses).ref_logprobs is None
