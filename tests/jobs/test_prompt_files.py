"""Custom prompts: three formats, and errors with their line numbers."""

import json

import pytest

from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs.prompt_files import MAX_BYTES, MAX_PROMPT_CHARS, parse_prompts, read_prompt_file

FOUR = ["a b", "c", "d, e", "f"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.txt", "\ufeffa b\n\n c \r\nd, e\nf\na b\n"),
        ("anything", "a b\nc\nd, e\nf"),
        ("p.jsonl", '"a b"\n{"prompt": "c", "text": "no"}\n\n{"text": "d, e"}\n{"instruction": "f"}\n'),
        ("P.CSV", 'id,Prompt\n1,a b\n2,c\n3,"d, e"\n4,f\n'),
        ("p.csv", 'a b\nc\n"d, e"\nf\n'),
    ],
)
def test_four_prompts_in_each_format(name, text):
    assert parse_prompts(text, name) == FOUR


def test_conversations_without_their_last_answer():
    turns = '[{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, {"from": "human", "value": "c"}%s]'
    talk = "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant:"
    answered = turns % ', {"from": "gpt", "value": "d"}'
    for line in (
        turns % "",
        f'{{"conversations": {turns % ""}}}',
        f'{{"messages": {answered}}}',
        json.dumps(talk + "\n"),
    ):
        assert parse_prompts(f'{line}\n"x"\n"y"\n"z"', "p.jsonl") == [talk, "x", "y", "z"]
    assert parse_prompts(talk.replace("\n", "\\n") + "\nx\ny\nz") == [talk, "x", "y", "z"]
    for line, problem in (
        ('[{"from": "gpt", "value": "b"}]', "without a message of the user"),
        ('[{"a": 1}]', "it has a message 1"),
    ):
        with pytest.raises(ConfigError, match=f"line 1: .*{problem}"):
            parse_prompts(f'{line}\n"x"', "p.jsonl")


def test_line_breaks_inside_a_prompt():
    assert parse_prompts("one\\ntwo\nb\nc\nd")[0] == "one\ntwo"
    assert parse_prompts('prompt\n"one\ntwo"\nb\nc\nd\n', "p.csv")[0] == "one\ntwo"
    assert parse_prompts('"one\\ntwo"\n"b"\n"c"\n"d"', "p.jsonl")[0] == "one\ntwo"


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("p.jsonl", '"a"\n{"prompt": 5}\n', "line 2: neither a text"),
        ("p.jsonl", '{"other": "a"}\n', "line 1: neither a text"),
        ("p.jsonl", '"a"\n\n{broken\n', "line 3: not JSON"),
        ("p.csv", "id,prompt\n1,a\n2\n", "line 3: a missing column"),
        ("p.csv", 'prompt\n"a" b\n', "line 2: not CSV"),
        ("p.txt", "a\n" + "x" * (MAX_PROMPT_CHARS + 1), "line 2: 2,001 characters"),
        ("p.txt", "a\nb\0", "line 2: a NUL"),
    ],
)
def test_an_error_names_its_line(name, text, match):
    with pytest.raises(ConfigError, match=match):
        parse_prompts(text, name)


def test_many_errors_are_counted_and_five_are_named():
    with pytest.raises(ConfigError) as messages:
        parse_prompts("{\n" * 7, "p.jsonl")
    assert str(messages.value).startswith("7 lines cannot be used")
    assert str(messages.value).count("line ") == 5
    assert "2 more" in str(messages.value)


def test_too_few_too_many_too_large():
    with pytest.raises(ConfigError, match="is 1 different prompt; 4 to 20,000"):
        parse_prompts("a\na\na\na")
    with pytest.raises(ConfigError, match="20,001 different"):
        parse_prompts("\n".join(map(str, range(20_001))))
    with pytest.raises(ConfigError, match="2 MB"):
        parse_prompts("x" * (MAX_BYTES + 1))


def test_files(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("prompt\na\nb\nc\nd\n", encoding="utf-8-sig")
    assert read_prompt_file(path) == ["a", "b", "c", "d"]
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_prompt_file(path)
    path.write_bytes(b"x" * (MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="2 MB"):
        read_prompt_file(path)
    with pytest.raises(ConfigError, match="one prompt per line"):
        read_prompt_file(tmp_path / "none.txt")


@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 5000])
def test_json_that_python_cannot_read_is_an_invalid_line(value):
    with pytest.raises(ConfigError, match="line 2: not usable JSON"):
        parse_prompts(f'{{"prompt": "a"}}\n{{"prompt": {value}\n', "p.jsonl")
