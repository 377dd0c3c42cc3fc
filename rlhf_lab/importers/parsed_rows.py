"""What is read from a file of preferences, and what is said about it."""

from dataclasses import dataclass, field
from typing import Any

from rlhf_lab.common.enums import Choice, Source, Strength

MAX_LISTED_ERRORS = 20  # problems named one by one
IMPORTED = "imported"  # the annotator of rows that name none


@dataclass(frozen=True)
class Limits:
    """What a lab takes in at once. bytes: of the file and, where it is packed, of what it unpacks to; characters: of one text."""

    max_bytes: int = 200_000_000
    max_rows: int = 200_000
    max_characters: int = 50_000


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class SourceRow:
    """One row as it stands in the file: its number (from 1), where that is for a person ("row 3, line 5"), its columns."""

    row_number: int
    location: str
    cells: dict[str, Any]
    strings_only: bool = False  # CSV: a list can only be written as its JSON


@dataclass(frozen=True)
class RowError:
    """Why a row (number; 0: the file from here on) cannot be used, and the remedy."""

    row_number: int
    location: str
    message: str

    def __str__(self) -> str:
        return f"{self.location}: {self.message}"


@dataclass(frozen=True)
class ParsedCompletion:
    """One of the two texts. checkpoint, seed: what the file says wrote it; ids: token ids, empty where unknown."""

    text: str
    checkpoint: str = ""
    seed: int = 0
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class ParsedVote:
    """What one person (or judge) said about two texts for one prompt.

    first_on_left None: the file does not say where they stood. pair: the file's own name of the pair, or "".
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


@dataclass(frozen=True)
class ParsedFile:
    """A whole file, understood. `digest` is the SHA-256 of its bytes (of a Hub dataset: of its rows)."""

    name: str
    digest: str
    row_format: str
    mapping: dict[str, str]
    unused_columns: tuple[str, ...]
    row_count: int
    votes: list[ParsedVote] = field(default_factory=list)
    errors: list[RowError] = field(default_factory=list)
