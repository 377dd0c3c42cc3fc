"""Chats and transcripts as prompt and answers."""

import random

import pytest

from rlhf_lab.common.chat_format import (
    UnreadableError,
    chat_of_prompt,
    continued_text,
    plain_prompt,
    prompt_of_chat,
    split_shared_prefix,
)

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
    assert prompt_of_chat(turns) == "\n\nHuman: a\n\nb: c\n\nAssistant: d\n\nHuman: e\n\nAssistant:"
    assert chat_of_prompt(prompt_of_chat(turns)) == turns


USER, ASSISTANT, SYSTEM = (
    lambda content, role=role: {"role": role, "content": content} for role in ("user", "assistant", "system")
)


@pytest.mark.parametrize(
    ("chat", "stored"),
    [
        ([USER("Hi")], "Hi"),
        ([USER(" Hi\n\n")], " Hi\n\n"),
        ([USER("a\n\nHuman: b")], "a\n\nHuman: b"),
        ([SYSTEM("s"), USER("Hi")], "\n\nSystem: s\n\nHuman: Hi\n\nAssistant:"),
        ([USER("")], ""),
        ([USER("a"), ASSISTANT(""), USER("")], "\n\nHuman: a\n\nAssistant: \n\nHuman: \n\nAssistant:"),
        # messages that look like turns, or like a stored chat
        ([USER("a"), ASSISTANT("b\n\nHuman: c"), USER("d")],
         '[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b\\n\\nHuman: c"}, '
         '{"role": "user", "content": "d"}]'),
        ([USER("\n\nHuman: a\n\nAssistant:")], '[{"role": "user", "content": "\\n\\nHuman: a\\n\\nAssistant:"}]'),
        ([USER('[{"role": "user", "content": "Hi"}]')], '[{"role": "user", "content": "Hi"}]'),
        ([USER('[{"role": "user", "content": "\\n\\nHuman: é\\n\\nAssistant:"}]')],
         '\n\nHuman: [{"role": "user", "content": "\\n\\nHuman: é\\n\\nAssistant:"}]\n\nAssistant:'),
    ],
)  # fmt: skip
def test_a_stored_prompt_is_read_as_the_chat_that_it_was_made_of(chat, stored):
    assert prompt_of_chat(chat) == stored
    assert chat_of_prompt(stored) == chat


def test_chats_of_any_messages_are_restored():
    pieces = [
        "",
        " ",
        "a",
        "\n",
        "\n\n",
        "Human:",
        "\n\nHuman: ",
        "\n\nAssistant:",
        "\n\nSystem: x",
        '"',
        "[{",
        "}]",
        "é",
    ]
    pieces.append('[{"role": "user", "content": "\\n\\nHuman: é\\n\\nAssistant:"}]')
    rng = random.Random(0)
    for _ in range(3000):
        chat = [
            {
                "role": rng.choice(["user", "assistant", "system"]),
                "content": "".join(rng.choices(pieces, k=rng.randrange(4))),
            }
            for _ in range(rng.randint(1, 4))
        ]
        assert chat_of_prompt(prompt_of_chat(chat)) == chat


def test_transcripts_of_one_turn_and_texts_that_are_none():
    assert chat_of_prompt("\n\nHuman: Hi\n\nAssistant:") == [USER("Hi")]
    for text in ("\n\nHuman: Hi", "Hi\n\nAssistant:", "\n\nHuman:Hi\n\nAssistant:", "\n\nHuman:a\n\nHuman: b\n\nAssistant:",
                 '[{"role": "user"}]',
                 '[{"role": "user", "content": "\\n\\nHuman: a\\n\\nAssistant:"},]'):  # fmt: skip
        assert chat_of_prompt(text) == [USER(text)]


def test_readers_of_plain_text_get_transcripts():
    for text in ("Hi", START, '[{"role": "user", "content": "Hi"}]'):
        assert plain_prompt(text) == text
    chat = [USER("a"), ASSISTANT("b\n\nHuman: c"), USER("d")]
    assert plain_prompt(prompt_of_chat(chat)) == "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nHuman: d\n\nAssistant:"


def test_turns_as_one_running_text():
    turns = [
        ("user", "Once"),
        ("assistant", " a cat"),
        ("user", "ran."),
        ("assistant", ""),
        ("user", ""),
        ("user", " It"),
    ]
    assert continued_text([{"role": role, "content": content} for role, content in turns]) == "Once a cat ran. It"
