"""Texts of one column of a file or of a data set on the Hub: what PPO-ptx mixes into a run."""

from pathlib import Path
from typing import NamedTuple

from rlhf_lab.errors import DataError
from rlhf_lab.imports.files import Rows, plain_name, read_lines, read_rows
from rlhf_lab.imports.found import USUAL, Limits, Problem
from rlhf_lab.imports.hub import hub_rows, is_hub_name

MOST = 10_000  # texts; a run draws a few of them at each update
USUAL_COLUMN = "text"


class Texts(NamedTuple):
    """texts without their ends' white space, none empty; source: the file or data set and its column, for a person."""

    texts: list[str]
    source: str


def texts_of(what: str, limits: Limits = USUAL) -> Texts:
    """`what`: FILE.txt (or .txt.gz) with a text a line, or FILE:COLUMN or OWNER/NAME:COLUMN of any kind of file that can be
    imported.

    Without :COLUMN the column "text" is read, or the only one. At most MOST texts are kept, the first. DataError names the
    row and the columns.
    """
    name, column = _parted(what)
    path = Path(name).expanduser()
    if plain_name(path).endswith(".txt"):
        return Texts(_some([line.strip() for line in read_lines(path, limits)], path.name), path.name)
    if not path.exists() and is_hub_name(name):
        rows = hub_rows(name, limits=Limits(limits.bytes, MOST, limits.characters))[1]
    else:
        rows = read_rows(path, limits)[1]
    column, texts = _column(rows, column, Path(name).name)
    return Texts(_some(texts, f"{name}:{column}"), f"{Path(name).name}:{column}")


def _parted(what: str) -> tuple[str, str]:
    """A colon in the path itself (C:/…) parts nothing; a file of the whole name goes before."""
    name, colon, column = what.rpartition(":")
    return (name, column) if colon and not Path(what).exists() and "/" not in column else (what, "")


def _column(rows: Rows, column: str, name: str) -> tuple[str, list[str]]:
    texts: list[str] = []
    for row in rows:
        if isinstance(row, Problem):
            if row.number == 0 and len(texts) >= MOST:
                break
            raise DataError(f"{name}: {row}. Mend the file, or choose another.")
        there = [str(key) for key in row.columns]
        column = column or (there[0] if len(there) == 1 else USUAL_COLUMN)
        value = row.columns.get(column)
        if column not in row.columns or not (value is None or isinstance(value, str)):
            raise DataError(
                f'{name}, {row.where}: there is no text in a column "{column}". The columns are {", ".join(there)[:300]}. Choose '
                "one that holds texts (FILE:COLUMN on the command line)."
            )
        texts.append((value or "").strip())
        if len(texts) >= MOST:
            break
    return column, texts


def _some(texts: list[str], what: str) -> list[str]:
    found = [text for text in texts if text][:MOST]
    if not found:
        raise DataError(f"{what} holds no text. Choose a file or a column with texts.")
    return found
