"""What the cards of policies say, from facts alone: no text breaks their Markdown, and figures have their own names and units."""

import dataclasses

import pytest

from rlhf_lab.common.enums import RunStatus, Source
from rlhf_lab.common.records import LabelSnapshot, Project, RewardModelRow, Run
from rlhf_lab.exporters.card_parts import code_span, prompt_code, sampled_with
from rlhf_lab.exporters.policy_card import MergedModelFacts, PolicyFacts, model_card

FENCE = "a ```\n# heading"
PROJECT = Project(
    1, "p", "embedded", "", "tales", 0, 0.0, system_prompt=f"Use <b> {FENCE}", template_arguments={"a": FENCE}
)
MODEL = RewardModelRow(3, 1, "x", {}, {}, LabelSnapshot((1,), "d", Source.HUMAN), 0.0)


def card(terms=(), row=MODEL, name="r", **config):
    records = [{"name": name, "weight": weight, "options": options} for name, weight, options in terms]
    manifest = {"judge": "/home/ann/judge.py:nice", "reward_terms": records}
    run = Run(1, 1, row and row.id, name, RunStatus.DONE, {"algorithm": "ppo"} | config, manifest, 4, 4, "", 0.0, 0.0)
    facts = PolicyFacts(run, 4, row, dataclasses.replace(PROJECT, system_prompt="", template_arguments={}), "base", "")
    return model_card(MergedModelFacts(facts, {"objective/scores": 12.5, "objective/gold": 1.0}, "0 %", ""))


LENGTH = ("length", 0.5, {"min_words": 5, "max_words": 9})


@pytest.mark.parametrize(
    ("terms", "row", "words"),
    [
        ((), MODEL, "against reward model 3. The"),
        ((("reward_model", 2.0, {}),), MODEL, "against reward model 3 with weight 2. The"),
        ((("reward_model", 1.0, {}), LENGTH), MODEL, "against reward model 3 and other terms (0.5 · length). The"),
        ((("own", 1.0, {"file": "a/my_file.py", "function": "reward"}),), None,
         "on reward functions, without a reward model (1 · my\\_file). The"),
    ],
)  # fmt: skip
def test_a_card_names_each_term_of_the_reward_once(terms, row, words):
    assert words in " ".join(card(terms, row).split())


@pytest.mark.parametrize(
    ("terms", "budget", "unit"),
    [
        ((), None, "sd of the base's"), ((LENGTH,), 4.0, "sd of the base's"),
        ((LENGTH,), None, "in the unit of the reward's terms"),
    ],
)  # fmt: skip
def test_figures_have_their_unit_and_gold_the_name_of_its_judge(terms, budget, unit):
    """The judge need not be the one that labelled."""
    text = card(terms, kl_budget=budget)
    assert f"| score of the step's responses | 12.50 {unit} |" in text
    assert "| score of the judge | 1.00 (judge.py:nice) |" in text
    assert "that labelled" not in text


def test_no_name_is_markup():
    assert "# ![x]" not in (text := card(name="![x](http://evil.test) <b>"))
    assert "# !\\[x\\](http://evil.test) \\<b\\>: step 4 of 4" in text


def test_no_text_ends_a_fence_or_a_span():
    code, found = prompt_code(PROJECT), {}
    assert "```" not in code
    exec(code.replace("import jinja2", ""), found)
    assert found["SYSTEM"] == PROJECT.system_prompt
    assert code_span("a `` b") == "```a `` b```"
    assert '````"Use <b> a ```\\n# heading"````' in sampled_with(PROJECT)
