"""What only the user knows: the importer asks for it or reports the row; it never guesses."""

import pytest

from rlhf_lab.importers.parser import ImportRequest, parse_file

BIRD = {"prompt": "Name a bird.", "response_a": "A wren.", "response_b": "A spoon.", "winner": "model_a"}


def problems(parsed):
    """(row, message) of every error."""
    return [(error.row_number, error.message) for error in parsed.errors]


MISSING_VOTE = "winner is missing. Write the vote, or take the row out."


@pytest.mark.parametrize(
    "row", [BIRD | {"winner": None}, {name: BIRD[name] for name in ("prompt", "response_a", "response_b")}]
)
def test_a_row_without_a_vote_is_an_error(files, row):
    parsed = files.parse("v.jsonl", [BIRD, row])
    assert [vote.choice for vote in parsed.votes] == ["first"]
    assert problems(parsed) == [(2, MISSING_VOTE)]


def test_an_empty_vote_in_csv_is_the_same_error(files):
    parsed = files.parse("v.csv", [BIRD, BIRD | {"winner": ""}, BIRD | {"winner": "  "}])
    assert problems(parsed) == [(2, MISSING_VOTE), (3, MISSING_VOTE)]


def test_a_missing_vote_in_parquet_is_the_same_error(files):
    parsed = files.parse("v.parquet", [BIRD, BIRD | {"winner": None}])
    assert problems(parsed) == [(2, MISSING_VOTE)]


@pytest.mark.parametrize("word", ["None", "none", "null", "NaN", "N/A"])
def test_a_word_for_a_missing_value_is_no_vote(files, word):
    """pandas writes an unknown winner so; it does not mean that both texts are bad."""
    parsed = files.parse("v.csv", [BIRD, BIRD | {"winner": word}])
    assert [vote.choice for vote in parsed.votes] == ["first"]
    ((row_number, message),) = problems(parsed)
    assert row_number == 2
    assert f"winner is '{word}'" in message
    assert "--choices" in message


def test_the_user_can_say_what_none_means(files):
    parsed = parse_file(
        ImportRequest(
            str(files.rows("v.csv", [BIRD, BIRD | {"winner": "None"}])),
            choices={"model_a": "first", "None": "both_bad"},
        )
    )
    assert [vote.choice for vote in parsed.votes] == ["first", "both_bad"]
