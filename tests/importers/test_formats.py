"""Every format and every shape of preferences that is documented gives the same judgements."""

import csv
import json

import pytest

from rlhf_lab.common.chat_format import parse_transcript, to_transcript
from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.errors import DataError
from rlhf_lab.importers.cell_parsers import parse_choice_words
from rlhf_lab.importers.column_mapping import parse_map

PLAIN = [
    {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."},
    {"prompt": 'Say "hi",\nplease', "chosen": "hi\t1;2", "rejected": "no | ä 👩‍👩‍👧"},
]
WANTED = [tuple(row.values()) for row in PLAIN]


@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.parquet", "a.jsonl.gz", "a.csv.gz", "a.json.gz", "a.ndjson"]
)
def test_the_same_rows_in_every_format(files, name, said):
    found = files.found(name, PLAIN)
    assert [said(item) for item in found.votes] == WANTED
    assert (found.row_count, found.errors, found.unused_columns) == (2, [], ())


def test_json_lines_under_the_name_json_and_rows_under_a_key(files, said):
    lines = "\n".join(json.dumps(row) for row in PLAIN)
    assert [said(item) for item in files.found("b.json", lines).votes] == WANTED
    nested = json.dumps({"version": 1, "data": PLAIN})
    assert [said(item) for item in files.found("c.json", nested).votes] == WANTED


def test_a_file_with_a_mark_at_its_start_windows_lines_and_semicolons(files, said):
    text = "\ufeffprompt;chosen;rejected\r\nWhy?;a, b;c\r\n\r\nWho?;d;e\r\n"
    found = files.found("sheet.csv", text.encode())
    assert [said(item) for item in found.votes] == [("Why?", "a, b", "c"), ("Who?", "d", "e")]


def test_trl_explicit_and_implicit_standard_and_conversational(files, said):
    user, blue, green = (
        {"role": "user", "content": "What colour is the sky?"},
        {"role": "assistant", "content": "It is blue."},
        {"role": "assistant", "content": "It is green."},
    )
    explicit = {"prompt": [user], "chosen": [blue], "rejected": [green]}
    implicit = {"chosen": [user, blue], "rejected": [user, green]}
    wanted = ("What colour is the sky?", "It is blue.", "It is green.")
    for row in (explicit, implicit):
        for name in ("x.jsonl", "x.parquet"):
            (item,) = files.found(name, [row]).votes
            assert said(item) == wanted
    (item,) = files.found("y.jsonl", [{"chosen": "The sky is blue.", "rejected": "The sky is green."}]).votes
    assert said(item) == ("The sky is", " blue.", " green.")


def test_a_word_is_not_cut_in_two(files, said):
    (item,) = files.found("y.jsonl", [{"chosen": "I like black cats", "rejected": "I like blue cats"}]).votes
    assert said(item) == ("I like", " black cats", " blue cats")


def test_conversations_in_a_csv_cell(files, said):
    row = {"prompt": json.dumps([{"role": "user", "content": "Hi"}]), "chosen": "[1] yes", "rejected": "no"}
    (item,) = files.found("x.csv", [row]).votes
    assert said(item) == ("Hi", "[1] yes", "no")


def test_hh_transcripts_share_a_beginning_that_ends_at_the_assistants_turn(files, said):
    start = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: A joke?\n\nAssistant:"
    rows = [{"chosen": start + " Sure. Knock.", "rejected": start + " Sure. No."}]
    (item,) = files.found("hh.jsonl.gz", rows).votes
    assert said(item) == (start, " Sure. Knock.", " Sure. No.")
    longer = [{"chosen": start + " Yes.", "rejected": start + " Yes.\n\nHuman: ok\n\nAssistant: Fine."}]
    (item,) = files.found("hh.jsonl", longer).votes
    assert said(item) == (start, " Yes.", " Yes.\n\nHuman: ok\n\nAssistant: Fine.")


def test_a_chat_of_several_turns_is_kept_as_a_transcript_that_comes_apart_again():
    turns = [
        {"role": "system", "content": "Be kind."}, {"role": "user", "content": "a\n\nb: c"},
        {"role": "assistant", "content": "d"}, {"role": "user", "content": "e"},
    ]  # fmt: skip
    text = to_transcript(turns)
    assert text == "\n\nSystem: Be kind.\n\nHuman: a\n\nb: c\n\nAssistant: d\n\nHuman: e\n\nAssistant:"
    assert parse_transcript(text) == turns
    for odd in ("Once", "", "\n\nHuman: x", "\n\nHuman:x\n\nAssistant:", "\n\nHuman: \n\nAssistant: \n\nAssistant:"):
        assert to_transcript(parse_transcript(odd)) == odd or parse_transcript(odd) == [
            {"role": "user", "content": odd}
        ]


def test_votes_of_several_people_with_ties(files):
    rows = [
        {"prompt": "p", "first": "a", "second": "b", "worker": "ann", "winner": "left"},
        {"prompt": "p", "first": "a", "second": "b", "worker": "bob", "winner": "right"},
        {"prompt": "p", "first": "a", "second": "b", "worker": "cy", "winner": "tie"},
        {"prompt": "p", "first": "a", "second": "b", "worker": "dee", "winner": "both_bad"},
    ]
    found = files.found("votes.csv", rows).votes
    assert [(item.annotator, item.choice.value) for item in found] == [
        ("ann", "first"), ("bob", "second"), ("cy", "tie"), ("dee", "both_bad"),
    ]  # fmt: skip
    assert [item.first_on_left for item in found] == [True, True, None, None]


def test_a_column_for_each_person_and_an_instruction_with_its_input(files):
    row = {"instruction": "Add.", "input": "1 2", "response1": "3", "response2": "4", "annotator1": 2, "annotator2": 0,
           "annotator3": None}  # fmt: skip
    found = files.found("panda.json", [row]).votes
    assert [(item.prompt, item.annotator, item.choice) for item in found] == [
        ("Add.\n\n1 2", "annotator1", Choice.SECOND), ("Add.\n\n1 2", "annotator2", Choice.TIE),
    ]  # fmt: skip


def test_scores_decide_and_equal_scores_are_a_tie(files):
    rows = [
        {"prompt": "p", "response_a": "a", "response_b": "b", "score_a": x, "score_b": y}
        for x, y in ((1, 2), (3, 0.5), (1, 1))
    ]
    assert [item.choice for item in files.found("s.jsonl", rows).votes] == [
        Choice.SECOND,
        Choice.FIRST,
        Choice.TIE,
    ]
    row = {"prompt": "p", "chosen": "a", "rejected": "b", "score_chosen": 4, "score_rejected": 4}
    assert files.found("t.jsonl", [row]).votes[0].choice is Choice.TIE


def test_columns_and_words_said_by_the_person(files, said):
    rows = [{"q": "p", "good": "a", "bad": "b", "who": "ann", "source": "a web page"}]
    found = files.found(
        "m.jsonl", rows, mapping=parse_map(["prompt=q", "chosen=good", "rejected=bad", "annotator=who"])
    )
    assert said(found.votes[0]) == ("p", "a", "b")
    assert (found.votes[0].annotator, found.unused_columns) == ("ann", ("source",))
    votes = [{"prompt": "p", "a1": "a", "a2": "b", "label": label} for label in (0, 1)]
    mapping = {"first": "a1", "second": "a2"}
    with pytest.raises(DataError, match="--choices"):
        files.found("n.jsonl", votes, mapping=mapping)
    found = files.found("n.jsonl", votes, mapping=mapping, choices=parse_choice_words("0=first,1=second"))
    assert [item.choice for item in found.votes] == [Choice.FIRST, Choice.SECOND]


def test_our_own_columns_are_read_only_where_the_file_is_ours(files):
    ours = PLAIN[0] | {"annotator": "judge:polite", "source": "simulated", "choice": "second", "first_on_left": False,
                       "created_at": 100.5, "response_ms": 12, "reason": "random", "split": "train",
                       "uuid": "u1", "pair_id": 3}  # fmt: skip
    (item,) = files.found("ours.jsonl", [ours]).votes
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
    firsts = sum(item.choice is Choice.FIRST for item in files.found("many.jsonl", rows).votes)
    assert 60 < firsts < 140


def test_a_row_counts_once_where_the_columns_were_looked_at_beforehand(files):
    rows = [{"prompt": f"p{i}", "chosen": "yes", "rejected": "no"} for i in range(205)]
    found = files.found("many.jsonl", rows)
    assert [item.row_number for item in found.votes] == list(range(1, 206))


def test_a_row_is_found_again_by_its_line(files):
    text = 'prompt,chosen,rejected\n"two\nlines",a,b\n\nq,a\n'
    found = files.found("lines.csv", text)
    assert [str(problem) for problem in found.errors] == [
        "row 2 (line 5): 2 columns for 3 in the header. Put texts with ',' in quotes"
    ]
    assert csv.field_size_limit() > 10**6
