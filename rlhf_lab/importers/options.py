"""Rows with more than two texts, such as response_1 to response_4: pairs of the best with each other, or of each two."""

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_lab.common.chat_format import UnreadableError
from rlhf_lab.common.enums import Choice
from rlhf_lab.importers.cell_parsers import choice_of_word, name_key, normalize_cell, parse_number, ticked_key
from rlhf_lab.importers.cells import RANK_KEY, is_empty_cell, read_cell
from rlhf_lab.importers.column_mapping import ColumnMappingError, has_meaning
from rlhf_lab.importers.parsed_rows import SourceRow

MAX_OPTIONS = 16
_FIRST_PLACE = re.compile(r"(?<![A-Za-z])[aA](?![A-Za-z])|(?<=[a-z])A(?![A-Za-z])|(?<!\d)[01](?!\d)")
RANKING_NAMES = ("ranking", "rankings", "ranks", "order", "preferenceorder", "rankorder")
FROM_ZERO, FROM_ONE = "options=from_zero", "options=from_one"
ORDER, RANKS = "ranking=order", "ranking=ranks"


@dataclass(frozen=True)
class Options:
    """The columns of a file with more than two texts.

    Attributes:
        families: columns with a value for each text, in the order of the texts; the texts first.
        vote: the column that says which text is the best, or ranks them; "" if scores do.
        start: the number that means the first text.
        holds_ranks: whether lists of numbers in the vote's column are the ranks of the texts, not their numbers.
    """

    families: tuple[tuple[str, ...], ...]
    vote: str
    start: int
    holds_ranks: bool = False

    def expand(self, cells: dict[str, Any]) -> Iterator[dict[str, Any] | str]:
        """A row for each comparison: the columns of the first two texts hold the two that are compared."""
        texts = self.families[0]
        present = _present(texts, cells)
        others = {name for family in self.families for name in family}
        shared = {name: value for name, value in cells.items() if name not in others}
        votes = self._votes(cells, present) if self.vote else dict.fromkeys(itertools.combinations(present, 2))
        for (a, b), winner in votes.items():
            sides = {
                family[side]: cells.get(family[index]) for family in self.families for side, index in enumerate((a, b))
            }
            vote = {} if winner is None else {self.vote: winner if isinstance(winner, str) else texts[winner != a]}
            yield shared | sides | vote

    def _votes(self, cells: dict[str, Any], present: list[int]) -> dict[tuple[int, int], int | str]:
        """The two texts of each comparison -> the better one, or the word for a tie."""
        value = ticked_key(read_cell(cells.get(self.vote)).decoded)
        word = choice_of_word(value, {})
        if word in (Choice.TIE, Choice.BOTH_BAD, Choice.SKIP) and not str(value).strip().isdecimal():
            return dict.fromkeys(itertools.combinations(present, 2), word.value)
        ranks = self._ranks(value, cells)
        if missing := [self.families[0][index] for index in ranks if index not in present]:
            raise UnreadableError(f"{self.vote} names {missing[0]}, which is empty")
        pairs = itertools.combinations(present, 2)
        last = len(ranks)  # of texts that are not ranked
        compared = {pair: [ranks.get(index, last) for index in pair] for pair in pairs}
        return {
            (a, b): Choice.TIE.value if first == second else a if first < second else b
            for (a, b), (first, second) in compared.items()
            if first != second or {a, b} <= set(ranks)
        }

    def _ranks(self, value: Any, cells: dict[str, Any]) -> dict[int, float]:
        """Index of a text -> its rank, 0 for the best."""
        if isinstance(value, dict):
            return {self._index(name, cells): parse_number(rank) for name, rank in value.items()}
        if self.holds_ranks and (numbers := _number_list(value)) is not None:
            present = _present(self.families[0], cells)
            if len(numbers) != len(present):
                raise UnreadableError(f"{self.vote} has {len(numbers)} ranks for {len(present)} texts")
            return dict(zip(present, map(float, numbers), strict=True))
        names = value if isinstance(value, list) else re.split(r"\s*[>,]\s*", str(value)) if value is not None else []
        ranks = {self._index(name, cells): float(rank) for rank, name in enumerate(names)}
        if len(ranks) < len(names):
            raise UnreadableError(f"{self.vote} is {str(value)[:40]!r}, which names a text twice")
        return ranks

    def _index(self, name: Any, cells: dict[str, Any]) -> int:
        """The index of the text that a vote names by its column, its place, or a cell of its own such as model_c."""
        word = normalize_cell(name)
        keys = [name_key(column) for column in self.families[0]]
        named = [[normalize_cell(cells.get(column)) for column in family] for family in self.families[1:]]
        own = [family.index(word) for family in named if family.count(word) == 1 and not is_empty_cell(word)]
        place = re.fullmatch(r"(?i)(?:[a-z]+[ _-]?)?([a-z]|\d{1,2})", word)
        index = keys.index(name_key(word)) if name_key(word) in keys else own[0] if own else None
        if index is None and place is not None:
            index = int(place[1]) - self.start if place[1].isdecimal() else ord(place[1].lower()) - ord("a")
        if index is None or not 0 <= index < len(keys):
            raise UnreadableError(f"{self.vote} is {word[:40]!r}, which is none of {', '.join(self.families[0])}")
        return index


def find_options(
    columns: Collection[str], known: Mapping[str, str], rows: Iterable[SourceRow], answers: Collection[str]
) -> Options | None:
    """The columns of more than two texts; None for a file that has not more. known: the mapping of the user and the layout.

    Raises ColumnMappingError if numbers of votes may count from 0 or from 1, and if lists of numbers may name the texts, the best
    first, or be their ranks.
    """
    first = known.get("first") or next((name for name in columns if has_meaning(name, "first")), "")
    texts = _family(first, columns)
    rows = list(rows)
    if len(texts) < 3 or not any(not is_empty_cell(row.cells.get(name)) for row in rows for name in texts[2:]):
        return None
    families = [_family(name, columns) for name in columns]
    same = [family for family in families if len(family) == len(texts) and family != texts]
    votes = [known["choice"]] if "choice" in known else [name for name in columns if has_meaning(name, "choice")]
    votes += [name for name in columns if "choice" not in known and _is_ranking(name, rows)]
    vote = next(filter(None, votes), "")
    if _contains_ranks(vote, rows, texts, columns, answers):
        return Options((texts, *same), vote, 1, holds_ranks=True)
    votes_text = " ".join(str(row.cells.get(vote)) for row in rows)
    words = re.findall(r"(?<![\w.-])\d{1,2}(?![\w.-])", votes_text)
    numbers = set(map(int, words))
    starts = [start for start in (0, 1) if numbers <= set(range(start, len(texts) + start))]
    if len(starts) > 1 and numbers and not {FROM_ZERO, FROM_ONE} & set(answers):
        raise ColumnMappingError(
            f"{vote} names the {len(texts)} texts by {', '.join(map(str, sorted(numbers)))}.",
            answers=(FROM_ZERO, FROM_ONE),
            columns=columns,
        )
    start = 0 if FROM_ZERO in answers or (starts == [0] and FROM_ONE not in answers) else 1
    return Options((texts, *same), vote, start)


def _number_list(value: Any) -> list[int] | None:
    """The whole numbers of a list, or of a text that writes them with commas; None for any other cell."""
    value = read_cell(value).decoded
    items = value if isinstance(value, list) else str(value).split(",")
    words = [normalize_cell(item, is_vote=True) for item in items]
    return list(map(int, words)) if len(words) > 1 and all(re.fullmatch(r"\d{1,3}", word) for word in words) else None


def _is_ranking(column: str, rows: Iterable[SourceRow]) -> bool:
    """Whether a column ranks the texts by its name; one that is called "rank" only if it holds lists."""
    is_list = name_key(column) == RANK_KEY and any(_number_list(row.cells.get(column)) for row in rows)
    return is_list or name_key(column) in RANKING_NAMES


def _present(texts: Sequence[str], cells: Mapping[str, Any]) -> list[int]:
    """The indices of the texts that a row has."""
    return [index for index, name in enumerate(texts) if not is_empty_cell(cells.get(name))]


def _contains_ranks(
    vote: str, rows: Iterable[SourceRow], texts: Sequence[str], columns: Collection[str], answers: Collection[str]
) -> bool:
    """Whether the lists of numbers in the vote's column are ranks of the texts: if only that is possible, or the user says so.

    Raises ColumnMappingError if they may also name the texts, the best first, and that would give other votes.
    """
    cells = [row.cells for row in rows if vote]
    lists = [(numbers, len(_present(texts, row))) for row in cells if (numbers := _number_list(row.get(vote)))]
    may_be_ranks = bool(lists) and all(
        len(numbers) == count and min(numbers) in (0, 1) and max(numbers) < min(numbers) + count
        for numbers, count in lists
    )
    if {ORDER, RANKS} & set(answers) or not may_be_ranks:
        return RANKS in answers
    if any(len(set(numbers)) < len(numbers) for numbers, _ in lists):  # equal ranks; an order names each text once
        return True
    example = next((numbers for numbers, _ in lists if _ranks_of_order(numbers) != numbers), None)
    if example is None:
        return False
    raise ColumnMappingError(
        f"{vote} holds {example}: the texts by their numbers, the best first, or the ranks of the texts.",
        answers=(ORDER, RANKS),
        columns=columns,
    )


def _ranks_of_order(numbers: Sequence[int]) -> list[int]:
    """The rank of each text in a list that names all texts, the best first."""
    start = min(numbers)
    return [list(numbers).index(text) + start for text in range(start, start + len(numbers))]


def _family(first: str, columns: Collection[str]) -> tuple[str, ...]:
    """The columns that are called as `first` but for their letter or number: response_a, response_b, response_c."""
    by_key = {name_key(name): name for name in columns}
    matches = list(_FIRST_PLACE.finditer(first))
    if not matches:
        return ()
    place = matches[-1]
    names = [first]
    while len(names) < MAX_OPTIONS:
        following = str(int(place[0]) + len(names)) if place[0].isdecimal() else chr(ord(place[0]) + len(names))
        name = by_key.get(name_key(first[: place.start()] + following + first[place.end() :]))
        if name is None:
            break
        names.append(name)
    return tuple(names)
