"""A run with a KL budget: limited updates, the adapted learning rate, the unit of the scores, the best checkpoint."""

import json
import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tiny_models
from support.algorithm_names import FIRST_ORDER_ALGORITHMS

from rlhf_lab.common.algorithms import ALGORITHMS
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import ConfigError, TrainingError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.training.checkpoints import load_latest, save_checkpoint
from rlhf_lab.training.policy import kl_budget, kl_control, run_evaluation
from rlhf_lab.training.policy.kl_control import KLBudgetWithBeta
from rlhf_lab.training.policy.rollout import ScoredResponses
from rlhf_lab.training.policy.trainer import PolicyTask, PolicyTrainer
from rlhf_lab.training.policy.trpo_update import NaturalGradientStep

EVAL_PROMPTS = ("a bird", "the old house", "good")
CAT = tiny_models.ID["cat"]


def budget_trainer(folder, scorer=None, eval_prompts=EVAL_PROMPTS, dtype=torch.float32, **changes):
    backbone = tiny_models.load(folder, dtype)
    task = PolicyTask(
        tiny_models.PROMPTS, scorer or tiny_models.CountToken(CAT), tiny_models.PROMPTS[:2], eval_prompts=eval_prompts
    )
    settings = tiny_models.SMALL | {"kl_budget": 2.0, "checkpoint_every": 2} | changes
    return PolicyTrainer(backbone, Adapters(backbone), task, PolicyConfig(**settings))


def sequence_kl(trainer, rollout):
    """KL(old || new) by k3 of the sampled tokens, one row at a time without padding, cache or kernels, in float64."""
    total = 0.0
    for i in range(len(rollout.scores)):
        prompt = rollout.batch.prompts[i][rollout.batch.prompt_mask[i].bool()].tolist()
        response = rollout.batch.responses[i][rollout.batch.mask[i]].tolist()
        with trainer.adapters.using("policy"):
            new = tiny_models.teacher_forced(trainer.backbone, prompt, response)
        for new_logprob, old_logprob in zip(new.tolist(), rollout.old_logprobs[i].tolist(), strict=False):
            log_ratio = new_logprob - old_logprob
            total += math.exp(log_ratio) - 1.0 - log_ratio
    return total / len(rollout.scores)


def recorded_rollouts(trainer, monkeypatch):
    """Records the rollouts of the following steps."""
    rollouts, update = [], trainer.update

    def recording(rollout, lr):
        rollouts.append(rollout)
        return update(rollout, lr)

    monkeypatch.setattr(trainer, "update", recording)
    return rollouts


FIRST_ORDER = {name: dict(ALGORITHMS[name].recommended) for name in FIRST_ORDER_ALGORITHMS}


def test_a_target_and_an_update_below_the_rounding_leave_the_learning_rate(llama_folder, monkeypatch):
    """With 0.30 nats of rounding a KL below a twentieth of it, 0.015, is noise: an update of 0.002 as well as its target."""
    trainer = budget_trainer(llama_folder, dtype=torch.bfloat16, lr=1e-3, steps=50, beta=0.1)
    values = iter([0.30, 0.302])
    monkeypatch.setattr(kl_budget, "update_kl", lambda *_: next(values))
    monkeypatch.setattr(kl_control, "TARGET_SHARE", 1e-6)
    trainer.run_step()
    assert trainer.state.lr == 1e-3


@pytest.mark.parametrize("name", FIRST_ORDER)
def test_no_update_is_larger_than_the_limit(llama_folder, name, monkeypatch):
    """At a learning rate of 0.3 every algorithm would far exceed a budget of 2 nats; a step may use a tenth of it."""
    settings = FIRST_ORDER[name] | {"algorithm": name, "lr": 0.3, "minibatches": 1, "batch_size": 8}
    if name == "ppo":
        settings |= {"kl_penalty": "loss", "kl_estimator": "k3"}
    trainer = budget_trainer(llama_folder, **settings)
    rollouts = recorded_rollouts(trainer, monkeypatch)
    start = [p.detach().clone() for p in trainer.adapters.parameters("policy")]
    metrics = trainer.run_step().metrics
    assert 0.0 < metrics["policy/update_fraction"] < 0.9
    assert metrics["policy/update_kl"] == pytest.approx(sequence_kl(trainer, rollouts[0]), rel=1e-3)
    assert 0.0 < metrics["policy/update_kl"] <= 0.2
    assert any(not torch.equal(a, b) for a, b in zip(start, trainer.adapters.parameters("policy"), strict=True))
    assert trainer.run_step().metrics["policy/update_kl"] <= 0.2


def test_a_small_update_is_kept_whole(llama_folder, monkeypatch):
    trainer = budget_trainer(llama_folder, lr=1e-4)
    rollouts = recorded_rollouts(trainer, monkeypatch)
    metrics = trainer.run_step().metrics
    assert metrics["policy/update_fraction"] == 1.0
    assert metrics["policy/update_kl"] == pytest.approx(sequence_kl(trainer, rollouts[0]), rel=1e-2, abs=1e-6)


def test_the_change_is_scaled_along_the_line_of_the_update(llama_folder):
    trainer = budget_trainer(llama_folder)
    parameters = trainer.adapters.parameters("policy")
    start = [torch.full_like(p, 1.0) for p in parameters]
    end = [torch.full_like(p, 3.0) for p in parameters]
    kl_budget.set_between(parameters, start, end, 0.25)
    assert all(bool((p == 1.5).all()) for p in parameters)
    kl_budget.set_between(parameters, start, [e * math.inf for e in end], 0.0)
    assert all(bool((p == 1.0).all()) for p in parameters)


def test_an_update_that_breaks_the_policy_is_undone(llama_folder, monkeypatch):
    """Parameters that are not finite cannot be scaled back: the policy stays as it was, and the learning rate is halved."""
    trainer = budget_trainer(llama_folder, lr=1e-3)
    parameters = trainer.adapters.parameters("policy")
    before = [p.detach().clone() for p in parameters]

    def break_policy(state, stats):
        with torch.no_grad():
            for parameter in parameters:
                parameter.fill_(math.nan)
        stats.finish_update(torch.tensor(1.0))

    monkeypatch.setattr("rlhf_lab.training.policy.update.optimizer_step", break_policy)
    monkeypatch.setattr(trainer.state, "minibatches", one_minibatch(trainer.state.minibatches))
    metrics = trainer.run_step().metrics
    assert (metrics["policy/update_kl"], metrics["policy/update_fraction"]) == (0.0, 0.0)
    assert all(torch.equal(a, b) for a, b in zip(parameters, before, strict=True))
    assert trainer.state.lr == pytest.approx(5e-4)


def test_the_learning_rate_does_not_follow_the_rounding_of_half_precision(llama_folder, monkeypatch):
    """A hundredth of the update measures 0.30 nats, all of it rounding, and the whole update 0.34: its own KL is 0.04."""
    trainer = budget_trainer(llama_folder, dtype=torch.bfloat16, lr=1e-3, steps=50, beta=0.1)
    parameters = trainer.adapters.parameters("policy")
    measured, values = [], iter([0.30, 0.34])

    def fake_kl(state, rollout):
        measured.append([parameter.detach().clone() for parameter in parameters])
        return next(values)

    monkeypatch.setattr(kl_budget, "update_kl", fake_kl)
    rollouts = recorded_rollouts(trainer, monkeypatch)
    before = [parameter.detach().clone() for parameter in parameters]
    metrics = trainer.run_step().metrics
    assert (metrics["policy/update_kl"], metrics["policy/update_fraction"]) == (pytest.approx(0.04), 1.0)
    small, whole = measured
    for start, hundredth, end, kept in zip(before, small, whole, parameters, strict=True):
        torch.testing.assert_close(hundredth - start, 0.01 * (end - start), rtol=1e-2, atol=1e-7)
        assert torch.equal(end, kept)
    tokens = statistics.fmean(rollouts[0].batch.lengths[:, 1].tolist())
    assert trainer.state.rounding == pytest.approx(0.30 / tokens)
    target = (
        2.0 / 40 / 4**2
    )  # a fortieth of the budget; the first step of the warm-up has a quarter of the learning rate
    assert trainer.state.lr == pytest.approx(1e-3 * (target / 0.04) ** 0.25)


def test_the_penalty_does_not_follow_the_rounding_of_half_precision(llama_folder, monkeypatch, tmp_path):
    """Without a KL budget: 0.30 nats of rounding a response and 0.34 in all are 0.04, spread over the tokens of a response.

    That is below the lower bound, and the coefficient is halved; 0.34 would be above the upper one.
    """
    settings = {"algorithm": "ppo_penalty", "kl_budget": None, "penalty_kl_min": 0.015, "penalty_kl_max": 0.05}
    trainer = budget_trainer(llama_folder, dtype=torch.bfloat16, lr=1e-3, penalty_coef=0.5, **settings)
    values = iter([0.30, 0.34])
    for module in ("kl_budget", "update"):
        monkeypatch.setattr(f"rlhf_lab.training.policy.{module}.update_kl", lambda state, rollout: next(values))
    rollouts = recorded_rollouts(trainer, monkeypatch)
    metrics = trainer.run_step().metrics
    tokens = statistics.fmean(rollouts[0].batch.lengths[:, 1].tolist())
    assert 0.04 / tokens < 0.015 < 0.05 < 0.34 / tokens
    assert metrics["policy/step_kl"] == pytest.approx(0.04 / tokens)
    assert trainer.state.penalty_controller.value == 0.25
    save_checkpoint(tmp_path, trainer.adapters, "policy", *trainer.state.state_dict())
    resumed = budget_trainer(llama_folder, dtype=torch.bfloat16, lr=1e-3, penalty_coef=0.5, **settings)
    resumed.state.load_state_dict(*load_latest(tmp_path))
    assert resumed.state.rounding == trainer.state.rounding == pytest.approx(0.30 / tokens)


def test_a_checkpoint_without_rounding_loads(llama_folder):
    trainer = budget_trainer(llama_folder, dtype=torch.bfloat16)
    trainer.run_step()
    tensors, numbers = trainer.state.state_dict()
    del numbers["rounding"]
    other = budget_trainer(llama_folder, dtype=torch.bfloat16)
    other.state.load_state_dict(tensors, numbers)
    assert other.state.rounding is None


def test_the_line_search_of_trpo_subtracts_the_rounding_of_half_precision(llama_folder, monkeypatch):
    """A hundredth of the step measures 0.03 nats, all of it rounding; the whole step 0.08 and half of it 0.05, that is 0.02."""
    trainer = tiny_models.midway(llama_folder, "trpo", torch.bfloat16, max_kl=0.03)
    parameters = trainer.adapters.parameters("policy")
    evaluated, answers = [], iter([(9.0, 0.03), (-9.0, 0.08), (-9.0, 0.05)])

    def fake_surrogate(*_):
        evaluated.append([parameter.detach().clone() for parameter in parameters])
        return next(answers)

    monkeypatch.setattr(NaturalGradientStep, "evaluate_surrogate", fake_surrogate)
    rollout, before = tiny_models.rollout(trainer), [parameter.detach().clone() for parameter in parameters]
    stats = trainer.update(rollout, 1e-3)
    assert stats.extra_metrics["policy/step_kl"] == pytest.approx(0.02)
    assert stats.extra_metrics["policy/step_fraction"] == 0.5
    for start, hundredth, whole, half in zip(before, *evaluated, strict=True):
        torch.testing.assert_close(hundredth - start, 0.01 * (whole - start), rtol=1e-2, atol=1e-7)
        torch.testing.assert_close(half - start, 0.5 * (whole - start), rtol=1e-2, atol=1e-7)


def test_the_rounding_is_measured_at_every_fifth_step_and_saved(llama_folder, monkeypatch, tmp_path):
    trainer = budget_trainer(llama_folder, dtype=torch.bfloat16, lr=1e-4, steps=20)
    calls, shares, set_between = [], [], kl_budget.set_between
    monkeypatch.setattr(
        kl_budget, "set_between", lambda *args: (shares.append((trainer.state.steps_done, args[3])), set_between(*args))
    )
    for _ in range(6):
        trainer.run_step()
        calls.append(trainer.state.rounding)
    assert [step for step, share in shares if share == kl_budget.ROUNDING_SHARE] == [0, 5]
    assert len(set(calls[:5])) == 1
    assert calls[0] > 0.0
    save_checkpoint(tmp_path, trainer.adapters, "policy", *trainer.state.state_dict())
    resumed = budget_trainer(llama_folder, dtype=torch.bfloat16, lr=1e-4, steps=20)
    resumed.state.load_state_dict(*load_latest(tmp_path))
    assert resumed.state.rounding == calls[-1]


def test_full_precision_has_no_rounding_to_subtract(llama_folder):
    trainer = budget_trainer(llama_folder)
    trainer.run_step()
    assert trainer.state.rounding is None


def one_minibatch(minibatches):
    """Use only the first minibatch of the first epoch, so that nothing is computed after its update."""

    def first(epoch, batch):
        rows = list(minibatches(epoch, batch))
        return [[indices for minibatch in rows for indices in minibatch]] if epoch == 0 else []

    return first


@pytest.mark.parametrize(("lr", "rises"), [(1e-5, True), (0.3, False)])
def test_the_learning_rate_follows_the_size_of_the_updates(llama_folder, lr, rises):
    trainer = budget_trainer(llama_folder, lr=lr, steps=50)
    for _ in range(3):
        trainer.run_step()
    assert (trainer.state.lr > 1.5 * lr) if rises else (trainer.state.lr < 0.5 * lr)


def test_the_learning_rate_stays_in_its_range(llama_folder):
    """From 10^-8 it rises to ten times that and not further, although every update is far below the target."""
    trainer = budget_trainer(llama_folder, lr=1e-8, steps=50, eval_prompts=())
    for _ in range(12):
        trainer.run_step()
    assert trainer.state.lr == pytest.approx(1e-7)


def test_warm_up_and_schedule(llama_folder):
    """Four steps of warm-up; with a linear schedule of 10 steps the third one has 3/4 of the root of 8/10."""
    state = budget_trainer(llama_folder, steps=10).state
    shares = []
    for step in range(6):
        state.steps_done = step
        shares.append(state.lr_multiplier())
    assert shares == pytest.approx([0.25, 0.5 * 0.9**0.5, 0.75 * 0.8**0.5, 0.7**0.5, 0.6**0.5, 0.5**0.5])
    state.kl_control.average = 1.5  # three quarters of the budget: halfway from whole updates to half as long ones
    assert state.lr_multiplier() == pytest.approx(0.75 * 0.5**0.5)
    without = budget_trainer(llama_folder, steps=10, kl_budget=None).state
    assert without.lr_multiplier() == 1.0


def test_trpo_takes_no_larger_step_than_the_limit(llama_folder):
    settings = dict(ALGORITHMS["trpo"].recommended) | {"algorithm": "trpo", "max_kl": 10.0, "kl_budget": 1.0}
    trainer = budget_trainer(llama_folder, **settings)
    metrics = trainer.run_step().metrics
    length = metrics["tokens/response_len"]
    assert 0.0 < metrics["policy/step_kl"] * length <= 0.1 * 1.001


# --- the unit of the scores ---


def test_scores_are_in_sd_of_the_references_own_samples(llama_folder):
    """The unit of the scorer does not matter: scores 100 times as large and shifted by 50 give the same run."""

    class Shifted(tiny_models.CountToken):
        def scores(self, *args):
            return 100.0 * super().scores(*args) + 50.0

    plain, shifted = (
        budget_trainer(llama_folder, score_clip=1.5),
        budget_trainer(llama_folder, Shifted(CAT), score_clip=1.5),
    )
    for _ in range(2):
        expected, actual = (tiny_models.numbers(t.run_step().metrics) for t in (plain, shifted))
        assert actual == pytest.approx(expected, rel=1e-4, abs=1e-5)
    mean, sd = plain.state.kl_control.score_unit
    assert shifted.state.kl_control.score_unit == pytest.approx((100 * mean + 50, 100 * sd))


def test_the_unit_is_measured_on_the_reference_at_the_runs_own_length(llama_folder):
    scorer = tiny_models.CountToken(CAT)
    trainer = budget_trainer(llama_folder, scorer, max_new_tokens=3)
    tiny_models.disturb(trainer.adapters, "policy", scale=5.0)  # the policy would sample other texts
    trainer.measure_score_unit()
    responses = scorer.seen[0]
    counts = [row.count(CAT) for row in responses]
    assert len(responses) == run_evaluation.UNIT_RESPONSES == 128
    assert max(map(len, responses)) == 3
    assert trainer.state.kl_control.score_unit == pytest.approx((statistics.fmean(counts), statistics.stdev(counts)))
    untouched_scorer = tiny_models.CountToken(CAT)
    budget_trainer(llama_folder, untouched_scorer, max_new_tokens=3).measure_score_unit()
    assert untouched_scorer.seen[0] == responses
    trainer.measure_score_unit()
    assert len(scorer.seen) == 1  # once a run


def test_scores_of_the_caller_are_not_touched(llama_folder):
    trainer = budget_trainer(llama_folder)
    metrics = trainer.step(["the cat", "moon"], ["sat", "ran"], [40.0, 60.0]).metrics
    assert metrics["objective/scores"] == 50.0
    assert trainer.state.kl_control.score_unit is None


def test_another_reward_model_has_another_unit(llama_folder):
    trainer = budget_trainer(llama_folder)
    for _ in range(2):
        trainer.run_step()
    first = trainer.state.kl_control.score_unit
    assert trainer.state.kl_control.best is not None
    trainer.set_scorer(tiny_models.CountToken(CAT, scale=3.0))
    assert trainer.state.kl_control.best is None
    trainer.run_step()
    assert trainer.state.kl_control.score_unit == pytest.approx((3 * first.mean, 3 * first.sd))


# --- held-out prompts and the best checkpoint ---


def test_score_and_kl_on_held_out_prompts(llama_folder):
    """At checkpoints only; the same prompts and random numbers each time; KL as one row at a time without padding has it."""
    scorer = tiny_models.CountToken(CAT)
    trainer = budget_trainer(llama_folder, scorer, lr=0.03, steps=3)
    assert "eval/scores" not in trainer.run_step().metrics
    metrics = trainer.run_step().metrics
    responses = next(rows for rows in reversed(scorer.seen) if len(rows) == run_evaluation.HELD_OUT_RESPONSES)
    mean, sd = trainer.state.kl_control.score_unit
    expected_score = (statistics.fmean(row.count(CAT) for row in responses) - mean) / sd
    assert metrics["eval/scores"] == pytest.approx(expected_score, rel=1e-5)
    prompts = [trainer.backbone.encode_prompt(EVAL_PROMPTS[i % 3]) for i in range(32)]
    kl = 0.0
    for prompt, response in zip(prompts, responses, strict=True):
        with trainer.adapters.using("policy"):
            logprobs = tiny_models.teacher_forced(trainer.backbone, prompt, response)
        with trainer.adapters.using(None):
            kl += float((logprobs - tiny_models.teacher_forced(trainer.backbone, prompt, response)).sum()) / 32
    assert metrics["eval/kl"] == pytest.approx(kl, rel=1e-3, abs=1e-4)
    assert "eval/scores" in trainer.run_step().metrics  # the last step


@pytest.mark.parametrize(
    ("results", "best_step"),
    [
        ([(1.0, 2.0), (2.0, 2.5), (1.5, 1.0)], 4),  # 2.5 nats are within 1.3 times the budget of 2
        ([(1.0, 2.0), (2.0, 2.7), (1.5, 1.0)], 6),  # the best score is too far away
        ([(1.0, 2.0), (0.85, 1.0)], 4),  # within a standard error of the peak, which is 0.2
        ([(1.0, 2.0), (0.85, 1.0), (0.75, 1.0)], 4),  # below it, although not below the step before
        ([(9.0, 40.0), (9.0, 50.0)], None),
    ],
)
def test_the_best_step_is_the_newest_near_the_peak_within_the_budget(llama_folder, monkeypatch, results, best_step):
    trainer = budget_trainer(llama_folder)
    state = trainer.state
    monkeypatch.setattr(run_evaluation, "_sample_responses", lambda *_: [])
    monkeypatch.setattr(
        run_evaluation, "score_responses", lambda *_: ScoredResponses(torch.tensor([score - 0.2, score + 0.2]).double())
    )
    monkeypatch.setattr(run_evaluation, "sequence_log_ratios", lambda *_: torch.tensor([kl - 1, kl + 1]))
    for i, (score, kl) in enumerate(results):  # noqa: B007  the two functions above read them
        state.steps_done = 2 * (i + 1)
        metrics = run_evaluation.evaluate_held_out(state, trainer.eval_prompt_ids, trainer.scorer)
    assert metrics.get("eval/best_step") == (state.kl_control.best and state.kl_control.best.step) == best_step


# --- resuming ---


@pytest.mark.parametrize("name", ["ppo", "ppo_penalty", "trpo"])
def test_resuming_is_exact(llama_folder, tmp_path, name):
    """Five steps = three steps, a checkpoint, a new trainer and two steps: bit for bit, including the controllers."""
    settings = dict(ALGORITHMS[name].recommended) | {
        "algorithm": name,
        "lr": 0.02,
        "steps": 5,
        "score_clip": 1.5,
        "minibatches": 2,
    }

    def curve(results):
        return [tiny_models.numbers(result.metrics) for result in results]

    whole = budget_trainer(llama_folder, **settings)
    expected = [whole.run_step() for _ in range(5)]
    half = budget_trainer(llama_folder, **settings)
    actual = [half.run_step() for _ in range(3)]
    save_checkpoint(tmp_path, half.adapters, "policy", *half.state.state_dict())
    resumed = budget_trainer(llama_folder, **settings)
    resumed.state.load_state_dict(*load_latest(tmp_path))
    assert resumed.state.kl_control.best == half.state.kl_control.best is not None
    actual += [resumed.run_step() for _ in range(2)]
    assert curve(actual) == curve(expected)
    assert tiny_models.same(resumed.state.state_dict()[0], whole.state.state_dict()[0])
    numbers = resumed.state.state_dict()[1]
    assert numbers == whole.state.state_dict()[1]
    assert numbers["kl_budget"][1] > 0.0
    assert numbers["best"] is not None
    assert numbers["lr"] != 0.02 or name == "trpo"


def test_a_checkpoint_from_before_the_budget_loads(llama_folder):
    trainer = budget_trainer(llama_folder)
    trainer.run_step()
    tensors, numbers = trainer.state.state_dict()
    for name in ("kl_budget", "score_unit", "best"):
        del numbers[name]
    other = budget_trainer(llama_folder)
    other.state.load_state_dict(tensors, numbers | {"beta": 0.4})
    assert isinstance(other.state.kl_control, KLBudgetWithBeta)
    assert (other.state.kl_control.base, other.state.kl_control.score_unit, other.state.kl_control.best) == (
        0.4,
        None,
        None,
    )
    other.run_step()


@pytest.mark.parametrize(("role", "beta"), [("limit", 0.07), ("target", 0.0)])
def test_far_below_its_budget_a_limit_keeps_beta_and_a_target_does_not(llama_folder, role, beta):
    """At a thousandth of the budget the wall is a billionth of the base."""
    trainer = budget_trainer(llama_folder, kl_budget=1000.0, kl_budget_role=role, beta=0.07)
    assert [trainer.run_step().metrics["objective/kl_coef"] for _ in range(2)] == pytest.approx([beta] * 2, abs=1e-6)


def test_without_a_budget_nothing_is_measured(llama_folder):
    trainer = budget_trainer(llama_folder, kl_budget=None)
    metrics = [trainer.run_step().metrics for _ in range(2)]
    assert not {"policy/update_kl", "policy/update_fraction", "eval/scores", "eval/kl", "eval/best_step"} & (
        metrics[0].keys() | metrics[1].keys()
    )
    assert trainer.state.kl_control.score_unit is None
    assert set(trainer.state.state_dict()[1]) == {"algorithm", "step", "episodes", "beta", "lr", "set_by_hand"}


# --- values set by hand ---


def test_a_beta_set_at_a_tiny_kl_stays_and_is_handed_back(llama_folder):
    """Version 0.2.0 divided the value by (average / budget)³, so that beta grew to 10⁷."""
    trainer = budget_trainer(llama_folder, steps=6, beta=0.1)
    trainer.run_step()
    trainer.state.kl_control.average = 0.01
    trainer.set_live_setting("beta", 0.5)
    assert [trainer.run_step().metrics["objective/kl_coef"] for _ in range(3)] == [0.5, 0.5, 0.5]
    trainer.state.update_kl_control(40.0, 6)  # far beyond the budget, where the controller would raise its base
    assert trainer.state.kl_control.base == 0.1
    trainer.state.kl_control.average = 0.5
    trainer.set_live_setting("beta", "automatic")
    average = trainer.state.kl_control.average
    assert trainer.run_step().metrics["objective/kl_coef"] == pytest.approx(0.1 * (average / 2.0) ** 3, rel=1e-9)


def test_an_lr_set_by_hand_is_neither_adapted_nor_scheduled(llama_folder):
    trainer = budget_trainer(llama_folder, steps=8, lr=1e-5)  # a tiny lr, which the budget would raise
    trainer.set_live_setting("lr", 2e-5)
    assert [trainer.run_step().metrics["lr"] for _ in range(3)] == [2e-5, 2e-5, 2e-5]
    assert trainer.state.lr == 1e-5
    trainer.set_live_setting("lr", "automatic")
    automatic = trainer.run_step().metrics["lr"]  # step 4: the warm-up is over, and the KL is far below the budget
    assert automatic == pytest.approx(1e-5 * math.sqrt(1 - 3 / 8))
    assert trainer.state.lr == pytest.approx(1.3e-5)


class Simulated:
    """The arithmetic of beta's controllers once more, with a budget or a target of 4 nats and 32 responses a step."""

    def __init__(self, kind, beta):
        self.kind, self.beta, self.average = kind, beta, 0.0

    def automatic(self):
        return self.beta * min(self.average / 4.0, 4.0) ** 3 if self.kind == "budget" else self.beta

    def measure(self, kl, by_hand):
        if self.kind == "budget":
            before, self.average = self.average, 0.5 * self.average + 0.5 * max(0.0, kl)
            is_rising_below = self.average < 4.0 and self.average > before
            if not by_hand and self.average > 2.0 and not is_rising_below:
                self.beta *= min(self.average / 4.0, 4.0) ** 0.25
        elif self.kind == "adaptive" and not by_hand:
            self.beta *= 1 + min(max(kl / 4.0 - 1, -0.2), 0.2) * 32 / 100.0


@pytest.fixture(scope="module")
def states(llama_folder):
    """A function of the name of a controller: a trainer with it, and its saved beginning."""
    kinds = {
        "budget": {"kl_budget": 4.0}, "adaptive": {"kl_controller": "adaptive", "kl_target": 4.0, "kl_horizon": 100.0},
        "fixed": {"lr_schedule": "constant"},
    }  # fmt: skip
    trainers = {
        kind: budget_trainer(llama_folder, **{"kl_budget": None, "beta": 0.13, "lr": 1e-3, "steps": 40} | changes)
        for kind, changes in kinds.items()
    }
    beginnings = {kind: (trainer, trainer.state.state_dict()) for kind, trainer in trainers.items()}
    return lambda kind: beginnings[kind]  # a function, because hypothesis prints its arguments


ACTIONS = st.one_of(
    st.none(), st.just("automatic"), st.floats(1e-6, 10.0, allow_subnormal=False), st.just("resume")
)  # what a person does before a step: nothing, hand beta back, set it, or stop and resume


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["budget", "adaptive", "fixed"]),
    st.lists(st.tuples(ACTIONS, st.floats(-0.5, 60.0)), min_size=1, max_size=30),
)
def test_a_value_set_by_hand_is_in_force_until_it_is_handed_back(states, kind, steps):
    """Random times, values and KLs, with resumes from a checkpoint in between."""
    trainer, beginning = states(kind)
    state = trainer.state
    state.load_state_dict(*beginning)
    expected, by_hand = Simulated(kind, 0.13), None
    for action, kl in steps:
        if action == "resume":
            tensors, numbers = state.state_dict()
            state.load_state_dict(*beginning)
            state.load_state_dict(tensors, json.loads(json.dumps(numbers)))
        elif action == "automatic" and kind == "fixed":
            with pytest.raises(ConfigError, match="nothing adapts it"):
                trainer.set_live_setting("beta", action)
        elif action is not None:
            trainer.set_live_setting("beta", action)
            by_hand = None if action == "automatic" else action
        in_force = state.current_value("beta")
        if by_hand is None:
            assert in_force == pytest.approx(expected.automatic(), rel=1e-9)
        else:
            assert in_force == by_hand
        assert state.coefficients.kl_beta == in_force
        state.update_kl_control(kl, 32)
        expected.measure(kl, by_hand is not None)


def test_a_damaged_record_of_what_was_set_by_hand_is_refused(states):
    trainer, (tensors, numbers) = states("budget")
    for damaged in ({"beta": math.nan}, {"gamma": 0.9}, ["beta"], {"lr": "much"}):
        with pytest.raises(TrainingError, match=r"set_by_hand is .* not a number for some of beta, lr"):
            trainer.state.load_state_dict(tensors, numbers | {"set_by_hand": damaged})
