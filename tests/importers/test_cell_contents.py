"""One rule decides what a cell holds, in every format, column and way of writing a chat."""

import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rlhf_lab.common.chat_format import UnreadableError, chat_of_prompt, validate_chat
from rlhf_lab.importers.cells import parse_turns, read_cell
from rlhf_lab.importers.column_mapping import ColumnMappingError

USER, WREN, SPOON = (
    {"role": "user", "content": "Name a bird."},
    {"role": "assistant", "content": "A wren."},
    {"role": "assistant", "content": "A spoon."},
)
#: Texts that look like the syntax around them.
HOSTILE = [
    "",
    'it\'s "quoted"',
    "a\nb",
    "}\n {'role': 'x'}",
    "array([1], dtype=object)",
    "\\",
    "nan",
    "ä 👩\u200d👧",
    "\u2028",
    "x" * 300,
]


def numpy_text(messages):
    """A list of messages as `str(numpy.array(messages, dtype=object))` writes it: one a line, without commas."""
    return "[" + "\n ".join(map(repr, messages)) + "]"


def numpy_repr(messages):
    return "array([" + ",\n       ".join(map(repr, messages)) + "], dtype=object)"


def as_columns(messages):
    """A list of messages as `datasets` gives a sequence of objects: a list for each key."""
    return {key: [message[key] for message in messages] for key in messages[0]}


FORMS = {
    "JSON": json.dumps,
    "indented JSON": lambda messages: json.dumps(messages, indent=1),
    "JSON after white space": lambda messages: f" \n{json.dumps(messages)}\n",
    "Python": repr,
    "numpy": numpy_text,
    "numpy's repr": numpy_repr,
    "object with messages": lambda messages: json.dumps({"messages": messages, "id": 3}),
    "object with an array": lambda messages: f"{{'conversations': {numpy_repr(messages)}}}",
    "list with an array": lambda messages: f"[{numpy_repr(messages)}]",
    "JSON texts in a list": lambda messages: json.dumps([json.dumps(message) for message in messages]),
    "pairs": lambda messages: json.dumps([[message["role"], message["content"]] for message in messages]),
    "tuples": lambda messages: repr([(message["role"].upper(), message["content"]) for message in messages]),
    "a tuple of objects": lambda messages: repr(tuple(messages)) if len(messages) > 1 else repr(messages),
    "JSON within JSON": lambda messages: json.dumps(json.dumps(messages)),
    "Python within JSON within JSON": lambda messages: json.dumps(json.dumps(repr(messages))),
    "an object of lists": lambda messages: json.dumps(as_columns(messages)),
    "an object of arrays": lambda messages: (
        "{" + ", ".join(f"{key!r}: {numpy_repr(values)}" for key, values in as_columns(messages).items()) + "}"
    ),
    "an object of lists in an object": lambda messages: json.dumps({"messages": as_columns(messages)}),
    "JSON after a byte order mark": lambda messages: f"\ufeff{json.dumps(messages)}",
    "JSON after marks without width": lambda messages: f" \u200b\n\u2060{json.dumps(messages)}",
    "JSON within an object": lambda messages: json.dumps({"id": 1, "Messages": json.dumps(messages)}),
    "a list of one JSON text": lambda messages: json.dumps([json.dumps(messages)]),
    "one object a line": lambda messages: (
        "\n".join(map(json.dumps, messages)) if len(messages) > 1 else json.dumps(messages)
    ),
    "names of keys in capitals": lambda messages: json.dumps(
        [{"Role": message["role"].title(), "CONTENT": message["content"]} for message in messages]
    ),
}


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(HOSTILE) | st.text(max_size=8), min_size=1, max_size=4))
@example(HOSTILE)
def test_a_chat_is_read_in_every_form(form, contents):
    messages = [
        {"role": role, "content": text} for role, text in zip(("user", "assistant") * 9, contents, strict=False)
    ]
    assert validate_chat(read_cell(FORMS[form](messages)).contents) == messages


@pytest.mark.parametrize(
    ("text", "content"),
    [("[{“role”: “user”, “content”: “Name a bird’s egg.”}]", "Name a bird’s egg."), ("[{”from”: ”human”, ”value”: ”x”}]", "x"),
     ("[{‘role’: ‘user’, ‘content’: ‘x’}]", "x"), ("[{„role“: „user“, „content“: „x“}]", "x")],
)  # fmt: skip
def test_quotes_that_an_editor_made_curly_are_quotes(text, content):
    assert validate_chat(read_cell(text).contents) == [{"role": "user", "content": content}]
    assert read_cell('["“a”"]').decoded == ["“a”"]


def test_numpy_itself_writes_these_forms():
    numpy = pytest.importorskip("numpy")
    for messages in ([USER, WREN], [{"role": "user", "content": text} for text in HOSTILE]):
        array = numpy.array(messages, dtype=object)
        assert read_cell(str(array)).contents == messages
        assert read_cell(repr(array)).contents == messages


ROWS = {
    "prompt and answers": {"prompt": [USER], "chosen": [WREN], "rejected": [SPOON]},
    "prompt and conversations": {"prompt": [USER], "chosen": [USER, WREN], "rejected": [USER, SPOON]},
    "conversations": {"chosen": [USER, WREN], "rejected": [USER, SPOON]},
    "two texts and a vote": {"messages": [USER], "response_a": [WREN], "response_b": [SPOON], "winner": "response_a"},
}


@pytest.mark.parametrize("file_name", ["v.csv", "v.tsv", "v.json", "v.jsonl", "v.parquet"])
@pytest.mark.parametrize("row", ROWS)
def test_every_column_of_every_format_is_read_by_the_same_rule(files, decided_texts, file_name, row):
    """Each row writes its chats in another form, and the sides of a row need not agree."""
    forms = list(FORMS.values())
    rows = [
        {
            name: forms[(number + shift) % len(forms)](value) if isinstance(value, list) else value
            for shift, (name, value) in enumerate(ROWS[row].items())
        }
        for number in range(len(forms))
    ]
    parsed = files.parse(file_name, [*rows, *rows])  # a file of one line could be columns
    assert parsed.errors == []
    assert {decided_texts(vote) for vote in parsed.votes} == {("Name a bird.", "A wren.", "A spoon.")}
    assert len(parsed.votes) == 2 * len(rows)


BROKEN = {
    "cut off after another key": '[{"name": "ann", "date": "2026", "role": "assistant", "content": "A wr',
    "cut off before its role": '[{"weight": 0.5, "text": "Name a bi',
    "an object cut off in its messages": '{"id": "x1", "source": "web", "conversations": [{"from": "gpt", "value": "A w',
    "escaped and cut off": json.dumps(json.dumps([USER, WREN]))[:-9],
    "curly quotes within curly quotes": "[{“role”: “user”, “content”: “say “hi””}]",
    "quotes lost": "[{role: user, content: Name a bird.}]",
    "quotes doubled": json.dumps([USER]).replace('"', '""'),
    "quotes of HTML": json.dumps([USER]).replace('"', "&quot;"),
    "a pair of a role and a text": "('assistant', 'A wren.')",
    "pairs, one of an unknown speaker": json.dumps([["user", "Name a bird."], ["Ann", "A wren."]]),
    "objects of Python": "[Message(role='user', content='Name a bird.')]",
    "YAML": "- role: user\n  content: Name a bird.\n- role: assistant\n  content: A wren.",
    "keys of another kind": json.dumps([{"speaker": "user", "text": "Name a bird."}]),
    "cut off": json.dumps([USER, WREN])[:-9],
    "cut off by a spreadsheet": json.dumps([USER, {"role": "assistant", "content": "x" * 40_000}])[:32_767],
    "cut off in Python": repr([WREN])[:-4],
    "an object that breaks off": '{"messages": [{"role": "user"',
    "neither JSON nor Python": "[{'role': user, 'content': x}]",
    "a call in it": "[{'role': 'user', 'content': open('x')}]",
}


@pytest.mark.parametrize("file_name", ["v.csv", "v.jsonl"])
@pytest.mark.parametrize("column", ["prompt", "chosen", "rejected"])
@pytest.mark.parametrize("case", BROKEN)
def test_what_looks_like_messages_and_cannot_be_read_is_asked_about(files, file_name, column, case):
    good = {"prompt": "Name a bird.", "chosen": "A wren.", "rejected": "A spoon."}
    path = files.rows(file_name, [good, good | {column: BROKEN[case]}])
    with pytest.raises(ColumnMappingError, match=f"row 2 .*: {column} looks like the messages of a chat") as caught:
        files.read(path)
    assert ("a spreadsheet cuts" in str(caught.value)) is ("spreadsheet" in case)
    assert list(caught.value.answers) == ["chats=plain", "chats=skip"]
    parsed = files.read(path, answers=frozenset({"chats=skip"}))
    assert (len(parsed.votes), parsed.errors) == (1, [])
    assert parsed.left_out == {f"{column} holds messages that cannot be read": 1}
    vote = files.read(path, answers=frozenset({"chats=plain"})).votes[1]
    assert BROKEN[case] in (vote.prompt, vote.first.text, vote.second.text)


@pytest.mark.parametrize(
    "text",
    ["[1] yes", "{}", "[]", '{"name": "wren", "legs": 2}', "[1, 2, 3]", '{"role": "manager", "content": "x"}',
     "{% if x %}", "[{'species': 'wren'}]", "array index", '[{"id": 3, "text": 4'],
)  # fmt: skip
@pytest.mark.parametrize("file_name", ["v.csv", "v.jsonl"])
def test_other_texts_with_brackets_stay_texts(files, decided_texts, file_name, text):
    (vote,) = files.parse(file_name, [{"prompt": "Answer in JSON.", "chosen": text, "rejected": "no"}]).votes
    assert decided_texts(vote) == ("Answer in JSON.", text, "no")


def test_lists_are_decoded_as_numpy_and_pandas_write_them():
    assert read_cell("['A wren.' \"it's\"\n 'a \\' b']").decoded == ["A wren.", "it's", "a ' b"]
    assert read_cell("[5. 3.5 nan]").decoded == [5.0, 3.5, None]
    assert read_cell("[1, 2]").decoded == [1, 2]
    assert read_cell("[1, 2").decoded == "[1, 2"
    assert read_cell("{'a', 'b'}").decoded == "{'a', 'b'}"


@pytest.mark.parametrize(
    "hostile", ["['\\" * 60_000, "[" + "'\\'" * 60_000, "[" * 60_000, "[{'role': " + "(" * 5_000, "[" + " x" * 60_000]
)
def test_hostile_texts_are_no_chats(hostile):
    with pytest.raises(UnreadableError) if hostile.startswith("[{") else pytest.MonkeyPatch.context():
        assert read_cell(hostile).contents == hostile


HISTORY = [USER, WREN]
TURN_FORMS = {
    "rounds": [["Name a bird.", "A wren."]],
    "messages": HISTORY,
    "pairs of roles": [["user", "Name a bird."], ["Assistant", "A wren."]],
}


@pytest.mark.parametrize("file_name", ["v.csv", "v.jsonl", "v.parquet"])
@pytest.mark.parametrize("column", ["history", "before"])
@pytest.mark.parametrize("form", TURN_FORMS)
def test_earlier_turns_are_those_of_a_column_called_history_or_of_the_mapped_one(files, file_name, column, form):
    turns = TURN_FORMS[form] if file_name == "v.jsonl" else json.dumps(TURN_FORMS[form])
    row = {"prompt": "Another?", column: turns, "chosen": "A crow.", "rejected": "A fork."}
    path = files.rows(file_name, [row, row])
    parsed = files.read(path, mapping={} if column == "history" else {"history": "before"})
    assert parsed.errors == []
    assert {json.dumps(chat_of_prompt(vote.prompt)) for vote in parsed.votes} == {
        json.dumps([*HISTORY, {"role": "user", "content": "Another?"}])
    }
    assert parsed.mapping["history"] == column
    if column == "before":
        parsed = files.read(path)
        assert ({vote.prompt for vote in parsed.votes}, parsed.unused_columns) == ({"Another?"}, ("before",))


@pytest.mark.parametrize("column", ["tags", "metadata", "ratings", "context_words"])
@pytest.mark.parametrize("file_name", ["v.csv", "v.jsonl"])
def test_a_column_of_pairs_of_words_is_no_history(files, file_name, column):
    pairs = [["topic", "birds"], ["tone", "kind"]]
    row = {"prompt": "Name a bird.", "chosen": "A wren.", "rejected": "A spoon."}
    parsed = files.parse(file_name, [row | {column: pairs if file_name == "v.jsonl" else json.dumps(pairs)}])
    assert ([vote.prompt for vote in parsed.votes], parsed.unused_columns) == (["Name a bird."], (column,))


@pytest.mark.parametrize(
    "value",
    [[["user", "Hi."], ["Zoe", "Hello."]], [["topic"]], "once upon a time", '[["Hi.", "Hello."'],
)
def test_pairs_with_names_of_speakers_and_other_values_are_no_turns(files, value):
    with pytest.raises(UnreadableError):
        validate_chat(parse_turns(value))
    row = {"prompt": "Name a bird.", "before": value, "chosen": "A wren.", "rejected": "A spoon."}
    (error,) = files.parse("v.jsonl", [row], mapping={"history": "before"}).errors
    assert error.message.startswith("before holds ")


@pytest.mark.parametrize("file_name", ["v.csv", "v.jsonl"])
@pytest.mark.parametrize(
    ("histories", "is_asked"),
    [([[["Zoe", "Hi."], ["Bob", "Hello."]]], True), ([[["Ann", "Hi."], ["Bob", "Hello."], ["Ann", "Yes."]]], True),
     ([[["Ann", "Hi."]], [["Bob", "Hello."]]], True), ([[["Mr. Smith", "Hi."], ["李", "Hello."]]], True),
     ([[["Go on", "One."], ["Go on", "Two."]]], False), ([[["Hi", "Hello."]], [["What is a wren?", "A bird."]]], False)],
)  # fmt: skip
def test_pairs_that_may_begin_with_names_of_speakers_are_asked_about(files, file_name, histories, is_asked):
    row = {"prompt": "Another?", "chosen": "A crow.", "rejected": "A fork."}
    rows = [row | {"history": json.dumps(history) if file_name == "v.csv" else history} for history in histories]
    path = files.rows(file_name, rows * 2)
    if is_asked:
        with pytest.raises(ColumnMappingError, match=r"history holds pairs .*--map history=.*--answer history=rounds"):
            files.read(path)
    parsed = files.read(path, answers=frozenset({"history=rounds"} if is_asked else ()))
    first = [part for pair in histories[0] for part in pair]
    assert [turn["content"] for turn in chat_of_prompt(parsed.votes[0].prompt)] == [*first, "Another?"]


@pytest.mark.parametrize("file_name", ["v.csv", "v.jsonl"])
@pytest.mark.parametrize("mapping", [{}, {"history": "history"}])
def test_a_conversation_without_earlier_turns_may_have_an_empty_list(files, file_name, mapping):
    rows = [{"prompt": "A bird?", "history": cell, "chosen": "a", "rejected": "b"} for cell in ("[]", "", " [ ] ")]
    for written in (rows, [*rows, rows[0] | {"history": '[["Is it so?", "Yes."]]'}]):
        parsed = files.parse(file_name, written, mapping=mapping)
        assert (parsed.errors, [vote.prompt for vote in parsed.votes[:3]]) == ([], ["A bird?"] * 3)
        assert "Is it so?" in parsed.votes[-1].prompt or len(written) == 3


def test_a_column_of_chats_in_json_is_no_chat(files, decided_texts):
    """The file holds the values of each column; each value is a chat of one message, as text."""
    columns = {"prompt": [USER, USER], "chosen": [WREN, WREN], "rejected": [SPOON, SPOON]}
    written = {name: [json.dumps([message]) for message in messages] for name, messages in columns.items()}
    votes = files.parse("v.json", json.dumps(written)).votes
    assert [decided_texts(vote) for vote in votes] == [("Name a bird.", "A wren.", "A spoon.")] * 2


def test_a_prompt_of_pairs_with_roles_is_a_chat(files):
    context = [["user", "Hi."], ["assistant", "Hello."], ["user", "Name a bird."]]
    (vote,) = files.parse("v.jsonl", [{"context": context, "chosen": "A wren.", "rejected": "A spoon."}]).votes
    assert [(turn["role"], turn["content"]) for turn in chat_of_prompt(vote.prompt)] == [
        tuple(pair) for pair in context
    ]


def test_a_compared_message_that_calls_a_tool_is_an_error_and_other_keys_are_listed(files):
    call = {"type": "function", "function": {"name": "weather", "arguments": "{}"}}
    good = {
        "prompt": [USER],
        "chosen": [WREN | {"reasoning_content": "Hm.", "tool_calls": None}],
        "rejected": [SPOON | {"name": "x"}],
    }
    calls = [
        {"chosen": [WREN | {"content": "", "tool_calls": [call]}]},
        {"rejected": [SPOON | {"function_call": call}]},
    ]
    parsed = files.parse("v.jsonl", [good, *(good | change for change in calls)])
    assert len(parsed.votes) == 1
    assert [(error.row_number, error.message.partition(",")[0]) for error in parsed.errors] == [
        (2, "chosen has a message 1 that calls a tool"), (3, "rejected has a message 1 that calls a tool"),
    ]  # fmt: skip
    assert parsed.unused_columns == (
        "function_call (in rejected)", "name (in rejected)", "reasoning_content (in chosen)", "tool_calls (in chosen)",
    )  # fmt: skip


def test_parts_of_a_content_are_joined_like_words():
    parts = [{"type": "text", "text": "A wren"}, {"text": "sings."}, {"type": "text", "text": "\nYes."}]
    assert validate_chat([{"role": "assistant", "content": parts}])[0]["content"] == "A wren sings.\nYes."
    with pytest.raises(UnreadableError, match="whose content is a list"):
        validate_chat([{"role": "user", "content": [{"type": "image_url", "text": "x"}]}])
    for part in ({"toolUse": {"name": "weather"}}, {"image": "x.png"}, {"text": "A wren.", "image": "x.png"}):
        with pytest.raises(UnreadableError, match="whose content is a list"):
            validate_chat([{"role": "user", "content": [{"text": "Hi."}, part]}])


TALK = "\n\nHuman: Hi.\n\nAssistant: Hello.\n\nHuman: Name a bird. \n\nAssistant:"


@pytest.mark.parametrize("file_name", ["v.jsonl", "v.csv"])
@pytest.mark.parametrize(
    "prompt",
    [TALK, TALK.replace("\n", "\r"), f"{TALK} ", f"{TALK}\n", f"{TALK} \r\n", TALK.lstrip(),
     f"\n{TALK.lstrip()}", f"\n\n\n{TALK.lstrip()} ", TALK.replace("\n", "\r\n")],
)  # fmt: skip
def test_a_transcript_has_the_same_turns_whatever_white_space_is_around_it(files, file_name, prompt):
    parsed = files.parse(file_name, [{"prompt": prompt, "chosen": "A wren.", "rejected": "A spoon."}])
    assert [vote.prompt for vote in parsed.votes] == [TALK]
    conversations = {"chosen": f"{prompt.rstrip()} A wren.", "rejected": f"{prompt.rstrip()} A spoon."}
    parsed = files.parse(file_name, [conversations])
    assert [vote.prompt for vote in parsed.votes] == [TALK]


def test_line_ends_within_the_messages_of_a_transcript_stay(files):
    prompt = TALK.replace("Hello.", "Hello.\r\nHow are you?\r\n\r\nWell?")
    rows = [
        {"prompt": prompt, "chosen": "A wren.", "rejected": "A spoon."},
        {"chosen": f"{prompt} A\r\nwren.", "rejected": f"{prompt} No."},
    ]
    for row in rows:
        (vote,) = files.parse("v.jsonl", [row]).votes
        assert vote.prompt == prompt
        assert (vote.first.text + vote.second.text).count("\r\n") == str(row["chosen"]).count("A\r\nwren")


def test_the_cell_that_pandas_writes_of_two_messages(files, decided_texts):
    """As DataFrame.to_csv writes it: a cell of two lines in quotes."""
    text = (
        "prompt,chosen,rejected\nName a bird.,\"[{'content': 'Name a bird.', 'role': 'user'}\n"
        " {'content': 'A wren.', 'role': 'assistant'}]\",\"[{'content': 'Name a bird.', 'role': 'user'}\n"
        " {'content': 'A spoon.', 'role': 'assistant'}]\"\n"
    )
    (vote,) = files.parse("v.csv", text).votes
    assert decided_texts(vote) == ("Name a bird.", "A wren.", "A spoon.")


@pytest.mark.parametrize("file_name", ["v.jsonl", "v.parquet"])
def test_an_object_with_a_list_of_roles_and_one_of_contents_is_a_chat(files, decided_texts, file_name):
    row = {"chosen": as_columns([USER, WREN]), "rejected": as_columns([USER, SPOON])}
    parsed = files.parse(file_name, [row, row])
    assert [*map(decided_texts, parsed.votes)] == [("Name a bird.", "A wren.", "A spoon.")] * 2
    assert read_cell({"role": "assistant", "content": ["a", "b"]}).contents == [
        {"role": "assistant", "content": ["a", "b"]}
    ]


WRAPPED = {
    "parts": lambda text: [{"type": "text", "text": text}],
    "LangChain": lambda text: [{"type": "human", "content": "Name a bird."}, {"type": "ai", "content": text}],
    "LangChain with data": lambda text: {"type": "ai", "data": {"content": text, "type": "ai"}},
    "keys that are roles": lambda text: [{"user": "Name a bird."}, {"assistant": text}],
}
OBJECTS = {
    "content": lambda text: {"content": text},
    "text": lambda text: {"model": "x", "text": text},
}


def rows_of(wrap, file_name):
    row = {"prompt": "Name a bird.", "chosen": wrap("A wren."), "rejected": wrap("A spoon.")}
    if file_name == "v.csv":
        row |= {name: json.dumps(row[name]) for name in ("chosen", "rejected")}
    return [row, row]


@pytest.mark.parametrize("file_name", ["v.csv", "v.jsonl"])
@pytest.mark.parametrize("form", WRAPPED)
def test_a_text_within_parts_or_messages_is_the_same_as_text_and_as_value(files, decided_texts, file_name, form):
    votes = files.parse(file_name, rows_of(WRAPPED[form], file_name)).votes
    assert [*map(decided_texts, votes)] == [("Name a bird.", "A wren.", "A spoon.")] * 2


@pytest.mark.parametrize("file_name", ["v.csv", "v.jsonl"])
@pytest.mark.parametrize("key", OBJECTS)
def test_an_object_with_a_text_is_asked_about_and_its_part_can_be_mapped(files, decided_texts, file_name, key):
    path = files.rows(file_name, rows_of(OBJECTS[key], file_name))
    with pytest.raises(ColumnMappingError, match=rf"--map chosen=chosen\.{key}"):
        files.read(path)
    votes = files.read(path, mapping={"chosen": f"chosen.{key}", "rejected": f"rejected.{key}"}).votes
    assert [*map(decided_texts, votes)] == [("Name a bird.", "A wren.", "A spoon.")] * 2


@pytest.mark.parametrize(
    "text", ['{"model": "Tesla"}', '[{"user": "ann"}, {"user": "bob"}]', '{"type": "human", "age": 3}']
)
def test_an_answer_in_json_is_a_text(files, text):
    parsed = files.parse("v.csv", [{"prompt": "p", "chosen": text, "rejected": "no"}])
    assert text in (parsed.votes[0].first.text, parsed.votes[0].second.text)


@pytest.mark.parametrize("empty", [[], {}, "[]", "{}", "", None])
def test_an_empty_input_is_none_and_another_object_is_an_error_with_a_remedy(files, empty):
    row = {"instruction": "Add.", "input": empty, "chosen": "A wren.", "rejected": "A spoon."}
    parsed = files.parse("v.jsonl", [row, *(row | {"input": value} for value in (["a", "b"], {"a": 1}, True, 5))])
    assert [vote.prompt for vote in parsed.votes] == ["Add.", "Add.\n\n5"]
    kinds = [error.message.partition(",")[0] for error in parsed.errors]
    assert kinds == ["input is a list", "input is an object", "input is true or false"]
    assert all("--map prompt=instruction --map input=" in error.message for error in parsed.errors)
    assert len(files.read(files.folder / "v.jsonl", mapping={"prompt": "instruction", "input": ""}).votes) == 5


def test_an_input_that_is_the_text_of_a_list_stays_as_it_is_written(files):
    row = {"instruction": "Sort.", "input": '["b", "a"]', "chosen": "A wren.", "rejected": "A spoon."}
    assert files.parse("v.csv", [row]).votes[0].prompt == 'Sort.\n\n["b", "a"]'


def test_one_row_of_lists_of_objects_can_be_taken_as_a_row(files):
    row = {name: WRAPPED["parts"](text) for name, text in (("prompt", "p"), ("chosen", "a"), ("rejected", "b"))}
    path = files.rows("v.jsonl", [row])
    with pytest.raises(ColumnMappingError, match=r"several lists of rows: prompt, chosen, rejected.*--answer file=row"):
        files.read(path)
    vote = files.read(path, answers=frozenset({"file=row"})).votes[0]
    assert (vote.prompt, {vote.first.text, vote.second.text}) == ("p", {"a", "b"})
