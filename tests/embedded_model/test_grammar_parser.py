"""The parser of the grammar: it accepts every generated text, locates errors, and knows the tokens that may follow."""

from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from rlhf_lab.common.bundled_assets import EMBEDDED_PROMPT_SETS
from rlhf_lab.embedded_model.allowed_tokens import AllowedTokens, MaskedRowGenerator
from rlhf_lab.embedded_model.batching import EOS_ID
from rlhf_lab.embedded_model.corpus import TEXT_GENERATORS, generate_texts, join_document
from rlhf_lab.embedded_model.grammar_parser import GrammarParser, normalize, normalized_offsets
from rlhf_lab.embedded_model.grammar_parser_rules import response_parser
from rlhf_lab.embedded_model.sample_checks import not_in_grammar

SMALL = GrammarParser(
    {
        "open_glad": ("the {kind} sang{end}", "{kind} {more} ran{end}", "{kind} sang"),
        "kind": ("a owl", "mole"),
        "more": ("{nil}", ", {kind} and {kind}"),
        "close": ("he won {number} coins.",),
    },
    {"end": (".", " well."), "nil": ("",)},
    ("open", "close"),
)


def test_normalize():
    assert normalize('An owl, they say , "ran"  an Angel.') == 'a owl, they say, "ran" a angel.'
    assert normalized_offsets("An owl ,") == [0, 1, 1, 2, 3, 4, 5, 5, 6]


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
def test_parsing_a_small_grammar(text, whole, furthest):
    reading = SMALL.parse(text)
    assert (reading.is_complete, reading.text[: reading.furthest]) == (whole, furthest)


def test_parse_state_at_each_offset():
    reading = SMALL.parse("mole ran")
    assert reading.sentence_ends == {0}
    assert reading.slots_at[9] == {"end"}
    assert {" ran", " sang"} <= reading.literals_at[5]
    assert {" open", " kind", " close"} <= reading.slots_at[0]


def test_a_comma_before_punctuation_is_optional():
    """As the corpus generator does when a phrase that ends with a comma is followed by punctuation."""
    rules = GrammarParser({"say": ("well, {who},{end}",), "who": ("mole",)}, {"end": (".", " he said.")}, ("say",))
    assert rules.parse("Well, mole.").is_complete
    assert rules.parse("Well, mole, he said.").is_complete
    assert not rules.parse("Well mole.").is_complete


@pytest.mark.parametrize("name", EMBEDDED_PROMPT_SETS)
def test_generated_texts_are_accepted(name):
    number = list(TEXT_GENERATORS).index(name)
    for text in list(generate_texts(11, 300))[number::3]:
        assert response_parser(name).parse(text.response).is_complete, text.response


@pytest.mark.parametrize(
    ("name", "text", "error"),
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
def test_errors_are_located(name, text, error):
    reading = response_parser(name).parse(text)
    assert reading.is_complete == (error is None), reading.text[reading.furthest :]
    if error is not None:
        assert reading.text[reading.furthest :].startswith(error)


def test_not_in_grammar_for_complete_and_truncated_samples():
    whole, wrong, cut = (
        '"I like this very much," chuckled Ned.',
        '"I like this very," chuckled Ned.',
        '"I like this very',
    )
    assert not_in_grammar("tales", [whole, wrong, cut, cut, wrong], [True, True, True, False, False]) == [
        False, True, True, False, True,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def next_tokens():
    return AllowedTokens(AutoTokenizer.from_pretrained(Path(__file__).parents[2] / "assets" / "model"))


def test_corpus_tokens_are_allowed(next_tokens):
    size = len(next_tokens.tokenizer)
    shares = []
    for row in MaskedRowGenerator(next_tokens, 5)(240, 3000):
        possible = np.unpackbits(row.allowed_bits, axis=1, count=size).view(bool)
        assert possible.shape == (len(row.ids) - 1, size)
        assert possible[np.arange(len(possible)), row.ids[1:]].all()
        assert row.ids[-1] == EOS_ID
        shares.append(possible[-20:].mean())
    assert np.mean(shares) < 0.2
    assert [row.text for row in MaskedRowGenerator(next_tokens, 5)(6, 3)] == [
        join_document(t.prompt, t.response) for t in generate_texts(5, 6, 3)
    ]


def test_tokens_that_break_a_phrase_are_not_allowed(next_tokens):
    response = '"I like this very much," chuckled Ned.'
    starts = [f" {response}".index(f" {word}") for word in ("very", "much", "chuckled")]
    very, much, chuckled, end = next_tokens.response_mask("tales", response, starts)

    def token(word):
        return next_tokens.tokenizer(word).input_ids[1]

    assert [bool(very[t]) for t in (token(" very"), token(" much"), EOS_ID)] == [True, False, False]
    assert [bool(much[token(word)]) for word in (" much", " very")] == [True, False]
    assert [bool(chuckled[token(word)]) for word in (" chuckled", " said", " parcel")] == [True, True, False]
    assert [bool(end[t]) for t in (EOS_ID, token(" The"), token(" of"))] == [True, True, False]
