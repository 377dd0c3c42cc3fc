"""Rows that hold no vote that counts: repeated headers, lines of a table, rejected work. They are left out and counted."""

import re
from collections.abc import Iterable, Iterator

from rlhf_lab.importers.cell_parsers import is_blank, name_key
from rlhf_lab.importers.parsed_rows import LeftOut, RowError, SourceRow

#: Column (as `name_key`) -> its values, in lower case, that say that the work does not count. MTurk writes AssignmentStatus,
#: Toloka ASSIGNMENT:status.
STATUSES = {"assignmentstatus": ("rejected", "skipped", "expired", "returned", "abandoned")}
#: Prodigy's "answer" beside "accept": the person rejected the task or passed it over.
PRODIGY_ANSWERS = ("reject", "ignore")
_TABLE_LINE = re.compile(r"\s*:?-{2,}:?\s*")


def leave_out_rows(rows: Iterable[SourceRow | RowError]) -> Iterator[SourceRow | RowError]:
    """The rows; LeftOut in place of those that do not count. A header with the columns in another order ends the rows."""
    for row in rows:
        if isinstance(row, RowError):
            yield row
        elif reason := _reason(row):
            yield LeftOut(row.row_number, row.location, reason)
        elif _is_other_header(row):
            message = "another header begins here, with the columns in another order. Import the parts one by one"
            yield RowError(0, row.location, message)
            return
        else:
            yield row


def _reason(row: SourceRow) -> str:
    """Why a row is left out, or ""."""
    filled = {name: value for name, value in row.cells.items() if not is_blank(value)}
    texts = [value for value in filled.values() if isinstance(value, str)]
    if len(texts) > 1 and len(texts) == len(filled):
        if all(_clean(value) == _clean(name) for name, value in filled.items()):
            return "repeats the header"
        if all(map(_TABLE_LINE.fullmatch, texts)):
            return "a line of a table"
    for name, value in filled.items():
        if str(value).lower() in STATUSES.get(name_key(name), ()):
            return f"{name} is {value}"
    answer = str(filled.get("answer")).lower()
    return f"answer is {answer}" if "accept" in row.cells and answer in PRODIGY_ANSWERS else ""


def _is_other_header(row: SourceRow) -> bool:
    values = [_clean(value) for value in row.cells.values() if isinstance(value, str)]
    return row.strings_only and len(values) > 1 and sorted(values) == sorted(map(_clean, row.cells))


def _clean(name: str) -> str:
    """A name without its case and the byte order mark of a second file that was joined to the first."""
    return name.lstrip("\ufeff").strip().casefold()
