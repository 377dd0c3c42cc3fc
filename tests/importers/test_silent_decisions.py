"""What an importer must not decide by itself: which text a vote names, which rows count, who voted, what a number means."""

import json
import unicodedata

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlhf_lab.errors import DataError
from rlhf_lab.importers.cell_parsers import parse_choice, parse_choice_words, parse_timestamp
from rlhf_lab.importers.column_mapping import MEANINGS, ColumnMappingError, parse_map
from rlhf_lab.importers.remedies import for_page, map_option
from rlhf_lab.importers.summary import build_preview, format_preview, format_result
from rlhf_lab.importers.writer import ImportTarget, save_import

BIRD = {"prompt": "Name a bird.", "response_a": "A wren.", "response_b": "A spoon."}
TEXTS = {"good": "A wren.", "bad": "A spoon."}
ids = st.lists(
    st.sampled_from(["A", "B", "1", "2", "left", "gpt", "x-7", "second"]), min_size=2, max_size=2, unique=True
)
function_fixtures = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@function_fixtures
@given(ids, st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=6))
def test_a_vote_that_is_an_options_id_means_that_option_in_any_order(files, decided_texts, names, rows):
    """Also if the id is a word with another meaning, such as "A" for the option that stands second."""
    written, expected = [], []
    for number, (is_swapped, wins_good) in enumerate(rows):
        options = [{"id": name, "text": text} for name, text in zip(names, TEXTS.values(), strict=True)]
        order = options[::-1] if is_swapped else options
        winner = names[0] if wins_good else names[1]
        written.append({"text": f"Question {number}?", "options": order, "accept": [winner], "answer": "accept"})
        better = ("A wren.", "A spoon.") if wins_good else ("A spoon.", "A wren.")
        expected.append((f"Question {number}?", *better))
    path = files.rows("v.jsonl", written)
    assert [decided_texts(vote) for vote in files.read(path).votes] == expected
    mapping = parse_map(["prompt=text", "first=options.0.text", "second=options.1.text", "choice=accept.0"])
    assert [decided_texts(vote) for vote in files.read(path, mapping=mapping).votes] == expected


@pytest.mark.parametrize(
    "columns", [("model_a", "model_b"), ("Model A", "Model B"), ("model_1", "model_2"), ("id_left", "id_right")]
)
@function_fixtures
@given(ids, st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=6))
def test_a_winner_that_is_the_name_of_a_model_means_its_text(files, decided_texts, columns, names, rows):
    written, expected = [], []
    for is_swapped, wins_good in rows:
        sides = list(zip(names, TEXTS.values(), strict=True))[:: -1 if is_swapped else 1]
        winner = names[0] if wins_good else names[1]
        models = {column: name for column, (name, _) in zip(columns, sides, strict=True)}
        written.append({**BIRD, "response_a": sides[0][1], "response_b": sides[1][1], **models, "winner": winner})
        expected.append((BIRD["prompt"], *(("A wren.", "A spoon.") if wins_good else ("A spoon.", "A wren."))))
    for name in ("v.jsonl", "v.csv"):
        assert [decided_texts(vote) for vote in files.parse(name, written).votes] == expected


def test_words_keep_their_meaning_beside_names_of_models(files):
    rows = [
        BIRD | {"model_a": "x1", "model_b": "x2", "winner": word} for word in ("model_a", "tie", "x2", "response_b")
    ]
    parsed = files.parse("v.jsonl", [*rows, rows[0] | {"model_b": "x1", "winner": "x1"}])
    assert [vote.choice for vote in parsed.votes] == ["first", "tie", "second", "second"]
    (error,) = parsed.errors  # both texts are of x1
    assert error.message.startswith("winner is 'x1'")


def test_names_of_models_follow_texts_that_are_mapped_the_other_way(files, decided_texts):
    row = BIRD | {"model_a": "x1", "model_b": "x2", "winner": "x1"}
    parsed = files.parse("v.jsonl", [row], mapping={"first": "response_b", "second": "response_a"})
    assert [decided_texts(vote)[1] for vote in parsed.votes] == ["A wren."]


def test_a_third_option_and_several_votes_are_errors(files):
    options = [{"id": name, "text": name} for name in "abc"]
    rows = [{"text": "p", "options": options[:2], "accept": ["a"]}, {"text": "p", "options": options, "accept": ["c"]},
            {"text": "p", "options": options[:2], "accept": []}]  # fmt: skip
    parsed = files.parse("v.jsonl", rows)
    assert [(error.row_number, error.message.partition(".")[0]) for error in parsed.errors] == [
        (2, "options holds 3 texts, where two are compared"), (3, "accept is missing"),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="several votes"):
        parse_choice(["a", "tie"], {})


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [("response_b", "response_a", "a"), ("response_b", "response_a", "model_b"), ("output_2", "output_1", "2"),
     ("right_text", "left_text", "left"), ("answerB", "answerA", "1"), ("reply_b", "baseline", "b")],
)  # fmt: skip
def test_words_of_votes_that_contradict_the_columns_are_asked_about(files, decided_texts, first, second, word):
    path = files.rows("v.jsonl", [{"prompt": "p", first: "one", second: "two", "vote": word}])
    mapping = {"first": first, "second": second}
    with pytest.raises(ColumnMappingError, match=f'say "{word}".*--choices="{word}=') as caught:
        files.read(path, mapping=mapping)
    assert all(
        f'"{word}={choice}" for {name}' in str(caught.value) for choice, name in (("first", first), ("second", second))
    )
    (vote,) = files.read(path, mapping=mapping, choices=parse_choice_words(f"{word}=second")).votes
    assert decided_texts(vote) == ("p", "two", "one")


def test_a_vote_with_the_name_of_a_column_needs_no_question(files, decided_texts):
    rows = [BIRD | {"winner": word} for word in ("response_a", "response_b")]
    parsed = files.parse("v.jsonl", rows, mapping={"first": "response_b", "second": "response_a"})
    assert [decided_texts(vote)[1] for vote in parsed.votes] == ["A wren.", "A spoon."]


GOOD = "Name a bird.,A wren.,A spoon.\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"prompt,chosen,rejected\n{GOOD}prompt,chosen,rejected\n{GOOD}", "repeats the header"),
        (f"prompt,chosen,rejected\n{GOOD}Prompt,CHOSEN,rejected\n{GOOD}", "repeats the header"),
        (f"prompt,chosen,rejected\n{GOOD}\ufeffprompt,chosen,rejected\n{GOOD}", "repeats the header"),
        (
            f"prompt\tchosen\trejected\n:---\t---\t---:\n{GOOD.replace(',', chr(9))}{GOOD.replace(',', chr(9))}",
            "a line of a table",
        ),
        (
            "| prompt | chosen | rejected |\n|---|:---:|---|\n" + 2 * "| Name a bird. | A wren. | A spoon. |\n",
            "a line of a table",
        ),
    ],
)
def test_headers_and_lines_among_the_rows_are_left_out_and_counted(files, decided_texts, text, reason):
    parsed = files.parse("v.csv", text)
    assert [decided_texts(vote) for vote in parsed.votes] == [("Name a bird.", "A wren.", "A spoon.")] * 2
    assert (parsed.left_out, parsed.errors, parsed.row_count) == ({reason: 1}, [], 3)


@pytest.mark.parametrize(
    ("header", "other"),
    [
        ("prompt,chosen,rejected", "prompt,rejected,chosen"),
        ("prompt,chosen,rejected", "prompt,rejected_response,chosen_response"),
        ("prompt,chosen,rejected,id", "prompt,rejected,chosen,uid"),
        ("prompt,chosen,rejected,id", "prompt,chosen,rejected,uid"),
        ("prompt,response_a,response_b,winner", "question,response_b,response_a,vote"),
    ],
)
def test_a_header_of_other_columns_or_in_another_order_ends_the_file(files, header, other):
    rest = {"id": ",1", "winner": ",response_a"}.get(header.rpartition(",")[2], "")
    good = GOOD.strip() + rest
    parsed = files.parse("v.csv", f"{header}\n{good}\n{other}\nName a fish.,A brick.,A carp.{rest}\n")
    assert len(parsed.votes) == 1
    assert [error.row_number for error in parsed.errors] == [0]
    assert "another header" in parsed.errors[0].message


def test_votes_that_name_columns_are_no_header(files):
    rows = "prompt,first,second,annotator1,annotator2,annotator3\nName a bird.,A wren.,A spoon.,first,second,first\n"
    assert len(files.parse("v.csv", rows).votes) == 3
    rows = "response_a,response_b,winner,loser\nA wren.,A spoon.,response_a,response_b\n"
    parsed = files.parse("v.csv", "prompt," + rows.replace("\nA wren", "\nName a bird.,A wren"))
    assert (len(parsed.votes), parsed.errors) == (1, [])


@pytest.mark.parametrize("column", ["AssignmentStatus", "ASSIGNMENT:status"])
@pytest.mark.parametrize(
    ("status", "counts"), [("Approved", True), ("SUBMITTED", True), ("Rejected", False), ("EXPIRED", False)]
)
def test_rejected_work_is_left_out_and_counted(db, project, files, column, status, counts):
    rows = [BIRD | {"winner": "a", column: "Approved"}, BIRD | {"winner": "b", column: status}]
    parsed = files.parse("v.csv", rows)
    assert len(parsed.votes) == 1 + counts
    left_out = "" if counts else f"Left out, because they hold no vote that counts: 1 × {column} is {status}."
    preview = build_preview(parsed)
    assert preview["left_out"] == left_out
    assert left_out in format_preview(preview)
    assert left_out in format_result(save_import(db, parsed, ImportTarget(project.id)), parsed)


def test_discarded_responses_are_counted(files):
    responses = [
        {"user_id": f"u{status}", "value": "response_a", "status": status}
        for status in ("submitted", "discarded", "draft")
    ]
    parsed = files.parse("v.json", [BIRD | {"preference": responses}])
    assert [vote.annotator for vote in parsed.votes] == ["usubmitted"]
    assert parsed.left_out == {"a response is discarded": 1, "a response is draft": 1}


@pytest.mark.parametrize("file_name", ["v.jsonl", "v.csv"])
def test_one_name_in_several_spellings_is_one_annotator(files, file_name):
    names = [
        "Ann",
        "Ann ",
        " Ann",
        unicodedata.normalize("NFC", "Zoë"),
        unicodedata.normalize("NFD", "Zoë"),
        "Zoë\u00a0",
    ]
    parsed = files.parse(file_name, [BIRD | {"winner": "a", "annotator": name} for name in names])
    assert {vote.annotator for vote in parsed.votes} == {"Ann", "Zoë"}
    assert set(parsed.same_names) == {"Ann", "Zoë"}
    assert "Taken as one annotator each: ' Ann'" in build_preview(parsed)["doubts"]
    numbers = files.parse("w.jsonl", [BIRD | {"winner": "a", "annotator": name} for name in (1, 1.0, "1", 2)])
    assert [vote.annotator for vote in numbers.votes] == ["1", "1", "1", "2"]
    assert build_preview(files.parse("x.jsonl", [BIRD | {"winner": "a", "annotator": "Ann"}]))["doubts"] == ""


@pytest.mark.parametrize(
    ("scores", "is_asked"),
    [([("1.200", "900")], True), ([("1.200", "1.200.000")], True), ([("900", "1.200"), ("3", "4")], True),
     ([("1.200", "0.900")], False), ([("1.2", "900")], False), ([("1.200", "1.300")], False), ([("1200", "900")], False)],
)  # fmt: skip
@pytest.mark.parametrize("delimiter", [";", ","])
def test_points_that_may_group_digits_are_asked_about(files, scores, is_asked, delimiter):
    lines = [delimiter.join(("prompt", "response_a", "response_b", "score_a", "score_b"))]
    lines += [delimiter.join((f"p{number}", "x", "y", *pair)) for number, pair in enumerate(scores)]
    path = files.raw("v.csv", "\n".join(lines))
    if not is_asked:
        assert len(files.read(path).votes) == 1
        return
    with pytest.raises(ColumnMappingError, match="--answer numbers=thousands"):
        files.read(path)
    grouped = files.read(path, answers=frozenset({"numbers=thousands"})).votes[0].choice
    a, b = (int(text.replace(".", "")) for text in scores[0])
    assert grouped == ("first" if a > b else "second")
    if scores[0] == ("1.200", "900"):
        assert files.read(path, answers=frozenset({"numbers=decimal"})).votes[0].choice == "second"


@pytest.mark.parametrize(
    "prompt",
    ["<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "[INST] Hi [/INST]", "<start_of_turn>user\nHi<end_of_turn>",
     "### Instruction:\nHi\n\n### Response:", "Hi<extra_id_1>Assistant", "User: Hi.\nAssistant: Hello.\nUser: A bird?",
     "\n\nHuman: Hi.\n\nAssistant: Hello.\n\nHuman: A bird?", "Human:Hi\n\nAssistant:"],
)  # fmt: skip
@pytest.mark.parametrize("file_name", ["v.jsonl", "v.csv"])
def test_turns_inside_a_prompt_are_asked_about(files, prompt, file_name):
    path = files.rows(file_name, [{"prompt": prompt, "chosen": "A wren.", "rejected": "A spoon."}])
    with pytest.raises(ColumnMappingError, match=r"prompt (holds|looks like).*--answer texts=plain"):
        files.read(path)
    (vote,) = files.read(path, answers=frozenset({"texts=plain"})).votes
    assert prompt.strip() in vote.prompt


@pytest.mark.parametrize("prompt", ["What is [INST?", "a <| b", "User: none", "The AI: a story", "### Instructions"])
def test_other_prompts_are_not_asked_about(files, prompt):
    assert len(files.parse("v.jsonl", [{"prompt": prompt, "chosen": "A wren.", "rejected": "A spoon."}]).votes) == 1


@pytest.mark.parametrize("token", ["<|end|>", "<|im_end|>", "[/INST]", "### Response:"])
def test_an_answer_that_begins_with_a_template_is_asked_about_and_a_leftover_is_not(files, token):
    row = {"prompt": "A bird?", "rejected": "A spoon."}
    votes = files.parse(
        "v.jsonl", [row | {"chosen": f"A wren.{token}"}, row | {"chosen": f"A wren.\n{token} More."}]
    ).votes
    assert all(token in vote.first.text + vote.second.text for vote in votes)
    for start in (" ", "<s>", "<bos>\n", "<s> <s>"):
        path = files.rows("v.jsonl", [row | {"chosen": f"{start}{token}A wren."}])
        with pytest.raises(ColumnMappingError, match=r"chosen holds .*--answer texts=plain"):
            files.read(path)
    assert len(files.parse("v.jsonl", [row | {"chosen": f"<s>A wren.{token}"}]).votes) == 1


LISTS = {"prompt": ["p", "q"], "chosen": ["a", "b"], "rejected": ["c", "d"]}


def test_one_row_of_lists_in_json_lines_is_asked_about(files, decided_texts):
    path = files.raw("v.jsonl", json.dumps(LISTS))
    with pytest.raises(ColumnMappingError, match=r"--answer file=row .* --answer file=columns"):
        files.read(path)
    votes = files.read(path, answers=frozenset({"file=columns"})).votes
    assert [decided_texts(vote) for vote in votes] == [("p", "a", "c"), ("q", "b", "d")]
    assert len(files.read(path, answers=frozenset({"file=row"})).votes) == 1  # turns of one conversation
    assert len(files.parse("v.json", json.dumps(LISTS)).votes) == 2


def test_splits_of_equal_length_are_not_columns(files):
    rows = [{"prompt": "p", "chosen": "a", "rejected": "b"}]
    with pytest.raises(DataError, match=r"several lists of rows: train, test\. Save the one"):
        files.parse("v.json", json.dumps({"train": rows, "test": rows}))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("v.csv", "<!DOCTYPE html>\n<html><body>404</body></html>", "is a web page"),
     ("v.csv", " <html lang='en'>", "is a web page"),
     ("v.parquet", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "is a pointer of Git LFS"),
     ("v.csv", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "is a pointer of Git LFS")],
)  # fmt: skip
def test_files_that_are_no_data_have_sentences_of_their_own(files, name, content, message):
    with pytest.raises(DataError, match=message):
        files.parse(name, content)


def test_several_texts_on_each_side_are_compared_as_the_user_says(files, decided_texts):
    row = {"prompt": "p", "chosen": ["a", "b"], "rejected": ["c", "d"]}
    path = files.rows("v.jsonl", [row, row | {"rejected": ["c"]}])
    with pytest.raises(ColumnMappingError, match=r"lists=all .* lists=paired"):
        files.read(path)
    parsed = files.read(path, answers=frozenset({"lists=all"}))
    assert [decided_texts(vote)[1:] for vote in parsed.votes] == [
        ("a", "c"), ("a", "d"), ("b", "c"), ("b", "d"), ("a", "c"), ("b", "c"),
    ]  # fmt: skip
    parsed = files.read(path, answers=frozenset({"lists=paired"}))
    assert [decided_texts(vote)[1:] for vote in parsed.votes] == [("a", "c"), ("b", "d")]
    assert "chosen has 2 texts and rejected has 1" in parsed.errors[0].message


@pytest.mark.parametrize(
    ("text", "expected"),
    [("A=B=tie", {"A=B": "tie"}), ("yes, rather=first,no=second", {"yes, rather": "first", "no": "second"}),
     ("=>=first, <= = second", {"=>": "first", "<=": "second"}), ("a=first=second", {"a=first": "second"}),
     ("1.0=first,2=second", {"1": "first", "2": "second"})],
)  # fmt: skip
def test_a_word_of_a_vote_may_hold_an_equals_sign_and_commas(text, expected):
    assert parse_choice_words(text) == expected


@pytest.mark.parametrize("text", ["A=B", "a=first,b", "a=first,a=second", "a", "a=first,,"])
def test_other_meanings_of_words_are_refused(text):
    with pytest.raises(ValueError, match=r"not WORD=CHOICE|two meanings"):
        parse_choice_words(text)


def test_a_time_of_google_forms_is_read_and_another_can_be_left_out(files):
    """2026-11-28 19:12:49 UTC is 1,795,893,169 s after 1970."""
    for text in (
        "2026/11/28 8:12:49 PM GMT+1",
        "2026/11/28 7:12:49 PM GMT",
        "2026/11/28 19:12:49",
        "2026/11/28 12:12:49 PM GMT-7",
    ):
        assert parse_timestamp(text) == 1_795_893_169
    path = files.rows("v.csv", [{"Timestamp": "28 November 2026"} | BIRD | {"winner": "a"}])
    (error,) = files.read(path).errors
    assert error.message.endswith("or leave the column out: --map created_at=.")
    assert len(files.read(path, mapping={"created_at": ""}).votes) == 1


@pytest.mark.parametrize("column", ["answer", "my answer", "it's", "a,b", "a=b", "x.0.y", 'say "hi"', ""])
def test_an_option_with_any_name_is_quoted_for_a_shell_and_worded_for_the_page(column):
    import shlex

    option = map_option("chosen", column)
    assert shlex.split(option) == ["--map", f"chosen={column}"]
    shown = f'"{column}"' if column else '"no column"'
    assert (
        for_page(f"Say which: {option}, or {option}.")
        == f'Say which: choose {shown} for "chosen", or choose {shown} for "chosen".'
    )


def test_no_remedy_of_the_page_names_an_option_of_the_command_line(files):
    questions = [
        {"a b": "x", "c": "y"}, BIRD | {"my vote": "a"}, BIRD | {"label": 1}, {"topic x": "q", "chosen": "a", "rejected": "b"},
        {"chosen": "a x", "rejected": "a y"}, BIRD | {"chosen": "a", "rejected": "b", "winner": "a"},
        {"prompt": "p", "chosen": "a", "rejected": "b", "note": "tie"},
        {"prompt": "p", "question": "q", "chosen": "a", "rejected": "b"},
        BIRD | {"winner": "a", "score_a": "1.200", "score_b": "900"},
    ]  # fmt: skip
    for row in questions:
        with pytest.raises(ColumnMappingError) as caught:
            files.parse("v.csv", [row])
        assert "--" in str(caught.value)
        assert "--" not in for_page(f"{caught.value.message} {caught.value.remedy}")
    bad_vote = files.parse("v.jsonl", [{"prompt": "p", "chosen": "a", "rejected": "b", "label": "harmless"}]).errors[0]
    assert "--" not in for_page(str(bad_vote))


def test_remedies_of_the_hub_name_the_fields_of_the_page():
    text = "Check the name, the split (--split) and the network. Take a part of them, as in --split train[:1000]"
    assert for_page(text) == (
        'Check the name, the fields "split" and "configuration" and the network. Take a part of them, as in train[:1000] in the '
        'field "split"'
    )


def test_every_meaning_can_be_mapped_to_a_column_with_any_name():
    for meaning in MEANINGS:
        assert parse_map([f"{meaning}=my column"]) == {meaning: "my column"}


PERSON = {"user_id": "u", "value": "b"}
A_WINS = BIRD | {"winner": "a"}
CHOSEN = {"prompt": "Name a bird.", "chosen": "A wren.", "rejected": "A spoon."}


@pytest.mark.parametrize(
    "row",
    [
        A_WINS,
        CHOSEN,
        BIRD | {"score_a": 2, "score_b": 1},
        BIRD | {"winner_model_a": 1, "winner_model_b": 0},
        BIRD | {"rater1": "a", "rater2": "a"},
        {"prompt": "Name a bird.", "responses": ["A wren.", "A spoon."], "scores": [2, 1]},
        {"prompt": "Name a bird.", "out": [{"text": "A wren.", "score": 2}, {"text": "A spoon.", "score": 1}]},
        {"text": "Name a bird.", "options": [{"id": 1, "text": "A wren."}, {"id": 2, "text": "A spoon."}], "accept": [1]},
    ],
)  # fmt: skip
@pytest.mark.parametrize("side", [{"selected": "right"}, [PERSON], [PERSON | {"value": "nice"}, PERSON]])
def test_a_side_column_is_no_vote_beside_one(files, decided_texts, row, side):
    parsed = files.parse("v.jsonl", [row | {"ui": side}] * 3)
    assert {decided_texts(vote) for vote in parsed.votes} == {("Name a bird.", "A wren.", "A spoon.")}
    assert (parsed.errors, "ui" in parsed.unused_columns) == ([], True)


@pytest.mark.parametrize("side", [{"selected": "right"}, [PERSON]])
def test_a_side_column_is_the_vote_if_nothing_else_says_one_or_the_user_does(files, side):
    row = BIRD | {"ui": side, "winner": None}
    assert [vote.choice for vote in files.parse("v.jsonl", [row]).votes] == ["second"]
    parsed = files.parse("v.jsonl", [row | {"winner": "a"}], mapping={"choice": "ui"})
    assert ([vote.choice for vote in parsed.votes], parsed.unused_columns) == (["second"], ("winner",))
    with pytest.raises(ColumnMappingError, match="--map choice=label or --map choice=winner"):
        files.parse("v.jsonl", [BIRD | {"winner": "a", "label": side}])
    with pytest.raises(ColumnMappingError, match="--map choice=ui or --map choice=other"):
        files.parse("v.jsonl", [BIRD | {"ui": side, "other": side}])


LONG_IDS = ["1234567890123456781", "1234567890123456782"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (LONG_IDS, set(LONG_IDS)),
        (list(map(int, LONG_IDS)), set(LONG_IDS)),
        ([f"{name}.0" for name in LONG_IDS], set(LONG_IDS)),
        (["1.10", "1.1"], {"1.10", "1.1"}),
        (["007", "7"], {"007", "7"}),
        (["7", 7, 7.0, "7.00", "+7"], {"7"}),
        ([2**60, float(2**60)], {str(2**60), str(float(2**60))}),
        ([2**53 + 2, float(2**53 + 2)], {str(2**53 + 2), f"{2**53 + 2}.0"}),
    ],
)
def test_names_are_the_same_number_only_if_no_digit_is_lost(files, names, expected):
    parsed = files.parse("v.jsonl", [BIRD | {"winner": "a", "annotator": name} for name in names])
    assert {vote.annotator for vote in parsed.votes} == expected


@pytest.mark.parametrize("names", [LONG_IDS, list(map(int, LONG_IDS)), ["1.1", "1.10"], ["v1.10", "v1.1"]])
def test_a_vote_means_the_option_with_exactly_its_id(files, decided_texts, names):
    options = [{"id": name, "text": text} for name, text in zip(names, TEXTS.values(), strict=True)]
    rows = [{"text": "Name a bird.", "options": options, "accept": [name]} for name in names]
    models = [BIRD | {"model_a": names[0], "model_b": names[1], "winner": name} for name in names]
    for written in (rows, models):
        votes = files.parse("v.jsonl", written).votes
        assert [decided_texts(vote)[1] for vote in votes] == list(TEXTS.values())


@pytest.mark.parametrize("word", ["0.50", "0.5", "00.500", 0.5])
def test_equal_numbers_are_the_same_vote(files, word):
    choices = parse_choice_words("0.50=tie,1.0=first")
    parsed = files.parse("v.jsonl", [BIRD | {"winner": word}, BIRD | {"winner": "01"}], choices=choices)
    assert [vote.choice for vote in parsed.votes] == ["tie", "first"]


REVERSED = {"first": "response_b", "second": "response_a"}


@pytest.mark.parametrize(
    "bound",
    [
        {"score_a": 2, "score_b": 1},
        {"rating_a": "2", "rating_b": "1"},
        {"winner_model_a": 1, "winner_model_b": 0},
        {"winner_a": True, "winner_b": False, "tie": False},
    ],
)
@pytest.mark.parametrize("names", [("response_a", "response_b"), ("responseA", "responseB"), ("textb1", "textb2")])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_what_belongs_to_a_side_follows_the_text_of_that_side(files, decided_texts, bound, names, is_reversed):
    row = {"prompt": "Name a bird.", **dict(zip(names, TEXTS.values(), strict=True)), **bound}
    mapping = dict(zip(("first", "second"), names[::-1] if is_reversed else names, strict=True))
    (vote,) = files.parse("v.jsonl", [row], mapping=mapping).votes
    assert decided_texts(vote) == ("Name a bird.", "A wren.", "A spoon.")
    assert vote.first.text == ("A spoon." if is_reversed else "A wren.")


def test_what_the_user_maps_stays_and_the_numbers_of_a_layout_are_asked_about(files, decided_texts):
    scores = {"score_first": "score_a", "score_second": "score_b"}
    (vote,) = files.parse("v.jsonl", [BIRD | {"score_a": 2, "score_b": 1}], mapping=REVERSED | scores).votes
    assert decided_texts(vote)[1] == "A spoon."
    row = {"history": "Name a bird.", "human_ref_A": "A wren.", "human_ref_B": "A spoon.", "labels": 1}
    with pytest.raises(ColumnMappingError, match="--choices="):  # with "=", or argparse reads "-1=first" as an option
        files.parse("v.jsonl", [row], mapping={"first": "human_ref_B", "second": "human_ref_A"})
    joined = {"prompt": "p", "responsea": "A wren.", "responseb": "A spoon.", "winner": "a"}
    with pytest.raises(ColumnMappingError, match='The votes say "a"'):
        files.parse("v.jsonl", [joined], mapping={"first": "responseb", "second": "responsea"})


def test_messages_have_no_backslash_no_two_full_stops_and_no_type_of_python(files):
    assert "\\" not in for_page('Say which: --choices="1=first", or --choices.')
    with pytest.raises(DataError) as caught:
        files.parse("v.jsonl", "nonsense\n")
    assert not str(caught.value).endswith("..")
    chat = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": None}]
    (error,) = files.parse("v.jsonl", [{"prompt": "Hi.", "chosen": chat, "rejected": "No."}]).errors
    assert "whose content is null, not a text" in error.message


@pytest.mark.parametrize("file_name", ["v.jsonl", "v.csv", "v.parquet"])
@pytest.mark.parametrize(
    ("chosen", "rejected", "prompt"),
    [("[1]", "[]", "A list?"), ('["a"].pop()', '["b", c]', "A list?"), ("b, a", "a, b", '["b", "a"]'), ("b, a", "a, b", '["b"]')],
)  # fmt: skip
def test_a_text_that_looks_like_a_list_stays_a_text(files, decided_texts, file_name, chosen, rejected, prompt):
    row = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
    assert [decided_texts(vote) for vote in files.parse(file_name, [row]).votes] == [(prompt, chosen, rejected)]


@pytest.mark.parametrize("file_name", ["v.jsonl", "v.csv"])
@pytest.mark.parametrize(
    ("chosen", "rejected", "texts"),
    [('["wren"]', '["spoon"]', ("wren", "spoon")), ("['a']", "none", ("a", "none")), ("none", '["a"]', ("none", "a"))],
)  # fmt: skip
def test_a_list_in_one_cell_is_asked_about_whatever_others_hold(
    files, decided_texts, file_name, chosen, rejected, texts
):
    rows = [{"prompt": "A?", "chosen": chosen, "rejected": rejected}, {"prompt": "B?", "chosen": "x", "rejected": "y"}]
    path = files.rows(file_name, rows)
    with pytest.raises(ColumnMappingError, match=r"lists=all .*lists=paired .*texts=plain"):
        files.read(path)
    expected = {"texts=plain": (chosen, rejected), "lists=all": texts, "lists=paired": texts}
    for answer, sides in expected.items():
        votes = files.read(path, answers=frozenset({answer})).votes
        assert [decided_texts(vote) for vote in votes] == [("A?", *sides), ("B?", "x", "y")]


@pytest.mark.parametrize("cell", ['["a", "b"]', '["a", "b', "['it"])
def test_a_list_beside_a_vote_or_without_its_end_is_asked_about(files, cell):
    row = {"prompt": "A?", "response_a": cell, "response_b": "y", "winner": "a"}
    with pytest.raises(ColumnMappingError, match=r"response_a .*list of texts.*texts=plain .*texts=skip"):
        files.parse("v.csv", [row])
    skipped = files.parse("v.csv", [row, row | {"response_a": "x"}], answers=frozenset({"texts=skip"}))
    assert skipped.left_out == {"response_a holds a list or an object": 1}
    assert [vote.first.text for vote in skipped.votes] == ["x"]


def test_a_list_without_its_end_is_no_text_of_a_list(files):
    whole = {"prompt": "A?", "chosen": '["a", "b"]', "rejected": '["c", "d"]'}
    with pytest.raises(ColumnMappingError, match=r"row 2 .*: chosen begins as a list of texts that does not end"):
        files.parse("v.csv", [whole, whole | {"chosen": '["x", "fo'}], answers=frozenset({"lists=all"}))


@pytest.mark.parametrize("file_name", ["v.jsonl", "v.csv"])
def test_texts_that_look_like_lists_of_several_texts_are_asked_about(files, decided_texts, file_name):
    row = {"prompt": "p", "chosen": '["a", "b"]', "rejected": '["c", "d"]'}
    path = files.rows(file_name, [row])
    with pytest.raises(ColumnMappingError, match=r"lists=all .*lists=paired .*texts=plain"):
        files.read(path)
    plain = files.read(path, answers=frozenset({"texts=plain"})).votes
    assert [decided_texts(vote) for vote in plain] == [tuple(row.values())]
    paired = files.read(path, answers=frozenset({"lists=paired"})).votes
    assert [decided_texts(vote) for vote in paired] == [("p", "a", "c"), ("p", "b", "d")]
