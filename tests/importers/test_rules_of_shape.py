"""What is recognised by its shape: more than two texts, other speakers, printed objects, columns of validity, ranks, tables."""

import csv
import io
import json

import pytest

from rlhf_lab.importers.__main__ import handle_request
from rlhf_lab.importers.column_mapping import ColumnMappingError

WREN, SPOON, BRICK, CARP = "A wren.", "A spoon.", "A brick.", "A carp."
BIRD = {"prompt": "Name a bird.", "response_a": WREN, "response_b": SPOON}


def ask(files, path, *, offered, match, **more):
    """The question that an import of a file asks, and the same on the page."""
    with pytest.raises(ColumnMappingError, match=match) as caught:
        files.read(path, **more)
    assert list(caught.value.answers) == offered
    for answer in offered:
        assert f"--answer {answer}" in str(caught.value)
    request = {"what": str(path), "home": str(files.folder / "home"), "project": 1, "map": more.get("mapping", {})}
    reply = handle_request(request | {"answers": list(more.get("answers", ()))})
    assert list(reply["answers"]) == offered
    assert caught.value.message in reply["error"]


def answered(*answers):
    return {"answers": frozenset(answers)}


# More than two texts


def texts_of(columns, **more):
    return {"prompt": "Name a bird.", **dict(zip(columns, (SPOON, BRICK, WREN, CARP), strict=False)), **more}


@pytest.mark.parametrize(
    ("columns", "votes"),
    [
        (("response_1", "response_2", "response_3"), ("response_3", "3", "c")),
        (("answer_a", "answer_b", "answer_c"), ("C", "answer_c", "model c")),
        (("Output 1", "Output 2", "Output 3", "Output 4"), ("output3", "C", "option c")),
    ],
)
@pytest.mark.parametrize("file_name", ["v.jsonl", "v.csv"])
def test_the_third_of_several_texts_can_win_against_each_other(files, decided_texts, columns, votes, file_name):
    for vote in votes:
        parsed = files.parse(file_name, [texts_of(columns, best="", label=vote)])
        others = [SPOON, BRICK, CARP][: len(columns) - 1]
        assert [decided_texts(vote)[1:] for vote in parsed.votes] == [(WREN, other) for other in others]


@pytest.mark.parametrize(
    "ranking",
    ["3 > 1 > 2", "response_3>response_1>response_2", ["response_3", "response_1", "response_2"],
     {"response_1": 2, "response_2": 3, "response_3": 1}, "c,a,b"],
)  # fmt: skip
@pytest.mark.parametrize("file_name", ["v.jsonl", "v.csv"])
def test_a_ranking_of_three_texts_makes_three_votes(files, decided_texts, ranking, file_name):
    cell = json.dumps(ranking) if file_name == "v.csv" and not isinstance(ranking, str) else ranking
    parsed = files.parse(file_name, [texts_of(("response_1", "response_2", "response_3"), ranking=cell)])
    decided = {decided_texts(vote)[1:] for vote in parsed.votes}
    assert (decided, parsed.errors) == ({(SPOON, BRICK), (WREN, SPOON), (WREN, BRICK)}, [])


@pytest.mark.parametrize("column", ["ranking", "ranks", "rank", "order", "choice"])
@pytest.mark.parametrize("numbers", [[3, 1, 2], "3,1,2", [2, 0, 1]])
def test_numbers_that_may_be_an_order_or_ranks_are_asked_about(files, decided_texts, column, numbers):
    """The third text is the best, then the first one; or the second, then the third. The texts: a spoon, a brick, a wren."""
    path = files.rows("v.jsonl", [texts_of(("response_1", "response_2", "response_3"), **{column: numbers})] * 2)
    ask(
        files,
        path,
        offered=["ranking=order", "ranking=ranks"],
        match=f"{column} holds .*, the best first, or the ranks",
    )
    for answer, expected in (
        ("ranking=order", {(WREN, SPOON), (WREN, BRICK), (SPOON, BRICK)}),
        ("ranking=ranks", {(BRICK, WREN), (BRICK, SPOON), (WREN, SPOON)}),
    ):
        votes = files.read(path, **answered(answer)).votes
        assert {decided_texts(vote)[1:] for vote in votes} == expected


def test_lists_of_numbers_with_one_meaning_are_not_asked_about(files, decided_texts):
    """[2, 1, 3] is the same as an order and as ranks; equal numbers are ranks; two numbers for three texts name texts."""
    columns = ("response_1", "response_2", "response_3")
    (first, *_) = files.parse("v.jsonl", [texts_of(columns, ranking=[2, 1, 3])]).votes
    assert decided_texts(first)[1:] == (BRICK, SPOON)
    equal = files.parse("w.jsonl", [texts_of(columns, ranking=[2, 1, 1]), texts_of(columns, ranking=[3, 1, 2])])
    assert [vote.choice for vote in equal.votes].count("tie") == 1
    assert decided_texts(equal.votes[3])[1:] == (BRICK, SPOON)
    best = files.parse("x.jsonl", [texts_of(columns, ranking=[3, 1])])
    assert {decided_texts(vote)[1:] for vote in best.votes} == {(WREN, SPOON), (WREN, BRICK), (SPOON, BRICK)}
    fewer = texts_of(("response_1", "response_2", "response_3", "response_4"), ranking=[3, 1, 2]) | {"response_4": None}
    path = files.rows(
        "y.jsonl", [fewer, texts_of(("response_1", "response_2", "response_3", "response_4"), ranking=[1, 2, 3, 4])]
    )
    ask(files, path, offered=["ranking=order", "ranking=ranks"], match="ranking holds")
    assert decided_texts(files.read(path, **answered("ranking=ranks")).votes[0])[1:] == (BRICK, SPOON)


def test_scores_and_names_move_with_their_texts(files, decided_texts):
    columns = ("response_1", "response_2", "response_3")
    scores = {"score_1": 2, "score_2": 0.5, "score_3": 7}
    parsed = files.parse("v.jsonl", [texts_of(columns, **scores)])
    assert {decided_texts(vote)[1:] for vote in parsed.votes} == {(SPOON, BRICK), (WREN, SPOON), (WREN, BRICK)}
    models = {"model_1": "ibis", "model_2": "jay", "model_3": "kea"}
    parsed = files.parse("v.jsonl", [texts_of(columns, **models, winner="kea")])
    assert [decided_texts(vote)[1:] for vote in parsed.votes] == [(WREN, SPOON), (WREN, BRICK)]


def test_numbers_that_may_count_from_zero_are_asked_about(files, decided_texts):
    columns = ("response_1", "response_2", "response_3")
    path = files.rows("v.jsonl", [texts_of(columns, label=number) for number in (1, 2, 1)])
    ask(files, path, offered=["options=from_zero", "options=from_one"], match="names the 3 texts by 1, 2")
    for answer, better in (("options=from_zero", BRICK), ("options=from_one", SPOON)):
        votes = files.read(path, **answered(answer)).votes
        assert (len(votes), decided_texts(votes[0])[1]) == (6, better)
    parsed = files.parse("w.jsonl", [texts_of(columns, label=number) for number in (0, 2)])
    assert [decided_texts(vote)[1] for vote in parsed.votes] == [SPOON, SPOON, WREN, WREN]


def test_rows_with_two_of_three_texts_ties_and_unknown_names(files, decided_texts):
    columns = ("response_1", "response_2", "response_3")
    rows = [texts_of(columns, label="3"), texts_of(columns, label="2") | {"response_3": None}, texts_of(columns, label="tie"),
            texts_of(columns, label="response_4"), texts_of(columns, label="3") | {"response_3": None}]  # fmt: skip
    parsed = files.parse("v.jsonl", rows)
    assert [vote.choice for vote in parsed.votes[3:]] == ["tie"] * 3
    assert decided_texts(parsed.votes[2])[1:] == (BRICK, SPOON)
    assert [error.row_number for error in parsed.errors] == [4, 5]


def test_texts_that_the_user_maps_are_the_first_of_several(files, decided_texts):
    row = {"prompt": "Name a bird.", "text_0": SPOON, "text_1": WREN, "text_2": BRICK, "best": "1"}
    mapping = {"first": "text_0", "second": "text_1", "choice": "best"}
    path = files.rows("v.jsonl", [row, row | {"best": "0"}])
    votes = files.read(path, mapping=mapping).votes
    assert [decided_texts(vote)[1] for vote in votes] == [WREN, WREN, SPOON, SPOON]


# Columns whose names hold dots


@pytest.mark.parametrize("name", ["Answer.taskAnswers", "a.b.c", "x.0"])
def test_a_part_of_a_column_with_dots_in_its_name_can_be_mapped(files, decided_texts, name):
    answers = [{"picked": {"left": False, "right": True}}, {"picked": {"left": True, "right": False}}]
    texts = {"Input.prompt": "Name a bird.", "Input.one": SPOON, "Input.two": WREN}
    path = files.rows("v.csv", [texts | {name: json.dumps([answer])} for answer in answers])
    mapping = {"prompt": "Input.prompt", "first": "Input.one", "second": "Input.two", "choice": f"{name}.0.picked"}
    parsed = files.read(path, mapping=mapping)
    assert [decided_texts(vote)[1] for vote in parsed.votes] == [WREN, SPOON]
    assert f"{name}.0.picked" in parsed.columns
    assert name not in parsed.unused_columns


def test_a_form_with_two_ticks_is_no_vote(files):
    rows = [BIRD | {"winner": {"a": True, "b": False}}, BIRD | {"winner": {"a": True, "b": True}}]
    parsed = files.parse("v.jsonl", rows)
    assert ([vote.choice for vote in parsed.votes], len(parsed.errors)) == (["first"], 1)


# Earlier turns

ROUNDS = [["Hello?", "Hi."], ["Name a bird!", None]]


@pytest.mark.parametrize("rounds", [ROUNDS, [ROUNDS[0], ["Name a bird!", ""]]])
@pytest.mark.parametrize("has_prompt", [True, False])
@pytest.mark.parametrize("file_name", ["v.jsonl", "v.csv"])
def test_an_open_round_is_the_prompt_once(files, decided_texts, rounds, has_prompt, file_name):
    cell = json.dumps(rounds) if file_name == "v.csv" else rounds
    row = ({"prompt": "Name a bird!"} if has_prompt else {}) | {"talk": cell, "chosen": WREN, "rejected": SPOON}
    (vote,) = files.parse(file_name, [row], mapping={"history": "talk"}).votes
    prompt = "\n\nHuman: Hello?\n\nAssistant: Hi.\n\nHuman: Name a bird!\n\nAssistant:"
    assert decided_texts(vote) == (prompt, WREN, SPOON)


def test_messages_that_end_with_the_question_are_no_further_question(files):
    messages = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hi."},
                {"role": "user", "content": "Name a bird!"}]  # fmt: skip
    rows = [
        {"prompt": text, "history": messages, "chosen": WREN, "rejected": SPOON} for text in ("Name a bird!", "A fish?")
    ]
    votes = files.parse("v.jsonl", rows).votes
    assert [vote.prompt.count("Human:") for vote in votes] == [2, 3]
    (error,) = files.parse(
        "w.jsonl", [rows[0], rows[0] | {"history": messages[:2]}], mapping={"history": "history", "prompt": ""}
    ).errors
    assert "history does not end with a question" in str(error)


def test_history_mapped_to_nothing_is_enough(files, decided_texts):
    row = {"question": "Name a bird!", "history": "Hello?", "chosen": WREN, "rejected": SPOON}
    with pytest.raises(ColumnMappingError, match="Several columns"):
        files.parse("v.csv", [row])
    (vote,) = files.parse("v.csv", [row], mapping={"history": ""}).votes
    assert decided_texts(vote) == ("Name a bird!", WREN, SPOON)


# Objects as programs print them

PRINTED = {
    "a call": "ChatTurn(author='me', words='Name a bird.')",
    "a list of calls": "[ChatTurn(words='Hi'), ChatTurn(words='Name a bird.')]",
    "rockets": '{:who=>"me", :words=>"Name a bird."}',
    "arrows": "Dict(who -> me, words -> Name a bird.)",
    "equals": "{who=me, words=Name a bird.}",
    "spaces": "map[who:me words:Name]",
    "assignments": "words='Name a bird.' extra={} more={}",
    "a tag": '#<Turn who="me", words="Name a bird.">',
    "Elixir": '%Turn{who: "me", words: "Name a bird."}',
}


@pytest.mark.parametrize("case", PRINTED)
@pytest.mark.parametrize("column", ["prompt", "chosen"])
def test_texts_that_look_like_printed_objects_are_asked_about(files, case, column):
    row = {"prompt": "Name a bird.", "chosen": WREN, "rejected": SPOON}
    path = files.rows("v.csv", [row | {column: PRINTED[case]}, row])
    ask(files, path, offered=["chats=plain", "chats=skip"], match=f"row 1 .*: {column} looks like")
    assert len(files.read(path, **answered("chats=skip")).votes) == 1
    vote = files.read(path, **answered("chats=plain")).votes[0]
    assert PRINTED[case] in (vote.prompt, vote.first.text, vote.second.text)


@pytest.mark.parametrize(
    "text",
    ["(Note: it is late; also: cold.)", "Use f(x) and g(y) here.", "It was [sic] so: a wren (a bird).", '{"legs": 2, "wings": 2}',
     "<p class='a' id='b'>Hi</p>", "<img src=x onerror=alert(1)>",
     "Dear Ann: I am fine.", "[link](https://a.b/c?x=1)", "f(x) = {1, 2}"],
)  # fmt: skip
def test_prose_and_lists_are_no_printed_objects(files, text):
    row = {"prompt": "Write.", "chosen": text, "rejected": SPOON}
    assert len(files.parse("v.jsonl", [row]).votes) == 1


def test_one_printed_object_among_other_answers_is_an_answer(files):
    row = {"prompt": "Write.", "chosen": WREN, "rejected": SPOON}
    assert len(files.parse("v.jsonl", [row, row, row | {"chosen": PRINTED["a call"]}]).votes) == 3


# Columns that say whether a row counts


@pytest.mark.parametrize(
    ("column", "good", "bad"),
    [("is_rejected", "False", "True"), ("_tainted", 0, 1), ("wasCancelled", False, True), ("valid_vote", 1.0, 0.0),
     ("RejectionTime", "", "Wed Nov 25 12:01:00 PST 2026"), ("excluded_at", None, "2026-11-28T10:00"), ("flagged", "no", "yes"),
     ("passed attention check", "yes", "no")],
)  # fmt: skip
@pytest.mark.parametrize("file_name", ["v.jsonl", "v.csv"])
def test_a_column_of_validity_is_asked_about_once(files, column, good, bad, file_name):
    rows = [
        BIRD | {"winner": "a", column: good},
        BIRD | {"winner": "b", column: bad},
        BIRD | {"winner": "a", column: good},
    ]
    path = files.rows(file_name, rows)
    ask(files, path, offered=["status=skip", "status=count"], match=f"row 2 .*{column} is .* 1 of 3 rows")
    parsed = files.read(path, **answered("status=skip"))
    assert ([vote.choice for vote in parsed.votes], sum(parsed.left_out.values())) == (["first", "first"], 1)
    assert len(files.read(path, **answered("status=count")).votes) == 3


@pytest.mark.parametrize(
    ("column", "values"),
    [("is_rejected", [False, False]), ("valid", [True, "1"]), ("rejected_reason", ["too long", ""]), ("created", [True, False]),
     ("ApprovalTime", ["2026-11-28T10:00:00", ""]), ("validity", ["high", "low"])],
)  # fmt: skip
def test_columns_that_call_no_row_invalid_are_not_asked_about(files, column, values):
    rows = [BIRD | {"winner": "a", column: value} for value in values]
    assert len(files.parse("v.jsonl", rows).votes) == 2


def test_a_valid_column_of_fractions_leaves_rows_out(files):
    rows = [BIRD | {"winner": "a", "valid": value} for value in (1.0, 0.0)]
    parsed = files.parse("v.jsonl", rows)
    assert (len(parsed.votes), parsed.left_out) == (1, {"valid is 0.0": 1})


# Transcripts of other speakers

TALKS = {
    "Customer and Agent": (
        "Customer: Hello.\nAgent: Hi.\nCustomer: Name a bird.",
        "Customer: A bird?\nAgent: Which?\nCustomer: Any.",
    ),
    "H and A": ("H: Hello.\n\nA: Hi.\n\nH: Name a bird.\n\nA:", "H: Name a fish.\n\nA:"),
    "names": ("Zoë: Hello.\nBo: Hi.\nZoë: Name a bird.\nBo:", "Zoë: Well?\nBo: What?\nZoë: Name it."),
    "headings": ("## Task:\nName a bird.\n## Reply:", "## Task:\nName a fish.\n## Reply:\n"),
    "bold": (
        "**Guest**: Hello.\n**Host**: Hi.\n**Guest**: Name a bird.",
        "**Guest**: So?\n**Host**: Yes?\n**Guest**: A fish.",
    ),
}


@pytest.mark.parametrize("case", TALKS)
@pytest.mark.parametrize("file_name", ["v.jsonl", "v.csv"])
def test_transcripts_of_other_speakers_can_be_divided(files, decided_texts, case, file_name):
    path = files.rows(file_name, [{"prompt": talk, "chosen": WREN, "rejected": SPOON} for talk in TALKS[case]])
    offered = ["turns=first_is_user", "turns=second_is_user", "texts=plain", "texts=skip"]
    ask(files, path, offered=offered, match="prompt looks like a transcript of")
    votes = files.read(path, **answered("turns=first_is_user")).votes
    if case == "headings":
        assert decided_texts(votes[0])[0] == "Name a bird."
    else:
        assert decided_texts(votes[0])[0] == "\n\nHuman: Hello.\n\nAssistant: Hi.\n\nHuman: Name a bird.\n\nAssistant:"
    assert [vote.prompt for vote in files.read(path, **answered("texts=plain")).votes] == list(TALKS[case])
    parsed = files.read(path, **answered("texts=skip"))
    assert (parsed.votes, parsed.left_out) == ([], {"prompt holds turns that are not divided": 2})


def test_the_user_can_be_the_second_speaker(files, decided_texts):
    talk = "Our shop.\nAgent: Hi.\nCustomer: Hello.\nAgent: What?\nCustomer: Name a bird."
    path = files.rows("v.jsonl", [{"prompt": talk, "chosen": f"Agent: {WREN}", "rejected": SPOON}])
    (vote,) = files.read(path, **answered("turns=second_is_user")).votes
    prompt = "\n\nSystem: Our shop.\n\nAssistant: Hi.\n\nHuman: Hello.\n\nAssistant: What?\n\nHuman: Name a bird.\n\nAssistant:"
    assert decided_texts(vote) == (prompt, WREN, SPOON)


def test_whole_transcripts_of_other_speakers_hold_their_prompt(files, decided_texts):
    talk = "Caller: Hello.\nDesk: Hi.\nCaller: Name a bird.\nDesk: "
    path = files.rows("v.jsonl", [{"chosen": talk + WREN, "rejected": talk + SPOON}])
    (vote,) = files.read(path, mapping={"prompt": ""}, **answered("turns=first_is_user")).votes
    prompt = "\n\nHuman: Hello.\n\nAssistant: Hi.\n\nHuman: Name a bird.\n\nAssistant:"
    assert decided_texts(vote) == (prompt, WREN, SPOON)


@pytest.mark.parametrize(
    "prompt",
    [
        "Title: A wren\nText: It flew.",
        "Ingredients:\nflour\nSteps:\nmix",
        "Note: one\nNote: two\nNote: three",
        "At 10:30\nBring: a hat",
    ],
)
def test_texts_with_headings_are_no_transcripts(files, prompt):
    assert len(files.parse("v.jsonl", [{"prompt": prompt, "chosen": WREN, "rejected": SPOON}]).votes) == 1


def test_one_dialogue_among_other_prompts_is_a_prompt(files):
    row = {"prompt": "Name a bird.", "chosen": WREN, "rejected": SPOON}
    assert len(files.parse("v.jsonl", [row, row, row | {"prompt": TALKS["names"][0]}]).votes) == 3


# Prompts that the answers repeat


@pytest.mark.parametrize("separator", ["\n", " ", "\n\n"])
def test_a_plain_prompt_at_the_beginning_of_both_answers_is_asked_about(files, decided_texts, separator):
    rows = [
        {"prompt": f"Name bird {number}.", "chosen": f"Name bird {number}.{separator}{WREN}",
         "rejected": f"Name bird {number}.{separator}{SPOON}"}
        for number in range(10)
    ]  # fmt: skip
    other = {"prompt": "Name a fish.", "chosen": CARP, "rejected": BRICK}
    path = files.rows("v.jsonl", [*rows, other])
    ask(files, path, offered=["prompts=cut", "prompts=keep"], match="begin with the prompt, in 10 of 11 rows")
    votes = files.read(path, **answered("prompts=cut")).votes
    assert decided_texts(votes[0]) == ("Name bird 0.", separator + WREN, separator + SPOON)
    assert decided_texts(votes[-1]) == ("Name a fish.", CARP, BRICK)
    assert decided_texts(files.read(path, **answered("prompts=keep")).votes[0])[1] == rows[0]["chosen"]
    assert len(files.parse("w.jsonl", [rows[0], other]).votes) == 2
    assert len(files.parse("w.jsonl", [{"prompt": "Sun", "chosen": "Sunday", "rejected": "Sunken"}]).votes) == 1


# Names of both texts, and ranks


@pytest.mark.parametrize("name", ["a", "x7", "2"])
def test_an_id_of_both_texts_is_no_vote(files, name):
    options = [{"id": name, "text": WREN}, {"id": name, "text": SPOON}]
    rows = [{"text": "p", "options": [{"id": "u", "text": WREN}, {"id": "v", "text": SPOON}], "accept": ["v"]},
            {"text": "p", "options": options, "accept": [name]}]  # fmt: skip
    parsed = files.parse("v.jsonl", rows)
    assert [vote.choice for vote in parsed.votes] == ["second"]
    assert "both texts have this name" in str(parsed.errors[0])


@pytest.mark.parametrize(
    ("names", "values"),
    [(("rank_a", "rank_b"), [(1, 2)]), (("PlaceRank1", "PlaceRank2"), [(1, 4)]),
     (("score_a", "score_b"), [(1, 2), (2, 1), (1, 2), (1, 2)])],
)  # fmt: skip
def test_scores_that_may_be_ranks_are_asked_about(files, decided_texts, names, values):
    path = files.rows("v.jsonl", [BIRD | dict(zip(names, pair, strict=True)) for pair in values])
    mapping = dict(zip(("score_first", "score_second"), names, strict=True))
    ask(files, path, offered=["scores=high", "scores=low"], match="may be scores, or ranks", mapping=mapping)
    assert decided_texts(files.read(path, mapping=mapping, **answered("scores=low")).votes[0])[1] == WREN
    assert decided_texts(files.read(path, mapping=mapping, **answered("scores=high")).votes[0])[1] == SPOON


def test_lists_of_ranks_are_asked_about(files):
    rows = [
        {"prompt": "p", "generations": [WREN, SPOON, BRICK], "ratings": ranks} for ranks in ([1, 2, 3], [3, 1, 2]) * 2
    ]
    path = files.rows("v.jsonl", rows)
    ask(files, path, offered=["scores=high", "scores=low"], match="may be scores, or ranks")
    assert len(files.read(path, **answered("scores=low")).votes) == 12


def test_other_scores_are_no_ranks(files):
    rows = [BIRD | {"score_a": a, "score_b": b} for a, b in ((1, 2), (3, 1), (2, 2), (1, 5))]
    assert len(files.parse("v.jsonl", rows).votes) == 4


# Tables


def padded_table(rows, *, is_framed):
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [" | ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
    rule = "-+-".join("-" * width for width in widths)
    if is_framed:
        rule = f"+-{rule}-+"
        return "\n".join([rule, f"| {lines[0]} |", rule, *(f"| {line} |" for line in lines[1:]), rule, ""])
    return "\n".join(
        [f" {lines[0]} ", f"-{rule}-", *(f" {line} " for line in lines[1:]), f"({len(rows) - 1} rows)", "", ""]
    )


@pytest.mark.parametrize("is_framed", [True, False])
def test_the_padding_of_a_printed_table_is_no_text(files, decided_texts, is_framed):
    rows = [
        ("prompt", "chosen", "rejected"),
        ("Name a bird.", 'A "wren".', SPOON),
        ("Fish?", '"Carp"', "A long brick."),
    ]
    parsed = files.parse("v.csv", padded_table(rows, is_framed=is_framed))
    assert [decided_texts(vote) for vote in parsed.votes] == rows[1:]
    assert parsed.errors == []


def test_padding_between_bars_without_a_table_is_text(files, decided_texts):
    text = io.StringIO()
    csv.writer(text, delimiter="|").writerows([("prompt", "chosen", "rejected"), ("p", " a ", "b|c")])
    (vote,) = files.parse("v.csv", text.getvalue()).votes
    assert decided_texts(vote) == ("p", " a ", "b|c")
