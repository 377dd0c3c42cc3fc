"""Votes written as numbers: whether their meaning is clear, and the readings to offer if it is not."""

import re
from collections.abc import Iterable

from rlhf_lab.common.enums import Choice
from rlhf_lab.importers.cell_parsers import CHOICE_BY_WORD

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
