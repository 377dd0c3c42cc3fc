"""The offline methods: gradients against plain loops, ties and counts of labels, rounds of rejection sampling."""

import dataclasses
import math

import pytest
import torch
from support import tiny_models

from rlhf_lab.errors import ConfigError, LabelError, TrainingError
from rlhf_lab.training.offline.trainer import best_texts
from rlhf_lab.training.offline.updates import preference_update, reference_sums, sft_update
from rlhf_lab.training.policy.kl_budget import OldPolicy
from rlhf_lab.training.policy.train_state import ChosenText
from rlhf_lab.training.policy.weighted_reward import WeightedReward


def gradients(trainer):
    return [parameter.grad.clone() for parameter in trainer.state.parameters]


def log_ratio(trainer, prompt, response):
    """One row at a time, by the model's own head; differentiable."""
    backbone, sums = trainer.backbone, []
    for adapter in ("policy", None):
        with trainer.adapters.using(adapter):
            logits = backbone.model(input_ids=torch.tensor([[*prompt, *response]]), use_cache=False).logits[0]
        logprobs = torch.log_softmax(logits[:, : len(backbone.tokenizer)], dim=-1)
        sums.append(sum(logprobs[len(prompt) + i - 1, token] for i, token in enumerate(response)))
    return sums[0] - sums[1].detach()


@pytest.fixture
def unapplied(monkeypatch):
    """Updates leave their gradients."""
    monkeypatch.setattr("rlhf_lab.training.offline.updates.apply_gradient", lambda *_: torch.tensor(0.0))


@pytest.mark.parametrize("kind", ["sigmoid", "ipo"])
def test_dpo_follows_the_gradient_of_its_formula(gpt2_folder, unapplied, kind):
    """In micro-batches of one pair and of all; the loss and the rewards too."""
    settings = {"beta": 0.3, "dpo_loss": kind, "label_smoothing": 0.1}
    trainer = tiny_models.midway(gpt2_folder, "dpo", torch.float64, **settings)
    pairs, loss = trainer.pairs[:5], 0.0
    assert [pair.tie for pair in pairs] == [False] * 4 + [True]
    ratios = [[log_ratio(trainer, pair.prompt, r) for r in (pair.chosen, pair.rejected)] for pair in pairs]
    for pair, (chosen, rejected) in zip(pairs, ratios, strict=True):
        h, wrong = chosen - rejected, 0.5 if pair.tie else 0.1
        if kind == "ipo":
            right_loss, wrong_loss = (h - 1 / 0.6) ** 2, (h + 1 / 0.6) ** 2
        else:
            right_loss, wrong_loss = (-torch.log(1 / (1 + torch.exp(-sign * 0.3 * h))) for sign in (1, -1))
        loss = loss + ((1 - wrong) * right_loss + wrong * wrong_loss) / 5
    loss.backward()
    expected = gradients(trainer)
    for size in (2, 16):
        trainer.state.config = trainer.state.config.replace(micro_batch=size)
        trainer.state.optimizer.zero_grad()
        metrics = preference_update(trainer.state, pairs, reference_sums(trainer.state, pairs))
        for actual, exact in zip(gradients(trainer), expected, strict=True):
            torch.testing.assert_close(actual, exact, rtol=1e-7, atol=1e-10)
        margins = [0.3 * (chosen - rejected).item() for chosen, rejected in ratios[:4]]
        assert metrics["loss/dpo_avg"] == pytest.approx(loss.item())
        assert metrics["rewards/margins"] == pytest.approx(sum(margins) / 4)
        assert metrics["rewards/chosen"] == pytest.approx(0.3 * sum(chosen.item() for chosen, _ in ratios[:4]) / 4)
        assert metrics["rewards/accuracies"] == sum(margin > 0 for margin in margins) / 4
        assert metrics["objective/kl_coef"] == 0.3


def test_sft_follows_the_gradient_of_the_cross_entropy(gpt2_folder, unapplied):
    """The mean over all response tokens, for any micro-batch."""
    trainer = tiny_models.midway(gpt2_folder, "sft", torch.float64)
    loss, count = 0.0, sum(len(text.response) for text in trainer.texts)
    for prompt, response in trainer.texts:
        with trainer.adapters.using("policy"):
            logits = trainer.backbone.model(input_ids=torch.tensor([[*prompt, *response]]), use_cache=False).logits[0]
        logprobs = torch.log_softmax(logits[:, : len(trainer.backbone.tokenizer)], dim=-1)
        loss = loss - sum(logprobs[len(prompt) + i - 1, token] for i, token in enumerate(response)) / count
    loss.backward()
    expected = gradients(trainer)
    for size in (1, 16):
        trainer.state.config = trainer.state.config.replace(micro_batch=size)
        trainer.state.optimizer.zero_grad()
        metrics = sft_update(trainer.state, trainer.texts)
        assert metrics["loss/sft_avg"] == pytest.approx(loss.item())
        for actual, exact in zip(gradients(trainer), expected, strict=True):
            torch.testing.assert_close(actual, exact, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("algorithm", ["dpo", "sft"])
def test_the_weight_of_a_label_multiplies_its_loss(gpt2_folder, unapplied, monkeypatch, algorithm):
    """One label of weight 1/2 beside labels of weight 1 is one label beside all others twice. In micro-batches of both."""
    half = [dataclasses.replace(tiny_models.LABELS[0], weight=0.5), *tiny_models.LABELS[1:]]
    twice = [tiny_models.LABELS[0], *(dataclasses.replace(x, count=2 * x.count) for x in tiny_models.LABELS[1:])]
    losses, grads = [], []
    for labels in (half, twice):
        monkeypatch.setattr(tiny_models, "LABELS", labels)
        trainer = tiny_models.midway(gpt2_folder, algorithm, torch.float64, label_batch=16, micro_batch=4)
        losses.append(trainer.update_on_texts()[f"loss/{algorithm}_avg"])
        grads.append(gradients(trainer))
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    for actual, exact in zip(*grads, strict=True):
        torch.testing.assert_close(actual, exact, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("algorithm", ["dpo", "sft"])
def test_a_label_alone_in_its_update_keeps_its_weight(gpt2_folder, unapplied, monkeypatch, algorithm):
    """Beside labels of weight 1, one of weight 0.01 has 0.01 of their mean effect; one of weight 0 has none.

    dpo: the mean weight of the 7 labels (one counts twice) is 6.01 / 7. sft: 6 texts of 4, 3, 4, 5, 4 and 4 tokens, the mean
    over tokens.
    """
    divisors = {"dpo": (6 + 0.01) / 7, "sft": (20 + 4 * 0.01) / 24}
    gradient_of = {}
    for weight in (1.0, 0.01, 0.0):
        labels = [dataclasses.replace(tiny_models.LABELS[0], weight=weight), *tiny_models.LABELS[1:]]
        monkeypatch.setattr(tiny_models, "LABELS", labels)
        trainer = tiny_models.midway(gpt2_folder, algorithm, torch.float64, label_batch=1)
        monkeypatch.setattr("rlhf_lab.training.offline.trainer.shuffled_indices", lambda *_: [0])
        loss = trainer.update_on_texts()[f"loss/{algorithm}_avg"]
        gradient_of[weight] = torch.cat([gradient.flatten() for gradient in gradients(trainer)])
        assert math.isfinite(loss)
    if algorithm == "sft":
        assert [len(text.response) for text in trainer.texts] == [4, 3, 4, 5, 4, 4]
    torch.testing.assert_close(gradient_of[0.01], gradient_of[1.0] * 0.01 / divisors[algorithm], rtol=1e-6, atol=1e-12)
    assert float(gradient_of[1.0].abs().max()) > 1e-3
    assert not gradient_of[0.0].any()


@pytest.mark.parametrize("algorithm", ["dpo", "sft"])
def test_labels_with_equal_tokens_are_left_out_and_counted(gpt2_folder, monkeypatch, algorithm):
    """The model reads the same tokens for both texts, so nothing says which is better."""
    labels = tiny_models.LABELS
    blind = dataclasses.replace(labels[1], rejected_ids=labels[1].chosen_ids)
    plain = tiny_models.learner(gpt2_folder, algorithm)
    monkeypatch.setattr(tiny_models, "LABELS", [blind, *labels, dataclasses.replace(blind, tie=True, count=3)])
    mixed = tiny_models.learner(gpt2_folder, algorithm)
    assert (plain.indistinguishable, mixed.indistinguishable) == (0, 2)
    assert (mixed.pairs, mixed.texts) == (plain.pairs, plain.texts)
    monkeypatch.setattr(tiny_models, "LABELS", [blind, blind])
    with pytest.raises(LabelError, match="in all 2 labels the two texts have the same tokens for this model"):
        tiny_models.learner(gpt2_folder, algorithm)
    weightless = dataclasses.replace(labels[0], weight=0.0)
    monkeypatch.setattr(tiny_models, "LABELS", [blind, labels[4], weightless])
    message = r"none of the 3 prefers a text \(1 have the same tokens in both texts, 1 have the weight 0\)"
    with pytest.raises(LabelError, match=message):
        tiny_models.learner(gpt2_folder, algorithm)


def test_methods_without_labels_do_not_read_their_weights(gpt2_folder, monkeypatch):
    weightless = [dataclasses.replace(label, weight=0.0) for label in tiny_models.LABELS]
    monkeypatch.setattr(tiny_models, "LABELS", weightless)
    trainer = tiny_models.learner(gpt2_folder, "rejection")
    assert (trainer.pairs, trainer.texts, trainer.text_weights) == ([], [], [])


def test_equal_implicit_rewards_are_half_right(gpt2_folder, unapplied, monkeypatch):
    """Log-ratios of two pairs: equal ones, and a higher one of the chosen text."""
    log_ratios = torch.tensor([[1.0, 1.0], [2.0, 1.0]])
    monkeypatch.setattr(
        "rlhf_lab.training.offline.updates._preference_backward", lambda *_: (torch.tensor(0.5), log_ratios)
    )
    trainer = tiny_models.learner(gpt2_folder, "dpo", beta=0.2)
    metrics = preference_update(trainer.state, trainer.pairs[:2], log_ratios)
    assert metrics["rewards/margins"] == pytest.approx(0.1)
    assert metrics["rewards/accuracies"] == 0.75


def test_dpo_starts_at_the_reference(llama_folder):
    """No margin, so the loss is log 2 and the KL is 0; the first step moves both."""
    first, second = tiny_models.run(tiny_models.learner(llama_folder, "dpo", sample_every=1), 2)
    assert first.metrics["loss/dpo_avg"] == pytest.approx(math.log(2), abs=1e-5)
    assert first.metrics["objective/kl"] == pytest.approx(0.0, abs=1e-4)
    assert second.metrics["rewards/margins"] > 1e-3
    assert second.metrics["objective/kl"] != first.metrics["objective/kl"]


def test_a_tie_is_no_text_to_imitate_and_a_count_repeats_a_label(gpt2_folder):
    trainer = tiny_models.learner(gpt2_folder, "sft")
    assert len(trainer.pairs) == 7
    assert [trainer.backbone.decode(text.response).split()[0] for text in trainer.texts] == ["cat"] * 6
    assert trainer.texts[-1] == trainer.texts[-2]
    trainer.task = trainer.task.__class__(prompts=trainer.task.prompts, labels=[tiny_models.LABELS[4]])
    with pytest.raises(LabelError, match="none of the 1 prefers a text"):
        type(trainer)(trainer.backbone, tiny_models.Adapters(trainer.backbone), trainer.task, trainer.state.config)


def test_every_label_is_used_once_a_pass(gpt2_folder, monkeypatch):
    """7 labels, 4 an update: after 7 updates each was used 4 times; `epoch` counts the passes."""
    used = []

    def note(_, pairs, reference):
        used.extend(pairs)
        assert reference.shape == (4, 2)
        return {}

    monkeypatch.setattr("rlhf_lab.training.offline.trainer.preference_update", note)
    trainer = tiny_models.learner(gpt2_folder, "dpo", steps=7)
    results = tiny_models.run(trainer, 7)
    for i, pair in enumerate(trainer.pairs):
        assert used.count(pair) == (8 if i >= 5 else 4)  # the last two are one label that counts twice
    assert results[6].metrics["epoch"] == 4.0
    assert trainer.state.episodes == 28


def test_the_policy_is_measured_only_where_it_is_due(gpt2_folder):
    results = tiny_models.run(tiny_models.learner(gpt2_folder, "sft", steps=5, sample_every=3), 5)
    assert [result.step for result in results if "objective/kl" in result.metrics] == [1, 4, 5]
    assert [result.step for result in results if result.samples] == [3, 5]


@pytest.mark.parametrize("algorithm", ["dpo", "sft", "rejection"])
def test_with_a_kl_budget_an_update_is_measured_on_old_responses_and_limited(gpt2_folder, monkeypatch, algorithm):
    """With a hundredfold learning rate the KL of the whole update is far above a tenth of the budget of 2; the scaled
    update is below.

    k3 of the responses sampled before the update, one row at a time, in float64.
    """
    trainer = tiny_models.learner(gpt2_folder, algorithm, torch.float64, kl_budget=2.0, lr=0.5, steps=50)
    measure_policy, measured = trainer.measure_policy, []

    def recording():
        metrics, old = measure_policy()
        measured.append(OldPolicy(old.batch, old.logprobs.clone()))
        return metrics, old

    monkeypatch.setattr(trainer, "measure_policy", recording)
    metrics, (batch, logprobs) = trainer.run_step().metrics, measured[0]
    total = 0.0
    for i in range(len(logprobs)):
        prompt, response = (
            batch.prompts[i][batch.prompt_mask[i].bool()].tolist(),
            batch.responses[i][batch.mask[i]].tolist(),
        )
        with trainer.adapters.using(None):
            old = tiny_models.teacher_forced(trainer.backbone, prompt, response)
        with trainer.adapters.using("policy"):
            new = tiny_models.teacher_forced(trainer.backbone, prompt, response)
        torch.testing.assert_close(logprobs[i][: len(response)].double(), old.double(), rtol=1e-5, atol=1e-5)
        total += float((torch.exp(new - old) - 1.0 - (new - old)).sum())
    assert metrics["policy/update_kl"] == pytest.approx(total / len(logprobs), rel=1e-3)
    assert 0.0 < metrics["policy/update_kl"] <= 0.2
    assert metrics["policy/update_fraction"] < 1.0
    assert trainer.state.lr < 0.5


def test_at_the_kl_budget_an_offline_method_does_not_update(gpt2_folder, monkeypatch):
    """Step 5 of 9: the linear schedule is at 5/9 and the warm-up is over.

    At three quarters of the budget a quarter of the learning rate remains.
    """
    trainer = tiny_models.learner(gpt2_folder, "sft", kl_budget=4.0, steps=9, sample_every=3, lr=0.01)
    trainer.state.steps_done, trainer.state.kl_control.measured_kl = 4, 3.0
    assert trainer.state.current_value("lr") == pytest.approx(0.01 * math.sqrt(5 / 9) * 0.25)
    resumed = tiny_models.learner(gpt2_folder, "sft", kl_budget=4.0, steps=9, sample_every=3, lr=0.01)
    tensors, numbers = trainer.state.state_dict()
    resumed.state.load_state_dict(tensors, numbers)
    assert resumed.state.kl_control.measured_kl == 3.0
    del numbers["measured_kl"]
    resumed.state.load_state_dict(tensors, numbers)  # a checkpoint of an earlier version
    assert resumed.state.kl_control.measured_kl == 0.0
    trainer.state.kl_control.measured_kl = -1.0  # k1 of few responses may be negative, but not the KL
    assert trainer.state.current_value("lr") == pytest.approx(0.01 * math.sqrt(5 / 9))
    trainer.state.kl_control.measured_kl = 5.0
    before = tiny_models.weights(trainer)
    monkeypatch.setattr(
        "rlhf_lab.training.policy.kl_budget.update_kl", lambda *_: 1e-9
    )  # only the rounding error of an update of 0
    assert trainer.run_step().metrics["lr"] == 0.0
    assert trainer.state.lr == 0.01
    assert all(torch.equal(before[name], weight) for name, weight in tiny_models.weights(trainer).items())


def test_after_an_update_that_was_scaled_back_the_next_one_is_limited_too(gpt2_folder):
    """Although it is not due.

    Otherwise the second step would exceed the budget of 2 nats with 15, and nothing would reduce it.
    """
    trainer = tiny_models.learner(gpt2_folder, "sft", kl_budget=2.0, lr=0.5, steps=50, sample_every=40)
    results = [result.metrics for result in tiny_models.run(trainer, 4)]
    assert all(metrics["policy/update_fraction"] < 1.0 for metrics in results)
    assert max(metrics["policy/update_kl"] for metrics in results) <= 0.2
    assert trainer.measure_policy()[0]["objective/kl"] < 1.3 * 2.0
    tensors, numbers = trainer.state.state_dict()
    assert numbers["update_fraction"] == results[-1]["policy/update_fraction"]
    del numbers["update_fraction"]
    trainer.state.load_state_dict(tensors, numbers)  # a checkpoint of an earlier version
    assert trainer.state.kl_control.update_fraction == 1.0
    assert "policy/update_fraction" not in trainer.run_step().metrics


def test_the_best_candidate_is_kept():
    """Two prompts with three candidates each; of equal ones the first."""
    rewards = torch.tensor([[1.0, 3.0, 2.0], [0.5, 0.5, -1.0]])
    responses = [[10], [11], [12], [13], [14], [15]]
    best = best_texts([[1]] * 3 + [[2]] * 3, responses, rewards)
    assert best == [ChosenText([1], [11]), ChosenText([2], [13])]


def test_rounds_sample_with_the_policy_of_their_time(gpt2_folder, monkeypatch):
    """4 steps in 2 rounds: 2 updates of 4 texts in 2 passes need 4 prompts, 3 candidates each.

    The base model samples the first.
    """
    trainer = tiny_models.learner(gpt2_folder, "rejection", sample_every=100, lr=0.05, missing_eos_penalty=0.0)
    results = [trainer.run_step()]
    first = list(trainer.state.chosen_texts)
    results += tiny_models.run(trainer, 2)
    assert len(first) == len(trainer.state.chosen_texts) == 4
    assert trainer.state.chosen_texts != first
    assert [("rejection/rewards" in result.metrics) for result in results] == [True, False, True]
    for result in (results[0], results[2]):
        assert result.metrics["rejection/kept_rewards"] >= result.metrics["rejection/rewards"]
    assert results[1].metrics["epoch"] == 2.0
    base = tiny_models.learner(gpt2_folder, "rejection", sample_every=100, lr=0.01, missing_eos_penalty=0.0)
    base.run_step()
    assert base.state.chosen_texts == first  # sampled before the first update


def test_kept_texts_are_part_of_the_state(gpt2_folder):
    trainer, fresh = (tiny_models.learner(gpt2_folder, "rejection") for _ in range(2))
    trainer.run_step()
    fresh.state.load_state_dict(*trainer.state.state_dict())
    assert len(fresh.state.chosen_texts) == 4
    assert fresh.state.chosen_texts == trainer.state.chosen_texts


def _with_edits(monkeypatch, folder, **changes):
    """A dpo trainer with 4 steps in 2 rounds; the third label is an edit, the last one too, which counts twice."""
    labels = [dataclasses.replace(label, is_edit=i in (2, 5)) for i, label in enumerate(tiny_models.LABELS)]
    monkeypatch.setattr(tiny_models, "LABELS", labels)
    settings = {"rounds": 2, "edit_samples": 2, "label_batch": 6, "sample_every": 100, "lr": 0.05} | changes
    return tiny_models.learner(folder, "dpo", **settings)


def test_edits_are_preferred_to_responses_of_all_rounds(gpt2_folder, monkeypatch):
    """Half of an update is of labels, half of edits. The responses are those of the policy before each round."""
    trainer, seen = _with_edits(monkeypatch, gpt2_folder), []
    edits = [trainer.pairs[2], trainer.pairs[5], trainer.pairs[6]]
    assert all(pair.is_edit for pair in edits)
    assert edits[1] == edits[2]

    def spy(state, pairs, reference):
        seen.append(pairs)
        torch.testing.assert_close(reference, reference_sums(state, pairs), rtol=1e-4, atol=1e-4)
        return preference_update(state, pairs, reference)

    monkeypatch.setattr("rlhf_lab.training.offline.trainer.preference_update", spy)
    prompts = [edit.prompt for edit in edits for _ in range(2)]
    own = _with_edits(monkeypatch, gpt2_folder)
    expected = own.sample_responses(prompts, "edit samples", 0)[1].tokens
    results = tiny_models.run(trainer, 2)
    assert [text.response for text in trainer.state.chosen_texts] == expected
    saved = trainer.state.state_dict()
    own.state.load_state_dict(*saved)
    expected += own.sample_responses(prompts, "edit samples", 1)[1].tokens
    results += tiny_models.run(trainer, 2)
    assert [text.prompt for text in trainer.state.chosen_texts] == 2 * prompts
    responses = [text.response for text in trainer.state.chosen_texts]
    assert responses == expected
    by_round = []
    for pairs in seen:
        labels, of_edits = pairs[:3], pairs[3:]
        assert [pair in trainer.pairs for pair in labels] == [True] * 3
        assert [(pair.prompt, pair.chosen) in [edit[:2] for edit in edits] for pair in of_edits] == [True] * 3
        sampled_for = [(text.prompt, text.response) for text in trainer.state.chosen_texts]
        assert all((pair.prompt, pair.rejected) in sampled_for for pair in of_edits)
        by_round.append([responses.index(pair.rejected) // 6 for pair in of_edits])
    assert [max(rounds) for rounds in by_round[:2]] == [0, 0]
    assert any(1 in rounds for rounds in by_round[2:])
    assert [result.metrics["epoch"] for result in results] == [3 / 7, 6 / 7, 9 / 7, 12 / 7]
    assert trainer.state.episodes == 4 * 6
    trainer.state.load_state_dict(*saved)
    tiny_models.disturb(trainer.adapters, "policy", scale=0.05)
    trainer.run_step()  # the second round again, with other responses
    assert [text.response for text in trainer.state.chosen_texts[6:]] != expected[6:]


def test_a_resumed_run_prefers_edits_to_the_same_responses(gpt2_folder, monkeypatch):
    whole, fresh = _with_edits(monkeypatch, gpt2_folder), _with_edits(monkeypatch, gpt2_folder)
    tiny_models.run(whole, 3)
    fresh.state.load_state_dict(*whole.state.state_dict())
    assert fresh.state.chosen_texts == whole.state.chosen_texts
    for _ in range(2):
        result, again = whole.run_step(), fresh.run_step()
        assert {k: v for k, v in result.metrics.items() if not k.startswith(("time", "memory", "eps"))} == {
            k: v for k, v in again.metrics.items() if not k.startswith(("time", "memory", "eps"))
        }
    for name, tensor in tiny_models.weights(whole).items():
        assert torch.equal(tensor, tiny_models.weights(fresh)[name]), name


def test_without_edits_nothing_is_sampled_for_them(gpt2_folder, monkeypatch):
    """The same updates as without the setting; an edit whose prompt leaves no room for a response is an ordinary label."""
    plain = tiny_models.learner(gpt2_folder, "dpo", sample_every=100)
    trainers = [plain, tiny_models.learner(gpt2_folder, "dpo", sample_every=100, rounds=2, edit_samples=2)]
    losses = [[result.metrics["loss/dpo_avg"] for result in tiny_models.run(trainer, 2)] for trainer in trainers]
    assert losses[0] == losses[1]
    room = trainers[0].backbone.context_length
    assert not _with_edits(monkeypatch, gpt2_folder, max_new_tokens=room).edits


def test_a_response_without_an_end_is_penalised(gpt2_folder):
    rewards = []
    for penalty in (0.0, 100.0):
        trainer = tiny_models.learner(gpt2_folder, "rejection", missing_eos_penalty=penalty)
        rewards.append(trainer.run_step().metrics)
    ended = [text.response[-1] == tiny_models.EOS for text in trainer.state.chosen_texts]
    assert rewards[1]["rejection/rewards"] < rewards[0]["rejection/rewards"] - 1
    assert any(ended)


class WordsAndTwo:
    """Two reward functions: the number of words, and 2. Keeps the responses of each call."""

    def __init__(self):
        self.calls = []

    def scores(self, prompts, responses, on_progress=None):
        self.calls.append(responses)
        return [[float(len(text.split())) for text in responses], [2.0] * len(responses)]


def test_each_reward_term_is_measured(gpt2_folder):
    functions = WordsAndTwo()
    trainer = tiny_models.learner(gpt2_folder, "sft", kl_budget=None)
    trainer.set_scorer(WeightedReward(trainer.backbone, None, functions, {"words": 3.0, "two": -1.0}))
    metrics = trainer.run_step().metrics
    counts = [len(text.split()) for text in functions.calls[0]]
    assert metrics["objective/reward/words"] == pytest.approx(sum(counts) / len(counts))
    assert metrics["objective/reward/two"] == 2.0
    assert metrics["objective/scores"] == pytest.approx(3 * metrics["objective/reward/words"] - 2)


@pytest.mark.parametrize("algorithm", ["dpo", "sft"])
def test_labels_need_no_scorer(gpt2_folder, algorithm):
    """Training and metrics are the same; only metrics of scores are missing."""
    scored, unscored = (tiny_models.learner(gpt2_folder, algorithm, sample_every=1) for _ in range(2))
    unscored.task = dataclasses.replace(unscored.task, scorer=None)
    for with_scores, without in zip(tiny_models.run(scored, 2), tiny_models.run(unscored, 2), strict=True):
        expected = {name for name in with_scores.metrics if not name.startswith("objective/scores")}
        assert set(without.metrics) == expected
        assert without.metrics["objective/kl"] == with_scores.metrics["objective/kl"]
        assert [sample.text for sample in without.samples] == [sample.text for sample in with_scores.samples]
        assert all(math.isnan(sample.score) for sample in without.samples)
    for name, weight in tiny_models.weights(scored).items():
        assert torch.equal(tiny_models.weights(unscored)[name], weight)


def test_rejection_needs_a_scorer(gpt2_folder):
    trainer = tiny_models.learner(gpt2_folder, "rejection")
    trainer.task = dataclasses.replace(trainer.task, scorer=None)
    with pytest.raises(TrainingError, match="nothing scores the responses"):
        trainer.run_step()


def test_scored_responses_are_refused(gpt2_folder):
    with pytest.raises(ConfigError, match="dpo does not learn from scored responses"):
        tiny_models.learner(gpt2_folder, "dpo").step(["the cat"], ["sat"], [1.0])


def test_beta_changes_while_dpo_runs_and_means_nothing_for_sft(gpt2_folder):
    trainer = tiny_models.learner(gpt2_folder, "dpo")
    trainer.set_live_setting("beta", 0.7)
    assert trainer.run_step().metrics["objective/kl_coef"] == 0.7
    with pytest.raises(ConfigError, match=r"beta = 0\.7 has no meaning for sft"):
        tiny_models.learner(gpt2_folder, "sft").set_live_setting("beta", 0.7)
