"""Texts of one column of a file or Hub data set, for PPO-ptx."""

from pathlib import Path
from typing import NamedTuple

from rlhf_lab.errors import DataError
from rlhf_lab.importers.hub_reader import is_hub_id, read_hub_rows
from rlhf_lab.importers.memory_limit import limited_memory
from rlhf_lab.importers.parsed_rows import DEFAULT_LIMITS, Limits, RowError
from rlhf_lab.importers.readers import RowStream, read_lines, read_rows, uncompressed_name

MAX_TEXTS = 10_000  # a run samples a few of them at each update
DEFAULT_COLUMN = "text"


class TextCorpus(NamedTuple):
    """texts: stripped, none empty; source: file or data set and column, for display."""

    texts: list[str]
    source: str


def load_texts(spec: str, limits: Limits = DEFAULT_LIMITS) -> TextCorpus:
    """The first MAX_TEXTS texts of a corpus.

    Args:
        spec: FILE.txt (or .txt.gz) with one text per line, or FILE:COLUMN or OWNER/NAME:COLUMN in any format that can be
            imported. Without :COLUMN the only column, or the column "text".

    Raises:
        DataError: names the row and the columns.
    """
    name, column = _split_column(spec)
    with limited_memory(Path(name).name, limits):
        return _load_texts(name, column, limits)


def _load_texts(name: str, column: str, limits: Limits) -> TextCorpus:
    path = Path(name).expanduser()
    if uncompressed_name(path).endswith(".txt"):
        return TextCorpus(_require_texts([line.strip() for line in read_lines(path, limits)], path.name), path.name)
    if not path.exists() and is_hub_id(name):
        rows = read_hub_rows(name, limits=Limits(limits.max_bytes, MAX_TEXTS, limits.max_characters))[1]
    else:
        rows = read_rows(path, limits)[1]
    column, texts = _read_column(rows, column, Path(name).name)
    return TextCorpus(_require_texts(texts, f"{name}:{column}"), f"{Path(name).name}:{column}")


def _split_column(spec: str) -> tuple[str, str]:
    """(name, column or ""). A colon followed by a slash (C:/…), or part of an existing file's name, separates no column."""
    name, colon, column = spec.rpartition(":")
    return (name, column) if colon and not Path(spec).exists() and "/" not in column else (spec, "")


def _read_column(rows: RowStream, column: str, name: str) -> tuple[str, list[str]]:
    texts: list[str] = []
    for row in rows:
        if isinstance(row, RowError):
            if row.row_number == 0 and len(texts) >= MAX_TEXTS:
                break
            raise DataError(f"{name}: {row}. Correct the file, or choose another.")
        column_names = [str(key) for key in row.cells]
        column = column or (column_names[0] if len(column_names) == 1 else DEFAULT_COLUMN)
        value = row.cells.get(column)
        if column not in row.cells or not (value is None or isinstance(value, str)):
            raise DataError(
                f'{name}, {row.location}: there is no text in a column "{column}". The columns are '
                f"{', '.join(column_names)[:300]}. Choose one that holds texts (FILE:COLUMN on the command line)."
            )
        texts.append((value or "").strip())
        if len(texts) >= MAX_TEXTS:
            break
    return column, texts


def _require_texts(texts: list[str], source: str) -> list[str]:
    non_empty = [text for text in texts if text][:MAX_TEXTS]
    if not non_empty:
        raise DataError(f"{source} holds no text. Choose a file or a column with texts.")
    return non_empty
