"""Parse cells as choices, numbers, timestamps, booleans, token ids, and what votes written as numbers can mean.

Functions that parse raise UnreadableError.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from rlhf_lab.common.chat_format import UnreadableError
from rlhf_lab.common.enums import Choice
from rlhf_lab.common.text import parse_foreign_json
from rlhf_lab.importers.cells import is_empty_cell, read_cell

T = TypeVar("T")
CHOICE_WORDS = {
    Choice.FIRST: ("first", "1", "a", "left", "x", "model_a", "response_1", "response_a", "model_x", "chosen"),
    Choice.SECOND: ("second", "2", "b", "right", "y", "model_b", "response_2", "response_b", "model_y", "rejected"),
    Choice.TIE: ("tie", "0", "draw", "equal", "same", "both", "both_good"),
    Choice.BOTH_BAD: ("both_bad", "neither", "tie (bothbad)", "both bad", "bothbad"),
    Choice.SKIP: ("skip", "skipped"),
}
CHOICE_BY_WORD = {word: choice for choice, words in CHOICE_WORDS.items() for word in words}
MAX_READINGS = 4
#: What numbers mean in published data sets, as --choices takes it; the readings with fewer numbers first.
KNOWN_READINGS = (
    "0=first,1=second", "0=second,1=first", "1=first,2=second", "true=first,false=second", "true=second,false=first",
    "0=first,1=second,2=tie", "0=tie,1=first,2=second", "0=first,1=tie,2=second", "1=first,2=second,3=tie",
    "1=first,2=tie,3=second", "0=second,0.5=tie,1=first", "0=first,0.5=tie,1=second", "-1=second,0=tie,1=first",
    "-1=first,0=tie,1=second", "0=first,1=second,2=tie,3=both_bad", "0=tie,1=first,2=second,3=both_bad",
    "1=first,2=second,3=tie,4=both_bad",
)  # fmt: skip
#: Scales with a sign; from 1 to 3 slightly, clearly and much better. SIGNED_SCALE is that of HelpSteer.
SIGNED_SCALE = "-3=first,-2=first,-1=first,0=tie,1=second,2=second,3=second"
SIGNED_READINGS = (SIGNED_SCALE, "-3=second,-2=second,-1=second,0=tie,1=first,2=first,3=first")
TRUE_WORDS, FALSE_WORDS = ("true", "1", "yes"), ("false", "0", "no")
EMPTY_VALUES: tuple[Any, ...] = (None, "")
YEAR_2000, YEAR_2100 = 946_684_800, 4_102_444_800  # seconds since 1970


def parse_named(column: str, parse_cell: Callable[..., T], *args: Any) -> T:
    """What `parse_cell` returns; an error names the column."""
    try:
        return parse_cell(*args)
    except UnreadableError as error:
        raise UnreadableError(f"{column} {error}") from None


def parse_choice(value: Any, custom_words: Mapping[str, Choice], names: Mapping[str, Choice] = {}) -> Choice:
    """A vote by `names` of the two texts, or by `custom_words` (--choices), or if that is empty by CHOICE_BY_WORD.

    A list, also as text, is what a person accepted: one of the texts, or both, which is a tie. "none" is not among the known
    words: it can mean "neither text", and it is how Python writes a missing value.
    """
    value = ticked_key(read_cell(value).decoded)
    if isinstance(value, list):
        choices = {parse_choice(item, custom_words, names) for item in value}
        if len(choices) > 1 and choices != {Choice.FIRST, Choice.SECOND}:
            raise UnreadableError(f"holds several votes: {', '.join(map(str, value))[:40]}")
        value = Choice.TIE.value if len(choices) > 1 else value[0] if value else None
        custom_words = custom_words if value != Choice.TIE.value else {}
    word = normalize_cell(value, is_vote=True)
    if is_empty_cell(value) and word not in custom_words:
        raise UnreadableError("is missing. Write the vote, or take the row out")
    choice = choice_of_name(value, names) or choice_of_word(value, custom_words)
    if choice is None:
        allowed = (
            ", ".join(custom_words)
            if custom_words
            else "first, second, tie, both_bad (also a/b, left/right, 1/2, 0 for a tie)"
        )
        raise UnreadableError(f"is {word[:40]!r}; it can be {allowed}. Say what other words mean with --choices")
    return choice


def ticked_key(value: Any) -> Any:
    """The key of an object of true and false of which one is true, as a form's buttons write it; any other value unchanged."""
    is_form = (
        isinstance(value, dict) and all(isinstance(item, bool) for item in value.values()) and sum(value.values()) == 1
    )
    return next(key for key, item in value.items() if item) if is_form else value


def choice_of_name(value: Any, names: Mapping[str, Choice]) -> Choice | None:
    """The text that a vote calls by a name."""
    name = normalize_cell(value)
    return names.get(name) or names.get(name.casefold()) or names.get(name_key(name))


def choice_of_word(value: Any, custom_words: Mapping[str, Choice]) -> Choice | None:
    """What a vote means by `custom_words`, or if that is empty by CHOICE_BY_WORD."""
    word, choices = normalize_cell(value, is_vote=True), custom_words or CHOICE_BY_WORD
    return choices.get(word) or choices.get(word.lower())


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


def is_number_or_bool(word: str) -> bool:
    return word.lower() in ("true", "false") or re.fullmatch(r"[+-]?[0-9.]+", word) is not None


def has_unclear_numbers(words: Iterable[str]) -> bool:
    """Whether votes are numbers other than 1 and 2, which together are the first and the second text."""
    return {word for word in words if is_number_or_bool(word)} not in (set(), {"1", "2"})


def fitting_readings(words: Iterable[str]) -> list[str]:
    """The readings of all these votes, each as --choices takes it. Words that are no numbers keep their known meaning."""
    numbers = {word.lower() for word in words if is_number_or_bool(word)}
    known_words = sorted(word for word in words if word.lower() not in numbers and word.lower() in CHOICE_BY_WORD)
    has_tie_word = any(CHOICE_BY_WORD[word.lower()] is Choice.TIE for word in known_words)
    by_meaning: dict[frozenset[tuple[str, str]], str] = {}  # readings that differ in absent numbers are the same
    for reading in KNOWN_READINGS + (SIGNED_READINGS if any(word.startswith("-") for word in numbers) else ()):
        meanings = dict(item.split("=") for item in reading.split(","))
        used = {number: meanings[number] for number in numbers if number in meanings}
        if len(used) == len(numbers) and not (has_tie_word and Choice.TIE in used.values()):
            suffix = "".join(f",{word}={CHOICE_BY_WORD[word.lower()].value}" for word in known_words)
            by_meaning.setdefault(frozenset(used.items()), reading + suffix)
    return list(by_meaning.values())[:MAX_READINGS]


#: How numbers are written -> the characters that group their digits and that come before decimals.
NOTATIONS = {"decimal": (",", "."), "thousands": (".", ",")}


def parse_number(value: Any, notation: str = "") -> float:
    """A finite number; bool is none. notation: of texts, a key of NOTATIONS; "": without groups, a point before decimals."""
    try:
        number = float(_plain_number(value, *NOTATIONS[notation]) if notation and isinstance(value, str) else value)
    except (TypeError, ValueError):
        how = f" with {NOTATIONS[notation][1]!r} before decimals" if notation else ""
        raise UnreadableError(f"is {str(value)[:40]!r}, not a number{how}") from None
    except OverflowError:
        raise UnreadableError("has more digits than any score can have") from None
    if isinstance(value, bool) or not math.isfinite(number):
        raise UnreadableError(f"is {value}, not a finite number")
    return number


def _plain_number(text: str, group: str, point: str) -> str:
    """A number as Python writes it. Raises ValueError if its digits are grouped otherwise than by three."""
    whole, separator, decimals = text.strip().partition(point)
    if group in decimals or (
        group in whole and not re.fullmatch(rf"[+-]?[1-9][0-9]{{0,2}}(?:[{group}][0-9]{{3}})+", whole)
    ):
        raise ValueError
    return whole.replace(group, "") + (f".{decimals}" if separator else "")


def read_number(value: Any, notation: str) -> float | None:
    """`parse_number`; None for what is not a number."""
    try:
        return parse_number(value, notation)
    except UnreadableError:
        return None


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
    if word in TRUE_WORDS + FALSE_WORDS:
        return word in TRUE_WORDS
    raise UnreadableError(f"is {str(value)[:40]!r}; it can be true or false")


def parse_timestamp(value: Any, is_own_export: bool = False, day_first: bool | None = None) -> float | None:
    """Seconds since 1970, from a date (UTC if it has no zone) or a number of seconds, milli-, micro- or nanoseconds.

    An export of a lab holds seconds. Elsewhere a number is a time from 2000 to 2099 in one of these units, or an error.
    day_first: whether the day comes first in dates that end with the year; None: they are errors.
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
        parsed = datetime.fromisoformat(_iso_date(str(value), day_first))
    except ValueError:
        raise UnreadableError(
            f"is {str(value)[:40]!r}, neither seconds since 1970 nor a date like 2026-01-31T12:00:00"
        ) from None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


_FORMS_DATE = re.compile(
    r"(?:(?P<year>\d{4})/(?P<month>\d\d?)/(?P<day>\d\d?)|(?P<one>\d\d?)(?P<separator>[/.-])(?P<two>\d\d?)(?P=separator)(?P<last>\d{4}))"
    r"(?:,? (?P<hour>\d\d?):(?P<minute>\d\d)(?::(?P<second>\d\d))?(?: ?(?P<half>[AP])M)?"
    r"(?: (?:GMT|UTC)(?:(?P<sign>[+-])(?P<zone>\d\d?)(?::?(?P<zone_minutes>\d\d))?)?)?)?",
    re.IGNORECASE,
)


def day_and_month(text: Any) -> tuple[int, int] | None:
    """The first two numbers of a date that ends with the year, as in "11/28/2026 20:12"; None for other values."""
    match = _FORMS_DATE.fullmatch(text.strip()) if isinstance(text, str) else None
    return (int(match["one"]), int(match["two"])) if match and match["one"] else None


def _iso_date(text: str, day_first: bool | None) -> str:
    """A date of Google Forms or a spreadsheet ("2026/11/28 8:12:49 PM GMT+1", "28.11.2026") in ISO form; others unchanged."""
    match = _FORMS_DATE.fullmatch(text.strip())
    if match is None or (match["one"] and day_first is None):
        return text
    year, month, day = match["year"] or match["last"], match["month"], match["day"]
    if match["one"]:
        month, day = (match["two"], match["one"]) if day_first else (match["one"], match["two"])
    hour, minute, second = (int(match[name] or 0) for name in ("hour", "minute", "second"))
    if match["half"]:
        hour = hour % 12 + (12 if match["half"].upper() == "P" else 0)
    zone = f"{match['sign']}{int(match['zone']):02}:{match['zone_minutes'] or '00'}" if match["sign"] else "+00:00"
    return f"{year}-{int(month):02}-{int(day):02}T{hour:02}:{minute:02}:{second:02}{zone}"


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
            value = parse_foreign_json(value)
        except ValueError:
            raise UnreadableError("is not a list of token ids") from None
    if not isinstance(value, list) or not all(type(item) is int and 0 <= item < 2**31 for item in value):
        raise UnreadableError("is not a list of token ids")
    return tuple(value)
