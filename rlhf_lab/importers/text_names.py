"""What votes call the two texts: which side a column's name means, and columns with names of the texts, such as model_a."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from rlhf_lab.common.enums import Choice
from rlhf_lab.importers.cell_parsers import CHOICE_BY_WORD, name_key
from rlhf_lab.importers.column_mapping import CHOSEN_REJECTED, ColumnMapping, ColumnMappingError, is_annotator_name
from rlhf_lab.importers.remedies import choices_option

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
#: Parts of the names of columns that surely hold what a vote can call a text, even if that is a number or a word such as "a".
NAME_PARTS = ("model", "id", "name", "key", "generator", "system", "policy")


@dataclass(frozen=True)
class NameColumns:
    """Pairs of columns, or of parts of columns, with what a row may call the first and the second text.

    Attributes:
        sure: those whose names say so, such as model_a and model_b; their cells come before the usual meaning of words.
        possible: any others of the two sides that have no other meaning. Numbers in them are no names.
    """

    sure: tuple[tuple[str, str], ...] = ()
    possible: tuple[tuple[str, str], ...] = ()


def find_name_columns(mapping: ColumnMapping, available: Iterable[str], is_swapped: bool) -> NameColumns:
    """is_swapped: the columns of the first side belong to the second text."""
    used = {*mapping.by_meaning.values(), *mapping.annotator_columns}
    by_key = {name_key(name): name for name in available if name not in used and not is_annotator_name(name)}
    pairs = [(name, by_key[key]) for name in by_key.values() for key in _partner_keys(name) if key in by_key]
    firsts, seconds = {a for a, _ in pairs}, {b for _, b in pairs}
    pairs = [pair[::-1] if is_swapped else pair for pair in pairs if pair[0] not in seconds and pair[1] not in firsts]
    sure = [pair for pair in pairs if set(_parts(pair[0])) & set(NAME_PARTS)]
    return NameColumns(tuple(sure), tuple(pair for pair in pairs if pair not in sure))


def is_reversed(mapping: ColumnMapping) -> bool:
    """Whether the names of the two texts' columns say that the first is the second of a pair: response_b and response_a."""
    first, second = _text_columns(mapping)
    return _are_sides(second, first)


def has_no_sides(mapping: ColumnMapping) -> bool:
    """Whether nothing says which side the two texts are of: their columns are called reply and baseline, for example."""
    first, second = _text_columns(mapping)
    return mapping.row_format != CHOSEN_REJECTED and not _are_sides(first, second) and not _are_sides(second, first)


def follow_texts(mapping: ColumnMapping, overrides: Mapping[str, str], answers: Collection[str]) -> ColumnMapping:
    """The mapping in which the columns of a side, such as score_a, belong to the text of that side; not those in `overrides`.

    Raises ColumnMappingError if the user mapped texts that are of no side.
    """
    by_meaning = mapping.by_meaning
    pairs = [(a, b) for a, b in SIDE_MEANINGS if a not in overrides and b not in overrides]
    for a, b in pairs:
        columns = by_meaning.get(a, ""), by_meaning.get(b, "")
        if all(columns) and "first" not in _parts(columns[0]) and _are_sides(*columns):
            reject_unknown_sides(mapping, columns, answers)
    if not is_reversed(mapping) and "sides=swapped" not in answers:
        return mapping
    swapped = {a: b for pair in pairs for a, b in (pair, pair[::-1])}
    followed = {swapped.get(meaning, meaning): column for meaning, column in by_meaning.items()}
    return replace(mapping, by_meaning=followed)


def reject_unknown_sides(mapping: ColumnMapping, columns: Iterable[str], answers: Collection[str]) -> None:
    """Raise ColumnMappingError if these two columns are of two sides and nothing says which text is of which."""
    if not has_no_sides(mapping) or {"sides=same", "sides=swapped"} & set(answers):
        return
    first, second = _text_columns(mapping)
    raise ColumnMappingError(
        f"Nothing says which text {' and '.join(columns)} belong to: the first is {first}, the second {second}.",
        answers=("sides=same", "sides=swapped"),
    )


def reject_reversed_sides(mapping: ColumnMapping, words: Iterable[str]) -> None:
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
                f'Say which text "{word}" means: {choices_option(f"{word}={opposite}")} for {other}, '
                f"{choices_option(f'{word}={side}')} for {own}, "
                "and the same for the other words.",
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
    return name_key(b) in _partner_keys(a)


def _partner_keys(name: str) -> set[str]:
    """The names, as `name_key`, of what can be the second of the pair whose first has this name."""
    key = name_key(name)
    return {
        key[: match.start()] + second + key[match.end() :]
        for first, second in SIDE_PAIRS
        for match in re.finditer(first, key)
    }
