"""The grammar read backwards: everything it writes is recognised, slips are not, and the tokens it could write are known."""

from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from rlhf_lab.assets import PROMPT_SETS
from rlhf_lab.pretrain.corpus import WRITERS, texts
from rlhf_lab.pretrain.mistakes import unwritable
from rlhf_lab.pretrain.next_tokens import Marked, NextTokens
from rlhf_lab.pretrain.reading import EOS_ID, document
from rlhf_lab.pretrain.recogniser import Recogniser, places, plain
from rlhf_lab.pretrain.response_rules import recogniser

SMALL = Recogniser(
    {
        "open_glad": ("the {kind} sang{end}", "{kind} {more} ran{end}", "{kind} sang"),
        "kind": ("a owl", "mole"),
        "more": ("{nil}", ", {kind} and {kind}"),
        "close": ("he won {number} coins.",),
    },
    {"end": (".", " well."), "nil": ("",)},
    ("open", "close"),
)


def test_a_plain_text_has_small_letters_single_spaces_and_one_article():
    assert plain('An owl, they say , "ran"  an Angel.') == 'a owl, they say, "ran" a angel.'
    assert places("An owl ,") == [0, 1, 1, 2, 3, 4, 5, 5, 6]


@pytest.mark.parametrize(
    ("text", "whole", "furthest"),
    [
        ("The mole sang.", True, " the mole sang."),
        ("An owl ran well. The owl sang.", False, " a owl ran well. the "),  # "the a owl" is what the rules say
        ("He won 42 coins. Mole ran.", True, " he won 42 coins. mole ran."),
        ("Mole, an owl and mole ran.", True, " mole, a owl and mole ran."),
        ("Mole, an owl, and mole ran.", False, " mole, a owl"),
        ("The mole  sang.", True, " the mole sang."),
        ("Themole sang.", False, " the"),
        ("The mole sang", False, " the mole sang"),
        ("The mole sank.", False, " the mole san"),
        ("He won coins.", False, " he won"),
        ("", True, ""),
    ],
)
def test_a_small_grammar_by_hand(text, whole, furthest):
    reading = SMALL.read(text)
    assert (reading.whole, reading.line[: reading.furthest]) == (whole, furthest)


def test_what_may_follow_is_told():
    reading = SMALL.read("mole ran")
    assert reading.stops == {0}
    assert reading.asked[9] == {"end"}
    assert {" ran", " sang"} <= reading.begun[5]
    assert {" open", " kind", " close"} <= reading.asked[0]


def test_a_comma_before_another_mark_is_left_out():
    """What the writers of the corpus do when a phrase that ends with a comma meets an end."""
    rules = Recogniser({"say": ("well, {who},{end}",), "who": ("mole",)}, {"end": (".", " he said.")}, ("say",))
    assert rules.read("Well, mole.").whole
    assert rules.read("Well, mole, he said.").whole
    assert not rules.read("Well mole.").whole


@pytest.mark.parametrize("name", PROMPT_SETS)
def test_whatever_the_grammar_writes_is_recognised(name):
    number = list(WRITERS).index(name)
    for text in list(texts(11, 300))[number::3]:
        assert recogniser(name).read(text.response).whole, text.response


@pytest.mark.parametrize(
    ("name", "text", "slip"),
    [
        ("tales", "The sun shone. Leo missed him old friends.", "m old"),
        ("tales", 'With a smile, a beaver said, "I have to go away and with me."', " away"),
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
        assert reading.line[reading.furthest :].startswith(slip)


def test_samples_that_no_grammar_writes_are_told_whether_they_ended_or_were_cut_off():
    whole, slip, cut = (
        '"I like this very much," chuckled Ned.',
        '"I like this very," chuckled Ned.',
        '"I like this very',
    )
    assert unwritable("tales", [whole, slip, cut, cut, slip], [True, True, True, False, False]) == [
        False, True, True, False, True,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def next_tokens():
    return NextTokens(AutoTokenizer.from_pretrained(Path(__file__).parents[1] / "assets" / "model"))


def test_each_token_of_the_corpus_is_among_those_that_might_stand_there(next_tokens):
    size = len(next_tokens.tokenizer)
    shares = []
    for row in Marked(next_tokens, 5)(240, 3000):
        possible = np.unpackbits(row.possible, axis=1, count=size).view(bool)
        assert possible.shape == (len(row.ids) - 1, size)
        assert possible[np.arange(len(possible)), row.ids[1:]].all()
        assert row.ids[-1] == EOS_ID
        shares.append(possible[-20:].mean())
    assert np.mean(shares) < 0.2
    assert [row.line for row in Marked(next_tokens, 5)(6, 3)] == [
        document(t.prompt, t.response) for t in texts(5, 6, 3)
    ]


def test_a_token_that_breaks_the_phrase_is_not_among_them(next_tokens):
    response = '"I like this very much," chuckled Ned.'
    starts = [f" {response}".index(f" {word}") for word in ("very", "much", "chuckled")]
    very, much, chuckled, end = next_tokens.after("tales", response, starts)

    def token(word):
        return next_tokens.tokenizer(word).input_ids[1]

    assert [bool(very[t]) for t in (token(" very"), token(" much"), EOS_ID)] == [True, False, False]
    assert [bool(much[token(word)]) for word in (" much", " very")] == [True, False]
    assert [bool(chuckled[token(word)]) for word in (" chuckled", " said", " parcel")] == [True, True, False]
    assert [bool(end[t]) for t in (EOS_ID, token(" The"), token(" of"))] == [True, True, False]
