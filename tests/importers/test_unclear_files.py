"""Ambiguous files: the importer asks the user or reports the row; it never guesses."""

import pytest

from rlhf_lab.errors import DataError
from rlhf_lab.importers.cell_parsers import fitting_readings, parse_choice_words
from rlhf_lab.importers.column_mapping import ColumnMappingError
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
    """pandas writes an unknown winner like this; it does not mean that both texts are bad."""
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


def test_with_the_word_tie_in_the_column_no_number_is_a_tie():
    assert fitting_readings(["0", "1", "tie"]) == ["0=first,1=second,tie=tie", "0=second,1=first,tie=tie"]


def test_readings_that_differ_only_in_absent_numbers_are_merged():
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
        {"input": QUESTION, "tone": "Be brief."},
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
def test_a_shared_beginning_is_the_prompt_only_if_the_user_says_so(files, decided_texts, extra):
    """Answers without a prompt may begin with the same word, too."""
    path = files.rows("v.jsonl", [extra | EGG])
    with pytest.raises(ColumnMappingError, match=r"shared beginning of chosen and rejected.*--map prompt=\."):
        files.read(path)
    (vote,) = files.read(path, mapping={"prompt": ""}).votes
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
    with pytest.raises(ColumnMappingError, match="No column holds the prompt"):
        files.parse("v.csv", [{"row": "17"} | EGG])


def test_a_column_that_is_mapped_is_not_asked_about(files):
    path = files.rows("v.jsonl", [{"topic": QUESTION, "tone": "Be brief."} | EGG])
    assert files.read(path, mapping={"prompt": "topic"}).mapping["prompt"] == "topic"
    assert files.read(path, mapping={"prompt": ""}).unused_columns == ("topic", "tone")


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
    mapping = {} if "prompt" in row else {"prompt": ""}
    parsed = files.parse("v.csv", [row, row | {column: empty}], mapping=mapping)
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
    assert problems(parsed) == [(2, f'"{name}" occurs twice in an object. Keep one of them, or rename one')]


def test_two_lists_of_rows_under_one_name_are_an_error(files):
    with pytest.raises(DataError, match='"data" occurs twice in an object'):
        files.parse("v.json", f'{{"data": [{FRUIT}], "data": [{FRUIT}]}}')


def test_a_chat_in_a_csv_cell_that_gives_a_name_twice_is_asked_about(files):
    chat = '[{"role":"user","content":"Name","content":"Say"}]'
    with pytest.raises(ColumnMappingError, match='"content" occurs twice in an object'):
        files.parse("v.csv", [{"prompt": chat, "chosen": "A pear.", "rejected": "A brick."}])


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
        "rejected_rating is 2 and chosen_rating is 1: the rejected text has the higher score. Swap them or correct the scores."
    )


WIN = {"prompt": "Say hello.", "chosen": "Hello.", "rejected": "Hi."}
FORMATS = ["v.jsonl", "v.json", "v.csv", "v.parquet"]


def with_late_row(row, **change):
    """101 rows, and one more with further columns; the other rows have them too, but empty, as CSV and Parquet need it."""
    return [row | dict.fromkeys(change)] * 101 + [row | change]


@pytest.mark.parametrize("file_name", FORMATS)
@pytest.mark.parametrize("column", ["winner", "label", "choice", "verdict"])
@pytest.mark.parametrize(("word", "choice"), [("tie", "tie"), ("both_bad", "both_bad"), ("skip", "skip")])
def test_a_vote_beside_chosen_and_rejected_is_read(files, file_name, column, word, choice):
    parsed = files.parse(file_name, with_late_row(WIN, **{column: word}))
    assert (len(parsed.votes), parsed.votes[-1].choice) == (102, choice)


def test_a_vote_may_repeat_that_chosen_is_better(files, decided_texts):
    (vote,) = files.parse("v.jsonl", [WIN | {"winner": "chosen"}]).votes
    assert decided_texts(vote) == tuple(WIN.values())
    assert vote.first_on_left is None


@pytest.mark.parametrize("file_name", FORMATS)
@pytest.mark.parametrize("word", ["rejected", "second", "B", "right"])
def test_a_vote_against_chosen_is_an_error(files, file_name, word):
    parsed = files.parse(file_name, with_late_row(WIN, choice=word))
    assert len(parsed.votes) == 101
    assert problems(parsed) == [
        (102, f"choice is '{word}', the second text, but chosen is called the better one. Correct one of them, or leave the "
         "column out: --map choice=.")
    ]  # fmt: skip


def test_a_column_that_holds_no_votes_can_be_left_out(files):
    path = files.rows("v.jsonl", [WIN | {"label": "harmless"}])
    ((_, message),) = problems(files.read(path))
    assert "label is 'harmless'" in message
    assert message.endswith("or leave the column out: --map choice=.")
    parsed = files.read(path, mapping={"choice": ""})
    assert (len(parsed.votes), parsed.unused_columns) == (1, ("label",))


@pytest.mark.parametrize("value", [2, 1, "0"])
def test_a_number_beside_chosen_and_rejected_is_asked_about(files, value):
    with pytest.raises(ColumnMappingError, match=r"vote with .*--choices=.*--map choice=\."):
        files.parse("v.jsonl", with_late_row(WIN, preference=value))


def test_words_beside_chosen_and_rejected_mean_what_the_user_says(files):
    rows = [WIN | {"label": "good"}, WIN | {"label": "even"}, WIN | {"label": "bad"}]
    parsed = files.parse("v.jsonl", rows, choices=parse_choice_words("good=first,even=tie,bad=second"))
    assert [vote.choice == "tie" for vote in parsed.votes] == [False, True]
    assert [row for row, _ in problems(parsed)] == [3]


CONTRADICTION = "Correct one of them."


@pytest.mark.parametrize("file_name", FORMATS)
@pytest.mark.parametrize("flag", ["tie", "both_bad"])
@pytest.mark.parametrize("word", ["a", "b", "skip"])
def test_two_texts_with_a_winner_and_a_tie_contradict(files, file_name, flag, word):
    parsed = files.parse(file_name, [*with_late_row(BIRD, **{flag: True}), BIRD | {flag: True, "winner": word}])
    assert len(parsed.votes) == 101
    assert [row for row, _ in problems(parsed)] == [102, 103]
    assert all(message.startswith(f"{flag} is 'True', but the vote is ") for _, message in problems(parsed))
    assert all(message.endswith(CONTRADICTION) for _, message in problems(parsed))


@pytest.mark.parametrize(
    ("winner", "flags", "choice"),
    [
        ("tie", {"tie": True}, "tie"),
        ("tie", {"tie": True, "both_bad": False}, "tie"),
        ("tie", {"both_bad": True}, "both_bad"),
        ("both_bad", {"tie": True, "both_bad": True}, "both_bad"),
        ("both_bad", {"tie": False, "both_bad": True}, "both_bad"),
        ("a", {"tie": False, "both_bad": False}, "first"),
        ("tie", {"tie": False}, None),
        ("both_bad", {"both_bad": False}, None),
    ],
)
def test_a_vote_and_the_columns_tie_and_both_bad_are_read_together(files, winner, flags, choice):
    parsed = files.parse("v.jsonl", [BIRD | flags | {"winner": winner}])
    assert [vote.choice for vote in parsed.votes] == [choice] * (choice is not None)
    assert len(parsed.errors) == (choice is None)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (BIRD | {"score_a": 1, "score_b": 2}, "winner is 'model_a', but score_a and score_b say the opposite. "),
        ({"prompt": "p", "response_a": "x", "response_b": "y", "score_a": 1, "score_b": 2, "tie": True},
         "tie is 'True', but the scores say 'second'. "),
        (WIN | {"score_chosen": 2, "score_rejected": 1, "tie": True}, "tie is 'True', but the scores say 'first'. "),
    ],
)  # fmt: skip
def test_scores_that_contradict_the_vote_are_an_error(files, row, message):
    assert problems(files.parse("v.jsonl", [row])) == [(1, message + CONTRADICTION)]


def test_scores_that_agree_with_the_vote_are_no_error(files):
    rows = [BIRD | {"score_a": 2, "score_b": 1}, BIRD | {"winner": "tie", "score_a": 2, "score_b": 1}]
    assert [vote.choice for vote in files.parse("v.jsonl", rows).votes] == ["first", "tie"]


def test_a_column_that_this_kind_of_row_has_no_use_for_is_not_used(files):
    people = {"prompt": "p", "first": "a", "second": "b", "rater1": "first", "rater2": "tie"}
    parsed = files.parse("v.jsonl", [people | {"winner": "b", "tie": True, "seed_chosen": 3}])
    assert parsed.unused_columns == ("winner", "tie", "seed_chosen")
    assert set(parsed.mapping) == {"prompt", "first", "second", "annotators"}
    parsed = files.parse("v.jsonl", [WIN | {"score_chosen": 3, "response_a": "x", "rater1": "first", "rater2": "tie"}])
    assert parsed.unused_columns == ("score_chosen", "response_a", "rater1", "rater2")


def test_two_pairs_of_texts_are_asked_about(files):
    row = WIN | {"response_a": "Hi.", "response_b": "Hello.", "winner": "b"}
    path = files.rows("v.jsonl", [WIN] * 101 + [row])
    with pytest.raises(
        ColumnMappingError, match="--map chosen=chosen --map rejected=rejected, or --map first=response_a"
    ):
        files.read(path)
    parsed = files.read(path, mapping={"first": "response_a", "second": "response_b"})
    assert [(vote.first.text, vote.second.text, vote.choice) for vote in parsed.votes] == [("Hi.", "Hello.", "second")]
    parsed = files.read(path, mapping={"chosen": "chosen", "rejected": "rejected", "choice": ""})
    assert len(parsed.votes) == 102


@pytest.mark.parametrize(
    ("row", "change", "columns"),
    [
        (WIN | {"tie": False}, {"is_tie": True}, "tie, is_tie"),
        (WIN | {"Tie": False}, {"tie": True}, "tie, Tie"),
        (WIN, {"Chosen": "Hey."}, "chosen, Chosen"),
        (WIN, {"preferred": "Hey."}, "chosen, preferred"),
        (BIRD, {"label": "tie"}, "winner, label"),
        (BIRD, {"output_1": "An owl."}, "response_a, output_1"),
        (WIN, {"question": "Why?"}, "prompt, question"),
        (WIN, {"input": "Why?"}, "prompt, input"),
        (WIN, {"history": "Hi."}, "prompt, history"),
        ({"question": "Why?"} | EGG, {"context": "Physics."}, "question, context"),
        ({"instruction": "Answer.", "input": "Briefly."} | EGG, {"question": "Why?"}, "question, instruction, input"),
    ],
)  # fmt: skip
def test_two_columns_for_one_meaning_are_asked_about(files, row, change, columns):
    with pytest.raises(ColumnMappingError) as caught:
        files.parse("v.jsonl", [row] * 101 + [row | change])
    assert set(caught.value.message.split(": ")[1].rstrip(".").split(", ")) == set(columns.split(", "))
    assert all(f"={name}" in str(caught.value) for name in columns.split(", "))
    assert set(row) | set(change) == set(caught.value.columns)


def test_a_second_column_that_is_empty_is_not_asked_about(files):
    rows = [WIN | {"history": [], "is_tie": None, "input": " ", "tie": False}]
    parsed = files.parse("v.jsonl", rows)
    assert (len(parsed.votes), parsed.unused_columns) == (1, ())


def test_the_user_says_which_of_two_columns_it_is_or_takes_both(files, decided_texts):
    path = files.rows("v.csv", [{"question": QUESTION, "context": "For breakfast."} | EGG])
    parsed = files.read(path, mapping={"prompt": "question"})
    assert (decided_texts(parsed.votes[0])[0], parsed.unused_columns) == (QUESTION, ("context",))
    parsed = files.read(path, mapping={"prompt": "question", "input": "context"})
    assert (decided_texts(parsed.votes[0])[0], parsed.unused_columns) == (f"{QUESTION}\n\nFor breakfast.", ())


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("topic", [QUESTION]),
        ("topic", {"text": QUESTION}),
        ("topic", [[QUESTION, "Ask."]]),
        ("topic", [{"from": "human", "value": QUESTION}]),
    ],
)
def test_a_list_or_an_object_may_be_the_prompt_too(files, column, value):
    with pytest.raises(ColumnMappingError, match=f"--map prompt={column}"):
        files.parse("v.jsonl", [{column: value} | EGG])


@pytest.mark.parametrize("column", ["input", "problem", "history"])
@pytest.mark.parametrize("value", ["42", "True"])
def test_a_prompt_may_be_a_number(files, decided_texts, column, value):
    for file_name in ("v.jsonl", "v.csv"):
        (vote,) = files.parse(file_name, [{column: value} | EGG]).votes
        assert decided_texts(vote)[0] == value


@pytest.mark.parametrize("value", [42, [QUESTION, QUESTION], {"text": QUESTION}, [["How long?", "Ask."]]])
def test_a_prompt_that_is_no_text_is_an_error_of_its_row(files, value):
    ((row_number, message),) = problems(files.parse("v.jsonl", [{"input": value} | EGG]))
    assert row_number == 1
    assert message.startswith("input ")


def test_a_list_of_numbers_is_no_prompt(files):
    parsed = files.parse("v.jsonl", [{"vector": [0.5, 2], "scores": {"help": 3}} | EGG], mapping={"prompt": ""})
    assert parsed.unused_columns == ("vector", "scores")


def test_a_column_without_a_name_may_be_the_prompt(files, decided_texts):
    path = files.raw("v.csv", f",chosen,rejected,\n{QUESTION},An egg.,An owl.,\n")
    with pytest.raises(ColumnMappingError, match='"column_1"'):
        files.read(path)
    parsed = files.read(path, mapping={"prompt": "column_1"})
    assert (decided_texts(parsed.votes[0])[0], parsed.unused_columns) == (QUESTION, ())
    parsed = files.parse("w.csv", ",prompt,chosen,rejected\n0,Why?,An egg.,An owl.\n")
    assert (len(parsed.votes), parsed.unused_columns) == (1, ("column_1",))
    for file_name in ("v.jsonl", "v.parquet"):
        with pytest.raises(ColumnMappingError, match="--map prompt=unnamed_column"):
            files.parse(file_name, [{"": QUESTION} | EGG])


@pytest.mark.parametrize("file_name", ["v.jsonl", "v.csv"])
@pytest.mark.parametrize("value", [20230513, "20230513", 20230513174640, 45059.74, 0, -1684000000, 1e11])
def test_a_number_that_is_no_time_of_this_century_is_an_error(files, file_name, value):
    ((_, message),) = problems(files.parse(file_name, [BIRD | {"timestamp": value}]))
    assert message.startswith("timestamp is ")
    assert "no time from 2000 to 2099" in message
    assert "2026-01-31T12:00:00" in message


def test_a_number_in_an_export_of_the_lab_is_a_time_in_seconds(files):
    row = WIN | {"annotator": "ann", "source": "human", "first_on_left": True, "choice": "first"}
    parsed = files.parse("v.jsonl", [row | {"created_at": seconds} for seconds in (-1.5, 20230513, 2e11)])
    assert [vote.created_at for vote in parsed.votes] == [-1.5, 20230513, 2e11]
