"""The grammar read backwards: everything it writes is recognised, and slips are not."""

import pytest

from rlhf_lab.assets import PROMPT_SETS
from rlhf_lab.pretrain.corpus import WRITERS, texts
from rlhf_lab.pretrain.mistakes import unwritable
from rlhf_lab.pretrain.recogniser import Recogniser, squeezed
from rlhf_lab.pretrain.response_rules import recogniser

SMALL = Recogniser(
    {
        "open_glad": ("the {kind} sang{end}", "{kind} ran{end}"),
        "kind": ("a owl", "mole"),
        "close": ("he won {number} coins.",),
    },
    {"end": (".", " well.")},
    ("open", "close"),
)


def test_squeezing_takes_spaces_commas_and_the_article_away():
    assert squeezed('An owl, they say, "ran"  an Angel.') == 'aowltheysay"ran"aangel.'


@pytest.mark.parametrize(
    ("text", "whole", "furthest"),
    [
        ("The mole sang.", True, 12),
        ("An owl ran well. The owl sang.", False, 15),  # "the a owl" is what the rules say
        ("He won 42 coins. Mole ran.", True, 21),
        ("The mole sang", False, 11),
        ("The mole sank.", False, 10),
        ("He won coins.", False, 5),
        ("", True, 0),
    ],
)
def test_a_small_grammar_by_hand(text, whole, furthest):
    reading = SMALL.read(text)
    assert (reading.whole, reading.furthest) == (whole, furthest)


@pytest.mark.parametrize("name", PROMPT_SETS)
def test_whatever_the_grammar_writes_is_recognised(name):
    number = list(WRITERS).index(name)
    for text in list(texts(11, 300))[number::3]:
        assert recogniser(name).read(text.response).whole, text.response


@pytest.mark.parametrize(
    ("name", "text", "slip"),
    [
        ("tales", "The sun shone. Leo missed him old friends.", "m old"),
        ("tales", 'With a smile, a beaver said, "I have to go away and with me."', "away"),
        ("tales", '"I like this very much," chuckled Ned.', None),
        (
            "support",
            "Fine, we will swap the brown lunch box for a silver one before too long, or thereabouts.",
            None,
        ),
        ("support", "Hurry up and write down a mend it.", "a mend"),
        ("reviews", 'After a while someone at home sobbed, "Leave me alone with my agony, you fool."', None),
        ("reviews", 'All is quite pleasing," said my aunt Alice.', "is"),
    ],
)
def test_slips_are_found_where_they_are(name, text, slip):
    reading = recogniser(name).read(text)
    assert reading.whole == (slip is None), reading.line[reading.furthest :]
    if slip is not None:
        assert reading.furthest == squeezed(text).index(squeezed(slip))


def test_samples_that_no_grammar_writes_are_told_whether_they_ended_or_were_cut_off():
    whole, slip, cut = (
        '"I like this very much," chuckled Ned.',
        '"I like this very," chuckled Ned.',
        '"I like this very',
    )
    assert unwritable("tales", [whole, slip, cut, cut, slip], [True, True, True, False, False]) == [
        False, True, True, False, True,
    ]  # fmt: skip
