"""Parse cells as choices, numbers, timestamps, booleans, token ids. All functions raise UnreadableError."""

import ast
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rlhf_lab.common.chat_format import UnreadableError, is_message
from rlhf_lab.common.enums import Choice

CHOICE_WORDS = {
    Choice.FIRST: ("first", "1", "a", "left", "x", "model_a", "response_1", "response_a", "model_x", "chosen"),
    Choice.SECOND: ("second", "2", "b", "right", "y", "model_b", "response_2", "response_b", "model_y", "rejected"),
    Choice.TIE: ("tie", "0", "draw", "equal", "same", "both", "both_good"),
    Choice.BOTH_BAD: ("both_bad", "neither", "tie (bothbad)", "both bad", "bothbad"),
    Choice.SKIP: ("skip", "skipped"),
}
CHOICE_BY_WORD = {word: choice for choice, words in CHOICE_WORDS.items() for word in words}
EMPTY_VALUES: tuple[Any, ...] = (None, "")
YEAR_2000, YEAR_2100 = 946_684_800, 4_102_444_800  # seconds since 1970


def is_blank(value: Any) -> bool:
    """Whether a cell holds nothing: None, white space, or the NaN that pandas writes for a missing value."""
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or (isinstance(value, str) and not value.strip())


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


def parse_choice(value: Any, custom_words: Mapping[str, Choice], text_names: Mapping[str, Choice] = {}) -> Choice:
    """A vote by `custom_words` (--choices), or if that is empty by `text_names` (keys of the texts' columns) or CHOICE_BY_WORD.

    "none" is not among the known words: it can mean "neither text", and it is how Python writes a missing value.
    """
    word = normalize_cell(value)
    if is_blank(value) and word not in custom_words:
        raise UnreadableError("is missing. Write the vote, or take the row out")
    choices = custom_words or CHOICE_BY_WORD
    named = None if custom_words else text_names.get(name_key(word))
    choice = named or choices.get(word) or choices.get(word.lower())
    if choice is None:
        allowed = (
            ", ".join(custom_words)
            if custom_words
            else "first, second, tie, both_bad (also a/b, left/right, 1/2, 0 for a tie)"
        )
        raise UnreadableError(f"is {word[:40]!r}; it can be {allowed}. Say what other words mean with --choices")
    return choice


def name_key(name: str) -> str:
    """A name without case and punctuation: "response-1", "Response 1" and "response1" are the same."""
    return re.sub(r"[\W_]+", "", name.lower())


def parse_choice_words(text: str) -> dict[str, Choice]:
    """ "0=first,1=second" as a dict. Raises UnreadableError."""
    choices = {}
    for item in text.split(","):
        word, separator, meaning = item.partition("=")
        if not separator or meaning.strip() not in tuple(Choice):
            raise UnreadableError(f"{item!r} is not WORD=CHOICE, CHOICE being one of {', '.join(Choice)}")
        word = normalize_cell(word)
        if word in choices:
            raise UnreadableError(f"{word!r} has two meanings. Give each word one")
        choices[word] = Choice(meaning.strip())
    return choices


def normalize_cell(value: Any) -> str:
    """The cell as text; equal numbers give equal texts, so "1.0", 1 and 1.0 are all "1"."""
    word = str(value).strip()
    if not re.fullmatch(r"[+-]?[0-9]+([.][0-9]*)?", word):
        return word
    number = float(word)
    return str(int(number)) if number.is_integer() else str(number)


def parse_number(value: Any) -> float:
    """A finite number; bool is none."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UnreadableError(f"is {str(value)[:40]!r}, not a number") from None
    except OverflowError:
        raise UnreadableError("is a number of more digits than any score has") from None
    if isinstance(value, bool) or not math.isfinite(number):
        raise UnreadableError(f"is {value}, not a finite number")
    return number


def parse_int(value: Any) -> int | None:
    if value in EMPTY_VALUES:
        return None
    number = parse_number(value)
    if not number.is_integer() or abs(number) >= 2**63:
        raise UnreadableError(f"is {value}, not a whole number that can be stored")
    return int(value) if isinstance(value, int) else int(number)


def parse_bool(value: Any) -> bool | None:
    """True, False, or None for an empty cell."""
    if value in EMPTY_VALUES:
        return None
    word = normalize_cell(value).lower()
    if word in ("true", "1", "yes"):
        return True
    if word in ("false", "0", "no"):
        return False
    raise UnreadableError(f"is {str(value)[:40]!r}; it can be true or false")


def parse_timestamp(value: Any, is_own_export: bool = False) -> float | None:
    """Seconds since 1970, from an ISO date (UTC if it has no zone) or a number of seconds, milli-, micro- or nanoseconds.

    An export of a lab holds seconds. Elsewhere a number is a time from 2000 to 2099 in one of these units, or an error.
    """
    if value in EMPTY_VALUES:
        return None
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    try:
        number = parse_number(value)
    except UnreadableError:
        number = None
    if number is not None:
        return number if is_own_export else _to_seconds(number)
    try:
        parsed = datetime.fromisoformat(str(value))
    except ValueError:
        raise UnreadableError(
            f"is {str(value)[:40]!r}, neither seconds since 1970 nor a date like 2026-01-31T12:00:00"
        ) from None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def _to_seconds(number: float) -> float:
    """A time since 1970 in seconds. In one unit at most it is in this century."""
    for units_per_second in (1, 1e3, 1e6, 1e9):
        if YEAR_2000 <= number / units_per_second < YEAR_2100:
            return number / units_per_second
    raise UnreadableError(
        f"is {number:.15g}, no time from 2000 to 2099 in seconds, milli-, micro- or nanoseconds since 1970. Write it so, or as a "
        "date like 2026-01-31T12:00:00"
    )


def parse_message_list(value: Any) -> Any:
    """A CSV cell that contains a list of chat messages (JSON or Python literal) as that list; any other value unchanged."""
    if isinstance(value, str) and value.startswith(("[{", "[ {", "[[")):
        decoder = UniqueNameDecoder()
        for decode in (decoder.decode, ast.literal_eval):
            try:
                parsed = decode(value)
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
            if error := decoder.repetition_error():
                raise UnreadableError(f"is not clear: {error}")
            if isinstance(parsed, list) and all(map(is_message, parsed)):
                return parsed
    return value


def is_message_list(value: Any) -> bool:
    """Whether a cell is a list of chat messages, or its text in JSON."""
    try:
        value = parse_message_list(value)
    except UnreadableError:
        return False
    return isinstance(value, list) and all(map(is_message, value))


def is_text_list(value: Any) -> bool:
    """Whether a cell is a list of texts, as of the user's turns of a conversation; missing ones are null."""
    return isinstance(value, list) and value != [] and all(item is None or isinstance(item, str) for item in value)


def parse_token_ids(value: Any) -> tuple[int, ...]:
    """Token ids; () for an empty cell."""
    if value in EMPTY_VALUES:
        return ()
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise UnreadableError("is not a list of token ids") from None
    if not isinstance(value, list) or not all(type(item) is int and 0 <= item < 2**31 for item in value):
        raise UnreadableError("is not a list of token ids")
    return tuple(value)
