"""Questions that have answers of their own: names of texts in votes, sides of columns, turns in texts, numbers, dates, splits."""

import json

import pytest

from rlhf_lab.errors import DataError
from rlhf_lab.importers.cell_parsers import parse_choice_words, parse_number
from rlhf_lab.importers.column_mapping import ANSWERS, ColumnMappingError
from rlhf_lab.importers.remedies import for_page

WREN, SPOON = "A wren.", "A spoon."
BIRD = {"prompt": "Name a bird.", "response_a": WREN, "response_b": SPOON}
SWAPPED = BIRD | {"response_a": SPOON, "response_b": WREN}
FILES = pytest.mark.parametrize("file_name", ["v.csv", "v.jsonl"])


def better(parsed, decided_texts):
    assert parsed.errors == []
    return [decided_texts(vote)[1] for vote in parsed.votes]


def answer(*keys):
    assert set(keys) <= set(ANSWERS)
    return frozenset(keys)


def as_cell(file_name, value):
    return json.dumps(value) if file_name.endswith("csv") else value


NAMED = {
    "model": {"model_a": "o3", "model_b": "phi"},
    "engine": {"engine_a": "o3", "engine_b": "phi"},
    "arm": {"left_arm": "o3", "right_arm": "phi"},
    "a list": {"models": ["o3", "phi"]},
    "an object": {"by": {"a": "o3", "b": "phi"}},
}


def as_cells(file_name, columns, *, is_swapped=False):
    """The columns as the file's format holds them; is_swapped: with the name of the other text at each place."""
    text = json.dumps(columns)
    if is_swapped:
        text = text.replace("o3", "?").replace("phi", "o3").replace("?", "phi")
    return {
        name: as_cell(file_name, value) if isinstance(value, list | dict) else value
        for name, value in json.loads(text).items()
    }


@FILES
@pytest.mark.parametrize("columns", NAMED)
def test_a_vote_that_names_a_text_of_its_row_means_that_text(files, decided_texts, file_name, columns):
    named, swapped = (as_cells(file_name, NAMED[columns], is_swapped=is_swapped) for is_swapped in (False, True))
    rows = [BIRD | named | {"winner": "o3"}, SWAPPED | swapped | {"winner": "o3"}, BIRD | named | {"winner": "tie"}]
    path = files.rows(file_name, rows)
    assert better(files.read(path), decided_texts)[:2] == [WREN, WREN]
    assert files.read(path).votes[2].choice == "tie"
    choices = parse_choice_words("o3=first,phi=second,tie=tie")
    with pytest.raises(
        ColumnMappingError, match=r'row 2 .*"o3", the name of the second text.*means first.*votes=names'
    ):
        files.read(path, choices=choices)
    by_names = files.read(path, choices=choices, answers=answer("votes=names"))
    by_words = files.read(path, choices=choices, answers=answer("votes=words"))
    assert better(by_names, decided_texts)[:2] == [WREN, WREN]
    assert better(by_words, decided_texts)[:2] == [WREN, SPOON]
    further = files.read(path, choices=parse_choice_words("tie=tie"))  # names need no --choices
    assert better(further, decided_texts)[:2] == [WREN, WREN]


def test_names_are_compared_without_case_and_beside_chosen_too(files, decided_texts):
    named = BIRD | {"model_a": "GPT-4", "model_b": "llama"}
    words = parse_choice_words("gpt-4=second,=>=first")
    assert better(files.parse("v.jsonl", [named | {"winner": word} for word in ("gpt-4", "LLAMA")]), decided_texts) == [
        WREN,
        SPOON,
    ]
    with pytest.raises(ColumnMappingError, match="the name of the first text"):
        files.parse("v.jsonl", [named | {"winner": "gpt-4"}], choices=words)
    assert better(files.parse("v.jsonl", [named | {"winner": "=>"}], choices=words), decided_texts) == [WREN]
    row = {"prompt": "p", "chosen": WREN, "rejected": SPOON, "chosen_model": "o3", "rejected_model": "phi"}
    parsed = files.parse("v.jsonl", [row | {"winner": word} for word in ("o3", "phi")])
    assert [decided_texts(vote)[1] for vote in parsed.votes] == [WREN]
    assert "but chosen is called the better one" in parsed.errors[0].message


@FILES
@pytest.mark.parametrize("named", [{"variant_a": "B", "variant_b": "A"}, {"order": ["right", "left"]}])
def test_a_name_that_is_a_word_for_the_other_text_is_asked_about(files, decided_texts, file_name, named):
    word = "A" if "variant_a" in named else "left"
    path = files.rows(file_name, [BIRD | as_cells(file_name, named) | {"winner": word}])
    with pytest.raises(
        ColumnMappingError, match="the name of the second text in this row, but as a word it means first"
    ):
        files.read(path)
    assert better(files.read(path, answers=answer("votes=names")), decided_texts) == [SPOON]
    assert better(files.read(path, answers=answer("votes=words")), decided_texts) == [WREN]


def test_numbers_and_columns_with_a_meaning_are_no_names(files, decided_texts):
    further = {
        "rank_a": 2,
        "rank_b": 1,
        "len_a": "1",
        "len_b": "2",
        "score_a": 2,
        "score_b": 1,
        "three": ["u", "x", "a"],
    }
    path = files.rows("v.jsonl", [BIRD | further | {"winner": word} for word in (1, "a")])
    assert better(files.read(path, choices=parse_choice_words("1=first,a=first")), decided_texts) == [WREN, WREN]


@FILES
def test_ids_beside_the_meaning_of_words_are_asked_about_only_where_they_contradict(files, decided_texts, file_name):
    options = [{"id": "A", "text": WREN}, {"id": "B", "text": SPOON}]
    rows = [
        {
            "text": "Name a bird.",
            "options": as_cell(file_name, order),
            "accept": as_cell(file_name, ["A"]),
            "answer": "accept",
        }
        for order in (options, options[::-1])
    ]
    assert better(files.parse(file_name, rows), decided_texts) == [WREN, WREN]
    words = parse_choice_words("A=first,B=second")
    assert better(files.parse(file_name, rows[:1] * 2, choices=words), decided_texts) == [WREN, WREN]
    with pytest.raises(ColumnMappingError, match=r"--answer votes=names .*--answer votes=words"):
        files.parse(file_name, rows, choices=words)


BOUND = [
    {"score_a": 2, "score_b": 1},
    {"winner_model_a": 1, "winner_model_b": 0},
    {"model_a": "o3", "model_b": "phi", "winner": "o3"},
    {"engine_1": "o3", "engine_2": "phi", "winner": "o3"},
]


@pytest.mark.parametrize("bound", BOUND)
def test_columns_of_a_side_are_asked_about_if_the_texts_are_of_none(files, decided_texts, bound):
    path = files.rows("v.jsonl", [{"prompt": "Name a bird.", "baseline": WREN, "ours": SPOON} | bound])
    mapping = {"first": "baseline", "second": "ours"}
    with pytest.raises(ColumnMappingError, match=r"the first is baseline, the second ours.*sides=same .*sides=swapped"):
        files.read(path, mapping=mapping)
    for key, text in (("sides=same", WREN), ("sides=swapped", SPOON)):
        assert better(files.read(path, mapping=mapping, answers=answer(key)), decided_texts) == [text]


def test_columns_of_a_side_that_the_user_maps_or_calls_first_are_clear(files, decided_texts):
    row = {"prompt": "Name a bird.", "baseline": WREN, "ours": SPOON}
    mapping = {"first": "baseline", "second": "ours"}
    scores = {"score_first": "score_a", "score_second": "score_b"}
    assert better(files.parse("v.jsonl", [row | BOUND[0]], mapping=mapping | scores), decided_texts) == [WREN]
    first = row | {"score_first": 2, "score_second": 1}
    assert better(files.parse("v.jsonl", [first], mapping=mapping), decided_texts) == [WREN]


TRANSCRIPTS = [
    "USER: Hi there. ASSISTANT: Hello.</s>USER: Name a bird. ASSISTANT:",
    "A chat between a curious user and an assistant. USER: Name a bird. ASSISTANT:",
    "Human: Hi. Assistant: Hello. Human: Name a bird.",
    "human: Hi. assistant: Hello. human: Name a bird.",
    " user: Name a bird. assistant:",
    "User: Hi.\rBot: Hello.\rUser: Name a bird.",
    "用户：你好\n助手：你好！\n用户：一只鸟？",
    "User： Hi. Assistant： Hello.",
    "Q: A bird?\nA: A wren.\nQ: Another?\nA:",
    "Question: Name a bird. Answer:",
    "問：鳥？\n答：",
    "<human>: Hi.\n<bot>: Hello.",
    "**User:** Hi.\n**Assistant:** Hello.",
    "- User : Hi.\n- AI : Hello.",
    "[USER] Hi. [ASSISTANT] Hello. [USER] Name a bird.",
    "<user>Hi.</user><assistant>Hello.</assistant>",
]


@FILES
@pytest.mark.parametrize("prompt", TRANSCRIPTS)
def test_transcripts_of_other_forms_are_asked_about(files, file_name, prompt):
    good = {"prompt": "Name a bird.", "chosen": WREN, "rejected": SPOON}
    path = files.rows(file_name, [good, good | {"prompt": prompt}])
    with pytest.raises(ColumnMappingError, match=r"prompt looks like a transcript.*texts=plain .*texts=skip"):
        files.read(path)
    assert [vote.prompt for vote in files.read(path, answers=answer("texts=plain")).votes] == ["Name a bird.", prompt]
    parsed = files.read(path, answers=answer("texts=skip"))
    assert ([vote.prompt for vote in parsed.votes], parsed.errors) == (["Name a bird."], [])
    assert parsed.left_out == {"prompt holds turns that are not divided": 1}


@pytest.mark.parametrize("start", TRANSCRIPTS[:5])
def test_transcripts_that_hold_their_prompt_are_asked_about(files, start):
    path = files.rows("v.jsonl", [{"chosen": f"{start} {WREN}", "rejected": f"{start} {SPOON}"}])
    with pytest.raises(ColumnMappingError, match="chosen looks like a transcript"):
        files.read(path, mapping={"prompt": ""})


@pytest.mark.parametrize(
    "prompt",
    [
        "Which? Options: A: a wren B: a spoon",
        "The user: a person; the assistant: a model",
        "Note to the User: read it",
        "user: a person who asks",
        "A bird? human: a person; assistant: a model",
        "Use <b> and <user> here",
        "[a](b): [q](r)",
    ],
)
def test_texts_with_colons_are_no_transcripts(files, prompt):
    assert len(files.parse("v.jsonl", [{"prompt": prompt, "chosen": WREN, "rejected": SPOON}]).votes) == 1


LINES = {
    "Markdown with one dash": "|prompt|chosen|rejected|\n|-|:-|-:|\n|p|a|b|\n",
    "a frame": "+---+---+---+\n|prompt|chosen|rejected|\n+===+===+===+\n|p|a|b|\n+---+---+---+\n",
    "psql": "prompt|chosen|rejected\n------+------+-------\np|a|b\n",
    "double lines": "prompt,chosen,rejected\n==========\np,a,b\n=====,======,====\n",
    "drawn lines": "prompt\tchosen\trejected\n──────\t──────\t─────\np\ta\tb\n",
}


@pytest.mark.parametrize("case", LINES)
def test_the_lines_of_a_table_are_left_out(files, decided_texts, case):
    parsed = files.parse("v.csv", LINES[case])
    assert ([decided_texts(vote) for vote in parsed.votes], parsed.errors) == ([("p", "a", "b")], [])
    assert list(parsed.left_out) == ["a line of a table"]


def test_a_row_with_a_dash_for_one_text_counts(files):
    parsed = files.parse("v.csv", "prompt,chosen,rejected\np,-,b\np,=,b\n")
    assert (len(parsed.votes), parsed.left_out) == (2, {})


@FILES
@pytest.mark.parametrize(
    ("column", "value", "counts"),
    [("status", "rejected", False), ("Review Status", "REJECT", False), ("annotation_status", "timed-out", False),
     ("AssignmentStatus", "Returned", False), ("status", "done", True), ("status", "pending", True), ("state", "rejected", True),
     ("review", "denied", False), ("review_result", "Not approved", False),
     ("is_approved", "False", False), ("approved", "no", False), ("approved", "maybe", True), ("overview", "rejected", True)],
)  # fmt: skip
def test_work_whose_status_says_so_does_not_count(files, file_name, column, value, counts):
    rows = [BIRD | {"winner": "a", column: value}, BIRD | {"winner": "b", column: "approved"}]
    parsed = files.parse(file_name, rows)
    assert (len(parsed.votes), parsed.left_out) == ((2, {}) if counts else (1, {f"{column} is {value}": 1}))


def test_a_column_that_the_user_maps_is_no_status(files):
    rows = [{"prompt": "p", "x": WREN, "y": SPOON, "status": word} for word in ("rejected", "accepted")]
    mapping = {"first": "x", "second": "y", "choice": "status"}
    parsed = files.parse("v.csv", rows, mapping=mapping, choices=parse_choice_words("accepted=first,rejected=second"))
    assert [vote.choice for vote in parsed.votes] == ["second", "first"]


def test_work_that_mturk_lists_with_a_reason_to_reject_it_does_not_count(files):
    work = {"AssignmentId": "3X", "AssignmentStatus": "Submitted", "Approve": "", "Reject": ""}
    rows = [BIRD | work | {"winner": "a"}, BIRD | work | {"winner": "b", "Reject": "Too fast."}]
    parsed = files.parse("v.csv", rows)
    assert ([vote.choice for vote in parsed.votes], parsed.left_out) == (["first"], {"Reject is not empty": 1})


@pytest.mark.parametrize(
    ("text", "decimal", "thousands"),
    [("0,9", None, 0.9), ("-1.200,5", None, -1200.5), ("1,200.5", 1200.5, None), ("1.200", 1.2, 1200), ("1,200", 1200, 1.2),
     ("1.2.3", None, None), ("12.00", 12, None), ("3", 3, 3), ("1e3", 1000, 1000), ("+.5", 0.5, None), ("0.200", 0.2, None),
     ("1,2,3", None, None), ("1.20,000", None, None), ("n/a", None, None)],
)  # fmt: skip
def test_a_number_has_one_value_in_each_notation(text, decimal, thousands):
    for notation, value in (("decimal", decimal), ("thousands", thousands)):
        if value is None:
            with pytest.raises(ValueError, match="not a number with"):
                parse_number(text, notation)
        else:
            assert parse_number(text, notation) == value


@pytest.mark.parametrize(
    ("scores", "offered"),
    [(("0,9", "0,8"), ["thousands"]), (("0,9", "0.8"), ["decimal", "thousands"]), (("1,200.5", "900"), ["decimal"]),
     (("1,200", "900"), ["decimal", "thousands"]), (("2.100,0", "n/a"), ["thousands"]), (("0.9", "n/a"), []),
     (("1.200", "1.100"), []), (("1.200", 900), ["decimal", "thousands"])],
)  # fmt: skip
def test_scores_that_no_or_several_notations_read_are_asked_about(files, scores, offered):
    path = files.rows("v.jsonl", [BIRD | dict(zip(("score_a", "score_b"), scores, strict=True))])
    if not offered:
        parsed = files.read(path)
        assert len(parsed.votes) == ("n/a" not in scores)
        return
    with pytest.raises(ColumnMappingError) as caught:
        files.read(path)
    assert [key.removeprefix("numbers=") for key in caught.value.answers] == offered


@FILES
@pytest.mark.parametrize(
    ("dates", "expected"),
    [(["11/28/2026 20:12:49", "11/2/2026 0:00:00"], [1_795_896_769, 1_793_577_600]), (["28.11.2026"], [1_795_824_000]),
     (["2-28-2026 8:12 PM"], [1_772_309_520]), (["2/11/2026, 12:05 am", "13/11/2026"], [1_793_577_900, 1_794_528_000])],
)  # fmt: skip
def test_a_file_with_a_day_after_the_12th_says_the_order_of_its_dates(files, file_name, dates, expected):
    """Expected by `date -u -d`: 2026-11-28 20:12:49, 2026-11-02, 2026-11-28, 2026-02-28 20:12, 2026-11-02 00:05, 2026-11-13."""
    parsed = files.parse(file_name, [BIRD | {"winner": "a", "timestamp": date} for date in dates] * 2)
    assert [vote.created_at for vote in parsed.votes[: len(dates)]] == expected


def test_dates_whose_order_nothing_says_are_asked_about(files):
    path = files.rows("v.csv", [BIRD | {"winner": "a", "Timestamp": "11/2/2026 10:00:00"}] * 2)
    with pytest.raises(ColumnMappingError, match=r"--map created_at=\. .*dates=day_first .*dates=month_first"):
        files.read(path)
    for key, expected in (("dates=day_first", 1_770_804_000), ("dates=month_first", 1_793_613_600)):
        assert files.read(path, answers=answer(key)).votes[0].created_at == expected  # 11 February, 2 November
    assert files.read(path, mapping={"created_at": ""}).votes[0].created_at is None
    both = files.rows("w.csv", [BIRD | {"winner": "a", "Timestamp": date} for date in ("11/28/2026", "28/11/2026")])
    assert [error.row_number for error in files.read(both, answers=answer("dates=day_first")).errors] == [1]


@pytest.mark.parametrize("further", [{}, {"other": []}, {"version": "1.0", "info": {"by": "ann"}}])
@pytest.mark.parametrize("sizes", [(2, 1), (1, 3), (1, 1, 2)])
def test_splits_of_any_length_are_no_columns(files, sizes, further):
    rows = [{"prompt": "p", "chosen": "a", "rejected": "b"}]
    splits = {f"split{number}": rows * size for number, size in enumerate(sizes)} | further
    with pytest.raises(DataError, match=r"several lists of rows: split0, split1.*Save the one"):
        files.parse("v.json", json.dumps(splits))


def test_lists_of_other_columns_are_no_splits(files, decided_texts):
    row = {
        "prompt": "p",
        "out": [{"text": "a", "score": 2}, {"text": "b", "score": 1}],
        "notes": [{"by": "x", "at": 1}],
    }
    assert [decided_texts(vote) for vote in files.parse("v.jsonl", [row]).votes] == [("p", "a", "b")]
    columns = {"prompt": ["p", "q"], "chosen": ["a", "c"], "rejected": ["b", "d"]}
    assert len(files.parse("v.json", json.dumps(columns)).votes) == 2


@pytest.mark.parametrize("file_name", ["v.csv", "v.jsonl", "v.parquet"])
def test_the_parts_of_an_object_that_is_written_as_text_can_be_mapped(files, decided_texts, file_name):
    """OpenAI's preferences as CSV; and parts that no layout names."""
    user, wren, spoon = (
        {"role": role, "content": text}
        for role, text in (("user", "Name a bird."), ("assistant", WREN), ("assistant", SPOON))
    )
    row = {
        "input": json.dumps({"messages": [user], "tools": []}),
        "preferred_output": json.dumps([wren]),
        "non_preferred_output": json.dumps([spoon]),
    }
    other = {"q": "Name a bird.", "out": json.dumps({"x": {"said": WREN}, "y": {"said": SPOON}}), "best": "a"}
    mapping = {"prompt": "q", "first": "out.x.said", "second": "out.y.said", "choice": "best"}
    for written, how in ((row, {}), (other, mapping)):
        (vote,) = files.parse(file_name, [written], mapping=how).votes
        assert decided_texts(vote) == ("Name a bird.", WREN, SPOON)


@pytest.mark.parametrize("column", ["system", "input"])
def test_messages_in_a_column_of_one_text_are_asked_about(files, column):
    good = {"instruction": "Name a bird.", "chosen": WREN, "rejected": SPOON, column: "Be brief."}
    for text in ('[{"role": "system", "content": "Be brief."}]', '{"role": "system", "conte'):
        path = files.rows("v.jsonl", [good, good | {column: text}])
        with pytest.raises(ColumnMappingError, match=f"row 2 .*: {column} (holds|looks like).*messages.*chats=plain"):
            files.read(path)
        assert len(files.read(path, answers=answer("chats=skip")).votes) == 1
        assert text in files.read(path, answers=answer("chats=plain")).votes[1].prompt


def test_turns_within_the_messages_of_a_text_are_not_asked_about(files):
    """Of a chat that is written as text, the messages count and not the text."""
    chat = json.dumps([{"role": "user", "content": "What does this mean? User: hi Assistant: [INST]"}])
    assert len(files.parse("v.csv", [{"prompt": chat, "chosen": WREN, "rejected": SPOON}]).votes) == 1


def test_the_remedy_for_several_prompts_keeps_earlier_turns(files):
    row = {"question": "Why?", "context": "Physics.", "history": "Hello.", "chosen": "a", "rejected": "b"}
    with pytest.raises(ColumnMappingError) as caught:
        files.parse("v.csv", [row])
    assert "--map prompt=question --map input=context --map history=history for all" in caught.value.remedy
    assert '"history" for "history"' in for_page(caught.value.remedy)
