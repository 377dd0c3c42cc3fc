"""Values with a separate adapter, pretraining texts, the exact KL, and the value after the last token."""

import pytest
import torch
from support import tiny_models

from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.core.kl import full_kl
from rlhf_lab.errors import TrainingError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.batch import make_batch
from rlhf_lab.models.features import FeatureSpec
from rlhf_lab.models.heads import RewardHead
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.training.policy import update
from rlhf_lab.training.policy.metrics import UpdateStats
from rlhf_lab.training.policy.rollout import CRITIC_ADAPTER
from rlhf_lab.training.policy.trainer import PolicyTask, PolicyTrainer


def reward_model(folder):
    backbone = tiny_models.load(folder)
    adapters = Adapters(backbone)
    adapters.add("reward", r=3, alpha=5, seed=1, trainable=False)
    tiny_models.disturb(adapters, "reward")
    head = RewardHead(backbone.hidden_size, FeatureSpec("mean"), seed=4).requires_grad_(False)
    head.shift.fill_(0.3)
    head.scale.fill_(2.0)
    return RewardModel(backbone, adapters, "reward", head)


def critic_from_reward(folder):
    scorer = reward_model(folder)
    config = tiny_models.PolicyConfig(**(tiny_models.SMALL | {"value_trunk": "critic", "critic_init": "reward"}))
    return scorer, PolicyTrainer(scorer.backbone, scorer.adapters, PolicyTask(tiny_models.PROMPTS, scorer), config)


def test_a_critic_starts_as_the_reward_model(llama_folder):
    """Its value after a token is the score of that token; the reward model is not changed."""
    scorer, trainer = critic_from_reward(llama_folder)
    prompt, response = tiny_models.ids("the cat"), tiny_models.ids("sat . <eos>")
    rows = make_batch(scorer.backbone, [prompt], [response])
    with torch.no_grad():
        values, after = trainer.state.policy.compute_values(rows)
    expected = scorer.token_scores(prompt, response)
    assert values[0, 1:].tolist() == pytest.approx(expected[:2], abs=1e-5)  # before token 1 is after token 0
    assert float(after) == pytest.approx(expected[2], abs=1e-5)
    before = scorer.adapters.tensors("reward")
    critic = scorer.adapters.tensors(CRITIC_ADAPTER)
    trainer.run_step()
    assert tiny_models.same(scorer.adapters.tensors("reward"), before)
    assert not tiny_models.same(scorer.adapters.tensors(CRITIC_ADAPTER), critic)


def test_a_critic_needs_a_reward_model_with_an_adapter(llama_folder):
    with pytest.raises(TrainingError, match="is not a reward model with an adapter"):
        tiny_models.learner(llama_folder, "ppo", value_trunk="critic", critic_init="reward")


def test_policy_and_critic_learn_from_their_own_loss_alone(llama_folder):
    """Without a value loss the critic stays, without advantages the policy does."""
    for settings, moves in (({"vf_coef": 0.0}, "policy"), ({}, CRITIC_ADAPTER)):
        trainer = tiny_models.midway(llama_folder, "ppo", value_trunk="critic", **settings)
        rollout = tiny_models.rollout(trainer)
        if moves == CRITIC_ADAPTER:
            rollout = rollout._replace(advantages=torch.zeros_like(rollout.advantages))
        tensors_before = {name: trainer.adapters.tensors(name) for name in ("policy", CRITIC_ADAPTER)}
        trainer.update(rollout, 1e-3)
        for name, before in tensors_before.items():
            assert tiny_models.same(trainer.adapters.tensors(name), before) == (name != moves)


def test_values_warm_up_before_the_policy_moves(llama_folder):
    settings = {"value_trunk": "detached", "value_warmup": 1, "missing_eos_penalty": 1.0}  # scores that differ
    trainer = tiny_models.learner(llama_folder, "ppo", **settings)
    before = trainer.adapters.tensors("policy")
    first = trainer.run_step().metrics
    assert tiny_models.same(trainer.adapters.tensors("policy"), before)
    assert bool(trainer.state.policy.value_head.linear.weight.detach().any())
    assert first["loss/value_avg"] > 0
    trainer.run_step()
    assert not tiny_models.same(trainer.adapters.tensors("policy"), before)


@pytest.mark.parametrize("algorithm", ["ppo", "trpo"])
def test_value_only_updates_equal_a_plain_loop(gpt2_folder, algorithm):
    """Warm-up, also of trpo: the configured number of passes, each in its own order, token by token with clip and weight."""
    settings = {
        "value_trunk": "detached",
        "value_warmup": 2,
        "epochs": 3,
        "vf_coef": 0.7,
        "cliprange_value": 0.05,
        "micro_batch": 2,
    }
    # The first gradients are clipped and the last are not, because Adam would hide a factor common to all steps.
    trainer = tiny_models.midway(gpt2_folder, algorithm, torch.float64, max_grad_norm=1.0, **settings)
    rollout, head = tiny_models.rollout(trainer), trainer.state.policy.value_head.linear
    batches = [
        torch.cat(batch).tolist() for epoch in range(3) for batch in trainer.state.minibatches(epoch, rollout.batch)
    ]
    before = {name: tensor.detach().clone() for name, tensor in head.state_dict().items()}
    stats = trainer.update(rollout, 1e-2)
    actual = {name: tensor.detach().clone() for name, tensor in head.state_dict().items()}
    head.load_state_dict(before)
    optimiser, losses = torch.optim.Adam(head.parameters(), lr=1e-2, eps=trainer.state.config.adam_eps), []
    prompts, responses = tiny_models.ragged(rows=6)
    for batch in batches:
        loss, count = 0.0, sum(len(responses[i]) for i in batch)
        for i in batch:
            prompt, response = prompts[i // 2 * 2], responses[i]
            with torch.no_grad(), trainer.adapters.using("policy"):
                hidden = trainer.backbone.trunk(input_ids=torch.tensor([[*prompt, *response]])).last_hidden_state[0]
            for t in range(len(response)):
                value = hidden[len(prompt) - 1 + t] @ head.weight[0] + head.bias[0]
                old, target = float(rollout.values[i, t]), float(rollout.returns[i, t])
                clipped = old + (value - old).clamp(-0.05, 0.05)
                loss = loss + 0.5 * torch.maximum((value - target) ** 2, (clipped - target) ** 2) / count
        (0.7 * loss).backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(float(loss.detach()))
    for name, tensor in head.state_dict().items():
        torch.testing.assert_close(actual[name], tensor, rtol=1e-6, atol=1e-9)
    assert stats.update_count == len(losses) == 6
    assert stats.mean("value") == pytest.approx(sum(losses) / 6, rel=1e-6)


def test_evaluated_values_are_the_critics(llama_folder):
    """In batches and alone, without padding; the value after the last token too."""
    trainer = tiny_models.midway(
        llama_folder,
        "ppo",
        value_trunk="critic",
        bootstrap_cut=True,
        lam=1.0,
        beta=0.0,
        whiten_advantages=False,
        missing_eos_penalty=1.0,
    )
    tiny_models.disturb(trainer.adapters, CRITIC_ADAPTER)
    prompts, responses = tiny_models.ragged(rows=4)
    scores = torch.tensor([1.0, 2.0, 3.0, 4.0])
    rollout = trainer.prepare_rollout(make_batch(trainer.backbone, prompts, responses), scores, None)
    head = trainer.state.policy.value_head.linear
    for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        with torch.no_grad(), trainer.adapters.using(CRITIC_ADAPTER):
            hidden = trainer.backbone.trunk(input_ids=torch.tensor([[*prompt, *response]])).last_hidden_state[0]
            values = (hidden @ head.weight[0] + head.bias[0])[len(prompt) - 1 :].tolist()
        assert rollout.values[i, : len(response)].tolist() == pytest.approx(values[:-1], abs=1e-4)
        ended = response[-1] == tiny_models.EOS
        reward = float(scores[i]) - (0.0 if ended else 1.0)
        expected_return = reward if ended else reward + values[-1]
        assert rollout.advantages[i, 0].item() == pytest.approx(expected_return - values[0], abs=1e-4)


def test_the_exact_kl_is_over_the_whole_vocabulary(gpt2_folder):
    trainer = tiny_models.midway(gpt2_folder, "ppo", kl_estimator="full", temperature=0.7)
    prompts, responses = tiny_models.ragged(rows=4)
    rollout = trainer.prepare_rollout(make_batch(trainer.backbone, prompts, responses), torch.zeros(4), None)
    for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        with trainer.adapters.using("policy"):
            policy = tiny_models.all_logits(trainer.backbone, prompt, response)
        expected = full_kl(policy, tiny_models.all_logits(trainer.backbone, prompt, response), 0.7)
        assert rollout.kl[i, : len(response)].tolist() == pytest.approx(expected.tolist(), abs=1e-5)
        assert not rollout.kl[i, len(response) :].any()
    assert float(rollout.kl.max()) > 0.01


def ptx_backward(trainer, *update_path):
    state = trainer.state
    config = state.config.replace(micro_batch=2)
    return state.ptx.batch_backward(update_path, config, state.distributed, state.on_progress)


def test_pretraining_text_adds_the_gradient_of_its_cross_entropy(gpt2_folder):
    """With zero advantages and values: ptx_coef times the mean over all predicted tokens, a text at a time."""
    trainer = tiny_models.midway(gpt2_folder, "rloo", torch.float64, ptx_coef=0.3, ptx_batch=5, micro_batch=2)
    loss = ptx_backward(trainer, 1, 0, 0)
    actual = [p.grad.clone() for p in trainer.adapters.parameters("policy")]
    trainer.state.optimizer.zero_grad()
    generator = torch.Generator().manual_seed(derive_seed(0, "ptx", 1, 0, 0))
    texts = [tiny_models.ids(text) for text in ("the cat sat .", "a small dog saw the moon . <eos>", "the king")]
    chosen = [texts[i] for i in torch.randint(3, (5,), generator=generator).tolist()]
    total, count = 0.0, sum(len(ids) - 1 for ids in chosen)
    for ids in chosen:
        with trainer.adapters.using("policy"):
            table = trainer.backbone.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        total = total - sum(table[t, ids[t + 1]] for t in range(len(ids) - 1)) / count
    (0.3 * total).backward()
    assert float(loss) == pytest.approx(float(total.detach()), rel=1e-6)
    for expected, gradient in zip(trainer.adapters.parameters("policy"), actual, strict=True):
        torch.testing.assert_close(gradient, expected.grad, rtol=1e-7, atol=1e-10)


def test_pretraining_text_is_part_of_every_update_and_a_metric(gpt2_folder):
    trainer = tiny_models.learner(gpt2_folder, "ppo", ptx_coef=1.0, ptx_batch=4, lr=1e-2, steps=6)
    losses = [result.metrics["loss/ptx_avg"] for result in tiny_models.run(trainer, 6)]
    assert losses[-1] < losses[0] - 0.2
    first, second = (ptx_backward(trainer, 0, 0, number) for number in (0, 1))
    assert float(first) != float(second)


def test_pretraining_without_texts(gpt2_folder):
    backbone = tiny_models.load(gpt2_folder)
    config = tiny_models.PolicyConfig(**(tiny_models.SMALL | {"ptx_coef": 1.0}))
    for texts in ((), ("cat",)):
        with pytest.raises(TrainingError, match=r"ptx_coef = 1 mixes in pretraining text, but there is none"):
            PolicyTrainer(
                backbone,
                Adapters(backbone),
                PolicyTask(tiny_models.PROMPTS, tiny_models.CountToken(9), ptx_texts=texts),
                config,
            )


def test_state_contains_adaptive_coefficients_and_moments(gpt2_folder):
    """The coefficient of the penalty and the moments of the scores, stored as plain numbers."""
    trainer = tiny_models.midway(gpt2_folder, "ppo_penalty", scale_scores=True)
    trainer.state.penalty_controller.value = 0.125
    trainer.state.score_moments.update(torch.tensor([1.0, 4.0, 7.0]))
    other = tiny_models.learner(gpt2_folder, "ppo_penalty", scale_scores=True)
    other.state.load_state_dict(*trainer.state.state_dict())
    assert (other.state.penalty_controller.value, other.state.score_moments.sd, other.state.score_moments.count) == (
        0.125,
        3.0,
        3,
    )


def test_scores_are_divided_by_the_running_deviation(gpt2_folder):
    trainer = tiny_models.midway(gpt2_folder, "ppo", scale_scores=True, beta=0.0, missing_eos_penalty=0.0)
    prompts, responses = tiny_models.ragged(rows=3)
    rows = make_batch(trainer.backbone, prompts, responses)
    for scores, sd in (([1.0, 4.0, 7.0], 3.0), ([4.0, 4.0, 4.0], 18**0.5 / 5**0.5)):
        rollout = trainer.prepare_rollout(rows, torch.tensor(scores), None)
        assert rollout.rewards.sum(1).tolist() == pytest.approx([score / sd for score in scores], rel=1e-6)


def test_the_critic_does_not_change_the_policy_gradient(llama_folder):
    """One minibatch: the policy's gradient with a separate critic equals that without a value function."""
    gradients = []
    for settings in ({"value_trunk": "critic"}, {"vf_coef": 0.0}):
        trainer = tiny_models.midway(llama_folder, "ppo", torch.float64, **settings)
        rollout = tiny_models.rollout(trainer)._replace(advantages=torch.linspace(-1, 1, 42).view(6, 7))
        update.minibatch_backward(trainer.state, rollout, [torch.arange(6)], UpdateStats())
        gradients.append([p.grad.clone() for p in trainer.adapters.parameters("policy")])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)
