"""What a cell holds: a text, the messages of a chat, or a list, whatever wrote it and in every format and column.

JSON and Parquet have lists of their own. A text can also be a list: as JSON, or as Python, numpy and pandas print one. A text is
a chat only if all of it can be read as messages; one that begins like messages and cannot be read is an error.
"""

import ast
import json
import re
import warnings
from collections import Counter
from typing import Any

from rlhf_lab.common.chat_format import ROLE_ALIASES, ROLE_KEYS, SPEAKER_BY_ROLE, UnreadableError, is_message

#: Keys of an object that holds the messages of a conversation.
CONVERSATION_KEYS = ("messages", "conversations", "conversation")
SPREADSHEET_CELL_CHARS = 32_767  # spreadsheets cut off longer texts
MAX_PYTHON_CHARS = 1_000_000  # of a text that is parsed as Python, which takes far more memory than JSON
_LIST_START = re.compile(r"\s*(?:[\[{]|array\()")
_MESSAGES_START = re.compile(
    r"""\s*(?:array\(\s*)?(?:
        \[\s*(?:array\(\s*)?["']?\{\s*\\?["'](?:role|from|content|value|text)\\?["']\s*:
      | \{\s*["'](?:role|from|content|messages|conversations?)["']\s*:)""",
    re.VERBOSE,
)
_PYTHON_TOKEN = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[\w.+-]+|[}\])]|\\.""", re.DOTALL)
_NEXT_VALUE = re.compile(r"""\s+['"{\[\w-]""")


class UniqueNameDecoder(json.JSONDecoder):
    """Decodes JSON and records names that an object gives twice, of which Python would keep the last.

    Attributes:
        outer_name: a repeated name of the outermost object, or "".
    """

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=self._make_object)
        self.outer_name = self._repeated_name = ""

    def _make_object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        self.outer_name = ""
        if len(value) < len(pairs):
            self.outer_name = Counter(name for name, _ in pairs).most_common(1)[0][0]
            self._repeated_name = self._repeated_name or self.outer_name
        return value

    def repetition_error(self) -> str:
        """The error of a name repeated since the last call, or ""."""
        name, self._repeated_name = self._repeated_name, ""
        return f'"{name[:40]}" is in an object twice. Keep one of them, or rename one' if name else ""


def decode_cell(value: Any) -> Any:
    """A text that is a list or an object as that; any other value unchanged."""
    return _decode(value)[0] if isinstance(value, str) else value


def parse_chat(value: Any) -> Any:
    """The messages in a cell; any other value unchanged.

    Raises UnreadableError for a text that begins like messages and cannot be read.
    """
    decoded, error = _decode(value) if isinstance(value, str) else (value, "")
    messages = _find_messages(decoded, is_text=isinstance(value, str))
    if messages is None:
        if decoded is value and isinstance(value, str) and _MESSAGES_START.match(value):
            raise UnreadableError(_unreadable_chat_message(value))
        return value
    if error:
        raise UnreadableError(f"is not clear: {error}")
    return messages


def is_chat(value: Any) -> bool:
    """Whether a cell holds the messages of a chat."""
    try:
        value = parse_chat(value)
    except UnreadableError:
        return False
    return isinstance(value, list) and all(map(is_message, value))


def is_text_list(value: Any) -> bool:
    """Whether a cell is a list of texts, as of the user's turns of a conversation; missing ones are null."""
    return isinstance(value, list) and value != [] and all(item is None or isinstance(item, str) for item in value)


def is_rounds(value: Any) -> bool:
    """Whether a cell holds rounds of a conversation: [[question, answer], …]."""
    return isinstance(value, list) and all(
        isinstance(item, list) and list(map(type, item)) == [str, str] for item in value
    )


def parse_turns(value: Any) -> list[Any]:
    """The messages of a cell with earlier turns: a chat, or rounds of a question and its answer. Raises UnreadableError."""
    messages = parse_chat(value)
    if isinstance(messages, list) and any(map(is_message, messages)):
        return messages
    rounds = decode_cell(value)
    if not is_rounds(rounds):
        raise UnreadableError("holds no earlier turns. Write them as messages or as [[question, answer], …]")
    questions = [question for question, _ in rounds]
    is_repeated = len(set(questions)) < len(questions) and all(re.fullmatch(r"\w+", name) for name in questions)
    if is_repeated or any(map(_role_of, questions)):
        raise UnreadableError(
            f"holds pairs with {questions[0][:40]!r}, which looks like the name of a speaker. Call the speakers "
            f"{', '.join(SPEAKER_BY_ROLE)}, or write messages"
        )
    return [
        {"role": role, "content": text}
        for pair in rounds
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]


def is_turns(value: Any) -> bool:
    """Whether a cell holds earlier turns of a conversation, in a form that `parse_turns` reads or refuses."""
    return is_rounds(decode_cell(value)) or is_chat(value)


def other_message_keys(messages: list[Any]) -> set[str]:
    """Keys of messages that hold something and are neither role nor content."""
    return {
        str(key)
        for message in messages if isinstance(message, dict)
        for key, item in message.items()
        if item not in (None, "", [], {}) and _used_key(message, ROLE_KEYS) != key and _used_key(message) != key
    }  # fmt: skip


def _used_key(message: dict[str, Any], keys: tuple[str, ...] = ("content", "value", "text")) -> str:
    return next((key for key in keys if key in message), "")


def _role_of(name: Any) -> str:
    """The role that a speaker's name means, or ""."""
    name = name.lower() if isinstance(name, str) else ""
    return ROLE_ALIASES.get(name, name if name in SPEAKER_BY_ROLE else "")


def _find_messages(value: Any, *, is_text: bool) -> list[Any] | None:
    """The messages in a decoded value, or None. is_text: one object must name a known role, because a text can be any JSON."""
    if isinstance(value, dict):
        lists = (value[key] for key in CONVERSATION_KEYS if isinstance(value.get(key), list))
        messages = next(filter(None, (_find_messages(item, is_text=False) for item in lists)), None)
        is_one = is_message(value) and (not is_text or any(_role_of(value.get(key)) for key in ROLE_KEYS))
        return messages or ([value] if is_one else None)
    if not isinstance(value, list) or not value:
        return None
    if any(map(is_message, value)):
        return value
    if all(isinstance(item, str) and item.lstrip().startswith("{") for item in value):
        decoded = [_decode(item)[0] for item in value]
        return decoded if all(map(is_message, decoded)) else None
    is_pairs = all(isinstance(item, list) and len(item) == 2 and _role_of(item[0]) for item in value)
    if is_pairs:
        return [{"role": _role_of(name), "content": text} for name, text in value]
    return _find_messages(value[0], is_text=False) if len(value) == 1 and isinstance(value[0], list) else None


def _decode(text: str) -> tuple[Any, str]:
    """(the list or object that a text is, or the text, error of a name that is in an object twice)."""
    if not _LIST_START.match(text):
        return text, ""
    decoder = UniqueNameDecoder()
    try:
        return decoder.decode(text.strip()), decoder.repetition_error()
    except (ValueError, RecursionError):
        return _decode_python(text.strip()), ""


def _decode_python(text: str) -> Any:
    """A list or an object as Python, numpy (without commas; `array(…, dtype=object)`) and pandas print it; any other text
    unchanged."""
    if len(text) > MAX_PYTHON_CHARS:
        return text
    with_commas = _PYTHON_TOKEN.sub(
        lambda match: f"{match[0]}," if _NEXT_VALUE.match(text, match.end()) else match[0], text
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of unknown escapes in texts that are no Python
            tree = ast.parse(with_commas, mode="eval")
        value = ast.literal_eval(_PlainValues().visit(tree))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text
    return value if isinstance(value, list | dict) else text


class _PlainValues(ast.NodeTransformer):
    """Replaces array(values, dtype=…) by its values and nan by None."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        is_array = isinstance(node.func, ast.Name) and node.func.id == "array" and len(node.args) == 1
        return self.visit(node.args[0]) if is_array else node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(None) if node.id in ("nan", "NaN", "null") else node


def _unreadable_chat_message(text: str) -> str:
    if len(text) >= SPREADSHEET_CELL_CHARS - 1:
        return (
            f"begins like the messages of a chat and breaks off after {len(text):,} characters; a spreadsheet cuts a cell off "
            f"at {SPREADSHEET_CELL_CHARS:,}. Export the data again as JSON Lines"
        )
    return "begins like the messages of a chat, but cannot be read as JSON or as Python writes it. Export it again as JSON Lines"
