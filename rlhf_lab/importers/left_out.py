"""Rows that hold no vote that counts: repeated headers, lines of a table, rejected work. They are left out and counted."""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from rlhf_lab.importers.cell_parsers import FALSE_WORDS, TRUE_WORDS, name_key, normalize_cell
from rlhf_lab.importers.cells import is_empty_cell
from rlhf_lab.importers.column_mapping import MEANINGS, ColumnMappingError
from rlhf_lab.importers.parsed_rows import LeftOut, RowError, SourceRow

#: What a column "… status" or "review …" says, as `name_key`, if the work does not count. MTurk has AssignmentStatus, Toloka
#: ASSIGNMENT:status, others status and review_status.
STATUSES = (
    "rejected", "reject", "disapproved", "notapproved", "denied",
    "declined", "skipped", "expired", "returned", "abandoned", "timedout", "discarded", "draft", "invalid",
    "cancelled", "canceled", "deleted", "failed",
)  # fmt: skip
#: Columns that are false for such work.
APPROVALS = ("approved", "isapproved", "valid", "isvalid")
#: Beginnings of words in the names of columns that say whether a row counts: it does not if they are true, or false.
DOUBTFUL_IF_TRUE = (
    "reject", "invalid", "taint", "cancel", "discard", "skip", "exclud", "delet", "remov", "spam", "flag", "fail", "expire",
    "abandon", "withdraw", "revok", "ignor", "disqualif", "fraud", "corrupt", "dropped", "broken", "bad", "duplicate",
)  # fmt: skip
DOUBTFUL_IF_FALSE = ("valid", "approv", "accept", "usable", "trusted", "passed", "complete", "qualif", "reliable")
_TIME = re.compile(r"\d{4}-\d\d-\d\d.*|.*\d\d?:\d\d.*|\d{1,2}[./]\d{1,2}[./]\d{2,4}.*|\d{10,19}")
#: Prodigy's "answer" beside "accept": the person rejected the task or passed it over.
PRODIGY_ANSWERS = ("reject", "ignore")
TABLE_LINE = "a line of a table"
#: Usual names of the columns of texts and votes.
USUAL_NAMES = {name for key in ("prompt", "chosen", "rejected", "first", "second", "choice") for name in MEANINGS[key]}
_TABLE_CELL = re.compile(r"[\s:+|]*[-=_─━═]+[\s:+|─━═=-]*")


def is_table_line(cells: Collection[str]) -> bool:
    """Whether the cells are the rule of a table that was pasted as a file: |-|-|, |:---:|---|, +---+---+ or ======."""
    filled = [cell for cell in cells if cell.strip()]
    return bool(filled) and all(map(_TABLE_CELL.fullmatch, filled))


def leave_out_rows(
    rows: Iterable[SourceRow | RowError], mapped: Collection[str] = ()
) -> Iterator[SourceRow | RowError]:
    """The rows; LeftOut in place of those that do not count. A header with other columns, or another order, ends the rows.

    mapped: columns that the user gave a meaning; they are no status.
    """
    for row in rows:
        if isinstance(row, RowError):
            yield row
        elif reason := _reason(row, mapped):
            yield LeftOut(row.row_number, row.location, reason)
        elif _is_other_header(row):
            message = "another header begins here, with other columns or in another order. Import the parts one by one"
            yield RowError(0, row.location, message)
            return
        else:
            yield row


def _reason(row: SourceRow, mapped: Collection[str]) -> str:
    """Why a row is left out, or ""."""
    filled = {name: value for name, value in row.cells.items() if not is_empty_cell(value)}
    texts = [value for value in filled.values() if isinstance(value, str)]
    if len(texts) > 1 and len(texts) == len(filled):
        if all(_clean(value) == _clean(name) for name, value in filled.items()):
            return "repeats the header"
        if is_table_line(texts):
            return TABLE_LINE
    for name, value in filled.items():
        if name in mapped:
            continue
        is_status = name_key(name).endswith("status") or name_key(name).startswith("review")
        is_approval = name_key(name) in APPROVALS and _word(value) in FALSE_WORDS
        if is_approval or (is_status and name_key(str(value)) in STATUSES):
            return f"{name} is {value}"
        if name_key(name) == "reject" and any(name_key(other) == "assignmentid" for other in row.cells):
            return f"{name} is not empty"  # in MTurk's results: the reason that the worker is told
    answer = str(filled.get("answer")).lower()
    return f"answer is {answer}" if "accept" in row.cells and answer in PRODIGY_ANSWERS else ""


def leave_out_doubtful(
    rows: Sequence[SourceRow | RowError], unused: Iterable[str], answers: Collection[str]
) -> list[SourceRow | RowError]:
    """The rows; LeftOut in place of those that a column such as is_rejected, or RejectionTime, calls invalid.

    Raises ColumnMappingError if the user has not said whether they count. unused: columns without a meaning.
    """
    cells = {name: [row.cells.get(name) for row in rows if isinstance(row, SourceRow)] for name in unused}
    bad = {name: pattern for name, values in cells.items() if (pattern := _doubtful_values(name, values))}
    reasons = {
        index: f"{name} is {row.cells[name]}"
        for index, row in enumerate(rows) if isinstance(row, SourceRow)
        for name, pattern in bad.items() if pattern.fullmatch(_word(row.cells.get(name)))
    }  # fmt: skip
    if not reasons or "status=count" in answers:
        return list(rows)
    if "status=skip" not in answers:
        index, reason = next(iter(reasons.items()))
        raise ColumnMappingError(
            f"{rows[index].location}: {reason}, so the row may not count; this applies to {len(reasons)} of "
            f"{len(rows)} rows.",
            answers=("status=skip", "status=count"),
        )
    return [
        LeftOut(row.row_number, row.location, reasons[index]) if index in reasons else row
        for index, row in enumerate(rows)
    ]


def _word(value: Any) -> str:
    return "" if is_empty_cell(value) else normalize_cell(value).casefold()


def _doubtful_values(name: str, values: Collection[Any]) -> re.Pattern[str] | None:
    """The values of a column with which a row may not count; None for a column that says nothing about that.

    Its name speaks of validity, and its values are true or false, or times.
    """
    parts = [part.casefold() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]
    is_negative, is_positive = (
        any(part.startswith(stems) for part in parts) for stems in (DOUBTFUL_IF_TRUE, DOUBTFUL_IF_FALSE)
    )
    filled = list(filter(None, map(_word, values)))
    if is_negative and filled and all(map(_TIME.fullmatch, filled)):
        return _TIME
    if not (is_negative or is_positive) or not all(word in TRUE_WORDS + FALSE_WORDS for word in filled):
        return None
    return re.compile("|".join(TRUE_WORDS if is_negative else FALSE_WORDS))


def _is_other_header(row: SourceRow) -> bool:
    """Whether a table's row is the header of other columns: its cells differ, and most are names of columns."""
    values = [_clean(value) for value in row.cells.values() if isinstance(value, str) and not is_empty_cell(value)]
    names = [value for value in values if value in USUAL_NAMES or value in map(_clean, row.cells)]
    is_header = 2 * len(names) > len(values) and len(names) > 1 and len(set(values)) == len(values)
    return row.strings_only and is_header


def _clean(name: str) -> str:
    """A name without its case and the byte order mark of a second file that was joined to the first."""
    return name.lstrip("\ufeff").strip().casefold()
