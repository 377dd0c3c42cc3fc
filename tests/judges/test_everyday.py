"""The judges for everyday prompts: scores worked out by hand, orderings written before the scores were seen, and real answers."""

import json
from itertools import combinations
from pathlib import Path
from statistics import pstdev

import pytest

from rlhf_lab.common.bundled_assets import EVERYDAY, shipped_prompts
from rlhf_lab.common.enums import Choice
from rlhf_lab.judges.builtin import JUDGES, SCORE_STEP, Judge, prefer

#: {"prompt", "text"}: two responses each of SmolLM2-135M-Instruct, at temperature 0.7 and at most 64 tokens.
ANSWERS = json.loads((Path(__file__).parent / "smollm2_answers.json").read_text(encoding="utf-8"))
EVERYDAY_JUDGES = {name: judge for name, judge in JUDGES.items() if judge.prompt_set == EVERYDAY}
SALT = "Why do we put salt on icy roads?"  # without function words: salt, icy, roads

# (judge, prompt, response, score)
BY_HAND = [
    ("brief", "", "Yes.", 1.25),  # one word
    ("brief", "", "Bake it for ten minutes.", 6.25),  # 5 x 1.25
    ("brief", "", "Use a clean cloth and a little warm water.", 10.0),  # nine words
    ("brief", "", "word " * 21 + "end", 4.75),  # 22 words: 10 - 2/4 = 9.5; cut off, so half
    ("brief", "", "word " * 24 + ".", 9.0),  # 10 - 4/4
    ("brief", "", "word " * 80 + ".", 0.25),  # 10 - 60/4 is below the floor
    ("brief", "", 'He called it "late."', 5.0),  # 4 x 1.25; a sentence may end in a quote
    (
        "brief",
        "",
        "First, boil the",
        2.0,
    ),  # 3 x 1.25 = 3.75; cut off, so 1.875, halfway between two steps: the even one
    # words 5/6, pairs 5/5, triples 4/4: mean 0.944; 20 x 0.944 - 10 = 8.89; six of nine words: 5.93
    ("varied", "", "The cat sat on the mat.", 6.0),
    ("varied", "", "go go go go", -2.75),  # 1/4, 1/3, 1/2: mean 0.361; -2.78
    ("varied", "", "One two three four five six seven eight nine.", 10.0),
    ("varied", "", "Yes.", 1.0),  # 10 x 1/9 = 1.11
    ("varied", "", "I like tea and I like tea and I like tea.", -2.0),  # 4/11, 4/10, 4/9: mean 0.403; -1.95
    ("relevant", SALT, "Salt melts the ice.", 3.25),  # one of three words: 3.33
    ("relevant", SALT, "Icy roads get safer with salt, for it melts the ice on the road.", 10.0),
    ("relevant", SALT, "We put salt on icy roads to melt the ice.", 5.0),  # all three; 4 of 8 triples are the prompt's
    ("relevant", SALT, SALT, 0.0),  # an echo
    ("relevant", SALT, "I do not know why we do it.", 0.0),
    (
        "relevant",
        "Describe a perfect chair for reading.",
        "It lets me read.",
        3.25,
    ),  # reading, of perfect, chair, reading
    ("relevant", "", "Anything at all.", 0.0),
]

# (prompt, better, worse); written before the judges had seen them.
BETTER = {
    "brief": [
        ("", "Use cold water and a little salt.", "Yes."),
        ("", "Put the lid on and wait for an hour.", "Put the lid on and wait for an"),
        ("", "He left early. She stayed for the rest of the day.", "He left. " + "She stayed for the rest of the day. " * 6),
        ("", "Keep it in a dry place.", "Keep it in a dry place, which is to say in"),
        ("", "No, thank you, I would rather stay at home tonight.", "No."),
        ("", "A fork eats, a spoon sips, a knife cuts.", "A fork eats and a spoon sips and " * 6 + "a knife cuts."),
    ],
    "varied": [
        ("", "The sea is wide and the sky is grey above it.", "The sea is wide and the sea is wide and the sea is wide."),
        ("", "Tea, coffee, juice or a glass of cold water?", "Tea, tea, tea, tea or a glass of tea, tea, tea?"),
        ("", "We sang, we danced, and at midnight everybody walked home.", "We sang, we sang, we sang, and then we sang."),
        ("", "Wash the pan first, then dry it with a soft cloth.", "Wash the pan. Wash the pan. Wash the pan. Wash the pan."),
        ("", "Bring a map, good shoes, water and something to eat.", "Bring it."),
        ("", "The red car turned left near the old mill by the river.", "The car the car the car the car the car the car."),
    ],
    "relevant": [
        (SALT, "Salt makes roads less icy.", "Roads are long and grey."),
        (SALT, "Because roads covered in salt are not so icy.", SALT),
        ("Suggest six names for a friendly grey donkey.", "A grey donkey could be Ash.", "Here are some great ideas."),
        ("How do I sew on a button?", "Sew it with thread, then knot it behind the button.", "Open the window first."),
        ("Describe a hedgehog.", "Hedgehogs are small and have spines.", "They are small and have spines."),
        ("Plan a picnic in the park.", "For a picnic, bring bread to the park.", "Plan a picnic in the park."),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("name", "prompt", "text", "expected"), BY_HAND)
def test_scores_agree_with_pencil_and_paper(name: str, prompt: str, text: str, expected: float) -> None:
    assert JUDGES[name].score(prompt, text) == expected


@pytest.mark.parametrize(("name", "case"), [(name, case) for name, cases in BETTER.items() for case in cases])
def test_the_better_answer_wins_on_either_side(name: str, case: tuple[str, str, str]) -> None:
    prompt, better, worse = case
    assert prefer(JUDGES[name], prompt, better, worse) is Choice.FIRST
    assert prefer(JUDGES[name], prompt, worse, better) is Choice.SECOND


def test_every_everyday_judge_has_orderings() -> None:
    assert set(BETTER) == set(EVERYDAY_JUDGES) == {name for name, *_ in BY_HAND}


@pytest.mark.parametrize("judge", EVERYDAY_JUDGES.values(), ids=lambda judge: judge.name)
def test_scores_of_real_answers_are_graded_and_have_the_stated_sd(judge: Judge) -> None:
    """Measured on answers of SmolLM2-135M-Instruct; ties are counted between the two answers to one prompt."""
    scores = [judge.score(answer["prompt"], answer["text"]) for answer in ANSWERS]
    assert all(-10 <= score <= 10 and (score / SCORE_STEP).is_integer() for score in scores)
    assert pstdev(scores) == pytest.approx(judge.score_sd, rel=0.1)
    ties = sum(first == second for first, second in zip(scores[::2], scores[1::2], strict=True)) / (len(scores) / 2)
    assert 0.02 <= ties <= 0.25


def test_only_relevance_reads_the_prompt() -> None:
    prompts = sorted({answer["prompt"] for answer in ANSWERS})
    for name, judge in JUDGES.items():
        scores = {judge.score(prompt, ANSWERS[0]["text"]) for prompt in prompts}
        assert (len(scores) > 1) == (name == "relevant")


def test_the_everyday_prompts_are_many_short_and_different() -> None:
    prompts = shipped_prompts(EVERYDAY)
    assert len(prompts) >= 300
    assert all(6 <= len(prompt.split()) <= 60 and prompt == prompt.strip() for prompt in prompts)
    words = [set(prompt.lower().split()) for prompt in prompts]
    overlaps = [len(one & other) / len(one | other) for one, other in combinations(words, 2)]
    assert max(overlaps) <= 0.5  # no near-duplicates


def test_the_prompts_of_the_real_answers_are_shipped() -> None:
    assert {answer["prompt"] for answer in ANSWERS} <= set(shipped_prompts(EVERYDAY))
    assert len(ANSWERS) >= 200
    assert all(first["prompt"] == second["prompt"] for first, second in zip(ANSWERS[::2], ANSWERS[1::2], strict=True))
