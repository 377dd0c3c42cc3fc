"""What a cell holds: a text, the messages of a chat, or a list, whatever wrote it and in every format and column.

JSON and Parquet have lists of their own. A text can also be a list: as JSON (also JSON within JSON, or with curly quotes), or as
Python, numpy and pandas print one. A text is a chat only if all of it can be read as messages. One that looks like a chat and
cannot be read is an error, which becomes a question to the user.
"""

import ast
import json
import math
import re
import warnings
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rlhf_lab.common.chat_format import (
    CONTENT_KEYS,
    ROLE_ALIASES,
    ROLE_KEYS,
    SPEAKER_BY_ROLE,
    UnreadableError,
    is_message,
    join_parts,
    role_of,
)

#: Keys of an object that holds the messages of a conversation.
CONVERSATION_KEYS = ("messages", "conversations", "conversation")
ANSWER_KEYS = ("response", "answer", "completion", "text", "output", "generation")
SCORE_KEYS = ("overall_score", "fine-grained_score", "score", "rating")
RANK_KEY = "rank"  # 1, or 0, is the best
SPREADSHEET_CELL_CHARS = 32_767  # spreadsheets cut off longer texts
MAX_PYTHON_CHARS = 1_000_000  # of a text that is parsed as Python, which takes far more memory than JSON
#: How programs print objects: brackets, with a name or none, and keys before values: `User(name="x")`, `{:a => 1}`, `x[a:1]`.
_OBJECT_START = re.compile(r"""(?:#<|#?[\w.$%@&!*]{0,40}[\[{]|#?[\w.$]{1,40}\(|\w{1,40}=["'\[{])""")
_OBJECT_KEY = re.compile(
    r"""(?:[\[({<,;]\s*|\A)[:"'%]?[^\W\d][\w.-]{0,40}["']?\s*(?:=>|->|[:=](?!//))|\s[^\W\d]\w{0,40}(?:[:=](?=[^\s/])|\s*[=-]>)"""
)
_LIST_START = re.compile(r"""\s*(?:[\[{]|array\(|\(\s*[\[({"'“‘„]|["'“‘„]\s*(?:\\["']|[\[{(]))""")
_PYTHON_TOKEN = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[\w.+-]+|[}\])]|\\.""", re.DOTALL)
#: What can stand before a list: white space, and marks without width such as a byte order mark.
INVISIBLE = "\ufeff\u200b\u200c\u200d\u2060\u200e\u200f \t\r\n"
_SPACE = re.compile(r"\s*")
_NEXT_VALUE = re.compile(r"""\s+['"{\[\w-]""")
_CURLY_QUOTES = {"“”„": '"', "‘’‚": "'"}

# What texts that look like a chat have in common, however their quotes are escaped, doubled, curly or lost.
_Q = r"""(?:\\{0,4}["'`“”„‘’]|&quot;|&\#34;)"""
_ROLES = "|".join([*SPEAKER_BY_ROLE, *ROLE_ALIASES, "tool", "developer"])
_CONTENT_NAMES = "content|value|text|message|utterance"


def _key(names: str) -> str:
    return rf"(?:{_Q}{{1,2}}|(?<=[\s,{{(\[]))(?:{names}){_Q}{{0,2}}\s{{0,20}}[:=]"


_SAYS_ROLE = re.compile(rf"{_key('role|from|speaker|author|sender')}\s{{0,20}}{_Q}{{0,2}}(?:{_ROLES})\b", re.IGNORECASE)
_SAYS_CONTENT = re.compile(rf"{_key(_CONTENT_NAMES)}\s{{0,20}}{_Q}", re.IGNORECASE)
_STRUCTURE_START = re.compile(rf"\s*{_Q}{{0,2}}(?:\w{{0,30}}[\[({{]|-\s)")
_BRACKET_START = re.compile(rf"[\s{INVISIBLE}]*(?:{_LIST_START.pattern}|{_STRUCTURE_START.pattern})")
_OBJECTS_START = re.compile(rf"\s*{_Q}{{0,2}}(?:array\(\s*)?[\[(]\s*(?:array\(\s*)?{_Q}{{0,2}}\{{")
_ROLE_PAIR_START = re.compile(
    rf"\s*{_Q}{{0,2}}(?:array\(\s*)?[\[(]{{1,3}}\s*{_Q}{{1,2}}(?:{_ROLES}){_Q}{{1,2}}[\s,]", re.IGNORECASE
)
_MESSAGE_START = re.compile(
    rf"\s*{_Q}{{0,2}}\{{\s*{_key('role|from|content|messages|conversations?')}"
    rf"|{_OBJECTS_START.pattern}\s*{_key(f'role|from|{_CONTENT_NAMES}')}",
    re.IGNORECASE,
)


class UniqueNameDecoder(json.JSONDecoder):
    """Decodes JSON and records names that an object gives twice, of which Python would keep the last.

    Attributes:
        outer_name: a repeated name of the outermost object, or "".
    """

    def __init__(self, *, strict: bool = True) -> None:
        super().__init__(object_pairs_hook=self._make_object, strict=strict)
        self.outer_name = self._repeated_name = ""

    def _make_object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        self.outer_name = ""
        if len(value) < len(pairs):
            self.outer_name = Counter(name for name, _ in pairs).most_common(1)[0][0]
            self._repeated_name = self._repeated_name or self.outer_name
        return value

    def decode_all(self, text: str) -> Any:
        """The value in a text without white space around it; a list of them if there are several, as in JSON Lines."""
        values: list[Any] = []
        position = 0
        while position < len(text):
            value, end = self.raw_decode(text, position)
            values.append(value)
            space = _SPACE.match(text, end)
            position = space.end() if space else end
        return values[0] if len(values) == 1 else values

    def repetition_error(self) -> str:
        """The error of a name repeated since the last call, or ""."""
        name, self._repeated_name = self._repeated_name, ""
        return f'"{name[:40]}" occurs twice in an object. Keep one of them, or rename one' if name else ""


class Kind(StrEnum):
    """What a cell can hold."""

    BLANK = "blank"  # nothing, also as an empty list
    TEXT = "text"
    CHAT = "chat"
    ROUNDS = "rounds"  # of a conversation: [[question, answer], …]
    ANSWERS = "answers"  # with scores or ranks
    RESPONSES = "responses"  # of several people to a question
    SIDE = "side"  # that somebody selected in Label Studio
    RANKING = "ranking"  # of a list in Label Studio
    TEXTS = "texts"
    NUMBERS = "numbers"
    OTHER = "other"


@dataclass(frozen=True)
class Cell:
    """What a cell holds.

    Attributes:
        value: the messages of a chat, the text of parts as in a content; else the cell itself.
        decoded: the list or the object in a cell, also in one that is a text; else the cell itself.
        error: why a text that looks like messages cannot be read as them.
    """

    kind: Kind
    value: Any
    decoded: Any
    error: str = ""

    @property
    def contents(self) -> Any:
        """`value`. Raises UnreadableError for what looks like messages and cannot be read."""
        if self.error:
            raise UnreadableError(self.error)
        return self.value

    @property
    def is_chat(self) -> bool:
        return self.kind is Kind.CHAT and not self.error and all(map(is_message, self.value))


def read_cell(value: Any) -> Cell:
    """What a cell holds, in every file format and column."""
    if isinstance(value, str) and not _BRACKET_START.match(value):  # as nearly all texts
        return Cell(Kind.TEXT if value.strip() else Kind.BLANK, value, value)
    decoded, error = _decode(value) if isinstance(value, str) else (value, "")
    if is_empty_cell(value) or decoded in ([], {}):
        return Cell(Kind.BLANK, value, decoded)
    try:
        messages = _find_messages(decoded, is_text=isinstance(value, str))
    except UnreadableError as unreadable:
        return Cell(_kind_of(decoded), value, decoded, str(unreadable))
    if messages is not None:
        return Cell(Kind.CHAT, messages, decoded, f"is not clear: {error}" if error else "")
    if (text := join_parts(decoded)) is not decoded and all("type" in part for part in decoded):
        return Cell(Kind.TEXT, text, decoded)
    is_unreadable = isinstance(value, str) and _looks_like_chat(value, is_complete=decoded is not value)
    return Cell(_kind_of(decoded), value, decoded, _unreadable_chat_message(value) if is_unreadable else "")


def _kind_of(decoded: Any) -> Kind:
    """The kind of a cell that is no chat."""
    if not isinstance(decoded, list | dict):
        return Kind.TEXT if isinstance(decoded, str) else Kind.OTHER
    result = one_result(decoded)
    if "selected" in result or isinstance(result.get("ranker"), dict):
        return Kind.SIDE if "selected" in result else Kind.RANKING
    items: list[Any] = decoded if isinstance(decoded, list) else [None]
    if all(isinstance(item, dict) for item in items):
        is_response = all({"value", "user_id"} <= set(item) for item in items)
        is_answer = all(not is_message(item) and any(key in item for key in ANSWER_KEYS) for item in items)
        is_scored = any(key in item for item in items for key in (*SCORE_KEYS, RANK_KEY))
        return Kind.RESPONSES if is_response else Kind.ANSWERS if is_answer and is_scored else Kind.OTHER
    if is_rounds(items):
        return Kind.ROUNDS
    types = {type(item) for item in items} - {type(None)}
    return Kind.TEXTS if types == {str} else Kind.NUMBERS if types and types <= {int, float} else Kind.OTHER


def is_printed_object(text: str) -> bool:
    """Whether a text looks like a printed object, in a form that `read_cell` does not read, and not like prose."""
    written, text = text, text.strip()
    return (
        text[-1:] in ("]", "}", ")", ">", "'", '"')
        and "</" not in text
        and _OBJECT_START.match(text) is not None
        and len(_OBJECT_KEY.findall(text)) + len(re.findall(r"\A[\[\s]*\w+\(\w+=['\"]", text)) > 1
        and read_cell(written).decoded is written
    )


def is_empty_cell(value: Any) -> bool:
    """Whether a cell holds nothing: None, white space, or the NaN that pandas writes for a missing value."""
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or (isinstance(value, str) and not value.strip())


def one_result(value: Any) -> dict[str, Any]:
    """The value of the one result of a Label Studio annotation, which JSON-MIN and CSV put into a list; {} for other cells."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value if isinstance(value, dict) else {}


def _join_chats(texts: list[str]) -> list[Any] | None:
    """The messages in a list of texts, each of which is an object; a list of one text may hold a chat. None for others."""
    parts = [read_cell(text).contents for text in texts]
    is_joined = len(texts) == 1 or all(text.lstrip().startswith("{") for text in texts)
    if is_joined and all(isinstance(part, list) for part in parts):
        return [message for part in parts for message in part]
    return None


def _looks_like_chat(text: str, *, is_complete: bool) -> bool:
    """Whether a text without messages looks like one with them. is_complete: it is a whole list or object."""
    text = text.lstrip(INVISIBLE)
    if not _STRUCTURE_START.match(text):
        return False
    if _ROLE_PAIR_START.match(text):
        return True
    says_role, says_content = _SAYS_ROLE.search(text), _SAYS_CONTENT.search(text)
    if is_complete:
        return bool(says_role and says_content)
    return bool(says_role or _MESSAGE_START.match(text) or (says_content and _OBJECTS_START.match(text)))


def is_rounds(value: Any) -> bool:
    """Whether a cell holds rounds of a conversation: [[question, answer], …]; the last may have no answer yet."""
    return isinstance(value, list) and all(
        isinstance(item, list)
        and len(item) == 2
        and isinstance(item[0], str)
        and (isinstance(item[1], str) or (item[1] is None and item is value[-1]))
        for item in value
    )


def parse_turns(value: Any) -> list[Any]:
    """The messages of a cell with earlier turns: a chat, or rounds of a question and its answer. Raises UnreadableError."""
    cell = read_cell(value)
    messages, rounds = cell.contents, cell.decoded
    if cell.kind is Kind.CHAT:
        return list(messages)
    if not is_rounds(rounds):
        raise UnreadableError("holds no earlier turns. Write them as messages or as [[question, answer], …]")
    questions = [question for question, _ in rounds]
    if any(map(role_of, questions)):
        raise UnreadableError(
            f"holds pairs with {questions[0][:40]!r}, which looks like the name of a speaker. Call the speakers "
            f"{', '.join(SPEAKER_BY_ROLE)}, or write messages"
        )
    return [
        {"role": role, "content": text}
        for pair in rounds
        for role, text in zip(("user", "assistant"), pair, strict=True)
        if text or pair is not rounds[-1] or role == "user"
    ]


def other_message_keys(messages: list[Any]) -> set[str]:
    """Keys of messages that hold something and are neither role nor content."""
    return {
        str(key)
        for message in messages if isinstance(message, dict)
        for key, item in message.items()
        if item not in (None, "", [], {}) and _used_key(message, ROLE_KEYS) != key and _used_key(message) != key
    }  # fmt: skip


def _used_key(message: dict[str, Any], keys: tuple[str, ...] = CONTENT_KEYS) -> str:
    return next((key for key in keys if key in message), "")


def _as_message(value: Any) -> Any:
    """A message whose keys are written in another case, or whose type is its role, with the usual ones; any other value
    unchanged."""
    if not isinstance(value, dict) or is_message(value):
        return value
    lowered = {str(key).strip().lower(): item for key, item in value.items()}
    if role := role_of(lowered.get("type")):  # of LangChain, whose content can be in "data"
        data = lowered.get("data")
        message = {"role": role, **(data if isinstance(data, dict) else lowered)}
        message.pop("type", None)
        return message if is_message(message) else value
    return lowered if is_message(lowered) and len(lowered) == len(value) else value


def _columns_of_messages(value: dict[str, Any]) -> list[Any]:
    """The messages of an object with a list of roles and a list of contents, as `datasets` writes them; [] for any other."""
    roles, contents = (value[_used_key(value, keys)] for keys in (ROLE_KEYS, CONTENT_KEYS))
    is_parallel = isinstance(roles, list) and isinstance(contents, list) and len(roles) == len(contents)
    if not is_parallel or not any(map(role_of, roles)):
        return []
    columns = {key: item for key, item in value.items() if isinstance(item, list) and len(item) == len(roles)}
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def _messages_of_object(value: dict[str, Any], *, is_text: bool) -> list[Any] | None:
    """As `_find_messages`."""
    one = _as_message(value)
    if is_message(one) and (columns := _columns_of_messages(one)):
        return columns
    lists = (read_cell(item).decoded for key, item in value.items() if str(key).lower() in CONVERSATION_KEYS)
    found = (_find_messages(item, is_text=False) for item in lists if isinstance(item, list | dict))
    messages = next(filter(None, found), None)
    is_one = is_message(one) and (not is_text or any(role_of(one.get(key)) for key in ROLE_KEYS))
    return messages or ([one] if is_one else None)


def _messages_of_pairs(value: list[Any]) -> list[Any]:
    """The messages in [[role, content], …], or in [{role: content}, …] if one is the assistant's; [] for any other list."""
    if all(isinstance(item, list) and len(item) == 2 and role_of(item[0]) for item in value):
        return [{"role": role_of(name), "content": text} for name, text in value]
    if not all(isinstance(item, dict) and len(item) == 1 for item in value):
        return []
    messages = [{"role": role_of(name), "content": text} for item in value for name, text in item.items()]
    roles = [message["role"] for message in messages]
    return messages if all(roles) and "assistant" in roles else []


def _find_messages(value: Any, *, is_text: bool) -> list[Any] | None:
    """The messages in a decoded value, or None. is_text: one object must name a known role, because a text can be any JSON."""
    if isinstance(value, dict):
        return _messages_of_object(value, is_text=is_text)
    if not isinstance(value, list) or not value:
        return None
    items = list(map(_as_message, value))
    if any(map(is_message, items)):
        return items
    if all(isinstance(item, str) for item in value):
        return _join_chats(value)
    if messages := _messages_of_pairs(value):
        return messages
    return _find_messages(value[0], is_text=False) if len(value) == 1 and isinstance(value[0], list) else None


def _decode(text: str) -> tuple[Any, str]:
    """(the list or object that a text is, or the text itself, error of a name that occurs twice in an object)."""
    written, text = text, text.lstrip(INVISIBLE)
    if not _LIST_START.match(text):
        return written, ""
    decoder, error = UniqueNameDecoder(strict=False), ""
    try:
        value = decoder.decode_all(text.strip())
        error = decoder.repetition_error()
    except (ValueError, RecursionError):
        value = _decode_python(text.strip())
    if isinstance(value, str) and len(value) < len(text.strip()):  # JSON within JSON
        value, error = _decode(value)
    if isinstance(value, list | dict):
        return value, error
    straight = _normalize_quotes(text)
    value, error = _decode(straight) if straight != text else (text, "")
    return (value, error) if isinstance(value, list | dict) else (written, "")


def _normalize_quotes(text: str) -> str:
    """A text all of whose quotes are curly with straight ones; any other text unchanged."""
    for curly, straight in _CURLY_QUOTES.items():
        if not set(curly).isdisjoint(text):
            is_clear = '"' not in text and straight not in text
            return re.sub(f"[{curly}]", straight, text) if is_clear else text
    return text


def _decode_python(text: str) -> Any:
    """A list, an object or a text as Python, numpy (without commas; `array(…, dtype=object)`) and pandas print it; any other text
    unchanged. Tuples are lists."""
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
    return value if isinstance(value, list | dict | str) else text


class _PlainValues(ast.NodeTransformer):
    """Replaces array(values, dtype=…) by its values, tuples by lists, and nan by None."""

    def visit_Tuple(self, node: ast.Tuple) -> ast.AST:
        return self.generic_visit(ast.List(node.elts, node.ctx))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        is_array = isinstance(node.func, ast.Name) and node.func.id == "array" and len(node.args) == 1
        return self.visit(node.args[0]) if is_array else node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(None) if node.id in ("nan", "NaN", "null") else node


def _unreadable_chat_message(text: str) -> str:
    if len(text) >= SPREADSHEET_CELL_CHARS - 1:
        return (
            f"looks like the messages of a chat and breaks off after {len(text):,} characters; a spreadsheet cuts a cell off "
            f"at {SPREADSHEET_CELL_CHARS:,}. Export the data again as JSON Lines"
        )
    return (
        'looks like the messages of a chat, but cannot be read as a list of {"role", "content"}, as JSON or Python writes one. '
        "Export it again as JSON Lines"
    )
