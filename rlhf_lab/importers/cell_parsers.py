"""Parse cells as choices, numbers, timestamps, booleans, token ids. All functions raise UnreadableError."""

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rlhf_lab.common.chat_format import UnreadableError
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


def parse_choice(value: Any, custom_words: Mapping[str, Choice], names: Mapping[str, Choice] = {}) -> Choice:
    """A vote by `custom_words` (--choices), or if that is empty by `names` of the two texts or CHOICE_BY_WORD.

    A list is what a person accepted: one of the texts, or both, which is a tie. "none" is not among the known words: it can mean
    "neither text", and it is how Python writes a missing value.
    """
    if isinstance(value, list):
        choices = {parse_choice(item, custom_words, names) for item in value}
        if len(choices) > 1 and choices != {Choice.FIRST, Choice.SECOND}:
            raise UnreadableError(f"holds several votes: {', '.join(map(str, value))[:40]}")
        value = Choice.TIE.value if len(choices) > 1 else value[0] if value else None
        custom_words = custom_words if value != Choice.TIE.value else {}
    name, word = normalize_cell(value), normalize_cell(value, is_vote=True)
    if is_blank(value) and word not in custom_words:
        raise UnreadableError("is missing. Write the vote, or take the row out")
    choices_by_word = custom_words or CHOICE_BY_WORD
    named = None if custom_words else names.get(name) or names.get(name_key(name))
    choice = named or choices_by_word.get(word) or choices_by_word.get(word.lower())
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


_CHOICE_WORD = re.compile(rf"(.*?)=\s*({'|'.join(Choice)})\s*(?:,|$)", re.DOTALL)


def parse_choice_words(text: str) -> dict[str, Choice]:
    """ "0=first,1=second" as a dict; a word may hold "=" and ",". Raises UnreadableError."""
    choices: dict[str, Choice] = {}
    position = 0
    while position < len(text):
        match = _CHOICE_WORD.match(text, position)
        if match is None:
            raise UnreadableError(f"{text[position:]!r} is not WORD=CHOICE, CHOICE being one of {', '.join(Choice)}")
        word, position = normalize_cell(match[1], is_vote=True), match.end()
        if word in choices:
            raise UnreadableError(f"{word!r} has two meanings. Give each word one")
        choices[word] = Choice(match[2])
    return choices


def normalize_cell(value: Any, *, is_vote: bool = False) -> str:
    """The cell as text; equal whole numbers give equal texts, so "1.0", 1 and 1.0 are all "1". is_vote: other numbers too.

    No digit is lost: ids have more digits than a float holds, and as a name "1.10" is not "1.1", nor "01" the same as "1".
    """
    word = str(value).strip()
    match = re.fullmatch(r"([+-]?)([0-9]+)(?:[.]([0-9]*))?", word)
    if match is None or (isinstance(value, float) and abs(value) > 2**53):
        return word
    whole, decimals = match[2].lstrip("0") or "0", (match[3] or "").rstrip("0")
    if not is_vote and (decimals or whole != match[2]):
        return word
    number = f"{whole}.{decimals}" if decimals else whole
    return f"-{number}" if match[1] == "-" and number != "0" else number


_GROUPED_DIGITS = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:[.][0-9]{3})+")


def is_grouped(value: Any) -> bool:
    """Whether the points in a text can group digits: "1.200" is 1.2, or 1200 as German spreadsheets write it."""
    return isinstance(value, str) and _GROUPED_DIGITS.fullmatch(value.strip()) is not None


def parse_number(value: Any, has_groups: bool = False) -> float:
    """A finite number; bool is none. has_groups: in texts, points group digits and a comma comes before decimals."""
    if has_groups and isinstance(value, str):
        value = value.replace(".", "").replace(",", ".")
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
        parsed = datetime.fromisoformat(_iso_date(str(value)))
    except ValueError:
        raise UnreadableError(
            f"is {str(value)[:40]!r}, neither seconds since 1970 nor a date like 2026-01-31T12:00:00"
        ) from None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


_FORMS_DATE = re.compile(
    r"(\d{4})/(\d\d?)/(\d\d?) (\d\d?):(\d\d):(\d\d)(?: ([AP])M)?(?: (?:GMT|UTC)(?:([+-])(\d\d?)(?::?(\d\d))?)?)?"
)


def _iso_date(text: str) -> str:
    """A date of Google Forms ("2026/11/28 8:12:49 PM GMT+1") in ISO form; any other text unchanged. Month and day have to be
    clear: the year comes first."""
    match = _FORMS_DATE.fullmatch(text.strip())
    if match is None:
        return text
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    if match[7]:
        hour = hour % 12 + (12 if match[7] == "P" else 0)
    zone = f"{match[8]}{int(match[9]):02}:{match[10] or '00'}" if match[8] else "+00:00"
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{zone}"


def _to_seconds(number: float) -> float:
    """A time since 1970 in seconds. In one unit at most it is in this century."""
    for units_per_second in (1, 1e3, 1e6, 1e9):
        if YEAR_2000 <= number / units_per_second < YEAR_2100:
            return number / units_per_second
    raise UnreadableError(
        f"is {number:.15g}, no time from 2000 to 2099 in seconds, milli-, micro- or nanoseconds since 1970. Write it so, or as a "
        "date like 2026-01-31T12:00:00"
    )


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
