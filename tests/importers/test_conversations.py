"""Prompts of several turns in published formats, and export and import without a loss."""

import csv
import json

import pytest

from rlhf_lab.common.chat_format import chat_of_prompt, prompt_of_chat
from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import NewCompletion, Vote
from rlhf_lab.exporters.label_export import LabelExportOptions, export_labels
from rlhf_lab.importers.column_mapping import ColumnMappingError
from rlhf_lab.importers.parser import ImportRequest, parse_file
from rlhf_lab.importers.summary import build_preview, format_preview
from rlhf_lab.importers.writer import ImportTarget, save_import
from rlhf_lab.store import projects
from rlhf_lab.store.database import Database
from rlhf_lab.store.votes import cast_vote

TURNS = [("user", "Name a fruit."), ("assistant", "A pear."), ("user", "Another?")]
CHAT = [{"role": role, "content": content} for role, content in TURNS]
SHAREGPT = [{"from": {"user": "human", "assistant": "gpt"}[role], "value": content} for role, content in TURNS]
OPEN_ASSISTANT = [{"text": content, "role": {"user": "prompter"}.get(role, role)} for role, content in TURNS]
PLUM, BRICK = "A plum.", "A brick."


def answer(text):
    return {"role": "assistant", "content": text}


def decided(vote):
    better, worse = (vote.first.text, vote.second.text)[:: -1 if vote.choice is Choice.SECOND else 1]
    return chat_of_prompt(vote.prompt), better, worse


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": CHAT, "chosen": [answer(PLUM)], "rejected": [answer(BRICK)]},
        {"messages": CHAT, "chosen": answer(PLUM), "rejected": answer(BRICK)},
        {"conversations": SHAREGPT, "chosen": {"from": "gpt", "value": PLUM}, "rejected": {"from": "gpt", "value": BRICK}},
        {"prompt": OPEN_ASSISTANT, "chosen": {"role": "assistant", "text": PLUM}, "rejected": PLUM.replace("plum", "brick")},
        {"chosen": [*OPEN_ASSISTANT, {"role": "assistant", "text": PLUM}], "rejected": [*CHAT, answer(BRICK)]},
        {"prompt": CHAT, "chosen": [*CHAT, answer(PLUM)], "rejected": [*CHAT, answer(BRICK)]},
        {"chosen": prompt_of_chat(CHAT) + PLUM, "rejected": prompt_of_chat(CHAT) + BRICK},
        {"prompt": prompt_of_chat(CHAT), "response_a": PLUM, "response_b": BRICK, "winner": "model_a"},
        {"messages": CHAT, "response_a": PLUM, "response_b": BRICK, "winner": "model_a"},
    ],
    ids=["messages", "message objects", "sharegpt", "openassistant", "whole openassistant", "prompt and whole", "hh",
         "transcript and votes", "messages and votes"],
)  # fmt: skip
def test_turns_of_every_format_are_kept(tmp_path, row):
    path = tmp_path / "talk.jsonl"
    path.write_text(json.dumps(row))
    parsed = parse_file(ImportRequest(str(path)))
    assert parsed.errors == []
    assert [decided(vote) for vote in parsed.votes] == [(CHAT, PLUM, BRICK)]


def test_messages_in_the_cells_of_a_csv_file(tmp_path):
    path = tmp_path / "talk.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["conversations", "chosen", "rejected"])
        writer.writerow([json.dumps(SHAREGPT), PLUM, BRICK])
    assert [decided(vote) for vote in parse_file(ImportRequest(str(path))).votes] == [(CHAT, PLUM, BRICK)]


def test_an_answer_to_another_conversation_is_an_error(tmp_path):
    path = tmp_path / "talk.jsonl"
    path.write_text(
        json.dumps({"prompt": "Name a bird.", "chosen": [*CHAT, answer(PLUM)], "rejected": [answer(BRICK)]})
    )
    (error,) = parse_file(ImportRequest(str(path))).errors
    assert "after nothing or after the messages of the prompt" in error.message


CHATS = [
    CHAT,
    [{"role": "system", "content": "Be kind."}, *CHAT],
    [{"role": "user", "content": "Hi"}],
    [{"role": "user", "content": "\n\nHuman: Hi\n\nAssistant:"}],
    [{"role": "user", "content": "a\n\nHuman: b"}, answer(""), {"role": "user", "content": "c\n\nAssistant: d "}],
    [{"role": "user", "content": '[{"role": "user", "content": "Hi"}]'}, answer("<|im_end|>"), CHAT[0]],
]


@pytest.mark.parametrize("messages", [False, True])
@pytest.mark.parametrize("format_", ["jsonl", "json", "csv", "parquet"])
def test_conversations_come_back_as_they_were(tmp_path, format_, messages):
    with Database.open(tmp_path / "a") as db, Database.open(tmp_path / "b") as other:
        texts = [(prompt_of_chat(chat), "train") for chat in CHATS]
        project = projects.create_project(db, "p", "embedded", "abc", "own", 1, texts)
        for i, prompt in enumerate(projects.prompts(db, project.id, "train")):
            sides = [NewCompletion(prompt.id, text, (), "base", i) for text in (PLUM, BRICK)]
            first, second = projects.add_completions(db, sides)
            (pair,) = projects.add_pairs(db, project.id, [(first.id, second.id, "random")])
            cast_vote(db, Vote(f"u{i}", pair.id, "ann", Source.HUMAN, Choice.FIRST, True))
        path = export_labels(db, project.id, tmp_path / "out", LabelExportOptions(format=format_, messages=messages))
        parsed = parse_file(ImportRequest(str(path)))
        assert parsed.errors == []
        assert [decided(vote) for vote in parsed.votes] == [(chat, PLUM, BRICK) for chat in CHATS]
        assert save_import(db, parsed, ImportTarget(project.id)).held == len(CHATS)
        there = projects.create_project(other, "q", "embedded", "abc", "own", 1, [("something else", "train")])
        save_import(other, parsed, ImportTarget(there.id, use_prompts=True))
        assert [p.text for p in projects.prompts(other, there.id, "train")][1:] == [text for text, _ in texts]


HH_PROMPTS = ["\n\nHuman: Hi\n\nAssistant:", prompt_of_chat(CHAT)]


@pytest.mark.parametrize("format_", ["jsonl", "csv", "parquet"])
def test_rows_of_hh_are_restored_by_the_implicit_layout(tmp_path, format_):
    """Also of one turn; the layouts with chats keep the turn, which the model reads the same way, but not the string."""
    rows = [{"chosen": f"{prompt} Yes.", "rejected": f"{prompt} No.\n\nHuman: Why?"} for prompt in HH_PROMPTS]
    path = tmp_path / "hh.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with Database.open(tmp_path / "a") as db:
        project = projects.create_project(db, "p", "embedded", "abc", "own", 1, [("something else", "train")])
        save_import(db, parse_file(ImportRequest(str(path))), ImportTarget(project.id, use_prompts=True))
        stored = {p.text for split in ("train", "eval") for p in projects.prompts(db, project.id, split)}
        assert stored == {"something else", *HH_PROMPTS}

        def exported(**more):
            return export_labels(db, project.id, tmp_path / f"{more}", LabelExportOptions(**more))

        assert [json.loads(line) for line in exported(layout="implicit").read_text().splitlines()] == rows
        again = parse_file(ImportRequest(str(exported(layout="implicit", format=format_)))).votes
        assert [vote.prompt for vote in again] == HH_PROMPTS
        (one, _) = parse_file(ImportRequest(str(exported(layout="explicit", messages=True)))).votes
        assert (one.prompt, chat_of_prompt(one.prompt)) == ("Hi", chat_of_prompt(HH_PROMPTS[0]))


def test_texts_of_an_own_csv_file_that_look_like_messages_stay_texts(tmp_path):
    message_like, better = '[{"role": "user", "content": "Hi"}]', '[{"role": "assistant", "content": "x"}]'
    with Database.open(tmp_path / "a") as db:
        project = projects.create_project(db, "p", "embedded", "abc", "own", 1, [(message_like, "train")])
        (prompt,) = projects.prompts(db, project.id, "train")
        first, second = projects.add_completions(
            db, [NewCompletion(prompt.id, text, (), "base", 1) for text in (better, BRICK)]
        )
        (pair,) = projects.add_pairs(db, project.id, [(first.id, second.id, "random")])
        cast_vote(db, Vote("u", pair.id, "ann", Source.HUMAN, Choice.FIRST, True))
        path = export_labels(db, project.id, tmp_path / "out", LabelExportOptions(format="csv"))
    (vote,) = parse_file(ImportRequest(str(path))).votes
    assert (vote.prompt, vote.first.text, vote.second.text) == (message_like, better, BRICK)


OWN_COLUMNS = ["prompt", "chosen", "rejected", "annotator", "source", "first_on_left", "choice", "note"]


def own_csv(tmp_path, *rows):
    """The votes of an own CSV export with these prompts, chosen and rejected texts and notes."""
    path = tmp_path / "own.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(
            [OWN_COLUMNS, *([*row[:3], "ann", "human", "true", "first", row[3]] for row in rows)]
        )
    return parse_file(ImportRequest(str(path))).votes


def test_own_csv_files_with_texts_that_look_like_messages_in_one_row(tmp_path):
    """All texts of the first row look like messages; the second row shows that the file holds texts."""
    texts = (
        '[{"role": "user", "content": "Hi"}]',
        *(f'[{{"role": "assistant", "content": "{name}"}}]' for name in "xy"),
    )
    votes = own_csv(tmp_path, (*texts, texts[1]), ("Once", "a", "b", ""))
    assert [(vote.prompt, vote.first.text, vote.second.text) for vote in votes] == [texts, ("Once", "a", "b")]
    assert votes[0].note == texts[1]


def test_a_note_in_an_own_csv_file_with_chats_stays_a_text(tmp_path):
    note = '[{"role": "user", "content": "Hi"}]'
    (vote,) = own_csv(tmp_path, (*(json.dumps(chat) for chat in (CHAT, [answer(PLUM)], [answer(BRICK)])), note))
    assert decided(vote) == (CHAT, PLUM, BRICK)
    assert vote.note == note


def test_a_preview_in_the_terminal_shows_turns(tmp_path):
    long_chat = [*CHAT, answer("A cherry."), {"role": "user", "content": "And\nmore?"}]
    like_turns = [{"role": "user", "content": "\n\nHuman: Hi\n\nAssistant:"}, answer("x"), CHAT[0]]  # is stored as JSON
    rows = [
        {"prompt": chat, "chosen": PLUM, "rejected": BRICK, "tie": True}
        for chat in (CHAT[:1], CHAT, long_chat, like_turns)
    ]
    path = tmp_path / "talk.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert format_preview(build_preview(parse_file(ImportRequest(str(path))))).splitlines()[3:] == [
        "row 1: tie: Name a fruit. | A plum. | A brick.",
        "row 2: tie: user: Name a fruit. / assistant: A pear. / user: Another? | A plum. | A brick.",
        "row 3: tie: … / assistant: A pear. / user: Another? / assistant: A cherry. / user: And more? | A plum. | A brick.",
        "row 4: tie: user: Human: Hi Assistant: / assistant: x / user: Name a fruit. | A plum. | A brick.",
    ]


HH_PROMPT = "\n\nHuman: Name a bird.\n\nAssistant:"
SPEAKERS = "USER: Name a bird. ASSISTANT:"


@pytest.mark.parametrize(
    ("prompt", "beginning", "space", "answers"),
    [
        (HH_PROMPT, HH_PROMPT, " ", ()),
        ("Name a bird.", HH_PROMPT, "", ()),
        ("Name a bird.", "Human: Name a bird.\r\n\r\nAssistant:", "", ()),
        ([{"role": "user", "content": "Name a bird."}], HH_PROMPT, "", ()),
        (SPEAKERS, SPEAKERS, " ", ("texts=plain",)),
    ],
)
def test_an_answer_that_begins_with_its_prompt_is_what_follows(files, prompt, beginning, space, answers):
    row = {"prompt": prompt, "chosen": f"{beginning} A wren.", "rejected": f"{beginning} A spoon."}
    vote = files.parse("v.jsonl", [row], answers=frozenset(answers)).votes[0]
    assert {vote.first.text, vote.second.text} == {f"{space}A wren.", f"{space}A spoon."}


@pytest.mark.parametrize("beginning", [HH_PROMPT, "\n\nSystem: Hi.\n\nHuman: A\n\nAssistant:", SPEAKERS, "Assistant:"])
def test_an_answer_with_turns_that_are_not_its_prompt_is_a_question(files, beginning):
    row = {"prompt": "Name a fish.", "response_a": f"{beginning} A wren.", "response_b": "A spoon.", "winner": "a"}
    with pytest.raises(ColumnMappingError, match="response_a begins with the name of a speaker") as caught:
        files.parse("v.jsonl", [row])
    assert list(caught.value.answers) == ["texts=plain", "texts=skip"]
    plain = files.parse("v.jsonl", [row], answers=frozenset({"texts=plain"}))
    assert plain.votes[0].first.text == f"{beginning} A wren."


@pytest.mark.parametrize(
    "text",
    [
        "Answer: a wren.",
        "Users: many.",
        "A: a wren.",
        "Q: A bird?\nA: A wren.",
        "A wren.\n\nHuman: And?\n\nAssistant: A crow.",
    ],
)
def test_an_answer_that_only_seems_to_begin_with_a_speaker_is_a_text(files, text):
    row = {"prompt": "Name a bird.", "chosen": text, "rejected": "A spoon."}
    vote = files.parse("v.jsonl", [row]).votes[0]
    assert text in (vote.first.text, vote.second.text)
