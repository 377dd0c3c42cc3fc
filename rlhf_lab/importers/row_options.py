"""How the rows of a file are parsed, and what votes call the texts of a row."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rlhf_lab.common.enums import Choice
from rlhf_lab.importers.cell_parsers import choice_of_word, is_number_or_bool, name_key, normalize_cell
from rlhf_lab.importers.cells import is_empty_cell, read_cell
from rlhf_lab.importers.column_mapping import ColumnMapping, cell_at
from rlhf_lab.importers.parsed_rows import DEFAULT_LIMITS, Limits, SourceRow
from rlhf_lab.importers.text_names import NameColumns

ID_KEYS = ("id", "key", "name", "label", "model")  # of an object with one of the texts


@dataclass(frozen=True)
class ParseOptions:
    """How rows are parsed.

    Attributes:
        answers: of the user, keys of ANSWERS.
        choices: meanings of the file's vote words; empty: what the row and the columns call the texts, and CHOICE_BY_WORD.
        holds_chats: whether texts can be chats that are written as text.
        notation: of scores, as `parse_number` takes it.
        day_first: as `parse_timestamp` takes it.
        name_columns: columns with what the row calls the first and the second text, such as model_a and model_b.
        speakers: of transcripts that the user divides, as `divide_turns` takes them.
        cuts_prompt: whether answers that begin with a plain prompt are what follows it.
        is_rank: whether the lower of two scores is better.
        other_keys: is filled with the keys of messages that are not used, as "key (in column)".
        spellings: is filled with the names of annotators, each with the spellings that mean it.
    """

    mapping: ColumnMapping
    answers: Collection[str] = ()
    choices: Mapping[str, Choice] = field(default_factory=dict)
    limits: Limits = DEFAULT_LIMITS
    holds_chats: bool = True
    notation: str = ""
    day_first: bool | None = None
    name_columns: NameColumns = field(default_factory=NameColumns)
    speakers: Mapping[str, str] = field(default_factory=dict)
    cuts_prompt: bool = False
    is_rank: bool = False
    other_keys: set[str] = field(default_factory=set)
    spellings: dict[str, set[str]] = field(default_factory=dict)

    @cached_property
    def is_graded(self) -> bool:
        """Whether votes are on a scale from -3 to 3, whose numbers say how much better the text is."""
        return {"-3", "3"} <= set(self.choices)

    @cached_property
    def text_names(self) -> dict[str, Choice]:
        """The names of the columns with the two texts, which votes can use."""
        columns = {choice: self.mapping.by_meaning.get(choice.value, "") for choice in (Choice.FIRST, Choice.SECOND)}
        return {name_key(column): choice for choice, column in columns.items() if name_key(column)}

    def names_in(self, row: SourceRow) -> dict[str, Choice]:
        """What a vote can call the two texts of a row: the ids beside them, the cells of `name_columns`, their columns' names.

        A name that means both texts means neither.
        """
        names = _names_of(self._possible_sides(row)) | self.unambiguous_names_in(row)
        if "votes=words" in self.answers:
            names = {name: choice for name, choice in names.items() if choice_of_word(name, self.choices) is None}
        return names

    def unambiguous_names_in(self, row: SourceRow) -> dict[str, Choice]:
        """As `names_in`; those that come before the usual meaning of a word."""
        return self.text_names | _names_of(self._certain_sides(row))

    def shared_names_in(self, row: SourceRow) -> set[str]:
        """The names, in lower case, that a row gives both texts."""
        names = ((normalize_cell(a).casefold(), normalize_cell(b).casefold()) for a, b in self._certain_sides(row))
        return {a for a, b in names if a == b and a not in ("", "none", "nan")}

    def _certain_sides(self, row: SourceRow) -> list[tuple[Any, Any]]:
        columns = [self.mapping.by_meaning.get(choice.value, "") for choice in (Choice.FIRST, Choice.SECOND)]
        sides = [(cell_at(row.cells, a), cell_at(row.cells, b)) for a, b in self.name_columns.sure]
        return sides + list(zip(*(_ids_beside(row, column) for column in columns), strict=True))

    def _possible_sides(self, row: SourceRow) -> list[tuple[Any, Any]]:
        cells = [(cell_at(row.cells, a), cell_at(row.cells, b)) for a, b in self.name_columns.possible]
        return [pair for pair in cells if all(isinstance(cell, str) and not is_number_or_bool(cell) for cell in pair)]


def _names_of(sides: Iterable[tuple[Any, Any]]) -> dict[str, Choice]:
    """The names in pairs of cells; not those that both texts have."""
    named: dict[str, Choice] = {}
    names = [tuple(map(normalize_cell, pair)) for pair in sides]
    for first, second in [*((a.casefold(), b.casefold()) for a, b in names), *names]:
        if first != second:
            named |= {first: Choice.FIRST, second: Choice.SECOND}
    return {name: choice for name, choice in named.items() if not is_empty_cell(name) and name.lower() != "none"}


def votes_in(row: SourceRow, mapping: ColumnMapping) -> list[Any]:
    """The votes of a row as they are written."""
    cells = [read_cell(cell_at(row.cells, column)).decoded for column in mapping.vote_columns]
    return [item for cell in cells for item in (cell if isinstance(cell, list) else [cell]) if not is_empty_cell(item)]


def _ids_beside(row: SourceRow, column: str) -> tuple[Any, ...]:
    """The cells of ID_KEYS in the object that holds a text: of "options.0.text" those of "options.0"."""
    parent = read_cell(cell_at(row.cells, column.rpartition(".")[0])).decoded if "." in column else None
    return tuple(parent.get(key) if isinstance(parent, Mapping) else None for key in ID_KEYS)
