"""What votes call the two texts: which side a column's name means, and columns with names of the texts, such as model_a."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from rlhf_lab.common.enums import Choice
from rlhf_lab.importers.cell_parsers import CHOICE_BY_WORD, name_key
from rlhf_lab.importers.column_mapping import CHOSEN_REJECTED, ColumnMapping, ColumnMappingError

#: Parts of names by which two columns are the first and the second of a pair.
SIDE_PAIRS = (
    ("a", "b"), ("1", "2"), ("0", "1"), ("left", "right"), ("x", "y"), ("j", "k"), ("first", "second"), ("chosen", "rejected"),
)  # fmt: skip
SIDE_WORDS = {word for pair in SIDE_PAIRS for word in pair}
#: Meanings of columns that belong to one of the texts: those of the first, or chosen, and of the second, or rejected.
SIDE_MEANINGS = (
    ("score_first", "score_second"), ("first_wins", "second_wins"), ("score_chosen", "score_rejected"),
    ("checkpoint_chosen", "checkpoint_rejected"), ("seed_chosen", "seed_rejected"), ("chosen_ids", "rejected_ids"),
)  # fmt: skip
#: Further parts of the names of columns that hold what a vote can call a text.
NAME_PARTS = ("model", "id", "name", "key", "generator", "system", "policy")


def find_name_columns(mapping: ColumnMapping, columns: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Pairs of columns with names of the first and the second text. If the texts are mapped the other way round, so are these."""
    named = [name for name in columns if set(_parts(name)) & set(NAME_PARTS)]
    pairs = [(a, b) for a in named for b in named if _are_sides(a, b)]
    return tuple(pair[::-1] for pair in pairs) if is_reversed(mapping) else tuple(pairs)


def is_reversed(mapping: ColumnMapping) -> bool:
    """Whether the names of the two texts' columns say that the first is the second of a pair: response_b and response_a."""
    first, second = _text_columns(mapping)
    return _are_sides(second, first)


def follow_texts(mapping: ColumnMapping, overrides: Mapping[str, str]) -> ColumnMapping:
    """The mapping in which the columns of a side, such as score_a, belong to the text of that side; not those in `overrides`."""
    if not is_reversed(mapping):
        return mapping
    by_meaning = mapping.by_meaning
    pairs = [(a, b) for a, b in SIDE_MEANINGS if a not in overrides and b not in overrides]
    swapped = {a: b for pair in pairs for a, b in (pair, pair[::-1])}
    followed = {swapped.get(meaning, meaning): column for meaning, column in by_meaning.items()}
    return replace(mapping, by_meaning=followed)


def reject_reversed_sides(mapping: ColumnMapping, words: Iterable[str], available: Iterable[str]) -> None:
    """Raise ColumnMappingError if votes name a side, such as "a", and the columns' names say that this is the other text.

    words: the votes that name no text by its column or by a name in its row.
    """
    first, second = _text_columns(mapping)
    for word in words:
        choice = CHOICE_BY_WORD.get(word.lower())
        if choice not in (Choice.FIRST, Choice.SECOND) or name_key(word) in (name_key(first), name_key(second)):
            continue
        own, other = (first, second) if choice is Choice.FIRST else (second, first)
        sides = set(_parts(word)) & SIDE_WORDS
        is_literal = bool(sides & set(_parts(other))) and not sides & set(_parts(own))
        if is_literal or is_reversed(mapping):
            side, opposite = (Choice.FIRST, Choice.SECOND) if choice is Choice.FIRST else (Choice.SECOND, Choice.FIRST)
            raise ColumnMappingError(
                f'The votes say "{word}", and the {side} text is {own}, the {opposite} one {other}.',
                f'Say which text "{word}" means: --choices "{word}={opposite}" for {other}, --choices "{word}={side}" for {own}, '
                "and the same for the other words.",
                available,
            )


def _text_columns(mapping: ColumnMapping) -> tuple[str, str]:
    names = ("chosen", "rejected") if mapping.row_format == CHOSEN_REJECTED else ("first", "second")
    first, second = (mapping.by_meaning.get(name, "") for name in names)
    return first, second


def _parts(name: str) -> list[str]:
    """Words and numbers of a name, in lower case: those of "response_A1" are response, a and 1."""
    return [part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+", name)]


def _are_sides(a: str, b: str) -> bool:
    """Whether two names are the first and the second of a pair: they differ in one of SIDE_PAIRS."""
    key_a, key_b = name_key(a), name_key(b)
    return any(
        key_a[: match.start()] + second + key_a[match.end() :] == key_b
        for first, second in SIDE_PAIRS
        for match in re.finditer(first, key_a)
    )
