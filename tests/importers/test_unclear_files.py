"""What only the user knows: the importer asks for it or reports the row; it never guesses."""

import pytest

from rlhf_lab.errors import DataError
from rlhf_lab.importers.cell_parsers import parse_choice_words
from rlhf_lab.importers.column_mapping import ColumnMappingError
from rlhf_lab.importers.parser import ImportRequest, parse_file
from rlhf_lab.importers.vote_readings import fitting_readings

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


def votes_with(name, values):
    """Rows whose column `name` holds these values, one a row."""
    rows = []
    for number, value in enumerate(values):
        rows.append({"prompt": f"Question {number}?", "response_a": "A wren.", "response_b": "A spoon.", name: value})
    return rows


@pytest.mark.parametrize("file_name", ["v.jsonl", "v.csv"])
@pytest.mark.parametrize(
    ("values", "readings"),
    [
        ([0, 1], ["0=first,1=second", "0=second,1=first", "0=tie,1=first,2=second"]),
        ([1, 1], ["0=first,1=second"]),
        ([2, 2], ["1=first,2=second", "0=first,1=second,2=tie"]),
        ([0, 1, "tie"], ["0=first,1=second,tie=tie", "0=second,1=first,tie=tie"]),
        ([0, 1, "Both_Bad"], ["0=first,1=second,Both_Bad=both_bad"]),
        ([0, 1, 2], ["0=first,1=second,2=tie", "0=tie,1=first,2=second"]),
        ([1, 2, 0], ["0=first,1=second,2=tie", "0=tie,1=first,2=second"]),
        ([1, 2, 3], ["1=first,2=second,3=tie", "1=first,2=tie,3=second"]),
        ([0, 1, 2, 3], ["0=first,1=second,2=tie,3=both_bad", "0=tie,1=first,2=second,3=both_bad"]),
        ([0.0, 1.0, 0.5], ["0=second,0.5=tie,1=first", "0=first,0.5=tie,1=second"]),
        ([-1, 1, 0], ["-1=second,0=tie,1=first", "-1=first,0=tie,1=second"]),
        ([True, False], ["true=first,false=second", "true=second,false=first"]),
    ],
)
def test_votes_that_are_numbers_are_asked_about_with_the_readings_that_fit(files, file_name, values, readings):
    with pytest.raises(ColumnMappingError) as caught:
        files.parse(file_name, votes_with("label", values))
    assert "--choices" in str(caught.value)
    assert caught.value.columns == ("prompt", "response_a", "response_b", "label")
    for reading in readings:
        assert f'"{reading}"' in caught.value.message


def test_the_whole_column_of_votes_is_inspected(files):
    with pytest.raises(ColumnMappingError, match="0=first,1=second,2=tie"):
        files.parse("v.jsonl", votes_with("label", [1, 2] * 75 + [0]))


def test_numbers_that_no_reading_fits_are_asked_about_too(files):
    with pytest.raises(ColumnMappingError, match=r"1, 4 and 7.*--choices"):
        files.parse("v.jsonl", votes_with("label", [7, 1, 4]))


def test_numbers_that_no_reading_fits_get_none():
    assert fitting_readings(["0", "7"]) == []


def test_beside_the_word_tie_no_number_is_a_tie():
    assert fitting_readings(["0", "1", "tie"]) == ["0=first,1=second,tie=tie", "0=second,1=first,tie=tie"]


def test_readings_that_differ_in_absent_numbers_are_one():
    """With 2 alone, each known reading means the second text or a tie."""
    assert fitting_readings(["2"]) == ["1=first,2=second", "0=first,1=second,2=tie"]


@pytest.mark.parametrize("values", [[1, 2], [2, 1, "tie"], ["1", "2.0"]])
def test_one_and_two_are_the_first_and_the_second_text(files, values):
    parsed = files.parse("v.jsonl", votes_with("label", values))
    expected = {"1": "first", "2": "second", "2.0": "second", "tie": "tie"}
    assert [vote.choice for vote in parsed.votes] == [expected[str(value)] for value in values]


@pytest.mark.parametrize("file_name", ["v.jsonl", "v.csv"])
@pytest.mark.parametrize("choices", ["0=second,0.5=tie,1=first", "0.0=second,0.50=tie,1.0=first"])
def test_a_reading_applies_however_the_numbers_are_written(files, file_name, choices):
    parsed = files.parse(file_name, votes_with("label", [0.0, 1.0, 0.5]), choices=parse_choice_words(choices))
    assert [vote.choice for vote in parsed.votes] == ["second", "first", "tie"]


def test_a_reading_applies_to_true_and_false(files):
    choices = parse_choice_words("true=first,false=second")
    for name in ("v.jsonl", "v.csv"):
        parsed = files.parse(name, votes_with("label", [True, False]), choices=choices)
        assert [vote.choice for vote in parsed.votes] == ["first", "second"]


def test_votes_of_several_people_are_inspected_together(files):
    rows = [
        {"prompt": "p", "first": "a", "second": "b", "rater1": one, "rater2": other} for one, other in ((0, 1), (1, 2))
    ]
    with pytest.raises(ColumnMappingError, match="0=first,1=second,2=tie"):
        files.parse("v.jsonl", rows)


EGG = {"chosen": "The egg boils for eight minutes.", "rejected": "The moon is far."}
QUESTION = "How long does an egg boil?"


@pytest.mark.parametrize("column", ["input", "problem", "history", "question", "Input"])
@pytest.mark.parametrize("file_name", ["v.jsonl", "v.csv"])
def test_a_column_whose_name_means_a_prompt_is_the_prompt(files, decided_texts, column, file_name):
    parsed = files.parse(file_name, [{column: QUESTION} | EGG])
    assert [decided_texts(vote) for vote in parsed.votes] == [(QUESTION, EGG["chosen"], EGG["rejected"])]
    assert parsed.mapping["prompt"] == column
    assert parsed.unused_columns == ()


@pytest.mark.parametrize(
    "extra",
    [
        {"user": QUESTION},
        {"topic": QUESTION},
        {"input": QUESTION, "system": "Be brief."},
        {"problem": QUESTION, "history": "Hello."},
        {"conversation": [{"role": "user", "content": QUESTION}]},
    ],
)
def test_text_columns_that_may_be_the_prompt_are_asked_about(files, extra):
    with pytest.raises(ColumnMappingError) as caught:
        files.parse("v.jsonl", [extra | EGG])
    for name in extra:
        assert f'"{name}"' in caught.value.message
    assert f"--map prompt={next(iter(extra))}" in str(caught.value)
    assert caught.value.columns == (*extra, "chosen", "rejected")


def test_the_user_can_map_the_prompt_or_say_that_it_is_the_shared_beginning(files, decided_texts):
    path = files.rows("v.jsonl", [{"user": QUESTION} | EGG])
    (vote,) = files.read(path, mapping={"prompt": "user"}).votes
    assert (decided_texts(vote)[0], vote.annotator) == (QUESTION, "")
    (vote,) = files.read(path, mapping={"prompt": ""}).votes
    assert decided_texts(vote) == ("The", " egg boils for eight minutes.", " moon is far.")


@pytest.mark.parametrize("extra", [{"worker": "ann"}, {"margin": 2.5}, {"id": 7}, {"note": None}, {"topic": " "}])
def test_a_shared_beginning_is_the_prompt_beside_columns_that_hold_no_further_text(files, decided_texts, extra):
    (vote,) = files.parse("v.jsonl", [extra | EGG]).votes
    assert decided_texts(vote)[0] == "The"


def test_whole_conversations_contain_their_prompt_whatever_other_columns_say(files, decided_texts):
    start = "\n\nHuman: Hi\n\nAssistant:"
    (vote,) = files.parse("v.jsonl", [{"topic": "x", "chosen": start + " Yes.", "rejected": start + " No."}]).votes
    assert decided_texts(vote) == (start, " Yes.", " No.")
    user = {"role": "user", "content": "Hi"}
    chats = {name: [user, {"role": "assistant", "content": name}] for name in ("chosen", "rejected")}
    (vote,) = files.parse("v.jsonl", [{"input": "x"} | chats]).votes
    assert decided_texts(vote) == ("Hi", "chosen", "rejected")


def test_one_whole_conversation_does_not_answer_for_the_other_rows(files):
    start = "\n\nHuman: Hi\n\nAssistant:"
    rows = [{"topic": "x", "chosen": start + " Yes.", "rejected": start + " No."}, {"topic": QUESTION} | EGG]
    with pytest.raises(ColumnMappingError, match="--map prompt=topic"):
        files.parse("v.jsonl", rows)


def test_a_column_of_numbers_in_csv_is_no_prompt(files):
    assert files.parse("v.csv", [{"row": "17"} | EGG]).unused_columns == ("row",)


def test_a_column_that_is_mapped_is_not_asked_about(files):
    path = files.rows("v.jsonl", [{"topic": QUESTION, "system": "Be brief."} | EGG])
    assert files.read(path, mapping={"prompt": "topic"}).mapping["prompt"] == "topic"
    assert files.read(path, mapping={"prompt": ""}).unused_columns == ("topic", "system")


def test_a_prompt_that_only_one_row_lacks_is_an_error_of_that_row(files):
    parsed = files.parse("v.jsonl", [{"prompt": QUESTION} | EGG, {"prompt": None} | EGG, EGG])
    assert len(parsed.votes) == 1
    assert problems(parsed) == [(row, "prompt is missing. Write it, or take the row out.") for row in (2, 3)]


@pytest.mark.parametrize("column", ["topic", "user"])
def test_the_prompt_of_two_texts_and_a_vote_is_asked_about_too(files, column):
    row = {column: QUESTION, "output_1": "Eight minutes.", "output_2": "Far.", "label": "first"}
    with pytest.raises(ColumnMappingError, match=f"--map prompt={column}"):
        files.parse("v.jsonl", [row])


@pytest.mark.parametrize("empty", ["", " "])
@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({"prompt": "Name a fruit.", "chosen": "A pear.", "rejected": "A brick."}, "rejected"),
        ({"prompt": "Name a fruit.", "chosen": "A pear.", "rejected": "A brick."}, "chosen"),
        (BIRD, "response_b"),
        ({"chosen": "One pear.", "rejected": "One brick."}, "rejected"),
    ],
)
def test_an_empty_answer_in_csv_is_an_error(files, row, column, empty):
    parsed = files.parse("v.csv", [row, row | {column: empty}])
    assert len(parsed.votes) == 1
    assert problems(parsed) == [(2, f"{column} is missing. Write it, or take the row out.")]


def test_an_empty_answer_in_an_export_of_the_lab_is_what_the_model_wrote(files, decided_texts):
    row = {
        "prompt": "Once",
        "chosen": "a",
        "rejected": "",
        "annotator": "ann",
        "source": "human",
        "first_on_left": "true",
    }
    (vote,) = files.parse("v.csv", [row]).votes
    assert decided_texts(vote) == ("Once", "a", "")


@pytest.mark.parametrize("file_name", ["v.jsonl", "v.csv"])
@pytest.mark.parametrize(
    "value", [1684000000, 1684000000.0, 1684000000000, 1684000000000000, 1684000000000000000, "1684000000000"]
)
def test_a_time_may_be_in_seconds_milliseconds_microseconds_or_nanoseconds(files, file_name, value):
    (vote,) = files.parse(file_name, [BIRD | {"timestamp": value}]).votes
    assert vote.created_at == 1_684_000_000  # May 2023


def test_a_time_far_beyond_any_calendar_is_an_error(files):
    ((row_number, message),) = problems(files.parse("v.jsonl", [BIRD | {"timestamp": 1e25}]))
    assert row_number == 1
    assert message.startswith("timestamp is 1e+25, ")


FRUIT = '{"prompt":"Name a fruit.","chosen":"A pear.","rejected":"A brick."}'
TWICE = FRUIT[:-1] + ',"chosen":"A plum."}'
NESTED = '{"prompt":[{"role":"user","content":"Name","content":"Say"}],"chosen":"A pear.","rejected":"A brick."}'


@pytest.mark.parametrize(("broken", "name"), [(TWICE, "chosen"), (NESTED, "content")])
@pytest.mark.parametrize(
    ("file_name", "pattern"),
    [("v.jsonl", "{0}\n{1}\n{0}\n"), ("v.json", "[{0},\n{1},\n{0}]"), ("v.json", '{{"data": [{0},\n{1},\n{0}]}}')],
)
def test_a_json_row_that_gives_a_name_twice_is_an_error(files, file_name, pattern, broken, name):
    parsed = files.parse(file_name, pattern.format(FRUIT, broken))
    assert len(parsed.votes) == 2
    assert problems(parsed) == [(2, f'"{name}" is in an object twice. Keep one of them, or rename one')]


def test_two_lists_of_rows_under_one_name_are_an_error(files):
    with pytest.raises(DataError, match='"data" is in an object twice'):
        files.parse("v.json", f'{{"data": [{FRUIT}], "data": [{FRUIT}]}}')


def test_a_chat_in_a_csv_cell_that_gives_a_name_twice_is_an_error(files):
    chat = '[{"role":"user","content":"Name","content":"Say"}]'
    row = {"prompt": chat, "chosen": "A pear.", "rejected": "A brick."}
    ((_, message),) = problems(files.parse("v.csv", [row]))
    assert '"content" is in an object twice' in message


def test_a_parquet_file_with_two_columns_of_one_name_is_an_error(files):
    import pyarrow
    from pyarrow import parquet

    path = files.folder / "v.parquet"
    columns = [pyarrow.array([text]) for text in ("Name a fruit.", "A pear.", "A brick.", "A plum.")]
    parquet.write_table(pyarrow.Table.from_arrays(columns, ["prompt", "chosen", "rejected", "chosen"]), path)
    with pytest.raises(DataError, match="two columns are called 'chosen'"):
        files.read(path)


@pytest.mark.parametrize("file_name", ["v.jsonl", "v.json"])
def test_a_column_that_appears_late_in_a_file_is_read(files, file_name):
    win = {"prompt": "Say hello.", "chosen": "Hello.", "rejected": "Hi."}
    parsed = files.parse(file_name, [win] * 101 + [win | {"tie": True, "topic": "greetings"}])
    assert parsed.votes[-1].choice == "tie"
    assert parsed.mapping["tie"] == "tie"
    assert parsed.unused_columns == ("topic",)


def test_columns_of_votes_that_appear_late_in_a_file_are_read(files):
    row = {"prompt": "p", "first": "a", "second": "b", "rater1": "first", "rater2": "tie"}
    parsed = files.parse("v.jsonl", [row] * 150 + [row | {"rater3": "second"}])
    assert [(vote.annotator, vote.choice) for vote in parsed.votes[-3:]] == [
        ("rater1", "first"), ("rater2", "tie"), ("rater3", "second"),
    ]  # fmt: skip


RENAMED = {"q": "Once", "good": "a", "bad": "b", "who": "ann", "from": "human", "left": True, "ms": 5, "how": "much",
           "part": "train", "remark": "x"}  # fmt: skip
OWN_NAMES = {"prompt": "q", "chosen": "good", "rejected": "bad", "annotator": "who", "source": "from", "first_on_left": "left",
             "response_ms": "ms", "strength": "how", "split": "part", "note": "remark"}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "start"),
    [
        ({"q": " "}, "q is empty"),
        ({"good": None}, "good is missing"),
        ({"good": 3}, "good is a number"),
        ({"from": "robot"}, "from is 'robot'"),
        ({"ms": -1}, "ms is -1"),
        ({"how": "very"}, "how is 'very'"),
        ({"part": "test"}, "part is 'test'"),
        ({"remark": "a\0b"}, "remark holds a NUL"),
    ],
)
def test_an_error_names_the_column_of_the_file(files, change, start):
    row = {name: value for name, value in RENAMED.items() if name != "how"} | change
    ((_, message),) = problems(files.parse("v.jsonl", [RENAMED | {"how": None} | row], mapping=OWN_NAMES))
    assert message.startswith(start)


@pytest.mark.parametrize(
    ("good", "bad", "start"),
    [
        ("The moon", None, "bad is missing"),
        ("The moon", 3, "bad is a number"),
        (3, "The moon", "good is a number"),
        ("One two", "Three", "good and bad share no beginning"),
        ([{"role": "user", "content": "a"}], "Three", "good is a chat and bad is a text"),
        ([{"role": "user", "content": "a"}], [{"role": "bot", "content": "a"}], "bad has a message 1 of role 'bot'"),
        ("The \0moon", "The sun", "good holds a NUL"),
    ],
)
def test_an_error_of_texts_with_a_shared_beginning_names_the_column_of_the_file(files, good, bad, start):
    path = files.rows("v.jsonl", [{"good": good, "bad": bad}])
    ((_, message),) = problems(files.read(path, mapping={"chosen": "good", "rejected": "bad", "prompt": ""}))
    assert message.startswith(start)


def test_contradictory_scores_are_named_by_their_columns(files):
    row = {"prompt": "p", "chosen": "a", "rejected": "b", "chosen_rating": 1, "rejected_rating": 2}
    ((_, message),) = problems(files.parse("v.jsonl", [row]))
    assert message == (
        "rejected_rating is 2 and chosen_rating is 1: the rejected text has the higher score. Swap them or mend the scores."
    )
