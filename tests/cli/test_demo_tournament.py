"""The tournament of `demo --tournament`, without a model."""

from collections import Counter
from types import SimpleNamespace

import pytest

from rlhf_lab.cli import demo_tournament
from rlhf_lab.cli.demo_tournament import MAX_ANSWERS, evenly_spaced, format_tournament, judge_pairs
from rlhf_lab.common.enums import Choice
from rlhf_lab.judges.builtin import load_judge
from rlhf_lab.quality.tournament import Contestant


@pytest.mark.parametrize(
    ("steps", "chosen"),
    [([], []), ([5], [5]), ([5, 10, 15, 20], [10, 20]), ([1, 2, 3], [2, 3])],
)
def test_checkpoints_are_evenly_spaced_with_the_last(steps, chosen):
    assert evenly_spaced(steps, 2) == chosen


def test_the_judge_answers_as_it_prefers():
    judge = load_judge("cheerful")
    contestants = [
        Contestant(model, [f"{text} {i}" for i in range(30)], None, [0.0] * 30)
        for model, text in (("base", "a sad cry"), ("run/1/5", "a stone"), ("run/1/9", "a happy smile"))
    ]
    answers = judge_pairs(contestants, ["Say"] * 30, judge, 0.0, 0)
    assert len(answers) == 90 < MAX_ANSWERS
    assert {one.choice for one in answers} == {Choice.SECOND}
    assert Counter((one.first, one.second) for one in answers) == {(0, 1): 30, (0, 2): 30, (1, 2): 30}


def test_ranking_and_matrix_as_text():
    row = {"low": 0.1, "high": 1.9, "answers": 4, "kl": 0.5, "reward": 1.0, "gold": 2.0}
    result = {
        "prompts": 2, "answers": 4, "models": ["base", "run/1/5"], "wins": [[0.0, 1.0], [3.0, 0.0]],
        "contestants": [
            row | {"contestant": 1, "name": "run 1, step 5", "score": 1.0},
            row | {"contestant": 0, "name": "base model", "score": 0.0, "low": 0.0, "high": 0.0},
        ],
    }  # fmt: skip
    lines = format_tournament(result)
    for numbers, expected in (
        ((2.5, 0.4, None), "1. run 1, step 5 above +0.40, KL"), ((-2.5, None, -0.4), "1. run 1, step 5 below -0.40, KL"),
        ((1.0, None, None), "1. run 1, step 5 too few answers for a score, KL"),
        ((None, None, None), "–. run 1, step 5 not compared with the base, KL"),
    ):  # fmt: skip
        unlimited = dict(zip(("score", "low", "high"), numbers, strict=True))
        rows = [result["contestants"][0] | unlimited, result["contestants"][1]]
        assert expected in format_tournament(result | {"contestants": rows})[1]
    assert lines[1] == "  1. run 1, step 5 +1.00 (+0.10 to +1.90), KL 0.50, reward +1.00, gold +2.00"
    assert lines[-3:] == [
        "  preferred, row over column: 1 base model, 2 run 1, step 5",
        "  1     –   25%",
        "  2   75%     –",
    ]


def test_without_a_reward_model_nothing_is_said_of_rewards():
    row = {"score": None, "low": None, "high": None, "answers": 0, "kl": 0.5, "reward": None, "gold": 2.0}
    rows = [row | {"contestant": 0, "name": "base model"}]
    result = {"prompts": 2, "answers": 0, "models": ["base"], "wins": [[0.0]], "contestants": rows}
    assert format_tournament(result)[1] == "  –. base model not compared with the base, KL 0.50, gold +2.00"


@pytest.mark.parametrize(("reward_model", "best"), [(3, ["base/best/4"]), (None, [])])
def test_best_of_4_needs_a_stored_reward_model(monkeypatch, tmp_path, reward_model, best):
    """A live run has none."""
    asked = []

    def sample(_cache, _project, request):
        asked.append((request["contestants"], request["reward_model_id"]))
        kept = [
            {"model": model, "texts": ["a", "b"], "scores": None, "kl": [0.0, 0.0]} for model in request["contestants"]
        ]
        return {"prompts": ["x", "y"], "contestants": kept}

    run, project = SimpleNamespace(reward_model_id=reward_model), SimpleNamespace(id=1, seed=0)
    cache = SimpleNamespace(db=None, home=tmp_path)
    for name, value in (("get_run", run), ("prompts", []), ("checkpoint_steps", [5])):
        monkeypatch.setattr(demo_tournament, name, lambda *_, value=value: value)
    monkeypatch.setattr(demo_tournament, "sample_contestants", sample)
    ranking = demo_tournament.run_tournament(cache, project, 1, load_judge("cheerful"), max_new_tokens=8)
    assert asked == [(["base", *best, "run/1/5"], reward_model)]
    assert ranking["models"] == asked[0][0]
