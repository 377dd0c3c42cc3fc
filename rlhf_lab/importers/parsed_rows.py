"""Records of a parsed file: rows, errors, completions, votes."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rlhf_lab.common.enums import Choice, Source, Strength
from rlhf_lab.importers.cells import Kind, read_cell

MAX_LISTED_ERRORS = 20  # errors that are listed one by one
IMPORTED = "imported"  # annotator of rows without one, and checkpoint of imported completions


@dataclass(frozen=True)
class Limits:
    """Largest import.

    Attributes:
        max_bytes: of the file and, if it is compressed, of its decompressed content.
        max_characters: of one text.
    """

    max_bytes: int = 200_000_000
    max_rows: int = 200_000
    max_characters: int = 50_000

    @property
    def max_memory(self) -> int:
        """Bytes of memory that reading may take: decoded JSON takes up to 20 times as much as its text."""
        return 20 * self.max_bytes


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class SourceRow:
    """One row of the file.

    Attributes:
        row_number: counted from 1.
        location: for messages, e.g. "row 3 (line 5)".
        cells: column -> value.
        strings_only: CSV, which stores lists as JSON text.
    """

    row_number: int
    location: str
    cells: dict[str, Any]
    strings_only: bool = False


@dataclass(frozen=True)
class RowError:
    """Why a row cannot be used, and the remedy. row_number 0: the file from `location` on."""

    row_number: int
    location: str
    message: str

    def __str__(self) -> str:
        return f"{self.location}: {self.message}"


@dataclass(frozen=True)
class LeftOut(RowError):  # noqa: N818  no exception
    """A row, or a part of one, that holds no vote that counts. message: why."""


def list_columns(rows: Iterable[SourceRow | RowError]) -> list[str]:
    """The columns that at least one row has."""
    return list(dict.fromkeys(column for row in rows if isinstance(row, SourceRow) for column in row.cells))


def list_filled_columns(rows: Iterable[SourceRow | RowError]) -> list[str]:
    """The columns with a value in at least one row."""
    filled: dict[str, None] = {}
    for row in rows:
        for column, value in row.cells.items() if isinstance(row, SourceRow) else ():
            if column not in filled and read_cell(value).kind is not Kind.BLANK:
                filled[column] = None
    return list(filled)


@dataclass(frozen=True)
class ParsedCompletion:
    """One of the two texts, with the checkpoint and seed that the file names. token_ids: empty if unknown."""

    text: str
    checkpoint: str = ""
    seed: int = 0
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class ParsedVote:
    """What one person (or judge) chose between two texts for one prompt.

    Attributes:
        source, first_on_left, response_ms, created_at, strength: None if the file does not contain them.
        pair_name: the file's own name of the pair, or "".
        via: how the vote was cast, if the file is an export of a lab.
    """

    row_number: int
    prompt: str
    first: ParsedCompletion
    second: ParsedCompletion
    choice: Choice
    annotator: str = ""
    source: Source | None = None
    first_on_left: bool | None = None
    response_ms: int | None = None
    created_at: float | None = None
    uuid: str = ""
    pair_name: str = ""
    reason: str = ""
    split: str = ""
    model_hash: str = ""
    strength: Strength | None = None
    note: str = ""
    repeat: bool = False
    via: str = ""
    adjudication: bool = False


@dataclass(frozen=True)
class ParsedFile:
    """A parsed file.

    Attributes:
        digest: SHA-256 of its bytes (of a Hub data set: of its rows).
        columns: all that can be mapped, also parts of columns.
        left_out: reason -> number of rows, or votes in a row, that do not count.
        same_names: names of annotators that the file writes in several ways, each with these.
    """

    name: str
    digest: str
    row_format: str
    mapping: dict[str, str]
    unused_columns: tuple[str, ...]
    row_count: int
    votes: list[ParsedVote] = field(default_factory=list)
    errors: list[RowError] = field(default_factory=list)
    columns: tuple[str, ...] = ()
    left_out: dict[str, int] = field(default_factory=dict)
    same_names: dict[str, list[str]] = field(default_factory=dict)

    @property
    def split_by_prompt(self) -> dict[str, str]:
        """Each prompt with its split; "" if the file gives none."""
        splits: dict[str, str] = {}
        for vote in self.votes:
            splits[vote.prompt] = splits.get(vote.prompt) or vote.split
        return splits
