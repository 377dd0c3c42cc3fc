"""All documented file and row formats give the same votes."""

import csv
import json

import pytest

from rlhf_lab.common.chat_format import chat_of_prompt, prompt_of_chat
from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.errors import DataError
from rlhf_lab.importers.cell_parsers import parse_choice_words
from rlhf_lab.importers.column_mapping import parse_map

PLAIN = [
    {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."},
    {"prompt": 'Say "hi",\nplease', "chosen": "hi\t1;2", "rejected": "no | ä 👩‍👩‍👧"},
]
SHARED = {"prompt": ""}  # the person says that the shared beginning is the prompt
EXPECTED = [tuple(row.values()) for row in PLAIN]


@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.parquet", "a.jsonl.gz", "a.csv.gz", "a.json.gz", "a.ndjson"]
)
def test_the_same_rows_in_every_format(files, name, decided_texts):
    parsed = files.parse(name, PLAIN)
    assert [decided_texts(item) for item in parsed.votes] == EXPECTED
    assert (parsed.row_count, parsed.errors, parsed.unused_columns) == (2, [], ())


def test_json_lines_named_json_and_rows_under_a_key(files, decided_texts):
    lines = "\n".join(json.dumps(row) for row in PLAIN)
    assert [decided_texts(item) for item in files.parse("b.json", lines).votes] == EXPECTED
    nested = json.dumps({"version": 1, "data": PLAIN})
    assert [decided_texts(item) for item in files.parse("c.json", nested).votes] == EXPECTED


@pytest.mark.parametrize(
    "content",
    [
        '{"type": "data", "tags": ["a"], "data": ROWS}',
        '{"info": {"data": [1, 2]}, "data": ROWS, "end": {"data": []}}',
        r'{"names": ["\"data\": ["], "d\u0061ta" : ROWS}',
    ],
)
def test_rows_under_a_key_that_also_occurs_elsewhere(files, decided_texts, content):
    parsed = files.parse("d.json", content.replace("ROWS", json.dumps(PLAIN)))
    assert [decided_texts(item) for item in parsed.votes] == EXPECTED
    assert parsed.errors == []


def test_csv_with_bom_crlf_and_semicolons(files, decided_texts):
    text = "\ufeffprompt;chosen;rejected\r\nWhy?;a, b;c\r\n\r\nWho?;d;e\r\n"
    parsed = files.parse("sheet.csv", text.encode())
    assert [decided_texts(item) for item in parsed.votes] == [("Why?", "a, b", "c"), ("Who?", "d", "e")]


def test_trl_explicit_and_implicit_standard_and_conversational(files, decided_texts):
    user, blue, green = (
        {"role": "user", "content": "What colour is the sky?"},
        {"role": "assistant", "content": "It is blue."},
        {"role": "assistant", "content": "It is green."},
    )
    explicit = {"prompt": [user], "chosen": [blue], "rejected": [green]}
    implicit = {"chosen": [user, blue], "rejected": [user, green]}
    expected = ("What colour is the sky?", "It is blue.", "It is green.")
    for row in (explicit, implicit):
        for name in ("x.jsonl", "x.parquet"):
            (item,) = files.parse(name, [row]).votes
            assert decided_texts(item) == expected
    (item,) = files.parse(
        "y.jsonl", [{"chosen": "The sky is blue.", "rejected": "The sky is green."}], mapping=SHARED
    ).votes
    assert decided_texts(item) == ("The sky is", " blue.", " green.")


def test_a_word_is_not_cut_in_two(files, decided_texts):
    row = {"chosen": "I like black cats", "rejected": "I like blue cats"}
    (item,) = files.parse("y.jsonl", [row], mapping=SHARED).votes
    assert decided_texts(item) == ("I like", " black cats", " blue cats")


def test_conversations_in_a_csv_cell(files, decided_texts):
    row = {"prompt": json.dumps([{"role": "user", "content": "Hi"}]), "chosen": "[1] yes", "rejected": "no"}
    (item,) = files.parse("x.csv", [row]).votes
    assert decided_texts(item) == ("Hi", "[1] yes", "no")


def test_hh_transcripts_share_a_beginning_that_ends_at_the_assistants_turn(files, decided_texts):
    start = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: A joke?\n\nAssistant:"
    rows = [{"chosen": start + " Sure. Knock.", "rejected": start + " Sure. No."}]
    (item,) = files.parse("hh.jsonl.gz", rows).votes
    assert decided_texts(item) == (start, " Sure. Knock.", " Sure. No.")
    longer = [{"chosen": start + " Yes.", "rejected": start + " Yes.\n\nHuman: ok\n\nAssistant: Fine."}]
    (item,) = files.parse("hh.jsonl", longer).votes
    assert decided_texts(item) == (start, " Yes.", " Yes.\n\nHuman: ok\n\nAssistant: Fine.")


def test_chat_transcript_round_trip():
    turns = [
        {"role": "system", "content": "Be kind."}, {"role": "user", "content": "a\n\nb: c"},
        {"role": "assistant", "content": "d"}, {"role": "user", "content": "e"},
    ]  # fmt: skip
    text = prompt_of_chat(turns)
    assert text == "\n\nSystem: Be kind.\n\nHuman: a\n\nb: c\n\nAssistant: d\n\nHuman: e\n\nAssistant:"
    assert chat_of_prompt(text) == turns
    for odd in ("Once", "", "\n\nHuman: x", "\n\nHuman:x\n\nAssistant:", "\n\nHuman: \n\nAssistant: \n\nAssistant:"):
        assert prompt_of_chat(chat_of_prompt(odd)) == odd or chat_of_prompt(odd) == [{"role": "user", "content": odd}]


def test_votes_of_several_people_with_ties(files):
    rows = [
        {"prompt": "p", "first": "a", "second": "b", "worker": "ann", "winner": "left"},
        {"prompt": "p", "first": "a", "second": "b", "worker": "bob", "winner": "right"},
        {"prompt": "p", "first": "a", "second": "b", "worker": "cy", "winner": "tie"},
        {"prompt": "p", "first": "a", "second": "b", "worker": "dee", "winner": "both_bad"},
    ]
    parsed = files.parse("votes.csv", rows).votes
    assert [(item.annotator, item.choice.value) for item in parsed] == [
        ("ann", "first"), ("bob", "second"), ("cy", "tie"), ("dee", "both_bad"),
    ]  # fmt: skip
    assert [item.first_on_left for item in parsed] == [True, True, None, None]


def test_annotator_columns_and_instruction_with_input(files):
    row = {"instruction": "Add.", "input": "1 2", "response1": "3", "response2": "4", "annotator1": 2, "annotator2": 0,
           "annotator3": None}  # fmt: skip
    parsed = files.parse("panda.json", [row]).votes
    assert [(item.prompt, item.annotator, item.choice) for item in parsed] == [
        ("Add.\n\n1 2", "annotator1", Choice.SECOND), ("Add.\n\n1 2", "annotator2", Choice.TIE),
    ]  # fmt: skip


def test_scores_decide_and_equal_scores_are_a_tie(files):
    rows = [
        {"prompt": "p", "response_a": "a", "response_b": "b", "score_a": x, "score_b": y}
        for x, y in ((1, 2), (3, 0.5), (1, 1))
    ]
    assert [item.choice for item in files.parse("s.jsonl", rows).votes] == [
        Choice.SECOND,
        Choice.FIRST,
        Choice.TIE,
    ]
    row = {"prompt": "p", "chosen": "a", "rejected": "b", "score_chosen": 4, "score_rejected": 4}
    assert files.parse("t.jsonl", [row]).votes[0].choice is Choice.TIE


def test_mapping_and_choices_given_by_the_user(files, decided_texts):
    rows = [{"q": "p", "good": "a", "bad": "b", "who": "ann", "source": "a web page"}]
    parsed = files.parse(
        "m.jsonl", rows, mapping=parse_map(["prompt=q", "chosen=good", "rejected=bad", "annotator=who"])
    )
    assert decided_texts(parsed.votes[0]) == ("p", "a", "b")
    assert (parsed.votes[0].annotator, parsed.unused_columns) == ("ann", ("source",))
    votes = [{"prompt": "p", "a1": "a", "a2": "b", "label": label} for label in (0, 1)]
    mapping = {"first": "a1", "second": "a2"}
    with pytest.raises(DataError, match="--choices"):
        files.parse("n.jsonl", votes, mapping=mapping)
    parsed = files.parse("n.jsonl", votes, mapping=mapping, choices=parse_choice_words("0=first,1=second"))
    assert [item.choice for item in parsed.votes] == [Choice.FIRST, Choice.SECOND]


def test_columns_of_our_export_are_read_only_in_our_exports(files):
    exported = PLAIN[0] | {"annotator": "judge:polite", "source": "simulated", "choice": "second", "first_on_left": False,
                       "created_at": 100.5, "response_ms": 12, "reason": "random", "split": "train",
                       "uuid": "u1", "pair_id": 3}  # fmt: skip
    (item,) = files.parse("ours.jsonl", [exported]).votes
    assert (item.source, item.choice, item.second.text, item.first_on_left) == (
        Source.SIMULATED,
        Choice.SECOND,
        " blue.",
        False,
    )
    assert (item.created_at, item.response_ms, item.reason, item.uuid, item.pair_name) == (
        100.5,
        12,
        "random",
        "u1",
        "3",
    )


def test_chosen_is_not_always_the_first(files):
    rows = [{"prompt": f"p{i}", "chosen": "yes", "rejected": "no"} for i in range(200)]
    first_count = sum(item.choice is Choice.FIRST for item in files.parse("many.jsonl", rows).votes)
    assert 60 < first_count < 140


def test_sampled_mapping_rows_are_parsed_once(files):
    rows = [{"prompt": f"p{i}", "chosen": "yes", "rejected": "no"} for i in range(205)]
    parsed = files.parse("many.jsonl", rows)
    assert [item.row_number for item in parsed.votes] == list(range(1, 206))


def test_csv_errors_name_the_line(files):
    text = 'prompt,chosen,rejected\n"two\nlines",a,b\n\nq,a\n'
    parsed = files.parse("lines.csv", text)
    assert [str(problem) for problem in parsed.errors] == [
        "row 2 (line 5): 2 columns for 3 in the header. Put texts with ',' in quotes"
    ]
    assert csv.field_size_limit() > 10**6


LINES = "".join(json.dumps(row) + "\n" for row in PLAIN)
COLUMNS = {name: [row[name] for row in PLAIN] for name in PLAIN[0]}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("columns.json", json.dumps(COLUMNS)),
        ("columns.jsonl", json.dumps(COLUMNS, indent=1)),
        ("pandas.json", json.dumps({name: {"0": texts[0], "1": texts[1]} for name, texts in COLUMNS.items()})),
        ("list.jsonl", json.dumps(PLAIN)),
        ("list_over_lines.jsonl", json.dumps(PLAIN, indent=1)),
        ("a_row_a_line.jsonl", json.dumps(PLAIN).replace("}, {", "},\n{")),
        ("pretty.jsonl", "\n".join(json.dumps(row, indent=1) for row in PLAIN)),
        ("pretty.json", "\n".join(json.dumps(row, indent=1) for row in PLAIN)),
        ("separator.csv", 'sep=;\nprompt;chosen;rejected\nThe sky is; blue.; green.\n'
                          '"Say ""hi"",\nplease";"hi\t1;2";no | ä 👩‍👩‍👧\n'),
        ("excel.csv", '"sep=|"\r\nprompt|chosen|rejected\r\nThe sky is| blue.| green.\r\n'
                      '"Say ""hi"",\nplease"|hi\t1;2|"no | ä 👩‍👩‍👧"\r\n'),
    ],
)  # fmt: skip
def test_json_and_csv_however_they_are_written(files, decided_texts, name, content):
    parsed = files.parse(name, content)
    assert [decided_texts(vote) for vote in parsed.votes] == EXPECTED
    assert (parsed.row_count, parsed.errors) == (2, [])


def test_one_row_is_not_taken_for_columns(files, decided_texts):
    """All values of a conversational row are lists of one length too."""
    row = {
        "prompt": [{"role": "user", "content": "Hi"}],
        **{name: [{"role": "assistant", "content": name}] for name in ("chosen", "rejected")},
    }
    for name in ("one.json", "one.jsonl"):
        (vote,) = files.parse(name, json.dumps(row, indent=1)).votes
        assert decided_texts(vote) == ("Hi", "chosen", "rejected")


def test_columns_of_conversations(files, decided_texts):
    columns = {"prompt": [[{"role": "user", "content": "Hi"}]] * 2, "chosen": ["a", "b"], "rejected": ["c", "d"]}
    votes = files.parse("columns.json", json.dumps(columns)).votes
    assert [decided_texts(vote) for vote in votes] == [("Hi", "a", "c"), ("Hi", "b", "d")]


def test_a_broken_row_among_rows_that_are_spread_over_lines_ends_the_file(files):
    text = "\n".join(json.dumps(PLAIN[0], indent=1) for _ in range(3))
    parsed = files.parse("pretty.jsonl", text[:-5])
    assert len(parsed.votes) == 2
    assert str(parsed.errors[0]).startswith("row 3 (line 11): not JSON: ")


def test_a_broken_first_line_leaves_the_other_lines(files):
    parsed = files.parse("broken.jsonl", LINES[:30] + "\n" + LINES)
    assert [vote.row_number for vote in parsed.votes] == [2, 3]
    assert [error.row_number for error in parsed.errors] == [1]


def test_lines_after_a_separator_line_are_counted_from_the_beginning_of_the_file(files):
    parsed = files.parse("lines.csv", "sep=;\nprompt;chosen;rejected\np;a;b\nq;a\n")
    assert [str(error)[:16] for error in parsed.errors] == ["row 2 (line 4): "]


def test_an_exported_folder_is_read(files, decided_texts):
    files.folder.joinpath("data").mkdir()
    files.rows("data/train.parquet", PLAIN)
    files.raw("README.md", "# Labels")
    files.raw("provenance.json", '{"rows": 2}')
    assert [decided_texts(vote) for vote in files.read(files.folder).votes] == EXPECTED
    files.raw("other.csv", "prompt,chosen,rejected\n")
    with pytest.raises(DataError, match=r"2 data files \(data/train.parquet, other.csv\)"):
        files.read(files.folder)
