"""The lines of data files, and texts with counts for messages."""

import json
from collections.abc import Collection, Iterator, Sequence
from decimal import Decimal
from typing import Any

#: In characters. Longer words are cut, because a text may have no spaces.
MAX_CUT_WORD = 200


def split_lines(text: str) -> Iterator[str]:
    """The lines of a data file, without their ends: only "\\n" and "\\r\\n" end a line.

    `str.splitlines` would also split within texts, at U+2028, U+0085 and other characters that JSON does not escape. One line at
    a time, because a list of very many short lines would exhaust the memory.
    """
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start:end].removesuffix("\r")
        start = end + 1
    yield text[start:].removesuffix("\r")


def pluralize(count: int, noun: str) -> str:
    """ "1 vote", "25,000 votes"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def plain_number(value: float, digits: int = 6) -> str:
    """A number with so many digits, without an exponent: "0.00003"."""
    return f"{Decimal(f'{value:.{digits}g}'):f}"


def first_items(items: Sequence[object], count: int = 5) -> str:
    """ "2, 3, 5"; of more than `count` items the first ones: "1, 2, 3, 4, 5, …"."""
    return ", ".join([*map(str, items[:count]), *(["…"] if len(items) > count else [])])


def pluralize_of(count: int, total: int, noun: str) -> str:
    """ "3 of 10 votes"; "10 votes" if count equals total."""
    return ("" if count == total else f"{count:,} of ") + pluralize(total, noun)


def prompts_skipped_message(skipped_count: int, max_new_tokens: int) -> str:
    """ "2 prompts left out: too long for the model with 64 new tokens"; "" if there are none."""
    if not skipped_count:
        return ""
    return f"{pluralize(skipped_count, 'prompt')} left out: too long for the model with {pluralize(max_new_tokens, 'new token')}"


def cut_length(token_ids: Sequence[int], stop_ids: Collection[int]) -> int | None:
    """The number of tokens after which a sampled text was cut off; None if it ended by itself, or if that is unknown.

    token_ids: empty for imported texts. stop_ids: those that end a response, empty if unknown.
    """
    return len(token_ids) if token_ids and stop_ids and token_ids[-1] not in stop_ids else None


def cut_middle(text: str, max_chars: int) -> str:
    """At most max_chars characters: the beginning, and the end, where a message says what to do. Nothing remains of a word at the
    cut, unless it is very long: a part of a path or an address would not be recognised where these are left out."""
    if len(text) <= max_chars:
        return text
    end = max_chars // 3
    head, tail = text[: max_chars - end - 3], text[-end:]
    head_end, tail_start = head.rfind(" ", max(0, len(head) - MAX_CUT_WORD)), tail.find(" ", 0, MAX_CUT_WORD)
    return f"{head[:head_end] if head_end > 0 else head} … {tail[tail_start + 1 :]}"


def fits_modelfile(text: str) -> bool:
    """Whether a Modelfile of Ollama keeps a text between three quotes: it ends there at three quotes, and what cannot be printed
    is left out."""
    return '"""' not in text and all(letter.isprintable() or letter in "\t\n\r" for letter in text)


def parse_foreign_json(text: str | bytes) -> Any:
    """The JSON of a file that others may have written. Raises ValueError, also for JSON that is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
