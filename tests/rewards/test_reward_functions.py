"""Shipped reward functions against values worked by hand, and the terms of manifest and command line."""

import math

import pytest

from rlhf_lab.errors import ConfigError
from rlhf_lab.rewards import builtin
from rlhf_lab.rewards.__main__ import RewardFunctionError, evaluate
from rlhf_lab.rewards.terms import RewardTerm, check_terms, parse_term, read_terms, term_records


@pytest.mark.parametrize(
    ("response", "value"),
    [
        ("", 0.0),
        ("a b", 0.5),
        ("a b c d", 1.0),
        ("a b c d e", 1.0),
        ("a b c d e f", 0.8),
        ("a " * 10, 0.0),
        ("a " * 30, 0.0),
    ],
)
def test_length_window(response, value):
    assert builtin.length_window(4, 5)("", response) == pytest.approx(value)


@pytest.mark.parametrize(
    ("function", "where"),
    [
        (lambda prompt, response: math.nan if response == "bad" else 1.0, "the response 'bad' to the prompt 'why'"),
        (lambda prompts, responses: [1.0, math.inf], "the response 'bad' to the prompt 'why'"),
    ],
)
def test_a_value_that_is_not_finite_names_its_text(function, where):
    reports = []
    with pytest.raises(RewardFunctionError, match=f"mine gave (nan|inf) for {where}, not a finite number"):
        evaluate("mine", function, ["who", "why"], ["fine", "bad"], lambda label, index: reports.append((label, index)))
    assert reports[0] == ("mine", 0)


@pytest.mark.parametrize(("response", "value"), [("Yes, sir", 1.0), ("Oh yes", 0.0), ("", 0.0)])
def test_regular_expression(response, value):
    assert builtin.regular_expression("^Yes")("", response) == value


@pytest.mark.parametrize(
    ("response", "value"),
    [
        ('{"a": [1, 2]}', 1.0), ("\n[]\n", 1.0), ("3", 0.0), ('"text"', 0.0), ("{'a': 1}", 0.0), ('{"a": NaN}', 0.0),
        ('Here: {"a": 1}', 0.0), ("", 0.0), ("[" * 100_000, 0.0),
    ],
)  # fmt: skip
def test_valid_json(response, value):
    assert builtin.valid_json("", response) == value


@pytest.mark.parametrize(
    ("response", "value"),
    [("", 0.0), ("one two", 0.0), ("a b c d", 0.0), ("a b c A B C", -0.25), ("a a a a a", -2 / 3)],
)
def test_repetition(response, value):
    """a b c a b c: abc, bca, cab, abc: one of four occurred before. a a a a a: two of three."""
    assert builtin.repetition("", response) == pytest.approx(value)


@pytest.mark.parametrize(
    ("prompt", "response", "value"),
    [
        ("What is 3 + 4?", "3 + 4 = 7.", 1.0), ("What is 3 + 4?", "7 is 3 + 4", 0.0), ("What is 9 - 12?", "-3", 1.0),
        ("What is 6 × 7?", "It is 42", 1.0), ("1 + 1 is 2. 2 * 3?", "6", 1.0), ("What is 3 + 4?", "seven", 0.0),
        ("What is 3 + 4?", "7" * 5000, 0.0),
    ],
)  # fmt: skip
def test_arithmetic(prompt, response, value):
    assert builtin.arithmetic(prompt, response) == value


def test_arithmetic_without_an_exercise():
    with pytest.raises(ValueError, match="choose the prompt set arithmetic"):
        builtin.arithmetic("Tell me a story.", "7")


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("json", RewardTerm("json")),
        ("0.5*length:5-20", RewardTerm("length", 0.5, {"min_words": 5, "max_words": 20})),
        ("-2*regex:a:b*", RewardTerm("regex", -2.0, {"pattern": "a:b*"})),
        ("reward_model", RewardTerm("reward_model")),
        ("3*/tmp/mine.py:shout", RewardTerm("own", 3.0, {"file": "/tmp/mine.py", "function": "shout"})),
        ("/tmp/mine.py", RewardTerm("own", 1.0, {"file": "/tmp/mine.py", "function": "reward"})),
    ],
)
def test_terms_of_the_command_line(text, term):
    assert parse_term(text) == term
    assert read_terms(term_records([term])) == [term]


def test_labels():
    assert [parse_term(text).label for text in ("json", "/a/mine.py", "/a/mine.py:shout")] == [
        "json",
        "mine",
        "mine.shout",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bleu", "no reward term"), ("length", "window of words"), ("length:9-5", "window of words"),
        ("regex:(", "not a regular expression"), ("regex", "needs a regular"), ("json:x", "no option"), ("0*json", "weight"),
        ("1.2.3*json", "not a number"), ("9999*json", "weight"),
    ],
)  # fmt: skip
def test_invalid_terms_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_term(text)


def test_a_repeated_term_is_refused():
    with pytest.raises(ConfigError, match="occurs twice"):
        check_terms([parse_term("json"), parse_term("2*json")])
