"""The PPO trainer: one step against a plain loop, splits, resuming, self-checks, and that it learns."""

import dataclasses
import math

import pytest
import torch
from support import tiny_models

from rlhf_lab.errors import ConfigError, ModelError, NotFiniteError, SelfCheckError, TrainingError
from rlhf_lab.kernels import matmul
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.batch import make_batch
from rlhf_lab.models.features import FeatureSpec
from rlhf_lab.models.fused_llama import patch
from rlhf_lab.models.heads import RewardHead
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.models.sampling.sampler import Sampled, sample
from rlhf_lab.training.checkpoints import load_latest, save_checkpoint
from rlhf_lab.training.policy import update
from rlhf_lab.training.policy.batching import prompt_indices
from rlhf_lab.training.policy.invariants import MAX_SCORE, check_finite
from rlhf_lab.training.policy.metrics import UpdateStats
from rlhf_lab.training.policy.rollout import ScoredResponses
from rlhf_lab.training.policy.update import minibatch_backward

NAN = float("nan")


def mid_run(folder, dtype=torch.float64, **changes):
    """A trainer as after some steps: the policy differs from the reference, the values are not 0, step = 1."""
    trainer = tiny_models.trainer(folder, dtype, **changes)
    tiny_models.disturb(trainer.adapters, "policy", scale=0.05)
    with torch.no_grad():
        trainer.state.policy.value_head.linear.weight.copy_(torch.linspace(-0.2, 0.3, 32)[None])
    trainer.state.steps_done = 1
    return trainer


def weights(trainer):
    """The trained tensors."""
    return {k: v for k, v in trainer.state.state_dict()[0].items() if k.startswith(("adapter.", "value."))}


def run(trainer, steps):
    return [trainer.run_step() for _ in range(steps)]


def curve(results):
    return [tiny_models.numbers(result.metrics) for result in results]


# --- one step, token by token ---


class PlainStep:
    """PPO on one minibatch per epoch in plain loops: one row at a time, no padding, no mask, sums over lists."""

    def __init__(self, trainer, prompts, responses, scores):
        self.t, self.c = trainer, trainer.state.config
        self.rows = list(zip(prompts, responses, strict=True))
        self.beta, self.metrics = trainer.state.kl_control.value, {}
        with torch.no_grad():
            old = [self.evaluate(p, r) for p, r in self.rows]
            ref = [
                tiny_models.teacher_forced(trainer.backbone, p, r, self.c.temperature).tolist() for p, r in self.rows
            ]
        self.old = [[float(x) for x in row[0]] for row in old]
        self.values = [[float(x) for x in row[2]] for row in old]
        self.kl = [[a - b for a, b in zip(o, f, strict=True)] for o, f in zip(self.old, ref, strict=True)]
        self.advantages, self.returns = self.estimate([float(s) for s in scores])

    def evaluate(self, prompt, response):
        """Log-probability, entropy and value of each response token, through the adapter, with gradients."""
        model, first = self.t.backbone.model, len(prompt) - 1
        ids = torch.tensor([[*prompt, *response]])
        with self.t.adapters.using("policy"):
            hidden = self.t.backbone.trunk(input_ids=ids).last_hidden_state[0]
            logits = model(input_ids=ids).logits[0]
        table = (logits / self.c.temperature).log_softmax(-1)
        logprobs = [table[first + i, token] for i, token in enumerate(response)]
        entropies = [-(table[first + i].exp() * table[first + i]).sum() for i in range(len(response))]
        head = self.t.state.policy.value_head.linear
        values = [hidden[first + i].float() @ head.weight[0] + head.bias[0] for i in range(len(response))]
        return logprobs, entropies, values

    def estimate(self, scores):
        advantages, returns = [], []
        for score, kl, values, (_, response) in zip(scores, self.kl, self.values, self.rows, strict=True):
            used = max(-self.c.score_clip, min(self.c.score_clip, score))
            used -= self.c.missing_eos_penalty * (response[-1] not in self.t.backbone.eos_ids)
            rewards = [-self.beta * x for x in kl]
            rewards[-1] += used
            running, row = 0.0, [0.0] * len(kl)
            for i in reversed(range(len(kl))):
                following = values[i + 1] if i + 1 < len(kl) else 0.0
                running = rewards[i] + self.c.gamma * following - values[i] + self.c.gamma * self.c.lam * running
                row[i] = running
            advantages.append(row)
            returns.append([a + v for a, v in zip(row, values, strict=True)])
        flat = [a for row in advantages for a in row]
        mean = math.fsum(flat) / len(flat)
        sd = math.sqrt(math.fsum((a - mean) ** 2 for a in flat) / (len(flat) - 1) + 1e-8)
        return [[(a - mean) / sd for a in row] for row in advantages], returns

    def epoch(self):
        """Sums over all tokens, divided once by their number."""
        c, eps = self.c, self.c.cliprange
        sums = dict.fromkeys(("policy", "value", "entropy", "approxkl", "clipfrac"), 0.0)
        count = sum(len(row) for row in self.old)
        for i, (prompt, response) in enumerate(self.rows):
            for t, (logprob, entropy, value) in enumerate(zip(*self.evaluate(prompt, response), strict=True)):
                difference, advantage = logprob - self.old[i][t], self.advantages[i][t]
                ratio = difference.exp()
                plain, clipped = -advantage * ratio, -advantage * ratio.clamp(1 - eps, 1 + eps)
                sums["policy"] += torch.maximum(plain, clipped) / count
                near = self.values[i][t] + (value - self.values[i][t]).clamp(-c.cliprange_value, c.cliprange_value)
                errors = (value - self.returns[i][t]) ** 2, (near - self.returns[i][t]) ** 2
                sums["value"] += 0.5 * torch.maximum(*errors) / count
                sums["entropy"] += entropy / count
                sums["approxkl"] += 0.5 * float(difference.detach()) ** 2 / count
                sums["clipfrac"] += float(clipped > plain) / count
        (sums["policy"] + c.vf_coef * sums["value"] - c.entropy_coef * sums["entropy"]).backward()
        for name, value in sums.items():
            self.metrics[name] = self.metrics.get(name, 0.0) + float(torch.as_tensor(value).detach()) / c.epochs

    def learn(self, lr):
        parameters = [*self.t.adapters.parameters("policy"), *self.t.state.policy.value_head.parameters()]
        optimiser = torch.optim.Adam(parameters, lr=lr, eps=self.c.adam_eps)
        for _ in range(self.c.epochs):
            self.epoch()
            torch.nn.utils.clip_grad_norm_(parameters, self.c.max_grad_norm)
            optimiser.step()
            optimiser.zero_grad()


@pytest.mark.parametrize("entropy_coef", [0.02, 0.0])  # with the logits, and without
def test_a_whole_step_equals_a_plain_loop(entropy_coef, gpt2_folder):
    """Items 1, 2, 5, 9, 12-17, 20 at once: every weight and every figure after three epochs."""
    settings = {
        "steps": 4, "batch_size": 5, "epochs": 3, "minibatches": 1, "micro_batch": 2, "temperature": 0.8, "lr": 2e-2,
        "beta": 0.3, "gamma": 0.97, "lam": 0.9, "score_clip": 1.5, "missing_eos_penalty": 0.7, "entropy_coef": entropy_coef,
        "vf_coef": 0.4, "cliprange": 0.1, "cliprange_value": 0.15,
        "sample_every": 100,
    }  # fmt: skip
    prompts, responses = tiny_models.ragged()
    scores = torch.tensor([2.0, -1.0, 0.5, 1.0, -3.0])

    class Fixed:
        def scores(self, prompts, responses, on_progress):
            return scores

    trainer = mid_run(gpt2_folder, scorer=Fixed(), **settings)
    other = mid_run(gpt2_folder, scorer=Fixed(), **settings)
    metrics = trainer.train_on_samples(prompts, Sampled(responses, [[0.0] * len(r) for r in responses])).metrics
    plain = PlainStep(other, prompts, responses, scores)
    plain.learn(lr=2e-2 * 0.75)
    expected = {
        "objective/kl": sum(map(sum, plain.kl)) / 5, "objective/kl_coef": 0.3, "objective/scores": -0.1, "lr": 0.015,
        "loss/policy_avg": plain.metrics["policy"], "loss/value_avg": plain.metrics["value"],
        "policy/entropy_avg": plain.metrics["entropy"], "policy/approxkl_avg": plain.metrics["approxkl"],
        "policy/clipfrac_avg": plain.metrics["clipfrac"], "val/first_ratio_deviation": 0.0,
        "objective/non_score_reward": -0.3 * sum(map(sum, plain.kl)) / 5,
    }  # fmt: skip
    assert {k: metrics[k] for k in expected} == pytest.approx(expected, abs=2e-5)
    assert metrics["policy/clipfrac_avg"] > 0.02
    assert abs(metrics["objective/kl"]) > 0.05
    actual, expected_weights, start = weights(trainer), weights(other), weights(mid_run(gpt2_folder, **settings))
    for name, tensor in expected_weights.items():
        torch.testing.assert_close(actual[name], tensor, rtol=0, atol=1e-4)
    assert max(float((expected_weights[name] - start[name]).abs().max()) for name in expected_weights) > 0.02


# --- the items of the list that are about a run ---


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.6}, {"micro_batch": 1, "minibatches": 3}])
def test_first_ratio_is_one(llama_folder, settings):
    """In every step, not only the first: after updates the old log-probs are those of the updated policy."""
    results = run(tiny_models.trainer(llama_folder, lr=2e-2, **settings), 3)
    assert max(result.metrics["val/first_ratio_deviation"] for result in results) < 1e-6
    assert max(result.metrics["policy/approxkl_avg"] for result in results) > 1e-3
    assert max(result.metrics["val/ratio_var"] for result in results) > 1e-3
    assert max(result.metrics["val/sampler_gap"] for result in results) < 1e-4


def test_in_half_precision_the_first_ratio_is_only_reported(llama_folder):
    """Old log-probs with an error of 0.01: only a metric in bfloat16, where machines round differently; an error in float32."""
    trainer = mid_run(llama_folder, torch.bfloat16, lr=2e-2)
    assert trainer.run_step().metrics["val/first_ratio_deviation"] < 1e-2
    original = trainer.prepare_rollout

    def with_error(*args):
        rollout = original(*args)
        return rollout._replace(old_logprobs=rollout.old_logprobs - 0.01 * rollout.batch.mask)

    trainer.prepare_rollout = with_error
    metrics = trainer.run_step().metrics
    assert metrics["val/first_ratio_deviation"] == pytest.approx(math.expm1(0.01), abs=1e-2)
    assert metrics["val/first_ratio_deviation"] > 5e-3


def test_the_kl_of_the_first_step_is_zero_and_then_grows(llama_folder):
    kl = [result.metrics["objective/kl"] for result in run(tiny_models.trainer(llama_folder, lr=3e-2, beta=0.0), 4)]
    assert abs(kl[0]) < 1e-5
    assert kl[-1] > 0.1


def test_the_controller_is_fed_the_sequence_sum(llama_folder):
    """At a target that equals the measured sequence KL the coefficient stays; a token mean would be far below."""
    settings = {"kl_controller": "adaptive", "kl_horizon": 10.0, "beta": 0.2}
    measured = mid_run(llama_folder, **settings).run_step().metrics
    assert measured["objective/kl"] > 0.05
    on_target = mid_run(llama_folder, kl_target=measured["objective/kl"], **settings)
    on_target.run_step()
    assert on_target.state.kl_control.value == 0.2
    raised = mid_run(llama_folder, kl_target=measured["objective/kl"] / 1.1, **settings)
    metrics = raised.run_step().metrics
    assert raised.state.kl_control.value == pytest.approx(0.2 * (1 + 0.1 * 6 / 10))
    assert metrics["objective/kl_coef"] == 0.2
    coefficient = raised.state.kl_control.value
    assert raised.run_step().metrics["objective/kl_coef"] == coefficient


def test_dropout_is_off_during_training(llama_folder):
    """The config has dropout 0.5. With gradients and after a step, equal rows give equal numbers, bit for bit."""
    trainer = mid_run(llama_folder, torch.float32)
    trainer.run_step()
    assert not [module for module in trainer.backbone.model.modules() if module.training]  # its layers and the adapters
    rows = make_batch(trainer.backbone, *tiny_models.ragged())
    first, second = (trainer.state.policy.evaluate(rows, 1.0, entropy_requires_grad=True) for _ in range(2))
    assert all(one.requires_grad and torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_padding_contents_change_no_number(llama_folder):
    """Entropy, approximate KL and all other metrics of a step, and the weights after it, with other ids in the padding."""
    prompts, responses = tiny_models.ragged(rows=6)
    actual = []
    for junk in (None, 7, tiny_models.EOS):
        trainer = mid_run(llama_folder, micro_batch=3)
        rows = make_batch(trainer.backbone, prompts, responses)
        assert not rows.mask.all()
        if junk is not None:
            rows = rows._replace(
                responses=rows.responses.masked_fill(~rows.mask, junk),
                prompts=rows.prompts.masked_fill(~rows.prompt_mask.bool(), junk),
            )
        result = trainer.train_on_scored(rows, ScoredResponses(torch.linspace(-2, 2, 6)), None, (0.0, 0.0))
        actual.append((tiny_models.numbers(result.metrics), weights(trainer)))
    for metrics, after in actual[1:]:
        assert metrics == actual[0][0]
        assert tiny_models.same(after, actual[0][1])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("micro_batch", [1, 2, 5, 6])
def test_any_micro_batch_gives_the_same_gradient(gpt2_folder, dtype, tolerance, micro_batch):
    """Rows of very different lengths: a mean of means would weigh them wrongly."""
    prompts, responses = tiny_models.ragged(rows=6)
    gradients, losses = [], []
    for size in (6, micro_batch):
        trainer = mid_run(gpt2_folder, dtype, micro_batch=size, minibatches=1, entropy_coef=0.1)
        if dtype is torch.float64:
            trainer.state.policy.value_head.double()
        rows = make_batch(trainer.backbone, prompts, responses)
        rollout = trainer.prepare_rollout(rows, torch.linspace(-2, 2, 6), [[0.0] * len(r) for r in responses])
        tiny_models.disturb(trainer.adapters, "policy", seed=9, scale=0.02)
        stats = UpdateStats()
        minibatch_backward(trainer.state, rollout, list(torch.arange(6).split(size)), stats)
        gradients.append([p.grad.clone() for p in trainer.state.parameters])
        losses.append({k: float(v) for k, v in stats.current.items()})
    assert losses[1] == pytest.approx(losses[0], rel=tolerance * 10, abs=tolerance * 10)
    for expected, actual in zip(*gradients, strict=True):
        scale = max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance * scale)
    assert max(float(g.abs().max()) for g in gradients[0]) > 1e-2


@pytest.mark.parametrize("micro_batch", [1, 4])
def test_any_micro_batch_gives_the_same_steps(llama_folder, micro_batch):
    """Three whole steps: the same texts, figures and weights."""
    whole, split = (mid_run(llama_folder, micro_batch=size) for size in (32, micro_batch))
    for expected, actual in zip(run(whole, 3), run(split, 3), strict=True):
        assert [record.token_ids for record in actual.tokens] == [record.token_ids for record in expected.tokens]
        assert tiny_models.numbers(actual.metrics) == pytest.approx(
            tiny_models.numbers(expected.metrics), rel=1e-5, abs=1e-5
        )
    expected, actual = weights(whole), weights(split)
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_backbone_and_the_other_adapters_are_never_trained(llama_folder, dtype):
    backbone = tiny_models.load(llama_folder, dtype)
    before = tiny_models.weights_hash(backbone)
    trainer = tiny_models.trainer(llama_folder, backbone=backbone, lr=3e-2)
    trainer.adapters.add("reward", r=4, alpha=8, seed=0, trainable=False)
    tiny_models.disturb(trainer.adapters, "reward")
    reward, policy = trainer.adapters.tensors("reward"), trainer.adapters.tensors("policy")
    run(trainer, 3)
    assert tiny_models.weights_hash(backbone) == before
    assert tiny_models.same(trainer.adapters.tensors("reward"), reward)
    moved = trainer.adapters.tensors("policy")
    assert not any(torch.equal(moved[name], policy[name]) for name in policy)


def test_trained_ids_are_the_sampled_ids(llama_folder):
    """The model samples a token whose text is encoded as two others; scorer, rollout and records get the sampled one."""
    trainer = tiny_models.trainer(llama_folder, scorer=tiny_models.CountToken(tiny_models.ID["not good"]), token_rows=6)
    with torch.no_grad():
        trainer.backbone.model.get_output_embeddings().weight.zero_()
    uniform = (tiny_models.ID["not good"] + 0.5) / len(tiny_models.WORDS)
    prompts = [trainer.prompt_ids[i] for i in prompt_indices(0, len(trainer.prompt_ids), trainer.state.config)]
    with trainer.adapters.using("policy", merged=True):
        sampled = sample(trainer.backbone, prompts, torch.full((6, 6), uniform).double())
    result = trainer.train_on_samples(prompts, sampled)
    assert trainer.task.scorer.seen == [[[tiny_models.ID["not good"]] * 6] * 6]
    assert [record.token_ids for record in result.tokens] == [[tiny_models.ID["not good"]] * 6] * 6
    assert result.metrics["objective/scores"] == 6.0
    assert result.metrics["tokens/response_len"] == 6.0


def test_missing_eos_penalty_in_a_run(tmp_path):
    """Ended with the generation config's own stop token: no penalty; not ended: the penalty, once."""
    tiny_models.set_generation_config(tiny_models.save_llama(tmp_path), eos_token_id=[tiny_models.STOP])
    trainer = tiny_models.trainer(tmp_path, minibatches=1, batch_size=4, token_rows=4, missing_eos_penalty=0.5)
    tokens = [[20, tiny_models.STOP], [20, 21], [20, 22], [20, 23]]
    result = trainer.train_on_samples([[9]] * 4, Sampled(tokens, [[0.0] * 2] * 4))
    rewards = [sum(record.reward) for record in result.tokens]
    assert rewards == pytest.approx([0.0, -0.5, -0.5, -0.5], abs=1e-5)
    assert (result.metrics["val/stop_token_rate"], result.metrics["objective/missing_end_reward"]) == (0.25, -0.375)
    unpenalised = tiny_models.trainer(tmp_path, minibatches=1, batch_size=2, missing_eos_penalty=0.0)
    assert "objective/missing_end_reward" not in unpenalised.run_step().metrics


def test_resuming_is_exact(llama_folder, tmp_path):
    """Five steps = two steps, a checkpoint, a new backbone and trainer, three steps: bit for bit.

    With a changed setting and an adaptive coefficient; texts, tokens and every tensor are equal too.
    """
    settings = {"steps": 5, "lr": 1e-2, "kl_controller": "adaptive", "kl_target": 0.5, "kl_horizon": 20.0}

    def gold(prompt, text):
        return len(prompt) + 10 * len(text)

    def new_trainer():
        return tiny_models.trainer(llama_folder, gold=gold, **settings)

    def two_steps(trainer):
        first = trainer.run_step()
        trainer.set_live_setting("lr", 7e-3)
        return [first, trainer.run_step()]

    whole = new_trainer()
    expected = [*two_steps(whole), *run(whole, 3)]
    interrupted = new_trainer()
    actual = two_steps(interrupted)
    (tmp_path / "run").mkdir(exist_ok=True)
    save_checkpoint(tmp_path / "run", interrupted.adapters, "policy", *interrupted.state.state_dict())
    run(interrupted, 1)  # then killed: the step after the checkpoint is lost
    resumed = new_trainer()
    resumed.state.load_state_dict(*load_latest(tmp_path / "run"))
    assert resumed.steps_done == 2
    actual += run(resumed, 3)
    assert curve(actual) == curve(expected)
    assert [result.tokens for result in actual] == [result.tokens for result in expected]
    assert [result.samples for result in actual] == [result.samples for result in expected]
    assert [len(result.samples) for result in expected] == [0, 2, 0, 2, 2]
    (tensors, numbers), (expected_tensors, expected_numbers) = resumed.state.state_dict(), whole.state.state_dict()
    assert tiny_models.same(tensors, expected_tensors)
    assert len([name for name in expected_tensors if name.startswith("optimiser.")]) == 3 * len(whole.state.parameters)
    beta = whole.state.kl_control.value
    assert (
        numbers
        == expected_numbers
        == {"algorithm": "ppo", "step": 5, "episodes": 30, "beta": beta, "lr": 1e-2, "set_by_hand": {"lr": 7e-3}}
    )
    assert expected[-1].metrics["objective/kl_coef"] != 0.1


def test_a_stopped_step_leaves_no_trace(llama_folder):
    """Stopped between two micro-batches, with gradients partly summed; after restoring the state the next step is the same."""

    class Stop(Exception):
        pass

    class Tick:
        def __init__(self, stop_at):
            self.left = stop_at

        def __call__(self):
            self.left -= 1
            if not self.left:
                raise Stop

    expected = curve(run(tiny_models.trainer(llama_folder, micro_batch=2), 3))
    for stop_at in (2, 6, 10):  # in the rollout's forward passes; in the first update; in the third
        trainer = tiny_models.trainer(llama_folder, micro_batch=2)
        actual = curve(run(trainer, 1))
        saved_state = trainer.state.state_dict()
        trainer.state.on_progress = Tick(stop_at)
        with pytest.raises(Stop):
            trainer.run_step()
        trainer.state.load_state_dict(*saved_state)
        trainer.state.on_progress = lambda: None
        actual += curve(run(trainer, 2))
        assert actual == expected


# --- a run is independent of its surroundings ---


def test_same_seed_same_curve(llama_folder):
    first, second = tiny_models.trainer(llama_folder, lr=1e-2), tiny_models.trainer(llama_folder, lr=1e-2)
    torch.rand(7)  # the global generator does not matter
    assert curve(run(first, 4)) == curve(run(second, 4))
    assert tiny_models.same(first.state.state_dict()[0], second.state.state_dict()[0])
    other = tiny_models.trainer(llama_folder, lr=1e-2, seed=1)
    assert curve(run(other, 2)) != curve(run(tiny_models.trainer(llama_folder, lr=1e-2), 2))


def test_every_step_samples_new_responses(llama_folder):
    """One prompt, no learning: the samples still differ from step to step."""
    trainer = tiny_models.trainer(llama_folder, prompts=("the cat",), lr=1e-8, sample_every=100)
    run(trainer, 3)
    first, second, third = trainer.task.scorer.seen[:3]
    assert first != second != third
    assert len({tuple(row) for row in first}) > 3


def test_training_leaves_the_global_generator_alone(llama_folder):
    state = torch.random.get_rng_state()
    run(tiny_models.trainer(llama_folder, sample_every=1), 1)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_short_jobs_in_the_middle_of_a_step_change_nothing(llama_folder):
    """Between minibatches another adapter samples, another reward model scores, adapters are added and removed: no change."""
    settings = {"max_new_tokens": 20, "lr": 1e-2}
    quiet = tiny_models.trainer(llama_folder, **settings)
    expected = curve(run(quiet, 3))
    trainer = tiny_models.trainer(llama_folder, **settings)
    adapters, backbone, calls = trainer.adapters, trainer.backbone, []
    for name in ("shown", "judge"):
        adapters.add(name, r=2, alpha=4, seed=3, trainable=False)
        tiny_models.disturb(adapters, name)
    head = RewardHead(backbone.hidden_size, FeatureSpec("mean"), seed=0).requires_grad_(False)
    judge = RewardModel(backbone, adapters, "judge", head)
    prompts, responses = tiny_models.ragged()

    def on_progress():
        calls.append(1)
        with adapters.using("shown", merged=len(calls) % 2 == 0):
            sample(backbone, prompts, tiny_models.seeded(len(prompts), 4))
        judge.scores(prompts, responses)
        if len(calls) % 3 == 0:
            adapters.add(f"visitor {len(calls)}".replace(" ", "_"), r=2, alpha=2, seed=0, trainable=False)
        if len(calls) % 5 == 0:
            adapters.remove(adapters.names[-1])
        torch.rand(3)

    trainer.state.on_progress = on_progress
    assert curve(run(trainer, 3)) == expected
    assert tiny_models.same(weights(trainer), weights(quiet))
    assert len(calls) > 20


def test_prompts_are_used_once_a_round(llama_folder):
    """Five prompts, three a step: every five positions are a permutation, and rounds are in different orders."""
    trainer = tiny_models.trainer(llama_folder, batch_size=3)
    used = [i for step in range(10) for i in prompt_indices(step, len(trainer.prompt_ids), trainer.state.config)]
    rounds = [tuple(used[i : i + 5]) for i in range(0, 30, 5)]
    assert all(sorted(round_) == [0, 1, 2, 3, 4] for round_ in rounds)
    assert len(set(rounds)) > 3
    wide = tiny_models.trainer(llama_folder, batch_size=12)
    assert sorted(prompt_indices(4, 5, wide.state.config)[2:7]) == [
        0,
        1,
        2,
        3,
        4,
    ]  # positions 48 to 59: the round starts at 50


def test_minibatches_cover_every_row_once_an_epoch(llama_folder):
    trainer = tiny_models.trainer(llama_folder, batch_size=7, minibatches=2, micro_batch=3)
    prompts, responses = tiny_models.ragged(rows=7)
    rows = make_batch(trainer.backbone, prompts, responses)
    parts = list(trainer.state.minibatches(0, rows))
    assert [[len(micro) for micro in part] for part in parts] == [[3, 1], [3]]
    order = torch.cat([micro for part in parts for micro in part])
    assert sorted(order.tolist()) == list(range(7))
    repeated = torch.cat([micro for part in trainer.state.minibatches(0, rows) for micro in part])
    assert torch.equal(order, repeated)
    lengths = torch.tensor([len(p) + len(r) for p, r in zip(prompts, responses, strict=True)])
    for part in parts:
        part_lengths = lengths[torch.cat(part)].tolist()
        assert part_lengths == sorted(part_lengths)  # rows of similar length go together
    other = torch.cat([micro for part in trainer.state.minibatches(1, rows) for micro in part])
    assert not torch.equal(order, other)


@pytest.mark.parametrize(
    ("count", "minibatches", "sizes"),
    [(9, 4, [3, 2, 2, 2]), (10, 4, [3, 3, 2, 2]), (6, 4, [2, 2, 1, 1]), (2, 3, [1, 1])],
)
def test_there_are_as_many_minibatches_as_configured(llama_folder, count, minibatches, sizes):
    """Of nearly equal size: a remainder is neither a tiny update nor dropped."""
    trainer = tiny_models.trainer(llama_folder, minibatches=minibatches, micro_batch=8)
    rows = make_batch(trainer.backbone, [[9]] * count, [[20]] * count)
    parts = [torch.cat(minibatch) for minibatch in trainer.state.minibatches(0, rows)]
    assert [len(part) for part in parts] == sizes
    assert sorted(torch.cat(parts).tolist()) == list(range(count))


def test_samples_use_fixed_prompts_and_uniforms(llama_folder):
    trainer = tiny_models.trainer(llama_folder, gold=lambda *pair: len("|".join(pair)), sample_every=2, steps=3)
    before = trainer.samples()
    assert [s.prompt for s in before] == list(tiny_models.PROMPTS[:2])
    assert before == trainer.samples()
    results = run(trainer, 3)
    assert [len(result.samples) for result in results] == [0, 2, 2]
    assert [s.seed for s in results[-1].samples] == [s.seed for s in before]
    for s in results[-1].samples:
        assert s.gold == len(s.prompt) + 1 + len(s.text)
        assert s.score == s.text.split().count("cat")


def test_a_sample_that_has_not_ended_is_cut_at_its_length(llama_folder):
    trainer = tiny_models.trainer(llama_folder, max_new_tokens=3)
    assert [sample.cut for sample in trainer.samples()] == [3] * len(trainer.samples())  # the tiny model never ends
    trainer.backbone.eos_ids = range(10**6)  # every token ends a response
    assert {sample.cut for sample in trainer.samples()} == {None}


def test_gold_is_the_mean_over_the_rollouts(llama_folder):
    prompts = []

    def word_count(prompt, text):
        prompts.append(prompt)
        return float(len(text.split()))

    trainer = tiny_models.trainer(llama_folder, gold=word_count, missing_eos_penalty=0.0)
    metrics = trainer.run_step().metrics
    words = [
        sum(token not in {tiny_models.EOS, tiny_models.BOS, tiny_models.PAD, tiny_models.UNK} for token in row)
        for row in trainer.task.scorer.seen[0]
    ]
    double = [sum(token >= tiny_models.ID["not good"] for token in row) for row in trainer.task.scorer.seen[0]]
    assert metrics["objective/gold"] == pytest.approx(sum(words + double) / 6)
    assert len(prompts) == 6
    assert set(prompts) <= set(trainer.task.prompts)
    assert "objective/gold" not in tiny_models.trainer(llama_folder).run_step().metrics


def test_gold_gets_the_prompt_as_it_was_given_without_the_chat_template(llama_folder):
    backbone, prompts = tiny_models.load(llama_folder), []
    backbone.tokenizer.chat_template = "{{ 'the ' + messages[0]['content'] }}"
    trainer = tiny_models.trainer(llama_folder, gold=lambda prompt, _: prompts.append(prompt) or 0.0, backbone=backbone)
    trainer.run_step()
    assert set(prompts) <= set(trainer.task.prompts)


# --- settings ---


def test_learning_rate_is_annealed_to_zero(llama_folder):
    """Full at the first step, one step's worth above 0 at the last."""
    results = run(tiny_models.trainer(llama_folder, lr=0.008), 4)
    assert [result.metrics["lr"] for result in results] == pytest.approx([0.008, 0.006, 0.004, 0.002])
    assert [result.metrics["episode"] for result in results] == [6, 12, 18, 24]
    cosine = run(tiny_models.trainer(llama_folder, lr=0.008, lr_schedule="cosine"), 4)
    expected = [0.008, 0.0068284271, 0.004, 0.0011715729]  # 0.004 (1 + cos of 0, 45, 90, 135 degrees)
    assert [result.metrics["lr"] for result in cosine] == pytest.approx(expected)
    constant = tiny_models.trainer(llama_folder, lr=0.008, lr_schedule="constant")
    assert [result.metrics["lr"] for result in run(constant, 3)] == [0.008] * 3


def equal_rows(count):
    """Prompts and responses as ids."""
    return [tiny_models.ids("the cat")] * count, [tiny_models.ids("sat . <eos>")] * count


def test_episodes_are_counted_where_batches_differ(llama_folder):
    trainer = tiny_models.trainer(llama_folder)

    def step(count):
        prompts, sampled = equal_rows(count)
        return trainer.step(prompts, sampled, [1.0] * count).metrics["episode"]

    assert [step(4), step(8)] == [4, 12]
    tensors, numbers = trainer.state.state_dict()
    restored = tiny_models.trainer(llama_folder)
    restored.state.load_state_dict(tensors, numbers)
    assert restored.state.episodes == 12
    del numbers["episodes"]  # of a checkpoint from before they were counted
    restored.state.load_state_dict(tensors, numbers)
    assert restored.state.episodes == 2 * 6


def test_too_many_sequences_for_the_horizon_are_refused_before_training(llama_folder):
    trainer = tiny_models.trainer(llama_folder, kl_controller="adaptive", kl_horizon=3.0)
    prompts, sampled = equal_rows(16)
    before = trainer.state.state_dict()[0]
    with pytest.raises(ConfigError, match=r"n is 16, horizon 3\.0"):
        trainer.step(prompts, sampled, [1.0] * 16)
    assert tiny_models.same(trainer.state.state_dict()[0], before)


def test_equal_scores_change_nothing(llama_folder):
    """In float32 the mean of twelve times 12345.678 is another number; whitened, the difference would be an advantage of 1."""
    trainer = tiny_models.trainer(llama_folder, beta=0.0, gamma=1.0, lam=1.0)
    prompts, sampled = equal_rows(12)
    metrics = trainer.step(prompts, sampled, [12345.678] * 12).metrics
    assert abs(metrics["loss/policy_avg"]) < 1e-3


def test_the_first_ratio_is_one_with_another_matmul_library(llama_folder, monkeypatch):
    """And the KL of a new adapter is 0; with modules, as for texts too long for fused layers.

    Here products of the other library are a thousandth larger, because its rounding differences do not show in models
    of this size."""

    def other(x, weight):
        return lambda x, bias: 1.001 * torch.nn.functional.linear(x, weight, bias)

    monkeypatch.setattr(matmul, "USE_ONEDNN", True)
    monkeypatch.setattr(matmul, "MIN_MULTIPLICATIONS", 1)
    monkeypatch.setattr(matmul, "_onednn_matmul", other)
    monkeypatch.setattr(patch, "is_supported", lambda module: False)
    first = tiny_models.trainer(llama_folder, entropy_coef=0.02).run_step().metrics
    assert first["val/first_ratio_deviation"] < 1e-6
    assert first["objective/kl"] == 0.0


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_step_beyond_the_last_changes_nothing(llama_folder, schedule):
    """A custom loop may call `step` more often than configured: lr stays 0; it neither rises nor becomes negative."""
    trainer = tiny_models.trainer(llama_folder, steps=2, lr=0.01, lr_schedule=schedule)
    run(trainer, 2)
    before = weights(trainer)
    assert [result.metrics["lr"] for result in run(trainer, 2)] == [0.0, 0.0]
    assert tiny_models.same(weights(trainer), before)


def test_the_scheduled_rate_is_the_one_that_is_used(llama_folder):
    """Adam's first update moves every weight with a gradient far above eps by lr exactly."""
    trainer = mid_run(llama_folder, lr=0.008, epochs=1, minibatches=1, adam_eps=1e-12, vf_coef=1.0)
    bias = trainer.state.policy.value_head.linear.bias
    trainer.run_step()
    assert float(bias.detach().abs()) == pytest.approx(0.006, rel=1e-4)


def test_live_settings(llama_folder):
    trainer = tiny_models.trainer(llama_folder)
    trainer.run_step()
    trainer.set_live_setting("beta", 0.7)
    trainer.set_live_setting("lr", 0.02)
    metrics = trainer.run_step().metrics
    assert (metrics["objective/kl_coef"], metrics["lr"]) == (0.7, 0.02)  # the schedule does not change it
    for name, value in (("beta", -1.0), ("lr", 5.0), ("lr", NAN), ("epochs", 1), ("nonsense", 1.0)):
        with pytest.raises(ConfigError, match=name):
            trainer.set_live_setting(name, value)
    with pytest.raises(ConfigError, match="beta cannot be automatic: nothing adapts it in this run"):
        trainer.set_live_setting("beta", "automatic")
    assert trainer.state.set_by_hand == {"beta": 0.7, "lr": 0.02}
    trainer.set_live_setting("lr", "automatic")
    trainer.set_live_setting("lr", "automatic")  # once more changes nothing
    metrics = trainer.run_step().metrics
    assert (metrics["objective/kl_coef"], metrics["lr"]) == (0.7, pytest.approx(tiny_models.SMALL["lr"] * 0.5))


def test_the_kl_penalty_uses_the_current_beta(llama_folder):
    """Not that of the config: a live setting or the controller may have changed it; in the rewards and for a KL in the loss."""
    trainer = mid_run(llama_folder, beta=0.1, missing_eos_penalty=0.0)
    trainer.set_live_setting("beta", 0.7)
    rollout = trainer.prepare_rollout(
        make_batch(trainer.backbone, *tiny_models.ragged()), torch.arange(5).float(), None
    )
    charged = torch.arange(5) - rollout.rewards.double().sum(1)
    torch.testing.assert_close(charged, 0.7 * rollout.kl.double().sum(1), rtol=1e-4, atol=1e-5)
    assert float(charged.abs().max()) > 0.01
    assert trainer.state.coefficients.kl_beta == 0.7


def test_another_scorer_from_the_next_step_on(llama_folder):
    trainer = tiny_models.trainer(llama_folder)
    trainer.run_step()
    trainer.set_scorer(other := tiny_models.CountToken(tiny_models.ID["dog"], scale=10.0))
    trainer.run_step()
    assert len(other.seen) == 1 + 1  # the rollouts and the samples of step 2
    assert dataclasses.asdict(trainer.state.config)["seed"] == 0


def test_target_kl_stops_the_epochs(llama_folder):
    """The KL is above the target in the second epoch of a step (it is 0 before the first update), which is the last one."""
    prompts, responses = tiny_models.ragged(rows=6)
    updates = []
    for target in (1e-3, None):
        trainer = tiny_models.trainer(llama_folder, epochs=5, minibatches=1, lr=3e-2, target_kl=target)
        rows = make_batch(trainer.backbone, prompts, responses)
        rollout = trainer.prepare_rollout(rows, torch.linspace(-2, 2, 6), [[0.0] * len(r) for r in responses])
        updates.append(trainer.update(rollout, 3e-2).update_count)
    assert updates == [2, 5]


@pytest.mark.parametrize(
    ("minibatches", "target", "updates"),
    [
        (1, lambda kl: 0.75 * kl[1], 2),  # the second epoch's; the mean of both epochs is half of it
        (2, lambda kl: 0.75 * kl[1], 4),  # the first epoch's mean is half of its last update's
    ],
)
def test_target_kl_is_compared_with_the_mean_of_the_epoch_alone(llama_folder, minibatches, target, updates):
    prompts, responses = tiny_models.ragged(rows=6)

    def stats(limit):
        trainer = tiny_models.trainer(llama_folder, epochs=4, minibatches=minibatches, lr=3e-2, target_kl=limit)
        rows = make_batch(trainer.backbone, prompts, responses)
        rollout = trainer.prepare_rollout(rows, torch.linspace(-2, 2, 6), [[0.0] * len(r) for r in responses])
        return trainer.update(rollout, 3e-2)

    kl = [float(row["approxkl"]) for row in stats(None).history]
    assert kl[0] < 1e-6 < kl[1]
    assert stats(target(kl)).update_count == updates


def test_an_update_with_a_large_mean_ratio_is_skipped(llama_folder, monkeypatch):
    """Old log-probs 3 nats lower make every ratio e^3 > 10: all updates are skipped, and the metrics show it."""
    prompts, responses = tiny_models.ragged(rows=6)
    for lowered, skipped, updates in ((3.0, 4, 0), (2.0, 0, 4)):
        trainer = mid_run(llama_folder)
        monkeypatch.setattr(update, "check_first_ratio", lambda *_: None)
        rows = make_batch(trainer.backbone, prompts, responses)
        rollout = trainer.prepare_rollout(rows, torch.linspace(-2, 2, 6), [[0.0] * len(r) for r in responses])
        before = weights(trainer)
        stats = trainer.update(rollout._replace(old_logprobs=rollout.old_logprobs - lowered), 1e-2)
        assert (stats.skipped_count, stats.update_count) == (skipped, updates)
        assert tiny_models.same(weights(trainer), before) == (updates == 0)
        assert all(p.grad is None or not p.grad.any() for p in trainer.state.parameters)


def test_no_prompts(llama_folder):
    with pytest.raises(TrainingError, match="no prompts to train on"):
        tiny_models.trainer(llama_folder, prompts=()).run_step()


# --- when something is broken ---


def test_nan_in_the_adapter(llama_folder):
    trainer = tiny_models.trainer(llama_folder)
    with torch.no_grad():
        trainer.adapters.parameters("policy")[0].fill_(NAN)
    with pytest.raises(NotFiniteError, match="logits are not finite"):
        trainer.run_step()
    assert trainer.steps_done == 0


def test_nan_in_the_value_head(llama_folder):
    trainer = tiny_models.trainer(llama_folder)
    with torch.no_grad():
        trainer.state.policy.value_head.linear.weight.fill_(NAN)
    with pytest.raises(
        NotFiniteError, match=r"loss/value_avg.* became NaN or infinite at step 1\. The step was discarded"
    ):
        trainer.run_step()
    assert trainer.steps_done == 0


def test_a_broken_gradient_never_reaches_the_weights(llama_folder):
    """Values of 1e30 are finite, the gradients of their loss are not: `step` leaves weights and optimiser as they were."""
    trainer = mid_run(llama_folder, torch.float32)
    with torch.no_grad():
        trainer.state.policy.value_head.linear.weight.fill_(1e30)
    prompts, responses = tiny_models.ragged(rows=6)
    before, moments = weights(trainer), trainer.state.state_dict()[0]
    with pytest.raises(NotFiniteError, match=r"loss/value_avg.*grad_norm became NaN or infinite"):
        trainer.step(prompts, responses, [1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    assert tiny_models.same(weights(trainer), before)
    assert tiny_models.same(trainer.state.state_dict()[0], moments)
    assert all(p.grad is None or not p.grad.any() for p in trainer.state.parameters)


def test_metrics_that_are_not_finite_are_named():
    with pytest.raises(NotFiniteError, match=r"^a, c became NaN or infinite at step 3\."):
        check_finite({"a": NAN, "b": 1.0, "c": math.inf}, 3)
    check_finite({"b": 1.0}, 3)


def test_nan_from_the_scorer(llama_folder):
    trainer = tiny_models.trainer(llama_folder, scorer=tiny_models.CountToken(9, scale=NAN))
    with pytest.raises(NotFiniteError, match="objective/scores"):
        trainer.run_step()


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([1.0, NAN], "1 of 2 scores is not a finite number: score 1 is nan"),
        ([-math.inf, NAN], "2 of 2 scores are not finite numbers: score 0 is -inf"),
        (torch.tensor([0.0, math.inf]), "1 of 2 scores is not a finite number: score 1 is inf"),
        ([1.0, 1e38], r"1 of 2 scores is not a number between ±1e\+15: score 1 is 1e\+38"),
        ([-1e300, 2e15], r"2 of 2 scores are not numbers between ±1e\+15: score 0 is -1e\+300"),
    ],
)
@pytest.mark.parametrize("scale_scores", [False, True])
def test_a_score_that_is_not_finite_is_the_cause_that_the_error_names(llama_folder, scores, message, scale_scores):
    trainer = tiny_models.trainer(llama_folder, scale_scores=scale_scores)
    before = trainer.state.state_dict()
    with pytest.raises(NotFiniteError, match=message) as caught:
        trainer.step(["the cat", "moon"], ["sat", "ran"], scores)
    assert "reward function" in str(caught.value)
    assert "learning rate" not in str(caught.value)
    after = trainer.state.state_dict()
    assert after[1] == before[1]
    assert tiny_models.same(after[0], before[0])


def test_the_largest_scores_train(llama_folder):
    result = tiny_models.trainer(llama_folder).step(["the cat", "moon"], ["sat", "ran"], [MAX_SCORE, -MAX_SCORE])
    assert all(math.isfinite(value) for value in result.metrics.values())


@pytest.mark.parametrize(
    ("queries", "responses", "scores", "message"),
    [
        (["the cat"], ["sat"], [None], "the scores are not all numbers"),
        (["the cat"], ["sat"], ["a"], "the scores are not all numbers"),
        (["the cat"], ["sat"], ["1.0"], "the scores are not all numbers"),
        (["the cat"], ["sat"], [1 + 2j], "the scores are not all numbers"),
        (["the cat"], ["sat"], torch.tensor([1 + 2j]), "the scores are not all numbers"),
        (["the cat"], ["sat"], [10**400], "the scores are not all numbers"),
        (["the cat"], ["sat"], None, "the scores are not all numbers"),
        (["the cat"], ["sat"], [[1.0]], r"the scores have the shape \(1, 1\)"),
        (["the cat"], ["sat"], torch.tensor([[1.0]]), r"the scores have the shape \(1, 1\)"),
        (["the cat"], ["sat"], 1.0, r"the scores have the shape \(\)"),
        ("the", "sat", [1.0, 1.0, 1.0], "lists, not single texts"),
        ([None], ["sat"], [1.0], "None is neither a text nor a list of token ids"),
        ([[1.5]], ["sat"], [1.0], r"\[1.5\] is neither a text nor a list of token ids"),
        (["the cat"], [[99999]], [1.0], "the token id 99999 does not exist: the model has the ids 0 to"),
        ([[-1]], ["sat"], [1.0], "the token id -1 does not exist"),
    ],
)
def test_a_step_on_anything_but_texts_and_numbers_is_refused(llama_folder, queries, responses, scores, message):
    trainer = tiny_models.trainer(llama_folder)
    before = trainer.state.state_dict()
    with pytest.raises(ConfigError, match=message):
        trainer.step(queries, responses, scores)
    after = trainer.state.state_dict()
    assert after[1] == before[1]
    assert tiny_models.same(after[0], before[0])


def test_scores_and_token_ids_may_be_tensors(llama_folder):
    ids, score = torch.tensor(tiny_models.ids("the cat")), torch.tensor([1], dtype=torch.int64)
    result = tiny_models.trainer(llama_folder).step([ids], [[*tiny_models.ids("sat"), tiny_models.EOS]], score)
    assert result.metrics == pytest.approx(
        tiny_models.trainer(llama_folder).step(["the cat"], ["sat"], [1.0]).metrics | untimed(result.metrics)
    )


def untimed(metrics):
    """The metrics that measure time and memory."""
    return {name: value for name, value in metrics.items() if name.startswith(("time/", "eps", "memory"))}


def test_wrong_old_logprobs_fail_the_first_ratio_check(llama_folder):
    trainer = tiny_models.trainer(llama_folder)
    assess = trainer.prepare_rollout

    def wrong(*args):
        rollout = assess(*args)
        return rollout._replace(old_logprobs=rollout.old_logprobs + 1e-3)

    trainer.prepare_rollout = wrong
    with pytest.raises(SelfCheckError, match=r"ratios before the first update of step 1 differ from 1 by 0\.001"):
        trainer.run_step()
    assert trainer.steps_done == 0


def test_a_first_step_with_a_kl_is_refused(llama_folder):
    trainer = tiny_models.trainer(llama_folder)
    tiny_models.disturb(trainer.adapters, "policy")
    with pytest.raises(SelfCheckError, match=r"KL to the reference is .* before anything was learned"):
        trainer.run_step()


def test_a_state_that_does_not_fit_is_refused(llama_folder, gpt2_folder):
    with pytest.raises(ModelError, match="does not fit"):
        tiny_models.trainer(llama_folder).state.load_state_dict(*tiny_models.trainer(gpt2_folder).state.state_dict())


@pytest.mark.parametrize(
    ("saved", "loading"),
    [("ppo", "ppo_penalty"), ("ppo_penalty", "ppo"), ("ppo", "rloo"), ("grpo", "rloo"), ("reinforce", "trpo")],
)
def test_the_state_of_another_algorithm_is_refused_before_anything_is_loaded(llama_folder, saved, loading):
    state = tiny_models.learner(llama_folder, saved).state.state_dict()
    trainer = tiny_models.learner(llama_folder, loading, seed=1)
    before = trainer.state.state_dict()
    with pytest.raises(TrainingError, match=f'of the algorithm "{saved}", and this run trains with "{loading}"'):
        trainer.state.load_state_dict(*state)
    after = trainer.state.state_dict()
    assert after[1] == before[1]
    assert tiny_models.same(after[0], before[0])


@pytest.mark.parametrize(
    ("saved", "loading", "message"),
    [
        ({"scale_scores": True}, {}, "it also has scores"),
        ({}, {"scale_scores": True}, "it lacks scores"),
        ({"value_trunk": "critic"}, {}, "it also has critic"),
        ({}, {"value_trunk": "critic"}, "it lacks critic"),
        ({"algorithm": "ppo_penalty"}, {}, "it also has penalty"),
        ({}, {"algorithm": "ppo_penalty"}, "it lacks penalty"),
    ],
)
def test_the_state_of_other_settings_is_refused_also_without_the_name_of_the_algorithm(
    llama_folder, saved, loading, message
):
    """Checkpoints of earlier versions do not name their algorithm."""
    tensors, numbers = tiny_models.trainer(llama_folder, **saved).state.state_dict()
    del numbers["algorithm"]
    with pytest.raises(TrainingError, match=message):
        tiny_models.trainer(llama_folder, **loading).state.load_state_dict(tensors, numbers)


def without(entries, start):
    return {name: value for name, value in entries.items() if not name.startswith(start)}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda tensors, numbers: (tensors, without(numbers, "beta")), "it lacks beta"),
        (lambda tensors, numbers: (tensors, without(numbers, "lr")), "it lacks lr"),
        (lambda tensors, numbers: (tensors, without(numbers, "step")), "it lacks step"),
        (lambda tensors, numbers: (tensors, numbers | {"step": "x"}), "step is 'x', not a number"),
        (lambda tensors, numbers: (tensors, numbers | {"beta": NAN}), "beta is nan, not a number"),
        (lambda tensors, numbers: (tensors, numbers | {"episodes": [1]}), r"episodes is \[1\], not a number"),
        (lambda tensors, numbers: (tensors, numbers | {"scores": [1]}), r"scores is \[1\], not 3 numbers"),
        (lambda tensors, numbers: (tensors, numbers | {"scores": 1}), "scores is 1, not 3 numbers"),
        (lambda tensors, numbers: (tensors, numbers | {"scores": [1, 2, math.inf]}), "not 3 numbers"),
        (lambda tensors, numbers: (without(tensors, "value."), numbers), r"it lacks value\.linear\.bias"),
        (lambda tensors, numbers: (tensors | {"value.x": torch.zeros(1)}, numbers), r"it also has value\.x"),
        (lambda tensors, numbers: (tensors | {"value.linear.weight": torch.zeros(1, 99)}, numbers),
         r"value\.linear\.weight has the shape \(1, 99\), not \(1, 32\)"),
        (lambda tensors, numbers: (tensors | {"critic.x": torch.zeros(1)}, numbers), r"it also has critic\.x"),
        (lambda tensors, numbers: (tensors | {"optimiser.0.exp_avg": torch.zeros(3, 3)}, numbers),
         r"optimiser\.0\.exp_avg has the shape \(3, 3\)"),
        (lambda tensors, numbers: (tensors | {"optimiser.0.step": torch.zeros(2)}, numbers), "optimiser.0.step has the shape"),
        (lambda tensors, numbers: (tensors | {"optimiser.999.step": torch.zeros(())}, numbers), "optimiser.999.step"),
        (lambda tensors, numbers: (tensors | {"optimiser.0.exp_avg": tensors["optimiser.0.exp_avg"] * NAN}, numbers),
         "optimiser.0.exp_avg holds a number that is not finite"),
        (lambda tensors, numbers: ({name: value * NAN for name, value in tensors.items()}, numbers), "not finite"),
    ],
)  # fmt: skip
def test_a_damaged_state_is_refused_before_anything_is_loaded(llama_folder, damage, message):
    settings = {"scale_scores": True, "value_trunk": "critic"}
    saved, trainer = (tiny_models.trainer(llama_folder, **settings, seed=seed) for seed in (0, 1))
    for learner in (saved, trainer):
        learner.step(["the cat", "moon"], ["sat", "ran"], [1.0, -1.0])
    before = trainer.state.state_dict()
    with pytest.raises(TrainingError, match=message):
        trainer.state.load_state_dict(*damage(*saved.state.state_dict()))
    after = trainer.state.state_dict()
    assert after[1] == before[1]
    assert tiny_models.same(after[0], before[0])
    trainer.state.load_state_dict(*saved.state.state_dict())
    assert tiny_models.same(trainer.state.state_dict()[0], saved.state.state_dict()[0])


def test_a_state_without_the_name_of_its_algorithm_is_loaded(llama_folder):
    tensors, numbers = tiny_models.trainer(llama_folder).state.state_dict()
    del numbers["algorithm"]
    trainer = tiny_models.trainer(llama_folder, seed=1)
    trainer.state.load_state_dict(tensors, numbers)
    assert tiny_models.same(trainer.state.state_dict()[0], tensors)


# --- it learns ---


@pytest.mark.parametrize("seed", [0, 1])
def test_a_trivial_task_is_solved(gpt2_folder, seed):
    """Reward = how often one word is written, at most 6; at first it is one response in ten."""
    trainer = tiny_models.trainer(
        gpt2_folder, steps=25, batch_size=16, lr=1e-2, minibatches=1, micro_batch=16, beta=0.02, seed=seed,
        missing_eos_penalty=0.0, token_rows=0, sample_every=100,
    )  # fmt: skip
    results = run(trainer, 25)
    scores = [result.metrics["objective/scores"] for result in results]
    assert sum(scores[:2]) / 2 < 0.5
    assert sum(scores[-3:]) / 3 > 4.5
    assert results[-1].metrics["objective/kl"] > 5
    assert results[-1].metrics["val/explained_variance"] > 0


def test_a_strong_penalty_keeps_the_policy_at_the_reference(gpt2_folder):
    """beta = 10 against a score of at most 6: the KL stays small where beta = 0.02 lets it pass 5 nats."""
    settings = {"steps": 12, "batch_size": 16, "lr": 1e-2, "minibatches": 1, "micro_batch": 16, "sample_every": 100}
    penalised = run(tiny_models.trainer(gpt2_folder, beta=10.0, missing_eos_penalty=0.0, **settings), 12)
    unpenalised = run(tiny_models.trainer(gpt2_folder, beta=0.0, missing_eos_penalty=0.0, **settings), 12)
    assert penalised[-1].metrics["objective/kl"] < 0.3 * unpenalised[-1].metrics["objective/kl"]


def test_a_fresh_adapter_replaces_one_of_that_name(llama_folder):
    """A second run on the same backbone starts from the reference."""
    backbone = tiny_models.load(llama_folder)
    adapters = Adapters(backbone)
    first = tiny_models.PolicyTrainer(
        backbone,
        adapters,
        tiny_models.PolicyTask(tiny_models.PROMPTS, tiny_models.CountToken(9)),
        tiny_models.PolicyConfig(**tiny_models.SMALL),
    )
    expected = curve(run(first, 2))
    second = tiny_models.PolicyTrainer(
        backbone,
        adapters,
        tiny_models.PolicyTask(tiny_models.PROMPTS, tiny_models.CountToken(9)),
        tiny_models.PolicyConfig(**tiny_models.SMALL),
    )
    assert curve(run(second, 2)) == expected


@pytest.mark.parametrize("budget", [None, 4.0])
def test_sampling_reports_how_many_texts_are_done(llama_folder, small_score_unit, budget):
    """Every batch counts from the texts before it; 16 of 40 tokens of 6 texts are 2.4 texts."""
    trainer = tiny_models.trainer(llama_folder, batch_size=6, max_new_tokens=40, kl_budget=budget)
    reports = []
    trainer.state.on_sampling = lambda done, total: reports.append((round(done, 1), total))
    trainer.measure_score_unit()
    unit = reports.copy()
    assert [done for done, _ in unit] == sorted(done for done, _ in unit)
    assert {total for _, total in unit} == ({12} if budget else set())
    assert unit[-1:] == ([(12, 12)] if budget else [])
    reports.clear()
    on_progress = trainer.state.sampling_progress(6, 6, 18)
    for _ in range(3):
        on_progress()
    assert reports == [(6, 18), (8.4, 18), (10.8, 18), (12.0, 18)]
    reports.clear()
    trainer.run_step()
    assert reports[0] == (0, 6)
    assert (6, 6) in reports
