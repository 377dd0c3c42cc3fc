"""What is read from a file of preferences, and what is said about it."""

from dataclasses import dataclass, field
from typing import Any

from rlhf_lab.kinds import Choice, Source, Strength

TOLD = 20  # problems named one by one
IMPORTED = "imported"  # the annotator of rows that name none


@dataclass(frozen=True)
class Limits:
    """What a lab takes in at once. bytes: of the file and, where it is packed, of what it unpacks to; characters: of one text."""

    bytes: int = 200_000_000
    rows: int = 200_000
    characters: int = 50_000


USUAL = Limits()


@dataclass(frozen=True)
class Row:
    """One row as it stands in the file: its number (from 1), where that is for a person ("row 3, line 5"), its columns."""

    number: int
    where: str
    columns: dict[str, Any]
    texts_only: bool = False  # CSV: a list can only be written as its JSON


@dataclass(frozen=True)
class Problem:
    """Why a row (number; 0: the file from here on) cannot be used, and the remedy."""

    number: int
    where: str
    words: str

    def __str__(self) -> str:
        return f"{self.where}: {self.words}"


@dataclass(frozen=True)
class Side:
    """One of the two texts. checkpoint, seed: what the file says wrote it; ids: token ids, empty where unknown."""

    text: str
    checkpoint: str = ""
    seed: int = 0
    ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """What one person (or judge) said about two texts for one prompt.

    first_on_left None: the file does not say where they stood. pair: the file's own name of the pair, or "".
    """

    row: int
    prompt: str
    first: Side
    second: Side
    choice: Choice
    annotator: str = ""
    source: Source | None = None
    first_on_left: bool | None = None
    response_ms: int | None = None
    created_at: float | None = None
    uuid: str = ""
    pair: str = ""
    reason: str = ""
    split: str = ""
    model_hash: str = ""
    strength: Strength | None = None
    note: str = ""
    repeat: bool = False
    via: str = ""


@dataclass(frozen=True)
class Found:
    """A whole file, understood. `digest` is the SHA-256 of its bytes (of a Hub dataset: of its rows)."""

    name: str
    digest: str
    shape: str
    mapping: dict[str, str]
    unused: tuple[str, ...]
    rows: int
    judgements: list[Judgement] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
