"""The weighted sum of reward terms: the texts that functions get, and the use of their values."""

import torch

from rlhf_lab.training.policy.weighted_reward import WeightedReward


class Words:
    """A backbone that decodes the ids 1, 2, 3 to a, b, c; a response is decoded after its prompt. prompts: as they were given."""

    def __init__(self, prompts):
        self.prompts = prompts

    def prompt_text(self, ids):
        return self.prompts.get(tuple(ids)) or self.decode(ids)

    def decode(self, ids, after=None):
        text = "".join(" abc"[i] for i in ids)
        return text if after is None else f"{text} after {self.decode(after)}"


class Functions:
    """Two functions: the length of the response, and 10 for each letter of the prompt."""

    def scores(self, prompts, responses, on_progress=None):
        self.texts = prompts, responses
        return [[float(len(text)) for text in responses], [10.0 * len(text) for text in prompts]]


def reward(weights, prompt_texts=None):
    return WeightedReward(Words(prompt_texts or {}), None, Functions(), weights)


def test_functions_get_the_prompts_as_they_were_given():
    """Where a chat template was used, not with it; and each response as it reads after its prompt."""
    scorer = reward({"length": 1.0, "prompt": 1.0}, {(1, 2): "given"})
    values = scorer.function_scores([[1, 2], [3]], [[1], [2, 2]], None)
    assert scorer.functions.texts == (["given", "c"], ["a after ab", "bb after c"])
    assert values.tolist() == [[10.0, 50.0], [10.0, 10.0]]


def test_the_sum_weighs_each_term():
    scorer = reward({"reward_model": 0.5, "length": 3.0, "prompt": -1.0})
    total, values = scorer.combine(torch.tensor([2.0, 4.0]), torch.tensor([[1.0, 10.0], [2.0, 20.0]]))
    assert total.tolist() == [1.0 + 3.0 - 10.0, 2.0 + 6.0 - 20.0]
    assert {label: value.tolist() for label, value in values.items()} == {
        "reward_model": [2.0, 4.0], "length": [1.0, 2.0], "prompt": [10.0, 20.0],
    }  # fmt: skip


def test_without_a_reward_model_a_function_may_have_its_name():
    """The function `reward` of a file reward_model.py."""
    scorer = reward({"reward_model": 2.0, "prompt": 1.0})
    assert scorer.scores([[1], [2, 3]], [[1, 1], [2]]).tolist() == [2.0 * 10 + 10.0, 2.0 * 10 + 20.0]


def test_without_a_reward_model_the_functions_are_the_sum():
    total, values = reward({"length": 2.0, "prompt": 1.0}).combine(None, torch.tensor([[1.0, 5.0]]))
    assert (total.tolist(), list(values)) == ([7.0], ["length", "prompt"])
