"""Chats and transcripts as prompt and answers."""

import pytest

from rlhf_lab.common.chat_format import UnreadableError, parse_transcript, split_shared_prefix, to_transcript

START = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: A joke?\n\nAssistant:"


def test_transcripts_are_split_at_the_last_shared_assistant_turn():
    assert split_shared_prefix(START + " Sure. Knock.", START + " Sure. No.") == (START, " Sure. Knock.", " Sure. No.")
    other = "\n\nHuman: Hi\n\nAssistant: Bye."
    assert split_shared_prefix(START + " x", other) == (
        "\n\nHuman: Hi\n\nAssistant:",
        " Hello.\n\nHuman: A joke?\n\nAssistant: x",
        " Bye.",
    )


def test_a_word_is_not_cut_in_two():
    assert split_shared_prefix("I like black cats", "I like blue cats") == ("I like", " black cats", " blue cats")


@pytest.mark.parametrize(
    ("chosen", "rejected"),
    [
        ("One", "Two"),
        ("", ""),
        (None, "x"),
        ([], []),
        ([{"role": "user", "content": "a"}], [{"role": "user", "content": "a"}]),
    ],
)
def test_without_a_shared_beginning_there_is_no_prompt(chosen, rejected):
    with pytest.raises(UnreadableError):
        split_shared_prefix(chosen, rejected)


def test_chats_of_several_turns_round_trip():
    turns = [
        {"role": "user", "content": "a\n\nb: c"}, {"role": "assistant", "content": "d"}, {"role": "user", "content": "e"},
    ]  # fmt: skip
    assert to_transcript(turns) == "\n\nHuman: a\n\nb: c\n\nAssistant: d\n\nHuman: e\n\nAssistant:"
    assert parse_transcript(to_transcript(turns)) == turns
