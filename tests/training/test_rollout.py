"""The values of a batch before the updates: log-probabilities, KL, rewards, advantages."""

import dataclasses
import math

import pytest
import torch
from support import tiny_models

from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.models.batch import Batch, make_batch
from rlhf_lab.models.heads import ValueHead
from rlhf_lab.training.policy.rewards_and_advantages import build_rollout
from rlhf_lab.training.policy.rollout import EvaluatedBatch, PolicyModel

ROWS = Batch(
    prompts=torch.tensor([[9], [9]]),
    prompt_mask=torch.ones(2, 1, dtype=torch.int64),
    responses=torch.tensor([[20, 0], [21, 0]]),
    mask=torch.tensor([[True, True], [True, False]]),
    ended=torch.tensor([True, False]),
    lengths=torch.tensor([[1, 2], [1, 1]]),
)
OLD = torch.tensor([[-1.0, -2.0], [-0.5, 7.0]])  # the 7 and the 9 stand in padding
REF = torch.tensor([[-1.2, -1.6], [-1.5, 9.0]])
VALUES = torch.tensor([[0.5, 1.0], [0.0, 5.0]])
SCORES = torch.tensor([3.0, -1.0])


def policy_of(folder, dtype=torch.float64):
    backbone = tiny_models.load(folder, dtype)
    head = ValueHead(backbone.hidden_size).requires_grad_(False)
    head.linear.weight.copy_(torch.linspace(-1, 1, backbone.hidden_size)[None])
    return PolicyModel(backbone, tiny_models.adapters_of(backbone, "policy", "other"), "policy", head)


def by_hand(**changes):
    config = PolicyConfig(**({"lam": 0.5, "whiten_advantages": False} | changes))
    return build_rollout(EvaluatedBatch(ROWS, SCORES, OLD, REF, OLD, VALUES.masked_fill(~ROWS.mask, 0.0)), 0.5, config)


def test_policy_and_reference_skip_the_last_token_and_the_value_pass_does_not(gpt2_folder, monkeypatch):
    policy = policy_of(gpt2_folder)
    rows = make_batch(policy.backbone, [[9, 9], [9]], [[20, 21, 22], [20]])
    widths, hidden = [], type(policy.backbone).hidden
    monkeypatch.setattr(
        type(policy.backbone),
        "hidden",
        lambda self, ids, first: widths.append(ids.shape[1]) or hidden(self, ids, first),
    )
    policy.evaluate(rows, 1.0)
    policy.reference_states(rows)
    assert widths == [4, 4]
    policy.compute_values(rows)  # the value of the state after the last token is among them
    assert widths == [4, 4, 5]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_temperature_divides_old_and_reference(gpt2_folder, temperature):
    """Against one plain forward a row, at the temperature, with the adapter and without."""
    policy = policy_of(gpt2_folder)
    prompts, responses = tiny_models.ragged()
    rows = make_batch(policy.backbone, prompts, responses)
    with torch.no_grad():
        old = policy.evaluate(rows, temperature)
    ref = policy.reference_logprobs(rows, temperature)
    for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        length = len(response)
        with policy.adapters.using("policy"):
            expected = tiny_models.teacher_forced(policy.backbone, prompt, response, temperature)
            all_logprobs = (tiny_models.all_logits(policy.backbone, prompt, response) / temperature).log_softmax(-1)
        torch.testing.assert_close(old.logprobs[i, :length], expected, rtol=0, atol=1e-10)
        entropy = -(all_logprobs.exp() * all_logprobs).sum(-1)
        torch.testing.assert_close(old.entropy[i, :length], entropy, rtol=0, atol=1e-10)
        expected = tiny_models.teacher_forced(policy.backbone, prompt, response, temperature)
        torch.testing.assert_close(ref[i, :length], expected, rtol=0, atol=1e-10)
        for column in (old.logprobs, old.entropy, old.values, ref):
            assert not column[i, length:].any()
    assert float((old.logprobs - ref).abs().max()) > 0.1


def test_values_are_read_at_the_predicting_position(gpt2_folder):
    """V(s_t) is the head on the state before token t: it may not see the token."""
    policy = policy_of(gpt2_folder)
    prompt, response = tiny_models.ids("the cat"), tiny_models.ids("sat . <eos>")
    with torch.no_grad():
        values = policy.evaluate(make_batch(policy.backbone, [prompt], [response]), 1.0).values[0]
        with policy.adapters.using("policy"):
            hidden = policy.backbone.trunk(input_ids=torch.tensor([[*prompt, *response]])).last_hidden_state[0]
    expected = hidden[1:4].float() @ torch.linspace(-1, 1, 32)
    torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("detached", "reaches"), [(False, True), (True, False)])
def test_value_loss_reaches_the_adapter_unless_detached(llama_folder, detached, reaches):
    policy = dataclasses.replace(
        policy_of(llama_folder, torch.float32), value_trunk="detached" if detached else "shared"
    )
    rows = make_batch(policy.backbone, *tiny_models.ragged())
    value = policy.evaluate(rows, 1.0).values.sum()
    assert value.requires_grad == reaches
    if reaches:
        value.backward()
        assert any(p.grad is not None and bool(p.grad.any()) for p in policy.adapters.parameters("policy"))
    assert all(p.grad is None for p in policy.adapters.parameters("other"))


def test_the_reference_has_no_gradient_and_no_adapter(llama_folder):
    policy = policy_of(llama_folder)
    rows = make_batch(policy.backbone, *tiny_models.ragged())
    expected = policy.reference_logprobs(rows, 1.0)
    assert not expected.requires_grad
    with policy.adapters.using("other"):
        assert torch.equal(policy.reference_logprobs(rows, 1.0), expected)
        assert policy.evaluate(rows, 1.0).logprobs.requires_grad


def test_kl_is_policy_minus_reference_and_reduces_rewards():
    """kl = (0.2, -0.4), (1.0); half of it is taken from the rewards."""
    rollout = by_hand(missing_eos_penalty=0.0)
    torch.testing.assert_close(rollout.kl, torch.tensor([[0.2, -0.4], [1.0, 0.0]]))
    torch.testing.assert_close(rollout.rewards, torch.tensor([[-0.1, 0.2 + 3.0], [-0.5 - 1.0, 0.0]]))


@pytest.mark.parametrize(
    ("clip", "penalty", "used"), [(None, 0.0, (3.0, -1.0)), (2.0, 1.0, (2.0, -2.0)), (0.5, 4.0, (0.5, -4.5))]
)
def test_score_is_added_once_after_clipping(clip, penalty, used):
    """Row 0 ended, row 1 did not: rewards sum to the clipped score - the penalty - beta times the summed KL."""
    rollout = by_hand(score_clip=clip, missing_eos_penalty=penalty)
    assert rollout.rewards.sum(1).tolist() == pytest.approx([used[0] - 0.5 * -0.2, used[1] - 0.5 * 1.0])
    assert torch.equal(rollout.scores, SCORES)


def test_missing_eos_penalty_uses_the_configured_stop_token(tmp_path):
    """The generation config stops at another token than the tokenizer's EOS: that response has ended."""
    tiny_models.set_generation_config(tiny_models.save_llama(tmp_path), eos_token_id=[tiny_models.STOP])
    backbone = tiny_models.load(tmp_path)
    rows = make_batch(backbone, [[9]] * 3, [[20, tiny_models.STOP], [20, tiny_models.EOS], [20, 21]])
    zero = torch.zeros(3, 2)
    rollout = build_rollout(
        EvaluatedBatch(rows, torch.ones(3), zero, zero, zero, zero), 0.5, PolicyConfig(missing_eos_penalty=0.75)
    )
    assert rollout.rewards.tolist() == [[0.0, 1.0], [0.0, 1.0], [0.0, 0.25]]


def test_returns_use_unwhitened_advantages():
    """By hand with lambda 1/2. Row 0: deltas 0.4 and 1.2, so A = (1.0, 1.2); row 1: A = -2.5. Their mean is -0.1, their
    variance (1.21 + 1.69 + 5.76) / 2 = 4.33."""
    settings = {"score_clip": 2.0, "missing_eos_penalty": 1.0}
    plain = by_hand(**settings)
    torch.testing.assert_close(plain.advantages, torch.tensor([[1.0, 1.2], [-2.5, 0.0]]))
    white = by_hand(**settings, whiten_advantages=True)
    sd = math.sqrt(4.33)
    torch.testing.assert_close(white.advantages, torch.tensor([[1.1 / sd, 1.3 / sd], [-2.4 / sd, 0.0]]))
    for rollout in (plain, white):
        torch.testing.assert_close(rollout.returns, torch.tensor([[1.5, 2.2], [-2.5, 0.0]]))


def test_whitened_rewards_keep_their_mean():
    """Rewards -0.1, 2.2, -2.5: mean -0.4/3, variance by hand; scaled around the mean, which stays."""
    rollout = by_hand(score_clip=2.0, missing_eos_penalty=1.0, whiten_rewards=True)
    rewards = [-0.1, 2.2, -2.5]
    mean = sum(rewards) / 3
    sd = math.sqrt(sum((r - mean) ** 2 for r in rewards) / 2)
    expected = [(r - mean) / sd + mean for r in rewards]
    torch.testing.assert_close(rollout.rewards, torch.tensor([[expected[0], expected[1]], [expected[2], 0.0]]))


@pytest.mark.parametrize(("estimator", "expected"), [("k2", 0.02), ("k3", math.exp(-0.2) - 1 + 0.2)])
def test_other_estimators_are_used_on_request(estimator, expected):
    assert float(by_hand(kl_estimator=estimator).kl[0, 0]) == pytest.approx(expected, abs=1e-6)


def test_gamma_and_lambda_are_used():
    """gamma 1/2, lambda 1, V = 0: discounted rewards to go, 3.2 / 2 - 0.1."""
    rollout = build_rollout(
        EvaluatedBatch(ROWS, SCORES, OLD, REF, OLD, torch.zeros(2, 2)), 0.5,
        PolicyConfig(gamma=0.5, lam=1.0, whiten_advantages=False, missing_eos_penalty=0.0),
    )  # fmt: skip
    torch.testing.assert_close(rollout.returns, torch.tensor([[1.5, 3.2], [-1.5, 0.0]]))
