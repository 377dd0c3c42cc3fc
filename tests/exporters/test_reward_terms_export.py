"""Exports of a run whose reward has terms: no path of this machine, and a card without a reward model."""

from rlhf_lab.common.enums import RunStatus
from rlhf_lab.common.records import Project, Run
from rlhf_lab.exporters.policy_card import PolicyFacts, policy_card
from rlhf_lab.exporters.run_export import _portable_manifest

TERMS = [
    {"name": "own", "weight": 2.0, "options": {"file": "/home/ann/mine.py", "function": "reward"}},
    {"name": "json", "weight": 1.0, "options": {}},
]


def test_the_manifest_names_no_folder_of_this_machine():
    own, shipped = _portable_manifest({"reward_terms": TERMS})["reward_terms"]
    assert own == {"name": "own", "weight": 2.0, "options": {"file": "mine.py", "function": "reward"}}
    assert shipped == TERMS[1]


def test_a_card_without_a_reward_model():
    run = Run(1, 1, None, "r", RunStatus.DONE, {"algorithm": "grpo"}, {"reward_terms": TERMS}, 2, 2, "", 0.0, 0.0)
    project = Project(1, "p", "embedded", "", "tales", 0, 0.0, system_prompt="Be “brief”.")
    card = policy_card(PolicyFacts(run, 2, None, project, "assets/model", ""), {"r": 8, "target_modules": []})
    assert "on reward functions, without a reward model (2 · mine, 1 · json)." in card
    assert "| reward model |" not in card
    assert 'the system prompt `"Be “brief”."` before each prompt' in card
